"""What has left queues becomes Parquet: a process beside the owner, ``python -m xaqueue.lake.archive DIRECTORY``.

The owner moves what is to be kept to ``archive/`` as the files that it is, and knows nothing of Parquet. This process
goes over these files and is alone at it:

    what a run that was killed left half written goes
    messages are read, each bit checked, and written to a file beside its place, one for each day
    the file system is synced: what left its queue is out of it for good, and what was written is whole
    each file takes its name, and its directory is synced
    only then the files of the messages go, and what said who took them

So a message is in the archive's files, in Parquet, or for a moment in both, whatever a kill cuts off: the next run
finds by its number what is in Parquet already. What is damaged stays where it is, and is reported. Small files of a day
become one by the same rule.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xaqueue.core.model import layout
from xaqueue.core.model.block import split_message
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.format import check_recovered, read_format
from xaqueue.core.model.layout import ARCHIVE, RANGE_BITS, RANGE_SIZE
from xaqueue.core.model.message_block import check_block
from xaqueue.core.model.message_name import ID_DIGITS, parse_any
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.owner.record import find_group, open_to
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.core.storage.modes import Modes
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.errors import DamagedBlock, Error, InvalidArgument, SpaceError
from xaqueue.features.streams.message_files import whole_table
from xaqueue.features.streams.record import archived_path
from xaqueue.features.streams.taken import decode_taken, meets, parse_taken, taken_directory
from xaqueue.lake.archive_files import KeptFile, KeptFiles, KeptRange, queues_kept
from xaqueue.lake.archive_tables import TableFile, Tables, merged, queue_directory, table_name
from xaqueue.lake.batches import record_batches
from xaqueue.lake.columns import HOUSE, MORE, TAKEN, Rows
from xaqueue.lake.scan import chosen
from xaqueue.offline.spans import Found

FILE_ROWS, FILE_BYTES = 1_000_000, 256 * 1024 * 1024
"""A run publishes after so much, and goes on."""
GROUP_ROWS, GROUP_BYTES = 100_000, 64 * 1024 * 1024
"""Of a row group; what is not written is in memory."""
SMALL_BYTES, MOST_SMALL = 64 * 1024 * 1024, 8
"""More small files of a day than so many become one."""
SETTLED_S = 600.0
"""A record of who took messages that are nowhere goes when it is so old: they may be on their way."""
LOCK = f"{ARCHIVE}/.lock"
COLUMNS = chosen([*HOUSE, *MORE, *TAKEN], archived=True)

log = logging.getLogger("xaqueue")


@dataclass(slots=True)
class Archived:
    """What a run did."""

    messages: int = 0
    files: int = 0
    merged: int = 0
    """Files that became one with others."""
    wrong: list[str] = field(default_factory=list)
    """What stays in the way, each with its path."""


def archive(space: str | os.PathLike[str], queues: Sequence[str] = (), fs: FileSystem | None = None) -> Archived:
    """Brings what left these queues, or all, into Parquet. Raises SpaceError, also where another one is at it, OSError,
    UnknownQueue."""
    root, done = os.path.realpath(space), Archived()
    read_format(root)
    check_recovered(root)
    for queue in {*queues}.difference(queues_kept(root)):
        usable_definitions(root)[0].find(queue)
    with _alone(root) as is_alone:
        if is_alone:
            files = fs or DirectoryFileSystem(root, keep_unsynced=False, modes=_modes(root))
            for queue in queues or queues_kept(root):
                try:
                    _Queue(files, root, queue, done).run()
                except DamagedBlock as damage:
                    done.wrong.append(str(damage))
                    log.warning("[message-damaged] what left queue %s stays in the archive: %s", queue, damage)
    return done


def _modes(root: str) -> Modes:
    group = None
    with suppress(InvalidArgument):
        group = find_group(usable_definitions(root)[0].readers)
    return open_to(Path(root), group)


@contextmanager
def _alone(root: str) -> Iterator[bool]:
    """False where there is nothing. Raises SpaceError."""
    path = Path(root, LOCK)
    if not path.parent.is_dir():
        yield False
        return
    lock = FileLock(path)
    try:
        if not lock.acquire():
            raise SpaceError(f"another process brings what left the queues of {root} into Parquet: wait for it")
        yield True
    finally:
        lock.release()


class _Day:
    """A file that is being written."""

    def __init__(self, fs: FileSystem, root: str, directory: str, schema: pa.Schema) -> None:
        self.temporary = f"{directory}/.new"
        self.directory = directory
        fs.create(self.temporary, [])
        self._file = pa.OSFile(f"{root}/{self.temporary}", "wb")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd", write_page_checksum=True)
        self._held: list[pa.Table] = []
        self.first = self.last = 0
        self.rows = self._held_rows = self._held_bytes = 0

    def add(self, table: pa.Table) -> None:
        self.first, self.last = self.first or table["seq"][0].as_py(), table["seq"][-1].as_py()
        self._held.append(table)
        self.rows += table.num_rows
        self._held_rows += table.num_rows
        self._held_bytes += table.nbytes
        if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=self._held_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._file.close()


class _Queue:
    def __init__(self, fs: FileSystem, root: str, queue: str, done: Archived) -> None:
        self._fs, self._root, self._queue, self._done = fs, root, queue, done
        self._kept, self._tables = KeptFiles(root, queue), Tables(root, queue)
        self._days: dict[str, _Day] = {}
        self._written: list[KeptFile] = []
        """Their messages are in Parquet once what is being written has its name."""
        self._damaged: set[str] = set()
        self._bytes = 0

    def run(self) -> None:
        self._sweep()
        told = self._records()
        for number in self._kept.ranges(with_leaving=False):
            self._bring(self._kept.range(number, with_leaving=False))
            if self._bytes >= FILE_BYTES or sum(day.rows for day in self._days.values()) >= FILE_ROWS:
                self._publish()
        self._publish()
        self._remove_records(told)
        for day, files in _by_day(self._tables.files()).items():
            self._merge(day, [one for one in files if self._size(one) < SMALL_BYTES])

    # What a kill has left

    def _sweep(self) -> None:
        for day in listed(self._fs, queue_directory(self._queue)):
            discard(self._fs, f"{queue_directory(self._queue)}/{day}/.new")
        for files in _by_day(self._tables.files()).values():
            for one in files:
                around = [
                    other for other in files if other != one and other.after <= one.after and one.upto <= other.upto
                ]
                if around and self._numbers(one) <= set[int]().union(*map(self._numbers, around)):
                    self._fs.unlink(self._path(one))  # it became one with others
                    files = [other for other in files if other != one]

    def _numbers(self, one: TableFile) -> set[int]:
        return {seq for table in merged([self._tables.path(one)], ["seq"]) for seq in table["seq"].to_pylist()}

    # From files of messages

    def _bring(self, of: KeptRange) -> None:
        first = of.number << RANGE_BITS
        there = self._tables.ids(first - 1, first + RANGE_SIZE - 1) if of.files else {}
        new, files = [], [one for one in of.files if not self._is_another(of._replace(files=[one]), there)]
        for one in files:
            bits = sum(1 << seq - one.named.first for seq in there if one.named.first <= seq <= one.named.last)
            unwanted = one.unwanted | bits
            if unwanted != (1 << one.named.count) - 1:
                new.append(one._replace(unwanted=unwanted))
        rows = Rows(self._queue, self._root, taken=of.taken)
        for batch in record_batches(self._sound(self._kept.found(of._replace(files=new))), rows, COLUMNS):
            self._add(pa.Table.from_batches([batch]))
        self._written += files

    def _is_another(self, of: KeptRange, there: Mapping[int, bytes]) -> bool:
        """Whether Parquet has another message under a number of this one file, as where the space was put back without
        it: that is reported."""
        (one,) = of.files
        first = one.named.first
        kept = [seq for seq in there if first <= seq <= one.named.last and not one.unwanted >> seq - first & 1]
        found = next(self._kept.found(of), None) if kept else None
        if found is None:
            return False
        try:
            ids = whole_table(found[3]).ids if one.named.is_block else one.named.message_id
        except DamagedBlock:
            return False  # it stays for that
        for seq in kept:
            at = 16 * (seq - first)
            if there[seq] != ids[at : at + 16]:
                self._tell(first, one.name, f"number {seq} is another message in {self._tables.root}")
                return True
        return False

    def _sound(self, found: Iterator[Found]) -> Iterator[Found]:
        """Without what is damaged, which is reported, and stays where it is."""
        for seq, name, time_ns, data, unwanted in found:
            try:
                if unwanted is not None:
                    bits = self._check_block(name, data, unwanted)
                    yield seq, name, time_ns, data, bits
                    continue
                message_id, _, _ = split_message(data)
                if message_id.hex() != name[ID_DIGITS]:
                    raise DamagedBlock(f"holds message {message_id.hex()}")  # noqa: TRY301
            except DamagedBlock as damage:
                self._tell(seq, name, damage)
                continue
            yield seq, name, time_ns, data, None

    def _check_block(self, name: str, data: bytes, unwanted: bytes) -> bytes:
        named, table, bits = parse_any(name), whole_table(data), int.from_bytes(unwanted, "little")
        if named is not None:
            check_block(table, self._queue, named)
        for index in table.left(bits):
            try:
                table.body(data, index)
            except DamagedBlock as damage:
                self._tell(int(name[:16], 16), name, damage)
                bits |= 1 << index
        return bits.to_bytes(len(unwanted), "little")

    def _tell(self, seq: int, name: str, damage: object) -> None:
        path = f"{archived_path(layout.range_path(self._queue, seq))}/{name}"
        self._damaged.add(name)
        self._done.wrong.append(f"{path}: {damage}")
        log.warning("[message-damaged] %s stays in the archive: %s", path, damage)

    # Into Parquet

    def _add(self, table: pa.Table) -> None:
        days = pc.strftime(table["committed_at"], format="%Y-%m-%d")
        for day in pc.unique(days).to_pylist():
            directory = f"{queue_directory(self._queue)}/day={day}"
            if directory not in self._days:
                self._make_dir(directory)
                self._days[directory] = _Day(self._fs, self._root, directory, COLUMNS.schema)
            self._days[directory].add(table.filter(pc.equal(days, day)))
        self._bytes += table.nbytes

    def _publish(self) -> None:
        days, self._days, self._bytes = self._days, {}, 0
        for day in days.values():
            day.close()
        if self._written:
            self._fs.sync_all()
        for day in days.values():
            self._name(day)
            self._done.messages += day.rows
            self._done.files += 1
        written, self._written = self._written, []
        for one in written:
            if one.name not in self._damaged:
                self._remove(one)
        for number in dict.fromkeys(one.named.first >> RANGE_BITS for one in written):
            self._remove_range(number)

    def _name(self, day: _Day) -> str:
        self._fs.sync_file(day.temporary)
        path = f"{day.directory}/{table_name(day.first - 1, day.last)}"
        self._fs.rename(day.temporary, path)
        self._fs.sync_dir(day.directory)
        return path

    def _make_dir(self, directory: str) -> None:
        if not self._fs.is_dir(directory):
            above = directory.rpartition("/")[0]
            self._make_dir(above)
            self._fs.make_dir(directory)
            self._fs.sync_dir(above)

    # What is in Parquet goes

    def _remove(self, one: KeptFile) -> None:
        discard(self._fs, f"{archived_path(layout.range_path(self._queue, one.named.first))}/{one.name}")
        if one.named.is_block:
            discard(self._fs, archived_path(layout.gone_path(self._queue, one.named)))

    def _remove_range(self, number: int) -> None:
        """Not where the owner still moves something there."""
        directory = layout.range_path(self._queue, number << RANGE_BITS)
        if not self._fs.exists(directory):
            with suppress(OSError):
                self._fs.remove_dir(archived_path(directory))

    def _records(self) -> list[str]:
        return [name for name in listed(self._fs, taken_directory(self._queue)) if parse_taken(name) is not None]

    def _remove_records(self, names: Sequence[str]) -> None:
        """Those that tell of nothing that is in a file yet. names: as they were before the files were looked for."""
        left = self._left()
        oldest_ns = time.time_ns() - int(SETTLED_S * 1e9)
        for name in names:
            path = f"{taken_directory(self._queue)}/{name}"
            ends = parse_taken(name)
            if ends is None or (self._fs.modified_ns(path) > oldest_ns and not self._has(*ends)):
                continue
            if meets(left, *ends):
                with suppress(DamagedBlock):
                    taken = decode_taken(self._fs.read(path, layout.LAST_SEQ), self._queue)
                    if any(meets(left, *span) for span in (*taken.spans, *taken.moved)):
                        continue
                    discard(self._fs, path)
                continue
            discard(self._fs, path)

    def _has(self, first: int, last: int) -> bool:
        """Whether all of these numbers are in Parquet."""
        return last - first < RANGE_SIZE and len(self._tables.ids(first - 1, last)) == last - first + 1

    def _left(self) -> list[tuple[int, int]]:
        """First and last number of each file of messages that is there, joined, ascending."""
        spans: list[tuple[int, int]] = []
        above = layout.queue_path(self._queue)
        for place in (above, archived_path(above)):
            for directory in listed(self._fs, place):
                if layout.parse_range(directory) is not None:
                    named = map(parse_any, listed(self._fs, f"{place}/{directory}"))
                    spans += [(one.first, one.last) for one in named if one is not None]
        joined: list[tuple[int, int]] = []
        for first, last in sorted(spans):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(last, joined[-1][1])
            else:
                joined.append((first, last))
        return joined

    # Many become one

    def _merge(self, day: str, files: Sequence[TableFile]) -> None:
        if len(files) <= MOST_SMALL:
            return
        directory = f"{queue_directory(self._queue)}/day={day}"
        new = _Day(self._fs, self._root, directory, COLUMNS.schema)
        for table in merged([self._tables.path(one) for one in files], COLUMNS.schema.names):
            new.add(table.select(COLUMNS.schema.names).cast(COLUMNS.schema))
        new.close()
        path = self._name(new)
        for one in files:
            if self._path(one) != path:
                self._fs.unlink(self._path(one))
        self._done.merged += len(files)

    def _path(self, one: TableFile) -> str:
        return f"{queue_directory(self._queue)}/day={one.day}/{one.name}"

    def _size(self, one: TableFile) -> int:
        return self._fs.size(self._path(one))


def _by_day(files: Sequence[TableFile]) -> dict[str, list[TableFile]]:
    found: dict[str, list[TableFile]] = {}
    for one in files:
        found.setdefault(one.day, []).append(one)
    return found


def main(directory: str) -> int:
    """0, or 1 where something stays in the way, which is reported."""
    with suppress(OSError):
        os.nice(10)
    try:
        return 1 if archive(directory).wrong else 0
    except (Error, OSError, pa.ArrowException) as error:
        log.warning("[archive-stuck] what left the queues of %s stays as it is: %s", directory, error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
