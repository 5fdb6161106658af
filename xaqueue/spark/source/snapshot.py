"""What spaces and queues there are now and how far each is, at a cost that grows with neither messages nor ranges.

A space is asked in a thread of its own with a time limit, so that a dead mount is a missing space and not a hung query:
Spark waits without end for a source that doesn't answer. A pattern is looked up again each time, and so finds what is
new. Nothing here writes, locks or reads a message.

A thread that hangs in a dead mount cannot be stopped: it is left behind, another takes its turn, and its place is not
asked again before it has come back. So a place never has more than one thread.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from xaqueue.core.model.format import check_recovered, read_format, why_behind
from xaqueue.core.model.layout import FORMAT
from xaqueue.core.model.options import suggestion
from xaqueue.core.owner.definitions_file import read_definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import DamagedBlock, InvalidArgument, OperationalError, SpaceError, UnknownQueue
from xaqueue.features.streams.record import StreamRecord, read_stream, stream_path
from xaqueue.offline.reader import QueueReader, queues
from xaqueue.spark.source.options import SourceOptions, is_pattern

ID_DIGITS = 8
"""Of a space's id that an offset keeps: enough to tell another one."""
NAMED = 5
"""Missing spaces that an error names."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """How far a queue is. ``consumed``: a stream that has reserved it has consumed all up to here; else 0."""

    path: str
    space_id: str
    name: str
    reader: QueueReader
    watermark: int
    consumed: int
    stream: str

    def __str__(self) -> str:
        return f"queue {self.name!r} of {self.path}"


@dataclass(frozen=True, slots=True)
class SpaceSnapshot:
    """Queues by the space's path, sorted, and why other spaces that should be there are missing."""

    spaces: Mapping[str, Mapping[str, QueueState]]
    missing: Mapping[str, str]
    ids: Mapping[str, str]
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
        held: Mapping[str, Iterable[str]] = known or {}
        matched: list[str] = []
        missing: dict[str, str] = {}
        if not only_known:
            held = {path: [*filter(self._wanted, names)] for path, names in held.items() if self.names_space(path)}
            matched, missing = self._matched()
        wanted = sorted({*matched, *held})

        def look_at(path: str) -> _Found:
            return self._look_at(path, held.get(path, ()), only_known)

        timeout_s = self._options.space_timeout_s
        answers, failures = call_with_deadline(look_at, wanted, timeout_s, self._stuck, (SpaceError, OSError))
        found = dict(sorted(answers.items()))
        _check_distinct(found)
        missing |= {path: str(failure) for path, failure in failures.items()}
        ids = {path: one.id[:ID_DIGITS] for path, one in found.items()}
        snapshot = SpaceSnapshot({path: one.queues for path, one in found.items()}, missing, ids)
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

    def check_queues(self, snapshot: SpaceSnapshot) -> None:
        """UnknownQueue for a name that no space has had a message of and that none defines: nobody may ever write to
        what is a slip of the pen. Where any queue may come it is waited for, if that is wanted.
        """
        had = {state.name for state in snapshot.states if state.watermark}
        names = [name for name in self._options.queue_names if name not in had]
        if not names or not snapshot.spaces:
            return
        definitions = {path: read_definitions(path) for path in snapshot.spaces}
        known = {name for path, defined in definitions.items() for name in (*queues(path), *defined.queues)}
        unknown = [name for name in names if name not in known]
        may_come = any(defined.default is not None for defined in definitions.values())
        if unknown and not (may_come and self._options.creates_queues):
            way = f"`xaqueue define {unknown[0]} --space {shlex.quote(next(iter(snapshot.spaces)))}` makes it"
            raise UnknownQueue(
                f"{', '.join(list(snapshot.spaces)[:NAMED])} has no queue {unknown[0]!r}"
                f"{suggestion(unknown[0], sorted(known))}; its queues are {', '.join(sorted(known)) or 'none yet'}. "
                f"{way}{', and with option createQueues=true its first message does' if may_come else ''}"
            )

    def _matched(self) -> tuple[list[str], dict[str, str]]:
        """Directories that the patterns match and that are spaces; named ones whatever they are."""
        paths, timeout_s = self._options.paths, self._options.space_timeout_s
        found, failures = call_with_deadline(
            _spaces_like, filter(is_pattern, paths), timeout_s, self._stuck, (OSError,)
        )
        named = [path for path in paths if not is_pattern(path)]
        matched = [path for matches in found.values() for path in matches]
        return [*named, *matched], {pattern: str(failure) for pattern, failure in failures.items()}

    def _look_at(self, path: str, known: Iterable[str], only_known: bool) -> _Found:
        space_id = read_format(path, is_expected=True).id
        if self._opened is not None and why_behind(path):
            self._opened(path)
        check_recovered(path)
        names = set(known)
        if not only_known:
            names.update(self._options.names_in(path))
            if self._options.has_pattern:
                names.update(filter(self._wanted, queues(path)))
        found = {name: self._state(path, space_id, name) for name in sorted(names)}
        # what vanished meanwhile looked like a space without messages
        if read_format(path, is_expected=True).id != space_id:
            raise SpaceError(f"{path} became another space while it was looked at: look again")
        status = os.stat(path)  # noqa: PTH116
        return _Found(found, space_id, (status.st_dev, status.st_ino))

    def _state(self, path: str, space_id: str, name: str) -> QueueState:
        if (path, name) not in self._readers:
            self._readers[path, name] = QueueReader(path, name)
        reader = self._readers[path, name]
        record = reserved(reader)
        consumed, stream = (record.consumed, record.stream) if record is not None else (0, "")
        return QueueState(path, space_id, name, reader, max(reader.watermark(), consumed), consumed, stream)

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
        return read_stream(DirectoryFileSystem(reader.space, keep_unsynced=False), reader.queue)
    except DamagedBlock as damage:
        path = reader.space / stream_path(reader.queue)
        raise DamagedBlock(f"{path}: {damage}: run `xaqueue release {reader.queue} --space {reader.space}`") from None


def _check_distinct(spaces: Mapping[str, _Found]) -> None:
    """InvalidArgument for a space under two paths, by a link for one: each message would be read twice."""
    paths: dict[tuple[int, int], str] = {}
    for path, one in spaces.items():
        first = paths.setdefault(one.inode, path)
        if first != path:
            raise InvalidArgument(
                f'{first} and {path} are one space, whose messages would be read twice: name it once in "path", or '
                "mend the pattern"
            )


def _spaces_like(pattern: str) -> list[str]:
    return [path for path in sorted(glob.glob(pattern)) if os.path.isfile(os.path.join(path, FORMAT))]  # noqa: PTH113,PTH118,PTH207


THREADS = 16

Answer = TypeVar("Answer")


def call_with_deadline(
    question: Callable[[str], Answer],
    places: Iterable[str],
    timeout_s: float,
    stuck: dict[str, Future[Any]],
    missing: tuple[type[Exception], ...] = (OperationalError, OSError),
) -> tuple[dict[str, Answer], dict[str, BaseException]]:
    """The answers, and what the others failed with, as far as it is of ``missing``: all else is raised. A place that
    takes longer than ``timeout_s`` fails with TimeoutError.

    stuck: what did not come back in earlier calls of the same caller, who keeps this between calls.
    """
    asked, answers = list(places), dict[str, Answer]()
    failures: dict[str, BaseException] = {
        place: TimeoutError(f"{place} still does not answer what it was asked before")
        for place in asked
        if place in stuck and not stuck[place].done()
    }
    waiting = deque(place for place in asked if place not in failures)

    def ask(place: str, future: Future[Answer]) -> None:
        try:
            future.set_result(question(place))
        except BaseException as error:
            future.set_exception(error)

    running: dict[str, tuple[Future[Answer], float]] = {}
    while waiting or running:
        while waiting and len(running) < THREADS:
            place = waiting.popleft()
            running[place] = Future(), monotonic() + timeout_s
            threading.Thread(target=ask, args=(place, running[place][0]), name=f"ask {place}", daemon=True).start()
        first_s = min(until_s for _, until_s in running.values()) - monotonic()
        wait([future for future, _ in running.values()], max(0.0, first_s), FIRST_COMPLETED)
        for place, (future, until_s) in list(running.items()):
            if future.done():
                failure = future.exception()
                if failure is None:
                    answers[place] = future.result()
                else:
                    failures[place] = failure
            elif monotonic() >= until_s:
                stuck[place] = future
                failures[place] = TimeoutError(f"{place} does not answer within {timeout_s:g} seconds")
            else:
                continue
            del running[place]
    for failure in failures.values():
        if not isinstance(failure, missing):
            raise failure
    return answers, failures
