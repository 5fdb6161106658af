"""Log events on stderr: one line each, with time, level and the code that stands first in its message, or as JSON.

Every event of the package begins with ``[code]``; LOG EVENTS in xaqueue-operating(7) lists them. A program that
configures logging itself, such as one that embeds a space or a worker's function, decides how they look, and nothing
here does.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from xaqueue.cli.output import one_line

WAITING = 10_000
"""Events that wait to be written."""
FINISH_S = 1.0

log = logging.getLogger("xaqueue.server")
_CODE = re.compile(r"\[([a-z-]+)\] (.*)", re.DOTALL)
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class PlainFormatter(logging.Formatter):
    """Nothing in a message begins a new line or moves the cursor: a peer may have chosen a part of it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


class TextFormatter(PlainFormatter):
    """Of a program that runs on. Times are UTC, to the millisecond."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")


class JsonFormatter(logging.Formatter):
    """An object a line."""

    def format(self, record: logging.LogRecord) -> str:
        found = _CODE.fullmatch(record.getMessage()) if record.name.startswith("xaqueue") else None
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "code": found[1] if found else None,
            "logger": record.name,
            "message": found[2] if found else record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def begin(*, verbose: bool) -> None:
    """What any verb says of what it meets."""
    _use(PlainFormatter("xaqueue: %(message)s"))
    use_level("info" if verbose else "warning")


def _use(formatter: logging.Formatter) -> None:
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(formatter)


def use_format(wanted: LogFormat) -> LogFormat:
    _use(JsonFormatter() if wanted == "json" else TextFormatter())
    return wanted


def use_level(wanted: LogLevel | None) -> LogLevel | None:
    if wanted is not None and logging.lastResort is not None:
        logging.lastResort.setLevel(wanted.upper())
        logging.getLogger("xaqueue").setLevel(wanted.upper())
    return wanted


class WrittenAside(logging.Handler):
    """Events are written by a thread of their own, so that nobody waits for whoever reads them, or does not.

    What comes beyond ``WAITING`` is dropped, and an event tells how many that were once there is room again.
    """

    def __init__(self, handler: logging.Handler, descriptor: int) -> None:
        super().__init__(handler.level)
        self.formatter = handler.formatter
        self._descriptor = descriptor
        self._waiting: queue.Queue[bytes] = queue.Queue(WAITING)
        self._lost = 0
        threading.Thread(target=self._write, name="xaqueue-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # of an argument, an error of a driver perhaps: no log call may fail for it
            text = f"{record.msg} (it cannot be formatted: {type(error).__name__})"
            line = self.format(logging.makeLogRecord({**vars(record), "msg": text, "args": (), "exc_info": None}))
        try:
            self._waiting.put_nowait(f"{line}\n".encode("utf-8", "backslashreplace"))
        except queue.Full:
            self._lost += 1

    def finish(self, limit_s: float) -> None:
        """Waits until all is written, so long at most."""
        deadline = time.monotonic() + limit_s
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def _write(self) -> None:
        while True:
            left = self._waiting.get()
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:  # nobody will ever read it
                pass
            finally:
                self._waiting.task_done()
            if self._lost:
                lost, self._lost = self._lost, 0
                log.warning("[events-lost] %d events were dropped: whoever reads stderr was too slow", lost)


@contextmanager
def written_aside() -> Iterator[None]:
    """Around a program that runs on. Where stderr is no file of the process, as in a test, nothing is changed."""
    before = logging.lastResort
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        before = None
    if before is None:
        yield
        return
    aside = WrittenAside(before, descriptor)
    logging.lastResort = aside
    try:
        yield
    finally:
        logging.lastResort = before
        aside.finish(FINISH_S)


def finish() -> None:
    """Before the process ends: what ``written_aside`` has not written yet, within a moment."""
    if isinstance(logging.lastResort, WrittenAside):
        logging.lastResort.finish(FINISH_S)


LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", callback=use_format, help="Of the events on stderr.")
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option("--log-level", callback=use_level, help="The least of them that are written.  [default: warning]"),
]
