"""A journal that is damaged, or that lost files, says what and changes nothing; an end is told from a loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from zlib import crc32

import pytest

from support.forgetful import Crashed, Tree
from support.journals import (
    PLACE,
    content,
    entry,
    fill,
    found,
    journal_of,
    overwrite,
    replace_segment,
    segment_names,
    spoil,
    started,
    write,
)
from xaqueue.core.storage import journal_format
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.journal_format import CRC, HEADER, MAGIC, PREFIX_BYTES, SECTOR_BYTES, name_of
from xaqueue.errors import JournalDamaged, SpaceError

FIRST = name_of(0)
SECOND = name_of(SMALLEST_SEGMENT_BYTES)
THIRD = name_of(2 * SMALLEST_SEGMENT_BYTES)
PARTS = {"magic": 0, "kind": 4, "size": 12, "lsn": 16, "epoch": 32, "checksum": 44, "meta": PREFIX_BYTES, "body": 200}


def lsns(fs: FileSystem) -> list[int]:
    return [record.lsn for record in journal_of(fs).replay]


def damaged(fs: FileSystem, *, used: bool = False) -> str:
    """What the opening complains of; it has changed nothing."""
    before = content(fs) if fs.is_dir(PLACE) else {}
    with pytest.raises(JournalDamaged) as damage:
        journal_of(fs, used=used)
    assert (content(fs) if fs.is_dir(PLACE) else {}) == before
    assert f"{PLACE}/ is damaged" in str(damage.value)
    assert "put the file back" in str(damage.value)
    assert "xaqueue salvage-journal" in str(damage.value)
    return str(damage.value)


# Damage


@pytest.mark.parametrize("part", PARTS)
def test_a_bad_record_before_good_ones_is_damage(fs: FileSystem, part: str) -> None:
    for number in range(4):
        write(started(fs), entry(number, 1000))
    places = lsns(fs)
    spoil(fs, places[1], PARTS[part])
    assert f"the record at LSN {places[1]:#x} ({FIRST}, byte {places[1]:,}) is damaged" in damaged(fs)
    assert f"from LSN {places[2]:#x} on" in damaged(fs)


def test_a_lost_round_is_damage(fs: FileSystem) -> None:
    for number in range(3):
        write(started(fs), entry(number, 1000))
    places = lsns(fs)
    overwrite(fs, FIRST, places[1], bytes(places[2] - places[1]))
    assert f"the record at LSN {places[1]:#x}" in damaged(fs)


def test_a_bad_record_before_a_segment_that_was_used_is_damage(fs: FileSystem) -> None:
    journal = started(fs)
    written = fill(journal, 1)
    switch = lsns(fs)[len(written) - 2] + entry(written[-2], 10_000).size_bytes
    spoil(fs, switch, PARTS["checksum"])
    assert f"the record at LSN {switch:#x}" in damaged(fs)
    assert f"from LSN {SMALLEST_SEGMENT_BYTES + SECTOR_BYTES:#x} on" in damaged(fs)


def test_a_lost_switch_is_damage_wherever_the_next_good_record_is(fs: FileSystem) -> None:
    journal = started(fs)
    written = fill(journal, 1)
    write(journal, entry(100))
    places = lsns(fs)
    spoil(fs, places[len(written) - 1], PARTS["magic"])  # the first record of the second segment
    switch = places[len(written) - 2] + entry(written[-2], 10_000).size_bytes
    spoil(fs, switch, PARTS["magic"])
    assert f"the record at LSN {switch:#x}" in damaged(fs)
    assert f"from LSN {places[-1]:#x} on" in damaged(fs)


def test_damage_that_a_checkpoint_covers_is_none(fs: FileSystem) -> None:
    journal = started(fs)
    for number in range(3):
        write(journal, entry(number, 1000))
    places = lsns(fs)
    journal.write_checkpoint(places[2])
    for lsn in places[:2]:
        spoil(fs, lsn, PARTS["body"])
    assert found(fs) == [2]
    write(started(fs), entry(3))
    assert found(fs) == [2, 3]
    spoil(fs, places[2], PARTS["body"])
    assert f"the record at LSN {places[2]:#x}" in damaged(fs)


# Missing files


def three_segments(fs: FileSystem) -> None:
    journal = started(fs)
    for first in (1, 100):
        fill(journal, first)
    started(fs)
    assert segment_names(fs) == [FIRST, SECOND, THIRD, name_of(3 * SMALLEST_SEGMENT_BYTES)]


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ([0], "the segment that holds LSN 0x0 is missing"),
        ([1], "the segment that holds LSN 0x0 is missing"),
        ([2], "the segment that holds LSN 0x0 is missing"),
        ([2, 3], f"segment {THIRD} is missing, and it has been written to"),
        ([1, 2, 3], f"segment {SECOND} is missing, and it has been written to"),
        ([0, 1, 2], "the segment that holds LSN 0x0 is missing"),
    ],
    ids=str,
)
def test_a_missing_segment_is_damage(fs: FileSystem, missing: list[int], told: str) -> None:
    three_segments(fs)
    for number in missing:
        fs.unlink(f"{PLACE}/{name_of(number * SMALLEST_SEGMENT_BYTES)}")
    assert told in damaged(fs)


def test_a_missing_segment_that_a_checkpoint_covers_is_none(fs: FileSystem) -> None:
    journal = started(fs)
    for first in (1, 100):
        fill(journal, first)
    journal.write_checkpoint(2 * SMALLEST_SEGMENT_BYTES + SECTOR_BYTES)
    expected = found(fs)
    assert expected
    fs.unlink(f"{PLACE}/{SECOND}")
    assert found(fs) == expected
    started(fs)
    assert segment_names(fs) == [THIRD, name_of(3 * SMALLEST_SEGMENT_BYTES)]


def test_the_following_segment_may_be_missing(fs: FileSystem) -> None:
    write(started(fs), entry(1))
    fs.unlink(f"{PLACE}/{SECOND}")
    write(started(fs), entry(2))
    assert found(fs) == [1, 2]
    assert segment_names(fs) == [FIRST, SECOND]


def test_only_the_following_segment_left_is_damage(fs: FileSystem) -> None:
    write(started(fs), entry(1))
    fs.unlink(f"{PLACE}/{FIRST}")
    assert "the segment that holds LSN 0x0 is missing" in damaged(fs)


def test_all_segments_missing_is_damage_where_the_journal_was_used(fs: FileSystem) -> None:
    write(started(fs), entry(1))
    for name in segment_names(fs):
        fs.unlink(f"{PLACE}/{name}")
    assert "all its segments are missing" in damaged(fs, used=True)
    fs.create(f"{PLACE}/{FIRST}.archive", [b"a tail was here once"])
    assert "all its segments are missing" in damaged(fs)


def test_the_whole_directory_missing_is_damage_where_the_journal_was_used(fs: FileSystem) -> None:
    assert "all its segments are missing" in damaged(fs, used=True)
    assert journal_of(fs).position == 0


# Headers


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda data: b"",
        lambda data: data[: SECTOR_BYTES - 1],
        lambda data: b"XAQB" + data[4:],
        lambda data: data[:8] + b"\1" + data[9:],
        lambda data: data[:16] + b"\1" + data[17:],
        lambda data: data[:4] + b"\2" + data[5:],
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "short", "magic", "LSN", "size", "version without its checksum", "zeros"],
)
@pytest.mark.parametrize("name", [FIRST, SECOND], ids=["present", "following"])
def test_a_damaged_header_is_damage(fs: FileSystem, name: str, spoiled: Callable[[bytes], bytes]) -> None:
    write(started(fs), entry(1))
    replace_segment(fs, name, spoiled(fs.read(f"{PLACE}/{name}")))
    assert f"{name} has no sound header" in damaged(fs)


@pytest.mark.parametrize("damaged_too", [False, True])
def test_a_newer_format_is_left_alone(fs: FileSystem, damaged_too: bool) -> None:
    write(started(fs), entry(1))
    header = HEADER.pack(MAGIC, 2, 0, SMALLEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES, 0)
    replace_segment(fs, SECOND, (header + CRC.pack(crc32(header))).ljust(SMALLEST_SEGMENT_BYTES, b"\0"))
    if damaged_too:
        spoil(fs, 0)
    before = content(fs)
    with pytest.raises(SpaceError, match="journal format 2; this xaqueue reads format 1: use a newer one") as newer:
        journal_of(fs)
    assert not isinstance(newer.value, JournalDamaged)
    assert "Nothing was changed" in str(newer.value)
    assert content(fs) == before


# Segments that were cut short


def grown(fs: FileSystem, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A journal of segments that grow by 16 KiB, in the first of which records reach into the third part."""
    monkeypatch.setattr(journal_format, "EXTENSION_BYTES", 16_384)
    journal = started(fs)
    for number in range(1, 5):
        write(journal, entry(number, 9000))
    assert fs.size(f"{PLACE}/{FIRST}") == 3 * 16_384
    return lsns(fs)


def cut(fs: FileSystem, name: str, size: int) -> None:
    replace_segment(fs, name, fs.read(f"{PLACE}/{name}")[:size])


def test_a_segment_is_cut_short_anywhere(fs: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage where a record ends behind its last whole part; what was lost with whole parts, only others can tell."""
    starts = grown(fs, monkeypatch)
    whole = fs.read(f"{PLACE}/{FIRST}")
    for size in (*range(SECTOR_BYTES, 16_384, 3000), 16_383, 16_384, 20_000, 32_767, 32_768, 40_000):
        replace_segment(fs, FIRST, whole[:size])
        assert f"{FIRST} was cut short: it has {size:,} bytes" in damaged(fs)
    replace_segment(fs, FIRST, whole[: starts[-1]])  # between two records
    assert "was cut short" in damaged(fs)


def test_a_growth_that_was_cut_off_is_no_damage(fs: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss leaves any part of it; what no record was written to yet is made anew."""
    grown(fs, monkeypatch)
    for size in (3 * 16_384 + 1, 3 * 16_384 + 4096, 4 * 16_384 - 512):
        replace_segment(fs, FIRST, fs.read(f"{PLACE}/{FIRST}").ljust(size, b"\0"))
        assert found(fs) == [1, 2, 3, 4]
    journal = started(fs)
    write(journal, entry(5, 9000), entry(6, 9000))
    assert fs.size(f"{PLACE}/{FIRST}") == 4 * 16_384
    assert found(fs) == [1, 2, 3, 4, 5, 6]


def test_an_empty_segment_that_was_cut_short_is_made_anew(fs: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(fs, monkeypatch)
    cut(fs, SECOND, SECTOR_BYTES)
    journal = started(fs)
    assert fs.size(f"{PLACE}/{SECOND}") == 16_384
    numbers = fill(journal, 5)
    assert found(fs) == [1, 2, 3, 4, *numbers]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grows_ahead", [False, True])
def test_no_crash_while_a_segment_grows_is_damage(
    monkeypatch: pytest.MonkeyPatch, seed: int, grows_ahead: bool
) -> None:
    monkeypatch.setattr(journal_format, "EXTENSION_BYTES", 4096)
    for crash_after in itertools.count(seed, 4):
        fs, acknowledged = Tree({"journal": None}).open(crash_after), 0
        with suppress(Crashed):
            journal = started(fs)
            for number in range(1, 12):
                write(journal, entry(number, 2600))
                acknowledged = number
                if grows_ahead and journal.is_short:
                    journal.grow()
        for tree in fs.trees_after_crash(limit=24, seed=crash_after):
            assert len(found(tree.open())) in (acknowledged, acknowledged + 1)
        if not fs.crashed:
            return
