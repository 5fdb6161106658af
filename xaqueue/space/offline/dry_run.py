"""What a decision by hand would do to the queues can be told without making it: depths before and after.

Pure arithmetic over what ``inspect`` saw at one moment; what other branches do meanwhile changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xaqueue.errors import DamagedBlock, HeuristicOutcome, ProtocolError
from xaqueue.space.engine.heuristics import OUTCOMES
from xaqueue.space.model.branch import HEURISTICS
from xaqueue.space.offline.inspect_branches import InDoubt
from xaqueue.space.recovery.prepared import Verdict


@dataclass(frozen=True, slots=True)
class Change:
    """One queue that a branch touches. Messages count those that are held; held, by branches in doubt."""

    queue: str
    adds: int
    holds: int
    messages: int
    messages_after: int
    held: int
    held_after: int


def foresee(branch: InDoubt, waiting: Sequence[InDoubt], depths: Mapping[str, int], commit: bool) -> list[Change]:
    """What becomes of every queue that the branch touches, sorted by name.

    waiting: all branches in doubt; depths: of those queues. Raises what ``decide`` would refuse with.
    """
    check_open(branch, commit)
    adds = Counter(content.queue for content in branch.added)
    holds = Counter(content.queue for content in branch.held)
    held = Counter(content.queue for other in waiting if other.decision is None for content in other.held)
    changes = []
    for queue in sorted({*adds, *holds}):
        before = depths.get(queue, 0)
        after = max(before - holds[queue], 0) + adds[queue] if commit else before
        changes.append(Change(queue, adds[queue], holds[queue], before, after, held[queue], held[queue] - holds[queue]))
    return changes


def check_open(branch: InDoubt, commit: bool) -> None:
    """HeuristicOutcome where it was decided before, ProtocolError where a rollback comes too late."""
    if branch.decision is not None:
        code = HEURISTICS[OUTCOMES[branch.decision.outcome]]
        raise HeuristicOutcome(f"branch {branch.xid} is {branch.state} already; forget ends this", code)
    if branch.state not in (Verdict.IN_DOUBT.value, Verdict.COMMITTING.value):
        raise DamagedBlock(f"branch {branch.xid} is {branch.state}: open the space once, and look again")
    if branch.state == Verdict.COMMITTING.value and not commit:
        raise ProtocolError(f"branch {branch.xid} is past its commit point: it can only be committed")
