"""What a crash may leave of one file's content: of every sector that was written and not synced, any of its versions.

A sector is written whole or not at all, each on its own and in any order, so that several overwrites may leave any
mixture of them; the next sync makes it the newest. A file that grew may be shorter, with zeros where a sector is
missing before one that is there. What is torn by pages of 4 KiB is among it. A new file may be zeros as well, and one
that was made with its content may end in the middle of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Self

SECTOR_BYTES = 512
PAGE_SECTORS = 8
"""Of 4 KiB: drives with larger sectors, and the page cache, tear there."""

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

    @classmethod
    def durable(cls, data: bytes) -> Self:
        return cls(data, data)

    @classmethod
    def new(cls, data: bytes) -> Self:
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

    def overwrite(self, offset: int, data: bytes) -> None:
        old, first, end = self.now, offset // SECTOR_BYTES, -(-(offset + len(data)) // SECTOR_BYTES)
        self.now = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
        after = {}
        for sector in range(min(first, len(old) // SECTOR_BYTES), end):
            versions = self._versions.setdefault(sector, [_sector(old, sector) or None])
            if (written := _sector(self.now, sector)) != versions[-1]:
                versions.append(written)
            after[sector] = len(versions) - 1
        self._writes.append(after)

    def sync(self) -> None:
        self._synced, self._cut = self.now, None
        self._versions, self._writes = {}, []

    @property
    def barest(self) -> bytes:
        """Nothing of what was not synced."""
        return self._chosen(self._moment(0))

    def by_chance(self, dice: random.Random) -> bytes:
        """One of all that a crash may leave: torn by sectors or by pages, as it was at one moment, or cut."""
        how = dice.random()
        if self._cut is not None and how < 0.05:
            return self._cut
        if how < 0.15:
            return self._chosen(self._moment(dice.randrange(len(self._writes) + 1)))
        if how < 0.6:
            return self._chosen({sector: dice.randrange(len(known)) for sector, known in self._versions.items()})
        moments = [self._moment(count) for count in range(len(self._writes) + 1)]
        pages = {sector // PAGE_SECTORS: dice.choice(moments) for sector in sorted(self._versions)}
        return self._chosen({sector: pages[sector // PAGE_SECTORS][sector] for sector in self._versions})

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


def _sector(data: bytes, sector: int) -> bytes:
    return data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]


@lru_cache(maxsize=512)
def fingerprint(content: bytes) -> bytes:
    """Stands for a long content where trees are compared, so that what was judged need not be kept."""
    return content if len(content) <= SECTOR_BYTES else b"blake2b:" + blake2b(content, digest_size=16).digest()
