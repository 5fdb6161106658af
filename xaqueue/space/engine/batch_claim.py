"""A batch is claimed before anything is done to its branches: then nobody else prepares, ends or claims one of them.

Nor is another batch of the same query decided meanwhile. Whoever comes then waits until the claim is over, and finds
what it has made of the branches. A branch that is being prepared when the claim is wanted is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xaqueue.batch import is_of_a_batch, key_of
from xaqueue.errors import Error
from xaqueue.space.model.branch import HEURISTICS, Branch, State
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space


class Claim:
    """To be entered. ``prepared`` then has the branches that can be committed and rolled back."""

    def __init__(self, space: Space, gtrid: bytes) -> None:
        self._space = space
        self._gtrid = gtrid
        self._key = key_of(gtrid)
        self.prepared: dict[Xid, Branch] = {}
        self.decided: dict[Xid, Branch] = {}
        """Those that an operator has decided."""

    def __enter__(self) -> Claim:
        space = self._space
        with space.lock:
            space.barrier.check()
            while self._key in space.batches.claimed or any(branch.busy for branch in of_batch(space, self._gtrid)):
                space.wait_settled()
            space.batches.claimed.add(self._key)
            for branch in of_batch(space, self._gtrid):
                if branch.decided is not None or branch.base in HEURISTICS:
                    self.decided[branch.xid] = branch
                elif branch.base is State.PREPARED:
                    self.prepared[branch.xid] = branch
            for branch in (*self.decided.values(), *self.prepared.values()):
                branch.busy = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        failed = None
        if error is not None and not isinstance(error, Error):  # or interrupted: those who wait are told
            failed = self._space.fence(error)
        with self._space.lock:
            self._space.batches.claimed.discard(self._key)
            for branch in (*self.decided.values(), *self.prepared.values()):
                branch.busy = False
            self._space.settled.notify_all()
        self._space.barrier.deliver_interrupt()
        if failed is not None and isinstance(error, OSError):
            raise failed from error


def of_batch(space: Space, gtrid: bytes) -> list[Branch]:
    """All branches of a batch. Called with the lock held."""
    return [branch for xid, branch in space.branches.items() if xid.gtrid == gtrid and is_of_a_batch(xid)]
