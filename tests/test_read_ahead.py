"""Files that are opened ahead: in order, closed again whatever happens, and as few as there are descriptors."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from xaqueue.storage.read_ahead import AHEAD, opened

MANY = 2 * AHEAD + 10


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    for number in range(MANY):
        (tmp_path / f"{number:04}").write_bytes(b"%d" % number)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


NAMES = [(number, f"{number:04}") for number in range(MANY)]


def contents(directory: int, found: list[tuple[int, str]] = NAMES) -> list[bytes]:
    return [os.read(fd, 100) for _, _, fd in opened(directory, found)]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_all_of_them_in_their_order(directory: int) -> None:
    assert contents(directory) == [b"%d" % number for number in range(MANY)]
    assert [(number, name) for number, name, _ in opened(directory, NAMES)] == NAMES
    assert contents(directory, []) == []


def test_what_is_gone_is_left_out(directory: int, tmp_path: Path) -> None:
    gone = [0, 1, AHEAD - 1, AHEAD, MANY - 1]
    for number in gone:
        (tmp_path / f"{number:04}").unlink()
    assert contents(directory) == [b"%d" % number for number in range(MANY) if number not in gone]


def test_no_more_than_so_many_are_open_and_none_afterwards(directory: int) -> None:
    before = descriptors()
    files = opened(directory, NAMES)
    most = max(descriptors() for _ in files)
    assert before < most <= before + AHEAD
    assert descriptors() == before


def test_whoever_stops_in_between_leaves_none_open(directory: int) -> None:
    before = descriptors()
    files = opened(directory, NAMES)
    next(files)
    next(files)
    assert descriptors() > before
    files.close()
    assert descriptors() == before


def test_where_few_may_be_open_fewer_are(directory: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 4, hard))
    try:
        read = contents(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read == [b"%d" % number for number in range(MANY)]


def test_an_error_comes_when_all_before_it_were_told(directory: int, tmp_path: Path) -> None:
    (tmp_path / "0005").unlink()
    (tmp_path / "0005").symlink_to("0005")
    files = opened(directory, NAMES)
    assert [next(files)[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="0005"):
        next(files)


@pytest.mark.parametrize("first", [0, 3])
def test_files_of_somebody_else_are_read_too(directory: int, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    refused = []
    open_file = os.open

    def not_the_owner(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_NOATIME and int(path) >= first:
            refused.append(path)
            raise PermissionError(path)
        return open_file(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", not_the_owner)
    assert contents(directory) == [b"%d" % number for number in range(MANY)]
    assert refused == [f"{first:04}"]


def test_what_may_not_be_read_is_an_error(directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        raise PermissionError(path)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError):
        contents(directory)
