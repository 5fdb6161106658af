"""A log of text lines that is only ever added to. What a crash tore off its end is closed by the next line."""

from __future__ import annotations

import errno

from xaqueue.storage.fs import FileSystem

LIMIT_BYTES = 256 * 1024 * 1024


def append(fs: FileSystem, path: str, line: bytes) -> None:
    """Writes one line; the caller syncs the file, and its directory where it may be new. Raises OSError."""
    there = _content(fs, path) if fs.exists(path) else b""
    torn = b"\n" if there and not there.endswith(b"\n") else b""
    fs.write_at(path, len(there), [torn + line + b"\n"])


def read(fs: FileSystem, path: str) -> list[bytes]:
    """The lines, those that were torn among them; none where there is no file."""
    try:
        return [line for line in _content(fs, path).split(b"\n") if line]
    except FileNotFoundError:
        return []


def _content(fs: FileSystem, path: str) -> bytes:
    if fs.size(path) > LIMIT_BYTES:
        raise OSError(errno.EUCLEAN, f"it has more than {LIMIT_BYTES:,} bytes: move it away", path)
    return fs.read(path)
