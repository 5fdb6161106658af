"""Who is in the rounds of now, and whether the next one waits for those of the last two who are not back yet.

They come a little too late for a round that begins with the first: then two groups take turns, and each waits for two
syncs. To wait costs less where a sync takes long, as long as they do come.
"""

from __future__ import annotations

SYNC_SHARE = 0.3
"""For so much of the last sync a round waits at most."""
ROUNDS_AT_ONCE = 8
"""So many wait for nobody behind one to which nobody came."""


class Regulars:
    def __init__(self) -> None:
        self.here: dict[object, None] = {}
        """Whose steps are in the next one."""
        self._last = self._before = self.here.keys()
        self._waiting = 0
        """How many were there when a wait began."""
        self._at_once = 0
        """So many rounds more wait for nobody."""

    def are_here(self) -> bool:
        here = self.here.keys()
        return self._last <= here and self._before <= here

    def wait_s(self, sync_s: float) -> float:
        """For how long at most, where the last sync took so long."""
        if self.are_here():
            return 0.0
        if self._at_once:
            self._at_once -= 1
            return 0.0
        self._waiting = len(self.here)
        return SYNC_SHARE * sync_s

    def begin(self, *, waited: bool) -> None:
        """A round with all that are here. waited: until it was too long."""
        if waited and len(self.here) == self._waiting:
            self._at_once = ROUNDS_AT_ONCE
        self.here, self._last, self._before = {}, self.here.keys(), self._last
