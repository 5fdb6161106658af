"""A replica of a space on another disk, and what becomes of it when the space is lost."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from xaqueue.cli import output
from xaqueue.cli.exit_codes import agreed
from xaqueue.cli.location import JsonOption, YesOption, no_url
from xaqueue.cli.log_output import LogFormatOption, LogLevelOption
from xaqueue.endpoint import is_url
from xaqueue.errors import InvalidArgument

TURN_S = 0.0005
"""What follows in the directories leaves the processor so soon to what is acknowledged."""
DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", callback=no_url, help="The replica's directory.")]


def replica(
    directory: DirectoryArgument,
    source: Annotated[str, typer.Option("--from", metavar="URL", help="Where the space is served.")],
    once: Annotated[bool, typer.Option("--once", help="End as soon as it is up to date.")] = False,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = None,
) -> None:
    """Keep a copy of a served space on another disk, until SIGTERM or SIGINT.

    The space's queues.toml has a [replication] table, at level JOURNAL. The replica copies a snapshot, and then follows
    the journal: it can be read meanwhile, with `browse`, `check` or Spark. With acknowledge = "replica" a commit there
    returns once this replica has it on disk. `xaqueue promote` makes the replica the space. A space that its replica
    has replaced becomes a replica of that one in the same way.
    """
    from xaqueue.features.replica.follower import ReplicaFollower, owned

    if not is_url(source):
        raise InvalidArgument(f"--from {source!r}: a URL is wanted, where `xaqueue serve` serves the space")
    sys.setswitchinterval(TURN_S)
    stopped = threading.Event()
    with owned(directory) as (fs, lock):
        follower = ReplicaFollower(directory, fs, lock, source, stopped)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: follower.stop())
        typer.echo(f"{directory} follows {source}")
        follower.run(once=once)


def promote(
    directory: DirectoryArgument,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Make a replica the space, in the place of the one that it has followed.

    Serve it then with `xaqueue serve`. The former space is fenced as soon as it answers there: it takes nothing more,
    and lists in unshipped.jsonl what the replica never had. Until then nobody may serve it to clients that do not know
    of the replica.
    """
    from xaqueue.features.replica.promote import promote as promote_replica

    if not yes:
        agreed(f"make {directory} the space, in the place of the one it follows?")
    done = promote_replica(directory, time.time_ns() // 1000)
    if json:
        output.as_json(asdict(done))
        return
    typer.echo(f"{directory} is the space now, epoch {done.epoch}: serve it with `xaqueue serve --space {directory}`")
    if done.complete:
        typer.echo(f"all that {done.url} acknowledged is here, as long as it waited for this replica and no other")
    else:
        typer.echo(f"what {done.url} acknowledged behind LSN {done.lsn:#x} is not here: messages may come twice")
    if done.branches:
        typer.echo(f"{output.counted(len(done.branches), 'branch', 'branches')} in doubt: `xaqueue indoubt list`")
