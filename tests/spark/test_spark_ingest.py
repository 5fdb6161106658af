"""What flows into a table is what Spark's own parser makes of the bodies, and Spark reads each table as its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.spark_space import FabricatedSpace

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from deltalake import DeltaTable
from pyspark.sql import functions as f

from xaqueue.lake.catalog import catalog_named
from xaqueue.lake.ingest import TableJob, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

CORRUPT = "_corrupt"
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
    return [row.asDict(recursive=True) for row in frame.orderBy("seq").collect()]


def parsed(spark: SparkSession, bodies: list[bytes], ddl: str) -> Any:
    """Of each body its fields, and whether they are of their types."""
    numbered = spark.createDataFrame([*enumerate(bodies, 1)], "seq LONG, body BINARY")
    wanted = f"{ddl}, {CORRUPT} STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return numbered.withColumn("of", f.from_json(f.col("body").cast("string"), wanted, options)).cache()


def unlike(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[Any]:
    """Number, field and the two values, where these are not the same."""
    one, other = ({(row["seq"], name): row[name] for row in rows for name in row} for rows in (found, wanted))
    return [(key, one.get(key), other.get(key)) for key in {*one, *other} if one.get(key) != other.get(key)]


def files_of(to: str, target: str, dead: str, catalog: str) -> list[str]:
    """The files that the table names; of plain ones the directory."""
    if to == "parquet":
        return [str(Path(target, dead))]
    if to == "delta":
        return DeltaTable(f"{target}/{dead}").file_uris()
    with catalog_named(catalog) as named:
        return list(named.load_table(target + dead).inspect.files()["file_path"].to_pylist())


def test_rows_are_what_sparks_own_parser_makes_of_the_bodies(spark: SparkSession, tmp_path: Path) -> None:
    """Of a TINYINT 128 Spark makes -128, and this a dead letter: that is not among them."""
    space = FabricatedSpace(tmp_path / "space")
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    bodies = [b'{"%s":%s}' % (name.encode(), value) for name, (_, values) in VALUES.items() for value in values]
    bodies += [b"{}", b'{"s":"x","i":1,"new":[2]}', b"[1]", b'{"s":"x"']
    for seq, body in enumerate(bodies, 1):
        space.put("flights", seq, body, headers={"k": "v"}, correlation_id=b"x")
    space.publish("flights", len(bodies))
    catalog = f"sqlite:///{tmp_path}/catalog.db,warehouse=file://{tmp_path}/warehouse"
    found = parsed(spark, bodies, ddl)
    fits = f.col("body").cast("string").startswith("{") & f.col(f"of.{CORRUPT}").isNull()
    rows = rows_of(found.where(fits).select("seq", *(f"of.{name}" for name in VALUES)))
    dead = rows_of(found.where(~fits).select("seq", "body"))
    assert len(rows) > 30
    for to, target in (("parquet", f"{tmp_path}/p"), ("delta", f"{tmp_path}/d"), ("iceberg", "shop.flights")):
        run(TableJob(str(space.root), "flights", target, to, catalog, ddl, once=True))
        for name, wanted in (("", rows), ("_dead_letters", dead)):
            read = spark.read.parquet(*files_of(to, target, name, catalog))
            assert unlike(rows_of(read.select(*wanted[0])), wanted) == [], (to, name)
            assert rows_of(read.select("seq", "headers", "queue"))[0]["headers"] == {"k": "v"}
