"""Many messages that are received in one call: taken in few passes, and each on a lease of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace
from support.interruption import interrupt
from xaqueue.connection import Connection
from xaqueue.core.engine.timeouts import expire
from xaqueue.core.model import layout
from xaqueue.core.model.branch import Written
from xaqueue.core.model.definitions import MANY, ONE, Definitions, QueueDefinition
from xaqueue.errors import Error, LeaseExpired, RetryLater
from xaqueue.features.retries.register import Register
from xaqueue.features.session import Session

IS_FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
BODIES = [b"<%02d>" % number for number in range(40)]
"""Where messages lie in blocks, in two, and in a file between."""
PARTS = ((0, 20), (20, 21), (21, 40))


@pytest.fixture(
    params=[("NONE", MANY), (DURABLE, MANY), ("JOURNAL", MANY), ("JOURNAL", ONE), (DURABLE, ONE)],
    ids=lambda param: "-".join(param),
)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    level, blocks = request.param
    definitions = Definitions(default=QueueDefinition(blocks=blocks))
    opened = BareSpace(tmp_path / "space", level, definitions=definitions)
    yield opened
    opened.crash()


def fill(bare: BareSpace, queue: str = "q") -> None:
    with bare.connect() as connection:
        for begin, end in PARTS:
            connection.enqueue_many(queue, BODIES[begin:end])
            connection.commit()


def left(bare: BareSpace, queue: str = "q") -> list[tuple[bytes, int]]:
    """What others are given, and their tries; behind it nothing is left anywhere."""
    with bare.connect() as connection:
        found = [(message.body, message.tries) for message in connection.dequeue_many(queue, 100)]
    with bare.space.lock:
        known = bare.space.queues[queue]
        assert (len(known.index), known.index.locked, known.blocks, bare.space.branches) == (0, 0, {}, {})
    return found


def receive(connection: Connection, most: int = 100) -> list[bytes]:
    return [delivery.message.body for delivery in connection.receive("q", most, lease_s=3600)]


def test_each_is_settled_by_itself(bare: BareSpace) -> None:
    """In any order and way; and held until then, while others get what is behind."""
    fill(bare)
    user, other = bare.connect(), bare.connect()
    found = user.receive("q", 30, lease_s=3600)
    assert [delivery.message.body for delivery in found] == BODIES[:30]
    assert len({delivery.lease for delivery in found}) == 30
    assert receive(other) == BODIES[30:]
    for number in (3, 0, 29, 20):
        found[number].ack()
    found[5].nack(reason="not now")
    found[6].extend(10)
    other.accept(found[7])
    other.commit()
    with bare.connect() as third:
        message = third.dequeue("q")
        assert message is not None
        assert (message.body, message.tries) == (BODIES[5], 0)
        third.rollback()
    for delivery in (found[3], found[7]):
        delivery.is_settled = False
        with pytest.raises(LeaseExpired):
            delivery.extend(10)
    user.close()
    other.close()
    bare.space.settle()
    assert [*(bare.root / layout.ACTIVE).iterdir()] == []
    gone = (0, 3, 7, 20, 29)
    assert left(bare) == [(body, 1) for number, body in enumerate(BODIES) if number not in gone]


def test_each_ends_by_itself(bare: BareSpace) -> None:
    fill(bare)
    user = bare.connect()
    found = user.receive("q", 10, lease_s=3600)
    for branch in [bare.space.branches[xid] for xid in bare.space.branches if xid.gtrid == found[4].lease]:
        branch.deadline = 0.0
    assert expire(bare.space, time.monotonic(), float("inf")) == 1
    with bare.connect() as other:
        assert receive(other, 1) == [BODIES[4]]
    found[3].ack()
    with pytest.raises(LeaseExpired):
        found[4].ack()
    user.close()


def test_a_kill_counts_a_try_of_each_that_was_not_settled(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bare)
    bare.reopen()
    written, add = list[int](), Register.add

    def counted(register: Register, taken: Iterable[Written], *, returned: bool = False) -> None:
        written.append(1)
        add(register, taken, returned=returned)

    monkeypatch.setattr(Register, "add", counted)
    user = bare.connect()  # nobody closes it
    found = user.receive("q", 30, lease_s=3600)
    assert len(written) == (bare.sync == "JOURNAL"), "the register is written once"
    found[1].ack()
    found[2].nack(0)
    for _ in range(2):
        bare.reopen()
    tried = [(body, int(number < 30 and number != 2)) for number, body in enumerate(BODIES) if number != 1]
    assert left(bare) == tried


def test_of_a_group_one_is_received(bare: BareSpace) -> None:
    """The next one comes once it is settled, to whomever."""
    with bare.connect() as connection:
        for number, group in enumerate("abaabbc"):
            connection.enqueue("q", b"%d%s" % (number, group.encode()), group=group)
        connection.enqueue("q", b"alone")
    user = bare.connect()
    first = user.receive("q", 10, lease_s=3600)
    assert [delivery.message.body for delivery in first] == [b"0a", b"1b", b"6c", b"alone"]
    assert user.receive("q", 10) == []
    first[0].ack()
    with bare.connect() as other:
        assert receive(other) == [b"2a"]
        first[1].nack(0)
        assert receive(user) == [b"1b"]
    user.close()


def test_a_session_that_may_have_few_branches_is_given_as_many(bare: BareSpace) -> None:
    fill(bare)
    session = Session(bare.space)
    session.branch_limit = 7
    first = session.receive("q", 5)
    assert len(first) == 5
    assert [message.body for _, message in session.receive("q", 5)] == BODIES[5:7]
    with pytest.raises(RetryLater, match="settle what was received"):
        session.receive("q", 5)
    for lease, _ in first[:3]:
        session.settle("q", lease, "ack")
    assert [message.body for _, message in session.receive("q", 5)] == BODIES[7:10]
    session.close()
    assert len(left(bare)) == 37


def test_it_waits_for_the_first_and_ends_with_so_many_bytes(bare: BareSpace) -> None:
    user = bare.connect()
    assert user.receive("q", 10, wait_s=0.01) == []
    assert bare.space.branches == {}
    fill(bare)
    found = Session(bare.space)
    assert len(found.receive("q", 10, most_bytes=2 * len(BODIES[0]) + 1)) == 3  # type: ignore[call-arg]
    found.close()
    assert len(receive(user)) == 40
    user.close()


@pytest.mark.parametrize("most", [3, 30, 100])
def test_an_interrupt_anywhere_leaves_none_with_nobody(bare: BareSpace, most: int) -> None:
    """Who was interrupted ends his session. Where each has calls of its own, more than three have the same again."""
    every = 1 if IS_FULL else 5 if most == 3 else 31
    most = most if bare.sync == "JOURNAL" else 3
    for at in count(0, every):
        fill(bare)
        connection = bare.connect()
        was = interrupt(at, partial(receive, connection, most))
        with suppress(Error):
            connection.close()
        connection._manager.close()
        assert [body for body, _ in left(bare)] == BODIES, at
        if not was:
            break
    assert at > 50
