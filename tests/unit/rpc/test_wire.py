"""xaqueue(5) is enough to write a client from: this one knows sockets and MessagePack, and nothing of xaqueue.

What it says to the server, byte by byte, is in tests/support/raw_client.py.
"""

from __future__ import annotations

import ast
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

import xaqueue
from support import raw_client
from support.patience import eventually
from support.raw_client import (
    ENDRSCAN,
    FAIL,
    JOIN,
    MIGRATE,
    ONEPHASE,
    PATIENCE_S,
    RESUME,
    STARTRSCAN,
    SUCCESS,
    SUSPEND,
    HungUp,
    RawClient,
    Refused,
    UnknownXid,
)
from support.served import ServerThread
from xaqueue.rpc.server.peer import Limits

X = (1, b"gtrid", b"bqual")
REQUEST_BYTES = 200_000
SESSIONS = 8
QUEUES = """
[space]
max_body_bytes = 100_000
[queues.orders]
[queues.urgent]
order = "priority"
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerThread]:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True, sync="NONE").close()
    (root / "queues.toml").write_text(QUEUES)
    limits = Limits(request_bytes=REQUEST_BYTES, sessions=SESSIONS)
    made = ServerThread(root, tmp_path / "socket", sync="NONE", limits=limits)
    yield made
    made.stop()


@pytest.fixture
def connect(served: ServerThread) -> Iterator[Callable[[], RawClient]]:
    made: list[RawClient] = []

    def connect() -> RawClient:
        made.append(RawClient(served.path))
        return made[-1]

    yield connect
    for client in made:
        client.close()


Connect = Callable[[], RawClient]


@pytest.fixture
def client(connect: Connect) -> RawClient:
    return connect()


def prepared(client: RawClient, xid: raw_client.Xid = X, body: bytes = b"body", queue: str = "orders") -> None:
    client.ride("start", xid)
    client.ride("enqueue", queue, body, {"message_id": msgpack.packb(body).rjust(16, b"\0")[-16:]})
    client.ride("end", xid, SUCCESS)
    assert client.call("prepare", xid) == "ok"


def put(client: RawClient, *bodies: bytes, queue: str = "orders") -> None:
    for body in bodies:
        prepared(client, X, body, queue)
        assert client.call("commit", X) is None


def bodies(client: RawClient, queue: str = "orders") -> list[bytes]:
    cursor, found = client.call("browse", queue)
    while cursor is not None:
        cursor, more = client.call("browse_next", cursor)
        found += more
    return [message[4] for message in found]


def refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as told:
        call()
    return told.value


def told_in(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == "xaqueue.server"]


def test_the_client_knows_nothing_of_xaqueue() -> None:
    tree = ast.parse(Path(raw_client.__file__).read_text())
    named = [node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert sorted(named) == ["msgpack", "socket"]
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} == {"__future__", "typing"}


# What a client is there for


def test_hello(client: RawClient) -> None:
    told = client.call("hello", {"protocol": 1, "a key of tomorrow": [1]})
    assert (told["protocol"], told["sync"], told["queues"]) == (1, "NONE", ["orders", "urgent"])
    assert (told["any_queue"], told["max_body_bytes"]) == (False, 100_000)
    assert client.call("hello")["epoch"] == told["epoch"] > 0
    assert client.call("hello")["space"] == told["space"] == client.call("carriers")["space"]
    spoken = [client.call("hello", {"protocol": version})["protocol"] for version in (1, 2, 3, 4, 5)]
    assert spoken == [1, 2, 3, 4, 4], "of older clients, and of one of tomorrow"
    assert client.call("hello", {})["protocol"] == 1
    for wrong in ({"protocol": 0}, {"session": b"short"}, {"instead_of": "text"}, {"session": bytes(65)}):
        assert refusal(partial(client.call, "hello", wrong)).name == "XAER_INVAL"


def test_a_session_is_ended_by_who_knows_its_key(client: RawClient, connect: Connect) -> None:
    key = bytes(range(16))
    client.call("hello", {"session": key})
    client.call("start", X, 0)
    connect().call("hello", {"instead_of": key[::-1]})
    assert client.call("echo", 1) == 1
    connect().call("hello", {"instead_of": key})
    assert client.is_ended()


def test_a_two_phase_transaction_of_two_round_trips(client: RawClient, connect: Connect) -> None:
    prepared(client)
    assert bodies(connect()) == []
    assert client.call("commit", X) is None
    cursor, ((message_id, queue, seq, properties, body),) = connect().call("browse", "orders")
    assert (cursor, len(message_id), queue, seq, body) == (None, 16, "orders", 1, b"body")
    assert properties["queue"] == "orders"
    assert properties["enqueued_at"] > 1e15


def test_a_dequeue_with_its_properties(client: RawClient) -> None:
    options = {"correlation_id": b"42", "headers": {"k": "v"}, "priority": 9, "content_type": "text/plain"}
    client.call("start", X)
    message_id = client.call("enqueue", "urgent", b"body", options)
    client.call("end", X)
    assert client.call("prepare", X) == "ok"
    client.call("commit", X)
    client.call("start", X)
    assert client.call("dequeue", "urgent", {"correlation_id": b"43"}) is None
    found = client.call("dequeue", "urgent", {"correlation_id": b"42"})
    assert (found[0], found[1], found[4]) == (message_id, "urgent", b"body")
    assert options.items() <= found[3].items()
    client.call("end", X, FAIL)
    client.call("rollback", X)
    client.call("start", X)
    assert client.call("dequeue", "urgent", {"message_id": message_id})[3]["tries"] == 1
    client.call("end", X)
    client.call("commit", X, ONEPHASE)
    assert bodies(client, "urgent") == []


def test_a_dequeue_waits_for_its_message(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.ride("start", X)
    asked = consumer.ask("dequeue", "orders", {"wait_s": PATIENCE_S})
    put_as = (1, b"other", b"")
    prepared(producer, put_as)
    producer.call("commit", put_as)
    assert consumer.result(asked)[4] == b"body"


def test_recovery_from_another_session(connect: Connect) -> None:
    lost, other = connect(), connect()
    xids = [(1, b"%d" % number, b"") for number in range(5)]
    for xid in xids:
        prepared(lost, xid, xid[1])
    lost.close()
    found = other.call("recover", 2, STARTRSCAN)
    while page := other.call("recover", 2):
        found += page
    assert sorted(map(tuple, found)) == xids
    assert other.call("recover", 0, ENDRSCAN) == []
    assert refusal(lambda: other.call("recover", 1)).name == "XAER_INVAL"
    assert other.call("outcome", xids[0]) == "in doubt"
    for xid in xids[:3]:
        other.call("commit", xid)
    for xid in xids[3:]:
        other.call("rollback", xid)
    assert [other.call("outcome", xids[0]), other.call("outcome", xids[4])] == ["committed", "rolled back"]
    assert other.call("outcome", X) == "unknown"
    assert bodies(other) == [b"0", b"1", b"2"]


def test_votes_associations_and_their_loss(connect: Connect) -> None:
    client, other = connect(), connect()
    client.ride("start", X)
    client.ride("end", X)
    assert client.call("prepare", X) == "rdonly"
    client.call("start", X)
    client.call("end", X, SUSPEND | MIGRATE)
    other.call("start", X, RESUME)
    client.call("start", X, JOIN)
    client.call("enqueue", "orders", b"undone")
    other.call("end", X)
    client.close()
    eventually(lambda: other.call("outcome", X) == "rolled back")
    assert bodies(other) == []


def test_an_ended_branch_outlives_its_session(connect: Connect) -> None:
    client, other = connect(), connect()
    client.call("start", X)
    client.call("enqueue", "orders", b"body")
    client.call("end", X)
    client.close()
    assert other.call("prepare", X) == "ok"
    other.call("commit", X)
    assert bodies(other) == [b"body"]


def test_an_operators_decision(client: RawClient) -> None:
    prepared(client)
    more, (row,) = client.call("indoubt_list")
    assert more
    assert client.call("indoubt_next") == [False, []]
    assert "no list is open" in str(refusal(lambda: client.call("indoubt_next")))
    assert (tuple(row["xid"]), row["state"], row["decision"]) == (X, "in doubt", None)
    assert [content[0] for content in row["added"]] == ["orders"]
    ((message_id, body, size),) = client.call("indoubt_bodies", "orders", X)
    assert (message_id, len(body)) == (row["added"][0][1], size)
    assert client.call("indoubt_bodies", "urgent", X) == []
    decision = client.call("indoubt_decide", X, True, "somebody", "a reason")
    assert (decision["outcome"], decision["by"], decision["reason"]) == ("commit", "somebody", "a reason")
    told = refusal(lambda: client.call("rollback", X))
    assert (told.code, told.name, told.told["error"]) == (7, "XA_HEURCOM", "HeuristicOutcome")
    client.call("indoubt_forget", X, "somebody")
    assert client.call("indoubt_list") == [False, []]
    assert [row["forgotten_by"] for row in client.call("indoubt_forgotten")] == ["somebody"]
    assert client.call("depths", ["orders", "urgent"]) == {"orders": 1, "urgent": 0}


def test_a_long_queue_is_browsed_in_pages(client: RawClient) -> None:
    client.ride("start", X)
    for _ in range(2500):
        client.ride("enqueue", "orders", b"")
    client.ride("end", X)
    client.call("commit", X, ONEPHASE)
    cursor, found = client.call("browse", "orders", 2100)
    sizes = [len(found)]
    while cursor is not None:
        cursor, found = client.call("browse_next", cursor)
        sizes.append(len(found))
    assert sizes == [1000, 1000, 100]
    cursors = [client.call("browse", "orders")[0] for _ in range(16)]
    assert refusal(lambda: client.call("browse", "orders")).name == "XAER_INVAL"
    assert client.call("browse_end", cursors[3]) is None
    assert client.call("browse_end", cursors[3]) is None
    assert refusal(lambda: client.call("browse_next", cursors[3])).name == "XAER_INVAL"
    assert client.call("browse", "orders", 1) == client.call("browse", "orders", 1)


def test_a_page_of_large_messages_ends_early(client: RawClient) -> None:
    for _ in range(12):
        client.ride("start", X)
        client.ride("enqueue", "orders", bytes(100_000))
        client.ride("end", X)
        client.call("commit", X, ONEPHASE)
    cursor, found = client.call("browse", "orders")
    assert len(found) == 11  # the one that passes 1 MiB is the last
    assert len(client.call("browse_next", cursor)[1]) == 1


def test_drain(connect: Connect) -> None:
    client, other = connect(), connect()
    prepared(client)
    told = other.call("drain", True)
    assert (told["draining"], told["active"], told["in_doubt"]) == (True, 0, 1)
    assert [(tuple(branch["xid"]), branch["state"]) for branch in told["left"]] == [(X, "in doubt")]
    refusal(lambda: client.call("start", (1, b"new", b"")))
    client.call("commit", X)
    assert other.call("drain")["left"] == []
    assert other.call("drain", False)["draining"] is False
    put(client, b"again")


# Errors


@pytest.mark.parametrize(
    ("code", "name", "error", "method", "params"),
    [
        (-4, "XAER_NOTA", "UnknownXid", "commit", [X]),
        (-4, "XAER_NOTA", "UnknownXid", "start", [X, JOIN]),
        (-6, "XAER_PROTO", "ProtocolError", "enqueue", ["orders", b""]),
        (-5, "XAER_INVAL", "InvalidArgument", "commit", [X, FAIL]),
        (-2, "XAER_ASYNC", "AsyncNotSupported", "start", [X, 0x80000000]),
        (-5, "XAER_INVAL", "UnknownQueue", "browse", ["order"]),
        (-5, "XAER_INVAL", "InvalidArgument", "nothing", []),
        (-5, "XAER_INVAL", "InvalidArgument", "commit", []),
        (-5, "XAER_INVAL", "InvalidArgument", "commit", [X, 0, 0]),
        (-5, "XAER_INVAL", "InvalidArgument", "commit", [[1, b"x"]]),
        (-5, "XAER_INVAL", "InvalidArgument", "start", [X, 0, float("nan")]),
    ],
)
def test_an_error_is_a_map_and_the_session_goes_on(
    client: RawClient, code: int, name: str, error: str, method: str, params: list[Any]
) -> None:
    told = refusal(lambda: client.call(method, *params)).told
    assert (told["code"], told["name"], told["error"]) == (code, name, error)
    assert isinstance(told["message"], str)
    assert set(told) == {"code", "name", "error", "message"}
    put(client, b"goes on")


def test_an_error_names_what_was_given_in_few_words(client: RawClient) -> None:
    told = refusal(lambda: client.call("enqueue", "orders" * 20_000, b""))
    assert len(told.told["message"]) <= 4000


def test_a_failed_ride_answers_the_next_request_and_dooms_the_branch(client: RawClient) -> None:
    client.ride("start", X)
    client.ride("enqueue", "orders", b"before")
    client.ride("enqueue", "nowhere", b"fails")
    client.ride("enqueue", "orders", b"not done")
    client.ride("end", X)
    told = refusal(lambda: client.call("prepare", X))
    assert (told.ride, told.told["error"]) == ("enqueue", "UnknownQueue")
    assert client.call("echo", 1) == 1
    assert client.call("outcome", X) == "unknown"
    for verb, params in (("end", [X]), ("prepare", [X]), ("commit", [X, ONEPHASE]), ("enqueue", ["orders", b""])):
        assert refusal(lambda verb=verb, params=params: client.call(verb, *params)).name == "XAER_PROTO"  # type: ignore[misc]
    client.call("rollback", X)
    assert bodies(client) == []
    put(client, b"goes on")


@pytest.mark.parametrize("method", ["echo", "commit", "browse", "close", "hello"])
def test_any_request_behind_a_failed_ride_is_answered_with_it(client: RawClient, method: str) -> None:
    client.ride("nothing")
    named: dict[str, list[Any]] = {"commit": [X], "browse": ["orders"]}
    params = named.get(method, [])
    assert refusal(lambda: client.call(method, *params)).ride == "nothing"
    put(client, b"goes on")


def test_a_start_that_fails_as_a_ride_leaves_the_others_branch_alone(connect: Connect) -> None:
    owner, other = connect(), connect()
    owner.call("start", X)
    other.ride("start", X)
    other.ride("enqueue", "orders", b"not done")
    other.ride("end", X, FAIL)
    told = refusal(lambda: other.call("rollback", X))
    assert (told.ride, told.name) == ("start", "XAER_DUPID")
    owner.call("enqueue", "orders", b"body")
    owner.call("end", X)
    owner.call("commit", X, ONEPHASE)
    assert bodies(other) == [b"body"]


# Order and the end of a session


def test_pipelined_requests_are_answered_in_their_order(client: RawClient) -> None:
    """More of them than the server takes ahead, each group sent in one go, with numbers that the client likes."""
    count = 700
    groups = []
    for number in range(count):
        xid = (1, b"%d" % number, b"")
        groups.append(
            b"".join(
                map(
                    msgpack.packb,
                    [
                        [0, 2**32 - 1 - number, "start", [xid]],
                        [2, "enqueue", ["orders", b"%d" % number]],
                        [0, number, "end", [xid]],
                        [0, 7, "commit", [xid, ONEPHASE if number % 3 else 0]],
                        [0, 8, "rollback", [xid]],
                    ],
                )
            )
        )
    client.send(b"".join(groups))
    for number in range(count):
        assert client.answer() == [1, 2**32 - 1 - number, None, None]
        assert client.answer() == [1, number, None, None]
        done, undone = client.answer(), client.answer()
        assert (done[1], undone[1]) == (7, 8)
        assert (done[2] is None) != (undone[2] is None)
    assert bodies(client) == [b"%d" % number for number in range(count) if number % 3]


def test_a_message_is_seen_by_the_pipelined_request_behind_its_commit(client: RawClient) -> None:
    frames = [client.packed("start", X), client.packed("enqueue", "orders", b"body"), client.packed("end", X)]
    frames += [client.packed("commit", X, ONEPHASE), client.packed("browse", "orders")]
    client.send(b"".join(frames))
    answers = [client.answer() for _ in frames]
    assert [answer[2] for answer in answers] == [None] * 5
    assert [message[4] for message in answers[4][3][1]] == [b"body"]


def test_close_rolls_back_and_the_session_takes_nothing_more(connect: Connect) -> None:
    client, other = connect(), connect()
    client.call("start", X)
    client.call("enqueue", "orders", b"undone")
    assert client.call("close") is None
    assert other.call("outcome", X) == "rolled back"
    told = refusal(lambda: client.call("start", X))
    assert told.told["error"] == "InterfaceError"


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_lost_session_rolls_back_what_is_active_and_nothing_else(connect: Connect, how: str) -> None:
    client, other = connect(), connect()
    put(other, b"there")
    prepared(client, (1, b"prepared", b""))
    client.call("start", X)
    client.call("enqueue", "orders", b"undone")
    assert client.call("dequeue", "orders") is not None
    if how == "half":
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_ended()
    else:
        getattr(client, how)()
    eventually(lambda: other.call("outcome", X) == "rolled back")
    assert other.call("outcome", (1, b"prepared", b"")) == "in doubt"
    assert bodies(other) == [b"there"]


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        msgpack.packb([3, 1, "echo", []]),
        msgpack.packb([1, 1, None, None]),
        msgpack.packb([0, 2**32, "echo", []]),
        msgpack.packb([0, -1, "echo", []]),
        msgpack.packb([0, 1, b"echo", []]),
        msgpack.packb([0, 1, "echo", {}]),
        msgpack.packb([0, 1, "echo"]),
        msgpack.packb({"method": "echo"}),
        msgpack.packb(None),
        msgpack.packb([0, 1, "echo", [b"x" * 2 * REQUEST_BYTES * 2]]),
        msgpack.packb([0, 1, "depths", [["orders"] * 1025]]),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_what_is_no_frame_ends_its_session_alone_with_a_line_in_the_log(
    connect: Connect, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = connect(), connect()
    client.call("start", X)
    client.call("enqueue", "orders", b"undone")
    try:
        client.send(data)
    except OSError:
        assert len(data) > REQUEST_BYTES
    assert client.is_ended()
    eventually(lambda: other.call("outcome", X) == "rolled back")
    assert [line for line in told_in(caplog) if "no frame" in line]
    put(other, b"goes on")


def test_a_server_that_is_full_says_so_and_hangs_up(connect: Connect) -> None:
    taken = [connect() for _ in range(SESSIONS)]
    assert [client.call("echo", 1) for client in taken] == [1] * SESSIONS
    more = connect()
    kind, number, error, result = more.answer()
    assert (kind, number, result, error["name"]) == (1, 0, None, "XAER_RMFAIL")
    assert "limit" in error["message"]
    with pytest.raises(HungUp):
        more.answer()
    taken.pop().close()

    def admitted() -> bool:
        with connect() as again:
            try:
                return bool(again.call("echo", True))
            except (AssertionError, HungUp, BrokenPipeError):  # the answer to request 0
                return False

    eventually(admitted)


def test_an_unknown_xid_is_told_apart(client: RawClient) -> None:
    with pytest.raises(UnknownXid):
        client.call("rollback", X)


def test_log_says_nothing_of_a_session_in_good_order(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = connect()
    put(client, b"x")
    client.close()
    assert [line for line in told_in(caplog) if "ended" in line] == []
