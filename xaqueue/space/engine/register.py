"""A process that is killed with a message in its hands has tried it: the register of tries outlives the process.

With a journal the block of a dequeue stays in memory for a moment, and goes with its process. So each dequeue adds an
entry to the register: one overwrite of a file that has its room already, and no sync. An entry says that a message had
so many tries when it was taken, which stays true. It is never taken back: an opening that finds the message with no
more tries than that, and in no branch in doubt, counts one more. Whatever was consumed, rolled back or counted since
changes nothing then; nor do old pages that a power loss brings back, nor an opening that is itself killed.

A full register begins again at its start, once all blocks of dequeues have left memory for active/: what stands there
is counted from there. Without room for it a try is only a try not counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from xaqueue.message import MessageId
from xaqueue.space.engine import tries
from xaqueue.space.model import layout
from xaqueue.space.model.branch import Branch
from xaqueue.space.model.index import Entry
from xaqueue.space.recovery.stock import SetAside
from xaqueue.storage.fs import NO_ROOM, FileSystem
from xaqueue.storage.regular import DAMAGE
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

SIZE_BYTES = 128 * 1024
"""About 2,900 entries."""

Taken = tuple[str, int, MessageId]
"""Queue, sequence number and id of a message."""

_CHECKSUM = Struct("<I")
_FIXED = Struct("<IQ16sB")
"""Tries, sequence number, id, length of the queue's name, which follows."""
_END = bytes(_CHECKSUM.size)
"""Behind the last entry; what follows was written before."""

_NOBODY = Xid(LOCAL_FORMAT_ID, b"tries", b"")
"""Names the files that are written on the way."""

log = logging.getLogger("xaqueue")


class Register:
    """Of the dequeues of one owner. Safe for several threads."""

    def __init__(self, fs: FileSystem, settle: Callable[[], None]) -> None:
        """``settle``: what recovery must find of a dequeue leaves memory. Raises OSError."""
        self._fs = fs
        self._settle = settle
        self._lock = threading.Lock()
        self._end = 0
        """Where the next entry goes."""
        self._is_made = False
        self.make()

    def make(self) -> None:
        """Makes its file where it is missing and there is room. Raises OSError."""
        if self._is_made:
            return
        try:
            if not self._fs.exists(layout.TRIES):
                self._fs.create(layout.TRIES, [bytes(SIZE_BYTES)])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return
        self._is_made = True

    def add(self, queue: str, entry: Entry) -> None:
        """A message of the queue was taken. Its block is written: beginning again settles it. Raises OSError."""
        if not self._is_made:
            return
        record = encode(queue, entry)
        try:
            with self._lock:
                if self._end + len(record) > SIZE_BYTES:
                    self._end = 0
                    self._settle()
                self._fs.write_at(layout.TRIES, self._end, [record])
                self._end += len(record) - len(_END)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise


def encode(queue: str, entry: Entry) -> bytes:
    """The entry of a message that is taken, and an end behind it."""
    name = queue.encode()
    told = _FIXED.pack(entry.tries, entry.seq, entry.message_id, len(name)) + name
    return _CHECKSUM.pack(crc32(told)) + told + _END


def decode(data: bytes) -> dict[Taken, int]:
    """By message, how many tries it had when it was last taken. What follows a bad entry is none."""
    found: dict[Taken, int] = {}
    start = 0
    while start + _CHECKSUM.size + _FIXED.size <= len(data):
        (checksum,) = _CHECKSUM.unpack_from(data, start)
        start += _CHECKSUM.size
        had, seq, message_id, length = _FIXED.unpack_from(data, start)
        end = start + _FIXED.size + length
        if end > len(data) or crc32(data[start:end]) != checksum:
            break
        taken = data[start + _FIXED.size : end].decode("ascii", "replace"), seq, MessageId(message_id)
        found[taken] = max(had, found.get(taken, 0))
        start = end
    return found


def count(space: Space, set_aside: SetAside) -> None:
    """Counts the tries that an earlier owner had begun when it was killed. Raises OSError, ResourceFailed."""
    try:
        data = space.fs.read(layout.TRIES, SIZE_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        set_aside(layout.TRIES, f"the register of tries cannot be read ({error.strerror}): some may not be counted")
        return
    with space.lock:
        held = [pair for taken, had in decode(data).items() if (pair := _uncounted_locked(space, taken, had))]
    tries.count(space, Branch(_NOBODY), held)
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
