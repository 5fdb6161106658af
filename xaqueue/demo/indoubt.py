"""What an operator sees of a killed producer's branches, and does about one of them, before it is started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from xaqueue.demo.producer import LEVEL, batch_of
from xaqueue.space import layout
from xaqueue.space.attach import attach
from xaqueue.space.heuristic import decide
from xaqueue.space.inspect_branches import InDoubt, in_doubt
from xaqueue.space.survey import Verdict

SHOWN = 3
"""Messages of a branch that are shown one by one."""
BY = "the demo's operator"

Report = Callable[[str], None]


def show(path: Path, decided: set[int], report: Report) -> Sequence[InDoubt]:
    """Shows the oldest branch in doubt in full, as ``indoubt show`` does.

    decided: the batches that the producer's log commits. Returns the branches in doubt, the oldest first.
    """
    doubtful = [branch for branch in in_doubt(path) if branch.state == Verdict.IN_DOUBT.value]
    for line in described(doubtful[0], decided) if doubtful else ():
        report(f"    {line}")
    return doubtful


def commit(path: Path, branch: InDoubt, report: Report) -> None:
    """The operator's decision, by what ``indoubt commit`` calls. Opening the space for it recovers the space."""
    with closing(attach(path, sync=str(LEVEL), watch=False)) as session:
        report(f"  operator opens the space: {session.space.report}")
        decision = decide(session.space, branch.xid, True, BY)
    report(f"  operator: {decision.outcome} of {branch.xid}, recorded in {layout.HEURISTIC}/ until it is forgotten")


def described(branch: InDoubt, decided: set[int]) -> list[str]:
    """A branch in full: its name, since when, what its transaction manager knows, what it adds."""
    xid = branch.xid
    since = datetime.fromtimestamp(branch.since / 1e6, UTC).isoformat(timespec="milliseconds")
    lines = [
        f"xid        {xid}",
        f"gtrid      {xid.gtrid.decode(errors='replace')}",
        f"bqual      {xid.bqual.decode(errors='replace')}",
        f"prepared   {since}",
        f"producer   {'commit, not carried out yet' if batch_of(xid) in decided else 'nothing decided'}",
        f"adds       {len(branch.added):,} messages, {sum(c.size_bytes or 0 for c in branch.added):,} bytes",
    ]
    lines += [
        f"           {c.message_id.hex()} to {c.queue}, {c.size_bytes or 0:,} bytes" for c in branch.added[:SHOWN]
    ]
    if len(branch.added) > SHOWN:
        lines.append(f"           ... and {len(branch.added) - SHOWN:,} more")
    return lines
