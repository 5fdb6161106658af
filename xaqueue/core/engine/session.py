"""One session with a space: the XA verbs over its branches, and the work between them.

Every verb asks the table in ``core.model.branch`` first, then performs a step of ``commit``. While a step is
on its way its branch is busy, and another call on it waits; the space's lock is never held across a sync.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Unpack

from xaqueue.core.engine import commit, heuristics, messages, taking
from xaqueue.core.engine.association import Association
from xaqueue.core.engine.state import Busy, Space, leave
from xaqueue.core.model import branch as states
from xaqueue.core.model.branch import ALLOWED_ALONE, Branch, Call, Explained, State, call_of, check_flags
from xaqueue.errors import Error, InvalidArgument, ResourceFailed, RolledBack
from xaqueue.message import EnqueueOptions, Message, MessageId, check_queue_name, checked_reason, id_of
from xaqueue.times import check_seconds
from xaqueue.xa import Code, Flag, Outcome, Vote
from xaqueue.xid import Xid


class Session(Association):
    """A ResourceManager. Used by one thread at a time; any number of sessions share a space."""

    def __init__(self, space: Space, on_close: Callable[[], None] = lambda: None) -> None:
        super().__init__(space)
        self.on_close = on_close
        self._scan: list[Xid] | None = None
        self._awaits = ""
        """The queue of the last enqueue, or dequeue, that may have waited."""
        self._waits_since = 0.0
        """When the last dequeue that may have waited began."""

    leaves = True
    """Its verbs take that."""

    @property
    def space_id(self) -> str:
        return self.space.id

    # The verbs of a branch's life

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS, *, leaves: bool = False) -> Vote:
        """leaves: as by ``end`` before it, where the session is in the branch."""
        call = Call.PREPARE if flags is Flag.NOFLAGS else call_of("prepare", flags)
        space, branch = self.space, self._take(xid, call, leaves)
        try:
            try:
                if branch.riders or xid[0] in space.features.rules:
                    self._decide(branch, Call.PREPARE)
                if not branch.blocks:
                    with space.lock:
                        del space.branches[xid]
                        space.settle_locked(branch)
                    return Vote.RDONLY
                commit.prepare(space, branch)
            except RolledBack:
                commit.rollback(space, branch)
                raise
        except BaseException as error:
            leave(space, branch, error)
            raise
        if space.log.interrupts:
            space.log.deliver_interrupt()
        return Vote.OK

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS, *, leaves: bool = False) -> None:
        """leaves: as of ``prepare``."""
        call, late = _COMMIT_ONEPHASE if flags is _ONEPHASE else Call.COMMIT, False
        if flags is not _ONEPHASE and flags is not Flag.NOFLAGS:
            call, late = call_of("commit", flags), bool(flags & Flag.LATE)
        space, branch = self.space, self._take(xid, call, leaves)
        try:
            try:
                if branch.riders or xid[0] in space.features.rules:
                    self._decide(branch, Call.COMMIT)
                if not branch.blocks and branch.base not in (State.PREPARED, State.DELEGATED):
                    with space.lock:
                        space.finish_locked(branch, Outcome.COMMITTED)
                    return
                if len(branch.blocks) >= commit.MANY:
                    space.features.merge(space, branch)
                commit.commit(space, branch, late=late)
            except RolledBack:
                commit.rollback(space, branch)
                raise
        except BaseException as error:
            leave(space, branch, error)
            raise
        if space.log.interrupts:
            space.log.deliver_interrupt()

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS, *, leaves: bool = False) -> None:
        """leaves: as of ``prepare``."""
        branch = self._take(xid, Call.ROLLBACK if flags is Flag.NOFLAGS else call_of("rollback", flags), leaves)
        try:
            if branch.riders or xid[0] in self.space.features.rules:
                self._decide(branch, Call.ROLLBACK)
            commit.rollback(self.space, branch)
        except BaseException as error:
            leave(self.space, branch, error)
            raise
        self.space.log.deliver_interrupt()

    def explain(self, xid: Xid, reason: str) -> None:
        why = checked_reason(reason)
        with self.space.lock:
            branch = self.space.branches.get(xid)
            if branch is not None:
                others = (rider for rider in branch.riders if not isinstance(rider, Explained))
                branch.riders = (*others, Explained(why))

    def flush(self) -> None:
        self._check_open()

    def harden(self) -> None:
        self._check_open()
        self.space.log.harden_late()

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        branch = self._take(xid, call_of("forget", flags))
        try:
            heuristics.forget(self.space, branch)
        except BaseException as error:
            leave(self.space, branch, error)
            raise
        self.space.log.deliver_interrupt()

    def forget_by_hand(self, xid: Xid, by: str, reason: str = "") -> None:
        """As ``forget``, of a person, who is recorded first. Raises UnknownXid where there is no decision,
        ProtocolError where it is not carried out yet, RetryLater without room."""
        heuristics.note_forgotten(self.space, xid, by, reason)
        self.forget(xid)

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        check_flags("recover", flags)
        self._check_open()
        if count < 0:
            raise InvalidArgument(f"recover of {count} xids: a count from 0 is wanted")
        if flags & Flag.STARTRSCAN:
            with self.space.lock:
                self.space.check()  # for reading only it may lack branches that are prepared
                listed = (State.PREPARED, State.DELEGATED, *states.HEURISTICS)
                self._scan = [
                    xid
                    for xid, branch in self.space.branches.items()
                    if not branch.is_for_operator
                    and (branch.base in listed or (branch.base is State.COMMITTING and branch.prepared_at))
                ]
            self.space.check_owner()  # another one may have others by now
        if self._scan is None:
            raise InvalidArgument("recover without an open scan: begin with STARTRSCAN")
        page, self._scan = self._scan[:count], self._scan[count:]
        if flags & Flag.ENDRSCAN:
            self._scan = None
        return page

    def outcome(self, xid: Xid, begun_by: bytes | None = None) -> Outcome:
        """begun_by: see ``Memory.outcome``."""
        self._check_open()
        with self.space.lock:
            self._settled_locked(xid)  # a step on its way is waited for: what it comes to is the answer
        found = self.space.outcome(xid, begun_by)
        self.space.check_owner()  # with another one it may have come to something else
        rule = self.space.features.rules.get(xid[0]) if found is Outcome.UNKNOWN else None
        return found if rule is None else rule.outcome(self.space, xid)

    # The work

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        space, branch, number = self.space, self._current, self.number
        if branch is None or self._closed:
            branch = self._at_work()
        branch.working.add(number)
        try:
            is_asked = branch.rollback_reason or branch.deadline or not space.loaded or space.log.failure
            if is_asked or branch.base is not _ACTIVE:
                self._check_work(branch)
            self._awaits = queue
            return messages.enqueue(space, branch, queue, body, options)
        finally:
            branch.progress = time.monotonic()
            branch.working.discard(number)

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        limit_s = check_seconds("wait_s", wait_s) if wait_s != 0 else 0.0
        space, branch, number = self.space, self._current, self.number
        if branch is None or self._closed:
            branch = self._at_work()
        branch.working.add(number)
        try:
            is_asked = branch.rollback_reason or branch.deadline or not space.loaded or space.log.failure
            if is_asked or branch.base is not _ACTIVE:
                self._check_work(branch)
            if limit_s:
                self._waits_since = time.monotonic()
            self._awaits = queue if limit_s else ""
            return taking.dequeue(space, branch, queue, limit_s, message_id, correlation_id)
        finally:
            branch.progress = time.monotonic()
            branch.working.discard(number)

    def remove(self, queue: str, message_id: bytes) -> bool:
        with self._work() as branch:
            name, wanted = check_queue_name(queue), id_of(message_id)
            return taking.dequeue(self.space, branch, name, 0.0, wanted, None, even_early=True) is not None

    def browse(self, queue: str, limit: int | None = None, id_digits: str = "") -> Iterator[Message]:
        self._check_open()
        self.space.wait_until_loaded()
        return taking.browse(self.space, queue, limit, id_digits)

    def define(self, queue: str, settings: Mapping[str, Any], table: str = "queues") -> None:
        self._check_open()
        if not isinstance(settings, Mapping):
            raise InvalidArgument(f"settings {settings!r} are refused: a map of keys of queues.toml is wanted")
        self.space.check()
        self.space.waiting.run(partial(self.space.definer.define, check_queue_name(queue), settings, table))

    def undefine(self, queue: str) -> None:
        self._check_open()
        self.space.wait_until_loaded()
        self.space.check()
        self.space.waiting.run(partial(self.space.definer.undefine, check_queue_name(queue)))

    def lose(self, why: str = "its session was lost") -> Xid | None:
        """Whoever used the session is gone: what waits in it is to end, and ``close`` follows.

        Returns the branch that it was in, unless it was closed. Of what it is the holder others may be by now.
        """
        branch, receiving, self._is_lost = self._current, self._receiving, True
        self._note_end()
        for left in (branch, receiving if receiving is not None and receiving.deadline is None else None):
            if left is None:
                continue
            left.rollback_reason = left.rollback_reason or RolledBack(f"branch {left.xid}: {why}", Code.XA_RBCOMMFAIL)
            with self.space.lock:
                awaited = self.space.queues.get(self._awaits)
                if awaited is not None:
                    awaited.arrived.notify_all()
        return branch.xid if branch is not None and not self._closed else None

    def close(self, left: Xid | None = None) -> None:
        if self._closed:
            return
        if left is not None:
            with suppress(Error):  # finished, past its commit point, fenced
                if self.outcome(left) is not Outcome.IN_DOUBT:
                    self.rollback(left)
        self._closed = True
        space, alone = self.space, list[Branch]()
        try:
            with space.lock:
                with suppress(ResourceFailed):
                    while any(branch.busy for branch in self._mine_locked()):  # rolled back just now, for being idle
                        space.wait_settled()
                for branch in self._mine_locked():
                    branch.leave(self.number)
                    if branch.active or branch.suspended:
                        branch.rollback_reason = RolledBack(
                            f"branch {branch.xid}: a session in it was lost", Code.XA_RBCOMMFAIL
                        )
                    else:
                        if branch.holder is not None:
                            branch.rollback_reason = RolledBack("its session was closed", Code.XA_RBCOMMFAIL)
                        alone.append(branch)
                        branch.busy = True
                failed = space.failure is not None
            for branch in alone:
                if not failed:
                    with Busy(space, branch):
                        commit.rollback(space, branch)
        finally:
            with space.lock:
                for branch in alone:
                    branch.busy = False
                space.settled.notify_all()
            self._note_end()
            self.on_close()

    def _note_end(self) -> None:
        if self.key is not None:
            with self.space.lock:
                self.space.outcomes.note_session(self.key, self._last)

    def drop(self) -> bool:
        """In a thread of its own: the collector may have come in while this one has the space's lock."""
        if self._closed or self.space.closed:
            return False
        with suppress(RuntimeError):  # no threads any more: the process ends, and the space with it
            _thread.start_new_thread(self.close, ())
        return self.space.failure is None  # of what a fence undoes everybody is told

    def waits_locked(self) -> tuple[str, float]:
        """For a message of which queue, or for room in it, it waits now, and since when at least, of the monotonic
        clock. Called with the space's lock held, in any thread."""
        current, lent, queue = self._current, self._receiving, self.space.queues.get(self._awaits)
        is_lent = lent is not None and lent.deadline is None and self.space.branches.get(lent.xid) is lent
        if queue is None or not queue.waiters or not (is_lent or (current and self.number in current.working)):
            return "", 0.0
        return queue.name, max(self._waits_since, current.progress if current and not is_lent else 0.0)

    # Within

    @contextmanager
    def _work(self) -> Iterator[Branch]:
        """The branch that the session works in; ``enqueue`` and ``dequeue``, which have to be fast, do the same."""
        branch = self._at_work()
        try:
            yield branch
        finally:
            branch.progress = time.monotonic()
            branch.working.discard(self.number)

    def _mine_locked(self) -> list[Branch]:
        """The branches that end with the session."""
        return [
            branch
            for branch in self.space.branches.values()
            if self.number in branch.active
            or (self.number in branch.suspended and not branch.migrates)
            or (branch.holder == self.identity and branch.base is State.ACTIVE and not self._is_lost)
            or (branch is self._local and branch.base in _UNFINISHED)
            or (branch.base is State.ROLLBACK_ONLY and any(branch is one for one in self._undone))
        ]

    def _take(self, xid: Xid, call: Call, leaves: bool = False) -> Branch:
        """The branch, busy, after the table allowed the call; a doomed one is rolled back and says why."""
        if self._closed:
            self._check_open()
        space, taken, is_allowed = self.space, None, True
        try:
            with space.lock:
                branch = space.branches.get(xid)
                if branch is None or space.log.failure is not None or branch.busy or branch.deadline is not None:
                    branch = self._due_locked(xid, call)
                if leaves:
                    if branch is self._current:
                        self._current = None
                    branch.active.discard(self.number)
                is_asked = branch.riders or branch.active or branch.suspended or branch.rollback_reason is not None
                if is_asked or (call, branch.base) not in ALLOWED_ALONE:
                    is_allowed = states.is_allowed(branch.state_for(self.number), call, xid)
                taken = branch
                branch.busy = True
            if not is_allowed:  # it is doomed
                commit.rollback(space, branch)
                raise branch.rollback_reason or RolledBack(f"branch {branch.xid} was rolled back")  # noqa: TRY301
        except BaseException as error:
            if taken is not None:  # an interrupt may come once the lock is free
                leave(space, taken, error)
            raise
        return branch

    def _due_locked(self, xid: Xid, call: Call) -> Branch:
        """The branch once no step of it is on its way; it may be late by then. Raises what the call of none does."""
        self.space.check()
        branch = self._settled_locked(xid)
        if branch is None:
            states.step(State.UNKNOWN, call, xid)
            raise AssertionError
        self._expire(branch)
        return branch

    def _decide(self, branch: Branch, call: Call) -> None:
        """Asks who has a say in the step that follows. Raises what they do."""
        rule = self.space.features.rules.get(branch.xid[0])
        if rule is not None:
            rule.check(self.space, branch, call)
        for rider in branch.riders:
            rider.decide(self.space, branch, call)


_ACTIVE, _ONEPHASE, _COMMIT_ONEPHASE = State.ACTIVE, Flag.ONEPHASE, Call.COMMIT_ONEPHASE
_UNFINISHED = (State.ACTIVE, State.ROLLBACK_ONLY)
