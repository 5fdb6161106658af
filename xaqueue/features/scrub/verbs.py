"""An operator has every message of a queue read now."""

from __future__ import annotations

from xaqueue.access import ADMIN
from xaqueue.core.engine.session import Session
from xaqueue.features.scrub.scrub import Scrubbed, scrub_queue
from xaqueue.message import check_queue_name
from xaqueue.rpc.verb import verb
from xaqueue.rpc.wire import LONG_S


@verb(ADMIN, waits_s=LONG_S)
def repair(self: Session, queue: str) -> Scrubbed:
    """Reads every message of a queue, and sets aside what is damaged; takes as long as these are many."""
    self._check_open()
    self.space.wait_until_loaded()
    done = scrub_queue(self.space, check_queue_name(queue))
    assert done is not None
    return done
