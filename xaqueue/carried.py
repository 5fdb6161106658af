"""A carried change: what a branch adds and takes, on its way to its space in the log of a database.

The database commits it as a row, together with its own work: that is durable, and the space's own record of it may
come later. Whoever opens the space after a crash hands nothing out of the queues concerned until that database was
asked. Carried changes of a space are numbered; a number is used once, for ever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgpack

from xaqueue.errors import InvalidArgument
from xaqueue.xid import Xid

CARRIER = re.compile(r"[0-9a-f]{16}\.[!-.0-~]{1,192}")
"""A node, and a participant's name as a URL has it: both are in the name of a file."""


class Life(NamedTuple):
    """Who has a space open: only these may carry its changes now."""

    space: str
    """The space's id."""
    epoch: int
    secret: str
    """Of this opening alone: a copy of the space, opened elsewhere, has another one."""


class Pruned(NamedTuple):
    """What a database remembers of changes whose rows are gone."""

    highest: int = 0
    """The highest of their numbers."""
    total: int = 0
    """How many there were."""


class CarrierState(StrEnum):
    """What a space notes durably of a database that carries its changes."""

    OPEN = "open"
    """Changes may stand in the database only."""
    CLOSED = "closed"
    """None did when the space was closed."""
    RELEASED = "released"
    """Some may, and an operator has decided not to wait for them."""


@dataclass(frozen=True, slots=True)
class CarrierStatus:
    """A database that carries changes of a space: the participant of a transaction manager."""

    carrier: str
    """``<node>.<participant>``, the participant's name as in a URL: both are in the name of a file."""
    state: CarrierState
    next: int
    """Numbers below this one, but for those that are ``open``, are applied or void."""
    open: tuple[int, ...]
    applied: int
    """The highest number of its own that was applied."""
    count: int
    """How many were."""
    queues: tuple[str, ...]
    """Those that it has carried changes of."""
    pending: bool
    """It is of an earlier life of the space, and was not asked yet."""

    def has_applied(self, number: int) -> bool:
        return number < self.next and number not in self.open

    @property
    def is_awaited(self) -> bool:
        """Whether its queues hand nothing out."""
        return self.pending and self.state is CarrierState.OPEN


@dataclass(frozen=True, slots=True)
class Carriers:
    """Of a space that is open."""

    space: str
    epoch: int
    secret: str
    carriers: tuple[CarrierStatus, ...] = ()

    @property
    def life(self) -> Life:
        return Life(self.space, self.epoch, self.secret)

    def get(self, carrier: str) -> CarrierStatus | None:
        return next((one for one in self.carriers if one.carrier == carrier), None)


class CarriedChange(NamedTuple):
    """One branch's. added: head and body of each block that adds a message. taken: queue and id of each message."""

    carrier: str
    life: Life
    number: int
    xid: Xid
    added: Sequence[tuple[bytes, bytes]]
    taken: Sequence[tuple[str, bytes]]

    def encode(self) -> bytes:
        """For the row."""
        data: bytes = msgpack.packb(
            (self.carrier, self.life.space, self.life.epoch, self.number, tuple(self.xid), self.added, self.taken)
        )
        return data


def decode(data: bytes) -> CarriedChange:
    """What ``encode`` made. Raises InvalidArgument."""
    try:
        carrier, space, epoch, number, xid, added, taken = msgpack.unpackb(data)
        return CarriedChange(
            str(carrier),
            Life(str(space), int(epoch), ""),
            int(number),
            Xid(*xid),
            [(bytes(head), bytes(body)) for head, body in added],
            [(str(queue), bytes(message_id)) for queue, message_id in taken],
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InvalidArgument(f"a row of a carried change cannot be read: {error!r}") from None


def checked_carrier(carrier: Any) -> str:
    """The name itself. Raises InvalidArgument."""
    if not isinstance(carrier, str) or not CARRIER.fullmatch(carrier):
        raise InvalidArgument(f"carrier {str(carrier)[:90]!r} is refused: <node>.<participant> is wanted")
    return str(carrier)
