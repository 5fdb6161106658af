"""What a space notes of a database that carries its changes: a command block of kind *branch* in ``carriers/``.

The body is MessagePack [state, epoch, next, [open number, ...], applied, count, [queue, ...]]. It is durable, with
every queue concerned, before the first change is carried; each record of a carried change has it as of that change, so
that what was applied and what says so are one. It stays for ever: its numbers tell an old copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import msgpack

from xaqueue.carried import CARRIER, CarrierState, CarrierStatus, checked_carrier
from xaqueue.core.model.block import NO_MESSAGE, Kind, decode, head_of, pack_properties
from xaqueue.core.model.block_files import listed, read_checked
from xaqueue.core.model.change import PUT, Op
from xaqueue.core.model.record_kinds import Looking, Opening, RecordKind
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.features.carry.carrier import Carrier
from xaqueue.features.carry.carriers import carriers_of, find_awaited
from xaqueue.message import Properties

CARRIERS = "carriers"
_NO_PROPERTIES = pack_properties(Properties(""))


class CarrierStep(IntEnum):
    CARRIER = 10


def carrier_path(carrier: str) -> str:
    return f"{CARRIERS}/{carrier}"


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
    head, _ = head_of(Kind.BRANCH, NO_MESSAGE, _NO_PROPERTIES, body, epoch)
    return (PUT, carrier_path(carrier.name), head, body, 0)


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


def statuses(fs: FileSystem, *, owned: bool) -> list[CarrierStatus]:
    """By the notes; what an owner waits for, only it knows."""
    found = []
    for name in listed(fs, CARRIERS):
        try:
            carrier = decode_note(read_checked(fs, carrier_path(name)), name)
        except (DamagedBlock, FileNotFoundError):
            continue  # for ``check`` to tell
        carrier.pending = not owned and carrier.state is not CarrierState.CLOSED
        found.append(carrier.status)
    return found


class CarrierKind(RecordKind):
    directory = CARRIERS
    names = CARRIER
    steps = tuple(CarrierStep)

    def find(self, opening: Opening) -> None:
        """Where a note is damaged it stays, and all queues wait: nobody knows which."""
        space = opening.space
        for name in listed(space.fs, CARRIERS):
            path = f"{CARRIERS}/{name}"
            try:
                checked_carrier(name)
            except InvalidArgument:
                opening.set_aside(path, "no note of a carrier: its name is not <node>.<participant>")
                continue
            try:
                carrier = decode_note(read_checked(space.fs, path), name)
            except DamagedBlock as damage:
                carrier = Carrier(name, CarrierState.OPEN, damage=str(damage))
                opening.note(f"{path} is damaged ({damage}): no queue hands anything out until its database was asked")
            carrier.pending = carrier.state is not CarrierState.CLOSED
            carriers_of(space).by_name[name] = carrier
            carriers_of(space).last = max(carriers_of(space).last, carrier.next - 1)
            if carrier.is_awaited and not carrier.damage:
                opening.note(f"queues {', '.join(sorted(carrier.queues))} wait for the database of carrier {name}")
        find_awaited(space)

    def hardened(self, space: Any) -> Iterable[str]:
        return [carrier_path(one.name) for one in carriers_of(space).by_name.values() if not one.damage]

    def check(self, look: Looking, name: str, path: str) -> None:
        try:
            carrier = decode_note(read_checked(look.fs, path), checked_carrier(name))
        except InvalidArgument:
            look.damaged(path, "is no note of a carrier: its name is not <node>.<participant>")
        except DamagedBlock as damage:
            advice = f"all queues wait until its database was asked, or `xaqueue release --carrier {name}`"
            look.broken(path, f"the note of carrier {name}: {damage}: {advice}")
        else:
            if carrier.state is CarrierState.OPEN and not look.live:
                look.note(path, f"queues {', '.join(sorted(carrier.queues))} wait until its database was asked")

    def bring(self, newer: Any) -> None:
        """Whose database may hold changes yet, so that their queues wait. Where nothing of the space is missing, who
        owes nothing then begins anew, since the database knows nothing of the id that the space gets.
        """
        for name in listed(newer.fs, CARRIERS):
            path = carrier_path(name)
            if newer.is_whole:
                discard(newer.fs, f"{newer.place}/{path}")
            if not (newer.is_whole and _owes_nothing(newer.fs, name)) and not newer.fs.exists(f"{newer.place}/{path}"):
                newer.link(path)


def _owes_nothing(fs: FileSystem, name: str) -> bool:
    try:
        return decode_note(fs.read(carrier_path(name)), name).state is CarrierState.CLOSED
    except (OSError, DamagedBlock):
        return False
