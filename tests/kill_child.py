"""The process that test_kill_space kills: four threads move messages in two-phase branches and say what they do.

Each line that it writes is in the parent's pipe before the next call, so what it said survives its death. The parent
keeps the decisions, as a transaction manager keeps its log, and hands them to the next life, which resolves with them
what it finds in doubt. Arguments: space, flags, life, seed, file of decisions, fault ("" or call:number:before|after).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from space_scan import scan

import xaqueue
from xaqueue.space import attach as attaching
from xaqueue.space.check import check
from xaqueue.space.findings import Severity
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.xid import Xid

QUEUES = ("red", "green", "blue")
THREADS = 4
SIZES = (0, 10, 900, 5000, 90_000)
FORMAT_ID = 7
DEEP = 60
"""Messages from which on a thread rather takes than adds."""

Place = tuple[str, str]
"""A queue, and the key of a message in it."""
Number = tuple[str, int, str]
"""A queue, a sequence number in it, and the id of the message that has it."""


class Doom:
    """Counts file-system calls and ends the process at the one that the parent chose."""

    def __init__(self, fault: str) -> None:
        name, number, when = fault.split(":") if fault else ("", "0", "")
        self.name, self.left, self.when = name, int(number), when
        self.mutex = threading.Lock()

    def strike(self, names: Sequence[str], when: str) -> None:
        if self.name not in names or self.when != when:
            return
        with self.mutex:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


doom = Doom(sys.argv[6] if __name__ == "__main__" else "")


class MortalFileSystem(DirectoryFileSystem):
    """Dies before or after the n-th call of one kind; a rename is also named after where it leads."""

    def create(self, path: str, chunks: Sequence[bytes]) -> None:
        doom.strike(["create"], "before")
        super().create(path, chunks)
        doom.strike(["create"], "after")

    def rename(self, source: str, target: str) -> None:
        names = ["rename", "decide" if target.endswith(".commit") else target.partition("/")[0]]
        doom.strike(names, "before")
        super().rename(source, target)
        doom.strike(names, "after")

    def unlink(self, path: str) -> None:
        names = ["unlink", "consume" if path.startswith("committed/") else "finish"]
        doom.strike(names, "before")
        super().unlink(path)
        doom.strike(names, "after")

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        doom.strike(["write_at"], "before")
        super().write_at(path, offset, chunks)
        doom.strike(["write_at"], "after")

    def sync_data(self, path: str) -> None:
        doom.strike(["sync_data"], "before")
        super().sync_data(path)
        doom.strike(["sync_data"], "after")

    def sync_dir(self, path: str) -> None:
        doom.strike(["sync_dir"], "before")
        super().sync_dir(path)
        doom.strike(["sync_dir"], "after")


def say(
    event: str, tag: str, added: Sequence[Place] = (), taken: Sequence[Place] = (), seen: Sequence[Number] = ()
) -> None:
    """One line, shorter than the pipe's atomic write, so that threads do not mix theirs."""
    line = json.dumps([event, tag, added, taken, seen]) + "\n"
    os.write(1, line.encode())


def body_of(key: str, size: int) -> bytes:
    """A body that proves itself: its key, and filling that ends in a checksum over both."""
    text = f"{key} ".encode() + key.encode()[-1:] * size
    return text + b"%08x" % crc32(text)


def prove(message: xaqueue.Message) -> str:
    """The key of a message whose body is what somebody enqueued."""
    text, checksum = message.body[:-8], message.body[-8:]
    assert b"%08x" % crc32(text) == checksum, "a body that nobody enqueued"
    key = text.split(b" ")[0].decode()
    assert message.correlation_id == key.encode(), "a body under another message's correlation id"
    return key


class Worker:
    """One thread's connection and its random course."""

    def __init__(self, space: str, sync: str, life: str, name: int, seed: str) -> None:
        self.name = f"{life}.{name}"
        self.rng = random.Random(f"{seed}/{self.name}")
        self.session = attaching.attach(space, sync=sync)
        self.connection = xaqueue.Connection(self.session, lambda: os.urandom(16))
        self.added: list[Place] = []
        self.taken: list[Place] = []
        self.seen: list[Number] = []

    def run(self) -> None:
        try:
            for number in itertools.count():
                self.added, self.taken, self.seen = [], [], []
                branch = self.one_phase if self.rng.random() < 0.15 else self.two_phase
                branch(f"{self.name}.{number}")
        except BaseException as error:
            sys.stderr.write(f"{self.name}: {error!r}\n")
            os._exit(3)

    def add(self, tag: str) -> None:
        queue, key = self.rng.choice(QUEUES), f"{tag}.{len(self.added)}"
        self.connection.enqueue(queue, body_of(key, self.rng.choice(SIZES)), correlation_id=key)
        self.added.append((queue, key))

    def take(self) -> xaqueue.Message | None:
        queue = self.rng.choice(QUEUES)
        message = self.connection.dequeue(queue)
        if message is not None:
            self.taken.append((queue, prove(message)))
            self.seen.append((queue, message.seq, message.message_id.hex()))
        return message

    def move(self) -> None:
        message = self.take()
        if message is not None:
            queue = self.rng.choice(QUEUES)
            self.connection.enqueue(queue, message.body, correlation_id=message.correlation_id)
            self.added.append((queue, prove(message)))

    def work(self, tag: str) -> None:
        depth = sum(len(queue.index) for queue in list(self.session.space.queues.values()))
        chance = self.rng.random()
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            if chance < 0.3:
                self.move()
            elif chance < (0.4 if depth >= DEEP else 0.75):
                self.add(tag)
            else:
                self.take()

    def two_phase(self, tag: str) -> None:
        connection = self.connection
        connection.tpc_begin(Xid(FORMAT_ID, tag.encode(), b"kill"))
        self.work(tag)
        say("intent", tag, self.added, self.taken, self.seen)
        if self.rng.random() < 0.08:
            connection.tpc_rollback()
        elif connection.tpc_prepare():
            say("prepared", tag)
            if self.rng.random() < 0.08:
                say("undecided", tag)
                connection.tpc_rollback()
            else:
                say("decided", tag)
                connection.tpc_commit()
                say("acked", tag)
        else:
            connection.tpc_rollback()

    def one_phase(self, tag: str) -> None:
        """Either adds or takes, so that the parent can tell afterwards whether an unacknowledged one came about."""
        if self.rng.random() < 0.5:
            for _ in range(self.rng.choice((1, 3))):
                self.add(tag)
        else:
            self.take()
        say("maybe", tag, self.added, self.taken, self.seen)
        self.connection.commit()
        say("acked", tag)


def resolve(space: str, sync: str, decided: set[str]) -> None:
    """What a transaction manager does after a crash: commit what it decided, roll back the rest."""
    session = attaching.attach(space, sync=sync)
    report = session.space.report
    assert not report.quarantined, report.quarantined
    for _ in range(report.rolled_forward):
        say("rolled forward", "")
    with xaqueue.connect(space, sync=sync) as connection:
        in_doubt = connection.tpc_recover()
        for xid in in_doubt:
            say("in doubt", xid.gtrid.decode())
        say("recovered", "")
        for xid in in_doubt:
            tag = xid.gtrid.decode()
            if tag in decided:
                connection.tpc_commit(xid)
            else:
                say("undecided", tag)
                connection.tpc_rollback(xid)
            say("resolved", tag)
    session.close()


def settled(space: str | Path) -> list[str]:
    """What is wrong with a space whose branches are all resolved: two readings of it that share little code."""
    return [*scan(space), *(str(found) for found in check(space) if found.severity is not Severity.NOTE)]


def main(space: str, sync: str, life: str, seed: str, decisions: str) -> None:
    attaching.DirectoryFileSystem = MortalFileSystem  # type: ignore[attr-defined]
    resolve(space, sync, set(Path(decisions).read_text("utf-8").split()))
    wrong = settled(space)
    assert not wrong, wrong
    say("clean", "")
    workers = [Worker(space, sync, life, name, seed) for name in range(THREADS)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:6])
