"""Other queues that the engine is measured against, by the names that ``bench.compare --peer`` takes.

A peer's durability is part of its figure: what it has on disk when a branch is done, and whether it can prepare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from bench.peers.peer import Peer, Wanted
from xaqueue.errors import OperationalError

PEERS = {
    "postgres": "bench.peers.postgres",
    "sqlite": "bench.peers.sqlite",
    "dirq": "bench.peers.directory_queue",
    "persist-queue": "bench.peers.persist_queue",
    "redis": "bench.peers.redis",
    "nats": "bench.peers.nats",
    "rabbitmq": "bench.peers.rabbitmq",
    "postgres-table": "bench.peers.postgres_table",
}
"""The module of each; imported when it is asked for, because its packages may not be installed."""


def opener(name: str) -> Callable[[Path, Wanted], Peer]:
    """What opens a peer. OperationalError names a package that is not installed."""
    try:
        return import_module(PEERS[name]).open_peer  # type: ignore[no-any-return]
    except ImportError as error:  # also a psycopg that finds no libpq
        package = (error.name or "").partition(".")[0]
        if package in ("bench", "xaqueue"):
            raise
        told = f"{package} is not installed" if package else str(error)
        raise OperationalError(f'{told}: pip install -e ".[peers]"') from None


@contextmanager
def opened(name: str, scratch: Path, wanted: Wanted) -> Iterator[Peer]:
    """A peer whose files are in ``scratch``, an empty directory."""
    peer = opener(name)(scratch, wanted)
    try:
        yield peer
    finally:
        peer.close()
