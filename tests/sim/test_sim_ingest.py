"""Queues flow into a table, and at random it is killed, put back, given more columns, and written by another ingest.

Whatever happened, a message is nowhere twice, and behind a last run once, as a row or as a dead letter.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from support.spark_space import FabricatedSpace
from xaqueue.errors import Error

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("deltalake", reason="deltalake is not installed")

import pyarrow.dataset as ds
from deltalake import DeltaTable

from xaqueue.lake.catalog import catalog_named
from xaqueue.lake.ingest import TableJob, run

SEEDS = range(200 if os.environ.get("XAQUEUE_CRASH_FULL") else 2)
QUEUES = (("a", "b"), ("c", "d"))
"""Of the two spaces."""
BODIES = (b'{"n":1}', b'{"n":2,"more":"x"}', b'{"n":3,"more":3}', b"dead", b'{"n":"no"}')
Place = tuple[str, int]
"""A queue, whose space no other has, and a number."""


class Killed(BaseException):
    """The process is gone."""


class Table:
    def __init__(self, place: Path, to: str) -> None:
        self.catalog = f"sqlite:///{place}/catalog.db,warehouse=file://{place}/warehouse"
        self.to, self.name = to, "shop.t" if to == "iceberg" else str(place / "t")

    def found(self, dead: bool = False) -> list[Place]:
        name = self.name + (("_dead_letters" if self.to == "iceberg" else "/_dead_letters") if dead else "")
        columns = ["queue", "seq"]
        if self.to == "iceberg":
            with catalog_named(self.catalog) as catalog:
                if not catalog.table_exists(name):
                    return []
                rows = catalog.load_table(name).scan(selected_fields=("queue", "seq")).to_arrow()
        elif self.to == "delta":
            if not DeltaTable.is_deltatable(name):
                return []
            rows = DeltaTable(name).to_pyarrow_dataset().to_table(columns)
        else:
            if not Path(name).is_dir():
                return []
            rows = ds.dataset(name, format="parquet").to_table(columns)
        return [(row["queue"], row["seq"]) for row in rows.to_pylist()]

    def put_back(self, chance: random.Random) -> None:
        """To what it was some commits ago."""
        if self.to == "parquet":
            if files := sorted(Path(self.name).glob("xaqueue.*")):
                stem = chance.choice(files).name.rsplit(".", 2)[0]
                max(Path(self.name).glob(f"{stem}.*")).unlink()
        elif self.to == "delta":
            if DeltaTable.is_deltatable(self.name) and (version := DeltaTable(self.name).version()) > 1:
                DeltaTable(self.name).restore(chance.randrange(max(1, version - 3), version))
        else:
            with catalog_named(self.catalog) as catalog:
                if catalog.table_exists(self.name) and len(past := catalog.load_table(self.name).history()) > 1:
                    table = catalog.load_table(self.name)
                    table.manage_snapshots().set_current_snapshot(past[-2].snapshot_id).commit()


def dying(chance: random.Random, most: int, other: Callable[[], object] | None = None) -> Callable[[str], None]:
    """Behind some step; ``other`` happens at one before."""
    last = chance.randrange(1, most)
    when = chance.randrange(1, last + 1)

    def step(_: str) -> None:
        nonlocal last, when
        last, when = last - 1, when - 1
        if when == 0 and other is not None:
            other()
        if last == 0:
            raise Killed

    return step


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("to", ["parquet", "delta", "iceberg"])
def test_each_message_is_in_once(tmp_path: Path, to: str, seed: int) -> None:
    chance, table, ends = random.Random(seed), Table(tmp_path, to), dict[str, int]()
    spaces = [FabricatedSpace(tmp_path / f"space-{number}", number=number) for number in (1, 2)]
    wanted, schema = set[Place](), "n INT"

    def ingest(step: Callable[[str], None] = lambda _: None, most: int = 100) -> None:
        asked = f"{tmp_path}/space-*", "*", table.name, to, table.catalog, schema
        with suppress(Killed):
            run(replace(TableJob(*asked, once=True), most_messages=most), step=step)

    def other() -> None:
        with suppress(Error):
            ingest(dying(chance, 6), chance.choice([1, 3]))

    for _ in range(8):
        for _ in range(chance.randrange(6)):
            number = chance.randrange(2)
            queue = chance.choice(QUEUES[number])
            ends[queue] = seq = ends.get(queue, 0) + chance.choice([1, 1, 2])  # a number may be of nobody
            spaces[number].put(queue, seq, chance.choice(BODIES))
            spaces[number].publish(queue, seq)
            wanted.add((queue, seq))
        if chance.random() < 0.2:
            schema = "n INT, more INT"
        if chance.random() < 0.2:
            table.put_back(chance)
        with suppress(Error):  # the other one may be refused, or refuse
            ingest(dying(chance, 12, other if to != "parquet" else None), chance.choice([1, 2, 100]))
        found = [*table.found(), *table.found(dead=True)]
        assert len(found) == len({*found}), sorted(found)
    ingest()
    assert {*table.found(), *table.found(dead=True)} == wanted
