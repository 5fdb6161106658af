"""Files that a person named: the old one stands until the new one is whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from xaqueue.errors import SpaceError


@contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Writes beside the file, and puts that in its place, durably, where the block ends well. A pipe or a device is
    written itself. mode: of the file; without it as it was, or as new files are. Raises SpaceError.
    """
    place = file.resolve()  # of a link what it leads to
    try:
        if place.exists() and not place.is_file():
            with place.open("wb") as made:
                yield made
            return
        descriptor, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    except OSError as error:
        raise SpaceError(f"{file} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as made:
            yield made
            made.flush()
            os.fchmod(descriptor, _mode_of(place) if mode is None else mode)
            os.fsync(descriptor)
        Path(beside).replace(place)
    except OSError as error:
        Path(beside).unlink(missing_ok=True)
        raise SpaceError(f"{file} cannot be written: {error.strerror}. It is as it was") from error
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # else a power cut brings a token back that was taken away since
    finally:
        os.close(directory)


def _mode_of(place: Path) -> int:
    try:
        return place.stat().st_mode & 0o7777
    except OSError:
        mask = os.umask(0o077)
        os.umask(mask)
        return 0o666 & ~mask
