"""A batch appears in a target by one rename of its directory, and appears once, however often it is tried.

    TARGET/
      batch=0000000007/queue=orders/day=2026-11-21/*.parquet                 rows; _batch.json says what the batch is
      _dead_letters/batch=0000000007/queue=orders/day=2026-11-21/*.parquet   its messages that did not parse
      _ingest.json                                                           what goes into this target
      _lock, _checkpoint/                                                    of the process at work; Spark's own
    .TARGET.staging/<run>/0000000007/                                        what is being written

A reader lists batches whole or not at all. Staging is beside the target, because Arrow's readers walk through all that
is in it and fail where a directory goes away meanwhile; in the target (_staging) only where that is a mount point. What
is renamed was hardened before, and Spark's offsets of the batch with it. A crash leaves, step by step:

1. staged files: the next run removes them, and the batch is written again. Each run stages in a directory of its own,
   so a Spark that outlives its driver for a moment writes where nobody looks.
2. dead letters in place, rows not: they are replaced by those of the next try, which has the same messages.
3. rows in place, which is the commit point: the next try finds the batch with its offsets, and writes nothing.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.modes import BY_UMASK
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.spark.checkpoint import Checkpoint

RECORD = "_ingest.json"
BATCH = "_batch.json"
LOCK = "_lock"
CHECKPOINT = "_checkpoint"
DEAD_LETTERS = "_dead_letters"
ROWS, DEAD = "rows", "dead"
"""Where a batch is staged, in the directory that ``stage`` gives."""
FORMAT = 1


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """What goes into a target: ``schema`` is Spark's JSON of it, ``query`` the id that Spark's checkpoint has."""

    space: str
    queue: str
    schema: dict[str, Any]
    keep_body: bool = False
    query: str | None = None


@dataclass(frozen=True, slots=True)
class IngestedBatch:
    """How many messages of a batch are in place."""

    rows: int
    dead_letters: int


class Target:
    """A directory of Parquet files that one process writes. All of its changes go through the port."""

    def __init__(self, fs: FileSystem, name: str, staging: str, run: str) -> None:
        """name, staging: the target's and the staging directory's path in the port. Neither has to exist."""
        self._fs = fs
        self._name = name
        self._staging = staging
        self._run = f"{staging}/{run}"

    def prepare(self) -> None:
        """Makes what is missing, and removes what earlier runs staged."""
        for path in (self._name, self._staging):
            if not self._fs.is_dir(path):
                self._fs.make_dir(path)
        self._fs.sync_dir("")
        for run in self._fs.list(self._staging):
            self._remove(f"{self._staging}/{run}")
        self._fs.make_dir(self._run)

    def record(self) -> TargetRecord | None:
        path = f"{self._name}/{RECORD}"
        if not self._fs.exists(path):
            return None
        document = _json(self._fs.read(path), path)
        if document.pop("format", None) != FORMAT:
            raise InvalidArgument(f"{path} is of a format that this xaqueue does not know: choose another target")
        return TargetRecord(**document)

    def write_record(self, record: TargetRecord) -> None:
        """Durable, and never half of it."""
        new, path = f"{self._run}/{RECORD}", f"{self._name}/{RECORD}"
        self._fs.create(new, [json.dumps({"format": FORMAT, **asdict(record)}, indent=1).encode()])
        self._fs.sync_file(new)
        self._fs.rename(new, path)
        self._fs.sync_dir(self._name)

    def stage(self, number: int) -> str:
        """An empty directory, by its path in the port, for the files of a batch below ``rows`` and ``dead``."""
        path = f"{self._run}/{number:010d}"
        if self._fs.is_dir(path):
            self._remove(path)
        self._fs.make_dir(path)
        for part in (ROWS, DEAD):
            self._fs.make_dir(f"{path}/{part}")
        return path

    def batch(self, number: int, offsets: str) -> IngestedBatch | None:
        """A batch that is in place already, on disk from here on.

        Raises OperationalError where it is another one than that of ``offsets``: the checkpoint was put back.
        """
        path = f"{self._batch(number)}/{BATCH}"
        if not self._fs.exists(path):
            return None
        document = _json(self._fs.read(path), path)
        if document["offsets"] != offsets:
            raise OperationalError(
                f"{self._batch(number)} holds other messages than batch {number} of the checkpoint: the checkpoint "
                "was restored from an earlier copy. Restore the later one, or ingest into another target"
            )
        dead_letters = f"{self._name}/{DEAD_LETTERS}"
        for directory in (dead_letters, self._name) if self._fs.is_dir(dead_letters) else (self._name,):
            self._fs.sync_dir(directory)  # a try that was killed may have ended between rename and sync
        return IngestedBatch(document["rows"], document["dead_letters"])

    def place(self, number: int, offsets: str, ingested: IngestedBatch) -> None:
        """What is staged for this batch becomes visible. Rows come last, with them the batch is there; not one without
        a message.
        """
        staged = f"{self._run}/{number:010d}"
        if not ingested.rows and not ingested.dead_letters:
            self._remove(staged)
            return
        document = {"offsets": offsets, **asdict(ingested)}
        self._fs.create(f"{staged}/{ROWS}/{BATCH}", [json.dumps(document, indent=1).encode()])
        for part in (ROWS, DEAD):
            self._harden(f"{staged}/{part}")
        self._place_dead_letters(number, staged, ingested.dead_letters)
        self._fs.rename(f"{staged}/{ROWS}", self._batch(number))
        self._fs.sync_dir(self._name)
        self._remove(staged)

    def end(self) -> None:
        """Removes what this run has staged."""
        self._remove(self._run)
        if not self._fs.list(self._staging):
            self._fs.remove_dir(self._staging)

    def _batch(self, number: int) -> str:
        return f"{self._name}/batch={number:010d}"

    def _place_dead_letters(self, number: int, staged: str, count: int) -> None:
        directory = f"{self._name}/{DEAD_LETTERS}"
        if not self._fs.is_dir(directory):
            if not count:
                return
            self._fs.make_dir(directory)
            self._fs.sync_dir(self._name)
        path = f"{directory}/batch={number:010d}"
        if self._fs.is_dir(path):  # of a try that ended before its rows were in place
            self._fs.rename(path, f"{staged}/replaced")
        if count:
            self._fs.rename(f"{staged}/{DEAD}", path)
        self._fs.sync_dir(directory)

    def _harden(self, path: str) -> None:
        for found, is_dir in self._walk(path):
            (self._fs.sync_dir if is_dir else self._fs.sync_file)(found)

    def _remove(self, path: str) -> None:
        """As far as it can be: a Spark that outlives its driver may still be at work in it, and the next run tries."""
        try:
            for found, is_dir in self._walk(path):
                (self._fs.remove_dir if is_dir else self._fs.unlink)(found)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise

    def _walk(self, path: str) -> Iterator[tuple[str, bool]]:
        """All files and directories and whether it is one, each directory behind what is in it."""
        for name in self._fs.list(path):
            if self._fs.is_dir(f"{path}/{name}"):
                yield from self._walk(f"{path}/{name}")
            else:
                yield f"{path}/{name}", False
        yield path, True


@contextmanager
def open_target(path: str | os.PathLike[str]) -> Iterator[tuple[Path, Target]]:
    """A target that this process has locked, and its real path; it is made where it is missing.

    Raises InvalidArgument for a directory with anything else in it, OperationalError where another process is at work.
    """
    root = Path(path).resolve()
    _check_ours(root)
    root.mkdir(parents=True, exist_ok=True)
    staging = f"{root.name}/_staging" if root.is_mount() else f".{root.name}.staging"
    with ExitStack() as stack:
        lock = FileLock(root / LOCK)
        stack.callback(lock.release)
        if not lock.acquire():
            raise OperationalError(f"another process ingests into {root}: wait until it has ended, or end it")
        parent = DirectoryFileSystem(root.parent, keep_unsynced=False, modes=BY_UMASK)
        stack.callback(parent.close)
        target = Target(parent, root.name, staging, fresh_id().hex())
        target.prepare()
        stack.callback(target.end)
        yield root, target


def _check_ours(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise InvalidArgument(f"{root} is no directory: name one that is new, empty, or was made by `xaqueue ingest`")
    if root.is_dir() and not (root / RECORD).exists():
        foreign = sorted(set(os.listdir(root)) - {LOCK, CHECKPOINT})  # noqa: PTH208
        if foreign:
            raise InvalidArgument(
                f"{root} is not empty and was not made by `xaqueue ingest` (it has {foreign[0]}): "
                "name a directory that is new or empty"
            )


def check_checkpoint(checkpoint: Checkpoint, query: str | None, target: Path) -> None:
    """InvalidArgument unless checkpoint and target are of one stream. ``query``: the id that the target remembers."""
    found = checkpoint.query()
    if query is None and checkpoint.latest() is None:
        return  # the first batch is not in place yet
    if query is None:
        raise InvalidArgument(
            f"{checkpoint.path} is the checkpoint of a stream whose rows are not in {target}: "
            "name another checkpoint, or the target that it belongs to"
        )
    if found is None:
        raise InvalidArgument(
            f"{target} was written by a stream whose checkpoint is not in {checkpoint.path}: name it with "
            "--checkpoint; if it is lost, ingest into another target"
        )
    if found != query:
        raise InvalidArgument(
            f"{target} was written by another stream than that of {checkpoint.path}: "
            "name its checkpoint with --checkpoint, or another target"
        )


def written(directory: Path) -> int:
    """Rows in the Parquet files below a directory, as their footers say."""
    files = (path for path in directory.rglob("*.parquet") if not path.name.startswith("."))
    return sum(pq.read_metadata(path).num_rows for path in files)


def _json(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise OperationalError(f"{path} is damaged: restore it from a copy, or ingest into another target")
    return document
