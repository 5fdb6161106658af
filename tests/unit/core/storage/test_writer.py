"""The writer of a segment: what it writes is on disk as by ``write_synced``, and it is one frame where it can be."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from xaqueue.core.storage import directory_fs
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import NO_ROOM, Syncing, Writer
from xaqueue.core.storage.layers import OwnerFileSystem


class Scene(NamedTuple):
    root: Path
    files: OwnerFileSystem
    write: Writer
    calls: list[str]
    """Those of the system, in their order."""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Of a file system that overwrites without room, whatever this one is; the file was written to."""
    calls = list[str]()
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def noted(fd: int, chunks: Sequence[bytes], offset: int, flags: int = 0) -> int:
        calls.append("write and sync" if flags else "write")
        return pwritev(fd, chunks, offset, flags)

    def sync(fd: int) -> None:
        calls.append("sync")
        fdatasync(fd)

    monkeypatch.setattr(directory_fs, "has_dsync", lambda _: True)
    monkeypatch.setattr(os, "pwritev", noted)
    monkeypatch.setattr(os, "fdatasync", sync)
    files = OwnerFileSystem(DirectoryFileSystem(tmp_path))
    write = files.writer("mark")
    write(0, [b"0123456789"])
    assert calls == ["write and sync"]
    calls.clear()
    return Scene(tmp_path, files, write, calls)


def failing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A write that syncs, too, fails so."""
    pwritev = os.pwritev

    def fail(fd: int, chunks: Sequence[bytes], offset: int, flags: int = 0) -> int:
        if flags:
            pwritev(fd, [], offset, flags)
            raise OSError(number, os.strerror(number))
        return pwritev(fd, chunks, offset)

    monkeypatch.setattr(os, "pwritev", fail)


def test_it_is_one_call_and_counted_as_a_sync(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def unused(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(DirectoryFileSystem, "write_synced", unused)
    monkeypatch.setattr(OwnerFileSystem, "write_synced", unused)
    counted = sum(scene.files.syncs.counts)
    scene.write(2, [b"a", b"", b"b"])
    assert (scene.root / "mark").read_bytes() == b"01ab456789"
    assert scene.calls == ["write and sync"]
    assert sum(scene.files.syncs.counts) == counted + 1
    assert scene.files.running == {}


def test_whoever_looks_meanwhile_sees_what_hangs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    def look(*_: object) -> int:
        seen.append(scene.files.slow(-1.0))
        return 1

    monkeypatch.setattr(os, "pwritev", look)
    scene.write(0, [b"a"])
    assert [line.partition(" has")[0] for line in seen] == ["the sync of mark"]
    assert scene.files.running == {}


@pytest.mark.parametrize("refused", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_the_system_refuses_the_flag_it_is_two_calls(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    failing(monkeypatch, refused)
    scene.write(0, [b"b"])
    scene.files.writer("mark")(0, [b"a"])
    assert scene.calls == ["write and sync", *("write", "sync") * 2]  # who is chosen later does not try
    assert (scene.root / "mark").read_bytes() == b"a123456789"
    assert scene.files.running == {}


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, *sorted(NO_ROOM)])
def test_what_fails_is_a_failed_sync_and_not_tried_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failing(monkeypatch, number)
    with pytest.raises(OSError, match="mark") as caught:
        scene.write(0, [b"a"])
    assert caught.value.errno not in NO_ROOM
    assert scene.calls == ["write and sync"]
    assert scene.files.running == {}


def test_a_short_write_is_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 1)
    with pytest.raises(OSError, match="short write in place") as caught:
        scene.write(0, [b"ab"])
    assert caught.value.errno == errno.EIO


def test_more_pieces_than_one_call_takes_are_synced_behind_the_last(scene: Scene) -> None:
    many = os.sysconf("SC_IOV_MAX") + 1
    scene.write(0, [b"x"] * many)
    assert (scene.root / "mark").read_bytes() == b"x" * many
    assert scene.calls[-2:] == ["write", "sync"]


GONE: dict[str, Callable[[OwnerFileSystem], object]] = {
    "unlinked": lambda files: files.unlink("mark"),
    "renamed": lambda files: files.rename("mark", "other"),
    "replaced": lambda files: files.rename("other", "mark"),
    "another was written to": lambda files: files.writer("other")(0, [b"x"]),
}


@pytest.mark.parametrize("gone", GONE)
def test_it_writes_to_the_file_of_that_name(scene: Scene, gone: str) -> None:
    scene.files.create("other", [b"other"])
    GONE[gone](scene.files)
    for digit in (b"a", b"b"):
        scene.write(0, [digit])
        assert (scene.root / "mark").read_bytes()[:1] == digit
    if gone == "renamed":
        assert (scene.root / "other").read_bytes() == b"0123456789"


def test_a_port_that_derives_from_this_one_sees_each_call(tmp_path: Path) -> None:
    seen = list[int]()

    class Watching(DirectoryFileSystem):
        def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
            seen.append(offset)
            super().write_synced(path, offset, chunks, syncing)

    write = OwnerFileSystem(Watching(tmp_path)).writer("mark")
    for offset in range(3):
        write(offset, [b"x"])
    assert seen == [0, 1, 2]
