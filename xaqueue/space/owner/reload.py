"""queues.toml is reloaded when it changes; a bad edit keeps the old definitions and says why.

The directory is watched, not the file, because editors replace files. Where the system has no watch to give, the
definitions stay as they were at the start, with a warning.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler

from xaqueue.errors import InvalidArgument
from xaqueue.space.engine.state import Space
from xaqueue.space.model import definitions, layout
from xaqueue.space.owner.observer import Observer

log = logging.getLogger("xaqueue")


class DefinitionsWatch(FileSystemEventHandler):
    """Watches one space's queues.toml until ``stop``. ``complaint`` says what is wrong with it now, or is empty."""

    def __init__(self, root: Path, space: Space) -> None:
        self._path = root / layout.QUEUES
        self._space = space
        self.complaint = ""
        self._observer = Observer()
        self._observer.daemon = True
        try:
            self._observer.schedule(self, str(root), recursive=False)
            self._observer.start()
        except OSError as error:
            log.warning("queues.toml is not watched (%s): restart to reload it", error)
        self.reload()  # it may have changed since the open read it

    def stop(self) -> None:
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Reloads what was moved here, or written and closed; one that is being written in place starts out empty."""
        if str(self._path) not in (event.src_path, event.dest_path):
            return
        with suppress(FileNotFoundError):
            arrived = event.event_type == "created" and self._path.stat().st_size > 0
            if arrived or event.event_type in ("moved", "closed"):
                self.reload()

    def reload(self) -> None:
        """Reads queues.toml now."""
        try:
            parsed = definitions.parse(definitions.read(self._path.parent))
        except (OSError, InvalidArgument, UnicodeDecodeError) as error:
            self.complaint = str(error)
            log.warning("queues.toml is not taken, the old definitions hold: %s", error)
            return
        self.complaint = ""
        if parsed != self._space.definitions:
            self._space.redefine(parsed)
            log.info("queues.toml reloaded: %d queues", len(parsed.queues))
