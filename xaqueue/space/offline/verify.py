"""Spaces are checked in shares that need nothing of each other, so that many processes or machines check many spaces.

A share is one range directory, or all of a space that is no message. What each finds comes together in two ways: the
highest number of every queue is held against its watermark, and every message id against all others. The checks are
those of ``check``; a space that a killed owner left behind its journal is one share, since what is wrong there is seen
only together. Nothing here writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import NamedTuple

from xaqueue.errors import SpaceError
from xaqueue.message import MessageId
from xaqueue.space.model import layout
from xaqueue.space.model.format import read_format
from xaqueue.space.offline.check import check
from xaqueue.space.offline.check_committed import CommittedCheck
from xaqueue.space.offline.check_journal import JournalCheck
from xaqueue.space.offline.findings import Finding, Looks, Severity, leftover
from xaqueue.space.offline.reader import QueueReader
from xaqueue.space.owner.open import is_owned, read_owner
from xaqueue.space.recovery import prepared
from xaqueue.storage.fs import DirectoryFileSystem

DUPLICATE = "duplicate"
"""Severity of a message id that stands in two places: each of the messages is sound."""
WRONG = (Severity.DAMAGE.value, DUPLICATE)
_SEQ_BITS = 63


class Share(NamedTuple):
    """A range directory by its name; or, without, all but the messages; or, with ``whole``, everything."""

    space: str
    live: bool
    queue: str = ""
    range: str = ""
    whole: bool = False


class Place(NamedTuple):
    """Where a message stands."""

    space: str
    queue: str
    seq: int

    def path(self, message_id: bytes) -> str:
        return layout.message_path(self.queue, self.seq, message_id)


class Told(NamedTuple):
    """A finding of one of many spaces. ``severity``: that of ``Finding``, or ``DUPLICATE``."""

    space: str
    severity: str
    path: str
    problem: str


@dataclass(slots=True)
class Examined:
    """What a share gave: findings, and the sound messages of each queue by number and id."""

    findings: list[Told]
    messages: dict[str, list[tuple[int, bytes]]]


@dataclass(slots=True)
class Verdict:
    """Of all shares together."""

    spaces: int
    queues: int
    messages: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Findings by severity."""
    first: list[Told] = field(default_factory=list)
    """The worst of them, for people."""

    @property
    def wrong(self) -> int:
        return sum(self.counts.get(severity, 0) for severity in WRONG)


def spaces_of(given: str) -> list[str]:
    """The spaces that are named: a directory, several (a,b), or a pattern. Raises SpaceError.

    What a pattern finds beside spaces is passed over; what is named by itself has to be one.
    """
    found: dict[str, None] = {}
    for part in filter(None, map(str.strip, given.split(","))):
        if {"*", "?", "["}.isdisjoint(part):
            read_format(part)
            found[os.path.realpath(part)] = None
        else:
            paths = sorted(glob(part))  # noqa: PTH207
            found |= {os.path.realpath(path): None for path in paths if (Path(path) / layout.FORMAT).is_file()}
    if not found:
        raise SpaceError(f"{given} names no queue space: `xaqueue init DIR` makes one")
    return list(found)


def shares(space: str) -> list[Share]:
    """All of a space. Costs a listing of its queues' directories, and none of its messages."""
    live = is_owned(space)
    if not live and _is_behind(space):
        return [Share(space, live, whole=True)]
    found = CommittedCheck(DirectoryFileSystem(space, keep_unsynced=False), Looks(live), None)
    list(found.find_queues())  # told by the share that checks the rest
    ranges = [Share(space, live, queue, name) for queue in found.queues for name in found.ranges(queue)]
    return [Share(space, live), *ranges]


def examine(share: Share) -> Examined:
    """Looks at all that the share names."""
    fs = DirectoryFileSystem(share.space, keep_unsynced=False)
    try:
        committed = CommittedCheck(fs, Looks(share.live), None)
        if share.queue:
            committed.queues.append(share.queue)
            found = committed.range(share.queue, share.range)
            found += _drop_consumed(share, committed)
        else:
            committed = committed if share.whole else _Elsewhere(fs, Looks(share.live), None)
            found = list(check(share.space, live=share.live, committed=committed))
    finally:
        fs.close()
    return Examined([_told(share.space, finding) for finding in found], _messages(committed))


def check_numbers(space: str, highest: dict[str, int]) -> list[Told]:
    """Of each queue of a space that is not a ``whole`` share: its highest number, held against its watermark."""
    fs = DirectoryFileSystem(space, keep_unsynced=False)
    try:
        committed = CommittedCheck(fs, Looks(is_owned(space)), None)
        list(committed.find_queues())
        committed.highest.update(highest)
        found = [one for queue in committed.queues for one in committed.watermark(queue, bool(committed.ranges(queue)))]
    finally:
        fs.close()
    return [_told(space, finding) for finding in found]


def duplicates(message_id: bytes, places: Iterable[Place]) -> list[Told]:
    """What is wrong about an id that was found in several places; those that are gone by now do not count."""
    there = sorted(place for place in places if os.path.lexists(f"{place.space}/{place.path(message_id)}"))
    found = []
    for place in there[1:]:
        first = there[0]
        twice = (place.space, place.queue) == (first.space, first.queue)
        other = f"stands in its queue twice: first as {first.path(message_id)}"
        if not twice:
            other = f"has the message id of {first.path(message_id)} in {first.space}: ids are meant to be unique"
        severity = Severity.DAMAGE.value if twice else DUPLICATE
        found.append(Told(place.space, severity, place.path(message_id), other))
    return found


def verify(
    spaces: Sequence[str], processes: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Verdict, list[Told]]:
    """By processes of this machine. Memory holds an id and a place for each message; ``spark/verify.py`` needs none."""
    todo = [share for space in spaces for share in shares(space)]
    findings: list[Told] = []
    highest: dict[str, dict[str, int]] = {space: {} for space in spaces}
    places: dict[bytes, list[Place]] = {}
    messages = 0
    for done, (share, examined) in enumerate(zip(todo, _examined(todo, processes), strict=True), 1):
        findings += examined.findings
        for queue, found in examined.messages.items():
            messages += len(found)
            top = max(seq for seq, _ in found)
            highest[share.space][queue] = max(highest[share.space].get(queue, 0), top)
            for seq, message_id in found:
                places.setdefault(message_id, []).append(Place(share.space, queue, seq))
        progress(done, len(todo))
    for space in checked_apart(todo):
        findings += check_numbers(space, highest[space])
    for message_id, found_at in places.items():
        if len(found_at) > 1:
            findings += duplicates(message_id, found_at)
    verdict = Verdict(len(spaces), queues_of(spaces), messages)
    return sum_up(verdict, findings), findings


def checked_apart(todo: Iterable[Share]) -> list[str]:
    """The spaces whose numbers are still to be held against their watermarks."""
    return [share.space for share in todo if not share.queue and not share.whole]


def queues_of(spaces: Iterable[str]) -> int:
    """How many queues have had messages."""
    return sum(
        layout.parse_queue_directory(name) is not None
        for space in spaces
        for name in prepared.listed(DirectoryFileSystem(space, keep_unsynced=False), layout.COMMITTED)
    )


def sum_up(verdict: Verdict, findings: Sequence[Told], most: int = 50) -> Verdict:
    """The same verdict, with these findings counted, and the worst kept."""
    order = [*WRONG, Severity.LEFTOVER.value, Severity.NOTE.value]
    for finding in findings:
        verdict.counts[finding.severity] = verdict.counts.get(finding.severity, 0) + 1
    verdict.first = sorted(findings, key=lambda one: (order.index(one.severity), one.space, one.path))[:most]
    return verdict


class _Elsewhere(CommittedCheck):
    """Of the messages only the names of directories are checked; which messages are there is read where it matters."""

    def run(self) -> Iterator[Finding]:
        yield from self.find_queues()

    def holds(self, queue: str, message_id: MessageId) -> bool:
        return message_id.hex() in (prepared.ids_in(self.fs, queue) if self.looks.live else self._ids(queue))

    def _ids(self, queue: str) -> frozenset[str]:
        if queue not in self._known:
            self._known[queue] = prepared.ids_in(self.fs, queue)
        return self._known[queue]

    @cached_property
    def _known(self) -> dict[str, frozenset[str]]:
        return {}


def _examined(todo: Sequence[Share], processes: int) -> Iterator[Examined]:
    if processes == 1 or len(todo) == 1:
        yield from map(examine, todo)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(examine, todo)


def _is_behind(space: str) -> bool:
    owner = read_owner(space)
    if owner is None or not owner.journalled:
        return False
    journal = JournalCheck(DirectoryFileSystem(space, keep_unsynced=False), Looks(False), used=True, moving=False)
    list(journal.run())
    return journal.is_ahead


def _drop_consumed(share: Share, committed: CommittedCheck) -> list[Finding]:
    """What a stream has consumed is no message any more, though its file may be there for a moment, or until the next
    open. A record of streams that is damaged is told by the share that checks the rest.
    """
    with suppress(SpaceError):
        consumed = QueueReader(share.space, share.queue, even_behind=True).consumed()
        mask = (1 << _SEQ_BITS) - 1
        gone = [message_id for message_id, place in committed.ids.items() if place & mask <= consumed]
        for message_id in gone:
            del committed.ids[message_id]
        if gone and not share.live:
            many = f"{len(gone):,} messages that a stream has consumed"
            return [leftover(f"{layout.queue_path(share.queue)}/{share.range}", f"{many}: removed after the next open")]
    return []


def _told(space: str, finding: Finding) -> Told:
    return Told(space, finding.severity.value, finding.path, finding.problem)


def _messages(committed: CommittedCheck) -> dict[str, list[tuple[int, bytes]]]:
    found: dict[str, list[tuple[int, bytes]]] = {}
    mask = (1 << _SEQ_BITS) - 1
    for message_id, place in committed.ids.items():
        found.setdefault(committed.queues[place >> _SEQ_BITS], []).append((place & mask, bytes(message_id)))
    return found
