"""A branch is marked, and cut back to a mark: what it has added and taken since is undone, and it goes on.

Its blocks are numbered as they come, and no number comes twice: so a mark is the last number, and nothing is kept of
it, nor is there anything to be released. Whoever is in the branch may cut it. What was added is withdrawn, with its
dedup_key and the room that it had in its queue; what was taken is in its place again, counts no try, and a lease by
which it was accepted is over.

Crash safety: nobody was promised an active branch, and the next open rolls it back as a whole, whatever a cut has left
of its files. Those go first; a cut that then fails, or is interrupted, leaves a branch that can only be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xaqueue.access import NOTHING
from xaqueue.core.engine import taking
from xaqueue.core.engine.log import BLOCK_BYTES
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import ADDS, Kind
from xaqueue.core.model.branch import Branch, Written
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.verb import verb
from xaqueue.xa import Code

if TYPE_CHECKING:
    from xaqueue.rpc.client.link import Link


@verb(NOTHING)
def mark(self: Session) -> int:
    """Of the branch that the session is in, as it is now."""
    with self._work() as branch:
        return branch.numbers


@mark.client
def _(self: Link) -> int:
    """From here on what the branch adds is asked: if it is refused the branch is to live on, cut back perhaps."""
    found: int = self.work("mark")
    self._branch.is_marked = True
    return found


@verb(NOTHING, "work")
def cut(self: Session, mark: int) -> None:
    """The branch is as it was at this mark. Raises RolledBack, and then it can only be rolled back, ResourceFailed."""
    if type(mark) is not int or mark < 0:
        raise InvalidArgument(f"cut to {str(mark)[:60]!r} is refused: what mark has answered is wanted")
    with self._work() as branch:
        try:
            _cut(self.space, branch, mark, self.number)
        except BaseException as error:  # or interrupted
            why = f"it was not brought back to a savepoint as a whole: {str(error) or type(error).__name__}"
            branch.doom(f"is rolled back: {why}", Code.XA_RBOTHER)
            raise


def _cut(space: Space, branch: Branch, mark: int, session: int) -> None:
    with space.lock:
        if branch.working != {session}:
            why = "another session was at work in it while it was to be brought back to a savepoint"
            raise branch.doom(f"is rolled back: {why}", Code.XA_RBOTHER)
        gone = [written for written in branch.blocks if written.number > mark]
    space.discard([written.path for written in gone if written.path])
    space.log.return_untried(*(one for one in gone if one.kind is Kind.DEQUEUE))  # before somebody else takes them
    with space.lock:
        try:
            _undo_locked(space, branch, gone)
        except BaseException:  # interrupted: once more, while nobody can come between
            _undo_locked(space, branch, gone)
            for name in {written.queue for written in gone}:
                space.queue(name).index.begin_again()
            raise


def _undo_locked(space: Space, branch: Branch, gone: Sequence[Written]) -> None:
    for written in gone:
        queue, entry = space.queue(written.queue), written.entry
        if written.kind in ADDS:
            for message_id in written.ids:
                queue.withdraw(message_id)
        elif entry is not None:
            taking.release_locked(queue, entry)
    size_bytes, count = branch.kept
    for written in gone:
        if written.content is not None and not written.path:
            head, body = written.content
            size_bytes -= BLOCK_BYTES + (len(head) + len(body) if written.original is None else 0)
            count -= 1
    blocks, numbers = branch.blocks, {written.number for written in gone}
    for at in range(len(blocks) - 1, -1, -1):  # in place, and from behind: another session may be adding one
        if blocks[at].number in numbers:
            del blocks[at]
    branch.kept = size_bytes, count
    for rider in branch.riders:
        rider.cut_locked(space, branch)
