"""The producer is killed three times in the middle of a commit, and started again until all flights are in.

When enough is in, ``prepared/`` is watched. Once it shows a commit under way the producer is frozen, looked at again,
and killed if it is still there, else let go on. So no kill is wasted, and one that never came is told, not hidden.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from xaqueue.demo.child import Child
from xaqueue.demo.decisions import committed
from xaqueue.demo.indoubt import commit, show
from xaqueue.demo.progress import Progress
from xaqueue.errors import OperationalError
from xaqueue.space import layout
from xaqueue.space.attach import read_owner

LOOK_S = 0.05
"""Between two looks at the progress; also for how long prepared/ is watched at a stretch."""
PATIENCE_S = 180.0
"""A producer that decides nothing for so long is stuck."""
KILLS = (0.05, 0.2, 0.4)
"""The shares of the batches that are decided before each kill."""
PICKY = 0.05
LENIENT = 0.1
"""Shares of the batches after which a kill does without the better sights."""


class Sight(NamedTuple):
    """Branches in ``prepared/``: those that are in doubt, and those past their commit point but not through."""

    prepared: int
    committing: int

    def worth_a_kill(self, waited: float) -> bool:
        """``waited``: the share of the batches that was let pass. First both, then one in doubt, then either."""
        if waited >= LENIENT:
            return bool(self.prepared or self.committing)
        return self.prepared > 0 and (waited >= PICKY or self.committing > 0)


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be enqueued, and where: the space and the decision log of its producer."""

    directory: Path
    flights: int
    batch: int

    @property
    def space(self) -> Path:
        return self.directory / "space"

    @property
    def decisions(self) -> Path:
        return self.directory / "decisions.log"

    @property
    def batches(self) -> int:
        return -(-self.flights // self.batch)


@dataclass(slots=True)
class Toll:
    """What happened on the way."""

    kills: int = 0
    in_doubt: int = 0
    decided_by_operator: int = 0
    inspection_s: float = 0.0


def look(space: Path) -> Sight:
    """What stands in ``prepared/`` now."""
    with os.scandir(space / layout.PREPARED) as entries:
        names = [entry.name for entry in entries]
    return Sight(
        sum(name.endswith(f".{layout.FIRST}") for name in names),
        sum(name.endswith(f".{layout.COMMIT}") for name in names),
    )


def enqueue_under_fire(job: Job, progress: Progress, report: Callable[[str], None]) -> Toll:
    """Runs the producer to its end through all kills. Raises OperationalError where it fails or is stuck."""
    toll = Toll()
    with progress.task("enqueueing", job.flights) as advance:
        for run, kill in enumerate((*KILLS, None), 1):
            with _start(job, run) as child:
                killed = _run(child, job, kill, advance, report)
            if not killed:
                break
            _after_kill(job, child, toll, report)
    return toll


def _start(job: Job, run: int) -> Child:
    arguments = [str(job.space), str(job.decisions), "--flights", str(job.flights), "--batch", str(job.batch)]
    return Child("xaqueue.demo.producer", arguments, job.directory / f"producer-{run}.log")


def _run(
    child: Child, job: Job, kill: float | None, advance: Callable[[int], None], report: Callable[[str], None]
) -> bool:
    """Until the child is killed. False: it came to its end before."""
    told = False
    decided, since = 0, time.monotonic()
    while True:
        ended = child.ended()
        now = len(committed(job.decisions))
        if now != decided:
            decided, since = now, time.monotonic()
            advance(min(decided * job.batch, job.flights))
        elif time.monotonic() - since > PATIENCE_S:
            raise OperationalError(f"the producer has decided nothing for {PATIENCE_S:.0f} s: see {child.output}")
        if not told and (recovered := child.said("recovered")) is not None:
            told = True
            _report_recovered(job, recovered, report)
        if ended:
            return False
        if kill is None or not told or decided < kill * job.batches:
            time.sleep(LOOK_S)
        elif _strike(child, job, decided / job.batches - kill):
            return True


def _strike(child: Child, job: Job, waited: float) -> bool:
    """Watches for a moment, and kills the child if that shows a commit under way."""
    until = time.monotonic() + LOOK_S
    while time.monotonic() < until:
        if not look(job.space).worth_a_kill(waited):
            continue
        if not child.freeze():
            return False
        if look(job.space).worth_a_kill(waited):
            child.kill()
            return True
        child.thaw()
    return False


def _report_recovered(job: Job, recovered: dict[str, int], report: Callable[[str], None]) -> None:
    owner = read_owner(job.space)
    if not recovered["done"] or owner is None:
        return
    parts = [f"committed {recovered['committed']}", f"rolled back {recovered['rolled_back']}"]
    if recovered["operator_committed"]:
        parts.append(f"heard of {recovered['operator_committed']} committed by the operator (XA_HEURCOM) and forgot it")
    report(f"  producer opens the space: {owner.recovery}")
    report(f"  producer: {', '.join(parts)}; {recovered['done']:,} batches are done")


def _after_kill(job: Job, child: Child, toll: Toll, report: Callable[[str], None]) -> None:
    started = time.monotonic()
    decided = committed(job.decisions)
    toll.kills += 1
    report(
        f"kill {toll.kills}: process {child.pid} got SIGKILL in the middle of a commit, "
        f"with {len(decided):,} of {job.batches:,} batches decided"
    )
    sight = look(job.space)
    report(f"  prepared/: in doubt {sight.prepared}, past the commit point {sight.committing}")
    doubtful = show(job.space, decided, report)
    toll.in_doubt += len(doubtful)
    if doubtful and not toll.decided_by_operator:
        commit(job.space, doubtful[0], report)
        toll.decided_by_operator = 1
    toll.inspection_s += time.monotonic() - started
