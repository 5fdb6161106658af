"""Whatever bytes come in, the server lives on, the space is as it was, and other sessions notice nothing.

Sessions do work of their own and never finish it; between that they send frames that are wrong in every way that a
mutation of a right one can be, or bytes that are no frame at all.
"""

from __future__ import annotations

import logging
import math
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xaqueue
from support.patience import eventually
from support.raw_client import JOIN, ONEPHASE, STARTRSCAN, SUCCESS, SUSPEND, HungUp, RawClient, UnknownXid
from support.served import ServerThread
from xaqueue.batch import MANY_SPACES, ONE_SPACE
from xaqueue.features.counters.values import COUNTERS
from xaqueue.rpc import wire
from xaqueue.rpc.server.calls import METHODS
from xaqueue.rpc.server.peer import Limits

FRAMES = 100
"""Of one session."""
SESSIONS = 100
REQUEST_BYTES = 256 * 1024
UNKNOWN = (1, b"unknown", b"")
IN_DOUBT = (1, b"in doubt", b"")

ELSEWHERE = {"drain", "define", "undefine", "snapshot", "replica_begin", "replica_end", "replaced"}
"""Methods that are not tried here: they change the service for everybody."""


def right_calls(xid: tuple[int, bytes, bytes]) -> list[tuple[str, list[Any]]]:
    """Every method, called so that nothing of it outlives the session. ``xid`` is its own."""
    return [
        ("hello", [{"protocol": 1}]),
        ("echo", [1]),
        ("start", [xid, 0, None]),
        ("start", [xid, JOIN]),
        ("end", [xid, SUCCESS]),
        ("end", [xid, SUSPEND]),
        ("prepare", [UNKNOWN, 0]),
        ("commit", [UNKNOWN, ONEPHASE]),
        ("commit", [UNKNOWN]),
        ("rollback", [UNKNOWN, 0]),
        ("return", [UNKNOWN]),
        ("explain", [xid, "why"]),
        ("recover", [10, STARTRSCAN]),
        ("forget", [UNKNOWN, 0]),
        ("harden", []),
        ("carriers", []),
        ("deliver", ["0123456789abcdef.ledger", "secret", [], 0, 0, False]),
        ("release_carrier", ["0123456789abcdef.ledger"]),
        ("move", ["orders", b"0123456789abcdef", "replies"]),
        ("remove", ["orders", b"0123456789abcdef"]),
        ("restore", ["orders", [b"0123456789abcdeg"], [{"tries": 2}], [b"body"]]),
        ("restore", ["orders", b"0123456789abcdef", {"tries": 2, "origin": "{}", "later": [1]}, b"body"]),
        ("receive", ["no queue", {"max_messages": 3, "lease_s": 1.5, "wait_s": 0}]),  # refused, or it waited for ever
        ("settle", ["orders", b"0123456789abcdef", "nack", 1_000_000]),
        ("settle", ["orders", b"0123456789abcdef", "nack", [1_000_000, "why"]]),
        ("extend", ["orders", b"0123456789abcdef", 1.5]),
        ("accept", ["orders", b"0123456789abcdef"]),
        ("outcome", [UNKNOWN]),
        ("positions", [["orders"]]),
        ("positions", []),
        ("span", ["orders", 0, 9]),
        ("span_sizes", ["orders", 0, 9]),
        ("span_before", ["orders", 1 << 40, 9]),
        ("span_kept", ["orders", 0, 9, ["body"]]),
        ("ranges", ["orders"]),
        ("tries", ["orders"]),
        ("mark", []),
        ("cut", [0]),
        ("enqueue", ["orders", b"body", {"priority": 1, "headers": {"a": "b"}, "message_id": b"0123456789abcdef"}]),
        (
            "enqueue",
            ["orders", b"body", {"correlation_id": b"c", "not_before": 1 << 50, "expires_at": 1 << 57, "group": "g"}],
        ),
        ("work", [UNKNOWN, False, [], "prepare"]),
        ("work", [xid, True, [["orders", b"body", b"0123456789abcdef"]]]),
        ("work", [xid, False, [["orders", b"body", {"priority": 1}], ["empty"]]]),
        ("dequeue", ["empty", {"message_id": b"0123456789abcdef"}]),
        ("dequeue", ["empty", {"correlation_id": b"c"}]),
        ("enqueue_many", ["orders", [b"0123456789abcdef"], [b"body"], {"priority": 1}]),
        ("enqueue_many", ["orders", [b"0123456789abcdef"], [b"body"], {}, [{"priority": 1}]]),
        ("enqueue_to", [["orders", "other"], b"body", {"priority": 1}]),
        ("publish", ["events", b"body", {"headers": {"k": "v"}}]),
        ("dequeue_many", ["empty", 3, {"wait_s": 0}]),
        ("browse", ["orders", 1]),
        ("browse_next", [1]),
        ("browse_end", [1]),
        ("close", []),
        ("status", []),
        ("metrics", []),
        ("sessions", []),
        ("indoubt_list", []),
        ("indoubt_next", []),
        ("indoubt_decide", [UNKNOWN, True, "somebody", "reason"]),
        ("indoubt_forget", [UNKNOWN, "somebody", "reason"]),
        ("indoubt_forgotten", []),
        ("indoubt_bodies", ["orders", UNKNOWN]),
        ("depths", [["orders", "empty"]]),
        ("commit_all", ["query", 1, [[ONE_SPACE, [b"unknown"]]], [["space", MANY_SPACES, [b"unknown"]]]]),
        ("rollback_all", ["query", 1]),
        ("decision", ["query", 1]),
        ("reserve", ["orders", "query#1", 0, 9]),  # refused, for a branch in doubt holds a message of it
        ("consume", ["orders", "query#1", 9, True]),
        ("release", ["orders"]),
        ("repair", ["orders"]),
        ("replicate", [1, 512, 0, 0, 0]),
        ("replica_next", []),
        ("reservations", []),
    ]


def nested(depth: int) -> Any:
    made: Any = 0
    for level in range(depth):
        made = [made] if level % 2 else {"k": made}
    return made


JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 127, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -(2**63)),
    *(1.5, -0.0, 1e308, math.nan, math.inf, -math.inf),
    *("", "x", "é\0\n", "../../etc/passwd", "a" * 300, "a" * 70_000, "\U0001f4a5"),
    *(b"", b"x", bytes(16), bytes(65), bytes(70_000)),
    *([], [1], [[]], [1, b"a", b"b"], [None, None, None], list(range(300)), ["orders"] * 20, [-1, b"", b""]),
    *({}, {"protocol": 0}, {"a": 1}, {b"a": 1}, {"priority": 10}, {"headers": {"a": 1}}, {"message_id": b"short"}),
    *({"correlation_id": []}, {"correlation_id": {}}, {"correlation_id": 1.5}, {"headers": {"k": "v" * 70_000}}),
    *({"wait_s": math.nan}, {"wait_s": math.inf}, {"wait_s": -1}, {"wait_s": "1"}, {"wait_s": True}, {"self": 1}),
    *(msgpack.ExtType(5, b"ext"), msgpack.Timestamp(1, 2), msgpack.ExtType(127, bytes(300)), nested(5), nested(12)),
]
METHOD_JUNK: list[Any] = ["", "nothing", "__init__", "Hello", "start ", "a" * 300, b"echo", None, 7, ["echo"]]
ENVELOPE_JUNK: list[Any] = [None, 1, "text", b"", {}, {"0": 1}, [], [0], [0, 1], [1, 1, None, None], [3, 1, "echo", []]]
DEEP: list[Any] = [nested(40), nested(400), [0] * 2000, [[0] * 1000] * 200, {str(key): 0 for key in range(20_000)}]


def replaced(rng: random.Random, value: Any, junk: list[Any]) -> Any:
    """The value with one thing in it, or the whole of it, put in another's place."""
    inner = isinstance(value, list | tuple | dict) and len(value) > 0 and rng.random() < 0.7
    if not inner:
        return rng.choice(junk)
    if isinstance(value, dict):
        name = rng.choice(list(value))
        kept = {other: value[other] for other in value if other != name}
        return {**kept, rng.choice([name, "junk", b"junk"]): replaced(rng, value[name], junk)}
    place = rng.randrange(len(value))
    return [replaced(rng, part, junk) if number == place else part for number, part in enumerate(value)]


def mutated(rng: random.Random, params: list[Any]) -> list[Any]:
    kind = rng.randrange(4)
    if kind == 0:
        return params[: rng.randrange(len(params) + 1)]
    if kind == 1:
        return [*params, *rng.choices(JUNK, k=rng.randint(1, 3))]
    changed = replaced(rng, params, JUNK) if params else [rng.choice(JUNK)]
    return changed if isinstance(changed, list) else [changed]


def waits(params: Any) -> bool:
    """Whether these, of a dequeue, are right and have its session wait for a message that never comes."""
    options = params[-1] if isinstance(params, list) and params else None
    wait_s = options.get("wait_s", 0) if isinstance(options, dict) else 0
    return wait_s is None or (isinstance(wait_s, int | float) and wait_s > 1)


def frame(rng: random.Random, xid: tuple[int, bytes, bytes], number: int) -> list[Any]:
    """A frame that a session survives: its call is right, or wrong."""
    method, params = rng.choice(right_calls(xid))
    if rng.random() < 0.8:
        changed = mutated(rng, params)
        params = params if method in ("dequeue", "dequeue_many") and waits(changed) else changed
    if rng.random() < 0.1:
        method = rng.choice([name for name in METHOD_JUNK if isinstance(name, str)])
    return [2, method, params] if rng.random() < 0.1 else [0, number, method, params]


def no_frame(rng: random.Random, xid: tuple[int, bytes, bytes]) -> bytes:
    """Bytes that end a session, or leave it waiting for more."""
    method, params = rng.choice(right_calls(xid))
    wrong: list[Callable[[], Any]] = [
        lambda: rng.choice(ENVELOPE_JUNK),
        lambda: [0, rng.choice([-1, 2**32, 1.0, True, None, "1"]), method, params],
        lambda: [rng.choice([True, 0.0, 3, -1, None, "0"]), 1, method, params],
        lambda: [0, 1, rng.choice([name for name in METHOD_JUNK if not isinstance(name, str)]), params],
        lambda: [0, 1, method, rng.choice([None, 1, "params", {}, b""])],
        lambda: [0, 1, method, [*params, rng.choice(DEEP)]],
    ]
    right: bytes = msgpack.packb([0, 1, method, params])
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randint(1, 200))
    if kind == 1:
        data = bytearray(right * 3)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)
    if kind == 2:
        return right[: rng.randrange(1, len(right))] + rng.choice([b"", b"\xc1", b"\xff" * 9, right])
    packed: bytes = msgpack.packb(rng.choice(wrong)())
    return packed


def tree(root: Path) -> dict[str, bytes]:
    """Every file and directory of a space, but the owner's lock, the counters, which are written by the clock, and the
    records of streams and batches, which stay."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"directory"
        for path in root.rglob("*")
        if path.name not in ("owner", "counters")
        and path.parent.name not in ("streams", "batches")
        and not path.is_socket()
    }


class Target:
    """A server whose space holds messages and a branch in doubt, and a session that goes on working."""

    def __init__(self, root: Path) -> None:
        self.root = root / "space"
        with xaqueue.connect(self.root, create=True, sync="NONE") as connection:
            for number in range(3):
                connection.enqueue("orders", b"%d" % number)
            connection.commit()
            connection.tpc_begin(connection.xid(*IN_DOUBT))
            connection.enqueue("orders", b"in doubt")
            assert connection.dequeue("orders") is not None
            connection.tpc_prepare()
        limits = Limits(request_bytes=REQUEST_BYTES)
        self.server = ServerThread(self.root, root / "socket", sync="NONE", limits=limits)
        self.bystander = RawClient(self.server.path)
        self.bystander.call("start", (1, b"bystander", b""))
        self.numbers = count(1)
        self.before = self.look()

    def session(self) -> tuple[RawClient, tuple[int, bytes, bytes]]:
        """A new session, with an xid of its own."""
        return RawClient(self.server.path), (7, b"%d" % next(self.numbers), b"")

    def look(self) -> tuple[dict[str, bytes], Any]:
        files = tree(self.root)
        files.pop(COUNTERS, None)  # written by the clock, every ten seconds
        return files, self.bystander.call("browse", "orders")

    def left(self, xid: tuple[int, bytes, bytes]) -> None:
        """Once the sessions are over nothing of them is left; an idle branch is nobody's, and rolled back by name."""
        eventually(lambda: self.server.call(lambda: len(self.server.server.sessions)) <= 1)
        with suppress(UnknownXid):
            self.bystander.call("rollback", xid)
        assert self.look() == self.before

    def close(self) -> None:
        self.bystander.close()
        self.server.stop()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = Target(tmp_path_factory.mktemp("fuzz"))
    yield made
    made.close()
    with xaqueue.connect(made.root, sync="NONE") as connection:
        assert connection.tpc_recover() == [connection.xid(*IN_DOUBT)]
        assert [message.body for message in connection.browse("orders")] == [b"0", b"1", b"2"]


@pytest.fixture(autouse=True)
def nothing_unforeseen(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No input may reach what is there for bugs."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


FUZZ = settings(
    deadline=None,
    max_examples=SESSIONS,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_every_method_is_tried() -> None:
    assert {method for method, _ in right_calls(UNKNOWN)} == METHODS.keys() - ELSEWHERE


@pytest.mark.parametrize("name", ["../nowhere", "n" * 1000, ""])
def test_a_queue_that_is_none_leaves_no_trace(target: Target, name: str) -> None:
    """Whoever asks for ever more of them finds no memory that keeps them."""
    before = target.server.call(lambda: set(target.server.space.queues))
    session, xid = target.session()
    with session:
        session.call("start", xid)
        for number, (method, params) in enumerate(right_calls(xid)):
            asked = [name if one in ("orders", "empty", "no queue") else one for one in params]
            if asked != params:
                session.send(msgpack.packb([0, number, method, asked]))
                assert session.answer()[1] == number
    target.left(xid)
    assert target.server.call(lambda: set(target.server.space.queues)) <= before


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_wrong_calls_are_refused_one_by_one(target: Target, seed: int) -> None:
    """10,000 of them; a request has its answer, in its turn, whatever the ones before it were."""
    rng = random.Random(seed)
    session, xid = target.session()
    frames = [frame(rng, xid, number) for number in range(FRAMES)]
    with session:
        session.send(b"".join(map(msgpack.packb, [*frames, [0, 2**32 - 1, "echo", ["last"]]])))
        for sent in frames:
            if sent[0] == 0:
                kind, number, error, _ = session.answer()
                assert (kind, number) == (1, sent[1])
                assert error is None or {"code", "name", "error", "message"} <= error.keys()
        assert session.answer()[:2] == [1, 2**32 - 1]
    target.left(xid)


@FUZZ
@given(seed=st.integers(0, 2**32))
def test_bytes_that_are_no_frame_end_their_session(target: Target, seed: int) -> None:
    rng = random.Random(seed)
    session, xid = target.session()
    with session:
        session.call("start", xid)
        session.call("enqueue", "orders", b"never seen")
        session.send(no_frame(rng, xid))
        if rng.random() < 0.5:
            session.reset()
        else:
            session.socket.shutdown(1)
            try:
                while True:
                    session.answer()
            except (HungUp, ValueError):
                pass
    target.left(xid)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
)


@FUZZ
@given(value=VALUES, method=st.sampled_from(sorted(METHODS.keys() - ELSEWHERE)) | st.text(max_size=9))
def test_any_value_in_any_place(target: Target, value: Any, method: str) -> None:
    """Also as the frame itself, and as a ride."""
    sent = [[0, 1, method, value], [0, 1, method, [value]], [2, method, [value, value]], value]
    for data in (msgpack.packb(part) for part in sent):
        session, xid = target.session()
        with session:
            session.send(data + msgpack.packb([0, 2, "echo", ["last"]]))
            try:
                while session.answer()[1] != 2:
                    pass
            except HungUp:
                pass
        target.left(xid)


BOMBS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "array within limits": b"\xdd\x03\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "arrays in arrays": b"\xdc\xff\xff" * 1000,
    "short arrays in arrays": b"\xdc\x04\x00" * 1000,
    "deep arrays": b"\x91" * 100_000,
    "deep maps": b"\x81\xa1k" * 50_000,
    "binary": b"\xc6\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x01",
    "timestamp": b"\xc7\x03\xff\x00\x00\x01",
    "never used": b"\xc1",
    "invalid UTF-8": b"\x94\x00\x01\xa2\xff\xfe\x90",
    "invalid UTF-8 in a value": b"\x94\x00\x01\xa4echo\x91\xa2\xff\xfe",
    "NaN as a key": b"\x94\x00\x01\xa4echo\x91\x81\xcb\x7f\xf8\0\0\0\0\0\0\x01",
    "list as a key": b"\x94\x00\x01\xa4echo\x91\x81\x90\x01",
    "many values": b"\x94\x00\x01\xa4echo\x91\xdc\x04\x00" + (b"\xdc\x04\x00" + b"\x90" * 1024) * 1024,
    "oversized": b"\x94\x00\x01\xa4echo\x91\xc6\x00\x10\x00\x00" + bytes(2**20),
}
FRAGMENTS = {"binary", "text", "short arrays in arrays"}
"""They may be the beginning of a frame, until there is too much of it."""


@pytest.mark.parametrize("name", BOMBS)
def test_headers_that_promise_too_much_end_their_session(target: Target, name: str) -> None:
    session, xid = target.session()
    with session:
        session.call("start", xid)
        session.call("enqueue", "orders", b"never seen")
        try:
            session.send(BOMBS[name])
            if name in FRAGMENTS:
                for _ in range(3):
                    session.send(bytes(REQUEST_BYTES))
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert session.is_ended()
    target.left(xid)


@pytest.mark.parametrize("name", BOMBS)
def test_a_frame_costs_little_more_room_than_its_bytes(name: str) -> None:
    data = BOMBS[name]

    def read() -> None:
        unpacker = wire.CallUnpacker(REQUEST_BYTES)
        for start in range(0, 4 * 2**20, 2**16):
            for frame, _ in unpacker.frames(data[start : start + 2**16] or bytes(2**16)):
                wire.call_of(frame)

    tracemalloc.start()
    try:
        with pytest.raises((ValueError, msgpack.UnpackException, wire.MalformedFrame)):
            read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


# Bytes in any portions


def conversation(session: RawClient, xid: tuple[int, bytes, bytes]) -> bytes:
    return b"".join(
        [
            session.packed("start", xid),
            session.packed("enqueue", "orders", b"body", {"headers": {"k": "v"}}),
            session.packed("end", xid, SUCCESS),
            session.packed("rollback", xid),
            session.packed("echo", "last"),
        ]
    )


def test_a_frame_may_be_split_at_every_byte(target: Target) -> None:
    session, xid = target.session()
    with session:
        length = len(conversation(session, xid))
    for split in range(1, length):
        session, xid = target.session()
        with session:
            data = conversation(session, xid)
            session.send(data[:split])
            target.bystander.call("echo")  # so that the server has seen the first part
            session.send(data[split:])
            assert [session.answer()[2] for _ in range(5)] == [None] * 5
    target.left(xid)


def test_one_byte_at_a_time(target: Target) -> None:
    session, xid = target.session()
    with session:
        for byte in conversation(session, xid):
            session.send(bytes([byte]))
            target.bystander.call("echo")
        assert [session.answer()[2] for _ in range(5)] == [None] * 5
    target.left(xid)


def test_the_largest_request_may_have_others_behind_it(target: Target) -> None:
    session, xid = target.session()
    with session:
        largest = b"x" * (REQUEST_BYTES - 100)
        more = [session.packed("echo", b"y" * 50_000) for _ in range(20)]
        session.send(session.packed("echo", largest) + b"".join(more))
        assert session.answer()[3] == largest
        assert [len(session.answer()[3]) for _ in more] == [50_000] * 20
    target.left(xid)
