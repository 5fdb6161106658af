"""A story is played on a forgetful file system; its record says what each act may have become, and is held to trees.

An act is one branch: what it puts and takes, and the verbs that end it. Between two acknowledgements an act may have
become what the last one promised or what the next one will; nothing else, and never a part of it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from unittest import mock

from support.crash_level import NOON_US, STRICT, Level, follow, open_space, ready
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.whole import whole_commit, whole_work
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.state import Space
from xaqueue.core.engine.timeouts import expire
from xaqueue.core.model import layout
from xaqueue.core.model.branch import State
from xaqueue.core.model.message_block import decode_gone, decode_table
from xaqueue.core.model.message_name import tags_of
from xaqueue.errors import ResourceFailed
from xaqueue.features.session import Session
from xaqueue.features.topics import adding
from xaqueue.features.topics.hollow import hollow, sparse
from xaqueue.message import EnqueueOptions, MessageId, properties_of
from xaqueue.rpc import plain
from xaqueue.rpc.plain import Ending, Work
from xaqueue.xa import Flag
from xaqueue.xid import Xid

IDLE_S = 1000.0
"""A branch may do nothing for so long."""
SCAN = Flag.STARTRSCAN | Flag.ENDRSCAN
EMPTY = Tree(dict.fromkeys(layout.directories()))
FRESH = 1 << 64
"""The message that is put after recovery, to see which number it gets."""


YEAR_US = 365 * 24 * 3600 * 10**6


class Became(Enum):
    """What an act is, once it is looked at after a crash."""

    NOTHING = "rolled back"
    IN_DOUBT = "in doubt"
    DONE = "committed"
    DECIDED_DONE = "committed by an operator"
    DECIDED_NOTHING = "rolled back by an operator"


class End(Enum):
    """How an act ends: its verbs, and what each makes of it."""

    ACTIVE = ()
    ONE_PHASE = (("one-phase", Became.DONE),)
    ROLLBACK = (("rollback", Became.NOTHING),)
    EXPIRED = (("expire", Became.NOTHING),)
    PREPARED = (("prepare", Became.IN_DOUBT),)
    TWO_PHASE = (*PREPARED, ("commit", Became.DONE))
    LATE = (*PREPARED, ("commit late", Became.DONE))
    HARDENED = (*LATE, ("harden", Became.DONE))
    UNDONE = (*PREPARED, ("rollback", Became.NOTHING))
    DECIDED_COMMIT = (*PREPARED, ("decide commit", Became.DECIDED_DONE))
    DECIDED_ROLLBACK = (*PREPARED, ("decide rollback", Became.DECIDED_NOTHING))
    FORGOTTEN_COMMIT = (*DECIDED_COMMIT, ("forget", Became.DONE))
    FORGOTTEN_ROLLBACK = (*DECIDED_ROLLBACK, ("forget", Became.NOTHING))


@dataclass(frozen=True)
class Put:
    queue: str
    message: int


@dataclass(frozen=True)
class Take:
    queue: str
    message: int


@dataclass(frozen=True)
class Act:
    """One branch: its work, and its end. ``life_of``: it has the xid of the act at this position, which is over.
    ``whole``: it is one call up to its first verb, as ``rpc.plain`` has them where there is a journal.
    ``at_once``: what it puts into a queue is one call, and what it takes from one; that without properties.
    ``hollows``: behind it blocks of which little is left are made smaller."""

    end: End
    work: tuple[Put | Take, ...]
    life_of: int | None = None
    whole: bool = False
    at_once: bool = False
    hollows: bool = False


@dataclass(frozen=True)
class Story:
    """Acts in their order, on a tree where all is durable. The position of an act is the name of its branch."""

    acts: tuple[Act, ...]
    start: Tree = EMPTY

    def xid(self, position: int) -> Xid:
        life_of = self.acts[position].life_of
        return xid_of(position if life_of is None else life_of)

    @property
    def queues(self) -> list[str]:
        return sorted({work.queue for act in self.acts for work in act.work})


RECORDED = ("prepare", "commit", "one-phase", "decide commit", "decide rollback", "forget", "harden")
"""Verbs behind which all is durable that was committed late before."""

Contents = dict[tuple[str, int], bool]
"""The messages of all queues, and whether each is locked."""


@dataclass
class Record:
    """What was acknowledged when the story ended."""

    may_be: list[set[Became]] = field(default_factory=list)
    """For each act that began."""
    seqs: dict[tuple[str, int], int] = field(default_factory=dict)
    """The numbers of all messages that were ever published, each id's last."""
    before: dict[tuple[str, int], int] = field(default_factory=dict)
    """The numbers of an id's earlier lives: it never has one of them, or one below, again."""
    late: list[int] = field(default_factory=list)
    """Positions of the acts that were committed late, and with which nothing was hardened since."""
    undone: list[tuple[str, int]] = field(default_factory=list)
    """The messages whose taking was undone, acknowledged; each counts a try."""
    shown: dict[tuple[str, int], int] = field(default_factory=dict)
    """What a reader of the directories could see when the story ended, and nobody was taking: with its number."""
    openings: int = 1
    """How often the tree was opened after a crash."""
    first_call: int | None = None
    """How many calls the opening took; None until it is over."""

    def copy(self) -> Record:
        """What is promised by now, while the story goes on."""
        return replace(
            self,
            may_be=list(self.may_be),
            seqs=dict(self.seqs),
            before=dict(self.before),
            late=list(self.late),
            undone=list(self.undone),
            shown=dict(self.shown),
        )

    def acknowledge(self, position: int, verb: str, promised: Became, after: Became, *, has_journal: bool) -> None:
        """What this act is promised to be from now on, and all that went with it."""
        if has_journal and verb == "commit late":
            self.may_be[position] = {promised, after}
            self.late.append(position)
            return
        self.may_be[position] = {after}
        if verb in RECORDED:
            for late in self.late:
                self.may_be[late] = {Became.DONE}
            self.late.clear()

    def key(self) -> object:
        numbers = tuple(self.seqs.items()), tuple(self.before.items()), tuple(self.shown.items())
        return tuple(map(frozenset, self.may_be)), numbers, tuple(self.undone), self.openings


@dataclass(frozen=True)
class Seen:
    """What an open space shows."""

    listed: dict[Xid, Became]
    contents: Contents
    seqs: dict[tuple[str, int], int]
    tries: dict[tuple[str, int], int]
    tags: dict[tuple[str, int], str]


def xid_of(position: int) -> Xid:
    return Xid(1, b"act%d" % position, b"")


def message_id(message: int) -> MessageId:
    return MessageId(message.to_bytes(16, "big"))


def body_of(message: int) -> bytes:
    return b"body of %d" % message


def options_of(message: int) -> EnqueueOptions:
    """Every other message has all that its name may tell."""
    options: EnqueueOptions = {"message_id": message_id(message)}
    if message % 2 and message < FRESH:
        options["correlation_id"], options["priority"] = b"%d" % message, message % 10
        options["not_before"], options["expires_at"] = NOON_US - message, NOON_US + YEAR_US + message
    return options


def tags_of_message(message: int) -> str:
    return tags_of(properties_of("a", NOON_US, options_of(message)))


def play(
    story: Story,
    level: Level,
    crash_after: int | None = None,
    fail_after: int | None = None,
    fail_number: int = errno.EIO,
    watch: Callable[[ForgetfulFileSystem, Record], object] = lambda fs, record: None,
) -> tuple[ForgetfulFileSystem, Record]:
    """Plays it until the crash, the fence of a sync that failed, or to its end and a clean close. watch: is called
    before each call that changes or syncs something.
    """
    fs, record = ready(story.start, level).open(crash_after), Record()
    fs.fail_after, fs.fail_number, fs.before_call = fail_after, fail_number, lambda: watch(fs, record)
    try:
        space = open_space(fs, level, goes_on=True)
        record.first_call = fs.calls
        record.seqs = look(space, Session(space)).seqs
        for position, act in enumerate(story.acts):
            perform(space, record, story.xid(position), act, level)
        space.close()
        assert not fs.failed or space.log.fenced, "a sync that failed was passed over"
    except (Crashed, ResourceFailed):
        if not (fs.crashed or fs.failed):
            raise
    fs.before_call = lambda: None
    _show(story, fs, record)
    return fs, record


def _show(story: Story, fs: ForgetfulFileSystem, record: Record) -> None:
    taken = {(work.queue, work.message) for act in story.acts for work in act.work if isinstance(work, Take)}
    record.shown = {place: seq for place, seq in shown(fs.tree_after_kill()).items() if place not in taken}


def shown(tree: Tree) -> dict[tuple[str, int], int]:
    """The messages that a reader sees: those that are there, at or below the watermark of their queue."""
    found = {}
    for path in tree.nodes:
        place = layout.parse_path(path)
        if place is not None and path.startswith(layout.COMMITTED):
            mark = layout.parse_watermark(tree.nodes.get(layout.watermark_path(place[0])) or b"")
            for seq, one in messages_of(tree, path):
                if mark is not None and seq <= mark.published:
                    found[place[0], int.from_bytes(one, "big")] = seq
    return found


def messages_of(tree: Tree, path: str) -> Iterator[tuple[int, bytes]]:
    """Numbers and ids of those that are in this file, which may be a block of many, and are not gone."""
    place = layout.parse_path(path)
    assert place is not None
    queue, named = place
    if not named.is_block:
        yield named.first, named.message_id
        return
    table, gone = decode_table(tree.nodes[path] or b""), tree.nodes.get(layout.gone_path(queue, named))
    for index in table.left(0 if gone is None else decode_gone(gone, queue, named)):
        yield named.first + index, table.message_id(index)


def perform(space: Space, record: Record, xid: Xid, act: Act, level: Level = STRICT) -> None:
    """The next act of the record."""
    session, position = Session(space), len(record.may_be)
    promised = Became.NOTHING
    record.may_be.append({promised})
    for work in act.work:
        if isinstance(work, Put) and (work.queue, work.message) in record.seqs:
            record.before[work.queue, work.message] = record.seqs.pop((work.queue, work.message))
    whole = act.whole and space.log.is_atomic
    if not whole:
        session.start(xid)
        if act.at_once:
            do_at_once(session, act.work)
        for work in () if act.at_once else act.work:
            do(session, work)
        follow(space, level, "start")
        if act.end is End.ACTIVE:
            return
        session.end(xid)
    for verb, after in act.end.value:
        record.may_be[position] |= {promised, after}
        (partial(call_whole, act.work) if whole else call)(session, verb, xid)
        record.acknowledge(position, verb, promised, after, has_journal=level.hardening.journal)
        promised = after
        if verb.endswith("rollback") or verb == "expire":
            record.undone += [(work.queue, work.message) for work in act.work if isinstance(work, Take)]
        follow(space, level, verb)
    make_smaller(space, act, level)
    seen = look(space, session)
    if not record.late:
        record.seqs.update(seen.seqs)
    if not space.log.pending:
        for (queue, _), seq in seen.seqs.items():
            assert watermark(space.fs.read(layout.watermark_path(queue))).published >= seq


def make_smaller(space: Space, act: Act = Act(End.ACTIVE, (), hollows=True), level: Level = STRICT) -> None:
    """The blocks of which little is left, behind an act of which that is so."""
    for queue, block in sparse(space) if act.hollows else ():
        hollow(space, queue, block)
        follow(space, level, "commit")


def do(session: Session, work: Put | Take) -> None:
    if isinstance(work, Put):
        session.enqueue(work.queue, body_of(work.message), **options_of(work.message))
    else:
        message = session.dequeue(work.queue, message_id=message_id(work.message))
        assert message is not None, f"{work} finds nothing"


def do_at_once(session: Session, works: Sequence[Put | Take]) -> None:
    """Each queue's takes are the next of it."""
    places = {kind: [(one.queue, one.message) for one in works if isinstance(one, kind)] for kind in (Put, Take)}
    for queue in sorted({work.queue for work in works}):
        puts, takes = ([one for name, one in places[kind] if name == queue] for kind in (Put, Take))
        if takes:
            found = session.dequeue_many(queue, len(takes))
            assert [one.message_id for one in found] == list(map(message_id, takes))
        if puts:
            ids, own = list(map(message_id, puts)), list(map(options_of, puts))
            has_own = any(len(one) > 1 for one in own)
            with mock.patch.object(adding, "fresh_ids", return_value=ids):
                more = (ids, own) if has_own else ()
                assert session.enqueue_many(queue, list(map(body_of, puts)), *more) == ids


def call(session: Session, verb: str, xid: Xid) -> None:
    match verb:
        case "prepare":
            session.prepare(xid)
        case "commit":
            session.commit(xid)
        case "commit late":
            session.commit(xid, Flag.LATE)
        case "harden":
            session.harden()
        case "one-phase":
            session.commit(xid, Flag.ONEPHASE)
        case "rollback":
            session.rollback(xid)
        case "forget":
            session.forget(xid)
        case "expire":
            assert expire(session.space, time.monotonic() + 2 * IDLE_S, IDLE_S) == 1
        case _:
            heuristics.decide(session.space, xid, verb == "decide commit", by="test")


def call_whole(works: Sequence[Put | Take], session: Session, verb: str, xid: Xid) -> None:
    """The first verb has the work with it."""
    match verb:
        case "prepare" | "one-phase":
            whole_work(session, xid, [*map(_plain, works)], Ending.PREPARE if verb == "prepare" else Ending.ONE_PHASE)
        case "commit":
            whole_commit(session, xid)
        case _:
            call(session, verb, xid)


def _plain(work: Put | Take) -> Work:
    if isinstance(work, Take):
        return plain.Take(work.queue)
    assert len(options_of(work.message)) == 1, "it has properties of its own"
    return plain.Put(work.queue, body_of(work.message), message_id(work.message))


def drained(session: Session, queue: str) -> Iterator[bytes]:
    while (message := session.dequeue(queue)) is not None:
        yield message.body


def watermark(content: bytes) -> layout.Watermark:
    parsed = layout.parse_watermark(content)
    assert parsed is not None, content
    return parsed


_BECAME = {
    State.PREPARED: Became.IN_DOUBT,
    State.HEURISTIC_COMMIT: Became.DECIDED_DONE,
    State.HEURISTIC_ROLLBACK: Became.DECIDED_NOTHING,
}


def look(space: Space, session: Session) -> Seen:
    listed = {xid: _BECAME[space.branches[xid].base] for xid in session.recover(1000, SCAN)}
    seen = Seen(listed, {}, {}, {}, {})
    for name, queue in space.queues.items():
        for entry in queue.index.entries(NOON_US):
            place = name, int.from_bytes(entry.message_id, "big")
            seen.contents[place], seen.seqs[place], seen.tries[place] = entry.locked, entry.seq, entry.tries
            seen.tags[place] = entry.tags
    return seen


@dataclass(frozen=True)
class Sample:
    """Which calls a crash comes before: one in so many, from this one on. All, where nothing else is said."""

    every: int = 1
    first: int = 0

    def has(self, call: int) -> bool:
        return call >= self.first and (call - self.first) % self.every == 0


ALL = Sample()


def crashes(story: Story, level: Level, sample: Sample = ALL) -> Iterator[tuple[ForgetfulFileSystem, Record]]:
    """What a crash before each call of the story would leave, or before a sample of them; at last it came to its end.

    It is played but once: what a crash would leave is copied. A space that is there already is opened in peace: what an
    opening survives is for the tests of recovery.
    """
    left: list[tuple[ForgetfulFileSystem, Record]] = []

    def watch(fs: ForgetfulFileSystem, record: Record) -> None:
        first = record.first_call if story.start.nodes else 0
        if first is not None and sample.has(fs.calls - first):
            left.append((fs.copy(), record.copy()))

    whole = play(story, level, watch=watch)
    for fs, record in left:
        _show(story, fs, record)
        yield fs, record
    yield whole
