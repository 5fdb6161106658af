"""The methods for operators: what is in doubt is listed, decided by hand, and forgotten.

They do what ``xaqueue indoubt`` does on the directory. Whether a session may call them is decided before they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from xaqueue.errors import InvalidArgument, RetryLater
from xaqueue.message import check_queue_name
from xaqueue.rpc.operator_wire import decision_to, forgotten_to, in_doubt_to
from xaqueue.rpc.wire import xid_of
from xaqueue.space.engine import heuristics, operator_log
from xaqueue.space.offline.inspect import depths_in
from xaqueue.space.offline.inspect_branches import pages
from xaqueue.storage.fs import FileSystem

if TYPE_CHECKING:
    from xaqueue.rpc.methods import Peer

T = TypeVar("T")


Listed = tuple[bool, list[dict[str, Any]]]
"""Whether ``indoubt_next`` has more, and some branches."""


def indoubt_list(peer: Peer) -> Listed:
    """The first branches in doubt, committing or decided by an operator, in no order: there may be very many."""
    peer.listing = pages(peer.session.space.fs)
    return indoubt_next(peer)


def indoubt_next(peer: Peer) -> Listed:
    """The next ones of the list that this session began last."""
    listing = peer.listing
    if listing is None:
        raise InvalidArgument("no list is open: it ended, or was never begun in this session")
    page = _looked(peer, lambda _: next(listing, None))
    if page is None:
        peer.listing = None
    return page is not None, [in_doubt_to(branch) for branch in page or ()]


def indoubt_decide(peer: Peer, xid: Any, commit: Any, by: Any, reason: Any = "") -> dict[str, Any]:
    """Records an operator's decision and carries it out; the answer is the decision that holds."""
    if not isinstance(commit, bool):
        raise InvalidArgument(f"commit {commit!r} is refused: true (commit) or false (roll back) is wanted")
    return decision_to(heuristics.decide(peer.session.space, xid_of(xid), commit, _signed(peer, by), reason))


def indoubt_forget(peer: Peer, xid: Any, by: Any, reason: Any = "") -> None:
    """Ends the memory of a decision, by hand."""
    operator_log.forget(peer.session, xid_of(xid), _signed(peer, by), reason)


def indoubt_forgotten(peer: Peer) -> list[dict[str, Any]]:
    """The decisions that operators forgot, in their order."""
    return [forgotten_to(told) for told in _looked(peer, operator_log.forgotten_in)]


def _signed(peer: Peer, by: Any) -> Any:
    """Who somebody says to be, and who they were seen to be."""
    identity = peer.gate.identity
    return f"{by} ({identity})" if isinstance(by, str) and not identity.owner else by


def _looked(peer: Peer, look: Callable[[FileSystem], T]) -> T:
    """What is seen in the directories, which may take a while. Raises RetryLater where they cannot be read now."""
    space = peer.session.space
    space.check_readable()
    try:
        return space.waiting.run(partial(look, space.fs))
    except OSError as error:
        raise RetryLater(f"the directories cannot be read now ({error.strerror}): try again") from error


def depths(peer: Peer, names: Any) -> dict[str, int]:
    """How many messages these queues have, with those that branches hold."""
    if not isinstance(names, list):
        raise InvalidArgument(f"queues {names!r} are refused: a list of names is wanted")
    wanted = [check_queue_name(name) for name in names]
    return _looked(peer, lambda fs: depths_in(fs, wanted))


OPERATOR_METHODS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "indoubt_list": (indoubt_list, 0, 0),
    "indoubt_next": (indoubt_next, 0, 0),
    "indoubt_decide": (indoubt_decide, 3, 4),
    "indoubt_forget": (indoubt_forget, 2, 3),
    "indoubt_forgotten": (indoubt_forgotten, 0, 0),
    "depths": (depths, 1, 1),
}
"""By name: the method, and how many parameters it takes at least and at most."""
