"""A replica has what its source has, catches up after any absence, and takes its place."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.patience import eventually
from support.replicas import ReplicaThread, made, text
from support.served import PATIENCE_S, RUN, ServerThread
from xaqueue.connection import Connection
from xaqueue.core.model import definitions, format, layout, records
from xaqueue.core.model.block import decode
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import ConnectionLost, OutcomeUnknown, ResourceFailed, RolledBack, SpaceError, SpaceInUse
from xaqueue.features.replica import follower, replicated
from xaqueue.features.replica.options import policy_of
from xaqueue.features.replica.promote import promote, tell_former
from xaqueue.features.replica.replicated import UNSHIPPED, Replicated
from xaqueue.features.snapshots import restored, store
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.features.snapshots.restored import REMOVED
from xaqueue.features.streams import cleanup
from xaqueue.message import Message
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.inspect import browse as browse_directory
from xaqueue.offline.inspect import status as read_status
from xaqueue.offline.reader import QueueReader
from xaqueue.rpc.client.manager import remote_manager

Serve = Callable[..., ServerThread]
Follow = Callable[[Path, ServerThread], ReplicaThread]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[ServerThread] = []

    def begin(root: Path, *, opens: bool = True) -> ServerThread:
        servers.append(ServerThread(root, tmp_path / f"{root.name}.socket", opens=opens))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture
def follow() -> Iterator[Follow]:
    replicas: list[ReplicaThread] = []

    def begin(root: Path, server: ServerThread) -> ReplicaThread:
        replicas.append(ReplicaThread(root, server.url))
        return replicas[-1]

    yield begin
    for replica in replicas:
        replica.failure = None
        replica.stop()


def bodies(connection: Connection, queue: str = "orders") -> list[bytes]:
    return [message.body for message in connection.browse(queue)]


def browse(root: Path, queue: str) -> list[Message]:
    return list(browse_directory(root, queue, print))


def put(url: str, *new: bytes, queue: str = "orders") -> None:
    with xaqueue.connect(url) as connection:
        for body in new:
            connection.enqueue(queue, body)
        connection.commit()


def undamaged(root: Path) -> bool:
    return [str(one) for one in check(root) if one.severity is Severity.DAMAGE] == []


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that come together are written as blocks."""
    monkeypatch.setattr(definitions, "BLOCKS", definitions.MANY)


def take(url: str, count: int, queue: str = "orders") -> list[bytes]:
    with xaqueue.connect(url) as connection:
        found = [message.body for message in connection.dequeue_many(queue, count)]
        connection.commit()
    return found


@pytest.mark.usefixtures("many")
def test_it_has_blocks_and_what_is_gone_of_them(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Of before and behind its beginning; it takes its source's place, whose last takes it never had."""
    source = serve(made(tmp_path / "source"))
    wanted = [b"%d" % number for number in range(100)]

    def put_many(begin: int, end: int) -> None:
        with xaqueue.connect(source.url) as connection:
            connection.enqueue_many("orders", wanted[begin:end])
            connection.commit()

    put_many(0, 50)
    assert take(source.url, 7) == wanted[:7]
    replica = follow(tmp_path / "replica", source)
    put_many(50, 100)
    assert take(source.url, 50) == wanted[7:57]
    replica.wait_for(source)
    here = tmp_path / "replica"
    assert [one.body for one in browse(here, "orders")] == wanted[57:]
    assert [path for path in here.glob("committed/queue=orders/range=*/*") if "+" in path.name]
    assert undamaged(here)
    replica.stop()
    assert take(source.url, 3) == wanted[57:60]
    source.kill()
    promote(here, 1)
    with xaqueue.connect(here) as connection:
        assert bodies(connection) == wanted[57:]
        assert [message.body for message in connection.dequeue_many("orders", 20)] == wanted[57:77]
        connection.commit()
    assert [one.body for one in browse(here, "orders")] == wanted[77:]
    assert undamaged(here)


def test_it_has_what_its_source_has(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Messages of before and behind its beginning; it is read while it follows, and opened by nobody."""
    source = serve(made(tmp_path / "source"))
    put(source.url, b"a", b"b", b"c" * 3_000_000)
    replica = follow(tmp_path / "replica", source)
    put(source.url, b"d", b"e" * 300_000)
    with xaqueue.connect(source.url) as connection:
        message = connection.dequeue("orders")
        assert message is not None
        connection.commit()
        connection.tpc_begin(connection.xid(1, "doubt", ""))
        connection.enqueue("orders", b"in doubt")
        connection.tpc_prepare()
        replica.wait_for(source)
        wanted = bodies(connection)
    assert [one.body for one in browse(tmp_path / "replica", "orders")] == wanted
    assert undamaged(tmp_path / "replica")
    reader = QueueReader(tmp_path / "replica", "orders")
    read = [decode(block).body for _, _, block in reader.read(0, reader.watermark())]
    assert sorted(read) == sorted(body for body in wanted if body != b"in doubt"), "what Spark reads"
    with pytest.raises(SpaceInUse):
        follow(tmp_path / "replica", source)
    with pytest.raises(SpaceError, match=r"is a replica of .* `xaqueue promote"):
        xaqueue.connect(tmp_path / "replica")
    replica.stop()
    source.kill()
    done = promote(tmp_path / "replica", 1)
    assert len(done.branches) == 1
    with closing(DirectoryFileSystem(tmp_path / "replica")) as fs:
        space_id = format.read_format(tmp_path / "replica").id
        assert restored.read(fs).lives == [space_id], "only its own snapshots may be restored there"
    with xaqueue.connect(tmp_path / "replica") as connection:
        assert bodies(connection) == wanted
        assert connection.tpc_recover() == [], "whether it was decided since only an operator can tell"
    assert undamaged(tmp_path / "replica")


def test_behind_a_loss_of_power_it_is_read_once_it_follows_again(
    tmp_path: Path, serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directories may lack what its journal has."""
    source = serve(made(tmp_path / "source"))
    replica = follow(tmp_path / "replica", source)
    put(source.url, b"a")
    replica.wait_for(source)
    replica.stop()
    monkeypatch.setattr(format, "boot_id", lambda: "another boot")
    with pytest.raises(SpaceError, match=r"went down.*let it follow once more"):
        QueueReader(tmp_path / "replica", "orders")


def test_once_it_acknowledges_all_and_its_directories_have_it(tmp_path: Path, serve: Serve) -> None:
    """A server that waits goes on, though nobody follows any more."""
    source = serve(made(tmp_path / "source", "replica", timeout_s=60), opens=False)
    for _ in range(2):
        once(tmp_path / "replica", source.url)
        eventually(lambda: source.space.loaded)
        status = read_status(tmp_path / "replica").replication
        assert status is not None
        assert status.lag_bytes == 0
        assert undamaged(tmp_path / "replica")
    reader = QueueReader(tmp_path / "replica", "orders")
    waiting = threading.Thread(target=put, args=(source.url, b"a"))
    waiting.start()
    while waiting.is_alive():
        once(tmp_path / "replica", source.url)
    assert reader.watermark() == 1


def once(root: Path, url: str) -> None:
    words = [*RUN, "replica", str(root), "--from", url, "--once"]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)


def test_what_is_no_replica_is_not_promoted(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="it is no space at all"):
        promote(tmp_path, 1)
    with pytest.raises(SpaceError, match="it is a space already"):
        promote(made(tmp_path / "space"), 1)


def test_it_goes_on_where_it_was(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Either of them is stopped or killed again and again, over many segments."""
    root, there = made(tmp_path / "source", space="journal_segment_bytes = 65536"), tmp_path / "replica"
    source = serve(root)
    replica = follow(there, source)
    replica.wait_for(source)
    began = replica.follower._found
    for turn in range(6):
        put(source.url, *(b"%d.%d " % (turn, number) + b"x" * 9000 for number in range(20)))
        if turn == 3:
            source.space.checkpoint()
        if turn % 3 == 0:
            replica.wait_for(source)
        if turn % 3 == 1:
            replica.stop()
            put(source.url, b"meanwhile")
            replica = follow(there, source)
        if turn % 3 == 2:
            source.kill()
            source = serve(root)
    replica.wait_for(source)
    found = replica.follower._found
    assert found is not None
    assert began is not None
    assert found.at == began.at, "it was copied anew"
    assert [one.body for one in browse(there, "orders")] == [one.body for one in browse(root, "orders")]
    assert len(list((there / "journal").iterdir())) < 6


def test_it_is_copied_anew_where_too_much_is_missing(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    root = made(tmp_path / "source", space="journal_segment_bytes = 65536")
    write_definitions(root, text("local", space="journal_segment_bytes = 65536") + "keep_mib = 0\n")
    source = serve(root)
    replica = follow(tmp_path / "replica", source)
    replica.wait_for(source)
    began = replica.follower._found
    replica.stop()
    put(source.url, *(b"%d " % number + b"x" * 9000 for number in range(40)))
    source.space.checkpoint()
    store.prune_for(source.space.fs, source.space.definitions)
    replica = follow(tmp_path / "replica", source)
    replica.wait_for(source)
    assert replica.follower._found != began
    assert len(browse(tmp_path / "replica", "orders")) == 40
    assert not list((root / SNAPSHOTS).glob("[0-9]*")), "the snapshot that it has copied is there still"
    assert not list((tmp_path / "replica" / REMOVED).iterdir())


def test_it_follows_streams_topics_and_definitions(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    root = made(tmp_path / "source", more='[topics.t]\n[queues.one]\ntopic = "t"\n[queues.two]\ntopic = "t"\n')
    source = serve(root)
    replica = follow(tmp_path / "replica", source)
    with xaqueue.connect(source.url) as connection:
        connection.publish("t", b"both")
        for number in range(5):
            connection.enqueue("read", b"%d" % number)
        connection.commit()
        connection.define("later", max_messages=7)
        manager: Any = connection._manager
        manager.reserve("read", "stream", 0, 5)
        manager.consume("read", "stream", 3)
    replica.wait_for(source)
    there = tmp_path / "replica"
    eventually(lambda: "later" in (there / layout.QUEUES).read_text())
    assert [[one.body for one in browse(there, queue)] for queue in ("one", "two")] == [[b"both"], [b"both"]]
    assert [one.body for one in browse(there, "read")] == [b"3", b"4"]
    eventually(lambda: len(list((there / "committed/queue=read").glob("range=*/*"))) == 2)


def test_what_was_consumed_and_not_yet_removed_leaves_there_too(
    tmp_path: Path, serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its snapshot is taken between the two."""
    monkeypatch.setattr(cleanup, "clear_queue", lambda *_: True)
    source = serve(made(tmp_path / "source"))
    with xaqueue.connect(source.url) as connection:
        for number in range(5):
            connection.enqueue("read", b"%d" % number)
        connection.commit()
        manager: Any = connection._manager
        manager.reserve("read", "stream", 0, 5)
        manager.consume("read", "stream", 3)
    there = tmp_path / "replica"
    follow(there, source).wait_for(source)
    assert [one.body for one in browse(there, "read")] == [b"3", b"4"]
    eventually(lambda: len(list((there / "committed/queue=read").glob("range=*/*"))) == 2)


# Where steps wait for it


def test_a_commit_waits_for_the_replica(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """What is acknowledged is on its disk: nothing is lost with the source, and nothing is a possible duplicate."""
    source = serve(made(tmp_path / "source", "replica"), opens=False)
    replica = follow(tmp_path / "replica", source)
    for number in range(20):
        put(source.url, b"%d" % number)
    source.kill()
    replica.stop()
    done = promote(tmp_path / "replica", 1)
    assert done.complete
    taken = serve(tmp_path / "replica", opens=False)
    with pytest.raises(ResourceFailed, match="waits for its replica"):
        remote_manager(taken.url, connect_s=0.1)
    write_definitions(tmp_path / "replica", text("local"))
    eventually(lambda: taken.space.loaded)
    with xaqueue.connect(taken.url) as connection:
        messages = list(connection.browse("orders"))
    assert [message.body for message in messages] == [b"%d" % number for number in range(20)]
    assert not any(message.possible_duplicate for message in messages)


def test_without_a_replica_the_outcome_is_unknown(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """And nothing is shown before the replica has it."""
    root, there = made(tmp_path / "source", "replica", timeout_s=PATIENCE_S), tmp_path / "replica"
    source = serve(root, opens=False)
    replica = follow(there, source)
    put(source.url, b"before")
    replica.stop()
    write_definitions(root, text("replica", 0.5))
    eventually(lambda: policy_of(source.space.definitions).timeout_s == 0.5)
    with suppress(ResourceFailed, RolledBack), xaqueue.connect(source.url) as connection:
        connection.enqueue("orders", b"unknown")
        with pytest.raises(OutcomeUnknown, match=r"no replica has acknowledged this for 0\.5 s"):
            connection.commit()
        with pytest.raises((ConnectionLost, ResourceFailed)):
            connection.dequeue("orders")
    source._thread.join(60)
    write_definitions(root, text("replica", PATIENCE_S))
    source = serve(root, opens=False)
    with pytest.raises(ResourceFailed, match="waits for its replica"):
        remote_manager(source.url, connect_s=0.1)
    assert not source.space.loaded
    replica = follow(there, source)
    eventually(lambda: source.space.loaded)
    with xaqueue.connect(source.url) as connection:
        assert bodies(connection) == [b"before", b"unknown"]


def test_an_operator_may_go_on_without_it(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """While a commit waits, too."""
    root = made(tmp_path / "source", "replica", timeout_s=50)
    source = serve(root, opens=False)
    replica = follow(tmp_path / "replica", source)
    eventually(lambda: source.space.loaded)
    replica.stop()
    waiting = threading.Thread(target=put, args=(source.url, b"waits"))
    waiting.start()
    time.sleep(0.2)
    assert waiting.is_alive()
    write_definitions(root, text("local"))
    waiting.join(20)
    assert not waiting.is_alive()
    put(source.url, b"goes on")
    with xaqueue.connect(source.url) as connection:
        assert bodies(connection) == [b"waits", b"goes on"]


# A promoted one


def test_the_former_space_is_fenced_and_lists_what_it_had_not_shipped(
    tmp_path: Path, serve: Serve, follow: Follow
) -> None:
    root, there = made(tmp_path / "source"), tmp_path / "replica"
    source = serve(root)
    replica = follow(there, source)
    put(source.url, b"shipped")
    replica.wait_for(source)
    replica.stop()
    put(source.url, b"not shipped", queue="late")
    done = promote(there, 1)
    assert not done.complete
    with xaqueue.connect(there) as connection:
        assert [(one.body, one.possible_duplicate) for one in connection.browse("orders")] == [(b"shipped", True)]
        connection.enqueue("orders", b"new")
        connection.commit()
        new = list(connection.browse("orders"))[-1]
    assert new.seq > 2**32
    taken = serve(there)
    tell_former(there, taken.url, threading.Event())
    source._thread.join(60)
    lines = [json.loads(line) for line in (root / UNSHIPPED).read_text().splitlines()]
    assert [line["queues"] for line in lines] == [["late"]]
    with pytest.raises(SpaceError, match=r"was replaced by its replica.*unshipped\.jsonl"):
        xaqueue.connect(root)
    found = replicated.read(DirectoryFileSystem(there, keep_unsynced=False))
    assert found is not None
    assert found.is_done
    other = follow(root, taken)
    other.wait_for(taken)
    assert [one.body for one in browse(root, "orders")] == [b"shipped", b"new"]
    kept = list((root / REMOVED).glob("*/unshipped.jsonl"))
    assert len(kept) == 1


def test_who_goes_on_with_a_promoted_one_takes_that_one_s_place(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Of two replicas the one was promoted, and the other one follows it, without a new copy: it is of its epoch."""
    first = serve(made(tmp_path / "first"))
    replicas = [follow(tmp_path / name, first) for name in ("second", "third")]
    put(first.url, b"a")
    for replica in replicas:
        replica.wait_for(first)
        replica.stop()
    first.stop()
    promote(tmp_path / "second", 1)
    second = serve(tmp_path / "second")
    put(second.url, b"b")
    third = follow(tmp_path / "third", second)
    third.wait_for(second)
    third.stop()
    promoted = promote(tmp_path / "third", 1)
    assert (promoted.url, promoted.epoch > second.space.epoch) == (second.url, True)
    taken = serve(tmp_path / "third")
    tell_former(tmp_path / "third", taken.url, threading.Event())
    second._thread.join(PATIENCE_S)
    with pytest.raises(SpaceError, match="was replaced by its replica"):
        xaqueue.connect(tmp_path / "second")


def test_why_a_delivery_has_failed_is_in_copies_as_well(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    more = '[queues.failed]\n[queues.orders]\nmax_tries = 5\nretry_delay_s = 3600\nfailure_queue = "failed"'
    server = serve(made(tmp_path / "space", more=more))
    replica = follow(tmp_path / "replica", server)
    replica.wait_for(server)  # its first copy is a snapshot, beside which no other is taken
    put(server.url, b"x")
    with suppress(ValueError), xaqueue.connect(server.url) as connection:
        assert connection.dequeue("orders") is not None
        raise ValueError("no such customer")
    with xaqueue.connect(server.url) as connection:
        eventually(lambda: [message.tries for message in connection.browse("orders")] == [1])
        (message,) = connection.browse("orders")
        connection.snapshot()
    replica.wait_for(server)
    (copied,) = records.read_retries(DirectoryFileSystem(replica.root), "orders").values()
    (kept,) = (tmp_path / "space" / SNAPSHOTS).rglob(".retries/*")
    taken = records.decode_retry(kept.read_bytes(), "orders", message.message_id)
    assert (copied.reason, taken.reason) == ("ValueError: no such customer",) * 2


def test_of_former_spaces_the_newest_are_kept(
    tmp_path: Path, serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory changes its role many times; what a restore has left there is not touched."""
    monkeypatch.setattr(follower, "FORMER", 2)
    former, root = tmp_path / "former", serve(made(tmp_path / "space"))
    for day in "123":
        (former / REMOVED / f"2026010{day}T000000Z" / "committed").mkdir(parents=True)
        (former / REMOVED / f"2026010{day}T000000Z" / UNSHIPPED).touch()
    (former / UNSHIPPED).touch()
    (former / REMOVED / "20251231T000000Z").mkdir()
    (former / REMOVED / "20251231T000000Z" / UNSHIPPED).write_text("{}")
    (former / REMOVED / "20250101T000000Z").mkdir()  # of a restore
    replicated.write(
        DirectoryFileSystem(former, keep_unsynced=False),
        Replicated(replicated.REPLACED, root.url, root.space.id, 1, 1, 1, 1),
    )
    shutil.copy(tmp_path / "space" / layout.FORMAT, former)
    replica = follow(former, root)
    replica.wait_for(root)
    left = sorted(path.name for path in (former / REMOVED).iterdir())
    assert (len(left), left[:2]) == (4, ["20250101T000000Z", "20251231T000000Z"])
