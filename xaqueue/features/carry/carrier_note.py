"""What a space notes of a database that carries its changes: a command block of kind *branch* in ``carriers/``.

The body is MessagePack [state, epoch, next, [open number, ...], applied, count, [queue, ...]]. It is durable, with
every queue concerned, before the first change is carried; each record of a carried change has it as of that change, so
that what was applied and what says so are one. It stays for ever: its numbers tell an old copy.
"""

from __future__ import annotations

import msgpack

from xaqueue.carried import CarrierState
from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.core.model.change import PUT, Op
from xaqueue.errors import DamagedBlock
from xaqueue.features.carry.carrier import Carrier
from xaqueue.message import Properties


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
