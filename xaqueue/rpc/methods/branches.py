"""The verbs of a branch's life, which are XA's, what became of a branch, and the definitions of queues.

On the client ``start``, ``end`` and the work between them are deferred: they are sent with ``prepare`` or ``commit``,
most often as one frame, and its answer is that of all of them. What each does in which state of the branch is the table
in ``xaqueue.rpc.client.branch``.
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
from xaqueue.rpc.client.branch import TRANSITIONS, Action, BranchCall, BranchProgress, RemoteBranch, unknown
from xaqueue.rpc.verb import verb, verb_of
from xaqueue.rpc.wire import PAGE
from xaqueue.xa import Flag, Outcome, Vote
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link
    from xaqueue.rpc.server.peer import Caller

METHOD = {call: call.value for call in BranchCall}
WITH_ITS_END = {BranchCall.PREPARE: Flag.NOFLAGS, BranchCall.COMMIT: Flag.ONEPHASE}
"""How a branch is ended in one frame with what is deferred of it."""

harden = verb(TRANSACT)(Session.harden)
recover = verb(EITHER)(Session.recover)
forget = verb(EITHER)(Session.forget)
outcome = verb(EITHER_OR_LOCAL)(Session.outcome)
undefine = verb(ADMIN)(Session.undefine)


@recover.server
def _(caller: Caller, count: Any = PAGE, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
    if type(count) is not int or count > PAGE:
        raise InvalidArgument(f"recover of {count!r} xids: a number from 0 to {PAGE} is wanted")
    return caller.session.recover(count, flags)


@verb_of(ADMIN, Session.define)
def define(self: Link, queue: str, settings: Mapping[str, Any], table: str = "queues") -> None:
    self.call("define", queue, dict(settings), *([True] if table == TOPICS.name else []))


@define.server
def _(caller: Caller, queue: str, settings: Any, is_topic: Any = False) -> None:
    caller.session.define(queue, settings, TOPICS.name if is_topic else "queues")


@verb_of(TRANSACT_OR_LOCAL, Session.start)
def start(self: Link, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
    """Deferred; with flags it is asked, since there is something to find."""
    socket = self._live_socket()
    if self._branch.deferred is not None:
        self._pipeline_deferred(self._branch)
    branch = RemoteBranch()
    branch.xid, branch.progress = xid, BranchProgress.OPEN
    if flags:
        self._branch = branch
        self._ask("start", xid, flags, timeout_s)
        return
    branch.begun_by, branch.sends = self._key, socket.sends
    if timeout_s is None:
        branch.deferred = [xid, True, []]
        self._branch = branch
    else:
        self._branch = branch
        self._pipeline("start", xid, 0, timeout_s)


@verb_of(TRANSACT_OR_LOCAL, Session.end)
def end(self: Link, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
    branch = self._branch
    own = xid == branch.xid
    if own and branch.why is not None and TRANSITIONS[branch.progress, BranchCall.END][0] is Action.REFUSE:
        raise branch.refusal()
    if own and flags is Flag.SUCCESS:
        branch.ends = True
        if branch.deferred is None:
            branch.deferred = [xid, False, []]
    else:
        self._ask("end", xid, flags)


@verb_of(TRANSACT, Session.prepare)
def prepare(self: Link, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
    """From its answer on the branch does not depend on this session, which asks no other space for it until it is
    decided."""
    self.prepared = (*self.prepared, xid)
    try:
        vote = (_decide if xid == self._branch.xid else _ask_once)(self, BranchCall.PREPARE, xid, flags)
    except RolledBack:
        self.decided(xid)
        raise
    if vote == "ok":
        return Vote.OK
    self.decided(xid)
    return Vote(vote)


@verb_of(TRANSACT_OR_LOCAL, Session.commit)
def commit(self: Link, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
    (_decide if xid == self._branch.xid else _ask_once)(self, BranchCall.COMMIT, xid, flags)
    if self.prepared:
        if self.prepared == (xid,):
            self.prepared = ()
        else:
            self.decided(xid)


@verb_of(TRANSACT_OR_LOCAL, Session.rollback)
def rollback(self: Link, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
    branch = self._branch
    own = xid == branch.xid
    if not own or TRANSITIONS[branch.progress, BranchCall.ROLLBACK][0] is not Action.NOTHING:
        _roll_back(self, xid, flags, branch if own else RemoteBranch.of(xid))
    if own:
        self._branch = RemoteBranch()
    if self.prepared:
        self.decided(xid)


@verb_of(TRANSACT_OR_LOCAL, Session.explain)
def explain(self: Link, xid: Xid, reason: str) -> None:
    """Pipelined; of a branch that no server has any more there is nothing to say."""
    if xid == self._branch.xid and self._branch.progress is BranchProgress.OPEN and self._socket is not None:
        with suppress(ConnectionLost):
            self._pipeline("explain", xid, reason)


# Within


def _decide(self: Link, verb: BranchCall, xid: Xid, flags: Flag, *, undone: bool = False) -> Any:
    """Prepares or commits the branch that the session is in, or was, for which it connects again where it must. A lost
    answer leaves the outcome unknown.

    undone: that a call before this one has not done it was asked already.
    """
    branch = self._branch
    before = branch.progress
    action, asked = TRANSITIONS[before, verb]
    if action is not Action.ASK:
        if action is Action.REFUSE:
            raise branch.refusal()
        if not undone:
            return _ask_outcome(self, verb, xid, flags)
    socket = self._socket
    if self._ahead is not None or socket is None or socket.has_said(0):
        if not self._is_live():
            _connect_again(self, branch)
        if TRANSITIONS[branch.progress, verb][0] is Action.REFUSE:  # it was found lost just now
            raise branch.refusal()
    branch.progress = asked
    try:
        if branch.ends and flags is WITH_ITS_END[verb]:
            answer = self._work(branch, METHOD[verb])
        else:
            answer = self._ask(METHOD[verb], xid, flags) if flags else self._ask(METHOD[verb], xid)
    except ConnectionLost as lost:
        raise unknown(verb.value, xid, lost) from lost
    except Error:
        if branch.progress is asked:
            branch.progress = before
        raise
    self._branch = RemoteBranch()
    return answer


def _ask_once(self: Link, verb: BranchCall, xid: Xid, flags: Flag) -> Any:
    """As ``_decide``, of a branch that this session is not in."""
    self._live_socket()
    try:
        return self._ask(METHOD[verb], xid, flags) if flags else self._ask(METHOD[verb], xid)
    except ConnectionLost as lost:
        raise unknown(verb.value, xid, lost) from lost


def _connect_again(self: Link, branch: RemoteBranch) -> None:
    """A branch of which no server knows begins there, with the same ids."""
    socket, unsent = self._socket, b""
    if socket is not None and socket.sends == branch.sends:
        if branch.deferred is not None:
            self._pipeline_deferred(branch)
        if socket.sends == branch.sends:
            unsent = bytes(socket.unsent)
    self._reconnect()
    if unsent and self._socket is not None:
        branch.begin_again(self._key)
        self._socket.unsent += unsent


def _ask_outcome(self: Link, verb: BranchCall, xid: Xid, flags: Flag) -> Any:
    """While the lost session is in the branch still, it is waited for."""
    why: Error
    try:
        for _ in self._tries():
            try:
                return _finish(self, verb, xid, flags)
            except ProtocolError as early:
                why = early
    except OutcomeUnknown:
        raise
    except ConnectionLost as lost:
        why = lost
    raise unknown(verb.value, xid, why) from why


def _finish(self: Link, verb: BranchCall, xid: Xid, flags: Flag) -> Any:
    """What was done by a call whose answer was lost is not done again."""
    if not _is_done(self, verb, xid):
        try:
            return _decide(self, verb, xid, flags, undone=True)
        except UnknownXid as gone:  # meanwhile, or before anybody remembers
            if not _is_done(self, verb, xid):
                if verb is BranchCall.PREPARE:
                    raise RolledBack(f"branch {xid} is rolled back, or had no work: the server has none") from gone
                raise unknown(verb.value, xid, gone) from gone
    self._branch = RemoteBranch()
    return Vote.OK


def _is_done(self: Link, verb: BranchCall, xid: Xid) -> bool:
    """A branch that somebody else committed was prepared: the second phase tells. Raises RolledBack.

    What an earlier life of the xid came to is no answer: this one may never have reached the server.
    """
    branch = self._branch
    begun_by = branch.begun_by if branch.xid == xid else None
    found = Outcome(self.call("outcome", xid, *([] if begun_by is None else [begun_by])))
    if found is Outcome.ROLLED_BACK:
        raise RolledBack(f"branch {xid} was rolled back: the {verb.value} got lost, or its session")
    return found is Outcome.COMMITTED or (found is Outcome.IN_DOUBT and verb is BranchCall.PREPARE)


def _roll_back(self: Link, xid: Xid, flags: Flag, branch: RemoteBranch) -> None:
    refused: Error
    for _ in self._tries():
        try:
            self.call("rollback", xid, flags)
        except ConnectionLost as lost:
            raise unknown("rollback", xid, lost) from lost
        except (UnknownXid, ProtocolError) as error:
            action, _ = TRANSITIONS[branch.progress, BranchCall.ROLLBACK]
            if action not in (Action.ASK_WHERE_LEFT, Action.ASK_UNTIL_LEFT):
                raise
            if action is Action.ASK_WHERE_LEFT or isinstance(error, UnknownXid):
                return
            refused = error
        else:
            return
    raise unknown("rollback", xid, refused) from refused
