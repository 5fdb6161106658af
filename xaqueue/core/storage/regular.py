"""Only regular files are read and written, and nobody ever waits for what else may stand under their names.

A FIFO blocks whoever opens it, a device may do anything, a link leads anywhere, and /dev/zero never ends. So a file is
opened without blocking and without following a link, and what is no regular file is an error that concerns
this one name alone.
"""

from __future__ import annotations

import errno
import os
import stat

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
FOLLOW = READ & ~os.O_NOFOLLOW
"""For files that people write, too, and may replace by a link to one."""
WRITE = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC

DAMAGE = frozenset({errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.EUCLEAN, errno.ELOOP})
"""Errors of a read that mean that this one file is lost; any other (no descriptors, no memory) says nothing of it."""
NO_RIGHTS = frozenset({errno.EACCES, errno.EPERM})
"""Somebody changed the rights, or this is another user: the file itself is sound."""
NO_FILE = frozenset({errno.EISDIR, errno.EUCLEAN})
"""What is raised for what is no regular file."""
NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""What is raised for a directory that is not there, or is none."""

_OF_OTHER_KINDS = NO_FILE | NO_DIRECTORY | NO_RIGHTS | {errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP}
"""Errors of an open that may have met one: a device without a driver, or where none is allowed, or a dangling link."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
}


def open_regular(
    path: str, flags: int = READ, dir_fd: int | None = None, *, mode: int = 0o600
) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and what it is. Raises OSError, of ``NO_FILE`` for anything else of that name."""
    try:
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _OF_OTHER_KINDS:
            stat_regular(path, dir_fd)
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise _no_file(path, found)
    return fd, found


def stat_regular(path: str, dir_fd: int | None = None) -> os.stat_result:
    """What a regular file is. Raises as ``open_regular`` does."""
    found = os.lstat(path, dir_fd=dir_fd)
    if not stat.S_ISREG(found.st_mode):
        raise _no_file(path, found)
    return found


def _no_file(path: str, found: os.stat_result) -> OSError:
    number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EUCLEAN
    return OSError(number, f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'of no known kind')}, not a file", path)


def read_up_to(fd: int, size: int) -> bytes:
    """So many bytes of an open file from where it stands, or all there are. Up to two gigabytes come in one call."""
    data = os.read(fd, size)
    if len(data) in (0, size):
        return data
    chunks, left = [data], size - len(data)
    while left and (chunk := os.read(fd, left)):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def read_at_most(path: str, limit_bytes: int, flags: int = READ) -> bytes:
    """The content of a small file. Raises OSError, also where it is larger."""
    fd, _ = open_regular(path, flags)
    try:
        data = read_up_to(fd, limit_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > limit_bytes:
        raise OSError(errno.EUCLEAN, f"it has more than {limit_bytes:,} bytes, as such a file never has", path)
    return data
