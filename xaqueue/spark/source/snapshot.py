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

from xaqueue.core.model.layout import FORMAT
from xaqueue.core.model.options import suggestion
from xaqueue.errors import InvalidArgument, OperationalError, SpaceError, UnknownQueue
from xaqueue.features.streams.record import StreamRecord
from xaqueue.lake.place import Place, QueueScan, check_settled, place_at
from xaqueue.offline.spans import Position
from xaqueue.spark.source.options import SourceOptions, is_pattern

ID_DIGITS = 8
"""Of a space's id that an offset keeps: enough to tell another one."""
NAMED = 5
"""Missing spaces that an error names."""
SETTLED_S = 2.0
"""A file that is as it was for so long has another time when it is changed: file systems count in milliseconds, network
ones in a second perhaps."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """How far a queue is. ``consumed``: a stream that has reserved it has consumed all up to here; else 0."""

    path: str
    space_id: str
    name: str
    reader: QueueScan
    watermark: int
    record: StreamRecord | None

    @property
    def consumed(self) -> int:
        return self.record.consumed if self.record is not None else 0

    @property
    def stream(self) -> str:
        return self.record.stream if self.record is not None else ""

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
    """One space. ``identity``: the same wherever it is named."""

    queues: dict[str, QueueState]
    id: str
    identity: object


class _Seen(NamedTuple):
    """A space as it was looked at. paths: of the files by which it shows that something has come. marks: what they were
    before; settled: they had been so for a while, and who changes one now gives it another time."""

    found: _Found
    paths: tuple[str, ...]
    marks: list[tuple[int, ...]]
    since_s: float
    settled: bool

    def has_moved(self) -> bool:
        return not self.settled or _marks_of(self.paths) != self.marks


def _marks_of(paths: Iterable[str]) -> list[tuple[int, ...]]:
    """When they were changed, and which files they are. Raises nothing: what is not there has none."""
    found: list[tuple[int, ...]] = []
    for path in paths:
        try:
            state = os.stat(path)  # noqa: PTH116
            found.append((state.st_mtime_ns, state.st_ino, state.st_size))
        except OSError as error:
            found.append((error.errno or 0,))
    return found


class _Looked(NamedTuple):
    """All that was looked for, and what was there."""

    matched: list[str]
    known: Mapping[str, Iterable[str]]
    snapshot: SpaceSnapshot


class Spaces:
    """The spaces and queues that the options name, looked at as often as is asked.

    Of a space where nothing has come since the last look the times of the watermarks are looked at, and no more; what
    is consumed there is known again when something comes, or a batch with messages of it is planned.
    """

    def __init__(
        self, options: SourceOptions, opened: Callable[[str], object] | None = None, *, is_only_look: bool = False
    ) -> None:
        """opened: sees to it that somebody has the space open, where its files alone cannot be believed. is_only_look:
        there is none later that would find what the files have not yet."""
        self._options = options
        self._is_only_look = is_only_look
        self._opened = opened
        self._stuck: dict[str, Future[Any]] = {}
        self._places: dict[str, Place] = {}
        self._readers: dict[tuple[str, str], QueueScan] = {}
        self._stuck_marks: dict[str, Future[Any]] = {}
        self._seen: dict[str, _Seen] = {}
        self._looked: _Looked | None = None

    def look(self, known: Mapping[str, Iterable[str]] | None = None, *, only_known: bool = False) -> SpaceSnapshot:
        """What is there. ``known``: queues by space that were there before, and have to be where they are still named;
        ``only_known``: they have to be, and nothing else is wanted.

        Raises SpaceError for a missing space, unless those are to be skipped, and for a pattern that matches none.
        """
        held: Mapping[str, Iterable[str]] = known or {}
        matched: list[str] = []
        missing: dict[str, str] = {}
        if not only_known:
            matched, missing = self._matched()
        last = self._looked
        unmoved = {} if only_known else self._unmoved({*matched, *held})
        if last is not None and not (only_known or missing):  # else each is asked what it is to say
            is_same = matched == last.matched and held == last.known
            if is_same and len(unmoved) == len(last.snapshot.spaces) and not last.snapshot.missing:
                return last.snapshot
        before = held
        if not only_known:
            held = {path: [*filter(self._wanted, names)] for path, names in held.items() if self.names_space(path)}
        wanted = sorted({*matched, *held})
        answers = {
            path: unmoved[path]
            for path in wanted
            if path in unmoved and unmoved[path].queues.keys() >= {*held.get(path, ())}
        }

        def look_at(path: str) -> _Found | None:
            is_named = path in held or path in self._options.paths
            return self._look_at(path, held.get(path, ()), only_known) if is_named or _is_space(path) else None

        timeout_s, asked = self._options.space_timeout_s, [path for path in wanted if path not in answers]
        looked, failures = call_with_deadline(look_at, asked, timeout_s, self._stuck, (SpaceError, OSError))
        answers |= {path: one for path, one in looked.items() if one is not None}
        found = dict(sorted(answers.items()))
        _check_distinct(found)
        missing |= {path: str(failure) for path, failure in failures.items()}
        ids = {path: one.id[:ID_DIGITS] for path, one in found.items()}
        snapshot = SpaceSnapshot({path: one.queues for path, one in found.items()}, missing, ids)
        if missing and not self._options.skips_missing:
            raise self.missing(missing)
        if not wanted and not only_known:
            raise SpaceError(f"no queue space matches {', '.join(self._options.paths)}: make one, or mend the pattern")
        if not only_known:
            self._looked = _Looked(matched, before, snapshot)
        return snapshot

    def _unmoved(self, paths: Iterable[str]) -> dict[str, _Found]:
        """Those where nothing has come since they were looked at. One that hangs is not among them, nor are others."""
        seen = {path: self._seen[path] for path in paths if path in self._seen and path not in self._stuck}

        def look(_: str) -> dict[str, _Found]:
            return {path: one.found for path, one in seen.items() if not one.has_moved()}

        timeout_s = self._options.space_timeout_s
        answers, _ = call_with_deadline(look, ["their marks"] if seen else [], timeout_s, self._stuck_marks, (OSError,))
        return answers.get("their marks", {})

    def missing(self, missing: Mapping[str, str], *, planned: bool = False) -> SpaceError:
        """The error for a query that cannot do without these spaces; ``planned``: with messages of this batch."""
        options = self._options
        reasons = "; ".join(list(missing.values())[:NAMED])
        more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        hint = "" if options.is_alone else '; option "skipMissingSpaces" lets the other spaces go on without'
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
        said = [self.place(path).known() for path in snapshot.spaces]
        known = {name for one in said for name in one.names}
        unknown = [name for name in names if name not in known]
        may_come = any(one.any_queue for one in said)
        if unknown and not (may_come and self._options.creates_queues):
            way = f"`xaqueue define {unknown[0]} --space {shlex.quote(next(iter(snapshot.spaces)))}` makes it"
            raise UnknownQueue(
                f"{', '.join(list(snapshot.spaces)[:NAMED])} has no queue {unknown[0]!r}"
                f"{suggestion(unknown[0], sorted(known)) or '.'} "
                f"Its queues are {', '.join(sorted(known)) or 'none yet'}. "
                f"{way}{', and with option createQueues=true its first message does' if may_come else ''}"
            )

    def _matched(self) -> tuple[list[str], dict[str, str]]:
        """Directories that the patterns match and that are spaces; named ones whatever they are."""
        paths, timeout_s = self._options.paths, self._options.space_timeout_s
        found, failures = call_with_deadline(
            self._spaces_like, filter(is_pattern, paths), timeout_s, self._stuck, (OSError,)
        )
        named = [path for path in paths if not is_pattern(path)]
        matched = [path for matches in found.values() for path in matches]
        return [*named, *matched], {pattern: str(failure) for pattern, failure in failures.items()}

    def _spaces_like(self, pattern: str) -> list[str]:
        found = sorted(glob.glob(pattern))  # noqa: PTH207
        return [path for path in found if path in self._seen or _is_space(path)]

    def place(self, path: str) -> Place:
        if path not in self._places:
            self._places[path] = place_at(path, self._options.url_of(path))
        return self._places[path]

    def _look_at(self, path: str, known: Iterable[str], only_known: bool) -> _Found:
        now, place, last = monotonic(), self.place(path), self._seen.get(path)
        marks = _marks_of(last.paths) if last is not None else []
        try:
            space_id = place.id()
        except SpaceError as failure:
            if self._spaces_like(f"{glob.escape(path)}/*"):
                raise SpaceError(f"{failure}. There are spaces in it: did you mean {path}/*?") from failure
            raise
        if self._opened is not None and place.is_behind():
            self._opened(path)
        place.check()
        names, has_pattern = set(known), self._options.has_pattern and not only_known
        if not only_known:
            names.update(self._options.names_in(path))
        if self._is_only_look and last is None:
            check_settled(place, lambda name: name in names or (has_pattern and self._wanted(name)))
        if has_pattern:
            names.update(filter(self._wanted, place.names()))
        found = {one.queue: self._state(path, space_id, one) for one in place.positions(sorted(names))}
        # what vanished meanwhile looked like a space without messages
        if place.id() != space_id:
            raise SpaceError(f"{path} became another space while it was looked at: look again")
        made = _Found(found, space_id, place.identity())
        paths = tuple(place.marks(found, all_queues=self._options.has_pattern))
        is_same = last is not None and (last.paths, last.marks) == (paths, marks)
        since_s = last.since_s if last is not None and is_same else now
        if last is None or last.paths != paths:
            marks = []
        self._seen[path] = _Seen(made, paths, marks, since_s, bool(paths) and now - since_s >= SETTLED_S)
        return made

    def _state(self, path: str, space_id: str, found: Position) -> QueueState:
        key = path, found.queue
        if key not in self._readers:
            self._readers[key] = self.place(path).queue(found.queue)
        return QueueState(path, space_id, found.queue, self._readers[key], found.seen, found.record)

    def names_space(self, path: str) -> bool:
        """Whether the options name it, or would if it were there."""
        return any(path == named or (is_pattern(named) and Path(path).match(named)) for named in self._options.paths)

    def _wanted(self, name: str) -> bool:
        options = self._options
        if options.expression is not None:
            return re.fullmatch(options.expression, name) is not None
        return any(fnmatchcase(name, pattern) for pattern in options.queues)


def _check_distinct(spaces: Mapping[str, _Found]) -> None:
    """InvalidArgument for a space under two paths, by a link for one: each message would be read twice."""
    paths: dict[object, str] = {}
    for path, one in spaces.items():
        first = paths.setdefault(one.identity, path)
        if first != path:
            raise InvalidArgument(
                f'{first} and {path} are one space, whose messages would be read twice: name it once in "path", or '
                "mend the pattern"
            )


def _is_space(path: str) -> bool:
    return os.path.isfile(os.path.join(path, FORMAT))  # noqa: PTH113,PTH118


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
