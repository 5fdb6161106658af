"""The verbs for who has a database carry changes of a space. Only the vote belongs to a branch.

carrier: ``<node>.<participant>``; changes: as ``CarriedChange.encode`` made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xaqueue import carried
from xaqueue.access import CONSUME, EITHER, PRODUCE, RESOLVE, TRANSACT
from xaqueue.carried import CarriedChange, Carriers, CarrierStatus, Pruned, checked_carrier
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import leave
from xaqueue.core.model.block import decode_head
from xaqueue.core.model.branch import Call
from xaqueue.errors import InvalidArgument
from xaqueue.features.carry import carry as steps
from xaqueue.features.carry.carriers import carriers_of, life_of
from xaqueue.rpc.verb import verb
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller


def can_carry(self: Session) -> bool:
    """Whether changes of the space can be carried at its level."""
    return self.space.log.is_atomic


def carry(self: Session, xid: Xid, carrier: str) -> CarriedChange | None:
    """See ``Connection.tpc_carry``. Of a session in the space alone."""
    checked_carrier(carrier)
    branch = self._take(xid, Call.PREPARE)
    try:
        found = steps.vote(self.space, branch, carrier)
        if found is None:
            with self.space.lock:
                self.space.settle_locked(branch)
    except BaseException as error:
        leave(self.space, branch, error)
        raise
    self.space.log.deliver_interrupt()
    return found


@verb(EITHER)
def carriers(self: Session) -> Carriers:
    """Who has the space open, and which databases carry its changes, or did."""
    self._check_open()
    space = self.space
    with space.lock:
        space.check()
        found = carriers_of(space).by_name
        return Carriers(*life_of(space), tuple(found[name].status for name in sorted(found)))


@verb(TRANSACT)
def deliver(
    self: Session, carrier: str, secret: str, changes: Sequence[bytes], highest: int, count: int, more: bool = False
) -> bool:
    """Hands over what stands in the database of earlier lives, which can add to it no more.

    secret: of the life that has begun there. highest, count: of changes whose rows are gone. more: there are further
    changes. Whether all is applied and hardened; it is not where another carrier of the same queues has not delivered
    yet. Idempotent. Raises SpaceError where the space or the database is an old copy, RetryLater where there is no
    room, or a branch is in the way.
    """
    self._check_open()
    checked_carrier(carrier)
    if type(highest) is not int or type(count) is not int or type(more) is not bool or len(changes) > steps.DELIVERED:
        raise InvalidArgument("deliver takes a carrier, a life, its changes, the highest that is gone and how many")
    return steps.deliver(self.space, carrier, secret, changes, Pruned(highest, count), more=more)


@deliver.server
def _(caller: Caller, carrier: str, secret: Any, changes: Any, highest: Any, count: Any, more: Any = False) -> bool:
    if not isinstance(changes, list) or not all(isinstance(one, bytes) for one in changes):
        raise InvalidArgument("changes are refused: a list of what a database has carried, in bytes, is wanted")
    if not caller.identity.owner:
        for change in map(carried.decode, changes):  # as if each was done by its own call
            for head, _ in change.added:
                properties = decode_head(head).properties
                caller.check("enqueue", PRODUCE, [properties.queue])
                caller.check_failure_queue(properties.failure_queue)
            for queue, _ in change.taken:
                caller.check("dequeue", CONSUME, [queue])
    return deliver(caller.session, carrier, secret, changes, highest, count, more)


@verb(RESOLVE)
def release_carrier(self: Session, carrier: str) -> CarrierStatus | None:
    """Its queues wait no more, by an operator's decision; None where it carries now, or was released before."""
    self._check_open()
    checked_carrier(carrier)
    return steps.release(self.space, carrier)
