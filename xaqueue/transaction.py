"""The transaction of a connection: the phases it goes through, which call has its place in which, and what ends it.

It is written over the ResourceManager protocol, and makes PEP 249's one transaction at a time of the XA verbs. A call
that got no answer, or was interrupted, leaves it in a phase in which the same call may be made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from xaqueue.errors import (
    ConnectionLost,
    Error,
    HeuristicOutcome,
    InterfaceError,
    OutcomeUnknown,
    ProtocolError,
    RolledBack,
    UnknownXid,
)
from xaqueue.message import reason_of
from xaqueue.xa import Code, Flag, Outcome, Vote
from xaqueue.xid import Xid

if TYPE_CHECKING:  # brings the types of batches, which a plain connection never needs
    from xaqueue.carried import CarriedChange
    from xaqueue.resource_manager import ResourceManager


class _Here(threading.local):
    """What ``threading.current_thread`` answers, without the call."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


HERE = _Here()


class Phase(Enum):
    """As its connection sees it; what the branch is to the space, ``xaqueue.core.model.branch`` says."""

    NONE = "outside a transaction"
    LOCAL = "in a local transaction"
    LOCAL_ENDED = "in a local transaction that was ended"
    ACTIVE = "in a two-phase transaction"
    ENDED = "in a two-phase transaction that was ended"
    PREPARING = "in a two-phase transaction whose prepare got no answer"
    PREPARED = "in a prepared transaction"
    READ_ONLY = "in a transaction that voted read-only"
    UNANSWERED = "after a commit that got no answer"
    CLOSED = "closed"


_OUTSIDE = (Phase.NONE, Phase.UNANSWERED)
_ONE_PHASE = (*_OUTSIDE, Phase.LOCAL, Phase.LOCAL_ENDED)
_UNPREPARED = (Phase.ACTIVE, Phase.ENDED, Phase.PREPARING)
_TWO_PHASE = (*_UNPREPARED, Phase.PREPARED, Phase.READ_ONLY)

WORKING = Phase.LOCAL, Phase.ACTIVE
"""In which work belongs to a transaction that is there."""

ALLOWED: dict[str, tuple[tuple[Phase, ...], str]] = {
    "work": ((*_OUTSIDE, Phase.LOCAL, Phase.ACTIVE), "finish it first"),
    "transaction": (_OUTSIDE, "commit it or roll it back first"),
    "commit": (_ONE_PHASE, "use tpc_commit"),
    "rollback": (_ONE_PHASE, "use tpc_rollback"),
    "tpc_begin": ((*_OUTSIDE, Phase.READ_ONLY), "commit it or roll it back first"),
    "tpc_end": ((Phase.ACTIVE,), ""),
    "tpc_prepare": (_UNPREPARED, ""),
    "tpc_carry": ((Phase.ACTIVE, Phase.ENDED), ""),
    "tpc_commit": ((*_TWO_PHASE, Phase.UNANSWERED), ""),
    "tpc_rollback": (_TWO_PHASE, ""),
    "the call with an xid": (_OUTSIDE, "finish that first"),
}
"""By method: the phases in which it has its place, and what to do in others."""
BEGIN = "begin one with tpc_begin"
"""What to do where there is no transaction."""
UNCOMMITTED = (Phase.LOCAL, Phase.LOCAL_ENDED, Phase.ACTIVE, Phase.ENDED)
"""Where the end of the session is the end of the work."""
OPEN_BLOCK = "the block of a savepoint was not left, or its end was interrupted"
_NO_XID = Xid.local(b"")


class Transaction:
    """What a connection is in. Its connection lets in one thread at a time."""

    def __init__(self, manager: ResourceManager, make_id: Callable[[], bytes]) -> None:
        self.manager = manager
        self._leaving: Any = manager if getattr(manager, "leaves", False) else None
        """The same where its verbs leave the branch themselves, so that no ``end`` goes before them."""
        self._again: Callable[[Transaction, Error], bool] | None = getattr(manager, "again", None)
        """Where the manager sends what was lost once more: whether the transaction is committed by now."""
        self._make_id = make_id
        self.phase = Phase.NONE
        self.xid: Xid | None = None
        self.uncommitted = 0
        """Messages that it has added or taken."""
        self.thread: threading.Thread | None = None
        """Whose work it is."""
        self.savepoints: list[Any] = []
        """Each within the one before it; those of an earlier transaction are over."""

    def check_open(self) -> None:
        if self.phase is Phase.CLOSED:
            raise InterfaceError("the connection is closed: open another one")

    def check(self, method: str) -> Xid:
        """The transaction that is meant, where the method has its place; outside of one, any xid."""
        self.check_open()
        phases, hint = ALLOWED[method]
        if self.phase not in phases:
            what = "no more work" if method == "work" else method
            hint = hint or (BEGIN if self.phase is Phase.NONE else "")
            raise ProtocolError(f"{what} {self.phase.value}" + (f": {hint}" if hint else ""))
        return self.xid if self.xid is not None else _NO_XID

    def _check_thread(self) -> None:
        """Work is its thread's, as long as that one lives."""
        if self.thread is not HERE.thread and self.thread is not None and self.thread.is_alive():
            raise InterfaceError(
                "the connection is in a transaction of another thread: open one for each, or hand it on between "
                "transactions"
            )

    @property
    def is_uncommitted(self) -> bool:
        """Whether the end of its session would undo work."""
        return self.uncommitted > 0 and self.phase in UNCOMMITTED

    def enter(self, phase: Phase, xid: Xid) -> None:
        self.phase, self.xid, self.uncommitted = phase, xid, 0
        self.thread = HERE.thread  # its number may be another one's once it has ended

    def leave(self) -> None:
        self.phase, self.xid, self.uncommitted = Phase.NONE, None, 0

    def work(self) -> None:
        """Where there is no transaction, a local one begins."""
        if self.phase not in WORKING:
            if self.phase is not Phase.NONE:
                self.check("work")
            self._begin_local()
        elif self.thread is not HERE.thread:
            self._check_thread()

    def _begin_local(self) -> None:
        xid = Xid.local(self._make_id())
        self.phase, self.xid, self.uncommitted, self.thread = Phase.LOCAL, xid, 0, HERE.thread  # as ``enter``
        try:
            self.manager.start(xid)
        except BaseException as error:  # or interrupted: there may be one by now, in which nothing was done
            if not isinstance(error, ConnectionLost):  # no server has heard of it, and none is waited for again
                with suppress(Error):
                    self._undo(xid)
            self.leave()
            raise

    def begin_again(self) -> None:
        """A local one in the place of one that is over, or lost."""
        self._begin_local()

    def begin(self, xid: Xid, flags: Flag, timeout_s: float | None) -> None:
        """A branch, as ``tpc_begin`` says."""
        before = self.phase, self.xid
        self.phase, self.xid, self.uncommitted, self.thread = Phase.ACTIVE, xid, 0, HERE.thread
        try:
            self.manager.start(xid, flags, timeout_s)
        except Error:  # interrupted it may have begun, and can be rolled back
            self.phase, self.xid = before
            raise

    def commit(self) -> None:
        """The local one; without one, nothing."""
        if self.phase is not Phase.LOCAL:
            self.check("commit")
        if self.phase is not Phase.NONE:
            if self.thread is not HERE.thread:
                self._check_thread()
            self._commit_one_phase()

    def rollback(self) -> None:
        """The local one; without one, nothing."""
        self.check("rollback")
        if self.phase in (Phase.LOCAL, Phase.LOCAL_ENDED):
            self._check_thread()
            self._roll_back()
        else:
            self.leave()

    def end(self, flags: Flag) -> None:
        """Leaves the branch, as ``tpc_end`` says."""
        current = self.check("tpc_end")
        try:
            self.manager.end(current, flags)
        except RolledBack:
            self.phase = Phase.ENDED
            raise
        if flags & Flag.SUSPEND:
            self.leave()
        else:
            self.phase = Phase.ENDED

    def commit_branch(self, *, late: bool = False) -> None:
        """As ``tpc_commit`` without an xid."""
        xid = self.xid
        if self.phase is Phase.PREPARED and xid is not None and not late:
            try:  # as ``_finish``, without the call
                self.manager.commit(xid)
            except (UnknownXid, HeuristicOutcome):
                self.leave()
                raise
            self.phase, self.xid, self.uncommitted = Phase.NONE, None, 0
            return
        current = self.check("tpc_commit")
        if self.phase is Phase.PREPARING:
            self.prepare()
        match self.phase:
            case Phase.PREPARED:
                self._finish(self._commit_late if late else self.manager.commit, current)
            case Phase.READ_ONLY:
                self.leave()
            case _:
                self._commit_one_phase()

    def _commit_late(self, xid: Xid) -> None:
        self.manager.commit(xid, Flag.LATE)

    def roll_back_branch(self) -> None:
        """As ``tpc_rollback`` without an xid."""
        current = self.check("tpc_rollback")
        match self.phase:
            case Phase.READ_ONLY:
                self.leave()
            case Phase.PREPARED | Phase.PREPARING:
                self._finish(self._undo, current)  # a prepare that was interrupted may not have left it
            case _:
                self._roll_back()

    def begin_block(self) -> None:
        self.check("transaction")
        self._begin_local()

    def explain(self, reason: str | BaseException) -> None:
        """Why what is not prepared is going to be rolled back."""
        if self.xid is not None and self.phase in UNCOMMITTED:
            self.manager.explain(self.xid, reason_of(reason) or "-")

    def give_up(self, error: BaseException) -> None:
        """A block ends with this exception: what is prepared, or may be, stays."""
        try:
            if self.phase in UNCOMMITTED:
                self.explain(error)
                self._roll_back()
        except ConnectionLost:
            self.leave()  # its session is gone, and it with it

    def conclude(self) -> None:
        """A block ends without an exception."""
        match self.phase:
            case Phase.LOCAL | Phase.LOCAL_ENDED:
                self._check_thread()
                self._commit_one_phase()
            case Phase.READ_ONLY:
                self.leave()
            case Phase.ACTIVE | Phase.ENDED:
                xid = self.xid
                self._roll_back()
                raise ProtocolError(
                    f"branch {xid} was neither prepared nor committed at the end of its block: it is rolled back. "
                    "Call tpc_prepare() and tpc_commit(), or tpc_commit() alone"
                )
            case Phase.PREPARING:
                raise ProtocolError(
                    f"the prepare of branch {self.xid} got no answer, and its block is over: it may be in doubt. Ask "
                    "outcome(xid), and finish it with tpc_commit(xid) or tpc_rollback(xid)"
                )

    def _end(self, xid: Xid) -> None:
        """Whatever it answers: a second end would be out of order. Where the verb leaves the branch, it is to come."""
        if self.phase is Phase.LOCAL:
            self.phase = Phase.LOCAL_ENDED
        elif self.phase is Phase.ACTIVE:
            self.phase = Phase.ENDED
        else:
            return
        if self._leaving is None:
            self.manager.end(xid)

    def _check_blocks(self) -> None:
        """Raises RolledBack, and all is rolled back, where a savepoint's block is open: perhaps it was to be undone,
        and that was interrupted."""
        xid = self.xid
        if xid is not None and any(one.is_block and one.xid is xid for one in self.savepoints):
            self._roll_back()
            raise RolledBack(f"transaction {xid} is rolled back: {OPEN_BLOCK}", Code.XA_RBOTHER)

    def prepare(self) -> bool:
        if self.savepoints:
            self._check_blocks()
        before, leaving = self.phase, self._leaving
        xid = self.xid if before is Phase.ACTIVE and self.xid is not None else self.check("tpc_prepare")
        try:
            if leaving is not None:
                if before is Phase.ACTIVE:
                    before = Phase.ENDED
                self.phase = Phase.PREPARING
                vote = leaving.prepare(xid, leaves=True)
            else:
                if before is Phase.ACTIVE:  # as ``_end``, without the call
                    before = self.phase = Phase.ENDED
                    self.manager.end(xid)
                self.phase = Phase.PREPARING
                vote = self.manager.prepare(xid)
        except RolledBack:
            self._discard(xid)
            raise
        except OutcomeUnknown:
            raise
        except ProtocolError:
            if before is not Phase.PREPARING or self.manager.outcome(xid) is not Outcome.IN_DOUBT:
                self.phase = before
                raise
            vote = Vote.OK  # the first call was interrupted behind its step
        except Error:
            self.phase = before  # it was answered
            raise
        self.phase = Phase.PREPARED if vote is Vote.OK else Phase.READ_ONLY
        return vote is Vote.OK

    def carry(self, carrier: str, vote: Callable[[Xid, str], CarriedChange | None]) -> CarriedChange | None:
        """As ``tpc_carry``."""
        if self.savepoints:
            self._check_blocks()
        xid = self.check("tpc_carry")
        self._end(xid)
        if self._leaving is not None and self._leaving.is_in_branch:
            self.manager.end(xid)
        try:
            found = vote(xid, carrier)
        except RolledBack:
            self._discard(xid)
            raise
        if found is not None:
            self.phase = Phase.PREPARED
        return found

    def _commit_one_phase(self) -> None:
        assert self.xid is not None
        if self.savepoints:
            self._check_blocks()
        xid, leaving = self.xid, self._leaving
        try:
            if self.phase is Phase.LOCAL and leaving is not None:  # as ``_end``, without the call
                self.phase = Phase.LOCAL_ENDED
            else:
                self._end(xid)
            if leaving is not None:
                leaving.commit(xid, Flag.ONEPHASE, leaves=True)
            else:
                self.manager.commit(xid, Flag.ONEPHASE)
        except RolledBack as lost:
            self._discard(xid)
            if self._again is None or not self._again(self, lost):
                raise
        except OutcomeUnknown as lost:
            self.phase = Phase.UNANSWERED
            if self._again is None or not self._again(self, lost):
                raise
        except UnknownXid:
            self.leave()  # a call before was interrupted behind its step
            if not xid.is_local or self.manager.outcome(xid) is not Outcome.COMMITTED:
                raise  # else it was past its commit point, and somebody has completed it
        self.phase, self.xid, self.uncommitted = Phase.NONE, None, 0

    def _roll_back(self) -> None:
        assert self.xid is not None
        xid = self.xid
        with suppress(RolledBack):
            self._end(xid)
        self._finish(self._undo, xid)

    def _undo(self, xid: Xid) -> None:
        if self._leaving is not None:
            self._leaving.rollback(xid, leaves=True)
        else:
            self.manager.rollback(xid)

    def _discard(self, xid: Xid) -> None:
        """The resource manager refused: whatever is left of the branch goes, and the transaction is over."""
        with suppress(UnknownXid, HeuristicOutcome, ConnectionLost):  # whose server does so by itself
            self.manager.rollback(xid)
        self.leave()

    def _finish(self, verb: Callable[[Xid], None], xid: Xid) -> None:
        """After these answers the branch needs nothing more from here; after others the verb can be tried again."""
        try:
            verb(xid)
        except (UnknownXid, HeuristicOutcome):
            self.leave()
            raise
        self.phase, self.xid, self.uncommitted = Phase.NONE, None, 0
