"""A second message of one dedup_key comes to nothing within the window of its queue, in whatever order they come."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from xaqueue.batch import ONE_SPACE, Batch
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import RetryLater, RolledBack
from xaqueue.features.dedup import dedup
from xaqueue.features.dedup.dedup import keys_of
from xaqueue.features.dedup.values import Keys, Seen, hash_of
from xaqueue.features.session import Session
from xaqueue.message import MessageId
from xaqueue.offline.check import check
from xaqueue.offline.findings import Finding
from xaqueue.offline.inspect import browse
from xaqueue.xa import Code, Flag, Vote
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

NOON_US = 1_800_000_000_000_000
WINDOW_S = 60
ONCE = Definitions(default=QueueDefinition(options={"dedup_window_s": WINDOW_S}), options={"sweep_after_s": 10**9})
PLAIN = Definitions(default=QueueDefinition())
LEVELS = ["NONE", DURABLE, "JOURNAL"]
CARRIER = f"{1:016x}.ledger"


@dataclass
class Clock:
    us: int = NOON_US


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=LEVELS)
def bare(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param, lambda: clock.us, ONCE) as opened:
        yield opened


@pytest.fixture
def strict(tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", DURABLE, lambda: clock.us, ONCE) as opened:
        yield opened


@pytest.fixture
def journalled(tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", "JOURNAL", lambda: clock.us, ONCE) as opened:
        yield opened


class Branch:
    """One transaction in a session of its own."""

    def __init__(self, bare: BareSpace, name: str | Xid) -> None:
        self.session = Session(bare.space)
        self.xid = name if isinstance(name, Xid) else Xid(1, name.encode(), b"")
        self.session.start(self.xid)
        self.is_ended = False

    def put(self, key: str = "k", body: bytes = b"", queue: str = "q", message_id: bytes | None = None) -> MessageId:
        return self.session.enqueue(queue, body, dedup_key=key.encode(), message_id=message_id)

    def end(self) -> None:
        if not self.is_ended:
            self.session.end(self.xid)
            self.is_ended = True

    def prepare(self) -> Vote:
        self.end()
        return self.session.prepare(self.xid)

    def commit(self, flags: Flag = Flag.NOFLAGS) -> None:
        self.session.commit(self.xid, flags)

    def commit_at_once(self) -> None:
        self.end()
        self.session.commit(self.xid, Flag.ONEPHASE)

    def rollback(self) -> None:
        self.end()
        self.session.rollback(self.xid)

    def carry(self) -> bytes | None:
        self.end()
        found = self.session.carry(self.xid, CARRIER)
        return None if found is None else found.encode()


def put(bare: BareSpace, name: str, key: str = "k", queue: str = "q") -> MessageId:
    branch = Branch(bare, name)
    found = branch.put(key, name.encode(), queue)
    branch.commit_at_once()
    return found


def bodies(bare: BareSpace, queue: str = "q") -> list[bytes]:
    return [message.body for message in Session(bare.space).browse(queue)]


def take_all(bare: BareSpace, queue: str = "q") -> list[bytes]:
    found = []
    with bare.connect() as connection:
        while message := connection.dequeue(queue):
            found.append(message.body)
        connection.commit()
    return found


def records(bare: BareSpace, queue: str = "q") -> list[str]:
    bare.space.log.settle()
    directory = bare.root / dedup.keys_path(queue)
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def files(bare: BareSpace) -> list[str]:
    bare.space.log.settle()
    return sorted(path.name for name in (layout.ACTIVE, layout.PREPARED) for path in (bare.root / name).iterdir())


def findings(bare: BareSpace) -> list[Finding]:
    """Nothing is damaged or left over; a journal that is in use is ahead of the directories."""
    bare.space.log.settle()
    return [found for found in check(bare.root) if not found.path.startswith(layout.JOURNAL)]


def test_a_second_one_comes_to_nothing_and_returns_the_id_of_the_first(bare: BareSpace, clock: Clock) -> None:
    first = put(bare, "first")
    assert put(bare, "second") == first
    assert put(bare, "other", "other key") != first
    assert put(bare, "elsewhere", queue="r") != first
    assert take_all(bare) == [b"first", b"other"], "consumed or not, its key is known"
    assert put(bare, "third") == first
    clock.us += WINDOW_S * 1_000_000 - 1
    assert put(bare, "fourth") == first
    clock.us += 1
    assert put(bare, "fifth") != first
    assert (bodies(bare), bodies(bare, "r")) == ([b"fifth"], [b"elsewhere"])
    assert findings(bare) == []


def test_without_a_window_or_a_key_nothing_is_noted(bare: BareSpace) -> None:
    with bare.connect() as connection:
        for _ in range(2):
            connection.enqueue("q", b"no key")
        connection.commit()
    bare.space.redefine(PLAIN)
    assert put(bare, "first") != put(bare, "second")
    assert len(bodies(bare)) == 4
    assert records(bare) == []


def test_in_one_branch_the_second_returns_the_id_of_the_first(bare: BareSpace) -> None:
    branch = Branch(bare, "x")
    first = branch.put(body=b"1")
    assert branch.put(body=b"2") == first
    assert branch.session.enqueue_many("q", [b"3", b"4"], dedup_key=b"k") == [first, first]
    branch.put("no body", b"5")
    branch.commit_at_once()
    assert bodies(bare) == [b"1", b"5"]


def test_what_was_not_added_claims_nothing(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **options: object) -> None:
        raise RetryLater("not now")

    branch, given = Branch(bare, "x"), b"i" * 16
    with monkeypatch.context() as patch:
        patch.setattr(bare.space.log, "add", full)
        with pytest.raises(RetryLater):
            branch.session.enqueue("q", b"refused", message_id=given, dedup_key=b"k")
    assert branch.session.enqueue("q", b"without a key", message_id=given) == given
    assert branch.put(body=b"with it") != given
    branch.commit_at_once()
    assert bodies(bare) == [b"without a key", b"with it"]


def test_who_sends_again_with_the_same_id_is_answered_with_it(bare: BareSpace) -> None:
    branch = Branch(bare, "x")
    assert branch.put(message_id=b"i" * 16) == b"i" * 16
    branch.commit_at_once()
    for _ in range(2):
        again = Branch(bare, "again")
        assert again.put(message_id=b"i" * 16) == b"i" * 16
        again.commit_at_once()
        assert len(take_all(bare)) == (1 if _ == 0 else 0)


@pytest.mark.parametrize("ending", ["crash", "close"])
def test_it_is_kept_over_restarts(bare: BareSpace, clock: Clock, ending: str) -> None:
    first = put(bare, "first")
    other = Branch(bare, "two-phase")
    second = other.put("other")
    assert other.prepare() is Vote.OK
    other.commit()
    assert len(take_all(bare)) == 2
    if ending == "close":
        assert bare.space.close()
    bare.reopen()
    assert [dedup.parse_key(name) for name in records(bare)] == sorted(
        (NOON_US + WINDOW_S * 1_000_000, hash_of(key), message_id)
        for key, message_id in ((b"k", first), (b"other", second))
    )
    assert (put(bare, "again"), put(bare, "again", "other")) == (first, second)
    assert findings(bare) == []
    clock.us += WINDOW_S * 1_000_000
    bare.reopen()
    assert put(bare, "again") != first


def test_what_a_branch_has_beside_it_is_committed(bare: BareSpace) -> None:
    bare.put("in", b"input", b"more")
    branch = Branch(bare, "x")
    branch.put("a", b"a")
    branch.put("b", b"b" * 2_000_000)
    branch.put("c", b"c")
    assert branch.session.dequeue("in") is not None
    first = [put(bare, f"first {key}", key) for key in ("a", "b")]
    assert branch.prepare() is Vote.OK
    assert not [name for name in files(bare) if name.endswith((".001", ".002"))]
    bare.reopen()
    branch.session = Session(bare.space)
    branch.commit()
    assert bodies(bare) == [b"first a", b"first b", b"c"]
    assert bodies(bare, "in") == [b"more"]
    assert files(bare) == []
    assert [put(bare, "again", key) for key in ("a", "b")] == first
    assert findings(bare) == []


def test_a_branch_of_which_nothing_is_left_is_read_only(bare: BareSpace) -> None:
    one, two, three = (Branch(bare, name) for name in ("one", "two", "three"))
    for branch in (one, two, three):
        branch.put(body=branch.xid.gtrid)
    one.commit_at_once()
    assert two.prepare() is Vote.RDONLY
    three.commit_at_once()
    assert bodies(bare) == [b"one"]
    assert (files(bare), bare.space.branches, bare.space.queue("q").pending) == ([], {}, set())
    assert findings(bare) == []


# Two branches


PLANS = (("put", "once"), ("put", "prepare", "commit"), ("put", "prepare", "rollback"), ("put", "rollback"))


def orders(one: int, two: int) -> Iterator[tuple[int, ...]]:
    """Whose step comes next, in every order of so many of each."""
    for places in itertools.combinations(range(one + two), one):
        yield tuple(0 if place in places else 1 for place in range(one + two))


class Race:
    """Two branches of one key, and what is to come of each of their steps."""

    def __init__(self, bare: BareSpace, key: str) -> None:
        self.bare, self.key = bare, key
        self.branches = [Branch(bare, f"{key} {number}") for number in range(2)]
        self.committed: int | None = None
        self.claimed: int | None = None
        self.has = [False, False]
        self.over = [False, False]
        self.ids: list[MessageId | None] = [None, None]

    def step(self, who: int, step: str) -> None:
        branch = self.branches[who]
        if self.over[who]:
            return
        if step == "put":
            self.ids[who] = branch.put(self.key, b"%d" % who)
            self.has[who] = self.committed is None
            assert self.ids[who] != self.ids[1 - who] or self.committed is not None
        elif step in ("prepare", "once"):
            self.decide(who, step)
        elif step == "commit":
            branch.commit()
            self.committed, self.claimed = who, None
        else:
            branch.rollback()
            self.over[who] = True
            self.claimed = None if self.claimed == who else self.claimed

    def decide(self, who: int, step: str) -> None:
        branch = self.branches[who]
        call: Callable[[], object] = branch.prepare if step == "prepare" else branch.commit_at_once
        self.over[who] = True
        if self.has[who] and self.committed is None and self.claimed is not None:
            with pytest.raises(RolledBack, match="has a message of the same dedup_key") as refused:
                call()
            assert refused.value.code is Code.XA_RBTRANSIENT
            return
        vote = call()
        if self.has[who] and self.committed is None:
            if step == "prepare":
                assert vote is Vote.OK
                self.over[who], self.claimed = False, who
            else:
                self.committed = who
        elif step == "prepare":
            assert vote is Vote.RDONLY


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations_with_replacement(PLANS, 2)))
def test_two_branches_in_every_order(bare: BareSpace, one: tuple[str, ...], two: tuple[str, ...]) -> None:
    for number, order in enumerate(orders(len(one), len(two))):
        race, steps = Race(bare, str(number)), (iter(one), iter(two))
        for who in order:
            race.step(who, next(steps[who]))
        assert take_all(bare) == ([] if race.committed is None else [b"%d" % race.committed])
        queue = bare.space.queue("q")
        assert (keys_of(queue).claims, queue.pending, bare.space.branches) == ({}, set(), {})
        if race.committed is not None:
            assert put(bare, f"after {number}", str(number)) == race.ids[race.committed]
    assert files(bare) == []
    assert findings(bare) == []


def test_what_is_in_doubt_claims_its_key_after_a_restart(bare: BareSpace) -> None:
    one = Branch(bare, "one")
    first = one.put(body=b"one")
    assert one.prepare() is Vote.OK
    bare.reopen()
    two = Branch(bare, "two")
    assert two.put(body=b"two") != first, "nobody knows yet"
    with pytest.raises(RolledBack, match="Do the work again"):
        two.prepare()
    bare.reopen()
    one.session = Session(bare.space)
    one.commit()
    assert put(bare, "three") == first
    assert bodies(bare) == [b"one"]
    assert findings(bare) == []


@pytest.mark.parametrize("after", LEVELS)
@pytest.mark.parametrize("before", LEVELS)
def test_what_is_in_doubt_claims_its_key_at_another_level(
    tmp_path: Path, clock: Clock, before: str, after: str
) -> None:
    with bare_space(tmp_path / "space", before, lambda: clock.us, ONCE) as bare:
        one = Branch(bare, "one")
        first = one.put(body=b"one")
        one.prepare()
        bare.sync = after
        bare.reopen()
        two = Branch(bare, "two")
        two.put(body=b"two")
        with pytest.raises(RolledBack, match="Do the work again"):
            two.prepare()
        Branch(bare, "other").session.commit(one.xid)
        bare.reopen()
        assert put(bare, "three") == first
        assert bodies(bare) == [b"one"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_rollback_gives_the_key_up(bare: BareSpace, restarted: bool) -> None:
    one = Branch(bare, "one")
    one.put(body=b"one")
    one.prepare()
    if restarted:
        bare.reopen()
        one.session = Session(bare.space)
    one.rollback()
    put(bare, "two")
    assert bodies(bare) == [b"two"]


def test_an_operators_decision_is_a_commit(bare: BareSpace) -> None:
    one = Branch(bare, "one")
    first = one.put(body=b"one")
    one.prepare()
    heuristics.decide(bare.space, one.xid, True, "me")
    assert put(bare, "two") == first
    bare.reopen()
    assert put(bare, "two") == first
    assert bodies(bare) == [b"one"]


@pytest.mark.parametrize("late", [False, True])
def test_a_commit_that_rides_counts(journalled: BareSpace, late: bool) -> None:
    one, two = Branch(journalled, "one"), Branch(journalled, "two")
    first = one.put(body=b"one")
    two.put(body=b"two")
    one.prepare()
    one.commit(Flag.LATE if late else Flag.NOFLAGS)
    assert two.prepare() is Vote.RDONLY
    assert put(journalled, "three") == first
    assert bodies(journalled) == [b"one"]
    if late:
        journalled.reopen()
        one.session = Session(journalled.space)
        one.commit()  # it is in doubt again, and its transaction manager knows
        assert put(journalled, "three") == first


def test_who_comes_while_another_commits_waits_for_it(strict: BareSpace) -> None:
    one, two = Branch(strict, "one"), Branch(strict, "two")
    one.put(body=b"one")
    two.put(body=b"two")
    thread = threading.Thread(target=two.commit_at_once)

    def come() -> None:
        thread.start()
        while not strict.space.waiters:
            assert thread.is_alive()

    strict.fs.meanwhile["sync_dir", "committed/queue=q/range="] = come
    one.commit_at_once()
    thread.join()
    assert bodies(strict) == [b"one"]
    assert strict.fs.meanwhile == {}
    assert strict.space.branches == {}


@pytest.mark.parametrize("listed", [(0, 1, 2), (1, 0, 2), (1, 2)])
@pytest.mark.parametrize("restarted", [False, True])
def test_of_one_batch_the_first_that_is_committed_has_the_message(
    bare: BareSpace, listed: tuple[int, ...], restarted: bool
) -> None:
    """Its other branches may be attempts that were written again: those refuse nobody of the batch."""
    batch = Batch("query", 0)
    branches = [Branch(bare, Xid(ONE_SPACE, batch.gtrid, b"%d" % number)) for number in range(3)]
    ids = [branch.put("k" if number < 2 else "other", b"%d" % number) for number, branch in enumerate(branches)]
    assert [branch.prepare() for branch in branches] == [Vote.OK] * 3
    if restarted:
        bare.reopen()
    stranger, late = Branch(bare, "stranger"), Branch(bare, Xid(ONE_SPACE, Batch("other", 0).gtrid, b""))
    for branch in (stranger, late):
        branch.put()
        with pytest.raises(RolledBack, match="has a message of the same dedup_key"):
            branch.prepare()
    Session(bare.space).commit_all(batch, [branches[number].xid for number in listed])
    first = listed[0]
    assert sorted(bodies(bare)) == [b"%d" % first, b"2"]
    queue = bare.space.queue("q")
    assert (keys_of(queue).claims, queue.pending, bare.space.branches, files(bare)) == ({}, set(), {}, [])
    for _ in range(2):
        assert put(bare, "again") == ids[first]
        bare.reopen()
    assert len(records(bare)) == 2
    assert findings(bare) == []


@pytest.mark.parametrize("rolled_back", [0, 1])
def test_a_batch_claims_its_keys_as_long_as_one_of_its_branches_does(bare: BareSpace, rolled_back: int) -> None:
    batch = Batch("query", 0)
    branches = [Branch(bare, Xid(ONE_SPACE, batch.gtrid, b"%d" % number)) for number in range(2)]
    for branch in branches:
        branch.put()
        branch.prepare()
    branches[rolled_back].rollback()
    stranger = Branch(bare, "stranger")
    stranger.put()
    with pytest.raises(RolledBack, match=str(branches[1 - rolled_back].xid)):
        stranger.commit_at_once()
    branches[1 - rolled_back].rollback()
    put(bare, "last")
    assert bodies(bare) == [b"last"]


@pytest.mark.parametrize("kept", ["first", "others", "none"])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("size_bytes", [10, 2_000_000])
def test_a_message_of_several_queues_is_left_out_of_those_that_know_it(
    bare: BareSpace, kept: str, prepared: bool, size_bytes: int
) -> None:
    queues = ["q", "r", "s"]
    branch, body = Branch(bare, "x"), b"b" * size_bytes
    shared = branch.session.enqueue_to(queues, body, dedup_key=b"k")
    known = {"first": queues[1:], "others": queues[:1], "none": queues}[kept]
    first = {queue: put(bare, f"first {queue}", queue=queue) for queue in known}
    if prepared:
        assert branch.prepare() is (Vote.RDONLY if kept == "none" else Vote.OK)
        if kept != "none":
            bare.reopen()
            branch.session = Session(bare.space)
            branch.commit()
    else:
        branch.commit_at_once()
    ids = {queue: first.get(queue, shared) for queue in queues}
    for queue in queues:
        assert bodies(bare, queue) == [f"first {queue}".encode() if queue in known else body]
        assert put(bare, "again", queue=queue) == ids[queue]
    again = Branch(bare, "again")
    assert again.session.enqueue_to(queues, body, dedup_key=b"k") in ids.values()
    again.commit_at_once()
    bare.reopen()
    assert [len(bodies(bare, queue)) for queue in queues] == [1, 1, 1]
    assert findings(bare) == []


def test_what_is_known_needs_no_room(bare: BareSpace) -> None:
    bare.space.redefine(Definitions(default=QueueDefinition(options={"dedup_window_s": WINDOW_S, "max_messages": 2})))
    one, two = Branch(bare, "one"), Branch(bare, "two")
    first = one.put()
    two.put()
    one.commit_at_once()
    assert put(bare, "full") == first
    two.commit_at_once()
    other = put(bare, "room again", "other")
    assert put(bare, "full again", "other") == other
    assert len(bodies(bare)) == 2


# Definitions, records, room


def test_a_window_that_changes_holds_for_new_keys(bare: BareSpace, clock: Clock) -> None:
    first = put(bare, "first")
    two = Branch(bare, "two")
    two.put("open")
    three = Branch(bare, "three")
    three.put("prepared")
    three.prepare()
    bare.space.redefine(PLAIN)
    assert put(bare, "second") != first
    three.commit()
    two.commit_at_once()
    assert keys_of(bare.space.queue("q")).claims == {}
    bare.space.redefine(Definitions(default=QueueDefinition(options={"dedup_window_s": 0.5})))
    short = put(bare, "third", "short")
    assert put(bare, "fourth") == first
    assert put(bare, "fifth", "prepared") != put(bare, "fifth", "open")
    clock.us += 500_000
    assert put(bare, "sixth") == first
    assert put(bare, "seventh", "short") != short
    assert findings(bare) == []


def test_what_is_over_is_removed(bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "PIECE", 2)
    for number in range(5):
        put(bare, str(number), str(number))
    clock.us += WINDOW_S * 500_000
    last = put(bare, "last", "last")
    clock.us += WINDOW_S * 500_000
    again = put(bare, "again", "0")
    assert len(records(bare)) == 7
    stops = iter((False, True))
    assert not dedup.clear(bare.space, lambda: next(stops))
    assert len(records(bare)) == 3
    bare.reopen()
    assert len(keys_of(bare.space.queue("q")).ends) == 3
    assert dedup.clear(bare.space, lambda: False)
    assert [dedup.parse_key(name)[2] for name in records(bare)] == [last, again]  # type: ignore[index]
    assert (put(bare, "x", "last"), put(bare, "x", "0")) == (last, again)
    assert findings(bare) == []


def test_without_room_to_remove_them_they_stay(tmp_path: Path, clock: Clock) -> None:
    with bare_space(tmp_path, "NONE", lambda: clock.us, ONCE) as bare:
        put(bare, "first")
        clock.us += WINDOW_S * 1_000_000
        second = put(bare, "second")
        bare.fs.faults["unlink", dedup.keys_path("q")] = errno.ENOSPC
        with pytest.raises(RetryLater):
            dedup.clear(bare.space, lambda: False)
        assert put(bare, "third") == second
        bare.fs.faults.clear()
        assert dedup.clear(bare.space, lambda: False)
        assert len(records(bare)) == 1


@pytest.mark.parametrize("call", ["create", "rename"])
def test_a_record_for_which_there_is_no_room_keeps_its_message_back(strict: BareSpace, call: str) -> None:
    put(strict, "before", "before")
    one, two = Branch(strict, "one"), Branch(strict, "two")
    first = one.put(body=b"one")
    two.put(body=b"two")
    one.end()
    strict.fs.faults[call, "active/.put." if call == "create" else dedup.keys_path("q")] = errno.ENOSPC
    with pytest.raises(RetryLater):
        one.commit_at_once()
    with pytest.raises(RolledBack):
        two.commit_at_once()
    strict.fs.faults.clear()
    one.commit_at_once()
    assert put(strict, "three") == first
    assert bodies(strict) == [b"before", b"one"]
    assert files(strict) == []
    assert findings(strict) == []


def test_foreign_names_are_set_aside(bare: BareSpace) -> None:
    first = put(bare, "first")
    directory = bare.root / dedup.keys_path("q")
    bare.space.log.settle()
    (directory / first.hex()).touch()
    (bare.root / layout.queue_path("r")).mkdir()
    (bare.root / dedup.keys_path("r")).touch()
    found = {finding.path for finding in check(bare.root)}
    assert {f"{dedup.keys_path('q')}/{first.hex()}", dedup.keys_path("r")} <= found
    bare.reopen()
    assert len(bare.quarantined()) == 2
    assert put(bare, "again") == first
    put(bare, "elsewhere", queue="r")
    assert len(records(bare, "r")) == 1


def test_who_looks_from_outside_passes_over_them(bare: BareSpace) -> None:
    put(bare, "first")
    bare.space.log.settle()
    assert [message.body for message in browse(bare.root, "q", lambda seq, why: None)] == [b"first"]


def test_keys_are_found_in_whatever_order() -> None:
    early, late = Seen(1, b"k", MessageId(b"a" * 16)), Seen(2, b"k", MessageId(b"b" * 16))
    for order in ((early, late), (late, early)):
        keys = Keys()
        keys.found(order)
        assert keys.find(b"k", 1) == late.message_id
        assert keys.pop_over(1, 9) == [early]
        assert keys.find(b"k", 1) == late.message_id
        assert keys.pop_over(2, 9) == [late]
        assert (len(keys.ends), keys.find(b"k", 0)) == (0, None)


# What is moved, and what is carried


def test_a_move_is_never_left_out_and_claims_nothing(bare: BareSpace) -> None:
    bare.space.redefine(Definitions({"q": QueueDefinition(options={"dedup_window_s": WINDOW_S})}, QueueDefinition()))
    put(bare, "moved", queue="from")
    first = put(bare, "first")
    with bare.connect() as connection:
        (message,) = connection.browse("from")
        assert connection.move("from", message.message_id, "q") == message.message_id
        connection.commit()
    assert bodies(bare) == [b"first", b"moved"]
    assert put(bare, "again") == first
    with bare.connect() as connection:
        assert connection.enqueue("from", b"other", dedup_key="other")
        connection.commit()
        (other,) = connection.browse("from")
        connection.move("from", other.message_id, "q")
        connection.commit()
    assert put(bare, "new", "other") != other.message_id


def test_a_prepared_move_is_not_left_out_after_a_restart(bare: BareSpace) -> None:
    bare.space.redefine(Definitions({"q": QueueDefinition(options={"dedup_window_s": WINDOW_S})}, QueueDefinition()))
    moved = put(bare, "moved", queue="from")
    put(bare, "first")
    branch = Branch(bare, "x")
    assert branch.session.move("from", moved, "q") == moved
    assert branch.prepare() is Vote.OK
    bare.reopen()
    branch.session = Session(bare.space)
    branch.commit()
    assert (bodies(bare), bodies(bare, "from")) == ([b"first", b"moved"], [])


@pytest.mark.parametrize("way", ["move", "restore"])
@pytest.mark.parametrize("end", ["taken", "in doubt", "committed"])
def test_what_claims_nothing_claims_nothing_after_a_crash(bare: BareSpace, way: str, end: str) -> None:
    bare.definitions = Definitions({"q": QueueDefinition(options={"dedup_window_s": WINDOW_S})}, QueueDefinition())
    bare.space.redefine(bare.definitions)
    put(bare, "before", queue="from")
    (before,) = Session(bare.space).browse("from")
    branch = Branch(bare, "x")
    if way == "move":
        branch.session.move("from", before.message_id, "q")
    else:
        branch.session.restore("q", [before])
    if end == "taken":
        branch.commit_at_once()
        taker = Branch(bare, "taker")
        assert taker.session.dequeue("q") is not None
        taker.prepare()
    else:
        branch.prepare()
    bare.reopen()
    if end != "taken":
        branch.session = Session(bare.space)
        branch.commit()
    if end == "committed":
        bare.reopen()
    assert put(bare, "new") != before.message_id
    assert records(bare) != []
    assert len(bodies(bare)) == 2


def test_a_vote_decides(journalled: BareSpace) -> None:
    one, two, three = (Branch(journalled, name) for name in ("one", "two", "three"))
    first = one.put(body=b"one")
    two.put(body=b"two")
    three.put(body=b"three")
    assert one.carry() is not None
    assert two.carry() is None, "it is to be prepared, and that says why not"
    with pytest.raises(RolledBack, match="has a message of the same dedup_key"):
        two.prepare()
    one.commit(Flag.LATE)
    assert three.carry() is None
    assert three.prepare() is Vote.RDONLY
    assert put(journalled, "four") == first
    journalled.space.log.harden_late()
    journalled.reopen()
    assert put(journalled, "four") == first
    assert len(journalled.space.queue("q").index) == 1


def test_a_carried_branch_that_is_rolled_back_gives_the_key_up(journalled: BareSpace) -> None:
    one = Branch(journalled, "one")
    one.put(body=b"one")
    assert one.carry() is not None
    one.rollback()
    put(journalled, "two")
    assert bodies(journalled) == [b"two"]


def test_after_a_crash_a_key_waits_for_what_a_database_has(journalled: BareSpace) -> None:
    one = Branch(journalled, "one")
    first = one.put(body=b"one")
    change = one.carry()
    assert change is not None
    one.commit(Flag.LATE)
    journalled.reopen()
    two = Branch(journalled, "two")
    two.put(body=b"two")
    with pytest.raises(RolledBack, match="was not asked yet") as refused:
        two.commit_at_once()
    assert refused.value.code is Code.XA_RBTRANSIENT
    session = Session(journalled.space)
    assert session.deliver(CARRIER, session.carriers().secret, [change], 0, 0)
    assert put(journalled, "three") == first
    journalled.reopen()
    assert put(journalled, "four") == first
    assert bodies(journalled) == [b"one"]
