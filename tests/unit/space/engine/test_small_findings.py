"""Small defects once found, each kept out by the test that found it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bare_space import DURABLE, BareSpace, FaultyFileSystem, bare_space
from support.crash_level import STRICT, open_space
from support.crash_story import EMPTY, message_id

from xaqueue.message import MessageId, Properties
from xaqueue.space.engine import quarantine
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout
from xaqueue.space.model.index import Entry, QueueIndex
from xaqueue.space.offline.reader import QueueReader
from xaqueue.space.owner.reload import DefinitionsWatch
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.xa import Flag
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
MANY = 5000
KEPT = 1100
"""Keys of an index that are kept, at most, of messages that are gone."""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", DURABLE) as opened:
        yield opened


def put(session: Session, queue: str, body: bytes, given: MessageId | None = None) -> None:
    session.start(X)
    if given is None:
        session.enqueue(queue, body)
    else:
        session.enqueue(queue, body, message_id=given)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)


def take_and_answer(session: Session) -> None:
    """A branch of several blocks consumes the message."""
    session.start(X)
    assert session.dequeue("in") is not None
    session.enqueue("log", b"answer")
    session.end(X)
    session.prepare(X)
    session.commit(X)


def test_a_given_id_used_again_syncs_the_end_of_its_earlier_life(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(bare.space)
    put(session, "in", b"first", message_id(1))
    take_and_answer(session)
    synced: list[str] = []
    real = bare.fs.sync_dir

    def sync_dir(path: str) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(bare.fs, "sync_dir", sync_dir)
    put(session, "in", b"own id")
    assert layout.PREPARED not in synced
    put(session, "in", b"again", message_id(1))
    assert layout.PREPARED in synced


def test_no_crash_loses_a_message_whose_given_id_was_used_before() -> None:
    fs = EMPTY.open()
    space = open_space(fs, STRICT)
    session = Session(space)
    put(session, "in", b"first", message_id(1))
    take_and_answer(session)
    put(session, "in", b"again", message_id(1))
    trees = 0
    for tree in fs.trees_after_crash():
        trees += 1
        assert bodies(open_space(tree.open(), STRICT), "in") == [b"again"]
    assert trees > 1


def bodies(space: Space, queue: str) -> list[bytes]:
    return [message.body for message in Session(space).browse(queue)]


def entry(number: int, *, not_before: int | None = None) -> Entry:
    properties = Properties("q", correlation_id=b"%d" % number, not_before=not_before)
    return Entry(number, MessageId(number.to_bytes(16, "big")), properties, 1)


@pytest.mark.parametrize("by", ["message id", "correlation id"])
def test_keys_of_an_index_that_is_only_read_by_ids_do_not_grow(by: str) -> None:
    index = QueueIndex()
    stays = entry(MANY + 1)
    index.add(stays)
    for number in range(1, MANY + 1):
        added = entry(number)
        index.add(added)
        if by == "message id":
            taken = index.take(0, message_id=added.message_id)
        else:
            taken = index.take(0, correlation_id=added.correlation_id)
        assert taken is added
        index.remove(taken)
    assert len(index._ready) <= KEPT
    assert index.take(0) is stays


def test_keys_of_delayed_messages_that_were_taken_by_their_ids_do_not_stay() -> None:
    index = QueueIndex()
    delayed = [entry(number, not_before=10) for number in range(1, MANY + 1)]
    for added in delayed:
        index.add(added)
    while index.take(0) is None and index.is_unfinished:
        pass
    for added in delayed[:-1]:
        assert index.take(10, message_id=added.message_id) is added
        index.remove(added)
    assert len(index._delayed) <= KEPT
    assert index.next_due() == 10
    assert index.take(10) is delayed[-1]


def test_the_reason_of_a_quarantined_file_is_synced_and_let_go(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = bare.fs.sync_data

    def sync_data(path: str) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(bare.fs, "sync_data", sync_data)
    (bare.root / layout.PREPARED / "junk").touch()
    target = quarantine.move(bare.fs, f"{layout.PREPARED}/junk", "no block", 0)
    assert synced == [target + ".reason"]
    assert list(bare.fs._unsynced) == []


def test_a_reader_of_an_empty_watermark_without_ranges_gives_0(bare: BareSpace) -> None:
    (bare.root / layout.queue_path("q")).mkdir()
    (bare.root / layout.watermark_path("q")).touch()
    assert QueueReader(bare.root, "q").watermark() == 0


def test_an_edit_before_the_watch_starts_is_taken(bare: BareSpace) -> None:
    (bare.root / layout.QUEUES).write_text('[queues.late]\norder = "lifo"\n')
    watch = DefinitionsWatch(bare.root, bare.space)
    watch.stop()
    assert list(bare.space.definitions.queues) == ["late"]


def starve_once(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[int]:
    """The first open of this path finds no descriptor. Returns the descriptors that are synced from now on."""
    real_open, real_sync = os.open, os.fdatasync
    lacks = [str(path)]
    synced: list[int] = []

    def open_(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name in lacks:
            lacks.remove(name)
            raise OSError(errno.EMFILE, "no descriptors", name)
        return real_open(name, flags, mode, dir_fd=dir_fd)

    def fdatasync(fd: int) -> None:
        synced.append(fd)
        real_sync(fd)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return synced


def test_a_file_that_finds_no_descriptor_gets_that_of_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = DirectoryFileSystem(tmp_path)
    fs.create("old", [b"1"])
    fs.create("young", [b"2"])
    oldest = fs._unsynced["old"]
    with monkeypatch.context() as patch:
        synced = starve_once(patch, tmp_path / "new")
        fs.create("new", [b"3"])
    assert synced == [oldest]
    assert list(fs._unsynced) == ["young", "new"]
    assert fs.read("new") == b"3"
    fs.close()


def test_a_file_that_finds_no_descriptor_where_none_is_kept_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = FaultyFileSystem(tmp_path)
    with monkeypatch.context() as patch:
        starve_once(patch, tmp_path / "new")
        with pytest.raises(OSError, match="no descriptors"):
            fs.create("new", [b"3"])
    assert not fs.exists("new")


def test_a_dequeue_that_waits_for_what_never_comes_does_not_spin(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(bare.space)
    session.start(X)
    found = session.enqueue("q", b"1", correlation_id=b"own", not_before=1_700_000_000_000_000)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    turns = 0
    index = bare.space.queues["q"].index
    real = index.take

    def take(now: int, *, message_id: bytes | None = None, correlation_id: bytes | None = None) -> Entry | None:
        nonlocal turns
        turns += 1
        return real(now, message_id=message_id, correlation_id=correlation_id)

    monkeypatch.setattr(index, "take", take)
    session.start(X)
    assert session.dequeue("q", wait_s=0.3, message_id=found, correlation_id=b"foreign") is None
    assert 1 <= turns <= 5
