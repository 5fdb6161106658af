"""A participant is a way to open PEP 249 connections; those that are idle and usable are kept for the next transaction.

In a transaction it has a branch, on a connection of its own (``branch.EnlistedBranch``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, Protocol

from xaqueue.awaited import is_carried
from xaqueue.endpoint import MEMORY, is_url, parse
from xaqueue.errors import InvalidArgument
from xaqueue.tm import awaiting, driver, last_resource
from xaqueue.tm.awaiting import AsyncLoop
from xaqueue.tm.driver import Abilities
from xaqueue.tm.gtrid import checked_name

_WANTED = "give a function that opens one, as lambda: sqlite3.connect('shop.db')"
_OF_SPACE, _OF_ENGINE = "xaqueue:connect", "xaqueue.contrib.sqlalchemy:participant"
"""Plugged in by name, and only where such a value is given: these rooms are above this one, and import it."""
KEPT_S = 60.0
"""A connection that was idle for longer is not used again: firewalls forget it, and say so to nobody."""
INTERRUPTIONS = 16
"""Interruptions of one participant that are on their way at a time, at most: each has a thread, and may hang."""

_of_parents: list[object] = []
"""Connections that a forked process has found, kept so that none is closed."""

Connect = Callable[[], Any]


class Engine(Protocol):
    """SQLAlchemy's, or its AsyncEngine."""

    @property
    def dialect(self) -> Any: ...
    def dispose(self) -> Any: ...


Opens = Connect | Engine | str | os.PathLike[str]
"""A function, or what tells by itself how it is opened: an Engine, the path of a space, the URL of its server."""


@dataclass(frozen=True, slots=True)
class Participant:
    """How one participant is opened.

    connect: opens a connection, not in autocommit; see ``Opens``. sort_key: participants are begun on and prepared in
    the order of their keys; without one, the connection's ``sortKey()`` or the participant's name. parallel: whether
    another thread may prepare and commit on its connections while their own one waits; without it, its driver's
    ``threadsafety`` says. idle: how many connections are kept open between transactions, as the last one left them.
    """

    connect: Any
    sort_key: str | None = None
    parallel: bool | None = None
    idle: int = 4


@dataclass(frozen=True, slots=True)
class Within:
    """What works in the transaction of another participant, which alone is begun, prepared and ended.

    name: that one. lends: makes ``tx[name]`` of what the other one lends, at each use.
    """

    name: str
    lends: Callable[[Any], Any]


class ConnectionSource:
    """Connections of one participant. Safe for threads."""

    def __init__(
        self,
        name: str,
        participant: Participant,
        *,
        may_decide: bool = True,
        may_carry: bool = True,
        loop: AsyncLoop | None = None,
    ) -> None:
        """may_decide: its own commit may decide for all. may_carry: and take the changes of a queue with it.
        loop: that of its async connections."""
        self.name = checked_name(name)
        self.bqual = self.name.encode()
        self.participant = participant
        _opener(name, participant)  # refuses what opens nothing
        self.is_of_space = isinstance(participant.connect, str | os.PathLike)
        """Whether it is known to be a queue before it is opened."""
        self.may_decide = may_decide
        self.may_carry = may_carry
        self.loop = loop or AsyncLoop()
        self._abilities: dict[tuple[type, type], Abilities] = {}
        self._idle: list[tuple[float, Any, Abilities, Any]] = []
        """Each with the time since when it is kept, by the monotonic clock, and its cursor, or None; the longest kept
        first. Taken and added by calls that no other thread divides."""
        self.interruptions = threading.BoundedSemaphore(INTERRUPTIONS)
        self._limit = participant.idle

    def open(self) -> Any:
        """A connection that nobody used before. Raises what the driver raises."""
        connection = self.loop.connected(_opener(self.name, self.participant), self.name)
        if driver.commits_itself(connection):
            driver.close(connection)
            raise InvalidArgument(
                f"participant {self.name!r} is in autocommit mode, so that its work would not wait for the "
                "transaction's end: open it with autocommit off"
            )
        if not (driver.has_two_phases(connection) or (self.may_decide and driver.takes_sql(connection))):
            driver.close(connection)
            raise InvalidArgument(
                f"participant {self.name!r} has no two-phase commit ({driver.kind_of(connection).__module__} has no "
                "tpc_begin): only a last_resource, or the database of decides=, needs none, of which a transaction may "
                "have one"
            )
        return connection

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """A connection for one question, which is closed behind it."""
        connection = self.open()
        try:
            yield connection
        finally:
            driver.close(connection)

    def forget(self, gtrid: bytes, name: str) -> None:
        """It ends its memory of what it did by itself with the branch of this name, where it has one. Raises what the
        driver raises."""
        with self.opened() as connection:
            try:
                if driver.offers(connection, "tpc_forget"):
                    connection.tpc_forget(driver.xid_on(connection, gtrid, name))
            except Exception as error:
                if not driver.is_unknown_xid(error):
                    raise

    def abilities(self, connection: Any) -> Abilities:
        kinds = type(connection), driver.kind_of(connection)
        found = self._abilities.get(kinds)
        if found is None:
            found = driver.abilities_of(connection, may_decide=self.may_decide, may_carry=self.may_carry)
            self._abilities[kinds] = found
        return found

    def take_idle(self) -> tuple[Any, Abilities, Any] | None:
        """One that was kept and looks usable, and its cursor where it has one; None without any."""
        while True:
            try:
                since, connection, can, cursor = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since < KEPT_S and (can.has_two_phases or driver.is_usable(connection)):
                if can.is_adapted or not is_carried():  # of one with two phases, its tpc_begin looks
                    return connection, can, cursor
                adapted = self.loop.adapted(connection, self.name, is_async=False)
                return adapted, self.abilities(adapted), None
            driver.close(connection)

    def return_connection(self, connection: Any, can: Abilities, cursor: Any = None) -> None:
        """Keeps it for the next, where it is outside of any transaction; the one that was kept longest goes for it.

        Not those of sqlite3, though a new one syncs a directory with its first commit: they are their thread's, a
        SELECT that was not read to its end keeps its snapshot in them, and what one commits is lost where its file was
        replaced or deleted, or its process forked, meanwhile.
        """
        if can.is_adapted:
            connection = awaiting.plain(connection)
            can = self.abilities(connection)
        if not (can.has_two_phases or can.is_shared) or not driver.is_at_rest(connection):
            driver.close(connection)
            return
        self._idle.append((time.monotonic(), connection, can, cursor))
        if len(self._idle) > self._limit:
            with suppress(IndexError):  # somebody has taken it meanwhile
                driver.close(self._idle.pop(0)[1])

    def drop_idle(self) -> None:
        """One connection was lost: its siblings most likely are, too."""
        with suppress(IndexError):
            while True:
                driver.close(self._idle.pop()[1])

    def abandon(self) -> None:
        """In a forked child: what is idle is the parent's, and its end would end it there."""
        _of_parents.extend(self._idle)
        self._idle = []

    def close(self) -> None:
        self._limit = 0
        self.drop_idle()

    def sort_key(self, connection: Any) -> str:
        if self.participant.sort_key is not None:
            return self.participant.sort_key
        own = getattr(connection, "sortKey", None)
        return str(own()) if callable(own) else self.name

    def is_parallel(self, can: Abilities) -> bool:
        """Whether another thread may work on one while this one waits; never on one without two phases."""
        given = self.participant.parallel
        return can.has_two_phases and (can.is_shared if given is None else given)


def sources(
    participants: Mapping[str, Opens | Participant],
    last: str | None,
    *,
    two_phase: bool = False,
    carry: bool = True,
    loop: AsyncLoop | None = None,
) -> dict[str, ConnectionSource]:
    """last: the only one whose commit may decide, where one is named; two_phase: none; carry: whether it may
    take the changes of a queue with it. loop: that of async connections. Raises InvalidArgument."""
    if last is not None and last not in participants:
        raise InvalidArgument(f"last_resource {last!r} is none of the participants {sorted(participants)}")
    if last is not None and two_phase:
        raise InvalidArgument("last_resource and two_phase=True exclude one another: give one of them")
    if len(last_resource.names_of(participants)) > last_resource.NAMES_LENGTH:
        raise InvalidArgument("the names of the participants are too long for a row of all of them: give shorter ones")
    made = {}
    for name, given in participants.items():
        participant = given if isinstance(given, Participant) else Participant(given)
        if _is_engine(participant.connect):
            participant = resolve_name(_OF_ENGINE)(participant.connect, sort_key=participant.sort_key)
        made[name] = ConnectionSource(
            name, participant, may_decide=not two_phase and last in (None, name), may_carry=carry, loop=loop
        )
    return made


def apart(
    given: Mapping[str, Opens | Participant | Within],
) -> tuple[dict[str, Opens | Participant], dict[str, Within]]:
    """Those that have a transaction of their own, and those that work within one. Raises InvalidArgument."""
    within = {name: one for name, one in given.items() if isinstance(one, Within)}
    own = {name: one for name, one in given.items() if not isinstance(one, Within)}
    for name, one in within.items():
        if one.name not in own:
            raise InvalidArgument(f"{name!r} works within participant {one.name!r}, and there are {sorted(own)}")
    return own, within


def _opener(name: str, participant: Participant) -> Connect:
    """Raises InvalidArgument, which repeats no URL: there may be a password in it."""
    given = participant.connect
    if isinstance(given, str | os.PathLike):
        place = os.fspath(given)
        try:
            if is_url(place) and not place.startswith(MEMORY):
                parse(place)
        except InvalidArgument as error:
            raise InvalidArgument(f"participant {name!r}: {error}; of a database, {_WANTED}") from None
        if place:
            return partial(resolve_name(_OF_SPACE), place)
    if not isinstance(given, type) and (hasattr(given, "cursor") or hasattr(given, "commit")):
        raise InvalidArgument(
            f"participant {name!r} is an open connection of {type(given).__module__}, and each transaction needs one "
            f"of its own: {_WANTED}"
        )
    if not callable(given):
        raise InvalidArgument(f"participant {name!r} is {given!r}: {_WANTED}")
    return partial(given)


def _is_engine(given: object) -> bool:
    return any(cls.__module__.startswith("sqlalchemy.") and "Engine" in cls.__name__ for cls in type(given).__mro__)
