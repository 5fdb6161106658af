"""All databases that carry changes of an open space, and which of its queues wait for one of them."""

from __future__ import annotations

from typing import Any

from xaqueue.carried import Life
from xaqueue.core.engine.features import Gate
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import QueueWaiting
from xaqueue.features.carry.carrier import Carrier


class CarrierMemory(Gate):
    """Used with the space's lock held."""

    def __init__(self) -> None:
        self.by_name: dict[str, Carrier] = {}
        self.last = 0
        """The highest number that was given to a carried change, by anybody."""
        self.awaited: dict[str, Carrier] = {}
        """By queue a carrier that is to be asked before anything is handed out; under "" one of all queues."""
        self.is_delivering = False
        """Somebody delivers what a database has carried."""
        self.secret = fresh_id().hex()

    def _of(self, queue: str) -> Carrier | None:
        return self.awaited.get(queue) or self.awaited.get("")

    def shuts(self, queue: str) -> QueueWaiting | None:
        carrier = self._of(queue)
        if carrier is None:
            return None
        node, _, participant = carrier.name.partition(".")
        return QueueWaiting(
            f"queue {queue} waits for the database of participant {participant!r} of transaction manager {node}, "
            "which may hold its last changes: open that transaction manager with that database, and it asks by itself. "
            f"Where that is lost for good, `xaqueue release --carrier {carrier.name}` goes on without them"
            + (f". Its note is damaged: {carrier.damage}" if carrier.damage else "")
        )

    def hides(self, queue: str) -> str:
        carrier = self._of(queue)
        return "" if carrier is None else f"the database of carrier {carrier.name}"


def carriers_of(space: Any) -> CarrierMemory:
    memory: CarrierMemory = space.memory_of(CarrierMemory)
    return memory


def life_of(space: Any) -> Life:
    return Life(space.id, space.epoch, carriers_of(space).secret)


def find_awaited(space: Any) -> None:
    """Which queues hand nothing out follows from the carriers. Called with the lock held."""
    memory = carriers_of(space)
    awaited = [carrier for carrier in memory.by_name.values() if carrier.is_awaited]
    before = memory.awaited
    memory.awaited = {queue: one for one in awaited for queue in ([""] if one.damage else one.queues)}
    others = tuple(gate for gate in space.gates if gate is not memory)
    space.gates = (*others, memory) if memory.awaited else others
    if before:
        for queue in space.queues.values():
            queue.arrived.notify_all()
