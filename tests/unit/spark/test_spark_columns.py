"""Columns come as they are asked for: the house's, Kafka's, a part of them, or out of plain files by ``decode``."""

from __future__ import annotations

import json
import os
import pickle
import runpy
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.spark_space import FabricatedSpace, message_id
from xaqueue.core.model.layout import RANGE_SIZE
from xaqueue.errors import DamagedBlock, InvalidArgument, SpaceError

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from support.spark_reading import Query, rows, stream
from xaqueue.lake import batches
from xaqueue.spark import default_source
from xaqueue.spark.source import columns
from xaqueue.spark.source import source as stream_room
from xaqueue.spark.source.columns import MESSAGE, Columns, decode_array
from xaqueue.spark.source.options import parse
from xaqueue.spark.source.plan import EARLIEST, LATEST, parse_bounds
from xaqueue.spark.source.source import QueueSource, SparksSource

COMMITTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    """Orders 1, with all properties, and 2, with none; 2 was committed ten seconds after 1."""
    made = FabricatedSpace(tmp_path / "space")
    made.put(
        "orders",
        1,
        b"body",
        correlation_id=b"c",
        group="g",
        not_before=1_000_000,
        expires_at=2_000_000,
        reply_queue="replies",
        failure_queue="failed",
        dedup_key=b"d",
        traceparent="t",
        origin="o",
        headers={"k": "v"},
    )
    made.put("orders", 2)
    made.publish("orders", 2)
    for seq in (1, 2):
        os.utime(made.path("orders", seq), (0, COMMITTED.timestamp() + 10 * (seq - 1)))
    return made


def batch(space: FabricatedSpace, schema: str | StructType | None = None, **options: object) -> list[dict[str, Any]]:
    given = {"path": str(space.root)} | {name: str(value) for name, value in options.items()}
    if not {"subscribe", "subscribePattern", "assign"} & set(options):
        given.setdefault("queue", "orders")
    source = QueueSource(given)
    reader = source.reader(schema if isinstance(schema, StructType) else source.schema())
    return rows(reader, reader.partitions())


def picked(*names: str) -> StructType:
    known = columns.known_columns()
    wanted = StructType()
    for name in names:
        wanted = wanted.add(name, known[name].kind, known[name].nullable)
    return wanted


def test_kafkas_columns_come_with_kafkas_option(space: FabricatedSpace) -> None:
    first, second = batch(space, subscribe="orders")
    assert first == {
        "key": b"c",
        "value": b"body",
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "timestamp": COMMITTED,
        "timestampType": 1,
    }
    assert (second["key"], second["offset"]) == (None, 2)
    first, second = batch(space, subscribePattern="ord.*", includeHeaders=True)
    assert (first["headers"], second["headers"]) == ([{"key": "k", "value": b"v"}], None)
    assert QueueSource({"path": "/x", "subscribe": "q", "includeHeaders": "true"}).schema().simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_the_partition_is_the_number_of_the_space_and_stays(tmp_path: Path) -> None:
    for name in ("b", "c"):
        FabricatedSpace(tmp_path / name).fill("orders", [1])
    source = QueueSource({"path": str(tmp_path / "*"), "subscribe": "orders", "startingOffsets": "earliest"})
    query = Query(source.streamReader(source.schema()))
    assert [[row["partition"] for row in found] for found in query.all()] == [[0, 1]]
    FabricatedSpace(tmp_path / "a").fill("orders", [1])
    assert [[row["partition"] for row in found] for found in query.all()] == [[2]]


def test_house_columns_without_headers(space: FabricatedSpace) -> None:
    names = list(batch(space, includeHeaders=False)[0])
    assert names == [name for name in columns.HOUSE if name != "headers"]


def test_more_columns_come_where_they_are_named(space: FabricatedSpace) -> None:
    first, second = batch(space, picked(*columns.MORE))
    epoch = datetime.fromtimestamp(0, UTC)
    assert first == {
        "persistent": True,
        "group": "g",
        "not_before": epoch.replace(second=1),
        "expires_at": epoch.replace(second=2),
        "reply_queue": "replies",
        "failure_queue": "failed",
        "dedup_key": b"d",
        "traceparent": "t",
        "origin": "o",
    }
    assert second == {**dict.fromkeys(columns.MORE), "persistent": True}


def test_what_is_not_asked_for_is_not_built(space: FabricatedSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(_: bytes) -> dict[str, Any]:
        raise AssertionError("properties were unpacked")

    monkeypatch.setattr(batches, "stored_in", unpack)
    assert batch(space, picked("body", "seq", "offset")) == [
        {"body": b"body", "seq": 1, "offset": 1},
        {"body": b"message 2", "seq": 2, "offset": 2},
    ]
    with pytest.raises(AssertionError):
        batch(space, picked("priority"))


def test_a_column_that_no_message_has_and_a_wrong_type_are_refused(space: FabricatedSpace) -> None:
    with pytest.raises(InvalidArgument, match=r"no column 'colour'.*seq, message_id"):
        batch(space, StructType().add("colour", "string"))
    with pytest.raises(InvalidArgument, match="'body' is BINARY, not STRING"):
        batch(space, StructType().add("body", "string"))


@pytest.mark.parametrize("kafka", [False, True])
def test_arrow_schemas_are_those_that_spark_compares_with(kafka: bool) -> None:
    for schema in (columns.schema(kafka=kafka), picked(*columns.MORE)):
        asked = pickle.loads(pickle.dumps(Columns(schema, kafka=kafka)))
        assert asked.schema.equals(to_arrow_schema(schema, timezone="UTC"))


# Where to begin and to end


@pytest.mark.parametrize(
    ("text", "kafka", "expected"),
    [
        ("earliest", False, EARLIEST),
        (" Latest ", False, LATEST),
        ("5", False, 5),
        ("5", True, 4),
        ("0", True, 0),
        ('{"orders": 5}', False, 5),
        ('{"orders": "latest"}', False, LATEST),
        ('{"/data/one/": {"orders": 7}}', False, 7),
        ('{"/data/other": {"orders": 7}}', False, EARLIEST),
        ('{"orders": {"0": 5}}', True, 4),
        ('{"orders": {"0": -2}}', True, EARLIEST),
        ('{"orders": {"0": -1}}', True, LATEST),
        ('{"orders": {"1": 5}}', True, EARLIEST),
    ],
)
def test_offsets_as_people_say_them(text: str, kafka: bool, expected: int | str) -> None:
    assert parse_bounds("startingOffsets", text, kafka=kafka).of("/data/one", 0, "orders") == expected


@pytest.mark.parametrize(
    ("text", "kafka"),
    [
        ('{"orders": -3}', False),
        ('{"orders": true}', False),
        ('{"orders": {"0": 5}}', False),
        ('{"bad name": 5}', False),
        ('{"orders": ', False),
        ('{"orders": {"x": 5}}', True),
        ("-1", True),
    ],
)
def test_offsets_that_mean_nothing_are_refused_with_an_example(text: str, kafka: bool) -> None:
    with pytest.raises(InvalidArgument, match=r'"startingOffsets".*\{"orders": '):
        parse_bounds("startingOffsets", text, kafka=kafka)


def test_a_batch_begins_and_ends_where_each_queue_is_told_to(space: FabricatedSpace) -> None:
    space.fill("bills", range(1, 6))
    found = batch(space, queue="*", startingOffsets='{"bills": 1}', endingOffsets='{"bills": 3, "orders": 1}')
    assert [(row["queue"], row["seq"]) for row in found] == [("bills", 2), ("bills", 3), ("orders", 1)]
    found = batch(space, subscribe="bills", startingOffsets='{"bills":{"0":2}}', endingOffsets='{"bills":{"0":4}}')
    assert [row["offset"] for row in found] == [2, 3]
    with pytest.raises(InvalidArgument, match="'startingOffsets' names queue 'bils', which is not read here: bills"):
        batch(space, queue="*", startingOffsets='{"bils": 1}')
    with pytest.raises(SpaceError, match="startingOffsets 9 is ahead of queue 'bills'"):
        batch(space, queue="*", startingOffsets='{"bills": 9}')


def milliseconds(seconds: float) -> int:
    return round((COMMITTED.timestamp() + seconds) * 1000)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(None, 0, []), (0, None, [1, 2]), (0.001, None, [2]), (10, None, [2]), (10.001, None, []), (None, 10, [1])],
)
def test_times_are_those_of_the_commit(
    space: FabricatedSpace, start: float | None, end: float | None, expected: list[int]
) -> None:
    options: dict[str, Any] = {}
    if start is not None:
        options["startingTimestamp"] = milliseconds(start)
    if end is not None:
        options["endingTimestamp"] = milliseconds(end)
    assert [row["seq"] for row in batch(space, **options)] == expected


def test_a_moment_is_found_by_bisection_over_ranges_with_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = FabricatedSpace(tmp_path / "space")
    seqs = [number * RANGE_SIZE + part for number in (0, 1, 5, 6, 7, 40, 41, 90) for part in (1, 2, 3)]
    space.fill("orders", seqs)
    for seq in seqs:
        os.utime(space.path("orders", seq), (0, seq))
    space.path("orders", 3 * RANGE_SIZE).parent.mkdir()  # emptied, and not yet cleaned up
    space.path("orders", 60 * RANGE_SIZE).parent.mkdir()
    for moment in (0, 1, 2, 4, RANGE_SIZE, *seqs, seqs[-1] + 1):
        found = batch(space, startingTimestamp=moment * 1000)
        assert [row["seq"] for row in found] == [seq for seq in seqs if seq >= moment]
        found = batch(space, endingTimestamp=moment * 1000)
        assert [row["seq"] for row in found] == [seq for seq in seqs if seq < moment]


def test_a_stream_begins_at_a_moment(space: FabricatedSpace) -> None:
    query = Query(stream(space.root, consume="keep", startingTimestamp=milliseconds(5)))
    assert [[row["seq"] for row in found] for found in query.all()] == [[2]]
    with pytest.raises(InvalidArgument, match=r"spark\.read"):
        stream(space.root, consume="keep", endingTimestamp=5)


# As a job that reads Kafka says it


def kafka(space: FabricatedSpace, **options: object) -> Query:
    source = QueueSource({"path": str(space.root)} | {name: str(value) for name, value in options.items()})
    return Query(source.streamReader(source.schema()))


def offsets(batches: list[list[dict[str, Any]]]) -> list[list[int]]:
    return [[row["offset"] for row in found] for found in batches]


WAYS = [{"subscribe": "orders"}, {"subscribePattern": "ord.*"}, {"assign": '{"orders": [0]}'}]


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_begins_at_the_latest_and_a_batch_at_the_earliest(space: FabricatedSpace, way: dict[str, str]) -> None:
    query = kafka(space, **way)
    assert query.all() == []
    space.fill("orders", [3])
    assert offsets(query.all()) == [[3]]
    assert [row["offset"] for row in batch(space, **way)] == [1, 2, 3]
    assert offsets(kafka(space, **way, startingOffsets="earliest").all()) == [[1, 2, 3]]
    assert len(Query(stream(space.root, consume="keep")).all()) == 1  # in the house's words: from the earliest


@pytest.mark.parametrize("way", WAYS)
def test_offsets_by_timestamp(space: FabricatedSpace, way: dict[str, str]) -> None:
    after_first, late = milliseconds(5), milliseconds(60)
    by_time = {"startingOffsetsByTimestamp": f'{{"orders": {{"0": {after_first}}}}}'}
    assert [row["offset"] for row in batch(space, **way, **by_time)] == [2]
    assert offsets(kafka(space, **way, **by_time, startingOffsets="latest").all()) == [[2]]  # goes before, as Kafka's
    end = {"endingOffsetsByTimestamp": '{"orders": {"0": "2026-01-02T03:04:10Z"}}'}
    assert [row["offset"] for row in batch(space, **way, **end)] == [1]
    for options in ({"startingTimestamp": late}, {"startingOffsetsByTimestamp": f'{{"orders": {{"0": {late}}}}}'}):
        with pytest.raises(InvalidArgument, match=r"or later: .*startingOffsetsByTimestampStrategy=latest"):
            kafka(space, **way, **options)
    query = kafka(space, **way, **options, startingOffsetsByTimestampStrategy="latest")
    assert query.all() == []
    space.fill("orders", [3])
    assert offsets(query.all()) == [[3]]


def test_offsets_by_timestamp_in_the_houses_words(space: FabricatedSpace) -> None:
    after_first = milliseconds(5)
    for text in (f'{{"orders": {after_first}}}', f'{{"file:{space.root}": {{"orders": {after_first}}}}}'):
        assert [row["seq"] for row in batch(space, startingOffsetsByTimestamp=text)] == [2]
    with pytest.raises(InvalidArgument, match="exclude each other"):
        batch(space, startingOffsetsByTimestamp='{"orders": 5}', startingOffsets="earliest")
    with pytest.raises(InvalidArgument, match="'startingOffsetsByTimestamp' names queue 'bills', which is not read"):
        batch(space, startingOffsetsByTimestamp='{"bills": 5}')


def test_assigned_partitions_are_spaces_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b", "a"):
        FabricatedSpace(tmp_path / name, name).fill("orders", [1])
    given = {"path": f"{tmp_path}/b,{tmp_path}/a", "startingOffsets": "earliest"}
    for numbers in ([1], [0], [0, 1]):
        source = QueueSource(given | {"assign": json.dumps({"orders": numbers})})
        reader = source.reader(source.schema())
        assert [row["partition"] for row in rows(reader, reader.partitions())] == numbers
        (found,) = Query(source.streamReader(source.schema())).all()
        assert [row["partition"] for row in found] == numbers


def test_a_batch_waits_for_its_least_messages_and_no_longer_than_it_may(
    space: FabricatedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(stream_room, "monotonic", lambda: now[0])
    query = kafka(space, subscribe="orders", startingOffsets="earliest", minOffsetsPerTrigger=3, maxTriggerDelay="60s")
    assert offsets(query.all()) == [[1, 2]]  # the first does not wait
    space.fill("orders", [3, 4])
    assert query.all() == []
    now[0] += 59
    assert query.all() == []
    now[0] += 1
    assert offsets(query.all()) == [[3, 4]]
    space.fill("orders", [5, 6, 7])
    assert offsets(query.all()) == [[5, 6, 7]]
    space.fill("orders", [8])
    assert query.all() == []
    now[0] += 3600
    assert offsets(query.all()) == [[8]]
    space.fill("orders", [9])
    query.reader.prepareForTriggerAvailableNow()
    assert offsets(query.all()) == [[9]]  # all that is there now is wanted


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_no_partition_has_more_records_than_it_may(tmp_path: Path, most: int) -> None:
    space = FabricatedSpace(tmp_path / "space")
    space.fill("orders", range(1, 24))
    source = QueueSource({"path": str(space.root), "subscribe": "orders", "maxRecordsPerPartition": str(most)})
    reader = source.reader(source.schema())
    sizes = [len(rows(reader, [share])) for share in reader.partitions()]
    assert sum(sizes) == 23
    assert max(sizes) <= most
    assert len(sizes) == -(-23 // most)


# Options of both vocabularies


def test_options_of_a_kafka_connection_are_told_of_once_a_query(
    space: FabricatedSpace, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "groupIdPrefix": "g", "consume": "keep", "startingOffsets": "earliest"}
    told = "kafka.bootstrap.servers, groupidprefix"
    for count in (1, 2):  # two queries of one process
        source = QueueSource({"path": str(space.root), "subscribe": "orders", **given})
        query = Query(source.streamReader(source.schema()))
        assert len(query.all()) == 1
        query.reader.partitions(query.begun, query.offset)
        assert caplog.text.count(told) == count


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "a", "subscribe": "b"}, '"queue" and "subscribe" exclude each other'),
        ({}, '"queue" is missing'),
        ({"queue": "a b*"}, "queue name"),
        ({"subscribe": "a*"}, "queue name"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"queue": "a", "maxMessagesPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "mean the same"),
        ({"queue": "a", "startingOffsets": "1", "startingTimestamp": "1"}, "exclude each other"),
        ({"queue": "a", "startingTimestamp": "now"}, "milliseconds since 1970"),
        ({"assign": "orders"}, 'assign" is no JSON'),
        ({"assign": "[]"}, r'assign" is .* accepted'),
        ({"assign": '{"orders": [1]}'}, "numbers of spaces, 0 to 0 here"),
        ({"assign": '{"orders": 0}'}, "is refused"),
        ({"assign": '{"a b": [0]}'}, "queue name"),
        ({"assign": '{"orders": [0]}', "path": "/x/*"}, "one by one"),
        ({"assign": '{"orders": [0]}', "subscribe": "orders"}, "exclude each other"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "more than 8"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "earliest"}, "error, latest are accepted"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": "5"}, "is accepted"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": "today"}}'}, "milliseconds since 1970"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "milliseconds above 0"),
        ({"queue": "a", "consume": "drop"}, "delete, archive, keep are accepted"),
        ({"queue": "a", "failOnDataLoss": "yes"}, "true, false are accepted"),
        ({"queue": "a", "spaceTimeout": "0"}, "seconds above 0"),
        ({"queue": "a", "streamName": "a#b"}, "without #"),
        ({"queue": "a", "server": "{"}, '"server" is no JSON'),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse({"path": "/x"} | options)


def test_a_batch_removes_nothing(space: FabricatedSpace) -> None:
    with pytest.raises(InvalidArgument, match=r"leave it out here, spark\.read removes nothing"):
        batch(space, consume="delete")


def test_paths_of_files_are_taken_as_spark_users_write_them() -> None:
    for path in ("file:/data/one", "file:///data/one", "/data/one/", "/data/two/../one"):
        assert parse({"path": path, "queue": "q"}).paths == ("/data/one",)


# Out of plain files


def contents(space: FabricatedSpace, *seqs: int) -> list[bytes | None]:
    return [space.path("orders", seq).read_bytes() for seq in seqs]


def test_decode_gives_the_columns_of_a_file(space: FabricatedSpace) -> None:
    first, nothing, second = decode_array(pa.array([*contents(space, 1), None, *contents(space, 2)])).to_pylist()
    assert nothing is None
    assert (first["body"], first["message_id"], first["correlation_id"], first["group"]) == (
        b"body",
        bytes(message_id(1)),
        b"c",
        "g",
    )
    assert (first["headers"], second["headers"], second["priority"]) == ([("k", "v")], [], 4)
    assert list(first) == MESSAGE.names


def test_decode_sees_damage(space: FabricatedSpace) -> None:
    sound, other = contents(space, 1, 2)
    assert sound is not None
    damaged = pa.array([sound[:-1], other])
    with pytest.raises(DamagedBlock, match=r"truncated.*damaged_as_null=True"):
        decode_array(damaged)
    nothing, row = decode_array(damaged, damaged_as_null=True).to_pylist()
    assert (nothing, row["body"]) == (None, b"message 2")


def test_the_module_that_spark_looks_for_gives_the_source() -> None:
    assert default_source.DefaultSource is SparksSource


class Broken:
    """A module in which nothing can be found."""

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure

    def __getattr__(self, name: str) -> Any:
        raise self.failure


@pytest.mark.parametrize(
    "failure",
    [ImportError("no module x"), RuntimeError("broken"), OSError(28, "full"), SyntaxError("bad"), KeyError("k")],
)
def test_whatever_fails_while_the_format_is_registered_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Spark imports the module when any query looks for a format, and asks it for its name."""
    monkeypatch.setitem(sys.modules, "xaqueue.spark.source.source", Broken(failure))
    made = runpy.run_path(str(default_source.__file__))["DefaultSource"]
    assert issubclass(made, DataSource)
    assert made.name() == "xaqueue"
    written = StructType(), False
    for use in (made({}).schema, partial(made({}).writer, *written), partial(made({}).streamWriter, *written)):
        with pytest.raises(ImportError, match=f"xaqueue cannot be used here: .*{failure.args[-1]}"):
            use()
