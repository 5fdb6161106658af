"""Messages of one branch keep their order in a queue, wherever a crash cuts their commit off."""

from __future__ import annotations

from contextlib import suppress

import pytest

from support.crash_level import JOURNAL, STRICT, Level, open_space
from support.crash_story import EMPTY, look
from support.forgetful import Crashed, ForgetfulFileSystem
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

XID = Xid(1, b"three", b"")
COUNT = 3


def commit_three(fs: ForgetfulFileSystem, level: Level, one_phase: bool) -> None:
    session = Session(open_space(fs, level))
    session.start(XID)
    for number in range(COUNT):
        session.enqueue("red", b"%d" % number, message_id=bytes([number]) * 16)
    session.end(XID)
    if one_phase:
        session.commit(XID, Flag.ONEPHASE)
    else:
        session.prepare(XID)
        session.commit(XID)


@pytest.mark.parametrize("one_phase", [False, True])
@pytest.mark.parametrize("level", [STRICT, JOURNAL], ids=str)
def test_a_commit_that_was_cut_off_keeps_the_order(quiet: None, level: Level, one_phase: bool) -> None:
    crash_after, partly_moved = 0, 0
    while True:
        fs = EMPTY.open(crash_after)
        with suppress(Crashed, ResourceFailed):
            commit_three(fs, level, one_phase)
        for tree in fs.trees_after_crash(limit=256):
            moved = [path for path, content in tree.nodes.items() if content and path.count("/") == 3]
            partly_moved += any(path.rpartition(".")[2] == "commit" for path in tree.nodes) and 0 < len(moved) < COUNT
            space = open_space(tree.open(), level)
            seen = look(space, Session(space))
            bodies = [message.body for message in Session(space).browse("red")]
            assert bodies == sorted(bodies), (crash_after, tree)
            assert len(bodies) in (0, COUNT)
            assert space.queue("red").published >= max(seen.seqs.values(), default=0)
        if not fs.crashed:
            break
        crash_after += 1
    assert partly_moved > COUNT or level.hardening.journal  # which has no .commit
