"""The source reads blocks of many messages: each once, cut by number, without what is gone, every bit checked."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from support.block_space import WHEN_S, body_of, id_of, put_block, put_message
from support.spark_space import FabricatedSpace, keep
from xaqueue.core.model import layout
from xaqueue.core.model.entry import Retry
from xaqueue.errors import DamagedBlock
from xaqueue.features.retries.tries import encode_retry
from xaqueue.features.streams.message_files import read_message

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from support.spark_reading import Query, rows, stream
from xaqueue.lake import batches
from xaqueue.offline import spans
from xaqueue.offline.reader import QueueReader
from xaqueue.spark.source.columns import MESSAGE, decode_array, messages_array
from xaqueue.spark.source.source import QueueSource

FIRST, COUNT = 10, 20
ALL = [1, *range(FIRST, FIRST + COUNT), 30]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Numbers 1 and 30, and room for a block between them."""
    root = FabricatedSpace(tmp_path / "space").root
    put_message(root, 1)
    put_message(root, 30)
    return root


def batch(root: Path, **options: object) -> list[dict[str, Any]]:
    given = {"path": str(root), "queue": "orders"} | {name: str(value) for name, value in options.items()}
    source = QueueSource(given)
    reader = source.reader(source.schema())
    return rows(reader, list(reader.partitions()))


def numbers(found: list[dict[str, Any]]) -> list[int]:
    assert all((row["body"], row["message_id"]) == (body_of(row["seq"]), id_of(row["seq"])) for row in found)
    return [row["seq"] for row in found]


@pytest.mark.parametrize("gone", [0, 0b1, 0b111, 0b101010, 1 << COUNT - 1, (1 << COUNT - 1) - 1, (1 << COUNT) - 1])
@pytest.mark.parametrize("tasks", [1, 3])
def test_rows_are_those_that_are_there(root: Path, gone: int, tasks: int) -> None:
    put_block(root, FIRST, COUNT, gone=gone)
    left = [seq for seq in ALL if not (FIRST <= seq < FIRST + COUNT and gone >> seq - FIRST & 1)]
    assert sorted(numbers(batch(root, minPartitions=tasks))) == left


def test_a_row_has_what_is_the_messages_own(root: Path) -> None:
    put_block(root, FIRST, COUNT, options={3: {"priority": 9, "headers": {"k": "v"}}})
    retry = root / layout.retry_path("orders", FIRST + 4, id_of(FIRST + 4))
    retry.parent.mkdir()
    retry.write_bytes(encode_retry("orders", id_of(FIRST + 4), Retry(7), 1))
    found = {row["seq"]: row for row in batch(root)}
    assert [(seq, row["priority"]) for seq, row in found.items() if row["priority"] != 4] == [(FIRST + 3, 9)]
    assert [(seq, dict(row["headers"])) for seq, row in found.items() if row["headers"]] == [(FIRST + 3, {"k": "v"})]
    assert [(seq, row["tries"]) for seq, row in found.items() if row["tries"]] == [(FIRST + 4, 7)]
    assert {row["enqueued_at"].timestamp() for row in found.values()} == {WHEN_S}
    assert {found[seq]["committed_at"].timestamp() for seq in range(FIRST, FIRST + COUNT)} == {WHEN_S + FIRST}


@pytest.mark.parametrize("most", [1, 7, 2_000])
def test_columns_are_in_the_order_of_the_messages(root: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Blocks with and without something of their own, whole and partial, beside messages with files of their own."""
    monkeypatch.setattr(batches, "BATCH_ROWS", most)
    put_block(root, FIRST, COUNT, gone=0b1010)
    put_block(root, 40, COUNT, options={3: {"priority": 9}, 5: {"headers": {"k": "v"}}})
    put_block(root, 60, COUNT, gone=0b111)
    put_message(root, 80)
    found = batch(root, minPartitions=1)
    there = [seq for seq in (*ALL, *range(40, 81)) if seq not in (FIRST + 1, FIRST + 3, 60, 61, 62)]
    assert numbers(found) == there
    begun = {seq: 10 if 10 <= seq < 30 else 40 if 40 <= seq < 60 else 60 if 60 <= seq < 80 else seq for seq in there}
    times = {seq: int(row["committed_at"].timestamp() - WHEN_S) for seq, row in zip(there, found, strict=True)}
    assert times == begun
    assert [(row["seq"], row["priority"]) for row in found if row["priority"] != 4] == [(43, 9)]
    assert [(row["seq"], dict(row["headers"])) for row in found if row["headers"]] == [(45, {"k": "v"})]


@pytest.mark.parametrize("limit", [ReadMaxRows(1), ReadMaxRows(7), ReadMaxBytes(80), ReadMaxBytes(1)])
def test_batches_end_inside_a_block(root: Path, limit: Any) -> None:
    put_block(root, FIRST, COUNT, gone=0b1010)
    batches = Query(stream(root, startingOffsets="earliest")).all(limit)
    assert len(batches) > 3
    left = [seq for seq in ALL if seq not in (FIRST + 1, FIRST + 3)]
    assert numbers([row for found in batches for row in found]) == left


def test_a_block_is_read_once_a_task(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = put_block(root, FIRST, COUNT)
    read: list[str] = []

    def counted(directory: int, name: str, flags: int) -> Any:
        read.append(name)
        return read_message(directory, name, flags)

    monkeypatch.setattr(spans, "read_message", counted)
    assert len(batch(root, minPartitions=1)) == COUNT + 2
    assert read.count(made.file.name) == 1
    made.take((1 << COUNT) - 1)
    assert len(batch(root, minPartitions=1)) == 2
    assert read.count(made.file.name) == 1, "nothing is left of it"


def test_a_block_of_another_name_is_damage(root: Path) -> None:
    made = put_block(root, FIRST, COUNT)
    other = made.file.with_name(made.file.name.replace("a+014", "b+013"))
    made.file.rename(other)
    with pytest.raises(DamagedBlock, match=re.escape(f"{other}: holds 20 messages")):
        batch(root)


@pytest.mark.parametrize(("seconds", "begins"), [(0, 1), (2, FIRST), (FIRST, FIRST), (FIRST + 1, 30), (31, 31)])
def test_a_time_is_that_of_a_whole_block(root: Path, seconds: int, begins: int) -> None:
    put_block(root, FIRST, COUNT)
    reader = QueueReader(root, "orders")
    assert spans.last_before(reader, (WHEN_S + seconds) * 1000, 30) == begins - 1


def test_what_a_stream_has_consumed_is_not_read(root: Path) -> None:
    put_block(root, FIRST, COUNT)
    keep(root, "orders", "another", FIRST + 4)
    assert sorted(numbers(batch(root))) == [*range(FIRST + 5, 31)]


def test_a_span_that_a_stream_consumes_beyond_meanwhile_has_nothing(root: Path) -> None:
    put_block(root, FIRST, COUNT)
    reader = QueueReader(root, "orders")
    assert len(list(spans.files(reader, FIRST, FIRST + 2))) == 1
    keep(root, "orders", "another", FIRST + 4)
    for upto in range(FIRST, FIRST + 5):
        assert list(spans.files(reader, FIRST, upto)) == []
    assert len(list(spans.files(reader, FIRST, FIRST + 5))) == 1


def test_damage_of_a_body_names_the_file_and_the_message(root: Path) -> None:
    made = put_block(root, FIRST, COUNT)
    made.harm_body(3)
    with pytest.raises(DamagedBlock, match=re.escape(f"{made.file}: checksum of the body of message 3")):
        batch(root)
    made.take(0b1000)
    assert FIRST + 3 not in numbers(batch(root))


def test_one_table_is_enough(root: Path) -> None:
    made = put_block(root, FIRST, COUNT)
    made.harm_table()
    assert sorted(numbers(batch(root))) == ALL
    made.harm_copy()
    with pytest.raises(DamagedBlock, match=re.escape(str(made.file))):
        batch(root)
    query = Query(stream(root, startingOffsets="earliest"))
    with pytest.raises(DamagedBlock, match=re.escape(str(made.file))):
        query.all(ReadMaxBytes(1))


def test_a_damaged_bitmap_shows_all_and_is_told(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    put_block(root, FIRST, COUNT, gone=0b11).harm_gone()
    with caplog.at_level(logging.WARNING):
        assert sorted(numbers(batch(root))) == ALL
    assert "[message-damaged] the block of message 10 of queue orders" in caplog.text


@pytest.mark.parametrize("as_null", [True, False])
def test_decode_of_a_block_says_what_to_do(root: Path, as_null: bool) -> None:
    made = put_block(root, FIRST, COUNT)
    for is_harmed in (False, True):
        if is_harmed:
            made.harm_table()
        with pytest.raises(DamagedBlock, match=r'use messages\("content"\)'):
            decode_array(pa.array([made.file.read_bytes()], pa.binary()), damaged_as_null=as_null)


def test_messages_of_both_kinds_of_files(root: Path) -> None:
    made = put_block(root, FIRST, COUNT, gone=0b111, options={3: {"priority": 9}})
    read = [put_message(root, 1).read_bytes(), None, made.file.read_bytes()]
    one, none, many = messages_array(pa.array(read, pa.binary())).to_pylist()
    assert ([row["body"] for row in one], none) == ([body_of(1)], [])
    assert [(row["index"], row["body"]) for row in many] == [(n, body_of(FIRST + n)) for n in range(COUNT)]
    assert [row["priority"] for row in many] == [4, 4, 4, 9, *[4] * (COUNT - 4)]
    assert list(many[0]) == ["index", *MESSAGE.names]


def test_messages_without_what_was_made_smaller(root: Path) -> None:
    made = put_block(root, FIRST, COUNT)
    made.hollow(0b101)
    (many,) = messages_array(pa.array([made.file.read_bytes()], pa.binary())).to_pylist()
    assert [row["index"] for row in many] == [1, *range(3, COUNT)]


def test_messages_of_damaged_files(root: Path) -> None:
    """A table at one end is enough; else the file is damaged, or the one message whose body is."""
    made = put_block(root, FIRST, COUNT)
    made.harm_body(3)
    made.harm_table()
    with pytest.raises(DamagedBlock, match=r"body of message 3 .*damaged_as_null=True"):
        messages_array(pa.array([made.file.read_bytes()], pa.binary()))
    (many,) = messages_array(pa.array([made.file.read_bytes()], pa.binary()), damaged_as_null=True).to_pylist()
    assert [row and row["index"] for row in many] == [0, 1, 2, None, *range(4, COUNT)]
    made.harm_copy()
    (many,) = messages_array(pa.array([made.file.read_bytes()], pa.binary()), damaged_as_null=True).to_pylist()
    assert many == [None]
