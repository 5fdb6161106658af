"""The steps of a batch: its decision becomes durable, then what it commits is published and all else is undone.

With a journal one record holds the decision and every move, where these are not too many; else the decision comes
first, alone, and the branches follow in groups, between which others have their turn. Without one, the record is
hardened and renamed into batches/, which is the commit point, and the groups follow. A crash in between is rolled
forward from the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from xaqueue.batch import Decision
from xaqueue.errors import Error, RetryLater, RolledBack
from xaqueue.space.engine import commit
from xaqueue.space.engine import redo as redo_of
from xaqueue.space.engine.batch_claim import of_batch
from xaqueue.space.engine.complete import Completion, hold, later, remove
from xaqueue.space.engine.redo import Redo
from xaqueue.space.model import batch_records
from xaqueue.space.model.branch import Branch, State
from xaqueue.space.model.layout import BATCHES, COMMIT, FIRST, PREPARED, batch_path, block_path
from xaqueue.storage.fs import NO_ROOM
from xaqueue.storage.group_commit import Touched, touched
from xaqueue.storage.journal_format import Entry
from xaqueue.xa import Outcome

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

STEP_BLOCKS = 4096
"""More branches go together only as long as they have no more blocks: everybody waits while a step moves them."""
_PER_BLOCK_BYTES = 512
"""More than a record holds of the move of a block."""


def decide(space: Space, decision: Decision, branches: Sequence[Branch]) -> None:
    """Records the decision and commits these branches. RetryLater: nothing is decided, or the rest is to be finished;
    ``space.batches`` knows which.
    """
    record = _Record(space, decision, branches)
    whole = space.barrier.journal is not None and len(list(_groups(space, branches))) <= 1
    record.write()
    _perform(space, decision.batch.gtrid, record, branches if whole else ())
    if space.barrier.journal is None:
        record.prune()
    if not whole:
        finish(space, decision.batch.gtrid, branches)


def finish(space: Space, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """Commits branches of a batch that is decided. RetryLater: those for which there was room are."""
    full: RetryLater | None = None
    for group in _groups(space, branches):
        try:
            _perform(space, gtrid, None, group)
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


def _perform(space: Space, gtrid: bytes, record: _Record | None, branches: Sequence[Branch]) -> None:
    step = _Step(space, gtrid, record, branches)
    space.barrier.perform(step.apply, entry=step.entry, publish=step.publish)
    for work in step.done:
        if not work.is_recorded:
            work.remove_files()
        if work.branch.damage:
            commit.resolve_damage(space, work.branch.xid)
        space.finish(work.branch, Outcome.COMMITTED)
    if step.full is not None:
        raise step.full


class _Record:
    """The record of a decision, on its way to its place."""

    def __init__(self, space: Space, decision: Decision, branches: Sequence[Branch]) -> None:
        self._space = space
        self._decision = decision
        self._branches = branches
        self._content = batch_records.content(decision, space.epoch)
        self._source = batch_records.making_path(decision.batch)
        self._path = batch_records.path_of(decision.batch)
        self._outdated: list[int] | None = None

    def write(self) -> None:
        """Content before name, as for every block. RetryLater: there is no room, and nothing is decided."""
        space = self._space
        try:
            with suppress(FileNotFoundError):  # of an earlier try
                space.fs.unlink(self._source)
            space.room.create(space.fs.create, self._source, self._content)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise space.fence(error) from error
            raise self._no_room(error) from error
        if space.barrier.journal is None:
            space.barrier.harden_content([self._source])

    def record(self, redo: Redo) -> None:
        redo.put(self._path, *self._content)
        for path in self._pruned():
            redo.drop(path)

    def apply(self) -> Touched:
        space = self._space
        if space.barrier.journal is None:
            for branch in self._branches:
                hold(space, branch)
        try:
            space.fs.rename(self._source, self._path)
        except OSError as error:
            if error.errno not in NO_ROOM or space.barrier.journal is not None:
                raise
            raise self._no_room(error) from error
        if space.barrier.journal is not None:
            self.prune()
        return touched((BATCHES,))

    def prune(self) -> None:
        """What this one makes outdated goes; behind it, and if a crash brings some back, the next open removes them."""
        for path in self._pruned():
            remove(self._space, path)

    def publish(self) -> None:
        """The batch is decided: nothing more becomes of its other branches."""
        space, batch = self._space, self._decision.batch
        outdated = self._out_of_date()
        space.batches.add(batch)
        for number in outdated:
            space.batches.remove(batch.key, number)
        for branch in self._branches:
            branch.committing = True
        for branch in of_batch(space, batch.gtrid):
            if branch.base is State.ACTIVE:
                branch.doom = branch.doom or RolledBack(f"branch {branch.xid} comes too late: {batch} is decided")

    def _pruned(self) -> list[str]:
        batch = self._decision.batch
        return [batch_path(batch.key, number) for number in self._out_of_date()]

    def _out_of_date(self) -> list[int]:
        """Found out with the lock held. One with branches that are not finished yet stays."""
        if self._outdated is None:
            batch, space = self._decision.batch, self._space
            self._outdated = [
                number
                for number in space.batches.numbers(batch.key)
                if number != batch.number and not of_batch(space, f"{batch.key}:{number}".encode())
            ]
        return self._outdated

    def _no_room(self, error: OSError) -> Error:
        batch = self._decision.batch
        return RetryLater(f"no room to record that {batch} is committed ({error.strerror}): nothing was done")


class _Step:
    """What the barrier performs: the decision, where it is not recorded yet, and the moves of some branches."""

    def __init__(self, space: Space, gtrid: bytes, record: _Record | None, branches: Sequence[Branch]) -> None:
        self._space = space
        self._gtrid = gtrid
        self._record = record
        self._works = [Completion(space, branch, _sources(branch), whole=False) for branch in branches]
        self.done: list[Completion] = []
        self.full: RetryLater | None = None
        """Why some have not moved."""

    def entry(self) -> Entry | None:
        redo = Redo(redo_of.Kind.BATCH, batch_records.name_of(self._gtrid))
        if self._record is not None:
            self._record.record(redo)
        fresh = [work for work in self._works if not work.branch.recorded]
        for work in fresh:
            work.record(redo)
        return redo.entry() if fresh or self._record is not None else None

    def apply(self) -> Touched:
        changed = self._record.apply() if self._record is not None else Touched()
        for work in self._works:
            try:
                self._mark(work.branch)
                moved = work.apply()
            except RetryLater as full:
                self.full = full
                continue
            changed.files.update(moved.files)
            changed.targets.update(moved.targets)
            changed.sources.update(moved.sources)
            self.done.append(work)
        return changed

    def publish(self) -> None:
        if self._record is not None:
            self._record.publish()
        for work in self.done:
            work.publish()

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

    def entry() -> Entry:
        redo = Redo(redo_of.Kind.BATCH, batch_records.name_of(gtrid))
        for path in paths:
            redo.drop(path)
        return redo.entry()

    def apply() -> Touched:
        for path in paths:
            remove(space, path)
        return touched(sources=(PREPARED,))

    space.barrier.perform(apply, entry=entry)
    for branch in branches:
        commit.release(space, branch)
        if branch.damage:
            commit.resolve_damage(space, branch.xid)
        space.finish(branch, Outcome.ROLLED_BACK)
