"""A catalogue of PyIceberg in a global transaction: messages, rows and snapshots, all or none."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

import xaqueue
from support.lake_scene import (
    AUDIT,
    BATCH,
    CARRIED,
    EVERY,
    FIRST,
    NODE,
    ORDERS,
    PREPARED,
    SECOND,
    Lake,
    rows_of,
)
from support.patience import eventually
from xaqueue import TransactionManager
from xaqueue.contrib.sqlalchemy import participant as of_engine
from xaqueue.errors import InvalidArgument, ProtocolError
from xaqueue.lake.iceberg import SyncedFiles, participant
from xaqueue.tm.coordinator import TraceStep as Step


def over(*kinds: tuple[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lake", kinds, indirect=True, ids=["-".join(kind) for kind in kinds])


@over(*EVERY)
def test_snapshot_row_and_message_are_one(lake: Lake) -> None:
    with lake.manager() as tm:
        with tm.transaction("lake") as tx:
            assert lake.take(tx) == FIRST
            assert lake.table() == []
        assert lake.judge() == FIRST
        with tm.transaction() as tx:
            lake.take(tx)
            tx.rollback()
        assert lake.judge() == FIRST
        with tm.transaction() as tx:
            lake.take(tx)
    assert lake.judge() == SECOND


@over(("sqlite", PREPARED))
def test_its_files_are_on_the_disk_before_the_row(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content and names, of the directories too."""
    synced: set[Path] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    before = set(lake.warehouse.rglob("*"))
    late: list[Path] = []

    def on_step(step: str, gtrid: bytes, name: str) -> None:
        if step == Step.COMMIT_LAST:
            late.extend(set(lake.warehouse.rglob("*")) - before - synced)

    with lake.manager(on_step) as tm, tm.transaction() as tx:
        monkeypatch.setattr(os, "fsync", note)
        lake.take(tx)
    assert late == []
    assert {one.parent for one in synced if one.is_file() and lake.warehouse in one.parents} <= synced
    assert lake.warehouse in synced
    assert len([one for one in synced if one.suffix == ".parquet"]) == len((ORDERS, AUDIT))


def test_a_directory_is_synced_with_those_above_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where it was removed; within the warehouse also where it was there already."""
    warehouse, elsewhere = tmp_path / "lake", tmp_path / "elsewhere"
    (there := warehouse / "shop" / "orders").mkdir(parents=True)
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def synced_by(directory: Path) -> list[Path]:
        synced.clear()
        SyncedFiles({"warehouse": f"file://{warehouse}"}).new_output(f"file://{directory}/file").create(
            overwrite=True
        ).close()
        assert synced[0] == directory / "file"
        return synced[1:]

    all_above = [there, there.parent, warehouse]
    assert [synced_by(there), synced_by(there)] == [all_above, [there]]
    shutil.rmtree(there)
    assert synced_by(there) == all_above
    assert synced_by(elsewhere / "a" / "b") == [elsewhere / "a" / "b", elsewhere / "a", elsewhere, tmp_path]


@over(("sqlite", CARRIED))
def test_nothing_that_others_see_is_removed_within(lake: Lake) -> None:
    """PyIceberg removes old metadata with a commit of its own, which is none here."""
    short = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    with lake.catalog.load_table(ORDERS).transaction() as own:
        own.set_properties(short)
    with lake.manager() as tm:
        with tm.transaction() as tx:
            table = tx["lake"].load_table(ORDERS)
            for number in range(4):
                table.append(rows_of([number]))
            tx.rollback()
        assert lake.table() == []
        with tm.transaction() as tx:
            tx["lake"].purge_table(ORDERS)
            tx.rollback()
        assert lake.table() == []


@over(("sqlite", CARRIED), ("postgresql", NODE))
def test_a_savepoint_undoes_snapshots_too(lake: Lake) -> None:
    with lake.manager() as tm, tm.transaction() as tx:
        lake.take(tx)
        table = tx["lake"].load_table(ORDERS)
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            fail_behind(lambda: (lake.take(tx), table.append(rows_of([99]))))
        assert tx["lake"].load_table(ORDERS).scan().to_arrow().num_rows == BATCH
        with tx.savepoint():
            lake.take(tx)
    assert lake.judge() == SECOND


def fail_behind(call: Callable[[], object]) -> None:
    call()
    raise ZeroDivisionError


@over(("sqlite", PREPARED), ("postgresql", PREPARED))
def test_a_table_of_a_transaction_that_is_over_is_refused(lake: Lake) -> None:
    with lake.manager() as tm:
        with tm.transaction() as tx:
            table = tx["lake"].load_table(ORDERS)
        with pytest.raises(ProtocolError):
            table.append(rows_of([1]))
    assert lake.table() == []


@over(("sqlite", CARRIED), ("postgresql", PREPARED))
def test_threads_with_one_catalogue(lake: Lake) -> None:
    """Each has a transaction, and whoever else uses the catalogue meanwhile has none of them."""
    lake.put(5 * BATCH)
    seen: list[int] = []

    def work(_: int) -> None:
        with tm.transaction() as tx:
            lake.take(tx, 2)
        seen.append(len(lake.table()))

    with lake.manager() as tm, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert len(lake.judge()) == 16
    assert all(count % 2 == 0 for count in seen)


@over(("postgresql", PREPARED))
def test_two_transactions_at_one_table(lake: Lake) -> None:
    """The second one waits for the first, and its snapshot is behind that; so it is if it has looked before."""
    begun, waits = threading.Event(), threading.Event()

    def second() -> None:
        with tm.transaction() as tx:
            table = tx["lake"].load_table(ORDERS)
            begun.set()
            assert waits.wait(30)
            table.append(rows_of([2]))

    with lake.manager() as tm, ThreadPoolExecutor(1) as pool:
        with tm.transaction() as tx:
            other = pool.submit(second)
            assert begun.wait(30)
            tx["lake"].load_table(ORDERS).append(rows_of([1]))
            waits.set()
            eventually(lambda: lake.waiting())
        other.result()
    assert lake.table() == [1, 2]
    assert len(lake.catalog.load_table(ORDERS).snapshots()) == 2


@over(("sqlite", CARRIED))
def test_others_read_the_same(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    with lake.manager() as tm:
        for is_kept in (True, False, True):
            with tm.transaction() as tx:
                lake.take(tx)
                if not is_kept:
                    tx.rollback()
    table = lake.catalog.load_table(ORDERS)
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or it wants a package of its own
    assert polars.scan_iceberg(table).sort("id").collect()["id"].to_list() == SECOND
    assert sorted(StaticTable.from_metadata(table.metadata_location).scan().to_arrow()["id"].to_pylist()) == SECOND
    files = [one["file_path"].removeprefix("file://") for one in table.inspect.files().to_pylist()]
    assert duckdb.sql(f"select id from read_parquet({files}) order by id").fetchall() == [(n,) for n in SECOND]


@over(("sqlite", CARRIED), ("postgresql", PREPARED))
def test_within_a_session(lake: Lake) -> None:
    own = of_engine(lake.catalog.engine, session=True)
    with lake.manager(more={"db": own}) as tm, tm.transaction("lake") as tx:
        lake.take(tx)
        with tx["db"].begin_nested() as savepoint:
            tx["lake"].load_table(ORDERS).append(rows_of([99]))
            savepoint.rollback()
    assert lake.judge() == FIRST


@over(("sqlite", PREPARED), ("postgresql", CARRIED))
def test_in_a_task(lake: Lake) -> None:
    async def take(fails: bool) -> None:
        own = create_async_engine(lake.url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with lake.manager(more={"db": own}) as tm, tm.transaction("db", "lake", "queue") as tx:
            numbers = [int(one.body) for one in tx["queue"].dequeue_many("orders", BATCH)]
            await tx["db"].execute(text("insert into taken (id) values (:id)"), [{"id": n} for n in numbers])
            for name in (ORDERS, AUDIT):
                await tx["db"].run_sync(lambda _, name: tx["lake"].load_table(name).append(rows_of(numbers)), name)
            if fails:
                await tx.rollback()
        await own.dispose()

    asyncio.run(take(fails=True))
    assert lake.judge() == []
    asyncio.run(take(fails=False))
    assert lake.judge() == FIRST


def test_what_it_cannot_work_within(tmp_path: Path) -> None:
    catalog = SqlCatalog("shop", uri=f"sqlite:///{tmp_path / 'shop.db'}", warehouse=f"file://{tmp_path}")
    space = str(tmp_path / "space")
    xaqueue.connect(space, create=True).close()
    others: dict[str, Any] = {
        "connection of sqlite3": lambda: sqlite3.connect(tmp_path / "shop.db"),
        "other.db'": create_engine(f"sqlite:///{tmp_path / 'other.db'}"),
        "of xaqueue": space,
    }
    for number, (words, other) in enumerate(others.items()):
        parties = {"db": other, "lake": participant(catalog, "db")}
        with TransactionManager(tmp_path / f"log {number}", parties) as tm, pytest.raises(InvalidArgument, match=words):
            tm.transaction("lake").__enter__()
    with pytest.raises(InvalidArgument, match="within participant 'ledger'"):
        TransactionManager({"db": catalog.engine, "lake": participant(catalog, "ledger")})
    with pytest.raises(InvalidArgument, match="no SqlCatalog"):
        participant(object(), "db")  # type: ignore[arg-type]
    own = SqlCatalog("shop", uri=str(catalog.engine.url), **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
    with pytest.raises(InvalidArgument, match="py-io-impl"):
        participant(own, "db")
