"""A stream relies neither on what a power loss takes from Spark's checkpoint nor on an older copy of its space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.spark_space import FabricatedSpace, keep
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.session import Session, attach
from xaqueue.reservation import Reservation

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import json

from support.spark_reading import Offset, Query, stream
from xaqueue.spark.source import consumer


class SparksDirectory:
    """A checkpoint as Spark writes it: offsets before a batch is run, and that it is done afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for part in ("offsets", "commits"):
            (path / part).mkdir(parents=True)
        (path / "metadata").write_text('{"id":"7f3c0b52-9a4e-4a86-9f0e-0d6c6b1a2c3d"}')

    def plan(self, number: int, offset: Offset, other: str = "{}") -> None:
        """other: the offset of another source of the query."""
        self._write(f"offsets/{number}", f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}\n{other}')

    def commit(self, number: int) -> None:
        self._write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, path: str, text: str) -> None:
        written = self.path / path
        written.write_text(text)
        written.with_name(f".{written.name}.crc").write_text("crc")


class Told:
    """What is made durable, by the stream in Spark's checkpoint and by the owner in the space, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []
        monkeypatch.setattr(consumer, "reach_owner", self._reach)
        for call in ("sync_file", "sync_dir"):
            monkeypatch.setattr(DirectoryFileSystem, call, lambda fs, path: self.order.append(path or "."))

    def _reach(self, path: str, server: str | None) -> Told:
        self.root = Path(path)
        return self

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        keep(self.root, queue, stream)
        return Reservation(queue, stream, latest=upto)

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        self.order.append(f"consumed {upto}")
        return Reservation(queue, stream, consumed=upto)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    made = FabricatedSpace(tmp_path / "space")
    made.fill("orders", range(1, 11))
    return made


def test_that_a_batch_is_done_is_on_disk_before_its_messages_are_removed(
    space: FabricatedSpace, tmp_path: Path, told: Told
) -> None:
    """In this order: the batch's offsets without its commit run it again, the commit without its offsets the one
    before, whose messages are gone."""
    spark = SparksDirectory(tmp_path / "a checkpoint")
    location = f"file:{tmp_path}/a%20checkpoint"
    query = Query(stream(space.root, consume="delete", maxMessagesPerTrigger=4, checkpointLocation=location))
    for number in range(3):
        query.batch()
        spark.plan(number, query.offset)
        spark.commit(number)
    assert query.batch() is None
    done = [
        [f"offsets/{n}", f"offsets/.{n}.crc", f"commits/{n}", f"commits/.{n}.crc", f"consumed {end}"]
        for n, end in ((0, 4), (1, 8), (2, 10))
    ]
    assert [what for what in told.order if what[-1].isdigit() or "crc" in what] == [
        one for batch in done for one in batch
    ]
    assert told.order[:9] == [
        *("metadata", "offsets/0", "offsets/.0.crc", "offsets", "."),
        *("commits/0", "commits/.0.crc", "commits", "consumed 4"),
    ]
    before = len(told.order)
    for _ in range(3):
        assert query.batch() is None  # Spark asks all the time
    assert len(told.order) == before


def test_a_query_of_several_sources_has_their_offsets_in_one_file(
    space: FabricatedSpace, tmp_path: Path, told: Told
) -> None:
    spark = SparksDirectory(tmp_path / "checkpoint")
    query = Query(stream(space.root, consume="delete", streamName='to the "Küche"', checkpointLocation=spark.path))
    query.batch()
    spark.plan(0, query.offset, other='{"logOffset":3}')
    spark.commit(0)
    query.reader.commit(query.offset)
    assert told.order[-1] == "consumed 10"


def test_the_checkpoint_of_another_query_is_refused(space: FabricatedSpace, tmp_path: Path, told: Told) -> None:
    spark = SparksDirectory(tmp_path / "checkpoint")
    query = Query(stream(space.root, consume="delete", checkpointLocation=spark.path))
    query.batch()
    with pytest.raises(InvalidArgument, match=r"not the checkpoint of stream spark@.*checkpointLocation"):
        query.reader.commit(query.offset)
    spark.plan(0, {"stream": "other#1", "spaces": {}})
    spark.commit(0)
    with pytest.raises(InvalidArgument, match="not the checkpoint of stream"):
        query.reader.commit(query.offset)
    assert told.order == []


@pytest.mark.parametrize("consume", ["keep", "delete"])
@pytest.mark.parametrize("which", ["none", "empty", "another"])
def test_a_query_with_another_checkpoint_than_the_source_is_told_does_not_start(
    space: FabricatedSpace, tmp_path: Path, told: Told, which: str, consume: str
) -> None:
    """Spark has begun the query's before it asks for anything."""
    location = tmp_path / "checkpoint"
    if which == "empty":
        location.mkdir()
    if which == "another":
        SparksDirectory(location).plan(0, {"stream": "other#1", "spaces": {}})
    reader = stream(space.root, consume=consume, checkpointLocation=location)
    begun = reader.initialOffset()
    with pytest.raises(InvalidArgument, match=r"not the checkpoint of stream spark@.*or leave it out there"):
        reader.latestOffset(begun, reader.getDefaultReadLimit())
    assert told.order == []


def test_a_restarted_query_has_the_checkpoint_of_its_own_stream(
    space: FabricatedSpace, tmp_path: Path, told: Told
) -> None:
    spark = SparksDirectory(tmp_path / "checkpoint")
    query = Query(stream(space.root, consume="delete", maxMessagesPerTrigger=4, checkpointLocation=spark.path))
    query.batch()
    spark.plan(0, query.offset)
    spark.commit(0)
    restarted = stream(space.root, consume="delete", checkpointLocation=spark.path)
    assert restarted.latestOffset(query.offset, restarted.getDefaultReadLimit()) != query.offset
    spark.plan(1, {"stream": "other#1", "spaces": {}})
    restarted = stream(space.root, consume="delete", checkpointLocation=spark.path)
    with pytest.raises(InvalidArgument, match="not the checkpoint of stream"):
        restarted.latestOffset(query.offset, restarted.getDefaultReadLimit())


@pytest.mark.parametrize("location", ["", "s3a://bucket/checkpoint", "hdfs:/not/here"])
def test_a_checkpoint_that_is_elsewhere_is_left_to_those_who_keep_it(
    space: FabricatedSpace, told: Told, location: str
) -> None:
    query = Query(stream(space.root, consume="delete", checkpointLocation=location))
    query.all()
    assert told.order == ["consumed 10"]


class Shop:
    """A space whose stream and producer work in this process."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._sessions: list[Session] = []
        monkeypatch.setattr(consumer, "reach_owner", self._reach)

    def _reach(self, path: str, server: str | None) -> Session:
        self._sessions.append(attach(path))
        return self._sessions[-1]

    def put(self, count: int) -> None:
        with xaqueue.connect(self.root, create=True, sync="NONE") as connection:
            for _ in range(count):
                connection.enqueue("orders", b"x")
            connection.commit()

    def close(self) -> None:
        while self._sessions:
            self._sessions.pop().close()

    def copy(self, source: Path, target: Path) -> None:
        self.close()
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(source, target)

    def query(self, offset: Offset | None = None, **options: Any) -> Query:
        return Query(stream(self.root, maxMessagesPerTrigger=4, **{"consume": "delete"} | options), offset)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(tmp_path / "space", monkeypatch)
    yield made
    made.close()


def seqs(query: Query) -> list[int]:
    return [row["seq"] for batch in query.all() for row in batch]


def test_a_space_restored_from_an_older_copy_is_refused_under_a_newer_checkpoint(shop: Shop, tmp_path: Path) -> None:
    shop.put(20)
    query = shop.query()
    query.batch()
    query.batch()
    assert "consumed" not in query.offset  # nothing was when the second batch was planned
    shop.copy(shop.root, tmp_path / "older")
    query = shop.query(query.offset)
    assert seqs(query) == list(range(9, 21))
    assert query.offset["consumed"] == {str(shop.root): {"orders": 12}}
    shop.copy(tmp_path / "older", shop.root)
    shop.put(10)
    before = query.offset
    restored = shop.query(before)
    with pytest.raises(SpaceError, match=r"consumed to 4 and was to 12 .*older copy.*release orders.*failOnDataLoss"):
        restored.batch()
    with pytest.raises(SpaceError, match="older copy"):
        restored.reader.partitions(before, before | {"spaces": {str(shop.root): {"orders": 30}}})
    on = shop.query(before, failOnDataLoss=False)
    assert seqs(on) == list(range(21, 31))
    shop.put(1)
    assert seqs(shop.query(on.offset)) == [31]


def test_an_offset_of_an_earlier_version_knows_nothing_of_what_was_consumed(shop: Shop) -> None:
    shop.put(10)
    query = shop.query()
    query.all()
    earlier = {name: value for name, value in query.offset.items() if name != "consumed"}
    shop.put(2)
    query = shop.query(earlier)
    assert seqs(query) == [11, 12]
    assert query.offset["consumed"] == {str(shop.root): {"orders": 10}}
