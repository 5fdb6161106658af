"""Messages as a person looks at one, and as lines of JSON that leave a space and come back exactly.

An export locks nothing. An import adds what is not there yet, by its id, some lines in a transaction: broken off and
run again it goes on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict
from itertools import islice
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, complain, extra_there
from xaqueue.cli.location import DryRunOption, Location, SpaceOption, connected, location_of
from xaqueue.cli.messages import QueueArgument, complain_of_damage, looked, opened
from xaqueue.cli.moves import PIECE, LimitOption, WhereOption, chosen, some
from xaqueue.cli.replacing import replacing
from xaqueue.connection import Connection
from xaqueue.errors import DataError, Error, InvalidArgument, OutcomeUnknown, ProgrammingError
from xaqueue.message import Message, check_queue_name, id_digits_of

if TYPE_CHECKING:
    from xaqueue.cli.target import Target

PIECE_BYTES = 8 * 1024 * 1024
"""Lines that have come to so much are brought before more are read."""
DUMPED = 4096
"""Bytes of a body that are shown in hex, unless all of them are asked for."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+')
_TIMES = ("enqueued_at", "not_before", "expires_at", "first_failure", "last_failure")


def show(
    queue: QueueArgument,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="32 hex digits, or the first of them.")],
    body_only: Annotated[bool, typer.Option("--body-only", help="Only the body, byte for byte.")] = False,
    in_hex: Annotated[bool, typer.Option("--hex", help="The body in hex, all of it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, as browse and export write it.")] = False,
    history: Annotated[bool, typer.Option("--history", help="What became of it, also where it was taken.")] = False,
    space: SpaceOption = None,
) -> None:
    """Show one message, and take none: its properties, its headers, its body.

    With --history when it came, failed, was moved and taken, of all queues that have it or keep what leaves them.

    A body that is JSON is shown with a member a line, one that is UTF-8 as text, any other in hex. Exit 1 where the
    message is not there.
    """
    if body_only + in_hex + json > 1:
        raise InvalidArgument("--body-only, --hex and --json are three forms: give one")
    if history:
        _show_history(location_of(space), queue, id_digits_of(message_id), json)
        return
    with looked(location_of(space), queue, id_digits_of(message_id), complain_of_damage) as messages:
        found = list(islice(messages, 2))
    if not found:
        complain(f"queue {queue} has no message {message_id}: `xaqueue browse {queue}` shows those there are")
        raise typer.Exit(ExitCode.NOTHING)
    if len(found) > 1:
        raise InvalidArgument(f"several messages of queue {queue} begin with {message_id}: give more digits")
    (message,) = found
    if json:
        output.as_json(output.message_json(message))
    elif body_only:
        sys.stdout.buffer.write(message.body)
    else:
        output.pairs(_fields(message))
        typer.echo()
        typer.echo(_hex(message.body, len(message.body)) if in_hex else _text(message.body))


def _show_history(location: Location, queue: str, digits: str, json: bool) -> None:
    with extra_there("lake"):
        from xaqueue.lake.story import story
    found = story(str(location), digits)
    if not any(one.queue == queue for one in found):
        complain(f"queue {queue} has no message {digits}, and tells of none that left it: has it an archive?")
        raise typer.Exit(ExitCode.NOTHING)
    if json:
        output.as_json([one._asdict() for one in found])
    else:
        rows = ((output.moment(one.at), one.what, one.queue, one.seq or "", one.told) for one in found)
        output.table(("time", "event", "queue", "number", "by, or why"), rows, right=("number",))


def export(
    queue: QueueArgument,
    where: WhereOption = None,
    limit: LimitOption = None,
    file: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.", metavar="FILE")] = None,
    space: SpaceOption = None,
) -> None:
    """Write messages as lines of JSON, exactly, and take none.

    In the order of the queue, also those that a transaction holds or that are not due. Exit 1 where some could not be
    read.
    """
    tests, count, lost = chosen(where or ()), 0, list[int]()

    def damaged(seq: int, why: str) -> None:
        lost.append(seq)
        complain_of_damage(seq, why)

    into = opened(None, "wb") if file is None else replacing(file)
    with looked(location_of(space), queue, damaged=damaged) as messages, into as sink:
        for message in some(messages, tests, limit):
            sink.write(output.json_text(output.message_json(message)).encode() + b"\n")
            count += 1
        sink.flush()
    if file is not None:
        typer.echo(f"{output.counted(count, 'message')} of queue {queue} written to {file}")
    if lost:
        raise typer.Exit(ExitCode.NOTHING)


def import_(
    words: Annotated[list[str], typer.Argument(metavar="[QUEUE] FILE", help="FILE may be -, for stdin.")],
    from_line: Annotated[int, typer.Option(help="Begin with this line.", metavar="N", min=1)] = 1,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    space: SpaceOption = None,
) -> None:
    """Bring messages back that were exported, exactly, to their own queue or to QUEUE.

    Some in a transaction. One whose id the queue has is passed over, so that an import that was broken off can be run
    again. Where messages may have been consumed meanwhile, go on with --from-line: those would come again.
    """
    from xaqueue.cli.target import Target

    if len(words) > 2:
        raise InvalidArgument("import takes a QUEUE, or none, and one FILE")
    queue = check_queue_name(words[0]) if len(words) == 2 else None
    location = location_of(space)
    with ExitStack() as stack:
        source = stack.enter_context(opened(None if words[-1] == "-" else Path(words[-1]), "rb"))
        lines = islice(enumerate(source, 1), from_line - 1, None if limit is None else from_line - 1 + limit)
        target: AbstractContextManager[Connection | Target] = Target(location) if dry_run else connected(location)
        connection = stack.enter_context(target)
        bar = stack.enter_context(output.progress_bar("messages imported"))
        there, added = _bring(connection, lines, queue, from_line - 1, bar)
    what = output.counted(added, "message")
    done = "would be imported, {:,} are" if dry_run else "imported, {:,} were"
    typer.echo(f"{what} {done.format(there)} there already")


def _pieces(lines: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """What goes into one transaction each."""
    piece, size_bytes = list[tuple[int, bytes]](), 0
    for number, line in lines:
        piece.append((number, line))
        size_bytes += len(line)
        if len(piece) == PIECE or size_bytes >= PIECE_BYTES:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece


def _bring(
    connection: Connection | Target,
    lines: Iterator[tuple[int, bytes]],
    queue: str | None,
    before: int,
    bar: Callable[[int], None],
) -> list[int]:
    """How many were there already, and how many were added, or might be. before: the line before the first."""
    counts, committed, number = [0, 0], before, before
    try:
        for piece in _pieces(lines):
            messages: list[Message] = []
            for one in piece:
                number, line = one
                messages.append(output.message_from(line, queue))
            try:
                added = connection.restore_many(messages)
            except (DataError, ProgrammingError):
                for one, message in zip(piece, messages, strict=True):  # which of them it is
                    number, _ = one
                    connection.restore(message)
                raise
            counts = [counts[0] + added.count(False), counts[1] + added.count(True)]
            if isinstance(connection, Connection):
                connection.commit()
                committed = number
                bar(number - before)
    except (Error, KeyboardInterrupt) as error:
        so_far = f"imported up to line {committed:,}" if committed > before else "nothing was imported"
        behind = f"; whether it was up to line {number:,} is not known" if isinstance(error, OutcomeUnknown) else ""
        complain(f"stopped at line {number:,}: {so_far}{behind}. --from-line {committed + 1} goes on there")
        raise
    return counts


def _fields(message: Message) -> Iterator[tuple[str, str]]:
    """What people see of a message; times are local."""
    fields = {name: value for name, value in output.message_json(message).items() if not name.startswith("body")}
    origin, headers = message.origin, fields.pop("headers")
    if origin is not None:
        del fields["origin"]
        fields |= {f"origin_{name}": value for name, value in asdict(origin).items()}
    for name, value in fields.items():
        text = output.moment(value) if name.endswith(_TIMES) else "" if value is None else str(value)
        yield name.replace("_", " "), output.printable(text.encode())
    for name, value in headers.items():
        yield f"header {output.printable(name.encode())}", output.printable(value.encode())


def _text(body: bytes) -> str:
    """As JSON where it is an object or a list of that, as text, or in hex; nothing in it moves the cursor."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return _hex(body, DUMPED)
    with suppress(ValueError, RecursionError):
        text = _indented(text) if isinstance(loads(text), dict | list) else text
    return "\n".join(output.printable(line.encode()) for line in text.split("\n"))


def _indented(text: str) -> str:
    """A member a line, and every token as it stands: 1.10 stays so, and so does a name that is there twice."""
    made, depth, before = list[str](), 0, ""
    for token in _TOKEN.findall(text):
        opens, closes = before in ("[", "{"), token in ("]", "}")
        depth += opens - closes
        if (opens or closes or before == ",") and not (opens and closes):
            made.append("\n" + "  " * depth)
        made.append(f"{token} " if token == ":" else token)
        before = token
    return "".join(made)


def _hex(body: bytes, most: int) -> str:
    """Rows of 16 bytes: where, the bytes, and those that are ASCII."""
    rows = []
    for at in range(0, min(len(body), most), 16):
        row = body[at : min(at + 16, most)]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):47}  {letters}")
    return "\n".join(rows) + (f"\n{len(body) - most:,} bytes more: --hex shows all" if len(body) > most else "")
