"""The source's readers are plain Python: planning, admission and reading, called as Spark calls them, without a JVM."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import xaqueue
from support.spark_space import ENQUEUED_AT, FabricatedSpace, body, message_id
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, decode, decode_message, encode
from xaqueue.core.model.layout import RANGE_SIZE
from xaqueue.core.owner import threads
from xaqueue.errors import DamagedBlock, InvalidArgument, SpaceError, UnknownQueue
from xaqueue.features import opening
from xaqueue.message import Properties

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import StructField, StructType

from xaqueue.core.model.block import HEAD_READ_BYTES
from xaqueue.lake import batches as arrow_batches
from xaqueue.spark.source import columns, plan
from xaqueue.spark.source import reader as reading
from xaqueue.spark.source.reader import QueueKey, ReadTask
from xaqueue.spark.source.source import BatchReader, QueueSource, StreamReader

ALL = ReadAllAvailable()
SCHEMA = columns.schema()
STREAM = "test#1"
Offset = dict[str, Any]


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    return FabricatedSpace(tmp_path / "space")


def source(space: FabricatedSpace, **options: object) -> QueueSource:
    given = {"path": str(space.root), "queue": "orders"} | {name: str(value) for name, value in options.items()}
    return QueueSource(given)


def at(space: FabricatedSpace, seq: int, queue: str = "orders") -> Offset:
    """The stream's offset after this number."""
    return {"stream": STREAM, "spaces": {str(space.root): {queue: seq}}}


def position(offset: Offset, queue: str = "orders") -> int:
    """The number in an offset of one space."""
    ((_, queues),) = offset["spaces"].items()
    return int(queues[queue])


def share(space: FabricatedSpace, after: int, upto: int) -> ReadTask:
    key = QueueKey(str(space.root), 0, "orders", str(UUID(int=1)), 0)
    return ReadTask(((key, plan.Span(after, upto)),))


def stream(space: FabricatedSpace, **options: object) -> StreamReader:
    return source(space, **{"consume": "keep"} | options).streamReader(SCHEMA)


def batch(space: FabricatedSpace, **options: object) -> BatchReader:
    return source(space, **options).reader(SCHEMA)


def read_rows(reader: StreamReader | BatchReader, partitions: list[Any]) -> list[dict[str, Any]]:
    """What executors would give out: reader and partitions go through pickle as they do there."""
    executor: StreamReader | BatchReader = pickle.loads(pickle.dumps(reader))
    shares = pickle.loads(pickle.dumps(partitions))
    return [row for share in shares for batch in executor.read(share) for row in batch.to_pylist()]


def seqs(reader: StreamReader | BatchReader, partitions: list[Any]) -> list[int]:
    return [row["seq"] for row in read_rows(reader, partitions)]


def batches(reader: StreamReader, limit: ReadLimit, start: Offset | None = None) -> list[list[int]]:
    """The sequence numbers of every micro-batch until there is nothing new."""
    offset = reader.initialOffset() if start is None else start
    seen = []
    while (end := reader.latestOffset(offset, limit)) != offset:
        seen.append(seqs(reader, reader.partitions(offset, end)))
        offset = end
    return seen


def test_a_message_comes_with_all_its_columns(space: FabricatedSpace) -> None:
    space.put(
        "orders",
        1,
        b"\x00body",
        correlation_id=b"42",
        priority=9,
        headers={"k": "v", "l": ""},
        content_type="text/plain",
        tries=3,
    )
    os.utime(space.path("orders", 1), ns=(0, 1_767_323_045_678_901_234))
    space.put("orders", 2)
    space.publish("orders", 2)
    reader = stream(space)
    first, second = read_rows(reader, reader.partitions(at(space, 0), at(space, 2)))
    assert first == {
        "seq": 1,
        "message_id": message_id(1),
        "queue": "orders",
        "body": b"\x00body",
        "correlation_id": b"42",
        "priority": 9,
        "enqueued_at": datetime.fromtimestamp((ENQUEUED_AT + 1) // 1_000_000, UTC).replace(microsecond=1),
        "headers": [("k", "v"), ("l", "")],
        "content_type": "text/plain",
        "tries": 3,
        "space": str(space.root),
        "committed_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    }
    assert (second["correlation_id"], second["content_type"], second["headers"]) == (None, None, [])
    assert (second["priority"], second["tries"], second["body"]) == (4, 0, body(2))


def test_the_batches_have_the_very_schema_that_spark_compares_with(space: FabricatedSpace) -> None:
    space.fill("orders", [1])
    for schema in (SCHEMA, StructType([StructField(field.name, field.dataType) for field in SCHEMA])):
        reader = source(space, consume="keep").streamReader(schema)
        (record_batch,) = reader.read(share(space, 0, 1))
        assert record_batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_stream_reads_each_message_once_in_order_and_goes_on_with_new_ones(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 8))
    reader = stream(space)
    assert position(reader.initialOffset()) == 0
    assert batches(reader, ALL) == [[1, 2, 3, 4, 5, 6, 7]]
    space.fill("orders", [8, 9])
    assert batches(reader, ALL, at(space, 7)) == [[8, 9]]
    assert position(reader.reportLatestOffset()) == 9


def test_latest_begins_at_the_end_and_says_so_twice(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 4))
    reader = stream(space, startingoffsets="latest")
    assert position(reader.initialOffset()) == 3
    space.fill("orders", [4])
    assert position(reader.initialOffset()) == 3
    assert batches(reader, ALL) == [[4]]


def test_nothing_above_the_watermark_is_read_even_where_files_are(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 4))
    space.put("orders", 4)
    space.put("orders", RANGE_SIZE + 1)
    assert batches(stream(space), ALL) == [[1, 2, 3]]
    reader = batch(space)
    assert seqs(reader, reader.partitions()) == [1, 2, 3]
    space.publish("orders", 4)
    assert batches(stream(space), ALL) == [[1, 2, 3, 4]]


def test_the_default_limit_is_the_option(space: FabricatedSpace) -> None:
    space.fill("orders", [1])
    assert stream(space).getDefaultReadLimit() == ReadMaxRows(sys.maxsize)  # ReadAllAvailable is for one batch alone
    assert stream(space, maxmessagespertrigger=7).getDefaultReadLimit() == ReadMaxRows(7)


def test_a_limit_admits_no_more_than_it_says(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 8))
    assert batches(stream(space), ReadMaxRows(3)) == [[1, 2, 3], [4, 5, 6], [7]]
    with pytest.raises(InvalidArgument, match="ReadMaxFiles"):
        stream(space).latestOffset(at(space, 0), ReadMaxFiles(3))


def test_a_limit_passes_over_emptied_ranges_without_empty_batches(space: FabricatedSpace) -> None:
    far = 9 * RANGE_SIZE
    space.fill("orders", [1, 2, far, far + 1, far + 2])
    space.consume("orders", [1, 2])
    assert batches(stream(space), ReadMaxRows(2)) == [[far, far + 1], [far + 2]]


def test_a_gap_inside_a_range_makes_a_smaller_batch(space: FabricatedSpace) -> None:
    space.fill("orders", [1, 5, 6])
    assert batches(stream(space), ReadMaxRows(4)) == [[1], [5, 6]]


def test_a_queue_that_was_emptied_moves_the_offset_on_once(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 6))
    space.consume("orders", range(1, 6))
    assert batches(stream(space), ReadMaxRows(2)) == [[]]
    assert batches(stream(space), ALL) == [[]]


def test_available_now_ends_at_what_was_there_when_it_began(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 6))
    reader = stream(space)
    reader.prepareForTriggerAvailableNow()
    space.fill("orders", range(6, 9))
    assert batches(reader, ReadMaxRows(2)) == [[1, 2], [3, 4], [5]]
    assert position(reader.reportLatestOffset()) == 8


def test_after_a_restart_the_same_batch_is_planned_first(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 11))
    before = stream(space)
    start, end = at(space, 2), before.latestOffset(at(space, 2), ReadMaxRows(5))
    space.fill("orders", range(11, 15))
    restarted = stream(space)
    assert seqs(restarted, restarted.partitions(start, end)) == [3, 4, 5, 6, 7]


def test_a_machine_that_sees_an_older_space_is_no_silent_gap(
    space: FabricatedSpace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SEEN_S", 0.0)
    space.fill("orders", range(1, 11))
    reader = stream(space)
    partitions = reader.partitions(at(space, 0), at(space, 10))
    space.publish("orders", 9)  # what this executor has mounted there
    with pytest.raises(SpaceError, match=r"as .* sees it ends at 9, and \(0, 10\] is to be read.*under this path"):
        read_rows(reader, partitions)
    assert len(read_rows(stream(space, failOnDataLoss="false"), partitions)) == 10
    assert "messages may be missing" in caplog.text


def test_a_batch_has_what_was_committed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the files come behind the journal."""
    monkeypatch.setattr(threads, "LAG_S", 0.3)
    root = tmp_path / "space"
    opening.create(root)
    (root / "queues.toml").write_text("[queues.orders]\n")
    with xaqueue.connect(root) as connection:
        for number in range(1, 4):
            connection.enqueue("orders", b"")
            connection.commit()
            reader = QueueSource({"path": str(root), "queue": "orders"}).reader(SCHEMA)
            assert seqs(reader, reader.partitions()) == list(range(1, number + 1))


def test_messages_consumed_after_planning_are_absent(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 6))
    reader = stream(space)
    partitions = reader.partitions(at(space, 0), at(space, 5))
    space.consume("orders", [2, 3])
    assert seqs(reader, partitions) == [1, 4, 5]
    space.consume("orders", [1, 4, 5])
    assert seqs(reader, partitions) == []


def test_a_commit_of_a_stream_that_keeps_changes_nothing(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 4))
    before = sorted(space.root.rglob("*"))
    reader = stream(space)
    reader.commit(at(space, 3))
    assert sorted(space.root.rglob("*")) == before


def test_partitions_share_the_messages_and_cover_them_once(space: FabricatedSpace) -> None:
    numbers = [1, 2, 3, RANGE_SIZE - 1, RANGE_SIZE, 5 * RANGE_SIZE + 7]
    space.fill("orders", numbers)
    for wanted in (1, 2, 3, 7, 5_000):
        reader = stream(space, minpartitions=wanted)
        partitions = reader.partitions(at(space, 0), at(space, numbers[-1]))
        assert len(partitions) == wanted
        assert seqs(reader, partitions) == numbers


def test_a_few_messages_are_one_partition_by_default(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 20))
    assert batch(space).partitions() == [share(space, 0, 19)]


def test_many_messages_are_a_partition_a_core_and_none_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    sizes = (0, 1, 5_001, 50_000, 400_000, 1_000_000)
    local, cluster, unknown = plan.Tasks(4, plan.MOST_ON_ALL_CORES), plan.Tasks(200), plan.Tasks()
    assert [local.of(messages) for messages in sizes] == [0, 1, 2, 4, 4, 10]
    assert [cluster.of(messages) for messages in sizes] == [0, 1, 2, 10, 80, 200]
    assert [unknown.of(messages) for messages in sizes] == [0, 1, 2, 4, 20, 50]


def test_record_batches_close_at_rows_and_at_bytes(space: FabricatedSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    space.fill("orders", range(1, 8), content=b"x" * 100)
    monkeypatch.setattr(arrow_batches, "BATCH_ROWS", 3)
    assert [found.num_rows for found in stream(space).read(share(space, 0, 7))] == [3, 3, 1]
    monkeypatch.setattr(arrow_batches, "BATCH_BYTES", 200)
    assert [found.num_rows for found in stream(space).read(share(space, 0, 7))] == [2, 2, 2, 1]


@pytest.mark.parametrize("over", [-1, 0, 1, 100_000])
def test_a_file_is_read_to_its_end_however_large(space: FabricatedSpace, over: int) -> None:
    head = space.put("orders", 1, b"").stat().st_size
    content = os.urandom(HEAD_READ_BYTES + over - head)
    space.put("orders", 1, content)
    space.publish("orders", 1)
    assert space.path("orders", 1).stat().st_size == HEAD_READ_BYTES + over
    assert [batch.column("body").to_pylist() for batch in stream(space).read(share(space, 0, 1))] == [[content]]


def cut_short(data: bytes) -> bytes:
    return data[:-1]


def flip_body(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def flip_properties(data: bytes) -> bytes:
    return data[:53] + bytes([data[53] ^ 16]) + data[54:]


def nothing_left(_: bytes) -> bytes:
    return b""


def foreign(_: bytes) -> bytes:
    return b"no block at all, and longer than a prefix is: " * 3


def dequeue_block(_: bytes) -> bytes:
    return b"".join(encode(Block(Kind.DEQUEUE, message_id(2), Properties("orders"))))


def other_message(_: bytes) -> bytes:
    return b"".join(encode(Block(Kind.ENQUEUE, message_id(7), Properties("orders"))))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_short, "truncated"),
        (flip_body, "checksum"),
        (flip_properties, "checksum"),
        (nothing_left, "empty file"),
        (foreign, "foreign file"),
        (dequeue_block, "kind dequeue is no message"),
        (other_message, "renamed or copied"),
    ],
)
def test_a_damaged_message_is_an_error_that_names_its_file(
    space: FabricatedSpace, damage: Callable[[bytes], bytes], said: str
) -> None:
    space.fill("orders", range(1, 4))
    path = space.path("orders", 2)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedBlock, match=said) as raised:
        list(stream(space).read(share(space, 0, 3)))
    assert str(path) in str(raised.value)


def test_the_readers_decoder_agrees_with_the_engines_and_sees_every_bit() -> None:
    properties = Properties("orders", b"c", priority=2, enqueued_at=5, headers={"k": "v"}, unknown={"later": 1})
    data = b"".join(encode(Block(Kind.ENQUEUE, message_id(1), properties, b"body", epoch=3)))
    block = decode(data)
    written_id, stored, content = decode_message(data)
    assert (written_id, content) == (block.message_id, block.body)
    assert stored == {
        "queue": "orders",
        "correlation_id": b"c",
        "priority": 2,
        "enqueued_at": 5,
        "headers": {"k": "v"},
        "later": 1,
    }
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedBlock):
            decode_message(bytes(flipped))
    for length in range(len(data)):
        with pytest.raises(DamagedBlock):
            decode_message(data[:length])


def test_a_property_of_the_wrong_type_is_an_error_that_names_the_messages(space: FabricatedSpace) -> None:
    space.fill("orders", [1])
    wrong = Block(Kind.ENQUEUE, message_id(1), Properties("orders", priority="high"))  # type: ignore[arg-type]
    space.path("orders", 1).write_bytes(b"".join(encode(wrong)))
    with pytest.raises(DamagedBlock, match="queue orders, messages 1 to 1"):
        list(stream(space).read(share(space, 0, 1)))


def test_foreign_files_in_a_range_are_left_alone(space: FabricatedSpace) -> None:
    space.fill("orders", [1])
    directory = space.path("orders", 1).parent
    (directory / ".hidden").write_text("x")
    (directory / "README").write_text("x")
    assert batches(stream(space), ALL) == [[1]]


def test_an_update_block_is_no_message(space: FabricatedSpace) -> None:
    space.fill("orders", [1])
    updated = Block(Kind.UPDATE, message_id(1), Properties("orders", tries=2), b"again")
    space.path("orders", 1).write_bytes(b"".join(encode(updated)))
    with pytest.raises(DamagedBlock, match="kind update is no message"):
        read_rows(stream(space), [share(space, 0, 1)])


def test_damaged_tries_are_passed_over(space: FabricatedSpace) -> None:
    for seq in (1, 2):
        space.put("orders", seq, tries=seq)
    space.publish("orders", 2)
    (space.root / layout.retry_path("orders", 1, message_id(1))).write_bytes(b"torn")
    assert [row["tries"] for row in read_rows(stream(space), [share(space, 0, 2)])] == [0, 2]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("startingoffsets", "now", '"earliest", "latest" or a commit sequence number'),
        ("startingoffsets", "-1", '"earliest", "latest" or a commit sequence number'),
        ("startingoffsets", str(2**63), '"earliest", "latest" or a commit sequence number'),
        ("endingoffsets", "", '"earliest", "latest" or a commit sequence number'),
        ("maxmessagespertrigger", "0", "a whole number from 1"),
        ("maxmessagespertrigger", "1e3", "a whole number from 1"),
        ("minpartitions", "many", "a whole number from 1"),
        ("maxmessagepertriger", "5", "did you mean maxMessagesPerTrigger"),
        ("path", "", "the directory of the queue space"),
        ("queue", "", "the name of the queue"),
        ("queue", "../orders", "queue name"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_accepted(
    space: FabricatedSpace, name: str, value: str, said: str
) -> None:
    space.fill("orders", [1])
    with pytest.raises(InvalidArgument, match=said) as raised:
        batch(space, **{name: value})
    assert name in str(raised.value).lower()


def test_option_names_are_taken_in_any_case(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 4))
    assert stream(space, maxMessagesPerTrigger=2).getDefaultReadLimit() == ReadMaxRows(2)


def test_a_stream_has_no_ending_offsets(space: FabricatedSpace) -> None:
    space.fill("orders", [1])
    with pytest.raises(InvalidArgument, match=r"spark\.read"):
        stream(space, endingoffsets="1")


def test_an_unknown_queue_is_refused_with_the_known_ones(space: FabricatedSpace) -> None:
    space.fill("orders", [1])
    (space.root / "queues.toml").write_text('[queues.bills]\norder = "fifo"\n')
    with pytest.raises(UnknownQueue, match=r"did you mean 'orders'.*bills, orders") as raised:
        stream(space, queue="order")
    assert str(space.root) in str(raised.value)
    assert "'order'" in str(raised.value)
    assert batches(stream(space, queue="bills"), ALL) == []


def test_any_queue_may_come_where_there_is_a_default(space: FabricatedSpace) -> None:
    (space.root / "queues.toml").write_text('[default]\norder = "fifo"\n')
    reader = stream(space, queue="later", createQueues=True)
    assert batches(reader, ALL) == []
    assert batch(space, queue="later", createQueues=True).partitions() == [ReadTask(())]
    space.fill("later", [1])
    assert batches(reader, ALL) == [[1]]


def test_a_directory_that_is_no_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="is no queue space") as raised:
        QueueSource({"path": str(tmp_path), "queue": "orders"}).streamReader(SCHEMA)
    assert str(tmp_path) in str(raised.value)


def test_a_batch_reads_between_its_offsets(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 10))
    for options, expected in (
        ({}, range(1, 10)),
        ({"startingoffsets": 3}, range(4, 10)),
        ({"startingoffsets": 3, "endingoffsets": 6}, range(4, 7)),
        ({"endingoffsets": 2}, range(1, 3)),
        ({"startingoffsets": "latest"}, ()),
        ({"endingoffsets": "earliest"}, ()),
        ({"startingoffsets": 9}, ()),
    ):
        reader = batch(space, **options)
        assert seqs(reader, reader.partitions()) == list(expected), options


def test_batch_offsets_that_cannot_be_are_refused(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 10))
    with pytest.raises(SpaceError, match=r"endingOffsets 12 is ahead .* ends at 9"):
        batch(space, endingoffsets=12).partitions()
    with pytest.raises(InvalidArgument, match="startingOffsets 5 lies behind endingOffsets 3"):
        batch(space, startingoffsets=5, endingoffsets=3).partitions()


def test_a_checkpoint_ahead_of_the_queue_is_an_error_and_not_silence(space: FabricatedSpace) -> None:
    space.fill("orders", range(1, 10))
    reader = stream(space)
    with pytest.raises(SpaceError, match=r"offset 40 is ahead .* ends at 9"):
        reader.latestOffset(at(space, 40), ALL)
    with pytest.raises(SpaceError, match="offset 50 is ahead"):
        reader.partitions(at(space, 40), at(space, 50))
    with pytest.raises(SpaceError, match="startingOffsets 40 is ahead"):
        stream(space, startingoffsets=40).initialOffset()


def test_planning_lists_no_messages(space: FabricatedSpace) -> None:
    space.fill("orders", [1, RANGE_SIZE, 3 * RANGE_SIZE])
    reader = stream(space)
    for number in (1, RANGE_SIZE, 3 * RANGE_SIZE):
        space.path("orders", number).parent.rename(space.root / f"hidden-{number}")
        space.path("orders", number).parent.write_text("a file where a directory was: listing it would fail")
    end = reader.latestOffset(at(space, 0), ReadMaxRows(RANGE_SIZE))
    assert reader.partitions(at(space, 0), end)


def test_spans_are_clipped_to_what_is_asked() -> None:
    assert plan.spans([0, 1, 4], 10, 4 * RANGE_SIZE) == [
        plan.Span(10, RANGE_SIZE - 1),
        plan.Span(RANGE_SIZE - 1, 2 * RANGE_SIZE - 1),
        plan.Span(4 * RANGE_SIZE - 1, 4 * RANGE_SIZE),
    ]
    assert plan.spans([0, 1], 5, 5) == []


def test_a_limit_that_ends_with_a_range_leaves_the_gap_to_the_next_batch() -> None:
    held = [plan.Span(0, 10), plan.Span(100, 110)]
    assert plan.QueueSpan("queue", 0, 120, held).end(10) == 100
    assert plan.QueueSpan("queue", 0, 120, held).end(15) == 105
    assert plan.QueueSpan("queue", 0, 120, held).end(20) == 120
    assert plan.QueueSpan("queue", 0, 120, []).end(1) == 120


def test_cutting_shares_evenly_and_never_makes_an_empty_piece() -> None:
    held = [plan.Span(0, 10), plan.Span(100, 110)]
    queue = plan.QueueSpan("orders", 0, 120, held)
    assert plan.partition([queue], 4) == [[("orders", span)] for span in ((0, 5), (5, 100), (100, 105), (105, 120))]
    assert plan.partition([plan.QueueSpan("orders", 0, 120, [])], 4) == [[("orders", (0, 120))]]
    assert len(plan.partition([queue], 1000)) == 20
