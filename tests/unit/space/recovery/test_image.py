"""An image of an index saves time and never tells a lie: whatever becomes of it, the directories say what is there."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.index_images import EPOCH, Facts, all_of, entries, facts, identity, plain, written
from xaqueue.message import Properties
from xaqueue.space.engine import image
from xaqueue.space.model import layout
from xaqueue.space.model.index import Entry, Order, QueueIndex
from xaqueue.space.model.layout import RANGE_SIZE
from xaqueue.storage.fs import DirectoryFileSystem

MANY = 300
"""More than are held as entries."""


def name_of(seq: int) -> str:
    return layout.message_path("q", seq, identity(seq)).rpartition("/")[2]


def told(found: image.Image) -> list[Facts]:
    found_in = (facts(entry) for section in found.sections.values() for entry in section.entries("q"))
    return sorted(found_in, key=lambda one: one[0])


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[DirectoryFileSystem]:
    files = DirectoryFileSystem(tmp_path)
    for directory in (layout.COMMITTED, layout.queue_path("q")):
        files.make_dir(directory)
    yield files
    files.close()


# What is written is read


def test_an_image_tells_of_every_message_all_that_its_entry_says(fs: DirectoryFileSystem) -> None:
    index = QueueIndex()
    for seq in (*range(1, MANY), *range(5 * RANGE_SIZE - 1, 5 * RANGE_SIZE + 2)):
        index.add(plain(seq))
    properties = [
        Properties("q", correlation_id=b"c"),
        Properties("q", priority=9),
        Properties("q", not_before=2**62),
        Properties("q", expires_at=2**63 - 1),
        Properties("q", tries=3),
        Properties("q", correlation_id=b"", priority=0, not_before=0, expires_at=0, tries=1),
    ]
    for seq, special in enumerate(properties, 1000):
        index.add(Entry(seq, identity(seq), special, 2**40))
    locked = index.take(0)
    assert locked is not None
    found = written(fs, index)
    assert told(found) == all_of(index)
    assert found.epoch == EPOCH
    assert sorted(found.sections) == [0, 4, 5]


def test_the_image_of_an_empty_queue_tells_of_nothing(fs: DirectoryFileSystem) -> None:
    assert written(fs, QueueIndex()).sections == {}


def test_a_later_image_replaces_an_earlier_one_and_discarding_leaves_none(fs: DirectoryFileSystem) -> None:
    index = QueueIndex()
    index.add(plain(1))
    written(fs, index)
    index.add(plain(2))
    assert told(written(fs, index)) == all_of(index)
    image.discard(fs, "q")
    image.discard(fs, "q")
    assert image.read(fs, "q") is None


@given(given=st.lists(entries, max_size=60, unique_by=lambda entry: entry.seq), order=st.sampled_from(Order))
def test_any_index_is_read_as_it_was_written(given: list[Entry], order: Order) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xaqueue.space.model.index.UNPACKED", 5)
        index, again = QueueIndex(order), QueueIndex(order)
        for entry in given:
            index.add(entry)
        found = image.decode(b"".join(image.encode("q", index, EPOCH)), "q")
        assert found is not None
        for section in found.sections.values():
            assert section.add_to(again, "q")
        assert all_of(again) == all_of(index)
        assert [facts(entry) for entry in again.entries(-1)] == [facts(entry) for entry in index.entries(-1)]


# A section and the names in its directory


def section_of(fs: DirectoryFileSystem, *seqs: int) -> image.Section:
    index = QueueIndex()
    for seq in seqs:
        index.add(plain(seq))
    return written(fs, index).sections[0]


def test_a_section_matches_exactly_its_names(fs: DirectoryFileSystem) -> None:
    section = section_of(fs, 1, 2, 5)
    assert section.matches([name_of(1), name_of(2), name_of(5)])


@pytest.mark.parametrize(
    "names",
    [
        [],
        [name_of(1), name_of(2)],
        [name_of(1), name_of(2), name_of(4)],
        [name_of(1), name_of(2), name_of(5), name_of(6)],
        [name_of(1), name_of(2), name_of(5), "x"],
        [name_of(1), name_of(2), name_of(5).replace("5", "5\n")],
        [name_of(1), name_of(2), name_of(5)[:16] + name_of(5)[17:] + "."],
        [name_of(1), name_of(2)[:-1], name_of(2)[-1] + name_of(5)],
        [name_of(1) + name_of(2) + name_of(5)],
    ],
)
def test_a_section_matches_no_others(fs: DirectoryFileSystem, names: list[str]) -> None:
    assert not section_of(fs, 1, 2, 5).matches(names)


def test_digits_in_capitals_are_another_name(fs: DirectoryFileSystem) -> None:
    section = section_of(fs, 10)
    assert section.matches([name_of(10)])
    assert not section.matches([name_of(10).upper()])


def test_gaps_in_a_section_stay_gaps(fs: DirectoryFileSystem) -> None:
    index = QueueIndex()
    section = section_of(fs, 1, 2, 5, 6)
    assert section.add_to(index, "q")
    assert all_of(index) == [facts(plain(seq)) for seq in (1, 2, 5, 6)]
    assert identity(3) not in index


def test_a_section_is_not_added_where_one_of_its_messages_is_there(fs: DirectoryFileSystem) -> None:
    index = QueueIndex()
    index.add(Entry(9, identity(2), Properties("q"), 1))
    assert not section_of(fs, 1, 2, 3).add_to(index, "q")
    assert [entry.seq for entry in index.entries(0)] == [9]


# What is odd is no image


def small_image(fs: DirectoryFileSystem) -> bytes:
    index = QueueIndex()
    index.add(plain(1))
    index.add(Entry(2, identity(2), Properties("q", correlation_id=b"c"), 5))
    image.write(fs, "q", index, EPOCH)
    return fs.read(layout.image_path("q"))


def put(fs: DirectoryFileSystem, data: bytes) -> None:
    image.discard(fs, "q")
    fs.create(layout.image_path("q"), [data])


def test_no_changed_byte_is_believed(fs: DirectoryFileSystem) -> None:
    data = small_image(fs)
    for place in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            put(fs, data[:place] + bytes([data[place] ^ change]) + data[place + 1 :])
            assert image.read(fs, "q") is None, (place, change)


def test_no_part_of_it_is_believed(fs: DirectoryFileSystem) -> None:
    data = small_image(fs)
    for size in range(len(data)):
        put(fs, data[:size])
        assert image.read(fs, "q") is None, size
    for more in (b"\0", data):
        put(fs, data + more)
        assert image.read(fs, "q") is None
    put(fs, bytes(len(data)))
    assert image.read(fs, "q") is None


@pytest.mark.parametrize(("place", "value"), [(4, 2), (16, 0), (16, 2), (16, 9)])
def test_what_has_the_right_checksum_and_is_wrong_all_the_same_is_not_believed(
    fs: DirectoryFileSystem, place: int, value: int
) -> None:
    """A later version; ranges that do not fill it, or reach beyond its end."""
    data = bytearray(small_image(fs))
    data[place] = value
    data[20:24] = bytes(4)
    data[20:24] = struct.pack("<I", crc32(data))
    put(fs, bytes(data))
    assert image.read(fs, "q") is None


def test_the_image_of_another_queue_is_not_believed(fs: DirectoryFileSystem) -> None:
    small_image(fs)
    fs.make_dir(layout.queue_path("r"))
    fs.rename(layout.image_path("q"), layout.image_path("r"))
    assert image.read(fs, "r") is None


def test_a_directory_in_its_place_is_none(fs: DirectoryFileSystem) -> None:
    fs.make_dir(layout.image_path("q"))
    assert image.read(fs, "q") is None


@pytest.mark.parametrize(("left", "follows"), [(6, False), (7, True), (8, True), (9, False)])
def test_an_image_is_of_the_owner_before(left: int, follows: bool) -> None:
    assert image.Image(left, {}).follows(8) is follows
