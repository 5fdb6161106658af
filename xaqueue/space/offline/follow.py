"""A queue is followed as it grows, by a reader that owns nothing: what is at or below the watermark, in its order.

The owner writes the watermark once for each group of commits, so its file is what is watched; the messages between the
old mark and the new one are then read. Where the file system tells of no changes (network mounts), a look every
``IDLE_S`` seconds does. What is consumed before it is read is not seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from xaqueue.errors import InvalidArgument
from xaqueue.message import MessageId
from xaqueue.space.model import layout
from xaqueue.space.model.format import read_format
from xaqueue.space.offline.reader import QueueReader

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

IDLE_S = 1.0
EARLIEST, LATEST = "earliest", "latest"
_CHANGES = frozenset({"modified", "created", "moved", "closed"})
"""Reading a file makes events too; following those would be following oneself."""

Followed = tuple[int, MessageId, bytes]
"""Sequence number, message id, and the bytes of the message's block."""


def start_after(reader: QueueReader, start: str) -> int:
    """The sequence number behind which ``start`` begins: "earliest", "latest", or the first number wanted.

    Raises InvalidArgument, SpaceError.
    """
    if start == EARLIEST:
        return 0
    if start == LATEST:
        return reader.watermark()
    if not (start.isascii() and start.isdigit()) or int(start) > layout.LAST_SEQ:
        raise InvalidArgument(f"start {start!r} is refused: a sequence number, {EARLIEST} or {LATEST} is wanted")
    return max(int(start) - 1, 0)


def follow(
    path: str | os.PathLike[str],
    queue: str,
    *,
    start: str = LATEST,
    stopped: threading.Event | None = None,
    idle_s: float = IDLE_S,
) -> Iterator[Followed]:
    """Messages of the queue, and then those that come, until ``stopped`` is set; the queue may not exist yet.

    ``stopped`` is noticed at the next message or look. Raises SpaceError, InvalidArgument.
    """
    read_format(path)
    reader = QueueReader(path, queue)
    stopped = stopped or threading.Event()
    after = start_after(reader, start)
    with _Watch(Path(path), queue) as watch:
        while not stopped.is_set():
            watch.arm()
            upto = reader.watermark()
            for followed in reader.read(after, upto):
                if stopped.is_set():
                    return
                yield followed
            after = max(after, upto)
            watch.wait(idle_s)


class _Watch:
    """Waits for a change of the watermark file, or, before there is one, of the directories above it."""

    def __init__(self, root: Path, queue: str) -> None:
        self._committed = root / layout.COMMITTED
        self._queue = root / layout.queue_path(queue)
        self._changed = threading.Event()
        self._watches_queue = False

    def __enter__(self) -> _Watch:
        from xaqueue.space.owner.observer import Observer

        self._observer = Observer()
        self._observer.daemon = True
        self._observer.start()
        self._schedule(self._committed)
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.stop()
        self._observer.join()

    def arm(self) -> None:
        """Called before the watermark is read, so that no change after that reading is missed."""
        self._changed.clear()
        if not self._watches_queue and self._queue.is_dir():
            self._watches_queue = self._schedule(self._queue)

    def wait(self, timeout_s: float) -> None:
        self._changed.wait(timeout_s)

    def _schedule(self, directory: Path) -> bool:
        """Whether the system watches the directory; without it the idle look has to do."""
        from watchdog.events import FileSystemEventHandler

        watch = self

        class Changes(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if event.event_type in _CHANGES:
                    watch._changed.set()

        try:
            self._observer.schedule(Changes(), str(directory), recursive=False)
        except OSError:
            return False
        return True
