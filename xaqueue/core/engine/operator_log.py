"""operators.log: what a person decides of a branch, before it is decided, and who forgets that, before it is forgotten.

One line of JSON each, hardened to the level of the space before what it tells of; lines are only ever added. A crash
may leave a torn last line, which is skipped, or the line of what was not done then: a decision that is not forgotten
yet is told once more when it is. What the transaction manager forgets was told to it, and stands in its own log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from xaqueue.core.engine.state import Space
from xaqueue.core.model.format import read_format
from xaqueue.core.model.layout import OPERATORS
from xaqueue.core.storage import append_log
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import NO_ROOM, FileSystem
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import RetryLater


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A line: a decision, and who ended its memory, if anybody did. Times are int microseconds UTC."""

    xid: str
    outcome: str
    by: str
    at: int
    reason: str
    forgotten_by: str = ""
    forgotten_at: int = 0
    forgotten_reason: str = ""


def append(space: Space, entry: Forgotten) -> None:
    """Raises RetryLater without room, ResourceFailed."""
    space.check()
    try:
        append_log.append(space.fs, OPERATORS, entry)
    except OSError as error:
        if error.errno not in NO_ROOM | NO_FILE:
            raise space.fence(error) from error
        done = "forgotten" if entry.forgotten_at else "done"
        raise RetryLater(f"{OPERATORS} cannot be written ({error.strerror}): nothing was {done}") from error
    space.log.sync_contents((OPERATORS,))
    space.log.sync_names(("",))


def forgotten(path: str | os.PathLike[str]) -> list[Forgotten]:
    """The decisions that operators forgot, in their order. Raises SpaceError where the directory is no space."""
    read_format(path)
    return forgotten_in(DirectoryFileSystem(Path(path), keep_unsynced=False))


def forgotten_in(fs: FileSystem) -> list[Forgotten]:
    """As ``forgotten``, of the space behind a port."""
    return [line for line in append_log.read(fs, OPERATORS, Forgotten) if line.forgotten_at]
