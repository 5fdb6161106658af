"""Where a server that a job started for itself listens and says what it does: found from the space's path alone.

Nothing of it is a file of the space but the socket, and that only where its path is short enough for one. All else is
in a directory that no other user can write to.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from xaqueue.endpoint import UNIX_PATH_LIMIT_BYTES
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.model.layout import SOCKET
from xaqueue.spark.java import cache_directory

LOG_BYTES = 1024 * 1024
"""A log that has grown larger is begun anew."""
TOLD_LINES = 5
OTHERS_WRITE = 0o022


def log_of(root: Path) -> Path:
    """The server's log; its lock is held by whoever starts one. Raises OperationalError."""
    return _private_directory() / f"serve-{_digest(root)}.log"


def open_log(log: Path) -> BinaryIO:
    """To write behind what an earlier server said."""
    return log.open("ab" if not log.exists() or log.stat().st_size < LOG_BYTES else "wb")


def last_words(log: Path) -> str:
    """The end of a log, as part of a sentence."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return f"it said {' / '.join(lines[-TOLD_LINES:]) or 'nothing'} (in {log})"


def socket_of(root: Path) -> Path:
    """A path that is short enough for a socket: in the space, or else in a directory of this user's."""
    if _is_short(root / SOCKET):
        return root / SOCKET
    for place in _candidates():
        with suppress(OSError, RuntimeError):
            found = place() / f"{_digest(root)}.sock"
            if _is_short(found):
                _make(found.parent)
                return found
    raise InvalidArgument(f"no socket can be made for {root}: set TMPDIR to a directory with a short path")


def _is_short(path: Path) -> bool:
    return len(os.fsencode(path)) <= UNIX_PATH_LIMIT_BYTES


def _digest(root: Path) -> str:
    return sha256(os.fsencode(root.resolve())).hexdigest()[:12]


def _private_directory() -> Path:
    """The user's cache, or a directory for temporary files where the user has no home."""
    for place in _candidates():
        with suppress(OSError, RuntimeError):
            return _make(place())
    raise OperationalError("no directory can be made for a server's log: set XDG_CACHE_HOME to one of yours")


def _candidates() -> Iterator[Callable[[], Path]]:
    yield partial(cache_directory, os.environ)
    yield lambda: Path(tempfile.gettempdir()) / f"xaqueue-{os.getuid()}"


def _make(directory: Path) -> Path:
    """Raises OSError where others could replace what is in it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & OTHERS_WRITE:
        raise PermissionError(f"{directory} is not this user's alone")
    return directory
