"""What streams have consumed, and what has expired, leaves the directories afterwards, in small pieces, and nobody
waits for it.

A crash in between loses nothing: the record in ``streams/`` says what is consumed, and the next owner goes on. Files
are removed in the order of their names, which is that of their making, and range directories with the last of them.
What is to be kept is renamed into ``archive/`` instead, under the same names, and behind its bitmap where it is a block
of many. What has expired and comes back by a crash has expired still.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from xaqueue.core.engine.redo import is_that, make_dirs, make_way
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import layout
from xaqueue.core.model.change import DROP, MOVE, Change
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.layout import RANGE_BITS
from xaqueue.core.model.message_name import Named, parse_any
from xaqueue.core.model.queue import Queue
from xaqueue.core.owner.chores import Chore, Chores
from xaqueue.core.storage.fs import NO_ROOM, FileSystem, discard, remove_all
from xaqueue.core.storage.regular import NO_DIRECTORY
from xaqueue.errors import DamagedBlock, ResourceFailed, RetryLater
from xaqueue.features.counters.values import Counters
from xaqueue.features.dedup import dedup
from xaqueue.features.retries import moving
from xaqueue.features.retries.options import EXPIRY_QUEUE
from xaqueue.features.streams import keeping
from xaqueue.features.streams.message_files import Block, is_block, read_whole
from xaqueue.features.streams.options import CLEANUP_INTERVAL_S
from xaqueue.features.streams.record import StreamRecord, StreamStep, archived_gone, archived_path, record_of

PIECE = 256
"""Files between two looks whether it is to stop; for so many the lock is held where they are kept."""
RETRY_S = 1.0
"""After it found no room in the archive."""

_making = threading.Lock()
"""Held by who makes directories of the archive, so that what is set aside in their way is never another's new one."""
Stopped = Callable[[], bool]


def never() -> bool:
    return False


def clear(space: Space, stopped: Stopped = never) -> bool:
    """Removes the files of all that is consumed, and ranges that are spent; False where it was stopped before.

    Raises ResourceFailed, and RetryLater where the archive found no room.
    """
    with space.lock:
        queues = [queue for queue in space.queues.values() if queue.cleared < queue.consumed_through]
    full: RetryLater | None = None
    for queue in queues:
        try:
            if not clear_queue(space, queue, stopped):
                return False
        except RetryLater as error:
            full = error  # what others remove may be the room that it wants
    _remove_every_spent(space)
    if full is not None:
        raise full
    return True


def expire(space: Space, stopped: Stopped = never) -> bool:
    """Removes the messages that nobody took in time, or moves them; False where it was stopped before. Raises as
    ``clear`` does.

    Those of a queue that is reserved for a stream stay until that has consumed them.
    """
    with space.lock:
        queues = list(space.queues.values())
        kept = [queue for queue in queues if EXPIRY_QUEUE.of(queue.definition) not in ("", queue.name)]
    stuck: RetryLater | None = None
    try:
        if not moving.move_all(space, kept, moving.EXPIRED, stopped):
            return False
    except RetryLater as error:
        stuck = error  # what others have to remove goes all the same
    for queue in queues:
        count = 0
        while piece := _expired(space, queue):
            _remove_expired(space, queue, piece)
            count += len(piece)
            if stopped():
                return False
        if count:
            log.info("[messages-expired] %d expired messages left queue %s", count, queue.name)
    if stuck is not None:
        raise stuck
    return True


def _expired(space: Space, queue: Queue) -> list[Entry]:
    """Some that are expired, and nobody else's any more."""
    with space.lock:
        space.check()
        if queue.keeper is not None or queue.is_wanted or EXPIRY_QUEUE.of(queue.definition) not in ("", queue.name):
            return []
        index = queue.index
        index.find_expired(space.now_us(), PIECE)
        piece = index.expired[-PIECE:]
        del index.expired[-PIECE:]
        queue.expiring = set(piece)
        return piece


def _remove_expired(space: Space, queue: Queue, piece: Sequence[Entry]) -> None:
    """Recorded before, or a replay would miss those of which the journal has only the names.

    Their ids are free once they are gone on disk: one that a crash brought back would stand before a later message.
    """
    try:
        space.log.perform(partial(keeping.removal, space, queue, piece))
        if not space.log.is_atomic:
            space.log.sync_names(sorted({layout.range_path(queue.name, entry.seq) for entry in piece}))
        with space.lock:
            spent = [entry.seq >> RANGE_BITS for entry in piece if queue.consumed(entry)]
            queue.memory_of(Counters).expired += len(piece)
            piece = []
    finally:
        with space.lock:
            queue.index.expired += piece  # what is there still
            queue.expiring.clear()
            space.settled.notify_all()
    _remove_spent(space, queue, spent)


def clear_queue(space: Space, queue: Queue, stopped: Stopped = never) -> bool:
    """As ``clear``, of one queue."""
    with space.lock:
        record = record_of(queue)
        if record is None or queue.cleared >= record.consumed:
            return True
        ranges = sorted(number for number in queue.ranges if number <= record.consumed >> RANGE_BITS)
    for number in ranges:
        if not _clear_range(space, record, number, stopped):
            return False
        if space.log.is_atomic and record.archives(((number + 1) << RANGE_BITS) - 1):
            _harden_archive(space, record, number)
        _remove_spent(space, queue, [number])
    _clear_beside(space, record, layout.retries_path(record.queue), lambda seq: True)
    _clear_beside(
        space, record, f"{layout.queue_path(record.queue)}/{layout.GONE}", lambda seq: queue.block_of(seq) is None
    )
    with space.lock:
        queue.cleared = max(queue.cleared, record.consumed)
    _remove_spent(space, queue, ranges)  # one of them took more until now
    return True


def _remove_every_spent(space: Space) -> None:
    with space.lock:
        spent = [(queue, ranges) for queue in space.queues.values() if (ranges := queue.spent_ranges())]
    for queue, ranges in spent:
        _remove_spent(space, queue, ranges)


def _remove_spent(space: Space, queue: Queue, ranges: Sequence[int]) -> None:
    """What is pending in them is flushed before, since nobody is to wait for that with the lock held."""
    space.check_owner()
    keeping.harden_before(space, queue, ranges)
    with space.fencing("to remove what is spent"):
        for number in ranges:
            if queue.is_spent(number):
                space.log.exclusively(partial(_remove_range, space, queue, number))


def _remove_range(space: Space, queue: Queue, number: int) -> None:
    with space.lock:
        space.check()
        if number in queue.ranges and queue.is_spent(number):
            queue.remove_range(space.fs, number)


def _harden_archive(space: Space, record: StreamRecord, number: int) -> None:
    """A crash must not take the range directory and leave what has moved out of it nowhere."""
    directories = archive_directories(layout.range_path(record.queue, number << RANGE_BITS))
    if space.fs.is_dir(directories[0]):
        space.log.sync_names(directories)


def _clear_range(space: Space, record: StreamRecord, number: int, stopped: Stopped) -> bool:
    directory = layout.range_path(record.queue, number << RANGE_BITS)
    try:
        space.log.settle()  # nothing waits to be written there
        listed = space.fs.list(directory)
        names = sorted(name for name in listed if layout.is_consumed(name, record.consumed))
        for first in range(0, len(names), PIECE):
            if stopped():
                return False
            space.check_owner()
            _clear_files(space, record, number, names[first : first + PIECE])
    except FileNotFoundError:
        return True  # its directory is gone
    except (OSError, RetryLater) as error:
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            raise space.fence(error) from error
        raise RetryLater(f"no room to clear {directory} ({error}): free some") from error
    return True


def _clear_beside(space: Space, record: StreamRecord, directory: str, goes: Callable[[int], bool]) -> None:
    """What stands beside messages that are consumed, or beside blocks, by the number in its name."""
    with space.fencing(f"to clear {directory}"):
        try:
            names = [name for name in space.fs.list(directory) if layout.is_consumed(name, record.consumed)]
            with space.lock:
                names = [name for name in names if goes(int(name[:16], 16))]
            space.waiting.run(partial(remove_all, space.fs, [f"{directory}/{name}" for name in names]))
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise


def _clear_files(space: Space, record: StreamRecord, number: int, names: Sequence[str]) -> None:
    fs = space.fs
    directory = layout.range_path(record.queue, number << RANGE_BITS)
    kept = [name for name in names if (named := parse_any(name)) is not None and record.archives(named.last)]
    gone = sorted({*names}.difference(kept))
    space.waiting.run(partial(remove_all, fs, [f"{directory}/{name}" for name in gone]))
    if kept:
        keep_gone(fs, record, [named for name in filter(is_block, kept) if (named := parse_any(name)) is not None])
        _archive(space, fs, directory, kept)


def keep_gone(fs: FileSystem, record: StreamRecord, blocks: Iterable[Named]) -> None:
    """What is gone of blocks is in the archive, durably, before they come there. Raises OSError."""
    directory = f"{layout.queue_path(record.queue)}/{layout.GONE}"
    archived = archived_path(directory)
    found = [(named, gone) for named in blocks if (gone := archived_gone(fs, record, named)) is not None]
    for named, gone in found:
        path, new = archived_path(layout.gone_path(record.queue, named)), f"{archived}/.new"
        with _making:
            make_dirs(fs, archived)
            for place in (new, path):
                make_way(fs, place)
            discard(fs, new)
            fs.create(new, gone)
            fs.sync_file(new)
            fs.rename(new, path)
    for place in archive_directories(directory) if found else ():
        fs.sync_dir(place)


def keep_cut(space: Space, queue: Queue) -> None:
    """Of a block that a stream has consumed in part, that is in the archive, durably, each message in a file of its
    own: before the rest is everybody's, and the block goes with it, or one of the rest is set aside. Raises as
    ``clear`` does.
    """
    record = record_of(queue)
    with space.lock:
        block = queue.block_of(record.consumed) if record is not None else None
    if record is None or block is None or not record.archives(record.consumed):
        return
    space.log.settle()
    space.check_owner()
    with space.fencing(f"to keep what is consumed of {block.path}"):
        try:
            found = read_whole(space.fs, record.queue, block.named)
        except (DamagedBlock, FileNotFoundError) as damage:
            log.warning("[message-damaged] nothing of %s is kept: %s", block.path, damage)
            return
        _keep_some(space, found, found.left(record.archived_after or 0, record.consumed), block.path)


def _keep_some(space: Space, block: Block, indexes: Sequence[int], path: str) -> None:
    """Their content is on disk before their names are."""
    fs, directory, when_ns = space.fs, archived_path(path.rpartition("/")[0]), space.fs.modified_ns(path)
    with _making:
        make_dirs(fs, directory)
    names = {block.name(index): index for index in indexes}
    there = _kept(fs, directory, names)
    wanted = {name: index for name, index in names.items() if name not in there}
    for name, index in wanted.items():
        make_way(fs, f"{directory}/.{name}")
        discard(fs, f"{directory}/.{name}")  # of a try that was cut off
        fs.create(f"{directory}/.{name}", [block.file(index)], when_ns)
    space.sync_all()
    for name in wanted:
        fs.rename(f"{directory}/.{name}", f"{directory}/{name}")
    space.sync_all()


def make_place(space: Space, directory: str) -> None:
    """A directory of the archive is there, whatever stood in its way. Raises ResourceFailed."""
    if not space.fs.is_dir(directory):
        with _making, space.fencing(f"to make {directory}"):
            make_dirs(space.fs, directory)


def _archive(space: Space, fs: FileSystem, directory: str, names: Sequence[str]) -> None:
    """One step: nobody syncs the range, and so loses its names, before the archive has them on disk."""
    target = archived_path(directory)
    with _making:
        make_dirs(fs, target)
    if not space.log.is_atomic:
        space.log.sync_names(archive_directories(directory)[1:])
    there = _kept(fs, target, names)

    def plan() -> Change:
        paths = [(f"{directory}/{name}", name) for name in names if fs.exists(f"{directory}/{name}")]
        ops = [(DROP, path) if name in there else (MOVE, path, f"{target}/{name}", 0) for path, name in paths]
        return Change(StreamStep.STREAM, directory, ops)

    space.log.perform_unrecorded(plan)


def _kept(fs: FileSystem, directory: str, names: Collection[str]) -> frozenset[str]:
    """Which of these are there; a directory of such a name makes way, and what is not whole is replaced."""
    found = [name for name in fs.list(directory) if name in names]
    for name in found:
        make_way(fs, f"{directory}/{name}")
    return frozenset(name for name in found if is_that(fs, f"{directory}/{name}", f"{directory}/{name}"))


def archive_directories(directory: str) -> list[str]:
    """Where what leaves this range directory is kept, and all that is above it."""
    target = archived_path(directory)
    return [target, target.rpartition("/")[0], layout.ARCHIVE, ""]


def _has_to_clear(queue: Queue) -> bool:
    return bool(queue.consumed_through or queue.index.has_to_leave or dedup.keys_of(queue).ends)


class Clear(Chore):
    """Clears whenever something was consumed or found expired, and looks for what has expired every
    ``cleanup_interval_s``."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self._looked_at = time.monotonic()
        self._is_asked = any(map(_has_to_clear, space.queues.values()))
        space.wakes.consumed = self

    def wake(self) -> None:
        self._is_asked = True
        super().wake()

    def left_s(self) -> float:
        since_s = time.monotonic() - self._looked_at
        return 0.0 if self._is_asked else CLEANUP_INTERVAL_S.of(self.space.definitions) - since_s

    def run(self, turn: Chores) -> float:
        self._is_asked, self._looked_at = False, time.monotonic()
        is_stuck = is_unfinished = False  # its own flag is for others, who may set it at any time
        for work in (clear, moving.move_exhausted, expire, dedup.clear):
            try:
                is_unfinished |= not work(self.space, turn.is_over)
            except RetryLater:
                is_stuck = True
        if is_stuck or is_unfinished:
            self._is_asked = True
        return RETRY_S if is_stuck else 0.0

    def finish(self) -> None:
        """What is left is for the next owner, but for ranges in which nothing is left."""
        with suppress(ResourceFailed, RetryLater):  # the space says so itself
            _remove_every_spent(self.space)
