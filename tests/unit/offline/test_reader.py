"""A reader follows a queue without owning it: nothing above the watermark, nothing twice, nothing consumed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import BareSpace
from support.patience import eventually
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode
from xaqueue.core.model.layout import RANGE_SIZE, Watermark
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.streams.message_files import read_message
from xaqueue.offline.reader import QueueReader, queues


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "space"


@pytest.fixture
def owner(root: Path) -> Iterator[Connection]:
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        yield connection


def put(owner: Connection, *bodies: bytes, queue: str = "orders") -> None:
    for body in bodies:
        owner.enqueue(queue, body)
    owner.commit()


def everything(found: QueueReader) -> list[bytes]:
    return [decode(data).body for _, _, data in found.read(0, found.watermark())]


def test_it_reads_what_is_committed_in_order(owner: Connection, root: Path) -> None:
    orders = QueueReader(root, "orders")
    assert (orders.watermark(), orders.ranges(), everything(orders)) == (0, [], [])
    put(owner, b"1", b"2")
    owner.enqueue("orders", b"not committed")
    assert orders.watermark() == 2
    assert everything(orders) == [b"1", b"2"]
    owner.commit()
    assert everything(orders) == [b"1", b"2", b"not committed"]


def test_the_bounds_are_above_one_and_up_to_the_other(owner: Connection, root: Path) -> None:
    put(owner, *(b"%d" % number for number in range(1, 6)))
    orders = QueueReader(root, "orders")
    assert [seq for seq, _, _ in orders.read(1, 3)] == [2, 3]
    assert [seq for seq, _, _ in orders.read(3, 3)] == []
    assert [seq for seq, _, _ in orders.read(4, 99)] == [5]


def test_ids_and_bytes_are_those_of_the_files(owner: Connection, root: Path) -> None:
    message_id = owner.enqueue("orders", b"body", headers={"k": "v"})
    owner.commit()
    ((seq, found_id, data),) = QueueReader(root, "orders").read(0, 1)
    block = decode(data)
    assert (seq, found_id, block.message_id) == (1, message_id, message_id)
    assert (block.body, block.properties.headers) == (b"body", {"k": "v"})
    assert (root / layout.message_path("orders", seq, found_id)).read_bytes() == data


def test_what_is_consumed_is_left_out_and_the_watermark_stays(owner: Connection, root: Path) -> None:
    put(owner, b"1", b"2", b"3")
    assert owner.dequeue("orders") is not None
    orders = QueueReader(root, "orders")
    assert everything(orders) == [b"1", b"2", b"3"]
    owner.commit()
    assert everything(orders) == [b"2", b"3"]
    assert orders.watermark() == 3


def test_a_message_above_the_watermark_is_not_taken(owner: Connection, root: Path) -> None:
    """A branch's messages are published together: those that are there already and not yet published stay unseen."""
    put(owner, b"1", b"2", b"3")
    path = root / layout.watermark_path("orders")
    path.write_bytes(layout.format_watermark(Watermark(2, RANGE_SIZE - 1)))
    assert everything(QueueReader(root, "orders")) == [b"1", b"2"]


def test_messages_of_several_ranges_come_in_order(root: Path, owner: Connection) -> None:
    last = RANGE_SIZE + 3
    owner.define("orders", blocks="one")
    put(owner, *(b"%d" % number for number in range(1, last + 1)))
    orders = QueueReader(root, "orders")
    assert orders.ranges() == [0, 1]
    assert [seq for seq, _, _ in orders.read(RANGE_SIZE - 3, orders.watermark())] == list(
        range(RANGE_SIZE - 2, last + 1)
    )
    assert [number for number, _ in orders.names(RANGE_SIZE - 1, last)] == [1]
    assert [number for number, _ in orders.names(0, RANGE_SIZE - 1)] == [0]


@pytest.mark.parametrize("taken", [0, 1, RANGE_SIZE - 3])
def test_a_branch_over_the_edge_of_an_emptied_range(root: Path, owner: Connection, taken: int) -> None:
    """The directory that is empty and due for clean-up is the one that the branch is just about to fill."""
    put(owner, *(b"consumed" for _ in range(RANGE_SIZE - 3)))
    for _ in range(taken):
        assert owner.dequeue("orders") is not None
    owner.commit()
    put(owner, *(b"%d" % number for number in range(6)))
    orders = QueueReader(root, "orders")
    assert everything(orders)[-6:] == [b"%d" % number for number in range(6)]
    assert orders.ranges() == [0, 1]
    while owner.dequeue("orders") is not None:
        pass
    owner.commit()
    eventually(lambda: orders.ranges() != [0, 1])
    assert orders.ranges() == [1]


def test_a_range_that_goes_while_it_is_read_was_consumed(
    root: Path, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(owner, b"1")
    orders = QueueReader(root, "orders")
    monkeypatch.setattr(orders, "ranges", lambda: [0, 7])
    assert list(orders.read(0, 8 * RANGE_SIZE)) == list(orders.read(0, 1))
    names = orders.names(0, 1)
    monkeypatch.setattr(orders, "names", lambda *_: [(7, [(1, "gone")]), *names])
    assert len(list(orders.read(0, 1))) == 1


def test_foreign_files_are_passed_over(root: Path, owner: Connection) -> None:
    put(owner, b"1", b"2")
    directory = root / layout.range_path("orders", 1)
    for name in (".hidden", "0000000000000001.note", "README", f"{1:016x}.{'0' * 31}", f"{2:016X}.{'A' * 32}"):
        (directory / name).write_bytes(b"foreign")
    (root / layout.queue_path("orders") / "range=x").mkdir()
    assert everything(QueueReader(root, "orders")) == [b"1", b"2"]


def test_half_a_watermark_is_read_again(owner: Connection, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(owner, b"1")
    path = root / layout.watermark_path("orders")
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    waits: list[float] = []

    def finish(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            path.write_bytes(whole)

    monkeypatch.setattr(time, "sleep", finish)
    assert QueueReader(root, "orders").watermark() == 1
    assert len(waits) == 3


def test_a_watermark_that_stays_damaged_is_told(owner: Connection, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(owner, b"1")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    whole = (root / layout.watermark_path("orders")).read_bytes()
    for damaged in (b"", whole[:-1], whole.replace(b"1 ", b"2 "), whole + b"\n"):
        (root / layout.watermark_path("orders")).write_bytes(damaged)
        with pytest.raises(SpaceError, match="xaqueue check"):
            QueueReader(root, "orders").watermark()


def test_every_bit_flip_of_a_watermark_is_seen() -> None:
    data = layout.format_watermark(Watermark(0x1234, 0xFFFF))
    assert layout.parse_watermark(data) == Watermark(0x1234, 0xFFFF)
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        assert layout.parse_watermark(bytes(flipped)) is None


def test_a_directory_that_is_no_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="no queue space"):
        QueueReader(tmp_path, "orders").watermark()
    with pytest.raises(SpaceError, match="no queue space"):
        queues(tmp_path)
    with pytest.raises(InvalidArgument, match="queue name"):
        QueueReader(tmp_path, "../orders")


def test_the_queues_of_a_space(owner: Connection, root: Path) -> None:
    assert queues(root) == []
    put(owner, b"1", queue="replies")
    put(owner, b"1", queue="orders")
    (root / "committed" / "queue=.bad").mkdir()
    (root / "committed" / "note").touch()
    assert queues(root) == ["orders", "replies"]


def test_it_writes_nothing(owner: Connection, root: Path) -> None:
    put(owner, b"1")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    orders = QueueReader(root, "orders")
    everything(orders)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_message_whose_file_is_gone_is_none_and_what_is_no_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    found = [read_message(directory, name) for name in ("file", "none", "link")]
    assert [read and read[0] for read in found] == [b"x", None, b""]
    os.close(directory)


def test_a_reader_of_an_empty_watermark_without_ranges_gives_0(strict: BareSpace) -> None:
    (strict.root / layout.queue_path("q")).mkdir()
    (strict.root / layout.watermark_path("q")).touch()
    assert QueueReader(strict.root, "q").watermark() == 0
