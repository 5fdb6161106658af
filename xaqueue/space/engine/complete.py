"""What follows the commit point of a branch: its messages enter or leave committed/, and then its files go.

Run again after a crash, it does what is left to do: a message that stands in its place has arrived, one that is gone
was removed.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xaqueue.errors import RetryLater
from xaqueue.space.engine import blocks
from xaqueue.space.engine import redo as redo_of
from xaqueue.space.engine.redo import Redo
from xaqueue.space.model import layout
from xaqueue.space.model.block import Kind
from xaqueue.space.model.branch import Branch, Written
from xaqueue.space.model.index import Entry
from xaqueue.space.model.layout import ACTIVE, COMMIT, FIRST, PREPARED, block_path
from xaqueue.space.model.queue import Queue
from xaqueue.space.model.retries import files_of
from xaqueue.storage import journal_format
from xaqueue.storage.fs import NO_ROOM
from xaqueue.storage.group_commit import Touched

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

Moved = tuple[Queue, Entry]
Place = tuple[Written, Queue, int, str]
"""Of a message that arrives: its block, and where it goes."""


def complete(space: Space, branch: Branch, sources: Mapping[int, str], *, whole: bool = False) -> None:
    """Publishes what a branch commits. ``sources``: where each block stands, by its number.

    whole: the journal is to record the blocks themselves. RetryLater: nothing was lost, commit again later.
    """
    work = Completion(space, branch, sources, whole)
    space.barrier.perform(work.apply, entry=work.entry, publish=work.publish)
    if not work.is_recorded:
        work.remove_files()


class Completion:
    """One step: numbers are given, then it is recorded where there is a journal, then it moves."""

    def __init__(self, space: Space, branch: Branch, sources: Mapping[int, str], whole: bool) -> None:
        self.space = space
        self.branch = branch
        self.sources = sources
        self.whole = whole
        self.arrivals = [written for written in branch.blocks if written.kind is Kind.ENQUEUE]
        self.removals = [written for written in branch.blocks if written.kind is Kind.DEQUEUE]
        self.leaving = [(written.queue, written.entry) for written in self.removals if written.entry is not None]
        self.gone = [path for queue, entry in self.leaving for path in files_of(queue, entry)]
        self.touched = Touched()
        self.places: list[Place] | None = None
        self.files = self._files()
        self.when_us = 0
        self.is_recorded = False
        self.recorded_at = 0
        self.arrived: list[Moved] = []
        self.consumed: list[Moved] = []

    def entry(self) -> journal_format.Entry | None:
        if self.branch.recorded:  # it was, and then there was no room for its moves
            return None
        redo = Redo(redo_of.Kind.ONE_PHASE if self.whole else redo_of.Kind.COMMIT, self.branch.name)
        self.record(redo)
        return redo.entry()

    def record(self, redo: Redo) -> None:
        """Adds what is done to a record, which is going to stand at the journal's position or behind it."""
        assert self.space.barrier.journal is not None
        self.recorded_at = self.space.barrier.journal.position
        for written, _, _, target in self._planned():
            if self.whole:
                redo.put(target, *blocks.content_of(self.space, self.branch, written), self.when_us)
            else:
                redo.move(self.sources[written.number], target, self.when_us)
        for path in self.gone:
            redo.drop(path)
        for path in self.files:
            if not path.startswith(ACTIVE):
                redo.drop(path)
        self.is_recorded = True

    def apply(self) -> Touched:
        if self.is_recorded:
            self.branch.recorded = self.branch.committing = True
            self.branch.behind = self.recorded_at
            for written, _, seq, _ in self._planned():  # which it keeps, should there be no room now
                assert written.entry is not None
                written.entry.seq = seq
        self._move_in(self._planned())
        self._move_out()
        if self.is_recorded:
            self.remove_files()
        self.branch.behind = 0
        for written in self.arrivals:
            self.touched.sources[self.sources[written.number].partition("/")[0]] = None
            if written.given:  # no .commit of an earlier life of this id may come back and remove it
                self.touched.sources[PREPARED] = None
        return self.touched

    def publish(self) -> None:
        self.space.publish(self.arrived, self.consumed)

    def remove_files(self) -> None:
        """The blocks that moved nowhere. A crash that brings them back finds their work done."""
        for path in self.files:
            remove(self.space, path)

    def _files(self) -> list[str]:
        """What is left of the branch once its messages are in their places."""
        files = [self.sources[written.number] for written in self.removals if written.on_disk]
        if self.branch.listed or self.branch.committing:
            files += [block_path(PREPARED, self.branch.name, suffix) for suffix in (COMMIT, FIRST)]
        return files

    def _planned(self) -> list[Place]:
        """Numbers for what arrives, and all that the syncs will need. RetryLater before anything has moved."""
        if self.places is not None:
            return self.places
        space, places = self.space, []
        self.when_us = space.commit_time_us()
        try:
            for written in self.arrivals:
                queue, entry = space.queue(written.queue), written.entry
                assert entry is not None
                seq = queue.allocate(space.fs, self.touched, entry.seq)
                target = layout.message_path(queue.name, seq, entry.message_id, entry.tags)
                places.append((written, queue, seq, target))
            for name, entry in self.leaving:
                self.touched.targets[layout.range_path(name, entry.seq)] = None
            if space.hardening.directories and space.barrier.journal is None:
                for path in self.touched.targets:
                    space.fs.hold_dir(path)
        except OSError as error:
            raise later(self.branch, error) from error
        self.places = places
        return places

    def _move_in(self, places: Sequence[Place]) -> None:
        fs, when_ns = self.space.fs, self.when_us * 1000
        moves = [(self.sources[written.number], target) for written, _, _, target in places]
        try:
            for source, _ in moves:
                fs.set_modified_ns(source, when_ns)
            move(self.space, moves)
        except OSError as error:
            if self.branch.recorded:
                for _, queue, seq, _ in places:
                    queue.is_late(seq)
            raise later(self.branch, error) from error
        for written, queue, seq, _ in places:
            assert written.entry is not None
            written.entry.seq = seq
            queue.occupy(seq)
            self.arrived.append((queue, written.entry))

    def _move_out(self) -> None:
        for path in self.gone:
            remove(self.space, path)
        self.consumed += [(self.space.queue(name), entry) for name, entry in self.leaving]


def hold(space: Space, branch: Branch) -> None:
    """What a commit may lack, it lacks before its commit point."""
    try:
        for written in branch.blocks:
            if written.kind is Kind.ENQUEUE:
                space.queue(written.queue).hold(space.fs)
    except OSError as error:
        raise later(branch, error) from error


def later(branch: Branch, error: OSError) -> Exception:
    if error.errno not in NO_ROOM:
        return error
    return RetryLater(f"commit of branch {branch.xid} found no room ({error.strerror}): free some and commit again")


def remove(space: Space, path: str) -> None:
    """Unlinks what may be gone already: this step may be the second try after a crash."""
    try:
        space.fs.unlink(path)
    except FileNotFoundError:
        return


def move(space: Space, moves: Sequence[tuple[str, str]]) -> None:
    """All of these renames, or none: a directory that must grow on a full disk does not."""
    done: list[tuple[str, str]] = []
    try:
        for source, target in moves:
            space.fs.rename(source, target)
            done.append((target, source))
    except OSError:
        for target, source in reversed(done):  # where it stood a moment ago there is room
            try:
                space.fs.rename(target, source)
            except OSError as stuck:  # half moved: never "no room, try again"
                raise OSError(errno.EIO, f"cannot be moved back: {stuck.strerror}", target) from stuck
        raise
