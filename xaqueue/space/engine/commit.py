"""The durable steps of a branch, in the order that the crash rules ask for. Each returns once it is hardened.

    prepare    content of every block -> rename into prepared/, .000 last -> sync prepared/, active/
    commit     one block: rename into committed/ (or unlink of the message) is the commit point
               several: .000 becomes .commit, sync prepared/: that is the commit point; then the moves, their
               syncs, and .commit goes. A crash in between is rolled forward.
    rollback   of a prepared branch: .000 goes first, which un-prepares it; sync prepared/

One-phase commit does the same from active/, where what was not committed is rolled back at start, so its blocks
need not pass through prepared/. Several blocks need their names hardened in active/ first: without it a crash could
keep the .commit and lose a block that it lists.

With a journal the record of a step, once it is hardened, is its commit point, and the same moves follow unsynced.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from xaqueue.errors import DiskFull, RetryLater
from xaqueue.space.engine import blocks, quarantine, tries
from xaqueue.space.engine import redo as redo_of
from xaqueue.space.engine.complete import complete, hold, later, move, remove
from xaqueue.space.engine.redo import Redo
from xaqueue.space.model.block import Kind
from xaqueue.space.model.branch import Branch, State
from xaqueue.space.model.layout import ACTIVE, COMMIT, FIRST, PREPARED, QUARANTINE, block_path
from xaqueue.storage import journal_format
from xaqueue.storage.fs import NO_ROOM
from xaqueue.storage.group_commit import Touched, touched
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

HELD_BYTES = 64 * 1024
"""What a prepared branch may hold of its blocks in memory; there may be many, and for long."""
STEP_FILES = 256
"""Files that a step moves or removes with the space's lock held. What a branch has beyond goes before the .000 enters
prepared/, or after it has left it, and without the lock: a crash finds blocks that were promised to nobody."""
_MOVED = touched((PREPARED,), (ACTIVE,))


def prepare(space: Space, branch: Branch) -> None:
    """After it, nothing but commit, rollback or an operator's decision removes the branch."""
    blocks.write_pending(space, branch)
    if len(branch.blocks) > 1:
        blocks.write_list(space, branch)
    work = _Preparation(space, branch, blocks.is_recorded_whole(space, branch))
    if not work.whole:
        blocks.harden_content(space, branch)
        if space.barrier.journal is not None:
            blocks.harden_names(space)
    try:
        record = work.begin()
        try:
            space.barrier.perform(work.apply, entry=lambda: record, publish=work.publish)
        except RetryLater:
            work.take_back()
            raise
    except RetryLater as full:
        if work.recorded:
            _take_back(space, branch)
        branch.doom = DiskFull(f"{full}. Branch {branch.xid} is rolled back")
        raise branch.doom from full


class _Preparation:
    """One step: the branch is recorded where there is a journal, and its blocks move into prepared/, .000 last."""

    def __init__(self, space: Space, branch: Branch, whole: bool) -> None:
        self.space = space
        self.branch = branch
        self.whole = whole
        """The journal is to record the blocks themselves."""
        self.recorded = False
        suffixes = [(written.suffix, written.suffix) for written in branch.blocks]
        suffixes = [*suffixes, (FIRST, FIRST)] if branch.listed else [(suffixes[0][0], FIRST)]
        name = branch.name
        self.moves = [(block_path(ACTIVE, name, a), block_path(PREPARED, name, b)) for a, b in suffixes]
        self.ahead = self.moves[:-STEP_FILES]
        """Those that move before the step."""

    def begin(self) -> journal_format.Entry | None:
        """What needs no lock, in a thread where it may be slow. Returns the record, where there is a journal."""
        return self.space.waiting.run(self._begin) if self.ahead else self._begin()

    def _begin(self) -> journal_format.Entry | None:
        record = self.record() if self.space.barrier.journal is not None else None
        self._move(self.ahead)
        return record

    def take_back(self) -> None:
        """There was no room for the step: what moved before it stands in active/ again, and is undone there."""
        if self.ahead:
            self.space.waiting.run(partial(self._move, [(target, source) for source, target in self.ahead]))

    def _move(self, moves: list[tuple[str, str]]) -> None:
        try:
            move(self.space, moves)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise self.space.fence(error) from error
            raise RetryLater(f"no room in {PREPARED}/: {error.strerror}") from error

    def record(self) -> journal_format.Entry:
        """What the journal is to say of it. It may read blocks, and so no lock is held."""
        redo = Redo(redo_of.Kind.PREPARE, self.branch.name)
        if not self.whole:
            for source, target in self.moves:
                redo.move(source, target)
            return redo.entry()
        for written, (_, target) in zip(self.branch.blocks, self.moves, strict=False):
            redo.put(target, *blocks.content_of(self.space, self.branch, written))
        if self.branch.listed:
            redo.put(self.moves[-1][1], *self.branch.list_content)
        return redo.entry()

    def apply(self) -> Touched:
        self.recorded = self.space.barrier.journal is not None
        try:
            move(self.space, self.moves[len(self.ahead) :])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise RetryLater(f"no room in {PREPARED}/: {error.strerror}") from error
        return _MOVED

    def publish(self) -> None:
        if not self.branch.listed:
            self.branch.blocks[0].suffix = FIRST
        self.branch.prepared_at = self.space.now_us()
        if self.branch.kept_bytes > HELD_BYTES:
            for written in self.branch.blocks:
                written.content = None


def _take_back(space: Space, branch: Branch) -> None:
    """The journal has a prepare that found no room in the directories after that."""

    def entry() -> journal_format.Entry:
        redo = Redo(redo_of.Kind.ROLLBACK, branch.name)
        for suffix in (FIRST, *(written.suffix for written in branch.blocks)):
            redo.drop(block_path(PREPARED, branch.name, suffix))
        return redo.entry()

    try:
        space.barrier.perform(Touched, entry=entry)
    except RetryLater as full:
        raise space.fence(full) from full


def commit_one_phase(space: Space, branch: Branch) -> None:
    """Commits a branch that was never prepared. Called again after RetryLater, it goes on where it was."""
    whole = blocks.is_recorded_whole(space, branch)
    if not branch.committing:
        several = len(branch.blocks) > 1
        if several and not whole:
            blocks.write_pending(space, branch)
            if space.barrier.journal is None:
                blocks.write_list(space, branch)
            blocks.harden_content(space, branch)
            blocks.harden_names(space)
        elif branch.blocks[0].kind is Kind.ENQUEUE and not whole:
            blocks.harden_content(space, branch)
            if space.barrier.journal is not None:
                blocks.harden_names(space)
    commit(space, branch, ACTIVE, whole=whole)


def commit(space: Space, branch: Branch, directory: str = PREPARED, *, whole: bool = False) -> None:
    """Commits a branch whose blocks stand in ``directory``. RetryLater: nothing was lost, commit again later."""
    name = branch.name
    if branch.listed and not branch.committing and space.barrier.journal is None:

        def apply() -> Touched:
            hold(space, branch)
            try:
                space.fs.rename(block_path(directory, name, FIRST), block_path(PREPARED, name, COMMIT))
            except OSError as error:
                raise later(branch, error) from error
            branch.committing = True
            return touched((PREPARED,), {directory} - {PREPARED})

        space.barrier.perform(apply)
    sources = {written.number: block_path(directory, name, written.suffix) for written in branch.blocks}
    complete(space, branch, sources, whole=whole)
    space.finish(branch, Outcome.COMMITTED)


def rollback(space: Space, branch: Branch) -> None:
    """Undoes a branch and ends it."""
    undo(space, branch)
    if branch.damage:
        resolve_damage(space, branch.xid)
    space.finish(branch, Outcome.ROLLED_BACK)


def undo(space: Space, branch: Branch) -> None:
    """What a branch did is gone; its dequeued messages are back where they were, with one more try.

    RetryLater: nothing was done. What was never prepared is undone all the same, and its tries are not recorded.
    """
    counted = tries.one_more(space, tries.held_by(branch))
    try:
        _undo(space, branch, counted)
    except RetryLater:
        if branch.base is State.PREPARED or not counted:
            raise
        counted = []
        _undo(space, branch, counted)
    release(space, branch, recorded=bool(counted))


def _undo(space: Space, branch: Branch, counted: Sequence[tuple[str, bytes]]) -> None:
    """``counted``: path and content of what the journal is to say of tries."""
    prepared = branch.base is State.PREPARED
    directory = PREPARED if prepared else ACTIVE
    suffixes = [FIRST] if prepared or len(branch.blocks) > 1 else []
    suffixes += [written.suffix for written in branch.blocks if written.on_disk and written.suffix != FIRST]
    paths = [block_path(directory, branch.name, suffix) for suffix in suffixes]

    def entry() -> journal_format.Entry | None:
        if not prepared and not counted:
            return None
        redo = Redo(redo_of.Kind.ROLLBACK, branch.name)
        for path in paths:  # in active/, too: a block that is found there counts a try
            redo.drop(path)
        for path, content in counted:
            redo.put(path, content, b"")
        return redo.entry()

    def apply() -> Touched:
        remove_all(paths[:STEP_FILES])
        return touched(sources=(PREPARED,) if prepared else ())

    def remove_all(some: Sequence[str]) -> None:
        for path in some:
            remove(space, path)

    record = entry() if space.barrier.journal is not None else None
    space.barrier.perform(apply, entry=lambda: record)
    if len(paths) > STEP_FILES:
        try:
            space.waiting.run(partial(remove_all, paths[STEP_FILES:]))
        except OSError as error:
            raise space.fence(error) from error


def resolve_damage(space: Space, xid: Xid) -> None:
    """What quarantine has of a branch that is decided now holds it in doubt no longer."""

    def apply() -> Touched:
        quarantine.resolve(space.fs, xid)
        return touched((QUARANTINE,))

    space.barrier.perform(apply)


def release(space: Space, branch: Branch, *, recorded: bool = False) -> None:
    """Counts a try of every message that the branch held and gives it back; forgets what it had added.

    recorded: the journal has the tries already.
    """
    tries.count(space, branch, tries.held_by(branch), recorded=recorded)
    with space.lock:
        for written in branch.blocks:
            queue = space.queue(written.queue)
            if written.kind is Kind.ENQUEUE:
                queue.pending.discard(written.message_id)
            elif written.entry is not None:
                queue.index.release(written.entry)
                queue.arrived.notify_all()  # the first who waits may wait for another id
