"""A block's file is read as far as its own head says, however large it is: the rest would only show that it is none."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from xaqueue.core.model import layout
from xaqueue.core.model.block import (
    HEAD_READ_BYTES,
    MESSAGE_BYTES,
    NO_TRY,
    Head,
    Kind,
    head_of,
    pack,
    pack_properties,
    size_in_head,
)
from xaqueue.core.model.branch import Written
from xaqueue.core.model.message_block import (
    BLOCK,
    MOST_BYTES,
    Table,
    check_block,
    decode_copy,
    decode_gone,
    decode_table,
    read_taken,
)
from xaqueue.core.model.message_name import Named
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import NO_LINK, FileSystem, is_damage
from xaqueue.core.storage.regular import NO_DIRECTORY
from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId, Properties


def listed(fs: FileSystem, path: str) -> list[str]:
    """The names in a directory, sorted, without those that start with a dot; none where it is gone."""
    try:
        return sorted(name for name in fs.list(path) if not name.startswith("."))
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        return []


def ranges_in(fs: FileSystem, queue: str) -> list[int]:
    """The numbers of a queue's range directories, ascending."""
    names = listed(fs, layout.queue_path(queue))
    return sorted(number for name in names if (number := layout.parse_range(name)) is not None)


def dequeue_block(written: Written, epoch: int, queue: Queue) -> bytes:
    """The block that names the message to remove, says how many tries that had had, and in which block it lies."""
    entry = written.entry
    block = entry.block or queue.block_of(entry.seq) if queue.blocks and entry is not None else None
    if block is None or entry is None:
        packed = _packed(written.queue, entry.tries if entry is not None else 0, written.is_try)
    else:  # as ``pack_properties``, without the values
        had = {"tries": entry.tries} if entry.tries else {}
        unknown: dict[str, Any] = {} if written.is_try else {NO_TRY: True}
        named, bits = block.named, block.bits(entry).to_bytes((block.count + 7) // 8, "little")
        unknown[BLOCK] = named.first, named.message_id, block.count, bits
        packed = pack({"queue": written.queue, **had, **unknown})
    head, written.checksum = head_of(Kind.DEQUEUE, written.message_id, packed, b"", epoch)
    return head


@lru_cache(maxsize=1024)
def _packed(queue: str, tries: int, is_try: bool) -> bytes:
    return pack_properties(Properties(queue, tries=tries, unknown={} if is_try else {NO_TRY: True}))


def make_shared(fs: FileSystem, written: Written, path: str, chunks: Sequence[bytes]) -> None:
    """The file of a block whose content others of its branch have: another name of the file that has it, or a file of
    its own where there is none, or links end. Raises OSError."""
    if (first := written.shared) is not None and first.path:
        try:
            fs.link(first.path, path)
        except OSError as error:
            if error.errno not in (*NO_LINK, errno.ENOENT):  # it went meanwhile
                raise
        else:
            return
    fs.create(path, chunks)
    written.shared = written


def read_block(fs: FileSystem, path: str, at_once: int = HEAD_READ_BYTES) -> bytes:
    """What stands there, and of more than its head says a byte, by which it shows. Raises OSError."""
    data = fs.read(path, at_once)
    return data if len(data) < at_once else fs.read(path, size_in_head(data) + 1)


def read_checked(fs: FileSystem, path: str, at_once: int = HEAD_READ_BYTES) -> bytes:
    """The same. Raises DamagedBlock where that one file cannot be read, FileNotFoundError, any other OSError."""
    try:
        return read_block(fs, path, at_once)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise damage_of(fs, path, error) from error


def read_gone(fs: FileSystem, queue: str, named: Named) -> int:
    """What is gone of a block of messages: nothing where it has no bitmap. Raises DamagedBlock, OSError.

    It is read before the block, which goes first: who reads them so is shown nothing that was gone before. Its owner
    may overwrite it in place meanwhile: what changes is no damage. A crash leaves it empty, or zeros, while the first
    of them are on their way.
    """
    data = None
    while True:
        before = data
        try:
            data = read_checked(fs, layout.gone_path(queue, named))
            return decode_gone(data, queue, named) if data.strip(b"\0") else 0
        except FileNotFoundError:
            return 0
        except DamagedBlock:
            if data == before:
                raise


def read_messages(fs: FileSystem, queue: str, named: Named) -> tuple[Table, bytes]:
    """The table of a block of messages, which is the one of this name, and its whole file; the bodies are not checked.
    Raises FileNotFoundError, DamagedBlock where both tables are damaged, any other OSError."""
    data = read_checked(fs, layout.messages_path(queue, named), MOST_BYTES)
    try:
        table = decode_table(data)
    except DamagedBlock:
        table = decode_copy(data)
    check_block(table, queue, named)
    return table, data


def read_table(fs: FileSystem, queue: str, named: Named) -> Table:
    """The same without the bodies."""
    path = layout.messages_path(queue, named)
    try:
        table = decode_table(fs.read(path, 1024 + MESSAGE_BYTES * named.count))
    except (DamagedBlock, OSError):  # as damaged, or with properties as large as this
        return read_messages(fs, queue, named)[0]
    check_block(table, queue, named)
    return table


def ids_taken(fs: FileSystem, head: Head) -> list[MessageId]:
    """Of the messages that the block of a dequeue names; of a block that is gone or damaged that of the first."""
    found, taken = [head.message_id], read_taken(head.properties)
    if taken is not None and taken[1].bit_count() > 1:
        with suppress(DamagedBlock, FileNotFoundError):
            table = read_table(fs, head.properties.queue, taken[0])
            found += [table.message_id(index) for index in table.left(0) if taken[1] >> index & 1]
    return [*dict.fromkeys(found)]


def damage_of(fs: FileSystem, path: str, error: OSError) -> Exception:
    """The DamagedBlock that a failed read of this one file is, or the error itself where it concerns the space."""
    if is_damage(fs, path, error):
        return DamagedBlock(f"cannot be read: {error.strerror}")
    return error
