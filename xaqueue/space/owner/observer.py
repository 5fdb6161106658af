"""The watching library, without its complaint of events that come while it is stopped, which are meant for nobody."""

from __future__ import annotations

import logging

from watchdog.observers import Observer

__all__ = ["Observer"]


def _is_wanted(record: logging.LogRecord) -> bool:
    return "called when the thread is inactive" not in record.getMessage()


logging.getLogger("watchdog.observers.inotify").addFilter(_is_wanted)
