"""``work``: several calls of a transaction in one frame, which a client sends where it can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.raw_client import RawClient, Refused
from support.served import ServerThread
from xaqueue.errors import ProtocolError, RolledBack
from xaqueue.rpc.client.link import PIPELINED_BYTES, ClientSocket

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
        [X, True, [["orders", b"a"]]],
        [X, True, ["orders"]],
    ],
)
def test_what_is_no_work_is_refused_and_nothing_is_done(client: RawClient, params: list[Any]) -> None:
    with pytest.raises(Refused, match="work is refused") as refused:
        client.call("work", *params)
    assert refused.value.ride is None
    assert client.call("outcome", X) == "unknown"
    client.call("start", X)
    client.call("end", X, 0x04000000)
    client.call("rollback", X)


# What a client sends


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    request, pipeline = ClientSocket.request, ClientSocket.pipeline

    def requesting(self: ClientSocket, method: str, params: Any, waits_s: float = 0.0) -> Any:
        found.append(method if method != "work" else f"work {params[3] if len(params) > 3 else 'dequeue'}")
        return request(self, method, params, waits_s)

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
