"""The methods for operators: what is in doubt is listed, decided by hand, and forgotten.

They do what ``xaqueue indoubt`` does on the directory. Whether a session may call them is decided before they are.

    content    [queue, message id, size of its file in bytes, or nil]
    decision   {"outcome": "commit" | "rollback" | "mixed", "by": text, "at": int microseconds UTC, "reason": text}
    branch     {"xid": xid, "state": text, "since": int microseconds UTC, "added": [content], "held": [content],
                "damage": [text], "decision": decision or nil}
    forgotten  {"xid", "outcome", "by", "at", "reason", "forgotten_by", "forgotten_at", "forgotten_reason"}, as a line
               of operators.log; its xid is text
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from xaqueue.errors import ConnectionLost, InvalidArgument, OutcomeUnknown, RetryLater
from xaqueue.message import check_queue_name
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.wire import decode, encode, xid_of
from xaqueue.space.engine import heuristics, operator_log
from xaqueue.space.engine.heuristics import Decision
from xaqueue.space.engine.operator_log import Forgotten
from xaqueue.space.offline.inspect import depths_in
from xaqueue.space.offline.inspect_branches import InDoubt, by_age, pages
from xaqueue.storage.fs import FileSystem
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.server.authorizer import Caller

T = TypeVar("T")

Page = tuple[bool, list[dict[str, Any]]]
"""Whether ``indoubt_next`` has more, and some branches."""

# On the server


def indoubt_list(caller: Caller) -> Page:
    """The first branches in doubt, committing or decided by an operator, in no order: there may be very many."""
    caller.session.space.settle()
    caller.listing = pages(caller.session.space.fs)
    return indoubt_next(caller)


def indoubt_next(caller: Caller) -> Page:
    """The next ones of the list that this session began last."""
    listing = caller.listing
    if listing is None:
        raise InvalidArgument("no list is open: it ended, or was never begun in this session")
    page = _read(caller, lambda _: next(listing, None))
    if page is None:
        caller.listing = None
    return page is not None, [_in_doubt_to(branch) for branch in page or ()]


def indoubt_decide(caller: Caller, xid: Any, commit: Any, by: Any, reason: Any = "") -> Any:
    """Records an operator's decision and carries it out; the answer is the decision that holds."""
    if not isinstance(commit, bool):
        raise InvalidArgument(f"commit {commit!r} is refused: true (commit) or false (roll back) is wanted")
    return encode(heuristics.decide(caller.session.space, xid_of(xid), commit, _signed(caller, by), reason))


def indoubt_forget(caller: Caller, xid: Any, by: Any, reason: Any = "") -> None:
    """Ends the memory of a decision, by hand."""
    operator_log.forget(caller.session, xid_of(xid), _signed(caller, by), reason)


def indoubt_forgotten(caller: Caller) -> Any:
    """The decisions that operators forgot, in their order."""
    return encode(_read(caller, operator_log.forgotten_in))


def depths(caller: Caller, names: Any) -> dict[str, int]:
    """How many messages these queues have, with those that branches hold."""
    if not isinstance(names, list):
        raise InvalidArgument(f"queues {names!r} are refused: a list of names is wanted")
    wanted = [check_queue_name(name) for name in names]
    caller.session.space.settle()
    return _read(caller, lambda fs: depths_in(fs, wanted))


OPERATOR_METHODS = (indoubt_list, indoubt_next, indoubt_decide, indoubt_forget, indoubt_forgotten, depths)


def _in_doubt_to(branch: InDoubt) -> dict[str, Any]:
    added, held = ([astuple(content) for content in contents] for contents in (branch.added, branch.held))
    return {**encode(branch), "added": added, "held": held}


def _signed(caller: Caller, by: Any) -> Any:
    """Who somebody says to be, and who they were seen to be."""
    identity = caller.authorizer.identity
    return f"{by} ({identity})" if isinstance(by, str) and not identity.owner else by


def _read(caller: Caller, read: Callable[[FileSystem], T]) -> T:
    """What is seen in the directories, which may take a while. Raises RetryLater where they cannot be read now."""
    space = caller.session.space
    space.check_readable()
    try:
        return space.waiting.run(partial(read, space.fs))
    except OSError as error:
        raise RetryLater(f"the directories cannot be read now ({error.strerror}): try again") from error


# On the client


class RemoteOperator:
    """Each call raises ConnectionLost where the server does not answer, and what it refuses with."""

    def __init__(self, manager: RemoteManager) -> None:
        self._manager = manager

    def in_doubt(self) -> list[InDoubt]:
        return by_age(decode(InDoubt, value) for value in self._pages())

    def _pages(self) -> Iterator[Any]:
        more, page = self._manager.call("indoubt_list")
        yield from page
        while more:
            more, page = self._manager.call("indoubt_next")
            yield from page

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        answer: dict[str, Any] = self._manager.call("depths", list(queues))
        return {str(name): int(count) for name, count in answer.items()}

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        """Raises OutcomeUnknown where the answer is lost."""
        with _unknown_where_lost(xid, "decided"):
            return decode(Decision, self._manager.call("indoubt_decide", xid, commit, by, reason))

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        """Raises OutcomeUnknown where the answer is lost."""
        with _unknown_where_lost(xid, "forgotten"):
            self._manager.call("indoubt_forget", xid, by, reason)

    def forgotten(self) -> list[Forgotten]:
        return [decode(Forgotten, value) for value in self._manager.call("indoubt_forgotten")]


@contextmanager
def _unknown_where_lost(xid: Xid, done: str) -> Iterator[None]:
    try:
        yield
    except ConnectionLost as lost:
        raise OutcomeUnknown(
            f"{lost}. Whether branch {xid} was {done} is unknown: `xaqueue indoubt show {xid}` tells", xid
        ) from lost
