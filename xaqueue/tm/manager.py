"""A transaction manager owns one decision log and finishes what it began, however often it is killed in between.

    with xaqueue.TransactionManager("tmlog/", {"queue": lambda: xaqueue.connect("data/orders-space"),
                                               "ledger": lambda: psycopg.connect(dsn)}) as tm:
        with tm.transaction() as tx:
            tx["ledger"].execute("insert ...")
            tx["queue"].enqueue("orders", b"...")

Opening it starts the recovery of every participant in the background and waits for none of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import Any, Self, TypeVar, overload

from xaqueue.errors import DecisionLogError, InterfaceError, InvalidArgument, ProtocolError, RetryLater, UnknownXid
from xaqueue.tm.async_transaction import AsyncTransaction
from xaqueue.tm.awaiting import AsyncLoop
from xaqueue.tm.coordinator import Coordinator, OnStep
from xaqueue.tm.decisions import Decisions
from xaqueue.tm.driver import offers
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.node import DatabaseNode
from xaqueue.tm.participant import Opens, Participant, Within, apart, sources
from xaqueue.tm.records import Heuristic, InDoubtTransaction
from xaqueue.tm.recovery import RecoveryResult, RecoveryThread
from xaqueue.tm.slots import Slots, open_slot
from xaqueue.tm.transaction import ENTERED, NestedTransaction, Transaction, around
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome

CLOSE_PATIENCE_S = 10.0
"""How long ``close`` waits for a transaction that is being committed, and for a participant that does not answer."""

HOUSEKEEPING_S = 0.5
PRUNING_S = 1.0
"""So often at most, participants harden what they have committed late, and rows that nobody needs then go."""

log = logging.getLogger("xaqueue")
R = TypeVar("R")

_open: weakref.WeakSet[TransactionManager] = weakref.WeakSet()


class TransactionManager:
    """Safe for threads; each thread has transactions of its own."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | Mapping[str, Opens | Participant | Within],
        participants: Mapping[str, Opens | Participant | Within] | None = None,
        *,
        decides: str | None = None,
        last_resource: str | None = None,
        two_phase: bool = False,
        carry: bool = True,
        timeout_s: float = 60.0,
        recovery_interval_s: float = 30.0,
        on_step: OnStep | None = None,
    ) -> None:
        """Opens the decision log, or makes one, and starts recovery.

        Given the participants alone, it has no log: their only database, or that of ``decides``, keeps the decisions,
        and any process with the same database finishes what this one leaves. Each process is a node there, under a
        name that it takes by itself; the tables are made at its first transaction, or by who runs ``xaqueue tm sql``.

        log_dir: belongs to processes with the same participants; each has a slot of it, a log with a node id of its
        own, and any that lives finishes what one has left that has ended. participants: by name, how each is
        opened: a function, the path of a space or the URL of its server, or an Engine of SQLAlchemy, and what works
        within one of them; the names are part of what is written down, so they stay. last_resource: the one among them
        whose commit decides for all that have prepared, where it takes part; its database keeps the decision as a row
        of the table xaqueue_decisions. Without it that is, in each transaction, its database without two-phase commit,
        or else its only database. two_phase: there is none, and all prepare. carry: where one queue takes part beside
        that database, its space is open in this process and its messages are small, they are in that row as well: then
        the database's commit hardens both, and the queue does not prepare. timeout_s: a transaction that was not
        decided by then is rolled back. recovery_interval_s: each participant is asked so often what is in doubt.
        on_step: see ``OnStep``.
        Raises DecisionLogInUse, DecisionLogDamaged, DecisionLogError, InvalidArgument.
        """
        if timeout_s <= 0 or recovery_interval_s <= 0:
            raise InvalidArgument("timeout_s and recovery_interval_s are numbers of seconds above 0")
        self._timeout_s, self._recovery_interval_s, self._on_step = timeout_s, recovery_interval_s, on_step
        self._closed = False
        self._log: Decisions
        self._slots: Slots | None = None
        """Where it has a directory, which other processes may share."""
        loop = AsyncLoop()
        if not isinstance(log_dir, Mapping):
            if participants is None or decides is not None:
                raise InvalidArgument(
                    "give a directory and the participants, or the participants alone and, of several databases, "
                    "which one decides"
                )
            own, self._within = apart(participants)
            self._sources = sources(own, last_resource, two_phase=two_phase, carry=carry, loop=loop)
            self._log = slot = open_slot(log_dir)
            self._slots = Slots(log_dir, slot, partial(_Heir, self), recovery_interval_s)
        else:
            if participants is not None or last_resource is not None or two_phase:
                raise InvalidArgument(
                    "without a directory the database of decides= keeps the decisions: leave last_resource and "
                    "two_phase out, or give a directory"
                )
            own, self._within = apart(log_dir)
            self._sources = sources(own, decides, carry=carry, loop=loop)
            self._log = node = DatabaseNode(self._sources, decides)
            node.wake_all = lambda: self._wake(self._sources)
        self._prepare(loop)
        self._run()
        _open.add(self)

    def _prepare(self, loop: AsyncLoop) -> None:
        """What it is in this process, before its threads."""
        self._closing = threading.Lock()
        self._coordinator = Coordinator(self._log, self._sources, self._on_step, loop)
        self._recoveries = {
            name: RecoveryThread(self._coordinator, source, self._recovery_interval_s)
            for name, source in self._sources.items()
        }
        self._coordinator.within = self._within
        self._coordinator.wake = self._wake
        if self._slots is not None:
            self._coordinator.hear = self._slots.hear
        self._stopped = threading.Event()
        self._housekeeping = threading.Thread(target=self._keep_house, name="xaqueue-tm-housekeeping", daemon=True)
        self._is_running = False

    def _run(self) -> None:
        """Its threads, at its start, or behind a fork where it is used first."""
        self._is_running = True
        for recovery in self._recoveries.values():
            recovery.start()
        self._housekeeping.start()
        self._log.start()
        if self._slots is not None:
            self._slots.start()

    @property
    def node(self) -> str:
        """16 hex digits, in the name of every transaction: who decides on it."""
        return self._log.node

    @property
    def epoch(self) -> int:
        """How often the log was opened."""
        return self._log.epoch

    # Transactions

    def transaction(self, *names: str, timeout_s: float | None = None, independent: bool = False) -> Transaction:
        """A new global transaction, for ``with`` or ``async with``: it commits at its end, and rolls back on any
        exception.

        In the block of another one, in the same thread or task, it is a savepoint of that: undone on an exception, and
        the outer one alone commits. independent: it is one of its own there, too.

        names: participants to begin at once; the others are begun when they are used. timeout_s: what has taken longer
        is rolled back; of a savepoint at its end, and nothing is interrupted before. Raises InterfaceError once closed,
        DecisionLogError.
        """
        if self._closed or not self._is_running:
            self._check_open()
        for name in names:
            if name not in self._sources and name not in self._within:
                raise InvalidArgument(f"{name!r} is no participant: there are {sorted(self._sources)}")
        if timeout_s is not None and timeout_s <= 0:
            raise InvalidArgument("timeout_s is a number of seconds above 0")
        if ENTERED.get() and not independent and (outer := around(self._coordinator)) is not None:
            return NestedTransaction(self._coordinator, outer, names, timeout_s)
        return Transaction(self._coordinator, names, self._timeout_s if timeout_s is None else timeout_s)

    @overload
    def transactional(self, function: Callable[..., R], /) -> Callable[..., R]: ...

    @overload
    def transactional(
        self, *names: str, timeout_s: float | None = None, independent: bool = False
    ) -> Callable[[Callable[..., R]], Callable[..., R]]: ...

    def transactional(self, *names: Any, **options: Any) -> Any:
        """Decorates a function to run in a transaction, which it gets as keyword argument ``tx``.

        With or without arguments: those of ``transaction``, so that in the block of another one it is a savepoint.
        Called with a ``tx``, the function joins that one. An async function is run in an async transaction.
        """
        if len(names) == 1 and callable(names[0]):
            return self.transactional(**options)(names[0])

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if inspect.iscoroutinefunction(function):

                @wraps(function)
                async def inside_task(*args: Any, tx: AsyncTransaction | None = None, **kwargs: Any) -> Any:
                    if tx is not None:
                        return await function(*args, tx=tx, **kwargs)
                    async with self.transaction(*names, **options) as own:
                        return await function(*args, tx=own, **kwargs)

                return inside_task

            @wraps(function)
            def inside(*args: Any, tx: Transaction | None = None, **kwargs: Any) -> Any:
                if tx is not None:
                    return function(*args, tx=tx, **kwargs)
                with self.transaction(*names, **options) as own:
                    return function(*args, tx=own, **kwargs)

            return inside

        return decorate

    # What is in doubt

    def recover(self, timeout_s: float | None = None) -> RecoveryResult:
        """A round of recovery at every participant, now; waits for it, or for so many seconds.

        Databases that may have decided come first, and once more where others list what they have not decided on. In
        an event loop: ``await asyncio.to_thread(tm.recover)``.
        """
        self._check_open()
        self._coordinator.loop.check_may_block()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        result = RecoveryResult()
        lasts = [name for name in self._recoveries if name in self._log.table.lasts]
        others = [name for name in self._recoveries if name not in lasts]
        for names in (lasts, others):
            self._recover_at(names, result, deadline)
        for _ in range(2):  # who carries for whom is arranged in two steps
            if not (self._coordinator.undecided() or self._coordinator.deciding.is_waiting):
                break
            for names in (lasts, others):
                self._recover_at(names, result, deadline)
        if self._slots is not None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            for other in self._slots.adopt(left_s, at_once=True):
                result.add(other)
        return result

    def _recover_at(self, names: Iterable[str], result: RecoveryResult, deadline: float | None) -> None:
        rounds = {name: self._recoveries[name].wake() for name in names}
        for name, number in rounds.items():
            scan = self._recoveries[name].wait(number, deadline)
            result.scans[name] = result.scans[name].followed_by(scan) if name in result.scans else scan

    def in_doubt(self) -> list[InDoubtTransaction]:
        """Global transactions that are not over, without live ones; also those with heuristics that nobody forgot, and
        those that processes have left which had slots of the same directory."""
        return [*self._coordinator.in_doubt(), *(self._slots.in_doubt() if self._slots is not None else ())]

    def outcome(self, gtrid: bytes | str) -> Outcome:
        """COMMITTED: decided, whoever has heard of it. IN_DOUBT: live, or its decision cannot be read now.

        UNKNOWN: somebody else's, of an earlier life of this log and done, or finished too long ago (the last 10,000
        are remembered).
        """
        return self._coordinator.outcome(gtrid.encode() if isinstance(gtrid, str) else gtrid)

    def forget(self, gtrid: bytes | str) -> list[Heuristic]:
        """Ends the memory of a transaction's heuristics, here and at its participants; returns what is forgotten.

        For a person to call who has set right what was done. Raises UnknownXid where there are none,
        ProtocolError where it is not over, what a participant's driver raises (and nothing is forgotten here),
        DecisionLogError.
        """
        self._check_open()
        name = gtrid.encode() if isinstance(gtrid, str) else gtrid
        forgotten = [noted for one in self._coordinator.in_doubt() if one.gtrid == name for noted in one.heuristics]
        if not forgotten and self._slots is not None and (forgotten := self._slots.forget(name)):
            return forgotten
        if not forgotten:
            raise UnknownXid(f"transaction {name.decode()} has no heuristics: in_doubt() lists those that have")
        self._log.check_over(name)
        for noted in forgotten:  # another process may have given a queue another name
            for source in self._sources.values():
                if noted.participant == source.name or self._log.gives_signs:
                    source.forget(name, noted.participant)
        self._log.forget(name)
        return forgotten

    def release(self, space: str) -> list[bytes]:
        """Ends the wait for a space that is gone for good, as one that was restored and has another id since: what it
        had prepared, or only databases have carried for it, is lost. space: its id. Returns the transactions; call
        ``recover`` before.

        For a person to call. Raises ProtocolError where a participant has that space, what a driver raises.
        """
        self._check_open()
        for source in self._sources.values():
            with source.opened() as connection:
                if offers(connection, "carriers") and connection.carriers().space == space:
                    raise ProtocolError(f"participant {source.name!r} has space {space}: recovery hands it what is its")
        waiting = [(gtrid, row.queue) for gtrid, row in self._coordinator.deciding.rows.items() if row.space == space]
        with self._log.lock:
            for made in self._log.table.open.values():
                waiting += [(made.gtrid, name) for name in made.outstanding if made.spaces.get(name) == space]
        for gtrid, name in waiting:
            self._coordinator.settle(gtrid, Outcome.COMMITTED, {name: ParticipantOutcome.COMMITTED}, {})
        elsewhere = self._slots.release(space) if self._slots is not None else set()
        return sorted({*elsewhere, *(gtrid for gtrid, _ in waiting)})

    # Housekeeping

    def _keep_house(self) -> None:
        """What is done is recorded as done, and expired work is interrupted.

        Without it everything is just as durable: a crash then makes recovery look again at more that is done.
        """
        decisions, has_failed = self._log, False
        pruned_s = time.monotonic()
        while not self._stopped.wait(HOUSEKEEPING_S):
            for transaction in self._coordinator.live():
                transaction.interrupt_if_expired()
            if time.monotonic() - pruned_s >= PRUNING_S:
                pruned_s = time.monotonic()
                self._wake(self._coordinator.take_deferred())
            if has_failed or self._stopped.is_set():
                continue
            try:
                decisions.flush()
                if decisions.wants_checkpoint:
                    decisions.checkpoint()
            except RetryLater as full:
                log.warning("[no-room-yet] decision log: no checkpoint yet: %s", full)
            except DecisionLogError:
                has_failed = True  # which is logged

    # The end

    def close(self) -> None:
        """Waits for transactions that are being committed, and ends. A second call does nothing.

        Transactions that are still active are rolled back by their threads, or with their connections. Of async
        participants it waits for their event loop: there use ``async with``, or ``await asyncio.to_thread(tm.close)``.
        """
        self._coordinator.loop.check_may_block()
        with self._closing:
            if self._closed:
                return
            self._closed = True
        _open.discard(self)
        if self._slots is not None:
            self._slots.stop(CLOSE_PATIENCE_S)
        self._coordinator.close(CLOSE_PATIENCE_S)
        deadline = time.monotonic() + CLOSE_PATIENCE_S
        self._recover_at(self._coordinator.take_deferred(), RecoveryResult(), deadline)
        self._recover_at(self._log.has_done_rows, RecoveryResult(), deadline)
        for recovery in self._recoveries.values():
            recovery.stop(max(0.0, deadline - time.monotonic()))
        self._stopped.set()
        if self._is_running:
            self._housekeeping.join(max(0.0, deadline - time.monotonic()))  # unless it hangs in a call to the disk
        self._log.close(self._is_hardened)
        self._close_participants()  # last, since a driver may hang in it

    def _close_participants(self) -> None:
        for source in self._sources.values():
            source.close()
        self._coordinator.loop.end()

    def _is_hardened(self) -> bool:
        """Whether each queue has hardened what became of its branches, and nobody can prepare another one."""
        if self._coordinator.live() or any(recovery.is_alive for recovery in self._recoveries.values()):
            return False  # one hangs, perhaps while it removes decisions
        for name, source in self._sources.items():
            if name != self._log.decides:
                try:
                    with source.opened() as connection:
                        if offers(connection, "harden"):
                            connection.harden()
                except Exception:  # of its driver
                    return False
        return True

    async def __aenter__(self) -> Self:
        """For participants with async connections: they live in this event loop."""
        self._check_open()
        self._coordinator.join_loop()
        try:
            await asyncio.to_thread(self._log.freshen)
        except BaseException:
            await asyncio.to_thread(self.close)
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the transaction manager is closed: open it again")
        if not self._is_running:
            with self._closing:
                if not self._is_running and not self._closed:
                    self._run()

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._recoveries:
                self._recoveries[name].wake()

    def abandon(self) -> bool:
        """In a forked child: the log and the transactions are the parent's. Whether it goes on here all the same, as
        one that has no log does: under a name of its own, from its first transaction on."""
        is_open = not self._closed
        self._closed = True
        self._coordinator.abandon()
        self._log.abandon()
        for source in self._sources.values():
            source.abandon()
        if not is_open or not isinstance(self._log, DatabaseNode):
            return False
        loop = AsyncLoop()
        for source in self._sources.values():
            source.loop = loop
        self._closed = False
        self._prepare(loop)
        return True


class _Heir(TransactionManager):
    """Finishes what another process has left in its slot, with the participants of who adopts that; begins nothing."""

    def __init__(self, owner: TransactionManager, left: DecisionLog) -> None:
        vars(self).update(vars(owner))
        of_owner = self._coordinator
        self._log, self._slots, self._closed = left, None, False
        self._prepare(of_owner.loop)
        self._coordinator.trouble = of_owner.trouble
        self._run()
        _open.add(self)

    def _close_participants(self) -> None:
        """They are the owner's."""

    @property
    def hangs(self) -> bool:
        """Closed, and a participant does not come back from a call."""
        return any(recovery.is_alive for recovery in self._recoveries.values())


def _after_fork() -> None:
    for manager in list(_open):
        if not manager.abandon():
            _open.discard(manager)


os.register_at_fork(after_in_child=_after_fork)
