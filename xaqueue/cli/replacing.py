"""Files that a person named: the old one stands until the new one is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.owner_file import try_lock
from xaqueue.errors import SpaceError


@contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Writes beside the file, and puts that in its place, durably, where the block ends well. A pipe or a device is
    written itself. mode: of the file; without it as it was, or as new files are. Raises SpaceError.

    What a command that was killed has left beside it goes with the next one.
    """
    place = file.resolve()  # of a link what it leads to
    beside = place.with_name(f".{place.name}.new")
    try:
        if place.exists() and not place.is_file():
            with place.open("wb") as made:
                yield made
            return
        descriptor = _made(beside)
    except BlockingIOError:
        raise SpaceError(f"{file} is being written by another command: wait until that is done") from None
    except OSError as error:
        raise SpaceError(f"{file} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as made:
            try:
                yield made
                made.flush()
                os.fchmod(descriptor, _mode_of(place) if mode is None else mode)
                os.fsync(descriptor)
                beside.replace(place)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
    except OSError as error:
        if error.filename not in (None, os.fspath(beside)):
            raise  # of another file, which the block has written
        raise SpaceError(f"{file} cannot be written: {error.strerror}. It is as it was") from error
    try:
        with (
            suppress(PermissionError),  # of a directory that may not be read
            closing(DirectoryFileSystem(place.parent, keep_unsynced=False)) as fs,
        ):
            fs.sync_dir("")
    except OSError as error:
        raise SpaceError(f"{file} is written, and a power loss may undo that: {error.strerror}") from error


def _made(beside: Path) -> int:
    """New, private, and locked for as long as it is open. Raises OSError; BlockingIOError: another command has it."""
    while True:
        with suppress(FileNotFoundError):
            left = os.open(beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _is_locked_by_its_name(left, beside):
                    beside.unlink()
            finally:
                os.close(left)
        with suppress(FileExistsError):
            made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                if _is_locked_by_its_name(made, beside):
                    return made
            except BaseException:
                os.close(made)
                raise
            os.close(made)


def _is_locked_by_its_name(descriptor: int, path: Path) -> bool:
    """False: another command has removed it meanwhile. Raises BlockingIOError where another one has the lock."""
    if not try_lock(descriptor):
        raise BlockingIOError
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _mode_of(place: Path) -> int:
    try:
        return place.stat().st_mode & 0o7777
    except OSError:
        mask = os.umask(0o077)
        os.umask(mask)
        return 0o666 & ~mask
