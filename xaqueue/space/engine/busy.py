"""A branch while a step of it is on its way to disk: every other call on it waits, and hears when it is over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from xaqueue.errors import Error
from xaqueue.space.model.branch import Branch

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space


class Busy:
    """Made with ``branch.busy`` set under the lock. Written out, because every transaction enters it several times."""

    __slots__ = ("_branch", "_space")

    def __init__(self, space: Space, branch: Branch) -> None:
        self._space = space
        self._branch = branch

    def __enter__(self) -> Branch:
        return self._branch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        failed = None
        if error is not None:
            self._branch.progress = time.monotonic()  # it was called, and may be called again
            if not isinstance(error, Error):  # or interrupted: those who wait for the step are told
                failed = self._space.fence(error)
        with self._space.lock:
            self._branch.busy = False
            self._space.settled.notify_all()
        self._space.barrier.deliver_interrupt()
        if failed is not None and isinstance(error, OSError):
            raise failed from error
