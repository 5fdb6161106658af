"""What memory holds of an open space: its branches, its queues, and which xids are finished, all behind one lock.

Nothing here fails, waits or touches a file; ``xaqueue.core.engine.state.Space`` adds the log and what follows from it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xaqueue.core.engine.features import Definer, Features, Gate
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch, State
from xaqueue.core.model.definitions import UNDEFINED, Definitions
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.scheduling import Threads
from xaqueue.errors import Error
from xaqueue.xa import Outcome
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

T = TypeVar("T")
FINISHED_LIMIT = 10_000
"""Finished xids that are remembered, at most, and as many local ones."""
FINISHED_SECONDS = 3600.0
"""For how long a finished xid is remembered, at most."""
_NOTHING = Outcome.UNKNOWN, 0.0, None

_Finished = OrderedDict[Xid, tuple[Outcome, float, bytes | None]]


_OUTCOMES = {
    State.PREPARED: Outcome.IN_DOUBT,
    State.DELEGATED: Outcome.IN_DOUBT,
    State.COMMITTING: Outcome.IN_DOUBT,
    State.UNDONE: Outcome.ROLLED_BACK,
    State.HEURISTIC_COMMIT: Outcome.COMMITTED,
    State.HEURISTIC_ROLLBACK: Outcome.ROLLED_BACK,
}


@dataclass(slots=True)
class RecoveryReport:
    """What opening a space found and did: counts of branches, of messages, and every file that was set aside."""

    messages: int = 0
    committed: int = 0
    """Finished before the crash but for their last file."""
    rolled_forward: int = 0
    """Decided before the crash and completed now."""
    rolled_back: int = 0
    in_doubt: int = 0
    heuristic: int = 0
    """Decided by an operator and not yet forgotten."""
    quarantined: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    began_at: int = 0
    """When this owner began, int microseconds UTC."""
    fenced_at: int = 0
    """When an owner before it was fenced last; 0 where none was."""

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages; branches: {self.committed} committed, {self.rolled_forward} rolled forward, "
            f"{self.rolled_back} rolled back, {self.in_doubt} in doubt, {self.heuristic} heuristic; "
            f"{len(self.quarantined)} files quarantined; {self.seconds:.2f} s"
        )


class Wakeable:
    """Who sleeps until there is something to do. Here nobody does."""

    def wake(self) -> None:
        """There may be by now. Costs little: the space's lock may be held."""


class Wakes:
    """Whom a space wakes."""

    def __init__(self) -> None:
        self.pending = Wakeable()
        """Something is to be followed after nothing was."""
        self.full = Wakeable()
        """A checkpoint is due."""
        self.consumed = Wakeable()
        """Something is to leave its queue: a stream has consumed it, or it has expired, or had all its tries."""
        self.late = Wakeable()
        """A branch may be late before ``looks_at``."""


class Outcomes:
    """What became of branches that are over, and of sessions. Used with the space's lock held."""

    def __init__(self) -> None:
        self.of_local = False
        """Local branches are remembered, too: whoever commits one may lose the answer and ask again."""
        self._finished: tuple[_Finished, _Finished] = OrderedDict(), OrderedDict()
        """Those of two-phase transactions, and local ones, of which there may be many more."""
        self._left: OrderedDict[bytes, tuple[Xid | None, Outcome]] = OrderedDict()
        """By its key the last branch of each session that is over, and what became of it."""

    def remember(self, xid: Xid, outcome: Outcome, begun_by: bytes | None = None) -> None:
        finished = self._finished[xid[0] == LOCAL_FORMAT_ID]
        finished[xid] = outcome, time.monotonic(), begun_by
        finished.move_to_end(xid)
        if len(finished) > FINISHED_LIMIT:
            finished.popitem(last=False)

    def note_session(self, key: bytes, last: Xid | None) -> None:
        """The session of this key is lost or closed, and this is the last branch that it was in."""
        self._left.pop(key, None)
        outcome, _, session = self._finished[last.is_local].get(last, _NOTHING) if last is not None else _NOTHING
        self._left[key] = last, outcome if session == key else Outcome.UNKNOWN
        while len(self._left) > FINISHED_LIMIT:
            self._left.popitem(last=False)

    def find(self, xid: Xid, begun_by: bytes | None) -> Outcome:
        """See ``Memory.outcome``."""
        outcome, when, session = self._finished[xid.is_local].get(xid, _NOTHING)
        if time.monotonic() - when > FINISHED_SECONDS or (begun_by and session and session != begun_by):
            outcome = Outcome.UNKNOWN
        if outcome is Outcome.UNKNOWN and begun_by is not None and begun_by in self._left:
            last, became = self._left[begun_by]
            return became if last == xid else Outcome.ROLLED_BACK
        return outcome

    def has(self, xid: Xid) -> bool:
        """Whether a branch of this xid is known to be over."""
        return xid in self._finished[xid.is_local]

    def was_committed(self, xid: Xid) -> bool:
        """Whether it is known to be committed."""
        return self._finished[xid.is_local].get(xid, (Outcome.UNKNOWN,))[0] is Outcome.COMMITTED


class Memory:
    """The part of a ``Space`` that is no more than memory."""

    def __init__(
        self, definitions: Definitions, now_ns: Callable[[], int], waiting: Threads, features: Features
    ) -> None:
        self.definitions = definitions
        self.features = features
        self.now_ns = now_ns
        self.lock = threading.Lock()
        self.defining = threading.Lock()
        """Held from a reading of queues.toml until that is in force: an older one undoes no newer one."""
        self.waiting = waiting
        self.wakes = Wakes()
        self.settled = waiting.condition(self.lock)
        """Some branch is no longer busy, or the messages are loaded."""
        self.queues: dict[str, Queue] = {}
        self.branches: dict[Xid, Branch] = {}
        self._of_features: dict[type[Any], Any] = {}
        self.outcomes = Outcomes()
        self.definer = Definer()
        self.gates: tuple[Gate, ...] = ()
        """Who has a say in what queues hand out: nobody in most spaces."""
        self.looks_at = float("inf")
        """By the monotonic clock, when somebody looks for branches that are late."""
        self.last_commit_us = 0
        """Of the last commit, or of what was found: no later one gets an earlier time, whatever the clock does."""
        self._sessions = 0

    def memory_of(self, kept: type[T]) -> T:
        """What a feature keeps in memory of the space, as an object of this class; made when it is asked for first."""
        found: T = self._of_features.get(kept) or self._of_features.setdefault(kept, kept())
        return found

    def why_shut(self, queue: str) -> Error | None:
        """Why this queue hands nothing out now. Called with the lock held."""
        return next((why for gate in self.gates if (why := gate.shuts(queue)) is not None), None)

    def now_us(self) -> int:
        """Int microseconds UTC."""
        return self.now_ns() // 1000

    def next_session(self) -> int:
        with self.lock:
            self._sessions += 1
            return self._sessions

    def queue(self, name: str) -> Queue:
        """The queue's memory, made on first use; the name must be checked already. Called with the lock held."""
        queue = self.queues.get(name)
        if queue is None:
            definition = self.definitions.queues.get(name) or self.definitions.default
            queue = self.queues[name] = Queue(name, definition or UNDEFINED, self.waiting.condition(self.lock))
        return queue

    def redefine(self, definitions: Definitions, check: Callable[[], None] = lambda: None) -> None:
        """New definitions hold from here on; queues are put into their new order. check: raises where they must not,
        called with the lock held."""
        with self.lock:
            check()
            self.definitions = definitions
            for name, queue in self.queues.items():
                definition = definitions.queues.get(name) or definitions.default
                if definition is not None:
                    queue.define(definition)
            if definitions.branch_idle_s:
                self.look_by(0.0)

    def look_by(self, when: float) -> None:
        """A branch may be late by then. Called with the lock held."""
        if when < self.looks_at:
            self.looks_at = when
            self.wakes.late.wake()

    def kept(self) -> tuple[int, int]:
        """Bytes, about, and number of the blocks that memory has of branches that are not prepared. A prepared one
        keeps little (``commit.prepare``), and there may be many."""
        with self.lock:
            kept = [branch.kept for branch in self.branches.values() if branch.base is not State.PREPARED]
        return sum(size for size, _ in kept), sum(count for _, count in kept)

    def held(self) -> list[tuple[str, Entry]]:
        """Queue and message, or run, of all that branches hold which are not prepared."""
        with self.lock:
            active = [branch for branch in self.branches.values() if branch.base is State.ACTIVE]
            return [
                (written.queue, written.entry)
                for branch in active
                for written in branch.blocks
                if written.kind is Kind.DEQUEUE and written.entry is not None
            ]

    def outcome(self, xid: Xid, begun_by: bytes | None = None) -> Outcome:
        """What became of a branch. UNKNOWN: never started, still active, or finished too long ago.

        begun_by: the key of the session that was to begin it, and no other after it; of a branch that another one has
        begun, an earlier life of the xid, it tells nothing. Where that session is over and its last branch is another
        one, the start of this one never came: it is rolled back.
        """
        with self.lock:
            branch = self.branches.get(xid)
            if branch is not None:
                if begun_by and branch.begun.by and branch.begun.by != begun_by:
                    return Outcome.UNKNOWN
                if branch.base is State.ROLLBACK_ONLY and not branch.blocks:
                    return Outcome.ROLLED_BACK
                return _OUTCOMES.get(branch.base, Outcome.UNKNOWN)
            return self.outcomes.find(xid, begun_by)

    def was_here(self, xid: Xid) -> bool:
        """Whether a branch of this xid is known to be over."""
        with self.lock:
            return self.outcomes.has(xid)
