"""What spaces and queues there are now and how far each is, at a cost that grows with neither messages nor ranges.

A space is asked in a thread of its own with a time limit, so that a dead mount is a missing space and not a hung query:
Spark waits without end for a source that doesn't answer. A pattern is looked up again each time, and so finds what is
new. Nothing here writes, locks or reads a message.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from xaqueue.errors import DamagedBlock, InvalidArgument, SpaceError, UnknownQueue
from xaqueue.space.model import stream_records
from xaqueue.space.model.definitions import suggestion
from xaqueue.space.model.format import check_recovered, read_format, why_behind
from xaqueue.space.model.layout import FORMAT, stream_path
from xaqueue.space.model.stream_records import StreamRecord
from xaqueue.space.offline.reader import QueueReader, queues
from xaqueue.space.owner.open import read_definitions
from xaqueue.spark.source.deadline import call_with_deadline
from xaqueue.spark.source.options import SourceOptions, is_pattern
from xaqueue.storage.fs import DirectoryFileSystem

ID_DIGITS = 8
"""Of a space's id that an offset keeps: enough to tell another one."""
NAMED = 5
"""Missing spaces that an error names."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """How far a queue is. ``consumed``: a stream that has reserved it has consumed all up to here; else 0."""

    path: str
    name: str
    reader: QueueReader
    watermark: int
    consumed: int = 0
    stream: str = ""

    def __str__(self) -> str:
        return f"queue {self.name!r} of {self.path}"


@dataclass(frozen=True, slots=True)
class SpaceSnapshot:
    """Queues by the space's path, sorted, and why other spaces that should be there are missing."""

    spaces: Mapping[str, Mapping[str, QueueState]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    """The beginnings of the spaces' ids."""

    @property
    def states(self) -> Iterator[QueueState]:
        return (state for queues in self.spaces.values() for state in queues.values())


class _Found(NamedTuple):
    """One space. ``inode``: of its directory, by whatever path that is named."""

    queues: dict[str, QueueState]
    id: str
    inode: tuple[int, int]


class Spaces:
    """The spaces and queues that the options name, looked at as often as is asked."""

    def __init__(self, options: SourceOptions, opened: Callable[[str], object] | None = None) -> None:
        """opened: sees to it that somebody has the space open, where its files alone cannot be believed."""
        self._options = options
        self._opened = opened
        self._stuck: dict[str, Future[Any]] = {}
        self._readers: dict[tuple[str, str], QueueReader] = {}

    def look(self, known: Mapping[str, Iterable[str]] | None = None, *, only_known: bool = False) -> SpaceSnapshot:
        """What is there. ``known``: queues by space that were there before, and have to be where they are still named;
        ``only_known``: they have to be, and nothing else is wanted.

        Raises SpaceError for a missing space, unless those are to be skipped, and for a pattern that matches none.
        """
        held = {path: frozenset(names) for path, names in (known or {}).items() if only_known or self.names_space(path)}
        if not only_known:
            held = {path: frozenset(filter(self._wanted, names)) for path, names in held.items()}
        matched, missing = ([], {}) if only_known else self._matched()
        wanted = sorted({*matched, *held})

        def look_at(path: str) -> _Found:
            return self._look_at(path, held.get(path, frozenset()), only_known)

        found, failures = call_with_deadline(look_at, wanted, self._options.space_timeout_s, self._stuck)
        _check_distinct({path: one.inode for path, one in found.items()})
        for path, failure in failures.items():
            if not isinstance(failure, (SpaceError, OSError)):
                raise failure
            missing[path] = str(failure)
        there = sorted(found)
        ids = {path: found[path].id[:ID_DIGITS] for path in there}
        snapshot = SpaceSnapshot({path: found[path].queues for path in there}, missing, ids)
        if missing and not self._options.skips_missing:
            raise self.missing(missing)
        if not wanted and not only_known:
            raise SpaceError(f"no queue space matches {', '.join(self._options.paths)}: make one, or mend the pattern")
        return snapshot

    def missing(self, missing: Mapping[str, str], *, planned: bool = False) -> SpaceError:
        """The error for a query that cannot do without these spaces; ``planned``: with messages of this batch."""
        options = self._options
        reasons = "; ".join(list(missing.values())[:NAMED])
        more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        hint = "" if options.alone else '; option "skipMissingSpaces" lets the other spaces go on without'
        if planned:
            hint = (
                ". This batch was written down with messages of it: bring the space back, or give those messages up "
                "with option failOnDataLoss=false"
            )
        named = ", ".join(map(repr, options.queues)) or repr(options.expression)
        return SpaceError(f"cannot read queue {named}: {reasons}{more}{hint}")

    def check_queues(self, snapshot: SpaceSnapshot) -> list[str]:
        """Warnings of names that no space has had a message of and that none defines: nobody may ever write to what is
        a slip of the pen. UnknownQueue where no space lets a queue of such a name come.
        """
        found = snapshot.spaces.values()
        names = [
            name
            for name in self._options.queue_names
            if not any(name in states and states[name].watermark for states in found)
        ]
        if not names or not found:
            return []
        definitions = {path: read_definitions(path) for path in snapshot.spaces}
        known = {name for path, defined in definitions.items() for name in (*queues(path), *defined.queues)}
        unknown = [name for name in names if name not in known]
        spaces = ", ".join(list(snapshot.spaces)[:NAMED])
        if unknown and not any(defined.default is not None for defined in definitions.values()):
            raise UnknownQueue(
                f"{spaces} has no queue {unknown[0]!r}{suggestion(unknown[0], sorted(known))}; "
                f"its queues are {', '.join(sorted(known)) or 'none yet'}"
            )
        return [
            f"queue {name!r} of {spaces} is not defined and has never had a message"
            f"{suggestion(name, sorted(known))}; until it has one, nothing is read of it"
            for name in unknown
        ]

    def _matched(self) -> tuple[list[str], dict[str, str]]:
        """Directories that the patterns match and that are spaces; named ones whatever they are."""
        patterns = [path for path in self._options.paths if is_pattern(path)]
        found, failures = call_with_deadline(_spaces_like, patterns, self._options.space_timeout_s, self._stuck)
        for failure in failures.values():
            if not isinstance(failure, OSError):
                raise failure
        named = [path for path in self._options.paths if not is_pattern(path)]
        matched = [path for paths in found.values() for path in paths]
        return [*named, *matched], {pattern: str(failure) for pattern, failure in failures.items()}

    def _look_at(self, path: str, known: Collection[str], only_known: bool) -> _Found:
        space_id = read_format(path, is_expected=True).id
        if self._opened is not None and why_behind(path):
            self._opened(path)
        check_recovered(path)
        names = set(known)
        if not only_known:
            names.update(self._options.names_in(path))
            if self._options.has_pattern:
                names.update(filter(self._wanted, queues(path)))
        found = {name: self._state(path, name) for name in sorted(names)}
        # what vanished meanwhile looked like a space without messages
        if read_format(path, is_expected=True).id != space_id:
            raise SpaceError(f"{path} became another space while it was looked at: look again")
        status = os.stat(path)  # noqa: PTH116
        return _Found(found, space_id, (status.st_dev, status.st_ino))

    def _state(self, path: str, name: str) -> QueueState:
        reader = self._readers.get((path, name))
        if reader is None:
            reader = self._readers[path, name] = QueueReader(path, name)
        record = reserved(reader)
        if record is None:
            return QueueState(path, name, reader, reader.watermark())
        watermark = max(reader.watermark(), record.consumed)
        return QueueState(path, name, reader, watermark, record.consumed, record.stream)

    def names_space(self, path: str) -> bool:
        """Whether the options name it, or would if it were there."""
        return any(path == named or (is_pattern(named) and Path(path).match(named)) for named in self._options.paths)

    def _wanted(self, name: str) -> bool:
        options = self._options
        if options.expression is not None:
            return re.fullmatch(options.expression, name) is not None
        return any(fnmatchcase(name, pattern) for pattern in options.queues)


def reserved(reader: QueueReader) -> StreamRecord | None:
    """Which stream the queue is reserved for, and what it has consumed; None where it never was."""
    try:
        return stream_records.read(DirectoryFileSystem(reader.space, keep_unsynced=False), reader.queue)
    except DamagedBlock as damage:
        path = reader.space / stream_path(reader.queue)
        raise DamagedBlock(f"{path}: {damage}: run `xaqueue release {reader.queue} --space {reader.space}`") from None


def _check_distinct(inodes: Mapping[str, tuple[int, int]]) -> None:
    """InvalidArgument for a space under two paths, by a link for one: each message would be read twice."""
    paths: dict[tuple[int, int], str] = {}
    for path, inode in sorted(inodes.items()):
        first = paths.setdefault(inode, path)
        if first != path:
            raise InvalidArgument(
                f'{first} and {path} are one space, whose messages would be read twice: name it once in "path", or '
                "mend the pattern"
            )


def _spaces_like(pattern: str) -> list[str]:
    return [path for path in sorted(glob.glob(pattern)) if os.path.isfile(os.path.join(path, FORMAT))]  # noqa: PTH113,PTH118,PTH207
