"""An xid that is used again while something of its earlier life has not gone: neither life harms the other."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.core.engine import heuristics, journal_log
from xaqueue.core.engine.log import KEPT_BYTES
from xaqueue.core.model import layout
from xaqueue.errors import DiskFull, DuplicateXid
from xaqueue.features.session import Session
from xaqueue.offline import inspect_branches
from xaqueue.offline.inspect import browse
from xaqueue.xa import Flag
from xaqueue.xid import Xid

X = Xid(1, b"worker", b"1")
LARGE = bytes(KEPT_BYTES)
"""A block with so much goes to active/ at once, whatever the journal."""
MOMENT_S = 0.2
PATIENCE_S = 30.0

every_level = pytest.mark.parametrize("sync", ["NONE", DURABLE])


def enqueued(session: Session, body: bytes) -> None:
    """A branch X that adds this to queue q, ended."""
    session.start(X)
    session.enqueue("q", body)
    session.end(X)


def first_life(session: Session) -> None:
    """One phase; its file is to move from active/."""
    enqueued(session, b"1" + LARGE)
    session.commit(X, Flag.ONEPHASE)


def second_life(session: Session) -> None:
    enqueued(session, b"2" + LARGE)
    session.prepare(X)


# In a journal, while the directories have not followed


def test_a_block_that_is_written_while_they_follow_stays(tmp_path: Path) -> None:
    """Its file has the name of one that has moved, and that the follower was to remove."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        session = Session(bare.space)
        first_life(session)
        bare.fs.meanwhile["write_at", layout.watermark_path("q")] = lambda: second_life(session)
        bare.space.log.settle()
        assert not bare.fs.meanwhile
        assert bare.in_doubt() == [X]
        bare.reopen()
        assert bare.space.read_only is None
        assert bare.in_doubt() == [X]


def test_a_block_that_is_written_behind_a_turn_without_room_stays(tmp_path: Path) -> None:
    """The turn is taken again, and what has moved in it is not removed under its old name."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("other", b"0")
        bare.space.log.settle()
        session = Session(bare.space)
        first_life(session)
        bare.put("other", b"small")
        bare.fs.faults["rename", layout.queue_path("other")] = errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            bare.space.log.settle()
        assert bare.message_file("q", b"1" + LARGE)
        enqueued(session, b"2" + LARGE)
        bare.fs.faults.clear()
        bare.space.log.settle()
        session.prepare(X)
        assert bare.in_doubt() == [X]


def test_a_move_whose_time_found_no_room_takes_no_later_block(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        session = Session(bare.space)
        first_life(session)
        bare.fs.faults["set_modified_ns", ""] = errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            bare.space.log.settle()
        with suppress(DiskFull):
            enqueued(session, b"2" + LARGE)
        bare.fs.faults.clear()
        bare.space.log.settle()
        assert bare.take("q") == [b"1" + LARGE]


def rolled_back_and_begun_anew(bare: BareSpace) -> None:
    """The first life's block stands in prepared/; nobody has followed its rollback."""
    session = Session(bare.space)
    enqueued(session, b"1")
    session.prepare(X)
    bare.space.log.settle()
    session.rollback(X)
    second_life(session)


def test_a_replay_takes_the_block_of_the_life_that_its_record_tells_of(tmp_path: Path) -> None:
    """Where that is to move to, there stands what an earlier life had prepared and rolled back."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        rolled_back_and_begun_anew(bare)
        bare.reopen()
        assert bare.space.read_only is None
        assert bare.in_doubt() == [X]
        Session(bare.space).commit(X)
        assert [body[:1] for body in bare.take("q")] == [b"2"]


@pytest.mark.parametrize("followed", range(16))
@pytest.mark.parametrize("second", ["commit", "rollback", ""], ids=["committed", "rolled back", "in doubt"])
@pytest.mark.parametrize(
    ("first", "ids"),
    [("commit", (b"1", b"2")), ("rollback", (b"1", b"2")), ("rollback", (b"1", b"1"))],
    ids=["committed", "rolled back", "rolled back and tried again"],
)
def test_two_lives_of_which_the_journal_has_names_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, ids: tuple[bytes, bytes], second: str, followed: int
) -> None:
    """followed: a bit for each step behind which the directories have followed. Whoever looks then sees what a replay
    makes of them."""
    monkeypatch.setattr(journal_log, "KEPT_BYTES", 0)
    ends = {b"one": first, b"two": second}
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        session, steps = Session(bare.space), count()
        for (body, end), message_id in zip(ends.items(), ids, strict=True):
            session.start(X)
            session.enqueue("q", body, message_id=message_id * 16)
            session.end(X)
            for verb in ("prepare", end):
                if verb:
                    getattr(session, verb)(X)
                if followed >> next(steps) & 1:
                    bare.space.log.settle()
        committed = [body for body, end in ends.items() if end == "commit"]
        in_doubt = [] if second else [X]
        assert [message.body for message in browse(bare.root, "q", lambda *_: None)] == committed
        assert [found.xid for found in inspect_branches.in_doubt(bare.root)] == in_doubt
        bare.reopen()
        assert bare.space.read_only is None
        assert bare.in_doubt() == in_doubt
        assert bare.take("q") == committed
        for xid in in_doubt:
            Session(bare.space).commit(xid)
            committed.append(b"two")
        assert bare.take("q") == committed


def test_what_is_put_while_an_earlier_block_moves_there_is_kept_in_memory(tmp_path: Path) -> None:
    """As long as there is no room for it in the directories."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        session = Session(bare.space)
        enqueued(session, b"1" + LARGE)
        session.prepare(X)

        def small() -> None:
            session.rollback(X)
            enqueued(session, b"2")
            session.prepare(X)

        bare.fs.meanwhile["rename", layout.PREPARED] = small
        bare.space.log.settle()
        session.commit(X)
        bare.fs.faults["make_dir", layout.COMMITTED] = errno.ENOSPC
        assert bare.take("q") == [b"2"]


def test_a_block_is_read_where_an_earlier_one_has_not_gone(tmp_path: Path) -> None:
    """Under its name there stands what was rolled back, and its own file has not moved there."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        rolled_back_and_begun_anew(bare)
        (written,) = bare.space.branches[X].blocks
        assert b"2" + LARGE in bare.space.log.read(written.path)


def test_a_decision_that_was_forgotten_is_not_found_again(tmp_path: Path) -> None:
    """Its file stands as long as nobody has followed; the next life is decided afresh, and otherwise."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.prepare(X, add=[("q", b"1")])
        heuristics.decide(bare.space, X, False, "test")
        bare.space.log.settle()
        Session(bare.space).forget(X)
        bare.prepare(X, add=[("q", b"2")])
        assert heuristics.decide(bare.space, X, True, "test").outcome == "commit"
        assert bare.take("q") == [b"2"]


# Without a journal, while a commit removes its files


class Beside:
    """A call that another thread begins as soon as a file under a path is about to be removed."""

    def __init__(self, bare: BareSpace, pool: ThreadPoolExecutor, path: str, call: Callable[[], object]) -> None:
        self.begun: list[Future[object]] = []

        def begin() -> None:
            self.begun.append(pool.submit(call))
            wait(self.begun, MOMENT_S)  # where it has to wait for the one that removes, no longer

        bare.fs.meanwhile["unlink", path] = begin

    def result(self) -> None:
        (begun,) = self.begun
        begun.result(PATIENCE_S)


@every_level
def test_what_is_prepared_while_a_commit_ends_stays(tmp_path: Path, sync: str) -> None:
    """The xid is another branch's once the files of the first are gone, and not before."""
    with bare_space(tmp_path / "space", sync) as bare, ThreadPoolExecutor(1) as pool:
        bare.put("q", b"1")
        bare.prepare(X, take=["q"])

        def again() -> None:
            bare.prepare(X, add=[("q", b"2")])

        beside = Beside(bare, pool, layout.PREPARED, again)
        Session(bare.space).commit(X)
        try:
            beside.result()
        except DuplicateXid:
            again()
        bare.reopen()
        assert bare.in_doubt() == [X]


def test_work_that_begins_while_a_commit_ends_fences_nothing(tmp_path: Path) -> None:
    """It finds the xid in use, or no file of its own names."""
    with bare_space(tmp_path / "space", "NONE") as bare, ThreadPoolExecutor(1) as pool:
        bare.put("q", b"1", b"2")
        session, other = Session(bare.space), Session(bare.space)
        session.start(X)
        assert session.dequeue("q") is not None
        session.end(X)

        def again() -> None:
            other.start(X)
            assert other.dequeue("q") is not None

        beside = Beside(bare, pool, layout.ACTIVE, again)
        session.commit(X, Flag.ONEPHASE)
        with suppress(DuplicateXid):
            beside.result()
        assert bare.space.failure is None
