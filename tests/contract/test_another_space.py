"""Another space comes to an address: who has something in the first one asks nothing of it, and goes on when that is
back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import xaqueue
from support.cutting_proxy import Cut, CuttingProxy
from support.served import ServerThread
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.errors import ConnectionLost, OutcomeUnknown
from xaqueue.features.opening import create
from xaqueue.rpc.client import link, server_launcher
from xaqueue.tm.coordinator import TraceStep
from xaqueue.tm.manager import TransactionManager
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

X = Xid(1, b"gtrid", b"bqual")
STREAM = "stream-of-a-query"


class Address:
    """At which one of two spaces is served; each has the same three messages in q."""

    def __init__(self, place: Path) -> None:
        self._place = place
        for name in ("first", "other"):
            create(place / name, sync="NONE")
            write_definitions(place / name, "[queues.q]\n[queues.r]\n")
            with xaqueue.connect(place / name) as connection:
                connection.enqueue_many("q", [b"1", b"2", b"3"])
                connection.commit()
        self._server = self._served("first")
        self.url = self._server.url

    def _served(self, name: str) -> ServerThread:
        return ServerThread(self._place / name, self._place / "socket", sync="NONE")

    def serve(self, name: str) -> None:
        self._server.stop()
        self._server = self._served(name)

    def look(self, queue: str) -> list[bytes]:
        with xaqueue.connect(self.url) as connection:
            return [message.body for message in connection.browse(queue)]

    def close(self) -> None:
        self._server.stop()


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    monkeypatch.setattr(link.Link, "_tries", lambda _: iter([None]))
    made = Address(tmp_path)
    yield made
    made.close()


ENDS: list[tuple[Callable[[xaqueue.Connection], object], list[bytes]]] = [
    (lambda one: one.tpc_commit(), [b"mine"]),
    (lambda one: one.tpc_rollback(), []),
]


@pytest.mark.parametrize(("ends", "found"), ENDS, ids=["commit", "rollback"])
def test_a_prepared_branch_ends_where_it_is(
    address: Address, ends: Callable[[object], object], found: list[bytes]
) -> None:
    with xaqueue.connect(address.url) as connection:
        connection.tpc_begin(X)
        connection.enqueue("r", b"mine")
        connection.tpc_prepare()
        address.serve("other")
        with pytest.raises(ConnectionLost, match="another space answers"):
            ends(connection)
        with pytest.raises(ConnectionLost, match="another space answers"):
            connection.outcome(X)
        address.serve("first")
        ends(connection)
        assert address.look("r") == found
        address.serve("other")  # as behind a restore: what is decided holds nobody back
        connection.enqueue("r", b"new")
        connection.commit()
        assert address.look("r") == [b"new"]


def test_nor_is_it_taken_for_rolled_back_where_its_vote_was_lost(address: Address, tmp_path: Path) -> None:
    proxy = CuttingProxy(tmp_path / "proxy", tmp_path / "socket")
    proxy.arm(Cut("answer", 2, "before"))
    with xaqueue.connect(proxy.url) as connection:
        connection.tpc_begin(X)
        connection.enqueue("r", b"mine")
        with pytest.raises(OutcomeUnknown):
            connection.tpc_prepare()
        address.serve("other")
        for call in (connection.tpc_prepare, connection.tpc_rollback):
            with pytest.raises(ConnectionLost, match="another space answers"):
                call()
        address.serve("first")
        connection.tpc_prepare()
        connection.tpc_commit()
        assert address.look("r") == [b"mine"]
    proxy.close()


def test_what_is_reserved_is_consumed_there_alone(address: Address) -> None:
    """The other one is a copy of it, perhaps, with the same reservation."""
    session = server_launcher.reach("", address.url)
    for _ in range(2):
        session.reserve("q", STREAM, 0, 3)
        address.serve("other")
        with xaqueue.connect(address.url) as there:
            there._manager.reserve("q", STREAM, 0, 3)  # type: ignore[attr-defined]
        with pytest.raises(ConnectionLost, match="another space answers"):
            session.consume("q", STREAM, 3)
        assert len(address.look("q")) == 3
        address.serve("first")
    session.consume("q", STREAM, 3)
    assert address.look("q") == []
    session.close()


def test_a_session_that_has_nothing_goes_to_whichever_is_there(address: Address) -> None:
    with xaqueue.connect(address.url) as connection:
        connection.enqueue("r", b"a")
        connection.commit()
        address.serve("other")
        connection.enqueue("r", b"b")
        connection.commit()
    assert address.look("r") == [b"b"]


@pytest.mark.parametrize("is_other", [False, True])
def test_a_decided_branch_is_not_taken_for_over(address: Address, tmp_path: Path, is_other: bool) -> None:
    """By a transaction manager whose participant has gone between its vote and its commit; the other one knows no such
    branch, which would say of the right one that it is over."""

    def after(step: TraceStep, gtrid: bytes, name: str) -> None:
        if is_other and step is TraceStep.DECIDED:
            address.serve("other")

    sources = {"queue": lambda: xaqueue.connect(address.url), "second": lambda: xaqueue.connect(tmp_path / "second")}
    create(tmp_path / "second", sync="NONE", any_queue=True)
    with TransactionManager(tmp_path / "log", sources) as manager:
        manager._coordinator.step = after
        with manager.transaction() as transaction:
            for name in sources:
                transaction[name].enqueue("r", b"decided")
        outcome = transaction.outcome
    assert outcome is Outcome.COMMITTED
    if is_other:
        assert address.look("r") == []
        address.serve("first")
        with TransactionManager(tmp_path / "log", sources) as manager:
            manager.recover()
    assert address.look("r") == [b"decided"]
