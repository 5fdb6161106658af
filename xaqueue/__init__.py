"""xaqueue: a durable message queue that takes part in distributed transactions.

    conn = xaqueue.connect("data/orders-space", create=True)
    conn.enqueue("orders", b"...")
    conn.commit()

Whoever opens a space with ``connect`` owns its directory while a connection is open; all connections of the process
share it. Errors are in ``xaqueue.errors``; xaqueue(7) says what each sync flag promises.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xaqueue.connection import Connection
from xaqueue.errors import (
    AccessDenied,
    ConnectionLost,
    DatabaseError,
    DataError,
    DiskFull,
    DiskLow,
    Error,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicOutcome,
    IntegrityError,
    InterfaceError,
    InvalidArgument,
    NotSupportedError,
    OperationalError,
    OutcomeUnknown,
    ProgrammingError,
    ProtocolError,
    QueueReserved,
    ResourceFailed,
    RetryLater,
    RolledBack,
    SpaceError,
    SpaceInUse,
    UnknownQueue,
    UnknownXid,
)
from xaqueue.message import Message, MessageId
from xaqueue.space import openstring
from xaqueue.storage.ids import fresh_id
from xaqueue.xa import Code, Flag, Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.async_connection import AsyncConnection
    from xaqueue.tm.manager import TransactionManager

__version__: str

apilevel = "2.0"
threadsafety = 1


def connect(path: str | os.PathLike[str], create: bool = False, sync: str | None = None) -> Connection:
    """Opens a queue space and returns a connection of its own session.

    path: the space's directory, or an open string (``datadir="/data/orders",qspace="orders"``).
    create: make the directory a space where it is none yet, one that takes any queue name until its queues.toml
    loses the [default] table.
    sync: flags, ``[FSYNC|FDATASYNC][;DSYNC]`` or ``NONE``; without them XAQUEUE_FLAGS, queues.toml, then the default.
    Raises SpaceInUse (another process owns it), SpaceError (it is no space), InvalidArgument.
    """
    given = os.fspath(path)
    if "://" in given:
        from xaqueue.rpc import dial

        return Connection(dial.manager(given), fresh_id)
    from xaqueue.space.attach import attach  # half of the package, and a Spark worker needs none of it

    directory, name = openstring.parse(given)
    return Connection(attach(directory, create_missing=create, sync=sync, name=name), fresh_id)


async def connect_async(url: str) -> AsyncConnection:
    """Connects a task of asyncio to a server: the names of Connection, each to be awaited.

    url: ``xaq+unix:///path``, ``xaq://host:port`` or ``xaqs://host:port``, with the options of ``connect``.
    Raises InvalidArgument, ConnectionLost, AccessDenied.
    """
    from xaqueue.rpc import async_dial

    return await async_dial.connect(url)


if not TYPE_CHECKING:

    def __getattr__(name):
        """What is looked up when it is asked for: reading the metadata is a quarter of the start, and few need a TM."""
        if name == "TransactionManager":
            from xaqueue.tm.manager import TransactionManager

            return TransactionManager
        if name == "AsyncConnection":
            from xaqueue.rpc.async_connection import AsyncConnection

            return AsyncConnection
        if name == "__version__":
            from importlib.metadata import version

            return version("xaqueue")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AccessDenied",
    "AsyncConnection",
    "Code",
    "Connection",
    "ConnectionLost",
    "DataError",
    "DatabaseError",
    "DiskFull",
    "DiskLow",
    "Error",
    "Flag",
    "HeuristicHazard",
    "HeuristicMixed",
    "HeuristicOutcome",
    "IntegrityError",
    "InterfaceError",
    "InvalidArgument",
    "Message",
    "MessageId",
    "NotSupportedError",
    "OperationalError",
    "Outcome",
    "OutcomeUnknown",
    "ProgrammingError",
    "ProtocolError",
    "QueueReserved",
    "ResourceFailed",
    "RetryLater",
    "RolledBack",
    "SpaceError",
    "SpaceInUse",
    "TransactionManager",
    "UnknownQueue",
    "UnknownXid",
    "Xid",
    "apilevel",
    "connect",
    "connect_async",
    "threadsafety",
]
