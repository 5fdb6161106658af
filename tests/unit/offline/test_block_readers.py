"""Who reads a queue without owning it knows a block of many messages, and what is gone of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from support.bare_space import FaultyFileSystem
from support.block_space import WHEN_S, MadeBlock, body_of, id_of, put_block, put_message
from xaqueue.core.model.block import decode
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import DamagedBlock
from xaqueue.features.opening import create
from xaqueue.features.streams.message_files import ids_in, read_whole
from xaqueue.offline import inspect
from xaqueue.offline.inspect import browse, message_ids, queue_list
from xaqueue.offline.reader import QueueReader

COMING = 4_000_000_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Numbers 1, 2, 10 to 29 in a block, 30; nothing is gone."""
    root = tmp_path / "space"
    create(root)
    for seq in (1, 2):
        put_message(root, seq)
    put_message(root, 30)
    return root


def block(root: Path, gone: int = 0, **options: object) -> MadeBlock:
    return put_block(root, 10, 20, gone=gone, **options)  # type: ignore[arg-type]


def read(root: Path, after: int = 0, upto: int = 30) -> list[int]:
    """The numbers, of messages that are all what they should be."""
    found = list(QueueReader(root, "orders").read(after, upto))
    for seq, message_id, data in found:
        whole = decode(data)
        assert (whole.message_id, whole.body, message_id) == (id_of(seq), body_of(seq), id_of(seq))
    return [seq for seq, _, _ in found]


def browsed(root: Path) -> tuple[list[int], list[tuple[int, str]]]:
    damaged: list[tuple[int, str]] = []
    found = list(browse(root, "orders", lambda seq, why: damaged.append((seq, why))))
    assert all((one.message_id, one.body) == (id_of(one.seq), body_of(one.seq)) for one in found)
    return [one.seq for one in found], damaged


def test_messages_of_a_block_are_read_in_their_order(root: Path) -> None:
    block(root)
    assert read(root) == [1, 2, *range(10, 31)]
    assert browsed(root) == ([1, 2, *range(10, 31)], [])
    assert message_ids(root, "orders") == {id_of(seq) for seq in (1, 2, *range(10, 31))}


@pytest.mark.parametrize("after", [0, 9, 10, 15, 28, 29, 30])
@pytest.mark.parametrize("upto", [9, 10, 15, 28, 29, 30])
def test_a_block_is_cut_by_number(root: Path, after: int, upto: int) -> None:
    block(root, gone=0b1001)
    there = [1, 2, 11, 12, *range(14, 31)]
    assert read(root, after, upto) == [seq for seq in there if after < seq <= upto]


def test_what_is_gone_is_not_there(root: Path) -> None:
    made = block(root, gone=0b11)
    made.hollow(0b111)
    there = [1, 2, *range(13, 31)]
    assert read(root) == there
    assert browsed(root) == (there, [])
    assert ids_in(DirectoryFileSystem(root, keep_unsynced=False), "orders") == {id_of(seq).hex() for seq in there}
    (status,) = queue_list(root)
    assert (status.depth, status.ready) == (len(there), len(there))


def test_the_bitmap_is_read_before_its_block(root: Path) -> None:
    """The last message is taken in between: what was gone before is not shown again."""
    made = block(root, gone=0b11)

    def take_all() -> None:
        made.file.unlink()
        made.gone_file.unlink()

    fs = FaultyFileSystem(root)
    fs.meanwhile[("read", made.gone_path)] = take_all
    assert ids_in(fs, "orders") == {id_of(seq).hex() for seq in (1, 2, 30)}
    with pytest.raises(FileNotFoundError):
        read_whole(fs, "orders", made.named, lambda *_: None)


def test_a_block_that_is_gone_leaves_nothing(root: Path) -> None:
    made = block(root, gone=0b11)
    made.file.unlink()
    assert read(root) == browsed(root)[0] == [1, 2, 30]


def test_status_counts_each_message_and_weighs_files(root: Path) -> None:
    made = block(root, gone=0b1, options={3: {"not_before": COMING}, 5: {"priority": 9}})
    (status,) = queue_list(root)
    assert (status.depth, status.ready, status.delayed) == (22, 21, 1)
    files = list((root / "committed" / "queue=orders").glob("range=*/*"))
    assert status.size_bytes == sum(file.stat().st_size for file in files) > made.file.stat().st_size
    assert status.oldest == (WHEN_S + 1) * 1_000_000
    assert inspect.depths_in(DirectoryFileSystem(root, keep_unsynced=False), ["orders"]) == {"orders": 22}


def test_the_oldest_may_stand_in_a_block(root: Path) -> None:
    block(root, gone=0b1)
    for file in (root / "committed" / "queue=orders").glob("range=*/0*[12].*"):
        file.unlink()
    (status,) = queue_list(root)
    assert status.oldest == (WHEN_S + 10) * 1_000_000


def test_a_message_of_a_block_has_what_is_its_own(root: Path) -> None:
    block(root, options={5: {"priority": 9, "headers": {"k": "v"}}})
    message = next(one for one in browse(root, "orders", lambda *_: None) if one.seq == 15)
    assert (message.priority, message.headers, message.enqueued_at) == (9, {"k": "v"}, WHEN_S * 1_000_000)
    data = next(data for seq, _, data in QueueReader(root, "orders").read(14, 15))
    assert decode(data).properties == message.properties


def test_one_body_that_is_damaged_is_one_message(root: Path) -> None:
    block(root).harm_body(3)
    found = {seq: data for seq, _, data in QueueReader(root, "orders").read(0, 30)}
    with pytest.raises(DamagedBlock, match="checksum"):
        decode(found.pop(13))
    assert [decode(data).body for data in found.values()] == list(map(body_of, found))
    numbers, damaged = browsed(root)
    assert (numbers, [seq for seq, _ in damaged]) == ([1, 2, 10, 11, 12, *range(14, 31)], [13])


@pytest.mark.parametrize("harm", ["harm_table", "harm_copy"])
def test_one_table_is_enough(root: Path, harm: str) -> None:
    getattr(block(root, gone=0b1), harm)()
    assert read(root) == browsed(root)[0] == [1, 2, *range(11, 31)]


def test_a_block_without_a_table_is_told(root: Path) -> None:
    made = block(root)
    made.harm_table()
    made.harm_copy()
    found = {seq: data for seq, _, data in QueueReader(root, "orders").read(11, 30)}
    with pytest.raises(DamagedBlock):
        decode(found.pop(12))
    assert list(found) == [30]
    numbers, damaged = browsed(root)
    assert (numbers, [seq for seq, _ in damaged]) == ([1, 2, 30], [10])


def test_a_damaged_bitmap_shows_all_and_is_told(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    block(root, gone=0b11).harm_gone()
    with caplog.at_level(logging.WARNING):
        assert read(root) == [1, 2, *range(10, 31)]
    assert "[message-damaged] the block of message 10 of queue orders" in caplog.text
    numbers, damaged = browsed(root)
    assert (numbers, [seq for seq, _ in damaged]) == ([1, 2, *range(10, 31)], [10])


@pytest.mark.parametrize("name", ["000000000000000a+001.{}", "0000000000000fff+002.{}", "000000000000000a+02.{}"])
def test_what_is_no_name_of_a_block_is_passed_over(root: Path, name: str) -> None:
    made = block(root)
    made.file.rename(made.file.with_name(name.format(id_of(10).hex())))
    assert read(root) == browsed(root)[0] == [1, 2, 30]
