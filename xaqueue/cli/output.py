"""What commands show: tables drawn on a terminal and aligned plain text in a pipe; bars for what takes long.

Rich is imported where it draws, so that a command in a script starts without it.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from xaqueue.message import Message, Properties

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

BAR_AFTER_S = 2.0
PREVIEW = 48
_BETWEEN = 2
"""Characters between two columns."""
WHOLE = frozenset({"xid", "gtrid", "message id", "path"})
"""Headings of what people copy: it stands in one line, however narrow the terminal is."""
FOLDED = 12
"""Characters that any other column is left with, at least, where it has so many."""

_PLAIN_BYTES = ("correlation_id", "dedup_key")
_WRITTEN = tuple(name for name in Properties.__dataclass_fields__ if name not in ("queue", "unknown", *_PLAIN_BYTES))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Rows below headings. ``right``: the headings of numbers, which have separators on a terminal only."""
    if sys.stdout.isatty():
        _draw(headings, [[_shown(cell) for cell in row] for row in rows], right)
        return
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]
    for row in (headings, *texts):
        cells = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ]
        typer.echo("  ".join(cells).rstrip())


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line; empty values are left out."""
    told = [(name, _shown(value)) for name, value in rows if value not in ("", None)]
    width = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        typer.echo(f"{name.ljust(width)}  {value}")


def as_json(value: object) -> None:
    """One JSON document on one line."""
    typer.echo(json_text(value))


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def message_json(message: Message) -> dict[str, Any]:
    """A message for programs. Bytes that are UTF-8 stand under their name as text, others under <name>_base64."""
    properties = message.properties
    told: dict[str, Any] = {"seq": message.seq, "message_id": message.message_id.hex(), "queue": message.queue}
    for name in _WRITTEN:
        value = getattr(properties, name)
        told[name] = dict(value) if name == "headers" else value
    for name in _PLAIN_BYTES:
        told.update(_bytes_json(name, getattr(properties, name)))
    told["size_bytes"] = len(message.body)
    return told | _bytes_json("body", message.body)


def text_of(value: bytes | None) -> str:
    """Bytes for people."""
    return "" if value is None else value.decode("utf-8", "backslashreplace")


def printable(name: bytes) -> str:
    """Bytes of a name for people: nothing in them moves the cursor."""
    text = text_of(name)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def preview(body: bytes) -> str:
    """The first printable characters of a body, in one line."""
    text = body[: 4 * PREVIEW].decode("utf-8", "replace")
    printable = "".join(letter if letter.isprintable() and letter != "\ufffd" else "." for letter in text)
    return printable if len(printable) <= PREVIEW and len(body) <= 4 * PREVIEW else printable[: PREVIEW - 3] + "..."


def moment(time_us: int | None) -> str:
    """A time for people; empty for none."""
    if not time_us:
        return ""
    return datetime.fromtimestamp(time_us / 1e6, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def size(size_bytes: int) -> str:
    """A number of bytes for people."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def counted(number: int, one: str, many: str = "") -> str:
    """``1 message``, ``2 messages``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class Bar:
    """A progress bar on stderr, for terminals, once the work has taken two seconds. Called with done and total."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.monotonic()
        self._shown: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int | None = None) -> None:
        if self._shown is None:
            if time.monotonic() - self._started < BAR_AFTER_S or not sys.stderr.isatty():
                return
            self._show()
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._shown.add_task(self._what, total=None)
        self._shown.start()


def _bytes_json(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _draw(headings: Sequence[str], texts: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    needed = 0
    for heading, *cells in zip(headings, *texts, strict=True):
        width = max(map(len, (heading, *cells)))
        least = width if heading in WHOLE else min(width, FOLDED)
        needed += least + _BETWEEN
        drawn.add_column(
            heading,
            justify="right" if heading in right else "left",
            overflow="fold",
            min_width=least,
            no_wrap=heading in WHOLE,
        )
    for row in texts:
        drawn.add_row(*(Text(cell) for cell in row))
    console = Console()
    console.width = max(console.width, needed)  # the terminal itself breaks such a line, and copies it as one
    console.print(drawn, crop=False)
