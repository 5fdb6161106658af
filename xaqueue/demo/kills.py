"""The producer is killed three times in the middle of a commit, and started again until all flights are in.

When enough is in, the stages of its batches are watched. Once one shows a commit under way the producer is frozen,
looked at again, and killed if it is still there, else let go on. So no kill is wasted, and one that never came is told,
not hidden. After the first kill an operator commits a branch in doubt by hand; all others are the producer's to finish.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from xaqueue.demo.child import Child
from xaqueue.demo.decisions import committed
from xaqueue.demo.progress import Progress
from xaqueue.demo.stages import DECIDED, PREPARED, batches_at
from xaqueue.errors import OperationalError
from xaqueue.space.engine.heuristics import decide
from xaqueue.space.offline.inspect_branches import InDoubt, in_doubt
from xaqueue.space.owner.open import attach
from xaqueue.space.recovery.prepared import Verdict

LOOK_S = 0.05
"""Between two looks at the progress; also for how long the stages are watched at a stretch."""
PATIENCE_S = 180.0
"""A producer that decides nothing for so long is stuck."""
LENIENT = 0.1
"""The share of the batches after which a kill does with either stage."""
BY = "the demo's operator"


class Kill(NamedTuple):
    """share: of the batches that are decided before. stage: at which the one is that is killed."""

    share: float
    stage: bytes


KILLS = (Kill(0.05, PREPARED), Kill(0.2, DECIDED), Kill(0.4, PREPARED))


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
    def stages(self) -> Path:
        return self.directory / "stages"

    @property
    def batches(self) -> int:
        return -(-self.flights // self.batch)


@dataclass(slots=True)
class Toll:
    """What happened on the way. Times are seconds since the start."""

    began: float = field(default_factory=time.monotonic)
    kills: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """When a producer that was started after a kill had finished what that one left."""
    committed: list[tuple[float, int]] = field(default_factory=list)
    """How many flights were decided to be committed at some times."""
    in_doubt: int = 0
    by_operator: bool = False
    """Whether the operator has committed a branch."""
    story: str = ""
    """Of the last kill, as far as it is known."""

    def now(self) -> float:
        return time.monotonic() - self.began


def enqueue_under_fire(job: Job, progress: Progress) -> Toll:
    """Runs the producer to its end through all kills. Raises OperationalError where it fails or is stuck."""
    toll = Toll()
    with progress.task("enqueueing", job.flights) as advance:
        for run, kill in enumerate((*KILLS, None), 1):
            with _start(job, run) as child:
                killed_at = _run(child, job, kill, toll, advance, progress.report)
            if killed_at is None:
                break
            _look_at_what_is_left(job, killed_at, toll)
    return toll


def _start(job: Job, run: int) -> Child:
    arguments = [str(job.space), str(job.decisions), "--flights", str(job.flights), "--batch", str(job.batch)]
    arguments += ["--stages", str(job.stages)]
    return Child("xaqueue.demo.producer", arguments, job.directory / f"producer-{run}.log")


def _run(
    child: Child,
    job: Job,
    kill: Kill | None,
    toll: Toll,
    advance: Callable[[int], None],
    report: Callable[[str], None],
) -> int | None:
    """Until the child is killed; returns the batch that this hit, None where it came to its end before."""
    told = False
    decided, since = -1, time.monotonic()
    while True:
        ended = child.ended()
        now = len(committed(job.decisions))
        if now != decided:
            decided, since = now, time.monotonic()
            done = min(decided * job.batch, job.flights)
            toll.committed.append((toll.now(), done))
            advance(done)
        elif time.monotonic() - since > PATIENCE_S:
            raise OperationalError(f"the producer has decided nothing for {PATIENCE_S:.0f} s: see {child.output}")
        if not told and (recovered := child.said("recovered")) is not None:
            told = True
            if toll.story:
                toll.recoveries.append(toll.now())
                report(f"{toll.story}; {outcome_of(recovered)}")
        if ended:
            return None
        if kill is None or not told or decided < kill.share * job.batches:
            time.sleep(LOOK_S)
        elif (hit := _strike(child, job, kill, decided / job.batches - kill.share)) is not None:
            return hit


def _strike(child: Child, job: Job, kill: Kill, waited: float) -> int | None:
    """Watches for a moment, and kills the child if that shows a commit under way; returns its batch."""
    stages = {kill.stage} if waited < LENIENT else {PREPARED, DECIDED}
    until = time.monotonic() + LOOK_S
    while time.monotonic() < until:
        if not any(batches_at(job.stages, stage) for stage in stages):
            continue
        if not child.freeze():
            return None
        for stage in sorted(stages):
            for batch in batches_at(job.stages, stage):
                child.kill()
                return batch
        child.thaw()
    return None


def _look_at_what_is_left(job: Job, hit: int, toll: Toll) -> None:
    """What an operator sees, and, the first time, does. Opening the space for it recovers the space."""
    toll.kills.append(toll.now())
    doubtful = [branch for branch in in_doubt(job.space) if branch.state == Verdict.IN_DOUBT.value]
    toll.in_doubt += len(doubtful)
    toll.story = f"kill {len(toll.kills)}: SIGKILL in the middle of the commit of batch {hit}; {_in_doubt(doubtful)}"
    if doubtful and not toll.by_operator:
        with closing(attach(job.space, watch=False)) as session:
            decide(session.space, doubtful[0].xid, True, BY)
        toll.by_operator = True
        toll.story += ", the operator commits one"


def _in_doubt(branches: list[InDoubt]) -> str:
    if not branches:
        return "none is in doubt, since it was on disk"
    messages = sum(len(branch.added) for branch in branches)
    return f"{len(branches)} {'is' if len(branches) == 1 else 'are'} in doubt ({messages:,} messages)"


def outcome_of(recovered: dict[str, Any]) -> str:
    """What a producer that was started again has done, in words."""
    done = [
        f"{verb} {recovered[key]} {why}"
        for key, verb, why in (
            ("operator_committed", "heard of", "that the operator has committed"),
            ("operator_rolled_back", "heard of", "that the operator has rolled back"),
            ("committed", "committed", "that it had decided"),
            ("rolled_back", "rolled back", "that it had not, to enqueue it again"),
        )
        if recovered[key]
    ]
    return "started again, the producer " + (", ".join(done) if done else "found nothing left to do") + "."
