"""The bytes of the journal are those that they always were: fixed stories of every verb, by their digests.

Whoever changes the format on purpose writes the new digests here, and what reads the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from support.bare_space import BareSpace, bare_space
from xaqueue.batch import ONE_SPACE, Batch
from xaqueue.connection import Connection
from xaqueue.core.engine import heuristics
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import parse
from xaqueue.core.storage import ids
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import HeuristicOutcome, RolledBack
from xaqueue.features.leases import leases
from xaqueue.features.session import Session
from xaqueue.features.topics import adding
from xaqueue.message import Message
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

NOW_US = 1_700_000_000_000_000
LATER_US = 4_000_000_000_000_000
IDS = 2000
"""More than a story needs."""
QUEUES = """
[queues.orders]
failure_queue = "dead"
[queues.bills]
[queues.dead]
[queues.lines]
order = "priority"
[queues.once]
dedup_window_s = 3600
[queues.few]
max_messages = 100
[queues.soon]
sync = "NONE"
[topics.events]
[queues.first]
topic = "events"
[queues.second]
topic = "events"
"""


class Scene(NamedTuple):
    """Two connections to one space."""

    bare: BareSpace
    one: Connection
    two: Connection


@pytest.fixture(params=[None, False], ids=["synced as it is written", "written and synced"])
def bare(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", "JOURNAL", lambda: NOW_US, parse(QUEUES)) as opened:
        opened.fs._dsync = request.param
        monkeypatch.setattr(ids, "_fresh", [number.to_bytes(16, "big") for number in range(IDS, 0, -1)])
        for module in (adding, leases):
            monkeypatch.setattr(module, "fresh_ids", lambda count: [fresh_id() for _ in range(count)])
        yield opened


def xid(number: int) -> Xid:
    return Xid(1, b"global %d" % number, b"branch")


def takes(connection: Connection, queue: str) -> Message:
    found = connection.dequeue(queue)
    assert found is not None
    return found


def steps(scene: Scene) -> None:
    """Every kind of step, of one block and of several, with bodies of all sizes that are padded in another way."""
    connection = scene.one
    for number in range(9):
        connection.tpc_begin(xid(number))
        connection.enqueue("orders", b"x" * number, headers={"n": str(number)})
        connection.tpc_prepare()
        connection.tpc_commit() if number % 3 else connection.tpc_rollback()
    for number, queue in enumerate(("orders", "bills", "orders")):
        connection.enqueue(queue, b"y" * 1000 * number, priority=number)
    connection.commit()
    scene.bare.space.checkpoint()
    connection.tpc_begin(xid(10))
    takes(connection, "orders")
    connection.enqueue("bills", b"z" * 70_000)
    connection.tpc_prepare()
    connection.tpc_commit()
    takes(connection, "bills")
    connection.commit()
    takes(connection, "orders")
    connection.rollback()


def plain(scene: Scene) -> None:
    """One message without properties in a branch, and one that is taken: in two phases, in one, and undone."""
    connection = scene.one
    for number in range(12):
        connection.tpc_begin(xid(number))
        connection.enqueue("orders", b"x" * number) if number < 8 else takes(connection, "orders")
        connection.tpc_prepare()
        connection.tpc_rollback() if number % 4 == 3 else connection.tpc_commit()
    for number in range(6):
        connection.enqueue("bills", b"y" * number)
        connection.rollback() if number == 3 else connection.commit()
    for _ in range(4):
        takes(connection, "bills")
        connection.commit()
    connection.tpc_begin(xid(20))
    connection.enqueue("bills", b"in one phase")
    connection.tpc_commit()
    connection.tpc_begin(xid(21))
    takes(connection, "bills")
    connection.tpc_commit()
    assert connection.dequeue("dead") is None
    connection.commit()


def properties(scene: Scene) -> None:
    """Messages that have more to say, and queues that do more with them."""
    one = scene.one
    one.enqueue("orders", b"1", correlation_id=b"one", reply_queue="bills", content_type="text/plain")
    one.enqueue("orders", b"2", message_id=bytes(15) + b"!", group="g")
    one.enqueue("orders", b"3", not_before=LATER_US, expires_at=LATER_US + 1)
    one.commit()
    for key in (b"a", b"b", b"a"):
        one.tpc_begin(xid(1))
        one.enqueue("once", key, dedup_key=key)
        one.tpc_prepare()
        one.tpc_commit()
    for number in range(4):
        one.enqueue("lines", b"%d" % number, priority=number)
        one.enqueue("few", b"%d" % number)
        one.enqueue("soon", b"%d" % number)
        one.commit()
    assert takes(one, "lines").body == b"3"
    takes(one, "few")
    takes(one, "soon")
    one.commit()
    assert one.dequeue("orders", correlation_id=b"one") is not None
    assert one.dequeue("orders", message_id=bytes(15) + b"!") is not None
    one.commit()


def several(scene: Scene) -> None:
    """What is done with several messages in one call, and with one in several queues."""
    one = scene.one
    one.enqueue_many("orders", [b"%d" % number for number in range(5)])
    one.enqueue_to(["orders", "bills"], b"both")
    one.publish("events", b"event")
    one.commit()
    one.tpc_begin(xid(1))
    one.publish("events", b"event", headers={"a": "b"})
    one.enqueue_many("bills", [b"large" * 1000] * 3)
    one.tpc_prepare()
    one.tpc_commit()
    assert len(one.dequeue_many("orders", 3)) == 3
    one.commit()
    one.tpc_begin(xid(2))
    assert len(one.dequeue_many("bills", 9)) == 4
    one.tpc_prepare()
    one.tpc_rollback()
    one.rollback()


def settled(scene: Scene) -> None:
    """Messages on lease, and those that go elsewhere or come back."""
    one, two = scene.one, scene.two
    one.enqueue_many("orders", [b"%d" % number for number in range(9)])
    one.commit()
    held = one.receive("orders", 5, lease_s=600)
    held[0].ack()
    held[1].nack(600.0, "later")
    held[2].reject("never")
    held[3].extend(900)
    two.accept(held[3])
    two.enqueue("bills", b"effect")
    two.commit()
    held[4].ack()
    shown = next(iter(one.browse("orders")))
    assert one.remove("orders", shown.message_id)
    one.commit()
    assert one.restore(shown)
    one.commit()
    (dead,) = one.browse("dead")
    assert one.requeue("dead", dead.message_id)
    one.commit()
    assert one.move("bills", next(iter(one.browse("bills"))).message_id, "dead")
    one.commit()
    takes(one, "orders")
    one.rollback()
    takes(one, "orders")
    one.explain_rollback("why not")
    one.rollback()


def branches(scene: Scene) -> None:
    """Branches that several sessions are in, that are suspended, doomed, decided by hand, and those without work."""
    one, two = scene.one, scene.two
    one.tpc_begin(xid(1))
    one.enqueue("orders", b"1")
    one.tpc_end(flags=Flag.SUSPEND)
    one.enqueue("orders", b"local")
    one.commit()
    one.tpc_begin(xid(1), Flag.RESUME)
    joined = Session(scene.bare.space)
    joined.start(xid(1), Flag.JOIN)
    joined.enqueue("orders", b"2")
    joined.end(xid(1))
    joined.close()
    one.tpc_prepare()
    one.tpc_commit()
    for number, flag in ((2, Flag.FAIL), (3, Flag.SUCCESS)):
        one.tpc_begin(xid(number))
        one.enqueue("orders", b"3")
        one.tpc_end(flags=flag)
        with suppress(RolledBack):
            one.tpc_rollback()
    one.tpc_begin(xid(4))
    assert not one.tpc_prepare()
    one.tpc_commit()
    for number, outcome in ((5, True), (6, False)):
        one.tpc_begin(xid(number))
        one.enqueue("orders", b"4")
        takes(one, "orders")
        one.tpc_prepare()
        heuristics.decide(scene.bare.space, xid(number), outcome, "tester", "no answer")
        with suppress(HeuristicOutcome):
            one.tpc_commit()
        one.tpc_forget(xid(number))
        assert two.outcome(xid(number)) is (Outcome.COMMITTED if outcome else Outcome.ROLLED_BACK)


def ranges(scene: Scene) -> None:
    """What a stream takes, and branches that a query decides together."""
    one, session = scene.one, Session(scene.bare.space)
    one.enqueue_many("orders", [b"%d" % number for number in range(9)])
    one.commit()
    session.reserve("orders", "stream", 0, 4)
    session.consume("orders", "stream", 3)
    session.reserve("orders", "stream", 3, 6)
    session.consume("orders", "stream", 6)
    session.release("orders")
    takes(one, "orders")
    one.commit()
    batch = Batch("query", 1)
    members = [Xid(ONE_SPACE, batch.gtrid, b"%d" % number) for number in range(3)]
    for member in members:
        session.start(member)
        session.enqueue("bills", member.bqual)
        session.end(member)
        session.prepare(member)
    session.commit_all(batch, members[:2])
    session.close()


STORIES: dict[Callable[[Scene], None], tuple[int, str]] = {
    steps: (79_425, "f67a8d0ea3a6065ba547e6ac47495112e34cfb87627bb56a0c92b0d48a4540df"),
    plain: (8_077, "53eaffc6c27a9294992165451fc0a9ae359d9cb6d91943a0a44c11f5e4d5779e"),
    properties: (6_638, "77e7093ce9b38c66ca0eb5d3038fe0677155e3b10f38503298f2eeb5f2814ac0"),
    several: (21_556, "5203163d1552b3198f06f7c6bf22b29476596ac3d439a237d86e1e187d2b09bb"),
    settled: (6_005, "6914c5788f8d08c0814d99c11c2254c4a2973944a44887c251bd89c61d66cb65"),
    branches: (4_529, "b7bea747371d8e322fd40a7a109b4049c86fbce51ad89021b8f96d05ba12bfd1"),
    ranges: (5_326, "efede2822272d27bd729035e518a3ca1377ea68fa214231b1840128432e02bec"),
}
"""Of each the size of the journal, without the zeros behind its records, and its digest."""


def journal_of(bare: BareSpace) -> tuple[int, str]:
    digest, size = sha256(), 0
    for path in sorted((bare.root / layout.JOURNAL).iterdir()):
        data = path.read_bytes().rstrip(b"\0")
        digest.update(path.name.encode() + data)
        size += len(data)
    return size, digest.hexdigest()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_journal_of_a_fixed_story_has_the_same_bytes(bare: BareSpace, story: Callable[[Scene], None]) -> None:
    with Connection(Session(bare.space), fresh_id) as one, Connection(Session(bare.space), fresh_id) as two:
        story(Scene(bare, one, two))
        assert journal_of(bare) == STORIES[story]
