"""A connection is one session with a queue space, with PEP 249's two-phase methods to the letter.

Work outside ``tpc_begin`` belongs to a local transaction that starts by itself and ends with ``commit`` or
``rollback``, in one phase. ``tpc_begin`` starts a branch under the caller's xid; ``tpc_prepare`` makes it durable and
in doubt; ``tpc_commit`` and ``tpc_rollback`` finish it, or, with an xid and outside a transaction, one that recovery
listed. Beyond PEP 249 the names follow python-oracledb. Closing rolls back what is not prepared. Not for use by
several threads at once; open one connection for each.

It is written over the ResourceManager protocol: it neither knows nor cares where the space is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Any, Self, Unpack

from xaqueue.errors import (
    ConnectionLost,
    DuplicateXid,
    HeuristicOutcome,
    InterfaceError,
    InvalidArgument,
    OutcomeUnknown,
    ProtocolError,
    ResourceFailed,
    RolledBack,
    UnknownXid,
)
from xaqueue.message import EnqueueOptions, Message, MessageId
from xaqueue.xa import Flag, Outcome, ResourceManager, Vote
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

RECOVER_PAGE = 1000


class _Phase(Enum):
    NONE = "outside a transaction"
    LOCAL = "in a local transaction"
    ACTIVE = "in a two-phase transaction"
    ENDED = "in a two-phase transaction that was ended"
    PREPARED = "in a prepared transaction"
    READ_ONLY = "in a transaction that voted read-only"


class Connection:
    """Made by ``xaqueue.connect``. Errors are those of ``xaqueue.errors``, PEP 249's classes above them."""

    def __init__(self, manager: ResourceManager, make_id: Callable[[], bytes]) -> None:
        """``make_id``: 16 unique bytes for the xid of a local transaction."""
        self._manager = manager
        self._make_id = make_id
        self._phase = _Phase.NONE
        self._xid: Xid | None = None
        self._ended = False
        """The session has left its branch, which is not finished yet."""
        self._closed = False

    # Messages

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        """Adds a message, visible once the transaction commits. Returns its id, 16 bytes.

        Options: see ``xaqueue.message.EnqueueOptions``. Raises UnknownQueue, MessageTooLarge, InvalidArgument (and
        nothing has changed), DiskLow (nothing has changed either; there may be room later), any other DiskFull (the
        transaction can only be rolled back).
        """
        self._working()
        return self._manager.enqueue(queue, body, **options)

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        """The next message of the queue, or the one of this id, or the first of this correlation id.

        It is locked for this transaction: gone when it commits, back in its place when it is rolled back. None where
        there is none within ``wait_s`` seconds. Messages that other transactions hold are passed over.
        """
        self._working()
        return self._manager.dequeue(queue, wait_s=wait_s, message_id=message_id, correlation_id=correlation_id)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        """Committed messages in the order of the queue, at most ``limit``; also those that are locked or not yet due.

        Locks nothing and takes part in no transaction.
        """
        self._check_open()
        return self._manager.browse(queue, limit)

    def flush(self) -> None:
        """Raises now what a server may yet refuse of ``tpc_begin`` and ``enqueue``, which ride with a later call.

        Without a server there is nothing to wait for: they have raised already.
        """
        self._check_open()
        if self._phase is _Phase.NONE:
            return
        try:
            self._manager.flush()
        except DuplicateXid:
            self._leave()  # it never began
            raise

    # One phase

    def commit(self) -> None:
        """Commits the local transaction; without one, nothing. Raises RolledBack where it was rolled back instead."""
        self._outside_two_phase("commit")
        if self._phase is _Phase.LOCAL:
            self._commit_one_phase()

    def rollback(self) -> None:
        """Rolls the local transaction back; without one, nothing."""
        self._outside_two_phase("rollback")
        if self._phase is _Phase.LOCAL:
            self._roll_back()

    # Two phases

    @staticmethod
    def xid(format_id: int, gtrid: bytes | str, bqual: bytes | str) -> Xid:
        """A transaction id; str parts are taken as UTF-8. Raises InvalidArgument."""
        return Xid(format_id, gtrid, bqual)  # type: ignore[arg-type]

    def tpc_begin(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Starts a branch, or enters one with JOIN or RESUME. Only outside a transaction.

        timeout_s: a branch that is not prepared by then is rolled back (noticed at its next call).
        """
        self._check_open()
        if self._phase is not _Phase.NONE:
            raise ProtocolError(f"tpc_begin {self._phase.value}: commit it or roll it back first")
        self._manager.start(_as_xid(xid), flags, timeout_s)
        self._phase, self._xid = _Phase.ACTIVE, _as_xid(xid)

    def tpc_end(self, xid: Xid | None = None, flags: Flag = Flag.SUCCESS) -> None:
        """Leaves the branch: SUCCESS to prepare it, SUSPEND to resume it here or (MIGRATE) elsewhere, FAIL to doom it.

        After SUSPEND the connection is outside a transaction. ``xid`` names a branch suspended before.
        """
        self._check_open()
        if xid is not None and _as_xid(xid) != self._xid:
            self._manager.end(_as_xid(xid), flags)
            return
        current = self._current("tpc_end", _Phase.ACTIVE)
        try:
            self._manager.end(current, flags)
        except RolledBack:
            self._phase, self._ended = _Phase.ENDED, True
            raise
        if flags & Flag.SUSPEND:
            self._leave()
        else:
            self._phase, self._ended = _Phase.ENDED, True

    def tpc_prepare(self) -> bool:
        """First phase. True: prepared, and only tpc_commit or tpc_rollback may follow. False: no work, and over."""
        xid = self._current("tpc_prepare", _Phase.ACTIVE, _Phase.ENDED)
        try:
            self._end(xid)
            vote = self._manager.prepare(xid)
        except RolledBack:
            self._discard(xid)
            raise
        self._phase = _Phase.PREPARED if vote is Vote.OK else _Phase.READ_ONLY
        return vote is Vote.OK

    def tpc_commit(self, xid: Xid | None = None) -> None:
        """Second phase; without tpc_prepare before it, a commit in one phase.

        With ``xid``, outside a transaction: commits a branch that recovery listed. Raises UnknownXid where it is
        finished, HeuristicOutcome where an operator decided, RetryLater where it stays in doubt.
        """
        if xid is not None:
            self._outside("tpc_commit")
            self._manager.commit(_as_xid(xid))
            return
        current = self._current("tpc_commit", *_TWO_PHASE)
        if self._phase is _Phase.READ_ONLY:
            self._leave()
        elif self._phase is _Phase.PREPARED:
            self._finish(self._manager.commit, current)
        else:
            self._commit_one_phase()

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Rolls the branch back, prepared or not; with ``xid``, outside a transaction, one that recovery listed."""
        if xid is not None:
            self._outside("tpc_rollback")
            self._manager.rollback(_as_xid(xid))
            return
        current = self._current("tpc_rollback", *_TWO_PHASE)
        if self._phase is _Phase.READ_ONLY:
            self._leave()
        elif self._phase is _Phase.PREPARED:
            self._finish(self._manager.rollback, current)
        else:
            self._roll_back()

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

    def tpc_forget(self, xid: Xid) -> None:
        """Ends the memory of an operator's decision. Raises UnknownXid where there is none."""
        self._check_open()
        self._manager.forget(_as_xid(xid))

    def outcome(self, xid: Xid) -> Outcome:
        """What became of a branch, as far as it is remembered (the last 10,000, for an hour)."""
        self._check_open()
        return self._manager.outcome(_as_xid(xid))

    # The connection

    @property
    def in_transaction(self) -> bool:
        """Whether one is open: local work, or since ``tpc_begin``."""
        return self._phase is not _Phase.NONE

    def close(self) -> None:
        """Rolls back what is not prepared and ends the session. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            xid = self._xid if self._ended and self._phase in _UNPREPARED else None
            if xid is not None and self._manager.outcome(xid) is not Outcome.IN_DOUBT:
                with suppress(UnknownXid, ProtocolError, ResourceFailed):  # finished, past its commit point, fenced
                    self._manager.rollback(xid)
        except ConnectionLost:
            pass  # the server rolls it back
        finally:
            self._manager.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Within

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed")

    def _working(self) -> None:
        self._check_open()
        if self._phase is _Phase.NONE:
            xid = Xid(LOCAL_FORMAT_ID, self._make_id(), b"")
            self._manager.start(xid)
            self._phase, self._xid = _Phase.LOCAL, xid
        elif self._phase not in (_Phase.LOCAL, _Phase.ACTIVE):
            raise ProtocolError(f"no more work {self._phase.value}: finish it first")

    def _outside_two_phase(self, method: str) -> None:
        self._check_open()
        if self._phase not in (_Phase.NONE, _Phase.LOCAL):
            raise ProtocolError(f"{method} {self._phase.value}: use tpc_{method}")

    def _outside(self, method: str) -> None:
        self._check_open()
        if self._phase is not _Phase.NONE:
            raise ProtocolError(f"{method} of a given xid {self._phase.value}: finish that first")

    def _current(self, method: str, *phases: _Phase) -> Xid:
        self._check_open()
        if self._phase not in phases or self._xid is None:
            raise ProtocolError(f"{method} {self._phase.value}")
        return self._xid

    def _leave(self) -> None:
        self._phase, self._xid, self._ended = _Phase.NONE, None, False

    def _end(self, xid: Xid) -> None:
        if not self._ended:
            self._ended = True  # whatever it answers: a second end would be out of order
            self._manager.end(xid)

    def _commit_one_phase(self) -> None:
        xid = self._current("commit", _Phase.LOCAL, _Phase.ACTIVE, _Phase.ENDED)
        try:
            self._end(xid)
            self._manager.commit(xid, Flag.ONEPHASE)
        except RolledBack:
            self._discard(xid)
            raise
        except OutcomeUnknown:  # it can only be asked for: ``outcome``
            self._leave()
            raise
        self._leave()

    def _roll_back(self) -> None:
        xid = self._current("rollback", _Phase.LOCAL, _Phase.ACTIVE, _Phase.ENDED)
        with suppress(RolledBack):
            self._end(xid)
        self._finish(self._manager.rollback, xid)

    def _discard(self, xid: Xid) -> None:
        """The resource manager refused: whatever is left of the branch goes, and the transaction is over."""
        with suppress(UnknownXid):
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


_UNPREPARED = (_Phase.LOCAL, _Phase.ACTIVE, _Phase.ENDED)
_TWO_PHASE = (_Phase.ACTIVE, _Phase.ENDED, _Phase.PREPARED, _Phase.READ_ONLY)


def _as_xid(value: Xid | Sequence[Any]) -> Xid:
    """An Xid, or any other sequence of three, as PEP 249 lets callers pass them."""
    if isinstance(value, Xid):
        return value
    if not isinstance(value, Sequence) or len(value) != 3:
        raise InvalidArgument(f"{value!r} is no xid: make one with connection.xid(format_id, gtrid, bqual)")
    return Xid(*value)
