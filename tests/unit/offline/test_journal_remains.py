"""What can be read of a damaged journal is read, and what lies between is named by its LSNs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.journals import PLACE, bytes_of, entry, fill, journal_of, numbers, overwrite, sound, spoil, started, write
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.journal_files import free_archive
from xaqueue.core.storage.journal_format import PREFIX_BYTES, name_of
from xaqueue.offline.journal_remains import Gap, ReadableRecords, read_readable

FIRST, SECOND, THIRD = (name_of(number * SMALLEST_SEGMENT_BYTES) for number in range(3))
BODY = PREFIX_BYTES + 100


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[FileSystem]:
    opened = DirectoryFileSystem(tmp_path)
    yield opened
    opened.close()


def readable(fs: FileSystem) -> ReadableRecords:
    return read_readable(fs, PLACE, sound)


def lsns(fs: FileSystem) -> list[int]:
    return [record.lsn for record in readable(fs).records]


def four(fs: FileSystem) -> list[int]:
    """Four rounds; their LSNs, and the end."""
    journal = started(fs)
    for number in range(4):
        write(journal, entry(number, 1000))
    return [*lsns(fs), journal.position]


def three_segments(fs: FileSystem) -> list[list[int]]:
    """The numbers of what stands in each."""
    journal = started(fs)
    written = fill(journal, 1) + fill(journal, 100)
    started(fs)
    ends = [record.lsn // SMALLEST_SEGMENT_BYTES for record in readable(fs).records]
    return [[number for number, end in zip(written, ends, strict=True) if end == which] for which in range(3)]


def test_a_sound_journal_has_no_gaps(fs: FileSystem) -> None:
    four(fs)
    found = readable(fs)
    assert (numbers(found.records), found.gaps) == ([0, 1, 2, 3], [])
    assert (found.files, found.unused) == ([FIRST, SECOND], [])


def test_a_torn_tail_is_no_gap(fs: FileSystem) -> None:
    spoil(fs, four(fs)[3], BODY)
    found = readable(fs)
    assert (numbers(found.records), found.gaps) == ([0, 1, 2], [])


@pytest.mark.parametrize("bad", [[0], [1], [1, 2], [0, 2]])
def test_what_is_before_and_behind_a_bad_record_is_read(fs: FileSystem, bad: list[int]) -> None:
    places = four(fs)
    for which in bad:
        spoil(fs, places[which], BODY)
    found = readable(fs)
    assert numbers(found.records) == [number for number in range(4) if number not in bad]
    wanted: list[Gap] = []
    for which in bad:
        if wanted and wanted[-1].end == places[which]:
            wanted[-1] = Gap(wanted[-1].start, places[which + 1], FIRST)
        else:
            wanted.append(Gap(places[which], places[which + 1], FIRST))
    assert found.gaps == wanted


def test_what_a_checkpoint_covers_is_neither_read_nor_missed(fs: FileSystem) -> None:
    places = four(fs)
    journal = journal_of(fs)
    journal.start()
    journal.write_checkpoint(places[2])
    for which in (0, 3):
        spoil(fs, places[which], BODY)
    found = readable(fs)
    assert found.checkpoint == places[2]
    assert numbers(found.records) == [2]
    assert found.gaps == [Gap(places[3], places[4], FIRST)]
    spoil(fs, places[2], BODY)
    assert readable(fs).gaps == [Gap(places[2], places[4], FIRST)]


@pytest.mark.parametrize(
    ("missing", "gaps"),
    [
        ([0], [Gap(0, SMALLEST_SEGMENT_BYTES)]),
        ([1], [Gap(SMALLEST_SEGMENT_BYTES, 2 * SMALLEST_SEGMENT_BYTES)]),
        ([2, 3], [Gap(2 * SMALLEST_SEGMENT_BYTES, None)]),
        ([0, 1, 2], [Gap(0, 3 * SMALLEST_SEGMENT_BYTES)]),
        ([0, 1, 2, 3], [Gap(0, None)]),
    ],
    ids=str,
)
def test_a_missing_segment_is_a_gap(fs: FileSystem, missing: list[int], gaps: list[Gap]) -> None:
    written = three_segments(fs)
    for which in missing:
        fs.unlink(f"{PLACE}/{name_of(which * SMALLEST_SEGMENT_BYTES)}")
    found = readable(fs)
    assert found.gaps == gaps
    left = [number for which, inner in enumerate(written) if which not in missing for number in inner]
    assert numbers(found.records) == left


def test_a_lost_switch_is_a_gap_up_to_the_next_segment(fs: FileSystem) -> None:
    written = three_segments(fs)
    last = lsns(fs)[len(written[0]) - 1]
    end = last + entry(written[0][-1], 10_000).size_bytes
    spoil(fs, end)
    assert readable(fs).gaps == [Gap(end, SMALLEST_SEGMENT_BYTES, FIRST)]


def test_a_damaged_header_loses_no_record(fs: FileSystem) -> None:
    written = three_segments(fs)
    spoil(fs, SMALLEST_SEGMENT_BYTES)
    found = readable(fs)
    assert numbers(found.records) == [number for inner in written for number in inner]
    assert found.gaps == []


def test_what_an_earlier_opening_cut_off_is_not_read(fs: FileSystem) -> None:
    started(fs)
    journal = started(fs)
    write(journal, entry(1, 500))
    overwrite(fs, FIRST, journal.position, bytes_of(entry(2, 500), journal.position, journal.position, epoch=0))
    assert numbers(readable(fs).records) == [1]


def test_a_new_journal_begins_above_all_that_was_used(fs: FileSystem) -> None:
    assert readable(fs).fresh == 1 << 32
    three_segments(fs)
    assert readable(fs).fresh == 1 << 32
    fs.create(f"{PLACE}/{name_of((1 << 32) - 8)}.archive~2", [bytes(8)])
    assert readable(fs).fresh == 1 << 33
    fs.create(f"{PLACE}/{name_of(5 << 32)}.new", [b""])
    found = readable(fs)
    assert (found.fresh, found.unused) == (6 << 32, [f"{name_of(5 << 32)}.new"])


def test_gaps_in_words() -> None:
    assert str(Gap(512, 1536, FIRST)) == f"from LSN 0x200 to 0x600, 1,024 bytes ({FIRST})"
    assert str(Gap(512, None)) == "from LSN 0x200 on (missing)"


def test_archives_are_numbered(fs: FileSystem) -> None:
    fs.make_dir(PLACE)
    path = f"{PLACE}/{FIRST}"
    for wanted in (".archive", ".archive~2", ".archive~3"):
        assert free_archive(fs, path) == path + wanted
        fs.create(path + wanted, [])
