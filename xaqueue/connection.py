"""A connection is one session with a queue space, with PEP 249's two-phase methods to the letter.

Work outside ``tpc_begin`` belongs to a local transaction that starts by itself and ends with ``commit`` or
``rollback``, in one phase. ``tpc_begin`` starts a branch under the caller's xid; ``tpc_prepare`` makes it durable and
in doubt; ``tpc_commit`` and ``tpc_rollback`` finish it, or, with an xid and outside a transaction, one that recovery
listed. Beyond PEP 249 the names follow python-oracledb, and blocks (``with``) are psycopg's. Closing rolls back what
is not prepared.

One thread uses a connection at a time. Between transactions it may be handed on, and whoever drives a two-phase
transaction may prepare and finish it from other threads; work, ``commit`` and ``rollback`` are their own thread's. A
forked child cannot use it.

It is written over the ResourceManager protocol: it neither knows nor cares where the space is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from xaqueue.errors import (
    ConnectionLost,
    DuplicateXid,
    Error,
    HeuristicOutcome,
    InterfaceError,
    InvalidArgument,
    OutcomeUnknown,
    ProtocolError,
    ResourceFailed,
    RolledBack,
    UnknownXid,
)
from xaqueue.message import EnqueueOptions, Message, MessageId, body_of, check_queue_name, id_of, options_of
from xaqueue.phases import ALLOWED, BEGIN, UNDONE, Phase
from xaqueue.times import FOREVER_S, check_seconds
from xaqueue.xa import Flag, Outcome, Vote
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

if TYPE_CHECKING:  # brings the types of batches, which a plain connection never needs
    from xaqueue.resource_manager import ResourceManager

RECOVER_PAGE = 1000

P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Connection, P], T]:
    """The method, for one thread at a time of the process that connected. Raises InterfaceError, ResourceFailed."""

    @wraps(method)
    def alone(self: Connection, *arguments: P.args, **options: P.kwargs) -> T:
        if self._pid != os.getpid():
            raise ResourceFailed("the connection belongs to the parent of this forked process: connect again")
        if not self._entered.acquire(False):
            raise InterfaceError("the connection is in a call already, perhaps of another thread: open one for each")
        try:
            return method(self, *arguments, **options)
        finally:
            self._entered.release()

    return alone  # type: ignore[return-value]


class Connection:
    """Made by ``xaqueue.connect``. Errors are those of ``xaqueue.errors``, PEP 249's classes above them.

    As a block it commits at its end, rolls back on an exception, and is closed then; see ``__exit__``.
    """

    def __init__(self, manager: ResourceManager, make_id: Callable[[], bytes]) -> None:
        """``make_id``: 16 unique bytes for the xid of a local transaction."""
        self._manager = manager
        self._make_id = make_id
        self._phase = Phase.NONE
        self._xid: Xid | None = None
        self._undone = 0
        """Messages that the transaction has added or taken."""
        self._pid = os.getpid()
        self._entered = threading.Lock()
        """Held by who is in a call."""
        self._thread: threading.Thread | None = None
        """Whose work the transaction is."""

    # Messages

    @_alone
    def enqueue(self, queue: str, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds a message, visible once the transaction commits. Returns its id, 16 bytes.

        body: bytes, or what has them: a bytearray, a memoryview. Options: see ``xaqueue.message.EnqueueOptions``.
        Raises UnknownQueue, MessageTooLarge, InvalidArgument (and nothing has changed), DiskLow (nothing has changed
        either; there may be room later), any other DiskFull (the transaction can only be rolled back).
        """
        if type(body) is not bytes:
            body = body_of(body)
        plain = options_of(options, time.time_ns() // 1000) if options else options
        if type(queue) is not str:
            check_queue_name(queue)
        self._work()
        message_id = self._manager.enqueue(queue, body, **plain)
        self._undone += 1
        return message_id

    @_alone
    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | str | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        """The next message of the queue, or the one of this id, or the first of this correlation id.

        It is locked for this transaction: gone when it commits, back in its place when it is rolled back. None where
        there is none within ``wait_s`` seconds; where that is None or infinite, it is waited for until there is one.
        Messages that other transactions hold are passed over. message_id: 16 bytes or 32 hex digits.
        Raises UnknownQueue, QueueReserved, InvalidArgument.
        """
        if type(queue) is not str:
            check_queue_name(queue)
        if message_id is not None:
            message_id = id_of(message_id)
        if wait_s.__class__ is not float or not 0.0 <= wait_s < FOREVER_S:
            wait_s = check_seconds("wait_s", wait_s)
        self._work()
        found = self._manager.dequeue(queue, wait_s=wait_s, message_id=message_id, correlation_id=correlation_id)
        if found is not None:
            self._undone += 1
        return found

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        """Committed messages in the order of the queue, at most ``limit``; also those that are locked or not yet due.

        Locks nothing and takes part in no transaction.
        """
        found = self._browse(queue, limit)
        return iter(lambda: self._next(found), None)

    @_alone
    def flush(self) -> None:
        """Raises now what a server may yet refuse of ``tpc_begin`` and ``enqueue``, which ride with a later call.

        Without a server there is nothing to wait for: they have raised already.
        """
        self._check_open()
        if not self.in_transaction:
            return
        try:
            self._manager.flush()
        except DuplicateXid:
            self._leave()  # it never began
            raise

    # One phase

    @_alone
    def commit(self) -> None:
        """Commits the local transaction; without one, nothing. Raises RolledBack where it was rolled back instead.

        Called again after OutcomeUnknown it asks what became of that commit.
        """
        self._check("commit")
        if self._phase is not Phase.NONE:
            self._check_thread()
            self._commit_one_phase()

    @_alone
    def rollback(self) -> None:
        """Rolls the local transaction back; without one, nothing."""
        self._check("rollback")
        if self._phase in (Phase.LOCAL, Phase.LOCAL_ENDED):
            self._check_thread()
            self._roll_back()
        else:
            self._leave()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A block that is one local transaction: commits at its end, and rolls back on an exception.

        The connection stays open. Only outside a transaction. Raises what ``commit`` raises.
        """
        self._begin_block()
        try:
            yield self
        except BaseException:
            with suppress(Error):  # the block's own says what went wrong
                self._give_up()
            raise
        self._conclude()

    # Two phases

    @staticmethod
    def xid(format_id: int, gtrid: bytes | str, bqual: bytes | str) -> Xid:
        """A transaction id; str parts are taken as UTF-8. Raises InvalidArgument."""
        return Xid(format_id, gtrid, bqual)  # type: ignore[arg-type]

    @_alone
    def tpc_begin(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Starts a branch, or enters one with JOIN or RESUME. Only outside a transaction.

        timeout_s: a branch that is not prepared by then is rolled back (noticed at its next call).
        """
        if self._phase is not Phase.NONE:
            self._check("tpc_begin")
        if timeout_s is not None:
            limit_s = check_seconds("timeout_s", timeout_s)
            timeout_s = limit_s if limit_s < FOREVER_S else None
        if type(xid) is not Xid:
            xid = _as_xid(xid)
        self._manager.start(xid, flags, timeout_s)
        self._enter(Phase.ACTIVE, xid)

    @_alone
    def tpc_end(self, xid: Xid | None = None, flags: Flag = Flag.SUCCESS) -> None:
        """Leaves the branch: SUCCESS to prepare it, SUSPEND to resume it here or (MIGRATE) elsewhere, FAIL to doom it.

        After SUSPEND the connection is outside a transaction. ``xid`` names a branch suspended before.
        """
        self._check_open()
        if xid is not None and _as_xid(xid) != self._xid:
            self._manager.end(_as_xid(xid), flags)
            return
        current = self._check("tpc_end")
        try:
            self._manager.end(current, flags)
        except RolledBack:
            self._phase = Phase.ENDED
            raise
        if flags & Flag.SUSPEND:
            self._leave()
        else:
            self._phase = Phase.ENDED

    @_alone
    def tpc_prepare(self) -> bool:
        """First phase. True: prepared, and only tpc_commit or tpc_rollback may follow. False: no work, and over.

        Called again after OutcomeUnknown it asks what became of the first call, and answers that.
        """
        return self._prepare()

    @_alone
    def tpc_commit(self, xid: Xid | None = None) -> None:
        """Second phase; without tpc_prepare before it, a commit in one phase.

        With ``xid``, outside a transaction: commits a branch that recovery listed. Raises UnknownXid where it is
        finished, HeuristicOutcome where an operator decided, RetryLater where it stays in doubt.
        """
        if xid is not None:
            self._check("the call with an xid")
            self._manager.commit(_as_xid(xid))
            return
        if self._phase is Phase.PREPARED and self._xid is not None:
            self._finish(self._manager.commit, self._xid)
            return
        current = self._check("tpc_commit")
        if self._phase is Phase.PREPARING:
            self._prepare()
        match self._phase:
            case Phase.PREPARED:
                self._finish(self._manager.commit, current)
            case Phase.READ_ONLY:
                self._leave()
            case _:
                self._commit_one_phase()

    @_alone
    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Rolls the branch back, prepared or not; with ``xid``, outside a transaction, one that recovery listed."""
        if xid is not None:
            self._check("the call with an xid")
            self._manager.rollback(_as_xid(xid))
            return
        current = self._check("tpc_rollback")
        match self._phase:
            case Phase.READ_ONLY:
                self._leave()
            case Phase.PREPARED | Phase.PREPARING:
                self._finish(self._manager.rollback, current)
            case _:
                self._roll_back()

    @_alone
    def tpc_recover(self) -> list[Xid]:
        """The xids in doubt, and those that an operator finished and nobody forgot yet."""
        self._check_open()
        page = self._manager.recover(RECOVER_PAGE, Flag.STARTRSCAN)
        found = list(page)
        while len(page) == RECOVER_PAGE:
            page = self._manager.recover(RECOVER_PAGE)
            found += page
        self._manager.recover(0, Flag.ENDRSCAN)
        return found

    @_alone
    def tpc_forget(self, xid: Xid) -> None:
        """Ends the memory of an operator's decision. Raises UnknownXid where there is none."""
        self._check_open()
        self._manager.forget(_as_xid(xid))

    @_alone
    def outcome(self, xid: Xid) -> Outcome:
        """What became of a branch, as far as it is remembered (the last 10,000, for an hour).

        A step that is on its way is waited for. Raises ResourceFailed where the space is fenced meanwhile.
        """
        self._check_open()
        return self._manager.outcome(_as_xid(xid))

    # The connection

    @property
    def in_transaction(self) -> bool:
        """Whether one is open: local work, or since ``tpc_begin``."""
        return self._phase not in (Phase.NONE, Phase.UNANSWERED, Phase.CLOSED)

    def close(self) -> None:
        """Rolls back what is not prepared and ends the session. A second call does nothing.

        Where that loses work there is a ResourceWarning, unless an exception is on its way already.
        """
        if self._end_session() and sys.exc_info()[0] is None:
            self._warn("closed with work undone")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits the local transaction, or rolls it back on an exception; then closes.

        A two-phase transaction that is prepared stays in doubt. One that is not is rolled back, and without an
        exception ProtocolError says so. Raises what ``commit`` raises.
        """
        done = False
        try:
            if kind is None:
                self._conclude()
            done = kind is None
        finally:
            if done:
                self._end_session()
            else:
                with suppress(Error):  # what went wrong is said already
                    self._end_session()

    def __del__(self) -> None:
        if getattr(self, "_phase", Phase.CLOSED) is Phase.CLOSED:
            return
        undone = self._is_undone and self._pid == os.getpid()
        if self._manager.drop() and undone:
            self._warn("never closed, with work undone")

    def __repr__(self) -> str:
        return f"<xaqueue.Connection {self._phase.value}>"

    # Within

    @property
    def _is_undone(self) -> bool:
        return self._undone > 0 and self._phase in UNDONE

    def _warn(self, how: str) -> None:
        told = f"the connection was {how}: {self._undone} enqueues and dequeues of its transaction are rolled back"
        warnings.warn(f"{told}. Commit it, or use a with block", ResourceWarning, stacklevel=3, source=self)

    def _end_session(self) -> bool:
        """Returns whether work was undone by it. In a forked child there is nothing to be ended."""
        if self._phase is Phase.CLOSED:
            return False
        if self._pid != os.getpid():
            self._phase = Phase.CLOSED
            self._manager.drop()
            return False
        return self._close()

    @_alone
    def _close(self) -> bool:
        undone, left = self._is_undone, self._xid if self._phase is Phase.ENDED else None
        self._phase = Phase.CLOSED
        self._manager.close(left)
        return undone

    @_alone
    def _browse(self, queue: str, limit: int | None) -> Iterator[Message]:
        self._check_open()
        check_queue_name(queue)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidArgument(f"limit {limit!r} is refused: a number from 0, or None, is wanted")
        return self._manager.browse(queue, limit)

    @_alone
    def _next(self, found: Iterator[Message]) -> Message | None:
        return next(found, None)

    def _check_open(self) -> None:
        if self._phase is Phase.CLOSED:
            raise InterfaceError("the connection is closed")

    def _check(self, method: str) -> Xid:
        """The transaction that is meant, where the method has its place; outside of one, any xid."""
        self._check_open()
        phases, hint = ALLOWED[method]
        if self._phase not in phases:
            what = "no more work" if method == "work" else method
            hint = hint or (BEGIN if self._phase is Phase.NONE else "")
            raise ProtocolError(f"{what} {self._phase.value}" + (f": {hint}" if hint else ""))
        return self._xid if self._xid is not None else _NO_XID

    def _check_thread(self) -> None:
        """Work is its thread's, as long as that one lives."""
        if self._thread is not threading.current_thread() and self._thread is not None and self._thread.is_alive():
            raise InterfaceError(
                "the connection is in a transaction of another thread: open one for each, or hand it on between "
                "transactions"
            )

    def _enter(self, phase: Phase, xid: Xid) -> None:
        self._phase, self._xid, self._undone = phase, xid, 0
        self._thread = threading.current_thread()  # its number may be another one's once it has ended

    def _leave(self) -> None:
        self._phase, self._xid, self._undone = Phase.NONE, None, 0

    def _work(self) -> None:
        """Where there is no transaction, a local one begins."""
        if self._phase is not Phase.LOCAL and self._phase is not Phase.ACTIVE:
            self._check("work")
            self._begin_local()
        elif self._thread is not threading.current_thread():
            self._check_thread()

    def _begin_local(self) -> None:
        xid = Xid(LOCAL_FORMAT_ID, self._make_id(), b"")
        self._manager.start(xid)
        self._enter(Phase.LOCAL, xid)

    @_alone
    def _begin_block(self) -> None:
        self._check("transaction")
        self._begin_local()

    @_alone
    def _give_up(self) -> None:
        """A block ends with an exception: what is prepared, or may be, stays."""
        try:
            if self._phase in UNDONE:
                self._roll_back()
        except ConnectionLost:
            self._leave()  # its session is gone, and it with it

    @_alone
    def _conclude(self) -> None:
        """A block ends without an exception."""
        match self._phase:
            case Phase.LOCAL | Phase.LOCAL_ENDED:
                self._check_thread()
                self._commit_one_phase()
            case Phase.READ_ONLY:
                self._leave()
            case Phase.ACTIVE | Phase.ENDED:
                xid = self._xid
                self._roll_back()
                raise ProtocolError(
                    f"branch {xid} was neither prepared nor committed at the end of its block: it is rolled back. "
                    "Call tpc_prepare() and tpc_commit(), or tpc_commit() alone"
                )
            case Phase.PREPARING:
                raise ProtocolError(
                    f"the prepare of branch {self._xid} got no answer, and its block is over: it may be in doubt. Ask "
                    "outcome(xid), and finish it with tpc_commit(xid) or tpc_rollback(xid)"
                )

    def _end(self, xid: Xid) -> None:
        """Whatever it answers: a second end would be out of order."""
        if self._phase is Phase.LOCAL:
            self._phase = Phase.LOCAL_ENDED
        elif self._phase is Phase.ACTIVE:
            self._phase = Phase.ENDED
        else:
            return
        self._manager.end(xid)

    def _prepare(self) -> bool:
        before = self._phase
        xid = self._xid if before is Phase.ACTIVE and self._xid is not None else self._check("tpc_prepare")
        try:
            self._end(xid)
            before, self._phase = self._phase, Phase.PREPARING
            vote = self._manager.prepare(xid)
        except RolledBack:
            self._discard(xid)
            raise
        except OutcomeUnknown:
            raise
        except ProtocolError:
            if before is not Phase.PREPARING or self._manager.outcome(xid) is not Outcome.IN_DOUBT:
                self._phase = before
                raise
            vote = Vote.OK  # the first call was interrupted behind its step
        except Error:
            self._phase = before  # it was answered
            raise
        self._phase = Phase.PREPARED if vote is Vote.OK else Phase.READ_ONLY
        return vote is Vote.OK

    def _commit_one_phase(self) -> None:
        assert self._xid is not None
        xid = self._xid
        try:
            self._end(xid)
            self._manager.commit(xid, Flag.ONEPHASE)
        except RolledBack:
            self._discard(xid)
            raise
        except OutcomeUnknown:
            self._phase = Phase.UNANSWERED
            raise
        except UnknownXid:
            self._leave()  # a call before was interrupted behind its step
            raise
        self._leave()

    def _roll_back(self) -> None:
        assert self._xid is not None
        xid = self._xid
        with suppress(RolledBack):
            self._end(xid)
        self._finish(self._manager.rollback, xid)

    def _discard(self, xid: Xid) -> None:
        """The resource manager refused: whatever is left of the branch goes, and the transaction is over."""
        with suppress(UnknownXid, HeuristicOutcome):
            self._manager.rollback(xid)
        self._leave()

    def _finish(self, verb: Callable[[Xid], None], xid: Xid) -> None:
        """After these answers the branch needs nothing more from here; after others the verb can be tried again."""
        try:
            verb(xid)
        except (UnknownXid, HeuristicOutcome):
            self._leave()
            raise
        self._leave()


_NO_XID = Xid(LOCAL_FORMAT_ID, b"", b"")


def _as_xid(value: Xid | Sequence[Any]) -> Xid:
    """An Xid, or any other sequence of three, as PEP 249 lets callers pass them."""
    if isinstance(value, Xid):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray) or len(value) != 3:
        raise InvalidArgument(f"{value!r} is no xid: make one with connection.xid(format_id, gtrid, bqual)")
    return Xid(*value)
