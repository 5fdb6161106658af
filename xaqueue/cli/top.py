"""A live screen of a space: whether all is well, and the rows of `queues` and `sessions`. Rich is imported where it
draws."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from xaqueue.cli import glance, output
from xaqueue.cli.exit_codes import ended_in_order
from xaqueue.cli.glance import ANSWER_S, SESSION_HEADINGS
from xaqueue.cli.location import Location, SpaceOption, location_of, remote, served_at
from xaqueue.errors import AccessDenied, Error
from xaqueue.offline import health

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.text import Text

    from xaqueue.offline.inspect import Status
    from xaqueue.rpc.client.manager import RemoteManager
    from xaqueue.rpc.methods.sessions import SessionStatus

LEAST = 4
"""Lines of a part of the screen, at least: its title, its headings, and one row."""
QUEUE_HEADINGS = ("queue", "in/s", "out/s", "ready", "delayed", "locked", "in doubt", "oldest", "bytes", "consumers")
SPARE = ("bytes", "delayed", "in doubt", "from", "connected", "consumers")
"""Columns that a narrow screen lacks, the first of them first."""
RIGHT = (*QUEUE_HEADINGS[1:], "session", "connected", "idle", "branches")


class Look(NamedTuple):
    """What was seen at one moment."""

    at: float
    """Of the monotonic clock."""
    clock: str
    """The same, for people."""
    url: str
    """Of the server that was asked; empty where the files were read."""
    found: Status
    draining: bool
    sessions: list[SessionStatus]
    """Empty also where nobody tells: there is no server, or who asks may not know."""


def top(
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="So long from one look to the next.")
    ] = 2.0,
    space: SpaceOption = None,
) -> None:
    """Watch a space on a live screen, until q or Ctrl-C.

    What is wrong, first; then the queues, the busiest first, with what came and went each second since the look
    before; and who is connected. By the server's URL, or by a directory; where no server serves that, files are read,
    and they do not tell how busy a queue is, what is locked, or who is connected.

    Without a terminal it shows one look and ends; programs are served better by `queues --json`, `sessions --json` and
    `status --json`.
    """
    from rich.console import Console

    location, console = location_of(space), Console()
    if console.is_terminal and not console.is_dumb_terminal:
        with suppress(KeyboardInterrupt), ended_in_order():
            _show(location, interval, console)
        return
    plain = Console(color_system=None, force_terminal=False, width=max(console.width, 100))
    with plain.capture() as captured:
        plain.print(drawn(next(looks(location)), None, "", plain.width, sys.maxsize))
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def _show(location: Location, interval_s: float, console: Console) -> None:
    """What was seen last stays while a look fails."""
    from rich.live import Live

    look, looking = None, looks(location)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(_line("looking ...", ""), refresh=True)
        while True:
            before, problem = look, ""
            try:
                look = next(looking)
            except (Error, OSError) as error:
                looking, problem = looks(location), f"it is tried again: {error}"
            shown = drawn(look, before, problem, *console.size) if look is not None else _line(problem, "yellow")
            live.update(shown, refresh=True)
            if pressed(interval_s):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Whether q is pressed within so many seconds; a key need no Enter."""
    import termios
    import tty

    there = output.may_ask()
    terminal = sys.stdin.fileno() if there else -1

    def pressed(seconds: float) -> bool:
        if not select.select([terminal] if there else [], [], [], seconds)[0]:
            return False
        keys = os.read(terminal, 64)
        return not keys or b"q" in keys.lower()

    if not there:
        yield pressed
        return
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def looks(location: Location) -> Generator[Look]:
    """One after the other, over one connection as long as there is one server. Raises SpaceError, ConnectionLost,
    ResourceFailed, OSError."""
    from xaqueue.offline import inspect

    while True:
        url, refused = served_at(location), set[str]()
        if not url:
            found = inspect.status(location.directory)
            yield Look(time.monotonic(), time.strftime("%H:%M:%S"), "", found, False, [])
            continue
        with remote(url, answer_s=ANSWER_S) as manager:
            while True:
                yield by_server(url, manager, refused)


def by_server(url: str, manager: RemoteManager, refused: set[str]) -> Look:
    """refused: what was refused before, and is not asked again: each refusal is a line in the server's log."""
    from xaqueue.rpc.methods.service import RemoteOperator, status_of
    from xaqueue.rpc.methods.sessions import SessionStatus

    fields, sessions = manager.status(), list[SessionStatus]()
    if "sessions" not in refused:
        try:
            sessions = RemoteOperator(manager).sessions()
        except AccessDenied:
            refused.add("sessions")
    return Look(time.monotonic(), time.strftime("%H:%M:%S"), url, status_of(fields), fields["draining"], sessions)


def findings(look: Look) -> list[tuple[str, str]]:
    """What somebody has to look at, the worst first, as `xaqueue health` says it: each with the colour of a light."""
    found = health.findings(look.found, draining=look.draining, in_doubt_age_s=0.0)
    rows = [("red" if one.is_bad else "yellow", f"{one.kind}: {one.text}") for one in found]
    if look.found.in_doubt:
        rows.append(("yellow", f"{output.counted(look.found.in_doubt, 'branch', 'branches')} in doubt"))
    return rows or [("green", "all is well")]


def drawn(look: Look, before: Look | None, problem: str, width: int, height: int) -> Group:
    """The screen, of so many columns and lines. before: the look before this one."""
    from rich.console import Group

    found, place = look.found, look.url or look.found.directory
    worst = findings(look)[: max(height // 4, 1)]
    lines = [_line(f"{found.format.name}  {place}  {look.clock}", "bold")]
    lines += [_line(problem, "bold red")] if problem else []
    lines += [_line(f"● {text}", colour) for colour, text in worst]
    rest = height - len(lines)
    others = sorted((one for one in look.sessions if not one.asks), key=lambda one: (not one.holds, one.since))
    spare = rest - (LEAST - 1 + len(found.queues))
    below = _part("sessions", SESSION_HEADINGS, [*map(glance.session_row, others)], max(rest // 3, spare), width)
    above = _part("queues", QUEUE_HEADINGS, _queue_rows(look, before), rest - below[1], width)
    return Group(*lines, *above[0], *below[0])


def _part(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[object]], room: int, width: int
) -> tuple[list[RenderableType], int]:
    """The first rows, as many as there is room for, and the lines that this takes."""
    if not rows or room < LEAST:
        return [], 0
    shown = rows[: room - LEAST + 1]
    only = f", the first {len(shown):,}" if len(shown) < len(rows) else ""
    table, _ = output.grid(headings, shown, right=RIGHT, spare=SPARE, width=width, folds=False)
    return [_line(f"{title}: {len(rows):,}{only}", "bold"), table], LEAST - 1 + len(shown)


def _queue_rows(look: Look, before: Look | None) -> list[list[object]]:
    """The busiest first, and of those that are not busy the fullest."""
    is_same = before is not None and look.url and (look.url, look.found.owner) == (before.url, before.found.owner)
    known = {queue.name: queue for queue in before.found.queues} if before is not None and is_same else {}
    elapsed_s = look.at - before.at if before is not None else 0.0
    rated = [(queue, glance.rates(queue, known.get(queue.name), elapsed_s)) for queue in look.found.queues]
    rated.sort(key=lambda one: (-sum(one[1] or ()), -(one[0].consumers or 0) - one[0].held, -one[0].depth, one[0].name))
    return [glance.queue_row(QUEUE_HEADINGS, queue, rate) for queue, rate in rated]


def _line(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(output.one_line(text), style=style, no_wrap=True, overflow="ellipsis")
