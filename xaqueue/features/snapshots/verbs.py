"""Somebody wants a snapshot now."""

from __future__ import annotations

from functools import partial

from xaqueue.access import ADMIN
from xaqueue.core.engine.session import Session
from xaqueue.features.snapshots.take import take_and_keep
from xaqueue.rpc.verb import verb
from xaqueue.rpc.wire import LONG_S
from xaqueue.snapshot import SnapshotStatus


@verb(ADMIN, waits_s=LONG_S)
def snapshot(self: Session, prunes: bool = True) -> SnapshotStatus:
    """Takes a snapshot, while others work; see ``Connection.snapshot``. prunes: removes those that are too many."""
    self._check_open()
    return self.space.waiting.run(partial(take_and_keep, self.space, bool(prunes)))
