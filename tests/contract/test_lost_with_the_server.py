"""Each verb's answer is lost together with its server, which had carried it out: nobody hears that nothing was done.

The server is killed, or started again in good order, or hangs until the other one of its pair has taken over; then the
client asks the next one by itself, and the same call is made once more where nobody knew. A verb that is new in the
protocol wants its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.pair import free_ports
from support.served import ServerThread
from xaqueue.batch import BATCH_FORMAT_IDS, Batch
from xaqueue.connection import Connection
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.delivery import ACK, NACK, REJECT
from xaqueue.errors import (
    ConnectionLost,
    Error,
    HeuristicOutcome,
    LeaseExpired,
    OutcomeUnknown,
    RolledBack,
    UnknownQueue,
    UnknownXid,
)
from xaqueue.features.opening import create
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.sockets import ClientSocket
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.rpc.server.calls import METHODS
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.xid import Xid

X = Xid(1, b"gtrid", b"bqual")
QUEUES = """
[default]
[queues.orders]
failure_queue = "failed"
[queues.failed]
[queues.empty]
[topics.news]
[queues.one]
topic = "news"
"""
Content = dict[str, list[bytes]]
Act = Callable[["Ground"], object]


@dataclass(frozen=True)
class Case:
    """before: done with an answer. act: loses that of ``verb``. done: what the space holds then."""

    verb: str
    before: Act
    act: Act
    done: Callable[[Ground], bool]
    says: tuple[type[Error], ...] = ()
    """What the same call, made again, raises where it is done."""


class Ground:
    """A space with message ``a`` in orders, its server, and one client."""

    def __init__(self, root: Path, way: str, sync: str) -> None:
        self.root, self._way, self._sync = root, way, sync
        create(root, sync=sync)
        write_definitions(root, QUEUES)
        with xaqueue.connect(root) as connection:
            connection.enqueue("orders", b"a")
            connection.commit()
        ports = free_ports(2) if way == "takeover" else []
        self._places = [f"127.0.0.1:{port}" for port in ports]
        """Of a pair, those that have not had the space yet."""
        pair = f"xaq://{','.join(self._places)}"
        self.server = self._serve()
        self.url = pair if ports else self.server.url
        self.connection = xaqueue.connect(self.url)
        self.kept: Any = None
        """What a step hands to the next one."""

    def _serve(self) -> ServerThread:
        if not self._places:
            return ServerThread(self.root, self.root.with_name("socket"), sync=self._sync)
        place = self._places.pop(0)
        lock = OwnerFile(self.root)
        if not lock.acquire():  # as ``standby.wait`` does once the owner has been silent for long enough
            assert lock.take_over(lock.locked)
        listen = ListenConfig(tcp=(place,), insecure=True)
        return ServerThread(self.root, self.root.with_name(place[-5:]), sync=self._sync, listen=listen, lock=lock)

    def restart(self) -> None:
        if self._way == "stop":
            self.server.stop()
        else:
            self.server.kill(keeps_lock=self._way == "takeover")
        self.server = self._serve()

    @property
    def manager(self) -> RemoteManager:
        manager = self.connection._manager
        assert isinstance(manager, RemoteManager)
        return manager

    def look(self, queue: str) -> list[bytes]:
        with xaqueue.connect(self.url) as other:
            return [message.body for message in other.browse(queue)]

    def in_doubt(self) -> list[Xid]:
        with xaqueue.connect(self.url) as other:
            return other.tpc_recover()


WAYS = [
    *((way, sync) for sync in ("JOURNAL", "FDATASYNC;DSYNC") for way in ("kill", "stop")),
    ("takeover", "JOURNAL"),
]


@pytest.fixture(params=WAYS, ids="-".join)
def ground(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ground]:
    made = Ground(tmp_path / "space", *request.param)
    yield made
    made.connection.close()
    made.server.stop()


def nothing(ground: Ground) -> None:
    """There is nothing to be done before."""


def of(call: Callable[[Connection], object]) -> Act:
    return lambda ground: call(ground.connection)


def calls(method: str, *params: Any) -> Act:
    return lambda ground: ground.manager.call(method, *params)


def begin(ground: Ground) -> None:
    ground.connection.tpc_begin(X)
    ground.connection.enqueue("failed", b"b")


def prepare(ground: Ground, *, takes: bool = False) -> None:
    begin(ground)
    if takes:
        ground.connection.dequeue("orders")
    ground.connection.tpc_prepare()


def add(connection: Connection) -> None:
    connection.enqueue("failed", b"b")
    connection.commit()


def decide(ground: Ground) -> None:
    prepare(ground)
    RemoteOperator(ground.manager).decide(X, True, "me", "so")


def receive(ground: Ground) -> None:
    (ground.kept,) = ground.connection.receive("orders", lease_s=600)


def settle(how: str, detail: Any, ground: Ground) -> None:
    ground.manager.settle("orders", ground.kept.lease, how, detail)


def first_id(connection: Connection, queue: str = "orders") -> bytes:
    return next(iter(connection.browse(queue))).message_id


def holds(queue: str, *bodies: bytes) -> Callable[[Ground], bool]:
    return lambda ground: ground.look(queue) == list(bodies)


def has_queue(name: str, ground: Ground) -> bool:
    return f"[queues.{name}]" in (ground.root / "queues.toml").read_text()


def has_snapshot(ground: Ground) -> bool:
    return any((ground.root / "snapshots").glob("[0-9]*"))


BATCH = Batch("query", 3)
OF_BATCH = Xid(BATCH_FORMAT_IDS[0], BATCH.gtrid, b"1")


def prepare_for_batch(ground: Ground) -> None:
    ground.manager.start(OF_BATCH)
    ground.manager.enqueue("failed", b"b")
    ground.manager.end(OF_BATCH)
    ground.manager.prepare(OF_BATCH)


def reserve(ground: Ground) -> None:
    ground.manager.reserve("orders", "stream", 0, 1)


CASES = {
    "prepare": Case(
        "prepare",
        begin,
        of(lambda connection: connection.tpc_prepare()),
        lambda ground: ground.in_doubt() == [X],
    ),
    "commit in two phases": Case("commit", prepare, of(lambda c: c.tpc_commit()), holds("failed", b"b"), (UnknownXid,)),
    "commit in one phase": Case(
        "commit", of(lambda c: c.enqueue("failed", b"b")), of(lambda c: c.commit()), holds("failed", b"b")
    ),
    "commit of what it took": Case(
        "commit", of(lambda c: c.dequeue("orders")), of(lambda c: c.commit()), holds("orders")
    ),
    "rollback": Case(
        "rollback",
        partial(prepare, takes=True),
        of(lambda c: c.tpc_rollback()),
        lambda ground: (ground.in_doubt(), ground.look("orders")) == ([], [b"a"]),
        (UnknownXid,),
    ),
    "forget": Case(
        "forget", decide, of(lambda c: c.tpc_forget(X)), lambda ground: ground.in_doubt() == [], (UnknownXid,)
    ),
    "ack": Case("settle", receive, partial(settle, ACK, None), holds("orders")),
    "reject": Case("settle", receive, partial(settle, REJECT, "bad"), holds("failed", b"a")),
    "nack": Case("settle", receive, partial(settle, NACK, None), holds("orders", b"a")),
    "nack, put off": Case("settle", receive, partial(settle, NACK, 60_000_000), holds("orders", b"a")),
    "receive": Case("receive", nothing, receive, holds("orders", b"a")),
    "define": Case("define", nothing, of(lambda c: c.define("new")), partial(has_queue, "new")),
    "undefine": Case(
        "undefine",
        nothing,
        of(lambda c: c.undefine("empty")),
        lambda ground: not has_queue("empty", ground),
        (UnknownQueue,),
    ),
    "snapshot": Case("snapshot", nothing, of(lambda c: c.snapshot()), has_snapshot),
    "repair": Case("repair", nothing, calls("repair", "orders"), holds("orders", b"a")),
    "indoubt_decide": Case(
        "indoubt_decide",
        prepare,
        lambda ground: RemoteOperator(ground.manager).decide(X, True, "me", "so"),
        holds("failed", b"b"),
        (HeuristicOutcome,),
    ),
    "indoubt_forget": Case(
        "indoubt_forget",
        decide,
        lambda ground: RemoteOperator(ground.manager).forget(X, "me", "so"),
        lambda ground: ground.in_doubt() == [],
        (UnknownXid,),
    ),
    "commit_all": Case(
        "commit_all",
        prepare_for_batch,
        lambda ground: ground.manager.commit_all(BATCH, [OF_BATCH]),
        holds("failed", b"b"),
    ),
    "rollback_all": Case(
        "rollback_all",
        prepare_for_batch,
        lambda ground: ground.manager.rollback_all(BATCH),
        lambda ground: (ground.in_doubt(), ground.look("failed")) == ([], []),
    ),
    "reserve": Case("reserve", nothing, reserve, lambda ground: len(ground.manager.reservations()) == 1),
    "consume": Case("consume", reserve, lambda ground: ground.manager.consume("orders", "stream", 1), holds("orders")),
    "release": Case(
        "release",
        reserve,
        lambda ground: ground.manager.release("orders"),
        lambda ground: not ground.manager.reservations(),
    ),
}
"""By what is done."""
WORK: dict[str, Act] = {
    "enqueue": of(lambda c: c.enqueue("failed", b"b", dedup_key="k")),
    "enqueue_many": of(lambda c: c.enqueue_many("failed", [b"b"], dedup_key="k")),
    "enqueue_to": of(lambda c: c.enqueue_to(["failed"], b"b")),
    "publish": of(lambda c: c.publish("news", b"b")),
    "dequeue": of(lambda c: c.dequeue("orders")),
    "dequeue_many": of(lambda c: c.dequeue_many("orders", 1)),
    "move": of(lambda c: c.move("orders", first_id(c), "failed")),
    "remove": of(lambda c: c.remove("orders", first_id(c))),
    "restore": of(lambda c: c.restore(next(iter(c.browse("orders"))), "failed")),
    "accept": lambda ground: ground.connection.accept(ground.kept),
    "mark": of(lambda c: c.savepoint()),
    "cut": of(lambda c: c.savepoint().rollback()),
}
"""What belongs to a transaction, which goes with the server."""
LOOKS = {
    *(
        "browse",
        "browse_next",
        "browse_end",
        "depths",
        "echo",
        "hello",
        "metrics",
        "outcome",
        "recover",
        "reservations",
    ),
    *("sessions", "status", "decision", "carriers", "indoubt_list", "indoubt_next", "indoubt_forgotten", "close"),
    "indoubt_bodies",
    *("positions", "span", "span_sizes", "span_before", "span_kept", "ranges", "tries"),
    *("harden", "drain", "extend", "start", "end", "explain", "work", "return"),
    *("replicate", "replica_begin", "replica_next", "replica_end", "replaced", "deliver", "release_carrier"),
}
"""What changes nothing that outlives the server; and what a replica or a transaction manager asks until it is answered,
with numbers by which it is done once."""


def test_every_verb_has_a_case() -> None:
    assert {case.verb for case in CASES.values()} | WORK.keys() | LOOKS == METHODS.keys()


def last_call(method: str, params: Any) -> str:
    """Of those that a frame stands for, which gives its answer."""
    if method != "work":
        return method
    return str(params[3]) if len(params) == 4 else "dequeue"


def lose(ground: Ground, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next answer to the verb, behind which the server is another one."""
    request, lost = ClientSocket.request, list[str]()

    def losing(self: ClientSocket, method: str, params: Any, *more: Any) -> Any:
        answer = request(self, method, params, *more)
        if last_call(method, params) == verb and not lost:
            lost.append(verb)
            ground.restart()
            raise self._lost("its server is gone")
        return answer

    monkeypatch.setattr(ClientSocket, "request", losing)
    return lost


@pytest.mark.parametrize("name", CASES)
def test_what_was_done_is_not_denied(ground: Ground, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    case.before(ground)
    lost = lose(ground, case.verb, monkeypatch)
    with suppress(OutcomeUnknown, ConnectionLost):
        case.act(ground)
        case = replace(case, act=nothing)  # it has its answer
    with suppress(OutcomeUnknown, ConnectionLost, *case.says):
        case.act(ground)
    assert lost == [case.verb]
    assert case.done(ground)


@pytest.mark.parametrize("verb", WORK)
def test_work_goes_with_its_transaction(ground: Ground, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if verb == "accept":
        receive(ground)
    lost = lose(ground, verb, monkeypatch)
    with pytest.raises((ConnectionLost, RolledBack)):
        WORK[verb](ground)
    assert lost == [verb]
    with pytest.raises(RolledBack):
        ground.connection.commit()
    assert (ground.look("orders"), ground.look("failed"), ground.look("one")) == ([b"a"], [], [])
    ground.connection.rollback()
    add(ground.connection)
    assert ground.look("failed") == [b"b"]


@pytest.mark.parametrize("ground", WAYS[:1], ids="-".join, indirect=True)
def test_what_no_server_took_was_not_done(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, so that nothing is unknown, then and later."""
    receive(ground)
    monkeypatch.setattr(ground.manager, "_connect_s", 0.0)
    ground.server.kill()
    with pytest.raises(ConnectionLost, match="no server answers") as caught:
        settle(ACK, None, ground)
    assert caught.type is ConnectionLost
    ground.server = ground._serve()
    with pytest.raises(LeaseExpired):
        settle(ACK, None, ground)
    assert ground.look("orders") == [b"a"]


@pytest.mark.parametrize("ground", [way for way in WAYS if way[1] == "JOURNAL"], ids="-".join, indirect=True)
@pytest.mark.parametrize("how", [ACK, REJECT])
def test_a_delivery_is_known_to_be_settled_behind_a_restart(ground: Ground, how: str) -> None:
    """By the journal, at whose level it is. And nothing else can be done with it."""
    receive(ground)
    detail = "bad" if how == REJECT else None
    settle(how, detail, ground)
    ground.restart()
    settle(how, detail, ground)
    with pytest.raises(Error):
        settle(NACK, None, ground)
