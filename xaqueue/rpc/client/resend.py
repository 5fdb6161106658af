"""A client that sends again, by itself, what was not acknowledged: for transactions that only enqueue.

    connection = xaqueue.connect("xaq://host:7000", resend=True)

What such a transaction adds is kept until its commit is answered. Where the connection is lost before that, the server
is asked what became of it. Committed: the commit returns. Rolled back: all of it is enqueued again, with the same ids,
in a transaction of its own. Where the server does not know any more, since it was started anew, it is sent again only
if each message has a dedup_key, and each queue a ``dedup_window_s`` when the connection was made and now, which is
longer than this has taken; else OutcomeUnknown is raised, as without this. A window that was away in between, and a
server's clock that was set on, nobody sees: xaqueue(7) says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from xaqueue.core.model.block import pack_properties
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ConnectionLost, Error, OutcomeUnknown, RolledBack
from xaqueue.message import EnqueueOptions, MessageId, properties_of
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.wire import TRIES
from xaqueue.xa import Flag
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.transaction import Transaction

_PLAIN = frozenset({"start", "enqueue", "end", "explain", "commit", "rollback", "outcome", "echo"})
"""Calls after which a transaction is yet one that only enqueues."""


class ResendingManager(RemoteManager, half="ask"):
    """A ``RemoteManager`` whose connection keeps what it adds."""

    _kept: list[tuple[str, bytes, EnqueueOptions]] | None = None
    """What the transaction adds; None for one that does more, or is the caller's own branch."""
    _windows: Mapping[str, float]
    """By queue for how long it knew a dedup_key, when the transaction began."""
    _began = 0.0, 0.0
    """By the clock that nobody sets, and by the one that goes on while the machine sleeps."""
    _left = 0
    _of = ""
    """The space that it goes to, and to no other one; empty before it begins."""
    _is_again = False
    _may_have_come = False
    """A time before this one may have been committed, for all that is known."""

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        if not self._is_again:
            self._of, self._may_have_come = "", False
        super().start(xid, flags, timeout_s)
        self._of = self.space_id
        self._kept, self._left = [] if xid.is_local else None, TRIES
        self._windows, self._began = self.space.get("windows", {}), (time.monotonic(), time.time())

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        kept = self._kept
        if kept is None or "message_id" in options or "dedup_key" in options:
            message_id = super().enqueue(queue, body, **options)
            if kept is not None:
                kept.append((queue, body, {"message_id": message_id, **options}))
            return message_id
        message_id = MessageId(fresh_id())
        own: EnqueueOptions = {**options, "message_id": message_id, "dedup_key": message_id}
        checked = properties_of(queue, 0, own)
        if not isinstance(body, bytes) or not self._is_known(queue):
            return super().enqueue(queue, body, **options)  # the server says what is wrong
        self._check_working()
        self._check_size(len(body))
        if checked.headers:
            own["headers"] = dict(checked.headers)  # its caller may change them before they are sent
        self._defer(self._branch, (queue, body, own), len(body) + len(pack_properties(checked)))
        kept.append((queue, body, own))
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
        """One by one: each has a key, and so a file of its own."""
        each: list[dict[str, Any]] = [{**options, **(own[at] if own else {})} for at in range(len(bodies))]
        for at, one in enumerate(ids or ()):
            each[at] |= {} if one is None else {"message_id": one}
        for body, more in zip(bodies, each, strict=True):  # what one is refused for by itself adds none
            properties_of(queue, 0, more)
            self._check_size(len(body))
        return [self.enqueue(queue, body, **more) for body, more in zip(bodies, each, strict=True)]

    def _check_epoch(self, said: dict[str, Any]) -> None:
        if self._of not in ("", said["space"]):
            raise ConnectionLost(f"another space answers there now, {said['space']}, than {self._of}: mend the address")
        super()._check_epoch(said)

    def again(self, transaction: Transaction, lost: Error) -> bool:
        """Whether a transaction whose commit was lost is committed now, by this or by the first time."""
        self._is_again = True
        try:
            return self._again(transaction, lost)
        finally:
            self._is_again = False

    def _again(self, transaction: Transaction, lost: Error) -> bool:
        kept, xid, before = self._kept, transaction.xid, (self._branch, transaction.phase, transaction.xid)
        if not kept or not self._left or not isinstance(lost, OutcomeUnknown | RolledBack):
            return False
        if isinstance(lost, RolledBack):
            if not isinstance(lost.__cause__, ConnectionLost):
                return False
        elif xid is not None:
            try:
                self.commit(xid, Flag.ONEPHASE)
            except RolledBack:
                pass  # it never came, or came too late
            except OutcomeUnknown:
                if not self._may_repeat(kept):
                    return False
                self._may_have_come = True
            else:
                return True
        if self._repeat(transaction, kept):
            return True
        if transaction.xid is not None and transaction.xid != xid:
            with suppress(Error):
                self.rollback(transaction.xid)
        self._branch, transaction.phase, transaction.xid = before  # what was known of the first time is all that is
        return False

    def _repeat(self, transaction: Transaction, kept: list[tuple[str, bytes, EnqueueOptions]]) -> bool:
        """Whether it is committed by one more time. Raises what that was refused for, where no earlier one has come."""
        left, known = self._left, (kept, self._windows, self._began)
        while left:
            left -= 1
            is_whole = False
            try:
                try:
                    transaction.begin_again()
                    for queue, body, options in kept:
                        super().enqueue(queue, body, **options)
                finally:
                    self._left, (self._kept, self._windows, self._began) = left, known
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

    def _may_repeat(self, kept: Sequence[tuple[str, bytes, EnqueueOptions]]) -> bool:
        """Whether each queue has known, since before the first time, and knows yet what has come."""
        now, (steady, wall) = self.space.get("windows", {}), self._began
        since_s = max(time.monotonic() - steady, time.time() - wall)
        keyed = all("dedup_key" in options for _, _, options in kept)
        return keyed and all(min(self._windows.get(q, 0), now.get(q, 0)) > since_s for q, _, _ in kept)

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
