"""Tries that a killed process had begun are counted by the next open, from the register of tries."""

from __future__ import annotations

import logging
from collections.abc import Callable

from xaqueue.space.engine import tries
from xaqueue.space.engine.register import LARGEST_BYTES, Taken, decode
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout
from xaqueue.space.model.index import Entry
from xaqueue.storage.regular import DAMAGE
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

_NOBODY = str(Xid(LOCAL_FORMAT_ID, b"tries", b""))
"""Names the step."""

log = logging.getLogger("xaqueue")


def count(space: Space, set_aside: Callable[[str, str], object]) -> None:
    """Counts the tries that an earlier owner had begun when it was killed. Raises OSError, ResourceFailed."""
    try:
        data = space.fs.read(layout.TRIES, LARGEST_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        set_aside(layout.TRIES, f"the register of tries cannot be read ({error.strerror}): some may not be counted")
        return
    with space.lock:
        held = [pair for taken, had in decode(data).items() if (pair := _uncounted_locked(space, taken, had))]
    tries.count(space, _NOBODY, held)
    if held:
        log.info("a try of %d messages is counted: a process was killed with them", len(held))


def _uncounted_locked(space: Space, taken: Taken, had: int) -> tuple[str, Entry] | None:
    """The message in its queue, as it was when it was taken; None where that try is counted, or will be."""
    name, seq, message_id = taken
    queue = space.queues.get(name)
    entry = queue.index.find(message_id) if queue is not None else None
    if entry is None or entry.seq != seq or entry.locked or entry.tries > had:
        return None
    entry.tries = had
    return name, entry
