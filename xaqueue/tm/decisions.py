"""What a transaction manager remembers of its decisions, wherever they are kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from xaqueue.errors import DecisionLogError, ProtocolError
from xaqueue.tm.last_resource import DecisionRow, DecisionRows
from xaqueue.tm.records import DecisionTable, Heuristic, OpenDecision
from xaqueue.tm.voting import Reply
from xaqueue.xa import Outcome

if TYPE_CHECKING:
    from xaqueue.tm.branch import EnlistedBranch
    from xaqueue.tm.sweep import Sweep

_ROWS = DecisionRows()


def wall_clock() -> int:
    """Int microseconds UTC."""
    return time.time_ns() // 1000


class Decisions:
    """Safe for threads. ``table`` is read and changed with ``lock`` held."""

    node: str
    """16 hex digits: who decides."""
    epoch: int
    table: DecisionTable
    rows: DecisionRows = _ROWS
    """Those of the decisions that stand in a participant's database."""
    decides = ""
    """The participant whose database keeps each decision, once that is known; "": none does."""
    gives_signs = False
    """Whether a transaction is begun only behind a sign of life that is not old."""
    named: str
    """What the names of its transactions begin with; 16 hex digits of a counter follow."""
    is_unclean = False
    """Whether something may reach a participant behind the end of this process."""

    def __init__(self, now_us: Callable[[], int] = wall_clock) -> None:
        self.now_us = now_us
        self.lock = threading.Lock()
        self._over: list[bytes] = []
        """Done, and not recorded as such yet."""
        self._done_rows: dict[str, list[bytes]] = {}
        """By participant, done decisions whose rows are still in its database."""

    @property
    def is_fresh(self) -> bool:
        """Whether a transaction may be begun, where it gives signs."""
        return True

    def freshen(self, *, may_wait: bool = True) -> None:
        """Transactions may be begun behind it."""

    def start(self) -> None:
        """Its threads, where it has any."""

    def meet(self, branch: EnlistedBranch) -> None:
        """Something is going to be prepared there."""

    def ask(self, gtrid: bytes, identity: str) -> Reply:
        """What became of a branch, on which commit was decided, at a participant that cannot tell: COMMITTED where
        somebody has noted that, else UNKNOWN, or PENDING."""
        return Reply.UNKNOWN

    def may_be_ended(self) -> None:
        """A decision was not written, whatever for."""

    def sweep_all(self) -> None:
        """See ``DatabaseNode.sweep_all``."""

    @property
    def carries_as(self) -> str:
        """What spaces know the databases by that carry for them begins with it; "": none can yet."""
        return self.node

    def carrier(self, database: str) -> str:
        """As a space knows that participant."""
        return f"{self.node}.{quote(database, safe='')}"

    def database_of(self, carrier: str) -> str:
        """The participant that a space knows so."""
        return unquote(carrier.partition(".")[2])

    def sweep(self, name: str, connection: Any) -> Sweep | None:
        """See ``DatabaseNode.sweep``: nobody else's decisions are known here."""
        return None

    @property
    def failure(self) -> DecisionLogError | None:
        """Why nothing can be decided any more."""
        return None

    def check(self) -> None:
        """Raises ``failure``, where there is one."""

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint would make room."""
        return False

    def checkpoint(self) -> None:
        """Makes room. Raises DecisionLogError, RetryLater."""

    def flush(self) -> None:
        """What is done is recorded as done, durably. Raises DecisionLogError, RetryLater."""

    def decide(
        self, gtrid: bytes, participants: Sequence[str], spaces: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Returns once the decision to commit these is hardened, where no database keeps it. spaces: ids of those that
        have one.

        Raises RetryLater where there was no room, and surely nothing was recorded; DecisionLogError where nobody
        knows: then only the next opening can tell.
        """
        raise NotImplementedError

    def note(self, heuristic: Heuristic) -> bool:
        """Keeps what a participant did by itself; False where that is known already. Raises DecisionLogError."""
        raise NotImplementedError

    def forget(self, gtrid: bytes) -> None:
        """Ends the memory of a transaction's heuristics. Raises ProtocolError where it is not over, DecisionLogError,
        RetryLater."""
        raise NotImplementedError

    def close(self, is_hardened: Callable[[], bool] = lambda: True) -> None:
        """Ends its use; a second call does nothing. is_hardened: asks all participants."""

    def abandon(self) -> None:
        """In a forked child: nothing here may write any more."""

    def note_last(self, participant: str) -> None:
        """Returns once it is hardened that decisions of this life may stand in this participant's database.

        Raises RetryLater, DecisionLogError.
        """

    def decision_on(self, gtrid: bytes) -> Outcome | None:
        """None without a decision."""
        with self.lock:
            return self.table.decision_on(gtrid)

    def space_of(self, gtrid: bytes, participant: str) -> str:
        """The id of the space that voted there, and has not acknowledged the decision; empty where it has none."""
        with self.lock:
            made = self.table.open.get(gtrid)
            return made.spaces.get(participant, "") if made is not None and participant in made.outstanding else ""

    def add_row(
        self, gtrid: bytes, participants: Sequence[str], last: str, spaces: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """A row in the database of ``last`` decides to commit these; it is read again after a crash."""
        made = OpenDecision(gtrid, tuple(participants), self.now_us(), last, set(participants), spaces)
        table = self.table
        with self.lock:
            if gtrid in table.open:
                return
            table.open[gtrid] = made
            if table.heuristics or not participants:
                made.outstanding -= {name for other, name in table.heuristics if other == gtrid}
                self._end_locked(made)  # all of them may have answered with a heuristic, and nobody else will

    def take_done_rows(self, last: str) -> list[bytes]:
        """Decisions in this database that nobody needs any more; taken once."""
        with self.lock:
            return self._done_rows.pop(last, [])

    def restore_done_rows(self, last: str, gtrids: list[bytes]) -> None:
        """They could not be removed."""
        with self.lock:
            self._done_rows.setdefault(last, []).extend(gtrids)

    def removed(self, gtrids: Iterable[bytes]) -> None:
        """Their rows are, by a transaction that a crash of the database may undo."""

    def came_back(self, connection: Any) -> list[DecisionRow]:
        """Rows that were removed, and are there. Those of a log are read at its next opening."""
        return []

    @property
    def has_done_rows(self) -> list[str]:
        """Those with decisions that nobody needs any more."""
        return list(self._done_rows)

    def committed_deferred(self, gtrid: bytes, participant: str) -> None:
        """It has done what was decided, and is going to harden that: it has not acknowledged it yet."""
        with self.lock:
            made = self.table.open.get(gtrid)
            if made is not None:  # else its node is ended, and others see to it
                made.deferred.add(participant)

    def acknowledged(self, gtrid: bytes, participant: str) -> bool:
        """A participant has done what was decided; returns whether it was the last one that had to."""
        with self.lock:
            made = self.table.open.get(gtrid)
            if made is None:
                return False
            made.outstanding.discard(participant)
            return self._end_locked(made)

    def _end_locked(self, made: OpenDecision) -> bool:
        """Whether nothing is outstanding: then it is done."""
        if made.outstanding:
            return False
        del self.table.open[made.gtrid]
        (self._over if made.last is None else self._done_rows.setdefault(made.last, [])).append(made.gtrid)
        return True

    def check_over(self, gtrid: bytes) -> None:
        """ProtocolError where it is not acknowledged everywhere: a crash would make recovery note heuristics again."""
        with self.lock:
            made = self.table.open.get(gtrid)
            if made is not None:
                raise ProtocolError(
                    f"transaction {gtrid.decode()} is not over: {', '.join(sorted(made.outstanding))} has to "
                    "acknowledge it first, and recovery goes on trying"
                )
