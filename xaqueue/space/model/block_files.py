"""A block's file is read as far as its own head says, however large it is: the rest would only show that it is none."""

from __future__ import annotations

import os

from xaqueue.errors import DamagedBlock
from xaqueue.space.model.block import HEAD_READ_BYTES, told_bytes
from xaqueue.storage.fs import FileSystem, is_damage
from xaqueue.storage.regular import NO_FILE, READ, open_regular, read_up_to


def read_block(fs: FileSystem, path: str) -> bytes:
    """What stands there, and of more than its head says a byte, by which it shows. Raises OSError."""
    data = fs.read(path, HEAD_READ_BYTES)
    return data if len(data) < HEAD_READ_BYTES else fs.read(path, told_bytes(data) + 1)


def damage_of(fs: FileSystem, path: str, error: OSError) -> Exception:
    """The DamagedBlock that a failed read of this one file is, or the error itself where it concerns the space."""
    if is_damage(fs, path, error):
        return DamagedBlock(f"cannot be read: {error.strerror}")
    return error


def read_message(directory: int, name: str, flags: int = READ) -> tuple[bytes, int] | None:
    """The same of a message in an open directory, and its commit time in nanoseconds; None when it is consumed.

    Empty where no file stands there, as for a damaged message. Raises OSError.
    """
    try:
        fd, found = open_regular(name, flags, directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return b"", 0
    try:
        data = os.read(fd, HEAD_READ_BYTES)
        if len(data) == HEAD_READ_BYTES:
            data += read_up_to(fd, told_bytes(data) + 1 - HEAD_READ_BYTES)
    finally:
        os.close(fd)
    return data, found.st_mtime_ns
