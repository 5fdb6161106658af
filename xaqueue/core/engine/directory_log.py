"""Levels FSYNC and FDATASYNC, with ;DSYNC or without: the state machine of files, literally.

A block is written to active/ when the work is done; a step renames it to prepared/ and on to committed/, and where it
stands is its state. What a step does comes as a change, see ``xaqueue.core.model.change``:

    content before name   ``harden`` and ``stage`` sync what active/ holds, by FSYNC or FDATASYNC, before it is given
                          another name (rule 7)
    its point             with DSYNC the directories are synced behind it: the step is decided (rule 2)
    its operations        with DSYNC every directory that gained a name is synced, and then those that lost one, so
                          that no crash loses a file between two directories (rules 1 to 3)
    what it takes         of a block of many messages is a bit in the bitmap of that, which is overwritten in place with
                          all that is gone by then: behind its point and its operations, so that nobody who shares its
                          round writes what is not decided. The last bit takes the block, and behind its sync the bitmap
    its rest              a crash may bring it back: recovery finds its work done (rule 3)

Steps of several threads share the syncs of a round. With NONE nothing is synced: ``UnsyncedLog``.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from xaqueue.core.engine import redo
from xaqueue.core.engine.log import STEP_FILES, Copying, Log, Owner, no_room_error
from xaqueue.core.model import layout
from xaqueue.core.model.block import ADDS
from xaqueue.core.model.block_files import dequeue_block, make_shared
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.change import DROP, MOVE, PUT, Change, Op
from xaqueue.core.model.entry import MessageBlock
from xaqueue.core.model.layout import ACTIVE, COMMITTED, PREPARED, RANGE_BITS
from xaqueue.core.model.message_block import encode_gone
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import NO_ROOM, FileSystem, discard, remove_all, suppress_room
from xaqueue.core.storage.group_commit import Plan, Publish, Step, nothing
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.scheduling import THREADS, Threads
from xaqueue.errors import Error

PARALLEL_SYNCS = 8
"""Files of one step that are synced at a time; more does not help one disk."""


class _Touched:
    """Directories that gained and that lost a name, and files that changed in place, since the last SYNC."""

    __slots__ = ("emptied", "files", "sources", "targets", "to_move_back")

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.targets: dict[str, None] = {}
        self.sources: dict[str, None] = {}
        self.to_move_back: list[Op] = []
        """Renames of steps that then found no room: to be taken back."""
        self.emptied: list[str] = []
        """Bitmaps whose blocks went: they go behind these."""

    def note(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if op[0] != DROP:
                self.targets[op[2 if op[0] == MOVE else 1].rpartition("/")[0]] = None
            if op[0] != PUT:
                self.sources[op[1].rpartition("/")[0]] = None


class _Names(NamedTuple):
    """A step that only syncs these directories, in this order, behind all that others in its round have moved."""

    directories: Sequence[str]


class DirectoryLog(Log):
    """See ``Log``."""

    _never_syncs = False

    def __init__(
        self, fs: FileSystem, hardening: Hardening, lock: threading.Lock, owner: Owner, *, waiting: Threads = THREADS
    ) -> None:
        super().__init__(lock, owner, waiting=waiting)
        self._owner = owner
        self.fs = fs
        self._content = hardening.content
        self._hardens = bool(hardening.content)
        self._sync_content = fs.sync_file if hardening.content == "FSYNC" else fs.sync_data
        self.hardens_names = hardening.directories
        self._marks: dict[str, Queue] = {}
        self.changed_queues: dict[str, Queue] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._writing_early = threading.Lock()

    # Blocks of active branches

    def _write(self, branch: Branch, written: Written, head: bytes, body: bytes, *, may_wait: bool = True) -> None:
        path = f"{ACTIVE}/{branch.name}.{written.number:03d}"
        make = self.fs.create if written.shared is None else partial(make_shared, self.fs, written)
        try:
            make(path, [head, body] if body else [head])
            written.path, written.content = path, None
        except BaseException as error:
            if not isinstance(error, OSError):  # interrupted: it would be in the way of a later branch of this name
                discard(self.fs, path)
            raise
        if self._hardens:
            branch.to_harden = True

    add = _write

    def take(self, branch: Branch, taken: Sequence[Written], epoch: int) -> None:
        try:
            for written in taken:
                self._write(branch, written, dequeue_block(written, epoch, self._owner.queues[written.queue]), b"")
        except OSError as error:
            if error.errno not in NO_ROOM:
                self.fail(error)
                raise self._failed() from error

    def harden(self, branch: Branch) -> None:
        if self._content:
            self.sync_contents(branch.contents)

    def harden_unprepared(self, branch: Branch, complete: Callable[[], None]) -> None:
        if branch.needs_list:
            complete()
            self.harden(branch)
            self.sync_names((ACTIVE,))  # else a crash could keep .commit and lose a block that it lists
        elif branch.to_harden and branch.blocks[0].kind in ADDS:
            self.harden(branch)

    def sync_contents(self, paths: Sequence[str]) -> None:
        self.check()
        if self._content:
            self._waiting.run(partial(self._sync_contents, paths))

    def _sync_contents(self, paths: Sequence[str]) -> None:
        with self._fencing():
            if len(paths) < PARALLEL_SYNCS or not threading.main_thread().is_alive():  # then no pool takes work
                for path in paths:
                    self._sync_content(path)
            else:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(PARALLEL_SYNCS, thread_name_prefix="xaqueue-sync")
                list(self._pool.map(self._sync_content, paths))

    def stage(self, path: str, head: bytes, body: bytes) -> None:
        staged = layout.staged_path(path)
        self._make_dir(path.rpartition("/")[0])
        discard(self.fs, staged)
        self.fs.create(staged, [head, body] if body else [head])
        self.sync_contents([staged])

    def _make_dir(self, directory: str) -> None:
        """And what is above it; on disk before it has a name."""
        if not self.fs.is_dir(directory):
            above = directory.rpartition("/")[0]
            self._make_dir(above)
            with suppress(FileExistsError):
                self.fs.make_dir(directory)
            self.sync_names((above,))

    # Steps

    def ahead(self, branch: Branch, change: Change) -> Change:
        early = change.ops[:-STEP_FILES]
        self.check()
        self._waiting.run(partial(self._move_ahead, change._replace(ops=early)))
        for written, (_, _, target, _) in zip(branch.all_blocks, early, strict=False):
            written.path = target
        return change._replace(ops=change.ops[-STEP_FILES:])

    def _move_ahead(self, moves: Change) -> None:
        try:
            self._carry_out(moves, moves.ops)
        except OSError as error:
            self.fail(error)
            raise self._failed() from error

    def perform(self, plan: Plan, publish: Publish = nothing, of: Branch | None = None, *, late: bool = False) -> None:
        change = super().perform(plan, publish)
        if change is not None and change.rest:
            self._tidy(change)

    def _harden(self, group: Sequence[Step]) -> None:
        touched = _Touched()
        with self._lock:
            for step in group:
                try:
                    step.planned = step.plan() if callable(step.plan) else step.plan
                    if type(step.planned) is Change:
                        self._carry_out(step.planned, step.planned.point or step.planned.ops, touched)
                except Error as error:
                    step.error = error
        self._sync(touched)
        self._sync_names(path for step in group if type(step.planned) is _Names for path in step.planned.directories)
        decided = [step for step in group if step.error is None and type(step.planned) is Change and step.planned.point]
        if decided:
            touched = _Touched()
            with self._lock:
                for step in decided:
                    try:
                        self._carry_out(step.planned, step.planned.ops, touched)
                    except Error as error:
                        step.error = error
            self._sync(touched)
        if self.failure is not None:
            raise self._failed()  # it may have hung until somebody fenced the space, and those who waited were told
        if self._lost():
            self._check_owner()
        with self._lock:
            for step in group:
                if step.error is None:
                    step.publish()
            if self.changed_queues or self._marks:
                self.mark_published_locked()

    def _carry_out(self, change: Change, ops: Sequence[Op], touched: _Touched | None = None) -> None:
        """These of its operations, or none of their renames; before the first what its numbers need. Called with the
        lock held, but for what a prepare moves ahead.

        touched: adds what is to be synced behind it. Raises RetryLater where there is no room, and then nothing was
        done, or is taken back before it is told; behind the point of the change CommitPending.
        """
        fs, op = self.fs, None
        is_decided = change.point and ops is change.ops
        try:
            for name, seq in () if is_decided else change.arrivals:
                queue = self._owner.queues[name]
                if self.hardens_names or seq > queue.reserved or seq >> RANGE_BITS not in queue.made_ranges:
                    self._make_range(queue, seq, touched)
            for path, *content in () if is_decided else change.beside:
                self._say(path, content, touched or _Touched())
            for op in ops:
                code = op[0]
                if code == DROP:
                    try:
                        if self.hardens_names:
                            fs.hold_dir(op[1].rpartition("/")[0])  # what cannot be synced is not begun
                        fs.unlink(op[1])
                    except FileNotFoundError:
                        pass
                else:  # what is PUT is staged
                    _, source, target, when_us = op if code == MOVE else (PUT, layout.staged_path(op[1]), op[1], op[-1])
                    if when_us:
                        fs.set_modified_ns(source, when_us * 1000)
                    fs.rename(source, target)
            if change.taken and ops is change.ops:
                op = ()  # all of them are done
                self._leave(change.taken, touched or _Touched())
        except OSError as error:
            self._take_back(error, ops, op, touched)
            raise no_room_error(change, error, is_decided=bool(is_decided)) from error
        if touched is not None:
            touched.note(ops)

    def _leave(self, taken: Mapping[MessageBlock, int], touched: _Touched) -> None:
        """Messages with these bits leave their blocks."""
        fs = self.fs
        for block, bits in taken.items():
            path, gone = block.gone_path, block.gone | bits
            if gone.bit_count() < block.count:
                if not block.has_bitmap:
                    self._name_in(path.rpartition("/")[0], touched)
                fs.write_at(path, 0, encode_gone(block.queue, block.named, gone, self._owner.epoch))
                touched.files[path], block.has_bitmap = None, True
            else:
                directory = block.path.rpartition("/")[0]
                if self.hardens_names:
                    fs.hold_dir(directory)
                if (kept := self._owner.queues[block.queue].kept(block.path)) and fs.exists(block.path):
                    self._name_in(kept.rpartition("/")[0], touched)
                    fs.rename(block.path, kept)
                else:
                    discard(fs, block.path)
                touched.sources[directory] = None
                touched.emptied.append(path)
            block.gone = gone
        if self._never_syncs and touched.emptied:
            self._remove(touched.emptied)

    def _remove(self, bitmaps: Iterable[str]) -> None:
        """Their blocks went: without room they stay until the next open, and that undoes nothing."""
        with suppress_room():
            remove_all(self.fs, bitmaps)

    def _name_in(self, directory: str, touched: _Touched) -> None:
        """A name comes there."""
        there = directory
        while not self.fs.is_dir(there):
            there = there.rpartition("/")[0]
            touched.targets[there] = None  # gets the name of what is made below it
        if there != directory:
            redo.make_dirs(self.fs, directory)
        if self.hardens_names:
            self.fs.hold_dir(directory)
        touched.targets[directory] = None

    def _say(self, path: str, content: Sequence[bytes], touched: _Touched) -> None:
        self._name_in(path.rpartition("/")[0], touched)
        if content:
            discard(self.fs, path)  # of a try that found no room
            self.fs.create(path, content)
            touched.files[path] = None

    def _make_range(self, queue: Queue, seq: int, touched: _Touched | None) -> None:
        if seq > queue.reserved or seq >> RANGE_BITS not in queue.made_ranges:
            queue.make_range(self.fs, seq)
            if touched is not None:
                touched.files[layout.watermark_path(queue.name)] = None
                touched.targets[layout.queue_path(queue.name)] = None
                touched.targets[COMMITTED] = None
        if self.hardens_names:
            self.fs.hold_dir(layout.range_path(queue.name, seq))

    def _take_back(self, error: OSError, ops: Sequence[Op], at: Op | None, touched: _Touched | None) -> None:
        if error.errno not in NO_ROOM:
            raise error
        done = list(takewhile(lambda one: one is not at, ops)) if at is not None else []
        to_move_back = [op for op in done if op[0] == MOVE]
        if touched is None:
            self._move_back(to_move_back)
        else:
            touched.note(done)
            touched.to_move_back += to_move_back

    def _move_back(self, moves: Sequence[Op]) -> None:
        """A directory that must grow on a full disk does not."""
        for _, source, target, _ in reversed(moves):
            try:
                self.fs.rename(target, source)  # where it stood a moment ago there is room
            except OSError as error:  # half moved: never "no room, try again"
                raise OSError(errno.EIO, f"cannot be moved back: {error.strerror}", target) from error

    def _sync(self, touched: _Touched) -> None:
        """What is taken back goes the other way, and so do its syncs, behind those of all that came so far."""
        self.wake_finished()
        if self._content:
            for path in touched.files:
                self._sync_content(path)
        names = sorted({**touched.targets, **touched.sources}, key=_rank) if self.hardens_names else []
        self._sync_names(names)
        if touched.to_move_back:
            with self._lock:
                self._move_back(touched.to_move_back)
            self._sync_names(reversed(names))
        if touched.emptied:
            self._remove(touched.emptied)

    def _tidy(self, change: Change) -> None:
        """What may go at any time. Where that is all that the change does, it may find no room."""
        try:
            for op in change.rest:
                try:  # noqa: SIM105 (as above)
                    self.fs.unlink(op[1])
                except FileNotFoundError:
                    pass
        except OSError as error:
            if error.errno in NO_ROOM and not (change.ops or change.point or change.taken):
                raise no_room_error(change, error, is_decided=False) from error
            self.fail(error)
            raise self._failed() from error

    def mark_published_locked(self) -> None:
        """Readers learn of it; without room, with the next step."""
        marks = self._marks
        self._owner.published_locked(marks)
        try:
            for name, queue in marks.items():
                mark = layout.Watermark(queue.published, max(queue.reserved, queue.last))
                self.fs.write_at(layout.watermark_path(name), 0, [layout.format_watermark(mark)])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        else:
            marks.clear()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def copy(self, copying: Copying, settle: Callable[[], None]) -> int:
        with self._lock:
            self.check()
            copying.changing()
            copying.rest()
        return 0

    def sync_names(self, directories: Sequence[str]) -> None:
        self.check()
        if self.hardens_names:
            super().perform(_Names(directories))

    def _sync_names(self, directories: Iterable[str]) -> None:
        for path in directories:
            self.fs.sync_dir(path)


def _rank(directory: str) -> int:
    """A file goes from active/ to prepared/, from there to committed/, and on to archive/: targets first."""
    top = directory.partition("/")[0]
    return {"": 0, layout.ARCHIVE: 0, PREPARED: 2, ACTIVE: 3}.get(top, 1)
