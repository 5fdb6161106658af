"""The work that a space does while it is tortured: random branches of one and of two phases, each step said at once."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from zlib import crc32

from xaqueue.connection import Connection
from xaqueue.message import Message
from xaqueue.space.engine.session import Session
from xaqueue.torture.ledger import Number, Place, Said
from xaqueue.xid import Xid

QUEUES = ("red", "green", "blue")
SIZES = (0, 10, 900, 5000, 90_000)
FORMAT_ID = 7
DEEP = 60
"""Messages from which on a worker rather takes than adds."""

Say = Callable[[Said], None]


class BodyDamaged(Exception):
    """A message is not what anybody enqueued."""


def body_of(key: str, size: int) -> bytes:
    """A body that proves itself: its key, and filling that ends in a checksum over both."""
    text = f"{key} ".encode() + key.encode()[-1:] * size
    return text + b"%08x" % crc32(text)


def prove(message: Message) -> str:
    """The key of a message. Raises BodyDamaged where its body is not what somebody enqueued."""
    text, checksum = message.body[:-8], message.body[-8:]
    if b"%08x" % crc32(text) != checksum:
        raise BodyDamaged(f"message {message.seq} of {message.queue} has a body that nobody enqueued")
    key = text.split(b" ")[0].decode()
    if message.correlation_id != key.encode():
        raise BodyDamaged(f"message {message.seq} of {message.queue} has the body of another")
    return key


def number_of(message: Message) -> Number:
    return (message.queue, message.seq, message.message_id.hex())


class Worker:
    """One connection, and its random course."""

    def __init__(self, session: Session, name: str, seed: str, say: Say) -> None:
        self.session = session
        self._begin(Connection(session, lambda: os.urandom(16)), name, seed, say)

    def _begin(self, connection: Connection, name: str, seed: str, say: Say) -> None:
        self.connection = connection
        self.name = name
        self.dice = random.Random(f"{seed}/{name}")
        self.say = say
        self.added: list[Place] = []
        self.taken: list[Place] = []
        self.seen: list[Number] = []

    def run(self) -> None:
        """Until something is raised."""
        for number in itertools.count():
            self.added, self.taken, self.seen = [], [], []
            branch = self.one_phase if self.dice.random() < 0.15 else self.two_phase
            branch(f"{self.name}.{number}")

    def two_phase(self, tag: str) -> None:
        connection = self.connection
        connection.tpc_begin(Xid(FORMAT_ID, tag.encode(), b"torture"))
        self._work(tag)
        self.say(Said("intent", tag, self.added, self.taken, self.seen))
        if self.dice.random() < 0.08:
            connection.tpc_rollback()
        elif connection.tpc_prepare():
            self.say(Said("prepared", tag))
            if self.dice.random() < 0.08:
                self.say(Said("undecided", tag))
                connection.tpc_rollback()
            else:
                self.say(Said("decided", tag))
                connection.tpc_commit()
                self.say(Said("acked", tag))
        else:
            connection.tpc_rollback()

    def one_phase(self, tag: str) -> None:
        """Either adds or takes, so that it can be told afterwards whether an unacknowledged one came about."""
        if self.dice.random() < 0.5:
            for _ in range(self.dice.choice((1, 3))):
                self._add(tag)
        else:
            self._take()
        self.say(Said("maybe", tag, self.added, self.taken, self.seen))
        self.connection.commit()
        self.say(Said("acked", tag))

    def depth(self) -> int:
        """How many messages there are."""
        return sum(len(queue.index) for queue in list(self.session.space.queues.values()))

    def _work(self, tag: str) -> None:
        depth = self.depth()
        chance = self.dice.random()
        for _ in range(self.dice.choice((1, 1, 2, 5))):
            if chance < 0.3:
                self._move()
            elif chance < (0.4 if depth >= DEEP else 0.75):
                self._add(tag)
            else:
                self._take()

    def _add(self, tag: str) -> None:
        queue, key = self.dice.choice(QUEUES), f"{tag}.{len(self.added)}"
        self.connection.enqueue(queue, body_of(key, self.dice.choice(SIZES)), correlation_id=key)
        self.added.append((queue, key))

    def _take(self) -> Message | None:
        queue = self.dice.choice(QUEUES)
        message = self.connection.dequeue(queue)
        if message is not None:
            self.taken.append((queue, prove(message)))
            self.seen.append(number_of(message))
        return message

    def _move(self) -> None:
        message = self._take()
        if message is not None:
            queue = self.dice.choice(QUEUES)
            self.connection.enqueue(queue, message.body, correlation_id=message.correlation_id)
            self.added.append((queue, prove(message)))
