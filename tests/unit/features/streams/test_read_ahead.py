"""Files that are asked of the disk ahead: as long as it is read, in their order, and nothing is held or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from xaqueue.core.storage.mounts import IN_MEMORY
from xaqueue.features.streams import message_files
from xaqueue.features.streams.message_files import AHEAD, ahead, blocks_read
from xaqueue.tools.environment import look

MANY = 2 * AHEAD + 10
NAMES = [(number, f"{number:04}") for number in range(MANY)]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(message_files, "_ask", lambda directory, name: names.append(name))
    return names


@pytest.mark.parametrize("many", [0, 1, AHEAD, AHEAD + 1, MANY])
def test_all_names_come_in_their_order(directory: int, many: int) -> None:
    assert list(ahead(directory, NAMES[:many])) == NAMES[:many]


def test_a_block_is_asked_for_before_its_first_file_comes(
    directory: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_files, "blocks_read", count().__next__)
    for position, _ in enumerate(ahead(directory, NAMES)):
        blocks = position // AHEAD + 1
        assert asked == [name for _, name in NAMES[: blocks * AHEAD]]


def test_what_is_in_memory_is_not_asked_for_behind_the_first_block(
    directory: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_files, "blocks_read", lambda: 7)
    assert list(ahead(directory, NAMES)) == NAMES
    assert asked == [name for _, name in NAMES[:AHEAD]]


def test_a_disk_that_is_read_again_is_asked_again(
    directory: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's own readings count: in the second block something was not in memory after all."""
    read = iter([0, 0, 0, 1, 1, 1])
    monkeypatch.setattr(message_files, "blocks_read", read.__next__)
    assert list(ahead(directory, NAMES)) == NAMES
    assert asked == [name for _, name in [*NAMES[:AHEAD], *NAMES[2 * AHEAD :]]]


def test_the_disk_is_read_though_nobody_reads_the_files(directory: int, tmp_path: Path) -> None:
    for number, name in NAMES:
        (tmp_path / name).write_bytes(b"%d" % number * 2_000)
    os.sync()
    for _, name in NAMES:
        with (tmp_path / name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = blocks_read()
    assert list(ahead(directory, NAMES)) == NAMES
    assert blocks_read() > before or look(tmp_path).file_system in IN_MEMORY


def test_files_that_cannot_be_asked_for_are_the_readers_matter(directory: int, tmp_path: Path) -> None:
    (tmp_path / "0000").mkdir()
    (tmp_path / "0001").symlink_to("0001")
    (tmp_path / "0002").write_bytes(b"2")
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert list(ahead(directory, NAMES)) == NAMES
    assert len(list(Path("/proc/self/fd").iterdir())) == before
