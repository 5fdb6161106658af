"""A space whose journal is damaged shows what its directories hold, changes nothing, and says what to do."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

import xaqueue
from support import broken_journal
from support.bare_space import ANY_QUEUE, FaultyFileSystem
from support.broken_journal import DECIDED, IN_DOUBT, damage, files
from support.journals import spoil
from xaqueue import Connection
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.core.model.branch import State
from xaqueue.core.owner.record import READ_ONLY, READY, RECOVERING, read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.journal_format import CRC, HEADER, MAGIC, SECTOR_BYTES, parse_name
from xaqueue.core.storage.layers import ReadOnlyFileSystem
from xaqueue.errors import InterfaceError, JournalDamaged, ResourceFailed, SpaceError
from xaqueue.features.opening import open_space
from xaqueue.features.session import Session, attach
from xaqueue.offline.check import repair
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

NEW = Xid(1, b"new", b"b")
SCAN = Flag.STARTRSCAN | Flag.ENDRSCAN
REMEDY = r"open for reading only: journal/ is damaged: .*xaqueue salvage-journal"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Killed, everything in directories and journal, and the first record of that is damaged."""
    made = broken_journal.make(tmp_path / "space")
    damage(made, 0)
    return made


def put_right(root: Path) -> None:
    """The same bit, once more."""
    fs = DirectoryFileSystem(root)
    spoil(fs, SECTOR_BYTES, 60)
    fs.close()


@pytest.fixture
def session(root: Path) -> Iterator[Session]:
    opened = attach(root)
    yield opened
    opened.close()


def test_it_opens_and_says_so(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = files(root)
    with caplog.at_level(logging.INFO, "xaqueue"):
        session = attach(root)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "the space is open for reading only: journal/ is damaged: the record at LSN" in record.getMessage()
    assert isinstance(session.space.read_only, JournalDamaged)
    assert not session.space.serving
    with pytest.raises(OSError, match="Read-only"):
        session.space.fs.unlink(layout.FORMAT)
    session.close()
    assert files(root) == before


def test_who_was_taken_over_meanwhile_calls_nothing_damaged(root: Path) -> None:
    """What is not where the records say may be what the other process has consumed."""
    fs = DirectoryFileSystem(root)
    with pytest.raises(ResourceFailed, match="owns it no more: another one does"):
        open_space(fs, hardening=Hardening.parse("JOURNAL"), epoch=2, lost=lambda: "another one does")
    fs.close()


def test_it_shows_what_the_directories_hold(session: Session) -> None:
    assert [message.body for message in session.browse("orders")] == [b"first", b"second", b"fourth", b"fifth"]
    assert session.outcome(IN_DOUBT) is Outcome.IN_DOUBT
    assert session.outcome(DECIDED) is Outcome.COMMITTED
    assert session.outcome(NEW) is Outcome.UNKNOWN
    report = session.space.report
    assert (report.messages, report.in_doubt, report.heuristic) == (4, 1, 1)
    assert "journal/ is damaged" in report.notes[0]
    assert session.space.branches[IN_DOUBT].base is State.PREPARED


CHANGES: dict[str, Callable[[Session], object]] = {
    "start": lambda session: session.start(NEW),
    "recover": lambda session: session.recover(10, SCAN),
    "join": lambda session: session.start(IN_DOUBT, Flag.JOIN),
    "enqueue": lambda session: session.enqueue("orders", b"no"),
    "dequeue": lambda session: session.dequeue("orders"),
    "prepare": lambda session: session.prepare(NEW),
    "commit": lambda session: session.commit(IN_DOUBT),
    "one-phase": lambda session: session.commit(NEW, Flag.ONEPHASE),
    "rollback": lambda session: session.rollback(IN_DOUBT),
    "forget": lambda session: session.forget(DECIDED),
    "decide": lambda session: heuristics.decide(session.space, IN_DOUBT, to_commit=True, by="test"),
    "checkpoint": lambda session: session.space.sync_all(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_verb_that_changes_something_says_what_to_do(root: Path, session: Session, name: str) -> None:
    before = files(root)
    with pytest.raises(ResourceFailed, match=REMEDY):
        CHANGES[name](session)
    assert files(root) == before


def test_connections_read_and_do_not_write(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        assert len(list(connection.browse("orders"))) == 4
        with pytest.raises(ResourceFailed, match=REMEDY):
            connection.tpc_recover()
        with pytest.raises(ResourceFailed, match=REMEDY):
            connection.enqueue("orders", b"no")
        with pytest.raises(ResourceFailed, match=REMEDY):
            connection.tpc_commit(IN_DOUBT)
    with pytest.raises(InterfaceError):
        connection.browse("orders")


def test_repair_says_what_to_do(root: Path) -> None:
    before = files(root)
    with pytest.raises(ResourceFailed, match=REMEDY):
        repair(root)
    assert files(root) == before


@pytest.mark.parametrize("sync", ["NONE", "FDATASYNC;DSYNC"])
def test_it_is_so_at_every_level(root: Path, sync: str) -> None:
    with xaqueue.connect(root, sync=sync) as connection, pytest.raises(ResourceFailed, match=REMEDY):
        connection.enqueue("orders", b"no")


def test_what_is_damaged_in_the_directories_stays_where_it_is(root: Path) -> None:
    message = min((root / layout.queue_path("orders")).glob("range=*/*"))
    message.write_bytes(b"damaged")
    foreign = root / layout.COMMITTED / "foreign"
    foreign.write_bytes(b"")
    block = next((root / layout.PREPARED).iterdir())
    block.write_bytes(b"damaged")
    before = files(root)
    session = attach(root)
    assert [message.body for message in session.browse("orders")] == [b"second", b"fourth", b"fifth"]
    assert IN_DOUBT in session.space.branches
    assert len(session.space.report.notes) == 2, "and what messages hold is seen by who reads them"
    session.close()
    assert files(root) == before
    assert list((root / layout.QUARANTINE).iterdir()) == []


def test_a_journal_that_is_put_right_opens_again(root: Path) -> None:
    with xaqueue.connect(root):
        put_right(root)
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("orders")] == [b"first", b"second", b"fourth", b"fifth"]
        connection.tpc_commit(IN_DOUBT)
        assert [message.body for message in connection.browse("orders")] == [b"second", b"fourth", b"fifth", b"third"]


# The owner file


def test_the_owner_file_tells_the_state(root: Path) -> None:
    with xaqueue.connect(root):
        owner = read_owner(root)
        assert owner is not None
        assert (owner.state, owner.pid) == (READ_ONLY, os.getpid())
        put_right(root)
    with xaqueue.connect(root):
        owner = read_owner(root)
        assert owner is not None
        assert (owner.state, owner.journalled) == (READY, True)
    owner = read_owner(root)
    assert owner is not None
    assert not owner.journalled


def test_recovering_is_told_from_ready(root: Path) -> None:
    put_right(root)
    states = []

    def progress(done: int, total: int) -> None:
        owner = read_owner(root)
        states.append(owner.state if owner else None)

    attach(root, progress=progress).close()
    assert states
    assert set(states) == {RECOVERING}


@pytest.mark.parametrize("whole", [False, True], ids=["its segments", "the whole directory"])
def test_a_journal_that_is_gone_is_damage_after_a_crash_only(tmp_path: Path, whole: bool) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True, sync="JOURNAL").close()

    def lose() -> None:
        for path in (root / layout.JOURNAL).iterdir():
            path.unlink()
        if whole:
            (root / layout.JOURNAL).rmdir()

    lose()
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"after a clean close nothing was lost")
        connection.commit()
    lose()
    broken_journal.killed(root)
    for _ in range(2):
        with (
            xaqueue.connect(root, sync="NONE") as connection,
            pytest.raises(ResourceFailed, match="all its segments are missing"),
        ):
            connection.enqueue("orders", b"no")
        with xaqueue.connect(root) as connection:
            assert len(list(connection.browse("orders"))) == 1


def test_a_newer_journal_is_not_opened_at_all(root: Path) -> None:
    segment = sorted((root / layout.JOURNAL).glob("*.log"))[-1]
    said = parse_name(segment.name)
    assert said is not None
    header = HEADER.pack(MAGIC, 2, 0, said.start, segment.stat().st_size, 0)
    segment.write_bytes((header + CRC.pack(crc32(header))).ljust(SECTOR_BYTES, b"\0"))
    (root / layout.OWNER).write_bytes(b"as it was")
    before = files(root)
    with pytest.raises(SpaceError, match=r"journal format 2.*use a newer one\. Nothing was changed") as newer:
        attach(root)
    assert not isinstance(newer.value, JournalDamaged)
    assert files(root) == before
    assert (root / layout.OWNER).read_bytes() == b"as it was"
    with pytest.raises(SpaceError, match="use a newer one"):
        open_space(FaultyFileSystem(root), ANY_QUEUE, hardening=Hardening.parse("JOURNAL"))


# The port


def test_the_port_refuses_every_change(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"content")
    fs = ReadOnlyFileSystem(DirectoryFileSystem(tmp_path))
    changes: list[Callable[[], None]] = [
        lambda: fs.create("new", [b""]),
        lambda: fs.write_at("file", 0, [b"x"]),
        lambda: fs.set_modified_ns("file", 1),
        lambda: fs.rename("file", "new"),
        lambda: fs.unlink("file"),
        lambda: fs.make_dir("new"),
        lambda: fs.remove_dir("directory"),
        lambda: fs.sync_file("file"),
        lambda: fs.sync_data("file"),
        lambda: fs.sync_dir("directory"),
        fs.sync_all,
    ]
    for change in changes:
        with pytest.raises(OSError, match="Read-only"):
            change()
    assert (fs.read("file", 4), fs.size("file"), sorted(fs.list(""))) == (b"cont", 7, ["directory", "file"])
    assert (fs.is_dir("directory"), fs.exists("new"), fs.room().free_bytes > 0) == (True, False, True)
    fs.close()


def test_no_connection_sees_a_half_open_space(root: Path) -> None:
    first, second = attach(root), attach(root)
    assert first.space is second.space
    first.close()
    with Connection(second, lambda: os.urandom(16)) as connection:
        assert len(list(connection.browse("orders"))) == 4
