"""Messages go to another queue, back to where they came from, or for good: those that a person has chosen, some at a
time."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from typing import Annotated, Any

import typer

from xaqueue.cli import completion, output, parameters
from xaqueue.cli.exit_codes import ExitCode, agreed, complain
from xaqueue.cli.location import DryRunOption, SpaceOption, YesOption, connected, location_of
from xaqueue.cli.messages import QueueArgument, looked
from xaqueue.connection import Connection
from xaqueue.errors import InvalidArgument, RetryLater
from xaqueue.message import Message, MessageId, check_queue_name

PIECE = 100
"""Messages of one transaction."""
Test = Callable[[Message], bool]
Step = Callable[[Connection, MessageId], object]
"""It came to something where that is true."""

WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEST",
        help="Only messages of which this is true: tries>=3, age>2h, reason=expired, from=QUEUE, header.NAME=VALUE; "
        "several must all be.",
    ),
]
LimitOption = Annotated[int | None, typer.Option(help="At most so many messages.", metavar="N", min=1)]

_TEST = re.compile(r"(tries|age|reason|from|header\.[^=<>!]+)(>=|<=|!=|=|>|<)(.*)", re.DOTALL)
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


def move(
    queue: QueueArgument,
    to: Annotated[
        str, typer.Argument(metavar="TO", help="The queue that they go to.", autocompletion=completion.queues)
    ],
    where: WhereOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    space: SpaceOption = None,
) -> None:
    """Move messages to another queue.

    With all their properties, in the order of their queue, 100 in a transaction, also those that are not due. What a
    transaction holds stays.
    """
    check_queue_name(to)
    found = chosen(where or ())
    if to == queue:
        raise InvalidArgument(f"queue {queue} is where the messages are: name another")
    _run(space, queue, found, limit, lambda one, gone: one.move(queue, gone, to), dry_run=dry_run, to=lambda _: to)


def requeue(
    queue: QueueArgument,
    where: WhereOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    space: SpaceOption = None,
) -> None:
    """Move messages back to where they came from, such as those of a failure queue.

    There they have had no tries. What was never moved stays.
    """

    def came_from(message: Message) -> str:
        return message.origin.queue if message.origin is not None else ""

    found = [*chosen(where or ()), lambda message: bool(came_from(message))]
    count = _run(space, queue, found, limit, lambda one, gone: one.requeue(queue, gone), dry_run=dry_run, to=came_from)
    if not count:
        complain(
            f"nothing {'that is chosen ' if where else ''}in queue {queue} was moved there from another queue, as into "
            "a failure queue: `xaqueue queues` shows which has messages"
        )


def purge(
    queue: QueueArgument,
    where: WhereOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    space: SpaceOption = None,
) -> None:
    """Remove messages of a queue for good.

    All of them, or those that --where and --limit choose; also those that are not due. What a transaction holds stays.
    """
    found = chosen(where or ())
    if not (dry_run or yes):
        _ask("messages" if where or limit else "all messages", queue, ", and --dry-run says how many")
    _run(space, queue, found, limit, lambda one, message: one.remove(queue, message), "removed", dry_run=dry_run)


def undefine(
    queue: QueueArgument,
    remove_all: Annotated[bool, typer.Option("--purge", help="Remove all its messages for good before.")] = False,
    yes: YesOption = False,
    space: SpaceOption = None,
) -> None:
    """Take the definition of a queue away.

    Out of queues.toml, whose comments stay as they are, and at once for everybody. Only where the queue has no message,
    and no other names it as its failure_queue or expiry_queue.
    """
    if remove_all and not yes:
        _ask("all messages", queue)
    with connected(location_of(space)) as connection:
        try:
            connection.undefine(queue)
        except RetryLater:  # it has messages, and nothing else is in the way
            if not remove_all:
                raise
            count, _ = _work(connection, queue, (), None, lambda one, message: one.remove(queue, message), "removed")
            typer.echo(f"{output.counted(count, 'message')} of queue {queue} removed")
            connection.undefine(queue)
    typer.echo(f"queue {queue} is not defined any more")


def rm(
    queue: QueueArgument,
    message_ids: Annotated[list[str], typer.Argument(metavar="ID", help="32 hex digits each, as `browse` shows them.")],
    space: SpaceOption = None,
) -> None:
    """Remove messages by their ids, all of them in one transaction, or none: exit 1 where one is not there, or held."""
    ids = [parameters.message_id(one) for one in message_ids]
    with connected(location_of(space)) as connection:
        for one in dict.fromkeys(ids):
            if not connection.remove(queue, one):
                connection.rollback()
                complain(f"nothing was removed: message {one.hex()} is not in queue {queue}, or a transaction holds it")
                raise typer.Exit(ExitCode.NOTHING)
        connection.commit()
    typer.echo(f"{output.counted(len(set(ids)), 'message')} of queue {queue} removed")


def _run(
    space: str | None,
    queue: str,
    tests: Sequence[Test],
    limit: int | None,
    step: Step,
    done: str = "moved",
    *,
    dry_run: bool,
    to: Callable[[Message], str] | None = None,
) -> int:
    """How many it was done with, or would be, or a transaction holds, after it has said so."""
    from xaqueue.cli.target import Target

    location = location_of(space)
    if dry_run:
        would = 0
        with looked(location, queue) as found, Target(location) if to else nullcontext() as target:
            for would, message in enumerate(some(found, tests, limit), 1):  # noqa: B007
                if to is not None and target is not None:
                    target.take(to(message), message)
        typer.echo(f"{output.counted(would, 'message')} of queue {queue} would be {done}")
        return would
    with connected(location) as connection:
        count, left = _work(connection, queue, tests, limit, step, done)
    stay = f"; {left:,} left: held by transactions, or gone" if left else ""
    typer.echo(f"{output.counted(count, 'message')} of queue {queue} {done}{stay}")
    return count + left


def _work(
    connection: Connection, queue: str, tests: Sequence[Test], limit: int | None, step: Step, done: str
) -> tuple[int, int]:
    """How many it was done with, in transactions of a piece each, and how many stayed."""
    with output.progress_bar(f"messages {done}") as bar:
        ids = [message.message_id for message in some(connection.browse(queue), tests, limit)]
        count = 0
        for first in range(0, len(ids), PIECE):
            piece = sum(bool(step(connection, message_id)) for message_id in ids[first : first + PIECE])
            connection.commit()
            count += piece
            bar(first + PIECE, len(ids))
    return count, len(ids) - count


def _ask(which: str, queue: str, more: str = "") -> None:
    agreed(f"remove {which} of queue {queue} for good?", "nothing was removed", more)


def some(found: Iterator[Message], tests: Sequence[Test], limit: int | None) -> Iterator[Message]:
    return islice((message for message in found if all(test(message) for test in tests)), limit)


def chosen(words: Sequence[str]) -> list[Test]:
    return [_test(word) for word in words]


def _test(word: str) -> Test:
    """Raises InvalidArgument."""
    match = _TEST.fullmatch(word)
    if match is None:
        raise InvalidArgument(
            f"--where {word!r}: write tries>=3, age>2h, reason=expired, from=QUEUE or header.NAME=VALUE"
        )
    name, compare, text = match[1], _COMPARED[match[2]], match[3]
    if name == "tries":
        if not text.isdecimal():
            raise InvalidArgument(f"--where {word!r}: a number of tries is wanted")
        tries = int(text)
        return lambda message: compare(message.origin.tries if message.origin else message.tries, tries)
    if name == "age":
        span = parameters.span(text)
        assert isinstance(span, timedelta)
        before_us = time.time_ns() // 1000 - span // timedelta(microseconds=1)
        return lambda message: compare(before_us, message.enqueued_at)
    if match[2] not in ("=", "!="):
        raise InvalidArgument(f"--where {word!r}: {name} takes = and !=")
    if name == "reason":
        return lambda message: compare(message.origin.reason if message.origin else "", text)
    if name == "from":
        return lambda message: compare(message.origin.queue if message.origin else "", text)
    return lambda message: compare(message.headers.get(name.removeprefix("header.")), text)
