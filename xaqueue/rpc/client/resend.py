"""A client that sends again, by itself, what was not acknowledged: for transactions that only enqueue.

    connection = xaqueue.connect("xaq://host:7000", resend=True)

What such a transaction adds is kept until its commit is answered. Where the connection is lost before that, the server
is asked what became of it. Committed: the commit returns. Rolled back: all of it is enqueued again, with the same ids,
in a transaction of its own.

A server that was started anew may not know any more. Then the queue TOKENS tells, where the space has one: in it lies
a message of the connection's, its token, which each transaction takes, and leaves another one there, whose id is
chosen before it is sent. Both are part of it, so whatever has happened since:

    the first token is there      it is not committed, as that is taken by no other one: it is sent again, and takes it
    the second token is there     it is committed
    neither                       they were removed, or are too old: OutcomeUnknown, as without the queue

No clock and nobody's memory counts. That the first token was there to be taken is looked at only when it is sent
again: the first time it may have been too old already, and is gone behind the commit all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ConnectionLost, Error, OutcomeUnknown, RolledBack
from xaqueue.message import EnqueueOptions, MessageId
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.wire import TRIES
from xaqueue.xa import Flag
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.transaction import Transaction

TOKENS = "xaqueue.resend"
"""The queue, where somebody has defined it: its ``max_age_s`` is how long a token lasts."""
RENEW_S = 3600.0
"""So old a token is replaced before another transaction begins."""
GOODBYE_S = 1.0
"""For so long at most the last token is taken away; else ``max_age_s`` ends it."""
_PLAIN = frozenset({"start", "enqueue", "enqueue_many", "end", "explain", "commit", "rollback", "outcome", "echo"})
"""Calls after which a transaction is yet one that only enqueues."""


class ResendingManager(RemoteManager, half="ask"):
    """A ``RemoteManager`` whose connection keeps what it adds."""

    _kept: list[Callable[[], object]] | None = None
    """What adds again what the transaction adds; None for one that does more, or is the caller's own branch."""
    _token: bytes | None = None
    """What the transaction takes; None without the queue, or the right to it."""
    _next: bytes | None = None
    """What it leaves there; None before its end."""
    _renew_at = 0.0
    _left = 0
    _of = ""
    """The space that it goes to, and to no other one; empty before it begins."""
    _is_again = False
    _may_have_come = False
    """A time before this one may have been committed, for all that is known."""

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        if not self._is_again:
            self._of, self._may_have_come, self._next = "", False, None
            if xid.is_local and TOKENS in self.queues and time.monotonic() >= self._renew_at:
                self._renew()
        super().start(xid, flags, timeout_s)
        self._of = self.space_id
        self._kept = [] if xid.is_local else None

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        message_id = super().enqueue(queue, body, **options)
        if self._kept is not None:
            own = _copied({**options, "message_id": message_id})
            self._kept.append(partial(super().enqueue, queue, body, **own))
        return message_id

    def enqueue_many(
        self,
        queue: str,
        bodies: Sequence[bytes],
        ids: Sequence[MessageId | None] | None = None,
        own: Sequence[EnqueueOptions] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> list[MessageId]:
        kept, self._kept = self._kept, None  # some may have been added where this raises
        made = super().enqueue_many(queue, bodies, ids, own, **options)
        if kept is not None:
            each = None if own is None else [*map(_copied, own)]
            kept.append(partial(super().enqueue_many, queue, [*bodies], [*made], each, **_copied(options)))
            self._kept = kept
        return made

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        branch = self._branch
        if self._kept and self._token is not None and xid == branch.xid and branch.why is None:
            self._next = self._next or fresh_id()
            with suppress(ConnectionLost):  # which the branch says as well
                super()._pipeline("remove", TOKENS, self._token)  # first, which makes room for the other one
                self._leave(self._next)
        super().end(xid, flags)

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        is_own = xid == self._branch.xid
        super().commit(xid, flags)
        if is_own and self._next is not None:
            self._hold(self._next)

    def close(self, left: Xid | None = None) -> None:
        token, self._token = self._token, None
        if token is not None and not self._closed and self._branch.xid is None and self._is_live():
            assert self._socket is not None
            self._socket.hurry(GOODBYE_S)
            self._closed = True  # where it is lost now, it connects to no other one for that
            try:
                with suppress(Error):
                    self._exchange(token, None)
            finally:
                self._closed = False
        super().close(left)

    def _check_space(self, said: dict[str, Any], only: str = "") -> None:
        super()._check_space(said, only or self._of)

    def again(self, transaction: Transaction, lost: Error) -> bool:
        """Whether a transaction whose commit was lost is committed now, by this or by the first time."""
        is_within, self._is_again = self._is_again, True
        if not is_within:
            self._left = TRIES
        try:
            return self._again(transaction, lost)
        finally:
            self._is_again = is_within

    def _again(self, transaction: Transaction, lost: Error) -> bool:
        kept, xid, before = self._kept, transaction.xid, (self._branch, transaction.phase, transaction.xid)
        if not kept or not self._left or not isinstance(lost, OutcomeUnknown | RolledBack):
            return False
        if isinstance(lost, RolledBack):
            if not self._may_go_again(lost):
                return False
        elif xid is not None:
            try:
                self.commit(xid, Flag.ONEPHASE)
            except RolledBack:
                pass  # it never came, or came too late
            except OutcomeUnknown:
                if self._next is None:
                    return False
                self._may_have_come = True
            else:
                return True
        is_committed = self._repeat(transaction, kept)
        if transaction.xid is not None and transaction.xid != xid:
            self._undo(transaction.xid)
        if not is_committed:
            self._branch, transaction.phase, transaction.xid = before  # what was known of the first time is all that is
        elif self._next is not None:
            self._hold(self._next)
        return is_committed

    def _may_go_again(self, lost: RolledBack) -> bool:
        """Where the connection was lost. Or its token was refused, whose queue has gone, or the right: without one."""
        if isinstance(lost.__cause__, ConnectionLost):
            return True
        if self._next is None or self._may_have_come or TOKENS not in str(lost):
            return False
        self._hold(None)
        return True

    def _undo(self, xid: Xid) -> None:
        with suppress(Error):
            super().end(xid)
        with suppress(Error):
            self.rollback(xid)

    def _repeat(self, transaction: Transaction, kept: list[Callable[[], object]]) -> bool:
        """Whether it is committed, by one more time, or was. Raises what that was refused for, where none has come."""
        left = self._left
        while left:
            left -= 1
            is_whole = False
            try:
                try:
                    transaction.begin_again()
                    if self._may_have_come and not self._takes(self._token):
                        return self._takes(self._next)
                    for add in kept:
                        add()
                finally:
                    self._left, self._kept = left, kept
                is_whole = True
                transaction.commit()
            except ConnectionLost:
                if is_whole:
                    raise
            except Error:
                if not self._may_have_come:
                    raise
                return False  # it may be refused since the first time has come
            else:
                return True
        return False

    # Tokens

    def _renew(self) -> None:
        token = fresh_id()
        try:
            self._exchange(self._token or token, token)
        except ConnectionLost:
            self._token = None
        except Error:
            self._hold(None)
        else:
            self._hold(token)

    def _exchange(self, old: bytes, new: bytes | None) -> None:
        """In a transaction of its own."""
        xid = Xid.local(fresh_id())
        try:
            super().start(xid)
            self._takes(old)
            if new is not None:
                self._leave(new)
            super().end(xid)
            super().commit(xid, Flag.ONEPHASE)
        except BaseException:  # or interrupted
            self._undo(xid)
            raise

    def _leave(self, token: bytes) -> None:
        self._defer(self._branch, (TOKENS, b"", token), 0)

    def _takes(self, token: bytes | None) -> bool:
        return bool(super()._ask("remove", TOKENS, token))

    def _hold(self, token: bytes | None) -> None:
        """It is in the queue; None: no other one is tried to be left there for a while."""
        self._token, self._next, self._renew_at = token, None, time.monotonic() + RENEW_S

    # What is asked

    def _ask(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        self._see(method)
        return super()._ask(method, *params, waits_s=waits_s)

    def _pipeline(self, method: str, *params: Any) -> None:
        self._see(method)
        super()._pipeline(method, *params)

    def _work(self, branch: Any, *last: Any) -> Any:
        if not branch.ends:
            self._see("dequeue")
        return super()._work(branch, *last)

    def _see(self, method: str) -> None:
        if method not in _PLAIN:
            self._kept = None


def _copied(options: EnqueueOptions) -> EnqueueOptions:
    """Its caller may change them before they are sent again."""
    headers = options.get("headers")
    return cast(EnqueueOptions, {**options, "headers": dict(headers)}) if headers else options
