"""What has left a queue and is kept, as Parquet: ``archive/parquet/queue=<q>/day=<d>/<after>-<upto>.parquet``.

Each file is sorted by number, and holds messages of one day by the time of their commit. Those of two files lie between
each other where some left the queue later, and a file that a compaction was killed over may hold again what another one
has: whoever reads here gets each number once, and in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xaqueue.core.model.layout import ARCHIVE, LAST_SEQ
from xaqueue.errors import DamagedBlock

PARQUET = f"{ARCHIVE}/parquet"
BATCH_ROWS = 8_192
BATCH_BYTES = 4 * 1024 * 1024
_NAME = re.compile(r"([0-7][0-9a-f]{15})-([0-7][0-9a-f]{15})\.parquet")
_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)")


class TableFile(NamedTuple):
    """after, upto: numbers as in its name, which it holds at most."""

    after: int
    upto: int
    day: str
    name: str


def queue_directory(queue: str) -> str:
    return f"{PARQUET}/queue={queue}"


def table_name(after: int, upto: int) -> str:
    return f"{after:016x}-{upto:016x}.parquet"


class Tables:
    """Of one queue."""

    def __init__(self, space: str, queue: str) -> None:
        self.root = Path(space, queue_directory(queue))

    def path(self, one: TableFile) -> Path:
        return self.root / f"day={one.day}" / one.name

    def files(self, after: int = 0, upto: int = LAST_SEQ) -> list[TableFile]:
        """Those that may hold one of these numbers, ascending."""
        found = []
        with suppress(FileNotFoundError, NotADirectoryError):
            for day in self.root.iterdir():
                if (of := _DAY.fullmatch(day.name)) is None:
                    continue
                with suppress(FileNotFoundError, NotADirectoryError):
                    for path in day.iterdir():
                        if (match := _NAME.fullmatch(path.name)) is None:
                            continue
                        one = TableFile(int(match[1], 16), int(match[2], 16), of[1], path.name)
                        if one.after < upto and one.upto > after:
                            found.append(one)
        return sorted(found)

    def ids(self, after: int, upto: int) -> dict[int, bytes]:
        """By number those of (after, upto] that are there."""
        found: dict[int, bytes] = {}
        for table in self.read(["seq", "message_id"], after, upto):
            found.update(zip(table["seq"].to_pylist(), table["message_id"].to_pylist(), strict=True))
        return found

    def read(self, columns: Sequence[str], after: int = 0, upto: int = LAST_SEQ) -> Iterator[pa.Table]:
        """The rows of (after, upto], seq first. One that a compaction took away meanwhile is in another file by now."""
        while True:
            try:
                for table in merged([self.path(one) for one in self.files(after, upto)], columns, after, upto):
                    yield table
                    after = table["seq"][-1].as_py()
            except FileNotFoundError:
                continue
            return


class _Stream:
    """The rows of one file, of which ``held`` come next."""

    def __init__(self, path: Path, columns: Sequence[str], after: int, upto: int) -> None:
        self._batches = self._read(path, columns, after, upto)
        self.held: pa.Table | None = next(self._batches, None)

    def _read(self, path: Path, columns: Sequence[str], after: int, upto: int) -> Iterator[pa.Table]:
        try:
            yield from self._read_groups(pq.ParquetFile(path), columns, after, upto)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DamagedBlock(f"{path}: is no file of Parquet with messages, or damaged: {error}") from error

    def _read_groups(self, file: pq.ParquetFile, columns: Sequence[str], after: int, upto: int) -> Iterator[pa.Table]:
        metadata = file.metadata
        place = metadata.schema.names.index("seq")
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            seqs = group.column(place).statistics
            if seqs.max <= after or seqs.min > upto:
                continue
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)))
            for batch in file.iter_batches(rows, row_groups=[number], columns=columns):
                table = pa.Table.from_batches([batch]).select(columns)
                if seqs.min <= after or seqs.max > upto:
                    table = between(table, after, upto)
                if table.num_rows:
                    yield table

    @property
    def last(self) -> int:
        assert self.held is not None
        return int(self.held["seq"][-1].as_py())

    def take(self, upto: int) -> pa.Table:
        """What it has up to there; ``held`` is what follows, and None at its end."""
        assert self.held is not None
        found, self.held = cut(self.held, upto)
        if not self.held.num_rows:
            self.held = next(self._batches, None)
        return found


def merged(paths: Sequence[Path], columns: Sequence[str], after: int = 0, upto: int = LAST_SEQ) -> Iterator[pa.Table]:
    """The rows of these files, which are in the order of their names, by number and each once. Raises
    FileNotFoundError, DamagedBlock."""
    wanted = ["seq", *(name for name in columns if name != "seq")]
    todo, streams = list(reversed(paths)), list[_Stream]()
    while todo or streams:
        edge = min((one.last for one in streams), default=None)
        while todo and (edge is None or int(todo[-1].name[:16], 16) < edge):
            new = _Stream(todo.pop(), wanted, after, upto)
            if new.held is not None:
                streams.append(new)
                edge = new.last if edge is None else min(edge, new.last)
        if edge is not None:
            yield together([one.take(edge) for one in streams])
            streams = [one for one in streams if one.held is not None]


def together(parts: Sequence[pa.Table]) -> pa.Table:
    """By number; of one that is in several of them that of the first."""
    found = parts[0]
    for part in parts[1:]:
        if not found.num_rows:
            found = part
        elif part.num_rows:
            new = part.filter(pc.invert(pc.is_in(part["seq"], found["seq"])))
            if new.num_rows:
                found = pa.concat_tables([found, new.cast(found.schema)]).sort_by("seq")
    return found


def between(table: pa.Table, after: int, upto: int) -> pa.Table:
    seqs = table["seq"]
    return table.filter(pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, upto)))


def cut(table: pa.Table, upto: int) -> tuple[pa.Table, pa.Table]:
    """Rows up to this number, and those behind it."""
    if not table.num_rows or table["seq"][-1].as_py() <= upto:
        return table, table.slice(table.num_rows)
    count = pc.sum(pc.less_equal(table["seq"], upto)).as_py()
    return table.slice(0, count), table.slice(count)
