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
from xaqueue.offline.spans import Position
from xaqueue.spark.source.options import SourceOptions, is_pattern
from xaqueue.spark.source.place import Place, QueueScan, place_at

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


class Spaces:
    """The spaces and queues that the options name, looked at as often as is asked."""

    def __init__(self, options: SourceOptions, opened: Callable[[str], object] | None = None) -> None:
        """opened: sees to it that somebody has the space open, where its files alone cannot be believed."""
        self._options = options
        self._opened = opened
        self._stuck: dict[str, Future[Any]] = {}
        self._places: dict[str, Place] = {}
        self._readers: dict[tuple[str, str], QueueScan] = {}

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
        said = [self.place(path).known() for path in snapshot.spaces]
        known = {name for one in said for name in one.names}
        unknown = [name for name in names if name not in known]
        may_come = any(one.any_queue for one in said)
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

    def place(self, path: str) -> Place:
        if path not in self._places:
            self._places[path] = place_at(path, self._options.url_of(path))
        return self._places[path]

    def _look_at(self, path: str, known: Iterable[str], only_known: bool) -> _Found:
        place = self.place(path)
        space_id = place.id()
        if self._opened is not None and place.is_behind():
            self._opened(path)
        place.check()
        names = set(known)
        if not only_known:
            names.update(self._options.names_in(path))
            if self._options.has_pattern:
                names.update(filter(self._wanted, place.names()))
        found = {one.queue: self._state(path, space_id, one) for one in place.positions(sorted(names))}
        # what vanished meanwhile looked like a space without messages
        if place.id() != space_id:
            raise SpaceError(f"{path} became another space while it was looked at: look again")
        return _Found(found, space_id, place.identity())

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
