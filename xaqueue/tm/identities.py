"""What participants say of themselves, by which a node names them to whoever sees to what it leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from xaqueue.tm import driver, node_schema
from xaqueue.tm.driver import run
from xaqueue.tm.guard import MovedElsewhere
from xaqueue.tm.node_schema import Identity
from xaqueue.tm.participant import ConnectionSource

if TYPE_CHECKING:
    from xaqueue.tm.branch import EnlistedBranch

MEET_S = 1.0
"""So long a first sign waits for what all participants say of themselves."""


class Identities:
    """Of the participants of one node. Safe for threads."""

    def __init__(self, sources: Mapping[str, ConnectionSource]) -> None:
        self._sources = sources
        self._databases: dict[str, Identity] = {}
        """Of each that prepares, which one it is."""
        self._hearing = threading.Condition()
        self._heard: dict[str, str] = {}
        """By name; recovery hears it."""

    def of_branch(self, branch: EnlistedBranch) -> tuple[str, Callable[[Any], object] | None]:
        """And what raises MovedElsewhere where a connection is with another one, if it may be."""
        space = driver.space_of(branch.connection)
        if space:
            return space, None
        found = self._databases.get(branch.name)
        if found is None:
            found = branch.source.loop.in_thread(partial(self._ask, branch.name))
        return found.answer, partial(self._check, branch.name, found)

    def hear(self, name: str, connection: Any) -> None:
        """Once of each. Where it does not say it, it is told when it is to prepare."""
        if name not in self._heard:
            with suppress(Exception):
                identity = driver.space_of(connection) or self._note(name, connection).answer
                with self._hearing:
                    self._heard[name] = identity
                    self._hearing.notify_all()

    def await_all(self, deciding: str, *, asks: bool) -> list[str]:
        """Of each participant that answers soon, but of the deciding one, since one that is met later is known by a
        sign beside a transaction, which wants a connection more than a small pool has. asks: and not recovery alone."""
        others = [name for name in self._sources if name != deciding]
        for name in others if asks else ():
            with suppress(Exception), self._sources[name].opened() as connection:
                self.hear(name, connection)
        with self._hearing:
            self._hearing.wait_for(lambda: len(self._heard) >= len(others), MEET_S)
            return list(self._heard.values())

    def abandon(self) -> None:
        """In a forked child: no thread waits for any."""
        self._hearing = threading.Condition()

    def _ask(self, name: str) -> Identity:
        with self._sources[name].opened() as connection:
            return self._note(name, connection)

    def _note(self, name: str, connection: Any) -> Identity:
        found = self._databases[name] = node_schema.identity_of(connection, name)
        return found

    def _check(self, name: str, known: Identity, connection: Any) -> None:
        here = run(connection, known.question)
        if here != [(known.answer,)]:
            self._databases.pop(name, None)
            raise MovedElsewhere(name, here, known.answer)


def identity_of(connection: Any, name: str) -> str:
    """Raises InvalidArgument where it says nothing of itself."""
    return driver.space_of(connection) or node_schema.identity_of(connection, name).answer
