"""The work that a space does while it is tortured, what is found when it is opened again, and the child that is killed.

Random branches of one and of two phases, each step said at once. As a program it resolves what the last one left, then
several threads work until its end. What it says is in its parent's pipe before its next call, and so outlives it.
Arguments: space, flags, name of this life, seed, number of threads. The decided branches, a JSON list, come through
standard input: the parent keeps them, as a transaction manager keeps its log.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from zlib import crc32

from xaqueue.connection import Connection
from xaqueue.errors import DiskFull, Error
from xaqueue.features.session import Session, attach
from xaqueue.message import Message
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.tools.torture.ledger import Holdings, Number, Place, Statement
from xaqueue.xid import Xid

QUEUES = ("red", "green", "blue")
SIZES = (0, 10, 900, 5000, 90_000)
MANY, MANY_SIZES = (16, 17, 24), (0, 10, 900, 5000)
"""Messages that come at once, and lie in one file: as many, and as large, as Statement.line allows for."""
FORMAT_ID = 7
DEEP = 60
"""Messages from which on a worker rather takes than adds."""
FAILED, NO_ROOM = 3, 4
"""Exit codes of the child."""

Say = Callable[[Statement], None]
Look = Callable[[Path], Iterable[str]]
"""Says what is wrong with a space that is at rest."""


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
    if message.correlation_id not in (None, key.encode()):  # those that came at once have none
        raise BodyDamaged(f"message {message.seq} of {message.queue} has the body of another")
    return key


def number_of(message: Message) -> Number:
    return (message.queue, message.seq, message.message_id.hex())


class Client:
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
        self.say(Statement("intent", tag, self.added, self.taken, self.seen))
        if self.dice.random() < 0.08:
            connection.tpc_rollback()
        elif connection.tpc_prepare():
            self.say(Statement("prepared", tag))
            if self.dice.random() < 0.08:
                self.say(Statement("undecided", tag))
                connection.tpc_rollback()
            else:
                self.say(Statement("decided", tag))
                connection.tpc_commit()
                self.say(Statement("acked", tag))
        else:
            connection.tpc_rollback()

    def one_phase(self, tag: str) -> None:
        """Either adds or takes, so that one can know afterwards whether an unacknowledged one came about."""
        at_once = self.dice.random() < 0.25
        if self.dice.random() < 0.5:
            if at_once:
                self._add_many(tag)
            for _ in range(self.dice.choice((1, 3))):
                self._add(tag)
        elif at_once:
            self._take_many()
        else:
            self._take()
        self.say(Statement("maybe", tag, self.added, self.taken, self.seen))
        self.connection.commit()
        self.say(Statement("acked", tag))

    def depth(self) -> int:
        """How many messages there are."""
        return sum(len(queue.index) for queue in list(self.session.space.queues.values()))

    def _work(self, tag: str) -> None:
        depth = self.depth()
        if self.dice.random() < 0.2:
            if self.dice.random() < (0.2 if depth >= DEEP else 0.5):
                self._add_many(tag)
            else:
                self._take_many()
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

    def _add_many(self, tag: str) -> None:
        queue, size, first = self.dice.choice(QUEUES), self.dice.choice(MANY_SIZES), len(self.added)
        keys = [f"{tag}.{number}" for number in range(first, first + self.dice.choice(MANY))]
        self.connection.enqueue_many(queue, [body_of(key, size) for key in keys])
        self.added += [(queue, key) for key in keys]

    def _take(self) -> Message | None:
        message = self.connection.dequeue(self.dice.choice(QUEUES))
        if message is not None:
            self._took(message)
        return message

    def _take_many(self) -> None:
        for message in self.connection.dequeue_many(self.dice.choice(QUEUES), self.dice.choice(MANY)):
            self._took(message)

    def _took(self, message: Message) -> None:
        self.taken.append((message.queue, prove(message)))
        self.seen.append(number_of(message))

    def _move(self) -> None:
        message = self._take()
        if message is not None:
            queue = self.dice.choice(QUEUES)
            self.connection.enqueue(queue, message.body, correlation_id=message.correlation_id)
            self.added.append((queue, prove(message)))


# A space that was crashed is opened again


def recover(session: Session, decided: set[str], say: Say) -> None:
    """Says what opening it found, resolves what is in doubt, and closes the session."""
    for path in session.space.report.quarantined:
        say(Statement("fault", f"damaged by the crash: {path}"))
    with Connection(session, lambda: os.urandom(16)) as connection:
        resolve(connection, decided, say)


def resolve(connection: Connection, decided: set[str], say: Say) -> None:
    """What a transaction manager does after a crash: commits what it decided, and rolls back the rest."""
    in_doubt = connection.tpc_recover()
    for xid in in_doubt:
        say(Statement("in doubt", xid.gtrid.decode()))
    say(Statement("recovered"))
    for xid in in_doubt:
        tag = xid.gtrid.decode()
        if tag in decided:
            connection.tpc_commit(xid)
        else:
            say(Statement("undecided", tag))
            connection.tpc_rollback(xid)
        say(Statement("resolved", tag))


def problems(space: Path) -> Iterator[str]:
    """What a check says of a space that is at rest."""
    for finding in check(space):
        if finding.severity is not Severity.NOTE:
            yield f"{finding.severity.value}: {finding.path} {finding.problem}"


def reopened(space: Path, flags: str, decided: set[str], look: Look = problems) -> Holdings:
    """All that is found once the branches in doubt are resolved and every message is taken out.

    ``look``: says what is wrong with the space after each.
    """
    found = Holdings()

    def hear(said: Statement) -> None:
        if said.event == "in doubt":
            found.in_doubt.add(said.tag)
        elif said.event == "fault":
            found.faults.append(said.tag)

    try:
        recover(attach(space, sync=flags, watch=False), decided, hear)
        found.faults += look(space)
        with Connection(attach(space, sync=flags, watch=False), lambda: os.urandom(16)) as connection:
            _drain(connection, found)
        found.faults += look(space)
    except (Error, OSError) as error:
        found.faults.append(f"it does not open, or does not serve: {' '.join(str(error).split())}")
    return found


def _drain(connection: Connection, found: Holdings) -> None:
    for queue in QUEUES:
        while (message := connection.dequeue(queue)) is not None:
            found.numbers.append(number_of(message))
            try:
                found.messages[queue, prove(message)] += 1
            except BodyDamaged as damaged:
                found.faults.append(str(damaged))
    connection.commit()


# The child


def say(said: Statement) -> None:
    os.write(1, said.line())


def live(space: Path, flags: str, life: str, seed: str, threads: int, look: Look = problems) -> None:
    """Does not return. ``look``: says what is wrong with the space once it is recovered."""
    recover(attach(space, sync=flags, watch=False), set(json.load(sys.stdin)), say)
    for problem in look(space):
        say(Statement("fault", f"after recovery: {problem}"))
    say(Statement("ready"))
    workers = [Client(attach(space, sync=flags, watch=False), f"{life}.{i}", seed, say) for i in range(threads)]
    running = [threading.Thread(target=_run, args=(worker,)) for worker in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _run(worker: Client) -> None:
    try:
        worker.run()
    except BrokenPipeError:  # nobody listens any more
        os._exit(FAILED)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(NO_ROOM if isinstance(error, DiskFull) else FAILED)


if __name__ == "__main__":
    space, flags, life, seed, threads = sys.argv[1:]
    live(Path(space), flags, life, seed, int(threads))
