"""What need not outlive the owner of its space goes with that; all beside it stays, whatever crashes.

EMS-21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.bare_space import BareSpace, bare_space
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.model.definitions import Definitions, QueueDefinition, parse
from xaqueue.errors import InvalidArgument
from xaqueue.features.counters.values import Counters
from xaqueue.features.streams import cleanup
from xaqueue.testing import MemorySpace, every_crash
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

TEXT = """
[queues.kept]
topic = "all"
[queues.quick]
persistent = false
topic = "all"
[queues.failing]
max_tries = 1
failure_queue = "dead"
[queues.dead]
[queues.late]
expiry_queue = "dead"
[topics.all]
"""
DEFINED = Definitions({"kept": QueueDefinition(), "quick": QueueDefinition(persistent=False)})


@pytest.fixture(params=["NONE", "FDATASYNC;DSYNC", "JOURNAL"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "s", request.param, definitions=DEFINED) as made:
        yield made


def bodies(bare: BareSpace, queue: str) -> list[bytes]:
    with bare.connect() as connection:
        return [message.body for message in connection.browse(queue)]


def in_kept(connection: Connection) -> None:
    connection.enqueue("kept", b"v", persistent=False)


def many(connection: Connection) -> None:
    connection.enqueue_many("kept", [b"v1", b"v2", b"v3"], persistent=False)


def some_of_many(connection: Connection) -> None:
    connection.enqueue_many("kept", [(b"v%d" % number, {"persistent": number == 2}) for number in range(4)])


def quick(connection: Connection) -> None:
    connection.enqueue("quick", b"v")


def quick_many(connection: Connection) -> None:
    connection.enqueue_many("quick", [b"v1", b"v2", b"v3"])


WAYS: dict[Callable[[Connection], None], list[bytes]] = {
    in_kept: [],
    many: [],
    some_of_many: [b"v2"],
    quick: [],
    quick_many: [],
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("killed", [False, True])
def test_it_goes_when_another_owner_comes(bare: BareSpace, way: Callable[[Connection], None], killed: bool) -> None:
    """And whoever reads a file of it has it as what has expired."""
    bare.put("kept", b"before")
    with bare.connect() as connection:
        way(connection)
        connection.commit()
    bare.put("kept", b"behind")
    there = bodies(bare, "kept") + bodies(bare, "quick")
    assert len([body for body in there if body.startswith(b"v")]) >= 1
    if not killed:
        bare.space.close()
    bare.reopen()
    assert bodies(bare, "quick") == []
    assert bodies(bare, "kept") == [b"before", *WAYS[way], b"behind"] == bare.take("kept")
    assert cleanup.expire(bare.space)
    bare.space.settle()
    gone = sum(queue.memory_of(Counters).expired for queue in bare.space.queues.values())
    assert gone == len([body for body in there if body.startswith(b"v")]) - len(WAYS[way])
    bare.reopen()
    assert bodies(bare, "kept") == [b"before", *WAYS[way], b"behind"]


def test_what_a_message_says_can_be_read_and_is_checked(bare: BareSpace) -> None:
    with bare.connect() as connection:
        connection.enqueue("kept", b"1", persistent=True)
        connection.enqueue("kept", b"2", persistent=False)
        with pytest.raises(InvalidArgument, match="persistent 0 is refused: True or False is wanted"):
            connection.enqueue("kept", b"3", persistent=0)  # type: ignore[arg-type]
        connection.commit()
        assert [message.persistent for message in connection.browse("kept")] == [True, False]
    names = sorted(path.name for path in bare.messages("kept"))
    assert all(name.endswith(".v0") is (number == 1) or "+" in name for number, name in enumerate(names))


def test_a_branch_in_doubt_outlives_it_and_so_does_what_it_adds_until_the_next(bare: BareSpace) -> None:
    bare.put("quick", b"taken", b"free")
    xid = bare.prepare("both", add=[("quick", b"added"), ("kept", b"kept")], take=["quick"])
    bare.reopen()
    assert bare.in_doubt() == [xid]
    assert bodies(bare, "quick") == []
    with bare.connect() as connection:
        connection.tpc_commit(xid)
    assert (bodies(bare, "quick"), bodies(bare, "kept")) == ([b"added"], [b"kept"])
    bare.reopen()
    assert (bodies(bare, "quick"), bodies(bare, "kept")) == ([], [b"kept"])


@pytest.mark.parametrize("work", [{"add": [("quick", b"added")]}, {"take": ["quick"]}], ids=["adds", "takes"])
def test_a_prepared_branch_of_nothing_else_is_in_doubt_behind_a_kill(bare: BareSpace, work: dict[str, Any]) -> None:
    bare.put("quick", b"taken")
    xid = bare.prepare("alone", **work)
    bare.reopen()
    assert bare.in_doubt() == [xid]
    with bare.connect() as connection:
        connection.tpc_commit(xid)
    assert bodies(bare, "quick") == [body for _, body in work.get("add", ())]


def test_one_that_a_branch_in_doubt_gives_back_is_gone(bare: BareSpace) -> None:
    bare.put("quick", b"taken")
    xid = bare.prepare("back", add=[("kept", b"")], take=["quick"])
    bare.reopen()
    with bare.connect() as connection:
        connection.tpc_rollback(xid)
    assert bare.take("quick") == []


def test_another_definition_brings_nothing_back(bare: BareSpace) -> None:
    bare.put("quick", b"1")
    with bare.connect() as connection:
        connection.enqueue("kept", b"2", persistent=False)
        connection.commit()
    bare.reopen()
    bare.space.redefine(Definitions(dict.fromkeys(("kept", "quick"), QueueDefinition(options={"max_age_s": 1000}))))
    bare.space.redefine(Definitions(dict.fromkeys(("kept", "quick"), QueueDefinition())))
    assert bodies(bare, "kept") == bodies(bare, "quick") == bare.take("quick") == []


def test_a_number_never_comes_again(bare: BareSpace) -> None:
    def number() -> int:
        with bare.connect() as connection:
            connection.enqueue("quick", b"")
            connection.commit()
            return max(message.seq for message in connection.browse("quick"))

    last = number()
    bare.space.settle()
    bare.reopen()
    assert number() > last


@pytest.mark.parametrize(
    ("work", "waits"),
    [
        ([("quick", True)], False),
        ([("kept", False)], False),
        ([("quick", True), ("kept", False)], False),
        ([("kept", True)], True),
        ([("quick", True), ("kept", True)], True),
        ([("kept", False), ("kept", True)], True),
    ],
)
def test_only_who_has_something_persistent_waits_for_a_sync(
    tmp_path: Path, work: list[tuple[str, bool]], waits: bool
) -> None:
    with bare_space(tmp_path / "s", "JOURNAL", definitions=DEFINED) as bare, bare.connect() as connection:
        bare.fs.faults = {}
        for queue, persistent in work:
            connection.enqueue(queue, b"", persistent=persistent)
        connection.commit()
        assert bool(bare.space.log.deferred) is not waits
        for queue, _ in work:
            assert connection.dequeue(queue) is not None
        connection.commit()
        assert bool(bare.space.log.deferred) is not waits


@pytest.mark.parametrize("add", [in_kept, many], ids=["one", "many"])
def test_no_queue_has_to_say_so_beside(tmp_path: Path, add: Callable[[Connection], None]) -> None:
    with bare_space(tmp_path / "s", "JOURNAL") as bare, bare.connect() as connection:
        add(connection)
        connection.commit()
        assert bare.space.log.deferred
        connection.enqueue("kept", b"")
        connection.commit()
        assert not bare.space.log.deferred
        bare.space.redefine(Definitions({"other": QueueDefinition()}, QueueDefinition()))
        assert connection.dequeue("kept") is not None
        connection.commit()
        assert bare.space.log.deferred


def work(space: MemorySpace) -> int:
    """How many were acknowledged."""
    done = 0
    with space.connect() as connection:
        for number in range(2):
            for way in (quick, in_kept, quick_many):
                way(connection)
                connection.commit()
            connection.publish("all", b"p%d" % number)
            connection.enqueue("kept", b"k%d" % number)
            connection.commit()
            connection.dequeue("quick")
            connection.commit()
            done += 1
    return done


@pytest.mark.parametrize("sync", ["JOURNAL", "FDATASYNC;DSYNC"])
def test_what_is_beside_it_is_there_whatever_crashes(sync: str) -> None:
    told = 0
    for crash in every_crash(TEXT, sync=sync):
        told = 0
        with crash:
            told = work(crash.space)
        kept = [message.body for message in crash.space.messages("kept")]
        whole = [b"%s%d" % (kind, number) for number in range(2) for kind in (b"p", b"k")]
        assert kept == whole[: len(kept)], crash
        assert len(kept) >= 2 * told, crash
        assert crash.space.messages("quick") == []
    assert told == 2


def test_no_key_outlives_its_message() -> None:
    text = "[queues.q]\ndedup_window_s = 60\n[queues.plain]\n"
    for wrong in ("persistent = false\ndedup_window_s = 60\n", "dedup_window_s = 1.5\npersistent = false\n"):
        with pytest.raises(InvalidArgument, match=r"outlive its message.* Take one of the two away"):
            parse(f"[queues.q]\n{wrong}")
    with MemorySpace(text) as space, space.connect() as connection:
        with pytest.raises(InvalidArgument, match=r"refused in queue q.* Give one of the two"):
            connection.enqueue("q", b"", persistent=False, dedup_key=b"k")
        with pytest.raises(InvalidArgument, match=r"refused in queue q.* Give one of the two"):
            connection.enqueue_many("q", [b"", (b"", {"dedup_key": b"k"})], persistent=False)
        connection.rollback()
        connection.enqueue("plain", b"", persistent=False, dedup_key=b"k")
        connection.enqueue("q", b"", dedup_key=b"k")
        connection.commit()
        assert [len(space.messages(queue)) for queue in ("q", "plain")] == [1, 1]


def test_dead_and_expired_it_is_what_it_was() -> None:
    with MemorySpace(TEXT) as space, space.connect() as connection:
        connection.enqueue("failing", b"1", persistent=False)
        connection.enqueue("late", b"2", persistent=False, ttl=10)
        connection.commit()
        assert connection.dequeue("failing") is not None
        connection.rollback()
        space.advance(20)
        found = [connection.dequeue("dead", wait_s=30), connection.dequeue("dead", wait_s=30)]
        assert sorted((one.body, one.persistent) for one in found if one is not None) == [(b"1", False), (b"2", False)]


def test_what_is_kept_fails_into_no_queue_whose_messages_go() -> None:
    """Whoever asks for one gets the queue's own; a queue cannot ask for one."""
    with MemorySpace(TEXT) as space, space.connect() as connection:
        connection.enqueue("failing", b"1", failure_queue="quick")
        connection.commit()
        assert connection.dequeue("failing") is not None
        connection.rollback()
        found = connection.dequeue("dead", wait_s=30)
        assert found is not None
        assert found.body == b"1"


def test_a_server_s_clients_say_it_too(tmp_path: Path) -> None:
    with xaqueue.connect(tmp_path / "space", create=True) as made:
        made.define("quick", persistent=False)
        made.define("kept")
    server = ServerThread(tmp_path / "space", tmp_path / "socket", sync="JOURNAL")
    try:
        with xaqueue.connect(f"xaq+unix://{tmp_path / 'socket'}") as connection:
            connection.enqueue("quick", b"1")
            connection.enqueue("kept", b"2", persistent=False)
            connection.commit()
            connection.enqueue("kept", b"3")
            connection.commit()
            xid = Xid(1, b"x", b"b")
            connection.tpc_begin(xid)
            connection.enqueue("kept", b"4", persistent=False)
            connection.tpc_prepare()
            connection.tpc_commit()
            assert [message.body for message in connection.browse("kept")] == [b"2", b"3", b"4"]
    finally:
        server.stop()
    with xaqueue.connect(tmp_path / "space") as connection:
        assert [message.body for message in connection.browse("kept")] == [b"3"]
        assert connection.dequeue("quick") is None
