"""What the bench needs of another queue, and how its clients are run: in threads, or in a process each.

A client in Python competes with the others of its process for the interpreter's lock. Where a peer can be used from
several processes, both ways are measured and the faster one counts: the peer at its best.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol, runtime_checkable

from bench.rates import Rate, Step, rate_of

Kind = Literal["threads", "processes"]
Operation = Literal["enqueue", "dequeue", "echo"]
OPERATIONS: tuple[Operation, ...] = ("enqueue", "dequeue")
"""What every peer does; an echo is for those with a server of ours."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the bench asks of a peer before it is opened. ``postgres_dsn``: of a server that runs already."""

    clients: int = 1
    postgres_dsn: str | None = None


@dataclass(frozen=True, slots=True)
class ClientRate(Rate):
    """The rate of clients of a peer, with what its server did for them."""

    server_cpu_seconds: float = 0.0
    """How much of the CPU time was the server's, where there is one and it can be told."""

    round_trips: int = 0
    """Between clients and server, where they are counted."""

    @property
    def server_cpu_us(self) -> float:
        """The server's part of ``cpu_us``."""
        return self.server_cpu_seconds * 1e6 / self.operations if self.operations else 0.0


def together(rates: Sequence[Rate], round_trips: int = 0) -> ClientRate:
    """The rate of clients that ran at the same time, each measured for itself."""
    latencies = array("d", chain.from_iterable(rate.latencies_s for rate in rates))
    seconds, cpu_seconds = max(rate.seconds for rate in rates), sum(rate.cpu_seconds for rate in rates)
    return ClientRate(len(latencies), seconds, cpu_seconds, latencies, round_trips=round_trips)


class Client(Protocol):
    """One connection, used by one thread."""

    def enqueue(self, bodies: Sequence[bytes]) -> None:
        """All of them in one branch, or where the peer has none, one after the other; durable as the peer says."""

    def dequeue(self, messages: int) -> int:
        """Takes up to so many and returns how many there were."""

    def close(self) -> None: ...


@runtime_checkable
class Echoing(Protocol):
    """A client whose server returns what it is sent."""

    @property
    def round_trips(self) -> int:
        """How many there were so far."""

    def echo(self, body: bytes) -> None: ...


class Peer(Protocol):
    """An open queue of another kind."""

    name: str
    durability: str
    """In words, for whoever reads the figure."""
    two_phase: bool
    survives_power_loss: bool
    processes: bool
    """Whether its clients may be in processes of their own; then its module has ``connect``."""
    place: str
    """What a client needs to connect; a client in another process is given it."""

    def connect(self) -> Client: ...

    def server_cpu_s(self) -> float | None:
        """Processor time of its server since it was started; 0.0 where it has none, None where it cannot be told."""

    def clear(self) -> None:
        """Empties the queue, and settles what that left to do."""

    def close(self) -> None: ...


def step_of(client: Client, operation: Operation, messages: int, body: bytes) -> Step:
    """One branch of so many messages over and over; a dequeue ends with the queue."""
    bodies = [body] * messages

    def enqueue() -> bool:
        client.enqueue(bodies)
        return True

    def dequeue() -> bool:
        return client.dequeue(messages) > 0

    def echo() -> bool:
        assert isinstance(client, Echoing)
        client.echo(body)
        return True

    return {"enqueue": enqueue, "dequeue": dequeue, "echo": echo}[operation]


class ThreadClients:
    """Clients in threads of this process, connected anew for each measurement."""

    kind: Kind = "threads"

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def rate(self, operation: Operation, clients: int, messages: int, body: bytes, seconds: float) -> ClientRate:
        connected: list[Client] = []
        try:
            for _ in range(clients):
                connected.append(self._peer.connect())
            return together([rate_of([step_of(one, operation, messages, body) for one in connected], seconds)])
        finally:
            for client in connected:
                client.close()

    def close(self) -> None:
        """Nothing is kept between measurements."""
