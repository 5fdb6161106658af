"""The verb that serves a space to other processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli.exits import ExitCode, complain
from xaqueue.cli.spaces import SpaceOption, directory_of
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.rpc.limits import NEVER_S, Limits

_LIMITS = Limits()
_PLACE, _FILE, _NUMBER, _SECONDS = "HOST:PORT", "FILE", "N", "S"


def add_to(app: typer.Typer) -> None:
    """Adds this verb to an application."""
    app.command()(serve)


def serve(
    ctx: typer.Context,
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
    sync: Annotated[str | None, typer.Option("--sync", metavar="FLAGS", help="How durable a commit is.")] = None,
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
    space: SpaceOption = None,
) -> None:
    """Serve a queue space to other processes, until SIGTERM, SIGINT or SIGHUP.

    Owns the space: clients connect with xaq+unix:///path/to/socket, xaqs://host:port or xaq://host:port. On these no
    new work is taken, active branches are rolled back, and prepared ones stay in doubt.
    Where its disk fails it ends with exit code 5: start it again, which reads the disk anew.
    """
    from xaqueue.rpc.doors import Listen, with_default
    from xaqueue.rpc.server import run

    directory = Path(directory_of(ctx, space))
    listen = Listen(
        unix=tuple(unix or ()),
        unix_mode=_mode(socket_mode),
        tcp=tuple(tcp or ()),
        tls=tuple(tls or ()),
        cert=cert,
        key=key,
        client_ca=client_ca,
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
    try:
        run(
            directory,
            with_default(listen, directory),
            sync=sync,
            limits=limits,
            notify=notify,
            give_up_late=lambda: os._exit(ExitCode.FENCED),
            ready=lambda urls: typer.echo(f"serving {directory} at {', '.join(urls)}"),
        )
    except ResourceFailed as fenced:
        complain(str(fenced))
        raise typer.Exit(ExitCode.FENCED) from None


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise InvalidArgument(f"--socket-mode {text!r} is refused: 600, 660 or 666 is wanted") from None
