"""The file port: every operation on a space's files goes through these few calls, so that a test can forget them.

Paths are relative to the directory that the port was opened on. Nothing here retries, and nothing here knows what a
file means.
Assumed of the system: ``rename`` is atomic across a crash, and a sync that returns has told the truth.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from xaqueue.core.storage.regular import DAMAGE

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
"""Errors that mean "not now": room on the disk, or descriptors. Nothing was done and nothing is damaged."""

NO_LINK = frozenset({errno.EMLINK, errno.EXDEV, errno.EPERM, errno.ENOTSUP})
"""Errors that mean that a file cannot have this name as well: it has too many, or the file system takes none."""


Syncing = Callable[[], object] | None
"""What is called between a write and its sync."""
Writer = Callable[[int, Sequence[bytes]], object]
"""``FileSystem.write_synced`` of one file."""


class Room(NamedTuple):
    """What is left of a file system for such as us, and how much it has in all."""

    free_bytes: int
    total_bytes: int
    free_inodes: int
    total_inodes: int
    """0 where the file system does not count them."""


class FileSystem(Protocol):
    """What the engine needs of a file system. Errors are OSError."""

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        """Makes a file that must not exist, of these chunks and this time (0: now); if it fails nothing is left."""

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        """Overwrites part of a file in place with the chunks, creating it where it is missing."""

    def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
        """``write_at`` and ``sync_data``, in one call of the system where it has that and nothing is between. By a
        descriptor of its own, which hears of each write that fails, whoever else writes to this file or syncs it.
        Raises one of ``NO_ROOM`` only where nothing was synced: where nobody knows which of the two it is, it is the
        sync that failed.
        """

    def writer(self, path: str) -> Writer:
        """For who calls ``write_synced`` of this file often."""

    def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        """The file from an offset on, all of it or ``size`` bytes. Raises one of ``NO_FILE`` for no regular file."""

    def size(self, path: str) -> int: ...

    def modified_ns(self, path: str) -> int: ...

    def set_modified_ns(self, path: str, when_ns: int) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomically moves a file, replacing a target that exists."""

    def link(self, source: str, target: str) -> None:
        """Gives a file one more name, which must not exist. Raises one of ``NO_LINK`` where it cannot have that."""

    def unlink(self, path: str) -> None: ...

    def make_dir(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]:
        """The names in a directory, in no order."""

    def is_dir(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def hold_dir(self, path: str) -> None:
        """Opens a directory for a ``sync_dir`` that must not fail for want of a descriptor; the root for ``sync_all``
        as well, which then misses no failure.
        """

    def sync_file(self, path: str) -> None:
        """fsync: content and metadata of the file are on disk."""

    def sync_data(self, path: str) -> None:
        """fdatasync: the content of the file, and what is needed to read it, is on disk."""

    def sync_dir(self, path: str) -> None:
        """The names in the directory are on disk."""

    def sync_all(self) -> None:
        """Everything that was done in this file system before the call is on disk, content and names."""

    def room(self) -> Room: ...

    def close(self) -> None: ...


def write_then_sync(fs: FileSystem, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
    """``write_synced`` as two calls of the port, for one to which descriptors are nothing."""
    fs.write_at(path, offset, chunks)
    if syncing is not None:
        syncing()
    synced(fs.sync_data, path)


def writer_of(fs: FileSystem, path: str) -> Writer:
    """``FileSystem.writer`` of a port whose ``write_synced`` is to see each call."""
    return lambda offset, chunks: fs.write_synced(path, offset, chunks)


def replace_file(fs: FileSystem, path: str, content: bytes, *, durable: bool = True) -> None:
    """Writes a file of the root directory new and renames it, so that nobody ever finds a part. Raises OSError."""
    new = f".{path}.new"
    if fs.exists(new):
        fs.unlink(new)
    fs.create(new, [content])
    if durable:
        fs.sync_file(new)
    fs.rename(new, path)
    if durable:
        fs.sync_dir("")


def is_damage(fs: FileSystem, path: str, error: OSError) -> bool:
    """Whether a failed read means that this one file is damaged; a name that is there and leads nowhere is, too."""
    return error.errno in DAMAGE or (error.errno == errno.ENOENT and fs.exists(path))


@contextmanager
def suppress_room() -> Iterator[None]:
    """What finds no room is not done."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def lasting(error: OSError, path: str = "") -> OSError:
    """The error of a failed sync, which must not pass for a call that had no room and did nothing."""
    return OSError(errno.EIO, f"sync failed: {error.strerror}", path) if error.errno in NO_ROOM else error


def synced(sync: Callable[..., object], *path: str) -> None:
    """Raises OSError, never one of ``NO_ROOM``."""
    try:
        sync(*path)
    except OSError as error:
        raise lasting(error, *path) from error


def remove_all(fs: FileSystem, paths: Iterable[str]) -> None:
    """Files go, as far as they are there. Raises OSError."""
    for path in paths:
        with suppress(FileNotFoundError):
            fs.unlink(path)


def discard(fs: FileSystem, path: str) -> None:
    """A file that can be made again goes, if it is there; a directory of that name stays. Raises OSError."""
    with suppress(FileNotFoundError, IsADirectoryError):
        fs.unlink(path)
