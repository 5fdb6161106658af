"""Names for the shell's completion: found within half a second, or none. Nothing is locked, and no error is shown."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

import typer

from xaqueue.cli.location import Location, location_of, remote, served_at

LIMIT_S = 0.5
PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""What the shell takes as it stands: all names are such, whatever a server calls one."""


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    return _within(ctx, incomplete, _queues)


def xids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of branches in doubt."""
    return _within(ctx, incomplete, _xids)


def _within(ctx: typer.Context, incomplete: str, look: Callable[[Location], list[str]]) -> list[str]:
    # The shell waits: whatever hangs, a look-up of a host or a handshake, the process then ends and has said nothing.
    late = threading.Timer(LIMIT_S, os._exit, (0,))
    late.daemon = True
    late.start()
    try:
        found = set(filter(PLAIN.fullmatch, look(location_of(ctx.params.get("space")))))
    except Exception:  # of any kind: an error in the middle of a line that is typed helps nobody
        return []
    finally:
        late.cancel()
    return sorted(name for name in found if name.startswith(incomplete))


def _queues(location: Location) -> list[str]:
    if location.url:
        with remote(location.url, answer_s=LIMIT_S) as manager:
            return list(manager.space["queues"])
    from xaqueue.core.owner.definitions_file import usable_definitions
    from xaqueue.offline.reader import queues

    return [*usable_definitions(location.directory)[0].queues, *queues(location.directory)]


def _xids(location: Location) -> list[str]:
    from xaqueue.offline.inspect_branches import in_doubt
    from xaqueue.rpc.methods.service import RemoteOperator

    if url := served_at(location):
        with remote(url, answer_s=LIMIT_S) as manager:
            return [str(branch.xid) for branch in RemoteOperator(manager).in_doubt()]
    return [str(branch.xid) for branch in in_doubt(location.directory)]
