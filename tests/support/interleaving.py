"""A whole step of one session in the middle of another thread's turn, and a crash at each call from then on.

Whoever is interrupted is the follower, a checkpoint, a close or the cleaner; or a session, in the middle of whose step
one of these comes to its end. A crash is no exception here: before each call the file system is asked what a crash
would leave now, and what was acknowledged by then is written down with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Generic, TypeVar

from support import batch_story, stream_story
from support.crash_cases import GIVEN
from support.crash_level import NOON_US, STRICT, Level, open_space, ready
from support.crash_story import (
    IDLE_S,
    Act,
    Became,
    End,
    Put,
    Record,
    Story,
    Take,
    body_of,
    call,
    call_whole,
    do,
    look,
    make_smaller,
    message_id,
    shown,
)
from support.forgetful import ForgetfulFileSystem, Tree
from support.journal_of import journal_log
from support.lockstep import Lockstep
from xaqueue.core.engine.state import Space
from xaqueue.core.engine.timeouts import expire
from xaqueue.core.model import layout
from xaqueue.core.model.layout import RANGE_SIZE, Watermark
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.xa import Flag
from xaqueue.xid import Xid

STREAMED = "s"
"""A queue of which a stream has consumed a part that is not cleared yet."""
LATE = "late"
"""A queue of which every message has expired."""
HOUR_US = 3_600_000_000
NO_ACT = Act(End.ACTIVE, ())

Promises = TypeVar("Promises")


@dataclass(frozen=True)
class Moment(Generic[Promises]):
    """What a crash would find: the file system after a kill, what a power loss may leave, what was promised."""

    killed: Tree
    cut: tuple[Tree, ...]
    promised: Promises


@dataclass(frozen=True)
class Turn:
    """Who is interrupted by a step, or interrupts it."""

    turn: str
    step_within: bool = True
    """The step comes in the middle of the turn; without it the turn comes in the middle of the step."""


@dataclass(frozen=True)
class Scene(Turn):
    """Acts that are done before, and one whose last verb is the step."""

    before: tuple[Act, ...] = ()
    act: Act = NO_ACT
    archive: bool = False
    """The stream keeps what it has consumed."""
    clears_away: bool = False
    """The step is the removal of what has expired, while the act has got to its last verb."""

    begins: Tree | None = None
    """What is there; of all kinds something, where nothing is said."""

    @property
    def story(self) -> Story:
        return Story((*self.before, self.act), self.begins or start(self.archive))


@dataclass(frozen=True)
class StreamScene(Turn):
    """Acts of a stream, of which the last is the step. ``kept_above``: what it consumes from there on is archived."""

    acts: stream_story.Acts = field(default_factory=list)
    kept_above: int = 0


@dataclass(frozen=True)
class BatchScene(Turn):
    """The step is the decision of a batch, or its rollback."""

    undo: bool = False


class WatchedFileSystem(ForgetfulFileSystem):
    """Says so before each call. It needs no lock, and must have none: of two threads one runs at a time, and the other
    one makes calls in the middle of a call."""

    called: Callable[[], None] = staticmethod(lambda: None)
    lock = property(lambda _: nullcontext(), lambda *_: None)

    def _look(self) -> None:
        called, self.called = self.called, lambda: None  # what looks meanwhile is not a call of its own
        try:
            called()
        finally:
            self.called = called
        super()._look()


@dataclass
class Interrupted(Generic[Promises]):
    """One scene at one level, interrupted before its call number ``at``."""

    scene: Turn
    level: Level
    at: int
    trees: Callable[[ForgetfulFileSystem], Iterator[Tree]]
    moments: list[Moment[Promises]] = field(default_factory=list)
    inner: Callable[[], object] = lambda: None
    calls: int = 0
    """Of the one who is interrupted."""

    def start(self) -> Tree:
        raise NotImplementedError

    def begin(self) -> Callable[[], object]:
        """Everything before the step; which is returned."""
        raise NotImplementedError

    def promised(self, killed: Tree) -> Promises:
        """What was acknowledged by now, to be kept. killed: what is seen now."""
        raise NotImplementedError

    def run(self) -> bool:
        """Whether it was interrupted: False once the turn has fewer calls."""
        with Lockstep() as steps:
            self.steps = steps
            self.fs = WatchedFileSystem(None, ready(self.start(), self.level))
            self.space = open_space(self.fs, self.level, goes_on=True)
            step = self.begin()
            turn = self._turn()
            outer, self.inner = (turn, step) if self.scene.step_within else (step, turn)
            self.fs.called = self._called
            with self._refusing():
                outer()
            self.fs.called = lambda: None
            assert not steps.is_parked, "whoever interrupted waits for ever"
            with self._refusing():
                if steps.raised is not None:
                    raise steps.raised
            self.moments.append(self._moment())
            return self.calls > self.at

    def _refusing(self) -> AbstractContextManager[None]:
        """A space that is being closed takes no new work."""
        return suppress(ResourceFailed) if self.scene.turn == "close" else nullcontext()

    def _turn(self) -> Callable[[], object]:
        space = self.space
        match self.scene.turn:
            case "follow":
                return space.log.settle
            case "checkpoint":
                return space.checkpoint
            case "clear":
                return lambda: cleanup.clear(space)
            case "expire":
                return lambda: cleanup.expire(space)
            case "hollow":
                return partial(make_smaller, space)
            case _:
                return space.close

    def _called(self) -> None:
        """Before a call of either."""
        if not self.steps.is_second:
            if self.calls == self.at:
                self.calls += 1
                self.fs.called = self._called
                self.steps.second(self.inner)
            else:
                self.calls += 1
        if self.calls > self.at:
            self.moments.append(self._moment())

    def _moment(self) -> Moment[Promises]:
        killed = self.fs.tree_after_kill()
        return Moment(killed, tuple(self.trees(self.fs)), self.promised(killed))


@dataclass
class Play(Interrupted[Record]):
    scene: Scene

    def start(self) -> Tree:
        return self.scene.story.start

    def begin(self) -> Callable[[], object]:
        self.record = Record()
        self.record.seqs = look(self.space, Session(self.space)).seqs
        for position, act in enumerate(self.scene.before):
            _Branch(self.space, self.record, self.scene.story.xid(position), act).play()
        branch = _Branch(self.space, self.record, self.scene.story.xid(len(self.scene.before)), self.scene.act)
        branch.begin()
        return partial(cleanup.expire, self.space) if self.scene.clears_away else branch.finish

    def promised(self, killed: Tree) -> Record:
        record, hidden = self.record, (STREAMED, LATE)
        taken = {
            (work.queue, work.message) for act in self.scene.story.acts for work in act.work if isinstance(work, Take)
        }
        return replace(
            record,
            may_be=[set(each) for each in record.may_be],
            seqs=dict(record.seqs),
            late=list(record.late),
            undone=list(record.undone),
            shown={place: seq for place, seq in shown(killed).items() if place not in taken and place[0] not in hidden},
        )


@dataclass
class StreamPlay(Interrupted[stream_story.Promised]):
    scene: StreamScene

    def start(self) -> Tree:
        return stream_story.start()[0]

    def begin(self) -> Callable[[], object]:
        self.player = stream_story.Player(
            self.space,
            self.level,
            stream_story.Promised(dict(stream_story.start()[1]), kept_above=self.scene.kept_above),
        )
        *before, step = self.scene.acts
        self.player.play(before)
        return partial(self.player.act, step)

    def promised(self, _: Tree) -> stream_story.Promised:
        return deepcopy(self.player.promised)


@dataclass
class BatchPlay(Interrupted[batch_story.Promise]):
    scene: BatchScene

    def start(self) -> Tree:
        return GIVEN

    def begin(self) -> Callable[[], object]:
        self.promise = batch_story.Promise()
        session = batch_story.prepared(self.space, self.level, self.promise)
        return partial(batch_story.decide, session, self.promise, undo=self.scene.undo)

    def promised(self, killed: Tree) -> batch_story.Promise:
        promised = replace(self.promise)
        batch_story.show(killed, promised)
        return promised


class _Branch:
    """One act, played in two parts: its last verb is the step."""

    def __init__(self, space: Space, record: Record, xid: Xid, act: Act) -> None:
        self.session = Session(space)
        self.record = record
        self.xid = xid
        self.act = act
        self.whole = act.whole and space.log.is_atomic
        self.position = 0
        self.promised = Became.NOTHING

    def play(self) -> None:
        self.begin()
        if self.act.end is not End.ACTIVE:
            self.finish()

    def begin(self) -> None:
        self.position = len(self.record.may_be)
        self.record.may_be.append({self.promised})
        if not self.whole:
            self.session.start(self.xid)
            for work in self.act.work:
                do(self.session, work)
        if self.act.end is not End.ACTIVE:
            if not self.whole:
                self.session.end(self.xid)
            for verb, after in self.act.end.value[:-1]:
                self._verb(verb, after)

    def finish(self) -> None:
        """The step."""
        if self.act.end is not End.ACTIVE:
            self._verb(*self.act.end.value[-1])
            return
        for work in self.act.work:  # as much again, by which the branch is not complete either
            if isinstance(work, Put):
                self.session.enqueue(work.queue, body_of(work.message + 50), message_id=message_id(work.message + 50))

    def _verb(self, verb: str, after: Became) -> None:
        self.record.may_be[self.position] |= {self.promised, after}
        if verb != "expire":
            (partial(call_whole, self.act.work) if self.whole else call)(self.session, verb, self.xid)
        elif not expire(self.session.space, time.monotonic() + 2 * IDLE_S, IDLE_S):
            raise ResourceFailed("it is closed")
        has_journal = journal_log(self.session.space) is not None
        self.record.acknowledge(self.position, verb, self.promised, after, has_journal=has_journal)
        self.promised = after
        if verb.endswith("rollback") or verb == "expire":
            self.record.undone += [(work.queue, work.message) for work in self.act.work if isinstance(work, Take)]
        for name, queue in self.session.space.queues.items() if not self.record.late else ():
            for entry in queue.index.entries(NOON_US):
                self.record.seqs[name, int.from_bytes(entry.message_id, "big")] = entry.seq


@cache
def start(archive: bool) -> Tree:
    """Two messages in queue a, one in b, and three that have expired. In the streamed queue four, across an edge: the
    range of the two before it is consumed.
    """
    marked = {layout.queue_path(STREAMED): None, layout.watermark_path(STREAMED): mark(RANGE_SIZE - 3)}
    fs = Tree({**GIVEN.nodes, **marked}).open()
    space = open_space(fs, STRICT)
    session, xid = Session(space), Xid(1, b"stock", b"")
    session.start(xid)
    for message in (200, 201, 202, 203):
        do(session, Put(STREAMED, message))
    space.now_ns = lambda: (NOON_US - 2 * HOUR_US) * 1000
    for message in (300, 301, 302):
        session.enqueue(LATE, body_of(message), message_id=message_id(message), expires_at=NOON_US - HOUR_US)
    space.now_ns = lambda: NOON_US * 1000
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    session.reserve(STREAMED, "query#1", 0, RANGE_SIZE - 1)
    session.consume(STREAMED, "query#1", RANGE_SIZE - 1, archive)
    return fs.tree_after_kill()


def mark(seq: int) -> bytes:
    return layout.format_watermark(Watermark(seq, seq))
