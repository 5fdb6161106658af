"""Participants in memory that fail as they are told, and a transaction manager over them without threads.

A crash of the transaction manager is ``Crashed``: from then on its connections do nothing, and only ``World.revive``
lets the next one in. What a participant has prepared, and what became of every branch, outlives it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.awaited import LoopThread
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.tm_tasks import TaskTransaction, in_tasks
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.errors import HeuristicOutcome
from xaqueue.tm.awaiting import AsyncLoop
from xaqueue.tm.coordinator import Coordinator, OnStep
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.participant import Participant, sources
from xaqueue.tm.recovery import RecoveryThread, ScanReport
from xaqueue.tm.transaction import Transaction
from xaqueue.xa import Code, Outcome

Xid = tuple[int, str, str]
ACTIVE, PREPARED, COMMITTED, ROLLED_BACK, READ_ONLY = "active", "prepared", "committed", "rolled back", "read-only"


class OperationalError(Exception):
    """PEP 249's, of this driver."""


class ProgrammingError(Exception):
    """PEP 249's, of this driver."""


class World:
    """Everything beside the transaction manager, and whether that one is alive."""

    def __init__(self) -> None:
        self.alive = True
        self.points = 0
        """How often the transaction manager might have died."""
        self.die_at: int | None = None
        self.banks: dict[str, Bank] = {}

    def point(self) -> None:
        if not self.alive:
            raise Crashed("nobody is there any more")
        if self.die_at is not None and self.points >= self.die_at:
            self.alive = False
            raise Crashed(f"at point {self.points + 1}")
        self.points += 1

    def revive(self) -> None:
        """The process is gone, and with it its sessions."""
        self.alive, self.die_at = True, None
        for bank in self.banks.values():
            bank.lose_sessions()

    def states(self, gtrid: bytes) -> dict[str, str]:
        """What each participant has made of its branch; without those that never had one."""
        return {
            name: state
            for name, bank in self.banks.items()
            for xid, state in bank.branches.items()
            if xid[1] == gtrid.decode()
        }


@dataclass
class Bank:
    """A resource manager. faults: of each verb, what goes wrong with its next calls, in turn."""

    world: World
    name: str
    tells: bool = False
    votes_read_only: bool = False
    is_deferred: bool = False
    """A commit that may be late is lost with the process, unless it was hardened."""
    late: list[Xid] = field(default_factory=list)
    branches: dict[Xid, str] = field(default_factory=dict)
    by_hand: dict[Xid, str] = field(default_factory=dict)
    forgotten: dict[Xid, str] = field(default_factory=dict)
    """What a person finished without leaving a trace."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    fault_of: Callable[[str], str] | None = None
    """Chooses the fault of each call instead."""
    is_down: bool = False
    opened: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Each verb that took place, with its gtrid."""
    others: list[Any] = field(default_factory=list)
    """More xids that it lists."""
    before_scan: Callable[[], None] = lambda: None
    after_scan: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.world.banks[self.name] = self

    def connect(self) -> BankConnection:
        if self.is_down:
            raise OperationalError(f"{self.name} is down")
        self.opened += 1
        if self.is_deferred:
            return LateConnection(self)
        return TellingConnection(self) if self.tells else BankConnection(self)

    def lose_sessions(self) -> None:
        for xid in self.late:
            self.branches[xid] = PREPARED
        self.late.clear()
        for xid, state in self.branches.items():
            if state == ACTIVE:
                self.branches[xid] = ROLLED_BACK

    def decide_by_hand(self, state: str, forget: bool = False) -> None:
        """A person finishes whatever is prepared."""
        for xid in [xid for xid, now in self.branches.items() if now == PREPARED]:
            self.branches[xid] = state
            (self.forgotten if forget else self.by_hand)[xid] = state

    def next_fault(self, verb: str) -> str:
        if self.fault_of is not None:
            return self.fault_of(verb)
        waiting = self.faults.get(verb, [])
        return waiting.pop(0) if waiting else ""

    def heal(self) -> None:
        self.faults.clear()
        self.fault_of = None

    def has(self, xids: Mapping[Xid, str], gtrid: bytes) -> bool:
        return any(xid[1] == gtrid.decode() for xid in xids)

    def prepared(self) -> list[Xid]:
        return [xid for xid, state in self.branches.items() if state == PREPARED]


class BankConnection:
    """PEP 249's two-phase methods, and ``work``."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.current: Xid | None = None
        self.closed = False

    def xid(self, format_id: int, gtrid: str, bqual: str) -> Xid:
        return format_id, gtrid, bqual

    def work(self) -> None:
        assert self.current is not None

    def tpc_begin(self, xid: Xid) -> None:
        def begin() -> None:
            assert self.current is None
            self.current = xid
            self.bank.branches[xid] = ACTIVE

        self._call("begin", xid, begin)

    def tpc_prepare(self) -> bool | None:
        xid = self._current()
        result: list[bool | None] = [None]

        def prepare() -> None:
            assert self.bank.branches[xid] == ACTIVE
            self.bank.branches[xid] = READ_ONLY if self.bank.votes_read_only else PREPARED
            result[0] = False if self.bank.votes_read_only else None

        def refuse() -> None:
            self.bank.branches[xid] = ROLLED_BACK
            raise OperationalError(f"{self.bank.name} refuses")

        self._call("prepare", xid, prepare, refuse)
        return result[0]

    def tpc_commit(self, xid: Xid | None = None) -> None:
        self._finish("commit", xid, COMMITTED)

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        self._finish("rollback", xid, ROLLED_BACK)

    def tpc_recover(self) -> Sequence[Any]:
        assert self.current is None
        found: list[Any] = []
        self.bank.before_scan()
        self._call("recover", None, lambda: found.extend([*self.bank.prepared(), *self.bank.by_hand]))
        self.bank.after_scan()
        return [*found, *self.bank.others]

    def tpc_forget(self, xid: Xid) -> None:
        def forget() -> None:
            if self.bank.by_hand.pop(xid, None) is None:
                raise ProgrammingError("no such branch")

        self._call("forget", xid, forget)

    def close(self) -> None:
        self.bank.world.point()
        self.closed = True
        if self.current is not None and self.bank.branches[self.current] == ACTIVE:
            self.bank.branches[self.current] = ROLLED_BACK
        self.current = None

    def _finish(self, verb: str, xid: Xid | None, state: str) -> None:
        own = xid is None
        branch = self._current() if xid is None else xid
        assert own or self.current is None, "outside of a transaction"

        def finish() -> None:
            decided = self.bank.by_hand.get(branch)
            if decided is not None:
                self.current = None
                code = Code.XA_HEURCOM if decided == COMMITTED else Code.XA_HEURRB
                raise HeuristicOutcome("by hand", code)
            now = self.bank.branches.get(branch)
            if now not in ((ACTIVE, PREPARED, READ_ONLY) if own else (PREPARED,)):
                raise ProgrammingError(f"{self.bank.name} has no such branch")
            if now != READ_ONLY:
                self.bank.branches[branch] = state
            self.current = None

        self._call(verb, branch, finish)

    def _current(self) -> Xid:
        assert self.current is not None, "inside of a transaction"
        return self.current

    def _call(
        self, verb: str, xid: Xid | None, effect: Callable[[], None], refuse: Callable[[], None] | None = None
    ) -> None:
        """Each call may die before and after what it does."""
        self.bank.world.point()
        if self.closed or self.bank.is_down:
            self._lose()
        fault = self.bank.next_fault(verb)
        if fault == "hand-rollback":
            self.bank.decide_by_hand(ROLLED_BACK)
        elif fault == "hand-commit":
            self.bank.decide_by_hand(COMMITTED)
        elif fault == "gone":
            self.bank.decide_by_hand(ROLLED_BACK, forget=True)
        elif fault == "request lost":
            self._lose()
        if fault == "refused" and refuse is not None:
            refuse()
        effect()
        self.bank.calls.append((verb, xid[1] if xid else ""))
        self.bank.world.point()
        if fault == "answer lost":
            self._lose()

    def _lose(self) -> None:
        self.closed = True
        if self.current is not None and self.bank.branches[self.current] == ACTIVE:
            self.bank.branches[self.current] = ROLLED_BACK
        raise OperationalError(f"connection to {self.bank.name} lost")


class TellingConnection(BankConnection):
    """Knows the outcome of its branches."""

    def outcome(self, xid: Xid) -> Outcome:
        self.bank.world.point()
        if self.bank.is_down:
            self._lose()
        told = {COMMITTED: Outcome.COMMITTED, ROLLED_BACK: Outcome.ROLLED_BACK, PREPARED: Outcome.IN_DOUBT}
        return told.get(self.bank.branches.get(xid, ""), Outcome.UNKNOWN)


class LateConnection(TellingConnection):
    """Of a queue space: a late commit is hardened with the next commit, or when it is asked for."""

    def tpc_prepare(self) -> bool | None:
        vote = super().tpc_prepare()
        self.bank.late.clear()
        return vote

    def tpc_commit(self, xid: Xid | None = None, *, late: bool = False) -> None:
        branch = self._current() if xid is None else xid
        super().tpc_commit(xid)
        self.bank.late = [*self.bank.late, branch] if late else []

    def harden(self) -> None:
        self._call("harden", None, self.bank.late.clear)


class Rig:
    """A transaction manager without its threads: recovery happens when it is told.

    thread: with one, participants are async and transactions run in tasks of its loop.
    """

    thread: LoopThread | None = None

    def __init__(
        self,
        fs: FileSystem,
        participants: Mapping[str, Callable[[], Any] | Participant],
        *,
        last: str | None = None,
        on_step: OnStep | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.log = DecisionLog(fs, segment_bytes=SMALLEST_SEGMENT_BYTES, now_us=itertools.count(1).__next__)
        self.timeout_s = timeout_s
        loop = AsyncLoop()
        if self.thread is not None and self.thread.is_here:
            self.thread = None  # made within a step of another one's
        if self.thread is not None:
            participants = {name: in_tasks(given) for name, given in participants.items()}
            self.thread.run(_join(loop))
        self.coordinator = Coordinator(self.log, sources(participants, last, loop=loop), on_step, loop)
        self.woken: list[str] = []
        self.coordinator.wake = self.woken.extend
        self.resolvers = {
            name: RecoveryThread(self.coordinator, source, 30.0)
            for name, source in sorted(self.coordinator.sources.items(), key=lambda item: item[0] != last)
        }

    def transaction(self, *names: str, timeout_s: float | None = None) -> Transaction:
        made = Transaction(self.coordinator, names, timeout_s or self.timeout_s)
        return made if self.thread is None else TaskTransaction(self.thread, made)  # type: ignore[return-value]

    def transact(self, *names: str) -> Transaction:
        """Work of each of these, and a commit."""
        with self.transaction() as tx:
            for name in names:
                tx[name].work()
        return tx

    def recover(self) -> dict[str, ScanReport]:
        """As ``TransactionManager.recover``."""
        lasts = [name for name in self.resolvers if name in self.log.table.lasts]
        order = [*lasts, *(name for name in self.resolvers if name not in lasts)]
        reports = {name: self.resolvers[name].run_once() for name in order}
        if self.coordinator.undecided():
            reports = {name: reports[name].followed_by(self.resolvers[name].run_once()) for name in order}
        return reports


async def _join(loop: AsyncLoop) -> None:
    loop.join()


def rig_of(world: World, fs: FileSystem, **options: Any) -> Rig:
    """Over all banks; each named step is a point, too."""

    def on_step(step: Step, gtrid: bytes, participant: str) -> None:
        world.point()

    return Rig(fs, {name: bank.connect for name, bank in world.banks.items()}, on_step=on_step, **options)


# Its log


def _started() -> Tree:
    """A log that was opened once, and closed."""
    fs = Tree({}).open()
    DecisionLog(fs, segment_bytes=SMALLEST_SEGMENT_BYTES).close()
    return fs.tree_after_kill()


STARTED = _started()


class Mortal(ForgetfulFileSystem):
    """Its end is the end of the transaction manager, and the other way round."""

    world: World

    def _look(self) -> None:
        if not self.world.alive:
            self.crashed = True
        super()._look()

    def _call(self) -> None:
        try:
            super()._call()
        except Crashed:
            self.world.alive = False
            raise


def mortal(tree: Tree, world: World, crash_after: int | None = None) -> Mortal:
    fs = Mortal(crash_after, tree)
    fs.world = world
    return fs
