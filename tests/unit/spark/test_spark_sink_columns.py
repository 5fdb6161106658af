"""Columns become messages, in two vocabularies; what is none is refused, and nothing is dropped by mistake."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.spark_space import FabricatedSpace

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from xaqueue.errors import InvalidArgument
from xaqueue.message import PLAIN_OPTIONS, Properties
from xaqueue.spark import sink_task as sink_columns
from xaqueue.spark.batch_commit import SinkSpace
from xaqueue.spark.checkpoint import query_in
from xaqueue.spark.sink import SinkOptions, parse
from xaqueue.spark.sink_task import KINDS, Run, SinkColumns
from xaqueue.spark.source import columns
from xaqueue.spark.source.source import QueueSource

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
KAFKA_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Row(NamedTuple):
    queue: str
    body: bytes
    options: dict[str, Any]


def made(sink: SinkColumns, batches: Iterable[pa.RecordBatch]) -> list[Row]:
    runs = [run for batch in batches for run in sink.runs(batch)]
    return [Row(queue, *row) for queue, *columns in runs for row in zip(*columns, strict=True)]


def rows(table: pa.Table, queue: str | None = "orders") -> list[Row]:
    return made(SinkColumns(from_arrow_schema(table.schema), queue), table.to_batches())


def test_every_option_of_enqueue_has_a_column_but_the_id() -> None:
    assert set(KINDS) - {"body", "queue"} == set(PLAIN_OPTIONS) - {"message_id", "origin"}


def test_a_row_with_everything() -> None:
    table = pa.table(
        {
            "body": pa.array([b"\xff"]),
            "queue": ["replies"],
            "correlation_id": ["c"],
            "headers": pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())),
            "priority": pa.array([9], pa.int16()),
            "not_before": pa.array([NOON_US], pa.timestamp("us", "UTC")),
            "expires_at": pa.array([NOON_US + 1], pa.timestamp("us", "Asia/Tokyo")),
            **{name: [name] for name in ("group", "content_type", "reply_queue", "failure_queue", "traceparent")},
            "dedup_key": pa.array([b"d"]),
        }
    )
    [(queue, body, options)] = rows(table, None)
    assert (queue, body) == ("replies", b"\xff")
    assert options == {
        "correlation_id": b"c",
        "headers": {"k": "v"},
        "priority": 9,
        "not_before": NOON_US,
        "expires_at": NOON_US + 1,
        **{name: name for name in ("group", "content_type", "reply_queue", "failure_queue", "traceparent")},
        "dedup_key": b"d",
    }


def test_kafka_s_names() -> None:
    table = pa.table(
        {
            "key": pa.array([b"k", None]),
            "value": ["a", "b"],
            "topic": ["orders", "replies"],
            "headers": pa.array([[{"key": "h", "value": b"v"}], None], KAFKA_HEADERS),
        }
    )
    assert rows(table, None) == [
        ("orders", b"a", {"correlation_id": b"k", "headers": {"h": "v"}}),
        ("replies", b"b", {}),
    ]


def test_the_option_wins_over_the_column() -> None:
    assert rows(pa.table({"topic": ["a", None], "value": ["1", "2"]}), "orders") == [
        ("orders", b"1", {}),
        ("orders", b"2", {}),
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_becomes_its_utf8(kind: pa.DataType) -> None:
    assert [row.body for row in rows(pa.table({"body": pa.array(["é", ""], pa.string()).cast(kind)}))] == [
        "é".encode(),
        b"",
    ]


def test_slices_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_columns, "SLICE_ROWS", 2)
    table = pa.table({"body": ["1", "2", "3", "4", "5"], "group": [None, None, None, "g", None]})
    assert [(row.body, row.options) for row in rows(table)] == [
        (b"1", {}),
        (b"2", {}),
        (b"3", {}),
        (b"4", {"group": "g"}),
        (b"5", {}),
    ]


def test_those_of_a_queue_are_a_run() -> None:
    table = pa.table(
        {
            "queue": ["b", "a", "b", "a", "b", "a"],
            "body": ["1", "2", "3", "4", "5", "6"],
            "group": [None, None, None, "g", None, None],
        }
    )
    sink = SinkColumns(from_arrow_schema(table.schema), None)
    assert [run for batch in table.to_batches() for run in sink.runs(batch)] == [
        Run("a", [b"2", b"4", b"6"], [{}, {"group": "g"}, {}]),
        Run("b", [b"1", b"3", b"5"], [{}, {}, {}]),
    ]


@pytest.mark.parametrize("kafka", [False, True])
def test_what_the_source_gives_needs_no_select(kafka: bool) -> None:
    SinkColumns(columns.schema(kafka=kafka), "copy")
    SinkColumns(StructType([*columns.schema(kafka=kafka)]).add("expires_at", "timestamp"), "copy")


COPIED: dict[str, Any] = {
    "queue": "orders",
    "correlation_id": b"\xffc",
    "reply_queue": "replies",
    "failure_queue": "failed",
    "priority": 9,
    "not_before": NOON_US,
    "expires_at": NOON_US + 1,
    "group": "g",
    "dedup_key": b"\xffd",
    "content_type": "text/plain",
    "headers": {"k": "v", "ü": ""},
    "traceparent": "t",
    "persistent": False,
}
MADE_ANEW = {"enqueued_at", "tries", "origin", "possible_duplicate", "unknown"}
"""Of a copy, as of any message that is enqueued; nobody can say what is in the last."""


@pytest.mark.parametrize("way", [{"queue": "orders"}, {"subscribe": "orders"}])
def test_a_copy_loses_no_property(way: dict[str, str], tmp_path: Path) -> None:
    """Source to sink without a select. A property that is new has to be there, too."""
    assert {field.name for field in dataclasses.fields(Properties)} == {*COPIED, *MADE_ANEW}
    space = FabricatedSpace(tmp_path / "space")
    space.put("orders", 1, b"\xffbody", **{name: value for name, value in COPIED.items() if name != "queue"})
    space.put("orders", 2)
    space.publish("orders", 2)
    source = QueueSource({"path": str(space.root), "includeAll": "true", **way})
    schema = source.schema()
    reader, sink = source.reader(schema), SinkColumns(schema, None)
    read = [batch for share in reader.partitions() for batch in reader.read(share)]
    assert [name for name in columns.MORE if name not in schema.names] == []
    first, second = made(sink, read)
    assert (first.body, {"queue": first.queue, **first.options}) == (b"\xffbody", COPIED)
    assert {name: value for name, value in second.options.items() if value} == {"priority": 4, "persistent": True}


def test_all_columns_that_the_source_knows_are_known_here() -> None:
    known = {*columns.HOUSE, *columns.MORE, *columns.KAFKA}
    assert known <= {*KINDS, *sink_columns.SYNONYMS, *sink_columns.OF_THE_SOURCE}


TEXT = StringType()


@pytest.mark.parametrize(
    ("schema", "queue", "told"),
    [
        (
            {"body": TEXT, "prioritty": IntegerType()},
            "q",
            r"column 'prioritty' says nothing .*\(did you mean priority\?\): body, queue",
        ),
        ({"body": TEXT, "Group": TEXT}, "q", "column 'Group' says nothing .*did you mean group"),
        ({"body": TEXT, "value": TEXT}, "q", "columns 'body' and 'value' mean the same: drop one"),
        ({"queue": TEXT}, "q", 'a column "body" .* is missing'),
        ({"body": TEXT}, None, 'the queue is missing: give option "queue"'),
        ({"body": IntegerType()}, "q", "column 'body' is int: binary or a string is wanted"),
        ({"body": TEXT, "not_before": TimestampNTZType()}, "q", "is timestamp_ntz: a timestamp is wanted"),
        ({"body": TEXT, "headers": MapType(TEXT, IntegerType())}, "q", "is map<string,int>: map<string,string>, or"),
        ({"body": TEXT, "headers": ArrayType(TEXT)}, "q", "'headers' is array<string>"),
        ({"body": TEXT, "priority": TEXT}, "q", "'priority' is string: a whole number is wanted"),
    ],
)
def test_columns_that_are_refused(schema: dict[str, DataType], queue: str | None, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        SinkColumns(StructType([StructField(name, kind) for name, kind in schema.items()]), queue)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"body": ["a", None]}, "a body is null: filter such rows"),
        ({"body": ["a"], "queue": pa.array([None], pa.string())}, "a queue is null: filter such rows"),
        ({"body": ["a"], "headers": pa.array([[{"key": "h", "value": None}]], KAFKA_HEADERS)}, "header 'h' is null"),
        ({"body": ["a"], "headers": pa.array([[{"key": "h", "value": b"\xff"}]], KAFKA_HEADERS)}, "'h' is no UTF-8"),
        (
            {"body": ["a"], "headers": pa.array([[{"key": "h", "value": b""}] * 2], KAFKA_HEADERS)},
            "header 'h' is there twice",
        ),
    ],
)
def test_values_that_are_refused(table: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        rows(pa.table(table), None if "queue" in table else "orders")


# Options


def test_all_options(tmp_path: Any) -> None:
    given = {"path": f"{tmp_path}, file:{tmp_path}/b%20c", "topic": "orders", "txnAppId": "app", "txnversion": "7"}
    assert parse(given, stream=False) == SinkOptions(
        (SinkSpace(str(tmp_path)), SinkSpace(f"{tmp_path}/b c")), "orders", "app", 7
    )
    both = parse({"path": "/a", "server": "xaq://host:1", "checkpointlocation": "/c"}, stream=True)
    assert both == SinkOptions((SinkSpace("/a", "xaq://host:1"),), checkpoint="/c")
    assert parse({"server": "xaq://host:1"}, stream=True).spaces == (SinkSpace("", "xaq://host:1"),)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, 'option "path" is missing'),
        ({"path": "/a,,/b"}, "option \"path\" is '/a,,/b'"),
        ({"path": "/a,/a"}, "a space is named twice"),
        ({"path": "/a,/b", "server": "xaq://host:1"}, '2 in "path" and 1 in "server"'),
        ({"server": "host:1"}, "no URL of a server"),
        ({"path": "/a", "queue": "a", "topic": "a"}, 'options "queue" and "topic" mean the same'),
        ({"path": "/a", "queue": "-"}, "queue name '-' is refused"),
        ({"path": "/a", "txnappid": ""}, "query '' is refused"),
        ({"path": "/a", "txnversion": "1"}, 'option "txnVersion" needs "txnAppId"'),
        ({"path": "/a", "txnappid": "a"}, 'option "txnAppId" needs "txnVersion"'),
        ({"path": "/a", "txnappid": "a", "txnversion": "-1"}, "a whole number from 0 is accepted"),
        ({"path": "/a", "txnapid": "1"}, r"unknown to a writer \(did you mean txnAppId\?\): path, server, queue"),
    ],
)
def test_options_that_are_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        parse(given, stream=False)


def test_the_name_of_a_query_that_spark_hands_over_is_no_mistake() -> None:
    assert parse({"path": "/a", "queryname": "copy"}, stream=True).query_name == "copy"


def test_a_stream_has_its_numbers_from_spark() -> None:
    with pytest.raises(InvalidArgument, match=r'"txnVersion" is for df\.write'):
        parse({"path": "/a", "txnappid": "a", "txnversion": "1"}, stream=True)


def test_the_query_of_a_checkpoint(tmp_path: Any) -> None:
    assert query_in(str(tmp_path)) is None
    for content, query in (('{"id":"abc"}', "abc"), ("{", None), ("[]", None), ('{"id":1}', None)):
        (tmp_path / "metadata").write_text(content)
        assert query_in(str(tmp_path)) == query
        assert query_in(f"file:{tmp_path}") == query
    assert query_in("s3://bucket/checkpoint") is None
