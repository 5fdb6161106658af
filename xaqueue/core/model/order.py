"""The order of a queue: which message comes up next, and when. Memory only, no clock, no I/O.

Most of a deep queue is plain, ready and far from its turn: that is held in packed rows, and unpacked to entries when
its turn comes or somebody asks for it by its id. Heaps hold the keys of entries and are cleaned lazily: a key whose
message is gone, locked or delayed is dropped when it comes up, and pushed again when the message becomes ready, so
that skipping a locked message costs nothing for the next reader.
Invariant: a ready message is packed or its key is in ``_ready``; a delayed one's key is in ``_delayed`` or, before it
came up, in ``_ready``. Of those in a line (``entry.Line``) that is so for the first that is free, or the line keeps it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice

from xaqueue.core.model.entry import NO_LINES, Entry, Lines, Run
from xaqueue.core.model.packed_index import PackedRows, Row
from xaqueue.message import DEFAULT_PRIORITY, HIGHEST_PRIORITY, MessageId

UNPACKED = 64
"""Up to so many messages are held as entries, whatever they are: packing is for those that wait behind them."""
PIECE = 64
"""How many are unpacked at once when their turn comes."""
SPARE_KEYS = 1024
"""So many keys of messages that are gone are kept in any case."""
SECOND_US = 1_000_000
SPARE_SECONDS = 64
"""So many seconds that no message waits for any more are kept in any case."""
SKIPPED = 4096
"""So many messages that are due or expired are passed at most to find one that is ready."""
FEW, LOOKED = 4096, 64 * 1024
"""Up to so many entries are sorted to find the oldest that is ready; else at most so many numbers are looked at."""

_SEQ_BITS = 63
_SEQ_MASK = (1 << _SEQ_BITS) - 1


class Order(Enum):
    """FIFO: by commit sequence. LIFO: newest first. PRIORITY: 9 before 0, each in commit sequence."""

    FIFO = "fifo"
    LIFO = "lifo"
    PRIORITY = "priority"


class DeliveryOrder:
    """The messages of one queue. A subclass says which is due (``_due``); times are int microseconds UTC."""

    def __init__(self, order: Order = Order.FIFO) -> None:
        self.is_unfinished = False
        """The last look gave up among many that are due or expired: the next goes on there."""
        self._seqs: dict[bytes, int] = {}
        self._packed = PackedRows(newest_first=False)
        self._entries: dict[int, Entry] = {}
        self._runs: dict[int, Run] = {}
        """By the first number what is taken together: locked, and neither packed nor an entry."""
        self.lines: Lines = NO_LINES
        """Those in which messages stand; whoever has some sets it before the first message comes."""
        self._arrange(order)

    def _arrange(self, order: Order) -> None:
        self.order = order
        self._fifo = order is Order.FIFO
        self._packed.turn(order is Order.LIFO)
        self._by_correlation: dict[str, list[int]] = {}
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self.lines.begin_again()
        self._expiring: list[tuple[int, int]] = []
        """A heap of (when it expires, its number), of some that are gone or locked, too."""
        self._delays = Delays()
        """Of those that nobody has locked."""
        for entry in self._entries.values():
            entry.queued = False
            self._place(entry)

    def begin_again(self) -> None:
        """Behind an interrupt in the middle of it: it is made anew of who is here by which number."""
        self.expand_all()
        self._packed = PackedRows(self.order is Order.LIFO)
        for seq, message_id in sorted((seq, one) for one, seq in self._seqs.items() if seq not in self._entries):
            self._packed.add(seq, MessageId(message_id))
        self._arrange(self.order)

    def __len__(self) -> int:
        return len(self._seqs)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._seqs

    def has_any(self, message_ids: Iterable[bytes]) -> bool:
        """Whether one of these is here."""
        return not self._seqs.keys().isdisjoint(message_ids)

    def add(self, entry: Entry) -> None:
        """A committed message becomes visible."""
        self._seqs[entry.message_id] = seq = entry.seq
        if not entry.is_plain:
            self._enter(entry)
        elif len(self._entries) < UNPACKED or not self._packed.add(seq, entry.message_id):
            self._entries[seq] = entry  # as ``_enter``, of what has nothing to be asked for
            entry.queued = True
            heappush(self._ready, seq if self._fifo else self._key(seq))

    def add_plain(self, seqs: Sequence[int], ids: Sequence[MessageId]) -> None:
        """Plain messages of one range become visible, ascending; nobody had these numbers or ids."""
        if self._packed.add_all(seqs, ids):
            self._seqs.update(zip(ids, seqs, strict=True))
            return
        for seq, message_id in zip(seqs, ids, strict=True):
            self.add(Entry(seq, message_id))

    @property
    def head(self) -> int:
        """The number of the plain message that comes up next; -1 where it is not known."""
        return self._packed.head if self._fifo else -1

    def expand(self, run: Run) -> Sequence[Entry]:
        """From here on each of these is one by itself."""
        if self._runs.get(run.seq) is run:
            entries = [Entry(seq, message_id) for seq, message_id in enumerate(run.ids, run.seq)]
            for entry in entries:
                entry.locked, entry.block = True, run.block
            self._entries.update(zip(range(run.seq, run.seq + len(entries)), entries, strict=True))
            run.entries = entries  # where an interrupt comes before, it is done once more
            del self._runs[run.seq]
        return run.entries

    def expand_all(self) -> None:
        for run in [*self._runs.values()]:
            self.expand(run)

    def find(self, message_id: bytes) -> Entry | None:
        """The entry of a message. It stays one, so that what is changed in it holds."""
        seq = self._seqs.get(message_id)
        if seq is None:
            return None
        entry = self._entries.get(seq)
        if entry is None and self._runs:
            self.expand_all()
            entry = self._entries.get(seq)
        if entry is None:
            entry = self._unpack(self._packed.pop(seq))
            self._queue(entry)
        return entry

    def entries(self, now: int) -> Iterator[Entry]:
        """What has not expired, as it is at this call, in the order of the queue, locked and delayed ones too.

        Entries of plain messages are made on the way, for looking only.
        """
        self.expand_all()
        entries = sorted(self._entries.values(), key=self._key_of)
        alive = [entry for entry in entries if entry.expires_at is None or entry.expires_at > now]
        plain = (Entry(seq, message_id) for seq, message_id in self._packed.rows())
        return merge(alive, plain, key=self._key_of)

    def next_due(self, *, message_id: bytes | None = None, correlation: str | None = None) -> int | None:
        """When the earliest delayed message that such a ``take`` found becomes ready."""
        if message_id is not None:
            entry = self.find(message_id)
            return entry.not_before if entry is not None and not entry.locked else None
        if correlation is not None:
            waiting = [self._entries[self._seq(key)] for key in self._by_correlation.get(correlation, ())]
            return min((e.not_before for e in waiting if e.not_before is not None and not e.locked), default=None)
        return self._delayed[0][0] if self._delayed else None

    def delayed(self, now: int) -> int:
        """How many wait for their time, and nobody has them."""
        return self._delays.count(now)

    def oldest(self, now: int, ranges: Iterable[range]) -> Entry | None:
        """The one that was committed first of those that are ready. ranges: all numbers are in these, ascending.

        For looking only. None also where very many that are not ready are before it.
        """
        entries, packed = self._entries, self._packed.lowest
        seqs: Iterable[int] = sorted(entries)
        if len(entries) > FEW:
            seqs = islice(chain.from_iterable(ranges), LOOKED)
        for seq in seqs:
            if packed is not None and packed[0] < seq:
                break
            entry = entries.get(seq)
            if entry is not None and not entry.locked and (entry.not_before is None or entry.not_before <= now):
                return entry
        return Entry(*packed) if packed is not None else None

    def some(self, count: int) -> list[Entry]:
        """All, or at least one and about so many of those that are here, spread over them. For looking only."""
        entries, plain = self._entries, len(self) - len(self._entries)
        if len(self) <= count:
            return [*entries.values(), *(Entry(*row) for row in self._packed.rows())]
        wanted = max(count * len(entries) // len(self), 1)
        near = min(len(entries), LOOKED)
        found = list(islice(entries.values(), 0, near, max(near // wanted, 1)))
        return found + [Entry(*row) for row in self._packed.some(max(count * plain // len(self), 1))]

    def reorder(self, order: Order) -> None:
        """The definition changed: the same messages in another order."""
        if order is not self.order:
            self._arrange(order)

    def is_here(self, seq: int) -> bool:
        return seq in self._entries

    def is_free(self, seq: int) -> bool:
        """Whether it is here and nobody has locked it."""
        entry = self._entries.get(seq)
        return entry is not None and not entry.locked

    def queue(self, seq: int) -> bool:
        """A free one is the next in its line now. Whether anybody may take it, and not only who holds that."""
        return self._queue(self._entries[seq])

    def _key(self, seq: int, priority: int = DEFAULT_PRIORITY) -> int:
        """What the order sorts by."""
        if self._fifo:
            return seq
        if self.order is Order.LIFO:
            return _SEQ_MASK - seq
        return (HIGHEST_PRIORITY - priority) << _SEQ_BITS | seq

    def _key_of(self, entry: Entry) -> int:
        return self._key(entry.seq, entry.priority)

    def _seq(self, key: int) -> int:
        return _SEQ_MASK - key if self.order is Order.LIFO else key & _SEQ_MASK

    def _enter(self, entry: Entry) -> None:
        self._entries[entry.seq] = entry
        if entry.tags:
            entry.line = self.lines.enter(entry)
        self._place(entry)

    def _place(self, entry: Entry) -> None:
        """Its turn comes; in a line it is behind those before it."""
        if entry.not_before is not None and not entry.locked:
            self._delays.add(entry.not_before)
        if entry.correlation is not None:
            insort(self._by_correlation.setdefault(entry.correlation, []), self._key_of(entry))
        if entry.expires_at is not None:
            heappush(self._expiring, (entry.expires_at, entry.seq))
        if entry.line is None:  # as ``_queue``, without the call
            entry.queued = True
            heappush(self._ready, entry.seq if self._fifo else self._key(entry.seq, entry.priority))
        elif entry.line.next == entry.seq:
            self._queue(entry)

    def _queue(self, entry: Entry) -> bool:
        """It is ready, or will be, and the first in its line: for whoever holds that, or for anybody. Whether that."""
        if entry.line is not None and entry.line.keeps(self._key_of(entry)):
            return False
        if not entry.queued:
            entry.queued = True
            heappush(self._ready, entry.seq if self._fifo else self._key(entry.seq, entry.priority))
        return True

    def _unpack(self, rows: Sequence[Row]) -> Entry:
        """Makes entries of rows that were taken out of their table. Returns the first, which is not queued yet."""
        first, *others = rows
        for seq, message_id in others:
            entry = self._entries[seq] = Entry(seq, message_id)
            entry.queued = True
        keys = [row[0] for row in others] if self._fifo else sorted(self._key(row[0]) for row in others)
        if self._ready:
            for key in keys:
                heappush(self._ready, key)
        else:
            self._ready = keys  # sorted, and so a heap
        unpacked = self._entries[first[0]] = Entry(*first)
        return unpacked

    def _first(self, now: int, holder: object) -> Entry | None:
        passed = 0
        while self._delayed and self._delayed[0][0] <= now:
            if passed == SKIPPED:
                self.is_unfinished = True
                return None
            passed += 1
            waited = self._entries.get(self._seq(heappop(self._delayed)[1]))
            if waited is not None and not waited.locked:
                self._queue(waited)
        hand = self.lines.hand_of(holder) if self.lines.by_name else None
        while True:
            head, keys = self._packed.head, self._ready
            if hand and (not keys or hand[0] < keys[0]):
                keys = hand
            if head >= 0 and (not keys or keys[0] > (head if self._fifo else self._key(head))):
                rows, lifo = self._packed, self.order is Order.LIFO
                return self._unpack(rows.pop(head) if lifo else [*enumerate(rows.take_run(head + PIECE, PIECE), head)])
            if not keys:
                return None
            if passed == SKIPPED:
                self.is_unfinished = True
                return None
            passed += 1
            key = heappop(keys)
            entry = self._entries.get(key if self._fifo else self._seq(key))
            if entry is None:
                continue
            if keys is not hand:
                entry.queued = False
            if (entry.is_plain and not entry.locked) or self._due(entry, now, holder):
                return entry
            self._pass_over(entry, key, now, was_in_hand=keys is hand)

    def _pass_over(self, entry: Entry, key: int, now: int, *, was_in_hand: bool) -> None:
        """It is not its turn: its key comes again when that may have changed."""
        if entry.locked:
            return
        if entry.not_before is not None and entry.not_before > now:
            heappush(self._delayed, (entry.not_before, key))
        elif not was_in_hand and entry.line is not None and entry.line.next == entry.seq:
            self._queue(entry)  # in the hand of who holds its line

    def _first_correlated(self, now: int, correlation: str, passed: Collection[int], holder: object) -> Entry | None:
        for key in list(self._by_correlation.get(correlation, ())):
            entry = self._entries[self._seq(key)]
            if entry.seq not in passed and self._due(entry, now, holder):
                return entry
        return None

    def _compact_if_worth(self) -> None:
        if len(self._ready) + len(self._delayed) + len(self._expiring) > 3 * len(self._entries) + SPARE_KEYS:
            self._compact()

    def _compact(self) -> None:
        """Keys of messages that were taken by an id never come up where nobody takes the next one."""
        self._ready = [key for key in self._ready if self._seq(key) in self._entries]
        heapify(self._ready)
        self._delayed = [pair for pair in set(self._delayed) if self._seq(pair[1]) in self._entries]
        heapify(self._delayed)
        self._expiring = [pair for pair in set(self._expiring) if pair[1] in self._entries]
        heapify(self._expiring)

    def _forget_correlations(self, gone: Iterable[Entry]) -> None:
        for correlation in {entry.correlation for entry in gone if entry.correlation is not None}:
            keys = [key for key in self._by_correlation[correlation] if self._seq(key) in self._entries]
            if keys:
                self._by_correlation[correlation] = keys
            else:
                del self._by_correlation[correlation]

    def _due(self, entry: Entry, now: int, holder: object = None) -> bool:
        """Whether this holder may be given it now; else what became of it is seen to."""
        raise NotImplementedError


class Delays:
    """How many messages of a queue wait for their time, known without a look at each: they are counted by seconds.

    What is due is dropped when somebody asks, a second at a time: each second is dropped once, and no message is gone
    through. A second that nobody waits for any more goes by itself, for it may be that nobody ever asks. A clock that
    is put back makes the figure wrong until it is where it was. Times are int microseconds UTC; what is due within this
    second counts as due.
    """

    def __init__(self) -> None:
        self._by_second: dict[int, int] = {}
        self._seconds: list[int] = []
        """A heap of the same seconds, and of some that are gone, or there twice."""
        self._sum = 0

    def add(self, until: int) -> None:
        """One more waits until then."""
        second = until // SECOND_US
        if second not in self._by_second:
            self._by_second[second] = 0
            heappush(self._seconds, second)
            if len(self._seconds) > 2 * len(self._by_second) + SPARE_SECONDS:
                self._seconds = [*self._by_second]
                heapify(self._seconds)
        self._by_second[second] += 1
        self._sum += 1

    def discard(self, until: int) -> None:
        """One that was added with this time is taken, or gone; it may have been due for long."""
        second = until // SECOND_US
        if second in self._by_second:
            self._by_second[second] -= 1
            self._sum -= 1
            if not self._by_second[second]:
                del self._by_second[second]

    def count(self, now: int) -> int:
        while self._seconds and self._seconds[0] <= now // SECOND_US:
            self._sum -= self._by_second.pop(heappop(self._seconds), 0)
        return self._sum
