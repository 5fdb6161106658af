"""Many threads take from the same blocks at once: nothing is lost, nothing doubled, and the order is the queue's."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace
from xaqueue import Connection
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.xid import Xid

THREADS = 8
BODIES = [b"%03d" % number for number in range(200)]
Ends = Callable[[Connection], None]


@pytest.fixture(autouse=True)
def hurried() -> Iterator[None]:
    """Threads come in between wherever they may."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_two_phases(connection: Connection) -> None:
    connection.tpc_prepare()
    connection.tpc_commit()


def late_undone(connection: Connection) -> None:
    connection.tpc_prepare()
    connection.tpc_rollback()


def taken_by(bare: BareSpace, number: int, undoes: bool) -> list[bytes]:
    """What one thread has committed, in its order."""
    rng, connection, found = random.Random(number), bare.connect(), list[bytes]()
    for turn in range(10_000):
        is_two_phase, is_undone = rng.random() < 0.5, undoes and rng.random() < 0.4
        if is_two_phase:
            connection.tpc_begin(Xid(1, b"%d" % number, b"%d" % turn))
        count = rng.choice((1, 1, 2, 7, 30))
        some = [connection.dequeue("q")] if count == 1 else connection.dequeue_many("q", count)
        bodies = [message.body for message in some if message is not None]
        if is_two_phase:
            (late_undone if is_undone else in_two_phases)(connection)
        else:
            (connection.rollback if is_undone else connection.commit)()
        if not bodies and not bare.space.queues["q"].index.locked:
            return found
        found += bodies if not is_undone else []
    raise AssertionError("it finds no end")


@pytest.mark.parametrize("seed", range(20 if os.environ.get("XAQUEUE_CRASH_FULL") == "1" else 2))
@pytest.mark.parametrize("undoes", [False, True])
@pytest.mark.parametrize("sync", ["NONE", DURABLE, "JOURNAL"])
def test_threads_take_each_message_once(tmp_path: Path, sync: str, undoes: bool, seed: int) -> None:
    bare = BareSpace(tmp_path / "space", sync, definitions=Definitions(default=QueueDefinition(blocks=MANY)))
    with bare.connect() as connection:
        for begin, end in ((0, 100), (100, 103), (103, 200)):
            connection.enqueue_many("q", BODIES[begin:end])
            connection.commit()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(partial(taken_by, bare, undoes=undoes), range(seed, seed + THREADS)))
    assert sorted(body for bodies in found for body in bodies) == BODIES
    if not undoes:
        assert all(bodies == sorted(bodies) for bodies in found)
    queue = bare.space.queues["q"]
    assert (len(queue.index), queue.index.locked, queue.blocks, bare.space.branches) == (0, 0, {}, {})
    bare.reopen()
    assert bare.take("q") == []
    bare.crash()
