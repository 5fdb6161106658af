"""A real process that is killed at random moments loses nothing and doubles nothing.

Jepsen's total queue over real files: what committed branches added, less what they took, is what the drain finds, as
a multiset. Some kills come after a random delay, some at a chosen file-system call (the middle of a commit, of a
recovery). The parent is the transaction manager: it keeps the decisions that the child wrote to a pipe.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kill_child import QUEUES, Place, prove, settled

import xaqueue
from xaqueue.space.check import check
from xaqueue.space.findings import Severity

CHILD = Path(__file__).with_name("kill_child.py")
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
CAMPAIGNS = 8 if FULL else 2
KILLS = 25 if FULL else 8
SYNC = ("NONE", "FDATASYNC;DSYNC")
CALLS = ("create", "rename", "unlink", "prepared", "committed", "decide", "consume", "finish", "write_at")
SYNC_CALLS = ("sync_data", "sync_dir")
LONGEST_LIFE_S = 2.0
LONGEST_START_S = 30.0
"""No test of speed: a child that is not killed while it recovers has this long to begin its work."""


@dataclass
class Branch:
    """What the child said of one branch."""

    added: list[Place]
    taken: list[Place]
    one_phase: bool
    said: set[str] = field(default_factory=set)

    @property
    def committed(self) -> bool:
        """A decision to commit holds, whether or not the child lived to carry it out."""
        return "acked" in self.said or "decided" in self.said

    @property
    def uncertain(self) -> bool:
        return self.one_phase and "acked" not in self.said


class Ledger:
    """Everything that all lives of the child said, and what must therefore be true."""

    def __init__(self) -> None:
        self.branches: dict[str, Branch] = {}
        self.in_doubt: set[str] = set()
        self.numbers: dict[tuple[str, int], str] = {}
        self.heard: Counter[str] = Counter()

    def hear(self, line: str) -> None:
        event, tag, added, taken, seen = json.loads(line)
        for queue, seq, message_id in seen:
            assert self.numbers.setdefault((queue, seq), message_id) == message_id, f"{queue} gave {seq} out twice"
        self.heard[event] += 1
        if event in ("intent", "maybe"):
            self.branches[tag] = Branch([*map(tuple, added)], [*map(tuple, taken)], event == "maybe")
        elif event == "in doubt":
            assert not self.branches[tag].said & {"acked", "resolved"}, f"finished branch {tag} is in doubt again"
            self.in_doubt.add(tag)
        elif event == "recovered":
            self.check_promises()
            self.in_doubt.clear()
        elif tag:
            self.branches[tag].said.add(event)

    def check_promises(self) -> None:
        """A branch that said it was prepared, and that nobody had begun to finish, must be in doubt."""
        for tag, branch in self.branches.items():
            if "prepared" in branch.said and not branch.said & {"acked", "decided", "undecided", "resolved"}:
                assert tag in self.in_doubt, f"prepared branch {tag} is not in doubt: {branch}"

    def decisions(self) -> str:
        return "\n".join(tag for tag, branch in self.branches.items() if branch.committed)

    def check_total(self, drained: Counter[Place]) -> None:
        """Nothing lost, nothing doubled, nothing from nowhere."""
        total: Counter[Place] = Counter()
        added_perhaps: Counter[Place] = Counter()
        taken_perhaps: Counter[Place] = Counter()
        for branch in self.branches.values():
            if branch.committed:
                total.update(branch.added)
                total.subtract(branch.taken)
            elif branch.uncertain:
                added_perhaps.update(branch.added)
                taken_perhaps.update(branch.taken)
        for place in {*total, *drained, *added_perhaps}:
            difference = drained[place] - total[place]
            assert difference >= -taken_perhaps[place], f"lost: {place}"
            assert difference <= added_perhaps[place], f"doubled or from nowhere: {place}"
        self.check_whole(drained)

    def check_whole(self, drained: Counter[Place]) -> None:
        """An uncertain branch came about as a whole or not at all."""
        seen = {*drained, *(place for branch in self.branches.values() for place in branch.taken)}
        for tag, branch in self.branches.items():
            if branch.uncertain and branch.added:
                assert len({place in seen for place in branch.added}) == 1, f"part of branch {tag} was committed"


def fault_of(rng: random.Random, sync: str) -> str:
    """A file-system call to die at, or nothing: then a timer kills."""
    if rng.random() < 0.35:
        return ""
    calls = CALLS if sync == "NONE" else CALLS + SYNC_CALLS
    soon = rng.choice((3, 30, 150))  # the first few calls are those of the recovery
    return f"{rng.choice(calls)}:{rng.randint(1, soon)}:{rng.choice(('before', 'after'))}"


def live_once(ledger: Ledger, arguments: list[str], delay_s: float, start_s: float) -> None:
    """One life of the child, to its death, and what it said until then.

    It dies by a fault of its own, or ``start_s`` after its start, or ``delay_s`` after it has recovered.
    """
    with subprocess.Popen(
        [sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        timer = threading.Timer(start_s, child.kill)
        timer.start()
        try:
            for line in child.stdout:
                ledger.hear(line)
                if line.startswith('["clean"'):
                    timer.cancel()
                    timer = threading.Timer(delay_s, child.kill)
                    timer.start()
        finally:
            timer.cancel()
            child.kill()
        complaint = child.stderr.read()
    assert child.returncode == -signal.SIGKILL, complaint


@pytest.mark.crash
@pytest.mark.parametrize("campaign", range(CAMPAIGNS))
def test_killed_at_random_moments_it_loses_and_doubles_nothing(tmp_path: Path, campaign: int) -> None:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(f"{seed}/{campaign}")
    space, decisions = tmp_path / "space", tmp_path / "decisions"
    xaqueue.connect(space, create=True).close()
    ledger = Ledger()
    for life in range(KILLS):
        decisions.write_text(ledger.decisions(), "utf-8")
        sync = SYNC[(life + campaign) % len(SYNC)]
        fault = fault_of(rng, sync)
        delay_s = LONGEST_LIFE_S if fault else rng.uniform(0.0, 0.8)
        start_s = rng.uniform(0.1, 0.5) if not fault and rng.random() < 0.2 else LONGEST_START_S
        sys.stdout.write(f"life {life}: {sync}, dies at {fault or f'{delay_s:.3f} s'} (start {start_s:.3f} s)\n")
        arguments = [str(space), sync, str(life), f"{seed}/{campaign}", str(decisions), fault]
        live_once(ledger, arguments, delay_s, start_s)
        crashed = [str(finding) for finding in check(space) if finding.severity is Severity.DAMAGE]
        assert crashed == [], "a killed process leaves work to finish, and no damage"
    drained = drain(space, ledger)
    ledger.check_total(drained)
    sys.stdout.write(f"{dict(ledger.heard)}; drained {drained.total()}\n")
    assert ledger.heard["acked"] > KILLS


def drain(space: Path, ledger: Ledger) -> Counter[Place]:
    """Resolves what the last life left in doubt, checks the directories, and takes every message."""
    decided = set(ledger.decisions().split())
    drained: Counter[Place] = Counter()
    with xaqueue.connect(space) as connection:
        for xid in connection.tpc_recover():
            finish = connection.tpc_commit if xid.gtrid.decode() in decided else connection.tpc_rollback
            finish(xid)
    assert settled(space) == []
    with xaqueue.connect(space) as connection:
        for queue in QUEUES:
            while message := connection.dequeue(queue):
                drained[queue, prove(message)] += 1
        connection.commit()
    assert settled(space) == []
    return drained
