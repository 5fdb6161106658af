"""Which databases carry the changes of which queues' spaces: two recovery threads arrange that, and wait for nobody.

The queue's thread learns who has its space open, and asks the database's. That one begins the space's life there,
which keeps out what an earlier owner may still have on its way, reads what stands there, and hands it to the queue's
thread, which delivers it to the space. From then on the database may carry, for as long as the space stays open.
Until then, and where any of this fails, its transactions prepare the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from xaqueue.carried import Carriers, CarrierState, CarrierStatus, Life, Pruned, decode
from xaqueue.errors import OperationalError
from xaqueue.tm.decisions import Decisions
from xaqueue.tm.last_resource import DecisionRow
from xaqueue.xa import Outcome


class CarriedRow(NamedTuple):
    """Of a committed row that carries a change."""

    queue: str
    carrier: str
    space: str
    number: int


@dataclass(slots=True)
class DecidingDatabase:
    """Of one queue by one database."""

    is_wanted: bool = False
    asked: Life | None = None
    """The database is to begin this life."""
    noted: CarrierStatus | None = None
    """What the space notes of the database, as of then."""
    found: tuple[Life, Sequence[bytes], Pruned] | None = None
    """What it has, and what it knows of changes that are gone, as of this life."""
    trouble: str = ""
    """Why the database has not begun the life."""
    ready: Life | None = None
    """The life in which it may carry."""


class DecidingDatabases:
    """Of one transaction manager. Safe for threads."""

    def __init__(self, log: Decisions) -> None:
        self._log = log
        self._mutex = threading.Lock()
        self._all: dict[tuple[str, str], DecidingDatabase] = {}
        """By queue and database."""
        self.rows: dict[bytes, CarriedRow] = {}
        """By gtrid, those that were committed, or may have been, and are not removed."""

    def is_ready(self, queue: str, database: str, wake: Callable[[list[str]], object] = lambda _: None) -> bool:
        """Whether that database may carry; where not, it is wanted from here on, and who arranges that for the queue is
        woken."""
        known = self._all.get((queue, database))
        if known is not None and known.ready is not None:
            return True
        with self._mutex:
            deciding = self._of(queue, database)
            was_wanted, deciding.is_wanted = deciding.is_wanted, True
        if not was_wanted:  # and not at each transaction: what goes wrong is tried again in its own time
            wake([queue])
        return False

    def refused(self, queue: str, database: str) -> None:
        """The space was opened anew, or may have been."""
        with self._mutex:
            self._all.pop((queue, database), None)

    @property
    def is_waiting(self) -> bool:
        """Whether a database was asked, or has answered, and its queue is not told."""
        with self._mutex:
            return any(one.asked is not None or one.found is not None for one in self._all.values())

    def add_row(self, row: DecisionRow) -> None:
        """It was found committed; perhaps by another participant with the same database."""
        if row.carried and row.outcome is Outcome.COMMITTED:
            change = decode(row.carried)
            self.rows[row.gtrid] = CarriedRow(row.participants[0], change.carrier, change.life.space, change.number)

    def want(self, row: CarriedRow) -> None:
        """It is not applied: its space is to be told."""
        with self._mutex:
            self._of(row.queue, self._log.database_of(row.carrier)).is_wanted = True

    # Of the queue's thread

    def ask(self, queue: str, carriers: Carriers, databases: Iterable[str]) -> list[str]:
        """Those of these databases that are to be asked, now that this is known of the queue's space."""
        asked = []
        with self._mutex:
            for database in databases:
                deciding, life = self._of(queue, database), carriers.life
                noted = carriers.get(self._log.carrier(database))
                if deciding.ready not in (None, life):
                    deciding.ready = None
                is_known = deciding.ready is not None or (deciding.found is not None and deciding.found[0] == life)
                if not is_known and (deciding.is_wanted or (noted is not None and noted.pending)):
                    deciding.asked, deciding.noted, deciding.found = life, noted, None
                    asked.append(database)
        return asked

    def deliver(self, queue: str, carriers: Carriers, connection: Any, databases: Iterable[str]) -> tuple[bool, str]:
        """Hands to the space what these have. Whether it has taken all of one, and what is in the way."""
        is_taken, troubles = False, []
        for database in databases:
            with self._mutex:
                deciding = self._of(queue, database)
                found, trouble = deciding.found, deciding.trouble
            if found is None or found[0] != carriers.life:
                troubles += [f"{database} does not carry for {queue}: {trouble}"] if trouble else []
                continue
            life, changes, pruned = found
            try:
                is_done = connection.deliver(self._log.carrier(database), life.secret, list(changes), pruned)
            except OperationalError as error:
                troubles.append(str(error))
                continue
            if not is_done:
                troubles.append(f"what {database} has carried waits for other databases that carry for these queues")
                continue
            with self._mutex:
                deciding.ready, deciding.found, deciding.is_wanted = life, None, False
            is_taken = True
        return is_taken, "; ".join(troubles)

    # Of the database's thread

    def is_asked(self, database: str) -> bool:
        with self._mutex:
            return any(name == database and one.asked is not None for (_, name), one in self._all.items())

    def begin(self, database: str, connection: Any) -> list[str]:
        """Begins the lives that it was asked for; returns the queues that are to hear of it.

        What goes wrong with one is told to its queue, which asks again.
        """
        with self._mutex:
            mine = [(queue, one) for (queue, name), one in self._all.items() if name == database]
            asked = [(queue, one.asked, one.noted) for queue, one in mine if one.asked]
        answered = []
        for queue, life, noted in asked:
            found: tuple[Life, Sequence[bytes], Pruned] | None = None
            trouble = ""
            try:
                of_space, rows = (self._log.node, life.space, self._log.carrier(database)), self._log.rows
                changes, pruned = rows.read_carried(connection, *of_space)
                if not _is_older(noted, changes, pruned):  # or the right space would be taken for the older one
                    rows.begin_life(connection, life)
                    changes, pruned = rows.read_carried(connection, *of_space)
                found = life, changes, pruned
            except Exception as error:  # whatever a driver raises
                trouble = f"{type(error).__name__}: {error}"
                connection.rollback()
            with self._mutex:
                deciding = self._of(queue, database)
                if deciding.asked == life:
                    if found is not None or trouble != deciding.trouble:  # and not again and again
                        answered.append(queue)
                    deciding.asked, deciding.found, deciding.trouble = None, found, trouble
        return answered

    def _of(self, queue: str, database: str) -> DecidingDatabase:
        return self._all.setdefault((queue, database), DecidingDatabase())


def _is_older(noted: CarrierStatus | None, changes: Sequence[bytes], pruned: Pruned) -> bool:
    """Whether the space is surely an old copy, which its ``deliver`` refuses; the same as is looked for there."""
    if noted is None:
        return bool(changes) or pruned.total > 0
    is_of_this_life = noted.state is CarrierState.OPEN and not noted.pending
    if noted.state is CarrierState.RELEASED or is_of_this_life or not noted.queues:  # which a damaged note has not
        return False
    is_lost = not noted.pending and any(not noted.has_applied(decode(data).number) for data in changes)
    return is_lost or pruned.total > noted.count or bool(pruned.highest and not noted.has_applied(pruned.highest))
