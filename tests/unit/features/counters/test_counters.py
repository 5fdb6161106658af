"""What each queue has had and lost is counted once, by every way, and outlives the owner but for what a crash takes."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import DURABLE, BareSpace, bare_space
from support.patience import eventually
from support.served import ServerThread
from xaqueue.core.engine import heuristics, journal_log
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.owner import threads
from xaqueue.features import opening
from xaqueue.features.counters import counters
from xaqueue.features.counters import counters as counter_files
from xaqueue.features.counters.values import Counters, Counting, decode, encode
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.features.topics.blocks import FEWEST
from xaqueue.offline import inspect
from xaqueue.offline.check import check
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.methods.service import queue_list, status_of

LEVELS = ["NONE", DURABLE, "JOURNAL"]
NOON_US = 1_800_000_000_000_000
SECOND_US = 1_000_000
WORK = QueueDefinition(options={"max_tries": 2, "failure_queue": "failed"})
LATE = QueueDefinition(options={"expiry_queue": "late"})
DEFINED = Definitions({"work": WORK, "kept": LATE}, QueueDefinition())


class Clock:
    us = NOON_US

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=LEVELS)
def bare(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param, now_us=clock, definitions=DEFINED) as made:
        yield made


def of(bare: BareSpace, queue: str) -> Counters:
    counted = bare.space.queue(queue)
    one = counters.counters_of(counted)
    left = one.dequeued + one.expired + one.dead_lettered + one.rejected + one.moved
    assert one.enqueued == len(counted.index) + left, "what came has left by one way, or is here"
    return one


def test_every_way_in_and_out_is_counted_once(bare: BareSpace, clock: Clock) -> None:
    with bare.connect() as connection:
        for queue in ("work", "plain", "kept"):
            connection.enqueue(queue, b"expires", ttl=1)
        connection.commit()
        for body in (b"poison", b"moves", b"undone"):
            connection.enqueue("work", body)
            connection.rollback() if body == b"undone" else connection.commit()
        clock.us += 2 * SECOND_US
        for tries in range(2):
            poison = connection.dequeue("work")
            assert poison is not None
            assert (poison.body, poison.tries) == (b"poison", tries)
            connection.rollback()
            poison_id = poison.message_id
        moving.move_exhausted(bare.space, cleanup.never)
        cleanup.expire(bare.space)
        (moves,) = connection.browse("work")
        assert connection.move("work", moves.message_id, "plain")
        connection.commit()
        assert connection.requeue("plain", moves.message_id)
        connection.rollback()
        assert connection.requeue("failed", poison_id)
        connection.commit()
        assert connection.dequeue("work") is not None
        connection.commit()
        assert connection.remove("plain", moves.message_id)
        connection.enqueue("work", b"refused")
        connection.commit()
        connection.receive("work")[0].reject("no order")
    ways = {"dequeued": 1, "expired": 1, "dead_lettered": 1, "rejected": 1, "moved": 1}
    assert of(bare, "work") == Counters(enqueued=5, redelivered=1, **ways)
    assert of(bare, "plain") == Counters(enqueued=2, dequeued=1, expired=1)
    assert of(bare, "kept") == Counters(enqueued=1, expired=1)
    assert of(bare, "late") == Counters(enqueued=1)
    assert of(bare, "failed") == Counters(enqueued=2, moved=1)


def test_what_a_stream_consumes_is_counted(bare: BareSpace) -> None:
    bare.put("plain", *(b"%d" % number for number in range(70)))
    session = Session(bare.space)
    session.reserve("plain", "query", 0, 50)
    session.consume("plain", "query", 50)
    session.consume("plain", "query", 50)
    assert of(bare, "plain") == Counters(enqueued=70, dequeued=50)


def test_what_is_in_doubt_is_counted_when_it_is_decided(bare: BareSpace) -> None:
    """By its blocks a restart knows a move, and nothing that is done again is counted again."""
    bare.put("plain", b"first", b"second")
    xid = bare.prepare("taken", add=[("other", b"new")], take=["plain"])
    with bare.connect() as connection:
        (second,) = list(connection.browse("plain"))[1:]
        moved = connection.xid(1, b"moved", b"b")
        connection.tpc_begin(moved)
        connection.move("plain", second.message_id, "other")
        connection.tpc_prepare()
    counter_files.write(bare.space)
    assert of(bare, "other") == Counters()
    bare.reopen()
    assert of(bare, "plain") == Counters(enqueued=2)
    heuristics.decide(bare.space, xid, True, "test")
    Session(bare.space).commit(moved)
    assert of(bare, "plain") == Counters(enqueued=2, dequeued=1, moved=1)
    assert of(bare, "other") == Counters(enqueued=2)
    counter_files.write(bare.space)
    bare.reopen()
    assert of(bare, "other") == Counters(enqueued=2), "what is replayed was counted"


def test_many_that_are_moved_at_once_are_counted_when_that_is_decided(bare: BareSpace) -> None:
    """What they are in the other queue is one block, where their queue is defined so."""
    with bare.connect() as connection:
        ids = connection.enqueue_many("plain", [b"%d" % number for number in range(FEWEST + 1)])
        connection.commit()
        moved = connection.xid(1, b"moved", b"b")
        connection.tpc_begin(moved)
        for message_id in ids:
            assert connection.move("plain", message_id, "other") == message_id
        connection.tpc_prepare()
    counter_files.write(bare.space)
    bare.reopen()
    Session(bare.space).commit(moved)
    assert of(bare, "plain") == Counters(enqueued=FEWEST + 1, moved=FEWEST + 1)


def work(root: Path, sync: str | None = None) -> None:
    with xaqueue.connect(root, sync=sync) as connection:
        connection.enqueue_many("plain", [b"1", b"2"])
        connection.commit()
        assert connection.dequeue("plain") is not None
        connection.commit()


def counted(root: Path, queue: str = "plain") -> Counters:
    return {one.name: one.counters for one in inspect.queue_list(root)}[queue]


def counting(root: Path) -> Counting:
    found = inspect.status(root).counting
    assert found is not None
    return found


@pytest.mark.parametrize("sync", LEVELS)
def test_they_outlive_a_close_and_say_what_a_kill_takes(tmp_path: Path, sync: str) -> None:
    root, copy = tmp_path / "space", tmp_path / "copy"
    opening.create(root, any_queue=True, sync=sync)
    assert inspect.status(root).counting is None
    for lives in (1, 2):
        work(root)
        assert counted(root) == Counters(enqueued=2 * lives, dequeued=lives)
        assert counting(root).crashes == 0
    with xaqueue.connect(root) as connection:
        since = counting(root)
        connection.enqueue("plain", b"lost to the counting")
        connection.commit()
        shutil.copytree(root, copy)  # which is what a kill leaves
    before = counting(copy)
    assert (before.crashes, before.lost_after, before.since) == (1, since.as_of, since.since)
    work(copy)
    after = counting(copy)
    assert (after.crashes, after.lost_after) == (1, since.as_of)
    assert since.as_of < after.found_at < after.as_of
    assert counted(copy) == Counters(enqueued=6, dequeued=3)
    assert counted(root) == Counters(enqueued=5, dequeued=2)
    assert counting(root).crashes == 0


def kept(root: Path) -> Counters:
    found = decode((root / "counters").read_bytes())
    return found[1].get("plain", Counters()) if found is not None else Counters()


@pytest.mark.parametrize("damage", [None, b"", b"foreign", b"00000000 {}\n", b'%08x {"since": 1}\n'])
def test_where_the_file_is_lost_counting_begins_anew(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "space"
    opening.create(root, any_queue=True)
    work(root)
    path, began = root / "counters", counting(root).since
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
        assert [found.path for found in check(root)] == ["counters"]
    assert inspect.status(root).counting is None
    assert counted(root) == Counters()
    with caplog.at_level(logging.WARNING, "xaqueue"):
        work(root)
    assert "the file counters is missing or damaged: counting begins now" in caplog.text
    assert counted(root) == Counters(enqueued=2, dequeued=1)
    assert counting(root).since > began
    assert list(check(root)) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_new_space_that_is_killed_has_lost_no_file(
    tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However early: its counters are there as long as it is a space. What a kill took of them is said as such."""
    root, copy = tmp_path / "space", tmp_path / "copy"
    made = opening.create(root, sync=level, any_queue=True)
    found = decode((root / "counters").read_bytes())
    assert found is not None
    with caplog.at_level(logging.WARNING, "xaqueue"), xaqueue.connect(root) as connection:
        for kills in range(3):
            shutil.copytree(root, copy)
            xaqueue.connect(copy).close()
            assert (counting(copy).crashes, counting(copy).since) == (1, found[0].since)
            shutil.rmtree(copy)
            connection.enqueue("plain", b"%d" % kills)
            connection.commit()
    assert [said for said in caplog.messages if "mount-unsafe" not in said] == []
    assert opening.create(root) == made


def test_what_stands_in_its_place_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "space"
    opening.create(root, any_queue=True)
    (root / "counters").unlink()
    (root / "counters").mkdir()
    with caplog.at_level(logging.WARNING, "xaqueue"):
        work(root)
        work(root)
    assert "[counters-unwritten]" in caplog.text
    assert (root / "counters").is_dir()


def test_without_room_they_are_written_the_next_time(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "EVERY_S", 0.0)
    bare.put("plain", b"1")
    counter_files.file_of(bare.space)._due = 0.0
    bare.fs.faults["create", ".counters.new"] = errno.ENOSPC
    bare.space.checkpoint()
    assert kept(bare.root) == Counters()
    bare.fs.faults.clear()
    bare.space.checkpoint()
    assert kept(bare.root) == Counters(enqueued=1)
    written = (bare.root / "counters").stat()
    bare.space.checkpoint()
    assert (bare.root / "counters").stat() == written, "nothing was counted since"


@pytest.mark.parametrize("sync", LEVELS)
def test_an_owner_at_work_writes_them(tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "EVERY_S", 0.0)
    monkeypatch.setattr(threads, "WATCH_S", 0.02)
    monkeypatch.setattr(journal_log, "LOOK_S", 0.02)
    monkeypatch.setattr(journal_log, "NEW_FILES", 0)
    root = tmp_path / "space"
    opening.create(root, any_queue=True, sync=sync)
    with xaqueue.connect(root) as connection:
        connection.enqueue("plain", b"1")
        connection.commit()
        eventually(lambda: kept(root) == Counters(enqueued=1))


@pytest.mark.parametrize("sync", LEVELS)
def test_a_server_tells_them_from_memory(tmp_path: Path, sync: str) -> None:
    root = tmp_path / "space"
    opening.create(root, any_queue=True, sync=sync)
    work(root)
    server = ServerThread(root, tmp_path / "socket")
    try:
        with xaqueue.connect(server.url) as connection:
            connection.enqueue("plain", b"3")
            connection.commit()
        manager = remote_manager(server.url)
        told = status_of(manager.status())
        manager.close()
        assert {one.name: one.counters for one in told.queues} == {"plain": Counters(enqueued=3, dequeued=1)}
        assert told.counting is not None
        assert (told.counting.crashes, told.counting.closed) == (0, False)
        assert counted(root) == Counters(enqueued=2, dequeued=1), "as of its last close"
        assert [one.counters.enqueued for one in queue_list(server.space)] == [3]
    finally:
        server.stop()
    assert counted(root) == Counters(enqueued=3, dequeued=1)


def test_the_line_is_read_as_it_is_written() -> None:
    counting, queues = Counting(1, 2, 3, True, 4, 5, 6, 7, 8), {"a": Counters(1, 2, 3, 4, 5, 6), "b": Counters()}
    line = encode(counting, queues)
    assert decode(line) == (counting, queues)
    for end in range(len(line)):
        assert decode(line[:end]) is None
