"""What a crash may leave of one file's content: of every sector that was written and not synced, any of its versions.

A sector is written whole or not at all, each on its own and in any order, so that several overwrites may leave any
mixture of them; the next sync makes it the newest. A file that grew may be shorter, with zeros where a sector is
missing before one that is there. What is torn by pages of 4 KiB is among it. A new file may be zeros as well, and one
that was made with its content may end in the middle of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from math import prod

SECTOR_BYTES = 512
PAGE_SECTORS = 8
"""Of 4 KiB: drives with larger sectors, and the page cache, tear there."""
EVERY = 32
"""A file is torn in every way where there are no more ways than this; elsewhere in those that are named below."""
LAST_WRITES = 3
"""How many of the writes not synced are torn in each way; those before them are there or not."""

_ZEROS = bytes(SECTOR_BYTES)

Choice = dict[int, int]
"""Which version each sector has."""


@dataclass
class FileContent:
    """A file's bytes now, and since its last sync."""

    now: bytes
    _synced: bytes = b""
    _versions: dict[int, list[bytes | None]] = field(default_factory=dict)
    """Of each sector written since the sync, oldest first; None where the file was not so long."""
    _writes: list[Choice] = field(default_factory=list)
    """Since the sync: which version each sector has, of those that the write touched."""
    _cut: bytes | None = None
    """A new file that ends in the middle."""
    _lost: set[int] = field(default_factory=set)
    """Sectors that a failed sync has dropped and nobody has written since: no later sync writes them."""

    @classmethod
    def durable(cls, data: bytes) -> FileContent:
        return cls(data, data)

    @classmethod
    def new(cls, data: bytes) -> FileContent:
        """Of a file that is made with this content."""
        made = cls(data)
        written = [data[at : at + SECTOR_BYTES] for at in range(0, len(data), SECTOR_BYTES)]
        versions: dict[int, list[bytes | None]] = {at: [None, _ZEROS[: len(part)]] for at, part in enumerate(written)}
        after = dict.fromkeys(versions, 1)
        for sector, part in enumerate(written):
            if part != versions[sector][1]:
                versions[sector].append(part)
                after[sector] = 2
        made._versions = versions
        made._writes.append(after)
        made._cut = data[: len(data) // 2]
        return made

    @property
    def is_synced(self) -> bool:
        return not self._writes and self._cut is None

    def copy(self) -> FileContent:
        versions = {sector: list(known) for sector, known in self._versions.items()}
        return FileContent(self.now, self._synced, versions, list(self._writes), self._cut, set(self._lost))

    def overwrite(self, offset: int, data: bytes) -> None:
        old, first, end = self.now, offset // SECTOR_BYTES, -(-(offset + len(data)) // SECTOR_BYTES)
        self.now = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
        after = {}
        for sector in range(min(first, len(old) // SECTOR_BYTES), end):
            versions = self._versions.setdefault(sector, [_sector(old, sector) or None])
            self._lost.discard(sector)
            if (written := _sector(self.now, sector)) != versions[-1]:
                versions.append(written)
            after[sector] = len(versions) - 1
        self._writes.append(after)
        self._forget()

    def sync(self) -> None:
        synced, lost = self.now, dict[int, int]()
        if self._lost:
            newest = self._moment(len(self._writes))
            lost = {sector: newest[sector] for sector in self._lost}
            synced = self._chosen(newest | dict.fromkeys(lost, 0))
        self._synced, self._cut = synced, None
        self._versions = {sector: self._versions[sector] for sector in lost}
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
        """One of all that a crash may leave; what is torn is torn by sectors, by pages, or as ``variants`` has it."""
        if self.all_listed or (how := dice.random()) < 0.25:
            return dice.choice(self.variants)
        if how < 0.6:
            return self._chosen({sector: dice.randrange(len(known)) for sector, known in self._versions.items()})
        moments = [self._moment(count) for count in range(len(self._writes) + 1)]
        pages = {sector // PAGE_SECTORS: dice.choice(moments) for sector in sorted(self._versions)}
        return self._chosen({sector: pages[sector // PAGE_SECTORS][sector] for sector in self._versions})

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

    def _moment(self, count: int) -> Choice:
        """What each sector was after so many of the writes."""
        choice = dict.fromkeys(self._versions, 0)
        for write in self._writes[:count]:
            choice.update(write)
        return choice

    def _chosen(self, choice: Choice) -> bytes:
        versions = self._versions
        parts = sorted([(at, data) for at, chosen in choice.items() if (data := versions[at][chosen])])
        if not parts:
            return self._synced
        size = parts[-1][0] * SECTOR_BYTES + len(parts[-1][1])
        joined = b"".join([data for _, data in parts])
        if len(joined) == size:  # all from the first on
            return joined + self._synced[size:]
        left = bytearray(self._synced.ljust(size, b"\0"))
        for at, data in parts:
            left[at * SECTOR_BYTES : at * SECTOR_BYTES + len(data)] = data
        return bytes(left)

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


def _sector(data: bytes, sector: int) -> bytes:
    return data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]


@lru_cache(maxsize=512)
def fingerprint(content: bytes) -> bytes:
    """Stands for a long content where trees are compared, so that what was judged need not be kept."""
    return content if len(content) <= SECTOR_BYTES else b"blake2b:" + blake2b(content, digest_size=16).digest()
