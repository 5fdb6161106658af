"""What a crash may leave of one file's content, enumerated: the package draws from it, the crash ring wants it all.

A sync that fails drops what it was to write (``lose``): that counts as written, and no later sync writes it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from xaqueue.testing.content import PAGE_SECTORS, SECTOR_BYTES, Choice, FileContent

EVERY = 32
"""A file is torn in every way where there are no more ways than this; elsewhere in those that are named below."""
LAST_WRITES = 3
"""How many of the writes not synced are torn in each way; those before them are there or not."""


@dataclass
class TornContent(FileContent):
    _lost: set[int] = field(default_factory=set)
    """Sectors that a failed sync has dropped and nobody has written since: no later sync writes them."""

    def copy(self) -> TornContent:
        versions = {sector: list(known) for sector, known in self._versions.items()}
        return TornContent(self.now, self._synced, versions, list(self._writes), self._cut, set(self._lost))

    def overwrite(self, offset: int, data: bytes) -> None:
        first = min(offset, len(self.now)) // SECTOR_BYTES
        super().overwrite(offset, data)
        self._lost.difference_update(range(first, -(-(offset + len(data)) // SECTOR_BYTES)))
        self._forget()

    def sync(self) -> None:
        synced, lost = self.now, dict[int, int]()
        if self._lost:
            newest = self._moment(len(self._writes))
            lost = {sector: newest[sector] for sector in self._lost}
            synced = self._chosen(newest | dict.fromkeys(lost, 0))
        versions = {sector: self._versions[sector] for sector in lost}
        super().sync()
        self._synced, self._versions = synced, versions
        self._writes = [lost] if lost else []
        self._forget()

    def lose(self) -> None:
        """A sync failed: of what was to be written there may be anything, and it counts as written."""
        self._lost.update(self._versions)

    @cached_property
    def variants(self) -> list[bytes]:
        """What a crash may leave, none twice, what it is now first. All of it, where ``all_listed``."""
        choices = map(self._chosen, self._every() if self.all_listed else self._named())
        left = dict.fromkeys((self.now, *choices, *(() if self._cut is None else (self._cut,))))
        return list(left)

    @cached_property
    def all_listed(self) -> bool:
        return prod(len(versions) for versions in self._versions.values()) <= EVERY

    def by_chance(self, dice: random.Random) -> bytes:
        """As the package draws it, or one of the ``variants``."""
        if self.all_listed or dice.random() < 0.25:
            return dice.choice(self.variants)
        return super().by_chance(dice)

    def _every(self) -> Iterator[Choice]:
        for versions in itertools.product(*(range(len(known)) for known in self._versions.values())):
            yield dict(zip(self._versions, versions, strict=True))

    def _named(self) -> Iterator[Choice]:
        """All; each moment between two writes; each of the last writes lost alone, and torn in each way of it."""
        newest = self._moment(len(self._writes))
        for count in range(len(self._writes), -1, -1):
            yield self._moment(count)
        first = max(0, len(self._writes) - LAST_WRITES)
        for count, write in enumerate(self._writes[first:], first):
            before, after = self._moment(count), self._moment(count + 1)
            for lost in _ways(sorted(write)):
                gone = {sector: before[sector] for sector in lost}
                yield after | gone
                if write is not self._writes[-1]:
                    yield newest | gone
        if self._cut is not None:
            for lost in _ways(sorted(self._versions)):
                yield newest | dict.fromkeys(lost, 0)
                yield newest | dict.fromkeys(lost, 1)

    def _forget(self) -> None:
        self.__dict__.pop("variants", None)
        self.__dict__.pop("all_listed", None)


def _ways(sectors: Sequence[int]) -> dict[frozenset[int], None]:
    """Which sectors of a write are lost: all; up to a boundary or from it on; one or all but one; pages likewise."""
    pages = [list(inner) for _, inner in itertools.groupby(sectors, lambda sector: sector // PAGE_SECTORS)]
    lost: list[list[list[int]]] = []
    for units in ([[sector] for sector in sectors], pages):
        for boundary in (0, 1, len(units) // 2, len(units) - 1):
            lost += units[boundary:], units[:boundary]
        for one in (0, len(units) // 2, len(units) - 1):
            lost += units[one : one + 1], units[:one] + units[one + 1 :]
    return dict.fromkeys(frozenset(itertools.chain.from_iterable(units)) for units in lost)
