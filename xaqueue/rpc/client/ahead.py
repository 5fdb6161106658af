"""The next message of a consumer is asked for with the commit of its last one: one round trip a message.

Two requests go out in one write: the commit, and a branch of its own that takes the next message, if there is one now.
A server does what a session asks in its order, so that is begun behind the commit and never before it. The connection
is outside of a transaction meanwhile, and nobody has seen that message. It becomes the transaction when the consumer
comes for it; whatever else is asked before, and the consumer's end, gives it back first, which counts no try. With a
lost connection it goes as any that a lost session has taken. So nobody commits a message that was not seen.

Nobody else gets that message meanwhile. So only who came at once from his last commit is asked ahead: who commits first
and works then holds none for as long as he works. Nor is it for a while who goes on in another way, or finds none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from xaqueue.errors import ConnectionLost
from xaqueue.rpc import wire
from xaqueue.rpc.client.branch import RemoteBranch
from xaqueue.rpc.client.sockets import Refused
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.message import Message
    from xaqueue.rpc.client.link import Link

PROMPT_S = 0.05
"""Who comes later after the answer to his commit does something between. What was asked for is given back then: the
time that a transaction may take is the consumer's."""
AFTER_NONE = 1
"""So many commits go without it behind an empty queue, and behind who comes late, or for the first time."""


def want(self: Link, queue: str) -> None:
    """With the commit of the branch that it is in."""
    self._branch.next_queue = queue


def take(self: Link, queue: str, enter: Callable[[Xid], object]) -> Message | None:
    """The message that came. Where there is a branch, with one or without, it is in that now, and ``enter`` was called;
    if that is interrupted, what came is given back before anything else."""
    ahead, socket = self._ahead, self._socket
    is_late = time.monotonic() - self._committed > PROMPT_S
    if ahead is None or socket is None:
        if is_late and not self._ahead_later:
            self._ahead_later = AFTER_NONE
        return None
    if ahead.queue != queue or is_late:
        self._give_back()
        return None
    try:
        found = socket.hear()
    except Refused:  # who asks again is told
        self._give_back()
        return None
    except ConnectionLost as lost:
        self._lose(lost)
        return None
    if socket.has_said(0):
        self._give_back()
        return None
    message = None if found is None else wire.message_of(found)
    branch = RemoteBranch.of(ahead.xid)
    branch.begun_by, self._branch = self._key, branch
    enter(ahead.xid)
    self._ahead, self._ahead_later = None, AFTER_NONE if found is None else 0
    return message


def is_wanted(self: Link, queue: str) -> bool:
    """Whether the next message of this queue was asked for, or is to be with the commit."""
    return self._branch.next_queue == queue or (self._ahead is not None and self._ahead.queue == queue)


def end(self: Link, queue: str) -> None:
    """Nobody wants the next message of this queue any more."""
    if self._branch.next_queue == queue:
        self._branch.next_queue = ""
    if self._ahead is not None and self._ahead.queue == queue:
        self._give_back()
        self._ahead_later = 0
