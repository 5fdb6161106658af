"""A torn tail is kept and cut, and what a crash left of making and recycling segments is cleaned away."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from support.forgetful import Crashed, Tree
from support.journals import (
    PLACE,
    FullFileSystem,
    archives,
    bytes_of,
    entry,
    fill,
    found,
    journal_of,
    overwrite,
    segment_names,
    spoil,
    started,
    write,
)
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.journal_files import make_segment
from xaqueue.core.storage.journal_format import PREFIX_BYTES, SECTOR_BYTES, Segment, header_of, name_of
from xaqueue.features.opening import create
from xaqueue.features.session import attach

FIRST = name_of(0)
SECOND = name_of(SMALLEST_SEGMENT_BYTES)
THIRD = name_of(2 * SMALLEST_SEGMENT_BYTES)
PARTS = {"magic": 0, "kind": 4, "size": 12, "lsn": 16, "epoch": 32, "checksum": 44, "meta": PREFIX_BYTES, "body": 200}


def lsns(fs: FileSystem) -> list[int]:
    return [record.lsn for record in journal_of(fs).replay]


# Torn tails


@pytest.mark.parametrize("part", PARTS)
def test_a_torn_tail_is_kept_and_cut(fs: FileSystem, part: str) -> None:
    write(started(fs), entry(1, 1000))
    write(started(fs), entry(2, 1000))
    torn = lsns(fs)[-1]
    spoil(fs, torn, PARTS[part])
    before = fs.read(f"{PLACE}/{FIRST}")
    journal = journal_of(fs)
    assert (found(fs), journal.position) == ([1], torn)
    notes = journal.start()
    ((name, kept),) = archives(fs).items()
    assert name == f"{FIRST}.archive"
    assert before[torn:].startswith(kept)
    assert len(kept) >= SECTOR_BYTES or part == "size"
    assert notes == [
        f"the journal ended in {len(kept):,} bytes of a torn record, promised to nobody: kept as {PLACE}/{name}"
    ]
    write(journal, entry(3))
    assert found(fs) == [1, 3]


def test_a_second_torn_tail_is_kept_beside_the_first(fs: FileSystem) -> None:
    for number in (1, 2):
        write(started(fs), entry(number, 500))
        spoil(fs, lsns(fs)[-1], PARTS["body"])
        started(fs)
    kept = archives(fs)
    assert list(kept) == [f"{FIRST}.archive", f"{FIRST}.archive~2"]
    assert kept[f"{FIRST}.archive"] != kept[f"{FIRST}.archive~2"]
    assert found(fs) == []


def test_a_tail_is_cut_once(fs: FileSystem) -> None:
    write(started(fs), entry(1, 3000), entry(2, 3000), entry(3, 3000))
    first, _, third = lsns(fs)
    spoil(fs, first, PARTS["body"])
    journal = started(fs)
    assert journal.position == first
    assert len(archives(fs)[f"{FIRST}.archive"]) == third + entry(3, 3000).size_bytes - first
    assert not fs.read(f"{PLACE}/{FIRST}")[first:].strip(b"\0"), "nothing of it is left to be read"
    for _ in range(3):
        assert started(fs).position == first
    assert len(archives(fs)) == 1


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_round_may_be_torn_anywhere(fs: FileSystem, bad: int) -> None:
    """Its records reach the disk in any order: a good one of the same round behind a bad one was promised to nobody."""
    write(started(fs), entry(1))
    write(started(fs), *(entry(10 + number, 700) for number in range(3)))
    spoil(fs, lsns(fs)[1 + bad], PARTS["body"])
    assert found(fs) == [1, 10, 11, 12][: 1 + bad]
    started(fs)
    assert found(fs) == [1, 10, 11, 12][: 1 + bad]


def test_a_lost_end_is_no_torn_tail(fs: FileSystem) -> None:
    """The zeros behind a round may be lost with it alone: what stood there before is another life's."""
    journal = started(fs)
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    journal.recycle()
    fill(journal, 100)
    end = journal.position - 2 * SMALLEST_SEGMENT_BYTES
    overwrite(fs, THIRD, end, b"old bytes of any kind" * 3)
    assert found(fs)[-1] == found(fs)[0] + len(found(fs)) - 1
    again = started(fs)
    assert again.position == journal.position
    write(again, entry(7))
    assert found(fs)[-1] == 7


def test_a_record_of_an_older_opening_is_not_replayed(fs: FileSystem) -> None:
    """It is good and in its place, and it was cut off before the record in front of it was written."""
    write(started(fs), entry(1, 500))
    journal = started(fs)
    write(journal, entry(2, 500))
    old = bytes_of(entry(3, 500), journal.position, journal.position)
    overwrite(fs, FIRST, journal.position, old)
    assert found(fs) == [1, 2]
    started(fs)
    assert archives(fs)[f"{FIRST}.archive"].rstrip(b"\0") == old.rstrip(b"\0")
    assert found(fs) == [1, 2]


def test_a_full_disk_keeps_no_tail_and_opens(tmp_path: Path) -> None:
    disk = FullFileSystem(tmp_path)
    write(started(disk), entry(1, 500), entry(2, 500))
    spoil(disk, lsns(disk)[-1], PARTS["body"])
    disk.full = True
    (note,) = journal_of(disk).start()
    assert "not kept, for want of room (No space left on device)" in note
    assert (archives(disk), found(disk)) == ({}, [1])
    disk.close()


# Strays


def test_strays_are_cleaned_away(fs: FileSystem) -> None:
    journal = started(fs)
    fill(journal, 1)
    journal.write_checkpoint(SMALLEST_SEGMENT_BYTES)
    expected = found(fs)
    assert expected
    fs.create(f"{PLACE}/{name_of(7 * SMALLEST_SEGMENT_BYTES)}.new", [b"half made"])
    other = Segment(5 * SMALLEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES)
    overwrite(fs, FIRST, 0, header_of(other))  # recycled, and its new name is lost
    fs.create(f"{PLACE}/notes.txt", [b"not ours"])
    again = journal_of(fs)
    assert again.replay
    again.start()
    assert segment_names(fs) == [SECOND, THIRD]
    assert sorted(fs.list(PLACE)) == [SECOND, THIRD, "notes.txt"]
    assert found(fs) == expected


def test_a_segment_with_two_names_keeps_the_new_one(tmp_path: Path) -> None:
    fs = DirectoryFileSystem(tmp_path)
    journal = started(fs)
    fill(journal, 1)
    fill(journal, 100)
    journal.write_checkpoint(journal.position)
    journal.recycle()
    last = tmp_path / PLACE / segment_names(fs)[-1]
    (tmp_path / PLACE / FIRST).hardlink_to(last)
    write(journal, entry(7))
    assert found(fs) == [7]
    started(fs)
    assert FIRST not in segment_names(fs)
    assert last.name in segment_names(fs)
    fs.close()


def test_a_segment_in_the_making_leaves_nothing_when_it_fails(tmp_path: Path) -> None:
    disk = FullFileSystem(tmp_path)
    journal = started(disk)

    def fails(path: str) -> None:
        raise OSError(errno.ENOSPC, "no room for the name", path)

    disk.before["rename"] = fails
    with pytest.raises(OSError, match="no room for the name"):
        make_segment(disk, PLACE, Segment(1 << 40, SMALLEST_SEGMENT_BYTES))
    assert segment_names(disk) == [FIRST, SECOND] == sorted(disk.list(PLACE))
    assert journal.position == SECTOR_BYTES
    disk.close()


def test_a_journal_cut_off_in_its_making_is_made_again() -> None:
    whole = Tree({}).open()
    write(started(whole), entry(1))
    for crash_after in range(whole.calls):
        fs = Tree({}).open(crash_after)
        with suppress(Crashed):
            write(started(fs), entry(1))
        for tree in fs.trees_after_crash(limit=64):
            after = tree.open()
            write(started(after), entry(2))
            assert found(after) in ([2], [1, 2])


def test_an_open_without_a_journal_cleans_away_what_a_power_loss_brought_back(tmp_path: Path) -> None:
    create(tmp_path / "space", any_queue=True)
    attach(tmp_path / "space", sync="JOURNAL", watch=False).close()
    left = tmp_path / "space" / layout.JOURNAL / "0000000001666600.log.new"
    left.write_bytes(bytes(4096))
    attach(tmp_path / "space", sync="FDATASYNC;DSYNC", watch=False).close()
    assert not left.exists()
