"""Opening a space finishes what a crash cut off: every branch is committed, rolled back or in doubt, never in part.

Branches come first, with the messages that they name. Once these are as they should be, and on disk, those in doubt may
be listed, committed and rolled back by others, while recovery goes on to load all other messages.

Recovery is idempotent: it may be killed at any call and run again. After a kill, what it finds may be what the kernel
remembers and not yet what the disk holds: so it syncs every directory before it touches prepared/, and behind that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xaqueue.core.engine import heuristics, quarantine, redo
from xaqueue.core.engine.features import Features
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import layout
from xaqueue.core.model.branch import State
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.layout import ACTIVE, COMMITTED, PREPARED
from xaqueue.core.model.record_kinds import Opening
from xaqueue.core.recovery.branches import Branches
from xaqueue.core.recovery.from_journal import open_for_reading, open_journal, remember
from xaqueue.core.recovery.load import Load, Progress
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import DEFAULT, Hardening
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.regular import DAMAGE
from xaqueue.errors import JournalDamaged


def open_space(
    fs: FileSystem,
    definitions: Definitions | None = None,
    *,
    features: Features,
    hardening: Hardening = DEFAULT,
    epoch: int = 1,
    progress: Progress | None = None,
    journalled: bool = False,
    suspect: bool = False,
    is_shared: bool = False,
    on_branches: Callable[[Space], object] = lambda _: None,
    reread: Callable[[], Definitions] | None = None,
    **options: Any,
) -> Space:
    """Opens the directories behind ``fs``, which must exist, and recovers; for reading only where the journal is
    damaged.

    journalled: whether a journal is known to hold what the directories may lack. suspect: whether what is read may be
    in memory only, since a sync of it failed in this boot or may have; then it is written anew. is_shared: whoever had
    it before may come back; see ``Journal.start``. on_branches: called in the middle, once the branches are
    recovered: from then on sessions may use the verbs for those that are prepared or decided, while whoever adds, takes
    or browses waits for the messages. reread: what is defined by now. options: see ``Space``.
    Raises OSError, SpaceError, ResourceFailed where another process has them by then, and what the features raise.
    """
    definitions = definitions or Definitions()
    try:
        keeping = features.keeping(definitions)
        keeping = keeping._replace(is_shared=keeping.is_shared or is_shared)
        clock = lambda: options.get("now_ns", time.time_ns)() // 1000  # noqa: E731
        opened = open_journal(fs, definitions, features.kinds, hardening, epoch, journalled, suspect, keeping, clock)
    except JournalDamaged as damage:
        space = Space(fs, definitions, hardening=hardening, epoch=epoch, features=features, **options)
        space.check_owner()  # another one by now may have had what is missing here
        open_for_reading(space, damage, features.kinds, progress)
        return space
    journal, records, notes = opened
    space = Space(fs, definitions, hardening=hardening, journal=journal, epoch=epoch, features=features, **options)
    remember(space, records)
    try:
        _Recovery(space, suspect and journal is None, journal, reread).run(progress, lambda: on_branches(space))
        space.report.notes[:0] = notes
        space.measure()
        space.serve()
        space.log.settle()
    except BaseException as error:
        space.log.end(error)  # who opens it is told
        with space.lock:
            space.settled.notify_all()
        raise
    return space


class _Recovery:
    """Brings directories and memory into one consistent state."""

    def __init__(
        self, space: Space, suspect: bool, journal: Journal | None, reread: Callable[[], Definitions] | None
    ) -> None:
        self.space = space
        self.kinds = (heuristics.KIND, *space.features.kinds)
        self.opening = Opening(space, self._set_aside, self._note, journal, reread)
        self.fs = space.fs
        self.suspect = suspect
        self.report = space.report

    def run(self, progress: Progress | None, answer: Callable[[], object]) -> None:
        """answer: called once the branches are recovered, and before the messages that they do not name are loaded."""
        started = time.monotonic()
        for name in layout.directories():
            if not self.fs.is_dir(name):
                self.fs.make_dir(name)
        for kind in self.kinds:
            kind.begin(self.opening)
        messages = Load(self.space, self._set_aside, self._note, self._harden_bitmaps)
        for kind in self.kinds:
            kind.find(self.opening)
        Branches(self.space, self.kinds, self.opening, self._sync_directories).recover(messages)
        self.space.log.settle()
        self._harden()
        for kind in self.kinds:
            kind.tidy(self.space)
        self._count_branches()
        messages.is_placed()
        answer()
        aside = len(self.report.quarantined)
        messages.rest(progress)
        for kind in self.kinds:
            kind.finish(self.opening)
        if len(self.report.quarantined) > aside:
            self._sync_directories()
        self._publish(messages.highest)
        with self.space.lock:
            self.report.messages = sum(len(queue.index) for queue in self.space.queues.values())
        self.report.seconds = time.monotonic() - started
        log.info("[recovered] %s", self.report)

    def _harden(self) -> None:
        """What was found of branches, and every name, becomes what is on disk."""
        branches = self.space.branches.values()
        paths = [one.path for branch in branches for one in branch.all_blocks if one.path]
        paths += [path for kind in self.kinds for path in kind.hardened(self.space)]
        self._harden_contents(paths)
        self._sync_directories()

    def _harden_contents(self, paths: Sequence[str]) -> None:
        if self.suspect:  # with a journal they were replayed, or checked off before
            for path in paths:
                redo.rewrite(self.fs, path, [self.fs.read(path)], harden=self.space.log.sync_contents)
        else:
            self.space.log.sync_contents(paths)

    def _harden_bitmaps(self, paths: Sequence[str]) -> None:
        self._harden_contents(paths)
        self.space.log.sync_names(sorted({path.rpartition("/")[0] for path in paths}))

    def _publish(self, highest: Mapping[str, int]) -> None:
        """Every message that was found is there for those who read the directories. What others add meanwhile they
        publish themselves.
        """
        space = self.space
        with space.lock:
            queues = [queue for queue in space.queues.values() if queue.exists]
            for queue in queues:
                queue.remove_empty_ranges(self.fs)
            used = [queue for queue in queues if queue.reserved]  # of the others there is nothing to publish
            for queue in used:
                found = highest.get(queue.name, 0)
                queue.published = max(queue.published, found)
                mark = queue.watermark._replace(published=found) if space.log.is_atomic and found else queue.watermark
                self.fs.write_at(layout.watermark_path(queue.name), 0, [layout.format_watermark(mark)])
        space.log.sync_contents([layout.watermark_path(queue.name) for queue in used])
        space.log.sync_names([layout.queue_path(queue.name) for queue in used])

    def _sync_directories(self) -> None:
        """Every name that is seen in them is on disk, and every one that is not is gone: targets of moves first."""
        places = [path for kind in self.kinds for path in kind.places(self.space)]
        queues = [path for queue in self.space.queues.values() for path in queue.directories()]
        self.space.log.sync_names([layout.QUARANTINE, *places, *queues, COMMITTED, PREPARED, ACTIVE, ""])

    def _set_aside(self, path: str, reason: str) -> None:
        try:
            target = quarantine.move(self.fs, path, reason, self.space.now_us())
        except OSError as error:
            if error.errno not in DAMAGE:
                raise
            self._note(f"{path} is damaged ({reason}) and cannot be moved: {error.strerror}; it is left alone")
            return
        self.report.quarantined.append(f"{path}: {reason}")
        log.warning("[quarantined] %s as %s: %s", path, target, reason)

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        log.warning("[recovery-note] %s", text)

    def _count_branches(self) -> None:
        in_doubt = [branch for branch in self.space.branches.values() if branch.base is State.PREPARED]
        self.report.in_doubt = len(in_doubt)
        for branch in in_doubt:
            for damage in branch.damage:
                self._note(f"branch {branch.xid} is in doubt and lost {damage}: decide with `xaqueue indoubt`")
