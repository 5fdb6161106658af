"""Messages that a branch adds one by one are in one block from its prepare, or its commit in one phase, on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import BareSpace, bare_space
from support.interruption import interrupt
from xaqueue import Connection
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, parse
from xaqueue.core.model.message_block import MOST_BYTES
from xaqueue.core.model.message_name import parse_any
from xaqueue.errors import QueueFull
from xaqueue.features.limits.queue_room import room_of
from xaqueue.features.session import Session
from xaqueue.features.topics import blocks, hollow
from xaqueue.features.topics.blocks import FEWEST, MOST, MOST_BODY_BYTES
from xaqueue.message import Message
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.inspect_branches import in_doubt, traffic_of
from xaqueue.offline.verify import verify
from xaqueue.times import EARLIEST_US, LATEST_US
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
COUNT = 40
TOML = """
[queues.q]
blocks = "{0}"
[queues.r]
blocks = "{0}"
[queues.s]
blocks = "one"
[queues.keyed]
blocks = "{0}"
dedup_window_s = 60
[queues.small]
blocks = "{0}"
max_messages = 30
max_bytes = 1000000
[topics.t]
[queues.a]
blocks = "{0}"
topic = "t"
[queues.b]
blocks = "{0}"
topic = "t"
[queues.c]
blocks = "one"
topic = "t"
[topics.u]
[queues.d]
blocks = "{0}"
topic = "u"
[queues.e]
blocks = "{0}"
topic = "u"
"""


def definitions(blocks: str = "many") -> Definitions:
    return parse(TOML.format(blocks))


LEVELS = ["JOURNAL", "NONE"]
"""At which memory keeps what is added until then."""


@pytest.fixture(params=LEVELS)
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param, definitions=definitions()) as opened:
        yield opened


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[BareSpace]:
    """With a journal."""
    with bare_space(tmp_path / "space", "JOURNAL", definitions=definitions()) as opened:
        yield opened


def files(bare: BareSpace, queue: str = "q") -> list[int]:
    """Of each file in the order of its numbers, how many messages came in it."""
    bare.space.settle()
    found = sorted((bare.root / layout.queue_path(queue)).glob("range=*/*"))
    return [named.count for path in found if (named := parse_any(path.name)) is not None]


def take(bare: BareSpace, queue: str = "q", count: int = 10_000) -> list[Message]:
    connection = bare.connect()
    found = connection.dequeue_many(queue, count)
    connection.commit()
    return found


def bodies_of(found: list[Message]) -> list[bytes]:
    return [message.body for message in found]


def number_of(place: int) -> bytes:
    return b"%d" % place


def add(connection: Connection, count: int = COUNT, queue: str = "q", begin: int = 0, **options: Any) -> list[bytes]:
    for place in range(begin, begin + count):
        connection.enqueue(queue, number_of(place), **options)
    return [number_of(place) for place in range(begin, begin + count)]


def end(bare: BareSpace, connection: Connection, way: str) -> None:
    if way == "one phase":
        connection.commit()
        return
    session: Any = connection._manager
    xid = session._current.xid
    session.end(xid)
    session.prepare(xid)
    if "kill" in way:
        bare.reopen()
        session = Session(bare.space)
    session.commit(xid)


WAYS = ["one phase", "two phases", "two phases and a kill"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_added_one_by_one_comes_in_one_file(bare: BareSpace, way: str) -> None:
    connection = bare.connect()
    wanted = add(connection)
    end(bare, connection, way)
    assert files(bare) == [COUNT]
    bare.reopen()
    assert bodies_of(take(bare)) == wanted
    assert files(bare) == []


VARIED: list[dict[str, Any]] = [
    {},
    {"headers": {"a": "1"}},
    {"correlation_id": b"c", "reply_queue": "r"},
    {"priority": 7},
    {"content_type": "text/plain", "expires_at": LATEST_US},
    {"group": "g"},
    {"not_before": EARLIEST_US},
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_each_has_all_that_is_its_own(tmp_path: Path, way: str, level: str) -> None:
    """The same as where each has a file, in the same order."""
    shown: list[list[Message]] = []
    for kind in ("one", "many"):
        clock = count(2**50, 1_000)
        bare = BareSpace(tmp_path / kind, level, definitions=definitions(kind), now_us=clock.__next__)
        connection = bare.connect()
        connection.enqueue("r", b"")  # it has a transaction
        for place in range(COUNT):
            options = VARIED[place % len(VARIED)]
            connection._manager.enqueue("q", number_of(place), message_id=place.to_bytes(16), **options)
        end(bare, connection, way)
        assert files(bare) == ([COUNT] if kind == "many" else [1] * COUNT)
        bare.reopen()
        found = [*bare.connect().browse("q"), *take(bare)]
        at = [one.properties.enqueued_at for one in found]
        assert len(set(at)) == COUNT, "each has its own time"
        shown.append([replace(one, properties=replace(one.properties, enqueued_at=0)) for one in found])
        bare.crash()
    assert len(shown[0]) == 2 * COUNT
    assert shown[0] == shown[1]


def test_what_is_rolled_back_leaves_nothing(bare: BareSpace) -> None:
    """Also behind its prepare, with its ids free again, and after a kill."""
    for way in ("active", "prepared", "killed"):
        session: Any = Session(bare.space)
        session.start(X)
        for place in range(COUNT):
            session.enqueue("q", number_of(place), message_id=place.to_bytes(16))
        session.end(X)
        if way != "active":
            session.prepare(X)
        if way == "killed":
            bare.reopen()
            session = Session(bare.space)
        session.rollback(X)
    assert (files(bare), take(bare)) == ([], [])


def test_what_cannot_be_merged_keeps_its_place(bare: BareSpace) -> None:
    """What is large, what came at once, and fewer than are worth a block are in the same order as ever."""
    connection = bare.connect()
    wanted = add(connection, FEWEST)
    wanted.append(bytes(MOST_BODY_BYTES + 1))
    connection.enqueue("q", wanted[-1])
    wanted += add(connection, FEWEST - 1, begin=100)
    wanted += [number_of(place) for place in range(200, 220)]
    connection.enqueue_many("q", wanted[-20:])
    wanted += add(connection, FEWEST + 1, begin=300)
    connection.commit()
    assert files(bare) == [FEWEST, *[1] * FEWEST, 20, FEWEST + 1]
    assert bodies_of(take(bare)) == wanted


def test_each_queue_has_its_own_blocks(bare: BareSpace) -> None:
    """Added by turns, with messages taken in between; a queue that wants files has files."""
    connection = bare.connect()
    before = add(connection)
    connection.commit()
    taken = []
    for place in range(COUNT):
        for queue in "qrs":
            connection.enqueue(queue, number_of(place))
        taken += connection.dequeue_many("q", 1)
    connection.commit()
    assert bodies_of(taken) == before
    assert [files(bare, queue) for queue in "qrs"] == [[COUNT], [COUNT], [1] * COUNT]
    bare.reopen()
    for queue in "qrs":
        assert bodies_of(take(bare, queue)) == before


def test_a_block_holds_no_more_than_it_may(bare: BareSpace) -> None:
    """Of many small ones, and of some that are large, or have large properties."""
    connection = bare.connect()
    wanted = add(connection, MOST + FEWEST)
    connection.commit()
    for place in range(60):
        wanted.append(bytes([place]) * 30_000)
        connection.enqueue("q", wanted[-1], headers={"large": "x" * 30_000})
    connection.commit()
    found = files(bare)
    assert (found[:2], sum(found), max(found[2:]) < 40) == ([MOST, FEWEST], MOST + FEWEST + 60, True)
    sizes = [path.stat().st_size for path in (bare.root / layout.queue_path("q")).glob("range=*/*+*")]
    assert max(sizes) <= MOST_BYTES
    bare.reopen()
    assert bodies_of(take(bare)) == wanted


def test_what_is_in_active_stays_a_file(bare: BareSpace) -> None:
    """What a branch could not keep in memory."""
    connection = bare.connect()
    wanted = add(connection)
    branch = connection._manager._current  # type: ignore[attr-defined]
    bare.space.log.write_early(branch)
    wanted += add(connection, begin=COUNT)
    connection.commit()
    assert files(bare) == [*[1] * COUNT, COUNT]
    assert branch.kept[1] == int(bare.space.log.follows)
    assert bodies_of(take(bare)) == wanted


@pytest.mark.parametrize("way", WAYS)
def test_a_key_is_claimed_with_a_file(bare: BareSpace, way: str) -> None:
    connection = bare.connect()
    wanted = []
    for place in range(COUNT):
        connection.enqueue("keyed", number_of(place), dedup_key=number_of(place // 2))
        wanted += [number_of(place)] if place % 2 == 0 else []
    wanted += add(connection, queue="keyed", begin=COUNT)
    end(bare, connection, way)
    assert files(bare, "keyed") == [*[1] * (COUNT // 2), COUNT]
    bare.reopen()
    connection = bare.connect()
    for place in range(COUNT // 2):
        connection.enqueue("keyed", b"again", dedup_key=number_of(place))
    connection.commit()
    assert bodies_of(take(bare, "keyed")) == wanted


def test_a_limit_counts_each(bare: BareSpace) -> None:
    connection = bare.connect()
    add(connection, 30, queue="small")
    with pytest.raises(QueueFull):
        connection.enqueue("small", b"")
    connection.commit()
    assert files(bare, "small") == [30]
    take(bare, "small", 10)
    add(connection, 10, queue="small")
    with pytest.raises(QueueFull):
        connection.enqueue("small", b"")
    connection.rollback()


def test_a_limit_in_bytes_counts_each_as_alone(bare: BareSpace) -> None:
    """Whatever properties it has of its own, and after the next open."""
    connection = bare.connect()
    for place in range(20):
        connection.enqueue("small", number_of(place), headers={"a": "x" * place})
    before = room_of(bare.space.queue("small"))
    connection.commit()
    assert files(bare, "small") == [20]
    bare.reopen()
    queue = bare.space.queue("small")
    after = room_of(queue)
    assert before is not None
    assert after is not None
    after.measure(bare.space, queue)
    assert after.size_bytes == before.size_bytes > 0


def publish(connection: Connection, topic: str, **options: Any) -> list[bytes]:
    bodies = [number_of(place) * 1_000 for place in range(COUNT)]
    for body in bodies:
        connection.publish(topic, body, **options)
    return bodies


@pytest.mark.parametrize("way", WAYS)
def test_what_several_queues_have_is_recorded_once(bare: BareSpace, way: str) -> None:
    """Each queue has a block, of which the properties name none: they are those of the queue that one looks at."""
    connection, log = bare.connect(), bare.space.log
    wanted = publish(connection, "u", content_type="text/plain")
    before = log.figures().get("journal_end", 0)
    end(bare, connection, way)
    if "kill" not in way:
        assert log.figures().get("journal_end", 0) - before < 1.5 * sum(map(len, wanted))
    for queue in "de":
        assert files(bare, queue) == [COUNT]
    assert len({path.stat().st_ino for path in (bare.root / layout.COMMITTED).glob("queue=*/range=*/*+*")}) == 1
    assert [found for found in check(bare.root) if found.severity is Severity.DAMAGE] == []
    bare.reopen()
    ids = []
    for queue in "de":
        found = [*bare.connect().browse(queue), *take(bare, queue)]
        assert bodies_of(found) == 2 * wanted
        assert {(one.queue, one.properties.queue, one.properties.content_type) for one in found} == {
            (queue, queue, "text/plain")
        }
        ids.append([one.message_id for one in found])
    assert ids[0] == ids[1]
    bare.reopen()
    assert files(bare, "d") == files(bare, "e") == []


@pytest.mark.parametrize("way", WAYS)
def test_a_queue_that_wants_files_has_them_of_a_topic(bare: BareSpace, way: str) -> None:
    """Beside blocks of others, and of messages that are the queue's own."""
    connection = bare.connect()
    wanted = publish(connection, "t", priority=7) + add(connection, queue="a")
    end(bare, connection, way)
    assert [files(bare, queue) for queue in "abc"] == [[COUNT, COUNT], [COUNT], [1] * COUNT]
    bare.reopen()
    assert [bodies_of(take(bare, queue)) for queue in "abc"] == [wanted, wanted[:COUNT], wanted[:COUNT]]


def test_other_messages_of_the_same_sizes_are_no_other_name(bare: BareSpace) -> None:
    """Two queues get different ones of one branch, of which the first is the same."""
    connection = bare.connect()
    connection.enqueue_to(["d", "e"], b"0")
    for place in range(1, COUNT):
        connection.enqueue_to(["d", "q"], b"d%d" % place)
        connection.enqueue_to(["e", "r"], b"e%d" % place)
    connection.commit()
    assert [files(bare, queue) for queue in "deqr"] == [[COUNT], [COUNT], [COUNT - 1], [COUNT - 1]]
    bare.reopen()
    for queue in "de":
        assert bodies_of(take(bare, queue))[1:] == [b"%s%d" % (queue.encode(), place) for place in range(1, COUNT)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("hollows", [False, True])
def test_one_message_of_several_queues_is_no_duplicate(tmp_path: Path, hollows: bool, level: str) -> None:
    """To those who check a space: also of a block that was made smaller."""
    now = count(2**50, 1_000)
    bare = BareSpace(tmp_path / "space", level, definitions=definitions(), now_us=now.__next__)
    connection = bare.connect()
    publish(connection, "u")
    connection.commit()
    take(bare, "d", COUNT - 3)
    if hollows:
        now = count(2**51, 1_000)
        bare.now_us = now.__next__
        (found,) = hollow.sparse(bare.space)
        hollow.hollow(bare.space, *found)
        assert found[1].held == 3
    bare.space.settle()
    bare.crash()
    assert [one.problem for one in check(bare.root) if "message id" in one.problem] == []
    _, findings = verify([str(bare.root)], 1)
    assert [one for one in findings if one.severity is Severity.DUPLICATE] == []


def test_a_record_is_no_larger_than_of_files(recorded: BareSpace) -> None:
    """Queues that share some messages with one queue, and some with another, have no block in common."""
    connection, log = recorded.connect(), recorded.space.log
    for place in range(COUNT):
        connection.enqueue_to(["d", "q"], b"dq%d" % place * 2_000)
        connection.enqueue_to(["d", "e"], b"de%d" % place * 2_000)
    branch: Any = connection._manager._current  # type: ignore[attr-defined]
    kept, before = branch.kept, log.figures()["journal_end"]
    connection.commit()
    assert branch.kept == kept
    assert log.figures()["journal_end"] - before <= kept[0]
    assert [files(recorded, queue) for queue in "deq"] == [[1] * 2 * COUNT, [1] * COUNT, [1] * COUNT]
    recorded.reopen()
    assert [len(take(recorded, queue)) for queue in "deq"] == [2 * COUNT, COUNT, COUNT]


def test_a_branch_in_doubt_is_told_by_queue(bare: BareSpace) -> None:
    connection = bare.connect()
    connection.tpc_begin(X)
    publish(connection, "u")
    connection.tpc_prepare()
    bare.space.settle()
    (branch,) = in_doubt(bare.root)
    assert list(map(str, traffic_of(branch))) == [f"d +{COUNT}", f"e +{COUNT}"]


def test_an_interrupted_merge_loses_nothing(bare: BareSpace) -> None:
    """The branch is committed as it stands then, or rolled back."""
    at, was, wanted = 0, True, list[bytes]()
    while was:
        connection = bare.connect()
        some = add(connection, FEWEST, begin=at)
        branch: Any = connection._manager._current  # type: ignore[attr-defined]
        was = interrupt(at, lambda one=branch: blocks.merge(bare.space, one))  # type: ignore[misc]
        (connection.commit if at % 2 else connection.rollback)()
        wanted += some if at % 2 else []
        at += 1
    assert at > 10
    assert bodies_of(take(bare)) == wanted


def test_what_memory_keeps_is_counted(recorded: BareSpace) -> None:
    connection = recorded.connect()
    add(connection)
    branch: Any = connection._manager._current  # type: ignore[attr-defined]
    blocks.merge(recorded.space, branch)
    (written,) = branch.blocks
    before = branch.kept
    fresh = recorded.connect()
    fresh.enqueue("q", b"")
    other: Any = fresh._manager._current  # type: ignore[attr-defined]
    other.kept = (0, 0)
    recorded.space.log.add(other, other.blocks[0], *written.content)
    assert other.kept == before
    connection.rollback()
    fresh.rollback()
