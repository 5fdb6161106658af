"""Tables that remember, with each commit, up to which number of a queue they have its messages.

What makes an ingest exactly once is that rows and numbers are one commit, and that the numbers are asked of the table
before each: a commit that was based on an older look is refused by the format itself, whoever else ingests meanwhile.

    Parquet   a file of each queue, <key>.<upto>.parquet: written beside, synced, renamed; one process has the
              directory's lock; 0-columns.parquet has no rows and all columns
    Delta     an application transaction of each queue; another version meanwhile makes the commit fail
    Iceberg   a property of each queue, of the snapshot, and of the table, since snapshots expire; a snapshot has one
              parent, so of two who add one to the same the second fails
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.modes import BY_UMASK
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.errors import InvalidArgument, OperationalError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as Iceberg

DEAD_LETTERS = "_dead_letters"
LOCK = "_lock"
COLUMNS = "0-columns.parquet"
"""Before all others, as some readers take the columns from the first."""
_FILE = re.compile(r"(xaqueue\..+)\.(\d{19})\.parquet")
_TEMPORARY = ".new"
_KEY = b"xaqueue"
KEYS = "xaqueue:"
"""What each queue's begins with; the space's id and the queue's name follow."""
BEHIND = ["seq", "message_id", "space"]
RECENT = 20
"""Versions of a Delta table that are looked through first."""

Numbers = Mapping[str, int]
"""Up to which number a table has queues, by their keys."""
Parts = Mapping[str, pa.Table]
"""Rows, by their queues' keys."""


class Table(Protocol):
    """``schema``: None where there is none yet. ``identity``: of this table, and no other that had its name."""

    name: str
    schema: pa.Schema | None
    identity: str

    def refresh(self, keys: Iterable[str]) -> Numbers:
        """Looks at it: how far it has these queues."""

    def create(self, schema: pa.Schema) -> None:
        """Made, empty, unless somebody else was quicker."""

    def grow(self, schema: pa.Schema) -> None:
        """More columns."""

    def commit(self, parts: Parts, numbers: Numbers) -> bool:
        """Adds these rows and numbers. False where somebody else has changed it since the last look, and nothing was
        done."""

    def behind(self, key: str, after: int) -> pa.Table:
        """``BEHIND`` of messages of queues of this name, this one among them, behind a number that it has, as of the
        last look."""

    def dead_letters(self) -> Table: ...


class ParquetTable:
    """A directory of files."""

    def __init__(self, fs: FileSystem, root: Path, below: str = "") -> None:
        """fs: opened on root. below: of root the directory."""
        self._fs, self._root, self._below = fs, root, below
        self.name = str(root / below)
        self.schema: pa.Schema | None = None
        self.identity = ""
        names = self._names()
        for name in names:
            if name.endswith(_TEMPORARY):
                fs.unlink(self._path(name))
        if COLUMNS in names:
            fs.sync_dir(below)  # a run that was killed may have ended between rename and sync
            try:
                found = pq.read_schema(root / self._path(COLUMNS))
            except pa.ArrowException as damage:
                raise OperationalError(f"{self.name}/{COLUMNS} is damaged ({damage}): remove it, rows stay") from damage
            self.identity = (found.metadata or {}).get(_KEY, b"").decode()
            self.schema = found.remove_metadata()

    def refresh(self, keys: Iterable[str]) -> Numbers:
        ends: dict[str, int] = {}
        for found in filter(None, map(_FILE.fullmatch, self._names())):
            ends[found[1]] = max(ends.get(found[1], 0), int(found[2]))
        return {key: ends.get(_stem(key), 0) for key in keys}

    def create(self, schema: pa.Schema) -> None:
        if not self._fs.is_dir(self._below):
            self._fs.make_dir(self._below)
        self._fs.sync_dir("")
        self.identity = fresh_id().hex()
        self.grow(schema)

    def grow(self, schema: pa.Schema) -> None:
        self._put({COLUMNS: schema.with_metadata({_KEY: self.identity.encode()}).empty_table()})
        self.schema = schema

    def commit(self, parts: Parts, numbers: Numbers) -> bool:
        files, names = dict[str, pa.Table](), {*self._names()}
        for key, rows in parts.items():
            name = f"{_stem(key)}.{numbers[key]:019}.parquet"
            before = [pq.read_table(self._root / self._path(name))] if name in names else []
            files[name] = pa.concat_tables([*before, rows])
        self._put(files)
        return True

    def _put(self, files: Mapping[str, pa.Table]) -> None:
        for name, rows in files.items():
            sink, path = pa.BufferOutputStream(), self._path(name)
            pq.write_table(rows, sink, compression="zstd")
            self._fs.create(path + _TEMPORARY, [sink.getvalue().to_pybytes()])
            self._fs.sync_file(path + _TEMPORARY)
            self._fs.rename(path + _TEMPORARY, path)
        self._fs.sync_dir(self._below)

    def behind(self, key: str, after: int) -> pa.Table:
        files = filter(None, map(_FILE.fullmatch, self._names()))
        paths = [self._root / self._path(one[0]) for one in files if one[1] == _stem(key) and int(one[2]) > after]
        return pa.concat_tables([pq.read_table(path, columns=BEHIND) for path in paths])

    def dead_letters(self) -> Table:
        return ParquetTable(self._fs, self._root, DEAD_LETTERS)

    def _names(self) -> list[str]:
        return self._fs.list(self._below) if self._fs.is_dir(self._below) else []

    def _path(self, name: str) -> str:
        return f"{self._below}/{name}" if self._below else name


def _stem(key: str) -> str:
    """Of the files that have this queue."""
    return key.replace(":", ".")


class DeltaLake:
    """A Delta table, in a directory or an object store."""

    def __init__(self, target: str) -> None:
        self.name = target
        self.schema: pa.Schema | None = None
        self.identity = ""
        self._found: DeltaTable | None = None
        self._numbers: dict[str, int] = {}
        self._looked = 0
        """At which version these are what it has, of the queues that were asked for."""

    def refresh(self, keys: Iterable[str]) -> Numbers:
        from deltalake import DeltaTable

        if Path(self.name).is_file():
            raise InvalidArgument(f"{self.name} is no directory: name one that is new or empty")
        if not DeltaTable.is_deltatable(self.name):
            return dict.fromkeys(keys, 0)
        found = DeltaTable(self.name)  # anew: another one may be in its place
        identity, version = str(found.metadata().id), found.version()
        if identity != self.identity:
            self._numbers.clear()
        elif version > self._looked:
            for one in reversed(found.history(version - self._looked)):
                if one.get("operation") == "RESTORE":
                    self._numbers.clear()
                self._numbers |= {key: int(one[key]) for key in one if key.startswith(KEYS)}
        self._found, self._looked, self.identity = found, version, identity
        self.schema = pa.schema(found.schema().to_arrow())
        wanted = [*keys]
        if missing := {*wanted} - self._numbers.keys():
            self._numbers |= self._asked(found, missing)
        return {key: self._numbers[key] for key in wanted}

    def _asked(self, found: DeltaTable, keys: set[str]) -> Numbers:
        """Of the rows that readers see: a RESTORE to an earlier version leaves the transactions as they are."""
        numbers: dict[str, int] = {}
        newest = top = found.version()
        history: list[dict[str, Any]] = []
        for limit in (RECENT, None):
            history, top = found.history(limit), newest
            for one in history:
                if one["version"] > top:
                    continue
                numbers |= {key: int(one[key]) for key in keys - numbers.keys() if key in one}
                if len(numbers) == len(keys):
                    return numbers
                if one.get("operation") == "RESTORE":
                    wanted = one["operationParameters"].get("version")
                    if wanted is None:
                        raise OperationalError(f"{self.name} was restored to a time: restore it to a version")
                    top = int(wanted)
        left = keys - numbers.keys()
        if top == newest:
            return numbers | {key: found.transaction_version(key) or 0 for key in left}
        if history[-1]["version"] == 0:  # nothing of these queues was in it
            return numbers | dict.fromkeys(left, 0)
        raise OperationalError(
            f"{self.name} was restored to version {top}, and its log does not tell what that has of the queue: "
            "restore it to a later version, or name another table"
        )

    def create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        try:
            if "://" not in self.name:
                _check_empty(Path(self.name), "_delta_log".__eq__)  # which a kill before the first version leaves
            DeltaTable.create(self.name, Schema.from_arrow(schema), mode="error")
        except (InvalidArgument, DeltaError):  # somebody else may have been quicker, before either
            if not DeltaTable.is_deltatable(self.name):
                raise
        self.refresh(())

    def grow(self, schema: pa.Schema) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.name, schema.empty_table(), mode="append", schema_mode="merge")

    def commit(self, parts: Parts, numbers: Numbers) -> bool:
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        assert self._found is not None
        properties = CommitProperties(
            custom_metadata={key: str(numbers[key]) for key in parts},
            app_transactions=[Transaction(key, numbers[key]) for key in parts],
            max_commit_retries=0,  # on no version but that which was looked at: another may be one that was put back
        )
        try:
            write_deltalake(self._found, _joined(parts), mode="append", commit_properties=properties)
        except CommitFailedError:
            return False
        _harden(self.name)
        return True

    def behind(self, key: str, after: int) -> pa.Table:
        assert self._found is not None
        wanted = (pc.field("seq") > after) & (pc.field("queue") == queue_of(key))
        return self._found.to_pyarrow_dataset().to_table(BEHIND, filter=wanted)

    def dead_letters(self) -> Table:
        return DeltaLake(f"{self.name.rstrip('/')}/{DEAD_LETTERS}")


class IcebergTable:
    """A table of a catalogue, whichever that is."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog, self.name = catalog, name
        self.schema: pa.Schema | None = None
        self.identity = ""
        self._found: Iceberg | None = None

    def refresh(self, keys: Iterable[str]) -> Numbers:
        """Of the snapshot that readers see, which a person may have put back to an earlier one."""
        from pyiceberg.exceptions import NoSuchTableError

        wanted = {*keys}
        try:
            self._found = found = self._catalog.load_table(self.name)
        except NoSuchTableError:
            return dict.fromkeys(wanted, 0)
        self.schema, self.identity = found.schema().as_arrow(), str(found.metadata.table_uuid)
        snapshots = {one.snapshot_id: one for one in found.metadata.snapshots}
        snapshot, numbers, is_whole = found.current_snapshot(), dict[str, int](), False
        while snapshot is not None and len(numbers) < len(wanted):
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            numbers = {key: int(said[key]) for key in wanted & said.keys()} | numbers
            is_whole = snapshot.sequence_number == 1  # else those before the last one that there is have expired
            snapshot = snapshots.get(snapshot.parent_snapshot_id or -1)
        rest = {} if is_whole else found.properties
        return {key: numbers.get(key, int(rest.get(key, 0))) for key in wanted}

    def create(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        with suppress(TableAlreadyExistsError):
            self._catalog.create_table(self.name, schema=schema)
        self.refresh(())

    def grow(self, schema: pa.Schema) -> None:
        with self._catalog.load_table(self.name).update_schema() as columns:
            columns.union_by_name(schema)

    def commit(self, parts: Parts, numbers: Numbers) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        from xaqueue.lake.catalog import OneSnapshot

        assert self._found is not None
        said = {key: str(numbers[key]) for key in parts}
        try:
            with OneSnapshot(self._found) as transaction:
                transaction.append(_joined(parts), snapshot_properties=said)
                transaction.set_properties(said)
        except CommitFailedException:
            return False
        _harden(self._found.location())
        return True

    def behind(self, key: str, after: int) -> pa.Table:
        assert self._found is not None
        wanted = f"seq > {after} and queue = '{queue_of(key)}'"
        return self._found.scan(wanted, selected_fields=tuple(BEHIND)).to_arrow()

    def dead_letters(self) -> Table:
        return IcebergTable(self._catalog, f"{self.name}{DEAD_LETTERS}")


def queue_of(key: str) -> str:
    return key.rpartition(":")[2]


def _joined(parts: Parts) -> pa.Table:
    return pa.concat_tables(parts.values())


def open_table(to: str, target: str, catalog: str | None, held: ExitStack) -> Table:
    """held: what it needs until the end.

    Raises InvalidArgument for a place that is taken, OperationalError where another process has it.
    """
    if to == "delta":
        return DeltaLake(target)
    if to == "iceberg":
        from xaqueue.lake.catalog import catalog_named

        if "." not in target.strip("."):
            raise InvalidArgument(
                f"{target} is no name of an Iceberg table: namespace.table is wanted, in the catalogue of --catalog"
            )
        found = catalog_named(catalog)
        said = found.properties
        if not said.get("uri", "").startswith("http") and _path_of(said.get("warehouse", "")) is not None:
            said.setdefault("py-io-impl", "xaqueue.lake.iceberg.SyncedFiles")
        return IcebergTable(found, target)
    root = Path(target).resolve()
    _check_empty(root, _is_ours)
    root.mkdir(parents=True, exist_ok=True)
    _harden(str(root.parent))
    lock = FileLock(root / LOCK)
    held.callback(lock.release)
    if not lock.acquire():
        raise OperationalError(f"another process ingests into {root}: wait until it has ended, or end it")
    fs = DirectoryFileSystem(root, keep_unsynced=False, modes=BY_UMASK)
    held.callback(fs.close)
    return ParquetTable(fs, root)


def _check_empty(root: Path, ours: Callable[[str], bool]) -> None:
    """InvalidArgument for a directory that has anything else in it."""
    if root.exists() and not root.is_dir():
        raise InvalidArgument(f"{root} is no directory: name one that is new or empty, or an earlier ingest's")
    foreign = [name for name in sorted(os.listdir(root)) if not ours(name)] if root.is_dir() else []  # noqa: PTH208
    if foreign:
        raise InvalidArgument(
            f"{root} is not empty and was not made by an ingest of this kind (it has {foreign[0]}): "
            "name a directory that is new or empty"
        )


def _is_ours(name: str) -> bool:
    made = name.removesuffix(_TEMPORARY)
    return made in (LOCK, DEAD_LETTERS, COLUMNS) or _FILE.fullmatch(made) is not None


def _path_of(location: str) -> str | None:
    """None for what is in no directory of this machine."""
    path = location.removeprefix("file://")
    return None if "://" in path else path


def _harden(location: str) -> None:
    """What was committed in a directory of this machine is on disk: the formats' own writers sync nothing."""
    path = _path_of(location)
    if path is not None:
        fs = DirectoryFileSystem(path, keep_unsynced=False)
        try:
            fs.sync_all()
        finally:
            fs.close()
