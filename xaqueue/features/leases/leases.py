"""Messages that are handed out for a while, many at once, each to be settled by itself.

Each is the one dequeue of a local branch of its own, whose deadline is the end of the lease and in which no session is.
So what holds for branches holds for leases: an ack is its commit in one phase, the end of a lease its rollback
(``timeouts``), which counts as a try, and a killed process is known by its block in active/, or by the register of
tries. The lease is the gtrid of that branch: whoever has it may settle, in any session.

Who settles takes the branch with the lock held, where it is decided once whether the lease has ended. Crash safety: an
ack, a nack and a reject are one step each, of which a crash leaves all or nothing. To accept a delivery renames its
block, in active/ both before and after: a crash counts a try, as if it had come before.

    delivery   [lease, message]; or, with the option columns, of all [leases, messages in columns]

A client asks again where an answer is lost, if that may be done twice: the server knows what was settled, and after it
was killed what its journal tells of. A lost connection ends no lease: its client settles over the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any

from xaqueue.access import CONSUME
from xaqueue.core.engine import commit, taking
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import leave
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch, Rider, State, Written
from xaqueue.core.model.entry import Entry, Run
from xaqueue.core.storage.ids import fresh_id, fresh_ids
from xaqueue.delivery import ACK, LEASE_S, NACK, REJECT, Detail, checked_count, checked_lease_s
from xaqueue.errors import (
    ConnectionLost,
    Error,
    InvalidArgument,
    LeaseExpired,
    OutcomeUnknown,
    ProtocolError,
    RetryLater,
)
from xaqueue.features.retries import moving, tries
from xaqueue.features.topics import bulk
from xaqueue.message import Message, checked_reason, ids_in
from xaqueue.rpc import wire
from xaqueue.rpc.verb import verb, verb_of
from xaqueue.rpc.wire import PAGE_BYTES, TRIES
from xaqueue.times import LATEST_US, check_seconds
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link
    from xaqueue.rpc.server.peer import Caller

BQUAL = b"lease"
ENDED = {ACK: Outcome.COMMITTED, NACK: Outcome.ROLLED_BACK, REJECT: Outcome.COMMITTED}
"""What is remembered of a branch that was settled so; of one whose lease has ended nothing is."""
RECEIVE_OPTIONS = ("max_messages", "lease_s", "wait_s", "columns")

_unanswered: set[bytes] = set()
"""Leases that may be settled, since the answer was lost or the call broken off: a delivery may be settled over any
connection of this process."""


@dataclass(slots=True)
class Lent(Rider):
    """Its message is on lease: the holder is who received it."""

    holder: bytes | int | None
    acts = False
    overdue = "is a lease that has ended"


def _receive(
    self: Session,
    queue: str,
    max_messages: int = 1,
    lease_s: float = LEASE_S,
    wait_s: float | None = 0.0,
    *,
    most_bytes: int | None = None,
) -> list[tuple[bytes, Message]]:
    """See ``Connection.receive``. most_bytes: it ends behind the message with which the bodies reach so many."""
    count, lease_s = checked_count(max_messages), checked_lease_s(lease_s)
    limit_s = check_seconds("wait_s", wait_s) if wait_s != 0 else 0.0
    self._check_open()
    if not self.space.loaded:
        self.space.wait_until_loaded()
    if count > 1:
        return _lend_many(self, queue, count, lease_s, limit_s, inf if most_bytes is None else most_bytes)
    one = _lend(self, queue, lease_s, limit_s)
    return [one] if one is not None else []


@verb_of(CONSUME, _receive)
def receive(
    self: Link, queue: str, max_messages: int = 1, lease_s: float = LEASE_S, wait_s: float | None = 0.0
) -> list[tuple[bytes, Message]]:
    """Fewer where their bodies have a MiB together. Raises ConnectionLost where the answer is lost: what was on its
    way is back when its lease has ended."""
    count, lease_s, limit_s = checked_count(max_messages), checked_lease_s(lease_s), check_seconds("wait_s", wait_s)
    options = {"max_messages": count, "lease_s": lease_s, "wait_s": limit_s}
    if count > 1:
        leases, columns = self.call("receive", queue, options | {"columns": True}, waits_s=limit_s)
        found: list[tuple[bytes, Message]] = [*zip(ids_in(leases), wire.messages_of(queue, columns), strict=True)]
    else:
        answer = self.call("receive", queue, options, waits_s=limit_s)
        found = [(lease, wire.message_of(message)) for lease, message in answer]
    self.has_received |= bool(found)
    return found


@receive.server
def _(caller: Caller, queue: str, options: Any = None) -> Sequence[Any]:
    given = {} if options is None else wire.options_of(options, "receive", RECEIVE_OPTIONS)
    in_columns = given.pop("columns", False)
    found = _receive(caller.session, queue, most_bytes=PAGE_BYTES, **given)
    if in_columns:
        return b"".join([lease for lease, _ in found]), wire.columns_to([message for _, message in found])
    return [(lease, wire.message_to(message)) for lease, message in found]


@verb(CONSUME)
def settle(self: Session, queue: str, lease: bytes, how: str, detail: Detail = None) -> None:
    """how: ``ack``, ``nack`` or ``reject``. detail: microseconds, or None, of a nack, or both these and its reason;
    the reason of a reject."""
    xid = _xid_of(lease)
    delay_us, reason = (None, "") if how == ACK and detail is None else _said(how, detail)
    space, taken = self.space, None
    try:
        with space.lock:
            taken = _held_locked(self, queue, xid, how)
            taken.busy = True
        if how == NACK:
            tries.return_untried(space, taken, delay_us, reason)
        elif how == REJECT and taken.base is State.ACTIVE:
            moving.reject(space, taken, reason)
        else:
            commit.commit(space, taken)
    except LeaseExpired:
        if space.outcome(xid) is not ENDED[how]:
            raise  # else it was settled so, and the answer was lost
        return
    except BaseException as error:
        if taken is not None:
            leave(space, taken, error)
        raise
    if taken.busy or space.log.interrupts:
        leave(space, taken)


@settle.client
def _(self: Link, queue: str, lease: bytes, how: str, detail: Detail = None) -> None:
    """Raises OutcomeUnknown where the answer is lost each time; or was lost, and the server that was started since
    knows the lease no more. ConnectionLost where nobody was there to be asked: nothing was done."""
    is_again, why = lease in _unanswered, Error("the answer to an earlier call is lost")
    _unanswered.add(lease)
    for _ in range(TRIES):
        try:
            self.call("settle", queue, lease, how, detail)
        except ConnectionLost as lost:
            why = lost
            if self.is_unreached:
                break
            is_again = True
        except Error as error:
            if is_again and isinstance(error, LeaseExpired):
                raise OutcomeUnknown(f"{why}. {_over(queue, how)}") from error
            if not is_again and error.code != Code.XAER_RMFAIL:
                _unanswered.discard(lease)
            raise
        else:
            _unanswered.discard(lease)
            return
    if not is_again:
        _unanswered.discard(lease)
        raise why
    raise OutcomeUnknown(f"{why}. Whether the delivery is settled is unknown: settle it again") from why


@verb(CONSUME, "call_with_retry")
def extend(self: Session, queue: str, lease: bytes, lease_s: float) -> None:
    """The lease ends so many seconds from now."""
    seconds = checked_lease_s(lease_s)
    with self.space.lock:
        branch = _held_locked(self, queue, _xid_of(lease))
        branch.deadline = time.monotonic() + seconds
        self.space.look_by(branch.deadline)


@verb(CONSUME, "work")
def accept(self: Session, queue: str, lease: bytes) -> None:
    """The message is one that the associated branch has taken, and the lease is over."""
    xid, branch = _xid_of(lease), self._at_work()
    try:  # as ``_work``, without its calls
        with self.space.lock:
            _hand_over_locked(self, _held_locked(self, queue, xid), branch)
    finally:
        branch.progress = time.monotonic()
        branch.working.discard(self.number)


def adopt(self: Session, lost: bytes) -> None:
    """What the lost session of this key holds is this one's: its client goes on here."""
    with self.space.lock:
        for branch in self.space.branches.values():
            for rider in branch.riders:
                if rider.holder == lost:
                    rider.holder = self.identity


# Within


def _lend(self: Session, queue: str, lease_s: float, wait_s: float) -> tuple[bytes, Message] | None:
    space, xid, message = self.space, Xid.local(fresh_id(), BQUAL), None
    try:
        branch = _begin(self, xid, queue, wait_s)
        message = taking.dequeue(space, branch, queue, wait_s, None, None)
    finally:
        with space.lock:
            if message is None:
                space.branches.pop(xid, None)
            else:
                branch.deadline = time.monotonic() + lease_s
                space.look_by(branch.deadline)
    return None if message is None else (xid.gtrid, message)


def _begin(self: Session, xid: Xid, queue: str, wait_s: float) -> Branch:
    space = self.space
    with space.lock:
        if space.log.failure is not None:
            space.check()
        branch = self._begin_locked(xid, None)
        branch.riders = (Lent(self.identity),)
    self._receiving, self._awaits = branch, queue if wait_s else ""
    self._waits_since = time.monotonic()
    return branch


def _lend_many(
    self: Session, queue: str, count: int, lease_s: float, wait_s: float, most_bytes: float
) -> list[tuple[bytes, Message]]:
    """The same of up to so many: one branch takes them in few passes, and each is given one of its own."""
    space, taken, found = self.space, list[Written](), list[Message]()
    xids, lent = [Xid.local(fresh_id(), BQUAL)], list[Branch]()
    try:
        taker = _begin(self, xids[0], queue, wait_s)
        if (limit := self.branch_limit) is not None:
            with space.lock, suppress(RetryLater):
                if len(self._begun) + count > limit:
                    self._make_room_locked(taker.xid, limit)
            count = min(count, 1 + limit - len(self._begun))
        try:
            bulk.take_each(space, taker, queue, count, wait_s, most_bytes, taken, found, alone=True)
        except RetryLater:
            if not found:
                raise
        xids += [Xid.local(lease, BQUAL) for lease in fresh_ids(max(len(found) - 1, 0))]
        with space.lock:
            index = space.queue(queue).index
            entries = [
                one
                for written in taken
                if (entry := written.entry)
                for one in (index.expand(entry) if type(entry) is Run else (entry,))
            ]
        lent += map(_lent, repeat(taker), repeat(queue), xids, entries)
        if space.log.is_atomic:
            space.log.take(taker, taken, space.epoch)
        else:  # each has its block in active/
            for branch in lent:
                space.log.take(branch, branch.blocks, space.epoch)
        with space.lock:
            _lend_locked(self, taker, lent, time.monotonic() + lease_s)
    except BaseException:  # or interrupted: nobody gets those
        with space.lock:
            for xid in xids:
                space.branches.pop(xid, None)
        space.discard([written.path for branch in lent for written in branch.blocks if written.path])
        for written in reversed(taken):
            taking.return_taken(space, taker, written)
        raise
    return [(xid.gtrid, message) for xid, message in zip(xids, found, strict=False)]


def _lent(taker: Branch, queue: str, xid: Xid, entry: Entry) -> Branch:
    written = Written(1, Kind.DEQUEUE, queue, entry.message_id, 0, entry)
    branch = Branch(xid, str(xid), [written], riders=taker.riders[:1])
    branch.begun, branch.progress, branch.numbers = taker.begun, taker.progress, 1
    return branch


def _lend_locked(self: Session, taker: Branch, lent: Sequence[Branch], deadline: float) -> None:
    """From here on each is on lease. Raises where the session was lost meanwhile."""
    space = self.space
    if taker.rollback_reason is not None:
        raise taker.rollback_reason
    del space.branches[taker.xid]
    for branch in lent:
        branch.deadline, space.branches[branch.xid] = deadline, branch
        entry = branch.blocks[0].entry
        if entry is not None and entry.line is not None:
            entry.line.hold(entry.seq, branch)
    if self.branch_limit is not None:
        self._begun += [branch.xid for branch in lent[1:]]
    if lent:
        space.look_by(deadline)


def _held_locked(self: Session, queue: str, xid: Xid, how: str = "") -> Branch:
    """The branch of a lease that has not ended. Raises LeaseExpired."""
    if self._closed or self.space.log.failure is not None:
        self._check_open()
        self.space.check()
    branch = self.space.branches.get(xid)
    if branch is not None and branch.busy:
        branch = self._settled_locked(xid)
    if branch is not None and branch.base is State.COMMITTING and branch.blocks[0].queue == queue:
        if how in (ACK, REJECT):
            return branch
        raise ProtocolError("the delivery is past its commit point: reject it again to complete that")
    if (
        branch is None
        or branch.base is not State.ACTIVE
        or branch.rollback_reason is not None
        or branch.holder is None  # a client may name a branch of its own so, or join this one and add to it
        or branch.active
        or len(branch.blocks) != 1
        or branch.deadline is None
        or time.monotonic() > branch.deadline
        or branch.blocks[0].queue != queue
    ):
        raise LeaseExpired(
            f"the lease of a message of queue {queue} is over: its time has passed, or it was settled before. "
            "Nothing was done now, and what was not settled is in its queue again"
        )
    return branch


def _hand_over_locked(self: Session, given: Branch, branch: Branch) -> None:
    """Its dequeue is one of this branch from here on."""
    space, written = self.space, given.blocks[0]
    entry = written.entry
    assert entry is not None
    branch.numbers += 1
    if written.path:
        path = f"{written.path.rpartition('/')[0]}/{branch.name}.{branch.numbers:03d}"
        with space.fencing("to accept a delivery", "it is held still"):
            space.fs.rename(written.path, path)
        written.path = path
        branch.to_harden |= given.to_harden
    written.number = branch.numbers
    del space.branches[given.xid]  # first: an interrupt never leaves it to both
    branch.blocks.append(written)
    space.queue(written.queue).index.pass_on(entry, branch)


def _said(how: str, detail: Any) -> tuple[int | None, str]:
    """The delay and the reason of how it is settled. Raises InvalidArgument."""
    delay_us, reason = detail, ""
    if how == REJECT:
        delay_us, reason = None, checked_reason(detail)
    elif how == NACK and isinstance(detail, list | tuple) and len(detail) == 2:
        delay_us, reason = detail[0], checked_reason(detail[1])
    is_delay = how == NACK and type(delay_us) is int and 0 <= delay_us < LATEST_US
    if how not in (ACK, NACK, REJECT) or not (delay_us is None or is_delay):
        raise InvalidArgument(f"settle {str(how)[:60]!r} with {str(detail)[:60]!r} is refused: see xaqueue(5)")
    return delay_us, reason


def _xid_of(lease: Any) -> Xid:
    """Raises InvalidArgument."""
    if type(lease) is not bytes or len(lease) != 16:
        raise InvalidArgument(f"lease {str(lease)[:60]!r} is refused: the 16 bytes of a delivery are wanted")
    return Xid.local(lease, BQUAL)


def _over(queue: str, how: str) -> str:
    return (
        f"Whether the {how} of a message of queue {queue} was done is unknown, and its lease is over, so do not ask "
        f"again: what was not settled is back in {queue} and comes again, so see that its work may be done twice, or "
        "browse for it"
    )
