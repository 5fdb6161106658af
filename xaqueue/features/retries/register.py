"""A process that is killed with a message in its hands has tried it: the register of tries outlives the process.

With a journal the block of a dequeue stays in memory for a moment, and goes with its process. So each dequeue adds an
entry to the register, and one of many messages one for each, or for each run of neighbours: one overwrite of a file
that has its room already, and no sync, before anybody has them. An entry says that a message had so many tries when it
was taken, which stays true. It is never taken back: an opening that finds the message with no more tries than that, and
in no branch in doubt, counts one more, unless a later entry says that it was handed back on purpose. Whatever was
consumed, rolled back or counted since changes nothing then; nor do old pages that a power loss brings back, nor an
opening that is itself killed.

A full register begins again at its start, with an entry for each message that is held just then; it grows where these
take more than half of it. Without room for it a try is only a try not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from struct import Struct
from zlib import crc32

from xaqueue.core.model.branch import Written
from xaqueue.core.model.entry import Entry, Run
from xaqueue.core.storage.fs import NO_ROOM, FileSystem, suppress_room
from xaqueue.message import MessageId, ids_in

TRIES = "tries"
"""Its file, at the top of the space."""
SIZE_BYTES = 128 * 1024
"""Of a new one, about 2,900 entries."""
LARGEST_BYTES = 128 * SIZE_BYTES

Taken = tuple[str, int, MessageId]
"""Queue, sequence number and id of a message."""

_CHECKSUM = Struct("<I")
_FIXED = Struct("<IQ16sB")
"""Tries, sequence number, id, length of the queue's name, which follows."""
_pack_checksum, _pack_fixed = _CHECKSUM.pack, _FIXED.pack
RETURNED = 2**32 - 1
"""In the place of the tries."""
RUN = 2**32 - 2
"""Likewise: of messages whose numbers follow one another; behind the name stand their tries, and the ids of all."""
_RUN = Struct("<II")
"""Tries, bytes of the ids, which follow."""
_END = bytes(_CHECKSUM.size)
"""Behind the last entry; what follows was written before."""


class Register:
    """Of the dequeues of one owner. Safe for several threads."""

    def __init__(self, fs: FileSystem, held: Callable[[], Iterable[tuple[str, Entry]]] = tuple) -> None:
        """held: queue and message of what is held now by branches that are not prepared. Raises OSError."""
        self._fs = fs
        self._held = held
        self._lock = threading.Lock()
        self._end = 0
        """Where the next entry goes."""
        self._full = SIZE_BYTES - len(_END)
        """How far entries go before it begins again."""
        self._is_made = False
        self.make()

    def make(self) -> None:
        """Makes its file where it is missing and there is room. Raises OSError."""
        if self._is_made:
            return
        with suppress_room():
            if not self._fs.exists(TRIES):
                self._fs.create(TRIES, [bytes(SIZE_BYTES)])
            self._is_made = True

    def add(self, taken: Iterable[Written], *, returned: bool = False) -> None:
        """These were taken, as a try, or are handed back, which is none. Raises OSError."""
        if not self._is_made:
            return
        record = b""
        for written in taken:
            entry = written.entry
            if entry is not None and (written.is_try or returned):
                record += encode(written.queue, entry, returned=returned)
        if not record:
            return
        try:
            with self._lock:
                end = self._end + len(record)
                if end > self._full:
                    record = self._begin_again(record)
                    end = self._end + len(record)
                self._fs.write_at(TRIES, self._end, (record, _END))
                self._end = end
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def _begin_again(self, record: bytes) -> bytes:
        """What goes to the start: what is held, and this."""
        parts, size = list[bytes](), 0
        for queue, entry in self._held():
            parts.append(encode(queue, entry))
            size += len(parts[-1])
            if size > LARGEST_BYTES // 2:  # what follows a part of an entry is none
                size -= len(parts.pop())
                break
        self._end, self._full = 0, min(max(SIZE_BYTES, 2 * size), LARGEST_BYTES) - len(_END)
        return b"".join((*parts, record))


def encode(queue: str, entry: Entry, *, returned: bool = False) -> bytes:
    """The entry of a message that is taken, or handed back; or of a run of them, which have had as many tries."""
    name, ids = queue.encode(), b"".join(entry.ids) if type(entry) is Run else b""
    tries = RETURNED if returned else entry.tries
    content = _pack_fixed(RUN if ids else tries, entry.seq, entry.message_id, len(name)) + name
    if ids:
        content += _RUN.pack(tries, len(ids)) + ids
    return _pack_checksum(crc32(content)) + content


def decode(data: bytes) -> dict[Taken, int]:
    """By message, how many tries it had when it was last taken. What follows a bad entry is none."""
    found: dict[Taken, int] = {}
    start = 0
    while start + _CHECKSUM.size + _FIXED.size <= len(data):
        (checksum,) = _CHECKSUM.unpack_from(data, start)
        start += _CHECKSUM.size
        had, seq, message_id, length = _FIXED.unpack_from(data, start)
        begin, end = start + _FIXED.size, start + _FIXED.size + length
        name, ids_at = data[begin:end].decode("ascii", "replace"), end
        if had == RUN and end + _RUN.size <= len(data):
            had, size = _RUN.unpack_from(data, end)
            ids_at, end = end + _RUN.size, end + _RUN.size + size
        if end > len(data) or crc32(data[start:end]) != checksum:
            break
        for number, one in enumerate(ids_in(data[ids_at:end]) or [MessageId(message_id)], seq):
            taken = name, number, one
            if had == RETURNED:
                found.pop(taken, None)
            else:
                found[taken] = max(had, found.get(taken, 0))
        start = end
    return found
