"""A branch of a space is decided or forgotten by hand, in the directory or through its server, with the same calls."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import typer

from xaqueue.cli import output, parameters
from xaqueue.cli.indoubt import listing
from xaqueue.cli.location import Location, reached, remote, served_at
from xaqueue.rpc.methods.operators import RemoteOperator
from xaqueue.space.engine import heuristics, operator_log
from xaqueue.space.engine.heuristics import Decision, check_text
from xaqueue.space.engine.operator_log import Forgotten
from xaqueue.space.engine.session import Session
from xaqueue.space.offline import inspect, inspect_branches
from xaqueue.space.offline.dry_run import foresee
from xaqueue.space.offline.inspect_branches import InDoubt
from xaqueue.xid import Xid

Confirm = Callable[[str], None]
"""Asks a question on a terminal, and ends the command where the answer is no."""


class OperatorBackend(Protocol):
    """What an operator asks of a space, and does in it."""

    def in_doubt(self) -> list[InDoubt]:
        """Branches in doubt, committing or decided by an operator, the oldest first."""

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """How many messages these queues have, with those that branches hold."""

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        """Records a decision and carries it out; returns the one that holds."""

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        """Ends the memory of a decision, recorded first."""

    def forgotten(self) -> list[Forgotten]:
        """The decisions that operators forgot, in their order."""


class DirectoryOperator:
    """Looks at the directory, whoever owns it; decides through its server, or as its owner."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def in_doubt(self) -> list[InDoubt]:
        return inspect_branches.in_doubt(self._location.directory)

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        return inspect.depths(self._location.directory, queues)

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        with reached(self._location) as manager:
            if isinstance(manager, Session):
                return heuristics.decide(manager.space, xid, commit, by, reason)
            return RemoteOperator(manager).decide(xid, commit, by, reason)

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        with reached(self._location) as manager:
            if isinstance(manager, Session):
                operator_log.forget(manager, xid, by, reason)
            else:
                RemoteOperator(manager).forget(xid, by, reason)

    def forgotten(self) -> list[Forgotten]:
        return operator_log.forgotten(self._location.directory)


@contextmanager
def backend_of(location: Location, *, decides: bool = False) -> Iterator[OperatorBackend]:
    """decides: whether something is to be done there, for which a directory that is served is left to its server."""
    url = served_at(location) if decides else location.url
    if url:
        with remote(url) as manager:
            yield RemoteOperator(manager)
    else:
        yield DirectoryOperator(location)


def find(waiting: Iterable[InDoubt], text: str) -> InDoubt:
    """The branch that the text names. Raises UnknownXid, InvalidArgument."""
    by_xid = {branch.xid: branch for branch in waiting}
    return by_xid[parameters.named(text, list(by_xid))]


def dry_run(location: Location, text: str, commit: bool) -> None:
    """Shows what a decision would do."""
    with backend_of(location) as backend:
        waiting = backend.in_doubt()
        branch = find(waiting, text)
        depths = backend.depths(sorted({content.queue for content in (*branch.added, *branch.held)}))
    listing.print_dry_run(branch, foresee(branch, waiting, depths, commit), commit)


def decide(location: Location, text: str, commit: bool, reason: str, confirm: Confirm) -> None:
    check_text("reason", reason)
    with backend_of(location, decides=True) as backend:
        branch = find(backend.in_doubt(), text)
        verb = "commit" if commit else "roll back"
        adds, holds = output.counted(len(branch.added), "message"), output.counted(len(branch.held), "message")
        confirm(f"branch {branch.xid} adds {adds} and holds {holds}: {verb} it without its transaction manager?")
        decision = backend.decide(branch.xid, commit, operator(), reason)
    if decision.outcome == "rollback":
        done = f"rolled back: {adds} dropped, {holds} back in place"
    elif decision.outcome == "mixed":
        done = f"committed in part, for it was damaged: {'; '.join(branch.damage)}"
    else:
        done = f"committed: {adds} added, {holds} removed"
    typer.echo(f"branch {branch.xid} {done}")
    typer.echo(f"recorded as a decision by {decision.by}; `xaqueue indoubt forget` ends that record")


def forget(location: Location, text: str, reason: str, confirm: Confirm) -> None:
    with backend_of(location, decides=True) as backend:
        branch = find(backend.in_doubt(), text)
        confirm(f"forget that branch {branch.xid} is {branch.state}?")
        backend.forget(branch.xid, operator(), reason)
    typer.echo(f"branch {branch.xid}: its decision is forgotten")


def operator() -> str:
    """Who decides: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
