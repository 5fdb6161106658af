"""What an open space knows of a database that carries its changes. ``carrier_note`` is what it notes durably of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from xaqueue.carried import CarriedChange, CarrierState, CarrierStatus


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


def together(carrier: Carrier, carriers: Iterable[Carrier]) -> list[Carrier]:
    """Those of these whose queues hang together with its own; a damaged one may have had any."""
    found, left = [carrier], [one for one in carriers if one is not carrier]
    for one in found:  # which grows
        near = [other for other in left if other.damage or one.damage or other.queues & one.queues]
        found += near
        left = [other for other in left if other not in near]
    return found
