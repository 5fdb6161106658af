"""A dequeue that was rolled back is counted beside its message, so that a poisoned message shows after a restart.

The change of the rollback has the count. Of those that a killed process had begun tell their blocks in active/, and
with a journal ``register``: the next open counts them. A try for which there is no room is only a try not counted, and
one whose block a power loss brings back is counted twice; the message is safe either way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from xaqueue.space.engine.register import LARGEST_BYTES, Taken, decode
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout, records
from xaqueue.space.model.block import Kind
from xaqueue.space.model.branch import Branch
from xaqueue.space.model.change import PUT, Change, Op
from xaqueue.space.model.change import Kind as Step
from xaqueue.space.model.index import Entry
from xaqueue.storage.fs import NO_ROOM
from xaqueue.storage.regular import DAMAGE, NO_DIRECTORY
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

Held = tuple[str, Entry]
"""Queue and entry of a message that a branch dequeued."""
_NOBODY = str(Xid(LOCAL_FORMAT_ID, b"tries", b""))
"""Names the step that counts those of a killed process."""

log = logging.getLogger("xaqueue")


def held_by(branch: Branch) -> list[Held]:
    return [(w.queue, w.entry) for w in branch.blocks if w.kind is Kind.DEQUEUE and w.entry is not None]


def records_of(space: Space, held: Sequence[Held]) -> list[Op]:
    """What records one more try of each of these messages, as far as there is room. Raises ResourceFailed."""
    ops: list[Op] = []
    for queue, entry in held:
        path = layout.retry_path(queue, entry.seq, entry.message_id)
        content = records.encode_tries(queue, entry.message_id, entry.tries + 1, space.epoch)
        try:
            space.log.stage(path, content, b"")
        except OSError as error:
            if error.errno not in NO_ROOM | NO_DIRECTORY:
                raise space.fence(error) from error
        else:
            ops.append((PUT, path, content, b"", 0))
    return ops


def count(space: Space, name: str, held: Sequence[Held]) -> None:
    """Counts a try of each of these, which an earlier owner had begun. Raises RetryLater, ResourceFailed."""
    if not held:
        return

    def publish() -> None:
        for _, entry in held:
            entry.tries += 1

    space.log.perform(Change(Step.ROLLBACK, name, records_of(space, held)), publish)


def count_killed(space: Space, set_aside: Callable[[str, str], object]) -> None:
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
    count(space, _NOBODY, held)
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
