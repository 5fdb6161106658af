"""A queue never holds more than it may, whichever branches commit; who finds it full is refused, or waits for room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.woken import Woken
from xaqueue.connection import Connection
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import MANY, ONE, Definitions, QueueDefinition
from xaqueue.errors import QueueFull, RetryLater, RolledBack
from xaqueue.features.limits.queue_room import Room, room_of
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

PATIENCE_S = 30.0
TWO = QueueDefinition(options={"max_messages": 2})
WAITS = QueueDefinition(options={"max_messages": 2, "when_full": "wait", "full_wait_s": PATIENCE_S})
WORK = QueueDefinition(options={"max_tries": 1, "failure_queue": "two"})
DEFINED = Definitions({"two": TWO, "waits": WAITS, "work": WORK, "plain": QueueDefinition()})


def sized(max_bytes: int, blocks: str = ONE) -> Definitions:
    queue = QueueDefinition(blocks=blocks, options={"max_bytes": max_bytes})
    return replace(DEFINED, queues={**DEFINED.queues, "sized": queue})


@pytest.fixture(params=["NONE", DURABLE, "JOURNAL"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path, request.param, definitions=DEFINED) as made:
        yield made


def test_a_refused_enqueue_changes_nothing_and_its_transaction_goes_on(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue("two", b"1")
        connection.enqueue("two", b"2")
        with pytest.raises(QueueFull, match=r"queue two is full: with this it had 3 messages, and max_messages = 2"):
            connection.enqueue("two", b"3")
        with pytest.raises(QueueFull):
            connection.enqueue_many("two", [b"3"])
        connection.enqueue("plain", b"beside")
        connection.commit()
    assert bare.take("two") == [b"1", b"2"]
    assert bare.take("plain") == [b"beside"]


def test_many_are_refused_before_the_first(bare: BareSpace) -> None:
    with bare.connect() as connection:
        with pytest.raises(QueueFull, match="3 messages"):
            connection.enqueue_many("two", [b"1", b"2", b"3"])
        connection.enqueue_many("two", [b"1", b"2"])
        connection.commit()
    assert bare.take("two") == [b"1", b"2"]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_what_open_and_prepared_branches_add_counts_also_over_a_restart(bare: BareSpace, ends: str) -> None:
    xid = bare.prepare("prepared", add=[("two", b"1")])
    for _ in range(2):
        with bare.connect() as first, bare.connect() as second:
            first.enqueue("two", b"2")
            with pytest.raises(QueueFull):
                second.enqueue("two", b"3")
            first.rollback()
            second.enqueue("two", b"3")
            second.rollback()
        bare.reopen()
    getattr(Session(bare.space), ends)(xid)
    with bare.connect() as connection:
        connection.enqueue_many("two", [b"new"] * (1 if ends == "commit" else 2))
        with pytest.raises(QueueFull):
            connection.enqueue("two", b"over")
        connection.commit()


def test_what_a_branch_takes_makes_room_for_what_it_adds_and_for_nobody_else_yet(bare: BareSpace) -> None:
    bare.put("two", b"1", b"2")
    with bare.connect() as taker, bare.connect() as other:
        assert taker.dequeue("two") is not None
        with pytest.raises(QueueFull):
            other.enqueue("two", b"other")
        taker.enqueue("two", b"3")
        with pytest.raises(QueueFull):
            taker.enqueue("two", b"4")
        taker.commit()
    assert bare.take("two") == [b"2", b"3"]


def test_a_dequeue_that_is_committed_makes_room(bare: BareSpace) -> None:
    bare.put("two", b"1", b"2")
    with bare.connect() as taker, bare.connect() as other:
        assert taker.dequeue("two") is not None
        taker.rollback()
        with pytest.raises(QueueFull):
            other.enqueue("two", b"3")
        assert taker.dequeue("two") is not None
        taker.commit()
        other.enqueue("two", b"3")
        other.commit()


def until_waiting(bare: BareSpace, queue: str) -> None:
    pause = threading.Event()
    while not bare.space.queues[queue].waiters:
        pause.wait(0.001)


def put(connection: Connection, body: bytes) -> None:
    connection.enqueue("waits", body)
    connection.commit()


@pytest.mark.parametrize("room", ["a dequeue", "a rollback", "a definition"])
def test_who_waits_goes_on_once_there_is_room(bare: BareSpace, room: str) -> None:
    bare.put("waits", b"1")
    with bare.connect() as holder, bare.connect() as waiter, ThreadPoolExecutor(1) as pool:
        holder.enqueue("waits", b"2")
        waiting = pool.submit(put, waiter, b"3")
        until_waiting(bare, "waits")
        assert not waiting.done()
        if room == "a dequeue":
            assert holder.dequeue("waits") is not None
            holder.commit()
        elif room == "a rollback":
            holder.rollback()
        else:
            bare.space.redefine(replace(DEFINED, queues={**DEFINED.queues, "waits": QueueDefinition()}))
        waiting.result(PATIENCE_S)
        holder.rollback()
    assert bare.take("waits")[-1] == b"3"


def test_nobody_waits_for_what_its_own_branch_adds(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue_many("waits", [b"1", b"2"])
        with pytest.raises(QueueFull, match="does not wait for what its own branch adds"):
            connection.enqueue("waits", b"3")
        with pytest.raises(QueueFull, match="does not wait"):
            connection.enqueue_many("waits", [b"3"])
        connection.commit()


@pytest.mark.parametrize(
    ("why", "said"), [("time", "also after 0"), ("deadline", "also after 0"), ("drained", "nobody waits while")]
)
def test_a_wait_ends(bare: BareSpace, why: str, said: str) -> None:
    waits = QueueDefinition(
        options={"max_messages": 2, "when_full": "wait", "full_wait_s": 0.01 if why == "time" else PATIENCE_S}
    )
    bare.space.redefine(replace(DEFINED, queues={**DEFINED.queues, "waits": waits}))
    bare.put("waits", b"1", b"2")
    session, xid = Session(bare.space), Xid(1, b"w", b"")
    session.start(xid, timeout_s=0.1 if why == "deadline" else None)
    bare.space.draining = why == "drained"
    with pytest.raises(QueueFull, match=said):
        session.enqueue("waits", b"3")
    bare.space.draining = False
    session.close()
    assert bare.take("waits") == [b"1", b"2"]


def test_a_lost_session_waits_no_longer(bare: BareSpace) -> None:
    bare.put("waits", b"1", b"2")
    session, xid = Session(bare.space), Xid(1, b"w", b"")
    session.start(xid)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.enqueue, "waits", b"3")
        until_waiting(bare, "waits")
        session.lose()
        with pytest.raises(RolledBack):
            waiting.result(PATIENCE_S)
    session.close()
    assert bare.take("waits") == [b"1", b"2"]


def test_a_message_stays_where_its_failure_queue_is_full_and_moves_once_that_is_not(bare: BareSpace) -> None:
    bare.put("two", b"1", b"2")
    bare.put("work", b"poison")
    with bare.connect() as connection:
        assert connection.dequeue("work") is not None
        connection.rollback()
    with pytest.raises(RetryLater, match="queue two is full"):
        moving.move_exhausted(bare.space, cleanup.never)
    assert "queue two is full" in bare.space.queues["work"].stuck
    assert bare.take("two") == [b"1", b"2"]
    with bare.connect() as connection:
        assert connection.dequeue("two") is not None
        connection.commit()
    moving.move_exhausted(bare.space, cleanup.never)
    assert bare.space.queues["work"].stuck == ""
    assert bare.take("two") == [b"2", b"poison"]


def room(where: BareSpace | Space) -> Room:
    found = room_of((where.space if isinstance(where, BareSpace) else where).queues["sized"])
    assert found is not None
    return found


def held(bare: BareSpace) -> int:
    bare.space.settle()
    return sum(path.stat().st_size for path in bare.messages("sized"))


def test_bytes_are_those_of_the_files_however_they_are_counted(bare: BareSpace) -> None:
    bare.definitions = sized(10_000)
    bare.reopen()
    bare.put("sized", b"x" * 1000, b"y" * 2000)
    xid = bare.prepare("p", add=[("sized", b"z" * 3000)])
    counted = room(bare).size_bytes
    assert 6000 < counted < 6500
    assert room(bare.reopen()).size_bytes == counted
    with bare.connect() as connection, pytest.raises(QueueFull, match="max_bytes = 10000"):
        connection.enqueue("sized", b"v" * 4000)
    Session(bare.space).commit(xid)
    assert held(bare) == counted == room(bare).size_bytes
    assert room(bare.reopen()).size_bytes == counted
    with bare.connect() as connection:
        assert connection.dequeue("sized") is not None
        connection.commit()
    assert held(bare) == room(bare).size_bytes < counted - 1000


def test_a_limit_of_bytes_counts_what_was_there_before_it(bare: BareSpace) -> None:
    bare.space.redefine(replace(DEFINED, default=QueueDefinition()))
    bare.put("sized", b"x" * 1000)
    xid = bare.prepare("p", add=[("sized", b"y" * 1000)])
    with bare.connect() as connection:
        connection.enqueue("sized", b"z" * 1000)
        bare.space.redefine(sized(4000))
        queue = bare.space.queues["sized"]
        assert 3000 < room(bare).size_bytes < 3600
        with pytest.raises(QueueFull):
            connection.enqueue("sized", b"v" * 1000)
        connection.rollback()
    Session(bare.space).rollback(xid)
    assert held(bare) == room(bare).size_bytes
    bare.space.redefine(replace(DEFINED, default=QueueDefinition()))
    assert queue.room is None


def test_a_message_larger_than_the_queue_is_refused_at_once(bare: BareSpace) -> None:
    waits = QueueDefinition(options={"max_bytes": 1000, "when_full": "wait"})
    bare.space.redefine(replace(DEFINED, queues={**DEFINED.queues, "sized": waits}))
    with bare.connect() as connection, pytest.raises(QueueFull, match="does not wait"):
        connection.enqueue("sized", bytes(2000))


@pytest.mark.parametrize("blocks", [ONE, MANY])
def test_many_are_refused_before_the_first_to_the_last_byte(bare: BareSpace, blocks: str) -> None:
    bare.space.redefine(sized(10_000, blocks))
    bodies = [b"x" * 10] * 20
    with bare.connect() as connection:
        connection.enqueue_many("sized", bodies, headers={"k": "v"}, priority=3)
        needed = room(bare).size_bytes
        connection.rollback()
        for spare, fits in ((-1, False), (0, True)):
            bare.space.redefine(sized(needed + spare, blocks))
            if fits:
                connection.enqueue_many("sized", bodies, headers={"k": "v"}, priority=3)
            else:
                with pytest.raises(QueueFull):
                    connection.enqueue_many("sized", bodies, headers={"k": "v"}, priority=3)
            connection.commit()
    assert len(bare.take("sized")) == 20


def test_a_limit_counts_the_same_in_one_file_as_in_one_each(bare: BareSpace) -> None:
    """As long as they are in doubt, once they are committed, and when some are gone; after each kill, too."""
    bodies, counted = [b"x" * size for size in range(20)], {}
    for blocks in (ONE, MANY):
        bare.definitions = sized(100_000, blocks)
        bare.reopen()
        xid = Xid(1, blocks.encode(), b"")
        with closing(bare.connect()) as connection:
            connection.tpc_begin(xid)
            connection.enqueue_many("sized", bodies)
            sizes = [room(bare).size_bytes]
            connection.tpc_prepare()
        sizes += [room(bare).size_bytes, room(bare.reopen()).size_bytes]
        Session(bare.space).commit(xid)
        sizes += [room(bare).size_bytes, room(bare.reopen()).size_bytes]
        with bare.connect() as connection:
            connection.dequeue_many("sized", 7)
        sizes += [room(bare).size_bytes, room(bare.reopen()).size_bytes]
        counted[blocks] = sizes
        with bare.connect() as connection:
            connection.dequeue_many("sized", 20)
        assert room(bare).size_bytes == 0
    assert counted[MANY] == counted[ONE]
    assert len(set(counted[ONE])) == 2


def test_what_a_stream_consumes_makes_room(bare: BareSpace) -> None:
    bare.space.redefine(sized(2500))
    bare.put("sized", b"x" * 1000, b"y" * 1000)
    session = Session(bare.space)
    session.reserve("sized", "s", 0, 2)
    with bare.connect() as connection, pytest.raises(QueueFull):
        connection.enqueue("sized", b"z" * 1000)
    session.consume("sized", "s", 1)
    with bare.connect() as connection:
        connection.enqueue("sized", b"z" * 1000)
        connection.commit()
    session.release("sized")
    assert bare.take("sized") == [b"y" * 1000, b"z" * 1000]
    bare.space.settle()
    cleanup.clear(bare.space)
    assert room(bare).size_bytes == held(bare)


def test_what_has_expired_makes_room_once_it_has_left(bare: BareSpace) -> None:
    woken: list[bool] = []
    bare.space.wakes.consumed = Woken(lambda: woken.append(True))
    with bare.connect() as connection:
        connection.enqueue("two", b"1", ttl=60)
        connection.enqueue("two", b"2")
        connection.commit()
        now_us = bare.now_us() + 61_000_000
        bare.space.now_ns = lambda: now_us * 1000
        with pytest.raises(QueueFull):
            connection.enqueue("two", b"3")
        assert woken, "whoever removes it is called"
        cleanup.expire(bare.space)
        connection.enqueue("two", b"3")
        connection.commit()
