"""What an owner renames, unlinks and overwrites in one frame: seen as long as it takes, and else as any port's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.core.storage.reserve import PIECE_BYTES, Reserve

CALLS: list[tuple[str, tuple[Any, ...], str, str]] = [
    ("write_at", ("a", 1, [b"x"]), "pwritev", "the write of a"),
    ("rename", ("a", "b"), "rename", "the rename of b"),
    ("unlink", ("a",), "unlink", "the unlink of a"),
]


@pytest.fixture
def files(tmp_path: Path) -> OwnerFileSystem:
    """With a file that was written to, and its descriptor kept."""
    made = OwnerFileSystem(DirectoryFileSystem(tmp_path))
    made.create("a", [b"0123"])
    made.write_at("a", 0, [b"A"])
    return made


@pytest.mark.parametrize(("call", "arguments", "function", "told"), CALLS)
@pytest.mark.parametrize("end", [None, OSError, KeyboardInterrupt])
def test_a_call_is_seen_as_long_as_it_takes(
    files: OwnerFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    arguments: tuple[Any, ...],
    function: str,
    told: str,
    end: type[BaseException] | None,
) -> None:
    real, seen = getattr(os, function), list[str]()

    def look(*given: Any) -> object:
        seen.append(files.slow(-1.0))
        if end is not None:
            raise end
        return real(*given)

    monkeypatch.setattr(os, function, look)
    if end is None:
        getattr(files, call)(*arguments)
    else:
        with pytest.raises(end):
            getattr(files, call)(*arguments)
    assert [line.partition(" has")[0] for line in seen] == [told]
    assert files.running == {}


@pytest.mark.parametrize(("call", "arguments", "function"), [one[:3] for one in CALLS])
def test_what_finds_no_room_is_done_with_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, arguments: tuple[Any, ...], function: str
) -> None:
    fs = DirectoryFileSystem(tmp_path)
    reserve = Reserve(fs)
    reserve.make()
    files = OwnerFileSystem(fs, reserve)
    files.create("a", [b"0123"])
    files.write_at("a", 0, [b"A"])
    real, failures = getattr(os, function), [OSError(errno.ENOSPC, "full")]

    def full(*given: Any) -> object:
        if failures:
            raise failures.pop()
        return real(*given)

    monkeypatch.setattr(os, function, full)
    getattr(files, call)(*arguments)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir() if len(path.name) == 1}
    assert left == {"write_at": {"a": b"Ax23"}, "rename": {"b": b"A123"}, "unlink": {}}[call]
    assert files.running == {}


def test_a_long_write_takes_nothing_of_the_reserve(files: OwnerFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files, "reserve", object())  # it would fail
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match=r"full.*/a'$"):
        files.write_at("a", 0, [bytes(PIECE_BYTES + 1)])


@pytest.mark.parametrize("count", [3, os.sysconf("SC_IOV_MAX") + 1])
def test_what_is_written_is_written_whole(files: OwnerFileSystem, tmp_path: Path, count: int) -> None:
    files.write_at("a", 2, [b"x"] * count)
    assert (tmp_path / "a").read_bytes() == b"A1" + b"x" * count
    files.write_at("a", 0, [b"y"])
    assert (tmp_path / "a").read_bytes() == b"y1" + b"x" * count


def test_a_short_write_is_an_error(files: OwnerFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 1)
    with pytest.raises(OSError, match="short write in place") as caught:
        files.write_at("a", 0, [b"ab"])
    assert caught.value.errno == errno.EIO


GONE: dict[str, Callable[[OwnerFileSystem], object]] = {
    "unlinked": lambda files: files.unlink("a"),
    "renamed": lambda files: files.rename("a", "other"),
    "replaced": lambda files: files.rename("other", "a"),
}


@pytest.mark.parametrize("gone", GONE)
def test_it_writes_to_the_file_of_that_name(files: OwnerFileSystem, tmp_path: Path, gone: str) -> None:
    files.create("other", [b"other"])
    GONE[gone](files)
    for digit in (b"a", b"b"):
        files.write_at("a", 0, [digit])
        assert (tmp_path / "a").read_bytes()[:1] == digit
    if gone == "renamed":
        assert (tmp_path / "other").read_bytes() == b"A123"


def test_what_is_not_synced_yet_is_synced_under_its_other_name(
    files: OwnerFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync, synced = os.fdatasync, list[str]()

    def note(fd: int) -> None:
        synced.append(os.fspath(Path(f"/proc/self/fd/{fd}").readlink()))
        fdatasync(fd)

    def unused(*_: object, **__: object) -> int:
        raise AssertionError

    files.create("new", [b"new"])
    files.rename("new", "moved")
    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "open", unused)
    files.sync_data("moved")
    assert synced == [str(tmp_path / "moved")]


def test_a_port_that_derives_from_this_one_sees_each_call(tmp_path: Path) -> None:
    seen = list[str]()

    class Watching(DirectoryFileSystem):
        def rename(self, source: str, target: str) -> None:
            seen.append("rename")
            super().rename(source, target)

        def unlink(self, path: str) -> None:
            seen.append("unlink")
            super().unlink(path)

        def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
            seen.append("write_at")
            super().write_at(path, offset, chunks)

    files = OwnerFileSystem(Watching(tmp_path))
    files.write_at("a", 0, [b"x"])
    files.rename("a", "b")
    files.unlink("b")
    assert seen == ["write_at", "rename", "unlink"]
