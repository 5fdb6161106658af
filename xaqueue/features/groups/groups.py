"""The groups of a queue: of each, one message after the other is delivered, in the order of their numbers.

Who has locked a message of a group holds the group. While it does, it may have the next one, too, and nobody else may;
the keys of these wait in its *hand*, since others would only pass them over. A hand is cleaned lazily, as the heaps of
the queue are: what has been taken, or is not the next any more, is dropped when it comes up.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from xaqueue.core.model.entry import Entry, Lines

SPARE = 1024
"""So many numbers of messages that are gone are kept in any case."""


class Messages(Protocol):
    """Those of the queue, by number."""

    def is_here(self, seq: int) -> bool: ...

    def is_free(self, seq: int) -> bool: ...

    def queue(self, seq: int) -> bool: ...

    def leaves(self, seq: int, now: int) -> bool: ...


class _Hand:
    """What one holder may have."""

    __slots__ = ("groups", "keys")

    def __init__(self) -> None:
        self.groups = 0
        """That it holds."""
        self.keys: list[int] = []


class Group:
    """See ``Line``."""

    __slots__ = ("_all", "_hand", "_held", "_holder", "_name", "_size", "waiting")

    def __init__(self, name: str, groups: Groups) -> None:
        self._name = name
        self._all = groups
        self._size = 0
        """Messages of it that are here."""
        self.waiting: list[int] = []
        """A heap of numbers: those that are free, and some that are not, or are gone."""
        self._held: set[int] = set()
        """Those that branches have locked. What is set aside, because it leaves, holds nothing up."""
        self._holder: object = None
        """Who has these, and may take more; None where nobody may."""
        self._hand: _Hand | None = None
        """Of the holder."""

    def enter(self, seq: int) -> None:
        self._size += 1
        heappush(self.waiting, seq)

    @property
    def next(self) -> int | None:
        """The first of it that is free."""
        waiting, is_free = self.waiting, self._all.messages.is_free
        while waiting:
            if is_free(waiting[0]):
                return waiting[0]
            heappop(waiting)
        return None

    def hold(self, seq: int, holder: object) -> None:
        self._let_go(seq)  # another one may have had it
        if not self._held and holder is not None:
            self._holder, self._hand = holder, self._all.hands.setdefault(id(holder), _Hand())
            self._hand.groups += 1
        elif self._holder is not holder:
            self._forget_holder()
        self._held.add(seq)
        self._queue_next()

    def let_go(self, seq: int) -> None:
        self._let_go(seq)
        self._queue_next()

    def come_back(self, seq: int) -> None:
        heappush(self.waiting, seq)
        self.let_go(seq)

    def leave(self, seq: int) -> bool:
        self._let_go(seq)
        self._size -= 1
        if len(self.waiting) > 3 * self._size + SPARE:  # what leaves behind one that waits long
            self.waiting = [one for one in set(self.waiting) if self._all.messages.is_here(one)]
            heapify(self.waiting)
        if not self._size:
            del self._all.by_name[self._name]
        return self._size > 0 and self._queue_next()

    def lets(self, seq: int, now: int, holder: object) -> bool:
        """None of it is passed: what leaves before this one is set aside."""
        if self._held and (holder is None or self._holder is not holder):
            return False
        while (first := self.next) not in (None, seq) and self._all.messages.leaves(first, now):
            pass
        return first == seq

    def keeps(self, key: int) -> bool:
        if self._hand is not None:
            heappush(self._hand.keys, key)
        return bool(self._held)

    def _queue_next(self) -> bool:
        """The next may be taken, by its holder or by anybody; whether by anybody."""
        seq = self.next
        return seq is not None and self._all.messages.queue(seq)

    def _let_go(self, seq: int) -> None:
        self._held.discard(seq)
        if not self._held:
            self._forget_holder()

    def _forget_holder(self) -> None:
        if self._hand is not None:
            self._hand.groups -= 1
            if not self._hand.groups:
                del self._all.hands[id(self._holder)]
            self._holder = self._hand = None


class Groups(Lines):
    """By name, the groups that have a message."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.by_name: dict[str, Group] = {}
        self.hands: dict[int, _Hand] = {}
        """By the id of a holder."""

    def enter(self, entry: Entry) -> Group | None:
        name = entry.tags.partition(".g")[2][:16]
        if not name:
            return None
        group = self.by_name.get(name)
        if group is None:
            group = self.by_name[name] = Group(name, self)
        group.enter(entry.seq)
        return group

    def hand_of(self, holder: object) -> list[int]:
        hand = self.hands.get(id(holder))
        return hand.keys if hand is not None else []

    def begin_again(self) -> None:
        for hand in self.hands.values():
            hand.keys.clear()


def act(queue: Any) -> None:
    """A queue is there, or defined otherwise."""
    if queue.index.lines.__class__ is not Groups:
        queue.index.lines = Groups(queue.index)
