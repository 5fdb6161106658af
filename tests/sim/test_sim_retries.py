"""Retries, groups, leases, failure and expiry queues against a small model, under any order of work and kills.

A failure says its seed; ``XAQUEUE_SIM_SEED`` replays it, ``XAQUEUE_CRASH_FULL=1`` plays far longer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.crash_level import JOURNAL, LAGGING, NOON_US, STRICT, Level, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem
from support.simulating import simulate
from xaqueue.core.engine import timeouts
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import LeaseExpired
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import MessageId
from xaqueue.xa import Flag
from xaqueue.xid import Xid

TRIES, DELAYS_S = 3, (10, 15)
WORK = QueueDefinition(
    options={
        "max_tries": TRIES,
        "retry_delay_s": DELAYS_S[0],
        "retry_max_s": DELAYS_S[1],
        "failure_queue": "failed",
        "expiry_queue": "late",
    }
)
DEFINED = Definitions({"work": WORK}, QueueDefinition())
SECOND_US = 1_000_000
QUEUES = ("work", "failed", "late")


@dataclass
class Known:
    """A message, as the model has it."""

    number: int
    expires_us: int
    group: str | None = None
    queue: str = "work"
    tries: int = 0
    due_us: int = 0

    def fail(self, now_us: int) -> None:
        self.tries += 1
        if self.tries < TRIES:
            self.due_us = now_us + DELAYS_S[self.tries - 1] * SECOND_US

    def is_ready(self, now_us: int) -> bool:
        return self.stays(now_us) and self.due_us <= now_us

    def stays(self, now_us: int) -> bool:
        return self.queue == "work" and self.tries < TRIES and now_us < self.expires_us

    def move(self, now_us: int) -> None:
        if self.queue == "work" and (self.tries >= TRIES or self.expires_us <= now_us):
            self.queue = "failed" if self.tries >= TRIES else "late"
            self.tries, self.expires_us = 0, NEVER_US


NEVER_US = 2**62


class Machine(RuleBasedStateMachine):
    level: Level

    def __init__(self) -> None:
        super().__init__()
        self.fs: ForgetfulFileSystem = ready(EMPTY, self.level).open()
        self.now_us = NOON_US
        self.known: list[Known] = []
        self.numbers = 0
        self.leased: dict[bytes, Known] = {}
        self._open()

    def _open(self) -> None:
        self.space = open_space(self.fs, self.level, definitions=DEFINED, now_us=lambda: self.now_us)

    def _begin(self) -> tuple[Session, Xid]:
        self.numbers += 1
        session, xid = Session(self.space), Xid(1, b"%d" % self.numbers, b"")
        session.start(xid)
        return session, xid

    def _next(self) -> Known | None:
        return self._next_but([])

    def _take(self, session: Session) -> Known | None:
        message, wanted = session.dequeue("work"), self._next()
        assert (message.body if message else None) == (b"%d" % wanted.number if wanted else None)
        if message is not None and wanted is not None:
            assert message.tries == wanted.tries
        return wanted

    @rule(ttl_s=st.sampled_from([None, 1, 12, 60]), group=st.sampled_from([None, "a", "a", "b"]))
    def put(self, ttl_s: int | None, group: str | None) -> None:
        session, xid = self._begin()
        expires_us = NEVER_US if ttl_s is None else self.now_us + ttl_s * SECOND_US
        given = None if ttl_s is None else expires_us
        message_id = self._id(self.numbers)
        session.enqueue("work", b"%d" % self.numbers, expires_at=given, message_id=message_id, group=group)
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
        self.known.append(Known(self.numbers, expires_us, group))

    @staticmethod
    def _id(number: int) -> MessageId:
        return MessageId(number.to_bytes(16, "big"))

    @rule(prepared=st.booleans())
    def fail(self, prepared: bool) -> None:
        session, xid = self._begin()
        taken = self._take(session)
        session.end(xid)
        if prepared:
            session.prepare(xid)
        if taken is not None or not prepared:
            session.rollback(xid)
        if taken is not None:
            taken.fail(self.now_us)

    @rule(prepared=st.booleans())
    def handle(self, prepared: bool) -> None:
        session, xid = self._begin()
        taken = self._take(session)
        session.end(xid)
        if taken is not None and prepared:
            session.prepare(xid)
            session.commit(xid)
        else:
            session.commit(xid, Flag.ONEPHASE)
        if taken is not None:
            self.known.remove(taken)

    @rule(seconds=st.sampled_from([1, 5, 9, 10, 15, 30]))
    def wait(self, seconds: int) -> None:
        self.now_us += seconds * SECOND_US

    @rule()
    def clean(self) -> None:
        moving.move_exhausted(self.space, cleanup.never)
        cleanup.expire(self.space)
        for one in self.known:
            if one not in self.leased.values():
                one.move(self.now_us)

    @rule(held=st.integers(0, 3), prepared=st.booleans())
    def kill(self, held: int, prepared: bool) -> None:
        """With so many messages in its hands; what is prepared is in doubt, and rolled back by its manager."""
        session, xid = self._begin()
        taken: list[Known] = []
        for _ in range(held):
            one = self._next_but(taken)
            message = session.dequeue("work")
            assert (message is None) == (one is None)
            if one is not None:
                taken.append(one)
        session.end(xid)
        is_prepared = prepared and bool(taken)
        if is_prepared:
            session.prepare(xid)
        self.space.log.end(OSError("killed"))
        self.fs = self.fs.tree_after_kill().open()
        self._open()
        if is_prepared:
            Session(self.space).rollback(xid)
        for one in taken:
            one.fail(self.now_us)
        self._lose_leases()

    def _lose_leases(self) -> None:
        for one in self.leased.values():
            one.fail(self.now_us)
        self.leased.clear()

    def _next_but(self, taken: list[Known]) -> Known | None:
        """Of a group the first that stays here, whatever it waits for; who has that may have the next, too."""
        leased = list(self.leased.values())
        held = {one.group for one in leased} - {None}
        here = [one for one in self.known if one.stays(self.now_us) and one not in taken and one not in leased]
        first = {one.group: one.number for one in reversed(here)}
        ready = (one for one in here if one.is_ready(self.now_us) and one.group not in held)
        return next((one for one in ready if one.group is None or first[one.group] == one.number), None)

    @rule()
    def restart(self) -> None:
        self.space.close()
        self._open()
        self._lose_leases()

    @rule(count=st.integers(1, 3))
    def receive(self, count: int) -> None:
        found = Session(self.space).receive("work", count)
        for lease, message in found:
            wanted = self._next()
            assert wanted is not None
            assert (message.body, message.tries) == (b"%d" % wanted.number, wanted.tries)
            self.leased[lease] = wanted
        assert len(found) == count or self._next() is None

    def _settled(self, data: st.DataObject) -> tuple[bytes, Known]:
        lease = list(self.leased)[data.draw(st.integers(0, len(self.leased) - 1))]
        return lease, self.leased.pop(lease)

    @precondition(lambda self: self.leased)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "reject"]), delay_s=st.sampled_from([None, 0, 20]))
    def settle(self, data: st.DataObject, how: str, delay_s: int | None) -> None:
        lease, one = self._settled(data)
        if how == "nack":
            Session(self.space).settle("work", lease, how, None if delay_s is None else delay_s * SECOND_US)
            one.due_us = self.now_us + (DELAYS_S[min(one.tries, 1)] if delay_s is None else delay_s) * SECOND_US
            return
        Session(self.space).settle("work", lease, how, "no" if how == "reject" else None)
        if how == "ack":
            self.known.remove(one)
        else:
            one.queue, one.tries, one.expires_us = "failed", 0, NEVER_US

    @precondition(lambda self: self.leased)
    @rule(data=st.data(), commits=st.booleans())
    def accept(self, data: st.DataObject, commits: bool) -> None:
        lease, one = self._settled(data)
        session, xid = self._begin()
        session.accept("work", lease)
        session.end(xid)
        if commits:
            session.prepare(xid)
            session.commit(xid)
            self.known.remove(one)
        else:
            session.rollback(xid)
            one.fail(self.now_us)

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        lease, one = self._settled(data)
        session = Session(self.space)
        session.extend("work", lease, 1.0)
        for kept in self.leased:
            session.extend("work", kept, 3600.0)
        assert timeouts.expire(self.space, time.monotonic() + 2, float("inf")) == 1
        with pytest.raises(LeaseExpired):
            session.settle("work", lease, "ack")
        one.fail(self.now_us)

    @invariant()
    def all_are_where_the_model_has_them(self) -> None:
        for queue in QUEUES:
            found = {int(one.body): one.tries for one in Session(self.space).browse(queue)}
            known = [one for one in self.known if one.queue == queue and one.expires_us > self.now_us]
            assert found == {one.number: one.tries for one in known}


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL], ids=str)
def test_any_order_of_failures_and_kills(level: Level) -> None:
    machine = type("OfThisLevel", (Machine,), {"level": level})
    simulate(machine, sample=40, steps=40)
