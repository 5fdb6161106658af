"""A branch while a step of it is on its way to disk: every other call on it waits, and hears when it is over."""

from __future__ import annotations

import time

from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import Branch
from xaqueue.errors import Error


class Busy:
    """A block in which a branch is busy; made with ``branch.busy`` set under the lock."""

    __slots__ = ("_branch", "_space")

    def __init__(self, space: Space, branch: Branch) -> None:
        self._space = space
        self._branch = branch

    def __enter__(self) -> Branch:
        return self._branch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        leave(self._space, self._branch, error)


def leave(space: Space, branch: Branch, error: BaseException | None = None) -> None:
    """The step is over, with this error or none; what is no answer of ours fences the space."""
    failed = None
    if error is not None:
        branch.progress = time.monotonic()  # it was called, and may be called again
        if not isinstance(error, Error):  # or interrupted: those who wait for the step are woken
            failed = space.fence(error)
    with space.lock:
        space.settle_locked(branch)
    space.log.deliver_interrupt()
    if failed is not None and isinstance(error, OSError):
        raise failed from error
