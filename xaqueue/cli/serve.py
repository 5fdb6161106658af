"""Serving a space to other processes, and letting it run empty of branches."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import ExitCode, complain, extra_there
from xaqueue.cli.location import DirectoryOption, JsonOption, SpaceOption, directory_of, location_of, remote, served_at
from xaqueue.cli.log_output import LogFormatOption, LogLevelOption, finish, written_aside
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.features.replica.replicated import REPLICATION
from xaqueue.rpc.server.peer import NEVER_S, Limits
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.core.storage.owner_file import OwnerFile
    from xaqueue.rpc.client.manager import RemoteManager
    from xaqueue.rpc.server.listeners import ListenConfig
    from xaqueue.web.front import HttpFront

LOOK_S = 0.2
HANG_S = 2.0
"""How long calls that are on their way may take when the process ends."""
CALLING = ("xaqueue-slow", "xaqueue-http_", "asyncio_")
"""Threads that wait for the disk, for the server, or for a participant that the console asks."""
SAY_S = 10.0
"""How often it is said what is left."""
log = logging.getLogger("xaqueue.server")
_LIMITS = Limits()
_PLACE, _FILE, _NUMBER, _SECONDS = "HOST:PORT", "FILE", "N", "S"


def serve(
    unix: Annotated[
        list[Path] | None, typer.Option("--unix", metavar="PATH", help="A Unix socket; DIR/socket without it.")
    ] = None,
    socket_mode: Annotated[str, typer.Option(metavar="MODE", help="Of the Unix sockets: 600, 660 or 666.")] = "600",
    tls: Annotated[list[str] | None, typer.Option("--tls", metavar=_PLACE, help="Listen there with TLS.")] = None,
    cert: Annotated[str | None, typer.Option(metavar=_FILE, help="The server's certificate, for --tls.")] = None,
    key: Annotated[str | None, typer.Option(metavar=_FILE, help="Its key, if not in the same file.")] = None,
    client_ca: Annotated[
        str | None, typer.Option(metavar=_FILE, help="Take only clients with a certificate signed by one of these.")
    ] = None,
    tcp: Annotated[list[str] | None, typer.Option("--tcp", metavar=_PLACE, help="Listen there without TLS.")] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar=_FILE, help="Without an [access] table: whoever shows this token is let in.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Open ports that anybody can use or listen to.")] = False,
    http: Annotated[
        str | None,
        typer.Option(metavar=f"{_PLACE}|PATH", help="The console and its data, there; needs xaqueue[http]."),
    ] = None,
    tm: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG|DSN", help="With --http: the transaction manager that advises on branches in doubt."
        ),
    ] = None,
    sync: Annotated[str | None, typer.Option("--sync", metavar="FLAGS", help="How durable a commit is.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every message first, and set aside what is damaged.")
    ] = False,
    notify: Annotated[
        bool, typer.Option("--notify", help="Tell systemd when it is ready, stops, and is alive (Type=notify).")
    ] = False,
    max_request: Annotated[int, typer.Option(metavar="BYTES", help="The largest request.")] = _LIMITS.request_bytes,
    max_request_memory: Annotated[
        int, typer.Option(metavar="BYTES", help="All requests on their way together.")
    ] = _LIMITS.request_memory_bytes,
    max_sessions: Annotated[int, typer.Option(metavar=_NUMBER, help="Sessions at a time.")] = _LIMITS.sessions,
    max_branches: Annotated[
        int, typer.Option(metavar=_NUMBER, help="Branches of a session that are neither prepared nor over.")
    ] = _LIMITS.branches,
    branch_idle: Annotated[
        float, typer.Option(metavar=_SECONDS, help="A branch that does nothing for longer is rolled back.")
    ] = _LIMITS.branch_idle_s,
    session_idle: Annotated[
        float, typer.Option(metavar=_SECONDS, help="A session that asks for nothing for longer is ended.")
    ] = _LIMITS.session_idle_s,
    idle_exit: Annotated[
        float | None, typer.Option(metavar=_SECONDS, help="End once nobody was connected for so long.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until no other process has the space; one of a pair.")
    ] = False,
    takeover_after: Annotated[
        float | None,
        typer.Option(metavar=_SECONDS, help="With --standby: take over from one that was silent for so long."),
    ] = None,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = None,
    space: DirectoryOption = None,
) -> None:
    """Serve a queue space to other processes, until SIGTERM, SIGINT or SIGHUP.

    Owns the space: clients connect with xaq+unix:///path/to/socket, xaqs://host:port or xaq://host:port. On these no
    new work is taken, active branches are rolled back, and prepared ones stay in doubt.
    Where its disk fails it ends with exit code 5: start it again, which reads the disk anew. With --standby it first
    waits until the space is free; clients that are given both addresses, xaq://a:7000,b:7000, go on there. Programs
    that name DIR are led here, and wait for this one while it is away, a minute by themselves. Behind that one of them
    opens DIR, and this is refused and says which: with [space] served_only = true in queues.toml none does.
    """
    from xaqueue.cli import advise as advising
    from xaqueue.cli.tm_config import named
    from xaqueue.rpc.server.listeners import ListenConfig, with_default

    with extra_there("server" if http is None else "http"):
        from xaqueue.rpc.server.server import run

    directory = Path(directory_of(space))
    files = {"cert": cert, "key": key, "client_ca": client_ca}
    front, is_for_http = None, False
    if http is not None:
        from xaqueue.web.front import HttpConfig, HttpFront

        config = HttpConfig(http, _mode(socket_mode), **files, insecure=insecure)
        if tm is not None:
            named(tm)  # what is wrong with it is said now
        advise = None if tm is None else partial(advising.document, tm)
        front, is_for_http = HttpFront(config, advise), config.has_tls and not tls
    elif tm is not None:
        raise InvalidArgument("--tm is for the console: say --http as well")
    listen = ListenConfig(
        unix=tuple(unix or ()),
        unix_mode=_mode(socket_mode),
        tcp=tuple(tcp or ()),
        tls=tuple(tls or ()),
        **({} if is_for_http else files),
        token_file=token_file,
        insecure=insecure,
    )
    limits = Limits(
        request_bytes=max_request,
        request_memory_bytes=max_request_memory,
        sessions=max_sessions,
        branches=max_branches,
        branch_idle_s=branch_idle,
        session_idle_s=session_idle,
        idle_exit_s=NEVER_S if idle_exit is None else idle_exit,
    )
    if takeover_after is not None and not standby:
        raise InvalidArgument("--takeover-after is for --standby: say that as well")
    listen = with_default(listen, directory)
    _tell_former(directory, listen)
    try:
        with written_aside(), front or nullcontext():
            run(
                directory,
                listen,
                sync=sync,
                limits=limits,
                notify=notify,
                verifies=verify,
                stand_by=partial(_stand_by, directory, takeover_after, sync) if standby else None,
                show=(lambda _: None) if front is None else front.show,
                on_stop_overdue=lambda is_fenced: _end_without(ExitCode.FENCED if is_fenced else ExitCode.OK),
                ready=lambda urls: _print_ready(directory, urls, front),
            )
    except ResourceFailed as fenced:
        _complain(str(fenced))
        _leave(ExitCode.FENCED)
        raise typer.Exit(ExitCode.FENCED) from None
    _leave(0)


def _complain(text: str) -> None:
    """Where somebody reads stderr: this process ends in any case."""
    with suppress(OSError, ValueError):
        if not select.select([], [sys.stderr.fileno()], [], HANG_S)[1]:
            return
    complain(text)


def _leave(code: int) -> None:
    """Ends the process where a call hangs in the kernel: the interpreter would wait for its thread for ever."""
    deadline = time.monotonic() + HANG_S
    while any(one.name.startswith(CALLING) for one in threading.enumerate()):
        if time.monotonic() > deadline:
            _end_without(code)
        time.sleep(0.05)


def _end_without(code: int) -> None:
    log.error("[disk-hangs] calls have not returned: the process ends without them")
    finish()
    sys.stdout.flush()
    os._exit(code)


def _print_ready(directory: Path, urls: list[str], front: HttpFront | None) -> None:
    typer.echo(f"serving {directory} at {', '.join(urls)}")
    if front is not None:
        typer.echo(f"its console is at {front.url}")


def _tell_former(directory: Path, listen: ListenConfig) -> None:
    """Where this was a replica, the space that it has replaced is told so: it may be what is waited for next."""
    if not (directory / REPLICATION).exists():
        return
    from xaqueue.features.replica.promote import tell_former

    places = [f"xaqs://{place}" for place in listen.tls] + [f"xaq://{place}" for place in listen.tcp]
    url = (places or [f"xaq+unix://{path}" for path in listen.unix])[0]
    telling = partial(tell_former, directory, url, threading.Event())
    threading.Thread(target=telling, name="xaqueue-tell", daemon=True).start()


def _stand_by(directory: Path, takeover_s: float | None, sync: str | None, look: Callable[[], None]) -> OwnerFile:
    from xaqueue.features.pair.standby import wait

    typer.echo(f"standing by for {directory}")
    return wait(directory, takeover_s=takeover_s, sync=sync, look=look)


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise InvalidArgument(f"--socket-mode {text!r} is refused: 600, 660 or 666 is wanted") from None


def drain(
    resume: Annotated[bool, typer.Option("--resume", help="Take new branches again.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait; for ever without it."),
    ] = None,
    json: JsonOption = False,
    space: SpaceOption = None,
) -> None:
    """Let a served space run empty of branches.

    Its server takes no new branches: they are rolled back, to be tried again later. Those that are there go on. Waits
    until none is active or in doubt, and says which are. Exit 1 where some are left at the end of the timeout. Either
    way no new ones are taken until --resume, or until the server is started again.
    """
    location = location_of(space)
    url = served_at(location)
    if not url:
        raise InvalidArgument(
            f"{location} is not being served, so that nobody is at work in it through a server to be drained"
        )
    with remote(url) as manager:
        left = manager.call("drain", False) if resume else _drained(manager, timeout, quiet=json)
    branches = left["left"]
    done = resume or not branches
    if json:
        rows = [{"xid": str(Xid(*b["xid"])), "state": b["state"], "since": b["since"]} for b in branches]
        output.as_json({**left, "drained": done and not resume, "left": rows})
    elif resume:
        typer.echo(f"{url} takes new branches again")
    elif done:
        typer.echo(f"{url} is drained: nothing is active or in doubt")
    else:
        typer.echo(
            "the time is over, and no new branches are taken: `xaqueue drain` waits on, --resume takes them again"
        )
    if not done:
        raise typer.Exit(ExitCode.NOTHING)


def _drained(manager: RemoteManager, timeout_s: float | None, *, quiet: bool) -> dict[str, Any]:
    """The last answer: nothing is left, or the time is over."""
    started = say_at = time.monotonic()
    while True:
        left: dict[str, Any] = manager.call("drain", True)
        now = time.monotonic()
        over = timeout_s is not None and now >= started + timeout_s
        if left["left"] and not quiet and (over or now >= say_at):
            _print_left(left)
            say_at = now + SAY_S
        if over or not left["left"]:
            return left
        time.sleep(LOOK_S)


def _print_left(left: Mapping[str, Any]) -> None:
    branches = left["left"]
    active = output.counted(left["active"], "branch is", "branches are")
    typer.echo(f"{active} active, {left['in_doubt']:,} in doubt")
    output.table(("xid", "state", "age"), [(Xid(*b["xid"]), b["state"], output.age(b["since"])) for b in branches])
    more = left["active"] + left["in_doubt"] - len(branches)
    if more:
        typer.echo(f"and {more:,} more")
