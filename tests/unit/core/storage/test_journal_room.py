"""Segments of any size, on disks that are full or fail, and two threads at their ends."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.journals import (
    PLACE,
    FullFileSystem,
    entry,
    fill,
    found,
    journal_of,
    replace_segment,
    segment_names,
    started,
    write,
)
from xaqueue.core.storage import journal_files, journal_format
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import (
    SEGMENT_BYTES,
    SMALLEST_SEGMENT_BYTES,
    Journal,
    checkpoint_entry,
    whole_sectors,
)
from xaqueue.core.storage.journal_format import SECTOR_BYTES, name_of, record_of


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullFileSystem]:
    opened = FullFileSystem(tmp_path)
    yield opened
    opened.close()


# Sizes


def test_the_default_segment_and_what_fits_into_it(fs: FileSystem) -> None:
    assert SEGMENT_BYTES == 64 * 1024 * 1024
    journal = journal_of(fs, 1_000_000)
    assert 249_984 <= journal.largest_bytes <= 250_000
    assert journal_of(fs, 1).largest_bytes == SMALLEST_SEGMENT_BYTES // 4


@pytest.mark.parametrize("sizes", [(65536, 200_000), (200_000, 65536), (70_001, 65536)])
def test_the_size_of_segments_may_change_between_two_openings(fs: FileSystem, sizes: tuple[int, int]) -> None:
    written = fill(started(fs, sizes[0]), 1)
    journal = started(fs, sizes[1])
    large = entry(50, sizes[1] // 4 - 500)
    assert large.size_bytes <= journal.largest_bytes
    for _ in range(8):
        write(journal, large)
    written += [50] * 8
    assert found(fs) == written
    journal.write_checkpoint(journal.position)
    journal.recycle()
    written = fill(journal, 100) + fill(journal, 200)
    assert found(fs) == written
    journal.write_checkpoint(journal.position)
    journal.recycle()
    assert {fs.size(f"{PLACE}/{name}") for name in segment_names(fs)} == {whole_sectors(sizes[1])}


@pytest.mark.parametrize("sizes", [(65536, 131_072), (131_072, 65536)])
def test_a_segment_that_waits_has_the_size_of_the_last_opening(fs: FileSystem, sizes: tuple[int, int]) -> None:
    started(fs, sizes[0])
    started(fs, sizes[1])
    assert [fs.size(f"{PLACE}/{name}") for name in segment_names(fs)] == list(sizes)


def test_a_record_larger_than_a_segment_gets_one_of_its_own(fs: FileSystem) -> None:
    journal = started(fs)
    write(journal, entry(1, 10), entry(2, 3 * SMALLEST_SEGMENT_BYTES), entry(3, 10))
    assert found(fs) == [1, 2, 3]
    journal.write_checkpoint(journal.position)
    journal.recycle()
    fill(journal, 10)
    fill(journal, 100)
    sizes = [fs.size(f"{PLACE}/{name}") for name in segment_names(fs)]
    assert sizes[-1] == SMALLEST_SEGMENT_BYTES


def test_a_segment_grows_by_parts(fs: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_format, "EXTENSION_BYTES", 16_384)
    journal = started(fs)
    assert fs.size(f"{PLACE}/{name_of(0)}") == 16_384
    assert journal.allocated_bytes == 2 * 16_384
    write(journal, entry(1, 20_000))
    assert fs.size(f"{PLACE}/{name_of(0)}") == 32_768
    assert found(fs) == [1]
    journal = started(fs)
    assert journal.allocated_bytes == 3 * 16_384
    assert fill(journal, 2)
    assert fs.size(f"{PLACE}/{name_of(0)}") == SMALLEST_SEGMENT_BYTES


def is_short(journal: Journal) -> bool:
    return journal.is_short


def test_a_segment_grows_ahead_of_those_who_write(fs: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """By many parts at once, once more than half of what there is is used; and then no round grows it."""
    monkeypatch.setattr(journal_format, "EXTENSION_BYTES", 4096)
    journal = started(fs)
    write(journal, entry(1, 500))
    assert not is_short(journal)
    write(journal, entry(2, 1500))
    assert is_short(journal)
    assert journal.grow()
    assert not is_short(journal)
    assert fs.size(f"{PLACE}/{name_of(0)}") == journal.allocated_bytes - 4096 == 9 * 4096
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_extend", lambda *_: pytest.fail("a round grows it"))
        write(journal, *(entry(number, 2500) for number in range(3, 12)))
    assert is_short(journal)
    assert journal.grow()
    assert fs.size(f"{PLACE}/{name_of(0)}") == SMALLEST_SEGMENT_BYTES
    assert not is_short(journal)
    assert found(fs) == list(range(1, 12))


def test_two_threads_may_let_a_segment_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_format, "EXTENSION_BYTES", 4096)
    fs = DirectoryFileSystem(tmp_path)
    journal, ended = started(fs), threading.Event()

    def grow() -> None:
        while not ended.is_set():
            if journal.is_short:
                assert journal.grow()

    growing = threading.Thread(target=grow)
    growing.start()
    for number in range(1, 200):
        write(journal, entry(number, 1500))
    ended.set()
    growing.join()
    assert found(fs) == list(range(1, 200))
    fs.close()


# Full disks, failing disks


@pytest.mark.parametrize("short_by", [None, 3000], ids=["nothing", "a part"])
def test_one_that_cannot_grow_ahead_is_as_it_was(
    disk: FullFileSystem, monkeypatch: pytest.MonkeyPatch, short_by: int | None
) -> None:
    monkeypatch.setattr(journal_format, "EXTENSION_BYTES", 4096)
    journal = started(disk)
    write(journal, entry(1, 2500))
    disk.full, disk.short_by = True, short_by
    assert not journal.grow()
    assert journal.allocated_bytes == 2 * 4096
    write(journal, entry(2, 500))
    disk.full = False
    write(journal, entry(3, 2500))
    assert journal.grow()
    assert found(disk) == [1, 2, 3]


@pytest.mark.parametrize("short_by", [None, 3000], ids=["nothing", "a part"])
def test_a_segment_that_cannot_grow_hands_over(
    disk: FullFileSystem, monkeypatch: pytest.MonkeyPatch, short_by: int | None
) -> None:
    monkeypatch.setattr(journal_format, "EXTENSION_BYTES", 16_384)
    journal = started(disk)
    disk.full, disk.short_by = True, short_by
    write(journal, entry(1, 9000))
    write(journal, entry(2, 9000))
    assert journal.position == SMALLEST_SEGMENT_BYTES + SECTOR_BYTES + entry(2, 9000).size_bytes
    before = journal.position
    with pytest.raises(OSError, match="cannot grow") as full:
        journal.write([entry(3, 9000)])
    assert full.value.errno == errno.ENOSPC
    assert journal.position == before
    assert found(disk) == [1, 2]
    disk.full = False
    write(journal, entry(4, 9000))
    assert found(disk) == [1, 2, 4]


def test_without_room_for_a_following_segment_nothing_is_written(disk: FullFileSystem) -> None:
    journal = started(disk)
    written = fill(journal, 1)  # the following one takes over, and no other is made
    disk.full = True
    with pytest.raises(OSError, match="No space") as full:
        fill(journal, 100)
    assert full.value.errno == errno.ENOSPC
    number = journal_of(disk).replay[-1]
    assert found(disk) == written + list(range(100, int(number.meta.split()[0]) + 1))
    journal.write_checkpoint(journal.position)
    journal.recycle()
    assert fill(journal, 200), "what a checkpoint released needs no room"
    assert segment_names(disk)[-1] == name_of(2 * SMALLEST_SEGMENT_BYTES)


def test_a_checkpoint_is_recorded_on_a_full_disk(disk: FullFileSystem) -> None:
    journal = started(disk)
    fill(journal, 1)
    disk.full = True
    left = 2 * SMALLEST_SEGMENT_BYTES - journal.position - journal_files.OWN_BYTES
    write(
        journal, max((entry(2, left - less) for less in range(100)), key=lambda e: (e.size_bytes <= left, e.size_bytes))
    )
    assert 2 * SMALLEST_SEGMENT_BYTES - journal.position == journal_files.OWN_BYTES
    with pytest.raises(OSError, match="No space"):
        journal.write([entry(3)])
    assert journal.write([checkpoint_entry(journal.position)]) == 1
    assert found(disk) == []
    journal.checkpoint = journal.position
    journal.recycle()
    written = fill(journal, 1000, size=100)
    assert found(disk) == written


def test_checkpoints_on_a_full_disk_leave_the_switch_its_place(disk: FullFileSystem) -> None:
    """However many opens there are before the disk has room again."""
    journal = started(disk)
    fill(journal, 1)
    disk.full = True
    left = 2 * SMALLEST_SEGMENT_BYTES - journal.position - journal_files.OWN_BYTES
    last = max((entry(2, left - less) for less in range(100)), key=lambda e: (e.size_bytes <= left, e.size_bytes))
    write(journal, last)
    for _ in range(5):
        journal.write_checkpoint(journal.position)
    disk.full = False
    write(journal, entry(3))
    assert found(disk) == [3]


def test_a_journal_starts_on_a_full_disk_that_has_its_segment(disk: FullFileSystem) -> None:
    write(started(disk), entry(1))
    disk.unlink(f"{PLACE}/{name_of(SMALLEST_SEGMENT_BYTES)}")
    disk.full = True
    journal = journal_of(disk)
    assert journal.start() == ["no room for the journal's next segment (No space left on device)"]
    write(journal, entry(2))
    assert found(disk) == [1, 2]


def test_a_first_segment_needs_room(disk: FullFileSystem) -> None:
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        started(disk)
    disk.full = False
    write(started(disk), entry(1))
    assert found(disk) == [1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_sync_never_looks_like_a_lack_of_room(disk: FullFileSystem, number: int) -> None:
    journal = started(disk)

    def fails(path: str) -> None:
        raise OSError(number, "failed", path)

    disk.before["sync_data"] = fails
    with pytest.raises(OSError, match="failed") as error:
        journal.write([entry(1)])
    assert error.value.errno == errno.EIO


def test_a_write_that_failed_leaves_nothing_to_be_read(disk: FullFileSystem) -> None:
    """On some file systems even an overwrite needs room. What it wrote all the same must not follow the next record."""
    journal = started(disk)
    twin = entry(1, 1000)
    real = disk.write_at

    def half(path: str) -> None:
        del disk.before["write_at"]
        chunks = record_of(twin, SECTOR_BYTES, SECTOR_BYTES, 1)
        second = record_of(entry(2), SECTOR_BYTES + twin.size_bytes, SECTOR_BYTES, 1)
        real(path, SECTOR_BYTES, [*chunks, *second])
        raise OSError(errno.ENOSPC, "no room", path)

    disk.before["write_at"] = half
    with pytest.raises(OSError, match="no room"):
        journal.write([twin, entry(2)])
    journal.write([entry(3, 1000)])
    torn = disk.read(f"{PLACE}/{name_of(0)}")
    end = SECTOR_BYTES + twin.size_bytes
    second = b"".join(record_of(entry(2), end, SECTOR_BYTES, 1))
    replace_segment(disk, name_of(0), torn[:end] + second + torn[end + len(second) :])  # its end did not arrive
    assert found(disk) == [3]


# Two threads


def test_the_writer_waits_for_a_segment_that_is_being_recycled(disk: FullFileSystem) -> None:
    journal = started(disk)
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    written: list[int] = []
    writer = threading.Thread(target=lambda: written.extend(fill(journal, 100)))

    def meanwhile(_: str) -> None:
        disk.before.clear()
        writer.start()
        writer.join(0.3)

    disk.before["rename"] = meanwhile
    journal.recycle()
    writer.join()
    assert found(disk) == written
    assert journal.full_segments == 1


def test_nothing_is_recycled_while_a_segment_takes_over(disk: FullFileSystem) -> None:
    journal = started(disk)
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    recycler = threading.Thread(target=journal.recycle)

    def at_the_switch(path: str) -> None:
        if journal._making.locked():
            disk.before.clear()
            recycler.start()
            recycler.join(0.3)

    disk.before["sync_data"] = at_the_switch
    written = fill(journal, 100)
    recycler.join()
    written += fill(journal, 200) + fill(journal, 300)
    assert found(disk) == written
    assert len({*segment_names(disk)}) == len(segment_names(disk))


class OtherDisk(DirectoryFileSystem):
    """Where segments are kept is full, or another file system."""

    number = 0

    def link(self, source: str, target: str) -> None:
        if target.startswith("kept/"):
            raise OSError(self.number, os.strerror(self.number), source, None, target)
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        if target.startswith("kept/") and self.number == errno.EXDEV:
            raise OSError(self.number, os.strerror(self.number), source, None, target)
        super().rename(source, target)


@pytest.mark.parametrize("stands", [False, True])
def test_what_is_kept_removes_nothing_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    """A removal that comes late, behind a takeover, would find what the next owner keeps. What a restore left goes."""
    fs = DirectoryFileSystem(tmp_path)
    fs.make_dir("kept")
    journal = started(fs)
    journal.kept = "kept"
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    if stands:
        fs.create(f"kept/{name_of(0)}", [b"of a restore that was given up"])
    removed: list[str] = []
    unlink = fs.unlink

    def note(path: str) -> None:
        removed.append(path)
        unlink(path)

    monkeypatch.setattr(fs, "unlink", note)
    journal.recycle()
    assert (f"kept/{name_of(0)}" in removed) is stands
    assert fs.list("kept") == [name_of(0)]
    assert fs.size(f"kept/{name_of(0)}") > SECTOR_BYTES
    fs.close()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSPC, errno.EMLINK])
def test_what_cannot_be_kept_goes_and_the_journal_goes_on(tmp_path: Path, number: int) -> None:
    fs = OtherDisk(tmp_path)
    fs.number = number
    fs.make_dir("kept")
    journal = started(fs)
    journal.kept = "kept"
    written = fill(journal, 1)
    journal.write_checkpoint(journal.position)
    journal.recycle()
    assert journal.full_segments == 0
    assert len(segment_names(fs)) == 2
    assert bool(fs.list("kept")) is (number == errno.EMLINK), "what takes no more links is renamed"
    assert fill(journal, written[-1] + 1)
    fs.close()
