"""What a producer's client sends again by itself comes once, wherever its connections are cut and its server is killed.

OMS-34, OMS-37.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

import xaqueue
from support.cutting_proxy import Cut, CuttingProxy
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.errors import ConnectionLost, Error, OutcomeUnknown
from xaqueue.features.opening import create
from xaqueue.rpc.client.resend import ResendingManager

QUEUES = """
[queues.keyed]
dedup_window_s = 3600
[queues.plain]
"""
BODIES = [b"1", b"2", b"3"]


class Ground:
    """A server with a proxy before it."""

    def __init__(self, place: Path, sync: str) -> None:
        self._root, self._path, self._sync = place / "space", place / "socket", sync
        self.has_journal = sync == "JOURNAL"
        """Which tells what was committed, also in one phase."""
        create(self._root, sync=sync)
        write_definitions(self._root, QUEUES)
        self.server = ServerThread(self._root, self._path, sync=sync)
        self.proxy = CuttingProxy(place / "proxy", self._path)

    def connect(self, cut: Cut) -> Connection:
        self.proxy.arm(cut)
        return xaqueue.connect(self.proxy.url, resend=True)

    def start_anew(self, kill: bool = True) -> None:
        self.server.kill() if kill else self.server.stop()
        self.server = ServerThread(self._root, self._path, sync=self._sync)

    def serve_another(self) -> None:
        self._root = self._root.with_name("another")
        create(self._root, sync=self._sync)
        write_definitions(self._root, QUEUES)
        self.start_anew(kill=False)

    def taken(self, queue: str) -> list[bytes]:
        found = list[bytes]()
        with xaqueue.connect(self.server.url) as other:
            while (message := other.dequeue(queue)) is not None:
                found.append(message.body)
            other.commit()
        return found

    def close(self) -> None:
        self.proxy.close()
        self.server.stop()


@pytest.fixture(params=["NONE", "JOURNAL"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path, request.param)
    yield made
    made.close()


def before_it_asks(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Once, where a commit was lost; of a connection that is made from here on."""
    asks, left = ResendingManager.again, [act]

    def again(self: ResendingManager, transaction: object, lost: Error) -> bool:
        if left:
            left.pop()()
        return asks(self, transaction, lost)  # type: ignore[arg-type]

    monkeypatch.setattr(ResendingManager, "again", again)


def add(connection: Connection, queue: str) -> None:
    connection.enqueue(queue, BODIES[0])
    connection.enqueue_many(queue, BODIES[1:])


CUTS = [Cut(*one) for one in product(("request", "answer"), (1, 2), ("before", "within", "after"))]
"""Of the greeting, and of the frame that is a whole transaction."""


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("ground", ["JOURNAL"], indirect=True)
def test_a_server_that_lives_tells(ground: Ground, cut: Cut) -> None:
    for queue in ("keyed", "plain"):
        connection = ground.connect(cut)
        for _ in range(2):
            add(connection, queue)
            connection.commit()
            assert ground.taken(queue) == BODIES
        connection.close()


@pytest.mark.parametrize("cut", [Cut("request", 2, "before"), Cut("answer", 2, "before")], ids=str)
@pytest.mark.parametrize("is_taken", [False, True])
def test_over_a_servers_end_a_key_tells(
    ground: Ground, cut: Cut, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started anew in good order, it has forgotten all transactions of one phase."""
    had = list[bytes]()

    def ends() -> None:
        if is_taken:
            had.extend(ground.taken("keyed"))
        ground.start_anew(kill=False)

    before_it_asks(monkeypatch, ends)
    connection = ground.connect(cut)
    add(connection, "keyed")
    connection.commit()
    assert had + ground.taken("keyed") == BODIES
    connection.close()


@pytest.mark.parametrize("ground", ["NONE"], indirect=True)
def test_what_is_in_the_queue_already_is_refused_to_nobody(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window was away when it was committed, so no key tells; its ids do."""

    def window(length_s: int) -> None:
        with xaqueue.connect(ground.server.url) as other:
            other.define("keyed", dedup_window_s=length_s)

    def ends() -> None:
        window(3600)
        ground.start_anew(kill=False)

    before_it_asks(monkeypatch, ends)
    connection = ground.connect(Cut("answer", 2, "before"))
    window(0)
    add(connection, "keyed")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            connection.commit()
    assert ground.taken("keyed") == BODIES
    connection.close()


@pytest.mark.parametrize("ground", ["NONE"], indirect=True)
def test_what_the_client_has_slept_counts(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that nobody sets stands still then."""
    slept_s = 0

    def ends() -> None:
        nonlocal slept_s
        slept_s = 7200
        ground.start_anew(kill=False)

    before_it_asks(monkeypatch, ends)
    clock = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + slept_s)
    monkeypatch.setattr("xaqueue.rpc.client.resend.time", clock)
    connection = ground.connect(Cut("answer", 2, "before"))
    add(connection, "keyed")
    with pytest.raises(OutcomeUnknown):
        connection.commit()
    assert ground.taken("keyed") == BODIES
    connection.close()


@pytest.mark.parametrize("cut", [Cut("request", 2, "before"), Cut("answer", 2, "before")], ids=str)
def test_another_space_gets_nothing_of_it(ground: Ground, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to the address while the client asks; the next transaction is its own."""

    before_it_asks(monkeypatch, ground.serve_another)
    monkeypatch.setattr(ResendingManager, "_tries", lambda _: iter([None]))
    connection = ground.connect(cut)
    add(connection, "keyed")
    with pytest.raises(OutcomeUnknown):
        connection.commit()
    assert ground.taken("keyed") == []
    with suppress(Error):
        connection.rollback()
    add(connection, "keyed")
    connection.commit()
    assert ground.taken("keyed") == BODIES
    connection.close()


@pytest.mark.parametrize("cut", [Cut("request", 2, "before"), Cut("answer", 2, "before")], ids=str)
@pytest.mark.parametrize("begins", [False, True])
def test_without_one_nobody_guesses(ground: Ground, cut: Cut, begins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """begins: it would be known from now on, which is too late."""

    def ends() -> None:
        if begins:
            with xaqueue.connect(ground.server.url) as other:
                other.define("plain", dedup_window_s=3600)
        ground.start_anew(kill=False)

    before_it_asks(monkeypatch, ends)
    connection = ground.connect(cut)
    add(connection, "keyed")
    connection.enqueue("plain", b"beside")
    came = cut.frame == "answer"
    with nullcontext() if came and ground.has_journal else pytest.raises(OutcomeUnknown):
        connection.commit()
    assert (ground.taken("keyed"), ground.taken("plain")) == ((BODIES, [b"beside"]) if came else ([], []))
    connection.close()


@pytest.mark.parametrize(
    "second", [Cut(*one) for one in product(("request", "answer"), (2, 4, 6), ("before",))], ids=str
)
@pytest.mark.parametrize("first", [Cut("request", 2, "before"), Cut("answer", 2, "before")], ids=str)
def test_what_is_lost_again_comes_once(
    ground: Ground, first: Cut, second: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told that it is unknown calls commit again, as ever."""

    def ends() -> None:
        ground.start_anew()
        ground.proxy.arm(second)

    before_it_asks(monkeypatch, ends)
    connection = ground.connect(first)
    add(connection, "keyed")
    for _ in range(9):
        try:
            connection.commit()
        except ConnectionLost:
            continue
        break
    assert ground.taken("keyed") == BODIES
    connection.close()


def test_who_takes_as_well_is_told(ground: Ground) -> None:
    with xaqueue.connect(ground.server.url) as other:
        other.enqueue("plain", b"0")
        other.commit()
    connection = ground.connect(Cut("answer", 3, "before"))
    assert connection.dequeue("plain") is not None
    add(connection, "plain")
    with pytest.raises(OutcomeUnknown):
        connection.commit()
    connection.commit()
    assert ground.taken("plain") == BODIES
    connection.close()
