"""Every message of a queue is read while the space is open, and what is damaged is set aside as a dequeue does that.

Files are read, and no lock is held meanwhile. What looks damaged is taken as a dequeue takes it, and read again: so it
is nobody else's while it moves, and a crash at any call leaves what a dequeue leaves. A message that a branch holds, or
that is kept for a stream, is reported and stays: who has it finds it when it reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from xaqueue.core.engine import taking
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import Kind
from xaqueue.core.model.block_files import read_checked, read_messages
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.record_kinds import RecordKind
from xaqueue.core.owner.chores import Chore, Chores
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.features.scrub.options import DAYS
from xaqueue.xid import Xid

SCRUBBED = "scrubbed"
PIECE = 64
"""Messages between two looks whether it is to stop."""
BYTES = 4096
LOOK_S = 60.0
"""Is looked at least so often whether one is due."""
DAY_S = 86_400

log = logging.getLogger("xaqueue")
Stopped = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """How many messages were read, and of those that are damaged the path and the reason: set aside, or left."""

    messages: int
    moved: list[str]
    left: list[str]


def scrub(space: Space, stopped: Stopped) -> bool:
    """Reads the messages of all queues and writes down what it found; False where it was stopped before the end.

    Raises ResourceFailed, RetryLater, OSError.
    """
    with space.lock:
        names = sorted(space.queues)
    found = []
    for name in names:
        one = scrub_queue(space, name, stopped)
        if one is None:
            return False
        found.append(one)
    read = sum(one.messages for one in found)
    moved, left = sum(len(one.moved) for one in found), sum(len(one.left) for one in found)
    text = f"messages read: {read:,}; damaged and set aside: {moved:,}, left to who has them: {left:,}"
    replace_file(space.fs, SCRUBBED, text.encode(), durable=False)
    log.log(logging.WARNING if moved or left else logging.INFO, "[scrubbed] %s", text)
    return True


def last_scrub(fs: FileSystem) -> tuple[int, str] | None:
    """When the last one came to its end, int microseconds UTC, and what it found; None where nobody knows."""
    try:
        return fs.modified_ns(SCRUBBED) // 1000, fs.read(SCRUBBED, BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def scrub_queue(space: Space, name: str, stopped: Stopped = lambda: False) -> Scrubbed | None:
    """Reads the messages of one queue; None where it was stopped before the end. Raises as ``scrub`` does, and
    UnknownQueue."""
    with space.lock:
        space.check()
        if name not in space.queues:
            space.definitions.find(name)
        entries = space.queue(name).index.entries(0)
    count, moved, left = 0, list[str](), list[str]()
    while piece := list(islice(entries, PIECE)):
        space.check_owner()
        for entry, reason in space.waiting.run(partial(_damaged, space, name, piece)):
            is_moved = _is_set_aside(space, name, entry)
            (moved if is_moved else left).append(f"{space.queues[name].path_of(entry)}: {reason}")
        count += len(piece)
        if stopped():
            return None
    return Scrubbed(count, moved, left)


def _damaged(space: Space, name: str, piece: Sequence[Entry]) -> list[tuple[Entry, str]]:
    """Those of these messages whose files are there and damaged, each with its reason."""
    found = []
    queue, last = space.queues[name], None
    for entry in piece:
        path = queue.path_of(entry)
        try:
            block = queue.block_of(entry.seq)
            if block is not None:
                if block is not last:
                    last, (table, data) = block, read_messages(space.fs, name, block.named)
                table.body(data, entry.seq - block.named.first)
            else:
                taking.message_of(name, entry.seq, entry.message_id, read_checked(space.fs, path))
        except DamagedBlock as damage:
            if entry.message_id in queue.index:  # else it was consumed meanwhile, and its block made smaller
                found.append((entry, str(damage)))
        except FileNotFoundError:
            continue  # consumed meanwhile, or in the journal yet
        except OSError as error:
            raise space.unread(path, error) from error
    return found


def _is_set_aside(space: Space, name: str, found: Entry) -> bool:
    """Whether it has left its queue now."""
    branch = Branch(Xid(1, fresh_id(), b""), "scrub")
    with space.lock:
        queue = space.queue(name)
        if queue.keeper is not None:
            return False
        entry = queue.index.take(space.now_us(), message_id=found.message_id, holder=branch, even_early=True)
        if entry is None:
            return False
        written = Written(1, Kind.DEQUEUE, name, entry.message_id, 0, entry)
        branch.blocks.append(written)
    try:
        if taking.fetch(space, branch, written) is None:
            return True
    except RetryLater as lack:
        log.warning("[no-room-yet] %s", lack)
        return False
    taking.return_taken(space, branch, written)  # it is in memory yet, and whole there
    return False


class Scrub(Chore):
    """Reads every message once in ``scrub_days``, for a tenth of its time, in a thread of its own: a read may hang."""

    thread = "scrub"

    def run(self, turn: Chores) -> float:
        wait_s = self.wait_s()
        if not wait_s:
            try:
                scrub(self.space, turn.rest)
            except (RetryLater, OSError) as error:
                log.warning("[scrub-broken-off] the scrub was broken off, and begins anew: %s", error)
                return LOOK_S
        return wait_s

    def wait_s(self) -> float:
        """Until the next one, but not longer than what may be changed meanwhile is to wait."""
        days, last = DAYS.of(self.space.definitions), last_scrub(self.space.fs)
        if not days:
            return LOOK_S
        left_s = (last[0] - self.space.now_us()) / 1e6 + days * DAY_S if last is not None else 0
        return min(max(left_s, 0), LOOK_S)


class ScrubKind(RecordKind):
    others = (SCRUBBED, f".{SCRUBBED}.new")

    def view(self, fs: FileSystem) -> dict[str, Any]:
        return {"scrubbed": last_scrub(fs)}
