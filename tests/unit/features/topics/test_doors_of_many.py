"""Every way in which many messages come: whether a queue wants a file for each or blocks, they come out the same.

A door adds COUNT messages to the queue *there* in one transaction. They come out in the same order, each once, with the
same properties. With blocks they come in one file: by one call at any level, by many calls where memory keeps what they
add. What differs between two runs is not compared: ids that the product makes, and times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.contract_batches import batch
from support.doubtful import run
from support.served import serving
from xaqueue import Connection
from xaqueue.batch import ONE_SPACE
from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE
from xaqueue.core.model.message_name import parse_any
from xaqueue.message import Message
from xaqueue.times import LATEST_US
from xaqueue.work.forward import Forwarder
from xaqueue.xid import Xid

COUNT = 30
X = Xid(1, b"x", b"")
PATIENCE_S = 60.0
TOML = """
[queues.source]
blocks = "{0}"
failure_queue = "failed"
[queues.failed]
blocks = "{0}"
[queues.there]
blocks = "{0}"
topic = "events"
[queues.beside]
blocks = "{0}"
topic = "events"
[topics.events]
"""
OPTIONS: list[dict[str, Any]] = [
    {},
    {"headers": {"a": "1"}, "priority": 7},
    {"correlation_id": b"c", "reply_queue": "there"},
    {"content_type": "text/plain", "expires_at": LATEST_US},
    {"group": "g", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"},
]
Door = Callable[[Path], None]


def body_of(place: int) -> bytes:
    return b"%d" % place


def each() -> Iterator[tuple[bytes, Any]]:
    for place in range(COUNT):
        yield body_of(place), OPTIONS[place % len(OPTIONS)]


BODIES = [body_of(place) for place in range(COUNT)]


def enqueue_many(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue_many("there", BODIES)


def enqueue_many_with_options(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue_many("there", BODIES, **OPTIONS[1])


def enqueue(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        for body in BODIES:
            connection.enqueue("there", body)


def each_at_once(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue_many("there", [*each()])


def put_each(root: Path, queue: str = "there", **more: Any) -> None:
    """Each with options of its own."""
    with xaqueue.connect(root) as connection:
        for body, options in each():
            connection.enqueue(queue, body, **options, **more)


def publish(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        for body, options in each():
            connection.publish("events", body, **options)


def enqueue_to(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        for body in BODIES:
            connection.enqueue_to(["beside", "there"], body)


def forward(root: Path) -> None:
    put_each(root, "source")
    assert Forwarder(str(root), "source", "there", until_empty=True).start().join(PATIENCE_S)


def move(root: Path) -> None:
    put_each(root, "source")
    with xaqueue.connect(root) as connection:
        for message in list(connection.browse("source")):
            assert connection.move("source", message.message_id, "there") == message.message_id


def requeue(root: Path) -> None:
    """Back from where it was moved to."""
    put_each(root)
    with xaqueue.connect(root) as connection:
        for message in list(connection.browse("there")):
            connection.move("there", message.message_id, "failed")
    with xaqueue.connect(root) as connection:
        for message in list(connection.browse("failed")):
            connection.requeue("failed", message.message_id)


def restore(root: Path) -> None:
    put_each(root, "source")
    with xaqueue.connect(root) as connection:
        for message in list(connection.browse("source")):
            assert connection.restore(message, "there")


def restore_many(root: Path) -> None:
    put_each(root, "source")
    with xaqueue.connect(root) as connection:
        assert connection.restore_many(connection.browse("source"), "there") == [True] * COUNT


def served_restore_many(root: Path) -> None:
    put_each(root, "source")
    with client(root) as connection:
        assert connection.restore_many(connection.browse("source"), "there") == [True] * COUNT


def import_(root: Path) -> None:
    put_each(root, "source")
    run("export", "source", "--output", root.with_name("lines"), "--space", root)
    run("import", "there", root.with_name("lines"), "--space", root)


def reply(root: Path) -> None:
    put_each(root, "source", failure_queue="failed")
    with xaqueue.connect(root) as connection:
        for message in connection.dequeue_many("source", COUNT):
            wants = replace(message, properties=replace(message.properties, reply_queue="there", correlation_id=b"r"))
            connection.reply(wants, message.body, expires_at=LATEST_US)


def in_two_phases(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.tpc_begin(X)
        for body, options in each():
            connection.enqueue("there", body, **options)
        connection.tpc_prepare()
        connection.tpc_commit()


@contextmanager
def client(root: Path) -> Iterator[Connection]:
    with serving(root) as server, xaqueue.connect(server.url) as connection:
        yield connection


def served_enqueue_many(root: Path) -> None:
    with client(root) as connection:
        connection.enqueue_many("there", BODIES, **OPTIONS[1])


def served_enqueue(root: Path) -> None:
    with client(root) as connection:
        for body, options in each():
            connection.enqueue("there", body, **options)


def served_plain(root: Path) -> None:
    """Small ones without options, which a server commits as a whole."""
    with client(root) as connection:
        for body in BODIES:
            connection.enqueue("there", body)


def served_each_at_once(root: Path) -> None:
    with client(root) as connection:
        connection.enqueue_many("there", [*each()])


def served_asyncio(root: Path) -> None:
    async def put(url: str) -> None:
        async with await xaqueue.connect_async(url) as connection:
            await connection.enqueue_many("there", BODIES[:14])
            for body in BODIES[14:]:
                await connection.enqueue("there", body)
            await connection.commit()

    with serving(root) as server:
        asyncio.run(put(server.url))


def sink(root: Path) -> None:
    """As a query writes them: its tasks prepare branches, which are committed together."""
    with serving(root) as server, xaqueue.connect(server.url) as connection:
        manager: Any = connection._manager
        xid = Xid(ONE_SPACE, batch().gtrid, b"0")
        manager.start(xid)
        manager.enqueue_many("there", BODIES, None, [options for _, options in each()])
        manager.end(xid)
        manager.prepare(xid)
        manager.commit_all(batch(), [xid])


DOORS: list[Door] = [
    *(enqueue_many, enqueue_many_with_options, enqueue, put_each, publish, enqueue_to, forward, move, requeue),
    *(restore, import_, reply, in_two_phases, served_enqueue_many, served_enqueue, served_plain, served_asyncio, sink),
    *(each_at_once, served_each_at_once, restore_many, served_restore_many),
]


KEEPS = ("JOURNAL", "NONE")
"""Where memory keeps what one adds until it is prepared."""
AT_ONCE: list[Door] = [
    *(enqueue_many, enqueue_many_with_options, served_enqueue_many, each_at_once, served_each_at_once, forward, sink),
    *(restore_many, served_restore_many, import_),
]
"""These make one call of it."""


def came_out(root: Path, door: Door, blocks: str, level: str) -> tuple[list[int], list[Message]]:
    """How many messages came in each file, and all as they are browsed and taken, without what differs by itself."""
    xaqueue.connect(root, create=True, sync=level).close()
    with (root / "queues.toml").open("a") as definitions:
        definitions.write(TOML.format(blocks))
    door(root)
    files = [parse_any(path.name) for path in sorted((root / layout.queue_path("there")).glob("range=*/*"))]
    with xaqueue.connect(root) as connection:
        shown, taken = list(connection.browse("there")), connection.dequeue_many("there", 10 * COUNT)
    assert len({one.message_id for one in taken}) == COUNT
    assert {one.message_id for one in shown} == {one.message_id for one in taken}
    assert sorted(one.body for one in taken) == sorted(BODIES)
    plain = [
        replace(one, message_id=NO_MESSAGE, properties=replace(one.properties, enqueued_at=0))
        for one in (*shown, *taken)
    ]
    return [named.count for named in files if named is not None], plain


@pytest.mark.parametrize("level", ["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_messages_are_the_same_by_each_door(tmp_path: Path, door: Door, level: str) -> None:
    files, wanted = came_out(tmp_path / "one" / "space", door, "one", level)
    assert files == [1] * COUNT
    in_files = [COUNT] if level in KEEPS or door in AT_ONCE else [1] * COUNT
    assert came_out(tmp_path / "many" / "space", door, "many", level) == (in_files, wanted)
