"""What ended nodes have left at a participant is finished there, by whoever has both it and the database that decides.

What is decided may be carried out by anybody, whether the node lives or not. What is undecided is rolled back once its
node is ended, and behind a row that says so. Nobody else is touched: a branch whose node this database does not know,
as a copy does not, is left. A decision is struck, participant by participant, once each has given its whole list, which
is without the branch, and has hardened that behind it, in the same life: a commit that came between the two is on disk,
and one that a crash has undone between them is seen by the next sweep. A tombstone goes in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from xaqueue.carried import decode
from xaqueue.tm import driver
from xaqueue.tm.gtrid import Gtrid, ListedBranch, parse_listed
from xaqueue.tm.node_schema import identity_of
from xaqueue.tm.node_tables import NodeTables, Standing
from xaqueue.tm.participant import ConnectionSource
from xaqueue.tm.voting import Reply
from xaqueue.xa import Outcome


class Swept(NamedTuple):
    """A listed branch that is not this node's. outcome: what it is told; None: it is left, and why."""

    branch: ListedBranch
    outcome: Outcome | None
    why: str = ""


class Sweep:
    """One round at one participant: made before that is asked for its list. Raises what a driver raises."""

    def __init__(
        self,
        tables: NodeTables,
        source: ConnectionSource,
        own_node: str,
        identity: str,
        connection: Any,
        buried_s: float,
    ) -> None:
        """identity: of the participant. buried_s: so long a tombstone stands."""
        self._tables = tables
        self._source = source
        self._own_node = own_node
        self._identity = identity
        self._connection = connection
        with source.opened() as own:
            self._decisions = tables.of_ended(own, identity)
            self._tombstones = [
                one for one in tables.tombstones(own, buried_s) if identity in one.names() or not one.names()
            ]
        self._life = identity  # a database has no other
        if driver.offers(connection, "carriers") and (self._decisions or self._tombstones):
            self._carriers = connection.carriers()
            self._life = self._carriers.life

    def words(self, listed: Iterable[ListedBranch]) -> Iterator[Swept]:
        """What those are told that other nodes of this database have left."""
        others = [
            branch
            for branch in listed
            if branch.gtrid.database == self._tables.database and branch.gtrid.node != self._own_node
        ]
        if not others:
            return
        with self._source.opened() as own:
            undecided = []
            for branch in others:
                swept = self._tried(own, branch, self._word)
                if swept is not None:
                    yield swept
                else:
                    undecided.append(branch)
            # What is not listed now was finished behind the list, and a decision that it was told of may be struck.
            found = map(parse_listed, self._connection.tpc_recover()) if undecided else ()
            left = {(one.gtrid, one.participant) for one in found if one is not None}
            for branch in undecided:
                is_left = (branch.gtrid, branch.participant) in left
                yield (self._tried(own, branch, self._forced) if is_left else None) or Swept(branch, None)

    def _tried(self, own: Any, branch: ListedBranch, call: Callable[[Any, ListedBranch], Swept | None]) -> Swept | None:
        try:
            return call(own, branch)
        except Exception as error:  # of its driver: the others are not held up
            own.rollback()
            return Swept(branch, None, f"{type(error).__name__}: {error}")

    def _forced(self, own: Any, branch: ListedBranch) -> Swept:
        return Swept(branch, self._tables.resolve(own, bytes(branch.gtrid)).outcome)

    def _word(self, own: Any, branch: ListedBranch) -> Swept | None:
        """None: it is undecided, and its node may decide no more."""
        gtrid = bytes(branch.gtrid)
        state = self._tables.state_of(own, gtrid)
        if state.decision is Outcome.COMMITTED:
            return Swept(branch, state.decision)
        if not state.is_known(branch.gtrid.epoch):
            return Swept(branch, None, "the database that decides does not know of it: it is another one, or a copy")
        return None if state.is_ended else Swept(branch, None)

    def strike(self, listed: Collection[ListedBranch]) -> dict[str, str]:
        """What this participant has carried out, since it is not in this list, is hardened, and is its no more.

        Returns what stays, by the name of the transaction or of the node, and why: it holds up no other.
        """
        failures: dict[str, str] = {}
        gtrids = {str(branch.gtrid) for branch in listed}
        unlisted = [one for one in self._decisions if one.key not in gtrids]
        carried_out = [one for one in unlisted if self._is_over(one, failures)]
        nodes = {branch.gtrid.node for branch in listed}
        without = [one for one in self._tombstones if one.key not in nodes]
        if carried_out or without:
            if driver.offers(self._connection, "harden"):
                self._connection.harden()
            if self._found_life() != self._life:
                return failures  # what it had not hardened when it gave its list may be undone
            with self._source.opened() as own:
                steps = [(self._tables.strike, one) for one in carried_out]
                for step, one in steps + [(self._tables.bury, one) for one in without]:
                    try:
                        step(own, one, self._identity)
                    except Exception as error:  # of its driver
                        own.rollback()
                        failures[one.key] = f"{type(error).__name__}: {error}"
        return failures

    def committed(self, branch: ListedBranch) -> None:
        """A database has carried it out, durably: its node, which may live and find it gone, reads that in the row."""
        if not driver.offers(self._connection, "harden"):
            with self._source.opened() as own:
                for one in self._tables.decided(own, bytes(branch.gtrid)):
                    self._tables.strike(own, one, self._identity)

    def _found_life(self) -> Any:
        if driver.offers(self._connection, "carriers"):
            return self._connection.carriers().life
        return identity_of(self._connection, self._source.name).answer

    def _is_over(self, one: Standing, failures: dict[str, str]) -> bool:
        try:
            return self._has_carried_out(one)
        except Exception as error:  # of its driver, or the row cannot be read
            failures[one.key] = f"{type(error).__name__}: {error}"
            return False

    def _has_carried_out(self, one: Standing) -> bool:
        """It may be prepared yet though its list was without it, where the participant can tell; and a change that the
        row carries is in no list."""
        if not one.participants:
            return True
        if one.carried:
            change = decode(one.carried)
            noted = self._carriers.get(change.carrier)
            return noted is not None and noted.has_applied(change.number)
        gtrid = Gtrid.parse(one.key)
        if gtrid is None:  # somebody's, by hand
            return False
        xid = driver.xid_on(self._connection, bytes(gtrid), one.names()[self._identity])
        return driver.ask(self._connection, xid) is not Reply.PENDING
