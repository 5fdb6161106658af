"""An operator sees which branches in doubt are of a query's batch, and decides them as any others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.contract_batches import batch, bodies, prepared
from support.doubtful import leave_in_doubt, listed, run
from xaqueue.batch import MANY_SPACES, ONE_SPACE
from xaqueue.errors import HeuristicOutcome
from xaqueue.features.session import attach
from xaqueue.xid import Xid


@pytest.mark.parametrize("format_id", [ONE_SPACE, MANY_SPACES])
def test_a_branch_of_a_batch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_id: int) -> None:
    xid = Xid(format_id, batch(12).gtrid, b"p3.17")
    monkeypatch.setenv("XAQUEUE_SPACE", str(leave_in_doubt(tmp_path / "space", xid)))
    named = f"batch 12 of query {batch().key} (Spark)"
    assert f"  {named}  " in run("indoubt", "list")
    told = run("indoubt", "show", xid)
    assert f"coordinator   {named}: the query decides" in told
    assert ("perhaps in others" in told) is (format_id == MANY_SPACES)
    (branch,) = listed()
    assert branch["batch"] == {"query": batch().key, "number": 12, "here": format_id == ONE_SPACE}
    assert json.loads(run("indoubt", "show", xid, "--json"))["coordinator"] is None


def test_what_is_decided_by_hand_is_known_to_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XAQUEUE_SPACE", str(tmp_path / "space"))
    session = attach(tmp_path / "space", create_missing=True, watch=False)
    xids = [prepared(session, bqual, batch()) for bqual in ("a", "b")]
    session.close()
    run("indoubt", "rollback", xids[0], "--reason", "why")
    session = attach(tmp_path / "space", watch=False)
    with pytest.raises(HeuristicOutcome, match="Write the batch again"):
        session.commit_all(batch(), xids)
    session.commit_all(batch(), [prepared(session, "again", batch())])
    assert bodies(session) == [b"again"]
    session.close()
    assert run("check").endswith("no damage\n")
