"""The process that test_strace watches marks begin and end of every verb by a look at a path that is not there.

Arguments: space, flags, threads, rounds. One thread shows each kind of step; several do many small transactions; none
shows those of a block of many messages.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xaqueue
from xaqueue.core.model import definitions
from xaqueue.xid import Xid

MARK = "/xaqueue-mark"


@contextmanager
def marked(verb: str) -> Iterator[None]:
    """The trace shows these two look-ups, and between them what the verb did before it returned."""
    Path(f"{MARK}/begin/{verb}").exists()
    yield
    Path(f"{MARK}/end/{verb}").exists()


def two_phase(connection: xaqueue.Connection, name: str, *, add: int, take: int) -> None:
    """A branch that adds to two queues in turn and takes from the first."""
    connection.tpc_begin(Xid(1, name.encode(), b"strace"))
    for number in range(add):
        connection.enqueue("even" if number % 2 == 0 else "odd", b"x" * 100)
    for _ in range(take):
        assert connection.dequeue("even") is not None
    with marked(f"prepare/{name}"):
        assert connection.tpc_prepare()
    with marked(f"commit/{name}"):
        connection.tpc_commit()


def one_phase(connection: xaqueue.Connection, name: str, *, add: int, take: int) -> None:
    for number in range(add):
        connection.enqueue("even" if number % 2 == 0 else "odd", b"x" * 100)
    for _ in range(take):
        assert connection.dequeue("even") is not None
    with marked(f"one-phase/{name}"):
        connection.commit()


def show_all(space: str, sync: str) -> None:
    """Each kind of step once, on new queues and on queues that are there."""
    with xaqueue.connect(space, sync=sync) as connection:
        for turn in ("first", "again"):
            for step in (two_phase, one_phase):
                step(connection, f"{step.__name__}-add-{turn}", add=1, take=0)
                step(connection, f"{step.__name__}-add-several-{turn}", add=3, take=0)
                step(connection, f"{step.__name__}-take-{turn}", add=0, take=1)
                step(connection, f"{step.__name__}-move-{turn}", add=2, take=1)


def show_many(space: str, sync: str) -> None:
    """A block of many comes, some are taken of it, some more, and the rest."""
    definitions.BLOCKS = definitions.MANY
    with xaqueue.connect(space, sync=sync) as connection:
        connection.enqueue_many("many", [b"x" * 100] * 20)
        with marked("put"):
            connection.commit()
        for name, count in (("first", 3), ("again", 4), ("rest", 13)):
            assert len(connection.dequeue_many("many", 99 if name == "rest" else count)) == count
            with marked(name):
                connection.commit()


def crowd(space: str, sync: str, threads: int, rounds: int) -> None:
    """Many threads, each with transactions of one message."""
    keeper = xaqueue.connect(space, sync=sync)
    ready = threading.Barrier(threads)

    def run(name: int) -> None:
        with xaqueue.connect(space, sync=sync) as connection:
            ready.wait()
            for number in range(rounds):
                two_phase(connection, f"{name}-{number}", add=1, take=0)

    crowded = [threading.Thread(target=run, args=(name,)) for name in range(threads)]
    with marked("crowd"):
        for thread in crowded:
            thread.start()
        for thread in crowded:
            thread.join()
    keeper.close()


if __name__ == "__main__":
    if int(sys.argv[3]) <= 1:
        (show_all if int(sys.argv[3]) else show_many)(sys.argv[1], sys.argv[2])
    else:
        crowd(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
