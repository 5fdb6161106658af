"""The lagging port on a full disk: what goes makes room for what comes, and no lack of room is a failed sync."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bare_space import FaultyFileSystem
from xaqueue.errors import ResourceFailed, RetryLater
from xaqueue.storage.group_commit import Barrier, Touched, touched
from xaqueue.storage.hardening import JOURNAL
from xaqueue.storage.write_behind import LARGE_BYTES, WriteBehind


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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    fs = SmallDisk(tmp_path)
    yield fs
    fs.close()


@pytest.fixture
def full(disk: SmallDisk) -> WriteBehind:
    """Two files are there, one of which goes; one waits."""
    lagging = WriteBehind(disk, cache_bytes=1000)
    for name in ("first", "second"):
        lagging.create(name, [name.encode()])
    lagging.flush()
    lagging.create("third", [b"third"])
    lagging.unlink("first")
    return lagging


def test_what_goes_makes_room_for_what_comes(full: WriteBehind, disk: SmallDisk) -> None:
    full.flush()
    assert sorted(disk.list("")) == ["second", "third"]
    assert not full.pending


def test_a_large_file_that_is_written_at_once_finds_that_room_too(full: WriteBehind, disk: SmallDisk) -> None:
    full.create("large", [bytes(LARGE_BYTES + 1)])
    assert sorted(disk.list("")) == ["large", "second"]
    assert full.read("third") == b"third"
    with pytest.raises(OSError, match="No space left"):
        full.create("larger", [bytes(LARGE_BYTES + 2)])


def test_what_finds_no_room_all_the_same_asks_for_it(full: WriteBehind, disk: SmallDisk) -> None:
    full.create("fourth", [b"fourth"])
    asked: list[str] = []

    def again(error: OSError, call: Callable[[str], None], path: str) -> None:
        asked.append(path)
        assert error.errno == errno.ENOSPC
        disk.files += 1
        call(path)

    full.again = again
    full.flush()
    assert asked == ["fourth"]
    assert sorted(disk.list("")) == ["fourth", "second", "third"]
    assert not full.pending


def test_another_error_is_no_lack_of_room(full: WriteBehind, disk: SmallDisk) -> None:
    disk.faults["create", "third"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        full.flush()
    assert sorted(disk.list("")) == ["first", "second"]


def test_what_waits_is_counted(full: WriteBehind) -> None:
    assert full.waiting == (len(b"third"), 1)
    full.flush()
    assert full.waiting == (0, 0)


@pytest.fixture
def stuck(full: WriteBehind) -> WriteBehind:
    """One more waits than there will be room for."""
    full.create("another", [b"x"])
    full.create("waiting", [b"x"])
    return full


@pytest.mark.parametrize(
    ("call", "path"), [("sync_data", "waiting"), ("sync_file", "waiting"), ("sync_dir", ""), ("sync_all", None)]
)
def test_a_sync_of_what_finds_no_room_is_none(stuck: WriteBehind, disk: SmallDisk, call: str, path: str | None) -> None:
    disk.calls.clear()
    with pytest.raises(RetryLater, match="no room for what the directories lack"):
        getattr(stuck, call)(*([path] if path is not None else []))
    assert not [made for made in disk.calls if made.startswith("sync")]
    disk.files = 10
    getattr(stuck, call)(*([path] if path is not None else []))
    assert disk.calls[-1] == call


def test_looking_needs_no_room(stuck: WriteBehind, disk: SmallDisk) -> None:
    disk.make_dir("empty")
    stuck.set_modified_ns("waiting", 10**18)
    assert stuck.exists("waiting")
    assert not stuck.exists("first")
    assert stuck.modified_ns("waiting") == 10**18
    assert stuck.read("waiting") == b"x"
    assert stuck.list("empty") == []
    stuck.remove_dir("empty")
    assert stuck.waiting[1] == 3
    with pytest.raises(OSError, match="No space left"):
        stuck.list("")


def test_a_barrier_takes_it_for_no_failure(stuck: WriteBehind, disk: SmallDisk) -> None:
    lock = threading.Lock()
    barrier = Barrier(stuck, JOURNAL, lock)
    applied: list[str] = []

    def apply() -> Touched:
        applied.append("step")
        return touched(("",))

    with pytest.raises(RetryLater):
        barrier.harden_content(["waiting"])
    with pytest.raises(RetryLater):
        barrier.perform(apply, publish=lambda: applied.append("published"))
    assert applied == ["step"]
    assert barrier.failure is None
    disk.files = 10
    barrier.harden_content(["waiting"])
    barrier.perform(apply, publish=lambda: applied.append("published"))
    assert applied == ["step", "step", "published"]
    disk.faults["sync_dir", ""] = errno.ENOSPC
    with pytest.raises(ResourceFailed):
        barrier.perform(apply)
    assert barrier.failure is not None
