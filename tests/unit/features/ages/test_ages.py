"""A message expires so long after its commit as its queue says, for everybody at once, and as by a time of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import xaqueue
from support.bare_space import BareSpace, bare_space, wall_clock
from support.crash_level import NOON_US
from support.served import ServerThread
from xaqueue.core.model.definitions import Definitions, QueueDefinition, parse
from xaqueue.core.model.layout import message_path
from xaqueue.core.model.order import Order
from xaqueue.core.owner import open
from xaqueue.core.owner.chores import NEVER, Chores
from xaqueue.errors import InvalidArgument
from xaqueue.features.ages import ages
from xaqueue.features.ages.chores import Expire
from xaqueue.features.counters.values import Counters
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.offline import inspect
from xaqueue.offline.reader import QueueReader
from xaqueue.rpc.methods.service import queue_list
from xaqueue.testing import MemorySpace
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

PATIENCE_S = 60.0
SECOND_US = 1_000_000
AGE_S = 100


def limited(age_s: int = AGE_S, order: Order = Order.FIFO, **more: object) -> QueueDefinition:
    return QueueDefinition(order, options={"max_age_s": age_s, **more})


PLAIN = QueueDefinition()
UNSYNCED = f'[queues.q]\nsync = "NONE"\nmax_age_s = {AGE_S}\n'
DEFINED = Definitions(
    {
        "q": limited(),
        "short": limited(10),
        "newest": limited(order=Order.LIFO),
        "first": limited(order=Order.PRIORITY),
        "kept": limited(expiry_queue="late"),
        "late": limited(),
        "plain": PLAIN,
    }
)


class Clock:
    now_us = NOON_US

    def __call__(self) -> int:
        return self.now_us

    def on(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND_US)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["NONE", "FDATASYNC;DSYNC", "JOURNAL"])
def bare(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "s", request.param, clock, DEFINED) as made:
        yield made


def put(bare: BareSpace, queue: str, *bodies: bytes) -> None:
    """And the directories have followed."""
    bare.put(queue, *bodies)
    bare.space.settle()


def define(bare: BareSpace, queue: str, definition: QueueDefinition) -> None:
    bare.space.redefine(Definitions({**bare.space.definitions.queues, queue: definition}))


class Unhurried(Chores):
    """Never over."""

    def __init__(self) -> None:
        pass

    def is_over(self) -> bool:
        return False


def look(bare: BareSpace) -> float:
    """In how many seconds it looks again."""
    made = Expire(bare.space)
    made.run(Unhurried())
    return made.left_s()


def browsed(bare: BareSpace, queue: str) -> list[bytes]:
    with bare.connect() as connection:
        return [message.body for message in connection.browse(queue)]


@pytest.mark.parametrize("queue", ["q", "newest", "first"])
def test_it_is_given_out_until_its_time_and_not_from_then_on(bare: BareSpace, clock: Clock, queue: str) -> None:
    put(bare, queue, b"1")
    clock.on(60)
    put(bare, queue, b"2")
    clock.now_us = NOON_US + AGE_S * SECOND_US - 1
    assert sorted(bare.take(queue)) == sorted(browsed(bare, queue)) == [b"1", b"2"]
    clock.now_us += 1
    assert browsed(bare, queue) == bare.take(queue) == [b"2"]
    clock.on(60)
    assert bare.take(queue) == browsed(bare, queue) == []
    assert cleanup.expire(bare.space)
    bare.space.settle()
    assert bare.messages(queue) == []
    assert bare.space.queues[queue].memory_of(Counters).expired == 2


def test_who_asks_for_one_by_its_id_is_not_given_it_either(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        message_id = connection.enqueue("q", b"1", correlation_id=b"c")
        connection.commit()
        bare.space.settle()
        clock.on(AGE_S)
        assert connection.dequeue("q", message_id=message_id) is None
        assert connection.dequeue("q", correlation_id=b"c") is None
        assert not connection.remove("q", message_id)
        assert connection.dequeue_many("q", 10) == []


@pytest.mark.parametrize("dies", [False, True])
def test_it_counts_from_the_commit_on(bare: BareSpace, clock: Clock, dies: bool) -> None:
    """Not from its enqueue, nor from its prepare."""
    xid = bare.prepare("slow", add=[("q", b"1")])
    clock.on(2 * AGE_S)
    if dies:
        bare.reopen()
    with bare.connect() as connection:
        connection.tpc_commit(xid)
    bare.space.settle()
    clock.on(AGE_S - 1)
    assert bare.take("q") == [b"1"]
    clock.on(1)
    assert bare.take("q") == []


def test_it_holds_over_a_restart_whenever_that_is(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"1")
    clock.on(60)
    put(bare, "q", b"2")
    bare.reopen()
    assert bare.take("q") == [b"1", b"2"]
    clock.on(40)
    bare.reopen()
    assert bare.take("q") == [b"2"]
    bare.reopen()
    clock.on(60)
    assert bare.take("q") == []


def test_each_queue_that_shares_a_message_has_its_own_limit(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        connection.enqueue_to(["q", "short", "plain"], b"1")
        connection.commit()
    bare.space.settle()
    clock.on(10)
    assert [bare.take(queue) for queue in ("q", "short", "plain")] == [[b"1"], [], [b"1"]]
    assert cleanup.expire(bare.space)
    bare.space.settle()
    assert [len(bare.messages(queue)) for queue in ("q", "short", "plain")] == [1, 0, 1]
    bare.reopen()
    clock.on(AGE_S)
    assert [bare.take(queue) for queue in ("q", "short", "plain")] == [[], [], [b"1"]]


def test_its_own_time_holds_where_that_is_sooner(bare: BareSpace, clock: Clock) -> None:
    session, xid = Session(bare.space), Xid(1, b"x", b"")
    session.start(xid)
    session.enqueue("q", b"soon", expires_at=NOON_US + SECOND_US)
    session.enqueue("q", b"later", expires_at=NOON_US + 1000 * SECOND_US)
    session.end(xid)
    session.prepare(xid)
    session.commit(xid)
    bare.space.settle()
    clock.on(1)
    assert bare.take("q") == [b"later"]
    clock.on(AGE_S - 1)
    assert bare.take("q") == []


def test_whoever_holds_it_may_consume_it_and_what_comes_back_leaves(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"1", b"2")
    with bare.connect() as one, bare.connect() as other:
        assert one.dequeue("q") is not None
        assert other.dequeue("q") is not None
        clock.on(AGE_S)
        assert bare.take("q") == []
        assert cleanup.expire(bare.space)
        one.commit()
        other.rollback()
    assert bare.take("q") == []
    assert cleanup.expire(bare.space)
    queue = bare.space.queues["q"]
    assert (len(queue.index), queue.dequeued, queue.memory_of(Counters).expired) == (0, 1, 1)


def test_one_that_is_held_in_doubt_waits_for_its_decision(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"1")
    xid = bare.prepare("held", take=["q"])
    clock.on(AGE_S)
    bare.reopen()
    look(bare)
    assert cleanup.expire(bare.space)
    assert bare.in_doubt() == [xid]
    with bare.connect() as connection:
        connection.tpc_rollback(xid)
    assert bare.take("q") == []


def test_one_that_moves_to_the_expiry_queue_is_new_there(bare: BareSpace, clock: Clock) -> None:
    put(bare, "kept", b"1", b"2")
    clock.on(AGE_S)
    look(bare)
    assert cleanup.expire(bare.space)
    bare.space.settle()
    clock.on(AGE_S - 1)
    with bare.connect() as connection:
        message = connection.dequeue("late")
        assert message is not None
        assert message.origin is not None
        assert (message.origin.queue, message.origin.reason) == ("kept", "expired")
        connection.commit()
    assert bare.space.queues["kept"].memory_of(Counters).expired == 2
    clock.on(1)
    assert bare.take("late") == []


def test_a_limit_that_changes_holds_at_once_for_what_is_there(bare: BareSpace, clock: Clock) -> None:
    put(bare, "plain", b"1", b"2")
    with bare.connect() as connection:
        assert connection.dequeue("plain") is not None
        clock.on(20)
        put(bare, "plain", b"3")
        define(bare, "plain", limited(20))
        assert bare.take("plain") == [b"3"]
        define(bare, "plain", limited(30))
        assert bare.take("plain") == [b"2", b"3"]
        define(bare, "plain", limited(15))
        assert bare.take("plain") == [b"3"]
        define(bare, "plain", PLAIN)
        assert bare.take("plain") == [b"2", b"3"]
        connection.rollback()
    assert bare.take("plain") == [b"1", b"2", b"3"]
    assert look(bare) > 0
    assert cleanup.expire(bare.space)
    assert bare.take("plain") == [b"1", b"2", b"3"]


def test_a_queue_may_have_none_where_the_default_has_one(tmp_path: Path, clock: Clock) -> None:
    defined = Definitions({"log": limited(0)}, default=limited())
    with bare_space(tmp_path / "s", "NONE", clock, defined) as bare:
        put(bare, "log", b"1")
        put(bare, "any", b"1")
        clock.on(AGE_S)
        assert (bare.take("log"), bare.take("any")) == ([b"1"], [])


def test_the_next_of_its_group_comes_up(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        connection.enqueue("q", b"1", group="g")
        connection.commit()
        clock.on(50)
        connection.enqueue("q", b"2", group="g")
        connection.commit()
        bare.space.settle()
        clock.on(50)
        assert bare.take("q") == [b"2"]


def test_one_that_is_put_off_expires_all_the_same(bare: BareSpace, clock: Clock) -> None:
    def counts() -> tuple[int, int, int]:
        status = next(one for one in queue_list(bare.space) if one.name == "q")
        return status.depth, status.delayed, status.ready

    session, xid = Session(bare.space), Xid(1, b"x", b"")
    session.start(xid)
    session.enqueue("q", b"1", not_before=NOON_US + 2 * AGE_S * SECOND_US)
    session.end(xid)
    session.prepare(xid)
    session.commit(xid)
    bare.space.settle()
    assert counts() == (1, 1, 0)
    clock.on(AGE_S)
    look(bare)
    assert cleanup.expire(bare.space)
    assert counts() == (0, 0, 0)


def test_what_a_stream_is_to_consume_stays(bare: BareSpace, clock: Clock, tmp_path: Path) -> None:
    put(bare, "q", b"1", b"2")
    session = Session(bare.space)
    session.reserve("q", "stream", 0, 0)
    clock.on(AGE_S)
    assert look(bare) == 10, "when a first message of another queue may be too old"
    assert cleanup.expire(bare.space)
    bare.space.sync_all()
    assert len(bare.messages("q")) == 2
    bare.space.checkpoint()
    session.consume("q", "stream", QueueReader(tmp_path / "s", "q", even_behind=True).watermark() - 1)
    session.release("q")
    assert bare.take("q") == []


def test_a_dequeue_goes_through_many_in_pieces(bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ages, "PIECE", 3)
    with bare.connect() as connection:
        connection.enqueue_many("q", [b"%d" % number for number in range(10)])
        connection.commit()
    clock.on(50)
    put(bare, "q", b"young")
    for _ in range(2):
        bare.reopen()
        clock.on(25)
    assert bare.take("q") == [b"young"]
    assert len(bare.space.queues["q"].index.expired) == 10


def test_numbers_of_which_nothing_is_left_are_passed_by_ranges(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"1")
    with bare.space.lock:
        bare.space.queue("q").last += 10 << 12  # as after crashes, which numbers go on behind
    put(bare, "q", b"2")
    clock.on(50)
    put(bare, "q", b"3")
    clock.on(50)
    bare.space.queues["q"].index.clock.strike(bare.space, bare.space.queues["q"], clock.now_us)  # type: ignore[union-attr]
    assert bare.take("q") == [b"3"]


def test_a_message_costs_one_look_at_its_file_and_a_dequeue_none(
    bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bare, "plain", b"1")
    put(bare, "q", *(b"%d" % number for number in range(20)))
    looks: list[str] = []
    real = bare.space.fs.modified_ns

    def modified_ns(path: str) -> int:
        looks.append(path)
        return real(path)

    monkeypatch.setattr(bare.space.fs, "modified_ns", modified_ns)
    assert len(bare.take("plain")) == 1
    assert looks == []
    for _ in range(5):
        assert len(bare.take("q")) == 20
    assert len(looks) == 1, "at the oldest one"
    clock.on(AGE_S)
    assert bare.take("q") == bare.take("q") == []
    assert len(looks) == 21


def test_it_wakes_when_the_time_of_the_oldest_comes(bare: BareSpace, clock: Clock) -> None:
    assert look(bare) == 10, "nothing can be too old before"
    put(bare, "short", b"1")
    clock.on(4)
    put(bare, "short", b"2")
    assert look(bare) == 6
    clock.on(6)
    assert look(bare) == 4
    assert cleanup.expire(bare.space)
    assert browsed(bare, "short") == [b"2"]
    clock.on(4)
    assert look(bare) == 10
    assert bare.space.queues["short"].memory_of(Counters).expired == 1


def test_without_a_limit_nobody_wakes(tmp_path: Path) -> None:
    with bare_space(tmp_path / "s") as bare:
        bare.put("q", b"1")
        assert look(bare) == NEVER
        assert Expire(bare.space).left_s() == 0, "it has not looked yet"
        define(bare, "q", limited(5))
        assert look(bare) <= 5


def test_it_holds_for_what_the_directories_have_not_followed_yet(tmp_path: Path, clock: Clock) -> None:
    with bare_space(tmp_path / "s", "JOURNAL", clock, DEFINED) as bare:
        xid = bare.prepare("slow", add=[("q", b"1"), ("q", b"2")])
        clock.on(50)
        with bare.connect() as connection:
            connection.tpc_commit(xid)
        bare.put("q", b"3")
        clock.on(AGE_S - 1)
        assert bare.take("q") == [b"1", b"2", b"3"]
        assert bare.messages("q") == []
        clock.on(1)
        assert bare.take("q") == browsed(bare, "q") == []
        assert cleanup.expire(bare.space)
        bare.space.settle()
        assert bare.messages("q") == []


@pytest.mark.parametrize("is_prepared", [True, False])
def test_the_time_of_what_is_not_followed_is_found_at_once(tmp_path: Path, clock: Clock, is_prepared: bool) -> None:
    """However much waits for the directories: by its name, and not by going through all of that."""
    with bare_space(tmp_path / "s", "JOURNAL", clock, DEFINED) as bare:
        if is_prepared:
            xid = bare.prepare("slow", add=[("q", b"1")])
            clock.on(50)
            with bare.connect() as connection:
                connection.tpc_commit(xid)
        else:
            put(bare, "q", b"1")
        committed_us = clock.now_us
        (entry,) = bare.space.queues["q"].index.entries(clock.now_us)
        path = message_path("q", entry.seq, entry.message_id, entry.tags)
        bare.space.log.behind.changes = []  # type: ignore[attr-defined]
        assert bare.space.log.modified_us(path) == committed_us


def test_it_holds_for_what_waits_for_no_sync(tmp_path: Path, clock: Clock) -> None:
    with bare_space(tmp_path / "s", "JOURNAL", clock, parse(UNSYNCED)) as bare:
        bare.put("q", b"1")
        assert bare.space.log.deferred
        clock.on(AGE_S)
        assert bare.take("q") == []


def test_a_file_that_lost_its_time_is_as_old_as_its_enqueue(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"the first")
    os.utime(bare.message_file("q", b"the first"), (0, 0))
    bare.reopen()
    clock.on(AGE_S - 1)
    assert bare.take("q") == [b"the first"]
    clock.on(1)
    assert bare.take("q") == []


def test_one_that_is_damaged_is_set_aside_by_its_dequeue(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"the first", b"the other")
    bare.reopen()
    damaged = bare.message_file("q", b"the first")
    damaged.write_bytes(bytes(len(damaged.read_bytes())))
    os.utime(damaged, (NOON_US / 1e6, NOON_US / 1e6))
    clock.on(AGE_S)
    assert bare.take("q") == []
    assert len(bare.quarantined()) == 1


def test_none_waits_for_one_whose_file_somebody_has_removed(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"the first", b"the other")
    bare.reopen()
    bare.message_file("q", b"the first").unlink()
    clock.on(AGE_S)
    look(bare)
    assert cleanup.expire(bare.space)
    bare.space.settle()
    assert bare.messages("q") == []
    assert bare.take("q") == []


def test_one_that_cannot_be_looked_at_is_looked_at_later(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"1", b"2")
    clock.on(AGE_S)
    bare.space.fs.modified_ns = mock.Mock(side_effect=OSError(errno.EIO, "bad sector"))  # type: ignore[method-assign]
    assert bare.take("q") == [b"1", b"2"]
    del bare.space.fs.modified_ns
    clock.on(AGE_S)
    assert bare.take("q") == []


def test_in_a_space_in_memory_it_holds_over_a_reopen() -> None:
    queues = {"orders": {"max_age_s": 60, "expiry_queue": "late"}, "late": {}}
    with MemorySpace(queues) as space:
        with space.connect() as connection:
            connection.enqueue("orders", b"1")
            connection.commit()
            space.advance(30)
            connection.enqueue("orders", b"2")
            connection.commit()
        space.reopen()
        assert [message.body for message in space.messages("orders")] == [b"1", b"2"]
        space.advance(31)
        with space.connect() as connection:
            message = connection.dequeue("orders")
            assert message is not None
            assert message.body == b"2"
            late = connection.dequeue("late", wait_s=PATIENCE_S)
            assert late is not None
            assert late.body == b"1"


def test_a_clock_that_is_put_back_makes_nothing_older(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"1")
    clock.on(-50)
    bare.reopen()
    put(bare, "q", b"2")
    clock.on(50 + AGE_S - 1)
    assert bare.take("q") == [b"1", b"2"]
    clock.on(1)
    assert bare.take("q") == []


def test_whoever_looks_without_an_owner_sees_none_that_is_too_old(tmp_path: Path, clock: Clock) -> None:
    clock.now_us = wall_clock() - (AGE_S + 1) * SECOND_US
    with bare_space(tmp_path / "s", "FSYNC", clock) as bare:
        bare.put("q", b"1")
        clock.now_us = wall_clock()
        bare.put("q", b"2")

    def seen(definition: str) -> list[bytes]:
        (tmp_path / "s" / "queues.toml").write_text(definition)
        return [message.body for message in inspect.browse(tmp_path / "s", "q", lambda *_: None)]

    assert seen("[queues.q]\n") == [b"1", b"2"]
    assert seen(f"[queues.q]\nmax_age_s = {AGE_S}\n") == [b"2"]
    assert seen(f"[default]\nmax_age_s = {AGE_S}\n") == [b"2"]
    assert seen(f"[default]\nmax_age_s = {AGE_S}\n[queues.q]\nmax_age_s = 0\n") == [b"1", b"2"]
    for path in bare.messages("q"):
        os.utime(path, (0, 0))
    assert seen(f"[queues.q]\nmax_age_s = {AGE_S}\n") == [b"2"], "which was not enqueued before"


def test_a_definition_says_what_is_wrong_with_it() -> None:
    for wrong in ("-1", "1.5", "true", "'1 h'", "10_000_000_000"):
        with pytest.raises(InvalidArgument, match=r"\[queues.a\] max_age_s = .*a number of seconds from 0 to "):
            parse(f"[queues.a]\nmax_age_s = {wrong}\n")
    assert parse("[queues.a]\nmax_age_s = 60\n").queues["a"].options == {"max_age_s": 60}


@pytest.mark.parametrize("level", ["JOURNAL", "FSYNC"])
@pytest.mark.parametrize("way", ["embedded", "served"])
def test_they_go_by_themselves_where_nobody_looks(tmp_path: Path, level: str, way: str) -> None:
    """An option that is defined meanwhile holds for what is there."""
    open.create(tmp_path / "s")
    (tmp_path / "s" / "queues.toml").write_text(f'[default]\n[space]\nsync = "{level}"\n')
    server = ServerThread(tmp_path / "s", tmp_path / "socket") if way == "served" else None
    place = server.url if server is not None else tmp_path / "s"
    try:
        with xaqueue.connect(place) as connection:
            connection.define("kept", max_age_s=1, expiry_queue="late")
            connection.enqueue("kept", b"1")
            connection.enqueue("plain", b"2")
            connection.commit()
            late = connection.dequeue("late", wait_s=PATIENCE_S)
            assert late is not None
            assert late.body == b"1"
            connection.define("plain", max_age_s=1, expiry_queue="late")
            late = connection.dequeue("late", wait_s=PATIENCE_S)
            assert late is not None
            assert late.body == b"2"
            connection.commit()
    finally:
        if server is not None:
            server.stop()


def behind_a_gap(bare: BareSpace, meanwhile: Callable[[], None]) -> None:
    """A message waits for the disk, and meanwhile others of higher numbers are there."""
    bare.fs.meanwhile["sync_data", "journal"] = meanwhile
    with bare.connect() as connection:
        connection.enqueue("q", b"1")
        connection.enqueue("plain", b"x")
        connection.commit()


def test_one_that_comes_behind_a_later_one_is_not_passed_over(tmp_path: Path, clock: Clock) -> None:
    """Its transaction works with another queue, too, and waits for the disk; the later one does not."""
    with bare_space(tmp_path / "s", "JOURNAL", clock, parse(UNSYNCED + "[queues.plain]\n")) as bare:
        taken: list[list[bytes]] = []

        def meanwhile() -> None:
            bare.put("q", b"2")
            taken.append(bare.take("q"))

        behind_a_gap(bare, meanwhile)
        assert taken == [[b"2"]]
        assert bare.take("q") == [b"1", b"2"]
        clock.on(AGE_S)
        assert bare.take("q") == []


def test_many_behind_one_that_is_to_come_are_looked_at(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ages, "PIECE", 3)
    with bare_space(tmp_path / "s", "JOURNAL", clock, parse(UNSYNCED + "[queues.plain]\n")) as bare:
        taken: list[list[bytes]] = []

        def meanwhile() -> None:
            for number in range(10):
                bare.put("q", b"%d" % number)
            clock.on(AGE_S)
            taken.append(bare.take("q"))

        behind_a_gap(bare, meanwhile)
        assert taken == [[]]
        clock.on(1)
        assert bare.take("q") == []


def test_one_that_is_to_come_may_be_too_old_before_those_behind_it(tmp_path: Path, clock: Clock) -> None:
    with bare_space(tmp_path / "s", "JOURNAL", clock, parse(UNSYNCED + "[queues.plain]\n")) as bare:

        def meanwhile() -> None:
            clock.on(50)
            bare.put("q", b"2")
            assert bare.take("q") == [b"2"]

        behind_a_gap(bare, meanwhile)
        clock.on(AGE_S - 50)
        assert bare.take("q") == [b"2"]


def test_what_came_behind_a_clock_that_was_ahead_expires_one_limit_late_at_most(bare: BareSpace, clock: Clock) -> None:
    """Also what came behind it in another queue: a later commit has no earlier time."""
    clock.on(1000 * AGE_S)
    put(bare, "plain", b"while it was ahead")
    clock.on(-1000 * AGE_S)
    put(bare, "q", b"1")
    assert look(bare) <= AGE_S
    put(bare, "q", b"2")
    assert bare.take("q") == [b"1", b"2"]
    clock.on(AGE_S)
    assert bare.take("q") == [b"2"]
    clock.on(AGE_S)
    assert bare.take("q") == []


def test_what_a_stream_gives_up_is_looked_at_at_once(bare: BareSpace, clock: Clock) -> None:
    put(bare, "q", b"1")
    session = Session(bare.space)
    session.reserve("q", "stream", 0, 0)
    clock.on(AGE_S)
    made = Expire(bare.space)
    made.run(Unhurried())
    assert made.left_s() > 0
    session.release("q")
    assert made.left_s() <= 0
    made.run(Unhurried())
    assert cleanup.expire(bare.space)
    assert bare.space.queues["q"].memory_of(Counters).expired == 1
