"""The methods of messages on lease, which belong to no branch of the session; only ``accept`` does.

    delivery   [lease, message]

On the client each is asked, and what may be done twice is asked again where its answer is lost: the server knows what
was settled, and after it was killed what its journal tells of. A lost connection ends no lease: its client settles over
the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xaqueue.delivery import LEASE_S, Detail
from xaqueue.errors import ConnectionLost, Error, LeaseExpired, OutcomeUnknown
from xaqueue.message import Message
from xaqueue.rpc import wire
from xaqueue.rpc.client.link import TRIES, Link
from xaqueue.rpc.methods.messages import PAGE_BYTES
from xaqueue.xa import Code

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

RECEIVE_OPTIONS = ("max_messages", "lease_s", "wait_s")

# On the server: what is more than the same call of a session


def receive(caller: Caller, queue: str, options: Any = None) -> list[tuple[bytes, Any]]:
    given = {} if options is None else wire.options_of(options, "receive", RECEIVE_OPTIONS)
    found = caller.session.receive(queue, most_bytes=PAGE_BYTES, **given)
    return [(lease, wire.message_to(message)) for lease, message in found]


LEASE_METHODS = (receive,)

# On the client


class LeaseCalls(Link):
    """The part of a RemoteManager that is about messages on lease."""

    has_received = False
    """There may be some to be given back when it is closed."""
    _unanswered: ClassVar[set[bytes]] = set()
    """Leases that may be settled, since the answer was lost or the call broken off: a delivery may be settled over any
    connection of this process."""

    def receive(
        self, queue: str, max_messages: int = 1, lease_s: float = LEASE_S, wait_s: float | None = 0.0
    ) -> list[tuple[bytes, Message]]:
        """Fewer where their bodies have a MiB together. Raises ConnectionLost where the answer is lost: what was on its
        way is back when its lease has ended."""
        limit_s = float("inf") if wait_s is None else wait_s
        options = {"max_messages": max_messages, "lease_s": lease_s, "wait_s": limit_s}
        found = self.call("receive", queue, options, waits_s=limit_s)
        self.has_received |= bool(found)
        return [(lease, wire.message_of(message)) for lease, message in found]

    def settle(self, queue: str, lease: bytes, how: str, detail: Detail = None) -> None:
        """Raises OutcomeUnknown where the answer is lost each time; or was lost, and the server that was started since
        knows the lease no more. ConnectionLost where nobody was there to be asked: nothing was done."""
        is_again, why = lease in self._unanswered, Error("the answer to an earlier call is lost")
        self._unanswered.add(lease)
        for _ in range(TRIES):
            try:
                self.call("settle", queue, lease, how, detail)
            except ConnectionLost as lost:
                is_again, why = is_again or not self.is_unreached, lost
            except Error as error:
                if is_again and isinstance(error, LeaseExpired):
                    raise OutcomeUnknown(f"{why}. {_over(queue, how)}") from error
                if not is_again and error.code != Code.XAER_RMFAIL:
                    self._unanswered.discard(lease)
                raise
            else:
                self._unanswered.discard(lease)
                return
        if not is_again:
            self._unanswered.discard(lease)
            raise why
        raise OutcomeUnknown(f"{why}. Whether the delivery is settled is unknown: settle it again") from why

    def extend(self, queue: str, lease: bytes, lease_s: float) -> None:
        self.call_with_retry("extend", queue, lease, lease_s)

    def accept(self, queue: str, lease: bytes) -> None:
        self._check_working()
        self._ask("accept", queue, lease)


def _over(queue: str, how: str) -> str:
    return (
        f"Whether the {how} of a message of queue {queue} was done is unknown, and its lease is over, so do not ask "
        f"again: what was not settled is back in {queue} and comes again, so see that its work may be done twice, or "
        "browse for it"
    )
