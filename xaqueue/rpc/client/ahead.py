"""The next message of a consumer is asked for with the commit of its last one: one round trip a message.

Two requests go out in one write: the commit, and a branch of its own that takes the next message, if there is one now.
A server does what a session asks in its order, so that is begun behind the commit and never before it. The connection
is outside of a transaction meanwhile, and nobody has seen that message. It becomes the transaction when the consumer
comes for it; whatever else is asked before, and the consumer's end, gives it back first, which counts no try. With a
lost connection it goes as any that a lost session has taken. So nobody commits a message that was not seen.

Who goes on in another way than to the next message, or finds none, is not asked ahead for a while.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import ConnectionLost, Error, ProtocolError
from xaqueue.rpc import wire
from xaqueue.rpc.client.branch import BranchProgress, RemoteBranch
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

if TYPE_CHECKING:
    from xaqueue.message import Message
    from xaqueue.rpc.client.link import Link

KEEP_S = 5.0
"""What was asked for longer ago is given back: a server rolls back what does nothing."""
AFTER_NONE, AFTER_OTHERS = 1, 15
"""So many commits go without it, behind an empty queue and where it was not wanted."""


@dataclass(slots=True)
class Ahead:
    """What was asked for."""

    xid: Xid
    queue: str
    since: float


def want(self: Link, queue: str) -> None:
    """With the commit of the branch that the link is in, where the server knows how."""
    if self.takes_work:
        self._branch.next_queue = queue


def ask_ahead(self: Link, queue: str) -> None:
    """With the next request, which is the commit."""
    if self._ahead_later:
        self._ahead_later -= 1
    elif self._socket is not None:
        self._ahead = Ahead(Xid(LOCAL_FORMAT_ID, fresh_id(), b""), queue, time.monotonic())
        self._socket.ask_behind("work", (self._ahead.xid, True, [(queue,)]))


def begin(self: Link, queue: str) -> Xid | None:
    """The branch in which its next message was asked for, to be entered by ``take``; None without one."""
    ahead = self._ahead
    if ahead is not None and (ahead.queue != queue or time.monotonic() - ahead.since > KEEP_S):
        give_back(self)
        return None
    return None if ahead is None else ahead.xid


def take(self: Link) -> tuple[bool, Message | None]:
    """Whether the link is in that branch now, and the message that it has taken, if there was one."""
    ahead, socket = self._ahead, self._socket
    assert ahead is not None
    assert socket is not None
    try:
        error, found = socket.hear()
    except ConnectionLost as lost:
        self._lose(lost)
        return False, None
    if error is not None or socket.is_stale:  # who asks again is told
        give_back(self)
        return False, None
    self._branch = RemoteBranch(ahead.xid, BranchProgress.OPEN, None, self._key)
    message = None if found is None else wire.message_of(found)
    self._ahead, self._ahead_later = None, AFTER_NONE if found is None else 0
    return True, message


def end(self: Link, queue: str) -> None:
    """Nobody wants the next message of this queue any more."""
    if self._branch.next_queue == queue:
        self._branch.next_queue = ""
    if self._ahead is not None and self._ahead.queue == queue:
        give_back(self)
        self._ahead_later = 0


def give_back(self: Link) -> None:
    """At once. Where the server cannot say that it is done, the session ends, and so does what it has taken."""
    ahead, socket, self._ahead = self._ahead, self._socket, None
    assert ahead is not None
    assert socket is not None
    self._ahead_later = AFTER_OTHERS
    try:
        socket.hear()
        self._request("return", (ahead.xid,))
    except ProtocolError:
        pass  # it never began
    except Error as lost:
        self._lose(lost)
