"""Waiting messages in packed rows: an id and a byte for each, and no object of their own.

A table holds the rows of one range of sequence numbers, from the first that is there to the last, so that finding a
row is a subtraction, and finding the next one is a search for a byte. It grows with its rows, is trimmed as they go and
dropped with the last of them. A table of few rows far apart would waste room: it is given up, and its rows are handed
to the caller. Invariants: every table has a row; ``_numbers`` has the tables' numbers, ascending; ``head`` is right.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from xaqueue.message import MessageId

TABLE_BITS = 12
"""A table's rows have sequence numbers that are equal above these bits, like the messages of a range directory."""
SPARSE = 16
"""A table with more slots than this for each of its rows is trimmed, and given up if that is not enough."""

Row = tuple[int, MessageId]
"""Sequence number, message id."""

_NO_ID = MessageId(b"")


class _Table:
    """Slot n is for the sequence number ``start`` + n; ``there`` has 1 where it has a row, and ``gaps`` counts 0."""

    __slots__ = ("gaps", "ids", "start", "there")

    def __init__(self, start: int) -> None:
        self.start = start
        self.there = bytearray()
        self.ids: list[MessageId] = []
        self.gaps = 0

    def extend(self, slots: int) -> None:
        self.there.extend(bytes(slots))
        self.ids.extend([_NO_ID] * slots)
        self.gaps += slots

    def cut(self, begin: int, end: int) -> None:
        """Only the slots from ``begin`` to ``end`` stay."""
        for column in (self.there, self.ids):
            del column[end:]
            del column[:begin]
        self.start += begin
        if self.gaps:
            self.gaps = self.there.count(0)

    def is_sparse(self) -> bool:
        return self.gaps * (SPARSE + 1) > len(self.there) * SPARSE

    def rows(self, end: int | None = None) -> list[Row]:
        """Those in the slots before ``end``."""
        there = self.there[:end]
        rows = list(zip(range(self.start, self.start + len(there)), self.ids, strict=False))
        return [row for row, is_there in zip(rows, there, strict=True) if is_there] if self.gaps else rows

    def copy(self) -> _Table:
        copied = _Table(self.start)
        copied.there, copied.ids, copied.gaps = self.there[:], self.ids[:], self.gaps
        return copied


class PackedRows:
    """Rows by sequence number. ``newest_first``: whether ``head`` is the highest of them, and not the lowest."""

    def __init__(self, newest_first: bool) -> None:
        self._tables: dict[int, _Table] = {}
        self._numbers: list[int] = []
        self.head = -1
        """The sequence number of the row whose turn is next; -1 without rows."""
        self.newest_first = newest_first

    def add(self, seq: int, message_id: MessageId) -> bool:
        """Adds a row that is not there. False, and nothing is done, where its table begins above it."""
        number = seq >> TABLE_BITS
        table = self._tables.get(number)
        if table is None:
            table = self._make(number, seq)
        slot = seq - table.start
        if slot >= len(table.there):
            if slot > len(table.there):
                table.extend(slot - len(table.there))
            table.there.append(1)
            table.ids.append(message_id)
        elif slot >= 0:
            table.there[slot] = 1
            table.ids[slot] = message_id
            table.gaps -= 1
        else:
            return False
        if self.head < 0 or (seq > self.head) is self.newest_first:
            self.head = seq
        return True

    def add_all(self, seqs: Sequence[int], ids: Sequence[MessageId]) -> bool:
        """Adds all rows of one table, ascending. False, and nothing is done, where that has slots at or above them."""
        number, first = seqs[0] >> TABLE_BITS, seqs[0]
        table = self._tables.get(number) or self._make(number, first)
        begin = first - table.start
        if begin < len(table.there):
            return False
        if begin > len(table.there):
            table.extend(begin - len(table.there))
        if seqs[-1] - first == len(seqs) - 1:
            table.there.extend(b"\1" * len(ids))
            table.ids.extend(ids)
        else:
            table.extend(seqs[-1] - first + 1)
            for seq, message_id in zip(seqs, ids, strict=True):
                table.there[seq - table.start] = 1
                table.ids[seq - table.start] = message_id
            table.gaps -= len(ids)
        self._find_head()
        return True

    def pop(self, seq: int) -> list[Row]:
        """Takes a row out; behind it come all others of its table, where these have become too few for one."""
        number = seq >> TABLE_BITS
        table = self._tables[number]
        slot = seq - table.start
        rows = [(seq, table.ids[slot])]
        table.there[slot] = 0
        table.ids[slot] = _NO_ID
        table.gaps += 1
        if table.gaps == len(table.there):
            self._drop(number)
        elif table.is_sparse():
            table.cut(table.there.find(1), table.there.rfind(1) + 1)
            if table.is_sparse():
                rows += table.rows()
                self._drop(number)
        if seq == self.head or len(rows) > 1:
            self._find_head()
        return rows

    def take_run(self, last: int, count: int) -> list[MessageId]:
        """Takes out the lowest row and those right behind it, at most so many, and up to that number of its table."""
        number, head = self._numbers[0], self.head
        table = self._tables[number]
        if table.start != head:
            table.cut(head - table.start, len(table.there))
        ids, there, end = table.ids, table.there, min(count, last + 1 - head)
        if table.gaps and (gap := there.find(0, 0, end)) >= 0:
            end = gap
        taken = ids[:end]
        del ids[:end], there[:end]
        self.head = table.start = head + end
        if table.gaps == len(there):
            self._drop(number)
        if table.gaps or not there:
            self._find_head()
        return taken

    def remove_through(self, seq: int) -> Iterator[list[MessageId]]:
        """Takes out every row with this number or one below; yields the ids, by tables."""
        for number in self._numbers[: bisect_left(self._numbers, (seq >> TABLE_BITS) + 1)]:
            table = self._tables[number]
            slots = seq + 1 - table.start
            if slots <= 0:
                break
            yield [row[1] for row in table.rows(slots)] if table.gaps else table.ids[:slots]
            if slots < len(table.there):
                table.cut(slots, len(table.there))
                slots = 0
            if slots or table.gaps == len(table.there):
                self._drop(number)
        self._find_head()

    def turn(self, newest_first: bool) -> None:
        """Another order from here on."""
        self.newest_first = newest_first
        self._find_head()

    def __contains__(self, seq: int) -> bool:
        table = self._tables.get(seq >> TABLE_BITS)
        return table is not None and 0 <= seq - table.start < len(table.there) and table.there[seq - table.start] == 1

    def rows(self) -> Iterator[Row]:
        """The rows that are there now, in order, whatever becomes of them while they are looked at."""
        step = -1 if self.newest_first else 1
        tables = [self._tables[number].copy() for number in self._numbers[::step]]
        return (row for table in tables for row in table.rows()[::step])

    @property
    def lowest(self) -> Row | None:
        """The row with the lowest number."""
        if not self._numbers:
            return None
        table = self._tables[self._numbers[0]]
        slot = table.there.find(1)
        return table.start + slot, table.ids[slot]

    def some(self, count: int) -> list[Row]:
        """About so many of the rows, spread over them."""
        numbers = self._numbers[:: max(len(self._numbers) // count, 1)]
        found = []
        for table in map(self._tables.__getitem__, numbers):
            starts = range(0, len(table.there), max(len(table.there) * len(numbers) // count, 1))
            slots = {table.there.find(1, start) for start in starts} - {-1}
            found += [(table.start + slot, table.ids[slot]) for slot in slots]
        return found

    def _make(self, number: int, start: int) -> _Table:
        insort(self._numbers, number)
        table = self._tables[number] = _Table(start)
        return table

    def _drop(self, number: int) -> None:
        del self._tables[number]
        del self._numbers[bisect_left(self._numbers, number)]

    def _find_head(self) -> None:
        if not self._numbers:
            self.head = -1
            return
        table = self._tables[self._numbers[-1 if self.newest_first else 0]]
        self.head = table.start + (table.there.rfind(1) if self.newest_first else table.there.find(1))
