"""The index of a queue: which message is next, for whom, and why not this one. Memory only, no clock, no I/O.

A message is *ready*, *locked* (a branch dequeued it), *delayed* (``not_before`` is ahead) or *expired*. In which order
they come up is in ``order``; here is who has which, and which leave because they have expired or had all their tries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush
from typing import Any, Protocol

from xaqueue.core.model.entry import Entry, Retry, Run
from xaqueue.core.model.message_name import read_tags
from xaqueue.core.model.order import SKIPPED, SPARE_KEYS, DeliveryOrder, Order
from xaqueue.message import MessageId

LOST = 1
"""When a message expired that has outlived its owner and need not: before all others."""


class Clock(Protocol):
    """Says that messages of one queue expire sooner than they themselves say."""

    limit_us: int
    due: int
    """It has nothing to say before."""

    def strike(self, space: Any, queue: Any, now: int) -> bool:
        """It is due: says so of those whose time has come (``expire_at``), or of some. Whether of all. Called with the
        lock held."""


class QueueIndex(DeliveryOrder):
    """The messages of one queue. The caller serialises all calls; times are int microseconds UTC."""

    def __init__(self, order: Order = Order.FIFO) -> None:
        super().__init__(order)
        self.locked = 0
        self.expired: list[Entry] = []
        """Found expired and locked for it; whoever removes the files takes them from here and then calls ``remove``."""
        self.max_tries = 0
        """Who has had so many is delivered no more; 0: there is no limit."""
        self.exhausted: list[Entry] = []
        """Found so and locked for it; whoever moves them to another queue takes them from here."""
        self.is_to_be_searched = False
        """Some messages may have had all their tries, and nobody was told."""
        self.clock: Clock | None = None
        """Where one is to be asked before the index is."""

    def take(
        self,
        now: int,
        *,
        message_id: bytes | None = None,
        correlation: str | None = None,
        passed: Collection[int] = (),
        holder: object = None,
        even_early: bool = False,
    ) -> Entry | None:
        """The next ready message, now locked; or the one of this id, or the first whose correlation id has this hash.

        holder: who takes it, and may have the next in a line when it has those before. ``passed``: numbers of those
        that have the hash and another correlation id. even_early: by its id, also before its turn, and where it has
        had all its tries and is not moved yet. None with ``is_unfinished``: it has not looked at all.
        """
        self.is_unfinished = False
        entry: Entry | None = None
        taken: Entry | None = None
        try:
            if message_id is not None:
                entry = self.find(message_id)
                if entry is not None and (
                    correlation not in (None, entry.correlation)
                    or entry.seq in passed
                    or not (self._is_there(entry, now) if even_early else self._due(entry, now, holder))
                ):
                    entry = None
            elif correlation is not None:
                entry = self._first_correlated(now, correlation, passed, holder)
            elif not self.lines.by_name or self._lines_are_clear(now):
                entry = self._first(now, holder)
            if entry is not None:
                taken = entry
                entry.locked = True
                self.locked += 1
                if entry.not_before is not None:
                    self._delays.discard(entry.not_before)
                if entry.line is not None:
                    entry.line.hold(entry.seq, holder)
        except BaseException:  # an interrupt
            if taken is not None:
                taken.locked = False
            self.begin_again()
            if taken is not None and taken.line is not None:
                taken.line.come_back(taken.seq)
            raise
        return entry

    @property
    def next_plain(self) -> int:
        """The number of the message that comes up next, where that is plain and was not looked at; else -1."""
        return -1 if self._ready and self._ready[0] < self._packed.head else self.head

    def take_run(self, last: int, count: int) -> Run | None:
        """Plain messages that come up one behind the other, up to this number, now locked; None where it is to be asked
        for each, or there is none."""
        head = self.next_plain
        if head < 0 or self._delayed or self.lines.by_name:
            return None
        try:
            run = self._runs[head] = Run(self._packed.take_run(last, count), seq=head)
            run.locked = True
            self.locked += len(run.ids)
        except BaseException:  # an interrupt
            self._runs.pop(head, None)
            self.begin_again()
            raise
        return run

    def begin_again(self) -> None:
        super().begin_again()
        self.locked = sum(one.locked for one in self._entries.values())

    def _lines_are_clear(self, now: int) -> bool:
        """Whether nothing that is to leave stands in a line: it might hold back what comes up before it."""
        if self.is_to_be_searched:
            self.find_exhausted()
        self.find_expired(now, len(self.expired) + SKIPPED)
        self.is_unfinished = bool(self._expiring) and self._expiring[0][0] <= now
        return not self.is_unfinished

    def find_expired(self, now: int, limit: int) -> None:
        """Adds to ``expired`` what nobody was going to find so, until it holds ``limit``."""
        while self._expiring and self._expiring[0][0] <= now and len(self.expired) < limit:
            entry = self._entries.get(heappop(self._expiring)[1])
            if entry is not None:
                self._due(entry, now)

    def numbered(self, seq: int) -> Entry | None:
        """The entry of the message with this number; see ``find``."""
        if seq in self._packed:
            self._queue(self._unpack(self._packed.pop(seq)))
        return self._entries.get(seq)

    def expire_at(self, entry: Entry, when: int) -> None:
        """It expires then, where it does not say itself that it does so sooner."""
        entry.is_plain = False
        if entry.expires_at is None or entry.expires_at > when:
            entry.expires_at = when
            heappush(self._expiring, (when, entry.seq))

    def expire_as_named(self) -> None:
        """All expire as they themselves say from here on; those that were to leave are looked at again."""
        for entry in self._entries.values():
            if entry.expires_at != LOST:
                entry.expires_at = read_tags(entry.tags).expires_at
        found, self.expired = self.expired, []
        for entry in found:
            self.release(entry)

    def lose(self, *, tagged: str) -> None:
        """What has this among its tags expires now, whatever else is said; of an empty one all."""
        if not tagged:
            for seq, _ in [*self._packed.rows()]:
                self.numbered(seq)
        for entry in [one for one in self._entries.values() if tagged in one.tags]:
            self.expire_at(entry, LOST)

    @property
    def has_to_leave(self) -> bool:
        """Whether ``find_expired`` or ``find_exhausted`` may find something, now or later."""
        return bool(self._expiring or self.max_tries)

    def lock(self, message_id: bytes) -> Entry | None:
        """Locks a message for a branch that was found prepared, or carried. None when it is not here."""
        entry = self.find(message_id)
        if entry is not None and not entry.locked:
            self._lock(entry)
            if entry.line is not None:
                entry.line.hold(entry.seq, None)
        return entry

    def _lock(self, entry: Entry) -> None:
        """As ``take`` does, which has to be fast."""
        entry.locked = True
        self.locked += 1
        if entry.not_before is not None:
            self._delays.discard(entry.not_before)

    def pass_on(self, entry: Entry, holder: object) -> None:
        """A locked message is this holder's from here on, and so is its line."""
        if entry.line is not None:
            entry.line.hold(entry.seq, holder)

    def claim(self, entry: Entry) -> bool:
        """Locks a message for a branch whose decision came later than what was found of it. False where it cannot."""
        for found in (self.expired, self.exhausted):
            if entry in found:
                found.remove(entry)
                return True
        return not entry.locked and self.lock(entry.message_id) is entry

    def release(self, entry: Entry) -> None:
        """A locked message is back where it was."""
        if entry.locked:  # else an interrupt came between
            entry.locked = False
            self.locked -= 1
        if entry.not_before is not None:
            self._delays.add(entry.not_before)
        if entry.expires_at is not None:
            heappush(self._expiring, (entry.expires_at, entry.seq))
        if entry.line is None:
            self._queue(entry)
        else:
            entry.line.come_back(entry.seq)

    def fail(self, entry: Entry, retry: Retry) -> None:
        """A delivery has failed: the message is put off, and where a branch had locked it, it is back."""
        was_free, before = not entry.locked, entry.not_before
        entry.fail(retry)
        if was_free and before != entry.not_before:
            if before is not None:
                self._delays.discard(before)
            if entry.not_before is not None:
                self._delays.add(entry.not_before)
        self.come_back(entry)

    def come_back(self, entry: Entry) -> None:
        """What a branch had locked is back, or leaves where it had all its tries."""
        if self._is_exhausted(entry):
            self._set_aside(entry, self.exhausted)
        elif entry.locked:
            self.release(entry)

    def find_exhausted(self) -> None:
        """Adds to ``exhausted`` what nobody was going to find so: after an opening, or for a new limit."""
        self.is_to_be_searched = False
        for entry in list(self._entries.values()) if self.max_tries else ():
            if not entry.locked and self._is_exhausted(entry):
                self._set_aside(entry, self.exhausted)

    def limit_tries(self, max_tries: int) -> None:
        """Who has had so many is delivered no more; 0: there is no limit. Who had all by the former one is looked at
        again by ``find_exhausted``."""
        if max_tries == self.max_tries:
            return
        self.max_tries, self.is_to_be_searched = max_tries, True
        found, self.exhausted = self.exhausted, []
        for entry in found:
            self.release(entry)

    def _is_exhausted(self, entry: Entry) -> bool:
        return 0 < self.max_tries <= entry.tries

    def _set_aside(self, entry: Entry, leaving: list[Entry]) -> None:
        """It leaves; the next in its line may come."""
        if not entry.locked:
            self._lock(entry)
        leaving.append(entry)
        if entry.line is not None:
            entry.line.let_go(entry.seq)

    def remove(self, entry: Entry) -> bool:
        """A locked message is gone for good. Whether another one may be taken now."""
        del self._entries[entry.seq]
        del self._seqs[entry.message_id]
        self.locked -= 1
        if entry.correlation is not None:
            keys = self._by_correlation[entry.correlation]
            del keys[bisect_left(keys, self._key_of(entry))]
            if not keys:
                del self._by_correlation[entry.correlation]
        if len(self._ready) + len(self._delayed) + len(self._expiring) > SPARE_KEYS:
            self._compact_if_worth()
        return entry.line is not None and entry.line.leave(entry.seq)

    def remove_run(self, run: Run) -> None:
        """As ``remove`` of all of these."""
        if run.seq in self._entries:
            for entry in self.expand(run):
                self.remove(entry)
        else:
            del self._runs[run.seq]
            deque(map(self._seqs.pop, run.ids), 0)
            self.locked -= len(run.ids)

    def leaves(self, seq: int, now: int) -> bool:
        """Whether it has expired, or had all its tries: then it is set aside."""
        return self._leaves(self._entries[seq], now)

    def remove_through(self, seq: int) -> list[MessageId]:
        """Every message with this number or one below is gone for good; none may be locked. Returns their ids."""
        left: list[MessageId] = []
        for ids in self._packed.remove_through(seq):
            left += ids
        gone = [entry for entry in self._entries.values() if entry.seq <= seq]
        for entry in gone:
            del self._entries[entry.seq]
            left.append(entry.message_id)
            if entry.not_before is not None:
                self._delays.discard(entry.not_before)
        deque(map(self._seqs.pop, left), 0)
        self._forget_correlations(gone)
        for entry in gone:
            if entry.line is not None:
                entry.line.leave(entry.seq)
        self._compact_if_worth()
        return left

    def locked_through(self, seq: int) -> int:
        """How many messages with this number or one below are locked."""
        self.expand_all()
        return sum(1 for entry in self._entries.values() if entry.locked and entry.seq <= seq) if self.locked else 0

    def _due(self, entry: Entry, now: int, holder: object = None) -> bool:
        """Whether this one may be given it now."""
        if entry.locked or ((self.max_tries or entry.expires_at is not None) and self._leaves(entry, now)):
            return False
        if entry.not_before is not None and entry.not_before > now:
            return False
        return entry.line is None or entry.line.lets(entry.seq, now, holder)

    def _is_there(self, entry: Entry, now: int) -> bool:
        """Whether somebody may have it who does not care for its turn; what waits to be moved for its tries waits no
        more."""
        if entry.expires_at is not None and entry.expires_at <= now:
            return not entry.locked and not self._leaves(entry, now)
        if entry.locked and entry in self.exhausted:
            self.exhausted.remove(entry)
            entry.locked = False
            self.locked -= 1
            if entry.not_before is not None:
                self._delays.add(entry.not_before)
        return not entry.locked

    def _leaves(self, entry: Entry, now: int) -> bool:
        """Whether it has expired, or had all its tries: then it is set aside."""
        if self._is_exhausted(entry):
            self._set_aside(entry, self.exhausted)
            return True
        if entry.expires_at is not None and entry.expires_at <= now:
            self._set_aside(entry, self.expired)
            return True
        return False
