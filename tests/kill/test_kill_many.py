"""A process of a mixed load is killed at random moments: blocks of many messages and single ones, some of them taken,
given back or acknowledged, branches in doubt over a restart, and snapshots taken amid it.

What was acknowledged is there once, as in test_kill_space. Each snapshot that was finished is restored beside the space
and has every branch that was acknowledged before it began, none that was begun behind its end, and no part of one.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.kill_child import fault_of, settled
from xaqueue.core.engine import heuristics
from xaqueue.core.owner import definitions_file
from xaqueue.features.session import attach
from xaqueue.features.snapshots.restoring import restore
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.tools.torture.ledger import BranchRecord, Ledger, Place, Statement
from xaqueue.tools.torture.run import LONGEST_START_S, ChildRun, kill
from xaqueue.tools.torture.work import QUEUES, reopened

CHILD = SUPPORT / "many_child.py"
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
CAMPAIGNS, KILLS = (8, 25) if FULL else (1, 8)
SYNC = ("NONE", "FDATASYNC;DSYNC", "JOURNAL")
THREADS = 4
LONGEST_LIFE_S = 2.0
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


class WatchingLedger(Ledger):
    """Remembers what was said when a snapshot began and when it was finished."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[str, dict[str, set[str]]] = {}
        self.finished: dict[int, Moment] = {}
        """By its number: what is to be in it."""

    def hear(self, said: Statement) -> None:
        if said.event == "snapshot begins":
            self._begun[said.tag] = {tag: set(branch.said) for tag, branch in self.branches.items()}
        elif said.event == "snapshot":
            self.finished[said.seen[0][1]] = self._between(self._begun.pop(said.tag))
        else:
            super().hear(said)

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


@pytest.mark.crash
@pytest.mark.parametrize("campaign", range(CAMPAIGNS))
def test_killed_amid_many_it_loses_and_doubles_nothing(tmp_path: Path, campaign: int) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng, space, ledger, looked_at = random.Random(f"{seed}/{campaign}"), tmp_path / "space", WatchingLedger(), 0
    xaqueue.connect(space, create=True).close()
    definitions_file.write_definitions(space, DEFINED)
    for life in range(KILLS):
        sync = SYNC[(life + campaign) % len(SYNC)]
        fault = fault_of(rng, sync) if life < KILLS - 1 else ""  # one snapshot at least is finished
        delay_s = LONGEST_LIFE_S if fault else rng.uniform(0.1 if life < KILLS - 1 else 1.0, 1.2)
        sys.stdout.write(f"life {life}: {sync}, dies at {fault or f'{delay_s:.3f} s'}\n")
        arguments = [str(space), sync, str(life), f"{seed}/{campaign}", str(THREADS), fault]
        ChildRun([sys.executable, str(CHILD), *arguments], kill, delay_s, LONGEST_START_S).run(ledger)
        crashed = [str(finding) for finding in check(space) if finding.severity is Severity.DAMAGE]
        assert crashed == [], "a killed process leaves work to finish, and no damage"
        assert ledger.faults == []
        for number in [*ledger.finished][-1:]:
            wanted, place = (
                ledger.finished.pop(number),
                restored(space, number, tmp_path / "restored", ledger.decided()),
            )
            assert wanted.judge(reopened(place, "NONE", ledger.decided(), settled)) == [], f"snapshot {number}"
            shutil.rmtree(place)
            looked_at += 1
        ledger.finished.clear()  # others may be pruned by now
    found = reopened(space, "NONE", ledger.decided(), settled)
    assert ledger.judge(found) == []
    sys.stdout.write(f"{dict(ledger.heard)}; drained {found.messages.total()}; {looked_at} snapshots\n")
    assert ledger.heard["acked"] > KILLS
    assert looked_at
