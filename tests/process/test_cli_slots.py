"""An operator's commands on a directory that several processes share: what each has left is seen, and is finished."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from support.doubtful import bodies, fails, run
from support.tm_left import Left, leave
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.engine.heuristics import decide
from xaqueue.features.session import attach
from xaqueue.tm.log_directory import PARTICIPANTS, open_log, view_logs


def as_slot(left: Left) -> Left:
    """The process had slot 1, and slot 0 is another one's."""
    other = left.log.with_name("moved")
    left.log.rename(other)
    open_log(left.log).close()
    (other / PARTICIPANTS).rename(left.log / PARTICIPANTS)
    (left.log / "slots").mkdir()
    other.rename(left.log / "slots" / "1")
    return left


@pytest.fixture
def decided(tmp_path: Path) -> Left:
    return as_slot(leave(tmp_path, "decided"))


def test_it_is_shown(decided: Left) -> None:
    assert decided.gtrid in run("tm", "status", decided.log)
    told = json.loads(run("tm", "status", decided.log, "--json"))
    (slot,) = told["slots"]
    assert (told["unfinished"], slot["unfinished"], slot["node"]) == (0, 1, decided.node)
    assert slot["log_dir"] == str(decided.log / "slots" / "1")
    assert [one["in_doubt"] for one in told["participants"]] == [1, 1]
    shown = run("tm", "status", decided.log)
    assert shown.count("not running") == 2
    with closing(open_log(decided.log)):
        assert "free: what its process has left is finished by another one" in run("tm", "status", decided.log)
    assert "commit is decided" in run("indoubt", "advise", decided.gtrid, "--tm", decided.log)


def test_recover_finishes_it(decided: Left) -> None:
    told = run("tm", "recover", decided.log)
    assert "0 transactions left" in told
    assert (bodies(decided.queue, "orders"), bodies(decided.ledger, "rows")) == ([b"order"], [b"row"])
    assert len(view_logs(decided.log)) == 2


def test_recover_makes_no_slot(decided: Left) -> None:
    """Each is in use: those processes do it by themselves."""
    logs = [open_log(view.root) for view in view_logs(decided.log)]
    for verb in (("recover", decided.log), ("release", decided.log, "0" * 32, "--yes")):
        assert "is in use" in fails("tm", *verb, code=ExitCode.ERROR)
    assert len(view_logs(decided.log)) == 2
    logs[0].close()
    assert "slots/1 is in use" in fails("tm", "release", decided.log, "0" * 32, "--yes", code=ExitCode.ERROR)
    logs[1].close()


def test_it_is_finished_there_while_another_process_runs(decided: Left) -> None:
    with closing(open_log(decided.log)):
        assert "0 transactions left" in run("tm", "recover", decided.log)
    assert bodies(decided.ledger, "rows") == [b"row"]


def test_heuristics_are_forgotten_there(decided: Left) -> None:
    session = attach(decided.root / "ledger", watch=False)
    decide(session.space, decided.xid("ledger"), False, "me@here")
    session.close()
    assert ": heuristic, ledger was rolled back by itself\n" in run("tm", "recover", decided.log, code=ExitCode.NOTHING)
    with closing(open_log(decided.log / "slots" / "1")):
        assert "slots/1 is in use" in fails("tm", "forget", decided.log, decided.gtrid, code=ExitCode.ERROR)
    run("tm", "forget", decided.log, decided.gtrid, "--reason", "set right")
    assert [view.table.heuristics for view in view_logs(decided.log)] == [{}, {}]
    (slot,) = json.loads(run("tm", "status", decided.log, "--json"))["slots"]
    assert [line["gtrid"] for line in slot["forgotten"]] == [decided.gtrid]
