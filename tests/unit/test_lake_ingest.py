"""A queue into a table without Spark: rows, dead letters, schemas, restarts, others at the same table, refusals."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.iceberg_rest import rest_catalog
from support.patience import PATIENCE_S, eventually
from support.served import ServerThread, serving
from support.spark_space import FabricatedSpace, keep
from xaqueue.cli.main import app
from xaqueue.core.owner import threads
from xaqueue.errors import DamagedBlock, InvalidArgument, OperationalError, QueueReserved, SpaceError, UnknownQueue
from xaqueue.features.opening import create

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("deltalake", reason="deltalake is not installed")

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.types import LongType

from xaqueue.lake import iceberg, ingest_bodies
from xaqueue.lake.catalog import catalog_named
from xaqueue.lake.ingest import IngestProgress, TableJob, run
from xaqueue.lake.ingest_tables import DeltaLake, IcebergTable
from xaqueue.offline import redo_view

FORMATS = ("parquet", "delta", "iceberg")
SCHEMA = "carrier STRING, delay INT, day INT, legs ARRAY<STRUCT<to: STRING, miles: INT>>"
GOOD = {"carrier": "UA", "delay": -3, "day": 14, "legs": [{"to": "IAH", "miles": 1400}]}
BAD = {
    b"": "no JSON: Expecting value",
    b"\xff{}": "no UTF-8: invalid start byte at byte 0",
    b"[1]": "no JSON object",
    b'{"delay":1} and more': "no JSON: Extra data",
    b'{"delay":"late"}': "does not fit the schema",
    b'{"delay":3000000000}': "does not fit the schema",
    b'{"delay":true}': "does not fit the schema",
    b'{"legs":[{"to":"IAH","miles":"far"}]}': "does not fit the schema",
    b'{"legs":{}}': "does not fit the schema",
    b'{"carrier":"\\ud800"}': "does not fit the schema",
    b"[" * 100_000: "no JSON: nested too deep",
}


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    return FabricatedSpace(tmp_path / "space")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where tables are."""
    place = tmp_path / "lake"
    place.mkdir()
    return place


def at(lake: Path) -> str:
    return f"sqlite:///{lake}/catalog.db,warehouse=file://{lake}/warehouse"


@pytest.fixture
def catalog(lake: Path) -> Iterator[Catalog]:
    with catalog_named(at(lake)) as found:
        yield found


def put(space: FabricatedSpace, *bodies: bytes | dict[str, Any], after: int = 0, **more: Any) -> None:
    for seq, body in enumerate(bodies, after + 1):
        space.put("flights", seq, body if isinstance(body, bytes) else json.dumps(body).encode(), **more)
    space.publish("flights", after + len(bodies))


def target(lake: Path, to: str, name: str = "flights") -> str:
    return f"shop.{name}" if to == "iceberg" else str(lake / f"{to}-{name}")


def job(space: object, lake: Path, to: str, name: str = "flights", **more: Any) -> TableJob:
    given: dict[str, Any] = {"schema": SCHEMA, "once": True, "catalog": at(lake)} | more
    where = space.root if isinstance(space, FabricatedSpace) else space
    return TableJob(str(where), "flights", target(lake, to, name), to, **given)


def read(lake: Path, to: str, name: str = "flights", dead: bool = False) -> list[dict[str, Any]]:
    """As the format's own reader has them; DuckDB and Polars have as many."""
    place = target(lake, to, name)
    place += ("_dead_letters" if to == "iceberg" else "/_dead_letters") if dead else ""
    if to == "parquet":
        with duckdb.connect() as duck:
            found = duck.sql(f"from read_parquet('{place}/*.parquet', union_by_name=true)").to_arrow_table()
        lazy = polars.scan_parquet(f"{place}/*.parquet", missing_columns="insert", extra_columns="ignore")
        assert lazy.collect().height == found.num_rows
        assert dead or ds.dataset(place, format="parquet").count_rows() == found.num_rows
    elif to == "delta":
        found = pa.table(DeltaTable(place).to_pyarrow_dataset().to_table())
        assert polars.scan_delta(place).collect().height == found.num_rows
    else:
        with catalog_named(at(lake)) as catalog:
            found = catalog.load_table(place).scan().to_arrow()
    rows: list[dict[str, Any]] = sorted(found.to_pylist(), key=lambda row: row["seq"])
    return rows


def once() -> Callable[[], bool]:
    """It stops behind its first batch."""
    return chain([False], repeat(True)).__next__


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["seq"] for row in rows]


def test_once_has_what_was_committed_before(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the files come behind the journal; one that goes on has it with a later look, whoever has the space."""
    monkeypatch.setattr(threads, "LAG_S", 0.3)
    monkeypatch.setitem(redo_view.FOLLOW_S, False, 0.05)
    root, left = tmp_path / "space", tmp_path / "left"
    create(root)
    (root / "queues.toml").write_text("[queues.flights]\n")
    with xaqueue.connect(root) as connection:
        connection.enqueue("flights", json.dumps(GOOD).encode())
        connection.commit()
        shutil.copytree(root, left)
        assert run(job(root, lake, "parquet")).rows == 1
    with pytest.raises(SpaceError, match="open it once"):
        run(job(left, lake, "parquet", "left"))
    assert run(job(left, lake, "parquet", "left", once=False), stopping=lambda: True).rows == 0


def test_what_cannot_be_read_holds_up_no_other(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A space that was killed, and nobody has opened since; a queue that lags; one that is damaged."""
    monkeypatch.setattr(threads, "LAG_S", 2 * PATIENCE_S)
    monkeypatch.setitem(redo_view.FOLLOW_S, False, 0.05)
    body, good, lags, killed = json.dumps(GOOD).encode(), *(tmp_path / name for name in ("good", "lags", "killed"))
    for root in (good, lags, killed):
        create(root)
        (root / "queues.toml").write_text("[default]\n")
        with xaqueue.connect(root) as connection:
            connection.enqueue("flights", body)
    for root, queue in ((lags, "late"), (killed, "flights")):
        with xaqueue.connect(root) as connection:
            connection.enqueue(queue, body)
            connection.commit()
            shutil.copytree(root, tmp_path / "left", dirs_exist_ok=False)
        shutil.rmtree(root)
        (tmp_path / "left").rename(root)
    owner = json.loads((killed / "owner").read_text())
    (killed / "owner").write_text(json.dumps({**owner, "boot": "another"}))
    assert [lake_scan(lags, "flights"), lake_scan(good, "flights")] == [1, 1], "of another queue than the one that lags"
    asked = replace(job(good, lake, "parquet"), space=f"{killed},{lags},{good}", queue="*")
    said = rf"^{killed}/?.*open.*; queue late of {lags} has messages in the journal alone"
    for rows, queue in ((2, "*"), (2, "late,flights")):
        with pytest.raises(SpaceError, match=said):
            run(replace(asked, queue=queue))
        assert len(read(lake, "parquet")) == rows
    with pytest.raises(SpaceError, match=str(killed)):
        run(replace(asked, once=False, every_s=0))
    for root in (lags, killed):
        xaqueue.connect(root).close()
    (file,) = (lags / "committed" / "queue=flights").rglob("0*.*")
    again = replace(asked, target=target(lake, "parquet", "again"))
    file.write_bytes(b"damaged")
    with pytest.raises(SpaceError, match=rf"^{lags}.*{file.name}"):
        run(again)
    assert len(read(lake, "parquet", "again")) == 4


def lake_scan(root: Path, queue: str) -> int:
    return sum(batch.num_rows for batch in xaqueue.lake.scan(root, queue))


def test_a_delta_table_that_was_not_made_to_its_end_is_made(space: FabricatedSpace, lake: Path) -> None:
    """By one that was killed."""
    (lake / "delta-flights/_delta_log").mkdir(parents=True)
    (lake / "delta-flights/_delta_log/_commit_1.json.tmp").write_text("{")
    put(space, GOOD)
    run(job(space, lake, "delta"))
    assert numbers(read(lake, "delta")) == [1]


@pytest.mark.parametrize("to", FORMATS)
class TestEachFormat:
    def test_rows_and_dead_letters(self, space: FabricatedSpace, lake: Path, to: str) -> None:
        put(space, GOOD, {"carrier": "B6", "new": "field"}, correlation_id=b"1", headers={"k": "v"})
        put(space, *BAD, after=2, priority=7)
        done = run(job(space, lake, to))
        assert (done.rows, done.dead_letters, done.batches, done.lag) == (2, len(BAD), 1, 0)
        first, second = read(lake, to)
        assert {name: first[name] for name in GOOD} == GOOD
        assert (first["message_id"], first["correlation_id"], dict(first["headers"])) == (f"{1:032x}", b"1", {"k": "v"})
        assert (second["carrier"], second["delay"], second["queue"]) == ("B6", None, "flights")
        letters = read(lake, to, dead=True)
        assert [letter["body"] for letter in letters] == list(BAD)
        assert [letter["priority"] for letter in letters] == [7] * len(BAD)
        for letter, reason in zip(letters, BAD.values(), strict=True):
            assert letter["reason"].startswith(reason)

    def test_it_goes_on_where_the_table_is(self, space: FabricatedSpace, lake: Path, to: str) -> None:
        put(space, *[{"n": n} for n in range(25)])
        steps: list[str] = []
        assert run(job(space, lake, to, schema=None, most_messages=10), step=steps.append).batches == 3
        assert len([step for step in steps if step.startswith("committed")]) == 3
        put(space, *[{"n": n} for n in range(25, 30)], after=25)
        again = run(job(space, lake, to, schema=None))
        assert (again.rows, again.repeated) == (5, 0)
        rows = read(lake, to)
        assert (numbers(rows), [row["n"] for row in rows]) == (list(range(1, 31)), list(range(30)))
        assert run(job(space, lake, to, schema=None)).batches == 0

    def test_it_runs_until_it_is_stopped(self, space: FabricatedSpace, lake: Path, to: str) -> None:
        put(space, {"delay": 1})
        seen: list[int] = []

        def more(progress: IngestProgress) -> None:
            seen.append(progress.rows)
            put(space, {"delay": 1}, after=len(seen))

        done = run(job(space, lake, to, once=False, every_s=0.01), more, lambda: len(seen) == 3)
        assert (done.rows, done.stopped, seen, numbers(read(lake, to))) == (3, True, [1, 2, 3], [1, 2, 3])

    def test_a_schema_may_grow_and_not_change(self, space: FabricatedSpace, lake: Path, to: str) -> None:
        put(space, {"n": 1, "m": 5})
        run(job(space, lake, to, schema="n INT"))
        put(space, {"n": 2, "m": 6}, after=1)
        run(job(space, lake, to, schema="n INT, m BIGINT", keep_body=True))
        assert [(row["n"], row["m"]) for row in read(lake, to)] == [(1, None), (2, 6)]
        put(space, {"n": 3, "m": 7}, after=2)
        run(job(space, lake, to, schema=None))
        run(job(space, lake, to, schema="n INT, m BIGINT"))
        rows = read(lake, to)
        assert [(row["n"], row["m"]) for row in rows] == [(1, None), (2, 6), (3, 7)]
        assert rows[2]["body"] == b'{"n": 3, "m": 7}'
        with pytest.raises(InvalidArgument, match=r"has column n as int32, not as string: columns may be added"):
            run(job(space, lake, to, schema="n STRING"))

    def test_it_ends_behind_each_step(self, space: FabricatedSpace, lake: Path, to: str) -> None:
        for last in count(1):
            steps = iter(range(1, last))
            put(space, {"delay": 1}, b"dead", {"delay": 2}, after=3 * (last - 1))
            try:
                run(job(space, lake, to), step=lambda _, steps=steps: next(steps))  # type: ignore[misc]
            except StopIteration:
                continue
            break
        assert last == 4
        rows, dead = numbers(read(lake, to)), numbers(read(lake, to, dead=True))
        assert rows == [seq for seq in range(1, 3 * last + 1) if seq % 3 != 2]
        assert dead == list(range(2, 3 * last, 3))

    @pytest.mark.parametrize("most", [1, 100])
    def test_a_run_that_ended_between_the_two_tables(
        self, space: FabricatedSpace, lake: Path, to: str, most: int
    ) -> None:
        """By the schema of the next one a row is a dead letter, too."""

        class Killed(BaseException):
            pass

        def die(step: str) -> None:
            if step.endswith("_dead_letters"):
                raise Killed

        put(space, {"delay": 1, "more": "x"}, b"dead", {"delay": 2}, {"delay": 3, "more": "y"}, b"dead")
        with pytest.raises(Killed):
            run(job(space, lake, to), step=die)
        assert numbers(read(lake, to, dead=True)) == [2, 5]
        put(space, b"dead as well", {"delay": 3}, after=5)
        for _ in range(10):
            with suppress(Killed):
                run(job(space, lake, to, schema=f"{SCHEMA}, more INT", most_messages=most), step=die)
        assert numbers(read(lake, to)) == [3, 7]
        assert numbers(read(lake, to, dead=True)) == [1, 2, 4, 5, 6]

    def test_an_older_copy_of_the_space_and_what_others_consumed(
        self, space: FabricatedSpace, lake: Path, to: str
    ) -> None:
        put(space, {"delay": 1}, {"delay": 2})
        run(job(space, lake, to))
        space.publish("flights", 1)
        with pytest.raises(SpaceError, match=r"up to message 2, and .* has published 1: this is an older copy"):
            run(job(space, lake, to))
        put(space, {"delay": 1}, {"delay": 2}, {"delay": 3}, after=2)
        keep(space.root, "flights", "other#1", consumed=4)
        with pytest.raises(OperationalError, match=r"consumed to 4 by stream other#1.* has it to 2"):
            run(job(space, lake, to))
        assert run(job(space, lake, to, fails_on_loss=False)).rows == 1
        assert numbers(read(lake, to)) == [1, 2, 5]

    def test_an_older_copy_comes_while_it_runs(self, space: FabricatedSpace, lake: Path, to: str) -> None:
        put(space, {"delay": 1}, {"delay": 2})

        def older(step: str) -> None:
            if step.startswith("committed"):
                space.publish("flights", 1)

        with pytest.raises(SpaceError, match="this is an older copy"):
            run(job(space, lake, to, once=False, every_s=0), step=older)

    @pytest.mark.parametrize("how", ["put back", "made anew"])
    def test_a_table_is_another_while_it_runs(self, space: FabricatedSpace, lake: Path, to: str, how: str) -> None:
        """What it has passed is not in that; the next run brings it."""
        put(space, *[{"delay": n} for n in range(6)])
        committed = list[str]()

        def change(step: str) -> None:
            committed.extend([step] if step.startswith("committed") else [])
            if len(committed) == 2 and step == committed[-1]:
                committed.append("")
                (put_back if how == "put back" else drop)(lake, to)
                if how == "made anew" and to != "parquet":
                    run(job(space, lake, to, most_messages=1), stopping=once())

        with pytest.raises(OperationalError, match="was put back, or made anew, meanwhile"):
            run(job(space, lake, to, most_messages=2), step=change)
        run(job(space, lake, to))
        assert numbers(read(lake, to)) == [1, 2, 3, 4, 5, 6]


def put_back(lake: Path, to: str) -> None:
    """The table has what its first batch brought."""
    if to == "parquet":
        max(Path(target(lake, to)).glob("*.parquet")).unlink()
    elif to == "delta":
        DeltaTable(target(lake, to)).restore(1)
    else:
        with catalog_named(at(lake)) as catalog:
            table = catalog.load_table(target(lake, to))
            table.manage_snapshots().set_current_snapshot(table.history()[0].snapshot_id).commit()


def drop(lake: Path, to: str) -> None:
    if to != "iceberg":
        shutil.rmtree(target(lake, to))
        Path(target(lake, to)).mkdir()
    else:
        with catalog_named(at(lake)) as catalog:
            catalog.drop_table(target(lake, to))


@pytest.mark.parametrize("to", FORMATS)
def test_a_table_that_was_put_back_gets_its_rows_again(space: FabricatedSpace, lake: Path, to: str) -> None:
    put(space, *[{"delay": n} for n in range(6)])
    run(job(space, lake, to, most_messages=4))
    for _ in range(2):  # the second time behind what the first has brought again
        put_back(lake, to)
        assert numbers(read(lake, to)) == [1, 2, 3, 4]
        run(job(space, lake, to))
        assert numbers(read(lake, to)) == [1, 2, 3, 4, 5, 6]
        assert run(job(space, lake, to)).rows == 0


def restore(place: Path, version: int) -> None:
    """As whoever writes no metadata with it: a commit may be put behind it then."""
    log = place / "_delta_log"
    now, then = ({Path(path).name for path in DeltaTable(place, one).file_uris()} for one in (None, version))
    said = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 1, "operation": "RESTORE", "operationParameters": {"version": str(version)}}},
        *({"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}} for path in now - then),
        *(one for one in said if one.get("add", {}).get("path") in then - now),
    ]
    (log / f"{DeltaTable(place).version() + 1:020}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("to_version", [1, 3])
def test_a_delta_table_is_put_back_between_look_and_commit(space: FabricatedSpace, lake: Path, to_version: int) -> None:
    """To what it was before, rows would be missing for ever; to what it was later, they would be there twice."""
    put(space, *[{"delay": n} for n in range(6)])
    run(job(space, lake, "delta", most_messages=2))
    restore(lake / "delta-flights", 2)
    original, calls = DeltaLake.commit, count()

    def late(table: Any, *what: Any) -> bool:
        if not next(calls):
            restore(lake / "delta-flights", to_version)
        return original(table, *what)

    with pytest.MonkeyPatch.context() as patched, suppress(OperationalError):
        patched.setattr(DeltaLake, "commit", late)
        run(job(space, lake, "delta"))
    run(job(space, lake, "delta"))
    assert next(calls)
    assert numbers(read(lake, "delta")) == [1, 2, 3, 4, 5, 6]


def test_a_delta_table_that_was_put_back_to_before_its_first_row(space: FabricatedSpace, lake: Path) -> None:
    put(space, {"delay": 1})
    run(job(space, lake, "delta"))
    DeltaTable(target(lake, "delta")).restore(0)
    run(job(space, lake, "delta"))
    assert numbers(read(lake, "delta")) == [1]


def test_a_delta_table_whose_log_has_not_what_was_put_back(space: FabricatedSpace, lake: Path) -> None:
    put(space, *[{"delay": n} for n in range(6)])
    run(job(space, lake, "delta", most_messages=4))
    put_back(lake, "delta")
    table = DeltaTable(target(lake, "delta"))
    table.create_checkpoint()
    for name in ("0", "1"):
        (Path(target(lake, "delta")) / f"_delta_log/{name:0>20}.json").unlink()
    with pytest.raises(OperationalError, match="its log does not tell"):
        run(job(space, lake, "delta"))


def test_a_column_that_is_never_null(space: FabricatedSpace, lake: Path, catalog: Catalog) -> None:
    """A body that has no such field does not fit."""
    catalog.create_namespace("shop")
    schema = pa.schema([("seq", pa.int64()), pa.field("delay", pa.int32(), nullable=False)])
    catalog.create_table("shop.flights", schema=schema)
    put(space, {"delay": 1}, {}, {"delay": None})
    done = run(job(space, lake, "iceberg", schema=None))
    assert (done.rows, done.dead_letters) == (1, 2)


def test_fields_with_names_of_columns_and_numbers_out_of_all_range(space: FabricatedSpace, lake: Path) -> None:
    put(space, b'{"body_seq":5,"seq":6,"price":1.5}', b'{"price":1e-99999999999999999999}')
    done = run(job(space, lake, "parquet", schema="body_seq INT, seq INT, price DECIMAL(6,2)"))
    assert (done.rows, done.dead_letters) == (1, 1)
    (row,) = read(lake, "parquet")
    assert (row["seq"], row["body_seq"], row["body_body_seq"]) == (1, 6, 5)


@pytest.mark.parametrize("to", ["delta", "iceberg"])
def test_whoever_is_quicker_the_rows_are_there_once(space: FabricatedSpace, lake: Path, to: str) -> None:
    """Another ingest commits behind this one's look at the table, and before its commit; so does a stranger."""
    put(space, *[{"delay": n} for n in range(20)])
    run(job(space, lake, to, most_messages=5), stopping=once())
    assert numbers(read(lake, to)) == [1, 2, 3, 4, 5]

    kind: Any = DeltaLake if to == "delta" else IcebergTable
    original, others = kind.commit, list[int]()

    def late(table: Any, *what: Any) -> bool:
        if not others:
            others.append(1)
            assert run(job(space, lake, to, most_messages=8), stopping=once()).rows == 8
        return bool(original(table, *what))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "commit", late)
        done = run(job(space, lake, to))
    assert (done.rows, numbers(read(lake, to))) == (7, list(range(1, 21)))


def many(space: FabricatedSpace, tmp_path: Path) -> tuple[str, list[tuple[str, str, int]]]:
    """Two spaces with three queues, of which each has five messages, and a fourth; a pattern for both, and what they
    have."""
    other = FabricatedSpace(tmp_path / "space-2", number=2)
    wanted = []
    for place in (space, other):
        for queue in ("orders-a", "orders-b", "refunds", "else"):
            for seq in range(1, 6):
                place.put(queue, seq, b"dead" if seq == 3 else b'{"delay":%d}' % seq)
                wanted += [(str(place.root), queue, seq)] if queue != "else" else []
            place.publish(queue, 5)
    return f"{tmp_path}/space*", sorted(wanted)


def whose(rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return sorted((row["space"], row["queue"], row["seq"]) for row in rows)


@pytest.mark.parametrize("to", FORMATS)
class TestSeveral:
    def test_queues_and_spaces_flow_into_one_table(
        self, space: FabricatedSpace, lake: Path, tmp_path: Path, to: str
    ) -> None:
        """A batch at a time of no more messages than it may have; what comes meanwhile joins, a new queue, too."""
        spaces, wanted = many(space, tmp_path)
        asked = replace(job(space, lake, to, most_messages=7), space=spaces, queue="orders-*, refunds", once=False)
        seen: list[int] = []

        def more(progress: IngestProgress) -> None:
            seen.append(progress.messages)
            if len(seen) == 5:
                space.put("orders-c", 1, b'{"delay":9}')
                space.publish("orders-c", 1)

        done = run(replace(asked, every_s=0.01), more, lambda: bool(seen) and seen[-1] > len(wanted))
        assert (done.rows, done.dead_letters, done.lag, seen[0]) == (25, 6, 0, 7)
        rows, dead = whose(read(lake, to)), whose(read(lake, to, dead=True))
        assert sorted([*rows, *dead]) == sorted([*wanted, (str(space.root), "orders-c", 1)])
        assert {seq for _, _, seq in dead} == {3}
        assert run(replace(asked, once=True)).batches == 0

    def test_a_message_is_in_two_queues(self, space: FabricatedSpace, lake: Path, to: str) -> None:
        """As one that was moved: what is a dead letter of one of them is none of the other by that."""
        for queue, bodies in {
            "orders": [b'{"delay":1}', b'{"delay":2}', b"dead"],
            "refunds": [b"dead", b'{"delay":2}', b'{"delay":3,"more":"x"}'],
        }.items():
            for seq, body in enumerate(bodies, 1):
                space.put(queue, seq, body)
            space.publish(queue, 3)
        asked = replace(job(space, lake, to), queue="*s")
        with pytest.raises(ZeroDivisionError):
            run(asked, step=lambda step: 1 // (not step.endswith("_dead_letters")))  # type: ignore[arg-type]
        run(replace(asked, schema=f"{SCHEMA}, more INT"))
        dead = [(row["queue"], row["seq"]) for row in read(lake, to, dead=True)]
        assert sorted(dead) == [("orders", 3), ("refunds", 1), ("refunds", 3)]
        assert numbers(read(lake, to)) == [1, 2, 2]


@pytest.mark.parametrize("to", FORMATS)
def test_a_copy_with_the_same_messages_has_dead_letters_of_its_own(
    space: FabricatedSpace, lake: Path, tmp_path: Path, to: str
) -> None:
    """Of a run that was killed, and under another schema."""
    copy = FabricatedSpace(tmp_path / "space-2", number=2)
    for place in (space, copy):
        put(place, {"delay": 1}, b"dead", {"delay": 3, "more": "x"})
    with pytest.raises(ZeroDivisionError):
        run(job(copy, lake, to), step=lambda step: 1 // (not step.endswith("_dead_letters")))  # type: ignore[arg-type]
    grown = f"{SCHEMA}, more INT"
    run(job(space, lake, to, schema=grown))
    run(job(copy, lake, to, schema=grown))
    for place in (space, copy):
        dead = [row["seq"] for row in read(lake, to, dead=True) if row["space"] == str(place.root)]
        rows = [row["seq"] for row in read(lake, to) if row["space"] == str(place.root)]
        assert (rows, dead) == ([1], [2, 3])


@pytest.mark.parametrize("to", ["delta", "iceberg"])
@pytest.mark.parametrize("dead", [False, True])
def test_two_first_ingests_at_once(
    space: FabricatedSpace, lake: Path, monkeypatch: pytest.MonkeyPatch, to: str, dead: bool
) -> None:
    """The second does all of it behind the look by which the first makes a table."""
    put(space, {"delay": 1}, b"dead", {"delay": 3})
    table, others = DeltaLake if to == "delta" else IcebergTable, [job(space, lake, to)]
    plain = table.create

    def create_late(self: Any, schema: pa.Schema) -> None:
        if others and self.name.endswith("_dead_letters") == dead:
            run(others.pop())
        plain(self, schema)

    monkeypatch.setattr(table, "create", create_late)
    run(job(space, lake, to))
    assert not others
    assert (numbers(read(lake, to)), numbers(read(lake, to, dead=True))) == ([1, 3], [2])


def test_of_several_what_is_wrong_is_said(space: FabricatedSpace, lake: Path, tmp_path: Path) -> None:
    spaces, _ = many(space, tmp_path)
    asked = replace(job(space, lake, "parquet"), space=spaces, queue="refunds")
    shutil.copytree(tmp_path / "space-2", tmp_path / "space-3")
    with pytest.raises(InvalidArgument, match=r"space-2 and .*space-3 are one space, or its copy"):
        run(asked)
    shutil.rmtree(tmp_path / "space-3")
    with pytest.raises(InvalidArgument, match="--server is one URL and there are several"):
        run(replace(asked, consume="delete", server="xaq://localhost:1"))
    with pytest.raises(SpaceError, match="names no queue space"):
        run(replace(asked, space=f"{tmp_path}/none*"))
    run(asked)
    columns = lake / "parquet-flights" / "0-columns.parquet"
    columns.write_bytes(b"PAR")
    with pytest.raises(OperationalError, match=r"0-columns.parquet is damaged \(.*\): remove it, rows stay"):
        run(asked)
    columns.unlink()
    assert run(asked).messages == 0
    assert len(read(lake, "parquet")) == 8


def test_a_space_becomes_another_one_while_it_runs(space: FabricatedSpace, lake: Path, tmp_path: Path) -> None:
    spaces, _ = many(space, tmp_path)

    def change(step: str) -> None:
        if step.startswith("committed") and not step.endswith("_dead_letters"):
            shutil.rmtree(tmp_path / "space-2")
            FabricatedSpace(tmp_path / "space-2", number=3)

    with pytest.raises(SpaceError, match="space-2 became another space meanwhile"):
        run(replace(job(space, lake, "parquet", once=False, every_s=0), space=spaces, queue="*"), step=change)


def test_what_was_dead_fits_a_column_that_a_person_has_widened(
    space: FabricatedSpace, lake: Path, catalog: Catalog
) -> None:
    """Between the two tables: it stays what it is there."""
    put(space, {"delay": 1}, {"delay": 3_000_000_000})
    with pytest.raises(ZeroDivisionError):
        run(job(space, lake, "iceberg"), step=lambda step: 1 // (not step.endswith("_dead_letters")))  # type: ignore[arg-type]
    with catalog.load_table("shop.flights").update_schema() as columns:
        columns.update_column("delay", LongType())
    run(job(space, lake, "iceberg", schema=None))
    assert numbers(read(lake, "iceberg")) == [1]
    assert numbers(read(lake, "iceberg", dead=True)) == [2]


def test_a_delta_table_is_compacted(space: FabricatedSpace, lake: Path) -> None:
    put(space, {"delay": 1}, {"delay": 2})
    run(job(space, lake, "delta", most_messages=1))
    table = DeltaTable(target(lake, "delta"))
    table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    put(space, {"delay": 3}, after=2)
    assert run(job(space, lake, "delta")).rows == 1
    assert numbers(read(lake, "delta")) == [1, 2, 3]


def test_a_table_of_ones_own(space: FabricatedSpace, lake: Path, catalog: Catalog) -> None:
    """Its columns are filled, whichever it has, and its partitions are its own."""
    put(space, GOOD, {"carrier": "B6", "delay": 3})
    columns = [("delay", pa.int64()), ("carrier", pa.string()), ("message_id", pa.binary()), ("seq", pa.int64())]
    catalog.create_namespace("shop")
    made = catalog.create_table("shop.flights", pa.schema(columns))
    with made.update_spec() as spec:
        spec.add_identity("carrier")
    DeltaTable.create(target(lake, "delta"), pa.schema(columns), partition_by=["carrier"])
    for to in ("delta", "iceberg"):
        run(job(space, lake, to, schema=None))
        assert read(lake, to) == [
            {"delay": -3, "carrier": "UA", "message_id": (1).to_bytes(16, "big"), "seq": 1},
            {"delay": 3, "carrier": "B6", "message_id": (2).to_bytes(16, "big"), "seq": 2},
        ]
    assert sorted(path.name for path in Path(target(lake, "delta")).glob("carrier=*")) == ["carrier=B6", "carrier=UA"]


def test_icebergs_files_are_synced_before_they_are_named(space: FabricatedSpace, lake: Path) -> None:
    put(space, {"delay": 1})
    synced: set[str] = set()

    class Noted(iceberg.SyncedStream):
        def __init__(self, path: Path, *more: Any) -> None:
            synced.add(path.suffix)
            super().__init__(path, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(iceberg, "SyncedStream", Noted)
        run(job(space, lake, "iceberg"))
    assert synced == {".avro", ".json", ".parquet"}


@pytest.mark.parametrize("lost", [0, 500, 409])
def test_a_rest_catalogue_whose_answer_is_lost(space: FabricatedSpace, lake: Path, lost: int) -> None:
    """The commit went in: nobody said so, or somebody between said of its second try that another was quicker."""
    put(space, {"delay": 1}, {"delay": 2}, b"dead")
    with rest_catalog(lake) as server:
        asked = job(space, lake, "iceberg", catalog=server.url)
        run(replace(asked, most_messages=1), stopping=once())
        server.lost = [lost]
        if lost == 409:
            assert run(asked).messages == 2
        else:
            with pytest.raises(OperationalError, match="run it again to go on"):
                run(asked)
        run(asked)
        with catalog_named(server.url) as catalog:
            for name, wanted in (("shop.flights", [1, 2]), ("shop.flights_dead_letters", [3])):
                table = catalog.load_table(name).scan().to_arrow()
                assert sorted(table["seq"].to_pylist()) == wanted


def test_where_icebergs_snapshots_went(space: FabricatedSpace, lake: Path, catalog: Catalog) -> None:
    """Expired, with others' commits since, the table says it; put back by a person, the rows come again."""
    put(space, {"delay": 1}, {"delay": 2})
    run(job(space, lake, "iceberg", most_messages=1))
    table = catalog.load_table("shop.flights")
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    assert numbers(read(lake, "iceberg")) == [1]
    assert run(job(space, lake, "iceberg")).rows == 1
    table.refresh()
    table.append(pa.table({"delay": pa.array([9], pa.int32())}, schema=table.schema().select("delay").as_arrow()))
    kept = table.current_snapshot()
    assert kept is not None
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots() if one != kept]).commit()
    assert run(job(space, lake, "iceberg")).batches == 0


def test_another_space_comes_to_the_url_while_it_runs(tmp_path: Path, lake: Path) -> None:
    """None of its messages is taken for one of the first, which goes on where it was."""
    for name, first in (("a", 1), ("b", 101)):
        create(tmp_path / name, any_queue=True)
        with xaqueue.connect(tmp_path / name) as connection:
            connection.enqueue_many("flights", [b'{"delay":%d}' % n for n in range(first, first + 7)])
    with tempfile.TemporaryDirectory(prefix="xaq-") as short:
        place, servers = Path(short) / "socket", list[ServerThread]()

        def serve(name: str) -> bool:
            for server in servers:
                server.stop()
            servers.append(ServerThread(tmp_path / name, place))
            return False

        serve("a")
        asked = job(servers[0].url, lake, "parquet")
        with pytest.raises(SpaceError, match="serves another space"):
            run(asked, stopping=lambda: serve("b"))
        serve("a")
        assert run(asked).rows == 7
        servers[-1].stop()
    assert [row["delay"] for row in read(lake, "parquet")] == list(range(1, 8))


def test_what_is_consumed_is_in_the_table_before(tmp_path: Path, lake: Path) -> None:
    """By the server's URL: delete, archive; another table, or a consumer, gets none of it."""
    made = tmp_path / "owned"
    create(made, any_queue=True)
    with serving(made) as server, xaqueue.connect(server.url) as connection:
        connection.enqueue_many("flights", [b'{"delay":%d}' % n for n in range(30)])
        connection.commit()
        eventually(lambda: (made / "committed" / "queue=flights").is_dir())
        steps: list[str] = []
        for space in (server.url, str(made)):
            asked = job(space, lake, "delta", consume="delete", most_messages=10, server=server.url)
            done = run(replace(asked, queue="fl*,flights"), step=steps.append)
        assert done.batches == 0
        assert steps[:1] == ["reserved"]
        assert steps.count("consumed") == 3
        with pytest.raises(QueueReserved):
            connection.dequeue("flights")
        connection.rollback()
        connection.enqueue("flights", b'{"delay":30}')
        connection.commit()
        with pytest.raises(QueueReserved, match="reserved for stream ingest-delta-flights#"):
            run(job(made, lake, "parquet", consume="delete"))
        eventually(lambda: run(job(made, lake, "delta", consume="archive")).rows == 1)
    assert numbers(read(lake, "delta")) == list(range(1, 32))


def test_what_is_wrong_is_said(space: FabricatedSpace, lake: Path, tmp_path: Path) -> None:
    put(space, GOOD)
    known = tmp_path / "known"
    create(known)
    with pytest.raises(
        UnknownQueue, match=r"has no queue flights; it has none yet\. `xaqueue define flights` makes it"
    ):
        run(job(known, lake, "delta"))
    with pytest.raises(UnknownQueue, match=r"has no queue flight: did you mean 'flights'\?.*flight\* waits for it"):
        run(replace(job(space, lake, "parquet"), queue="flights,flight"))
    assert not Path(target(lake, "parquet")).exists()
    assert run(replace(job(space, lake, "parquet", "none"), queue="flight[0-9]")).rows == 0
    for to in ("parquet", "delta"):
        foreign = lake / f"{to}-flights"
        foreign.mkdir()
        (foreign / "data.csv").write_text("x")
        with pytest.raises(InvalidArgument, match=r"not empty .*data\.csv"):
            run(job(space, lake, to))
        assert [path.name for path in foreign.iterdir()] == ["data.csv"]
        with pytest.raises(InvalidArgument, match="is no directory"):
            run(replace(job(space, lake, to), target=str(foreign / "data.csv")))
    with pytest.raises(InvalidArgument, match=r"namespace\.table.* --catalog"):
        run(replace(job(space, lake, "iceberg"), target="flights"))
    with pytest.raises(InvalidArgument, match=r"catalogue 'nope' is not known.*PYICEBERG_CATALOG__NOPE__URI"):
        run(job(space, lake, "iceberg", catalog="nope"))
    with pytest.raises(InvalidArgument, match=r"^--catalog is missing, .* provide in \.pyiceberg\.yaml"):
        run(job(space, lake, "iceberg", catalog=None))
    put(space, b"none")
    with pytest.raises(InvalidArgument, match="no JSON object with a field was found"):
        run(job(space, lake, "parquet", "new", schema=None))

    def again() -> None:
        run(job(space, lake, "parquet", "two"))

    with pytest.raises(OperationalError, match="another process ingests"):
        run(job(space, lake, "parquet", "two"), step=lambda _: again())


def test_the_command(space: FabricatedSpace, lake: Path) -> None:
    put(space, GOOD, b"dead")
    words = ["ingest", "flights", "--once", "--space", str(space.root), "--schema", SCHEMA]
    said = CliRunner().invoke(app, [*words, "shop.flights", "--to", "iceberg", "--catalog", at(lake)])
    assert (said.exit_code, said.stderr) == (0, "")
    assert "1 in shop.flights_dead_letters" in said.stdout
    said = CliRunner().invoke(app, [*words, target(lake, "parquet")])
    assert f"1 in {target(lake, 'parquet')}/_dead_letters" in said.stdout
    told = CliRunner().invoke(app, [*words, target(lake, "parquet"), "--json"])
    assert json.loads(told.stdout)["rows"] == 0
    assert CliRunner().invoke(app, [*words[:-1], "nonsense", target(lake, "delta")]).exit_code == 2


def test_a_format_that_is_not_installed_is_named(
    space: FabricatedSpace, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(space, GOOD)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    words = ["ingest", "flights", target(lake, "delta"), "--to", "delta", "--space", str(space.root)]
    said = CliRunner().invoke(app, words)
    assert (said.exit_code, "pip install 'xaqueue[lake]'" in said.stderr) == (4, True)


@pytest.mark.parametrize(("number", "words"), [(signal.SIGTERM, []), (signal.SIGINT, ["--once"])])
def test_who_asks_for_the_end_is_heard(
    space: FabricatedSpace, lake: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: list[str]
) -> None:
    """Behind the batch at work; the second Ctrl-C ends it at once."""

    def asked(_: TableJob, __: object, stopping: Callable[[], bool]) -> IngestProgress:
        assert not stopping()
        signal.raise_signal(number)
        assert stopping()
        if again:
            signal.raise_signal(number)
        return IngestProgress(stopped=True)

    monkeypatch.setattr("xaqueue.lake.ingest.run", asked)
    before = signal.getsignal(number)
    for again in (False, number == signal.SIGINT):
        said = CliRunner().invoke(app, ["ingest", "flights", "x", "--space", str(space.root), *words])
        assert said.exit_code == (130 if words else 0)
        assert again or "ended as asked" in said.stdout
    assert signal.getsignal(number) == before


def test_a_damaged_message_ends_it_and_nothing_is_lost(space: FabricatedSpace, lake: Path) -> None:
    put(space, {"delay": 1}, {"delay": 2}, {"delay": 3})
    damaged = space.path("flights", 3)
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-1])
    with pytest.raises(DamagedBlock, match=str(damaged)):
        run(job(space, lake, "parquet", most_messages=2))
    damaged.write_bytes(sound)
    assert run(job(space, lake, "parquet")).rows > 0
    assert numbers(read(lake, "parquet")) == [1, 2, 3]


def test_a_schema_is_sampled_once(space: FabricatedSpace, lake: Path) -> None:
    put(space, b"no JSON", {"delay": 1, "carrier": "UA"})
    assert run(job(space, lake, "parquet", schema=None)).rows == 1
    put(space, {"delay": "much", "gate": 1}, {"delay": 2}, after=2)
    done = run(job(space, lake, "parquet", schema=None))
    assert (done.rows, done.dead_letters) == (1, 1)
    assert [row["delay"] for row in read(lake, "parquet")] == [1, 2]
    assert "gate" not in read(lake, "parquet")[1]


class TestBodies:
    @pytest.mark.parametrize(
        ("ddl", "json_text", "value"),
        [
            ("STRING", '{"a": [1, 2.5, null]}', '{"a":[1,2.5,null]}'),
            ("STRING", "true", "true"),
            ("DOUBLE", "3", 3.0),
            ("DOUBLE", '"NaN"', None),
            ("BIGINT", "9223372036854775807", 2**63 - 1),
            ("DECIMAL(6,2)", "1234.565", Decimal("1234.57")),
            ("DECIMAL (6, 2)", "12345.5", ValueError),
            ("DECIMAL(6,2)", "NaN", ValueError),
            ("DATE", '"2026-11-29"', "2026-11-29"),
            ("DATE", "5", ValueError),
            ("TIMESTAMP", '"2026-11-29T10:00:00+02:00"', "2026-11-29 08:00:00+00:00"),
            ("TIMESTAMP", "86400", "1970-01-02 00:00:00+00:00"),
            ("TIMESTAMP", "99999999999999", ValueError),
            ("TIMESTAMP", '"0001-01-01T00:00:00+14:00"', ValueError),
            ("TIMESTAMP", '"9999-12-31T23:59:59-14:00"', ValueError),
            ("BINARY", '"aGk="', b"hi"),
            ("BINARY", '"h"', ValueError),
            ("MAP<STRING, INT>", '{"k":1,"n":null}', [("k", 1), ("n", None)]),
            ("INT", "1.0", ValueError),
            ("TINYINT", "128", ValueError),
            ("BOOLEAN", "0", ValueError),
            ("DECIMAL(6,2)", "[0,[1],2]", ValueError),
        ],
    )
    def test_a_value(self, ddl: str, json_text: str, value: object) -> None:
        bodies = ingest_bodies.Bodies(ingest_bodies.given(f"`a b` {ddl} NOT NULL COMMENT 'it\\'s', c INT"))
        (reason,), columns = bodies.columns([b'{"a b":%s}' % json_text.encode()])
        if value is ValueError:
            assert reason == "does not fit the schema"
            return
        assert reason is None
        (found,) = columns[0].to_pylist()
        if value is None:
            assert found != found
        else:
            assert (str(found) if ddl in ("DATE", "TIMESTAMP") else found) == value

    @pytest.mark.parametrize(
        ("ddl", "why"),
        [
            ("", "it has no columns"),
            ("a", "it ends too early"),
            ("a INTX", "INTX is no type"),
            ("a INT b INT", ", is missing before 'b'"),
            ("a ARRAY<INT", "> is missing"),
            ("a INT, A STRING", "more than one column a"),
            ("body INT, BODY INT", "more than one column body_body"),
            ("a DECIMAL(50,2)", "is none"),
            ("< INT", "'<' is no name"),
            ("a MAP<INT,INT>", "keys of a JSON object are STRING"),
            ("a INT NOT", "NULL is missing"),
        ],
    )
    def test_a_schema_that_is_refused(self, ddl: str, why: str) -> None:
        with pytest.raises(InvalidArgument, match=why):
            ingest_bodies.given(ddl)

    def test_a_schema_in_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "s.ddl").write_text("a: INT,\n b STRUCT<c: ARRAY<STRING>>\n")
        assert ingest_bodies.given(str(tmp_path / "s.ddl")).names == ["a", "b"]
        names = [f"a_long_name_of_a_column_{number}" for number in range(200)]
        assert ingest_bodies.given(", ".join(f"{name} INT" for name in names)).names == names

    def test_a_sample(self) -> None:
        bodies = [b'{"a":1,"b":[1,2.0],"c":null,"d":{}}', b"x", b'{"a":"s","d":{"q":true},"e":[{"f":1},{"g":2}]}']
        found = ingest_bodies.sampled(bodies)
        assert {one.name: str(one.type) for one in found} == {
            "a": "string",
            "b": "list<item: double>",
            "c": "string",
            "d": "struct<q: bool>",
            "e": "list<item: struct<f: int64, g: int64>>",
        }

    def test_a_sample_of_what_no_column_can_be(self) -> None:
        deep = b'{"a":' * 500 + b"1" + b"}" * 500
        found = ingest_bodies.sampled(
            [b'{"\\ud800":1,"b":{"\\ud800":1}}', deep, b'{"l":' + b"[" * 500 + b"]" * 500 + b"}"]
        )
        assert found.names == ["b", "a", "l"]
        assert found.field("b").type == pa.string()
        assert str(found.field("a").type).count("struct") == str(found.field("l").type).count("list") == 30
        (reason,), (_, column, _) = ingest_bodies.Bodies(found).columns([deep])
        assert reason is None
        assert str(column[0]).count("'a'") == 30


@pytest.mark.parametrize("to", FORMATS)
def test_a_sample_of_names_and_depths_that_formats_do_not_take(space: FabricatedSpace, lake: Path, to: str) -> None:
    put(space, b'{"a":' * 500 + b"1" + b"}" * 500, {"": 1, "t": {"": 1}}, b'{"\\ud800":1}')
    assert run(job(space, lake, to, schema=None)).rows == 3
    assert [row["t"] for row in read(lake, to)] == [None, '{"":1}', None]


@pytest.mark.parametrize(
    ("to", "body"),
    [("iceberg", {"a.b": 1, "a": {"b": 1}}), ("delta", {"s": {"a": 1, "A": 1}})],
)
def test_a_sample_that_a_format_does_not_take(
    space: FabricatedSpace, lake: Path, to: str, body: dict[str, object]
) -> None:
    put(space, body)
    with pytest.raises(InvalidArgument, match=r"no table has these columns: .*; give --schema"):
        run(job(space, lake, to, schema=None))
    assert run(job(space, lake, to, schema="c INT")).rows == 1


def test_a_progress_counts_both() -> None:
    assert IngestProgress(rows=2, dead_letters=1).messages == 3
