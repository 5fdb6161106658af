"""Messages on lease: many at once, each settled by itself or given back when its lease has ended."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.patience import eventually
from xaqueue.connection import Connection
from xaqueue.core.engine import many
from xaqueue.core.engine.timeouts import expire
from xaqueue.core.model import layout
from xaqueue.core.model.block import split_message
from xaqueue.core.model.branch import State
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.order import Order
from xaqueue.delivery import ACK, MOST_MESSAGES, NACK, REJECT, Delivery
from xaqueue.errors import (
    DiskLow,
    InvalidArgument,
    LeaseExpired,
    ProtocolError,
    QueueFull,
    ResourceFailed,
    RetryLater,
    RolledBack,
    UnknownQueue,
)
from xaqueue.features.leases.leases import BQUAL
from xaqueue.features.retries import moving
from xaqueue.features.retries.tries import KILLED
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import Message
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.xa import Flag
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

pytestmark = pytest.mark.usefixtures("quiet")

NOON_US, SECOND_US = 1_800_000_000_000_000, 1_000_000
ORDERS = QueueDefinition(options={"max_tries": 3, "retry_delay_s": 1, "failure_queue": "failed"})
DEFINED = Definitions({"orders": ORDERS, "plain": QueueDefinition(), "failed": QueueDefinition(order=Order.FIFO)})


class Clock:
    """The wall clock."""

    us = NOON_US

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["NONE", DURABLE, "JOURNAL"])
def bare(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path, request.param, now_us=clock, definitions=DEFINED) as made:
        yield made


@pytest.fixture
def user(bare: BareSpace) -> Iterator[Connection]:
    connection = bare.connect()
    yield connection
    if bare.space.failure is None:
        connection.close()


def end_leases(bare: BareSpace) -> int:
    """Their time has passed, and somebody looks for them."""
    with bare.space.lock:
        for branch in bare.space.branches.values():
            if branch.holder is not None:
                branch.deadline = 0.0
    return expire(bare.space, time.monotonic(), float("inf"))


def received(user: Connection, queue: str = "orders", count: int = 10) -> list[Delivery]:
    return user.receive(queue, count, lease_s=3600)


def one(user: Connection, queue: str = "orders") -> Delivery:
    (found,) = received(user, queue)
    return found


def seen(bare: BareSpace, queue: str) -> list[Message]:
    with bare.connect() as connection:
        return list(connection.browse(queue))


def tries(bare: BareSpace, queue: str = "orders") -> list[int]:
    return [message.tries for message in seen(bare, queue)]


def is_clean(bare: BareSpace) -> bool:
    """No branch is left in memory, no block and no record without its message on the disk, and nothing is damaged."""
    bare.space.sync_all()
    blocks = [path for name in (layout.ACTIVE, layout.PREPARED) for path in (bare.root / name).iterdir()]
    found = [one for one in check(bare.root) if one.severity is not Severity.LEFTOVER or ".retries" in one.path]
    return not (bare.space.branches or blocks or found)


def test_a_lease_that_ends_counts_and_nothing_settles_it(bare: BareSpace, clock: Clock, user: Connection) -> None:
    bare.put("orders", b"slow")
    bare.put("plain", b"other")
    late = one(user)
    assert expire(bare.space, time.monotonic(), 0.0) == 0, "it is not idle, it is on lease"
    assert end_leases(bare) == 1
    with bare.connect() as other:
        other.dequeue("plain")  # somebody else works on
        for settle in (late.ack, late.nack, late.extend, lambda: late.reject("no"), lambda: other.accept(late)):
            with pytest.raises(LeaseExpired, match="Nothing was done"):
                settle()
        other.commit()
    assert (tries(bare), bare.take("orders")) == ([1], []), "put off"
    clock.us += SECOND_US
    again = one(user)
    assert again.message.tries == 1
    again.ack()
    with pytest.raises(LeaseExpired):
        late.ack()
    assert is_clean(bare)


def test_what_is_late_is_refused_before_anybody_has_looked(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"slow")
    late = one(user)
    for branch in bare.space.branches.values():
        branch.deadline = 0.0
    for settle in (late.ack, late.extend):
        with pytest.raises(LeaseExpired):
            settle()
    assert end_leases(bare) == 1
    assert tries(bare) == [1]


def test_an_extended_lease_goes_on(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"long")
    held = one(user)
    (branch,) = bare.space.branches.values()
    before = branch.deadline
    held.extend(7200)
    assert before is not None
    assert branch.deadline is not None
    assert branch.deadline > before + 3000
    assert expire(bare.space, before + 1, float("inf")) == 0
    held.ack()
    assert is_clean(bare)


@pytest.mark.parametrize("ends", ["kill", "close", "space"])
def test_who_ends_with_a_message_in_hand_has_tried_it(bare: BareSpace, ends: str) -> None:
    bare.put("orders", b"held")
    bare.put("plain", b"accepted")
    user = bare.connect()
    held = [*received(user), *received(user, "plain")]
    user.accept(held[1])
    if ends == "close":
        with pytest.warns(ResourceWarning):
            user.close()
        assert not bare.space.branches
    elif ends == "space":
        bare.space.close()
        bare.fs = type(bare.fs)(bare.root)
        bare.space = bare._open()
    else:
        bare.reopen()
    assert (tries(bare), tries(bare, "plain")) == ([1], [1])
    assert is_clean(bare)


def test_what_is_handed_back_is_put_off_and_no_try_also_over_a_kill(
    bare: BareSpace, clock: Clock, user: Connection
) -> None:
    bare.put("orders", b"as the queue says", b"an hour", b"at once")
    bare.put("plain", b"at once, too")
    for delivery, delay in zip(received(user), (None, timedelta(hours=1), 0), strict=True):
        delivery.nack(delay)
    one(user, "plain").nack()
    assert (bare.space.branches, bare.take("orders"), bare.take("plain")) == ({}, [b"at once"], [b"at once, too"])
    with bare.connect() as undone:  # take has tried what it saw
        assert [m.tries for m in undone.browse("orders")] == [0, 0, 1]
    bare.reopen()
    assert (tries(bare), tries(bare, "plain")) == ([0, 0, 1], [1])
    assert bare.take("orders") == []
    clock.us += SECOND_US
    assert bare.take("orders") == [b"as the queue says", b"at once"]
    clock.us += 3600 * SECOND_US
    with bare.connect() as connection:
        assert len(connection.dequeue_many("orders", 10)) == 3
    assert is_clean(bare), "no record stays"


def test_what_failed_before_keeps_its_tries(bare: BareSpace, clock: Clock, user: Connection) -> None:
    bare.put("orders", b"twice")
    one(user)
    end_leases(bare)
    clock.us += 10 * SECOND_US
    one(user).nack(5)
    clock.us += 10 * SECOND_US
    held = one(bare.connect())
    assert held.message.tries == 1
    bare.reopen()
    assert tries(bare) == [2]
    entry = bare.space.queues["orders"].index.find(held.message.message_id)
    assert entry is not None
    assert entry.retry is not None
    assert (entry.retry.tries, entry.retry.reason) == (2, KILLED)


def test_a_message_that_is_handed_back_is_taken_by_who_waits(bare: BareSpace, user: Connection) -> None:
    bare.put("plain", b"next")
    held = one(user, "plain")
    found = list[bytes]()

    def wait() -> None:
        with bare.connect() as other:
            found.extend(delivery.body for delivery in other.receive("plain", wait_s=30))

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: bare.space.queues["plain"].waiters)
    held.nack(0)
    waiting.join(30)
    assert found == [b"next"]


def test_a_reject_moves_it_at_once_and_says_why(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"poison", b"good")
    poison, good = received(user)
    poison.reject("no such customer")
    good.ack()
    for _ in range(2):
        assert seen(bare, "orders") == []
        (moved,) = seen(bare, "failed")
        assert moved.origin is not None
        assert (moved.origin.queue, moved.origin.reason, moved.origin.tries) == ("orders", "rejected", 1)
        assert (moved.origin.detail, moved.origin.first_failure) == ("no such customer", NOON_US)
        assert moved.tries == 0
        assert is_clean(bare)
        bare.reopen()
    with bare.connect() as connection:
        connection.requeue("failed", moved.message_id)
    assert tries(bare) == [0]


def test_without_a_failure_queue_nothing_is_rejected(bare: BareSpace, user: Connection) -> None:
    with bare.connect() as connection:
        connection.enqueue("plain", b"x", failure_queue="plain")
        connection.enqueue("plain", b"y", failure_queue="failed")
    held, own = received(user, "plain")
    with pytest.raises(InvalidArgument, match="define plain failure_queue="):
        held.reject("no")
    held.ack()
    own.reject("by its own")
    assert [message.body for message in seen(bare, "failed")] == [b"y"]
    for reason in ("", "x" * 501, None):
        with pytest.raises(InvalidArgument, match="reason"):
            held.reject(reason)  # type: ignore[arg-type]


def test_a_reject_without_room_leaves_it_held(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"poison")
    held = one(user)
    bare.space.redefine(replace(DEFINED, min_free_bytes=2**62))
    with pytest.raises(DiskLow):
        held.reject("no")
    bare.space.redefine(DEFINED)
    bare.fs.faults["create", "active/"] = errno.ENOSPC
    bare.fs.faults["rename", "committed/"] = errno.ENOSPC
    if bare.space.log.is_atomic:
        bare.fs.faults.clear()
    else:
        with pytest.raises((RolledBack, RetryLater)):
            held.reject("no")
        bare.fs.faults.clear()
    assert (bare.take("orders"), seen(bare, "failed")) == ([], [])
    held.extend()
    held.reject("no")
    assert len(seen(bare, "failed")) == 1
    assert is_clean(bare)


def test_a_reject_into_a_full_queue_leaves_it_held(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"poison")
    bare.put("failed", b"full")
    full = QueueDefinition(options={"max_messages": 1})
    bare.space.redefine(replace(DEFINED, queues={**DEFINED.queues, "failed": full}))
    held = one(user)
    for _ in range(2):
        with pytest.raises(QueueFull):
            held.reject("no")
    with bare.connect() as connection:
        assert connection.dequeue("failed") is not None
    held.reject("no")
    assert (seen(bare, "orders"), [one.body for one in seen(bare, "failed")]) == ([], [b"poison"])
    assert is_clean(bare)


def test_a_reject_that_cannot_read_its_message_leaves_it_held(bare: BareSpace) -> None:
    bare.put("orders", b"one")
    bare.reopen()
    user = bare.connect()
    delivery = one(user)
    bare.fs.faults["read", layout.COMMITTED] = errno.EMFILE
    with pytest.raises(RetryLater, match="cannot be read now"):
        delivery.reject("no such customer")
    bare.fs.faults.clear()
    assert received(bare.connect()) == [], "nobody else has it"
    delivery.extend(60)
    delivery.reject("no such customer")
    assert [message.body for message in seen(bare, "failed")] == [b"one"]


@pytest.mark.parametrize("bare", [DURABLE], indirect=True)
def test_a_reject_past_its_commit_point_is_completed(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"poison")
    held = one(user)
    bare.fs.faults["rename", "committed/"] = errno.ENOSPC
    with pytest.raises(RetryLater):
        held.reject("no")
    bare.fs.faults.clear()
    assert [branch.base for branch in bare.space.branches.values()] == [State.COMMITTING]
    assert end_leases(bare) == 0
    with pytest.raises(ProtocolError, match="past its commit point"):
        held.nack()
    held.reject("no")
    assert (seen(bare, "orders"), len(seen(bare, "failed"))) == ([], 1)
    assert is_clean(bare)


@pytest.mark.parametrize("bare", ["NONE", DURABLE], indirect=True)
def test_a_nack_or_accept_without_room_leaves_it_held(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"x")
    held = one(user)
    bare.fs.faults["create", "active/.put."] = errno.ENOSPC
    with pytest.raises(RetryLater, match="held still"):
        held.nack(5)
    bare.fs.faults.clear()
    bare.fs.faults["rename", "active/"] = errno.ENOSPC
    with pytest.raises(RetryLater, match="held still"):
        user.accept(held)
    bare.fs.faults.clear()
    user.accept(held)
    user.commit()
    assert is_clean(bare)


@pytest.mark.parametrize("ends", ["commit", "prepare", "rollback", "kill", "kill prepared"])
def test_accepted_it_is_the_transactions(bare: BareSpace, user: Connection, ends: str) -> None:
    bare.put("orders", b"a", b"b")
    first, second = received(user)
    other = bare.connect()
    xid = Xid(1, b"x", b"")
    if "prepare" in ends:
        other.tpc_begin(xid)
    other.enqueue("plain", b"effect")
    other.accept(first)
    with pytest.raises(ProtocolError, match="settled already"):
        first.ack()
    if "prepare" in ends:
        assert other.tpc_prepare()
    if ends.startswith("kill"):
        bare.reopen()
        assert bare.in_doubt() == ([xid] if "prepare" in ends else [])
        if "prepare" in ends:
            bare.connect().tpc_commit(xid)
        assert tries(bare) == ([1] if "prepare" in ends else [1, 1])
    elif ends == "rollback":
        other.rollback()
        assert tries(bare) == [1, 0]
        second.ack()
    else:
        other.tpc_commit() if "prepare" in ends else other.commit()
        second.ack()
        assert tries(bare) == []
    is_committed = ends in ("commit", "prepare", "kill prepared")
    assert [message.body for message in seen(bare, "plain")] == ([b"effect"] if is_committed else [])
    assert is_clean(bare)


def test_a_group_is_held_by_its_lease_and_then_by_who_accepts(bare: BareSpace, user: Connection) -> None:
    with bare.connect() as connection:
        for body in (b"1", b"2", b"3"):
            connection.enqueue("plain", body, group="g")
    (first,) = received(user, "plain")
    assert received(user, "plain") == []
    user.accept(first)
    assert received(user, "plain") == []
    following = user.dequeue("plain")
    assert following is not None
    assert following.body == b"2"
    user.commit()
    (third,) = received(user, "plain")
    third.ack()
    assert is_clean(bare)


def test_an_ack_and_the_end_of_its_lease_are_one_or_the_other(bare: BareSpace) -> None:
    """Both begin at once, many times: the ack holds, or the message is back."""
    for number in range(20):
        bare.put("plain", b"%d" % number)
        user = bare.connect()
        held = one(user, "plain")
        for branch in bare.space.branches.values():
            branch.deadline = time.monotonic() + 0.001
        acknowledged = list[bool]()

        def ack(held: Delivery = held, acknowledged: list[bool] = acknowledged) -> None:
            time.sleep(0.0008)
            try:
                held.ack()
            except LeaseExpired:
                acknowledged.append(False)
            else:
                acknowledged.append(True)

        acking = threading.Thread(target=ack)
        acking.start()
        while acking.is_alive():
            expire(bare.space, time.monotonic(), float("inf"))
        acking.join()
        expire(bare.space, time.monotonic(), float("inf"))
        assert bool(seen(bare, "plain")) is not acknowledged[0]
        with bare.connect() as connection:
            connection.dequeue("plain")
        user.close()


def test_an_interrupted_receive_holds_nothing(
    bare: BareSpace, user: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.put("orders", b"a", b"b")
    real, calls = split_message, list[bytes]()

    def split(data: bytes) -> tuple[bytes, bytes, bytes]:
        calls.append(data)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(data)

    monkeypatch.setattr(many, "split_message", split)
    with pytest.raises(KeyboardInterrupt):
        received(user)
    monkeypatch.undo()
    assert (tries(bare), bare.take("orders")) == ([0, 0], [b"a", b"b"])
    assert is_clean(bare)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_messages": 0}, "max_messages 0"),
        ({"max_messages": MOST_MESSAGES + 1}, "1 to 1000"),
        ({"max_messages": True}, "max_messages True"),
        ({"lease_s": 0}, "a day at most"),
        ({"lease_s": 86_401}, "a day at most"),
        ({"lease_s": "1"}, "lease_s"),
        ({"wait_s": -1}, "wait_s"),
    ],
)
def test_what_is_wrong_is_named(bare: BareSpace, user: Connection, options: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        user.receive("orders", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=match):
        Session(bare.space).receive("orders", **options)  # type: ignore[arg-type]


def test_other_refusals(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"x")
    with pytest.raises(UnknownQueue):
        user.receive("order")
    session = Session(bare.space)
    ((lease, _),) = session.receive("orders")
    wrong: list[Callable[[], object]] = [
        lambda: session.settle("orders", lease, "lose"),
        lambda: session.settle("orders", lease, "ack", 1),
        lambda: session.settle("orders", lease, "nack", -1),
        lambda: session.settle("orders", b"short", "ack"),
        lambda: session.extend("orders", lease, 0),
    ]
    for call in wrong:
        with pytest.raises(InvalidArgument):
            call()
    for queue in ("plain", "failed"):
        with pytest.raises(LeaseExpired):
            session.settle(queue, lease, "ack")
    with pytest.raises(ProtocolError, match="no branch"):
        session.accept("orders", lease)
    bare.space.draining = True
    with pytest.raises(RolledBack, match="drained"):
        session.receive("orders")
    session.settle("orders", lease, "ack")
    bare.space.draining = False
    assert is_clean(bare)


@pytest.mark.parametrize("blocks", [0, 1, 2])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("how", [ACK, NACK, REJECT])
def test_a_branch_that_only_has_the_name_of_a_lease_is_none(
    bare: BareSpace, how: str, joined: bool, blocks: int
) -> None:
    session = Session(bare.space)
    if joined:
        bare.put("orders", b"one")
        ((lease, _),) = session.receive("orders")
        session.start(Xid(LOCAL_FORMAT_ID, lease, BQUAL), Flag.JOIN)
    else:
        lease = b"l" * 16
        session.start(Xid(LOCAL_FORMAT_ID, lease, BQUAL), timeout_s=60)
    for _ in range(blocks):
        session.enqueue("orders", b"other")
    with pytest.raises(LeaseExpired):
        session.settle("orders", lease, how, "why" if how == REJECT else None)
    assert bare.space.failure is None
    session.close()
    assert is_clean(bare)


def test_a_fenced_space_settles_nothing(bare: BareSpace, user: Connection) -> None:
    bare.put("orders", b"x")
    held = one(user)
    bare.space.fence(OSError("broken"))
    for settle in (held.ack, held.nack, held.extend):
        with pytest.raises(ResourceFailed):
            settle()


def test_expired_often_enough_it_moves(bare: BareSpace, clock: Clock, user: Connection) -> None:
    bare.put("orders", b"poison")
    for _ in range(3):
        one(user)
        assert end_leases(bare) == 1
        clock.us += 10 * SECOND_US
    moving.move_exhausted(bare.space, cleanup.never)
    (moved,) = seen(bare, "failed")
    assert moved.origin is not None
    assert (moved.origin.reason, moved.origin.tries, moved.origin.detail) == ("tries", 3, "lease expired")
