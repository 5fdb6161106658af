"""A catalogue of PyIceberg in global transactions: messages, rows and a snapshot are there together, or not at all.

    catalog = SqlCatalog("shop", uri=URL, warehouse="file:///lake")
    parties = {"db": catalog.engine, "lake": participant(catalog, "db"), "queue": "data/shop"}
    with xaqueue.TransactionManager(parties) as tm, tm.transaction() as tx:
        found = tx["queue"].dequeue_many("orders", 1000)
        tx["lake"].load_table("lake.orders").append(table_of(found))
        tx["db"].execute(...)

A snapshot is there once the row of its table, in the catalogue's database, names the file of its metadata. That row is
changed in the transaction of the participant "db", so what commits or undoes that one does so with the snapshot. Files
are written before, under names that nobody has used; a rollback leaves them behind, and ``orphans`` finds them.

Crash safety: a local file is on the disk, with its name, when it is closed, so before the row is committed that leads
to it. What PyIceberg would remove within a transaction stays: a rollback brings back what names it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, ClassVar

try:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import PY_IO_IMPL, WAREHOUSE, InputFile, OutputFile
    from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
except ImportError as missing:
    raise ImportError(f"{missing.name} is missing: pip install 'xaqueue[lake]' brings it") from missing

from xaqueue.errors import InvalidArgument
from xaqueue.tm.participant import Within


def participant(catalog: SqlCatalog, within: str) -> Within:
    """``tx[name]`` is this catalogue, for what is done in the transaction of the participant ``within``.

    within: an Engine of SQLAlchemy, or ``xaqueue.contrib.sqlalchemy.participant``, over the catalogue's database.
    Raises InvalidArgument.
    """
    if not isinstance(catalog, SqlCatalog):
        raise InvalidArgument(
            f"{catalog!r} is no SqlCatalog: of any other catalogue the snapshots are not a database's, which commits "
            "them with its rows"
        )
    if PY_IO_IMPL in catalog.properties:
        raise InvalidArgument(f"leave {PY_IO_IMPL} out: in a transaction a catalogue's files are written by PyArrow")
    return Within(within, partial(_joined, catalog))


def _joined(catalog: SqlCatalog, lent: Any) -> SqlCatalog:
    """lent: a Connection or a Session of SQLAlchemy, or an async one. PyIceberg's own Sessions join what is begun
    there, and their commits commit nothing."""
    plain = getattr(lent, "sync_connection", None) or getattr(lent, "sync_session", lent)
    connection = plain.connection() if callable(getattr(plain, "connection", None)) else plain
    engine = getattr(connection, "engine", None)
    if engine is None:
        raise InvalidArgument(
            f"a catalogue works within a participant of SQLAlchemy, and this is a connection of "
            f"{type(lent).__module__}: give an Engine, such as the catalogue's own, as that participant"
        )
    if _database(engine.url) != _database(catalog.engine.url):
        raise InvalidArgument(
            f"the catalogue is in database {_database(catalog.engine.url)!r}, and works within a participant that is "
            f"{_database(engine.url)!r}: its snapshots can only be committed where it is"
        )
    joined = copy.copy(catalog)
    joined.engine = connection
    joined.properties = {**catalog.properties, PY_IO_IMPL: f"{__name__}.{SyncedFiles.__name__}"}
    return joined


def _database(url: Any) -> str:
    """Hosts have many names, a pooler's among them, and are not compared."""
    name = str(url.database or "")
    return os.path.realpath(name) if url.get_backend_name() == "sqlite" else name


class SyncedFiles(PyArrowFileIO):
    """PyArrow's, as a transaction needs it: see the head of this module."""

    _safe: ClassVar[set[tuple[Path, int]]] = set()
    """Directories whose names are on the disk, as far as this process has seen to it, with their inodes' numbers: one
    that was removed, and made again by somebody else, is another one."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, ""), self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Nothing: others may see it, and after a rollback everybody does."""

    def create(self, path: Path) -> BufferedWriter:
        directory = path.parent
        is_safe = directory.is_dir() and (directory, directory.stat().st_ino) in self._safe
        chain = [directory] if is_safe else self._chain(directory)
        directory.mkdir(parents=True, exist_ok=True)
        return BufferedWriter(SyncedStream(path, partial(self.sync, chain)))

    def _chain(self, directory: Path) -> list[Path]:
        """It and those above it up to the first that is there; up to the warehouse where they are in that, for another
        process may have made them, and not synced yet."""
        stored = self.properties.get(WAREHOUSE)
        root = Path(self.parse_location(stored, self.properties)[2]) if stored else None
        above = [directory, *directory.parents]
        top = next(n for n, one in enumerate(above) if one.is_dir() and root not in one.parents)
        return above[: top + 1]

    def sync(self, chain: list[Path]) -> None:
        for directory in chain:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self._safe.add((chain[0], chain[0].stat().st_ino))


class _SyncedFile(PyArrowFile):
    def __init__(self, location: str, path: str, local: Any, files: SyncedFiles) -> None:
        super().__init__(location, path, local)
        self._files = files

    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and self.exists():
            raise FileExistsError(f"there is a file already: {self.location}")
        return self._files.create(Path(self._path))


class SyncedStream(FileIO):
    """A file that is on the disk once it is closed: the descriptor that has written it gets the error."""

    def __init__(self, path: Path, sync: Callable[[], None]) -> None:
        super().__init__(path, "wb")
        self._sync = sync

    def close(self) -> None:
        if self.closed:
            return
        try:
            os.fsync(self.fileno())
        finally:
            super().close()
        self._sync()
