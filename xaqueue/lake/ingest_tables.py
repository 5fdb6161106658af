"""Tables that remember, with each commit, up to which number of a queue they have its messages.

What makes an ingest exactly once is that rows and number are one commit, and that the number is asked of the table
before each: a commit that was based on an older look is refused by the format itself, whoever else ingests meanwhile.

    Parquet   a file <after>-<upto>.parquet: written beside, synced, renamed; one process has the directory's lock
    Delta     an application transaction of the version; another one's meanwhile makes it fail
    Iceberg   a property of the snapshot, and of the table, since snapshots expire; a snapshot has one parent, so of two
              who add one to the same the second fails
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
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
_FILE = re.compile(r"(\d{19})-(\d{19})\.parquet")
_TEMPORARY = ".new"
_KEY = b"xaqueue"
RECENT = 20
"""Versions of a Delta table that are looked through first."""


class Table(Protocol):
    """``schema``: None where there is none yet. ``identity``: of this table, and no other that had its name."""

    name: str
    schema: pa.Schema | None
    identity: str

    def refresh(self) -> int:
        """Looks at it: up to which number it has the queue's messages."""

    def create(self, schema: pa.Schema) -> None:
        """Made, empty, unless somebody else was quicker."""

    def grow(self, schema: pa.Schema) -> None:
        """More columns."""

    def commit(self, rows: pa.Table, upto: int) -> bool:
        """Adds these rows and the number. False where somebody else has added something since the last look, and
        nothing was done."""

    def dead_letters(self) -> Table: ...


class ParquetTable:
    """A directory of files."""

    def __init__(self, fs: FileSystem, root: Path, source: str, below: str = "") -> None:
        """fs: opened on root. source: whose messages it has. below: of root the directory."""
        self._fs, self._root, self._source, self._below = fs, root, source, below
        self.name = str(root / below)
        self.schema: pa.Schema | None = None
        self.identity = ""
        self._upto = 0
        self._last = ""
        names = fs.list(below) if fs.is_dir(below) else []
        for name in names:
            if name.endswith(_TEMPORARY):
                fs.unlink(self._path(name))
        found = max(filter(_FILE.fullmatch, names), default="")
        if found:
            fs.sync_dir(below)  # a run that was killed may have ended between rename and sync
            self.schema = pq.read_schema(root / self._path(found))
            said = json.loads((self.schema.metadata or {}).get(_KEY, b"{}"))
            self.identity, self._upto, self._last = said.get("id", ""), int(found[20:39]), self._path(found)
            if said.get("source") != source:
                raise InvalidArgument(
                    f"{self.name} has the messages of {said.get('source')}, not of {source}: name another directory"
                )
            self.schema = self.schema.remove_metadata()

    def refresh(self) -> int:
        return self._upto if self._last and self._fs.exists(self._last) else 0

    def create(self, schema: pa.Schema) -> None:
        if not self._fs.is_dir(self._below):
            self._fs.make_dir(self._below)
        self._fs.sync_dir("")
        self.identity = fresh_id().hex()
        self.grow(schema)

    def grow(self, schema: pa.Schema) -> None:
        self.commit(schema.empty_table(), self._upto)

    def commit(self, rows: pa.Table, upto: int) -> bool:
        said = json.dumps({"id": self.identity, "source": self._source})
        sink = pa.BufferOutputStream()
        pq.write_table(rows.replace_schema_metadata({_KEY: said.encode()}), sink, compression="zstd")
        path = self._path(f"{self._upto:019}-{upto:019}.parquet")
        self._fs.create(path + _TEMPORARY, [sink.getvalue().to_pybytes()])
        self._fs.sync_file(path + _TEMPORARY)
        self._fs.rename(path + _TEMPORARY, path)
        self._fs.sync_dir(self._below)
        self.schema, self._upto, self._last = rows.schema, upto, path
        return True

    def dead_letters(self) -> Table:
        return ParquetTable(self._fs, self._root, self._source, DEAD_LETTERS)

    def _path(self, name: str) -> str:
        return f"{self._below}/{name}" if self._below else name


class DeltaLake:
    """A Delta table, in a directory or an object store."""

    def __init__(self, target: str, source: str) -> None:
        self.name, self._source = target, source
        self.schema: pa.Schema | None = None
        self.identity = ""
        self._found: DeltaTable | None = None

    def refresh(self) -> int:
        from deltalake import DeltaTable

        if Path(self.name).is_file():
            raise InvalidArgument(f"{self.name} is no directory: name one that is new or empty")
        if not DeltaTable.is_deltatable(self.name):
            return 0
        self._found = DeltaTable(self.name)  # anew: another one may be in its place
        self.schema = pa.schema(self._found.schema().to_arrow())
        self.identity = str(self._found.metadata().id)
        return self._upto(self._found)

    def _upto(self, found: DeltaTable) -> int:
        """Of the rows that readers see: a RESTORE to an earlier version leaves the transactions as they are."""
        newest = top = found.version()
        history: list[dict[str, Any]] = []
        for limit in (RECENT, None):
            history = found.history(limit)
            for one in history:
                if one["version"] > top:
                    continue
                if self._source in one:
                    return int(one[self._source])
                if one["operation"] == "RESTORE":
                    wanted = one["operationParameters"].get("version")
                    if wanted is None:
                        raise OperationalError(f"{self.name} was restored to a time: restore it to a version")
                    top = int(wanted)
        if top < newest:
            if history[-1]["version"] == 0:  # nothing of the queue was in it
                return 0
            raise OperationalError(
                f"{self.name} was restored to version {top}, and its log does not tell what that has of the queue: "
                "restore it to a later version, or name another table"
            )
        return found.transaction_version(self._source) or 0

    def create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        if "://" not in self.name:
            _check_empty(Path(self.name), lambda _: False)
        try:
            DeltaTable.create(self.name, Schema.from_arrow(schema), mode="error")
        except DeltaError:
            self.refresh()
            if self.schema is None:
                raise
        self.refresh()

    def grow(self, schema: pa.Schema) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.name, schema.empty_table(), mode="append", schema_mode="merge")

    def commit(self, rows: pa.Table, upto: int) -> bool:
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        assert self._found is not None
        said, transactions = {self._source: str(upto)}, [Transaction(self._source, upto)]
        properties = CommitProperties(custom_metadata=said, app_transactions=transactions)
        try:
            write_deltalake(self._found, rows, mode="append", commit_properties=properties)
        except CommitFailedError:
            return False
        _harden(self.name)
        return True

    def dead_letters(self) -> Table:
        return DeltaLake(f"{self.name.rstrip('/')}/{DEAD_LETTERS}", self._source)


class IcebergTable:
    """A table of a catalogue, whichever that is."""

    def __init__(self, catalog: Catalog, name: str, source: str) -> None:
        self._catalog, self.name, self._source = catalog, name, source
        self.schema: pa.Schema | None = None
        self.identity = ""
        self._found: Iceberg | None = None

    def refresh(self) -> int:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self._found = found = self._catalog.load_table(self.name)
        except NoSuchTableError:
            return 0
        self.schema, self.identity = found.schema().as_arrow(), str(found.metadata.table_uuid)
        return self._upto(found)

    def _upto(self, found: Iceberg) -> int:
        """Of the snapshot that readers see, which a person may have put back to an earlier one."""
        snapshot = found.current_snapshot()
        while snapshot is not None:
            said = snapshot.summary.additional_properties.get(self._source) if snapshot.summary else None
            if said is not None:
                return int(said)
            if snapshot.sequence_number == 1:  # the table's first; of another one that begins those before expired
                return 0
            snapshot = found.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
        return int(found.properties.get(self._source, 0))

    def create(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        with suppress(TableAlreadyExistsError):
            self._catalog.create_table(self.name, schema=schema)
        self.refresh()

    def grow(self, schema: pa.Schema) -> None:
        with self._catalog.load_table(self.name).update_schema() as columns:
            columns.union_by_name(schema)

    def commit(self, rows: pa.Table, upto: int) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        from xaqueue.lake.catalog import OneSnapshot

        assert self._found is not None
        said = {self._source: str(upto)}
        try:
            with OneSnapshot(self._found) as transaction:
                transaction.append(rows, snapshot_properties=said)
                transaction.set_properties(said)
        except CommitFailedException:
            return False
        _harden(self._found.location())
        return True

    def dead_letters(self) -> Table:
        return IcebergTable(self._catalog, f"{self.name}{DEAD_LETTERS}", self._source)


def open_table(to: str, target: str, source: str, catalog: str | None, held: ExitStack) -> Table:
    """source: whose messages it is to have. held: what it needs until the end.

    Raises InvalidArgument for a place that is taken, OperationalError where another process has it.
    """
    if to == "delta":
        return DeltaLake(target, source)
    if to == "iceberg":
        from xaqueue.lake.catalog import catalog_named

        if "." not in target.strip("."):
            raise InvalidArgument(f"{target} is no name of an Iceberg table: namespace.table is wanted")
        found = catalog_named(catalog)
        said = found.properties
        if not said.get("uri", "").startswith("http") and _path_of(said.get("warehouse", "")) is not None:
            said.setdefault("py-io-impl", "xaqueue.lake.iceberg.SyncedFiles")
        return IcebergTable(found, target, source)
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
    return ParquetTable(fs, root, source)


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
    return name in (LOCK, DEAD_LETTERS) or _FILE.fullmatch(name.removesuffix(_TEMPORARY)) is not None


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
