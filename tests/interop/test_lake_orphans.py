"""Files that no snapshot names are found and removed, and none that one names, or may come to name."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from support.lake_killer import killing
from support.lake_scene import AUDIT, CARRIED, FIRST, ORDERS, PREPARED, SCHEMA, TWO_PHASES, Lake, rows_of
from xaqueue.cli.main import app
from xaqueue.errors import InvalidArgument, RetryLater
from xaqueue.lake import orphans as lake_orphans
from xaqueue.lake.orphans import orphans
from xaqueue.tm.coordinator import TraceStep as Step

HOUR = timedelta(hours=1)
BOTH = [("sqlite", CARRIED), ("postgresql", PREPARED)]
NAMES = ["-".join(how) for how in BOTH]


def files(lake: Lake) -> set[Path]:
    return {path for path in (lake.warehouse / "shop" / "orders").rglob("*") if path.is_file()}


def grow_old(lake: Lake) -> None:
    then = time.time() - 2 * HOUR.total_seconds()
    for path in files(lake):
        os.utime(path, (then, then))


def fail(lake: Lake) -> set[Path]:
    """What a rollback leaves."""
    before = files(lake)
    with lake.manager() as tm, tm.transaction() as tx:
        lake.take(tx)
        tx.rollback()
    return files(lake) - before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xaqueue.lake.orphans.PATIENCE_S", 0.1)


@pytest.mark.parametrize("lake", BOTH, indirect=True, ids=NAMES)
def test_what_a_rollback_leaves_is_removed_once_it_is_old(lake: Lake) -> None:
    with lake.manager() as tm, tm.transaction() as tx:
        lake.take(tx)
    left = fail(lake)
    assert {path.suffix for path in left} == {".parquet", ".avro", ".json"}
    assert orphans(lake.catalog, ORDERS, HOUR) == []
    grow_old(lake)
    assert {Path(one.path) for one in orphans(lake.catalog, ORDERS, HOUR)} == left
    assert left <= files(lake)
    assert {Path(one.path) for one in orphans(lake.catalog, ORDERS, HOUR, remove=True)} == left
    assert not left & files(lake)
    assert orphans(lake.catalog, ORDERS, HOUR) == []
    assert lake.judge() == FIRST
    with lake.manager() as tm, tm.transaction() as tx:
        lake.take(tx)
    table = lake.catalog.load_table(ORDERS)
    assert [table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for one in table.snapshots()] == [4, 8]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lake", BOTH, indirect=True, ids=NAMES)
def test_files_of_a_transaction_that_is_open_stay(lake: Lake) -> None:
    """However old they are."""
    other = Lake(lake.kind, lake.url + ("?timeout=0.1" if lake.kind == "sqlite" else ""), lake.place, lake.way)
    with lake.manager() as tm, tm.transaction() as tx:
        lake.take(tx)
        grow_old(lake)
        with pytest.raises(RetryLater, match="still open, or in doubt"):
            orphans(other.catalog, ORDERS, HOUR, remove=True)
    other.catalog.close()
    assert orphans(lake.catalog, ORDERS, HOUR, remove=True) == []
    assert lake.judge() == FIRST


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lake", [("postgresql", TWO_PHASES)], indirect=True, ids=["postgresql"])
@pytest.mark.parametrize("moment", [f"{Step.PREPARED} db", f"{Step.DECIDED} "])
def test_files_of_a_transaction_in_doubt_stay(lake: Lake, moment: str) -> None:
    with killing() as killer:
        assert killer.kill(lake, moment) == signal.SIGKILL
    grow_old(lake)
    with pytest.raises(RetryLater, match="in doubt"):
        orphans(lake.catalog, ORDERS, HOUR, remove=True)
    lake.settle()
    found = orphans(lake.catalog, ORDERS, HOUR, remove=True)
    taken = lake.judge()
    assert (taken, bool(found)) == ((FIRST, False) if moment.startswith(Step.DECIDED) else ([], True))


@pytest.mark.parametrize("lake", BOTH, indirect=True, ids=NAMES)
def test_a_renamed_table_keeps_its_files(lake: Lake) -> None:
    """A new one under its former name has the same directory."""
    with lake.manager() as tm, tm.transaction() as tx:
        tx["lake"].load_table(ORDERS).append(rows_of([1, 2]))
        tx["lake"].rename_table(ORDERS, "shop.former")
        tx["lake"].create_table(ORDERS, schema=SCHEMA).append(rows_of([3]))
    left = fail(lake)
    grow_old(lake)
    assert {Path(one.path) for one in orphans(lake.catalog, ORDERS, HOUR, remove=True)} == left
    assert lake.table("shop.former") == [1, 2]
    assert lake.table(ORDERS) == [3]


@pytest.mark.parametrize("lake", BOTH, indirect=True, ids=NAMES)
def test_a_table_that_is_renamed_meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And another one made under its name, between the first look and the lock."""
    with lake.manager() as tm, tm.transaction() as tx:
        tx["lake"].load_table(ORDERS).append(rows_of([1, 2]))
    grow_old(lake)
    still = lake_orphans._still

    def rename(catalog: Catalog, names: list[lake_orphans.Key]) -> AbstractContextManager[Catalog]:
        catalog.rename_table(ORDERS, "shop.former")
        catalog.create_table(ORDERS, schema=SCHEMA)
        return still(catalog, names)

    monkeypatch.setattr(lake_orphans, "_still", rename)
    with pytest.raises(RetryLater, match="renamed"):
        orphans(lake.catalog, ORDERS, HOUR, remove=True)
    assert lake.table("shop.former") == [1, 2]


@pytest.mark.parametrize("lake", BOTH, indirect=True, ids=NAMES)
def test_a_table_of_another_catalogue_in_the_database_keeps_its_files(lake: Lake) -> None:
    """The two have one warehouse, and their tables one name, and so one directory."""
    other = SqlCatalog("other", uri=lake.url, warehouse=f"file://{lake.warehouse}")
    other.create_namespace("shop")
    other.create_table(ORDERS, schema=SCHEMA).append(rows_of([1, 2]))
    left = fail(lake)
    grow_old(lake)
    assert {Path(one.path) for one in orphans(lake.catalog, ORDERS, HOUR, remove=True)} == left
    assert other.load_table(ORDERS).scan().to_arrow().num_rows == 2
    other.engine.dispose()


@pytest.mark.parametrize("lake", BOTH[:1], indirect=True, ids=NAMES[:1])
def test_a_file_that_was_added_to_a_table_elsewhere_stays(lake: Lake) -> None:
    table = lake.catalog.load_table(ORDERS)
    table.append(rows_of([1, 2]))
    added = [entry["file_path"] for entry in table.inspect.data_files().to_pylist()]
    lake.catalog.load_table(AUDIT).add_files(added)
    table.overwrite(rows_of([3]))
    first = [one.snapshot_id for one in table.snapshots() if one != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(first).commit()
    grow_old(lake)
    assert orphans(lake.catalog, ORDERS, HOUR, remove=True) != []
    assert lake.table(AUDIT) == [1, 2]


@pytest.mark.parametrize("lake", BOTH[:1], indirect=True, ids=NAMES[:1])
def test_what_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidArgument, match="younger than an hour"):
        orphans(lake.catalog, ORDERS, HOUR / 2)
    with pytest.raises(InvalidArgument, match="nothing"):
        orphans(lake.catalog, "shop.nothing", HOUR)
    with lake.catalog.load_table(ORDERS).transaction() as own:
        own.set_properties({"write.data.path": f"file://{lake.place}/data"})
    with pytest.raises(InvalidArgument, match=r"write\.data\.path"):
        orphans(lake.catalog, ORDERS, HOUR)


@pytest.mark.parametrize("lake", BOTH[:1], indirect=True, ids=NAMES[:1])
def test_the_command(lake: Lake) -> None:
    words = ["clean-table", ORDERS, "--older-than", "1h", "--catalog", f"{lake.url},name=shop"]

    def run(*more: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == code, done.output
        return done.output

    left = fail(lake)
    grow_old(lake)
    listed = run("--dry-run").splitlines()
    assert {Path(line.split()[-1]) for line in listed[:-1]} == left
    assert listed[-1].startswith(f"{len(left)} files, ")
    assert "nothing was removed" in run(code=1)
    assert left <= files(lake)
    removed = json.loads(run("--yes", "--json"))["removed"]
    assert {Path(one["path"]) for one in removed} == left
    assert run("--yes") == "0 files, 0 B, removed\n"
