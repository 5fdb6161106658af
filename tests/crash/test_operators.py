"""What operators forget is told in operators.log first: through crashes, without room, and beside other lines."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import BareSpace, bare_space
from support.careless_log import careless
from support.crash_level import Level, level_of, open_space
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.heuristics import Forgotten
from xaqueue.core.model import layout
from xaqueue.core.model.branch import State
from xaqueue.core.storage import append_log
from xaqueue.errors import InvalidArgument, ProtocolError, ResourceFailed, RetryLater, UnknownXid
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

LEVELS = ("NONE", "FDATASYNC;DSYNC", "JOURNAL")


@pytest.fixture(params=LEVELS)
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param) as opened:
        yield opened


def decided(bare: BareSpace, name: str, *, commit: bool = True) -> Xid:
    xid = bare.prepare(name, add=[("orders", name.encode())])
    heuristics.decide(bare.space, xid, commit, "me@here", f"why {name}")
    return xid


def forget(bare: BareSpace, xid: Xid, reason: str = "") -> None:
    Session(bare.space).forget_by_hand(xid, "you@there", reason)


def test_lines_are_added_and_outlive_reopens(bare: BareSpace) -> None:
    one, two = decided(bare, "one"), decided(bare, "two", commit=False)
    forget(bare, one, "told")
    bare.reopen()
    forget(bare, two)
    told = heuristics.forgotten(bare.root)
    assert [(line.xid, line.outcome, line.reason) for line in told] == [
        (str(one), "commit", "why one"),
        (str(two), "rollback", "why two"),
    ]
    assert [(line.forgotten_by, line.forgotten_reason) for line in told] == [("you@there", "told"), ("you@there", "")]
    assert told == heuristics.forgotten_in(bare.space.fs)
    assert bare.in_doubt() == []


def test_what_is_not_decided_leaves_no_line(bare: BareSpace) -> None:
    xid = bare.prepare("one", add=[("orders", b"1")])
    for wrong in (xid, Xid(1, b"nobody", b"")):
        with pytest.raises(UnknownXid):
            forget(bare, wrong)
    bare.fs.faults["make_dir", layout.queue_path("orders")] = errno.ENOSPC
    if bare.sync != "JOURNAL":  # there the directories find room by themselves
        with pytest.raises(RetryLater):
            heuristics.decide(bare.space, xid, True, "me@here")
        with pytest.raises(ProtocolError, match="not carried out yet"):
            forget(bare, xid)
    assert heuristics.forgotten(bare.root) == []


def test_a_torn_last_line_is_skipped_and_closed(bare: BareSpace) -> None:
    xid = decided(bare, "one")
    (bare.root / layout.OPERATORS).write_bytes(b'{"xid": "1.b25l.Yg", "outco')
    forget(bare, xid)
    assert [line.xid for line in heuristics.forgotten(bare.root)] == [str(xid)]
    assert (bare.root / layout.OPERATORS).read_bytes().count(b"\n") == 2


def test_without_room_nothing_is_forgotten(bare: BareSpace) -> None:
    xid = decided(bare, "one")
    forget(bare, decided(bare, "before"))
    bare.fs.faults["write_at", layout.OPERATORS] = errno.ENOSPC
    with pytest.raises(RetryLater, match="nothing was forgotten"):
        forget(bare, xid)
    assert bare.in_doubt() == [xid]
    bare.fs.faults.clear()
    forget(bare, xid)
    assert bare.in_doubt() == []
    assert len(heuristics.forgotten(bare.root)) == 2


def test_without_room_nothing_is_decided(bare: BareSpace) -> None:
    xid = bare.prepare("one", add=[("orders", b"1")])
    bare.fs.faults["write_at", layout.OPERATORS] = errno.ENOSPC
    with pytest.raises(RetryLater, match="nothing was done"):
        heuristics.decide(bare.space, xid, True, "me@here", "why")
    assert not bare.space.fs.exists(f"{layout.HEURISTIC}/{xid}")
    bare.fs.faults.clear()
    assert heuristics.decide(bare.space, xid, True, "me@here", "why").outcome == "commit"
    assert heuristics.forgotten(bare.root) == []


def test_text_that_is_no_line_is_refused(bare: BareSpace) -> None:
    xid = decided(bare, "one")
    for by, reason in (("a\nb", ""), ("me", "\x00"), ("me", "x" * 1001)):
        with pytest.raises(InvalidArgument, match="1000 characters"):
            Session(bare.space).forget_by_hand(xid, by, reason)
    assert bare.in_doubt() == [xid]


DECIDED = Xid(1, b"decided", b"b")


def before(level: Level) -> Tree:
    """A decision is recorded and carried out, and nothing was forgotten yet."""
    fs = EMPTY.open()
    session = Session(open_space(fs, level))
    session.start(DECIDED)
    session.enqueue("orders", b"1")
    session.end(DECIDED)
    session.prepare(DECIDED)
    heuristics.decide(session.space, DECIDED, True, "me@here", "why")
    session.space.close()
    return fs.tree_after_kill()


def crashes(tree: Tree, level: Level) -> Iterator[ForgetfulFileSystem]:
    """The file system after a crash at every call of a forget by hand, and after all of them."""
    first = tree.open()
    open_space(first, level)
    for crash_after in count(first.calls):
        fs = tree.open()
        fs.crash_after = crash_after
        try:
            Session(open_space(fs, level)).forget_by_hand(DECIDED, "you@there", "told")
        except (Crashed, ResourceFailed):
            assert fs.crashed
            yield fs
        else:
            yield fs
            return


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [level_of("FDATASYNC;DSYNC"), level_of("JOURNAL")], ids=str)
def test_no_crash_loses_a_decision_without_a_line(level: Level) -> None:
    tree, lost, kept = before(level), 0, 0
    for fs in crashes(tree, level):
        for left in fs.trees_after_crash(1 << 10):
            session = Session(open_space(left.open(), level))
            told = heuristics.forgotten_in(session.space.fs)
            if DECIDED in session.recover(10, Flag.STARTRSCAN | Flag.ENDRSCAN):
                kept += 1
                session.forget_by_hand(DECIDED, "you@there", "told again")
                assert heuristics.forgotten_in(session.space.fs)[-1].forgotten_reason == "told again"
            else:
                lost += 1
                assert [(line.xid, line.reason, line.forgotten_reason) for line in told] == [
                    (str(DECIDED), "why", "told")
                ]
    assert lost
    assert kept


def undecided(level: Level) -> Tree:
    fs = EMPTY.open()
    session = Session(open_space(fs, level))
    session.start(DECIDED)
    session.enqueue("orders", b"1")
    session.end(DECIDED)
    session.prepare(DECIDED)
    session.space.close()
    return fs.tree_after_kill()


def judge_decisions(level: Level) -> None:
    """Who decided, and why, is on disk before the decision is, whatever was not synced is lost."""
    tree, before, after = undecided(level), 0, 0
    first = tree.open()
    open_space(first, level)
    for crash_after in count(first.calls):
        fs = tree.open()
        fs.crash_after = crash_after
        with suppress(Crashed, ResourceFailed):
            heuristics.decide(open_space(fs, level), DECIDED, True, "me@here", "why")
        for left in fs.trees_after_crash(1 << 10):
            space = open_space(left.open(), level)
            lines = append_log.read(space.fs, layout.OPERATORS, Forgotten)
            if space.branches[DECIDED].base is State.PREPARED:
                before += 1
            else:
                after += 1
                assert [(line.xid, line.outcome, line.by, line.reason) for line in lines] == [
                    (str(DECIDED), "commit", "me@here", "why")
                ]
            assert heuristics.forgotten_in(space.fs) == []
        if not fs.crashed:
            break
    assert before > 1 < after


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [level_of("FDATASYNC;DSYNC"), level_of("JOURNAL")], ids=str)
def test_no_crash_leaves_a_decision_that_no_line_tells_of(level: Level) -> None:
    judge_decisions(level)


SYNCS = [
    ("_tell: content operators.log", "FDATASYNC;DSYNC"),
    ("_tell: names root", "FDATASYNC;DSYNC"),
    ("_tell: all root", "JOURNAL"),
]
"""At level JOURNAL the last of them has the content on disk as well, whose own sync tells of a lost write-back."""


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("kind", "level"), SYNCS)
def test_a_sync_of_the_line_left_out_is_noticed(kind: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with careless(monkeypatch, kind), pytest.raises((AssertionError, KeyError)):
        judge_decisions(level_of(level))
