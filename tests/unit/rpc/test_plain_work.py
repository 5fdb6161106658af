"""Whole transactions in one call: the same answers, states and bytes as by the verbs, wherever they are plain."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import NamedTuple, NoReturn

import pytest

from support.bare_space import BareSpace, bare_space
from support.whole import finished, try_work, whole_commit, whole_work
from xaqueue.batch import ONE_SPACE, Batch
from xaqueue.core.engine import journal_log
from xaqueue.core.model import layout
from xaqueue.core.model.block import before_time, pack_properties
from xaqueue.core.model.definitions import parse
from xaqueue.core.storage.scheduling import Threads
from xaqueue.errors import DiskFull, DuplicateXid, Error, InvalidArgument, ResourceFailed, UnknownXid
from xaqueue.features.session import Session
from xaqueue.message import MessageId
from xaqueue.rpc import plain
from xaqueue.rpc.plain import Answer, Ending, Put, Take, Taken, Whole, Work
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

NOW_US = 1_700_000_000_000_000
QUEUES = """
[queues.orders]
[queues.bills]
[queues.few]
max_messages = 3
when_full = "wait"
full_wait_s = 0.01
[queues.once]
dedup_window_s = 60
"""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    yield from opened(tmp_path / "space")


def opened(root: Path, sync: str = "JOURNAL", queues: str = QUEUES) -> Iterator[BareSpace]:
    with bare_space(root, sync, lambda: NOW_US, parse(queues)) as space:
        session = Session(space.space)
        for name in space.definitions.queues:  # there is something in memory of each
            session.start(xid("made"))
            assert session.dequeue(name) is None
            session.end(xid("made"))
            session.rollback(xid("made"))
        session.close()
        yield space


def xid(name: str) -> Xid:
    return Xid(1, name, "b")


def local(number: int) -> Xid:
    return Xid(LOCAL_FORMAT_ID, number.to_bytes(16, "big"), b"")


def put(number: int, queue: str = "orders", size: int = 5) -> Put:
    return Put(queue, b"%d" % (number % 10) * size, MessageId(number.to_bytes(16, "big")))


def round_of(session: Session, *steps: Whole) -> None:
    """All in one round, which the first one leads."""
    log = session.space.log
    for step in steps:
        step.waiter = Lock()
        step.waiter.acquire()
        log.gather(step)
    assert [step.round is not None for step in steps] == [True] + [False] * (len(steps) - 1)
    log.run_rounds(steps[0])


class Way(NamedTuple):
    """How a transaction is done."""

    work: Callable[[Session, Xid, Sequence[Work], Ending], object]
    commit: Callable[[Session, Xid], object]


def work(session: Session, name: Xid, works: Sequence[Work], ending: Ending) -> list[Answer]:
    """By the verbs."""
    if session._current is None or session._current.xid != name:
        session.start(name)
    try:
        answers = [answer_of(session, one) for one in works]
    except Error as error:
        session.fail(error)
        raise
    if ending is not Ending.OPEN:
        session.end(name)
        session.prepare(name) if ending is Ending.PREPARE else session.commit(name, Flag.ONEPHASE)
    return answers


def answer_of(session: Session, one: Work) -> Answer:
    if type(one) is Put:
        return session.enqueue(one.queue, one.body, message_id=one.message_id)
    message = session.dequeue(one.queue)
    if message is None:
        return None
    packed = pack_properties(message.properties)
    return Taken(message.message_id, one.queue, message.seq, packed, message.body)


GENERAL = Way(work, Session.commit)
PLAIN = Way(whole_work, whole_commit)


def story(bare: BareSpace, way: Way) -> list[object]:
    """Everything that is plain, with what it answers."""
    session, answers = Session(bare.space), list[object]()
    for number in range(4):
        answers.append(way.work(session, xid(f"{number}"), [put(number, size=number)], Ending.PREPARE))
    for number in (2, 0, 1):
        way.commit(session, xid(f"{number}"))
    session.rollback(xid("3"))
    answers.append(way.work(session, xid("several"), [put(4), put(5, "bills"), put(6)], Ending.PREPARE))
    way.commit(session, xid("several"))
    answers.append(way.work(session, local(1), [put(7)], Ending.ONE_PHASE))
    answers.append(way.work(session, local(2), [put(8), put(9)], Ending.ONE_PHASE))
    answers.append(way.work(session, local(3), [Take("orders")], Ending.ONE_PHASE))
    answers.append(way.work(session, xid("taken"), [Take("orders")], Ending.PREPARE))
    way.commit(session, xid("taken"))
    answers.append(way.work(session, local(4), [Take("orders")], Ending.OPEN))
    answers.append(way.work(session, local(4), [], Ending.ONE_PHASE))
    answers.append(way.work(session, xid("open"), [put(10)], Ending.OPEN))
    answers.append(way.work(session, xid("open"), [put(11, "bills")], Ending.PREPARE))
    way.commit(session, xid("open"))
    answers.append(way.work(session, xid("back"), [Take("bills")], Ending.PREPARE))
    session.rollback(xid("back"))
    answers.append(way.work(session, xid("left"), [put(12)], Ending.PREPARE))
    answers += [session.outcome(xid(name)) for name in ("0", "3", "several", "taken", "open", "back", "left", "none")]
    session.close()
    return answers


def journal_of(root: Path) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted((root / layout.JOURNAL).iterdir())]


def test_plain_and_general_work_is_the_same_to_the_last_byte(tmp_path: Path) -> None:
    found = []
    for way in (GENERAL, PLAIN):
        root = tmp_path / f"{way is PLAIN}"
        for bare in opened(root):
            answers = story(bare, way)
            before = journal_of(root), [bare.take(queue) for queue in ("orders", "bills")]
            bare.reopen()
            found.append((answers, *before, bare.in_doubt(), [bare.take(queue) for queue in ("orders", "bills")]))
    general, plain = found
    assert general[0] == plain[0]
    assert general[1] == plain[1]
    assert general[2:] == plain[2:]
    assert plain[3] == [xid("left")]


def test_what_is_taken_is_as_it_is_stored(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue("orders", b"body", headers={"a": "b"})
        connection.commit()
    (taken,) = whole_work(Session(bare.space), local(1), [Take("orders")], Ending.OPEN)
    assert type(taken) is Taken
    assert (taken.queue, taken.seq, taken.body) == ("orders", 1, b"body")
    assert b"headers" in taken.packed


def test_several_sessions_share_a_round(bare: BareSpace) -> None:
    one, two = Session(bare.space), Session(bare.space)
    first = try_work(one, xid("1"), [put(1)], Ending.PREPARE)
    second = try_work(two, local(2), [put(2)], Ending.ONE_PHASE)
    assert first is not None
    assert second is not None
    rounds = bare.space.log.rounds
    round_of(one, first, second)
    assert bare.space.log.rounds == rounds + 1
    assert second.waiter is not None
    assert second.waiter.acquire(timeout=0), "it was woken"
    assert (finished(one, first), finished(two, second)) == ([put(1).message_id], [put(2).message_id])
    assert bare.take("orders") == [b"22222"]
    assert bare.in_doubt() == [xid("1")]


def test_a_branch_on_its_way_is_busy(bare: BareSpace) -> None:
    """Until its round nobody else ends it, and behind that its own session is in no branch."""
    one = Session(bare.space)
    whole = try_work(one, xid("1"), [put(1)], Ending.PREPARE)
    assert whole is not None
    assert bare.space.branches[xid("1")].busy
    assert one.try_commit(xid("1")) is None
    assert try_work(one, xid("1"), [put(2)], Ending.PREPARE) is None
    round_of(one, whole)
    finished(one, whole)
    assert not bare.space.branches[xid("1")].busy
    one.commit(xid("1"))
    assert one.outcome(xid("1")) is Outcome.COMMITTED


def nothing_changes(bare: BareSpace, session: Session, works: Sequence[Work], name: Xid | None = None) -> None:
    branches, current = dict(bare.space.branches), session._current
    kept = {name: (len(queue.pending), queue.index.locked, queue.last) for name, queue in bare.space.queues.items()}
    for ending in Ending:
        assert try_work(session, name or xid("new"), works, ending) is None
    assert (bare.space.branches, session._current) == (branches, current)
    assert {n: (len(queue.pending), queue.index.locked, queue.last) for n, queue in bare.space.queues.items()} == kept


@pytest.mark.parametrize(
    "works",
    [
        [put(1, "few")],
        [put(1, "unknown")],
        [put(1), put(2, "few")],
        [put(1, size=70_000)],
        [put(number, size=10_000) for number in range(1, 8)],
        [Take("orders")],
        [Take("unknown")],
        [Take("bills"), Take("bills")],
        [put(1), Take("bills")],
    ],
    ids=["limited", "unknown", "one of them limited", "large", "large together", "empty", "no queue", "two", "mixed"],
)
def test_what_is_not_plain_changes_nothing(bare: BareSpace, works: list[Work]) -> None:
    bare.put("bills", b"1", b"2")
    nothing_changes(bare, Session(bare.space), works)


def test_a_message_that_was_tried_is_taken_the_other_way(bare: BareSpace) -> None:
    bare.put("orders", b"tried")
    with bare.connect() as connection:
        assert connection.dequeue("orders") is not None
        connection.rollback()
    session = Session(bare.space)
    nothing_changes(bare, session, [Take("orders")])
    (taken,) = work(session, local(1), [Take("orders")], Ending.OPEN)
    assert type(taken) is Taken
    assert taken.body == b"tried"


def test_a_message_that_is_not_persistent_is_taken_the_other_way_which_waits_for_no_sync(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.start(local(1))
    session.enqueue("orders", b"quick", persistent=False)
    session.end(local(1))
    session.commit(local(1), Flag.ONEPHASE)
    bare.space.log.harden_late()
    nothing_changes(bare, session, [Take("orders")])


def test_a_space_that_is_not_plain_has_no_plain_work(tmp_path: Path) -> None:
    bodies = [put(1)]
    for bare in opened(tmp_path / "files", "NONE"):
        nothing_changes(bare, Session(bare.space), bodies)
    for bare in opened(tmp_path / "unsynced", queues='[queues.orders]\n[queues.soon]\nsync = "NONE"\n'):
        nothing_changes(bare, Session(bare.space), bodies)
    for bare in opened(tmp_path / "plain"):
        session = Session(bare.space)
        bare.space.draining = True
        nothing_changes(bare, session, bodies)
        bare.space.draining = False
        session.start(xid("other"))
        nothing_changes(bare, session, bodies)
        session.enqueue("orders", b"x", dedup_key=b"k", message_id=bytes(16))
        session.end(xid("other"))
        session.prepare(xid("other"))
        nothing_changes(bare, session, bodies, xid("other"))
        session.close()
        nothing_changes(bare, session, bodies)


def test_a_session_has_only_so_many_branches(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.branch_limit = 2
    for number in range(2):
        assert try_work(session, xid(f"{number}"), [put(number)], Ending.PREPARE) is not None
    assert try_work(session, xid("2"), [put(2)], Ending.PREPARE) is None


def test_an_id_that_is_there_already_is_refused_as_by_the_verbs(bare: BareSpace) -> None:
    session, refused = Session(bare.space), list[str]()
    whole_work(session, local(1), [put(1)], Ending.ONE_PHASE)
    for way in (GENERAL, PLAIN):
        name = xid(f"{way is PLAIN}")
        with pytest.raises(InvalidArgument) as told:
            way.work(session, name, [put(2), put(1)], Ending.PREPARE)
        refused.append(str(told.value))
        assert session._current is None
        with pytest.raises(Error, match="out of order"):
            session.prepare(name)
        session.rollback(name)
        with pytest.raises(UnknownXid):
            session.rollback(name)
    assert refused[0] == refused[1]
    work(session, xid("twice"), [put(3)], Ending.PREPARE)
    with pytest.raises(DuplicateXid):
        work(session, xid("twice"), [put(4)], Ending.PREPARE)


def test_without_room_in_the_journal_the_verbs_say_so(bare: BareSpace) -> None:
    session, faults = Session(bare.space), bare.fs.faults
    prepared = try_work(session, xid("prepared"), [put(1)], Ending.PREPARE)
    committed = try_work(session, xid("committed"), [put(2)], Ending.ONE_PHASE)
    assert prepared is not None
    assert committed is not None
    faults["write_at", "journal"] = errno.ENOSPC
    round_of(session, prepared, committed)
    with pytest.raises(DiskFull):
        finished(session, prepared)
    faults.clear()
    assert finished(session, committed) == [put(2).message_id], "there is room again"
    assert bare.take("orders") == [b"22222"]
    assert session.outcome(xid("prepared")) is Outcome.ROLLED_BACK


def test_a_fence_is_told_to_those_of_the_round_and_to_those_behind_it(bare: BareSpace) -> None:
    session = Session(bare.space)
    first = try_work(session, xid("1"), [put(1)], Ending.PREPARE)
    assert first is not None
    bare.fs.faults["sync_data", "journal"] = errno.EIO
    with pytest.raises(ResourceFailed):
        round_of(session, first)
    assert first.waiter is not None
    assert first.waiter.acquire(timeout=0), "it was woken"
    with pytest.raises(ResourceFailed, match="fenced"):
        finished(session, first)
    assert try_work(session, xid("2"), [put(2)], Ending.PREPARE) is None
    with pytest.raises(ResourceFailed, match="fenced"):
        bare.space.log.gather(Whole(bare.space.branches[xid("1")], None))


def test_a_branch_that_is_suspended_elsewhere_is_not_plain(bare: BareSpace) -> None:
    one, two = Session(bare.space), Session(bare.space)
    one.start(xid("1"))
    two.start(xid("1"), Flag.JOIN)
    two.end(xid("1"), Flag.SUSPEND)
    for ending in (Ending.PREPARE, Ending.ONE_PHASE):
        assert try_work(one, xid("1"), [put(1)], ending) is None
    two.start(xid("1"), Flag.RESUME)


def test_a_branch_of_a_batch_is_not_plain(bare: BareSpace) -> None:
    """It is decided with its batch, or not at all."""
    session = Session(bare.space)
    alone, late = (Xid(ONE_SPACE, Batch("query", number).gtrid, b"") for number in (1, 2))
    work(session, alone, [put(1)], Ending.PREPARE)
    assert session.try_commit(alone) is None
    work(session, late, [put(2)], Ending.OPEN)
    for ending in (Ending.PREPARE, Ending.ONE_PHASE):
        assert try_work(session, late, [put(3)], ending) is None


def test_a_branch_that_has_files_is_not_plain(bare: BareSpace) -> None:
    """They are synced first."""
    session = Session(bare.space)
    session.start(xid("1"))
    session.enqueue("orders", b"a")
    bare.space.log.write_early(bare.space.branches[xid("1")])
    assert try_work(session, xid("1"), [put(1)], Ending.PREPARE) is None


def test_no_queue_is_limited_meanwhile(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever could make room in it may be served by the same thread: it is added under the lock that it was asked
    under."""
    queue, session = bare.space.queues["few"], Session(bare.space)
    bare.put("few", b"1", b"2", b"3")
    room, queue.room = queue.room, None
    limited, added = list[bool](), list[bool]()

    def limit() -> None:
        with bare.space.lock:
            added.append(put(1).message_id in queue.pending)
            queue.room = room

    def begin_to_limit(name: str) -> bytes:
        limited.append(bare.space.lock.acquire(blocking=False))
        threads.append(Thread(target=limit))
        threads[0].start()
        return before_time(name)

    threads = list[Thread]()
    monkeypatch.setattr(plain, "before_time", begin_to_limit)
    assert try_work(session, xid("1"), [put(1, "few")], Ending.PREPARE) is not None
    threads[0].join()
    assert (limited, added) == ([False], [True])
    assert try_work(session, xid("2"), [put(2, "few")], Ending.PREPARE) is None


def test_work_is_progress(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.start(xid("1"))
    branch = bare.space.branches[xid("1")]
    branch.progress = 0.0
    whole_work(session, xid("1"), [put(1)], Ending.OPEN)
    assert branch.progress > 0


def test_what_is_not_plain_is_no_branch_of_its_session(bare: BareSpace) -> None:
    session = Session(bare.space)
    session.branch_limit = 2
    for number in range(2):
        assert try_work(session, xid(f"{number}"), [Take("orders")], Ending.OPEN) is None
        session.start(xid(f"{number}"))
        session.end(xid(f"{number}"))


def test_flags_of_one_phase_are_those_of_the_verb(bare: BareSpace) -> None:
    session = Session(bare.space)
    work(session, xid("1"), [put(1)], Ending.OPEN)
    session.end(xid("1"))
    session.commit(xid("1"), Flag.ONEPHASE)
    assert bare.take("orders") == [b"11111"]


# Behind a commit whose record is deferred: who waits for that waits for a round, which the same thread is to lead


@pytest.fixture
def late(bare: BareSpace) -> BareSpace:
    """One message of orders and of bills is committed late, and that of bills is a file."""
    session = Session(bare.space)
    for number, queue, size in ((2, "bills", 100), (1, "orders", 5)):
        session.start(xid(f"{number}"))
        session.enqueue(queue, bytes(size), message_id=put(number).message_id)
        session.end(xid(f"{number}"))
        session.prepare(xid(f"{number}"))
        if queue == "bills":
            bare.space.log.settle()
    for number in (1, 2):
        session.commit(xid(f"{number}"), Flag.LATE)
    return bare


@contextmanager
def never_waiting(bare: BareSpace) -> Iterator[None]:
    def waits(*_: object, **__: object) -> NoReturn:
        pytest.fail("it waits")

    log = bare.space.log
    with pytest.MonkeyPatch.context() as patched:
        for name in ("perform", "perform_late", "settle", "harden_late"):
            patched.setattr(log, name, waits)
        patched.setattr(Threads, "run", waits)
        assert len(log.deferred) == 2
        yield


def test_what_is_late_is_recorded_before_plain_work_in_its_round(late: BareSpace) -> None:
    session, rounds = Session(late.space), late.space.log.rounds
    with never_waiting(late):
        whole_work(session, xid("1"), [put(3)], Ending.PREPARE)  # a second life of the xid, too
        whole_commit(session, xid("1"))
        (taken,) = whole_work(session, local(1), [Take("orders")], Ending.OPEN)
        whole_work(session, local(1), [], Ending.ONE_PHASE)
    assert type(taken) is Taken
    assert (taken.message_id, late.space.log.rounds) == (put(1).message_id, rounds + 3)
    late.reopen()
    assert (late.take("orders"), late.take("bills")) == ([b"33333"], [bytes(100)])


def test_a_message_that_stands_elsewhere_yet_is_taken_by_who_may_wait(late: BareSpace) -> None:
    session = Session(late.space)
    with never_waiting(late):
        nothing_changes(late, session, [Take("bills")])
    session.start(xid("1"))
    assert session.dequeue("bills") is not None


def test_a_branch_that_memory_may_not_keep_adds_by_who_may_wait(late: BareSpace) -> None:
    session = Session(late.space)
    session.start(xid("1"))
    session.enqueue("orders", bytes(60_000))
    with never_waiting(late):
        assert try_work(session, xid("1"), [put(3, size=5_000)], Ending.OPEN) is None
        assert try_work(session, xid("1"), [put(3, size=5)], Ending.OPEN) is not None


def test_who_looks_at_the_disk_may_wait(late: BareSpace) -> None:
    session = Session(late.space)
    late.space.room._look_soon()
    with never_waiting(late):
        assert session.try_work(xid("1"), [put(3)], Ending.PREPARE) is None
    work(session, xid("1"), [put(3)], Ending.PREPARE)
    assert session.try_work(xid("2"), [put(4)], Ending.PREPARE) is not None


def test_who_adds_while_the_directories_fall_behind_waits_the_next_time(
    late: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_behind(name: str) -> bytes:
        late.space.log.behind.files += journal_log.PENDING_FILES  # type: ignore[attr-defined]
        return before_time(name)

    monkeypatch.setattr(plain, "before_time", fall_behind)
    session = Session(late.space)
    with never_waiting(late):
        whole_work(session, xid("1"), [put(3)], Ending.PREPARE)
        assert try_work(session, xid("2"), [put(4)], Ending.PREPARE) is None
