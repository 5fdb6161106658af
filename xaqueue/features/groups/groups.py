"""The groups of a queue: of each, one message after the other is delivered, in the order of their numbers.

Who has locked a message of a group holds the group. While it does, it may have the next one, too, and nobody else may;
the keys of these wait in its *hand*, since others would only pass them over. A hand is cleaned lazily, as the heaps of
the queue are: what has been taken, or is not the next any more, is dropped when it comes up.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

SPARE = 1024
"""So many numbers of messages that are gone are kept in any case."""


class _Hand:
    """What one holder may have."""

    __slots__ = ("groups", "keys")

    def __init__(self) -> None:
        self.groups = 0
        """That it holds."""
        self.keys: list[int] = []


class _Group:
    __slots__ = ("hand", "held", "holder", "size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        """Messages of it that are here."""
        self.waiting: list[int] = []
        """A heap of numbers: those that are free, and some that are not, or are gone."""
        self.held: set[int] = set()
        """Those that branches have locked. What is set aside, because it leaves, holds nothing up."""
        self.holder: object = None
        """Who has these, and may take more; None where nobody may."""
        self.hand: _Hand | None = None
        """Of the holder."""


class Groups:
    """By name, the groups that have a message. is_free: whether the message of a number is here and not locked."""

    def __init__(self, is_free: Callable[[int], bool]) -> None:
        self._is_free = is_free
        self.by_name: dict[str, _Group] = {}
        self._hands: dict[int, _Hand] = {}
        """By the id of a holder."""

    def add(self, name: str, seq: int) -> None:
        """A message of it comes."""
        group = self.by_name.get(name)
        if group is None:
            group = self.by_name[name] = _Group()
        group.size += 1
        heappush(group.waiting, seq)

    def next_of(self, name: str) -> int | None:
        """The first of it that is free."""
        waiting = self.by_name[name].waiting
        while waiting:
            if self._is_free(waiting[0]):
                return waiting[0]
            heappop(waiting)
        return None

    def hold(self, name: str, seq: int, holder: object) -> None:
        """One of it is locked by somebody who may have the next, too; None: nobody may."""
        group = self.by_name[name]
        if not group.held and holder is not None:
            group.holder, group.hand = holder, self._hands.setdefault(id(holder), _Hand())
            group.hand.groups += 1
        elif group.holder is not holder:
            self._forget_holder(group)
        group.held.add(seq)

    def let_go(self, name: str, seq: int) -> None:
        """It is not locked by a branch any more."""
        group = self.by_name[name]
        group.held.discard(seq)
        if not group.held:
            self._forget_holder(group)

    def comes_back(self, name: str, seq: int) -> None:
        """One that was locked is free again."""
        heappush(self.by_name[name].waiting, seq)
        self.let_go(name, seq)

    def leave(self, name: str, is_here: Callable[[int], bool]) -> bool:
        """One of it is gone. Whether there are others."""
        group = self.by_name[name]
        group.size -= 1
        if len(group.waiting) > 3 * group.size + SPARE:  # what leaves behind one that waits long
            group.waiting = [seq for seq in set(group.waiting) if is_here(seq)]
            heapify(group.waiting)
        if not group.size:
            del self.by_name[name]
        return group.size > 0

    def is_held(self, name: str) -> bool:
        return bool(self.by_name[name].held)

    def lets(self, name: str, holder: object) -> bool:
        """Whether this one may have the next of it."""
        group = self.by_name[name]
        return not group.held or (holder is not None and group.holder is holder)

    def hand(self, name: str) -> list[int] | None:
        """Where the next of a group that is held belongs; None where nobody may have it."""
        hand = self.by_name[name].hand
        return hand.keys if hand is not None else None

    def hand_of(self, holder: object) -> list[int]:
        """The keys of what this one may have, and nobody else: a heap."""
        hand = self._hands.get(id(holder))
        return hand.keys if hand is not None else []

    def empty_hands(self) -> None:
        """The order of the queue is another one: all keys are to come again."""
        for hand in self._hands.values():
            hand.keys.clear()

    def _forget_holder(self, group: _Group) -> None:
        if group.hand is not None:
            group.hand.groups -= 1
            if not group.hand.groups:
                del self._hands[id(group.holder)]
            group.holder = group.hand = None
