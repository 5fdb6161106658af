"""Where a step finds no room, a branch is as it was, or, past its commit point, can only go forward; never a fence."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, FaultyFileSystem, bare_space
from xaqueue import Connection
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.core.model.branch import State
from xaqueue.core.owner import open
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import DiskFull, ProtocolError, ResourceFailed, RetryLater, SpaceError
from xaqueue.features.session import Session, attach
from xaqueue.features.streams import cleanup
from xaqueue.xa import Flag, Vote
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
IN = ("hold_dir", layout.queue_path("in"))
OUT = ("make_dir", layout.queue_path("out"))


class StarvedFileSystem(FaultyFileSystem):
    """It can lack the descriptor of a directory, too."""

    def hold_dir(self, path: str) -> None:
        self.strike("hold_dir", path)
        DirectoryFileSystem.hold_dir(self, path)


class NoDescriptors(DirectoryFileSystem):
    """It never has one for a directory."""

    def hold_dir(self, path: str) -> None:
        raise OSError(errno.EMFILE, "no descriptors", path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareSpace]:
    monkeypatch.setattr("support.bare_space.FaultyFileSystem", StarvedFileSystem)
    with bare_space(tmp_path / "space", DURABLE) as opened:
        yield opened


def move_over(session: Session, bare: BareSpace) -> None:
    """X takes the message of one queue and answers in another, and is ended."""
    bare.put("in", b"request")
    session.start(X, timeout_s=3600)
    assert session.dequeue("in") is not None
    session.enqueue("out", b"reply")
    session.end(X)


def add(session: Session, *bodies: bytes) -> None:
    session.start(X)
    for body in bodies:
        session.enqueue("out", body)
    session.end(X)


def blocks(bare: BareSpace) -> list[str]:
    """What stands in active/ and prepared/."""
    return sorted(path.name for name in (layout.ACTIVE, layout.PREPARED) for path in (bare.root / name).iterdir())


def message_prefix(seq: int) -> str:
    return f"{layout.range_path('out', seq)}/{seq:016x}"


def check_moved(bare: BareSpace) -> None:
    """All of it happened, in memory and on disk."""
    assert bare.space.failure is None
    for _ in range(2):
        assert (bare.take("in"), bare.take("out"), blocks(bare)) == ([], [b"reply"], [])
        bare.reopen()


def stuck_past_commit(session: Session, bare: BareSpace, flags: Flag, number: int) -> None:
    bare.fs.faults[IN] = number
    with pytest.raises(RetryLater):
        session.commit(X, flags)
    assert bare.block(layout.PREPARED, X, layout.COMMIT).exists()
    bare.fs.faults.clear()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("way", ["timeout", "prepare", "rollback", "join", "crash"])
def test_a_one_phase_branch_past_its_commit_point_only_goes_forward(bare: BareSpace, number: int, way: str) -> None:
    session = Session(bare.space)
    move_over(session, bare)
    stuck_past_commit(session, bare, Flag.ONEPHASE, number)
    if way == "timeout":
        bare.space.branches[X].deadline = 0.0
    elif way == "crash":
        check_moved_after_crash(bare)
        return
    else:
        verbs: dict[str, Callable[[], object]] = {
            "prepare": lambda: session.prepare(X),
            "rollback": lambda: session.rollback(X),
            "join": lambda: session.start(X, Flag.JOIN),
        }
        with pytest.raises(ProtocolError, match="past its commit point"):
            verbs[way]()
    session.commit(X, Flag.ONEPHASE)
    check_moved(bare)


def check_moved_after_crash(bare: BareSpace) -> None:
    bare.reopen()
    check_moved(bare)


def test_a_prepared_branch_past_its_commit_point_is_listed(bare: BareSpace) -> None:
    """Its transaction manager has to commit it again; of one that was never prepared nobody asks."""
    session = Session(bare.space)
    add(session, b"1", b"2")
    other = Xid(1, b"other", b"")
    bare.prepare(other, add=[("out", b"3"), ("out", b"4")])
    bare.fs.faults["rename", layout.range_path("out", 1)] = errno.ENOSPC
    for xid, flags in ((X, Flag.ONEPHASE), (other, Flag.NOFLAGS)):
        with pytest.raises(RetryLater):
            session.commit(xid, flags)
        assert bare.space.branches[xid].base is State.COMMITTING
    assert bare.in_doubt() == [other]
    bare.fs.faults.clear()
    session.commit(other)
    session.commit(X, Flag.ONEPHASE)
    assert bare.take("out") == [b"3", b"4", b"1", b"2"]


def test_what_was_removed_before_there_was_no_room_is_on_disk_with_its_round(bare: BareSpace) -> None:
    session = Session(bare.space)
    for name in ("first", "then"):
        bare.put(name, name.encode())
    session.start(X)
    assert session.dequeue("first") is not None
    assert session.dequeue("then") is not None
    session.end(X)
    session.prepare(X)
    synced: list[str] = []
    bare.fs.meanwhile["sync_dir", layout.range_path("first", 1)] = lambda: synced.append("first")
    bare.fs.faults["unlink", layout.range_path("then", 1)] = errno.ENOSPC
    with pytest.raises(RetryLater):
        session.commit(X)
    assert bare.messages("first") == []
    assert synced == ["first"]
    bare.fs.faults.clear()
    session.commit(X)
    assert blocks(bare) == []


def test_an_operators_rollback_past_the_commit_point_is_refused(bare: BareSpace) -> None:
    session = Session(bare.space)
    move_over(session, bare)
    assert session.prepare(X) is Vote.OK
    stuck_past_commit(session, bare, Flag.NOFLAGS, errno.EMFILE)
    with pytest.raises(ProtocolError, match="past its commit point"):
        heuristics.decide(bare.space, X, False, by="test")
    assert list((bare.root / layout.HEURISTIC).iterdir()) == []
    session.commit(X)
    check_moved(bare)


def test_an_operators_commit_past_the_commit_point_completes_it(bare: BareSpace) -> None:
    session = Session(bare.space)
    move_over(session, bare)
    session.prepare(X)
    stuck_past_commit(session, bare, Flag.NOFLAGS, errno.EMFILE)
    assert heuristics.decide(bare.space, X, True, by="test").outcome == "commit"
    check_moved(bare)


def test_an_opening_without_room_to_go_forward_says_so_and_a_later_one_does(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(bare.space)
    move_over(session, bare)
    stuck_past_commit(session, bare, Flag.ONEPHASE, errno.EMFILE)
    bare.crash()
    with monkeypatch.context() as patch:
        patch.setattr(open, "DirectoryFileSystem", NoDescriptors)
        with pytest.raises(SpaceError, match="cannot be opened"):
            attach(bare.root, sync=DURABLE, watch=False)
    with Connection(attach(bare.root, sync=DURABLE, watch=False), lambda: bytes(16)) as connection:
        assert [message.body for message in connection.browse("out")] == [b"reply"]
        assert list(connection.browse("in")) == []


@pytest.mark.parametrize("bodies", [(b"1",), (b"1", b"2")])
def test_after_a_one_phase_commit_without_room_it_can_be_prepared(bare: BareSpace, bodies: tuple[bytes, ...]) -> None:
    session = Session(bare.space)
    add(session, *bodies)
    bare.fs.faults[OUT] = errno.ENOSPC
    for _ in range(2):
        with pytest.raises(RetryLater):
            session.commit(X, Flag.ONEPHASE)
    bare.fs.faults.clear()
    assert session.prepare(X) is Vote.OK
    session.commit(X)
    assert bare.take("out") == list(bodies)
    assert bare.space.failure is None


@pytest.mark.parametrize(("bodies", "suffix"), [((b"1",), "000"), ((b"1", b"2"), "002"), ((b"1", b"2"), "000")])
def test_a_prepare_without_room_in_the_directory_is_rolled_back(
    bare: BareSpace, bodies: tuple[bytes, ...], suffix: str
) -> None:
    session = Session(bare.space)
    add(session, *bodies)
    bare.fs.faults["rename", layout.block_path(layout.PREPARED, str(X), suffix)] = errno.ENOSPC
    with pytest.raises(DiskFull, match="rolled back"):
        session.prepare(X)
    bare.fs.faults.clear()
    assert blocks(bare) == []
    add(session, *bodies)
    session.commit(X, Flag.ONEPHASE)
    assert bare.take("out") == list(bodies)


@pytest.mark.parametrize("flags", [Flag.NOFLAGS, Flag.ONEPHASE])
@pytest.mark.parametrize("bodies", [(b"1",), (b"1", b"2"), (b"1", b"2", b"3")])
def test_a_commit_without_room_in_the_queues_directory_is_committed_later(
    bare: BareSpace, bodies: tuple[bytes, ...], flags: Flag
) -> None:
    session = Session(bare.space)
    add(session, *bodies)
    if not flags:
        session.prepare(X)
    bare.fs.faults["rename", message_prefix(len(bodies))] = errno.ENOSPC
    with pytest.raises(RetryLater):
        session.commit(X, flags)
    assert bare.messages("out") == []
    bare.fs.faults.clear()
    session.commit(X, flags)
    bare.put("out", b"last")
    assert bare.take("out") == [*bodies, b"last"]
    bare.reopen()
    assert bare.take("out") == [*bodies, b"last"]


def test_a_commit_point_without_room_is_reached_later(bare: BareSpace) -> None:
    session = Session(bare.space)
    move_over(session, bare)
    session.prepare(X)
    bare.fs.faults["rename", layout.block_path(layout.PREPARED, str(X), layout.COMMIT)] = errno.ENOSPC
    with pytest.raises(RetryLater):
        session.commit(X)
    assert bare.space.branches[X].base is State.PREPARED
    bare.fs.faults.clear()
    session.commit(X)
    check_moved(bare)


def test_a_move_that_cannot_be_taken_back_fences(bare: BareSpace) -> None:
    session = Session(bare.space)
    add(session, b"1", b"2")
    session.prepare(X)
    bare.fs.faults["rename", message_prefix(2)] = errno.ENOSPC
    bare.fs.faults["rename", layout.block_path(layout.PREPARED, str(X), "001")] = errno.ENOSPC
    with pytest.raises(ResourceFailed):
        session.commit(X)
    assert bare.space.failure is not None
    bare.fs.faults.clear()
    bare.reopen()
    assert bare.take("out") == [b"1", b"2"]


def on_disk(bare: BareSpace) -> int:
    watermark = layout.parse_watermark((bare.root / layout.watermark_path("out")).read_bytes())
    assert watermark is not None
    return watermark.published


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_watermark_without_room_is_written_behind_the_next_step(bare: BareSpace, number: int) -> None:
    """What was committed is done all the same; who reads the directories hears of it later."""
    bare.put("out", b"1")
    bare.fs.faults["write_at", layout.watermark_path("out")] = number
    bare.put("out", b"2")
    bare.put("other", b"of another queue")
    assert (bare.take("out"), on_disk(bare)) == ([b"1", b"2"], 1)
    bare.fs.faults.clear()
    bare.put("other", b"and one more")
    assert on_disk(bare) == 2
    bare.reopen()
    assert bare.take("out") == [b"1", b"2"]


def test_a_count_that_was_given_back_is_none_for_a_stream(bare: BareSpace) -> None:
    """It goes by how many messages a range holds, which no commit without room has added to."""
    session, last = Session(bare.space), layout.RANGE_SIZE - 1
    bare.put("out", b"1")
    bare.space.queues["out"].last = last - 4
    add(session, b"2", b"3")
    bare.fs.faults["rename", layout.range_path("out", last)] = errno.ENOSPC
    with pytest.raises(RetryLater):
        session.commit(X, Flag.ONEPHASE)
    bare.fs.faults.clear()
    session.commit(X, Flag.ONEPHASE)
    bare.put("out", b"in the next range")
    assert bare.space.queues["out"].ranges == {0: 3, 1: 1}
    session.reserve("out", "stream", 0, last)
    session.consume("out", "stream", last)
    cleanup.clear(bare.space)
    assert bare.space.failure is None
    assert [path.parent for path in bare.messages("out")] == [bare.root / layout.range_path("out", last + 1)]
