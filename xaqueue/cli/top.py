"""A live screen of a space: whether all is well, what its queues do, who is connected, and what is in doubt.

A thread of its own looks, again and again: the screen goes on, and its keys work, while a server or a disk does not
answer. Rich is imported where it draws.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from xaqueue.cli import glance, output
from xaqueue.cli.exit_codes import ended_in_order
from xaqueue.cli.glance import ANSWER_S, SESSION_HEADINGS
from xaqueue.cli.location import Location, SpaceOption, location_of, remote, served_at
from xaqueue.errors import AccessDenied, ConnectionLost, Error
from xaqueue.offline import health, inspect
from xaqueue.offline.inspect import Status
from xaqueue.offline.inspect_branches import in_doubt
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.methods.service import status_of
from xaqueue.rpc.methods.sessions import UNFINISHED, SessionStatus
from xaqueue.rpc.wire import decode
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.text import Text

TURN_S = 0.5
"""So often the screen is drawn anew."""
LEAST = 4
"""Lines of a part of the screen, at least: its title, its headings, and one row."""
QUEUE_HEADINGS = ("queue", "in/s", "out/s", "ready", "delayed", "locked", "in doubt", "oldest", "bytes", "consumers")
SPARE = ("bytes", "delayed", "in doubt", "from", "connected", "consumers")
"""Columns that a narrow screen lacks, the first of them first."""
RIGHT = (*QUEUE_HEADINGS[1:], "session", "connected", "idle", "branches", "age")


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
    """Empty also where nobody tells: there is no server, or who asks may not know; as ``doubts``."""
    doubts: list[tuple[Xid, str, int]]
    """Of prepared branches the xid, the state and since when; the oldest first."""


def top(
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="So long from one look to the next.")
    ] = 2.0,
    space: SpaceOption = None,
) -> None:
    """Watch a space on a live screen, until q or Ctrl-C.

    What is wrong, first; then the queues, the busiest first, with what came and went each second since the look
    before; who is connected, and what is in doubt. By the server's URL, or by a directory; where no server serves
    that, files are read, and they do not tell how busy a queue is, what is locked, or who is connected.

    A look that takes longer than 5 s is told, and waited for. Without a terminal it shows one look and ends; programs
    are served better by `queues --json`, `sessions --json` and `status --json`.
    """
    from rich.console import Console

    location, console = location_of(space), Console()
    if not console.is_terminal or console.is_dumb_terminal:
        with Watch(location, interval) as watch:
            look = watch.first()
        plain = Console(color_system=None, force_terminal=False, width=max(console.width, 100))
        with plain.capture() as captured:
            plain.print(drawn(look, None, "", plain.width, sys.maxsize))
        for line in captured.get().splitlines():
            typer.echo(line.rstrip())
        return
    with suppress(KeyboardInterrupt), ended_in_order(), Watch(location, interval) as watch:
        _show(watch, console)


def _show(watch: Watch, console: Console) -> None:
    from rich.live import Live

    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            look, before, problem = watch.shown, watch.before, watch.problem
            if look is not None:
                live.update(drawn(look, before, problem, console.width, console.height), refresh=True)
            else:
                live.update(_line(problem or "looking ...", "yellow" if problem else ""), refresh=True)
            if pressed(TURN_S):
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


class Watch:
    """Looks in a thread, from now on until its end: a look that hangs is left to itself then."""

    def __init__(self, location: Location, interval_s: float) -> None:
        self.shown: Look | None = None
        self.before: Look | None = None
        """The one before that, of the same server; None where rates cannot be told."""
        self._location = location
        self._interval_s = interval_s
        self._failure: Exception | None = None
        self._began = time.monotonic()
        self._asks = True
        self._ended = threading.Event()
        """A look came to its end, well or not."""
        self._over = threading.Event()
        threading.Thread(target=self._run, name="xaqueue-top", daemon=True).start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def problem(self) -> str:
        """Why what is shown is not of now; else empty."""
        waited_s = time.monotonic() - self._began if self._asks else 0.0
        if waited_s > ANSWER_S:
            return f"{self._location} does not answer since {waited_s:.0f} s: it is still waited for"
        return f"{self._failure}: it is tried again" if self._failure is not None else ""

    def first(self) -> Look:
        """Raises ConnectionLost where it takes longer than 5 s, and what the look fails with."""
        if not self._ended.wait(ANSWER_S):
            raise ConnectionLost(f"{self._location} does not answer within {ANSWER_S:g} s: try again later")
        if self.shown is None:
            assert self._failure is not None
            raise self._failure
        return self.shown

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._began, self._asks = time.monotonic(), True
                url, refused = served_at(self._location), set[str]()
                if url:
                    with remote(url, answer_s=ANSWER_S) as manager:
                        while not self._over.is_set():
                            self._take(by_server(url, manager, refused))
                            self._began, self._asks = time.monotonic(), True
                else:
                    self._take(by_files(self._location.directory))
            except (Error, OSError) as error:
                self._failure = error
                self._rest()

    def _take(self, look: Look) -> None:
        last = self.shown
        same = last is not None and look.url == last.url and look.found.owner == last.found.owner
        self.before, self.shown, self._failure = last if same and look.url else None, look, None
        self._rest()

    def _rest(self) -> None:
        self._asks = False
        self._ended.set()
        self._over.wait(self._interval_s)


def by_server(url: str, manager: RemoteManager, refused: set[str]) -> Look:
    """refused: what was refused before, and is not asked again. Raises ConnectionLost, AccessDenied, ResourceFailed."""

    def asked(method: str) -> Any:
        with suppress(AccessDenied):
            return None if method in refused else manager.call(method)
        return refused.add(method)

    fields = manager.status()
    found, sessions = status_of(fields), [decode(SessionStatus, one) for one in asked("sessions") or ()]
    left = asked("drain") if found.in_doubt or found.committing else None  # without more it only asks, of the oldest
    doubts = [(Xid(*one["xid"]), one["state"], one["since"]) for one in (left or {}).get("left", ())]
    doubts = [one for one in doubts if one[1] in UNFINISHED.values()]
    return Look(time.monotonic(), time.strftime("%H:%M:%S"), url, found, fields["draining"], sessions, doubts)


def by_files(directory: str) -> Look:
    """Raises SpaceError."""
    found = inspect.status(directory)
    doubts = [(one.xid, one.state, one.since) for one in in_doubt(directory) if one.decision is None]
    return Look(time.monotonic(), time.strftime("%H:%M:%S"), "", found, False, [], doubts)


def findings(look: Look) -> list[tuple[str, str]]:
    """What somebody has to look at, the worst first, as `xaqueue health` says it: each with the colour of a light."""
    age_s = max((output.age_s(since) for _, _, since in look.doubts if since), default=0.0)
    found = health.findings(look.found, draining=look.draining, in_doubt_age_s=age_s)
    rows = [("red" if one.is_bad else "yellow", f"{one.kind}: {one.text}") for one in found]
    if look.found.in_doubt and "in doubt" not in (one.kind for one in found):  # not for long yet
        rows.append(("yellow", f"{output.counted(look.found.in_doubt, 'branch', 'branches')} in doubt"))
    return rows or [("green", "all is well")]


def drawn(look: Look, before: Look | None, problem: str, width: int, height: int) -> Group:
    """The screen, of so many columns and lines. before: the look before this one."""
    from rich.console import Group

    found, place = look.found, look.url or look.found.directory
    told = findings(look)[: max(height // 4, 1)]
    lines = [_line(f"{found.format.name}  {place}  {look.clock}", "bold")]
    lines += [_line(problem, "bold red")] if problem else []
    lines += [_line(f"● {text}", colour) for colour, text in told]
    rest = height - len(lines)
    doubts = [(xid, state, output.age(since)) for xid, state, since in look.doubts]
    others = sorted((one for one in look.sessions if not one.asks), key=lambda one: (not one.holds, one.since))
    below = _part("in doubt", ("xid", "state", "age"), doubts, rest // 4, width)
    spare = rest - below[1] - (LEAST - 1 + len(found.queues))
    middle = _part("sessions", SESSION_HEADINGS, [*map(glance.session_row, others)], max(rest // 3, spare), width)
    above = _part("queues", QUEUE_HEADINGS, _queue_rows(look, before), rest - below[1] - middle[1], width)
    return Group(*lines, *above[0], *middle[0], *below[0])


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


def _queue_rows(look: Look, before: Look | None) -> list[tuple[object, ...]]:
    """The busiest first, and of those that are not busy the fullest."""
    known = {queue.name: queue for queue in before.found.queues} if before is not None else {}
    elapsed_s = look.at - before.at if before is not None else 0.0
    rated = [(queue, glance.rates(queue, known.get(queue.name), elapsed_s)) for queue in look.found.queues]
    rated.sort(key=lambda one: (-sum(one[1] or ()), -(one[0].consumers or 0) - one[0].held, -one[0].depth, one[0].name))
    return [
        (
            *(queue.name, *glance.rate_cells(rate)),
            *(queue.ready, queue.delayed, queue.locked, queue.in_doubt),
            *(glance.oldest_of(queue), glance.bytes_of(queue), queue.consumers),
        )
        for queue, rate in rated
    ]


def _line(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(output.one_line(text), style=style, no_wrap=True, overflow="ellipsis")
