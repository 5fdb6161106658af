"""Verbs about messages: put, get, browse, tail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from xaqueue.cli import completion, output, parameters
from xaqueue.cli.exit_codes import ExitCode, complain
from xaqueue.cli.location import (
    DirectoryOption,
    Location,
    SpaceOption,
    connected,
    directory_of,
    location_of,
    reached,
)
from xaqueue.connection import Connection
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import DamagedBlock, Error, InvalidArgument, RetryLater, RolledBack, UnknownQueue
from xaqueue.message import EnqueueOptions, Message
from xaqueue.offline.reader import EARLIEST, LATEST, QueueReader, follow, start_after

if TYPE_CHECKING:
    from xaqueue.features.session import Session
    from xaqueue.rpc.client.manager import RemoteManager

LINES_A_BRANCH = 200
TABLE_ROWS = 100
"""A table is drawn when it is whole, so it has an end; JSON has none."""

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=completion.queues)]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, whole bodies.")]
HEADINGS = ("seq", "message id", "bytes", "tries", "correlation id", "body")


def put(
    queue: QueueArgument,
    body: Annotated[str | None, typer.Argument(metavar="[BODY]", help="Without it, --file or stdin.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Take the body from a file.", exists=True, dir_okay=False, readable=True)
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="One message a line, of the file or stdin.")] = False,
    count_per_branch: Annotated[
        int, typer.Option(help="With --lines: lines that are committed together.", min=1)
    ] = LINES_A_BRANCH,
    correlation_id: Annotated[str | None, typer.Option(help="Found again by `get --correlation-id`.")] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 9, 9 first in a priority queue; 4 without it.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Messages of a group are delivered in order, one at a time.", metavar="NAME")
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(help="In a queue with a window, a second message of this key comes to nothing.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="A header; may be repeated.", metavar="KEY=VALUE")] = None,
    content_type: Annotated[str | None, typer.Option(help="The body's MIME type.", metavar="TYPE")] = None,
    not_before: Annotated[
        str | None, typer.Option(help=f"Hidden until then: {parameters.TIME_HELP}.", metavar="TIME")
    ] = None,
    expires_at: Annotated[str | None, typer.Option(help="Never delivered from then on.", metavar="TIME")] = None,
    delay: Annotated[
        str | None, typer.Option(help=f"Hidden for so long from now on, {parameters.SPAN_HELP}.", metavar="SPAN")
    ] = None,
    ttl: Annotated[str | None, typer.Option(help="Never delivered after so long from now on.", metavar="SPAN")] = None,
    not_persistent: Annotated[
        bool, typer.Option("--not-persistent", help="Gone when the space has another owner; waits for no disk.")
    ] = False,
    topic: Annotated[bool, typer.Option("--topic", help="QUEUE is a topic: to all that subscribe to it.")] = False,
    space: SpaceOption = None,
) -> None:
    """Put a message into a queue, or publish it to a topic.

    Prints its id; with --lines, how many there were. What was printed is committed: it is as durable as the space's
    sync flags say.
    """
    if body is not None and (file is not None or lines):
        raise InvalidArgument("BODY and --file or --lines are two sources: give one")
    if lines and dedup_key is not None:
        raise InvalidArgument("--dedup-key names one message, and --lines puts many: give one")
    if "" in (group, dedup_key):  # of a variable that is not set, say
        raise InvalidArgument("an empty --group or --dedup-key is refused, for all such would be one: leave it away")
    options: EnqueueOptions = {
        "correlation_id": correlation_id,
        "group": group,
        "dedup_key": dedup_key,
        "headers": parameters.headers(header),
        "content_type": content_type,
        "not_before": parameters.instant(not_before),
        "expires_at": parameters.instant(expires_at),
        "delay": parameters.span(delay),
        "ttl": parameters.span(ttl),
    }
    if priority is not None:
        options["priority"] = priority
    if not_persistent:
        options["persistent"] = False
    location = location_of(space)
    if lines:
        with _or_topic(topic), opened(file, "rb") as source, connected(location, watch=True) as connection:
            add = partial(connection.publish if topic else connection.enqueue, queue, **options)
            put_in = _put_lines(connection, add, source, count_per_branch)
        typer.echo(f"{output.counted(put_in, 'message')} put into {queue}")
        return
    if body is None and file is None and output.may_ask():
        complain("reading the body from the terminal; end it with Ctrl-D")
    if body is None:
        with opened(file, "rb") as source:
            content = source.read()
    else:
        content = body.encode("utf-8", "surrogateescape")
    with _or_topic(topic), connected(location) as connection:
        message_id = (connection.publish if topic else connection.enqueue)(queue, content, **options)
        connection.commit()
    typer.echo(message_id.hex())


def get(
    queue: QueueArgument,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a message.", metavar="S", min=0)] = 0.0,
    message_id: Annotated[str | None, typer.Option(help="Only this message (32 hex digits).", metavar="ID")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Only with this correlation id.", metavar="ID")] = None,
    count: Annotated[int, typer.Option(help="At most so many messages, one transaction each.", min=1)] = 1,
    lines: Annotated[bool, typer.Option("--lines", help="One message a line, as `put --lines` reads them.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, properties and all.")] = False,
    file: Annotated[Path | None, typer.Option("--output", help="Write to a file.", metavar="FILE")] = None,
    space: SpaceOption = None,
) -> None:
    """Take messages out of a queue and write their bodies to stdout.

    Byte for byte, with nothing between them; on a terminal a line end follows each. Exit 1 where there is no message. A
    message is committed as taken once it was written and flushed, so a pipe sees it at least once: if this command dies
    in between, the message is back in its place, and the next get writes it again.
    """
    if lines and json:
        raise InvalidArgument("--lines and --json are two forms: give one")
    wanted = None if message_id is None else parameters.message_id(message_id)
    taken = 0
    sink: BinaryIO | None = None
    why = ""
    with ExitStack() as stack:
        manager = stack.enter_context(reached(location_of(space), watch=wait > 0))
        connection = stack.enter_context(Connection(manager, fresh_id))
        while taken < count:
            message = connection.dequeue(queue, wait_s=wait, message_id=wanted, correlation_id=correlation_id)
            if message is None:
                connection.rollback()
                why = "" if taken else _why_none(manager, queue, bool(message_id or correlation_id))
                break
            if sink is None:  # a file is left as it is where there is no message for it
                sink = stack.enter_context(opened(file, "wb"))
            written = _form(message, lines, json)
            _write_out(sink, message, written)
            if file is None and sys.stdout.isatty() and not written.endswith(b"\n"):
                typer.echo()
            connection.commit()
            taken += 1
    if not taken:
        complain(why)
        raise typer.Exit(ExitCode.NOTHING)


def browse(
    queue: QueueArgument,
    limit: Annotated[
        int | None, typer.Option(help=f"At most so many. Default: {TABLE_ROWS}; with --json, all.", metavar="N", min=1)
    ] = None,
    json: JsonLinesOption = False,
    space: SpaceOption = None,
) -> None:
    """Show the messages of a queue, and take none.

    In the order in which they would be delivered, by a URL as in the directory. Works while another process owns the
    space. Messages that a branch holds, or that are not due yet, are shown too.
    """
    location, most = location_of(space), limit if limit is not None or json else TABLE_ROWS + 1
    with looked(location, queue, damaged=complain_of_damage, most=most) as messages:
        if json:
            for message in messages:
                output.as_json(output.message_json(message))
            return
        rows = []
        for m in messages:
            correlation_id, body = output.text_of(m.correlation_id), output.preview(m.body)
            rows.append((str(m.seq), m.message_id.hex(), len(m.body), m.tries, correlation_id, body))
    if not rows:
        complain(f"queue {queue} is empty")
        return
    more = limit is None and len(rows) > TABLE_ROWS
    output.table(HEADINGS, rows[:-1] if more else rows, right=("seq", "bytes", "tries"))
    if more:
        complain(f"there are more than these {TABLE_ROWS}: --limit N or --json shows them")


def tail(
    queue: QueueArgument,
    follow_on: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with the messages that come.")] = True,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SEQ",
            help=f"Sequence number to begin with, {EARLIEST} or {LATEST} (what comes from now on).",
            show_default=f"{LATEST}; {EARLIEST} with --no-follow",
        ),
    ] = None,
    json: JsonLinesOption = False,
    space: DirectoryOption = None,
) -> None:
    """Show messages as they are committed, until interrupted.

    Takes none, and works while another process owns the space. A message that is consumed at once may never be seen.
    """
    from xaqueue.core.engine.taking import message_of
    from xaqueue.offline.inspect import check_known

    directory = directory_of(space)
    check_known(directory, queue)
    start = start or (LATEST if follow_on else EARLIEST)
    if follow_on:
        followed = follow(directory, queue, start=start)
    else:
        reader = QueueReader(directory, queue)
        followed = reader.read(start_after(reader, start), reader.watermark())
    tries = QueueReader(directory, queue).tries()
    for seq, message_id, data in followed:
        try:
            message = message_of(queue, seq, message_id, data, tries.get(seq, 0))
        except DamagedBlock as damage:
            complain_of_damage(seq, str(damage))
            continue
        if json:
            output.as_json(output.message_json(message))
        else:
            typer.echo(f"{seq}  {message_id.hex()}  {output.preview(message.body)}")


@contextmanager
def looked(
    location: Location,
    queue: str,
    id_digits: str = "",
    damaged: Callable[[int, str], None] = lambda *_: None,
    most: int | None = None,
) -> Iterator[Iterator[Message]]:
    """What is there, without owning a directory."""
    from xaqueue.offline import inspect
    from xaqueue.offline.inspect import check_known

    if location.url:
        with connected(location) as connection:
            yield connection.browse(queue, most, message_id=id_digits or None)
    else:
        known = check_known(location.directory, queue)
        yield islice(inspect.browse(location.directory, known, damaged, id_digits), most)


@contextmanager
def _or_topic(is_topic: bool) -> Iterator[None]:
    """Around a put: what is no queue may be a topic."""
    try:
        yield
    except UnknownQueue as error:
        raise UnknownQueue(f"{error}{'' if is_topic else '; a topic is published to with --topic'}") from None


def complain_of_damage(seq: int, damage: str) -> None:
    complain(f"message {seq} is damaged, run `xaqueue check`: {damage}")


def _put_lines(connection: Connection, add: Callable[[bytes], object], source: BinaryIO, together: int) -> int:
    """Enqueues every line, without its line end, and commits each so many. Returns how many are committed."""
    committed = pending = 0
    unsure = False
    with output.progress_bar("putting lines") as bar:

        def commit() -> None:
            nonlocal committed, pending, unsure
            unsure = True
            connection.commit()
            committed, pending, unsure = committed + pending, 0, False
            bar(committed)

        try:
            for line in source:
                pending += 1
                add(line.removesuffix(b"\n").removesuffix(b"\r"))
                if pending == together:
                    commit()
            commit()
        except (Error, KeyboardInterrupt) as error:
            if committed or pending > 1:
                read = output.counted(committed + pending, "line")
                complain(f"stopped after {read}: of these the first {committed:,} are committed")
            if unsure and not isinstance(error, RolledBack | RetryLater | InvalidArgument):
                complain(f"whether the {pending:,} behind them are committed is not known: `xaqueue browse` tells")
            raise
    return committed


@contextmanager
def opened(file: Path | None, mode: Literal["rb", "wb"]) -> Iterator[BinaryIO]:
    """The file, or else stdin or stdout, which stays open."""
    if file is None:
        stream = sys.stdin if mode == "rb" else sys.stdout
        if stream is None:
            raise InvalidArgument("there is no standard input or output here: name a file")
        yield stream.buffer
    else:
        with file.open(mode) as stream:
            yield stream


def _why_none(manager: Session | RemoteManager, queue: str, chosen: bool) -> str:
    """Why a get came to nothing: what the queue has, and why nobody is given it now."""
    from xaqueue.features.session import Session
    from xaqueue.offline.inspect import QueueStatus
    from xaqueue.rpc.methods import service

    found = QueueStatus(queue, "", "", 0, None)
    with suppress(Error):  # who may not ask learns the rest
        if isinstance(manager, Session):
            queues = service.queue_list(manager.space)
        else:
            queues = service.status_of(manager.status()).queues
        found = next((one for one in queues if one.name == queue), found)
    waiting = [
        (found.in_doubt, "held by branches in doubt (`xaqueue indoubt list`)"),
        (found.held - found.in_doubt, "held by transactions at work"),
        (found.exhausted, "to move to the failure queue"),
        (0 if chosen else found.depth - found.held - found.exhausted, "not due yet"),
    ]
    reasons = ", ".join(f"{number:,} {why}" for number, why in waiting if number)
    first = f"queue {queue} has no such message now" if chosen else f"queue {queue} is empty"
    if not found.depth:
        return first
    has = f"{output.counted(found.depth, 'message')}" + (f": {reasons}" if reasons else "")
    return f"{first}; it has {has}" if chosen else f"queue {queue} has nothing to take now of its {has}"


def _form(message: Message, lines: bool, json: bool) -> bytes:
    """The message as it is written. Raises InvalidArgument where it is no line, and then it is not taken."""
    if json:
        return output.json_text(output.message_json(message)).encode() + b"\n"
    if not lines:
        return message.body
    if b"\n" in message.body or message.body.endswith(b"\r"):
        raise InvalidArgument(
            f"message {message.message_id.hex()} is not one line: it stays in {message.queue}; "
            "take it without --lines, or with --json"
        )
    return message.body + b"\n"


def _write_out(sink: BinaryIO, message: Message, content: bytes) -> None:
    """Returns once the message has left this process; only then may it be committed as taken."""
    try:
        sink.write(content)
        sink.flush()
    except BrokenPipeError:
        complain(f"nobody reads stdout: message {message.message_id.hex()} stays in {message.queue}")
        raise
    if sink is not sys.stdout.buffer:
        os.fsync(sink.fileno())
