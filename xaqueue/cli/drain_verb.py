"""The verb that drains a served space: it takes no new branches, until those that are there are finished."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xaqueue.cli import output
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.indoubt_rows import age
from xaqueue.cli.spaces import JsonOption, SpaceOption, place_of, remote, served_at
from xaqueue.errors import InvalidArgument
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.client import RemoteManager

LOOK_S = 0.2
TELL_S = 10.0
"""How often it is said what is left."""


def add_to(app: typer.Typer) -> None:
    """Adds this verb to an application."""
    app.command()(drain)


def drain(
    ctx: typer.Context,
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
    place = place_of(ctx, space)
    url = served_at(place)
    if not url:
        raise InvalidArgument(
            f"{place} is not being served, so that nobody is at work in it through a server to be drained"
        )
    with remote(url) as manager:
        told = _asked(manager, False) if resume else _waited(manager, timeout, quiet=json)
    done = resume or not told["left"]
    if json:
        output.as_json(
            {**told, "drained": done and not resume, "left": [_branch_json(branch) for branch in told["left"]]}
        )
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


def _waited(manager: RemoteManager, timeout_s: float | None, *, quiet: bool) -> dict[str, Any]:
    """The last answer: nothing is left, or the time is over."""
    started = time.monotonic()
    say_at = started
    while True:
        told = _asked(manager, True)
        now = time.monotonic()
        over = timeout_s is not None and now >= started + timeout_s
        if not told["left"]:
            return told
        if not quiet and (over or now >= say_at):
            _say(told)
            say_at = now + TELL_S
        if over:
            return told
        time.sleep(LOOK_S)


def _asked(manager: RemoteManager, on: bool) -> dict[str, Any]:
    answer: dict[str, Any] = manager.call("drain", on)
    return answer


def _say(told: Mapping[str, Any]) -> None:
    branches = told["left"]
    active = output.counted(told["active"], "branch is", "branches are")
    typer.echo(f"{active} active, {told['in_doubt']:,} in doubt")
    output.table(("xid", "state", "age"), [(Xid(*b["xid"]), b["state"], age(b["since"])) for b in branches])
    more = told["active"] + told["in_doubt"] - len(branches)
    if more:
        typer.echo(f"and {more:,} more")


def _branch_json(branch: Mapping[str, Any]) -> dict[str, Any]:
    return {"xid": str(Xid(*branch["xid"])), "state": branch["state"], "since": branch["since"]}
