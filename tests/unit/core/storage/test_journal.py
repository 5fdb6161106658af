"""The journal's writer: records in rounds, checkpoints, segments that fill and are recycled."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from support.bare_space import FaultyFileSystem
from support.journals import (
    PLACE,
    archives,
    content,
    entry,
    fill,
    found,
    journal_of,
    numbers,
    replace_segment,
    segment_names,
    started,
    write,
)
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES, checkpoint_entry
from xaqueue.core.storage.journal_format import PREFIX_BYTES, SECTOR_BYTES, name_of

# Records and rounds


def test_records_come_back_as_they_were_written(fs: FileSystem) -> None:
    journal = started(fs)
    entries = [entry(1), entry(2, 1), entry(3, 7), entry(4, 5000, kind=252), entry(5, 513)]
    write(journal, *entries[:2])
    write(journal, *entries[2:])
    records = journal_of(fs).replay
    assert [(r.kind, r.meta, bytes(r.body)) for r in records] == [(e.kind, e.meta, b"".join(e.bodies)) for e in entries]


def test_an_lsn_is_a_place_and_counts_bytes(fs: FileSystem) -> None:
    journal = started(fs)
    assert journal.position == SECTOR_BYTES
    expected = []
    for number, size in enumerate((0, 1, 100, 5000)):
        expected.append(journal.position)
        write(journal, entry(number, size))
        assert journal.position == expected[-1] + entry(number, size).size_bytes
        assert journal.position % 8 == 0
    again = journal_of(fs)
    assert [record.lsn for record in again.replay] == expected
    assert again.position == journal.position


def test_a_round_is_one_sync(fs: FileSystem) -> None:
    journal = started(fs)
    before = journal.syncs
    assert journal.write([entry(number, 100) for number in range(10)]) == 10
    assert journal.syncs == before + 1
    assert found(fs) == list(range(10))


def test_what_is_told_twice_is_read_twice(fs: FileSystem) -> None:
    journal = started(fs)
    write(journal, entry(1), entry(1))
    assert found(fs) == [1, 1]


def test_looking_changes_nothing(fs: FileSystem) -> None:
    write(started(fs), entry(1, 100))
    before = content(fs)
    journal_of(fs)
    assert content(fs) == before


def test_starting_again_goes_on_behind_the_end(fs: FileSystem) -> None:
    for number in range(4):
        journal = started(fs)
        write(journal, entry(number, 600))
    assert found(fs) == [0, 1, 2, 3]
    assert archives(fs) == {}
    assert len(segment_names(fs)) == 2


# Checkpoints, segments


def test_what_a_checkpoint_covers_is_not_replayed(fs: FileSystem) -> None:
    journal = started(fs)
    write(journal, entry(1))
    covered = journal.position
    write(journal, entry(2))
    journal.write_checkpoint(covered)
    write(journal, entry(3))
    again = journal_of(fs)
    assert numbers(again.replay) == [2, 3]
    assert again.checkpoint == covered


def test_a_checkpoint_is_an_entry_too(fs: FileSystem) -> None:
    journal = started(fs)
    write(journal, entry(1))
    write(journal, checkpoint_entry(journal.position), entry(2))
    assert found(fs) == [2]


def test_a_checkpoint_never_goes_back(fs: FileSystem) -> None:
    journal = started(fs)
    early = journal.position
    write(journal, entry(1))
    journal.write_checkpoint(journal.position)
    reached = journal.checkpoint
    journal.write_checkpoint(early)
    assert journal.checkpoint == reached
    assert (journal_of(fs).checkpoint, found(fs)) == (reached, [])


def test_a_full_segment_hands_over_to_the_following_one(fs: FileSystem) -> None:
    journal = started(fs)
    assert journal.switches == 0
    written = fill(journal, 1)
    assert journal.position > SMALLEST_SEGMENT_BYTES + SECTOR_BYTES
    assert (journal.switches, journal.full_segments) == (1, 1)
    written += fill(journal, 100) + fill(journal, 200)
    assert segment_names(fs) == [name_of(number * SMALLEST_SEGMENT_BYTES) for number in range(4)]
    again = journal_of(fs)
    assert numbers(again.replay) == written
    assert (again.position, again.full_segments) == (journal.position, 3)


def test_a_round_that_does_not_fit_goes_on_in_the_next_segment(fs: FileSystem) -> None:
    journal = started(fs)
    entries = [entry(number, 20_000) for number in range(5)]
    assert journal.write(entries) == 3
    assert journal.write(entries[3:]) == 2
    assert found(fs) == [0, 1, 2, 3, 4]


def test_covered_segments_are_recycled_and_the_rest_unlinked(fs: FileSystem) -> None:
    journal = started(fs)
    for first in (1, 100, 200):
        fill(journal, first)
    journal.write_checkpoint(journal.position)
    allocated = journal.allocated_bytes
    journal.recycle()
    assert journal.full_segments == 0
    assert journal.allocated_bytes == allocated - 2 * SMALLEST_SEGMENT_BYTES
    assert segment_names(fs) == [name_of(3 * SMALLEST_SEGMENT_BYTES), name_of(4 * SMALLEST_SEGMENT_BYTES)]
    journal.recycle()
    assert len(segment_names(fs)) == 2
    assert found(fs) == []


def test_a_segment_that_is_needed_yet_is_not_recycled(fs: FileSystem) -> None:
    journal = started(fs)
    fill(journal, 1)
    journal.write_checkpoint(SMALLEST_SEGMENT_BYTES - 8)
    journal.recycle()
    assert journal.full_segments == 1
    journal.write_checkpoint(SMALLEST_SEGMENT_BYTES)
    journal.recycle()
    assert journal.full_segments == 0


def test_a_recycled_segment_is_the_same_file(tmp_path: Path) -> None:
    fs = DirectoryFileSystem(tmp_path)
    journal = started(fs)
    fill(journal, 1)
    inode = (tmp_path / PLACE / name_of(0)).stat().st_ino
    journal.write_checkpoint(journal.position)
    journal.recycle()
    assert (tmp_path / PLACE / name_of(2 * SMALLEST_SEGMENT_BYTES)).stat().st_ino == inode
    fs.close()


@pytest.mark.parametrize("at", range(4))
def test_a_segment_for_which_there_is_no_room_under_its_new_name_goes(tmp_path: Path, at: int) -> None:
    """At one of the calls that may need some; the journal goes on, and makes another segment when it needs one."""
    fs = FaultyFileSystem(tmp_path)
    journal = started(fs)
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    new, old = (f"{PLACE}/{name_of(start)}" for start in (2 * SMALLEST_SEGMENT_BYTES, 0))
    call, path = [("hold_dir", PLACE), ("write_at", old), ("rename", new), ("write_at", new)][at]
    fs.faults[call, path] = errno.ENOSPC
    journal.recycle()
    assert fs.struck == [(call, path)]
    fs.faults.clear()
    assert segment_names(fs) == [name_of(SMALLEST_SEGMENT_BYTES)]
    written = fill(journal, 100)
    assert found(fs) == written
    fs.close()


def test_old_records_in_a_recycled_segment_are_never_replayed(fs: FileSystem) -> None:
    """Each record of the new life is as long as that of the old one in its place, so that an old one follows it."""
    journal = started(fs)
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    journal.recycle()
    fill(journal, 100)
    for number in range(3):
        write(journal, entry(1000 + number, 10_000))
        assert numbers(journal_of(fs).replay)[-1] == 1000 + number
        assert all(n >= 100 for n in found(fs))


def test_a_round_in_a_recycled_segment_has_a_clean_end(fs: FileSystem) -> None:
    journal = started(fs)
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    journal.recycle()
    written = fill(journal, 100)
    started(fs)
    assert (found(fs), archives(fs)) == (written, {})


def test_a_segment_just_switched_to_has_a_clean_end(fs: FileSystem) -> None:
    journal = started(fs)
    fill(journal, 1)
    journal.write_checkpoint(journal.position)
    journal.recycle()
    while journal.full_segments == 0:
        written = journal.position
        write(journal, entry(7, 10_000))
    assert written < journal.position
    # a kill between the switch and its first round: take that round back
    name = segment_names(fs)[-1]
    data = fs.read(f"{PLACE}/{name}")
    replace_segment(fs, name, data[:SECTOR_BYTES] + bytes(PREFIX_BYTES) + data[SECTOR_BYTES + PREFIX_BYTES :])
    assert started(fs).position == 2 * SMALLEST_SEGMENT_BYTES + SECTOR_BYTES
    assert archives(fs) == {}
