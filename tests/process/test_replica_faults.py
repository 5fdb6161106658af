"""What goes wrong with a replica, its source or their operator: nothing is lost by it, and nobody waits for ever."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from shutil import copytree
from subprocess import DEVNULL, Popen
from typing import Any

import pytest

import xaqueue
from support.journal_of import journal_log, rounds_of
from support.patience import eventually
from support.replicas import ReplicaThread, made, text
from support.served import RUN, Process, ServerThread
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.owner import open as open_room
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.recovery.load import Load, Progress
from xaqueue.core.storage import journal
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal_format import SECTOR_BYTES
from xaqueue.endpoint import parse
from xaqueue.errors import Error, OutcomeUnknown, SpaceError, SpaceInUse
from xaqueue.features.replica import replicated
from xaqueue.features.replica import shipping as shipping_room
from xaqueue.features.replica.follower import ReplicaFollower, _begun_in, _piece_in, owned
from xaqueue.features.replica.journal_copy import JournalCopy
from xaqueue.features.replica.promote import _tell, promote
from xaqueue.features.replica.replicated import LAG, REPLICATION, Replicated
from xaqueue.features.replica.shipping import Shipping, shipping_of
from xaqueue.features.snapshots import archived, restore, segments
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.features.snapshots.segments import Place
from xaqueue.rpc.client.manager import RemoteManager, dialer, hello_of
from xaqueue.rpc.methods import replication
from xaqueue.rpc.server import server as server_room
from xaqueue.rpc.server.peer import Limits

Serve = Callable[..., ServerThread]
Follow = Callable[..., ReplicaThread]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[ServerThread] = []

    def begin(root: Path, *, opens: bool = True, limits: Limits | None = None, socket: str = "") -> ServerThread:
        path = tmp_path / f"{socket or root.name}.socket"
        servers.append(ServerThread(root, path, opens=opens, limits=limits))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture
def follow() -> Iterator[Follow]:
    replicas: list[ReplicaThread] = []

    def begin(root: Path, url: str) -> ReplicaThread:
        replicas.append(ReplicaThread(root, url))
        return replicas[-1]

    yield begin
    for replica in replicas:
        replica.failure = None
        replica.stop()


def bodies(connection: Connection, queue: str = "orders") -> list[bytes]:
    return [message.body for message in connection.browse(queue)]


def put(url: str, *new: bytes, queue: str = "orders") -> None:
    with xaqueue.connect(url) as connection:
        for body in new:
            connection.enqueue(queue, body)
        connection.commit()


def begin_put(url: str) -> threading.Thread:
    def run() -> None:
        with suppress(Error):
            put(url, b"waits")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# Who waits for a replica


def test_it_stops_while_it_waits_at_its_open(tmp_path: Path, serve: Serve) -> None:
    source = serve(made(tmp_path / "source", "replica"), opens=False)
    source.stop()
    assert source._failure is None
    assert not source.space.loaded


def test_it_stops_while_a_commit_waits(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    root = made(tmp_path / "source", "replica", timeout_s=3600)
    source = serve(root, opens=False, limits=Limits(stop_s=0.2))
    replica = follow(tmp_path / "replica", source.url)
    eventually(lambda: source.space.loaded)
    replica.stop()
    waiting = begin_put(source.url)
    eventually(lambda: bool(rounds_of(source.space)._in_hand))
    source.stop()
    waiting.join(60)
    assert not waiting.is_alive()
    assert source.server.is_stop_requested, "it would be opened anew"


def test_a_stop_acknowledges_by_the_replica(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Whose session goes last; and a message that is handed back at the end waits for nobody."""
    source = serve(made(tmp_path / "source", "replica", timeout_s=3600), opens=False)
    follow(tmp_path / "replica", source.url)
    eventually(lambda: source.space.loaded)
    put(source.url, *(b"taken" for _ in range(8)))
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(closing(xaqueue.connect(source.url)))
            assert connection.dequeue("orders") is not None
        source.stop()
    assert source._failure is None
    assert not source.space.log.fenced


def test_a_server_that_is_opened_anew_is_not_ended(
    tmp_path: Path, serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_room, "HANG_S", 0.2)
    source = serve(made(tmp_path / "source", "replica", timeout_s=0.1), opens=False, limits=Limits(stop_s=0.1))
    ended: list[bool] = []
    source.server.on_stop_overdue = ended.append
    replica = follow(tmp_path / "replica", source.url)
    eventually(lambda: source.space.loaded)
    replica.stop()
    with pytest.raises(OutcomeUnknown):
        put(source.url, b"unknown")
    source._thread.join(60)
    time.sleep(0.6)
    assert not ended, "the process would have ended, with whom it has opened since"


def test_what_recovery_does_waits_for_nobody(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """It has a try to count, and the replica comes later than acknowledge_timeout_s."""
    root, there = made(tmp_path / "source", "replica", timeout_s=0.2), tmp_path / "replica"
    source = serve(root, opens=False)
    replica = follow(there, source.url)
    eventually(lambda: source.space.loaded)
    put(source.url, b"taken")
    log = journal_log(source.space)
    assert log is not None
    assert log.register is not None
    with closing(xaqueue.connect(source.url)) as connection:
        assert connection.dequeue("orders") is not None
        log.register.make()
        source.kill()
    replica.stop()
    source = serve(root, opens=False)
    time.sleep(0.5)
    assert source._thread.is_alive()
    follow(there, source.url)
    eventually(lambda: source.space.loaded)
    with xaqueue.connect(source.url) as connection:
        assert bodies(connection) == [b"taken"]


@pytest.mark.parametrize("is_linked", [False, True])
def test_nobody_is_told_an_outcome_before_the_replica_has_it(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, is_linked: bool
) -> None:
    """Not while the messages are loaded either, when those in doubt may be finished already. An operator ends the wait
    in queues.toml, which may be a link."""
    refused: list[str] = []
    rest = Load.rest

    def look(load: Load, progress: Progress | None) -> None:
        shipping = shipping_of(load._space)
        refused.append(shipping.refusal if isinstance(shipping, Shipping) else "")
        rest(load, progress)

    monkeypatch.setattr(Load, "rest", look)
    root = made(tmp_path / "source", "replica")
    if is_linked:
        (root / "queues.toml").rename(tmp_path / "queues.toml")
        (root / "queues.toml").symlink_to(tmp_path / "queues.toml")
    source = serve(root, opens=False)
    eventually(lambda: bool(refused))
    assert "waits for its replica" in refused[0]
    if is_linked:
        (tmp_path / "queues.toml").write_text(text("local"))
    else:
        write_definitions(root, text("local"))
    eventually(lambda: source.space.loaded)


# What a replica has, and what it takes


def killed(replica: ReplicaThread) -> BaseException:
    """What has ended it."""
    replica._thread.join(60)
    assert replica.failure is not None
    return replica.failure


def opened(root: Path) -> DirectoryFileSystem:
    return DirectoryFileSystem(root, keep_unsynced=False)


def test_what_follows_is_counted_once_it_is_done(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Who fails has it to do still, so no checkpoint is recorded behind that."""
    source = serve(made(tmp_path / "source"))
    replica = follow(tmp_path / "replica", source.url)
    replica.wait_for(source)
    put(source.url, b"first")
    replica.wait_for(source)
    replica.stop()
    put(source.url, b"late")
    shipping = shipping_of(source.space)
    assert shipping is not None
    with closing(opened(tmp_path / "replica")) as fs:
        copy = JournalCopy(fs, 0, 0)
        piece = shipping.next(copy.epoch, copy.lsn, copy.lsn, 0)
        assert piece is not None
        copy.take(piece)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(copy, "_follow", _fail)
            with pytest.raises(OSError, match="No space"):
                copy.follow()
        copy.follow()
    assert len(list((tmp_path / "replica/committed/queue=orders").glob("range=*/*"))) == 2


def _fail(_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_it_reads_again_is_on_disk_before_it_says_so(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """A kill between a write and its sync leaves it in memory only."""
    source = serve(made(tmp_path / "source"))
    replica = follow(tmp_path / "replica", source.url)
    replica.wait_for(source)
    put(source.url, b"a")
    replica.wait_for(source)
    replica.stop()
    with closing(opened(tmp_path / "replica")) as fs, pytest.MonkeyPatch.context() as patch:
        synced: list[str] = []
        patch.setattr(fs, "sync_data", synced.append)
        JournalCopy(fs, 0, 0)
    assert synced == [f"journal/{path.name}" for path in sorted((tmp_path / "replica/journal").glob("*.log"))][:1]


def test_another_space_at_its_url_is_refused(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Whose LSNs may be the same: what it has would pass for acknowledged there."""
    source = serve(made(tmp_path / "source"), socket="same")
    replica = follow(tmp_path / "replica", source.url)
    replica.wait_for(source)
    replica.stop()
    source.stop()
    other = serve(made(tmp_path / "other"), socket="same")
    put(other.url, b"of another one")
    assert "the replica is a copy of" in str(killed(follow(tmp_path / "replica", other.url)))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_source_that_has_lost_its_end_is_not_followed(
    tmp_path: Path, serve: Serve, follow: Follow, is_restarted: bool
) -> None:
    """Its disk did not keep what it had acknowledged. The replica has it, and does not let go of that."""
    root = made(tmp_path / "source")
    source = serve(root)
    replica = follow(tmp_path / "replica", source.url)
    put(source.url, b"kept")
    shipping = shipping_of(source.space)
    assert shipping is not None
    _, end = shipping.end
    put(source.url, b"lost")
    put(source.url, b"lost, too")
    replica.wait_for(source)
    if is_restarted:
        replica.stop()
    segment, _ = shipping._journal.segment_at(end) or (None, 0)
    assert segment is not None
    source.kill()
    with (root / "journal" / segment.name).open("r+b") as file:
        file.seek(end - segment.start)
        file.write(bytes(4096))
    for path in (root / "committed/queue=orders").glob("range=*/*"):
        if b"lost" in path.read_bytes():
            path.unlink()
    (root / "committed/queue=orders/.watermark").unlink()
    source = serve(root)
    if is_restarted:
        replica = follow(tmp_path / "replica", source.url)
    assert "has lost its journal" in str(killed(replica))
    source.stop()
    promote(tmp_path / "replica", 1)
    with xaqueue.connect(tmp_path / "replica") as connection:
        assert bodies(connection) == [b"kept", b"lost", b"lost, too"]


def test_it_begins_again_where_it_found_no_source(tmp_path: Path, follow: Follow) -> None:
    there = tmp_path / "replica"
    for _ in range(2):
        replica = follow(there, f"xaq+unix://{tmp_path}/nobody")
        eventually((there / LAG).exists)
        replica.stop()


def test_what_it_has_grows_old_while_it_finds_no_source(tmp_path: Path) -> None:
    with owned(tmp_path / "replica") as (fs, lock):
        follower = ReplicaFollower(tmp_path / "replica", fs, lock, "xaq://localhost:1", threading.Event())
        follower._had_all_us -= 90_000_000
        follower._behind = 0, 0.1
        follower._say(is_connected=False)
        assert json.loads(fs.read(LAG))["lag_s"] >= 90


@pytest.mark.parametrize("answer", [None, 7, [], {}, [1] * 10, {"number": "../1", "epoch": 1, "journal": 1, "lsn": 1}])
def test_what_a_source_says_is_not_believed(answer: object) -> None:
    for taken in (_begun_in, _piece_in):
        with pytest.raises(SpaceError, match="see that who answers there is the space"):
            taken(answer)


def test_a_source_of_a_later_format_is_refused() -> None:
    later = {"number": 1, "epoch": 1, "journal": 1, "lsn": 1, "restored": None, "space": "xaqueue 3 orders 7"}
    with pytest.raises(SpaceError, match="the source has format 3; this xaqueue reads formats up to 2: use a newer"):
        _begun_in(later)


def test_who_has_a_replica_is_told_as_far_as_it_is_known(tmp_path: Path) -> None:
    """In its first second it says nothing of itself, and has no owner file."""
    with owned(tmp_path / "replica"), pytest.raises(SpaceInUse) as told, owned(tmp_path / "replica"):
        pass
    assert "which does not say what it is: stop it first, or try again" in str(told.value)
    assert "itself" not in str(told.value)


@pytest.mark.parametrize(
    "path", ["READY", "replication", "owner", "committed/../../x", "/x", "committed//x", "", "FORMAT/x", "active/x", 7]
)
def test_a_source_chooses_no_other_place(tmp_path: Path, path: Any) -> None:
    """READY would have a restore move what stands there to wherever it says."""
    with owned(tmp_path / "replica") as (fs, lock):
        follower = ReplicaFollower(tmp_path / "replica", fs, lock, "xaq://localhost:1", threading.Event())
        with pytest.raises(SpaceError, match="which is none of a space"):
            follower._put(path, 0, 0, b"{}")
    assert [child.name for child in tmp_path.iterdir()] == ["replica"]


def test_a_segment_is_found_on_its_way_to_those_that_are_kept(tmp_path: Path, serve: Serve) -> None:
    source = serve(made(tmp_path / "source", space="journal_segment_bytes = 65536"))
    shipping = shipping_of(source.space)
    assert shipping is not None
    found = shipping._journal.segment_at(shipping.end[1])
    assert found is not None
    place = Place(layout.JOURNAL, found[0])
    put(source.url, *(b"x" * 9000 for _ in range(10)))

    def is_gone() -> bool:
        source.space.checkpoint()  # one that has begun before covers less
        return not (source.root / layout.JOURNAL / place.segment.name).exists()

    eventually(is_gone)
    assert shipping._read(place, place.segment.start + SECTOR_BYTES, place.segment.end)


def test_a_copy_that_is_given_up_leaves_nothing(tmp_path: Path, serve: Serve) -> None:
    source = serve(made(tmp_path / "source"))
    put(source.url, b"a")
    endpoint = parse(source.url)
    manager = RemoteManager(dialer(endpoint), connect_s=0.0, hello=lambda: hello_of(endpoint))
    assert manager.call("replica_begin")["number"] == 1
    shipping = shipping_of(source.space)
    assert shipping is not None
    assert shipping.copying
    manager.drop()
    eventually(lambda: not list((source.root / SNAPSHOTS).glob("[0-9]*")))
    eventually(lambda: not shipping.copying)


def test_a_replica_without_room_says_so(
    tmp_path: Path, serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = serve(made(tmp_path / "source"))
    replica = follow(tmp_path / "replica", source.url)
    replica.wait_for(source)
    with monkeypatch.context() as patch:
        patch.setattr(JournalCopy, "_write", lambda *_, **__: _fail(None))
        put(source.url, b"a")
        assert "make room there" in str(killed(replica))
    follow(tmp_path / "replica", source.url).wait_for(source)


# Its operators


def test_a_replica_that_was_being_replaced_is_promoted(
    tmp_path: Path, serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a newer copy of itself, when it was killed; and its source is gone by then."""
    source = serve(made(tmp_path / "source"))
    put(source.url, b"a")
    move = archived.move_away

    def die(fs: DirectoryFileSystem, name: str, removed: str) -> None:
        move(fs, name, removed)
        if name == REPLICATION:
            raise KeyboardInterrupt

    monkeypatch.setattr(restore, "move_away", die)
    assert isinstance(killed(follow(tmp_path / "replica", source.url)), KeyboardInterrupt)
    source.stop()
    monkeypatch.setattr(restore, "move_away", move)
    promote(tmp_path / "replica", 1)
    with xaqueue.connect(tmp_path / "replica") as connection:
        assert bodies(connection) == [b"a"]


def test_a_replica_whose_source_is_stopped_is_promoted(tmp_path: Path) -> None:
    """It waits for an answer that does not come, and ends all the same."""
    root, there = made(tmp_path / "source"), tmp_path / "replica"
    with ExitStack() as stack:
        source = stack.enter_context(Process(root))
        words = [*RUN, "replica", str(there), "--from", f"xaq+unix://{source.path}"]
        replica = stack.enter_context(Popen(words, stdout=DEVNULL))
        eventually((there / LAG).exists)
        os.kill(source.pid, signal.SIGSTOP)
        time.sleep(0.2)
        assert promote(there, 1).url == f"xaq+unix://{source.path}"
        assert replica.wait(60) == 0


def test_a_fence_needs_no_room_for_its_list(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replication, "list_unshipped", no_room)
    source = serve(made(tmp_path / "source"))
    put(source.url, b"a")
    space = source.space.id
    found = Replicated(replicated.PROMOTED, source.url, space, 2**20, 1, 0)
    _tell(found, "xaq://elsewhere")
    source._thread.join(60)
    with pytest.raises(SpaceError, match="was replaced by its replica"):
        xaqueue.connect(source.root, server_s=1)


def test_it_catches_up_over_several_opens(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Each journal ends somewhere in a segment, and nothing behind that is taken for hardened."""
    root = made(tmp_path / "source", space="journal_segment_bytes = 65536")
    source = serve(root)
    replica = follow(tmp_path / "replica", source.url)
    replica.wait_for(source)
    began = replica.follower._found
    replica.stop()
    source.stop()
    for number in range(2):
        source = serve(root)
        put(source.url, b"%d" % number)
        source.kill()
    source = serve(root)
    replica = follow(tmp_path / "replica", source.url)
    replica.wait_for(source)
    assert replica.follower._found is not None
    assert began is not None
    assert replica.follower._found.at == began.at, "it was copied anew"


def test_a_segment_may_go_while_it_is_looked_for(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    source, look, times = serve(made(tmp_path / "source")), segments.places, list[int]()

    def places(*given: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            raise FileNotFoundError(errno.ENOENT, "moved")
        return look(*given)

    monkeypatch.setattr(shipping_room, "places", places)
    shipping = shipping_of(source.space)
    assert shipping is not None
    assert shipping.next(0, 0, 0, 0) is None
    assert len(times) == 2


@pytest.mark.parametrize("is_served", [True, False])
def test_acknowledge_is_not_taken_where_nothing_is_shipped(tmp_path: Path, serve: Serve, is_served: bool) -> None:
    """By a server that was started without [replication], and by who opens the space itself."""
    root = made(tmp_path / "source")
    with ExitStack() as stack:
        if is_served:
            write_definitions(root, '[default]\n[space]\nsync = "JOURNAL"\n')
            url = serve(root).url
        else:
            stack.enter_context(closing(xaqueue.connect(root)))
            url = str(root)
        write_definitions(root, text("replica", 0.1))
        watch = open_room._attached[root.resolve()].watch
        assert watch is not None
        eventually(lambda: "holds from the next start" in watch.complaint)
        with xaqueue.connect(url) as connection:
            connection.enqueue("orders", b"a")


@pytest.mark.parametrize("acknowledge", ["local", "replica"])
def test_no_open_goes_on_in_a_journal_that_a_replica_may_have(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, acknowledge: str
) -> None:
    """For want of room: a round that it was sent, and that a power loss took here, would stand where others do."""
    root = made(tmp_path / "source")
    source = serve(root)
    put(source.url, b"a")
    source.kill()
    write_definitions(root, text(acknowledge))

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal, "make_segment", no_room)
    if acknowledge == "replica":
        with pytest.raises(SpaceError, match="No space left"):
            serve(root)
    else:
        with xaqueue.connect(serve(root).url) as connection:
            assert bodies(connection) == [b"a"]


def test_two_that_are_promoted_are_told_apart(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Each goes on with the same space, so a replica of the one must not take the journal of the other one for its."""
    source = serve(made(tmp_path / "source"))
    replica = follow(tmp_path / "replica", source.url)
    replica.wait_for(source)
    replica.stop()
    copytree(tmp_path / "replica", tmp_path / "other")
    first, second = (promote(tmp_path / name, 1).epoch for name in ("replica", "other"))
    assert first != second
