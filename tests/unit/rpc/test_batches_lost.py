"""The answer to a decision may be lost anywhere: the client asks again, and everything happens once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from support.contract_batches import SCAN, batch, bodies, prepared
from support.cutting_proxy import Cut, CuttingProxy
from support.served import ServerThread
from xaqueue.core.owner import open as attach_room
from xaqueue.errors import OutcomeUnknown
from xaqueue.rpc.client.manager import remote_manager

CUTS = [Cut(*point, when) for point in product(("request", "answer"), (1, 2)) for when in ("before", "within", "after")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    attach_room.create(tmp_path / "space", any_queue=True)
    made = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    yield made
    made.stop()


@pytest.fixture
def proxy(server: ServerThread, tmp_path: Path) -> Iterator[CuttingProxy]:
    made = CuttingProxy(tmp_path / "proxy", server.path)
    yield made
    made.close()


@pytest.mark.parametrize("verb", ["commit_all", "rollback_all", "decision"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_it_is_asked_again(server: ServerThread, proxy: CuttingProxy, cut: Cut, verb: str) -> None:
    beside = remote_manager(server.url)
    xids = [prepared(beside, bqual, batch()) for bqual in ("a", "b")]
    prepared(beside, "failed", batch())
    proxy.arm(cut)
    manager = remote_manager(proxy.url)
    if verb == "commit_all":
        decision = manager.commit_all(batch(), xids)
        assert decision.xids == tuple(xids)
        assert beside.decision(batch()) == decision
        assert (bodies(beside), beside.recover(10, SCAN)) == ([b"a", b"b"], [])
    elif verb == "rollback_all":
        assert manager.rollback_all(batch()) in (0, 3)
        assert (bodies(beside), beside.recover(10, SCAN)) == ([], [])
    else:
        assert manager.decision(batch()) is None
        assert len(beside.recover(10, SCAN)) == 3
    beside.close()
    manager.close()


def test_a_server_that_is_gone_for_good_leaves_it_unknown(server: ServerThread) -> None:
    manager = remote_manager(server.url, connect_s=0.05)
    xid = prepared(manager, "a", batch())
    server.stop()
    with pytest.raises(OutcomeUnknown, match="call commit_all again"):
        manager.commit_all(batch(), [xid])
