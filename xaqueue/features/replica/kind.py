"""What a directory is to another one, as an open and a look find it. From its recovery on a journal is shipped."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.record_kinds import Advice, Opening, RecordKind
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.features.replica import replicated
from xaqueue.features.replica.options import Replication, policy_of
from xaqueue.features.replica.replicated import LAG, REPLICATION, UNSHIPPED
from xaqueue.features.replica.shipping import Shipping, shipping_of


class ReplicaKind(RecordKind):
    others = (REPLICATION, f".{REPLICATION}.new", LAG, f".{LAG}.new", UNSHIPPED)

    def begin(self, opening: Opening) -> None:
        """Replicas may follow the journal from here on."""
        space, journal = opening.space, opening.journal
        if journal is not None and policy_of(space.definitions).is_on:
            policy = partial(_policy_now, space, opening.reread)
            space.shipping = shipping = Shipping(space.fs, journal, space.waiting, policy)
            space.log.ship(shipping)
            space.log.when_fenced(shipping.stop)

    def finish(self, opening: Opening) -> None:
        """Nobody is told of what was recorded before this open until a replica has it, where steps wait for one."""
        shipping = shipping_of(opening.space)
        if shipping is None:
            return
        shipping.is_whole.set()
        try:
            shipping.await_others()
        except ResourceFailed:
            opening.space.check()  # why it was stopped, where it was fenced
            raise

    def advice(self, root: Path) -> Advice:
        is_other = (root / REPLICATION).exists()
        return Advice(behind="let it follow once more, `xaqueue replica`, or promote it" if is_other else "")

    def view(self, fs: FileSystem) -> dict[str, Any]:
        return {"replication": replicated.status(fs, time.time_ns() // 1000)}


def _policy_now(space: Space, reread: Callable[[], Definitions] | None) -> Replication:
    """An open that waits for a replica is to end once queues.toml says so."""
    if reread is not None and not space.serving:
        with suppress(OSError, UnicodeDecodeError, InvalidArgument):  # else what the open has found holds
            return policy_of(reread())
    return policy_of(space.definitions)
