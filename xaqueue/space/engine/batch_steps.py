"""The steps of a batch: its decision becomes durable, then what it commits is published and all else is undone.

With a journal one record holds the decision and every move, where these are not too many; else the decision comes
first, alone, and the branches follow in groups, between which others have their turn. Without one, the record is
hardened and renamed into batches/, which is the commit point, and the groups follow. A crash in between is rolled
forward from the record. That of the batch before goes once this one is durable; if a crash brings it back, the next
open removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xaqueue.batch import Batch, Decision, is_of_a_batch, key_of
from xaqueue.errors import RetryLater, RolledBack
from xaqueue.space.engine import commit
from xaqueue.space.engine import redo as redo_of
from xaqueue.space.engine.complete import Completion, hold, later, remove
from xaqueue.space.engine.redo import Redo
from xaqueue.space.model import batch_record
from xaqueue.space.model.branch import Branch, State
from xaqueue.space.model.layout import BATCHES, COMMIT, FIRST, PREPARED, batch_path, block_path
from xaqueue.storage.fs import NO_ROOM, discard
from xaqueue.storage.group_commit import Touched, touched
from xaqueue.storage.journal_format import Entry
from xaqueue.xa import Outcome

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

STEP_BLOCKS = 4096
"""More branches go together only as long as they have no more blocks: everybody waits while a step moves them."""
RECORDS = 1000
"""So many are forgotten in one step, at most."""
_PER_BLOCK_BYTES = 512
"""More than a record holds of the move of a block."""


def of_batch(space: Space, gtrid: bytes) -> list[Branch]:
    """All branches of a batch. Called with the lock held."""
    return [branch for xid, branch in space.branches.items() if xid.gtrid == gtrid and is_of_a_batch(xid)]


def decide(space: Space, decision: Decision, branches: Sequence[Branch]) -> None:
    """Records the decision, and with a journal commits these branches where a record takes them: else that follows.

    RetryLater: nothing is decided, or the rest is to be finished; ``space.batches`` knows which.
    """
    batch, journal = decision.batch, space.barrier.journal
    making, path = batch_record.making_path(batch.gtrid), batch_record.path_of(batch.gtrid)
    content = batch_record.content(decision, space.epoch)
    before = space.batches.last.get(batch.key)
    outdated = "" if before is None else batch_path(batch.key, before)
    moves = _Moves(space, branches if journal is not None and len(list(_groups(space, branches))) <= 1 else ())

    def entry() -> Entry:
        redo = Redo(redo_of.Kind.BATCH, _name(batch.gtrid))
        redo.put(path, *content)
        if outdated:
            redo.drop(outdated)
        moves.record(redo)
        return redo.entry()

    def apply() -> Touched:
        if journal is None:  # what may lack room lacks it before the commit point
            for branch in branches:
                hold(space, branch)
        with _room(batch, journal is None):
            space.fs.rename(making, path)
        # no list of the batch before may come back once its record is gone: it would be in doubt, its messages taken
        changed = touched((BATCHES,), (PREPARED,) if outdated else ())
        moves.apply(changed)
        return changed

    def publish() -> None:
        space.batches.last[batch.key] = batch.number
        for branch in branches:
            branch.committing = True
        for branch in of_batch(space, batch.gtrid):
            if branch.base is State.ACTIVE:
                branch.doom = branch.doom or RolledBack(f"branch {branch.xid} comes too late: {batch} is decided")
        moves.publish()

    discard(space.fs, making)  # of an earlier try
    with _room(batch):
        space.room.create(space.fs.create, making, content)
    if journal is None:  # content before name, as for every block
        space.barrier.harden_content([making])
    space.barrier.perform(apply, entry=entry, publish=publish)
    if outdated:
        remove(space, outdated)
    moves.end()


@contextmanager
def _room(batch: Batch, may_lack: bool = True) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM or not may_lack:
            raise
        raise RetryLater(f"no room to record that {batch} is committed ({error.strerror}): nothing was done") from error


def finish(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """Commits branches of a batch that is decided. RetryLater: those for which there was room are."""
    full: RetryLater | None = None
    for group in _groups(space, branches):
        try:
            _perform(space, gtrid, group)
        except RetryLater as error:
            full = error
    if full is not None:
        raise full


def _groups(space: Space, branches: Sequence[Branch]) -> Iterator[list[Branch]]:
    """As many branches at a time as others may wait for, and a record takes."""
    journal = space.barrier.journal
    group: list[Branch] = []
    blocks = 0
    for branch in branches:
        blocks += len(branch.blocks)
        fits = journal is None or journal.fits(blocks * _PER_BLOCK_BYTES)
        if group and not (fits and blocks <= STEP_BLOCKS):
            yield group
            group, blocks = [], len(branch.blocks)
        group.append(branch)
    if group:
        yield group


def _perform(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """One step: these branches of a batch that is decided are committed."""
    moves = _Moves(space, branches)

    def entry() -> Entry | None:
        redo = Redo(redo_of.Kind.BATCH, _name(gtrid))
        return redo.entry() if moves.record(redo) else None

    def apply() -> Touched:
        changed = Touched()
        moves.apply(changed)
        return changed

    space.barrier.perform(apply, entry=entry, publish=moves.publish)
    moves.end()


class _Moves:
    """The moves of some branches, as a part of a step."""

    def __init__(self, space: Space, branches: Sequence[Branch]) -> None:
        self._space = space
        self._works = [Completion(space, branch, _sources(branch), whole=False) for branch in branches]
        self._done: list[Completion] = []
        self._full: RetryLater | None = None
        """Why some have not moved."""

    def record(self, redo: Redo) -> bool:
        """Whether there is anything that was not recorded before."""
        fresh = [work for work in self._works if not work.branch.recorded]
        for work in fresh:
            work.record(redo)
        return bool(fresh)

    def apply(self, changed: Touched) -> None:
        for work in self._works:
            try:
                self._mark(work.branch)
                moved = work.apply()
            except RetryLater as full:
                self._full = full
                continue
            changed.files.update(moved.files)
            changed.targets.update(moved.targets)
            changed.sources.update(moved.sources)
            self._done.append(work)

    def publish(self) -> None:
        for work in self._done:
            work.publish()

    def end(self) -> None:
        """Behind the step. RetryLater: those for which there was room have moved."""
        for work in self._done:
            if not work.is_recorded:
                work.remove_files()
            if work.branch.damage:
                commit.resolve_damage(self._space, work.branch.xid)
            self._space.finish(work.branch, Outcome.COMMITTED)
        if self._full is not None:
            raise self._full

    def _mark(self, branch: Branch) -> None:
        """Without a journal a list says for itself that its branch is committed, should the record be damaged."""
        fs = self._space.fs
        first = block_path(PREPARED, branch.name, FIRST)
        if self._space.barrier.journal is None and branch.listed and fs.exists(first):
            try:
                fs.rename(first, block_path(PREPARED, branch.name, COMMIT))
            except OSError as error:
                raise later(branch, error) from error


def _sources(branch: Branch) -> dict[int, str]:
    return {written.number: block_path(PREPARED, branch.name, written.suffix) for written in branch.blocks}


def undo(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """Rolls back prepared branches of a batch, as many at a time as a record takes."""
    for group in _groups(space, branches):
        _undo(space, gtrid, group)


def _undo(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    paths = [
        block_path(PREPARED, branch.name, suffix)
        for branch in branches
        for suffix in (FIRST, *(written.suffix for written in branch.blocks if written.suffix != FIRST))
    ]
    _drop(space, _name(gtrid), paths, PREPARED)
    for branch in branches:
        commit.release(space, branch)
        if branch.damage:
            commit.resolve_damage(space, branch.xid)
        space.finish(branch, Outcome.ROLLED_BACK)


def forget(space: Space, keys: Sequence[str]) -> None:
    """Removes the records of queries that had one batch, unless branches of these are there, or something is done."""
    with space.lock:
        used = {key_of(xid.gtrid) for xid in space.branches if is_of_a_batch(xid)} | space.batches.claimed
    gone = [key for key in keys if key not in used]
    for first in range(0, len(gone), RECORDS):
        some = gone[first : first + RECORDS]
        _drop(space, "", [batch_path(key, 0) for key in some], BATCHES)
        with space.lock:
            for key in some:
                if space.batches.last.get(key) == 0:
                    del space.batches.last[key]


def _drop(space: Space, name: str, paths: Sequence[str], directory: str) -> None:
    """One step: these files of a directory go."""

    def entry() -> Entry:
        redo = Redo(redo_of.Kind.BATCH, name)
        for path in paths:
            redo.drop(path)
        return redo.entry()

    def apply() -> Touched:
        for path in paths:
            remove(space, path)
        return touched(sources=(directory,))

    space.barrier.perform(apply, entry=entry)


def _name(gtrid: bytes) -> str:
    """Of the file of a batch's record."""
    return batch_record.path_of(gtrid).rpartition("/")[2]
