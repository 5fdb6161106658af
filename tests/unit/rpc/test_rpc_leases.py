"""Messages on lease by a server: a lost connection ends no lease, a lost answer settles nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import xaqueue
from support.contract_connection import QUEUES, bodies, put
from support.contract_leases import tries
from support.cutting_proxy import Cut, CuttingProxy
from support.patience import eventually
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.delivery import Delivery
from xaqueue.errors import ConnectionLost, InvalidArgument, LeaseExpired, RetryLater
from xaqueue.features.opening import create
from xaqueue.rpc.server.peer import Limits

pytestmark = pytest.mark.usefixtures("quiet")

LIMIT = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    root = tmp_path / "space"
    create(root, sync="JOURNAL")
    (root / "queues.toml").write_text(QUEUES.replace("[queues.orders]", '[queues.orders]\nfailure_queue = "replies"'))
    made = ServerThread(root, tmp_path / "socket", sync="JOURNAL", limits=Limits(branches=LIMIT, branch_idle_s=0.1))
    yield made
    made.stop()


@pytest.fixture
def proxy(server: ServerThread, tmp_path: Path) -> Iterator[CuttingProxy]:
    made = CuttingProxy(tmp_path / "proxy", server.path)
    yield made
    made.close()


@pytest.fixture
def user(server: ServerThread) -> Iterator[Connection]:
    with xaqueue.connect(server.url) as connection:
        put(connection, b"a", b"b")
        yield connection


def cut(connection: Connection) -> None:
    """The socket is gone, and nobody said good-bye."""
    connection._manager._socket.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("option", "value"), [("max_messages", 0), ("lease_s", "1"), ("wait_s", -1)])
def test_what_is_wrong_is_never_asked(user: Connection, option: str, value: object) -> None:
    cut(user)
    with pytest.raises(InvalidArgument, match=option):
        user.receive("orders", **{option: value})  # type: ignore[arg-type]


def test_a_lost_connection_ends_no_lease(server: ServerThread, user: Connection) -> None:
    """It may be idle for longer than a branch may, too."""
    client = xaqueue.connect(server.url)
    first, second = client.receive("orders", 2, lease_s=600)
    cut(client)
    eventually(lambda: len(server.server.sessions) == 1)
    assert not user.receive("orders", wait_s=0.3)
    first.extend(600)
    first.ack()
    client.close()
    assert (bodies(user), tries(user)) == ([b"b"], [1]), "what the lost session held was the new one's"
    with pytest.raises(xaqueue.InterfaceError):
        second.ack()


def test_another_connection_may_accept(server: ServerThread, user: Connection) -> None:
    client = xaqueue.connect(server.url)
    (held,) = client.receive("orders")
    cut(client)
    user.accept(held)
    user.commit()
    assert bodies(user) == [b"b"]


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_a_lost_answer_settles_once(proxy: CuttingProxy, user: Connection, how: str) -> None:
    proxy.arm(Cut("answer", 3, "before"))
    with xaqueue.connect(proxy.url) as client:
        (held,) = client.receive("orders")
        ways: dict[str, Callable[[], None]] = {
            "ack": held.ack,
            "nack": lambda: held.nack(3600),
            "reject": lambda: held.reject("no"),
        }
        ways[how]()
        assert proxy.has_cut.is_set()
        assert (bodies(user), tries(user)) == ([b"b"], [0]) if how != "nack" else ([b"a", b"b"], [0, 0])
        assert bodies(user, "replies") == ([b"a"] if how == "reject" else [])


def test_a_request_that_is_lost_is_made_again(proxy: CuttingProxy, user: Connection) -> None:
    proxy.arm(Cut("request", 3, "before"))
    with xaqueue.connect(proxy.url) as client:
        client.receive("orders")[0].ack()
        assert bodies(user) == [b"b"]


def test_what_was_received_by_nobody_is_back_in_time(proxy: CuttingProxy, user: Connection) -> None:
    proxy.arm(Cut("answer", 2, "before"))
    client = xaqueue.connect(proxy.url)
    with pytest.raises(ConnectionLost):
        client.receive("orders", lease_s=0.05)
    eventually(lambda: tries(user) == [1, 0])
    client.close()


def test_an_accept_whose_answer_is_lost_is_undone(proxy: CuttingProxy, user: Connection) -> None:
    (held,) = user.receive("orders")
    proxy.arm(Cut("answer", 2, "before"))
    client = xaqueue.connect(proxy.url)
    with pytest.raises(ConnectionLost):
        client.accept(held)
    eventually(lambda: tries(user) == [1, 0])
    client.close()
    with pytest.raises(LeaseExpired):
        held.ack()


def test_a_session_that_waits_and_is_lost_takes_nothing(server: ServerThread, user: Connection) -> None:
    before = set(server.server.sessions)
    client = xaqueue.connect(server.url)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.receive, "replies", wait_s=60.0)
        eventually(lambda: "replies" in server.space.queues and server.space.queues["replies"].waiters)
        (session,) = set(server.server.sessions) - before
        server.call(session.cut)
        with pytest.raises(ConnectionLost):
            waiting.result(60.0)
    eventually(lambda: not server.space.branches)
    put(user, b"reply", queue="replies")
    assert [delivery.body for delivery in user.receive("replies")] == [b"reply"]


def test_the_limit_of_a_session_is_told(server: ServerThread, user: Connection) -> None:
    put(user, *(b"%d" % number for number in range(LIMIT)))
    held: list[Delivery] = user.receive("orders", 1000)
    assert len(held) == LIMIT, "as many as there may be"
    with pytest.raises(RetryLater, match=f"{LIMIT} of this session .* settle what was received"):
        user.receive("orders")
    held[0].ack()
    (more,) = user.receive("orders", 1000)
    for delivery in [*held[1:], more]:
        delivery.ack()
    assert len(bodies(user)) == 1
    assert not server.space.branches


def test_an_answer_has_about_a_mib(server: ServerThread) -> None:
    with xaqueue.connect(server.url) as client:
        put(client, *(bytes(100_000) for _ in range(LIMIT)), queue="stack")
        assert len(client.receive("stack", 1000)) == LIMIT
