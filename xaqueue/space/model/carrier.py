"""What a space notes of a database that carries its changes: a command block of kind *branch* in ``carriers/``.

The body is MessagePack [state, epoch, next, [open number, ...], applied, count, [queue, ...]]. It is durable, with
every queue concerned, before the first change is carried; each record of a carried change has it as of that change, so
that what was applied and what says so are one. It stays for ever: its numbers tell an old copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgpack

from xaqueue.carried import CarriedChange, CarrierState, CarrierStatus
from xaqueue.errors import DamagedBlock
from xaqueue.message import Properties
from xaqueue.space.model import layout
from xaqueue.space.model.block import NO_MESSAGE, UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.space.model.change import PUT, Op


@dataclass(slots=True)
class Carrier:
    """Used with the space's lock held."""

    name: str
    state: CarrierState = CarrierState.CLOSED
    epoch: int = 0
    """Of the space, in which the numbers that are open were given."""
    next: int = 1
    open: set[int] = field(default_factory=set)
    """Numbers that were given to branches, which are neither applied nor void."""
    applied: int = 0
    count: int = 0
    """How many changes were applied."""
    queues: set[str] = field(default_factory=set)
    noted: set[str] = field(default_factory=set)
    """Those of them that are noted durably in this life of the space; empty before."""
    pending: bool = False
    """It is of an earlier life, and what stands in its database was not delivered yet."""
    delivered: dict[int, CarriedChange] = field(default_factory=dict)
    """What was delivered and is not applied, by number."""
    repeated: set[int] = field(default_factory=set)
    """Numbers that were delivered and are applied."""
    pruned: int = 0
    """How many rows of its database are gone."""
    is_delivered: bool = False
    """That is all."""
    damage: str = ""

    @property
    def is_awaited(self) -> bool:
        return self.pending and self.state is CarrierState.OPEN

    def has_applied(self, number: int) -> bool:
        return number < self.next and number not in self.open

    @property
    def status(self) -> CarrierStatus:
        numbers, queues = tuple(sorted(self.open)), tuple(sorted(self.queues))
        return CarrierStatus(self.name, self.state, self.next, numbers, self.applied, self.count, queues, self.pending)


def note_of(carrier: Carrier, epoch: int, state: CarrierState | None = None) -> Op:
    """What puts its note in its place. epoch: of the owner that writes it. state: without one, its own."""
    body: bytes = msgpack.packb(
        (
            (state or carrier.state).value,
            carrier.epoch,
            carrier.next,
            list(carrier.open),
            carrier.applied,
            carrier.count,
            list(carrier.queues),
        )
    )
    block = Block(Kind.BRANCH, NO_MESSAGE, Properties(""), body, epoch)
    head, _ = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    return (PUT, layout.carrier_path(carrier.name), head, body, 0)


def decode_note(data: bytes, name: str) -> Carrier:
    """Raises DamagedBlock."""
    block = decode(data)
    try:
        state, epoch, following, numbers, applied, number, queues = msgpack.unpackb(block.body)
        carrier = Carrier(name, CarrierState(state), int(epoch), int(following), set(numbers), int(applied))
        carrier.count, carrier.queues = int(number), set(queues)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedBlock(f"is no note of a carrier: {error!r}") from None
    return carrier


def together(carrier: Carrier, carriers: Iterable[Carrier]) -> list[Carrier]:
    """Those of these whose queues hang together with its own; a damaged one may have had any."""
    found, left = [carrier], [one for one in carriers if one is not carrier]
    for one in found:  # which grows
        near = [other for other in left if other.damage or one.damage or other.queues & one.queues]
        found += near
        left = [other for other in left if other not in near]
    return found
