"""One measurement of each kind: the engine, the bare calls of its protocol, and a peer, all doing the same work.

A branch of so many messages is enqueued over and over by each thread, then dequeued. The dequeues take what the
enqueues before them left, at most for the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from xaqueue.bench.bare import bare_protocol
from xaqueue.bench.checkpoints import Checkpoints
from xaqueue.bench.options import Options
from xaqueue.bench.peers.peer import OPERATIONS, Kind, Operation, Peer, ThreadClients
from xaqueue.bench.peers.process_clients import ProcessClients
from xaqueue.bench.rates import Rate, Step, rate_of
from xaqueue.bench.served import ServerPeer
from xaqueue.connection import Connection
from xaqueue.space.owner.open import attach, create
from xaqueue.storage.group_commit import Barrier
from xaqueue.storage.hardening import Hardening

QUEUE = "bench"


@dataclass(frozen=True, slots=True)
class Measured:
    """One rate, and where it was the engine's, the barrier's rounds of syncs and the steps that shared them."""

    rate: Rate
    rounds: int = 0
    steps: int = 0


Pair = dict[Operation, Measured]


def engine(root: Path, flags: str, threads: int, options: Options) -> Pair:
    """The engine in an empty directory: a fresh space, a connection for each thread."""
    create(root, name=QUEUE, any_queue=True)
    measured: Pair = {}
    with ExitStack() as stack:
        sessions = [attach(root, sync=flags, watch=False) for _ in range(threads)]
        connections = [stack.enter_context(Connection(session, _make_id)) for session in sessions]
        barrier = sessions[0].space.barrier
        bodies = [os.urandom(options.size_bytes)] * options.messages_per_branch
        enqueuers = [_enqueuer(connection, thread, bodies) for thread, connection in enumerate(connections)]
        dequeuers = [_dequeuer(connection, thread, len(bodies)) for thread, connection in enumerate(connections)]
        for name, steps in zip(OPERATIONS, (enqueuers, dequeuers), strict=True):
            measured[name] = _counted(barrier, steps, options.seconds)
    return measured


def with_checkpoints(root: Path, threads: int, options: Options, every_s: float | None) -> tuple[Rate, list[float]]:
    """Enqueues under JOURNAL in an empty directory, and the seconds of each checkpoint made meanwhile, if any."""
    create(root, name=QUEUE, any_queue=True)
    with ExitStack() as stack:
        sessions = [attach(root, sync="JOURNAL", watch=False) for _ in range(threads)]
        connections = [stack.enter_context(Connection(session, _make_id)) for session in sessions]
        bodies = [os.urandom(options.size_bytes)] * options.messages_per_branch
        steps = [_enqueuer(connection, thread, bodies) for thread, connection in enumerate(connections)]
        if every_s is None:
            return rate_of(steps, options.seconds), []
        with Checkpoints(sessions[0].space, every_s) as checkpoints:
            rate = rate_of(steps, options.seconds)
        return rate, checkpoints.seconds


def bare(root: Path, flags: str, threads: int, options: Options) -> Pair:
    """The bare calls in an empty directory, each thread with its own names in the same directories."""
    hardening = Hardening.parse(flags)
    with bare_protocol(root, hardening, options.size_bytes, options.messages_per_branch) as protocol:
        names: list[list[str]] = [[] for _ in range(threads)]
        enqueuers = [protocol.enqueuer(thread, mine) for thread, mine in enumerate(names)]
        enqueued = rate_of(enqueuers, options.seconds)
        dequeuers = [protocol.dequeuer(thread, mine) for thread, mine in enumerate(names)]
        return {"enqueue": Measured(enqueued), "dequeue": Measured(rate_of(dequeuers, options.seconds))}


@dataclass(frozen=True, slots=True)
class Contender:
    """An open peer with the ways in which its clients are run."""

    peer: Peer
    ways: tuple[ThreadClients | ProcessClients, ...]

    def measure(self, clients: int, options: Options) -> Iterator[tuple[Kind, Pair]]:
        """Both operations, for each way; one client is a thread, unless it is compared with a client of a server."""
        body = os.urandom(options.size_bytes)
        for way in self.ways if clients > 1 or options.server else self.ways[:1]:
            measured: Pair = {}
            for operation in OPERATIONS:
                before = self.peer.server_cpu_s() or 0.0
                rate = way.rate(operation, clients, options.messages_per_branch, body, options.seconds)
                server_s = (self.peer.server_cpu_s() or 0.0) - before
                measured[operation] = Measured(_with_server(rate, server_s))
            self.peer.clear()
            yield way.kind, measured


@contextmanager
def contender(peer: Peer, clients: int, *, processes: bool = False) -> Iterator[Contender]:
    """A peer's clients, at most so many, ended afterwards. ``processes``: a single one may be a process, too."""
    with ExitStack() as stack:
        ways: list[ThreadClients | ProcessClients] = [ThreadClients(peer)]
        if peer.processes and (processes or clients > 1):
            started = ProcessClients(peer, clients)
            stack.callback(started.close)
            ways.append(started)
        yield Contender(peer, tuple(ways))


def server(root: Path, flags: str, clients: int, options: Options) -> Pair:
    """A server over a fresh space in an empty directory, and so many clients in processes: echoes, then messages."""
    body = os.urandom(options.size_bytes)
    measured: Pair = {}
    with ExitStack() as stack:
        peer = ServerPeer(root, flags)
        stack.callback(peer.close)
        way = ProcessClients(peer, clients)
        stack.callback(way.close)
        for operation in ("echo", *OPERATIONS):
            before = peer.used()
            rate = way.rate(operation, clients, options.messages_per_branch, body, options.seconds)
            after = peer.used()
            rate = _with_server(rate, after.cpu_s - before.cpu_s)
            measured[operation] = Measured(rate, after.rounds - before.rounds, after.steps - before.steps)
    return measured


def _with_server(rate: Rate, server_s: float) -> Rate:
    return replace(rate, cpu_seconds=rate.cpu_seconds + server_s, server_cpu_seconds=server_s)


def _enqueuer(connection: Connection, thread: int, bodies: list[bytes]) -> Step:
    numbers = count()

    def step() -> bool:
        connection.tpc_begin(connection.xid(1, b"e%d.%d" % (thread, next(numbers)), b"bench"))
        for body in bodies:
            connection.enqueue(QUEUE, body)
        connection.tpc_prepare()
        connection.tpc_commit()
        return True

    return step


def _dequeuer(connection: Connection, thread: int, messages: int) -> Step:
    numbers = count()

    def step() -> bool:
        connection.tpc_begin(connection.xid(1, b"d%d.%d" % (thread, next(numbers)), b"bench"))
        if connection.dequeue(QUEUE) is None:
            connection.tpc_rollback()
            return False
        for _ in range(messages - 1):
            connection.dequeue(QUEUE)
        connection.tpc_prepare()
        connection.tpc_commit()
        return True

    return step


def _counted(barrier: Barrier, steps: list[Step], seconds: float) -> Measured:
    rounds, shared = barrier.rounds, barrier.steps
    rate = rate_of(steps, seconds)
    return Measured(rate, barrier.rounds - rounds, barrier.steps - shared)


def _make_id() -> bytes:
    return os.urandom(16)
