"""The port over a real directory: what is written is all there, what fails leaves nothing, descriptors are bounded."""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

from support.bare_space import FaultyFileSystem
from xaqueue.core.storage import directory_fs as fs_room
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import NO_ROOM, FileSystem
from xaqueue.core.storage.regular import read_up_to


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[DirectoryFileSystem]:
    opened = DirectoryFileSystem(tmp_path)
    yield opened
    opened.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[int, int]]:
    """(device, inode) of every descriptor that ``os.<name>`` is called with."""
    calls: list[tuple[int, int]] = []
    real: Callable[[int], None] = getattr(os, name)

    def counted(fd: int) -> None:
        found = os.fstat(fd)
        calls.append((found.st_dev, found.st_ino))
        real(fd)

    monkeypatch.setattr(os, name, counted)
    return calls


def inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def test_it_is_the_port(fs: DirectoryFileSystem) -> None:
    port: FileSystem = fs
    assert port is fs


# create


@pytest.mark.parametrize(
    "chunks",
    [[], [b""], [b"one"], [b"one", b"", b"two"], [b"%d," % number for number in range(2000)], [b"x" * 3_000_000]],
    ids=["no chunk", "empty chunk", "one", "three", "more than one call takes", "large"],
)
def test_create_writes_every_chunk(fs: DirectoryFileSystem, tmp_path: Path, chunks: list[bytes]) -> None:
    fs.create("file", chunks)
    assert (tmp_path / "file").read_bytes() == b"".join(chunks) == fs.read("file")
    assert fs.size("file") == len(b"".join(chunks))


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_short_writes_are_gone_on_with(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    real_write = os.write

    def short_writev(fd: int, buffers: Sequence[bytes]) -> int:
        return real_write(fd, b"".join(buffers)[:at_once])

    def short_write(fd: int, data: bytes | memoryview) -> int:
        return real_write(fd, bytes(data[:at_once]))

    monkeypatch.setattr(os, "writev", short_writev)
    monkeypatch.setattr(os, "write", short_write)
    chunks = [b"head", b"body " * 10]
    fs.create("file", chunks)
    assert (tmp_path / "file").read_bytes() == b"".join(chunks)


def test_create_of_a_file_that_exists_fails_and_leaves_it(fs: DirectoryFileSystem, tmp_path: Path) -> None:
    fs.create("file", [b"first"])
    with pytest.raises(FileExistsError):
        fs.create("file", [b"second"])
    assert (tmp_path / "file").read_bytes() == b"first"


@pytest.mark.parametrize("failing", ["writev", "write"])
def test_create_that_fails_leaves_no_file_and_no_descriptor(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    if failing == "write":
        monkeypatch.setattr(os, "writev", lambda fd, buffers: 1)
    before = open_descriptors()
    with pytest.raises(OSError, match="No space left") as failed:
        fs.create("file", [b"content"])
    assert failed.value.errno in NO_ROOM
    assert list(tmp_path.iterdir()) == []
    assert open_descriptors() == before


def test_create_past_a_file_size_limit_leaves_nothing(fs: DirectoryFileSystem, tmp_path: Path) -> None:
    """The kernel's own short write: it takes what fits, and refuses the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            fs.create("file", [b"x" * 5000, b"y" * 5000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_files_are_private_and_not_inherited(fs: DirectoryFileSystem, tmp_path: Path) -> None:
    fs.create("file", [b"x"])
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert not any(os.get_inheritable(fd) for fd in fs._unsynced.values())


# write_at


def test_write_at_makes_and_overwrites_in_place(fs: DirectoryFileSystem, tmp_path: Path) -> None:
    fs.write_at("mark", 0, [b"0123456789"])
    before = inode(tmp_path / "mark")
    fs.write_at("mark", 2, [b"ab"])
    assert (tmp_path / "mark").read_bytes() == b"01ab456789"
    assert inode(tmp_path / "mark") == before


def test_a_short_write_in_place_is_an_error(fs: DirectoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.write_at("mark", 0, [b"0123456789"])
    monkeypatch.setattr(os, "pwritev", lambda fd, chunks, offset: sum(map(len, chunks)) - 1)
    with pytest.raises(OSError, match="short write in place"):
        fs.write_at("mark", 0, [b"9876543210"])


def test_what_is_made_has_its_time_from_the_beginning(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.create("file", [b"x"], 10**18)
    assert (tmp_path / "file").stat().st_mtime_ns == 10**18

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "utime", broken)
    with pytest.raises(OSError, match="another"):
        fs.create("another", [b"x"], 10**18)
    assert not fs.exists("another")


# write_synced


class Written:
    """The calls that ``os.pwritev`` and ``os.fdatasync`` come to, in their order; ``fails``: with the flag, so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.descriptors: list[int] = []
        self.fails: int | None = None
        self.short_by = 0
        self._pwritev, self._fdatasync = os.pwritev, os.fdatasync
        monkeypatch.setattr(os, "pwritev", self._write)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _write(self, fd: int, chunks: Sequence[bytes], offset: int, flags: int = 0) -> int:
        self.calls.append("write and sync" if flags else "write")
        self.descriptors.append(fd)
        if flags and self.fails is not None:
            raise OSError(self.fails, os.strerror(self.fails))
        return self._pwritev(fd, chunks, offset, flags) - self.short_by

    def _sync(self, fd: int) -> None:
        self.calls.append("sync")
        self.descriptors.append(fd)
        self._fdatasync(fd)


@pytest.fixture
def written(fs: DirectoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Of a file system that can overwrite without room, whatever this one is; the file is there and open."""
    monkeypatch.setattr(fs_room, "has_dsync", lambda root: True)
    written = Written(monkeypatch)
    fs.write_synced("mark", 0, [b"0123456789"])
    assert written.calls == ["write and sync"]
    written.calls.clear()
    return written


def test_what_is_written_and_synced_is_one_call(fs: DirectoryFileSystem, tmp_path: Path, written: Written) -> None:
    before = open_descriptors()
    fs.write_synced("mark", 2, [b"a", b"", b"b"])
    assert (tmp_path / "mark").read_bytes() == b"01ab456789"
    assert written.calls == ["write and sync"]
    assert open_descriptors() == before


@pytest.mark.parametrize("refused", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_the_system_refuses_the_flag_they_are_two(
    fs: DirectoryFileSystem, tmp_path: Path, written: Written, refused: int
) -> None:
    written.fails = refused
    for digit in (b"a", b"b"):
        fs.write_synced("mark", 0, [digit])
    assert written.calls == ["write and sync", *("write", "sync") * 2]
    assert (tmp_path / "mark").read_bytes() == b"b123456789"


@pytest.mark.parametrize("number", [errno.EIO, *sorted(NO_ROOM)])
def test_a_failed_write_that_syncs_is_a_failed_sync(fs: DirectoryFileSystem, written: Written, number: int) -> None:
    """Which of the two failed nobody knows: it never passes for a call that did nothing, and is not tried twice."""
    written.fails = number
    with pytest.raises(OSError, match="mark") as caught:
        fs.write_synced("mark", 0, [b"a"])
    assert caught.value.errno not in NO_ROOM
    assert written.calls == ["write and sync"]


def test_a_short_write_that_syncs_is_an_error(fs: DirectoryFileSystem, written: Written) -> None:
    written.short_by = 1
    with pytest.raises(OSError, match="short write in place") as caught:
        fs.write_synced("mark", 0, [b"ab"])
    assert caught.value.errno == errno.EIO


def test_more_pieces_than_one_call_takes_are_synced_behind_the_last(fs: DirectoryFileSystem, written: Written) -> None:
    many = fs_room.WRITE_VECTORS + 1
    fs.write_synced("mark", 0, [b"x"] * many)
    assert fs.read("mark") == b"x" * many
    assert written.calls == ["write", "write", "sync"]


@pytest.mark.parametrize("kind", ["btrfs", "xfs", "overlay", "fuse.gcsfuse", "nfs4"])
def test_where_an_overwrite_may_need_room_they_are_two_calls(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """There a full disk fences nobody: it fails the write, and not the sync."""
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / / rw - {kind} none rw\n")
    monkeypatch.setattr(fs_room, "MOUNTINFO", str(table))
    written = Written(monkeypatch)
    for _ in range(2):
        fs.write_synced("mark", 0, [b"a"])
    assert written.calls == ["write", "sync"] * 2


@pytest.mark.parametrize("in_one", [True, False])
def test_a_round_is_synced_by_the_descriptor_by_which_it_is_written(
    fs: DirectoryFileSystem, monkeypatch: pytest.MonkeyPatch, in_one: bool
) -> None:
    """Whoever grows the file meanwhile has another one: a sync tells of a failure once at each that was open then, so
    what he is told is told to the round as well."""
    monkeypatch.setattr(fs_room, "has_dsync", lambda root: in_one)
    written, seen = Written(monkeypatch), list[str]()

    def grow() -> None:
        fs.write_at("mark", 10, [b"0"])
        fs.sync_data("mark")
        for number in range(fs_room.OPEN_DIRECTORIES + 1):  # others need descriptors meanwhile
            fs.write_at(f"other {number}", 0, [b"x"])

    def syncing() -> None:
        seen.append("".join(written.calls))
        grow()
        written.calls.clear()
        written.descriptors[1:] = []

    fs.write_synced("mark", 0, [b"first"])
    (held,) = {*written.descriptors}
    grow()
    assert held not in written.descriptors[-fs_room.OPEN_DIRECTORIES - 3 :]
    written.calls.clear()
    written.descriptors.clear()
    fs.write_synced("mark", 0, [b"second"], syncing)
    assert (seen, written.calls, written.descriptors) == (["write"], ["sync"], [held, held])
    fs.write_synced("mark", 0, [b"third"])
    assert {*written.descriptors} == {held}


def test_what_a_round_wrote_is_synced_where_another_file_was_written_before(
    fs: DirectoryFileSystem, tmp_path: Path, written: Written
) -> None:
    """One file at a time is held, and none that has lost its name."""
    before = open_descriptors()
    fs.write_synced("next", 0, [b"a"])
    fs.rename("next", "mark")
    fs.write_synced("mark", 0, [b"b"])
    assert (tmp_path / "mark").read_bytes() == b"b"
    assert open_descriptors() == before
    fs.unlink("mark")
    assert open_descriptors() == before - 1


def before_instruction(number: int, call: Callable[[], object]) -> Callable[..., Any]:
    """A trace that calls this before the one of this number that is carried out in the port's module."""
    left = [number]

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != fs_room.__file__:
            return None
        frame.f_trace_opcodes = True
        left[0] -= event == "opcode"
        if not left[0]:
            left[0] = -1
            call()
        return trace

    return trace


@pytest.mark.parametrize("removes", [True, False])
def test_the_last_file_of_a_round_goes_while_the_next_one_is_written(
    fs: DirectoryFileSystem, written: Written, removes: bool
) -> None:
    """By another thread: neither closes what the other one has open, wherever the one overtakes the other."""
    calls = [partial(fs.unlink, "mark"), partial(fs.write_synced, "next", 0, [b"a"])]
    before, overtaken = open_descriptors(), list[None]()

    def overtake() -> None:
        calls[removes]()
        overtaken.append(None)

    for number in count(1):
        sys.settrace(before_instruction(number, overtake))
        try:
            calls[not removes]()
        finally:
            sys.settrace(None)
        if len(overtaken) < number:
            break
        fs.write_synced("next", 0, [b"b"])
        assert open_descriptors() == before
        fs.write_synced("mark", 0, [b"a"])
    assert len(overtaken) > 10


def test_places_keep_their_descriptors_up_to_a_cap(fs: DirectoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs_room, "OPEN_DIRECTORIES", 3)
    before = open_descriptors()
    for number in range(20):
        fs.write_at(f"mark {number % 7}", 0, [b"%d" % number])
    assert open_descriptors() - before <= 3
    assert fs.read("mark 0") == b"14"


# reading and names


def test_read_whole_and_in_part(fs: DirectoryFileSystem) -> None:
    fs.create("file", [b"0123456789"])
    assert (fs.read("file"), fs.read("file", 4), fs.read("file", 99)) == (b"0123456789", b"0123", b"0123456789")
    with pytest.raises(FileNotFoundError):
        fs.read("none")


def test_read_up_to_of_a_file_that_reads_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 10
    (tmp_path / "file").write_bytes(content)
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: real(fd, min(size, 100)))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    assert read_up_to(fd, len(content) + 1) == content
    os.close(fd)


def test_names_in_a_directory(fs: DirectoryFileSystem) -> None:
    fs.make_dir("d")
    fs.make_dir("d/inner")
    fs.create("d/.hidden", [])
    fs.create("d/file", [])
    assert sorted(fs.list("d")) == [".hidden", "file", "inner"]
    assert (fs.is_dir("d"), fs.is_dir("d/file"), fs.is_dir("none")) == (True, False, False)
    assert (fs.exists("d/file"), fs.exists("none")) == (True, False)
    with pytest.raises(FileExistsError):
        fs.make_dir("d")
    with pytest.raises(FileNotFoundError):
        fs.list("none")


def test_a_link_is_no_directory_and_exists_even_if_broken(fs: DirectoryFileSystem, tmp_path: Path) -> None:
    fs.make_dir("d")
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "broken").symlink_to("none")
    assert not fs.is_dir("link")
    assert fs.exists("broken")


def test_rename_moves_and_replaces(fs: DirectoryFileSystem, tmp_path: Path) -> None:
    fs.make_dir("a")
    fs.make_dir("b")
    fs.create("a/file", [b"new"])
    fs.create("b/file", [b"old"])
    fs.rename("a/file", "b/file")
    assert (fs.list("a"), fs.read("b/file")) == ([], b"new")
    with pytest.raises(FileNotFoundError):
        fs.rename("a/file", "b/file")


def test_unlink_and_remove_dir(fs: DirectoryFileSystem, tmp_path: Path) -> None:
    fs.make_dir("d")
    fs.create("d/file", [])
    fs.sync_dir("d")
    with pytest.raises(OSError, match="not empty"):
        fs.remove_dir("d")
    before = open_descriptors()
    fs.unlink("d/file")
    fs.remove_dir("d")
    assert open_descriptors() == before - 2
    assert list(tmp_path.iterdir()) == []


def test_times_are_kept_to_the_microsecond(fs: DirectoryFileSystem) -> None:
    fs.create("file", [])
    fs.set_modified_ns("file", 1_700_000_000_123_456_000)
    assert fs.modified_ns("file") == 1_700_000_000_123_456_000


def test_the_room_is_what_a_user_may_use(fs: DirectoryFileSystem) -> None:
    room = fs.room()
    assert 0 < room.free_bytes <= room.total_bytes < 2**63
    assert 0 <= room.free_inodes <= room.total_inodes < 2**63


# syncs and descriptors


@pytest.mark.parametrize(("call", "name"), [("sync_data", "fdatasync"), ("sync_file", "fsync")])
def test_a_renamed_file_is_synced_by_its_new_name_and_the_descriptor_it_was_written_by(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str
) -> None:
    """A failed write-back is told to descriptors that were open when it failed."""
    calls = count_calls(monkeypatch, name)
    fs.make_dir("a")
    fs.make_dir("b")
    before = open_descriptors()
    fs.create("a/file", [b"x"])
    fs.rename("a/file", "b/file")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("the file was opened anew"))
    getattr(fs, call)("b/file")
    assert calls == [inode(tmp_path / "b" / "file")]
    assert open_descriptors() == before


def test_a_file_that_replaced_an_unsynced_one_is_the_one_that_is_synced(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch, "fdatasync")
    before = open_descriptors()
    fs.create("target", [b"old"])
    fs.create("source", [b"new"])
    fs.rename("source", "target")
    fs.sync_data("target")
    assert calls == [inode(tmp_path / "target")]
    assert open_descriptors() == before


def test_a_synced_file_that_replaced_an_unsynced_one_is_the_one_that_is_synced(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.create("source", [b"new"])
    fs.sync_data("source")
    calls = count_calls(monkeypatch, "fdatasync")
    fs.create("target", [b"old"])
    fs.rename("source", "target")
    fs.sync_data("target")
    assert calls == [inode(tmp_path / "target")]


@pytest.mark.parametrize("gone", ["unlink", "rename"])
def test_a_place_that_is_gone_is_made_anew(fs: DirectoryFileSystem, gone: str) -> None:
    fs.write_at("mark", 0, [b"old"])
    if gone == "unlink":
        fs.unlink("mark")
    else:
        fs.rename("mark", "aside")
    fs.write_at("mark", 0, [b"new"])
    assert fs.read("mark") == b"new"
    assert gone == "unlink" or fs.read("aside") == b"old"


def test_an_old_file_is_opened_to_be_synced(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    calls = count_calls(monkeypatch, "fdatasync")
    before = open_descriptors()
    fs.sync_data("file")
    assert calls == [inode(tmp_path / "file")]
    assert open_descriptors() == before
    with pytest.raises(FileNotFoundError):
        fs.sync_data("none")


def test_a_place_is_synced_by_the_descriptor_it_was_written_by(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.write_at("mark", 0, [b"x"])
    calls = count_calls(monkeypatch, "fdatasync")
    held = open_descriptors()
    fs.sync_data("mark")
    assert calls == [inode(tmp_path / "mark")]
    assert open_descriptors() == held


def test_beyond_the_cap_the_oldest_file_is_synced_early(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fs_room, "OPEN_FILES", 3)
    calls = count_calls(monkeypatch, "fdatasync")
    before = open_descriptors()
    for number in range(10):
        fs.create(f"file {number}", [b"x"])
    assert open_descriptors() - before == 3
    assert calls == [inode(tmp_path / f"file {number}") for number in range(7)]


def test_an_early_sync_that_fails_is_told(fs: DirectoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fs_room, "OPEN_FILES", 1)
    fs.create("first", [b"x"])
    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        fs.create("second", [b"x"])


def test_where_nothing_will_be_synced_no_descriptor_is_kept(tmp_path: Path) -> None:
    before = open_descriptors()
    fs = DirectoryFileSystem(tmp_path, keep_unsynced=False)
    for number in range(10):
        fs.create(f"file {number}", [b"x"])
    assert open_descriptors() == before


def test_directories_keep_their_descriptors_up_to_a_cap(
    fs: DirectoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fs_room, "OPEN_DIRECTORIES", 2)
    calls = count_calls(monkeypatch, "fsync")
    before = open_descriptors()
    for name in "abcab":
        if not fs.is_dir(name):
            fs.make_dir(name)
        fs.sync_dir(name)
    assert open_descriptors() - before == 2
    assert calls == [inode(tmp_path / name) for name in "abcab"]


def test_a_held_directory_needs_no_descriptor_to_be_synced(
    fs: DirectoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.make_dir("d")
    fs.hold_dir("d")
    fs.hold_dir("d")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("the directory was opened anew"))
    fs.sync_dir("d")


def test_a_sync_that_fails_is_told_and_keeps_no_descriptor(
    fs: DirectoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = open_descriptors()
    fs.create("file", [b"x"])
    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_data("file")
    assert open_descriptors() == before


def test_close_gives_every_descriptor_back(tmp_path: Path) -> None:
    before = open_descriptors()
    fs = DirectoryFileSystem(tmp_path)
    fs.create("file", [b"x"])
    fs.write_at("mark", 0, [b"x"])
    fs.make_dir("d")
    fs.hold_dir("d")
    assert open_descriptors() == before + 3
    fs.close()
    assert open_descriptors() == before


CALLS: dict[str, Callable[[DirectoryFileSystem], object]] = {
    "create": lambda fs: fs.create("new", [b"x"]),
    "write_at": lambda fs: fs.write_at("mark 0", 0, [b"x"]),
    "write_synced": lambda fs: fs.write_synced("mark 0", 0, [b"x"]),
    "read": lambda fs: fs.read("mark 0"),
    "read all": lambda fs: fs.read("mark 0", 10),
    "list": lambda fs: fs.list(""),
    "hold_dir": lambda fs: fs.hold_dir("d 0"),
    "sync_dir": lambda fs: fs.sync_dir("d 0"),
    "sync_file": lambda fs: fs.sync_file("mark 0"),
    "sync_data": lambda fs: fs.sync_data("mark 0"),
    "sync_all": lambda fs: fs.sync_all(),
}


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """The process may have so many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(int(name) for name in os.listdir("/proc/self/fd")) + 40  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, before[1]))
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("kept", ["directories", "places", "files"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_kept_open_is_never_what_is_missing(tmp_path: Path, few_descriptors: int, call: str, kept: str) -> None:
    fs = DirectoryFileSystem(tmp_path)
    for number in range(3):
        fs.make_dir(f"d {number}")
        fs.write_at(f"mark {number}", 0, [b"x"])
    fs.close()
    for number in range(3):
        if kept == "directories":
            fs.sync_dir(f"d {number}")
        elif kept == "places":
            fs.write_at(f"mark {number}", 0, [b"x"])
        else:
            fs.create(f"file {number}", [b"x"])
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        CALLS[call](fs)
    finally:
        for fd in taken:
            os.close(fd)
        fs.close()


def test_half_of_the_descriptors_are_left_to_others(tmp_path: Path, few_descriptors: int) -> None:
    fs = DirectoryFileSystem(tmp_path)
    before = open_descriptors()
    for number in range(few_descriptors):
        fs.make_dir(f"d {number}")
        fs.sync_dir(f"d {number}")
        fs.write_at(f"mark {number}", 0, [b"x"])
        fs.create(f"file {number}", [b"x"])
    assert open_descriptors() - before <= few_descriptors // 2
    fs.close()


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


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("writev", lambda fs: fs.create("d/new", [b"x"])),
        ("pwritev", lambda fs: fs.write_at("d/file", 0, [b"x"])),
        ("fsync", lambda fs: fs.sync_file("d/file")),
        ("fdatasync", lambda fs: fs.sync_data("d/file")),
        ("fsync", lambda fs: fs.sync_dir("d")),
    ],
)
def test_a_call_that_fails_says_at_which_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, work: Callable[[DirectoryFileSystem], object]
) -> None:
    def failing(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(DirectoryFileSystem(tmp_path)) as fs:
        fs.make_dir("d")
        fs.create("d/file", [b"y"])
        monkeypatch.setattr(os, call, failing)
        with pytest.raises(OSError, match="Input/output error") as failed:
            work(fs)
    assert str(failed.value.filename).startswith(str(tmp_path / "d"))
