"""A crash at any call of a replica: what it had acknowledged is there, and nothing that its source had not recorded.

The source crashes as well, in some stories with a round on its way that only the replica has: it lets go of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from support.crash_cases import EXTREMES, FULL, trees_of
from support.crash_level import ANY_QUEUE, CYCLING, LAGGING, NOON_US, Level, open_space
from support.crash_story import EMPTY
from support.forgetful import Crashed, ForgetfulFileSystem, Tree
from support.journal_of import journal_log
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.owner.record import Owner
from xaqueue.core.storage.fs import replace_file
from xaqueue.errors import ResourceFailed, SpaceError
from xaqueue.features.replica import replicated
from xaqueue.features.replica.journal_copy import JournalCopy
from xaqueue.features.replica.options import Replication
from xaqueue.features.replica.promote import take_place
from xaqueue.features.replica.replicated import REPLICA, REPLICATION, Replicated
from xaqueue.features.replica.shipping import Shipping, shipping_of
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]
SHIPS = replace(ANY_QUEUE, tables={"replication": Replication(is_on=True, keep_bytes=1 << 30)})
LARGE = replace(CYCLING, name="JOURNAL, small segments that are shipped")
SMALL = replace(LAGGING, name="JOURNAL, one segment", left_bytes=None)
State = dict[str, list[bytes]]
Place = tuple[int, int]


def seen(space: Space) -> State:
    session = Session(space)
    found = {queue: sorted(one.body for one in session.browse(queue)) for queue in ("a", "b")}
    found["in doubt"] = sorted(str(xid).encode() for xid in session.recover(1000, Flag.STARTRSCAN))
    return found


@dataclass
class Source:
    """A space in several openings, and by the end of its journal what it showed then."""

    level: Level
    fs: ForgetfulFileSystem
    epoch: int = 0
    steps: int = 0
    states: dict[Place, State] = field(default_factory=lambda: {START: {"a": [], "b": [], "in doubt": []}})
    space: Space = field(init=False)

    def open(self) -> None:
        self.epoch += 1
        self.space = open_space(self.fs, self.level, definitions=SHIPS, epoch=self.epoch)
        self.note()

    @property
    def shipping(self) -> Shipping:
        shipping = shipping_of(self.space)
        assert shipping is not None
        return shipping

    def note(self) -> None:
        self.states[self.shipping.end] = seen(self.space)

    def state_at(self, place: Place) -> State:
        """Records of the journal's own change nothing, and a round of one step is there or not."""
        return self.states[max(one for one in self.states if one <= place)]

    def step(self) -> None:
        self.steps += 1
        session, xid = Session(self.space), Xid(1, b"%d" % self.steps, b"")
        session.start(xid)
        session.enqueue("ab"[self.steps % 2], b"%d " % self.steps + b"." * (700 if self.steps % 3 == 0 else 5))
        if self.steps % 3 == 0:
            session.dequeue("ba"[self.steps % 2])
        session.end(xid)
        if self.steps % 2:
            session.prepare(xid)
            self.note()
        if self.steps % 5:
            session.commit(xid, Flag.NOFLAGS if self.steps % 2 else Flag.ONEPHASE)
        self.note()
        if self.steps % 4 == 0:
            self.space.checkpoint()
            self.note()

    def kill(self) -> None:
        self.space.log.end(ResourceFailed("killed"))
        self.fs = self.fs.tree_after_kill().open()


@dataclass
class Replica:
    source: Source
    fs: ForgetfulFileSystem
    acknowledged: Place = (0, 0)

    def catch_up(self, *, follows: bool) -> None:
        copy = JournalCopy(self.fs, *START)
        self.acknowledged = max(self.acknowledged, (copy.epoch, copy.lsn))
        while True:
            piece = self.source.shipping.next(copy.epoch, copy.lsn, copy.hardened, 0)
            assert piece is not None
            if not piece.data:
                break
            copy.take(piece)
            self.acknowledged = copy.epoch, copy.lsn
            if follows:
                copy.follow()


START: Place = (1, 512)
"""Where the journal of a new space begins: the replica has a copy of the empty one."""


def played(source: Source, replica: Replica) -> Iterator[None]:
    """Steps, and what the replica makes of them, at its own pace; the source is killed in between."""
    for turn in range(4):
        for _ in range(3):
            source.step()
            if turn % 2:
                replica.catch_up(follows=bool(source.steps % 2))
                yield
        replica.catch_up(follows=turn == 2)
        yield
        if turn == 1:
            source.kill()
            source.open()


def begun(level: Level, crash_after: int | None) -> tuple[Source, Replica]:
    source = Source(level, EMPTY.open())
    source.open()
    tree: Tree = EMPTY
    return source, Replica(source, tree.open(crash_after))


def promoted(fs: ForgetfulFileSystem, level: Level) -> tuple[Place, State]:
    copy = JournalCopy(fs, *START)
    copy.follow(everything=True)
    fs.sync_all()
    space = open_space(fs, level, definitions=ANY_QUEUE, epoch=1000)
    return (copy.epoch, copy.lsn), seen(space)


@pytest.mark.parametrize("level", [SMALL, LARGE], ids=str)
def test_it_is_its_source_at_a_moment_that_it_had_acknowledged_or_later(level: Level) -> None:
    checked = 0
    for crash_after in count(1, 1 if FULL else 7):
        source, replica = begun(level, crash_after)
        with suppress(Crashed):
            for _ in played(source, replica):
                pass
        trees = [replica.fs.tree_after_kill(), *trees_of(replica.fs, level, EXTREMES)]
        for tree in trees:
            place, state = promoted(tree.open(), level)
            assert place >= replica.acknowledged
            assert state == source.state_at(place)
            checked += 1
        if not replica.fs.crashed:
            break
    assert checked > 100


@pytest.mark.parametrize("level", [SMALL, LARGE], ids=str)
def test_it_goes_on_behind_a_crash(level: Level) -> None:
    for crash_after in count(2, 1 if FULL else 11):
        source, replica = begun(level, crash_after)
        with suppress(Crashed):
            for _ in played(source, replica):
                pass
        for tree in (replica.fs.tree_after_kill(), *trees_of(replica.fs, level, EXTREMES)):
            again = Replica(source, tree.open())
            again.catch_up(follows=True)
            place, state = promoted(again.fs, level)
            assert (place, state) == (source.shipping.end, source.states[source.shipping.end])
        if not replica.fs.crashed:
            return


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("level", [SMALL, LARGE], ids=str)
def test_a_promotion_may_be_cut_off_at_any_call(level: Level, is_complete: bool) -> None:
    """It is a replica yet, and is promoted again, or it is the space."""
    source, replica = begun(level, None)
    for number, _ in enumerate(played(source, replica)):
        if number == 6:
            break
    replica.fs.create(REPLICATION, [replicated.encode(Replicated(REPLICA, "xaq://there", "id", 1, *START))])
    replica.fs.sync_all()
    tree, wanted, ended = replica.fs.tree_after_kill(), source.state_at(replica.acknowledged), 0
    if not is_complete:
        wanted = wanted | {"in doubt": []}  # which an operator decides
    for crash_after in count(1, 1 if FULL else 3):
        fs = tree.open(crash_after)
        with suppress(Crashed):
            taken(fs, is_complete)
        for left in (fs.tree_after_kill().open(), *(one.open() for one in trees_of(fs, level, EXTREMES))):
            found = replicated.read(left)
            assert found is not None
            if found.role == REPLICA:
                taken(left, is_complete)
                left.sync_all()
            else:
                ended += 1
            space = open_space(left, level, definitions=ANY_QUEUE, epoch=1000)
            assert seen(space) == wanted
            session = Session(space)
            assert [one.possible_duplicate for one in session.browse("a")].count(is_complete) == 0
            assert space.queues["a"].reserved > 1 << 32
        if not fs.crashed:
            break
    assert ended


def taken(fs: ForgetfulFileSystem, is_complete: bool) -> None:
    here = Owner(1 << 16, "host", 1, "", "JOURNAL")
    defined = replace(SHIPS, tables={"replication": Replication(is_on=True, waits=is_complete)})
    take_place(fs, here, NOON_US, defined, lambda data: replace_file(fs, layout.OWNER, data))


def test_what_only_the_replica_has_goes_with_a_crash_of_the_source() -> None:
    """A round was shipped before it was synced, and lost there: it was promised to nobody."""
    for follows in (True, False):
        source, replica = begun(SMALL, None)
        source.step()
        replica.catch_up(follows=follows)
        before, state = source.fs.tree_after_kill(), seen(source.space)
        hardened = journal_log(source.space).journal.position  # type: ignore[union-attr]
        source.step()
        copy = JournalCopy(replica.fs, *START)
        piece = source.shipping.next(copy.epoch, copy.lsn, copy.hardened, 0)
        assert piece is not None
        copy.take(piece._replace(hardened=hardened))
        copy.follow()
        source.space.log.end(ResourceFailed("killed"))
        source.fs = before.open()
        source.steps += 10
        source.open()
        assert seen(source.space) == state
        source.step()
        for _ in range(3):
            piece = source.shipping.next(copy.epoch, copy.lsn, copy.hardened, 0)
            assert piece is not None
            copy.take(piece)
        place, found = promoted(replica.fs, SMALL)
        assert (place, found) == (source.shipping.end, seen(source.space))


def test_what_its_source_has_lost_though_it_was_hardened_is_not_given_up() -> None:
    source, replica = begun(SMALL, None)
    before = source.fs.tree_after_kill()
    source.step()
    copy = JournalCopy(replica.fs, *START)
    piece = source.shipping.next(copy.epoch, copy.lsn, copy.hardened, 0)
    assert piece is not None
    copy.take(piece)
    source.space.log.end(ResourceFailed("killed"))
    source.fs = before.open()
    source.open()
    piece = source.shipping.next(copy.epoch, copy.lsn, copy.hardened, 0)
    assert piece is not None
    with pytest.raises(SpaceError, match="has lost its journal from LSN"):
        copy.take(piece)
