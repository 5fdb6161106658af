"""Edits of a space's queues.toml, and what holds then.

One at a time, of all processes; an owner that watches the file takes what it says, and the one that edits it at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from xaqueue.core.engine.features import Definer
from xaqueue.core.engine.state import Space
from xaqueue.core.model import definitions
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.layout import GOOD_QUEUES, QUEUES
from xaqueue.core.owner.definitions_file import hardening_of, keep_good, read_good, write_definitions
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.errors import InvalidArgument, RetryLater, SpaceError
from xaqueue.features.defining import edits

EDIT_S = 10.0
"""How long an edit waits for others."""
PAUSE_S = 0.01

_defining = threading.Lock()


@contextmanager
def editing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Around reading and replacing queues.toml: one edit at a time, else two that read the same text lose the first.

    Of all processes, where the directory can be locked; NFS takes no lock on one. Raises RetryLater, OSError.
    """
    lock = FileLock(path, create=False)
    with _defining, ExitStack() as stack:
        stack.callback(lock.release)
        until = time.monotonic() + EDIT_S
        with suppress(SpaceError):
            while not lock.acquire():
                if time.monotonic() > until:
                    raise RetryLater("queues.toml is being changed by another process: nothing was changed")
                time.sleep(PAUSE_S)
        yield


def define(
    path: str | os.PathLike[str],
    name: str,
    settings: Mapping[str, object],
    table: str = "queues",
    hardening: Hardening | None = None,
) -> Definitions:
    """Edits queues.toml, durably; an owner that watches it takes that. Returns what it says then.

    settings: keys of its table; None takes one away. table: see ``with_queue``. hardening: of the space, where that is
    open. Raises InvalidArgument, RetryLater, and nothing was changed; OSError.
    """

    def edit(text: str) -> str:
        changed = edits.with_queue(text, name, settings, table)
        parsed = definitions.parse(changed)
        parsed.check_sync(hardening or hardening_of(None, parsed))
        return changed

    return definitions.parse(edit_definitions(path, edit))


def edit_definitions(path: str | os.PathLike[str], edit: Callable[[str], str]) -> str:
    """Likewise, by any edit of its text, which is returned. Raises as that does, and then nothing was changed."""
    with editing(path):
        text = _read(path)
        changed = edit(text)
        if changed != text:
            write_definitions(path, changed)
    return changed


def _read(path: str | os.PathLike[str]) -> str:
    """Of queues.toml, or where that is gone of its last good copy, so that an edit loses nothing."""
    if (Path(path) / QUEUES).exists():
        return definitions.read(path)
    return read_good(path) if (Path(path) / GOOD_QUEUES).exists() else ""


class QueuesFile(Definer):
    """What a space is defined by."""

    def __init__(self, root: Path, space: Space) -> None:
        self.root = root
        self._space = space

    def define(self, name: str, settings: Mapping[str, object], table: str) -> None:
        """Holds at once, also where nobody watches the file."""
        space = self._space
        space.check_owner()
        try:
            with space.defining:
                space.redefine(define(self.root, name, settings, table, space.hardening))
                with suppress(InvalidArgument):  # somebody edits it just now
                    keep_good(self.root)
        except (OSError, UnicodeDecodeError) as error:
            raise RetryLater(f"queues.toml cannot be changed ({error}): nothing was defined") from error
        space.wakes.consumed.wake()  # a new limit may be one that some messages have reached

    def undefine(self, queue: str) -> None:
        """It holds in memory first, so that nobody adds a message while the file is replaced: a crash before that
        leaves an empty queue with its definition."""
        space = self._space
        space.check_owner()
        try:
            with space.defining, editing(self.root):
                changed, before = edits.without_queue(_read(self.root), queue), space.definitions
                space.redefine(definitions.parse(changed), partial(check_empty, space, queue))
                try:
                    write_definitions(self.root, changed)
                except BaseException:
                    space.redefine(before)
                    raise
        except (OSError, UnicodeDecodeError) as error:
            raise RetryLater(f"queues.toml cannot be changed ({error}): nothing was changed") from error


def check_empty(space: Space, name: str) -> None:
    """Called with the lock held. Raises RetryLater, QueueReserved, QueueWaiting."""
    queue = space.queue(name)
    if queue.keeper is not None:
        raise queue.keeper.refusal()
    why = space.why_shut(name)
    if why is not None:
        raise why
    there, adding = len(queue.index), len(queue.pending)
    if there or adding:
        raise RetryLater(
            f"queue {name} stays defined: it has {there:,} messages ({queue.index.locked:,} held, or leaving), and "
            f"transactions are adding {adding:,}. Take, move or `xaqueue purge` them first"
        )
