"""What a query writes as a batch is decided once: many prepared branches, one durable record, of the last for good.

A batch with a record is committed, and whatever else is prepared for it is rolled back. So a commit whose answer was
lost is asked for again and does nothing twice, and a branch that comes late is refused. The next batch is decided once
nothing of the last is left to do here, and its record takes the place of that one's. Below the last one of its query a
batch is refused, since nobody can tell any more what it was made from; and so is the last one when it is made from
something else, or goes to other spaces: to take it for written would lose what it holds now.

What operators decided of single branches before is not undone. Of a batch that is decided here first, nothing is done
where a branch of it was rolled back by hand. Where the decision is made already, the rest is carried out, and then
HeuristicOutcome (XA_HEURMIX) says which branches are otherwise, as long as their decisions are not forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from xaqueue.batch import MANY_SPACES, ONE_SPACE, Batch, BatchDecision, Plan, home_of, is_of_a_batch, key_of
from xaqueue.core.engine import heuristics, quarantine
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import ADDS
from xaqueue.core.model.branch import HEURISTICS, Branch, State
from xaqueue.core.model.layout import QUARANTINE
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.errors import DamagedBlock, Error, HeuristicOutcome, InvalidArgument, ResourceError, RetryLater, UnknownXid
from xaqueue.features.batches import batch_steps, record
from xaqueue.features.batches.batch_steps import of_batch
from xaqueue.xa import Code
from xaqueue.xid import Xid

Others = tuple[tuple[str, Xid], ...]
_UNFINISHED = (State.PREPARED, State.COMMITTING)


def commit_all(
    space: Space, batch: Batch, xids: Sequence[Xid], others: Sequence[tuple[str, Xid]], plan: Plan
) -> BatchDecision:
    here, elsewhere = tuple(dict.fromkeys(xids)), tuple(dict.fromkeys(others))
    _check(batch, here, elsewhere)
    _finish_last(space, batch)
    with claimed(space, batch.gtrid) as claim:
        decided = decision(space, batch)
        if decided is None:
            decided = _first(space, claim, batch, here, elsewhere, plan)
        elif why_not := decided.why_not(batch, plan):
            raise InvalidArgument(why_not)
        _carry_out(space, claim, decided)
        _compare(space, claim, decided)
    return decided


def rollback_all(space: Space, batch: Batch, spaces: Sequence[str]) -> int:
    with claimed(space, batch.gtrid) as claim:
        decided = decision(space, batch)
        if decided is not None and decided.batch.number == batch.number:
            return 0
        foreign = set(_foreign(claim, spaces))
        branches = [b for xid, b in claim.prepared.items() if b.base is State.PREPARED and xid not in foreign]
        batch_steps.undo(space, batch.gtrid, branches)
    return len(branches)


# A batch is claimed before anything is done to its branches


class Claim(NamedTuple):
    """The branches of a batch: nobody else prepares, ends or claims one meanwhile, nor is another batch decided."""

    prepared: Mapping[Xid, Branch]
    """Those that can be committed and rolled back."""
    by_hand: Mapping[Xid, Branch]
    """Those that an operator has decided."""


@contextmanager
def claimed(space: Space, gtrid: bytes) -> Iterator[Claim]:
    """Waits for branches that are at work, and for other claims of the query; who comes then waits for this one."""
    key, branches, is_claimed = key_of(gtrid), list[Branch](), False
    try:
        with space.lock:
            space.check()
            while key in record.batches_of(space).claimed or any(branch.busy for branch in of_batch(space, gtrid)):
                space.wait_settled()
            is_claimed = True
            record.batches_of(space).claimed.add(key)
            for branch in of_batch(space, gtrid):
                if branch.base in _UNFINISHED or branch.base in HEURISTICS:
                    branches.append(branch)
                    branch.busy = True
        by_hand = {branch.xid: branch for branch in branches if branch.decided or branch.base in HEURISTICS}
        yield Claim({branch.xid: branch for branch in branches if branch.xid not in by_hand}, by_hand)
    except Error:
        raise
    except BaseException as error:  # or interrupted: those who wait are told
        if not is_claimed:
            raise
        failed = space.fence(error)
        if isinstance(error, OSError):
            raise failed from error
        raise
    finally:
        if is_claimed:  # an interrupt may come once the lock is free
            with space.lock:
                record.batches_of(space).claimed.discard(key)
                for branch in branches:
                    branch.busy = False
                space.settled.notify_all()
            space.log.deliver_interrupt()


def _unfinished(space: Space, batch: Batch) -> Batch | None:
    """The last batch before this one, where branches of it are not finished here."""
    with space.lock:
        last = Batch(batch.query, record.batches_of(space).last.get(batch.key, batch.number))
        left = [branch for branch in of_batch(space, last.gtrid) if branch.base in _UNFINISHED]
    return last if last.number < batch.number and any(branch.decided is None for branch in left) else None


# What is decided


def decision(space: Space, batch: Batch) -> BatchDecision | None:
    """See ``verbs.decision``. Raises ResourceError where it is lost."""
    with space.lock:
        space.check_readable()
        number = record.batches_of(space).last.get(batch.key, -1)
        lost, aside = record.batches_of(space).lost.get(batch.key, (-1, ""))
    if lost > number and lost >= batch.number:
        if space.fs.exists(aside):
            raise _lost(Batch(batch.query, lost), aside)
        with space.lock:
            record.batches_of(space).lost.pop(batch.key, None)
    if number < batch.number:
        return None
    last = Batch(batch.query, number)
    try:
        return record.decode_decision(space.read_record(record.decision_path(last.gtrid)))
    except DamagedBlock as damage:
        raise _lost(last, _set_aside(space, last, damage)) from damage
    except FileNotFoundError:
        if record.batches_of(space).has(last.gtrid):
            return None
        return decision(space, batch)  # it went with the commit of a later one


def _lost(batch: Batch, path: str) -> ResourceError:
    return ResourceError(
        f"the record of {batch} was damaged and is {path}: whether it was committed is unknown. Look at the queues and "
        "at `xaqueue indoubt list`, decide what is left of it by hand, and then remove that file"
    )


def _set_aside(space: Space, batch: Batch, damage: DamagedBlock) -> str:
    """Into quarantine; returns where it is."""

    def plan() -> None:
        if record.batches_of(space).last.get(batch.key) == batch.number:  # nobody else has found it
            path = record.decision_path(batch.gtrid)
            try:
                aside = quarantine.move(space.fs, path, f"the record of a batch: {damage}", space.now_us())
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise RetryLater(f"no room to set {path} aside ({error.strerror}), which is damaged") from error
            del record.batches_of(space).last[batch.key]
            record.batches_of(space).lost[batch.key] = batch.number, aside

    space.settle()
    space.log.perform(plan)
    space.log.sync_names((QUARANTINE, record.BATCHES))
    return record.batches_of(space).lost.get(batch.key, (0, "removed"))[1]


# The decision


def _check(batch: Batch, xids: Sequence[Xid], others: Others) -> None:
    for xid in (*xids, *(xid for _, xid in others)):
        if not is_of_a_batch(xid) or xid.gtrid != batch.gtrid:
            raise InvalidArgument(f"branch {xid} is none of {batch}: its gtrid has to be {batch.gtrid!r}")
        if others and xid.format_id != MANY_SPACES:
            raise InvalidArgument(f"branch {xid} of a batch over several spaces has format id {ONE_SPACE}")


def _foreign(claim: Claim, spaces: Sequence[str]) -> list[Xid]:
    """Branches that a space decides which is none of these, and may have committed. Without any, nobody asks."""
    found = [xid for xid in claim.prepared if spaces and home_of(xid)]
    return [xid for xid in found if not any(space.startswith(home_of(xid)) for space in spaces)]


def _first(
    space: Space, claim: Claim, batch: Batch, xids: tuple[Xid, ...], others: Others, plan: Plan
) -> BatchDecision:
    """Decides the batch."""
    before = _unfinished(space, batch)
    if before is not None:
        raise RetryLater(f"{batch} is not decided before {before} is carried out: try again")
    for xid in _foreign(claim, plan.spaces):
        raise InvalidArgument(
            f"{batch} is refused and nothing is decided: the space of id {home_of(xid)}... may have committed it with "
            f"branch {xid}. Name that space again until the query has gone on; or, if it has not, roll the branch back "
            f"with `xaqueue indoubt rollback {xid}`"
        )
    _check_claimed(claim, batch, xids, home=bool(others))
    branches = [claim.prepared[xid] for xid in xids if xid in claim.prepared]
    messages = sum(len(written.ids) for branch in branches for written in branch.blocks if written.kind in ADDS)
    decided = BatchDecision(batch, xids, others, messages, space.now_us(), plan)
    batch_steps.decide(space, decided, branches)
    return decided


def _check_claimed(claim: Claim, batch: Batch, xids: Sequence[Xid], *, home: bool) -> None:
    for xid in xids:
        by_hand = claim.by_hand.get(xid)
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


def _finish_last(space: Space, batch: Batch) -> None:
    """Carries the last batch before this one out, where something had no room."""
    before = _unfinished(space, batch)
    if before is not None:
        with claimed(space, before.gtrid) as claim:
            decided = decision(space, before)
            if decided is not None and decided.batch.number == before.number:
                _carry_out(space, claim, decided)


def _carry_out(space: Space, claim: Claim, decided: BatchDecision) -> None:
    """Commits what is listed and not finished yet, and rolls back what is not listed."""
    listed = [claim.prepared[xid] for xid in decided.xids if xid in claim.prepared]
    batch_steps.finish(space, decided.batch.gtrid, listed)
    left = [branch for branch in claim.prepared.values() if branch.base is State.PREPARED]
    batch_steps.undo(space, decided.batch.gtrid, left)


def _compare(space: Space, claim: Claim, decided: BatchDecision) -> None:
    """What operators decided as the batch is decided is forgotten; HeuristicOutcome for all else."""
    listed = set(decided.xids)
    otherwise = []
    for xid, branch in claim.by_hand.items():
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
