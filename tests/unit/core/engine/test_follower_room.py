"""The follower on a full disk: what goes makes room for what comes, and no lack of room is a failure."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bare_space import FaultyFileSystem
from support.journal_log_scene import DIRECTORIES, MARK, RANGE, LoggedDirectories
from xaqueue.core.engine import journal_log
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.change import DROP, MOVE, PUT, Op
from xaqueue.core.owner import threads
from xaqueue.core.owner.threads import Follower
from xaqueue.errors import ResourceFailed
from xaqueue.message import MessageId
from xaqueue.xid import Xid

PATIENCE_S = 30.0


class SmallDisk(FaultyFileSystem):
    """So many files go into it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root_path = root
        self.files = 2
        self.calls: list[str] = []

    def strike(self, call: str, path: str) -> None:
        super().strike(call, path)
        self.calls.append(call)
        there = sum(1 for found in self.root_path.rglob("*") if found.is_file())
        if call == "create" and there >= self.files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def messages(self) -> list[str]:
        return sorted(self.list(RANGE))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    fs = SmallDisk(tmp_path)
    for directory in DIRECTORIES:
        fs.make_dir(directory)
    yield fs
    fs.close()


def put(name: str) -> Op:
    return PUT, f"{RANGE}/{name}", name.encode(), b"", 0


@pytest.fixture
def full(disk: SmallDisk) -> LoggedDirectories:
    """Two files are there, one of which goes; one waits."""
    log = LoggedDirectories(disk, cache_bytes=1000)
    log.do(put("first"), put("second"))
    log.follow()
    log.do(put("third"))
    log.do((DROP, f"{RANGE}/first"))
    return log


@pytest.fixture
def stuck(full: LoggedDirectories) -> LoggedDirectories:
    """One more waits than there will be room for."""
    full.publish(3, put("another"))
    full.do(put("waiting"))
    return full


def test_what_goes_makes_room_for_what_comes(full: LoggedDirectories, disk: SmallDisk) -> None:
    full.follow()
    assert disk.messages() == ["second", "third"]
    assert not full.pending


def test_what_finds_no_room_all_the_same_asks_for_it(full: LoggedDirectories, disk: SmallDisk) -> None:
    full.do(put("fourth"))
    asked: list[int | None] = []

    def retry(error: OSError, call: Callable[[], object]) -> None:
        asked.append(error.errno)
        disk.files += 1
        call()

    full.owner.retried = retry
    full.follow()
    assert asked == [errno.ENOSPC]
    assert disk.messages() == ["fourth", "second", "third"]
    assert not full.pending


def test_another_error_is_no_lack_of_room(full: LoggedDirectories, disk: SmallDisk) -> None:
    disk.faults["create", "active/.replay"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        full.follow()
    assert disk.messages() == ["first", "second"]


def test_what_waits_is_counted(full: LoggedDirectories) -> None:
    assert full.waiting_room == (len(b"third"), 1)
    full.follow()
    assert full.waiting_room == (0, 0)


def test_what_waits_is_read_and_nothing_of_it_counts_as_followed(stuck: LoggedDirectories, disk: SmallDisk) -> None:
    followed = stuck.followed
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            stuck.settle()
        assert stuck.pending
        assert stuck.followed == followed
        assert not disk.exists(MARK), "nobody who reads the directories is told of what is not there"
        assert [stuck.read(f"{RANGE}/{name}") for name in ("third", "another", "waiting")] == [
            b"third",
            b"another",
            b"waiting",
        ]
    disk.files = 10
    stuck.settle()
    assert disk.messages() == ["another", "second", "third", "waiting"]
    assert disk.exists(MARK)
    assert stuck.followed == stuck.journal.position


@pytest.mark.parametrize("blocked", ["create", "rename"])
def test_what_waits_to_move_stays_where_it_is(full: LoggedDirectories, disk: SmallDisk, blocked: str) -> None:
    """The old name of a file is none that goes, as long as the file has no new one."""
    disk.files = 10
    disk.create("active/large", [b"large"])
    full.do((MOVE, "active/large", "prepared/large", 0))
    full.do((MOVE, "prepared/large", f"{RANGE}/large", 0))
    disk.faults[blocked, "active/.replay" if blocked == "create" else RANGE] = errno.ENOSPC
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            full.settle()
        assert full.read(f"{RANGE}/large") == b"large"
    disk.faults.clear()
    full.settle()
    assert disk.messages() == ["large", "second", "third"]
    assert disk.list("active") == []


def test_a_step_goes_on_while_others_wait_for_room(stuck: LoggedDirectories, disk: SmallDisk) -> None:
    with pytest.raises(OSError, match="No space left"):
        stuck.settle()
    stuck.do(put("fifth"))
    assert stuck.read(f"{RANGE}/fifth") == b"fifth"
    stuck.do((DROP, f"{RANGE}/waiting"), (DROP, f"{RANGE}/another"), (DROP, f"{RANGE}/fifth"))
    stuck.settle()
    assert disk.messages() == ["second", "third"]


def test_what_ends_a_branch_does_not_wait_for_room(stuck: LoggedDirectories, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who adds a message does, where too much is pending."""
    monkeypatch.setattr(journal_log, "PENDING_FILES", 0)
    ending = Branch(Xid(1, b"ending", b""), "ending")
    for kind in (Kind.DEQUEUE, Kind.BRANCH):
        stuck.add(ending, Written(1, kind, "q", MessageId(bytes(16)), 0), b"head", b"")
    with pytest.raises(OSError, match="No space left"):
        stuck.add(ending, Written(1, Kind.ENQUEUE, "q", MessageId(bytes(16)), 0), b"head", b"")


def test_a_checkpoint_covers_nothing_that_finds_no_room(stuck: LoggedDirectories, disk: SmallDisk) -> None:
    end, followed = stuck.journal.position, stuck.followed
    with pytest.raises(OSError, match="No space left"):
        stuck.settle()
    stuck.checkpoint()
    assert stuck.journal.checkpoint == followed < end
    disk.files = 10
    stuck.settle()
    end = stuck.journal.position
    stuck.checkpoint()
    assert stuck.journal.checkpoint == end


@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_ends_a_checkpoint(full: LoggedDirectories, disk: SmallDisk, failure: int) -> None:
    """Nothing is covered, and it is never tried twice where it failed for good."""
    before = full.journal.checkpoint
    disk.faults["sync_all", ""] = failure
    with pytest.raises(ResourceFailed):
        full.checkpoint()
    assert full.journal.checkpoint == before
    assert full.fenced


def test_the_thread_tries_again_when_there_is_room(
    stuck: LoggedDirectories, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "RETRY_S", 0.01)
    tried, follow = threading.Semaphore(0), stuck.follow

    def noted() -> None:
        tried.release()
        follow()

    stuck.follow = noted  # type: ignore[method-assign]
    following = Follower(stuck, lambda error: pytest.fail(str(error)))
    try:
        for _ in range(2):
            assert tried.acquire(timeout=PATIENCE_S)
        disk.files = 10
        waiting = threading.Event()
        while stuck.pending:
            waiting.wait(0.001)
    finally:
        following.stop()
    assert disk.messages() == ["another", "second", "third", "waiting"]
