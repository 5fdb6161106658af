"""A directory of Parquet files, killed at each call: commits are seen whole, and the next life goes on behind them."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from xaqueue.core.storage.directory_fs import DirectoryFileSystem

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from xaqueue.lake.ingest_tables import COLUMNS, ParquetTable

QUEUES = ("xaqueue:one:orders", "xaqueue:two:orders")


class Killed(BaseException):
    """The process is gone."""


class DeadlyFileSystem(DirectoryFileSystem):
    """Kills at a call that changes something, and sees to it that nothing appears in the target that isn't on disk."""

    def __init__(self, root: Path, kill_after: int | None = None) -> None:
        super().__init__(root, keep_unsynced=False)
        self.left = kill_after
        self.synced: set[str] = set()
        self.unsynced_names: set[str] = set()

    def _call(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1

    def _note(self, path: str) -> None:
        if path.partition("/")[0] == "target":
            self.unsynced_names.add(path.rpartition("/")[0])

    def create(self, path: str, chunks: object, modified_ns: int = 0) -> None:
        self._call()
        super().create(path, chunks, modified_ns)  # type: ignore[arg-type]

    def rename(self, source: str, target: str) -> None:
        self._call()
        if target.startswith("target/"):
            below = Path(self.root, source)
            hardened = [below, *below.rglob("*")] if below.is_dir() else [below]
            assert {str(path.relative_to(self.root)) for path in hardened} <= self.synced
        super().rename(source, target)
        self._note(target)

    def unlink(self, path: str) -> None:
        self._call()
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self._call()
        super().make_dir(path)
        self._note(path)

    def remove_dir(self, path: str) -> None:
        self._call()
        super().remove_dir(path)

    def sync_file(self, path: str) -> None:
        self._call()
        super().sync_file(path)
        self.synced.add(path)

    def sync_dir(self, path: str) -> None:
        self._call()
        super().sync_dir(path)
        self.synced.add(path)
        self.unsynced_names.discard(path)


def ingest_files(root: Path, kill_after: int | None, unsynced: set[str]) -> None:
    """One life of an ingest: four messages of each of two queues, in two commits; and columns come between them."""
    fs = DeadlyFileSystem(root, kill_after)
    fs.unsynced_names = unsynced
    schema = pa.schema([("seq", pa.int64())])
    try:
        table = ParquetTable(fs, root, "target")
        if table.schema is None:
            table.create(schema)
        for upto in (2, 4):
            assert not unsynced  # nothing is told to the queues before
            there = table.refresh(QUEUES)
            rows = pa.table({"seq": [upto - 1, upto]}, schema)
            if left := {key: rows for key in QUEUES if there[key] < upto}:
                table.commit(left, dict.fromkeys(left, upto))
            if table.schema == schema:
                table.grow(schema.append(pa.field("more", pa.int32())))
    finally:
        fs.close()


def numbers_in(target: Path, key: str) -> list[int]:
    files = sorted(target.glob(f"{key.replace(':', '.')}.*.parquet"))
    return [seq for path in files for seq in pq.read_table(path)["seq"].to_pylist()]


def test_files_of_an_ingest(tmp_path: Path) -> None:
    for calls in count():
        place, unsynced, target = tmp_path / str(calls), set[str](), tmp_path / str(calls) / "target"
        place.mkdir()
        with suppress(Killed):
            ingest_files(place, calls, unsynced)
            break
        for key in QUEUES:
            assert numbers_in(target, key) in ([], [1, 2], [1, 2, 3, 4])
        ingest_files(place, None, unsynced)
        for key in QUEUES:
            assert numbers_in(target, key) == [1, 2, 3, 4]
        assert pq.read_schema(target / COLUMNS).names == ["seq", "more"]
        assert {path.suffix for path in target.iterdir()} == {".parquet"}
    assert calls > 20


def test_a_number_that_a_table_has_gets_more_rows(tmp_path: Path) -> None:
    """Of dead letters that are ahead of the rows: what is there stays, whenever it is killed."""
    schema = pa.schema([("seq", pa.int64())])
    for calls in count():
        place = tmp_path / str(calls)
        place.mkdir()
        fs = DeadlyFileSystem(place)
        table = ParquetTable(fs, place, "target")
        table.create(schema)
        table.commit({QUEUES[0]: pa.table({"seq": [2]}, schema)}, {QUEUES[0]: 4})
        fs.left = calls
        try:
            table.commit({QUEUES[0]: pa.table({"seq": [1]}, schema)}, {QUEUES[0]: 4})
        except Killed:
            assert numbers_in(place / "target", QUEUES[0]) in ([2], [2, 1])
            continue
        finally:
            fs.close()
        assert numbers_in(place / "target", QUEUES[0]) == [2, 1]
        break
    assert calls > 3
