"""Unique 16 bytes for messages and local transactions: random, from the kernel, fetched many at a time."""

from __future__ import annotations

import os
from struct import Struct
from typing import Any

ID_BYTES = 16
_AT_A_TIME = 256

_fresh: list[bytes] = []


def fresh_id() -> bytes:
    """16 random bytes. Safe for threads, and a forked child never gets those of its parent."""
    try:
        return _fresh.pop()
    except IndexError:
        made: list[bytes] = fresh_ids(_AT_A_TIME)
        _fresh.extend(made[1:])
        return made[0]


def fresh_ids(count: int) -> list[Any]:
    """So many of them. The form is one of its own: ``struct.unpack`` would keep each."""
    return [*Struct(f"{ID_BYTES}s" * count).unpack(os.urandom(ID_BYTES * count))]


os.register_at_fork(after_in_child=_fresh.clear)
