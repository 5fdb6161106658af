"""A served space with something of everything for the console: letters, failed ones, branches in doubt, and roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import xaqueue
from support.served import ServerThread
from support.tm_left import WORK, Left, leave
from xaqueue.cli import advise
from xaqueue.connection import Connection
from xaqueue.core.owner import definitions_file
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.web.front import HttpConfig, HttpFront
from xaqueue.xid import Xid

OPERATOR, VIEWER, STRANGER = "operator-0123456789abcdef", "viewer-0123456789abcdef", "stranger-0123456789abcdef"
"""Tokens: of who may do everything, of who may browse one queue, and one that nobody knows."""
FOREIGN = Xid(7, b"<img src=x onerror=hacked=1>", b"shop")
SCRIPT = '<script>hacked=1</script><img src=x onerror="hacked=1">'
HEADERS = {'kind"><script>hacked=1</script>': '<img src=x onerror="hacked=1">', "shop": "Graz"}
JSON_BODY = b'{"order": 7, "lines": [{"sku": "A-1", "count": 2}], "total": 9007199254740993}'

DEFINED = f"""
[queues.orders]
description = "What shops order"
max_tries = 1
failure_queue = "orders.failed"
[queues."orders.failed"]
[queues.replies]
[queues.events]
description = "<script>hacked=1</script>"
[queues.readings]
[access.roles.operator]
members = ["token:{sha256(OPERATOR.encode()).hexdigest()}"]
produce = ["*"]
consume = ["*"]
browse = ["*"]
transact = true
resolve = true
admin = true
[access.roles.viewer]
members = ["token:{sha256(VIEWER.encode()).hexdigest()}"]
browse = ["orders"]
"""


@dataclass(frozen=True)
class Console:
    """What is served."""

    url: str
    left: Left
    server: ServerThread
    front: HttpFront

    @property
    def xid(self) -> Xid:
        """Of the branch that a killed transaction manager has left: it adds one message to orders."""
        return self.left.xid("queue")

    def connect(self) -> Connection:
        return xaqueue.connect(self.server.url)


def prepared(connection: Connection, xid: Xid) -> None:
    """A branch in doubt that holds the first message of events, and adds one to replies."""
    connection.tpc_begin(xid)
    assert connection.dequeue("events") is not None
    connection.enqueue("replies", b"thanks")
    connection.tpc_prepare()


def fail(connection: Connection, count: int) -> list[str]:
    """So many messages come to orders, and go to orders.failed with their only try; their ids."""
    found = []
    for number in range(count):
        found.append(connection.enqueue("orders", b'{"failed": %d}' % number, correlation_id=b"failed").hex())
    connection.commit()
    for _ in range(count):
        assert connection.dequeue("orders", correlation_id=b"failed") is not None
        connection.explain_rollback(ValueError("no such <b>customer</b>"))
        connection.rollback()
    return found


def filled(connection: Connection) -> None:
    for body in (JSON_BODY, SCRIPT.encode(), b"\xff\xfe\x00", b"plain", b"[" * 200_000):
        connection.enqueue("orders", body, headers=HEADERS, content_type="<b>text</b>")
    connection.commit()
    for number in range(8):
        connection.enqueue("events", b"event %d" % number)
        connection.enqueue("readings", b"reading")
    connection.commit()


@contextmanager
def served(root: Path, fill: Callable[[Connection], None] = filled, work: str = WORK) -> Iterator[Console]:
    left = leave(root, "decided", work=work)
    definitions_file.write_definitions(left.queue, DEFINED)
    tm = left.configure((left.log / "participants.toml").read_text())
    with HttpFront(HttpConfig("127.0.0.1:0"), partial(advise.document, str(tm))) as front:
        server = ServerThread(left.queue, root / "socket")
        try:
            front.show(server.server)
            with xaqueue.connect(server.url) as connection:
                fill(connection)
                prepared(connection, FOREIGN)
            with closing(remote_manager(server.url)) as stream:
                stream.reserve("readings", "lake", 0, 5)
                stream.consume("readings", "lake", 2)
            yield Console(front.url, left, server, front)
        finally:
            front.show(None)
            server.stop()
