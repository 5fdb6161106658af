"""The methods of a branch's life: the XA verbs, what became of a branch, and changes that a database has carried.

On the client ``start``, ``end`` and the work between them are pipelined; ``prepare`` or ``commit`` brings the answer
for all of them. What each does in which state of the branch is the table in ``xaqueue.rpc.client.branch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xaqueue.access import ADMIN, EITHER, EITHER_OR_LOCAL, TRANSACT, TRANSACT_OR_LOCAL
from xaqueue.core.engine.session import Session
from xaqueue.errors import (
    ConnectionLost,
    Error,
    InvalidArgument,
    OutcomeUnknown,
    ProtocolError,
    RolledBack,
    UnknownXid,
)
from xaqueue.features.topics.options import TOPICS
from xaqueue.rpc.client.branch import TRANSITIONS, Action, BranchProgress, RemoteBranch, Verb, unknown
from xaqueue.rpc.client.link import Link
from xaqueue.rpc.verb import method, methods
from xaqueue.rpc.wire import PAGE, xid_of
from xaqueue.xa import Flag, Outcome, Vote
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

# On the server: what is more than the same call of a session


def recover(caller: Caller, count: Any = PAGE, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
    if type(count) is not int or count > PAGE:
        raise InvalidArgument(f"recover of {count!r} xids: a number from 0 to {PAGE} is wanted")
    return caller.session.recover(count, flags)


def define(caller: Caller, queue: str, settings: Any, is_topic: Any = False) -> None:
    caller.session.define(queue, settings, TOPICS.name if is_topic else "queues")


BRANCH_METHODS = (
    *methods(TRANSACT_OR_LOCAL, Session.start, Session.end, Session.commit, Session.rollback, Session.explain),
    *methods(TRANSACT, Session.prepare, Session.harden),
    *methods(EITHER, Session.forget, recover),
    method(EITHER_OR_LOCAL, Session.outcome),
    *methods(ADMIN, define, Session.undefine),
)

# On the client


class BranchCalls(Link):
    """The part of a RemoteManager that is about branches."""

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Pipelined; with flags it is asked, since there is something to find."""
        if self._socket is None or self._socket.is_stale:
            self._reconnect()
        sends = -1 if flags or self._socket is None else self._socket.sends
        self._branch = RemoteBranch(xid, BranchProgress.OPEN, None, None if flags else self._key, sends)
        if flags:
            self._ask("start", xid, flags, timeout_s)
        elif timeout_s is None:
            self._pipeline("start", xid)
        else:
            self._pipeline("start", xid, 0, timeout_s)

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        branch = self._branch
        own = xid == branch.xid
        if own and TRANSITIONS[branch.progress, Verb.END][0] is Action.REFUSE:
            raise branch.refusal()
        if own and flags == Flag.SUCCESS:
            self._pipeline("end", xid)
        else:
            self._ask("end", xid, flags)

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        """From its answer on the branch does not depend on this session."""
        return Vote(self._decide(Verb.PREPARE, xid, flags))

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self._decide(Verb.COMMIT, xid, flags)

    def harden(self) -> None:
        self.call("harden")

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        branch = self._branch
        own = xid == branch.xid
        if not own or TRANSITIONS[branch.progress, Verb.ROLLBACK][0] is not Action.NOTHING:
            self._roll_back(xid, flags, branch if own else RemoteBranch(xid, BranchProgress.OPEN))
        if own:
            self._branch = RemoteBranch()

    def explain(self, xid: Xid, reason: str) -> None:
        """Pipelined; of a branch that no server has any more there is nothing to say."""
        if xid == self._branch.xid and self._branch.progress is BranchProgress.OPEN and self._socket is not None:
            with suppress(ConnectionLost):
                self._pipeline("explain", xid, reason)

    def define(self, queue: str, settings: Mapping[str, Any], table: str = "queues") -> None:
        self.call("define", queue, dict(settings), *([True] if table == TOPICS.name else []))

    def undefine(self, queue: str) -> None:
        self.call("undefine", queue)

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        return [xid_of(value) for value in self.call("recover", count, flags)]

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.call("forget", xid, flags)

    def outcome(self, xid: Xid) -> Outcome:
        return Outcome(self.call("outcome", xid))

    # Within

    def _decide(self, verb: Verb, xid: Xid, flags: Flag, *, undone: bool = False) -> Any:
        """Prepares or commits, for which it connects again where it must. A lost answer leaves the outcome unknown.

        undone: that a call before this one has not done it was asked already.
        """
        branch = self._branch
        own = xid == branch.xid
        if own and not undone:
            action, _ = TRANSITIONS[branch.progress, verb]
            if action is Action.ASK_OUTCOME:
                return self._ask_outcome(verb, xid, flags)
            if action is Action.REFUSE:
                raise branch.refusal()
        if self._socket is None or self._socket.is_stale:
            unsent = self._socket.unsent if self._socket is not None and self._socket.sends == branch.sends else b""
            self._reconnect()
            if own and unsent and self._socket is not None:  # no server knows of it: it begins there, with the same ids
                branch.begin_anew(self._key)
                self._socket.unsent += unsent
        before = asked = branch.progress
        if own:
            action, asked = TRANSITIONS[before, verb]
            if action is Action.REFUSE:  # it was found lost just now
                raise branch.refusal()
            branch.progress = asked
        try:
            answer = self._ask(verb.value, xid, flags) if flags else self._ask(verb.value, xid)
        except ConnectionLost as lost:
            raise unknown(verb.value, xid, lost) from lost
        except Error:
            if own and branch.progress is asked:
                branch.progress = before
            raise
        if own:
            self._branch = RemoteBranch()
        return answer

    def _ask_outcome(self, verb: Verb, xid: Xid, flags: Flag) -> Any:
        """While the lost session is in the branch still, it is waited for."""
        why: Error
        try:
            for _ in self._tries():
                try:
                    return self._finish(verb, xid, flags)
                except ProtocolError as early:
                    why = early
        except OutcomeUnknown:
            raise
        except ConnectionLost as lost:
            why = lost
        raise unknown(verb.value, xid, why) from why

    def _finish(self, verb: Verb, xid: Xid, flags: Flag) -> Any:
        """What was done by a call whose answer was lost is not done again."""
        if not self._is_done(verb, xid):
            try:
                return self._decide(verb, xid, flags, undone=True)
            except UnknownXid as gone:  # meanwhile, or before anybody remembers
                if not self._is_done(verb, xid):
                    if verb is Verb.PREPARE:
                        raise RolledBack(f"branch {xid} is rolled back, or had no work: the server has none") from gone
                    raise unknown(verb.value, xid, gone) from gone
        self._branch = RemoteBranch()
        return Vote.OK

    def _is_done(self, verb: Verb, xid: Xid) -> bool:
        """A branch that somebody else committed was prepared: the second phase tells. Raises RolledBack.

        What an earlier life of the xid came to is no answer: this one may never have reached the server.
        """
        branch = self._branch
        begun_by = branch.begun_by if branch.xid == xid else None
        found = self.outcome(xid) if begun_by is None else Outcome(self.call("outcome", xid, begun_by))
        if found is Outcome.ROLLED_BACK:
            raise RolledBack(f"branch {xid} was rolled back: the {verb.value} got lost, or its session")
        return found is Outcome.COMMITTED or (found is Outcome.IN_DOUBT and verb is Verb.PREPARE)

    def _roll_back(self, xid: Xid, flags: Flag, branch: RemoteBranch) -> None:
        refused: Error
        for _ in self._tries():
            try:
                self.call("rollback", xid, flags)
            except ConnectionLost as lost:
                raise unknown("rollback", xid, lost) from lost
            except (UnknownXid, ProtocolError) as error:
                action, _ = TRANSITIONS[branch.progress, Verb.ROLLBACK]
                if action not in (Action.ASK_WHERE_LEFT, Action.ASK_UNTIL_LEFT):
                    raise
                if action is Action.ASK_WHERE_LEFT or isinstance(error, UnknownXid):
                    return
                refused = error
            else:
                return
        raise unknown("rollback", xid, refused) from refused
