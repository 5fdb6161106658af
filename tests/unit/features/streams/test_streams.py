"""A stream reserves a queue and consumes it from its front: the same for a session and through a server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

import xaqueue
from support.bare_space import ANY_QUEUE
from support.forgetful import Tree
from support.patience import eventually
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.model.layout import RANGE_SIZE
from xaqueue.core.owner import definitions_file
from xaqueue.errors import InvalidArgument, QueueReserved, UnknownQueue
from xaqueue.features import opening
from xaqueue.features.opening import open_space
from xaqueue.features.session import Session, attach
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.record import StreamRecord, decode_stream, stream_path
from xaqueue.features.streams.streams import encode_stream
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.reader import QueueReader
from xaqueue.rpc.client.manager import RemoteManager, remote_manager
from xaqueue.xid import Xid

STREAM, OTHER = "query#8c1", "query#f00"
PATIENCE_S = 60.0
QUEUES = "[queues.orders]\n[queues.other]\n"


class Host:
    """A space with queue orders; ``streams`` is a manager of it, ``connect`` makes connections."""

    def __init__(self, root: Path, sync: str, remote: bool) -> None:
        opening.create(root, sync=sync)
        definitions_file.write_definitions(root, QUEUES)
        self.root, self.sync, self.remote = root, sync, remote
        self._open: list[Connection | Session | RemoteManager] = []
        self._start()

    def _start(self) -> None:
        self.server = ServerThread(self.root, self.root.parent / "socket", sync=self.sync) if self.remote else None
        self.streams: Session | RemoteManager = (
            remote_manager(self.server.url) if self.server is not None else attach(self.root, sync=self.sync)
        )

    def connect(self) -> Connection:
        made = xaqueue.connect(self.server.url if self.server is not None else self.root)
        self._open.append(made)
        return made

    def restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        for one in self._open:
            one.close()
        self._open.clear()
        self.streams.close()
        if self.server is not None:
            self.server.stop()

    def put(self, *numbers: int, queue: str = "orders") -> None:
        with self.connect() as connection:
            for number in numbers:
                connection.enqueue(queue, b"%d" % number)
            connection.commit()

    def left(self) -> list[int]:
        with self.connect() as connection:
            return [message.seq for message in connection.browse("orders")]

    def files(self, directory: str = layout.COMMITTED) -> list[int]:
        """The numbers of the messages whose files stand there, while ranges may go."""
        listed = os.walk(self.root / directory / "queue=orders")
        return sorted(int(name[:16], 16) for place, _, names in listed for name in names if "/range=" in place)


JOURNAL, STRICT, REMOTE = ("JOURNAL", False), ("FDATASYNC;DSYNC", False), ("JOURNAL", True)
BARE = ("NONE", False)


@pytest.fixture(params=[JOURNAL, STRICT, REMOTE], ids=["JOURNAL", "DSYNC", "remote"])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(tmp_path / "space", *request.param)
    yield made
    made.stop()


def on(*hosts: tuple[str, bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("host", hosts, indirect=True, ids=str)


def test_a_stream_reserves_and_consumes(host: Host) -> None:
    host.put(*range(10))
    begun = host.streams.reserve("orders", STREAM, 0, 4)
    assert (begun.queue, begun.stream) == ("orders", STREAM)
    assert (begun.consumed, begun.in_flight, begun.latest) == (0, (0, 4), 10)
    assert abs(begun.since / 1e6 - time.time()) < PATIENCE_S
    assert host.streams.reservations() == [begun]
    assert host.left() == list(range(1, 11))
    told = host.streams.consume("orders", STREAM, 4)
    assert (told.consumed, told.in_flight, told.lag, told.archive) == (4, None, 6, False)
    assert host.left() == list(range(5, 11))
    eventually(lambda: host.files() == list(range(5, 11)))
    host.restart()
    assert host.left() == list(range(5, 11))
    assert [(one.stream, one.consumed, one.latest) for one in host.streams.reservations()] == [(STREAM, 4, 10)]
    host.put(11)
    assert host.left() == list(range(5, 12))


def test_consuming_is_cumulative_and_idempotent(host: Host) -> None:
    host.put(*range(10))
    host.streams.reserve("orders", STREAM, 0, 6)
    host.streams.consume("orders", STREAM, 6)
    for late in (6, 3, 0):
        assert host.streams.consume("orders", STREAM, late).consumed == 6
    assert host.streams.reserve("orders", STREAM, 6, 9).in_flight == (6, 9)
    assert host.streams.reserve("orders", STREAM, 6, 9).in_flight == (6, 9)
    assert host.streams.consume("orders", STREAM, 8).in_flight == (6, 9)
    assert host.streams.consume("orders", STREAM, 10).in_flight is None
    assert host.left() == []


def test_what_is_kept_is_in_the_archive(host: Host) -> None:
    host.put(*range(10))
    host.streams.reserve("orders", STREAM, 0, 9)
    host.streams.consume("orders", STREAM, 2)
    assert host.streams.consume("orders", STREAM, 5, archive=True).archive
    eventually(lambda: host.files(layout.ARCHIVE) == [3, 4, 5] and host.files() == [6, 7, 8, 9, 10])
    assert not host.streams.consume("orders", STREAM, 7).archive
    eventually(lambda: host.files() == [8, 9, 10])
    assert host.files(layout.ARCHIVE) == [3, 4, 5]
    assert [finding for finding in check(host.root) if finding.severity is Severity.DAMAGE] == []


IN_THE_WAY = pytest.mark.parametrize(
    "place", [layout.ARCHIVE, "archive/queue=orders", "archive/queue=orders/range=0000000000000"]
)


@IN_THE_WAY
def test_what_is_in_the_way_of_the_archive_is_set_aside(host: Host, place: str) -> None:
    host.put(*range(5))
    host.streams.reserve("orders", STREAM, 0, 3)
    foreign = host.root / place
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_text("foreign")
    host.streams.consume("orders", STREAM, 3, archive=True)
    eventually(lambda: host.files(layout.ARCHIVE) == [1, 2, 3] and host.files() == [4, 5])
    aside = host.root / layout.QUARANTINE / f"foreign.{place.replace('/', '.')}"
    assert aside.read_text() == "foreign"
    host.put(6)
    assert host.left() == [4, 5, 6]


@IN_THE_WAY
def test_a_space_opens_with_something_in_the_way_of_the_archive(host: Host, place: str) -> None:
    host.put(*range(5))
    host.streams.reserve("orders", STREAM, 0, 4)
    host.streams.consume("orders", STREAM, 3, archive=True)
    eventually(lambda: host.files(layout.ARCHIVE) == [1, 2, 3] and host.files() == [4, 5])
    host.stop()
    rmtree(host.root / place)
    (host.root / place).write_text("foreign")
    host._start()
    host.streams.consume("orders", STREAM, 4, archive=True)
    eventually(lambda: host.files(layout.ARCHIVE) == [4] and host.files() == [5])
    assert host.left() == [5]


def test_nobody_else_takes_its_messages(host: Host) -> None:
    host.put(1, 2)
    host.streams.reserve("orders", STREAM, 0, 2)
    with host.connect() as connection:
        first = next(connection.browse("orders"))
        for how in ({}, {"wait_s": 30.0}, {"message_id": first.message_id}, {"correlation_id": "x"}):
            with pytest.raises(QueueReserved, match=rf"{STREAM} since 2.*xaqueue release orders"):
                connection.dequeue("orders", **how)
        connection.enqueue("orders", b"more")
        connection.enqueue("other", b"free")
        connection.commit()
        assert connection.dequeue("other") is not None
        connection.rollback()
    assert host.left() == [1, 2, 3]
    with pytest.raises(QueueReserved, match=STREAM):
        host.streams.reserve("orders", OTHER, 0, 1)
    with pytest.raises(QueueReserved, match=STREAM):
        host.streams.consume("orders", OTHER, 1)


def test_whoever_waits_is_told_at_once(host: Host) -> None:
    refused: list[Exception] = []
    with host.connect() as connection:

        def wait() -> None:
            try:
                connection.dequeue("orders", wait_s=1000.0)
            except QueueReserved as error:
                refused.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        host.streams.reserve("orders", STREAM, 0, 0)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        connection.rollback()
    assert STREAM in str(refused[0])


@pytest.mark.parametrize("prepared", [False, True])
def test_messages_that_branches_hold_are_in_the_way(host: Host, prepared: bool) -> None:
    host.put(1, 2, 3)
    with host.connect() as connection:
        xid = connection.xid(7, "mine", "b")
        connection.tpc_begin(xid)
        assert connection.dequeue("orders") is not None
        assert connection.dequeue("orders") is not None
        if prepared:
            connection.tpc_prepare()
        for _ in range(2):
            with pytest.raises(QueueReserved, match=rf"2 of its messages are held by branches.*{xid}"):
                host.streams.reserve("orders", STREAM, 0, 3)
        assert host.streams.reservations() == []
        connection.tpc_rollback()
    assert host.streams.reserve("orders", STREAM, 0, 3).in_flight == (0, 3)


def test_a_branch_in_doubt_before_a_restart_is_in_the_way_after_it(host: Host) -> None:
    host.put(1, 2)
    with host.connect() as connection:
        xid = connection.xid(7, "mine", "b")
        connection.tpc_begin(xid)
        assert connection.dequeue("orders") is not None
        connection.tpc_prepare()
    host.restart()
    with pytest.raises(QueueReserved, match=str(xid)):
        host.streams.reserve("orders", STREAM, 0, 2)
    with host.connect() as connection:
        connection.tpc_commit(xid)
    host.streams.reserve("orders", STREAM, 0, 2)
    assert host.left() == [2]


def test_what_is_in_doubt_for_a_reserved_queue_is_added_to_it(host: Host) -> None:
    host.put(1, 2)
    with host.connect() as connection:
        xid = connection.xid(7, "late", "b")
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"late")
        connection.tpc_prepare()
    host.streams.reserve("orders", STREAM, 0, 2)
    host.streams.consume("orders", STREAM, 2)
    host.restart()
    with host.connect() as connection:
        connection.tpc_commit(xid)
    assert len(host.left()) == 1
    assert host.left()[0] > 2


def test_release_gives_back_what_is_not_consumed(host: Host) -> None:
    host.put(*range(6))
    assert host.streams.release("orders") is None
    host.streams.reserve("orders", STREAM, 0, 4)
    host.streams.consume("orders", STREAM, 2, archive=True)
    host.streams.reserve("orders", STREAM, 2, 4)
    ended = host.streams.release("orders")
    assert ended is not None
    assert (ended.stream, ended.consumed, ended.in_flight, ended.released) == (STREAM, 2, (2, 4), True)
    assert host.streams.reservations() == []
    assert host.streams.release("orders") is None
    with host.connect() as connection:
        message = connection.dequeue("orders")
        assert message is not None
        assert message.seq == 3
        connection.commit()
    host.restart()
    assert host.left() == [4, 5, 6]
    assert host.files() == [4, 5, 6]
    assert host.files(layout.ARCHIVE) == [1, 2]


def test_a_stream_that_was_released_must_not_come_again(host: Host) -> None:
    host.put(*range(6))
    for stream in (STREAM, OTHER):
        host.streams.reserve("orders", stream, 0, 1)
        host.streams.release("orders")
    host.restart()
    for stream in (STREAM, OTHER):
        with pytest.raises(QueueReserved, match="start the stream with a new checkpoint"):
            host.streams.reserve("orders", stream, 0, 1)
        with pytest.raises(QueueReserved, match="start the stream with a new checkpoint"):
            host.streams.consume("orders", stream, 1)
    assert host.streams.reserve("orders", "query#new", 0, 6).consumed == 0


@on(BARE, REMOTE)
def test_what_is_refused(host: Host) -> None:
    host.put(1)
    for wrong in ("", "two\nlines", "x" * 201, 7, None):
        with pytest.raises(InvalidArgument, match="stream"):
            host.streams.reserve("orders", wrong, 0, 1)  # type: ignore[arg-type]
    for after, upto in ((-1, 0), (0, 2**63), (2, 1), ("a", 1), (True, 1)):
        with pytest.raises(InvalidArgument):
            host.streams.reserve("orders", STREAM, after, upto)  # type: ignore[arg-type]
    with pytest.raises(UnknownQueue):
        host.streams.reserve("unknown", STREAM, 0, 1)
    for queue in ("../x", 7, ["orders"], None):
        with pytest.raises(InvalidArgument):
            host.streams.release(queue)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            host.streams.reserve(queue, STREAM, 0, 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            host.streams.consume(queue, STREAM, 0)  # type: ignore[arg-type]
    with pytest.raises(QueueReserved, match="reserve it before"):
        host.streams.consume("orders", STREAM, 1)
    host.streams.reserve("orders", STREAM, 0, 1)
    with pytest.raises(InvalidArgument, match="published up to 1, and 2 cannot be consumed"):
        host.streams.consume("orders", STREAM, 2)
    with pytest.raises(InvalidArgument, match="archive"):
        host.streams.consume("orders", STREAM, 1, "yes")  # type: ignore[arg-type]
    assert host.left() == [1]


@on(JOURNAL, BARE)
def test_a_reader_of_the_directory_takes_nothing_that_is_consumed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.put(*range(10))
    reader = QueueReader(host.root, "orders", even_behind=True)
    eventually(lambda: [seq for seq, _, _ in reader.read(0, 10)] == list(range(1, 11)))
    monkeypatch.setattr(cleanup, "_clear_files", lambda *_: None)
    assert reader.consumed() == 0
    host.streams.reserve("orders", STREAM, 0, 10)
    host.streams.consume("orders", STREAM, 7)
    assert host.files() == list(range(1, 11))
    eventually(lambda: reader.consumed() == 7)
    assert [seq for seq, _, _ in reader.read(0, 10)] == [8, 9, 10]
    assert [seq for seq, _, _ in reader.read(8, 10)] == [9, 10]
    assert [(number, [seq for seq, _ in found]) for number, found in reader.names(0, 10)] == [(0, [8, 9, 10])]
    findings = [finding for finding in check(host.root) if finding.severity is Severity.DAMAGE]
    assert findings == []


@on(BARE)
def test_half_a_record_is_read_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.put(1, 2)
    host.streams.reserve("orders", STREAM, 0, 2)
    host.streams.consume("orders", STREAM, 1)
    path = host.root / stream_path("orders")
    whole = path.read_bytes()
    path.write_bytes(b"")
    monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(whole))
    assert QueueReader(host.root, "orders").consumed() == 1


@on(BARE)
def test_range_directories_go_with_their_messages(host: Host) -> None:
    with host.connect() as connection:
        connection.define("orders", blocks="one")
    host.put(*range(2 * RANGE_SIZE + 10))
    host.streams.reserve("orders", STREAM, 0, 2 * RANGE_SIZE)
    host.streams.consume("orders", STREAM, RANGE_SIZE - 1)
    directory = host.root / layout.queue_path("orders")
    names = [layout.range_path("orders", number * RANGE_SIZE).rpartition("/")[2] for number in range(3)]
    eventually(lambda: sorted(path.name for path in directory.glob("range=*")) == names[1:])
    host.streams.consume("orders", STREAM, RANGE_SIZE + 5)
    host.restart()  # which leaves perhaps some files of what is consumed
    assert host.left() == list(range(RANGE_SIZE + 6, 2 * RANGE_SIZE + 11))
    host.streams.consume("orders", STREAM, 2 * RANGE_SIZE + 5)
    eventually(lambda: host.files() == list(range(2 * RANGE_SIZE + 6, 2 * RANGE_SIZE + 11)))
    eventually(lambda: sorted(path.name for path in directory.glob("range=*")) == names[2:])
    assert len(host.left()) == 5


@on(JOURNAL, BARE)
def test_a_damaged_record_keeps_the_queue_until_it_is_released(host: Host) -> None:
    host.put(1, 2)
    host.streams.reserve("orders", STREAM, 0, 2)
    host.streams.consume("orders", STREAM, 1)
    host.stop()
    path = host.root / stream_path("orders")
    path.write_bytes(path.read_bytes()[:-1])
    assert [finding.path for finding in check(host.root) if finding.severity is Severity.DAMAGE] == [
        stream_path("orders")
    ]
    host._start()
    with host.connect() as connection:
        with pytest.raises(QueueReserved, match=r"damaged.*xaqueue release orders"):
            connection.dequeue("orders")
        connection.rollback()
    with pytest.raises(QueueReserved, match="damaged"):
        host.streams.reserve("orders", STREAM, 0, 2)
    host.restart()
    ended = host.streams.release("orders")
    assert ended is not None
    assert ended.released
    with host.connect() as connection:
        assert connection.dequeue("orders") is not None
        connection.commit()
    host.stop()  # until the directories have followed, the damaged record stands there
    assert [finding for finding in check(host.root) if finding.severity is Severity.DAMAGE] == []


def test_a_record_is_what_was_encoded() -> None:
    for record in (
        StreamRecord("orders", STREAM),
        StreamRecord("orders", STREAM, 7, 1_700_000_000_000_000, 3, True, ("a b", STREAM)),
    ):
        data = b"".join(encode_stream(record, 5))
        assert decode_stream(data, "orders") == record


def test_a_reserved_queue_that_lost_its_directory_gives_out_no_number_twice() -> None:
    record = b"".join(encode_stream(StreamRecord("orders", STREAM, 41), 1))
    nodes = {**dict.fromkeys(layout.directories()), stream_path("orders"): record}
    session = Session(open_space(Tree(nodes).open(), ANY_QUEUE))
    xid = Xid(1, b"put", b"")
    session.start(xid)
    session.enqueue("orders", b"next")
    session.end(xid)
    session.prepare(xid)
    session.commit(xid)
    assert [message.seq for message in session.browse("orders")] == [42]
