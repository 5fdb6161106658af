"""xaqueue: a durable message queue that takes part in distributed transactions.

    with xaqueue.connect("data/orders-space", create=True) as conn:
        conn.enqueue("orders", b"...")  # committed at the end of the block, rolled back on an exception

Whoever opens a space with ``connect`` owns its directory while a connection is open; all connections of the process
share it. Where a server has it, the connection is one to that server. xaqueue(7) says what each sync flag promises.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from xaqueue.connection import Connection
from xaqueue.core.model import options as _options
from xaqueue.delivery import Delivery
from xaqueue.errors import (
    AccessDenied,
    AsyncNotSupported,
    ConnectionLost,
    DamagedBlock,
    DatabaseError,
    DataError,
    DecisionLogDamaged,
    DecisionLogError,
    DecisionLogInUse,
    DiskFull,
    DiskLow,
    DuplicateXid,
    Error,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicOutcome,
    IntegrityError,
    InterfaceError,
    InvalidArgument,
    JournalDamaged,
    LeaseExpired,
    MessageTooLarge,
    NoReply,
    NotSupportedError,
    OperationalError,
    OutcomeUnknown,
    OutsideTransaction,
    ProgrammingError,
    ProtocolError,
    QueueFull,
    QueueReserved,
    QueueWaiting,
    ResourceError,
    ResourceFailed,
    RetryLater,
    RolledBack,
    SpaceError,
    SpaceInUse,
    UnknownQueue,
    UnknownXid,
)
from xaqueue.message import Message, MessageId, Origin
from xaqueue.xa import Code, Flag, Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.client.asyncio import AsyncConnection
    from xaqueue.tm.manager import TransactionManager
    from xaqueue.tm.participant import Participant
    from xaqueue.work.worker import Worker

__version__: str

apilevel = "2.0"
threadsafety = 1


def _known() -> _options.Known:
    from xaqueue.features.options import KNOWN  # for who reads a queues.toml, and not before

    return KNOWN


_options.everything = _known


def connect(
    path: str | os.PathLike[str],
    create: bool = False,
    sync: str | None = None,
    *,
    server_s: float | None = 60.0,
    resend: bool = False,
) -> Connection:
    """Opens a queue space and returns a connection of its own session.

    path: the space's directory, an open string (``datadir="/data/orders",qspace="orders"``), or the URL of a server:
    ``xaq+unix:///path``, ``xaq://host:port`` or ``xaqs://host:port``, of a pair ``xaq://host:port,other:port``. Where a
    server has the directory, its URL.
    create: make the directory a space where it is none yet, one that takes any queue name until its queues.toml
    loses the [default] table.
    sync: flags, ``[FSYNC|FDATASYNC][;DSYNC]``, ``JOURNAL`` or ``NONE``; without them XAQUEUE_FLAGS, queues.toml, then
    the default. A server has its own.
    server_s: so long a server that had the directory, and is gone, is waited for: before this process opens it itself,
    and by each call on the connection; None: for ever.
    resend: a transaction that only enqueues is sent to a server again where its commit got no answer and it is not
    there; see CLIENTS OF A SERVER in xaqueue(7).
    Raises SpaceInUse (another process owns it, and serves it to nobody), SpaceError (it is no space), InvalidArgument,
    and of a server ConnectionLost, AccessDenied.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(given := os.fspath(path), str) or not given:
        raise InvalidArgument(f"connect({path!r}) is refused: a directory or a URL is wanted, as text or as a path")
    from xaqueue.rpc.client import reach  # half of the package, and a Spark worker needs none of it

    return reach.connect(given, create=create, sync=sync, server_s=server_s, resend=resend)


async def connect_async(url: str) -> AsyncConnection:
    """Connects a task of asyncio to a server: the names of Connection, each to be awaited.

    url: ``xaq+unix:///path``, ``xaq://host:port`` or ``xaqs://host:port``, with the options of ``connect``.
    Raises InvalidArgument, ConnectionLost, AccessDenied.
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"connect_async({url!r}) is refused: the URL of a server is wanted, as text")
    from xaqueue.rpc.client.asyncio import connect as connect_to_server

    return await connect_to_server(url)


_LATER = {
    "AsyncConnection": "xaqueue.rpc.client.asyncio",
    "Participant": "xaqueue.tm.participant",
    "TransactionManager": "xaqueue.tm.manager",
    "Worker": "xaqueue.work.worker",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """What is looked up when it is asked for: reading the metadata is a quarter of the start, and few need a TM."""
        if name in _LATER:
            return getattr(import_module(_LATER[name]), name)
        if name == "__version__":
            from importlib.metadata import version

            return version("xaqueue")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AccessDenied",
    "AsyncConnection",
    "AsyncNotSupported",
    "Code",
    "Connection",
    "ConnectionLost",
    "DamagedBlock",
    "DataError",
    "DatabaseError",
    "DecisionLogDamaged",
    "DecisionLogError",
    "DecisionLogInUse",
    "Delivery",
    "DiskFull",
    "DiskLow",
    "DuplicateXid",
    "Error",
    "Flag",
    "HeuristicHazard",
    "HeuristicMixed",
    "HeuristicOutcome",
    "IntegrityError",
    "InterfaceError",
    "InvalidArgument",
    "JournalDamaged",
    "LeaseExpired",
    "Message",
    "MessageId",
    "MessageTooLarge",
    "NoReply",
    "NotSupportedError",
    "OperationalError",
    "Origin",
    "Outcome",
    "OutcomeUnknown",
    "OutsideTransaction",
    "Participant",
    "ProgrammingError",
    "ProtocolError",
    "QueueFull",
    "QueueReserved",
    "QueueWaiting",
    "ResourceError",
    "ResourceFailed",
    "RetryLater",
    "RolledBack",
    "SpaceError",
    "SpaceInUse",
    "TransactionManager",
    "UnknownQueue",
    "UnknownXid",
    "Worker",
    "Xid",
    "apilevel",
    "connect",
    "connect_async",
    "threadsafety",
]
