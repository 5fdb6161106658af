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

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from xaqueue.errors import DuplicateXid, Error, InvalidArgument, NoReply
from xaqueue.message import (
    EnqueueOptions,
    Message,
    MessageId,
    check_queue_name,
)
from xaqueue.message_calls import MessageCalls
from xaqueue.one_call import Process, alone
from xaqueue.savepoint import Savepoint
from xaqueue.times import FOREVER_S, check_seconds
from xaqueue.transaction import Phase
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:  # brings the types of batches, which a plain connection never needs
    from xaqueue.carried import CarriedChange, Carriers, CarrierStatus, Pruned

RECOVER_PAGE = 1000
DELIVER_BYTES = 1024 * 1024
"""Of carried changes in one call, about."""
REPLY_TTL_S = 86_400.0
"""A reply that nobody takes is gone after so long, unless its sender says otherwise."""


class Connection(MessageCalls):
    """Made by ``xaqueue.connect``. Errors are those of ``xaqueue.errors``, PEP 249's classes above them.

    As a block it commits at its end, rolls back on an exception, and is closed then; see ``__exit__``.
    """

    # Requests and replies

    def request(
        self,
        queue: str,
        body: bytes | bytearray | memoryview,
        *,
        timeout_s: float | None = 30.0,
        **options: Unpack[EnqueueOptions],
    ) -> Message:
        """Enqueues a request, commits it, and waits for its reply, which is taken in a transaction of its own.

        The options are those of ``enqueue``: reply_queue is ``<queue>.replies`` without it, and has to be there. The
        reply is known by the request's correlation_id, or by its message id where it has none. Without ttl or
        expires_at a request expires with ``timeout_s``, so that nobody works for who has gone. Only outside a
        transaction. Raises NoReply where none came, ProtocolError, and as ``enqueue``, ``commit`` and ``dequeue``.
        """
        limit_s = check_seconds("timeout_s", timeout_s)
        reply_queue = options.get("reply_queue") or f"{check_queue_name(queue)}.replies"
        options["reply_queue"] = reply_queue
        if limit_s < FOREVER_S and "expires_at" not in options:
            options.setdefault("ttl", limit_s)
        with self.transaction():
            message_id = self.enqueue(queue, body, **options)
            self.dequeue(reply_queue, message_id=message_id)  # it has none of this id: a wrong queue is refused now
            until = time.monotonic() + limit_s  # from behind the enqueue, so that the request has expired by then
        wanted = options.get("correlation_id") or message_id
        with self.transaction():
            reply = self.dequeue(reply_queue, wait_s=max(0.0, until - time.monotonic()), correlation_id=wanted)
        if reply is None:
            raise NoReply(
                f"no reply to message {message_id.hex()} of queue {queue} came into queue {reply_queue} within "
                f"{limit_s:g} s: is there a worker? One that comes late stays there until it expires",
                wanted,
            )
        return reply

    def reply(
        self, message: Message, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]
    ) -> MessageId:
        """Enqueues the reply to a request, in this transaction, which most often is that which has taken the request.

        It goes to the request's reply_queue, with its correlation_id, or its message id where it has none. Without ttl
        or expires_at it expires after a day. Options, id and errors: as ``enqueue``.
        """
        to = message.properties.reply_queue
        if to is None:
            raise InvalidArgument(
                f"message {message.message_id.hex()} of queue {message.queue} has no reply_queue: it wants no reply"
            )
        options.setdefault("correlation_id", message.correlation_id or message.message_id)
        if "expires_at" not in options:
            options.setdefault("ttl", REPLY_TTL_S)
        return self.enqueue(to, body, **options)

    @alone
    def flush(self) -> None:
        """Raises now what a server may yet refuse of ``tpc_begin`` and ``enqueue``, which ride with a later call.

        Without a server there is nothing to wait for: they have raised already.
        """
        self._transaction.check_open()
        if not self.in_transaction:
            return
        try:
            self._manager.flush()
        except DuplicateXid:
            self._transaction.leave()  # it never began
            raise

    # One phase

    @alone
    def commit(self) -> None:
        """Commits the local transaction; without one, nothing. Raises RolledBack where it was rolled back instead.

        Called again after OutcomeUnknown it asks what became of that commit.
        """
        self._transaction.commit()

    @alone
    def rollback(self) -> None:
        """Rolls the local transaction back; without one, nothing."""
        self._transaction.rollback()

    @alone
    def explain_rollback(self, reason: str | BaseException) -> None:
        """Says why the transaction is going to be rolled back; without one, nothing. A block says so by itself.

        A message that it has dequeued has this in its ``origin``, as its ``detail``, once it is a dead letter.
        """
        self._transaction.explain(reason)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A block that is one local transaction: commits at its end, and rolls back on an exception.

        The connection stays open. Only outside a transaction. Raises what ``commit`` raises.
        """
        self._within(self._transaction.begin_block)
        try:
            yield self
        except BaseException as error:
            with suppress(Error):  # the block's own says what went wrong
                self._within(partial(self._transaction.give_up, error))
            raise
        self._within(self._transaction.conclude)

    @alone
    def savepoint(self) -> Savepoint:
        """A savepoint of the transaction, which begins with it where there is none: ``with connection.savepoint():``.

        An exception that leaves the block undoes what the transaction did in it, and nothing else: what it added is
        gone, what it took is back, and the transaction goes on. What belongs to no transaction stays, such as a
        delivery that was acknowledged. It can be rolled back by itself, too; see ``Savepoint``. Savepoints nest.
        Raises as ``enqueue`` does outside of a transaction.
        """
        return Savepoint(self._transaction, self._within)

    # Two phases

    xid = Xid
    """``xid(format_id, gtrid, bqual)``: a transaction id; str parts are taken as UTF-8. Raises InvalidArgument."""

    def tpc_begin(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Starts a branch, or enters one with JOIN or RESUME. Only outside a transaction.

        timeout_s: a branch that is not prepared by then is rolled back, and its next call is told so.
        """
        if self._entered.locked():
            raise self._refused()
        with self._entered:
            if self._transaction.phase is not Phase.NONE:
                self._transaction.check("tpc_begin")
            if timeout_s is not None:
                limit_s = check_seconds("timeout_s", timeout_s)
                timeout_s = limit_s if limit_s < FOREVER_S else None
            if type(xid) is not Xid:
                xid = _as_xid(xid)
            self._transaction.begin(xid, flags, timeout_s)

    @alone
    def tpc_end(self, xid: Xid | None = None, flags: Flag = Flag.SUCCESS) -> None:
        """Leaves the branch: SUCCESS to prepare it, SUSPEND to resume it here or (MIGRATE) elsewhere, FAIL to doom it.

        After SUSPEND the connection is outside a transaction. ``xid`` names a branch suspended before.
        """
        self._transaction.check_open()
        if xid is not None and _as_xid(xid) != self._transaction.xid:
            self._manager.end(_as_xid(xid), flags)
            return
        self._transaction.end(flags)

    def tpc_prepare(self) -> bool:
        """First phase. True: prepared, and only tpc_commit or tpc_rollback may follow. False: no work, and over.

        Called again after OutcomeUnknown it asks what became of the first call, and answers that.
        """
        if self._entered.locked():
            raise self._refused()
        with self._entered:
            return self._transaction.prepare()

    @property
    def is_embedded(self) -> bool:
        """Whether this process has the space open; else a server has it."""
        return hasattr(self._manager, "carry")

    @property
    def space_id(self) -> str:
        """Of the space that it is with."""
        return self._manager.space_id

    @property
    def can_carry(self) -> bool:
        """Whether a database may carry changes of this space: this process has it open."""
        return getattr(self._manager, "can_carry", False) is True

    @alone
    def tpc_carry(self, carrier: str) -> CarriedChange | None:
        """In the place of tpc_prepare: votes in memory, for who commits what it returns in a database, as a row.

        None where it has to be prepared: it is large, or the space cannot have it carried just now. From here on only
        tpc_commit and tpc_rollback end the branch. After a crash the space waits for what that database has: see
        ``deliver``. carrier: ``<node>.<participant>``.
        """
        vote = getattr(self._manager, "carry", None)
        if vote is None:
            raise InvalidArgument("the space is not open in this process: tpc_prepare its branches")
        return self._transaction.carry(carrier, vote)

    @alone
    def carriers(self) -> Carriers:
        """Who has the space open, and which databases carry its changes, or did."""
        self._transaction.check_open()
        return self._manager.carriers()

    @alone
    def deliver(self, carrier: str, secret: str, changes: Sequence[bytes], pruned: Pruned) -> bool:
        """Hands over what a database has carried in earlier lives of the space; see the verb of this name."""
        self._transaction.check_open()
        size, page = 0, list[bytes]()
        for change in changes:
            page.append(change)
            size += len(change)
            if size > DELIVER_BYTES:
                self._manager.deliver(carrier, secret, page, *pruned, True)
                size, page = 0, []
        return self._manager.deliver(carrier, secret, page, *pruned)

    @alone
    def release_carrier(self, carrier: str) -> CarrierStatus | None:
        """Its queues wait no more, by an operator's decision; None where it carries now, or was released before."""
        self._transaction.check_open()
        return self._manager.release_carrier(carrier)

    def tpc_commit(self, xid: Xid | None = None, *, late: bool = False) -> None:
        """Second phase; without tpc_prepare before it, a commit in one phase.

        With ``xid``, outside a transaction: commits a branch that recovery listed. late: for who can find out again,
        after a crash, that this prepared branch was to be committed: it is visible to the sessions of this space's
        owner at once, and on disk with whatever comes next, within 100 ms, or behind ``harden``; until then a crash
        leaves it prepared. At level JOURNAL; the others do not wait. Raises UnknownXid where it is finished,
        HeuristicOutcome where an operator decided, RetryLater where it stays in doubt.
        """
        if self._entered.locked():
            raise self._refused()
        with self._entered:
            if xid is not None:
                self._transaction.check("the call with an xid")
                self._manager.commit(_as_xid(xid), Flag.LATE if late else Flag.NOFLAGS)
                return
            self._transaction.commit_branch(late=late)

    @alone
    def harden(self) -> None:
        """Returns once all is on disk that was committed with ``late``. Raises RetryLater where there is no room."""
        self._transaction.check_open()
        self._manager.harden()

    @alone
    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Rolls the branch back, prepared or not; with ``xid``, outside a transaction, one that recovery listed."""
        if xid is not None:
            self._transaction.check("the call with an xid")
            self._manager.rollback(_as_xid(xid))
            return
        self._transaction.roll_back_branch()

    @alone
    def tpc_recover(self) -> list[Xid]:
        """The xids in doubt, and those that an operator finished and nobody forgot yet."""
        self._transaction.check_open()
        page = self._manager.recover(RECOVER_PAGE, Flag.STARTRSCAN)
        found = list(page)
        while len(page) == RECOVER_PAGE:
            page = self._manager.recover(RECOVER_PAGE)
            found += page
        self._manager.recover(0, Flag.ENDRSCAN)
        return found

    @alone
    def tpc_forget(self, xid: Xid) -> None:
        """Ends the memory of an operator's decision. Raises UnknownXid where there is none."""
        self._transaction.check_open()
        self._manager.forget(_as_xid(xid))

    @alone
    def outcome(self, xid: Xid) -> Outcome:
        """What became of a branch, as far as it is remembered (the last 10,000, for an hour).

        A step that is on its way is waited for. Raises ResourceFailed where the space is fenced meanwhile.
        """
        self._transaction.check_open()
        return self._manager.outcome(_as_xid(xid))

    # The connection

    @property
    def in_transaction(self) -> bool:
        """Whether one is open: local work, or since ``tpc_begin``."""
        return self._transaction.phase not in (Phase.NONE, Phase.UNANSWERED, Phase.CLOSED)

    def close(self) -> None:
        """Rolls back what is not prepared and ends the session. A second call does nothing.

        Where that loses work a log event and a ResourceWarning say so, unless an exception is on its way already.
        """
        if self._end_session() and sys.exc_info()[0] is None:
            self._warn("closed with work undone")

    def __enter__(self) -> Self:
        self._transaction.check_open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commits the local transaction, or rolls it back on an exception; then closes.

        A two-phase transaction that is prepared stays in doubt. One that is not is rolled back, and without an
        exception ProtocolError says so. Raises what ``commit`` raises.
        """
        done = False
        try:
            if kind is None:
                self._within(self._transaction.conclude)
            done = kind is None
        finally:
            if done:
                self._end_session()
            else:
                with suppress(Error):  # what went wrong is said already
                    if error is not None:
                        self.explain_rollback(error)
                with suppress(Error):
                    self._end_session()

    def __del__(self) -> None:
        transaction = getattr(self, "_transaction", None)
        if transaction is None or transaction.phase is Phase.CLOSED:
            return
        uncommitted = transaction.is_uncommitted and self._pid == Process.pid
        if self._manager.drop() and uncommitted:
            self._warn("never closed, with work undone")

    def __repr__(self) -> str:
        return f"<xaqueue.Connection {self._transaction.phase.value}>"

    # Within

    def _warn(self, how: str) -> None:
        what = f"{self._transaction.uncommitted} enqueues and dequeues of its transaction are rolled back"
        reason = f"the connection was {how}: {what}. Commit it, or use a with block"
        log = self._logger
        log.warning("[work-undone] %s", reason)  # Python shows nobody a ResourceWarning, unless asked to
        warnings.warn(reason, ResourceWarning, stacklevel=3, source=self)

    def _end_session(self) -> bool:
        """Returns whether work was undone by it. In a forked child there is nothing to be ended."""
        if self._transaction.phase is Phase.CLOSED:
            return False
        if self._pid != Process.pid:
            self._transaction.phase = Phase.CLOSED
            self._manager.drop()
            return False
        return self._within(self._close)

    def _close(self) -> bool:
        transaction = self._transaction
        uncommitted, ended = transaction.is_uncommitted, transaction.phase in (Phase.ENDED, Phase.PREPARING)
        left = transaction.xid if ended else None
        transaction.phase = Phase.CLOSED
        self._manager.close(left)
        return uncommitted


def _as_xid(value: Xid | Sequence[Any]) -> Xid:
    """An Xid, or any other sequence of three, as PEP 249 lets callers pass them."""
    if isinstance(value, Xid):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray) or len(value) != 3:
        raise InvalidArgument(f"{value!r} is no xid: make one with connection.xid(format_id, gtrid, bqual)")
    return Xid(*value)
