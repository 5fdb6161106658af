"""The journal's part of a check: its segments and their order, and what of it the directories may lack.

What a record that was not done again names is not damaged in the directories: the next open makes it what it is to be.
"""

from __future__ import annotations

from collections.abc import Iterator

from xaqueue.errors import JournalDamaged, SpaceError
from xaqueue.space.engine import redo
from xaqueue.space.model import change
from xaqueue.space.model.layout import JOURNAL
from xaqueue.space.offline.findings import Finding, Looks, Severity, broken, leftover, note
from xaqueue.space.recovery.cut_short import check_end
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.journal_format import parse_name
from xaqueue.storage.journal_reader import ARCHIVE, Found, look
from xaqueue.storage.readable_records import read_remains


class JournalCheck:
    def __init__(self, fs: FileSystem, looks: Looks, used: bool, moving: bool) -> None:
        """used: whether there must be a journal. moving: whether somebody writes to it."""
        self._fs = fs
        self._looks = looks
        self._used = used
        self._moving = moving
        self.ahead: frozenset[str] = frozenset()
        """After ``run``: the paths that the next open makes again."""

    def run(self) -> Iterator[Finding]:
        if self._fs.is_dir(JOURNAL):
            yield from self._names()
        elif not self._used:
            return
        yield from self._looks.at(self._segments)

    def judged(self, finding: Finding) -> Finding:
        """The same, or where the journal is ahead of what was found, what that means."""
        path = finding.path
        ahead = path in self.ahead or any(one.startswith(path + ".") for one in self.ahead)
        if finding.severity is not Severity.DAMAGE or not ahead:
            return finding
        return leftover(path, f"{finding.problem}; the journal has what it is to be: made so by the next open")

    def _names(self) -> Iterator[Finding]:
        for name in sorted(self._fs.list(JOURNAL)):
            if ARCHIVE in name:
                yield note(f"{JOURNAL}/{name}", "what was cut off the journal: nothing reads it any more")
            elif parse_name(name.removesuffix(".new")) is None:
                yield note(f"{JOURNAL}/{name}", "is no part of a journal; left alone")

    def _segments(self) -> Iterator[Finding]:
        try:
            found = look(self._fs, JOURNAL, change.is_valid, used=self._used)
            if not self._moving:
                check_end(self._fs, found.records, found.position)
        except JournalDamaged as damage:
            yield broken(JOURNAL, str(damage))
            for gap in read_remains(self._fs, JOURNAL, change.is_valid).gaps:
                yield broken(f"{JOURNAL}/{gap.name}".rstrip("/"), f"cannot be read {gap}")
        except SpaceError as newer:
            yield broken(JOURNAL, str(newer))
        else:
            if not self._moving:
                yield from self._left(found)

    def _left(self, found: Found) -> Iterator[Finding]:
        """What the next open does."""
        lost = redo.find_lost(self._fs, found.records)
        yield from (broken(path, f"{reason}: the space opens for reading only") for path, reason in lost.items())
        self.ahead = frozenset(path for record in found.records for path in change.paths_of(record)) - lost.keys()
        if found.records:
            many = f"{len(found.records):,} record{'s' if len(found.records) > 1 else ''}"
            yield leftover(JOURNAL, f"the directories may be behind: {many} to be done again by the next open")
        if found.tail:
            torn = f"ends in {len(found.tail):,} bytes of a torn record, promised to nobody"
            path = f"{JOURNAL}/{found.segments[-1].name}"
            yield note(path, f"{torn}: kept beside it and cut off by the next open")
        for name in found.given_up:
            why = "was given up for its damage, or written late by a former owner"
            yield leftover(f"{JOURNAL}/{name}", f"{why}: kept as .archive by the next open")
        for name in found.strays:
            yield leftover(f"{JOURNAL}/{name}", "is needed no more: to be removed")
