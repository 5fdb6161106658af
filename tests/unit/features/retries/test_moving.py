"""A message that cannot be handled is put off, tried again, and moved at last: each once, and never dropped."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.connection import Connection
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.order import Order
from xaqueue.errors import DiskLow, RetryLater, UnknownQueue
from xaqueue.features.retries import moving
from xaqueue.features.retries.tries import KILLED
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import Message, MessageId, Origin
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

NOON_US = 1_800_000_000_000_000
SECOND_US = 1_000_000
ORDERS = QueueDefinition(
    options={"max_tries": 3, "retry_delay_s": 1, "failure_queue": "failed", "expiry_queue": "expired"}
)
DEFINED = Definitions({"orders": ORDERS}, QueueDefinition())


class Clock:
    def __init__(self) -> None:
        self.us = NOON_US

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["NONE", DURABLE, "JOURNAL"])
def bare(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path, request.param, now_us=clock, definitions=DEFINED) as made:
        yield made


def fail(bare: BareSpace, queue: str = "orders") -> bool:
    """Whether there was a message, whose delivery has failed now."""
    with bare.connect() as connection:
        found = connection.dequeue(queue) is not None
        connection.rollback()
    return found


def move(bare: BareSpace) -> None:
    moving.move_exhausted(bare.space, cleanup.never)
    cleanup.expire(bare.space)


def seen(bare: BareSpace, queue: str) -> list[Message]:
    with bare.connect() as connection:
        return list(connection.browse(queue))


def bodies(bare: BareSpace, queue: str) -> list[bytes]:
    return [message.body for message in seen(bare, queue)]


def exhaust(bare: BareSpace, clock: Clock, tries: int = 3) -> None:
    for _ in range(tries):
        assert fail(bare)
        clock.us += 10 * SECOND_US


def test_a_failed_delivery_is_put_off_longer_each_time_also_over_a_restart(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison", b"fine")
    assert bare.take("orders") == [b"poison", b"fine"]
    assert not fail(bare), "each had one try"
    clock.us += SECOND_US - 1
    assert bare.reopen().queue("orders").index.take(clock.us) is None
    clock.us += 1
    assert fail(bare), "after a second"
    clock.us += SECOND_US
    assert bare.take("orders") == [b"fine"], "the first one after two"
    assert [message.tries for message in seen(bare, "orders")] == [2, 2]


def test_after_an_opening_what_is_not_moved_yet_holds_back_no_higher_priority(tmp_path: Path, clock: Clock) -> None:
    urgent_first = replace(ORDERS, order=Order.PRIORITY)
    with bare_space(tmp_path, "NONE", now_us=clock, definitions=Definitions({"orders": urgent_first})) as bare:
        with bare.connect() as connection:
            connection.enqueue("orders", b"poison", group="g", priority=0)
            connection.enqueue("orders", b"urgent", group="g", priority=9)
        exhaust(bare, clock)
        bare.put("orders", b"plain")
        bare.reopen()
        assert bare.take("orders") == [b"urgent", b"plain"]


def test_after_its_last_try_it_moves_and_tells_where_it_was(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        message_id = connection.enqueue("orders", b"poison", priority=7, headers={"k": "v"}, correlation_id=b"c")
        connection.commit()
    exhaust(bare, clock, 2)
    move(bare)
    assert bodies(bare, "failed") == []
    exhaust(bare, clock, 1)
    move(bare)
    assert not fail(bare), "nobody is given it any more"
    assert bodies(bare, "orders") == []
    (moved,) = seen(bare, "failed")
    origin = Origin("orders", "tries", 3, NOON_US, NOON_US + 20 * SECOND_US, "rolled back")
    assert moved.origin == origin
    assert (moved.message_id, moved.body, moved.tries) == (message_id, b"poison", 0)
    assert (moved.priority, moved.headers, moved.correlation_id) == (7, {"k": "v"}, b"c")
    bare.reopen()
    move(bare)
    assert (bodies(bare, "orders"), bodies(bare, "failed")) == ([], [b"poison"])
    assert not list((bare.root / "committed" / "queue=orders" / ".retries").glob("*")), "no record stays"


def test_a_killed_process_counts_and_the_next_one_moves(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    for _ in range(3):
        with_message = bare.connect()
        assert with_message.dequeue("orders") is not None
        bare.reopen()
        clock.us += 10 * SECOND_US
    move(bare)
    (moved,) = seen(bare, "failed")
    assert moved.origin is not None
    assert (moved.origin.tries, moved.origin.detail) == (3, KILLED)


def test_a_rolled_back_prepared_branch_counts_as_well(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    for number in range(3):
        xid = bare.prepare(Xid(1, b"%d" % number, b"b"), take=["orders"])
        with bare.connect() as connection:
            connection.tpc_rollback(xid)
        clock.us += 10 * SECOND_US
    move(bare)
    assert (bodies(bare, "orders"), bodies(bare, "failed")) == ([], [b"poison"])


def test_a_message_may_name_its_own_failure_queue(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        connection.enqueue("orders", b"own", failure_queue="mine")
        connection.enqueue("orders", b"itself", failure_queue="orders")
        connection.commit()
    for _ in range(6):
        fail(bare)
        fail(bare)
        clock.us += 10 * SECOND_US
    move(bare)
    assert (bodies(bare, "mine"), bodies(bare, "failed"), bodies(bare, "orders")) == ([b"own"], [b"itself"], [])


def test_what_expires_moves_where_the_queue_says_so(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        connection.enqueue("orders", b"late", expires_at=NOON_US + 5)
        connection.enqueue("others", b"gone", expires_at=NOON_US + 5)
        connection.commit()
    clock.us += 5
    assert not fail(bare)
    move(bare)
    (moved,) = seen(bare, "expired")
    assert moved.origin == Origin("orders", "expired", expires_at=NOON_US + 5)
    assert moved.properties.expires_at is None
    assert bodies(bare, "others") == []
    bare.reopen()
    move(bare)
    assert (bodies(bare, "orders"), bodies(bare, "expired")) == ([], [b"late"])


def test_where_it_cannot_go_it_stays_and_the_queue_says_why(bare: BareSpace, clock: Clock) -> None:
    bare.space.redefine(Definitions({"orders": ORDERS}))
    bare.definitions = bare.space.definitions
    bare.put("orders", b"poison")
    exhaust(bare, clock)
    for _ in range(2):
        with pytest.raises(RetryLater, match="'failed' is not defined"):
            move(bare)
        assert "'failed' is not defined" in bare.space.queues["orders"].stuck
        assert not fail(bare)
        assert bodies(bare, "orders") == [b"poison"]
        bare.reopen()
    bare.space.redefine(DEFINED)
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([b"poison"], [])
    assert bare.space.queues["orders"].stuck == ""


def test_without_room_it_stays_until_there_is_some(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    exhaust(bare, clock)
    bare.space.redefine(replace(DEFINED, min_free_bytes=2**62))
    with pytest.raises(RetryLater):
        move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([], [b"poison"])
    bare.space.redefine(DEFINED)
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([b"poison"], [])


def test_a_new_limit_holds_for_what_is_there(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    exhaust(bare, clock, 2)
    stricter = replace(ORDERS, options={**ORDERS.options, "max_tries": 2})
    bare.space.redefine(replace(DEFINED, queues={"orders": stricter}))
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([b"poison"], [])


def test_a_limit_that_is_lifted_gives_it_out_again(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    exhaust(bare, clock)
    bare.space.redefine(Definitions(default=QueueDefinition()))
    assert bare.take("orders") == [b"poison"]


def test_a_queue_that_is_its_own_failure_queue_tries_for_ever(tmp_path: Path, clock: Clock) -> None:
    """As one that a [default] template makes."""
    with bare_space(tmp_path, now_us=clock, definitions=Definitions(default=ORDERS)) as bare:
        bare.put("failed", b"poison")
        for _ in range(5):
            assert fail(bare, "failed")
            clock.us += 100 * SECOND_US
        move(bare)
        assert bodies(bare, "failed") == [b"poison"]


def test_one_that_is_damaged_is_set_aside(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    bare.space.checkpoint()
    exhaust(bare, clock)
    bare.space.checkpoint()
    bare.reopen()
    bare.message_file("orders", b"poison").write_bytes(b"")
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([], [])
    assert len(bare.quarantined()) == 1


def test_an_id_that_the_other_queue_has_is_not_used_twice(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        for queue in ("orders", "failed"):
            connection.enqueue(queue, queue.encode(), message_id=b"i" * 16)
        connection.commit()
    exhaust(bare, clock)
    move(bare)
    first, moved = seen(bare, "failed")
    assert (first.body, moved.body) == (b"failed", b"orders")
    assert moved.message_id != first.message_id == b"i" * 16
    assert moved.origin is not None
    assert moved.origin.message_id == (b"i" * 16).hex()


def test_a_stream_that_reserves_the_queue_takes_what_was_to_move(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    exhaust(bare, clock)
    Session(bare.space).reserve("orders", "s", 0, 1)
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([], [b"poison"])


@pytest.mark.parametrize("call", ["create", "rename"])
def test_a_disk_that_is_full_in_the_middle_loses_nothing(bare: BareSpace, clock: Clock, call: str) -> None:
    bare.put("orders", b"poison")
    exhaust(bare, clock)
    bare.fs.faults[call, "active"] = bare.fs.faults[call, "prepared"] = errno.ENOSPC
    bare.fs.faults[call, "committed"] = errno.ENOSPC
    try:
        move(bare)
    except RetryLater:
        assert bodies(bare, "orders") == [b"poison"]
    bare.fs.faults.clear()
    bare.reopen()
    clock.us += 10 * SECOND_US
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([b"poison"], [])


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_what_is_sent_back_is_as_it_was(bare: BareSpace, clock: Clock, ends: str) -> None:
    with bare.connect() as connection:
        for queue in ("orders", "failed"):
            connection.enqueue(queue, queue.encode(), message_id=b"i" * 16, expires_at=NOON_US + 3600 * SECOND_US)
        connection.commit()
    exhaust(bare, clock)
    move(bare)
    (moved,) = [one for one in seen(bare, "failed") if one.body == b"orders"]
    with bare.connect() as connection:
        assert connection.requeue("failed", moved.message_id) == b"i" * 16
        getattr(connection, ends)()
    bare.reopen()
    if ends == "rollback":
        assert len(bodies(bare, "failed")) == 2
        return
    (back,) = seen(bare, "orders")
    assert (back.message_id, back.tries, back.origin) == (b"i" * 16, 0, None)
    assert back.properties.expires_at == NOON_US + 3600 * SECOND_US
    assert bodies(bare, "failed") == [b"failed"]


def test_a_move_that_is_refused_leaves_the_message_to_be_taken(bare: BareSpace) -> None:
    bare.put("others", b"one")
    bare.space.redefine(Definitions({"others": QueueDefinition(), "orders": ORDERS}, min_free_bytes=2**62))
    (message,) = seen(bare, "others")
    with bare.connect() as connection:
        with pytest.raises(UnknownQueue):
            connection.move("others", message.message_id, "nowhere")
        with pytest.raises(DiskLow):
            connection.move("others", message.message_id, "orders")
        connection.commit()
    assert bare.take("others") == [b"one"]


def take_by_hand(connection: Connection, verb: str, message_id: MessageId) -> None:
    if verb == "move":
        assert connection.move("orders", message_id, "others") is not None
    elif verb == "requeue":
        assert connection.requeue("orders", message_id) is not None
    else:
        assert connection.remove("orders", message_id)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("verb", ["move", "requeue", "remove"])
def test_what_somebody_moves_or_removes_in_vain_is_no_try(
    bare: BareSpace, clock: Clock, verb: str, is_prepared: bool, is_killed: bool
) -> None:
    bare.put("others", b"one")
    with bare.connect() as connection:
        (message,) = connection.browse("others")
        assert connection.move("others", message.message_id, "orders") is not None
        connection.commit()
    for tries in (0, 2):
        before = seen(bare, "orders")
        assert [one.tries for one in before] == [tries]
        for number in range(4):
            connection, xid = bare.connect(), Xid(1, b"%d" % number, b"b")
            if is_prepared:
                connection.tpc_begin(xid)
            take_by_hand(connection, verb, message.message_id)
            if is_prepared:
                connection.tpc_prepare()
            if is_killed:
                bare.reopen()
                connection = bare.connect()
            if is_prepared:
                connection.tpc_rollback(xid if is_killed else None)
            elif not is_killed:
                connection.rollback()
        move(bare)
        assert seen(bare, "orders") == before, "as it was, and not put off"
        for _ in range(2 - tries):
            assert fail(bare)
            clock.us += 10 * SECOND_US
    assert bare.take("orders") == [b"one"]


def test_a_queue_that_is_stuck_holds_up_no_other(bare: BareSpace, clock: Clock) -> None:
    others = replace(ORDERS, options={**ORDERS.options, "failure_queue": "others.failed"})
    bare.space.redefine(
        Definitions(
            {"orders": ORDERS, "others": others, "plain": QueueDefinition(), "others.failed": QueueDefinition()}
        )
    )
    with bare.connect() as connection:
        for queue in ("orders", "plain"):
            connection.enqueue(queue, b"late", expires_at=NOON_US + 5)
        for queue in ("orders", "others"):
            connection.enqueue(queue, b"poison")
        connection.commit()
    clock.us += 10
    for _ in range(3):
        assert fail(bare, "orders")
        assert fail(bare, "others")
        clock.us += 10 * SECOND_US
    for work in (moving.move_exhausted, cleanup.expire):
        with pytest.raises(RetryLater, match=r"'(failed|expired)' is not defined"):
            work(bare.space, cleanup.never)
    assert bodies(bare, "others.failed") == [b"poison"]
    assert [path.name for path in bare.messages("plain")] == []
    assert bodies(bare, "orders") == [b"poison"]
    bare.space.redefine(DEFINED)
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "expired"), bodies(bare, "orders")) == ([b"poison"], [b"late"], [])


def test_what_a_stream_has_left_moves_once_it_is_released(bare: BareSpace, clock: Clock) -> None:
    bare.put("orders", b"poison")
    exhaust(bare, clock)
    session = Session(bare.space)
    session.reserve("orders", "s", 0, 1)
    move(bare)
    assert bodies(bare, "orders") == [b"poison"]
    session.release("orders")
    move(bare)
    assert (bodies(bare, "failed"), bodies(bare, "orders")) == ([b"poison"], [])
