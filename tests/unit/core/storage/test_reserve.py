"""The reserve is real room, given up piece by piece for calls that found none, and for nothing else."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bare_space import FaultyFileSystem
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import Room
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.core.storage.reserve import PIECE_BYTES, PIECES, Reserve

MiB = 1024**2
LARGE = Room(10**12, 10**12, 10**7, 10**7)


class Sized(DirectoryFileSystem):
    """A file system of the size that a test says."""

    def __init__(self, root: str | os.PathLike[str], room: Room = LARGE) -> None:
        super().__init__(root, keep_unsynced=False)
        self.size_told = room

    def room(self) -> Room:
        return self.size_told


def made(root: Path, room: Room = LARGE) -> Reserve:
    reserve = Reserve(Sized(root, room))
    reserve.make()
    return reserve


def pieces(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted((root / "reserve").iterdir())}


@pytest.mark.parametrize(
    ("room", "number", "size_bytes"),
    [
        (LARGE, 16, 65536),
        (Room(0, 16 * MiB, 0, 0), 16, 65536),
        (Room(0, 8 * MiB, 0, 5000), 16, 32768),
        (Room(0, MiB, 0, 5000), 16, 4096),
        (Room(0, 400_000, 0, 200), 6, 4096),
        (Room(0, 8 * MiB, 0, 100), 6, 32768),
        (Room(0, 50_000, 0, 1000), 0, 4096),
    ],
)
def test_on_a_small_disk_it_is_small(tmp_path: Path, room: Room, number: int, size_bytes: int) -> None:
    reserve = made(tmp_path, room)
    assert reserve.pieces == number
    assert pieces(tmp_path) == {f"{n:02d}": size_bytes for n in range(1, number + 1)}
    assert reserve.missing == 0
    if room.total_inodes:
        assert number <= room.total_inodes / 16
    assert number * size_bytes <= room.total_bytes / 16


def test_it_takes_room(tmp_path: Path) -> None:
    made(tmp_path)
    taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "reserve").iterdir())
    assert taken >= PIECES * PIECE_BYTES
    first = (tmp_path / "reserve" / "01").read_bytes()
    assert len(set(first)) == 256, "what compresses well takes no room on some file systems"


def test_what_an_earlier_owner_left_is_taken_over(tmp_path: Path) -> None:
    made(tmp_path)
    directory = tmp_path / "reserve"
    (directory / "03").unlink()
    os.truncate(directory / "05", 100)
    (directory / "foreign").write_bytes(b"not ours")
    before = (directory / "01").stat().st_ino
    reserve = Reserve(Sized(tmp_path))
    assert reserve.missing == 2
    reserve.make()
    assert reserve.missing == 0
    assert (directory / "foreign").read_bytes() == b"not ours"
    assert (directory / "01").stat().st_ino == before
    (directory / "foreign").unlink()
    assert pieces(tmp_path) == {f"{n:02d}": PIECE_BYTES for n in range(1, 17)}


def test_it_is_given_up_piece_by_piece(tmp_path: Path) -> None:
    reserve = made(tmp_path)
    told: list[int] = []
    reserve.used = lambda: told.append(reserve.missing)
    for left in range(15, -1, -1):
        assert reserve.give_up()
        assert len(pieces(tmp_path)) == left
    assert not reserve.give_up()
    assert told == list(range(1, 17))
    reserve.make()
    assert len(pieces(tmp_path)) == 16


def test_a_piece_that_somebody_removed_is_no_piece(tmp_path: Path) -> None:
    reserve = made(tmp_path)
    for path in (tmp_path / "reserve").iterdir():
        path.unlink()
    assert not reserve.give_up()
    assert reserve.missing == 16


def test_without_room_what_was_made_stays(tmp_path: Path) -> None:
    fs = FaultyFileSystem(tmp_path)
    fs.faults["create", "reserve/04"] = errno.ENOSPC
    reserve = Reserve(fs)
    with pytest.raises(OSError, match="No space left"):
        reserve.make()
    assert reserve.missing == reserve.pieces - 3
    fs.faults.clear()
    reserve.make()
    assert reserve.missing == 0
    fs.close()


def test_no_piece_is_given_up_twice(tmp_path: Path) -> None:
    reserve = made(tmp_path)
    given: list[bool] = []
    threads = [threading.Thread(target=lambda: given.append(reserve.give_up())) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == [False] * 8 + [True] * 16


# Calls that find no room


def failing(times: int, number: int = errno.ENOSPC) -> Callable[[], None]:
    """A call that fails so often, and then is done."""
    left = [times]

    def call() -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(("times", "used"), [(1, 1), (2, 2), (16, 16)])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_call_is_done_again_until_there_is_room(tmp_path: Path, times: int, used: int, number: int) -> None:
    reserve = made(tmp_path)
    reserve.again(OSError(number, "the first try"), failing(times - 1, number))
    assert reserve.missing == used


def test_a_call_for_which_it_is_too_small_fails(tmp_path: Path) -> None:
    reserve = made(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        reserve.again(OSError(errno.ENOSPC, "the first try"), failing(16))
    assert reserve.missing == 16


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EROFS])
def test_no_other_error_costs_a_piece(tmp_path: Path, number: int) -> None:
    reserve = made(tmp_path)
    with pytest.raises(OSError, match="the first try"):
        reserve.again(OSError(number, "the first try"), failing(0))
    with pytest.raises(OSError, match=os.strerror(number)):
        reserve.again(OSError(errno.ENOSPC, "the first try"), failing(1, number))
    assert reserve.missing == 1


class Full(FaultyFileSystem):
    """Such calls find no room as long as there are more pieces than these."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root_path = root
        self.enough = PIECES

    def strike(self, call: str, path: str) -> None:
        if call != "list" and not path.startswith("reserve") and len(pieces(self.root_path)) > self.enough:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@pytest.fixture
def reserve(tmp_path: Path) -> Reserve:
    made(tmp_path)
    return Reserve(Sized(tmp_path))


@pytest.fixture
def recovering(tmp_path: Path, reserve: Reserve) -> OwnerFileSystem:
    fs = Full(tmp_path)
    fs.create("there", [b"abc"])
    fs.enough = PIECES - 2
    return OwnerFileSystem(fs, reserve)


@pytest.fixture
def port(recovering: OwnerFileSystem) -> OwnerFileSystem:
    recovering.recovered()
    return recovering


CALLS: list[tuple[str, tuple[object, ...]]] = [
    ("rename", ("there", "moved")),
    ("unlink", ("there",)),
    ("make_dir", ("directory",)),
    ("write_at", ("there", 1, [b"x"])),
    ("write_at", ("there", 0, [bytes(PIECE_BYTES)])),
]


@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_names_and_writes_in_place_find_room(
    port: OwnerFileSystem, reserve: Reserve, call: str, arguments: tuple[object, ...]
) -> None:
    getattr(port, call)(*arguments)
    assert reserve.missing == 2


def test_new_files_and_journals_that_grow_do_not(port: OwnerFileSystem, reserve: Reserve) -> None:
    with pytest.raises(OSError, match="No space left"):
        port.create("new", [b"content"])
    with pytest.raises(OSError, match="No space left"):
        port.write_at("there", 0, [bytes(PIECE_BYTES), b"x"])
    assert reserve.missing == 0
    assert port.list("") != []
    assert not port.exists("new")


def test_files_of_a_recovery_do(recovering: OwnerFileSystem, reserve: Reserve) -> None:
    with pytest.raises(OSError, match="No space left"):
        recovering.create("large", [bytes(PIECE_BYTES + 1)])
    recovering.create("new", [b"content"])
    assert recovering.read("new") == b"content"
    assert reserve.missing == 2


def test_it_is_the_port(tmp_path: Path) -> None:
    fs = OwnerFileSystem(DirectoryFileSystem(tmp_path), made(tmp_path))
    fs.make_dir("directory")
    fs.create("directory/a", [b"abc"])
    fs.sync_file("directory/a")
    fs.rename("directory/a", "directory/b")
    fs.write_at("directory/b", 1, [b"x"])
    fs.sync_data("directory/b")
    fs.set_modified_ns("directory/b", 10**18)
    fs.hold_dir("directory")
    fs.sync_dir("directory")
    fs.sync_all()
    assert (fs.read("directory/b"), fs.size("directory/b"), fs.modified_ns("directory/b")) == (b"axc", 3, 10**18)
    assert (fs.list("directory"), fs.is_dir("directory"), fs.exists("directory/a")) == (["b"], True, False)
    assert fs.room().free_bytes > 0
    fs.unlink("directory/b")
    fs.remove_dir("directory")
    fs.close()
    assert [path.name for path in tmp_path.iterdir()] == ["reserve"]
