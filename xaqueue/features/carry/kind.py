"""What an open makes of the notes of databases that carry changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xaqueue.carried import CarrierState, checked_carrier
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed, read_checked
from xaqueue.core.model.layout import CARRIERS
from xaqueue.core.model.record_kinds import Opening, RecordKind
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.features.carry.carrier import Carrier
from xaqueue.features.carry.carrier_note import decode_note


class CarrierKind(RecordKind):
    directory = CARRIERS

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
            space.carriers[name] = carrier
            space.last_carried = max(space.last_carried, carrier.next - 1)
            if carrier.is_awaited and not carrier.damage:
                opening.note(f"queues {', '.join(sorted(carrier.queues))} wait for the database of carrier {name}")
        space.find_awaited()

    def hardened(self, space: Any) -> Iterable[str]:
        return [layout.carrier_path(one.name) for one in space.carriers.values() if not one.damage]
