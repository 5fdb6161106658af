"""``work``: several calls of a transaction in one frame, which a client sends where it can."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import xaqueue
from support.journal_of import journal_of, show_writes
from support.patience import eventually
from support.raw_client import HungUp, RawClient, Refused
from support.served import PATIENCE_S, ServerThread
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import InvalidArgument, ProtocolError, RolledBack
from xaqueue.rpc.client.sockets import PIPELINED_BYTES, ClientSocket
from xaqueue.rpc.plain import WholeSession
from xaqueue.rpc.server import calls, session
from xaqueue.rpc.server.calls import PlainCalls
from xaqueue.rpc.server.peer import Caller

X, Y = (7, b"x", b""), (7, b"y", b"")
ID, OTHER = b"0123456789abcdef", b"fedcba9876543210"


@pytest.fixture(params=["NONE", "JOURNAL"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True, sync=request.param).close()
    made = ServerThread(root, tmp_path / "socket", sync=request.param)
    yield made
    made.stop()


@pytest.fixture
def client(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.path) as made:
        made.call("hello", {"protocol": 1})
        yield made


def bodies(client: RawClient) -> list[bytes]:
    return [message[4] for message in client.call("browse", "orders")[1]]


def test_a_branch_is_prepared_and_committed_by_two_frames(client: RawClient) -> None:
    assert client.call("work", X, True, [["orders", b"a", ID], ["orders", b"b", {"priority": 2}]], "prepare") == "ok"
    assert bodies(client) == []
    client.call("commit", X)
    assert bodies(client) == [b"a", b"b"]


def test_a_branch_is_committed_by_one(client: RawClient) -> None:
    assert client.call("work", X, True, [["orders", b"a", ID]], "commit") is None
    assert client.call("outcome", X) == "committed"
    assert bodies(client) == [b"a"]


def test_what_is_taken_is_answered_and_its_commit_is_another_frame(client: RawClient) -> None:
    client.call("work", X, True, [["orders", b"a", ID]], "commit")
    message = client.call("work", Y, True, [["orders", b"b", OTHER], ["orders"]])
    assert (message[0], message[1], message[3]["queue"], message[4]) == (ID, "orders", "orders", b"a")
    assert client.call("work", Y, False, [], "commit") is None
    assert bodies(client) == [b"b"]


def test_where_there_is_no_message_there_is_none(client: RawClient) -> None:
    assert client.call("work", X, True, [["orders"]]) is None
    assert client.call("work", X, False, [], "prepare") == "rdonly"


@pytest.mark.parametrize(
    ("params", "ride"),
    [
        ([X, True, [["orders", b"a", b"short"]], "prepare"], "enqueue"),
        ([X, True, [["no queue", b"a", ID]], "commit"], "enqueue"),
        ([X, True, [["orders", b"a", ID], ["orders", b"a", ID]], "commit"], "enqueue"),
        ([Y, True, [["orders", b"a", ID]], "commit"], "start"),
        ([X, False, [["orders", b"a", ID]], "prepare"], "enqueue"),
        ([(7, b"unknown", b""), False, [], "prepare"], "end"),
    ],
)
def test_a_refusal_says_which_call_it_was(
    server: ServerThread, client: RawClient, params: list[Any], ride: str
) -> None:
    """And what is asked next is carried out."""
    with RawClient(server.path) as other:
        other.call("start", Y)
        with pytest.raises(Refused) as refused:
            client.call("work", *params)
        assert refused.value.ride == ride
        assert client.call("echo", 1) == 1
    assert bodies(client) == []


@pytest.mark.parametrize(
    "params",
    [
        [X, 1, []],
        [X, True, None],
        [X, True, [], "rollback"],
        [X, True, [], []],
        [X, False, []],
        [X, True, [["orders"], ["orders"]]],
        [X, True, [["orders"]], "commit"],
        [X, True, [["orders"]], "prepare"],
        [X, True, [["orders", b"a"]]],
        [X, True, ["orders"]],
    ],
)
def test_what_is_no_work_is_refused_and_nothing_is_done(client: RawClient, params: list[Any]) -> None:
    client.call("work", Y, True, [["orders", b"a", ID]], "commit")
    with pytest.raises(Refused, match="work is refused") as refused:
        client.call("work", *params)
    assert refused.value.ride is None
    assert client.call("outcome", X) == "unknown"
    client.call("start", X)
    client.call("end", X, 0x04000000)
    client.call("rollback", X)
    assert bodies(client) == [b"a"]


# What a client sends


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    request, pipeline = ClientSocket.request, ClientSocket.pipeline

    def requesting(self: ClientSocket, method: str, params: Any, *more: Any) -> Any:
        found.append(method if method != "work" else f"work {params[3] if len(params) > 3 else 'dequeue'}")
        return request(self, method, params, *more)

    def pipelining(self: ClientSocket, method: str, params: Any, *, later: bool = False) -> None:
        found.append(f"({method})")
        pipeline(self, method, params, later=later)

    monkeypatch.setattr(ClientSocket, "request", requesting)
    monkeypatch.setattr(ClientSocket, "pipeline", pipelining)
    return found


def test_whole_transactions_are_one_frame_or_two(server: ServerThread, sent: list[str]) -> None:
    with xaqueue.connect(server.url) as connection:
        del sent[:]
        connection.tpc_begin(connection.xid(*X))
        connection.enqueue("orders", b"a")
        connection.enqueue("orders", b"b", priority=7)
        assert connection.tpc_prepare()
        connection.tpc_commit()
        connection.enqueue("orders", b"c")
        connection.commit()
        assert connection.dequeue("orders") is not None
        connection.enqueue("orders", b"d")
        connection.commit()
        assert sent == ["work prepare", "commit", "work commit", "work dequeue", "work commit"]
        assert [message.body for message in connection.browse("orders")] == [b"b", b"c", b"d"]


def test_what_is_asked_between_comes_behind_what_was_called_before(server: ServerThread, sent: list[str]) -> None:
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("orders", b"a")
        connection.commit()
        del sent[:]
        connection.tpc_begin(connection.xid(*X))
        connection.enqueue("orders", b"b")
        connection.flush()
        first = connection.enqueue("orders", b"c")
        assert connection.dequeue("orders", message_id=first) is None
        connection.tpc_end()
        assert connection.outcome(connection.xid(*X)).value == "unknown"
        assert connection.tpc_prepare()
        connection.tpc_rollback()
        assert sent[:4] == ["(start)", "(enqueue)", "echo", "(enqueue)"]
        assert sent[4:] == ["dequeue", "(end)", "outcome", "prepare", "rollback"]


def test_much_work_is_sent_before_it_is_asked_for(server: ServerThread, sent: list[str]) -> None:
    with xaqueue.connect(server.url) as connection:
        del sent[:]
        for _ in range(3):
            connection.enqueue("orders", bytes(PIPELINED_BYTES // 2))
        connection.commit()
        assert sent == ["(start)", "(enqueue)", "(enqueue)", "(enqueue)", "work commit"]
        assert len(list(connection.browse("orders"))) == 3


def test_another_branch_begins_behind_the_work_of_the_first(server: ServerThread) -> None:
    """A session that ends one branch and begins the next has both."""
    with xaqueue.connect(server.url) as connection:
        manager = connection._manager
        for xid, body in ((connection.xid(*X), b"x"), (connection.xid(*Y), b"y")):
            manager.start(xid)
            manager.enqueue("orders", body)
            manager.end(xid)
        manager.prepare(connection.xid(*X))
        manager.prepare(connection.xid(*Y))
        assert len(connection.tpc_recover()) == 2
        for xid in connection.tpc_recover():
            connection.tpc_rollback(xid)


def test_work_behind_the_end_is_out_of_order_as_ever(server: ServerThread) -> None:
    with xaqueue.connect(server.url) as connection:
        manager, xid = connection._manager, connection.xid(*X)
        manager.start(xid)
        manager.enqueue("orders", b"a")
        manager.end(xid)
        manager.enqueue("orders", b"b")
        with pytest.raises((ProtocolError, RolledBack)):
            manager.prepare(xid)
        manager.rollback(xid)
        assert list(connection.browse("orders")) == []


def test_what_is_deferred_is_what_it_was_when_it_was_called(server: ServerThread) -> None:
    headers = {"number": "1"}
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("orders", b"a", headers=headers)
        headers["number"] = "2"
        connection.enqueue("orders", b"b", headers=headers)
        headers.clear()
        connection.commit()
        assert [message.headers["number"] for message in connection.browse("orders")] == ["1", "2"]


def test_a_queue_that_cannot_be_sent_is_refused_at_once(server: ServerThread) -> None:
    """And the transaction goes on."""
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("orders", b"a")
        with pytest.raises(InvalidArgument, match="UTF-8"):
            connection.enqueue("orders\udc80", b"b")
        connection.commit()
        assert [message.body for message in connection.browse("orders")] == [b"a"]


# What a server does without a greenlet


def test_an_xid_that_is_none_is_refused_however_deep_it_is(server: ServerThread, client: RawClient) -> None:
    shallow = client.packed("work", [0, b"", b""], True, [["orders", b"a", ID]], "commit")
    client.send(shallow.replace(msgpack.packb([0, b"", b""]), b"\x93" + b"\x91" * 1000 + b"\x00\xc4\x00\xc4\x00"))
    with pytest.raises(Refused, match="is no xid"):
        client.result(2)
    assert client.call("echo", 1) == 1


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
def test_a_large_body_leaves_no_room_behind(server: ServerThread, client: RawClient) -> None:
    large = bytes(200_000)
    client.call("work", X, True, [["orders", large, ID]], "commit")
    pack, scheduler, packed = server.server.scheduler.pack, server.server.scheduler, list[object]()

    def packing(value: object) -> bytes:
        packed.append(value)
        return pack(value)

    scheduler.pack = packing
    assert client.call("work", Y, True, [["orders"]])[4] == large
    assert ID in msgpack.packb(packed)
    assert large not in msgpack.packb(packed)


def raw(server: ServerThread) -> RawClient:
    made = RawClient(server.path)
    made.call("hello", {"protocol": 1})
    return made


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
def test_plain_work_waits_in_no_greenlet(
    server: ServerThread, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.call("work", X, True, [["orders", b"first", ID]], "commit")  # from here on there is such a queue
    assert client.call("work", Y, True, [["orders"]])[0] == ID
    client.call("work", Y, False, [], "commit")
    carried_out: list[str] = []
    perform = calls.perform

    def performing(caller: Caller, name: str, params: list[Any]) -> Any:
        carried_out.append(name)
        return perform(caller, name, params)

    monkeypatch.setattr(session, "perform", performing)
    first = fresh_id()
    client.call("work", X, True, [["orders", b"a", first], ["orders", b"b", fresh_id()]], "prepare")
    client.call("commit", X)
    assert client.call("work", Y, True, [["orders"]])[0] == first
    client.call("work", Y, False, [["orders", b"c", fresh_id()]], "commit")
    assert carried_out == []
    client.call("work", X, True, [["orders", b"d", {"priority": 1}]], "commit")
    assert carried_out == ["work", "start", "enqueue", "end", "commit"]
    assert bodies(client) == [b"b", b"c", b"d"]


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
def test_behind_a_ride_that_has_failed_nothing_is_plain(server: ServerThread, client: RawClient) -> None:
    """It came alone, and is answered by what comes next, which is not done."""
    client.call("work", X, True, [["orders", b"a", ID]], "prepare")
    for method, *params in (("work", Y, True, [["orders", b"b", OTHER]], "commit"), ("commit", X)):
        client.ride("enqueue", "no queue", b"")
        eventually(lambda: server.call(lambda: [one._pipelined_error for one in server.server.sessions] != [None]))
        with pytest.raises(Refused) as refused:
            client.call(method, *params)
        assert refused.value.ride == "enqueue"
    assert bodies(client) == []
    client.call("commit", X)
    assert bodies(client) == [b"a"]


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
def test_those_who_come_together_share_a_round(server: ServerThread) -> None:
    clients = [raw(server) for _ in range(4)]
    turned, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        turned.set()
        assert go_on.wait(PATIENCE_S)

    log = server.server.space.log
    server.server.loop.call_soon_threadsafe(hold)
    assert turned.wait(PATIENCE_S)
    before = log.rounds
    numbers = [
        client.ask("work", (7, b"%d" % at, b""), True, [["orders", b"%d" % at, fresh_id()]], "commit")
        for at, client in enumerate(clients)
    ]
    go_on.set()
    for client, number in zip(clients, numbers, strict=True):
        assert client.result(number) is None
    assert log.rounds - before <= 2  # who was alone before waits for nobody
    assert sorted(bodies(clients[0])) == [b"0", b"1", b"2", b"3"]
    for client in clients:
        client.close()


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
@pytest.mark.parametrize("ending", ["prepare", "commit"])
def test_a_round_that_fails_is_told_and_so_is_who_comes_later(
    server: ServerThread, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = raw(server), raw(server)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    show_writes(monkeypatch, journal_of(server.space).journal)
    monkeypatch.setattr(DirectoryFileSystem, "write_synced", fail)
    for client, xid in ((first, X), (second, Y)):
        with pytest.raises((Refused, HungUp, BrokenPipeError)) as told:  # a server that is fenced ends
            client.call("work", xid, True, [["orders", b"a", fresh_id()]], ending)
        if isinstance(told.value, Refused):
            assert told.value.name == "XAER_RMFAIL"
        client.close()


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
def test_where_there_is_no_room_nothing_was_done_and_it_may_be_done_again(
    server: ServerThread, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.call("work", Y, True, [["orders", b"before", fresh_id()]], "prepare")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as full:
        show_writes(full, journal_of(server.space).journal)
        full.setattr(DirectoryFileSystem, "write_synced", fail)
        with pytest.raises(Refused) as prepared:
            client.call("work", X, True, [["orders", b"a", fresh_id()]], "prepare")
        with pytest.raises(Refused) as committed:
            client.call("commit", Y)
    assert (prepared.value.name, committed.value.name) == ("XA_RBOTHER", "XA_RETRY")
    client.call("commit", Y)
    assert client.call("work", X, True, [["orders", b"a", fresh_id()]], "prepare") == "ok"
    client.call("commit", X)
    assert bodies(client) == [b"before", b"a"]


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
def test_who_is_lost_while_its_round_syncs_is_out_of_it_behind_that(
    server: ServerThread, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()
    write = DirectoryFileSystem.write_synced

    def hold(*arguments: Any) -> None:
        held.set()
        assert go_on.wait(PATIENCE_S)
        write(*arguments)

    lost = raw(server)
    with monkeypatch.context() as slow:
        show_writes(slow, journal_of(server.space).journal)
        slow.setattr(DirectoryFileSystem, "write_synced", hold)
        lost.ask("work", X, True, [["orders", b"a", fresh_id()]], "prepare")
        assert held.wait(PATIENCE_S)
        lost.close()
        go_on.set()
        assert client.call("outcome", X) == "in doubt"
    client.call("commit", X)
    assert bodies(client) == [b"a"]
    while server.call(lambda: len(server.server.sessions)) > 1:
        pass


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
@pytest.mark.parametrize(("of", "fails"), [(WholeSession, "try_work"), (PlainCalls, "go_on")])
def test_what_nobody_foresaw_in_a_plain_call_ends_its_session_and_nothing_else(
    server: ServerThread, client: RawClient, monkeypatch: pytest.MonkeyPatch, of: type, fails: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("by the test")

    client.call("work", Y, True, [["orders", b"first", ID]], "commit")  # from here on there is such a queue
    with raw(server) as unlucky, monkeypatch.context() as broken:
        broken.setattr(of, fails, fail)
        with pytest.raises(HungUp):
            unlucky.call("work", X, True, [["orders", b"a", OTHER]], "prepare")
        eventually(lambda: server.call(lambda: len(server.server.sessions)) == 1)
    assert bodies(client) == [b"first"]
    server.stop()


@pytest.mark.parametrize("server", ["JOURNAL"], indirect=True)
def test_what_ends_another_request_is_none(server: ServerThread, client: RawClient) -> None:
    inner = client.packed("work", X, True, [["orders", b"a", ID]], "commit")
    outer = client.packed("echo", inner)
    client.call("work", Y, True, [["orders", b"first", OTHER]], "commit")  # a plain one may follow
    client.send(outer[: -len(inner)])
    eventually(lambda: server.call(lambda: sum(one.waiting_bytes for one in server.server.sessions)) > 0)
    client.send(inner)
    assert client.answer()[2:] == [None, inner]
    assert bodies(client) == [b"first"]
