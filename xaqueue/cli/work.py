"""Programs that run on: a worker, which gives messages to a function, and a forwarder, which moves them."""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, complain
from xaqueue.cli.location import Location, SpaceOption, check_stays, location_of, space_of
from xaqueue.cli.log_output import LogFormatOption, LogLevelOption
from xaqueue.cli.messages import QueueArgument
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.endpoint import is_url, parse
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.message import Message, check_queue_name

if TYPE_CHECKING:
    from xaqueue.cli.tm_config import TmConfig
    from xaqueue.connection import Connection
    from xaqueue.core.model.definitions import Definitions
    from xaqueue.work.loop import Loop

UntilEmptyOption = Annotated[
    bool, typer.Option("--until-empty", help="End once nothing is there; exit 1 where a message failed.")
]


def work(
    ctx: typer.Context,
    queue: QueueArgument,
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="Called with (message, tx).")],
    threads: Annotated[int, typer.Option(help="So many messages at a time.", metavar="N", min=1)] = 1,
    tm: Annotated[
        Path | None, typer.Option(help="A transaction manager's configuration, or its log with one.", metavar="FILE")
    ] = None,
    participant: Annotated[
        str | None, typer.Option(help="With --tm: who has the queue, where several could.", metavar="NAME")
    ] = None,
    until_empty: UntilEmptyOption = False,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = None,
    space: SpaceOption = None,
) -> None:
    """Give each message of a queue to a function, in a transaction, until SIGTERM or SIGINT.

    What the function raises rolls back all that it did, and the message, whose queue says when it is tried again. The
    signal lets what runs finish, and a second one ends it at once. Where the disk of a space that nobody serves fails,
    it ends with exit code 5.
    """
    from xaqueue.cli import tm_config
    from xaqueue.work.worker import Worker, checked

    handler = checked(_function(function))
    with ExitStack() as stack:
        source = ctx.get_parameter_source("space")
        if participant is not None if tm is None else source is not None and source.name == "COMMANDLINE":
            raise InvalidArgument("--participant is for --tm, which names the spaces itself: leave --space away there")
        if tm is None:
            target, manager = str(location_of(space)), None
        else:
            config = tm_config.load(tm)
            target = _participant(config, participant)
            manager = stack.enter_context(tm_config.opened(config))
        worker = Worker(target, queue, handler, threads=threads, tm=manager, until_empty=until_empty)
        where = f"participant {target}" if manager else target
        _run(worker, f"{function} works on queue {queue} of {where}", "handled")


def forward(
    queue: QueueArgument,
    to: Annotated[
        str,
        typer.Option("--to", metavar="QUEUE|DIR|URL", help="A queue of this space, or a space; ./DIR is one."),
    ],
    to_queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="The queue there, if it has another name.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For decisions; without it beside the space, SPACE.forward-QUEUE."),
    ] = None,
    until_empty: UntilEmptyOption = False,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = None,
    space: SpaceOption = None,
) -> None:
    """Move the messages of a queue to another one as they come, each once, until SIGTERM or SIGINT.

    Within a space in local transactions, between spaces in those of a transaction manager with a log of its own: after
    a crash, start it again with the same log.
    """
    from xaqueue.cli import tm_config
    from xaqueue.work.forward import SOURCE, Forwarder

    source = location_of(space)
    if not is_url(to) and "/" not in to:
        if to_queue is not None:
            raise InvalidArgument(f"--to {to} is a queue already, so --queue is too much; a directory is ./{to}")
        target, to_queue = source, check_queue_name(to)
    else:
        target = Location(url=to) if is_url(to) else Location(directory=to)
    text = f"queue {queue} of {source} goes to queue {to_queue or queue}"
    to_queue = to_queue or queue
    with ExitStack() as stack:
        if target.place == source.place:
            forwarder = Forwarder(str(source), queue, to_queue, until_empty=until_empty)
        else:
            text += f" of {target}"
            manager = stack.enter_context(tm_config.opened(_config(source, target, log, queue)))
            forwarder = Forwarder(SOURCE, queue, to_queue, tm=manager, until_empty=until_empty)
        if target.directory:
            _check_lasts(target, to_queue, usable_definitions(target.directory)[0])
        forwarder.check = partial(_check_each, target, to_queue)
        _run(forwarder, text, "forwarded")


def _check_lasts(target: Location, queue: str, definitions: Definitions, found: Sequence[Message] = ()) -> None:
    """What comes into this queue is there behind this command. Raises InvalidArgument."""
    definition, is_tagged = definitions.of(queue), not all(message.persistent for message in found)
    if is_tagged or (definition is not None and not definition.persistent):
        check_stays(target, queue, is_tagged=is_tagged)


def _check_each(target: Location, queue: str, connection: Connection, found: Sequence[Message]) -> None:
    """Of each message: a server may go, behind which this command has the directory itself."""
    if connection.is_embedded:
        _check_lasts(target, queue, space_of(connection).definitions, found)


def _run(loop: Loop, text: str, done: str) -> None:
    def tell() -> None:
        failed = f", {output.counted(loop.failed, 'delivery', 'deliveries')} failed" if loop.failed else ""
        typer.echo(f"{output.counted(loop.done, 'message')} {done}{failed}")

    typer.echo(text)
    try:
        loop.run(tell)
    except ResourceFailed as fenced:
        complain(str(fenced))
        raise typer.Exit(ExitCode.FENCED) from None
    if loop.is_until_empty and loop.failed:
        raise typer.Exit(ExitCode.NOTHING)


def _function(text: str) -> Any:
    """Of a module that is found from the current directory on, as ``python -m`` does. Raises InvalidArgument."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise InvalidArgument(f"{text!r} is no function: write MODULE:FUNCTION, such as shop.orders:handle")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return pkgutil.resolve_name(text)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        hint = "run in the module's directory or set PYTHONPATH, and name a function that it defines"
        raise InvalidArgument(f"{text} cannot be imported ({why}): {hint}") from error


def _participant(config: TmConfig, name: str | None) -> str:
    """The one that has the queue. Raises InvalidArgument."""
    spaces = [one.name for one in config.participants.values() if one.kind == "xaqueue"]
    if name in spaces:
        return str(name)
    if name is None and len(spaces) == 1:
        return spaces[0]
    raise InvalidArgument(f"--participant has to name the queue space: {', '.join(spaces) or 'the file has none'}")


def _config(source: Location, target: Location, log: Path | None, queue: str) -> TmConfig:
    """The transaction manager of a forward, as its log has it. It is written down with the first start, so that what is
    begun is never finished elsewhere."""
    from xaqueue.cli import tm_config
    from xaqueue.cli.tm_config import ParticipantConfig
    from xaqueue.tm.log_directory import PARTICIPANTS, keep_participants
    from xaqueue.work.forward import SOURCE, TARGET

    if log is None and source.url:
        raise InvalidArgument(f"--log is missing: {source} is a URL, so name a directory for decisions")
    for one in (source, target):
        if one.url:
            parse(one.url)  # what is wrong is not written down
    where = log or Path(f"{source.place}.forward-{queue}")
    if target.directory:
        read_format(target.directory, is_expected=(where / PARTICIPANTS).exists())
    ends = {name: ParticipantConfig(name, "xaqueue", one.place) for name, one in ((SOURCE, source), (TARGET, target))}
    if not (where / PARTICIPANTS).exists():
        tables = (
            f'[participants.{name}]\nkind = "xaqueue"\nspace = {json.dumps(one.address, ensure_ascii=False)}\n'
            for name, one in ends.items()
        )
        keep_participants(where, "\n".join(("# of xaqueue forward\n", *tables)))
    config = tm_config.load(where)
    if config.participants != ends:
        former = " to ".join(one.address for one in config.participants.values())
        raise InvalidArgument(f"{where} is the log of a forward from {former}: name another one with --log")
    return config
