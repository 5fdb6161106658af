"""Whoever forgets a heuristic is on record, whatever crash comes between."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import FaultyFileSystem
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.errors import DecisionLogError
from xaqueue.tm import log_directory
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.records import Heuristic
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome

GTRID = bytes(Gtrid("0123456789abcdef", 1, 1))
NOTED = Heuristic(
    GTRID, "ledger", Outcome.COMMITTED, ParticipantOutcome.HEUR_ROLLED_BACK, 1_700_000_000_000_000, "in its words"
)
SEGMENT_BYTES = 64 * 1024


def before() -> Tree:
    """A log that has noted a heuristic."""
    fs = ForgetfulFileSystem()
    log = DecisionLog(fs, segment_bytes=SEGMENT_BYTES)
    log.note(NOTED)
    log.close()
    return fs.tree_after_kill()


def crashes(tree: Tree) -> Iterator[ForgetfulFileSystem]:
    """The file system after a crash at every call of a forget by hand, and after all of them."""
    first = tree.open()
    DecisionLog(first, segment_bytes=SEGMENT_BYTES)
    for crash_after in count(first.calls):
        fs = tree.open()
        log = DecisionLog(fs, segment_bytes=SEGMENT_BYTES)
        fs.crash_after = crash_after
        try:
            log_directory.record_forgotten(fs, [NOTED], "you@there", 7, "told")
            log.forget(GTRID)
        except (Crashed, DecisionLogError):
            assert fs.crashed
            yield fs
        else:
            yield fs
            return


@pytest.mark.usefixtures("quiet")
def test_no_crash_loses_a_heuristic_without_a_line() -> None:
    tree, lost, kept = before(), 0, 0
    for fs in crashes(tree):
        for left in fs.trees_after_crash(1 << 8):
            opened = left.open()
            log = DecisionLog(opened, segment_bytes=SEGMENT_BYTES)
            told = log_directory.read_forgotten(opened)
            if log.table.heuristics:
                kept += 1
                log_directory.record_forgotten(opened, [NOTED], "you@there", 8, "told again")
                log.forget(GTRID)
                assert log_directory.read_forgotten(opened)[-1].forgotten_reason == "told again"
            else:
                lost += 1
                assert [(line.participant, line.party, line.forgotten_by) for line in told] == [
                    ("ledger", "rolled back by itself", "you@there")
                ]
    assert lost
    assert kept


def test_without_room_nothing_is_forgotten(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    fs.faults["write_at", log_directory.OPERATOR_LOG] = errno.ENOSPC
    with pytest.raises(DecisionLogError, match="nothing is forgotten, try again"):
        log_directory.record_forgotten(fs, [NOTED], "me", 7, "")
    fs.faults.clear()
    (tmp_path / log_directory.OPERATOR_LOG).write_bytes(b'{"gtrid": "XAQ')
    log_directory.record_forgotten(fs, [NOTED, NOTED], "me", 7, "")
    fs.close()
    assert len(log_directory.read_forgotten(fs)) == 2
