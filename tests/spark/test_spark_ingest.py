"""Queues flow into Parquet: rows, dead letters, schemas, restarts and refusals, with real Spark queries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from support.spark_space import FabricatedSpace, message_id
from xaqueue.cli.main import app
from xaqueue.errors import DamagedBlock, InvalidArgument, OperationalError, UnknownQueue
from xaqueue.features.streams.record import StreamRecord, stream_path
from xaqueue.features.streams.streams import encode_stream

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql.types import IntegerType, StructType

from xaqueue.lake.catalog import catalog_named
from xaqueue.lake.ingest import IngestProgress, TableJob
from xaqueue.lake.ingest import run as run_table
from xaqueue.lake.ingest_bodies import why_no_object
from xaqueue.spark import ingest_schema
from xaqueue.spark.ingest import IngestJob, lag_of, run, total, translation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

on_spark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

DAY_US = 86_400_000_000
DAY = 1_700_000_000_000_000 // DAY_US * DAY_US
"""2023-11-14, its first moment."""
SCHEMA = "carrier STRING, delay INT, day INT, legs ARRAY<STRUCT<to: STRING, miles: INT>>"
GOOD = {"carrier": "UA", "delay": -3, "day": 14, "legs": [{"to": "IAH", "miles": 1400}]}
BAD = {
    b"": "no JSON: Expecting value",
    b"\xff{}": "no UTF-8: invalid start byte at byte 0",
    b"[1]": "no JSON object",
    b'{"delay":1} and more': "no JSON: Extra data",
    b'{"delay":"late"}': "does not fit the schema",
    b'{"delay":3000000000}': "does not fit the schema",
    b'{"legs":[{"to":"IAH","miles":"far"}]}': "does not fit the schema",
    b'{"delay":1': "no JSON: Expecting",
    b"[" * 100_000: "no JSON: nested too deep",
}


VALUES: dict[str, tuple[str, list[bytes]]] = {
    "s": ("STRING", [b'"x"', b"5", b"true", b'{"a": [1, null]}', b'""', b"null"]),
    "i": ("INT", [b"2147483647", b"2147483648", b"-5", b"1.5", b"1.0", b'"5"', b"true", b"[]"]),
    "t": ("TINYINT", [b"127", b'"1"']),
    "l": ("BIGINT", [b"9223372036854775807", b"9223372036854775808"]),
    "d": ("DOUBLE", [b"1", b"1.5e300", b'"Infinity"', b'"1.5"', b"true"]),
    "f": ("FLOAT", [b"0.1", b"7"]),
    "b": ("BOOLEAN", [b"true", b"0", b'"true"']),
    "m": ("DECIMAL(6,2)", [b"12.5", b"7", b"-1234.56", b"12345.5", b"true"]),
    "at": ("TIMESTAMP", [b'"2026-11-29T10:00:00+02:00"', b'"2026-11-29T10:00:00.123456Z"', b'"2026-11-29 10:00:00"']),
    "on_day": ("DATE", [b'"2026-11-29"', b'"late"', b"true"]),
    "x": ("BINARY", [b'"aGk="', b"5"]),
    "some": ("ARRAY<INT>", [b"[1, null]", b"[]", b'["a"]', b"{}"]),
    "map": ("MAP<STRING, INT>", [b'{"k": 1, "n": null}', b"{}", b'{"k": "v"}', b"[]"]),
    "of": ("STRUCT<p: STRING, q: INT>", [b'{"p": "x"}', b'{"q": 1, "r": 2}', b'{"q": "one"}', b'"text"']),
}
"""Fields of the schema, with what a body may hold there. Of a TINYINT 128 Spark makes -128, and this a dead letter."""


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """As they are in any table: without the partitions that Spark's own has."""
    kept = [name for name in frame.columns if name not in ("batch", "day")]
    rows: list[dict[str, Any]] = [
        row.asDict(recursive=True) for row in frame.select(*sorted(kept)).orderBy("seq").collect()
    ]
    return rows


def unlike(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[Any]:
    """Number, field and the two values, where these are not the same."""
    one, other = ({(row["seq"], name): row[name] for row in rows for name in row} for rows in (found, wanted))
    return [(key, one.get(key), other.get(key)) for key in {*one, *other} if one.get(key) != other.get(key)]


def files_of(to: str, target: str, dead: str, catalog: str) -> list[str]:
    """The files that the table names."""
    if to == "parquet":
        return [str(path) for path in Path(target, dead).glob("*.parquet")]
    if to == "delta":
        return DeltaTable(f"{target}/{dead}").file_uris()
    with catalog_named(catalog) as named:
        return list(named.load_table(target + dead).inspect.files()["file_path"].to_pylist())


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    return FabricatedSpace(tmp_path / "space")


def job(space: FabricatedSpace, target: Path, **more: Any) -> IngestJob:
    given: dict[str, Any] = {
        "queue": "flights",
        "schema": SCHEMA,
        "once": True,
        "options": (("consume", "keep"),),
    } | more
    return IngestJob(str(space.root), target=target, **given)


def put(space: FabricatedSpace, queue: str, seq: int, body: bytes | dict[str, Any], day: int = 0, **more: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    space.put(queue, seq, content, enqueued_at=DAY + day * DAY_US + seq, **more)
    space.publish(queue, seq)


def table(path: Path) -> list[dict[str, Any]]:
    """As pandas, DuckDB and others read it."""
    rows: list[dict[str, Any]] = ds.dataset(path, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["queue"], row["seq"]))


def no_session() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


@pytest.mark.parametrize(("body", "reason"), BAD.items(), ids=lambda value: repr(value)[:20])
def test_what_is_no_json_object_is_told_without_spark(body: bytes, reason: str) -> None:
    found = why_no_object(body)
    assert found is None if reason == "does not fit the schema" else (found or "").startswith(reason)


def test_what_is_wrong_is_told_before_spark_starts(space: FabricatedSpace, tmp_path: Path) -> None:
    put(space, "flights", 1, GOOD)
    with pytest.raises(UnknownQueue, match="did you mean"):
        run(job(space, tmp_path / "out", queue="flight"), no_session)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidArgument, match="not empty"):
        run(job(space, tmp_path), no_session)
    with pytest.raises(InvalidArgument, match="consume"):
        run(job(space, tmp_path / "out", options=(("consume", "burn"),)), no_session)


def test_a_lag_is_a_difference_of_all_numbers() -> None:
    assert total({"stream": "s#1", "spaces": {"/a": {"x": 3, "y": 4}, "/b": {"x": 5}}}) == 12
    assert total({"seq": 7, "flag": True}) == 7


def test_a_sample_with_a_field_twice_says_what_to_give() -> None:
    twice = StructType().add("a", IntegerType()).add("A", IntegerType())
    with pytest.raises(InvalidArgument, match="more than one column A; give DDL"):
        ingest_schema.checked(twice, "of the sample")


def test_where_queues_began_is_no_lag() -> None:
    latest = json.dumps({"spaces": {"/a": {"x": 110}}})
    end = json.dumps({"stream": "s#1", "spaces": {"/a": {"x": 100}}, "first": {"/a": {"x": 50}}})
    assert lag_of({"sources": [{"latestOffset": latest, "endOffset": end}]}) == 10
    for none in ("null", None):
        assert lag_of({"sources": [{"latestOffset": none, "endOffset": end}]}) is None


def test_an_error_inside_spark_is_raised_as_what_it_is() -> None:
    damage = Exception("Traceback ...\nxaqueue.errors.DamagedBlock: /space/x: checksum does not match\n at java")
    told = translation(damage)
    assert (type(told), str(told)) == (DamagedBlock, "/space/x: checksum does not match")
    assert "run it again" in str(translation(Exception("An error occurred\n at java")))


@pytest.mark.usefixtures("spark")
class TestWithSpark:
    pytestmark = on_spark

    @pytest.fixture
    def ingest(self, spark: SparkSession) -> Callable[[IngestJob], IngestProgress]:
        return lambda asked: run(asked, lambda: spark)

    def test_rows_and_dead_letters(
        self, spark: SparkSession, ingest: Callable[[IngestJob], IngestProgress], space: FabricatedSpace, tmp_path: Path
    ) -> None:
        put(space, "flights", 1, GOOD, correlation_id=b"1", headers={"k": "v"})
        put(space, "flights", 2, {"carrier": "B6", "new": "field"}, day=1)
        for seq, body in enumerate(BAD, 3):
            put(space, "flights", seq, body, correlation_id=b"x", priority=7)
        put(space, "flights-late", 5, {"delay": 900}, day=1)
        target = tmp_path / "out"
        told = ingest(job(space, target, queue="flights*"))
        assert (told.rows, told.dead_letters, told.lag, told.stopped) == (3, len(BAD), 0, False)
        first, second, third = table(target)
        assert {name: first["body_day" if name == "day" else name] for name in GOOD} == GOOD
        assert (first["seq"], first["message_id"], first["queue"]) == (1, message_id(1).hex(), "flights")
        assert (first["day"], first["correlation_id"], first["headers"]) == ("2023-11-14", b"1", [("k", "v")])
        assert (second["carrier"], second["delay"], second["day"]) == ("B6", None, "2023-11-15")
        assert (third["queue"], third["delay"], third["space"]) == ("flights-late", 900, str(space.root))
        letters = table(target / "_dead_letters")
        assert [letter["body"] for letter in letters] == list(BAD)
        for letter in letters:
            assert letter["reason"].startswith(BAD[letter["body"]])
            assert (letter["correlation_id"], letter["priority"], letter["queue"]) == (b"x", 7, "flights")
        assert spark.read.parquet(str(target)).where("day = '2023-11-15'").count() == 2
        assert spark.read.parquet(str(target / "_dead_letters")).count() == len(BAD)

    def test_without_spark_rows_and_dead_letters_are_the_same(
        self, spark: SparkSession, ingest: Callable[[IngestJob], IngestProgress], space: FabricatedSpace, tmp_path: Path
    ) -> None:
        """Whatever a body holds; and Spark reads the files of each table as its own."""
        ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
        bodies = [b'{"%s":%s}' % (name.encode(), value) for name, (_, values) in VALUES.items() for value in values]
        for seq, body in enumerate([*bodies, *BAD, b"{}", b'{"s":"x","i":1,"new":[2]}'], 1):
            put(space, "flights", seq, body, headers={"k": "v"}, correlation_id=b"x")
        ingest(job(space, tmp_path / "out", schema=ddl))
        catalog = f"sqlite:///{tmp_path}/catalog.db,warehouse=file://{tmp_path}/warehouse"
        wanted = {name: rows_of(spark.read.parquet(str(tmp_path / "out" / name))) for name in ("", "_dead_letters")}
        assert len(wanted[""]) > 30
        for to, target in (("parquet", f"{tmp_path}/p"), ("delta", f"{tmp_path}/d"), ("iceberg", "shop.flights")):
            run_table(TableJob(str(space.root), "flights", target, to, catalog, ddl, once=True))
            for name, rows in wanted.items():
                paths = files_of(to, target, name, catalog)
                assert unlike(rows_of(spark.read.parquet(*paths)), rows) == [], (to, name)

    def test_a_restart_goes_on_and_repeats_nothing(
        self, ingest: Callable[[IngestJob], IngestProgress], space: FabricatedSpace, tmp_path: Path
    ) -> None:
        target, asked = tmp_path / "out", job(space, tmp_path / "out", most_per_trigger=2, keep_body=True)
        for seq in range(1, 6):
            put(space, "flights", seq, {"delay": seq})
        assert ingest(asked).batches == 3
        for name in ("2", ".2.crc"):  # as a kill would leave it: in place, and Spark does not know
            (target / "_checkpoint" / "commits" / name).unlink()
        put(space, "flights", 6, {"delay": 6, "gate": "C1"})
        put(space, "flights", 7, {"delay": 7, "gate": 7})
        told = ingest(job(space, target, schema=f"{SCHEMA}, gate STRING", keep_body=None))
        assert (told.repeated, told.rows) == (1, 2)
        rows = table(target)
        assert [(row["seq"], row["delay"]) for row in rows] == [(seq, seq) for seq in range(1, 8)]
        assert rows[-1]["body"] == b'{"delay": 7, "gate": 7}'
        self._refused(ingest, asked, space, target)

    def _refused(
        self, ingest: Callable[[IngestJob], IngestProgress], asked: IngestJob, space: FabricatedSpace, target: Path
    ) -> None:
        """A target that has something goes on with the same things only."""
        wrong: dict[str, dict[str, Any]] = {
            "columns may be added": {"schema": "delay STRING"},
            "columns may be added, and": {"schema": "delay INT"},
            "begun with QUEUE flights": {"queue": "flights*"},
            "begun with --keep-body True, not False": {"keep_body": False},
            "whose checkpoint is not in": {"checkpoint": target.parent / "elsewhere"},
        }
        for said, change in wrong.items():
            with pytest.raises(InvalidArgument, match=said):
                ingest(job(space, target, **({"keep_body": None} | change)))
        with pytest.raises(InvalidArgument, match="whose rows are not in"):
            ingest(job(space, target.parent / "new", checkpoint=target / "_checkpoint"))

    def test_a_schema_is_sampled_once(
        self, ingest: Callable[[IngestJob], IngestProgress], space: FabricatedSpace, tmp_path: Path
    ) -> None:
        target = tmp_path / "out"
        empty = job(space, target, schema=None)
        put(space, "flights", 1, b"no JSON")
        with pytest.raises(InvalidArgument, match="give --schema"):
            ingest(empty)
        put(space, "flights", 2, {"delay": 1, "carrier": "UA"})
        assert ingest(empty).rows == 1
        put(space, "flights", 3, {"delay": "much", "gate": 1})
        put(space, "flights", 4, {"delay": 2})
        told = ingest(empty)
        assert (told.rows, told.dead_letters) == (1, 1)
        assert [row["delay"] for row in table(target)] == [1, 2]
        assert "gate" not in table(target)[1]

    @pytest.mark.parametrize(
        "wrong", ["delay INTT", "", "INT", "a INT, A INT", "day INT, body_day INT", '{"type":"x"}']
    )
    def test_a_schema_that_is_none_is_refused(self, wrong: str) -> None:
        with pytest.raises(InvalidArgument, match=r"schema .* is refused"):
            ingest_schema.given(wrong)

    def test_a_schema_may_be_in_a_file(self, tmp_path: Path) -> None:
        ddl, written = tmp_path / "schema.ddl", tmp_path / "schema.json"
        ddl.write_text("delay INT,\n carrier STRING\n")
        written.write_text(ingest_schema.given(str(ddl)).json())
        assert ingest_schema.given(str(ddl)) == ingest_schema.given(str(written))
        assert ingest_schema.given(str(ddl)).names == ["delay", "carrier"]

    def test_it_ends_after_the_batch_at_work(self, spark: SparkSession, space: FabricatedSpace, tmp_path: Path) -> None:
        put(space, "flights", 1, GOOD)
        said: list[IngestProgress] = []

        def stopping() -> bool:
            return bool(said) and said[-1].batches > 0

        told = run(job(space, tmp_path / "out", once=False, every_s=0.1), lambda: spark, said.append, stopping)
        assert (told.stopped, told.rows) == (True, 1)
        assert len(table(tmp_path / "out")) == 1
        assert not list(tmp_path.glob(".out.staging"))

    def test_a_damaged_message_ends_it_and_nothing_is_lost(
        self, ingest: Callable[[IngestJob], IngestProgress], space: FabricatedSpace, tmp_path: Path
    ) -> None:
        for seq in (1, 2, 3):
            put(space, "flights", seq, GOOD)
        damaged = space.path("flights", 3)
        sound = damaged.read_bytes()
        damaged.write_bytes(sound[:-1])
        asked = job(space, tmp_path / "out", most_per_trigger=2)
        with pytest.raises(DamagedBlock, match=str(damaged)):
            ingest(asked)
        assert [row["seq"] for row in table(tmp_path / "out")] == [1, 2]
        damaged.write_bytes(sound)
        assert ingest(asked).rows == 1
        assert [row["seq"] for row in table(tmp_path / "out")] == [1, 2, 3]

    def test_the_verb(self, space: FabricatedSpace, tmp_path: Path) -> None:
        put(space, "flights", 1, GOOD)
        put(space, "flights", 2, b"?")
        words = ["ingest", "flights", str(tmp_path / "out"), "--space", str(space.root), "--once", "--consume", "keep"]
        done = CliRunner().invoke(app, [*words, "--schema", SCHEMA])
        assert done.exit_code == 0, done.output
        assert "rows          1\n" in done.output
        assert "dead letters  1 in " in done.output
        told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout.splitlines()[-1])
        assert (told["rows"], told["batches"], told["lag"]) == (0, 0, 0)
        failed = CliRunner().invoke(app, [*words, "--schema", "nonsense"])
        assert failed.exit_code == 2
        assert "schema 'nonsense' is refused" in failed.output

    def test_after_a_power_loss_it_goes_on_with_what_there_is_where_that_is_asked_for(
        self, space: FabricatedSpace, tmp_path: Path
    ) -> None:
        """Spark has forgotten that batch 0 is done, whose messages are consumed."""
        target = tmp_path / "out"
        for seq in (1, 2):
            put(space, "flights", seq, GOOD)
        words = ["ingest", "flights", str(target), "--space", str(space.root), "--once", "--consume", "keep", "--json"]
        assert CliRunner().invoke(app, [*words, "--schema", SCHEMA]).exit_code == 0
        for name in ("0", ".0.crc"):
            (target / "_checkpoint" / "commits" / name).unlink()
        record = encode_stream(StreamRecord("flights", "this#1", consumed=2), 1)
        (space.root / stream_path("flights")).write_bytes(b"".join(record))
        put(space, "flights", 3, GOOD)
        failed = CliRunner().invoke(app, words)
        assert failed.exit_code != 0
        assert "is consumed to 2 by stream this#1" in failed.output
        assert "go on with what there is with --no-fail-on-data-loss" in " ".join(failed.output.split())
        done = CliRunner().invoke(app, [*words, "--no-fail-on-data-loss"])
        told = json.loads(done.stdout.splitlines()[-1])
        assert (told["rows"], told["repeated"]) == (1, 1)
        assert [row["seq"] for row in table(target)] == [1, 2, 3]

    def test_verify(self, spark: SparkSession, space: FabricatedSpace, tmp_path: Path) -> None:
        from xaqueue.offline.verify import verify as by_processes
        from xaqueue.spark.verify import verify

        other = FabricatedSpace(tmp_path / "other")
        space.fill("orders", [*range(1, 31), *range(4_090, 4_100)])
        other.fill("orders", range(25, 28))
        torn = space.path("orders", 4_097)
        torn.write_bytes(torn.read_bytes()[:-1])
        spaces = [str(space.root), str(other.root)]
        report = tmp_path / "found.parquet"
        verdict = verify(spark, spaces, report)
        expected, findings = by_processes(spaces, 1)
        assert (verdict.messages, verdict.counts, verdict.wrong) == (42, expected.counts, 4)
        rows = {(found.space, found.severity.value, found.path, found.problem) for found in findings}
        assert {tuple(row) for row in spark.read.parquet(str(report)).collect()} == rows
        assert [one.severity for one in verdict.first[:4]] == ["damage", *["duplicate"] * 3]
        with pytest.raises(InvalidArgument, match="is there already"):
            verify(spark, spaces, report)


def test_without_java_the_verb_says_what_to_install(
    space: FabricatedSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(space, "flights", 1, GOOD)

    def none() -> Path:
        raise OperationalError('Spark needs Java 17 or later and none was found: pip install "xaqueue[java]"')

    monkeypatch.setattr("xaqueue.spark.java_home", none)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    words = ["ingest", "flights", str(tmp_path / "out"), "--space", str(space.root), "--once", "--consume", "keep"]
    done = CliRunner().invoke(app, words, env=dict(os.environ))
    assert done.exit_code == 4
    assert "xaqueue[java]" in done.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_lock"]
