"""Somebody moves a message, or has it come back from where it was moved to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xaqueue.access import CONSUME
from xaqueue.core.engine.session import Session
from xaqueue.features.retries import moving
from xaqueue.message import MessageId, check_queue_name, id_of
from xaqueue.rpc.verb import verb

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller


@verb(CONSUME, "work")
def move(self: Session, queue: str, message_id: bytes, to: str | None = None) -> MessageId | None:
    """In the branch, takes a message from the queue and adds it to another, or to where it was before it was moved;
    see ``Connection.move``. None where it is not there, or locked."""
    return _move(self, queue, message_id, to, lambda _: None)


def _move(
    self: Session, queue: str, message_id: bytes, to: str | None, check: Callable[[str], object]
) -> MessageId | None:
    """check: raises where this session may not add to that queue."""
    with self._work() as branch:
        return moving.move_one(self.space, branch, check_queue_name(queue), id_of(message_id), to, check)


@move.server
def _(caller: Caller, queue: str, message_id: Any, to: Any = None) -> bytes | None:
    """Whoever moves a message must be allowed to add it there."""
    return _move(caller.session, queue, message_id, None if to is None else check_queue_name(to), caller.check_adding)
