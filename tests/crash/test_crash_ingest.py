"""A batch is put into place: killed at any call, readers see all of it or nothing, and the next try makes it whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import InvalidArgument, OperationalError

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from xaqueue.lake.ingest_tables import ParquetTable
from xaqueue.spark.checkpoint import Checkpoint
from xaqueue.spark.ingest_target import DEAD_LETTERS, IngestedBatch, Target, TargetRecord, check_checkpoint, open_target

DAY = "queue=orders/day=2026-11-21"
RECORD = TargetRecord("/data/space", "orders", {"type": "struct", "fields": []}, query="q")
OFFSETS = '{"seq": 3}'


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


def stage(target: Target, root: Path, number: int, rows: list[int], dead: list[int]) -> IngestedBatch:
    """What Spark would write."""
    staged = root / target.stage(number)
    for part, seqs in (("rows", rows), ("dead", dead)):
        if seqs:
            directory = staged / part / DAY
            directory.mkdir(parents=True)
            (directory / "part-0.parquet").write_text(" ".join(map(str, seqs)))
    return IngestedBatch(len(rows), len(dead))


def attempt(
    root: Path, run: str, kill_after: int | None, rows: list[int], dead: list[int], unsynced: set[str] | None = None
) -> DeadlyFileSystem:
    """One life of the process: it finds batch 1 in place, or writes it. ``unsynced``: goes from life to life."""
    fs = DeadlyFileSystem(root, kill_after)
    fs.unsynced_names = set() if unsynced is None else unsynced
    try:
        target = Target(fs, "target", ".target.staging", run)
        target.prepare()
        if target.record() != RECORD:
            target.write_record(RECORD)
        if target.batch(1, OFFSETS) is None:
            target.place(1, OFFSETS, stage(target, root, 1, rows, dead))
        target.end()
    finally:
        fs.close()
    return fs


def seen(table: Path) -> list[int]:
    """What a reader of Parquet finds below the directory: it passes over names that begin with _ or a point."""
    found: list[int] = []
    for path in table.iterdir() if table.is_dir() else ():
        if path.name[0] in "_.":
            continue
        found += seen(path) if path.is_dir() else map(int, path.read_text().split())
    return sorted(found)


def kills(root: Path, rows: list[int], dead: list[int]) -> Iterator[tuple[int, set[str]]]:
    """Each call in turn is the last, with the directories that weren't synced then; ends with the first survivor."""
    for calls in count():
        directory, unsynced = root / str(calls), set[str]()
        directory.mkdir()
        try:
            attempt(directory, "first", calls, rows, dead, unsynced)
        except Killed:
            yield calls, unsynced
        else:
            return


@pytest.mark.parametrize(("rows", "dead"), [([1, 2], [3]), ([], [1, 2, 3])], ids=str)
def test_a_kill_at_every_call(tmp_path: Path, rows: list[int], dead: list[int]) -> None:
    killed = 0
    for killed, unsynced in kills(tmp_path, rows, dead):
        place = tmp_path / str(killed)
        assert seen(place / "target") in ([], rows)
        assert seen(place / "target" / DEAD_LETTERS) in ([], dead)
        if rows and seen(place / "target") == rows:
            assert seen(place / "target" / DEAD_LETTERS) == dead
        fs = attempt(place, "second", None, rows, dead, unsynced)
        assert fs.unsynced_names == set()
        assert (seen(place / "target"), seen(place / "target" / DEAD_LETTERS)) == (rows, dead)
        assert not (place / ".target.staging").exists()
    assert killed > 20


def test_a_try_that_has_other_dead_letters_replaces_them_all(tmp_path: Path) -> None:
    """As with a schema that has grown meanwhile: a message is a row or a dead letter, never both."""
    for killed, _ in kills(tmp_path, [1], [2, 3]):
        place = tmp_path / str(killed)
        in_place = seen(place / "target") == [1]
        attempt(place, "second", None, [1, 2], [3])
        wanted = ([1], [2, 3]) if in_place else ([1, 2], [3])
        assert (seen(place / "target"), seen(place / "target" / DEAD_LETTERS)) == wanted
        attempt(place, "third", None, [1, 2, 3], [])
        assert (seen(place / "target"), seen(place / "target" / DEAD_LETTERS)) == wanted


def test_dead_letters_of_a_try_go_with_it(tmp_path: Path) -> None:
    seen_dead = []
    for killed, _ in kills(tmp_path, [1], [2]):
        place = tmp_path / str(killed)
        if seen(place / "target") or not seen(place / "target" / DEAD_LETTERS):
            continue
        seen_dead.append(killed)
        attempt(place, "second", None, [1, 2], [])
        assert (seen(place / "target"), seen(place / "target" / DEAD_LETTERS)) == ([1, 2], [])
    assert seen_dead


def ingest_files(root: Path, kill_after: int | None, unsynced: set[str]) -> None:
    """One life of an ingest without Spark: four messages, in two commits of a directory of files."""
    fs = DeadlyFileSystem(root, kill_after)
    fs.unsynced_names = unsynced
    schema = pa.schema([("seq", pa.int64())])
    try:
        table = ParquetTable(fs, root, "orders", "target")
        if table.schema is None:
            table.create(schema)
        for upto in (2, 4):
            assert not unsynced  # nothing is told to the queue before
            if table.refresh() < upto:
                table.commit(pa.table({"seq": [upto - 1, upto]}, schema), upto)
    finally:
        fs.close()


def numbers_in(target: Path) -> list[int]:
    files = sorted(target.glob("*.parquet"))
    return [seq for path in files for seq in pq.read_table(path)["seq"].to_pylist()]


def test_files_of_an_ingest_without_spark(tmp_path: Path) -> None:
    """Killed at each call: a reader sees commits whole, each once, and the next life finds where they end."""
    for calls in count():
        place, unsynced, target = tmp_path / str(calls), set[str](), tmp_path / str(calls) / "target"
        place.mkdir()
        with suppress(Killed):
            ingest_files(place, calls, unsynced)
            break
        assert numbers_in(target) in ([], [1, 2], [1, 2, 3, 4])
        ingest_files(place, None, unsynced)
        assert numbers_in(target) == [1, 2, 3, 4]
        assert {path.suffix for path in target.iterdir()} == {".parquet"}
    assert calls > 10


def test_all_is_on_disk_when_spark_may_go_on(tmp_path: Path) -> None:
    fs = attempt(tmp_path, "first", None, [1, 2], [3])
    assert fs.unsynced_names == set()


def test_a_batch_of_other_offsets_is_not_taken_for_this_one(tmp_path: Path) -> None:
    attempt(tmp_path, "first", None, [1, 2], [3])
    target = Target(DirectoryFileSystem(tmp_path), "target", ".target.staging", "second")
    assert target.batch(1, OFFSETS) == IngestedBatch(2, 1)
    assert target.batch(2, OFFSETS) is None
    with pytest.raises(OperationalError, match=r"restored from an earlier copy.*another target"):
        target.batch(1, '{"seq": 4}')


def test_a_target_is_new_or_empty_or_ours(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "data.csv").write_text("x")
    with pytest.raises(InvalidArgument, match=r"is not empty .*data\.csv.*new or empty"):
        open_target(foreign).__enter__()
    assert [path.name for path in foreign.iterdir()] == ["data.csv"]
    with pytest.raises(InvalidArgument, match="is no directory"):
        open_target(foreign / "data.csv").__enter__()
    with open_target(tmp_path / "some" / "where") as (root, target):
        assert root == tmp_path / "some" / "where"
        with pytest.raises(OperationalError, match="another process ingests"):
            open_target(root).__enter__()
        target.write_record(RECORD)
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["where"]
    with open_target(tmp_path / "some" / "where") as (_, target):
        assert target.record() == RECORD


def test_a_target_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "_ingest.json").write_text('{"format": 2}')
    with open_target(tmp_path) as (_, target), pytest.raises(InvalidArgument, match="a format that this xaqueue"):
        target.record()
    (tmp_path / "_ingest.json").write_text("{")
    with open_target(tmp_path) as (_, target), pytest.raises(OperationalError, match="is damaged: restore"):
        target.record()


def checkpoint(path: Path, query: str | None, commits: int = 0) -> Checkpoint:
    path.mkdir()
    if query is not None:
        (path / "metadata").write_text(f'{{"id":"{query}"}}')
    (path / "commits").mkdir()
    for number in range(commits):
        (path / "commits" / str(number)).write_text("v1\n{}")
    return Checkpoint(path)


@pytest.mark.parametrize(
    ("found", "commits", "remembered", "said"),
    [
        (None, 0, None, None),
        ("a", 0, None, None),
        ("a", 3, "a", None),
        ("a", 1, None, "whose rows are not in"),
        (None, 0, "a", "whose checkpoint is not in"),
        ("a", 3, "b", "another stream"),
    ],
)
def test_checkpoint_and_target_go_together(
    tmp_path: Path, found: str | None, commits: int, remembered: str | None, said: str | None
) -> None:
    made = checkpoint(tmp_path / "checkpoint", found, commits)
    if said is None:
        check_checkpoint(made, remembered, tmp_path)
        return
    with pytest.raises(InvalidArgument, match=said):
        check_checkpoint(made, remembered, tmp_path)


def test_the_offsets_of_a_batch_are_hardened_as_spark_wrote_them(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "checkpoint", "a")
    (tmp_path / "checkpoint" / "offsets").mkdir()
    (tmp_path / "checkpoint" / "offsets" / "7").write_text('v1\n{"batchWatermarkMs":0}\n{"seq":9}')
    assert made.offsets(7) == '{"seq":9}'
    made.harden(7)
    with pytest.raises(FileNotFoundError):
        made.offsets(8)
