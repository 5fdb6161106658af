"""The lock of a directory is taken over by another file in its place, by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.owner_file import LOCK, NEW_LOCK, FileLock, OwnerFile, is_owned, read_owner_file
from xaqueue.errors import ResourceFailed


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[OwnerFile]:
    made = OwnerFile(tmp_path)
    assert made.acquire()
    made.write(DirectoryFileSystem(tmp_path), b"first")
    yield made
    made.release()


def test_the_former_one_has_lost_it(tmp_path: Path, owner: OwnerFile) -> None:
    other = OwnerFile(tmp_path)
    assert not other.acquire()
    assert other.take_over(other.locked)
    assert "another file" in owner.lost()
    assert other.lost() == ""
    with pytest.raises(ResourceFailed, match="another file"):
        owner.write(DirectoryFileSystem(tmp_path), b"late")
    other.write(DirectoryFileSystem(tmp_path), b"second")
    assert other.lost() == ""
    owner.release()
    assert is_owned(tmp_path)
    assert read_owner_file(tmp_path) == b"second"
    other.release()
    assert not is_owned(tmp_path)


def test_of_two_one_takes_it_over(tmp_path: Path, owner: OwnerFile) -> None:
    one, two = OwnerFile(tmp_path), OwnerFile(tmp_path)
    seen = one.locked
    assert one.take_over(seen)
    assert not two.take_over(seen)
    assert not two.acquire()
    one.release()
    assert two.acquire()  # the file that it had opened is the lock no more
    two.release()


def test_not_while_another_one_is_about_to(tmp_path: Path, owner: OwnerFile) -> None:
    other, busy = OwnerFile(tmp_path), FileLock(tmp_path / NEW_LOCK)
    assert busy.acquire()
    assert not other.take_over(other.locked)
    busy.release()
    assert other.take_over(other.locked)  # with what was left
    assert not (tmp_path / NEW_LOCK).exists()
    other.release()


def test_lost_before_anything_was_written(tmp_path: Path, owner: OwnerFile) -> None:
    """Between the lock and the first word."""
    one, two = OwnerFile(tmp_path), OwnerFile(tmp_path)
    assert one.take_over(one.locked)
    assert two.take_over(two.locked)
    assert "another file" in one.lost()
    with pytest.raises(ResourceFailed):
        one.write(DirectoryFileSystem(tmp_path), b"one")
    assert read_owner_file(tmp_path) == b"first"
    for lock in (one, two):
        lock.release()


def test_taken_over_while_it_writes(tmp_path: Path, owner: OwnerFile) -> None:
    """What it sees behind its own rename may be the other one's lock."""
    other = OwnerFile(tmp_path)

    class Slow(DirectoryFileSystem):
        def sync_dir(self, path: str) -> None:
            assert other.take_over(other.locked)

    with pytest.raises(ResourceFailed, match="another file"):
        owner.write(Slow(tmp_path), b"again")
    assert owner.lost()
    other.release()


def test_a_lock_that_was_removed(tmp_path: Path, owner: OwnerFile) -> None:
    other = OwnerFile(tmp_path)
    (tmp_path / LOCK).unlink()
    assert other.acquire()
    assert owner.lost()
    other.release()
