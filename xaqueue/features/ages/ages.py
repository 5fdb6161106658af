"""A message expires ``max_age_s`` after its commit: the queue says so, and the message need not.

The commit time is that of the message's file, so it needs no record, and is the same for whoever looks at the
directory. It never falls from one number of a queue to the next (``Memory.last_commit_us``). So of a queue only the
message with the lowest number is of interest: until its time comes nothing of the queue is too old. Then numbers are
gone through upwards, each once, and what is too old expires from there on as by a time of its own: whoever holds it may
consume it, and where it comes back it leaves. A message costs one look into its file in all, when it expires.

A queue of which all is gone has nothing too old before another ``max_age_s`` are over, whatever comes. So an enqueue
says nothing, and a dequeue compares two numbers. What was committed while the clock was ahead, or behind that, has a
time that is yet to come: it counts from when it was seen first, so it expires late, by one ``max_age_s`` at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from xaqueue.core.engine.state import Space
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.layout import RANGE_BITS
from xaqueue.core.model.queue import Queue
from xaqueue.core.recovery.load import read_head
from xaqueue.errors import DamagedBlock

PIECE = 1024
"""So many numbers are gone through while the lock is held."""
AGAIN_US = 1_000_000
"""It looks again so long after it found a number whose message is to come yet."""


class Ages:
    """Of the messages of one queue; see ``index.Clock``."""

    def __init__(self, limit_us: int) -> None:
        self.limit_us = limit_us
        self.due = 0
        """Nothing becomes too old before; int microseconds UTC."""
        self._through = 0
        """What has this number or a lower one is gone, or was told when it expires, or is to come yet."""
        self._gap = 0
        """The first number of this look whose message is to come yet, to which the next one goes back; 0 for none."""
        self._there = 0, 0
        """A number, and when all up to that were committed already."""

    def strike(self, space: Space, queue: Queue, now: int) -> bool:
        """What is too old expires. False where there may be more. Called with the lock held.

        What a stream consumes stays for it.
        """
        if queue.keeper is not None or queue.is_wanted or not space.loaded:
            return True
        due = now + self.limit_us
        for seq in islice(self._numbers(queue), PIECE):
            entry = queue.index.numbered(seq)
            if entry is not None:
                ends = self._end_of(space, queue, entry, now)
                if ends is not None and ends > now:
                    due = ends
                    break
                if ends is not None:
                    queue.index.expire_at(entry, ends)
                    space.wakes.consumed.wake()
            elif seq > queue.published:  # its round is under way, and what waits for no sync is there sooner
                self._gap = self._gap or seq
            self._through = seq
        else:
            if next(self._numbers(queue), None) is not None:
                return False
        if self._gap:
            due, self._through, self._gap = min(due, now + AGAIN_US), self._gap - 1, 0
        self.due = due
        return True

    def _numbers(self, queue: Queue) -> Iterator[int]:
        """Those of messages that were published, from where the last look ended, without ranges that hold nothing."""
        seq, last = self._through + 1, max(queue.shown, queue.published)
        while seq <= last:
            number = seq >> RANGE_BITS
            if queue.ranges.get(number):
                yield from range(seq, min(last + 1, (number + 1) << RANGE_BITS))
                number += 1
            else:
                number = min((one for one, held in queue.ranges.items() if held and one > number), default=last)
            seq = number << RANGE_BITS

    def _end_of(self, space: Space, queue: Queue, entry: Entry, now: int) -> int | None:
        """When it is too old; None: its file is gone or damaged, which its dequeue will find. Of one that cannot be
        looked at: when to look again.

        A loss of power, or who copies a space, may take the times of files: nothing was committed before its enqueue.
        """
        path = queue.path_of(entry)
        try:
            when = space.log.modified_us(path)
            if when > now:  # the clock was ahead then, of which every later commit has its time
                if entry.seq > self._there[0]:
                    self._there = max(queue.shown, queue.published), now
                return min(when, self._there[1]) + self.limit_us
            ends = when + self.limit_us
            if ends <= now and space.fs.exists(path):
                ends = max(ends, read_head(space.fs, path).properties.enqueued_at + self.limit_us)
        except (FileNotFoundError, DamagedBlock):
            return None
        except OSError:
            return now + self.limit_us
        return ends
