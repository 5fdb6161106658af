"""A space that was crashed is opened again: what is in doubt there, what it holds, and whether it is sound."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from xaqueue.connection import Connection
from xaqueue.errors import Error
from xaqueue.space.engine.session import Session
from xaqueue.space.offline.check import check
from xaqueue.space.offline.findings import Severity
from xaqueue.space.owner.open import attach
from xaqueue.torture.ledger import Found, Said
from xaqueue.torture.work import QUEUES, BodyDamaged, Say, number_of, prove

Look = Callable[[Path], Iterable[str]]


def recover(session: Session, decided: set[str], say: Say) -> None:
    """Says what opening it found, resolves what is in doubt, and closes the session."""
    for path in session.space.report.quarantined:
        say(Said("fault", f"damaged by the crash: {path}"))
    with Connection(session, lambda: os.urandom(16)) as connection:
        resolve(connection, decided, say)


def resolve(connection: Connection, decided: set[str], say: Say) -> None:
    """What a transaction manager does after a crash: commits what it decided, and rolls back the rest."""
    in_doubt = connection.tpc_recover()
    for xid in in_doubt:
        say(Said("in doubt", xid.gtrid.decode()))
    say(Said("recovered"))
    for xid in in_doubt:
        tag = xid.gtrid.decode()
        if tag in decided:
            connection.tpc_commit(xid)
        else:
            say(Said("undecided", tag))
            connection.tpc_rollback(xid)
        say(Said("resolved", tag))


def problems(space: Path) -> Iterator[str]:
    """What a check says of a space that is at rest."""
    for finding in check(space):
        if finding.severity is not Severity.NOTE:
            yield f"{finding.severity.value}: {finding.path} {finding.problem}"


def reopened(space: Path, flags: str, decided: set[str], look: Look = problems) -> Found:
    """All that is found once the branches in doubt are resolved and every message is taken out.

    ``look``: says what is wrong with the space after each.
    """
    found = Found()

    def hear(said: Said) -> None:
        if said.event == "in doubt":
            found.in_doubt.add(said.tag)
        elif said.event == "fault":
            found.faults.append(said.tag)

    try:
        recover(attach(space, sync=flags, watch=False), decided, hear)
        found.faults += look(space)
        with Connection(attach(space, sync=flags, watch=False), lambda: os.urandom(16)) as connection:
            _drain(connection, found)
        found.faults += look(space)
    except (Error, OSError) as error:
        found.faults.append(f"it does not open, or does not serve: {' '.join(str(error).split())}")
    return found


def _drain(connection: Connection, found: Found) -> None:
    for queue in QUEUES:
        while (message := connection.dequeue(queue)) is not None:
            found.numbers.append(number_of(message))
            try:
                found.messages[queue, prove(message)] += 1
            except BodyDamaged as damaged:
                found.faults.append(str(damaged))
    connection.commit()
