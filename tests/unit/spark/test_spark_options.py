"""What people write as options: one parser of paths, of numbers with units and of names, wherever they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import xaqueue
from xaqueue.errors import InvalidArgument

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from xaqueue.spark import sink as sink_options
from xaqueue.spark.options import (
    Parser,
    RawOptions,
    count,
    local_path,
    seconds,
    size_bytes,
    space_path,
    table,
    timestamp_ms,
)
from xaqueue.spark.source import options


def source_path(text: str) -> str:
    (path,) = options.parse({"path": text, "queue": "q"}).paths
    return path


def server_path(text: str) -> str:
    servers = options.parse({"path": "/x", "queue": "q", "server": f'{{"{text}": "xaq://host:1"}}'}).server
    assert isinstance(servers, dict)
    return str(*servers)


def sink_path(text: str) -> str:
    (space,) = sink_options.parse({"path": text}, stream=True).spaces
    return space.path


def checkpoint_path(text: str) -> str:
    return str(local_path(text))


PLACES = [source_path, server_path, sink_path, checkpoint_path]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "text",
    [
        "/my space/a:b",
        "file:/my%20space/a:b",
        "file:///my%20space/a:b",
        "FILE:///my space/a:b",
        "file://localhost/my%20space/a:b",
    ],
)
def test_a_path_is_taken_wherever_and_however_it_is_written(place: object, text: str) -> None:
    assert callable(place)
    assert place(text) == "/my space/a:b"


@pytest.mark.parametrize("place", PLACES)
def test_a_directory_that_is_called_so_to_the_letter_is_found(place: object, tmp_path: Path) -> None:
    """Spark makes a checkpoint under the very name that the URL has."""
    assert callable(place)
    (tmp_path / "my%20space").mkdir()
    assert place(f"file:{tmp_path}/my%20space") == f"{tmp_path}/my%20space"
    assert place(f"{tmp_path}/my%20space") == f"{tmp_path}/my%20space"


@pytest.mark.parametrize(
    "url", ["s3a://b/x", "hdfs://h:1/x", "dbfs:/x", "abfss://c@h/x", "nats://h:1", "file://elsewhere/x"]
)
def test_a_url_that_is_no_path_of_the_machine_is_refused_by_its_scheme(url: str) -> None:
    scheme = url.partition(":")[0]
    for place in (source_path, server_path, sink_path):
        with pytest.raises(InvalidArgument, match=f"{scheme}: is none. Give the path"):
            place(url)
    with pytest.raises(InvalidArgument, match=f"{scheme}: is none. Give the path"):
        space_path("path", f" {url}".strip())
    assert local_path(url) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("10m", 10 << 20),
        ("1 GB", 1 << 30),
        ("3k", 3072),
        ("3kb", 3072),
        ("7b", 7),
        ("2T", 2 << 40),
        ("1p", 1 << 50),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert size_bytes("name", text) == size


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2", 2.0),
        ("2s", 2.0),
        ("500ms", 0.5),
        ("15m", 900.0),
        ("1.5 hours", 5400.0),
        ("10 seconds", 10.0),
        ("1d", 86_400.0),
    ],
)
def test_spans_of_time_have_units(text: str, found: float) -> None:
    assert seconds("name", text) == found


@pytest.mark.parametrize(
    "text", ["2026-11-22T00:00:00Z", "2026-11-22 01:00:00+01:00", "20261121T190000.000-0500", "1795305600000"]
)
def test_a_moment_has_a_zone(text: str) -> None:
    assert timestamp_ms("name", text) == 1_795_305_600_000


@pytest.mark.parametrize("kind", [size_bytes, seconds, timestamp_ms, count])
@pytest.mark.parametrize(
    "text",
    ["", "-1", "1e3", "ten", "10x", "nan", "inf", "٣", "1m2", "9" * 30, "2026-11-22T00:00:00", "1960-01-01T00:00:00Z"],
)
def test_what_is_no_number_is_refused_by_the_name_of_its_option(kind: Parser, text: str) -> None:
    with pytest.raises(InvalidArgument, match=r'option "name" is .*accepted'):
        kind("name", text)


@pytest.mark.parametrize("names", [options.NAMES, sink_options.NAMES])
def test_an_option_is_known_in_any_case_and_no_other_is(names: tuple[str, ...]) -> None:
    for name in names:
        assert RawOptions({name.upper(): "1"}, names, "a test").text(name) == "1"
        with pytest.raises(InvalidArgument, match=f"unknown to a test .did you mean {name}"):
            RawOptions({f"{name}z": "1"}, names, "a test")


@pytest.mark.parametrize("names", [options.NAMES, sink_options.NAMES])
def test_the_manual_has_every_option(names: tuple[str, ...]) -> None:
    manual = Path(xaqueue.__file__).parents[1] / "man" / "xaqueue-spark.7"
    words = set(re.findall(r"\w+", manual.read_text("utf-8")))
    assert [name for name in names if name not in words] == []


@pytest.mark.parametrize("kind", [options.SourceOptions, sink_options.SinkOptions])
def test_a_row_of_the_table_says_what_it_is(kind: type) -> None:
    assert [field for field, row in table(kind).items() if not row.doc] == []


@pytest.mark.parametrize("name", ["location", "owner", "provider", "option.path", "option.queue"])
def test_create_table_is_told_of_the_view(name: str) -> None:
    for parse in (options.parse, lambda told: sink_options.parse(told, stream=False)):
        with pytest.raises(InvalidArgument, match="use CREATE TEMPORARY VIEW name USING xaqueue OPTIONS"):
            parse({"path": "/x", "queue": "q", name: "x"})


def test_who_wants_an_archive_is_told_whose_it_is() -> None:
    with pytest.raises(InvalidArgument, match=r'define QUEUE archive=parquet.* option "consume" archive'):
        options.parse({"path": "/x", "queue": "q", "archive": "parquet"})


def test_options_of_a_kafka_connection_are_passed_over_by_both() -> None:
    told = {
        "kafka.bootstrap.servers": "h:1",
        "kafka.group.id": "g",
        "groupIdPrefix": "p",
        "fetchOffset.numRetries": "3",
    }
    ignored = tuple(name.lower() for name in told)
    assert options.parse({"path": "/x", "subscribe": "q", **told}).ignored == ignored
    assert sink_options.parse({"path": "/x", "topic": "q", **told}, stream=True).ignored == ignored
