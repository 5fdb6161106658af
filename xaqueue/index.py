"""The order of a queue: which message is next, for whom, and why not this one. Memory only, no clock, no I/O.

A message is *ready*, *locked* (a branch dequeued it), *delayed* (``not_before`` is ahead) or *expired*. Heaps hold
keys and are cleaned lazily: a key whose message is gone, locked or delayed is dropped when it comes up, and pushed
again when the message becomes ready, so that skipping a locked message costs nothing for the next reader.
Invariant: a ready message's key is in ``_ready``; a delayed one's in ``_delayed`` or, before it came up, in ``_ready``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush

from xaqueue.message import HIGHEST_PRIORITY, MessageId, Properties

_SEQ_BITS = 63
_SEQ_MASK = (1 << _SEQ_BITS) - 1


class Order(Enum):
    """FIFO: by commit sequence. LIFO: newest first. PRIORITY: 9 before 0, each in commit sequence."""

    FIFO = "fifo"
    LIFO = "lifo"
    PRIORITY = "priority"


class Entry:
    """What memory holds of a committed message: everything that decides its turn, and nothing of its body."""

    __slots__ = (
        "correlation_id",
        "expires_at",
        "locked",
        "message_id",
        "not_before",
        "priority",
        "queued",
        "seq",
        "size_bytes",
        "tries",
    )

    def __init__(self, seq: int, message_id: MessageId, properties: Properties, size_bytes: int) -> None:
        self.seq = seq
        self.message_id = message_id
        self.correlation_id = properties.correlation_id
        self.priority = properties.priority
        self.not_before = properties.not_before
        self.expires_at = properties.expires_at
        self.tries = properties.tries
        self.size_bytes = size_bytes
        self.locked = False
        self.queued = False


def _key_of(order: Order) -> Callable[[Entry], int]:
    if order is Order.FIFO:
        return lambda entry: entry.seq
    if order is Order.LIFO:
        return lambda entry: _SEQ_MASK - entry.seq
    return lambda entry: (HIGHEST_PRIORITY - entry.priority) << _SEQ_BITS | entry.seq


class QueueIndex:
    """The messages of one queue. The caller serialises all calls; times are int microseconds UTC."""

    def __init__(self, order: Order = Order.FIFO) -> None:
        self.order = order
        self._key = _key_of(order)
        self._entries: dict[int, Entry] = {}
        self._by_id: dict[bytes, Entry] = {}
        self._by_correlation: dict[bytes, list[int]] = {}
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self.locked = 0
        self.expired: list[Entry] = []
        """Found expired and locked for it; the owner of the files removes them and then calls ``remove``."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._by_id

    def add(self, entry: Entry) -> None:
        """A committed message becomes visible."""
        key = self._key(entry)
        self._entries[key] = entry
        self._by_id[entry.message_id] = entry
        if entry.correlation_id is not None:
            insort(self._by_correlation.setdefault(entry.correlation_id, []), key)
        self._queue(entry, key)

    def take(self, now: int, *, message_id: bytes | None = None, correlation_id: bytes | None = None) -> Entry | None:
        """The next ready message, now locked; or the one of this id, or the first of this correlation id."""
        if message_id is not None:
            entry = self._by_id.get(message_id)
            if entry is not None and (correlation_id not in (None, entry.correlation_id) or not self._due(entry, now)):
                entry = None
        elif correlation_id is not None:
            entry = self._first_correlated(now, correlation_id)
        else:
            entry = self._first(now)
        if entry is not None:
            entry.locked = True
            self.locked += 1
        return entry

    def lock(self, message_id: bytes) -> Entry | None:
        """Locks a message for a branch that was found prepared. None when it is not here."""
        entry = self._by_id.get(message_id)
        if entry is not None and not entry.locked:
            entry.locked = True
            self.locked += 1
        return entry

    def release(self, entry: Entry) -> None:
        """A locked message is back where it was."""
        entry.locked = False
        self.locked -= 1
        self._queue(entry, self._key(entry))

    def remove(self, entry: Entry) -> None:
        """A locked message is gone for good."""
        key = self._key(entry)
        del self._entries[key]
        del self._by_id[entry.message_id]
        self.locked -= 1
        if entry.correlation_id is not None:
            keys = self._by_correlation[entry.correlation_id]
            del keys[bisect_left(keys, key)]
            if not keys:
                del self._by_correlation[entry.correlation_id]
        self._compact()

    def _compact(self) -> None:
        """Keys of messages that were taken by an id never come up where nobody takes the next one."""
        if len(self._ready) > 2 * len(self._entries) + 1024:
            self._ready = [key for key in self._ready if key in self._entries]
            heapify(self._ready)
        if len(self._delayed) > 2 * len(self._entries) + 1024:
            self._delayed = [pair for pair in self._delayed if pair[1] in self._entries]
            heapify(self._delayed)

    def find(self, message_id: bytes) -> Entry | None:
        return self._by_id.get(message_id)

    def entries(self, now: int) -> Iterator[Entry]:
        """A snapshot of what has not expired, in the order of the queue, locked and delayed ones too."""
        for key in sorted(self._entries):
            entry = self._entries.get(key)
            if entry is not None and (entry.expires_at is None or entry.expires_at > now):
                yield entry

    def next_due(self, *, message_id: bytes | None = None, correlation_id: bytes | None = None) -> int | None:
        """When the earliest delayed message that such a ``take`` found becomes ready."""
        if message_id is not None:
            entry = self._by_id.get(message_id)
            return entry.not_before if entry is not None and not entry.locked else None
        if correlation_id is not None:
            waiting = [self._entries[key] for key in self._by_correlation.get(correlation_id, ())]
            return min((e.not_before for e in waiting if e.not_before is not None and not e.locked), default=None)
        return self._delayed[0][0] if self._delayed else None

    def reorder(self, order: Order) -> None:
        """The definition changed: the same messages in another order."""
        if order is self.order:
            return
        entries = list(self._entries.values())
        expired, locked = self.expired, self.locked
        self.__init__(order)  # type: ignore[misc]
        self.expired, self.locked = expired, locked
        for entry in entries:
            entry.queued = False
            self.add(entry)

    def _queue(self, entry: Entry, key: int) -> None:
        if not entry.queued:
            entry.queued = True
            heappush(self._ready, key)

    def _first(self, now: int) -> Entry | None:
        while self._delayed and self._delayed[0][0] <= now:
            key = heappop(self._delayed)[1]
            entry = self._entries.get(key)
            if entry is not None and not entry.queued and not entry.locked:
                self._queue(entry, key)
        while self._ready:
            key = self._ready[0]
            entry = self._entries.get(key)
            if entry is not None and self._due(entry, now):
                return entry
            heappop(self._ready)
            if entry is not None:
                entry.queued = False
                if not entry.locked and entry.not_before is not None and entry.not_before > now:
                    heappush(self._delayed, (entry.not_before, key))
        return None

    def _first_correlated(self, now: int, correlation_id: bytes) -> Entry | None:
        for key in list(self._by_correlation.get(correlation_id, ())):
            if self._due(self._entries[key], now):
                return self._entries[key]
        return None

    def _due(self, entry: Entry, now: int) -> bool:
        """Whether it may be delivered now; one found expired is set aside for removal."""
        if entry.locked:
            return False
        if entry.expires_at is not None and entry.expires_at <= now:
            entry.locked = True
            self.locked += 1
            self.expired.append(entry)
            return False
        return entry.not_before is None or entry.not_before <= now
