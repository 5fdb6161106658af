"""Files of an Iceberg table that no snapshot names: what a rollback, or a killed writer, has left.

A file may be named by what is not committed yet: by a transaction that is open, or one that is prepared, and in doubt
for days. So those files are listed that are old; then the table's row is locked, which nobody gets as long as somebody
else has changed it and not ended; with it the table's metadata is read, from which all that it names follows. An old
file that is not named then never will be, but by a transaction that has written it so long ago and not changed the row
yet: the age is to be above what those take.

Files are distinguished by their last name, which every writer makes unique: whatever a path looks like
elsewhere, by a link or another scheme, no file goes whose name stands anywhere in the table's metadata.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from xaqueue.errors import InvalidArgument, RetryLater

LEAST_AGE = timedelta(hours=1)
FOLDERS = ("data", "metadata")
ELSEWHERE = ("write.data.path", "write.metadata.path")
PATIENCE_S = 10.0

Key = tuple[str, tuple[str, ...]]
"""The name of a catalogue, and that of a table in it."""


@dataclass(frozen=True, slots=True)
class Orphan:
    path: str
    """As its file system has it."""
    size_bytes: int
    modified_us: int


def orphans(catalog: Catalog, name: str, older_than: timedelta, *, remove: bool = False) -> list[Orphan]:
    """Files in the table's directory that are older, and that neither it nor another table of the catalogue names, nor,
    where that is in a database, one of another catalogue there.

    remove: they are removed. Raises InvalidArgument; RetryLater where somebody has changed the table and not ended.
    """
    if older_than < LEAST_AGE:
        raise InvalidArgument("a file younger than an hour may be one of a transaction that is at work")
    table = _load(catalog, name)
    if any(one in table.properties for one in ELSEWHERE):
        raise InvalidArgument(f"{name} has {' or '.join(ELSEWHERE)}: other tables may have their files there, too")
    fs, root = _place_of(table)
    before = datetime.now(UTC) - older_than
    listed = [
        one
        for folder in FOLDERS
        for one in fs.get_file_info(FileSelector(f"{root}/{folder}", allow_not_found=True, recursive=True))
        if one.is_file and one.mtime is not None and one.mtime < before
    ]
    there = _sharing(_tables(catalog), root)
    with _still(catalog, list(there)) as steady:
        tables = _tables(steady)
    if _sharing(tables, root) != there:
        raise RetryLater(f"a table was made, renamed or dropped meanwhile where {name} has its files: try again")
    named, found = set[str](), listed
    for one in sorted(tables, key=lambda key: key not in there):  # others may name a file that was added to them
        if found:
            named |= {path.rpartition("/")[2] for path in _named(tables[one])}
            found = [file for file in found if file.base_name not in named]
    for file in found if remove else ():
        with suppress(FileNotFoundError):  # somebody else is at it, too
            fs.delete_file(file.path)
    return [Orphan(one.path, one.size, round(one.mtime.timestamp() * 1e6)) for one in found]


def _load(catalog: Catalog, name: str | tuple[str, ...]) -> Table:
    try:
        return catalog.load_table(name)
    except (NoSuchTableError, ValueError) as error:
        raise InvalidArgument(f"catalogue {catalog.name}: {error}") from None


def _place_of(table: Table) -> tuple[FileSystem, str]:
    files = PyArrowFileIO(table.io.properties)
    scheme, host, path = files.parse_location(table.location(), files.properties)
    return files.fs_by_scheme(scheme, host), path.rstrip("/")


def _tables(catalog: Catalog) -> dict[Key, Table]:
    """All of them; of a database's also those of other catalogues in it."""
    catalogs = [catalog]
    if isinstance(catalog, SqlCatalog):
        with Session(catalog.engine) as session:
            others = session.scalars(select(IcebergTables.catalog_name).distinct()).all()
        for one in {*others} - {catalog.name}:
            catalogs.append(copy.copy(catalog))
            catalogs[-1].name = one
    return {(one.name, name): _load(one, name) for one in catalogs for name in _names(one)}


def _names(catalog: Catalog, namespace: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if namespace:
        yield from catalog.list_tables(namespace)
    for inner in catalog.list_namespaces(namespace):
        yield from _names(catalog, inner)


def _sharing(tables: Mapping[Key, Table], root: str) -> dict[Key, UUID]:
    """Those that may have files there: after a rename, and a new table under the former name, both do."""
    return {key: one.metadata.table_uuid for key, one in tables.items() if _overlap(root, _place_of(one)[1])}


def _overlap(here: str, there: str) -> bool:
    return f"{here}/".startswith(f"{there}/") or f"{there}/".startswith(f"{here}/")


@contextmanager
def _still(catalog: Catalog, names: list[Key]) -> Iterator[Catalog]:
    """The catalogue, at which nobody has a change of these tables that is not committed. Of a server's nobody has."""
    if not isinstance(catalog, SqlCatalog):
        yield catalog
        return
    until = time.monotonic() + PATIENCE_S
    with catalog.engine.connect() as connection:
        while True:
            try:
                if connection.dialect.name == "sqlite":  # which locks no rows
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                for of, name in names:
                    connection.execute(
                        select(IcebergTables.table_name)
                        .where(
                            IcebergTables.catalog_name == of,
                            IcebergTables.table_namespace == ".".join(name[:-1]),
                            IcebergTables.table_name == name[-1],
                        )
                        .with_for_update(nowait=True)
                    )
                break
            except DBAPIError as error:
                connection.rollback()
                if "lock" not in str(error.orig):  # as all of them say it
                    raise
                if time.monotonic() > until:
                    who = " or ".join(".".join(name) for _, name in names)
                    raise RetryLater(
                        f"somebody has changed {who} in a transaction that is still open, or in doubt, and may have "
                        f"written any of the rest: try again once it has ended ({error.orig})"
                    ) from error
                time.sleep(0.1)
        steady = copy.copy(catalog)
        steady.engine = connection  # type: ignore[assignment]  # a Session of it reads what it has locked
        yield steady
        connection.rollback()


def _named(table: Table) -> Iterator[str]:
    """All that the table's metadata leads to, of each of its snapshots."""
    metadata, seen = table.metadata, set()
    yield table.metadata_location
    yield from (one.metadata_file for one in metadata.metadata_log)
    yield from (one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                yield entry.data_file.file_path
