"""Log events on stderr: one line each, with time, level and the code that stands first in its message, or as JSON.

Every event of the package begins with ``[code]``; xaqueue(7) LOG EVENTS lists them. A program that configures logging
itself, such as one that embeds a space or a worker's function, decides how they look, and nothing here does.
"""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated

import typer

_CODE = re.compile(r"\[([a-z-]+)\] (.*)", re.DOTALL)


class LogFormat(Enum):
    """How an event is written."""

    text = "text"
    json = "json"


class LogLevel(Enum):
    """The least events that are written."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class PlainFormatter(logging.Formatter):
    """Nothing in a message begins a new line or moves the cursor: a peer may have chosen a part of it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


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
    use_level(LogLevel.info if verbose else LogLevel.warning)


def _use(formatter: logging.Formatter) -> None:
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(formatter)


def use_format(wanted: LogFormat) -> LogFormat:
    _use(JsonFormatter() if wanted is LogFormat.json else TextFormatter())
    return wanted


def use_level(wanted: LogLevel | None) -> LogLevel | None:
    if wanted is not None and logging.lastResort is not None:
        logging.lastResort.setLevel(wanted.name.upper())
        logging.getLogger("xaqueue").setLevel(wanted.name.upper())
    return wanted


LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", callback=use_format, help="Of the events on stderr.")
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option("--log-level", callback=use_level, help="The least of them that are written.  [default: warning]"),
]
