"""Every invariant of a space's directories is checked here from the files alone; looking changes nothing.

A space that another process owns is a moving target: what looks wrong there is looked at a second time, and found only
if it stands. ``repair`` is the one part that writes: it owns the space, and moves to quarantine what opening it did
not find, such as a large body whose checksum is wrong; in a block of many messages these leave it, and a damaged table
is made from the other one. What a record of the journal names that was not done again is not damaged in the
directories: the next open makes it what it is to be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from xaqueue.core.engine import heuristics, many, quarantine, redo
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.model import change, layout
from xaqueue.core.model.block import ADDS, Head
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.change import is_valid
from xaqueue.core.model.format import read_format
from xaqueue.core.model.layout import ACTIVE, JOURNAL, PREPARED, QUARANTINE
from xaqueue.core.model.record_kinds import Looking, RecordKinds
from xaqueue.core.owner.definitions_file import read_definitions
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import READ_ONLY
from xaqueue.core.recovery import prepared as survey
from xaqueue.core.recovery.from_journal import check_end
from xaqueue.core.recovery.load import Progress, read_head
from xaqueue.core.recovery.prepared import Verdict
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_files import ARCHIVE
from xaqueue.core.storage.journal_format import parse_name
from xaqueue.core.storage.journal_reader import Found, look
from xaqueue.errors import DamagedBlock, InvalidArgument, JournalDamaged, SpaceError
from xaqueue.features.kinds import KINDS
from xaqueue.features.streams.cleanup import keep_cut
from xaqueue.features.streams.message_files import read_whole
from xaqueue.offline.check_committed import CommittedCheck
from xaqueue.offline.findings import Finding, Prober, Severity, broken, damaged, leftover, note
from xaqueue.offline.journal_remains import read_readable
from xaqueue.offline.plan import MADE_AGAIN, Item, Plan, Site, site_of
from xaqueue.offline.redo_view import RedoView, read_journal
from xaqueue.xid import Xid

_MENDED = f"{ACTIVE}/{layout.STAGED}mended"
"""As what is staged, gone at the next open."""


def check(
    place: Site | str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    live: bool | None = None,
    queue: str = "",
    kinds: RecordKinds = KINDS,
) -> Iterator[Finding]:
    """All findings, as they are found. Raises SpaceError where the directory is no space of a known format.

    progress: called with range directories read and all there are. live: whether an owner is at work; found out
    without it. queue: only what concerns this one.
    """
    if not site_of(place).files().exists(layout.FORMAT):
        read_format(place)
    looked = SpaceCheck(place, is_owned(place) if live is None else live, kinds=kinds)
    yield from looked.one(queue, progress) if queue else looked.run(progress)


def repair(
    place: Site | str | os.PathLike[str],
    progress: Progress | None = None,
    then: Callable[[Session, Plan], object] = lambda *_: None,
    plan: Plan | None = None,
) -> Plan:
    """Opens the space, which recovers it, and moves what is damaged yet into quarantine.

    For a space that nobody uses, in this process neither. then: called at the end, with the space open. plan: what was
    done before. Raises SpaceInUse, SpaceError, InvalidArgument.
    """
    plan = plan or Plan()
    with site_of(place).opened(progress) as session:
        space = session.space
        if space.read_only is not None:
            space.check()
        plan.opened = str(space.report)
        plan.notes += space.report.notes
        plan.set_aside(space.report.quarantined)
        for finding in list(check(place, progress, live=False)):
            if finding.block:
                _mend_block(space, finding, plan)
            elif finding.movable:
                quarantine.move(space.fs, finding.path, finding.problem, space.now_us())
                space.log.sync_names((QUARANTINE, finding.path.rpartition("/")[0]))
                _forget(space, finding.path)
                plan.set_aside([f"{finding.path}: {finding.problem}"])
        then(session, plan)
    return plan


def _mend_block(space: Space, finding: Finding, plan: Plan) -> None:
    """A message of it that is damaged leaves it; where one of its tables is, it gets that again."""
    queue_name, named = layout.parse_path(finding.path) or ("", None)
    if named is None:
        return
    if finding.movable:
        with space.lock:
            queue = space.queue(queue_name)
            entry = queue.index.find(named.message_id)
        keep_cut(space, queue)  # the bitmap that the block gets says of what a stream has consumed that it is gone
        if entry is not None and entry.seq == named.first and many.set_aside(space, queue, entry, finding.problem):
            _forget(space, finding.path)
            plan.set_aside([f"{finding.path}: {finding.problem}"])
        return
    fs, path = space.fs, finding.path
    fs.create(_MENDED, [read_whole(fs, queue_name, named).mended()], fs.modified_ns(path))
    fs.sync_file(_MENDED)
    fs.rename(_MENDED, path)
    space.log.sync_names((path.rpartition("/")[0],))
    plan.items.append(Item(path, finding.problem, MADE_AGAIN, "from that"))


def _forget(space: Space, path: str) -> None:
    """The queue has the message no more whose file this was."""
    place, named = layout.parse_message_path(path), layout.parse_message(path.rpartition("/")[2])
    if place is not None and named is not None:
        with space.lock:
            queue = space.queue(place[0])
            entry = queue.index.find(named[1])
            if entry is not None and entry.seq == named[0]:
                queue.consumed(entry)


class SpaceCheck:
    """Everything that is checked in one space. Where an owner is at work, what looks wrong is looked at twice."""

    def __init__(
        self,
        place: Site | str | os.PathLike[str],
        live: bool,
        *,
        messages: bool = True,
        kinds: RecordKinds = KINDS,
    ) -> None:
        """messages: as of ``CommittedCheck``."""
        self._kinds = (heuristics.KIND, *kinds)
        site = site_of(place)
        self._root = site.root
        self._owner = site.owner()
        self.bare = site.files()
        self._fs = RedoView(self.bare, (), files_first=True)
        self._prober = Prober(live, self._show_records)
        owner = self._owner
        self.journal = JournalCheck(
            self.bare,
            self._prober,
            used=owner is not None and owner.journalled,
            moving=live and (owner is None or owner.state != READ_ONLY),
        )
        self.committed = CommittedCheck(self._fs, self._prober, messages=messages)

    def run(self, progress: Progress | None = None) -> Iterator[Finding]:
        if self._prober.live:
            owner = self._owner
            who = owner.who if owner else "another process"
            yield note(layout.OWNER, f"{who} owns the space: a moving target, suspects were seen twice")
        yield from self._prober.at(self._top)
        yield from self.journal.run()
        self._show_records()
        yield from map(self.journal.judged, self._directories(progress))

    def one(self, queue: str, progress: Progress | None = None) -> Iterator[Finding]:
        """Of one queue: its messages, its numbers and what is remembered of them."""
        self._show_records()
        list(self.journal.run())  # which finds what the next open makes again
        self.committed.only = queue
        yield from map(self.journal.judged, self.committed.run(progress))
        yield from self._queue(queue)

    def _queue(self, queue: str) -> Iterator[Finding]:
        for kind in self._kinds:
            yield from self._at(kind.check_queue, queue)

    def _at(self, check: Callable[..., None], *arguments: str) -> list[Finding]:
        """What a kind finds."""

        def probe() -> list[Finding]:
            found: list[Finding] = []
            epoch = self._owner.epoch if self._owner is not None else 0
            says = (lambda *what, say=say: found.append(say(*what)) for say in (damaged, broken, leftover, note))
            check(Looking(self._fs, self._prober.live, epoch, self.committed.holds, *says), *arguments)
            return found

        return self._prober.at(probe)

    def _show_records(self) -> None:
        try:
            self._fs.show(read_journal(self.bare, self._owner, self._prober.live).records)
        except SpaceError:
            self._fs.show(())  # of a newer version: found by the journal's own check

    def _directories(self, progress: Progress | None) -> Iterator[Finding]:
        yield from self.committed.run(progress)
        for kind in self._kinds:
            yield from self._at(kind.check_space)
        for queue in self.committed.queues:
            yield from self._queue(queue)
        yield from self._prepared()
        yield from self._active()
        for kind in self._kinds:
            for name in listed(self._fs, kind.directory) if kind.directory in layout.directories() else ():
                yield from self._at(kind.check, name, f"{kind.directory}/{name}")
        for name in listed(self._fs, QUARANTINE):
            if not name.endswith(".reason"):
                yield note(f"{QUARANTINE}/{name}", self._reason(name))

    def _top(self) -> Iterator[Finding]:
        try:
            read_format(self._root)
        except SpaceError as error:
            yield broken(layout.FORMAT, str(error))
        try:
            read_definitions(self._root)
        except InvalidArgument as error:
            yield broken(layout.QUEUES, str(error))
        names = set(self._fs.list(""))
        for name in sorted(names - layout.own_names()):
            yield note(name, "is no part of a queue space; left alone")
        for name in sorted(set(layout.directories()) - names):
            yield leftover(name, "the directory is missing: made by the next open")

    def _prepared(self) -> Iterator[Finding]:
        found, foreign = survey.prepared(self._fs)
        for path in foreign:
            yield damaged(path, "is no command block: its name is not <xid>.<number>")
        lost = quarantine.lost_blocks(self._fs)
        for xid in sorted({*found, *lost}, key=str):
            yield from self._prober.at(partial(self._branch, xid, found.get(xid, {})))

    def _branch(self, xid: Xid, files: dict[str, str]) -> Iterator[Finding]:
        if self._prober.again:
            files = survey.prepared(self._fs)[0].get(xid, {})
        lost = quarantine.lost_blocks(self._fs).get(xid, ())
        branch = survey.survey(self._fs, xid, files, lost, self.committed.holds, whole=True, kinds=self._kinds)
        for path, reason in branch.broken:
            yield damaged(path, reason)
        for text in branch.lost:
            place = text if text.startswith(f"{QUARANTINE}/") else f"{PREPARED}/{xid}"
            what = "a block of it" if place == text else text
            yield broken(place, f"branch {xid} is in doubt and lost {what}: decide with `xaqueue indoubt`")
        for path, reason in () if self._prober.live else branch.leftovers:  # an owner at work is at it
            yield leftover(path, reason)
        for path, head in branch.blocks if branch.verdict is Verdict.IN_DOUBT else ():
            if self._is_committed(head):
                yield broken(path, "its message is committed already, and its branch is not decided")

    def _active(self) -> Iterator[Finding]:
        found, foreign = survey.branches(self._fs, ACTIVE)
        for path in foreign:
            yield damaged(path, "is no command block: its name is not <xid>.<number>")
        if self._prober.live:
            return
        prepared = survey.prepared(self._fs)[0]
        for xid, files in sorted(found.items(), key=lambda item: str(item[0])):
            if layout.COMMIT in prepared.get(xid, {}):
                continue  # committed in one phase: rolled forward from here
            if xid in prepared:
                for path in sorted(files.values()):
                    yield leftover(path, "stands in prepared/ too: the later state wins, the next open removes it")
                continue
            if any(map(self._is_done, files.values())):
                what = "of a branch that is committed: to be removed"
            else:
                what = "of a branch never prepared: to be rolled back"
            yield leftover(f"{ACTIVE}/{xid}", f"{len(files)} blocks {what}")

    def _is_done(self, path: str) -> bool:
        """Whether what a block in active/ asks for was done, of which the journal has the record."""
        try:
            head = read_head(self._fs, path)
        except DamagedBlock:
            return False  # torn by the crash, and promised to nobody
        return self._is_committed(head)

    def _is_committed(self, head: Head) -> bool:
        """Whether the message that a block adds, or the first of many, is in its queue."""
        queue = head.properties.queue
        return head.kind in ADDS and queue != "" and self.committed.holds(queue, head.message_id)

    def _reason(self, name: str) -> str:
        try:
            text = self._fs.read(f"{QUARANTINE}/{name}.reason", 4096).decode("utf-8", "replace")
        except OSError:
            return "in quarantine, without a reason beside it"
        return f"in quarantine: {text.partition(chr(10))[0]}"


class JournalCheck:
    """The journal's part: its segments and their order, and what of it the directories may lack."""

    def __init__(self, fs: FileSystem, prober: Prober, used: bool, moving: bool) -> None:
        """used: whether there must be a journal. moving: whether somebody writes to it."""
        self._fs = fs
        self._prober = prober
        self._used = used
        self._moving = moving
        self.ahead: frozenset[str] = frozenset()
        """After ``run``: the paths that the next open makes again."""

    def run(self) -> Iterator[Finding]:
        if self._fs.is_dir(JOURNAL):
            yield from self._names()
        elif not self._used:
            return
        yield from self._prober.at(self._segments)

    def judged(self, finding: Finding) -> Finding:
        """The same, or where the journal is ahead of what was found, what that means."""
        path = finding.block or finding.path
        ahead = path in self.ahead or any(one.startswith(path + ".") for one in self.ahead)
        if finding.severity is not Severity.DAMAGE or not ahead:
            return finding
        return leftover(finding.path, f"{finding.problem}; the journal has what it is to be: made so by the next open")

    def _names(self) -> Iterator[Finding]:
        for name in sorted(self._fs.list(JOURNAL)):
            if ARCHIVE in name:
                yield note(f"{JOURNAL}/{name}", "what was cut off the journal: nothing reads it any more")
            elif parse_name(name.removesuffix(".new")) is None:
                yield note(f"{JOURNAL}/{name}", "is no part of a journal; left alone")

    def _segments(self) -> Iterator[Finding]:
        try:
            found = look(self._fs, JOURNAL, is_valid, used=self._used)
            if not self._moving:
                check_end(self._fs, found.records, found.position)
        except JournalDamaged as damage:
            yield broken(JOURNAL, str(damage))
            for gap in read_readable(self._fs, JOURNAL, is_valid).gaps:
                yield broken(f"{JOURNAL}/{gap.name}".rstrip("/"), f"cannot be read {gap}")
        except SpaceError as newer:
            yield broken(JOURNAL, str(newer))
        else:
            if not self._moving:
                yield from self._left(found)

    def _left(self, found: Found) -> Iterator[Finding]:
        """What the next open does."""
        lost = redo.find_lost(self._fs, found.records, KINDS)
        yield from (broken(path, f"{reason}: the space opens for reading only") for path, reason in lost.items())
        self.ahead = frozenset(path for record in found.records for path in change.paths_of(record)) - lost.keys()
        if found.records:
            many = f"{len(found.records):,} record{'s' if len(found.records) > 1 else ''}"
            yield leftover(JOURNAL, f"the directories may be behind: {many} to be done again by the next open")
        if found.tail:
            torn = f"ends in {len(found.tail):,} bytes of a torn record, promised to nobody"
            path = f"{JOURNAL}/{found.segments[-1].name}"
            yield note(path, f"{torn}: kept beside it and cut off by the next open")
        for name in found.abandoned:
            why = "was given up for its damage, or written late by a former owner"
            yield leftover(f"{JOURNAL}/{name}", f"{why}: kept as .archive by the next open")
        for name in found.orphans:
            yield leftover(f"{JOURNAL}/{name}", "is needed no more: to be removed")
