"""The file ``counters``: what the queues have counted, written now and then by whoever makes a checkpoint or clears,
and when the space is closed. No transaction waits for it, and nothing depends on it.

Crash safety: it is written new and renamed, so the old or the new one is there, whole. What it says was durable before,
so no crash has it done, and counted, twice. What was counted since, a crash takes: the next owner finds that by the
epoch in it. Where it is lost counting begins anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from xaqueue.core.model.queue import Queue
from xaqueue.core.owner.chores import NEVER, Chore, Chores
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.features.counters.values import COUNTERS, Counters, Counting, decode, encode

EVERY_S = 10.0
"""It is not written again sooner, but at the end."""
LARGEST_BYTES = 64 * 1024 * 1024
"""What is longer is none of ours."""

Counted = tuple[Counting, dict[str, Counters]]
log = logging.getLogger("xaqueue")


def read(fs: FileSystem) -> Counted | None:
    """None where there are none, or they are damaged."""
    try:
        return decode(fs.read(COUNTERS, LARGEST_BYTES))
    except OSError:
        return None


def counters_of(queue: Queue) -> Counters:
    """Until now: how many came and went its queue counts. The space's lock is held, or nobody is at work."""
    found = queue.memory_of(Counters)
    return replace(found, enqueued=queue.enqueued, dequeued=queue.dequeued, redelivered=queue.redelivered)


def go_on(queue: Queue, counters: Counters) -> None:
    """From what was counted before."""
    queue.enqueued, queue.dequeued, queue.redelivered = counters.enqueued, counters.dequeued, counters.redelivered
    found = queue.memory_of(Counters)
    found.expired, found.dead_lettered = counters.expired, counters.dead_lettered
    found.rejected, found.moved = counters.rejected, counters.moved


def found_by(counting: Counting, epoch: int, now_us: int) -> Counting:
    """What the owner of this epoch goes on from. Who was there in between and has written nothing is lost, too."""
    if counting.epoch == epoch:
        return counting
    found = replace(counting, epoch=epoch, closed=False, hits=0, misses=0, messages={})
    if counting.closed and counting.epoch == epoch - 1:
        return found
    return replace(found, crashes=counting.crashes + 1, lost_after=counting.as_of, found_at=now_us)


class CounterFile:
    """Of an owner. Safe for several threads."""

    def __init__(self, fs: FileSystem, epoch: int, *, durable: bool) -> None:
        """durable: whether it outlives a power loss, too."""
        self._fs = fs
        self.counting = Counting(0, 0, epoch)
        self.before: dict[str, Counters] = {}
        """What was counted before this owner began."""
        self._durable = durable
        self._writing = threading.Lock()
        self._due = time.monotonic() + EVERY_S
        self._written: dict[str, Counters] = {}
        self.closed_with: dict[str, int] = {}
        """Messages that queues had when the space was closed; empty where its last owner crashed."""

    @property
    def left_s(self) -> float:
        """Until it is due."""
        return self._due - time.monotonic()

    def load(self, now_us: int, note: Callable[[str], object]) -> dict[str, Counters]:
        """What this owner goes on from."""
        found, epoch = read(self._fs), self.counting.epoch
        if found is None:
            if epoch > 1:
                note("the file counters is missing or damaged: counting begins now")
            self.counting = Counting(now_us, now_us, epoch)
            return {}
        if found[0].closed and found[0].epoch == epoch - 1:
            self.closed_with = found[0].messages
        self.counting = found_by(found[0], epoch, now_us)
        self.before = {name: counters.copy() for name, counters in found[1].items()}
        return found[1]

    def write(self, counted: Counted) -> None:
        """Of two that come at once the older may be the last, until the next one."""
        self._due = time.monotonic() + EVERY_S
        if counted[1] == self._written and not counted[0].closed:
            return
        try:
            with self._writing:
                replace_file(self._fs, COUNTERS, encode(*counted), durable=self._durable)
            self._written = counted[1]
        except OSError as error:  # its sync tells of no other file
            log.warning("[counters-unwritten] a crash takes what is counted meanwhile: %s", error)


class _Kept:
    file: CounterFile | None = None


def file_of(space: Any) -> CounterFile:
    kept = space.memory_of(_Kept)
    if kept.file is None:
        durable = space.hardening.journal or bool(space.hardening.content)
        kept.file = CounterFile(space.fs, space.epoch, durable=durable)
    found: CounterFile = kept.file
    return found


def counted(space: Any, *, closed: bool = False) -> Counted:
    """Until now."""
    hits, misses = space.log.reads_of_memory or (0, 0)
    with space.lock:
        counters = {name: counters_of(queue) for name, queue in space.queues.items()}
        there = {name: len(queue.index) for name, queue in space.queues.items() if closed and len(queue.index)}
        as_of = space.now_us()
    counting = file_of(space).counting
    return replace(counting, as_of=as_of, closed=closed, hits=hits, misses=misses, messages=there), counters


def write(space: Any, *, closed: bool = False) -> None:
    file_of(space).write(counted(space, closed=closed))


def before_checkpoint(space: Any) -> Callable[[], object] | None:
    """What is counted by now is written behind it, where that is due."""
    return partial(_write_due, space, counted(space)) if file_of(space).left_s <= 0 else None


def _write_due(space: Any, found: Counted) -> None:
    space.check()
    space.check_owner()
    space.waiting.run(partial(file_of(space).write, found))


class WriteCounters(Chore):
    """Now and then, where no checkpoint is ever due."""

    def left_s(self) -> float:
        return NEVER if self.space.log.follows else file_of(self.space).left_s

    def run(self, turn: Chores) -> float:
        self.space.checkpoint()
        return 0.0
