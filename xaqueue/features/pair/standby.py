"""A standby waits until a space that another process has is its own: the lock is free, or its owner is silent.

An owner that may be taken over from writes ``heartbeat`` once a second (see ``pair``), and says so in ``owner``. A
standby watches whether it changes, by its own clock alone, so no two clocks are compared. The time decides when it
takes over, and never what is right: an owner that was only slow is fenced like any other, since the file that it has
locked is the directory's lock no more. Any other owner is waited for as long as it lives.

Crash safety: the new lock is the first thing that changes, and a crash behind it leaves a directory that nobody has.
What the former owner may still do late is the business of ``pair_fs``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.definitions_file import hardening_of, usable_definitions
from xaqueue.core.owner.record import read_owner
from xaqueue.core.storage.owner_file import OwnerFile, read_owner_file
from xaqueue.core.storage.regular import read_at_most
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.pair.pair import check_level

POLL_S = 0.1
LEAST_S = 2.0
"""Of silence, at least: twice as long as an owner that is well is silent."""

log = logging.getLogger("xaqueue")


def wait(
    root: Path, *, takeover_s: float | None = None, sync: str | None = None, look: Callable[[], object] = lambda: None
) -> OwnerFile:
    """Returns the lock, which this process has then: for ``attach``.

    takeover_s: how long the owner may be silent; None: only a lock that is free is taken. look: called now and then.
    Raises InvalidArgument, SpaceError.
    """
    if takeover_s is not None and takeover_s < LEAST_S:
        raise InvalidArgument(f"a takeover after {takeover_s:g} s is refused: {LEAST_S:g} or more are wanted")
    read_format(root)
    check_level(hardening_of(sync, usable_definitions(root)[0]))
    root = Path(os.path.realpath(root))
    try:
        lock, silence = OwnerFile(root), _Silence(root)
        while not lock.acquire():
            look()
            if takeover_s is not None and silence.seconds(lock) >= takeover_s and lock.take_over(silence.locked):
                log.warning("[takeover] space %s is taken over: its owner was silent for %g s", root, takeover_s)
                break
            time.sleep(POLL_S)
    except OSError as error:
        raise SpaceError(f"{root} cannot be watched: {error}") from error
    return lock


class _Silence:
    """Of the owner that has the lock now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: tuple[object, bytes, bytes] | None = None
        self._since = 0.0
        self.locked = (0, 0)

    def seconds(self, lock: OwnerFile) -> float:
        """For how long it has changed nothing of what it is to change; 0 for an owner that says nothing."""
        now = time.monotonic()
        try:
            self.locked = lock.locked
            beat = read_at_most(str(self._root / layout.HEARTBEAT), 64)  # an open asks the server of a network disk
            seen = self.locked, read_owner_file(self._root), beat
        except OSError:  # what cannot be read now cannot be taken over either
            self._seen = None
            return 0.0
        if seen != self._seen:
            self._seen, self._since = seen, now
        owner = read_owner(self._root)
        return now - self._since if owner is not None and owner.beats else 0.0
