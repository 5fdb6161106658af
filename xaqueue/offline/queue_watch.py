"""A queue's watermark is watched by whoever follows the queue: its directory, because the file may be replaced."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from xaqueue.core.model import layout
from xaqueue.core.owner.watches import is_wanted

_CHANGES = frozenset({"modified", "created", "moved", "closed"})
"""Reading a file makes events too; following those would be following oneself."""

logging.getLogger("watchdog.observers.inotify").addFilter(is_wanted)


class QueueWatch(FileSystemEventHandler):
    """Waits for a change of a queue's watermark, or, before there is one, of the directories above it."""

    def __init__(self, root: Path, queue: str) -> None:
        self._queue = root / layout.queue_path(queue)
        self._changed = threading.Event()
        self._watches_queue = False
        self._observer = Observer()
        self._observer.daemon = True

    def __enter__(self) -> QueueWatch:
        self._observer.start()
        self._schedule(self._queue.parent)
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

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _CHANGES:
            self._changed.set()

    def _schedule(self, directory: Path) -> bool:
        """Whether the system watches the directory; without it the idle look has to do."""
        try:
            self._observer.schedule(self, str(directory), recursive=False)
        except OSError:
            return False
        return True
