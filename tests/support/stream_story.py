"""A stream consumes a queue on a forgetful file system, cut off at any call; trees are held to what was acknowledged.

The queue lies across the edge of a range, so that a range directory is emptied and goes. ``Promised`` is the model: the
numbers of all messages, how far they are consumed for sure, and how far at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache

from support.crash_level import STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY, body_of, message_id
from support.forgetful import ForgetfulFileSystem, LastingFileSystem, Tree
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode
from xaqueue.core.model.layout import RANGE_SIZE, Watermark
from xaqueue.errors import QueueReserved
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.xa import Flag
from xaqueue.xid import Xid

QUEUE, STREAM = "a", "query#1"
BEFORE = RANGE_SIZE - 4
"""The last number that was given out before the story."""
FRESH = 99
"""The message that is put after a crash."""


Act = tuple[str, tuple[int | bool, ...]]
Acts = list[Act]


@dataclass
class Promised:
    """What was acknowledged, and what was asked for."""

    seqs: dict[int, int] = field(default_factory=dict)
    """By message its number: those that are there for sure."""
    perhaps: int | None = None
    """The message that is being put."""
    least: int = 0
    most: int = 0
    """Through which number it is consumed, for sure and at most."""
    kept_above: int = 0
    """What is consumed above this number is in the archive."""
    reserved: bool = False
    may_be_reserved: bool = False
    ended: bool = False
    """It may have been released."""
    taken: set[int] = field(default_factory=set)
    """Messages that another one has dequeued, or was about to."""


@dataclass
class Player:
    """Each method is an act; ``promised`` says what it is about to do before, and what it has done after it."""

    space: Space
    level: Level
    promised: Promised

    def __post_init__(self) -> None:
        self.session = Session(self.space)

    def put(self, message: int) -> None:
        self.promised.perhaps = message
        put(self.session, message)
        seqs = {found.message_id: found.seq for found in self.session.browse(QUEUE)}
        self.promised.seqs[message] = seqs[message_id(message)]
        self.promised.perhaps = None

    def reserve(self, upto: int) -> None:
        self.promised.may_be_reserved = True
        self.session.reserve(QUEUE, STREAM, self.promised.least, upto)
        self.promised.reserved = True

    def consume(self, upto: int, archive: bool = False) -> None:
        self.promised.most = upto
        self.session.consume(QUEUE, STREAM, upto, archive)
        self.promised.least = upto

    def clear(self) -> None:
        cleanup.clear(self.space)

    def release(self) -> None:
        self.promised.ended = True
        self.session.release(QUEUE)
        self.promised.reserved = self.promised.may_be_reserved = False

    def take(self) -> None:
        first = min(seq for seq in self.promised.seqs.values() if seq > self.promised.least)
        self.promised.taken.add(first)
        xid = Xid(1, b"take%d" % first, b"")
        self.session.start(xid)
        message = self.session.dequeue(QUEUE)
        assert message is not None
        assert message.seq == first
        self.session.end(xid)
        self.session.commit(xid, Flag.ONEPHASE)

    def play(self, acts: Acts) -> None:
        for act in acts:
            self.act(act)
            follow(self.space, self.level, "one-phase")

    def act(self, act: Act) -> None:
        name, arguments = act
        getattr(self, name)(*arguments)


def put(session: Session, message: int) -> None:
    xid = Xid(1, b"put%d" % message, b"")
    session.start(xid)
    session.enqueue(QUEUE, body_of(message), message_id=message_id(message))
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)


@cache
def start() -> tuple[Tree, dict[int, int]]:
    """Three messages, the last of them one below the edge of their range, and the numbers that they have."""
    marked = {layout.queue_path(QUEUE): None, layout.watermark_path(QUEUE): mark(BEFORE)}
    fs = Tree({**EMPTY.nodes, **marked}).open()
    space = open_space(fs, STRICT)
    player = Player(space, STRICT, Promised())
    for message in (1, 2, 3):
        player.put(message)
    space.close()
    return fs.tree_after_kill(), player.promised.seqs


def mark(seq: int) -> bytes:
    return layout.format_watermark(Watermark(seq, seq))


Watch = Callable[[ForgetfulFileSystem, Promised], object]


def play(acts: Acts, level: Level, watch: Watch = lambda fs, promised: None) -> tuple[ForgetfulFileSystem, Promised]:
    """Played to a clean close. watch: is called before each call that changes or syncs something, once it is open."""
    tree, seqs = start()
    fs, promised = ready(tree, level).open(), Promised(dict(seqs))
    space = open_space(fs, level, goes_on=True)
    fs.before_call = lambda: watch(fs, promised)
    Player(space, level, promised).play(acts)
    space.close()
    fs.before_call = lambda: None
    return fs, promised


def crashes(acts: Acts, level: Level, every: int = 1, first: int = 0) -> Iterator[tuple[ForgetfulFileSystem, Promised]]:
    """What a crash leaves before each call that changes or syncs something, or one in so many, and at the end.

    The space is opened in peace.
    """
    left: list[tuple[ForgetfulFileSystem, Promised]] = []
    whole = play(acts, level, lambda fs, promised: left.append((fs.copy(), deepcopy(promised))))
    yield from left[first % every :: every]
    yield whole


def judge(tree: Tree, promised: Promised, level: Level) -> None:
    """AssertionError unless the tree keeps what was promised, and the next owner goes on with it."""
    fs = tree.open_for_good()
    space = open_space(fs, level)
    session = Session(space)
    consumed = _check_reservation(session, promised)
    _check_messages(session, promised, consumed)
    cleanup.clear(space)
    _check_messages(session, promised, consumed)
    _check_files(fs, space, promised, consumed)
    put(session, FRESH)
    fresh = max(message.seq for message in session.browse(QUEUE))
    assert fresh > max(*promised.seqs.values(), promised.most), "a number is given out twice"
    notes = [note for note in space.report.notes if not note.startswith("the journal ended in")]
    assert [*space.report.quarantined, *notes] == []
    space.close()


def _check_reservation(session: Session, promised: Promised) -> int:
    """How far it is consumed."""
    told = session.reservations()
    assert told or promised.ended or not promised.reserved, "the reservation is lost"
    assert not told or promised.may_be_reserved or promised.ended
    record = session.space.queue(QUEUE).record
    consumed = record.consumed if record is not None else 0
    assert promised.least <= consumed <= promised.most
    if told:
        assert (told[0].stream, told[0].consumed) == (STREAM, consumed)
        assert told[0].latest >= max(promised.seqs.values())
        assert _is_refused(session)
    return consumed


def _is_refused(session: Session) -> bool:
    """Whether nobody else may take a message."""
    xid = Xid(1, b"try", b"")
    session.start(xid)
    try:
        session.dequeue(QUEUE)
    except QueueReserved as refused:
        return STREAM in str(refused)
    finally:
        session.end(xid)
        session.rollback(xid)
    return False


def _check_messages(session: Session, promised: Promised, consumed: int) -> None:
    seen = {message.seq: message.body for message in session.browse(QUEUE)}
    sure = {seq: body_of(message) for message, seq in promised.seqs.items() if seq > consumed}
    assert not [seq for seq in seen if seq <= consumed], "a consumed message is back"
    left = {seq: body for seq, body in sure.items() if seq not in promised.taken}
    assert left.items() <= seen.items(), "a message is lost"
    more = {body for seq, body in seen.items() if seq not in left and seq not in promised.taken}
    assert more <= ({body_of(promised.perhaps)} if promised.perhaps is not None else set())


def _check_files(fs: LastingFileSystem, space: Space, promised: Promised, consumed: int) -> None:
    """What is consumed is in no range directory; what was to be kept is in the archive, whole."""
    space.log.settle()
    committed = messages_in(fs, layout.COMMITTED)
    assert not [seq for seq in committed if seq <= consumed]
    if consumed:
        edge = layout.range_path(QUEUE, BEFORE)
        assert fs.is_dir(edge) == any(seq < RANGE_SIZE for seq in committed), "an emptied range stays"
    archived = messages_in(fs, layout.ARCHIVE)
    kept = {seq: body_of(m) for m, seq in promised.seqs.items() if promised.kept_above < seq <= consumed}
    assert archived == kept


def messages_in(fs: LastingFileSystem, directory: str) -> dict[int, bytes]:
    """Number and body of each. DamagedBlock where one is torn."""
    found = {}
    base = f"{directory}/queue={QUEUE}"
    for inner in fs.list(base) if fs.is_dir(base) else ():
        for name in fs.list(f"{base}/{inner}") if inner.startswith("range=") else ():
            found[int(name[:16], 16)] = decode(fs.read(f"{base}/{inner}/{name}")).body
    return found


ONE, TWO, THREE, FOUR, FIVE = range(BEFORE + 1, BEFORE + 6)
"""The numbers of the messages; three stand before the edge of their range, and the fourth behind it."""
NEVER_KEPT = FIVE
