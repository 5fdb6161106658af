"""Spaces are checked in shares that need nothing of each other, so that many processes or machines check many spaces.

A share is one range directory, or all of a space that is no message. What each finds comes together in two ways: the
highest number of every queue is held against its watermark, and every message id against all others. The checks are
those of ``check``; a space that a killed owner left behind its journal is one share, since what is wrong there is seen
only together. Nothing here writes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.core.owner.open import is_owned
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import DamagedBlock, OperationalError, SpaceError
from xaqueue.offline.check import SpaceCheck
from xaqueue.offline.check_committed import CommittedCheck, find_message, is_of_several
from xaqueue.offline.findings import WRONG, Finding, Prober, Severity

FIRST = 50
"""Findings that are shown to people."""


class Share(NamedTuple):
    """A range directory by its name; or, without, all but the messages; or, with ``whole``, everything."""

    space: str
    live: bool
    queue: str = ""
    range: str = ""
    whole: bool = False


class MessagePlace(NamedTuple):
    """Where a message stands."""

    space: str
    queue: str
    seq: int

    def path(self, message_id: bytes) -> str | None:
        """Of the message there, in its space; None where it is gone."""
        fs = DirectoryFileSystem(self.space, keep_unsynced=False)
        return find_message(fs, self.queue, self.seq, message_id)


class Examined(NamedTuple):
    """What a share gave: findings, and the whole messages of each queue by number and id."""

    findings: list[Finding]
    messages: dict[str, list[tuple[int, bytes]]]


@dataclass(slots=True)
class Summary:
    """Of all shares together."""

    spaces: int
    queues: int
    messages: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Findings by severity."""
    first: list[Finding] = field(default_factory=list)
    """The worst of them, for people."""

    def add(self, findings: Iterable[Finding]) -> None:
        """More of them; the worst are shown."""
        for finding in findings:
            self.counts[finding.severity.value] = self.counts.get(finding.severity.value, 0) + 1
            self.first.append(finding)
        self.first = worst_first(self.first)[:FIRST]

    @property
    def wrong(self) -> int:
        return sum(self.counts.get(severity, 0) for severity in WRONG)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(Severity)
    return sorted(findings, key=lambda one: (order.index(one.severity), one.space, one.path, one.problem))


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
    with closing(DirectoryFileSystem(space, keep_unsynced=False)) as fs:
        found = _listed(fs, live)
        return [
            Share(space, live),
            *(Share(space, live, queue, r) for queue in found.queues for r in found.ranges(queue)),
        ]


def examine(share: Share) -> Examined:
    """Looks at all that the share names."""
    if not share.queue:
        check = SpaceCheck(share.space, share.live, messages=share.whole)
        with closing(check.bare):
            return Examined(_placed(share.space, check.run()), check.committed.messages())
    with closing(DirectoryFileSystem(share.space, keep_unsynced=False)) as fs:
        committed = CommittedCheck(fs, Prober(share.live))
        committed.queues.append(share.queue)
        found = committed.range(share.queue, share.range)
        return Examined(_placed(share.space, found), committed.messages())


def check_numbers(todo: Sequence[Share], highest: dict[str, dict[str, int]]) -> list[Finding]:
    """The highest number of each queue, by space, held against its watermark; ``whole`` shares have done so."""
    findings = []
    for share in todo:
        if share.queue or share.whole:
            continue
        with closing(DirectoryFileSystem(share.space, keep_unsynced=False)) as fs:
            committed = _listed(fs, is_owned(share.space))
            committed.highest.update(highest.get(share.space, {}))
            for queue in committed.queues:
                findings += _placed(share.space, committed.rest(queue))
    return findings


def duplicates(message_id: bytes, places: Iterable[MessagePlace]) -> list[Finding]:
    """What is wrong about an id that was found in several places; those that are gone by now do not count."""
    there = [(place, path) for place in sorted(places) if (path := place.path(message_id)) is not None]
    first = there[0] if there else None
    return [_duplicate(first, other) for other in there[1:] if first is not None and not _is_shared(first[0], *other)]


def _is_shared(first: MessagePlace, place: MessagePlace, path: str) -> bool:
    """Whether it is one message of several queues of a space, in another one of these."""
    if place.space != first.space or place.queue == first.queue:
        return False
    with closing(DirectoryFileSystem(place.space, keep_unsynced=False)) as fs, suppress(DamagedBlock, OSError):
        return is_of_several(fs, place.queue, place.seq, path)
    return False


def _duplicate(first: tuple[MessagePlace, str], other: tuple[MessagePlace, str]) -> Finding:
    (one, one_path), (place, path) = first, other
    if (place.space, place.queue) == (one.space, one.queue):
        severity, problem = Severity.DAMAGE, f"stands in its queue twice: first as {one_path}"
    else:
        severity, problem = (
            Severity.DUPLICATE,
            f"has the message id of {one_path} in {one.space}: ids are meant to be unique",
        )
    return Finding(severity, path, problem, space=place.space)


def verify(
    spaces: Sequence[str], processes: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Summary, list[Finding]]:
    """By processes of this machine. Ids and places of messages are in a file that is gone at the end, and so of any
    number; what was found is in memory. Raises SpaceError, OperationalError where that file has no room."""
    todo = [share for space in spaces for share in shares(space)]
    findings, summary = list[Finding](), Summary(len(spaces), queues_of(spaces))
    with _temporary() as seen:
        seen.execute("create table messages (id blob, space blob, queue text, seq integer)")
        for done, (share, examined) in enumerate(zip(todo, _examined(todo, processes), strict=True), 1):
            findings += examined.findings
            for queue, found in examined.messages.items():
                summary.messages += len(found)
                rows = ((message_id, os.fsencode(share.space), queue, seq) for seq, message_id in found)
                seen.executemany("insert into messages values (?, ?, ?, ?)", rows)
            progress(done, len(todo))
        highest: dict[str, dict[str, int]] = {}
        for space, queue, seq in seen.execute("select space, queue, max(seq) from messages group by space, queue"):
            highest.setdefault(os.fsdecode(space), {})[queue] = seq
        findings += check_numbers(todo, highest)
        twice = "select id from messages group by id having count(*) > 1"
        repeated = seen.execute(f"select * from messages where id in ({twice}) order by id")
        for message_id, places in groupby(repeated, itemgetter(0)):
            there = (MessagePlace(os.fsdecode(space), queue, seq) for _, space, queue, seq in places)
            findings += duplicates(message_id, there)
    summary.add(findings)
    return summary, findings


@contextmanager
def _temporary() -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect("")) as made:
            yield made
    except sqlite3.Error as error:
        raise OperationalError(
            f"the ids of messages cannot be held against each other in a temporary file ({error}): set TMPDIR to a "
            "directory that has room, 100 bytes for each message"
        ) from error


def queues_of(spaces: Iterable[str]) -> int:
    """How many queues have had messages."""
    found = 0
    for space in spaces:
        with closing(DirectoryFileSystem(space, keep_unsynced=False)) as fs:
            found += len(_listed(fs, False).queues)
    return found


def _listed(fs: DirectoryFileSystem, live: bool) -> CommittedCheck:
    """With the names of the queues; what else stands there is found by the share that checks the rest."""
    committed = CommittedCheck(fs, Prober(live))
    list(committed.find_queues())
    return committed


def _examined(todo: Sequence[Share], processes: int) -> Iterator[Examined]:
    if processes == 1 or len(todo) == 1:
        yield from map(examine, todo)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(examine, todo)


def _is_behind(space: str) -> bool:
    """Whether the next open does something of the journal again."""
    check = SpaceCheck(space, False)
    with closing(check.bare):
        list(check.journal.run())
        return bool(check.journal.ahead)


def _placed(space: str, findings: Iterable[Finding]) -> list[Finding]:
    return [finding._replace(space=space) for finding in findings]
