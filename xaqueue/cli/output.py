"""What commands show: tables, fields, JSON, and progress.

Rich is imported where it draws, so that a command in a script starts without it.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgpack
import typer

from xaqueue.errors import InvalidArgument
from xaqueue.message import Message, Properties, body_of, check_queue_name, id_of, restored
from xaqueue.times import said

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table

T = TypeVar("T")

BAR_AFTER_S = 2.0
PREVIEW = 48
_BETWEEN = 2
"""Characters between two columns."""
WHOLE = frozenset({"xid", "gtrid", "message id", "path"})
"""Headings of what people copy: it stands in one line, however narrow the terminal is."""
FOLDED = 12
"""Characters that any other column is left with, at least, where it has so many."""

_PLAIN_BYTES = ("correlation_id", "dedup_key")
_ENCODED = ("body_base64", "unknown_base64", *(f"{name}_base64" for name in _PLAIN_BYTES))
_WRITTEN = tuple(name for name in Properties.__dataclass_fields__ if name not in ("queue", "unknown", *_PLAIN_BYTES))


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Rows below headings, aligned; see ``grid``. On a terminal what does not fit is folded."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console() if terminal else Console(color_system=None, force_terminal=False)
    drawn, needed = grid(headings, rows, right=right, spare=spare, width=console.width if terminal else None)
    console.width = max(console.width, needed)  # the terminal itself breaks such a line, and copies it as one
    with console.capture() as captured:
        console.print(drawn, crop=False)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def below(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """One more table, if there is anything in it."""
    if rows:
        typer.echo()
        table(headings, rows, right=right)


def grid(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
    width: int | None = None,
    folds: bool = True,
) -> tuple[Table, int]:
    """Rows below headings, to be drawn, and how many characters they need at least.

    right: the headings of numbers, which have separators on a terminal only. spare: headings of columns that a terminal
    lacks where it is too narrow, the first of them first. width: of the terminal; without one every row is one line,
    however long. folds: what does not fit is folded, else it is cut off.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    texts = [[_plain(cell) if width is None else _shown(cell) for cell in row] for row in rows]
    whole = {at: max(map(cell_len, cells)) for at, cells in enumerate(zip(headings, *texts, strict=True))}
    for name in spare:
        needed = sum(min(size, 2 * FOLDED) + _BETWEEN for size in whole.values()) - _BETWEEN
        if width is not None and needed > width and name in headings:
            del whole[headings.index(name)]
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    if width is None:
        drawn = Table(box=None, pad_edge=False)
    needed = 0
    for at, size in whole.items():
        fixed = headings[at] in WHOLE or width is None
        least = size if fixed else min(size, FOLDED)
        needed += least + _BETWEEN
        side: Literal["left", "right"] = "right" if headings[at] in right else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if folds else "ellipsis"
        drawn.add_column(headings[at], justify=side, overflow=overflow, min_width=least, no_wrap=fixed or not folds)
    for row in texts:
        drawn.add_row(*(Text(row[at]) for at in whole))
    return drawn, needed


def records(
    found: Sequence[T],
    json: bool,
    document: Callable[[T], object],
    headings: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    none: str,
    right: Sequence[str] = (),
) -> None:
    """A list for people or programs. ``none``: what is said where there is nothing."""
    if json:
        as_json([document(one) for one in found])
    elif found:
        table(headings, map(row, found), right=right)
    else:
        typer.echo(none)


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line; empty values are left out."""
    shown = [(name, _shown(value)) for name, value in rows if value not in ("", None)]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        typer.echo(f"{name.ljust(width)}  {value}")


def as_json(value: object) -> None:
    """One JSON document on one line."""
    typer.echo(json_text(value))


def json_text(value: object) -> str:
    """Bytes in it are ids, and stand in hex."""
    text = json.dumps(value, ensure_ascii=False, default=bytes.hex)
    return text.encode("utf-8", "backslashreplace").decode()  # in the name of a file that is no UTF-8


def message_json(message: Message) -> dict[str, Any]:
    """A message for programs. Bytes that are UTF-8 stand under their name as text, others under <name>_base64."""
    properties = message.properties
    fields: dict[str, Any] = {"seq": message.seq, "message_id": message.message_id.hex(), "queue": message.queue}
    for name in _WRITTEN:
        value = getattr(properties, name)
        fields[name] = dict(value) if name == "headers" else value
    for name in _PLAIN_BYTES:
        fields.update(_bytes_json(name, getattr(properties, name)))
    if properties.unknown:
        fields["unknown_base64"] = base64.b64encode(msgpack.packb(dict(properties.unknown))).decode("ascii")
    fields["size_bytes"] = len(message.body)
    return fields | _bytes_json("body", message.body)


def message_from(line: bytes, queue: str | None) -> Message:
    """The message of which a line is the JSON, for its own queue or this one. Raises InvalidArgument."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise InvalidArgument("a JSON object is wanted")
        given = {name: value for name, value in fields.items() if value is not None and name != "seq"}
        for name in [name for name in given if name in _ENCODED]:
            if (plain := name.removesuffix("_base64")) in given:
                raise InvalidArgument(f"{plain} is there twice")
            given[plain] = base64.b64decode(given.pop(name), validate=True)
        body, size_bytes = given.pop("body"), given.pop("size_bytes", None)
        message_id, name = id_of(given.pop("message_id")), check_queue_name(queue or given["queue"])
        stored = msgpack.unpackb(given.pop("unknown", b"\x80")) | given
        body = body.encode() if isinstance(body, str) else body_of(body)
    except KeyError as missing:
        raise InvalidArgument(f"it has no {missing}") from None
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise InvalidArgument(f"it is no message as export writes it: {error}") from None
    for key in given.keys() - {"queue", *_WRITTEN, *_PLAIN_BYTES}:
        raise InvalidArgument(f"{said(key)} is no property of a message")
    if size_bytes not in (None, len(body)):
        raise InvalidArgument(f"its body has {len(body):,} bytes, and its size_bytes is {said(size_bytes)}")
    return Message(message_id, name, 0, body, restored(name, stored))


def text_of(value: bytes | None) -> str:
    """Bytes for people."""
    return "" if value is None else value.decode("utf-8", "backslashreplace")


def printable(name: bytes) -> str:
    """Bytes of a name for people: nothing in them moves the cursor."""
    return one_line(text_of(name))


def one_line(text: str) -> str:
    """A text for people: nothing in it moves the cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def lines(texts: Iterable[str]) -> None:
    """Each as one, whatever is in the names of files."""
    for text in texts:
        typer.echo(one_line(text))


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


def may_ask() -> bool:
    """Whether a person is at the other end of stdin; under a supervisor there may be none at all."""
    return sys.stdin is not None and sys.stdin.isatty()


def counted(number: int, one: str, many: str = "") -> str:
    """``1 message``, ``2 messages``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def age_s(since_us: int) -> float:
    return max(time.time() - since_us / 1e6, 0.0)


def age(since_us: int) -> str:
    """How long ago that was, for people; empty where it is not known."""
    if not since_us:
        return ""
    seconds = age_s(since_us)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[..., None]]:
    """A bar on stderr, for terminals, once the work has taken two seconds. Called with done and total."""
    started = time.monotonic()
    with ExitStack() as stack:
        shown: list[Progress] = []

        def update(done: int, total: int | None = None) -> None:
            if not shown:
                if time.monotonic() - started < BAR_AFTER_S or not sys.stderr.isatty():
                    return
                from rich.progress import BarColumn, MofNCompleteColumn

                shown.append(stack.enter_context(progress(what, BarColumn(), MofNCompleteColumn())))
            shown[0].update(shown[0].task_ids[0], completed=done, total=total)

        yield update


def progress(what: str, *columns: ProgressColumn) -> Progress:
    """A line on stderr that changes: these words, these columns, and the time since; gone at the end."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    line = Progress(
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    line.add_task(what, total=None)
    return line


def _bytes_json(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else _plain(cell)


def _plain(cell: object) -> str:
    return "-" if cell is None else one_line(str(cell))
