"""A transaction manager without a directory: it is a node in the database that decides, for as long as it gives signs.

Each process is one, under a name of its own, which it takes at its start, behind a fork, and once others took it for
dead. A node that is silent is ended by any other one; what it has left is swept by any other one. Two guards, each
enough by itself, keep a decision of an ended node out: a decision locks its node's row, and what is undecided is rolled
back only behind a row that says so. See ``node_tables`` for the statements, ``sweep`` for what ended nodes have left.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from xaqueue.errors import DecisionLogError, InvalidArgument, OperationalError
from xaqueue.tm import driver
from xaqueue.tm.decisions import Decisions
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.identities import Identities, identity_of
from xaqueue.tm.last_resource import NAMES_LENGTH, DecisionRow
from xaqueue.tm.node_schema import LOCK_S, Timing
from xaqueue.tm.node_tables import NodeTables
from xaqueue.tm.participant import ConnectionSource
from xaqueue.tm.records import DecisionTable, Heuristic
from xaqueue.tm.sweep import Sweep
from xaqueue.tm.voting import Reply

if TYPE_CHECKING:
    from xaqueue.tm.branch import EnlistedBranch

RECENT = 10_000
"""Decisions of the last minute that are looked for where the database has lost some, at most."""
STRUCK_S = 2.0
"""So long a branch that somebody else has committed is struck by him, unless he was killed in between."""
EVERY_EPOCH = 1, 2**32 - 1

log = logging.getLogger("xaqueue")


class DatabaseNode(Decisions):
    """Of one process. Safe for threads. node, epoch: of its name now, "" and 0 before the first; the number of its last
    sign stands in the place of the epoch."""

    gives_signs = True

    def __init__(
        self, sources: Mapping[str, ConnectionSource], decides: str | None, timing: Timing | None = None
    ) -> None:
        """decides: in whose database it is a node; None: the only database among them. Raises InvalidArgument."""
        super().__init__()
        if decides is not None and decides not in sources:
            raise InvalidArgument(f"decides={decides!r} is none of the participants {sorted(sources)}")
        self.timing = timing or Timing()
        self.table = DecisionTable()
        self.wake_all: Callable[[], object] = lambda: None
        """Asks for a sweep of each participant."""
        self._sources = sources
        self.decides = decides or ""
        self._identities = Identities(sources)
        self._kinds: dict[str, bool] = {}
        """Of each participant that was opened once, whether it is a database."""
        self._tables: NodeTables | None = None
        self._mutex = threading.Lock()
        """Held while it signs, or takes a name, and by no event loop."""
        self._beside = threading.Lock()
        """Held while a thread looks for those in an event loop."""
        self._unwritten: dict[tuple[bytes, str], Heuristic] = {}
        """Heuristics that the database does not have yet."""
        self._trouble = ""
        """Why they could not be exchanged at last."""
        self._swept: dict[str, float] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._drop_name()

    def _drop_name(self) -> None:
        self.node, self.epoch = "", 0
        self.named = "XAQ2".ljust(44, "0")  # nobody's
        self._signed_s = 0.0
        self._met: dict[str, None] = {}
        """What its participants say of themselves."""
        self._known = frozenset[str]()
        """Those that its last sign has."""
        self._is_doubtful = False
        """A decision failed: whether it may decide is to be asked."""
        self._begin_name()

    def _begin_name(self) -> None:
        self.is_unclean = False
        """Whether a prepare or an end was not answered: its tombstone stays behind it."""
        self._recent: deque[tuple[float, bytes]] = deque(maxlen=RECENT)
        self._removed: dict[bytes, int] = {}
        """Decisions whose rows are removed, which a crash of the database may undo yet, with the sign before that."""
        self._looked = 0
        """The sign at which such rows were looked for."""
        self._seen: dict[str, tuple[int, int]] = {}
        """Of each other node its last sign, and for how many intervals it is that."""
        self._has_signed = False
        """Whether the last interval counts."""

    # Its place

    def _deciding(self) -> ConnectionSource:
        """The participant in whose database it is a node. Raises what ``freshen`` raises."""
        if not self.decides:
            databases = [name for name in self._sources if self._is_database(name)]
            if len(databases) != 1:
                raise InvalidArgument(
                    f"{len(databases)} of the participants {sorted(self._sources)} are databases: without a directory "
                    "one of them keeps the decisions, so name it (decides=), or give TransactionManager a directory"
                )
            self.decides = databases[0]
        return self._sources[self.decides]

    def _is_database(self, name: str) -> bool:
        if name not in self._kinds:
            source = self._sources[name]
            if source.is_of_space:
                self._kinds[name] = False
            else:
                with source.opened() as connection:
                    self._kinds[name] = driver.takes_sql(connection)
        return self._kinds[name]

    def _found(self, connection: Any, *, make: bool, again: bool = False) -> NodeTables | None:
        """again: what they are now, since somebody may have said that they are another database's."""
        before = self._tables
        if before is None or again:
            found = before.again(connection) if before and before.is_whole else NodeTables.find(connection, make=make)
            self._tables, self.rows = found, found or self.rows
            if before is None:
                self.wake_all()  # queues may wait for what it has carried
            if found is not None and found.trouble and not (before and before.trouble):
                log.warning("[database-copy] %s: nothing is swept here", found.trouble)
        return self._tables

    # Its name and its signs

    @property
    def is_fresh(self) -> bool:
        """Whether a transaction may be begun without a look at the database."""
        return bool(self.node) and not self._is_doubtful and time.monotonic() - self._signed_s < self.timing.stale

    def freshen(self, *, may_wait: bool = True) -> None:
        """It has a name, under which it may decide, and a sign of life that is not old.

        may_wait: else, in the event loop of its connections, it goes on under the name that it has, and another thread
        looks. Raises what the driver raises, InvalidArgument, OperationalError.
        """
        if not may_wait:
            self._freshen_beside()
            return
        if not self.is_fresh:
            with self._mutex:
                if not self.is_fresh:
                    self._sign()
        if self._thread is None:
            self.start()

    def _freshen_beside(self) -> None:
        if not self.node:
            raise OperationalError(
                "this process has no name yet in the database that decides: begin with `async with` of the "
                "transaction manager, or try again in a moment"
            )

        def look() -> None:
            try:
                with suppress(Exception):  # its thread meets the same, and says so
                    self.freshen()
            finally:
                self._beside.release()

        if self._beside.acquire(blocking=False):
            threading.Thread(target=look, name="xaqueue-tm-node", daemon=True).start()

    def meet(self, branch: EnlistedBranch) -> None:
        """Whoever ends this node is to know whom to ask. Raises as ``freshen``."""
        branch.identity, branch.check_identity = self._identities.of_branch(branch)
        if branch.identity not in self._known:
            branch.source.loop.in_thread(partial(self._meet, branch.identity))

    def _meet(self, identity: str) -> None:
        with self._mutex:
            if identity not in self._known:
                if not self._has_room_for(identity):
                    raise InvalidArgument(
                        f"{len(self._met) + 1} participants are too many for one transaction manager without a "
                        "directory: give it one, or make several managers"
                    )
                self._met[identity] = None
                self._sign()

    def _has_room_for(self, identity: str) -> bool:
        return len(self._names()) + len(quote(identity, safe="")) < NAMES_LENGTH

    def _sign(self) -> None:
        if self._closed.is_set():
            raise DecisionLogError("the transaction manager is closed: open it again")
        with self._deciding().opened() as connection:
            tables = self._found(connection, make=True)
            assert tables is not None
            if self.node:
                if tables.sign(connection, self.node, self.epoch, self._names()):
                    self._signed(tables, self.node, self.epoch + 1)
                    return
                self._signed_s, self.is_unclean = 0.0, True  # until there is a new name, whose first sign is in
                tables = self._found(connection, make=True, again=True)
                assert tables is not None
                self._lost(tables, connection)
                with self.lock:
                    self.table.open.clear()  # it is swept by now, or will be
            node = secrets.token_hex(8)
            # In SQLite nobody writes beside a transaction.
            for identity in self._identities.await_all(self.decides, asks=tables.dialect is Dialect.SQLITE):
                if self._has_room_for(identity):
                    self._met[identity] = None
            tables.register(connection, node, self._names())
            self.table.lasts[self.decides] = EVERY_EPOCH
            self._begin_name()
            self._signed(tables, node, 1)

    def _signed(self, tables: NodeTables, node: str, sign: int) -> None:
        self.named = f"{Gtrid(node, sign, 0, tables.database).of_node}{sign:08x}"
        self.node, self.epoch, self._signed_s, self._is_doubtful = node, sign, time.monotonic(), False
        self._known = frozenset(self._met)

    def _lost(self, tables: NodeTables, connection: Any) -> None:
        """Its last sign is not there: says why."""
        found = tables.state_of(connection, f"{self.named}{0:016x}".encode()).sign  # which its tombstone has kept
        if not self.named.startswith(f"XAQ2{tables.database}"):
            log.warning("[node-ended] the database has a new id: node %s goes on under a new name there", self.node)
        elif found == self.epoch:
            log.warning("[node-ended] node %s was silent for too long, and goes on under a new name", self.node)
        elif found > self.epoch:
            log.warning(
                "[node-twin] somebody else gives signs as node %s, as a copied machine does: new name", self.node
            )
        else:
            since = time.monotonic() - 60.0
            missing = [
                gtrid.decode()
                for when, gtrid in list(self._recent)
                if when >= since and tables.state_of(connection, gtrid).decision is None
            ]
            log.critical(
                "[database-lost-commits] the database that decides has lost the last %d signs of node %s, and with "
                "them what was committed meanwhile; of decisions of the last minute these are not there, some of which "
                "may be over: %s",
                *(self.epoch - found, self.node, ", ".join(missing) or "none"),
            )

    def _names(self) -> str:
        return " ".join(quote(identity, safe="") for identity in self._met)

    def may_be_ended(self) -> None:
        """A decision was refused: whether it may decide is asked before the next transaction."""
        self._is_doubtful = True

    # What it decides

    @property
    def carries_as(self) -> str:
        return self._tables.database if self._tables is not None else ""

    def carrier(self, database: str) -> str:
        """One for all nodes, whatever they call it: a space waits for one, and any of them can ask for it."""
        return f"{self.carries_as}.nodes"

    def database_of(self, carrier: str) -> str:
        return self.decides

    def add_row(self, gtrid: bytes, *rest: Any, **more: Any) -> None:
        self._recent.append((time.monotonic(), gtrid))
        super().add_row(gtrid, *rest, **more)

    def ask(self, gtrid: bytes, identity: str) -> Reply:
        """Another one strikes it behind a commit that it has made there."""
        source, until = self._deciding(), time.monotonic() + STRUCK_S
        while True:
            try:
                with source.opened() as connection:
                    if self.tables.is_struck(connection, gtrid, identity):
                        return Reply.COMMITTED
            except Exception:  # whatever a driver raises: recovery goes on
                return Reply.PENDING
            if time.monotonic() > until:
                return Reply.UNKNOWN
            source.loop.pause(STRUCK_S / 20)

    def removed(self, gtrids: Iterable[bytes]) -> None:
        self._removed |= dict.fromkeys(gtrids, self.epoch)

    def came_back(self, connection: Any) -> list[DecisionRow]:
        """A removal waits for no disk, and two signs behind it have waited: from then on it stands."""
        if not self._removed or self.epoch < self._looked + 2:
            return []
        found = [row for row in self.tables.own(connection, self.node) if row.gtrid in self._removed]
        self._looked = self.epoch
        self._removed = {gtrid: sign for gtrid, sign in self._removed.items() if sign > self._looked - 2}
        return found

    def note_last(self, participant: str) -> None:
        """Its decisions stand nowhere else."""

    def note(self, heuristic: Heuristic) -> bool:
        """Keeps it here and in the database; where that does not take it at once, with a later sign."""
        key = heuristic.gtrid, heuristic.participant
        with self.lock:
            known = self.table.heuristics.get(key)
            if known is not None and (known.decision, known.outcome) == (heuristic.decision, heuristic.outcome):
                return False
            self.table.note(heuristic)
            self._unwritten[key] = heuristic
        writer = threading.Thread(target=self._write, name="xaqueue-tm-node", daemon=True)
        with suppress(RuntimeError):  # at the interpreter's end
            writer.start()
            writer.join(LOCK_S)  # no longer: an event loop may wait for this that the connection needs
        return True

    def _write(self) -> None:
        with suppress(Exception), self._mutex, self._deciding().opened() as connection:
            self._exchange(connection)

    def _exchange(self, connection: Any) -> None:
        """The database gets the heuristics that were noted here, and this process those of all."""
        tables = self._found(connection, make=True, again=bool(self._unwritten))
        assert tables is not None
        for key, noted in list(self._unwritten.items()):
            tables.note(connection, noted)
            with self.lock:
                if self._unwritten.get(key) is noted:
                    del self._unwritten[key]
        found = tables.heuristics(connection)
        with self.lock:
            self.table.heuristics = {(one.gtrid, one.participant): one for one in found} | self._unwritten

    def _try_exchange(self, connection: Any) -> None:
        """Whoever may not do that, for want of a right, watches all the same."""
        trouble = ""
        try:
            with self._mutex:
                self._exchange(connection)
        except Exception as error:  # whatever a driver raises: the next sign tries again
            trouble = str(error)
            if trouble != self._trouble:
                log.warning("[node-waits] what participants did by themselves is neither read nor kept: %s", error)
        self._trouble = trouble

    def forget(self, gtrid: bytes) -> None:
        """Of any process. Raises ProtocolError, and what the driver raises."""
        self.check_over(gtrid)
        with self._mutex, self._deciding().opened() as connection:
            self._exchange(connection)
            self.tables.forget(connection, gtrid)
            with self.lock:
                self.table.forget(gtrid)

    # Others

    def start(self) -> None:
        """Its thread, which gives signs, watches those of others, and ends who is silent."""
        with self._mutex:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="xaqueue-tm-node", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        trouble = ""
        while not self._closed.is_set():
            try:
                self.turn()
                if trouble:
                    log.info("[node-signs] the database that decides is reached again")
                trouble = ""
            except Exception as error:  # whatever a driver raises: it is tried again
                self._has_signed = False
                if str(error) != trouble and not self._closed.is_set():
                    log.warning(
                        "[node-waits] no sign of life to the database that decides: %s; it goes on trying", error
                    )
                trouble = str(error)
            self._closed.wait(self.timing.sign)

    def turn(self) -> None:
        """A sign, and a look at the others' and at heuristics. Raises what the driver raises."""
        with self._mutex:
            self._sign()
        with self._deciding().opened() as connection:
            silent = self._watch(self.tables.signs(connection))
            ended = [node for node in silent if self.tables.end(connection, node)]
            self._try_exchange(connection)
        for node in ended:
            log.warning("[node-ended] node %s gave no sign of life, and is ended: what it has left is swept", node)
        if ended:
            self.sweep_all()

    @property
    def tables(self) -> NodeTables:
        assert self._tables is not None
        return self._tables

    def _watch(self, signs: Mapping[str, int]) -> list[str]:
        """Those that are silent. An interval counts where both its ends were signed here."""
        counts, self._has_signed = self._has_signed, True
        before, self._seen = self._seen, {}
        for node, sign in signs.items():
            known, silent = before.get(node, (0, 0))
            self._seen[node] = sign, 0 if known != sign else silent + counts
        return [node for node, (_, silent) in self._seen.items() if silent >= self.timing.silent and node != self.node]

    def end_silent(self, age_s: float) -> list[str]:
        """Ends at once who gave no sign for so long, by the database's clock: for who does not live long enough to
        watch. Returns their names. Raises what the driver raises."""
        with self._deciding().opened() as connection:
            tables = self._found(connection, make=False)
            silent = tables.silent(connection, age_s) if tables is not None else []
            ended = [node for node in silent if node != self.node and self.tables.end(connection, node)]
        self.sweep_all()
        return ended

    def sweep_all(self) -> None:
        """Each participant, at its next round, which is now."""
        self._swept.clear()
        self.wake_all()

    def sweep(self, name: str, connection: Any) -> Sweep | None:
        """Of what ended nodes have left at this participant, before it is asked for its list; None where it is not due.

        Raises what a driver raises.
        """
        now, source = time.monotonic(), self._deciding()
        if name != self.decides:
            self._identities.hear(name, connection)
        if self._swept.get(name, 0.0) > now or name == self.decides:
            return None
        with source.opened() as own:
            tables = self._found(own, make=False, again=True)
        if tables is None or tables.trouble:
            return None
        self._swept[name] = now + self.timing.sweep * random.uniform(0.8, 1.2)
        return Sweep(tables, source, self.node, identity_of(connection, name), connection, self.timing.buried)

    # The end

    def close(self, is_hardened: Callable[[], bool] = lambda: True) -> None:
        """Nothing is left of it where all is over and hardened; else its tombstone is."""
        with self._mutex:
            if self._closed.is_set():
                return
            self._closed.set()
            if not self.node:
                return
            with self.lock:
                is_over = not self.table.open and not self._done_rows and not self.is_unclean
            try:
                is_over = is_over and (not self._met or is_hardened())
                with self._deciding().opened() as connection:
                    if self._unwritten:
                        self._exchange(connection)
                    if is_over and not self.tables.own(connection, self.node):  # nobody would remove what came back
                        self.tables.close(connection, self.node)
                    else:
                        self.tables.end(connection, self.node)
            except Exception as error:  # whatever a driver raises: it is silent from here on, and ended for that
                log.warning("[node-waits] node %s could not say goodbye (%s): others will end it", self.node, error)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self.timing.sign)

    def abandon(self) -> None:
        """In a forked child: the name is the parent's, and this one takes its own at its first transaction."""
        self.lock, self._mutex, self._beside = threading.Lock(), threading.Lock(), threading.Lock()
        self._identities.abandon()
        if not self._closed.is_set():
            self._closed = threading.Event()  # on which its thread waited
        self._thread = None
        self.table = DecisionTable()
        self._done_rows, self._over, self._swept, self._unwritten = {}, [], {}, {}
        self._drop_name()
