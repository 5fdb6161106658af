"""What a snapshot has to have that was taken amid the work of ``many_child``."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from support.kill_child import settled
from support.late_ledger import LateLedger
from xaqueue.core.engine import heuristics
from xaqueue.features.session import attach
from xaqueue.features.snapshots.restoring import restore
from xaqueue.tools.torture.ledger import BranchRecord, Ledger, Place, Statement
from xaqueue.tools.torture.work import QUEUES, reopened

KEPT = 3
DEFINED = "".join(f"[queues.{queue}]\n" for queue in QUEUES) + f"[snapshots]\nkeep = {KEPT}\ninterval_min = 46080\n"


class Moment(Ledger):
    """What is to be in a space as of one moment; some of it is known to have been begun only."""

    def _parts(self, messages: Counter[Place]) -> Iterator[str]:
        """What somebody else was about to take may be in it, and need not."""
        seen = {key for _, key in messages}
        taken = {key for branch in self.branches.values() for _, key in branch.taken}
        for tag, branch in self.branches.items():
            own = {key for _, key in branch.added if key.startswith(f"{tag}.")}
            if own & seen and not own <= seen | taken:
                yield f"part of branch {tag} is there"


class WatchingLedger(LateLedger):
    """Remembers what was said when a snapshot began and when it was finished."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[str, dict[str, set[str]]] = {}
        self.finished: dict[int, Moment] = {}
        """By its number: what is to be in it."""

    def hear(self, said: Statement) -> None:
        if self.is_late and said.event.startswith("snapshot"):
            return
        if said.event == "snapshot begins":
            self._begun[said.tag] = {tag: set(branch.said) for tag, branch in self.branches.items()}
        elif said.event == "snapshot":
            self.finished[said.seen[0][1]] = self._between(self._begun.pop(said.tag))
        else:
            super().hear(said)

    def judge_newest(self, space: Path, at: Path, *, times: bool = True) -> list[str] | None:
        """Faults of the last snapshot that was finished since it was asked, restored there; None: there is none."""
        if not self.finished:
            return None
        number, wanted = self.finished.popitem()
        self.finished.clear()  # others may be pruned by now
        try:
            place = restored(space, number, at, self.decided())
            found = reopened(place, "NONE", self.decided(), partial(settled, times=times))
            return [f"snapshot {number}: {fault}" for fault in wanted.judge(found)]
        finally:
            shutil.rmtree(at)

    def _between(self, before: dict[str, set[str]]) -> Moment:
        """Certain is what had come to its end before; all else may have, as a whole."""
        wanted = Moment()
        for tag, branch in self.branches.items():
            said = before.get(tag, set())
            is_committed = "acked" in said or {"decided", "resolved"} <= said
            wanted.branches[tag] = BranchRecord(branch.added, branch.taken, True, {"acked"} if is_committed else set())
        return wanted


def restored(space: Path, number: int, at: Path, decided: set[str]) -> Path:
    """The snapshot, in a copy of the space; what was in doubt then an operator decides as it was decided since."""
    shutil.copytree(space, at)
    restore(at, number, exact=True)
    with closing(attach(at, sync="NONE", watch=False)) as session:
        for xid in {branch.xid for branch in session.space.branches.values()}:
            heuristics.decide(session.space, xid, xid.gtrid.decode() in decided, "test")
            session.forget(xid)
    return at
