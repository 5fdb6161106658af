"""A log of records, one line of JSON each, that is only ever added to.

What a crash tore off its end is closed by the next line.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from xaqueue.core.storage.fs import FileSystem

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
LIMIT_BYTES = 256 * 1024 * 1024


def append(fs: FileSystem, path: str, record: DataclassInstance) -> None:
    """Writes one record; the caller syncs the file, and its directory where it may be new. Raises OSError."""
    there = _content(fs, path) if fs.exists(path) else b""
    torn = b"\n" if there and not there.endswith(b"\n") else b""
    fs.write_at(path, len(there), [torn + json.dumps(asdict(record)).encode() + b"\n"])


def read(fs: FileSystem, path: str, record: Callable[..., T]) -> list[T]:
    """What ``record`` makes of the fields of each; none where there is no file."""
    found: list[T] = []
    try:
        lines = _content(fs, path).split(b"\n")
    except FileNotFoundError:
        return found
    for line in filter(None, lines):
        try:
            found.append(record(**json.loads(line)))
        except (ValueError, TypeError):
            continue  # torn by a crash, or of a later version
    return found


def _content(fs: FileSystem, path: str) -> bytes:
    if fs.size(path) > LIMIT_BYTES:
        raise OSError(errno.EUCLEAN, f"it has more than {LIMIT_BYTES:,} bytes: move it away", path)
    return fs.read(path)
