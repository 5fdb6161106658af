"""What a query writes as a batch is decided once: many prepared branches, one durable record, of the last for good.

A batch with a record is committed, and whatever else is prepared for it is rolled back. So a commit whose answer was
lost is asked for again and does nothing twice, and a branch that comes late is refused. Below the last one of its query
a batch is refused, since nobody can tell any more what it was made from; and so is the last one when it is made from
something else, or goes to other spaces: to take it for written would lose what it holds now.

What operators decided of single branches before is not undone. Of a batch that is decided here first, nothing is done
where a branch of it was rolled back by hand. Where the decision is made already, the rest is carried out, and then
HeuristicOutcome (XA_HEURMIX) says which branches are otherwise, as long as their decisions are not forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xaqueue.batch import ONE_SPACE, SEVERAL_SPACES, Batch, Decision, Plan, home_of, is_of_a_batch, key_of
from xaqueue.errors import (
    DamagedBlock,
    Error,
    HeuristicOutcome,
    InvalidArgument,
    ProtocolError,
    ResourceError,
    RetryLater,
    RolledBack,
    UnknownXid,
)
from xaqueue.space.engine import batch_steps, heuristics, quarantine
from xaqueue.space.engine.batch_claim import Claim
from xaqueue.space.model import batch_records
from xaqueue.space.model.block import Kind
from xaqueue.space.model.branch import HEURISTICS, Branch, State
from xaqueue.space.model.layout import BATCHES, QUARANTINE
from xaqueue.storage.fs import NO_ROOM
from xaqueue.storage.group_commit import Touched, touched
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

Others = tuple[tuple[str, Xid], ...]


def commit_all(
    space: Space, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]] = (), plan: Plan | None = None
) -> Decision:
    """See ``Batches.commit_all``. Beside UnknownXid it raises RetryLater: where nothing is decided for want of room or
    for damage, and where it is, and the rest is finished by the same call made again.
    """
    here, elsewhere, plan = tuple(dict.fromkeys(xids)), tuple(dict.fromkeys(others)), plan or Plan()
    _check(batch, here, elsewhere)
    with Claim(space, batch.gtrid) as claim:
        decided = decision(space, batch)
        if decided is None:
            decided = _first(space, claim, batch, here, elsewhere, plan)
        elif why_not := decided.why_not(batch, plan):
            raise InvalidArgument(why_not)
        else:
            listed = set(decided.xids)
            batch_steps.finish(space, batch.gtrid, [branch for xid, branch in claim.prepared.items() if xid in listed])
        _finish(space, claim, decided)
    return decided


def rollback_all(space: Space, batch: Batch, spaces: Sequence[str] = ()) -> int:
    """See ``Batches.rollback_all``. A batch that is decided is left as it is, and 0 is returned."""
    with Claim(space, batch.gtrid) as claim:
        if _recorded(space, batch) is not None:
            return 0
        strange = set(_strange(claim, spaces))
        branches = [branch for xid, branch in claim.prepared.items() if not (branch.committing or xid in strange)]
        batch_steps.undo(space, batch.gtrid, branches)
    return len(branches)


def decision(space: Space, batch: Batch) -> Decision | None:
    """See ``Batches.decision``."""
    with space.lock:
        space.check_readable()
        number = space.batches.standing(batch.gtrid)
    return None if number is None else _recorded(space, Batch(batch.query, number))


def outcome(space: Space, xid: Xid) -> Outcome:
    """What became of a branch of a batch, as its decision says."""
    with space.lock:
        if not space.batches.has(xid.gtrid):
            return Outcome.UNKNOWN
    try:
        return _OUTCOMES[batch_records.lists(space.fs, xid)]
    except OSError as error:
        raise _unread(space, error) from error


def check_prepare(space: Space, branch: Branch) -> None:
    """RolledBack for a branch that comes after its batch was decided. Its caller holds it busy."""
    if not is_of_a_batch(branch.xid):
        return
    with space.lock:
        while key_of(branch.xid.gtrid) in space.batches.claimed:
            space.wait_settled()
        told = refusal(space, branch.xid)
    if told:
        raise branch.doom or RolledBack(told)


def check_commit(branch: Branch) -> None:
    """ProtocolError for a branch that is committed with its batch or not at all. Its caller holds it busy."""
    if is_of_a_batch(branch.xid) and not branch.committing:
        raise ProtocolError(
            f"branch {branch.xid} is of a batch, and would be written again if it were committed alone: commit_all "
            f"decides the whole batch, and an operator can with `xaqueue indoubt commit {branch.xid}`"
        )


def check_rollback(branch: Branch) -> None:
    """ProtocolError for a branch that another space may have committed already. Its caller holds it busy."""
    xid = branch.xid
    if xid.format_id == SEVERAL_SPACES and branch.base is State.PREPARED and is_of_a_batch(xid):
        raise ProtocolError(
            f"branch {xid} is of a batch over several spaces, another of which may have committed it: the query rolls "
            f"it back with its batch, and an operator who has looked there can with `xaqueue indoubt rollback {xid}`"
        )


def refusal(space: Space, xid: Xid) -> str:
    """Why nothing more is prepared for the batch of this branch; empty where it is. Called with the lock held."""
    if space.batches.has(xid.gtrid):
        return f"branch {xid} comes too late: its batch is decided"
    later = space.batches.standing(xid.gtrid)
    if later is not None and xid.gtrid not in space.batches.lost:
        return f"branch {xid} comes too late: its query has written batch {later} already"
    return ""


def _check(batch: Batch, xids: Sequence[Xid], others: Others) -> None:
    for xid in (*xids, *(xid for _, xid in others)):
        if not is_of_a_batch(xid) or xid.gtrid != batch.gtrid:
            raise InvalidArgument(f"branch {xid} is none of {batch}: its gtrid has to be {batch.gtrid!r}")
        if others and xid.format_id != SEVERAL_SPACES:
            raise InvalidArgument(f"branch {xid} of a batch over several spaces has format id {ONE_SPACE}")


def _recorded(space: Space, batch: Batch) -> Decision | None:
    """The decision, where there is one. Raises ResourceError where it is lost."""
    with space.lock:
        lost = space.batches.lost.get(batch.gtrid)
        there = space.batches.has(batch.gtrid)
    if lost is not None and not there:
        if space.fs.exists(lost):
            raise _lost(batch, lost)
        with space.lock:
            space.batches.lost.pop(batch.gtrid, None)
    if not there:
        return None
    path = batch_records.path_of(batch)
    try:
        return batch_records.read(space.fs, path)
    except DamagedBlock as damage:
        raise _lost(batch, _set_aside(space, batch, path, damage)) from damage
    except FileNotFoundError:
        return None  # it went with the commit of a later one
    except OSError as error:
        raise _unread(space, error) from error


def _unread(space: Space, error: OSError) -> Error:
    """What a read that failed for no fault of its record means: not now, or the end."""
    if error.errno in NO_ROOM:
        return RetryLater(f"the record of a batch cannot be read now ({error.strerror}): try again")
    return space.fence(error)


def _lost(batch: Batch, path: str) -> ResourceError:
    return ResourceError(
        f"the record of {batch} was damaged and is {path}: whether it was committed is unknown. Look at the queues and "
        "at `xaqueue indoubt list`, decide what is left of it by hand, and then remove that file"
    )


def _set_aside(space: Space, batch: Batch, path: str, damage: DamagedBlock) -> str:
    target = ""

    def apply() -> Touched:
        nonlocal target
        target = quarantine.move(space.fs, path, f"the record of a batch: {damage}", space.now_us())
        space.batches.lose(batch.gtrid)
        space.batches.lost[batch.gtrid] = target
        return touched((QUARANTINE,), (BATCHES,))

    space.barrier.perform(apply)
    return target


def _strange(claim: Claim, spaces: Sequence[str]) -> list[Xid]:
    """Branches that a space decides which is none of these, and may have committed. Without any, nobody asks."""
    found = [xid for xid in claim.prepared if spaces and home_of(xid)]
    return [xid for xid in found if not any(space.startswith(home_of(xid)) for space in spaces)]


def _first(space: Space, claim: Claim, batch: Batch, xids: tuple[Xid, ...], others: Others, plan: Plan) -> Decision:
    """Decides the batch."""
    for xid in _strange(claim, plan.spaces):
        raise InvalidArgument(
            f"{batch} is refused and nothing is decided: the space of id {home_of(xid)}... may have committed it with "
            f"branch {xid}. Name that space again until the query has gone on; or, if it has not, roll the branch back "
            f"with `xaqueue indoubt rollback {xid}`"
        )
    _check_claimed(claim, batch, xids, home=bool(others))
    branches = [claim.prepared[xid] for xid in xids if xid in claim.prepared]
    messages = sum(1 for branch in branches for written in branch.blocks if written.kind is Kind.ENQUEUE)
    decided = Decision(batch, xids, others, messages, space.now_us(), plan)
    batch_steps.decide(space, decided, branches)
    return decided


def _check_claimed(claim: Claim, batch: Batch, xids: Sequence[Xid], *, home: bool) -> None:
    for xid in xids:
        by_hand = claim.decided.get(xid)
        if by_hand is not None:
            state = _state(by_hand)
            if state is not State.HEURISTIC_COMMIT and (home or xid.format_id == ONE_SPACE):
                raise HeuristicOutcome(
                    f"nothing of {batch} is decided: its branch {xid} is {state.value} by an operator's decision. "
                    f"Write the batch again; `xaqueue indoubt forget {xid}` ends this answer",
                    HEURISTICS[state],
                )
        elif xid not in claim.prepared:
            raise UnknownXid(f"branch {xid} is not prepared: nothing of {batch} is decided. Write the batch again")
        elif claim.prepared[xid].damage:
            lost = ", ".join(claim.prepared[xid].damage)
            raise RetryLater(
                f"branch {xid} lost {lost}: nothing of {batch} is decided. Write the batch again, or decide by hand "
                f"with `xaqueue indoubt show {xid}`"
            )


def _finish(space: Space, claim: Claim, decided: Decision) -> None:
    """Rolls back what is not in the decision, and compares what operators decided."""
    listed = set(decided.xids)
    left = [branch for xid, branch in claim.prepared.items() if xid not in listed and not branch.committing]
    batch_steps.undo(space, decided.batch.gtrid, left)
    otherwise = []
    for xid, branch in claim.decided.items():
        if _state(branch) is (State.HEURISTIC_COMMIT if xid in listed else State.HEURISTIC_ROLLBACK):
            if branch.decided is None:
                heuristics.forget(space, branch)
        else:
            otherwise.append(f"{xid} is {_state(branch).value}")
    if otherwise:
        raise HeuristicOutcome(
            f"{decided.batch} is committed with {len(listed):,} branches, but by an operator's decision "
            f"{', '.join(otherwise)}: compare what arrived; `xaqueue indoubt forget` ends this answer",
            Code.XA_HEURMIX,
        )


def _state(branch: Branch) -> State:
    return branch.decided or branch.base


_OUTCOMES = {True: Outcome.COMMITTED, False: Outcome.ROLLED_BACK, None: Outcome.UNKNOWN}
"""By whether a decision lists the branch."""
