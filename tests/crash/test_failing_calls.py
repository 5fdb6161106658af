"""No room, or an error of the disk, at each call of what queues do beside plain transactions.

What was acknowledged is there, once. What is refused for want of room is done when it is asked again with room; what
fences is done as a whole or not at all, which the next open shows, and the rest goes on from there.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TypeVar

import pytest

from support.carry_scene import GIVEN_TREE, LEDGER, Deed, Scene
from support.crash_level import JOURNAL, LAGGING, STRICT, Level, open_space, ready
from support.crash_story import EMPTY
from support.failing_disk import FailingFileSystem
from support.forgetful import Tree
from support.tm_world import STARTED, mortal
from xaqueue.core.engine import timeouts
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.errors import (
    DecisionLogError,
    DiskFull,
    LeaseExpired,
    OperationalError,
    ResourceFailed,
    RetryLater,
    UnknownXid,
)
from xaqueue.features.kinds import KINDS
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.snapshots import restore, store
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.features.snapshots.take import take
from xaqueue.xa import Flag
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
LEVELS = [STRICT, LAGGING, JOURNAL]
REFUSALS = (DecisionLogError, OperationalError, OSError)
HOUR_US = 3_600_000_000
NOW_US = 1_700_000_000_000_000
FORMAT_LINE = b"xaqueue 1 orders 11111111-1111-1111-1111-111111111111"
WAY = Definitions(
    default=QueueDefinition(options={"max_tries": 9, "failure_queue": "dead"}),
    queues={
        "once": QueueDefinition(options={"max_tries": 1, "failure_queue": "dead"}),
        "slow": QueueDefinition(options={"max_tries": 9, "retry_delay_s": 1}),
    },
)
QUEUES = ("a", "c", "dead", "g", "once", "slow")
Contents = dict[str, list[bytes]]
Answer = TypeVar("Answer")


class Work:
    """A space on a failing disk, in its present life."""

    def __init__(self, tree: Tree, level: Level) -> None:
        self.level, self.fs, self.numbers = level, FailingFileSystem(tree), count(1)
        self.space = open_space(self.fs, level, goes_on=True, definitions=WAY)
        self.refused = 0
        self.known: Contents = {queue: list(bodies) for queue, bodies in GIVEN.items()}
        """What was acknowledged."""
        self.will()

    def reopen(self) -> None:
        """Its process ended: the disk is well again, and the next one opens what there is."""
        self.fs.heal()
        self.space = open_space(self.fs, self.level, definitions=WAY)

    def session(self) -> Session:
        return Session(self.space)

    def again(self, call: Callable[[], Answer], undo: Callable[[], object] = lambda: None) -> Answer:
        """What finds no room is asked again when there is some."""
        try:
            return call()
        except (RetryLater, DiskFull):
            assert self.fs.struck, "nothing was wrong"
            assert self.fs.fails_with == errno.ENOSPC, "an error of the disk is not the want of room"
            self.fs.heal()
            self.refused += 1
            undo()
            return call()

    def begin(self, work: Callable[[Session], object]) -> tuple[Session, Xid]:
        session, xid = self.session(), Xid(1, b"%d" % next(self.numbers), b"")

        def undo() -> None:
            with suppress(UnknownXid):
                session.rollback(xid)

        def perform() -> None:
            session.start(xid)
            try:
                work(session)
            finally:
                with suppress(OperationalError):
                    session.end(xid)

        self.again(perform, undo)
        return session, xid

    def transact(self, work: Callable[[Session], object]) -> None:
        """In two phases; where it finds no room to prepare, it is done anew."""
        session, xid = self.begin(work)
        try:
            session.prepare(xid)
        except (RetryLater, DiskFull):
            self.fs.heal()
            self.refused += 1
            with suppress(UnknownXid):
                session.rollback(xid)
            session, xid = self.begin(work)
            session.prepare(xid)
        self.again(lambda: session.commit(xid))

    def roll_back(self, work: Callable[[Session], object]) -> None:
        session, xid = self.begin(work)
        self.again(lambda: session.rollback(xid))

    def lease(self, queue: str) -> tuple[bytes, bytes]:
        """The lease, and the body."""
        ((lease, message),) = self.again(lambda: self.session().receive(queue, lease_s=3600))
        return lease, message.body

    def will(self, *changes: tuple[str, bytes]) -> None:
        """What this step comes to: "-a" takes from that queue, "+a" adds to it."""
        self.wanted = {queue: list(bodies) for queue, bodies in self.known.items()}
        for change, body in changes:
            bodies = self.wanted[change[1:]]
            (bodies.append if change[0] == "+" else bodies.remove)(body)
            bodies.sort()

    def contents(self) -> Contents:
        """Once what is in doubt is committed."""
        for xid in self.session().recover(99, Flag.STARTRSCAN):
            self.session().commit(xid)
        return {queue: sorted(one.body for one in self.session().browse(queue)) for queue in QUEUES}


def _took(session: Session, queue: str) -> bytes:
    message = session.dequeue(queue)
    assert message is not None
    return message.body


def ack(work: Work) -> None:
    lease, body = work.lease("a")
    work.will(("-a", body))
    session = work.session()
    work.again(lambda: session.settle("a", lease, "ack"))


def nack(work: Work) -> None:
    lease, _ = work.lease("a")
    session = work.session()
    work.again(lambda: session.settle("a", lease, "nack", HOUR_US))


def reject(work: Work) -> None:
    lease, body = work.lease("a")
    work.will(("-a", body), ("+dead", body))
    session = work.session()
    work.again(lambda: session.settle("a", lease, "reject", "no such customer"))


def accept(work: Work) -> None:
    """The roll-back of what has accepted it hands the message back, and it is received again."""
    lease, body = work.lease("a")

    def both(session: Session) -> None:
        nonlocal lease, body
        session.enqueue("c", b"effect")
        try:
            session.accept("a", lease)
        except LeaseExpired:
            lease, body = work.lease("a")
            session.accept("a", lease)
        work.will(("-a", body), ("+c", b"effect"))

    work.transact(both)


def lease_ends(work: Work) -> None:
    work.lease("a")
    timeouts.expire(work.space, time.monotonic() + 3601, float("inf"))
    if work.fs.struck and work.space.failure is None:
        work.fs.heal()
        timeouts.expire(work.space, time.monotonic() + 7202, float("inf"))
    work.space.check()
    assert not work.space.branches, "the lease has ended"


def add_group(work: Work) -> None:
    def add(session: Session) -> None:
        for body in (b"g1", b"g2"):
            session.enqueue("g", body, group="of one")
        session.enqueue("g", b"other", group="of another")
        work.will(("+g", b"g1"), ("+g", b"g2"), ("+g", b"other"))

    work.transact(add)


def take_of_group(work: Work) -> None:
    """One holds the group until it is rolled back; then its first is taken first."""
    work.roll_back(lambda session: [_took(session, "g") for _ in range(2)])
    taken: list[bytes] = []

    def first(session: Session) -> None:
        taken.append(_took(session, "g"))
        work.will(("-g", taken[-1]))

    work.transact(first)
    assert taken[-1] == b"g1"


def put_off(work: Work) -> None:
    work.roll_back(lambda session: _took(session, "slow"))


def dead_letter(work: Work) -> None:
    """The only try fails, and it is moved."""
    work.roll_back(lambda session: _took(session, "once"))
    work.will(("-once", b"once"), ("+dead", b"once"))
    work.again(lambda: moving.move_exhausted(work.space, lambda: False))
    if work.fs.struck:
        work.fs.heal()
        settle_down(work)
        moving.move_exhausted(work.space, lambda: False)


def snapshot(work: Work) -> None:
    try:
        taken = work.again(lambda: take(work.space))
    except ResourceFailed:
        raise
    except OperationalError:
        assert work.fs.struck, "nothing was wrong"
        assert work.space.failure is None
        work.fs.heal()
        taken = take(work.space)
    assert list(store.damage(work.fs, f"{SNAPSHOTS}/{taken.number}")) == []
    assert not [name for name in work.fs.list(SNAPSHOTS) if name.startswith(".")]
    start, nodes = f"{SNAPSHOTS}/{taken.number}/", work.fs.tree_after_kill().nodes
    alone = Tree({path.removeprefix(start): data for path, data in nodes.items() if path.startswith(start)})
    assert Work(alone, work.level).contents() == work.known, "it is the space"


STEPS: dict[str, Callable[[Work], None]] = {
    "ack": ack,
    "nack": nack,
    "reject": reject,
    "accept": accept,
    "end of a lease": lease_ends,
    "enqueue with group": add_group,
    "dequeue of a group": take_of_group,
    "rollback with delay": put_off,
    "dead letter": dead_letter,
    "snapshot": snapshot,
}
GIVEN: Contents = {
    "a": [b"1", b"2", b"3"],
    "c": [],
    "dead": [],
    "g": [],
    "once": [b"once"],
    "slow": [b"s1", b"s2"],
}


_given: dict[Level, Tree] = {}


def given(level: Level) -> Tree:
    if level not in _given:
        fs = ready(EMPTY, level).open()
        fs.create(layout.FORMAT, [FORMAT_LINE])
        fs.create(layout.QUEUES, [b"[default]\n"])
        fs.sync_all()
        session = Session(open_space(fs, level, goes_on=True, definitions=WAY))
        for number, (queue, body) in enumerate((queue, body) for queue, bodies in GIVEN.items() for body in bodies):
            _put(session, number, queue, body)
        _given[level] = fs.tree_after_kill()
    return _given[level]


def _put(session: Session, number: int, queue: str, body: bytes) -> None:
    xid = Xid(2, b"%d" % number, b"")
    session.start(xid)
    session.enqueue(queue, body)
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)


def settle_down(work: Work) -> None:
    """What the threads of an owner do behind a step: what is left is completed, the directories follow."""
    try:
        timeouts.expire(work.space, time.monotonic() + 7202, float("inf"), 0.0)
        if work.level is not LAGGING:  # there the journal alone has it
            work.space.log.settle()
            work.space.checkpoint()
    except OSError as error:
        if error.errno in NO_ROOM:
            raise RetryLater("follow that") from error
        raise work.space.fence(error) from error
    work.space.check()


def tried(work: Work, step: Callable[[Work], None]) -> bool:
    """Whether it was acknowledged; else the space is fenced."""
    try:
        step(work)
        work.known = work.wanted
        work.again(lambda: settle_down(work))
    except ResourceFailed:
        assert work.fs.struck, "nothing was wrong"
        return False
    return True


def fail_at(level: Level, name: str, number: int, at: int) -> Work:
    """The step is done with a fault, another process goes on, and the rest is as it would have been."""
    work, step = Work(given(level), level), STEPS[name]
    if name == "dequeue of a group":
        add_group(work)
        work.known = work.wanted
    work.fs.fail(at, number)
    work.will()
    if tried(work, step):
        work.fs.heal()
        assert work.contents() == work.known, "in memory"
        work.reopen()
        assert work.contents() == work.known, "on disk"
    else:
        work.reopen()
        found = work.contents()
        assert found in (work.known, work.wanted), "as a whole, or not at all"
        work.known = found
    assert work.space.report.notes == []
    for other in (ack, reject, add_group, snapshot):
        work.will()
        assert tried(work, other)
    work.reopen()
    assert work.contents() == work.known
    return work


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["no room", "EIO"])
@pytest.mark.parametrize("level", LEVELS, ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_whose_call_fails(name: str, level: Level, number: int) -> None:
    first, every = (0, 1) if FULL else ((len(name) + number) % 2, 11)
    for at in count(first, every):
        if not fail_at(level, name, number, at).fs.struck:
            break
    assert at > first, "no call has failed"


def to_restore(level: Level) -> tuple[Work, Contents]:
    """A space that was closed, with a snapshot, and what it held then; messages came and went behind it."""
    work = Work(given(level), level)
    for step in (ack, snapshot, reject, add_group):
        work.will()
        step(work)
        work.known = work.wanted
        if step is snapshot:
            then = work.known
    work.space.close()
    return work, then


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["no room", "EIO"])
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_restore_whose_call_fails(level: Level, number: int) -> None:
    """Done again it has all of the snapshot; given up before it was ready, or behind its last call, it is whole."""
    every, gives_up = (1, (False, True)) if FULL else (11, (False,))
    for at in count(level.name.count("J") * 3, every):
        for gives_up_at_once in gives_up:
            work, then = to_restore(level)
            is_given_up = gives_up_at_once
            work.fs.fail(at, number)
            with suppress(*REFUSALS):
                restore.restore(work.fs, restore.Wanted(exact=True), NOW_US, kinds=KINDS)
                assert not work.fs.struck, "it is done, and yet a call has failed"
            work.fs.heal()
            if work.fs.struck and (not is_given_up or restore.is_cut_off(work.fs)):
                restore.restore(work.fs, restore.Wanted(exact=True), NOW_US, kinds=KINDS)
                is_given_up = False
            work.reopen()
            may_be = [work.known, then] if work.fs.struck and is_given_up else [then]
            assert work.contents() in may_be
        if not work.fs.struck:
            break
    assert at >= every


DEEDS = (
    Deed(puts=(("out", b"1"), ("out", b"2"))),
    Deed(takes=("in",)),
)
AFTERWARDS = Deed(puts=(("out", b"4"),))


def carry(scene: Scene) -> None:
    """Some changes are carried, hardened and removed, others are not; who is fenced is opened again, and goes on."""
    scene.play(DEEDS)
    assert scene.space is not None
    if scene.space.failure is None:
        with suppress(*REFUSALS):
            scene.space.log.settle()
            scene.space.checkpoint()
    scene.rig.recover()
    is_there = next(iter(scene.done.values())).told
    scene.play([Deed(puts=(("out", b"3"),), takes=("out", "in") if is_there else ("in",))])
    scene.rig.recover()


@pytest.mark.parametrize("fault", ["", "answer lost"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["no room", "EIO"])
def test_a_carried_note_whose_call_fails(number: int, fault: str) -> None:
    every = 1 if FULL else 9
    for at in count(len(fault) % every, every):
        scene = Scene(fault=fault)
        fs = FailingFileSystem(GIVEN_TREE)
        scene._boot(fs, mortal(STARTED, scene.world))
        fs.fail(at, number)
        with suppress(*REFUSALS):
            scene.make_ready()
        with suppress(*REFUSALS):
            carry(scene)
        fs.heal()
        scene.fault = ""
        scene.rig.recover()
        scene.play([AFTERWARDS])
        assert list(scene.done.values())[-1].told, "it goes on"
        scene.fork().recover(*scene.trees_after_kill())
        if not fs.struck:
            assert [row for row in scene.ledgers[LEDGER].rows.values() if row[3] is not None], "carried"
            break
    assert at >= every
