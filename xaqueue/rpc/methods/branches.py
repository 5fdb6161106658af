"""The methods of a branch's life: the XA verbs, and what became of a branch.

On the client ``start``, ``end`` and the work between them are pipelined; ``prepare`` or ``commit`` brings the answer
for all of them. What each does in which state of the branch is the table in ``xaqueue.rpc.client.branch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xaqueue.errors import ConnectionLost, Error, InvalidArgument, OutcomeUnknown, ProtocolError, RolledBack, UnknownXid
from xaqueue.rpc.client.branch import TRANSITIONS, Action, BranchProgress, RemoteBranch, Verb, unknown
from xaqueue.rpc.client.link import Link
from xaqueue.rpc.wire import PAGE, flags_of, seconds_of, xid_of
from xaqueue.xa import Flag, Outcome, Vote
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.server.authorizer import Caller

# On the server


def start(caller: Caller, xid: Any, flags: Any = 0, timeout_s: Any = None) -> None:
    caller.session.start(xid_of(xid), flags_of(flags), seconds_of("timeout_s", timeout_s))


def end(caller: Caller, xid: Any, flags: Any = int(Flag.SUCCESS)) -> None:
    caller.session.end(xid_of(xid), flags_of(flags))


def prepare(caller: Caller, xid: Any, flags: Any = 0) -> str:
    return caller.session.prepare(xid_of(xid), flags_of(flags)).value


def commit(caller: Caller, xid: Any, flags: Any = 0) -> None:
    caller.session.commit(xid_of(xid), flags_of(flags))


def rollback(caller: Caller, xid: Any, flags: Any = 0) -> None:
    caller.session.rollback(xid_of(xid), flags_of(flags))


def recover(caller: Caller, count: Any = PAGE, flags: Any = 0) -> list[Xid]:
    if type(count) is not int or count > PAGE:
        raise InvalidArgument(f"recover of {count!r} xids: a number from 0 to {PAGE} is wanted")
    return caller.session.recover(count, flags_of(flags))


def forget(caller: Caller, xid: Any, flags: Any = 0) -> None:
    caller.session.forget(xid_of(xid), flags_of(flags))


def outcome(caller: Caller, xid: Any) -> str:
    return caller.session.outcome(xid_of(xid)).value


BRANCH_METHODS = (start, end, prepare, commit, rollback, recover, forget, outcome)

# On the client


class BranchCalls(Link):
    """The part of a RemoteManager that is about branches."""

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Pipelined; with flags it is asked, since there is something to find."""
        if self._socket is None or self._socket.is_stale:
            self._reconnect()
        self._branch = RemoteBranch(xid, BranchProgress.OPEN)
        if flags:
            self._ask("start", xid, flags, timeout_s)
        else:
            self._pipeline("start", xid, 0, timeout_s)

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        branch = self._branch
        if xid != branch.xid:
            self._ask("end", xid, flags)
        elif TRANSITIONS[branch.progress, Verb.END][0] is Action.REFUSE:
            raise branch.refusal()
        elif flags == Flag.SUCCESS:
            self._pipeline("end", xid, flags)
        else:
            self._ask("end", xid, flags)

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        """From its answer on the branch does not depend on this session."""
        return Vote(self._decide(Verb.PREPARE, xid, flags))

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self._decide(Verb.COMMIT, xid, flags)

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        branch = self._branch
        own = xid == branch.xid
        if not own or TRANSITIONS[branch.progress, Verb.ROLLBACK][0] is not Action.NOTHING:
            self._roll_back(xid, flags, branch if own else RemoteBranch(xid, BranchProgress.OPEN))
        if own:
            self._branch = RemoteBranch()

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        return [xid_of(value) for value in self.call("recover", count, flags)]

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.call("forget", xid, flags)

    def outcome(self, xid: Xid) -> Outcome:
        return Outcome(self.call("outcome", xid))

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
            self._reconnect()
        before = asked = branch.progress
        if own:
            action, asked = TRANSITIONS[before, verb]
            if action is Action.REFUSE:  # it was found lost just now
                raise branch.refusal()
            branch.progress = asked
        try:
            answer = self._ask(verb.value, xid, flags)
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
        """A branch that somebody else committed was prepared: the second phase tells. Raises RolledBack."""
        found = self.outcome(xid)
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
                if action is Action.ASK_UNTIL_LEFT and not isinstance(error, UnknownXid):
                    refused = error
                    continue
            return
        raise unknown("rollback", xid, refused) from refused
