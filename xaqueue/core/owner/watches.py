"""queues.toml is watched by the owner of a space: the directory, not the file, because editors replace files. Where the
system has no watch to give, the definitions stay as they were at the start, with a warning.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from watchdog.events import FileClosedEvent, FileCreatedEvent, FileMovedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from xaqueue.core.engine.state import Space
from xaqueue.core.model import definitions, layout, options
from xaqueue.core.owner.definitions_file import keep_good
from xaqueue.errors import InvalidArgument

_ARRIVALS: list[type[FileSystemEvent]] = [FileMovedEvent, FileCreatedEvent, FileClosedEvent]
"""The kernel tells of these alone: a write into a file that stays open, like the register of tries, wakes nobody."""

log = logging.getLogger("xaqueue")


def is_wanted(record: logging.LogRecord) -> bool:
    """Not the library's complaint of events that come while it is stopped, which are meant for nobody."""
    return "called when the thread is inactive" not in record.getMessage()


logging.getLogger("watchdog.observers.inotify").addFilter(is_wanted)


class DefinitionsWatch(FileSystemEventHandler):
    """Reloads one space's queues.toml when it changes, until ``stop``; a bad edit keeps the old definitions.

    ``complaint`` says what is wrong with it now, or is empty.
    """

    def __init__(self, root: Path, space: Space) -> None:
        self._path = root / layout.QUEUES
        self._space = space
        self.complaint = ""
        self._observer = Observer()
        self._observer.daemon = True
        try:
            self._observer.schedule(self, str(root), recursive=False, event_filter=_ARRIVALS)
            self._observer.start()
        except OSError as error:
            log.warning("[definitions-unwatched] queues.toml is not watched (%s): restart to reload it", error)
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
        with self._space.defining:
            try:
                text = definitions.read(self._path.parent)
                parsed = definitions.parse(text).check_sync(self._space.hardening)
                for check in options.everything().reloading:
                    check(self._space, parsed)
            except (OSError, InvalidArgument, UnicodeDecodeError) as error:
                self.complaint = str(error)
                log.warning("[definitions-refused] queues.toml is not taken, the old definitions hold: %s", error)
                return
            self.complaint = ""
            if self._space.read_only is None:
                keep_good(self._path.parent, text=text)
            if parsed == self._space.definitions:
                return
            self._space.redefine(parsed)
        self._space.wakes.consumed.wake()  # a new limit may be one that some messages have reached
        log.info("[definitions-reloaded] queues.toml reloaded: %d queues", len(parsed.queues))
