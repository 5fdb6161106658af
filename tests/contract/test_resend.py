"""What a producer's client sends again by itself comes once, wherever its connections are cut and its server is killed.

OMS-34, OMS-37.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path

import pytest

import xaqueue
from support.cutting_proxy import Cut, CuttingProxy
from support.patience import PATIENCE_S
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.errors import ConnectionLost, Error, OutcomeUnknown
from xaqueue.features.opening import create
from xaqueue.rpc.client.resend import TOKENS, ResendingManager

QUEUES = """
[queues.plain]
[queues.other]
"""
TOKEN_QUEUE = f"""
[queues."{TOKENS}"]
max_age_s = 3600
"""
BODIES = [b"1", b"2", b"3"]


class Ground:
    """A server with a proxy before it."""

    def __init__(self, place: Path, sync: str) -> None:
        self._root, self._path, self._sync = place / "space", place / "socket", sync
        self.has_journal = sync == "JOURNAL"
        """Which tells what was committed, also in one phase."""
        create(self._root, sync=sync)
        write_definitions(self._root, QUEUES + TOKEN_QUEUE)
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
        write_definitions(self._root, QUEUES + TOKEN_QUEUE)
        self.start_anew(kill=False)

    def has_no_tokens(self) -> None:
        self.server.stop()
        write_definitions(self._root, QUEUES)
        self.server = ServerThread(self._root, self._path, sync=self._sync)

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


CUTS = [Cut(*one) for one in product(("request", "answer"), (1, 2, 3, 4), ("before", "within", "after"))]
"""Of the greeting, of the two by which a token is left, and of the one that ends the transaction."""


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("ground", ["JOURNAL"], indirect=True)
def test_a_server_that_lives_tells(ground: Ground, cut: Cut) -> None:
    connection = ground.connect(cut)
    for _ in range(2):
        add(connection, "plain")
        connection.commit()
        assert ground.taken("plain") == BODIES
    connection.close()


LOST = [Cut("request", 4, "before"), Cut("answer", 4, "before")]
"""The end of the first transaction: it never came, or nobody heard of it."""


@pytest.mark.parametrize("cut", LOST, ids=str)
@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("nth", [0, 1])
def test_over_a_servers_end_a_token_tells(
    ground: Ground, cut: Cut, is_taken: bool, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started anew in good order, it has forgotten all transactions of one phase. No queue has a window."""
    had = list[bytes]()

    def ends() -> None:
        if is_taken:
            had.extend(ground.taken("plain"))
        ground.start_anew(kill=False)

    before_it_asks(monkeypatch, ends)
    connection = ground.connect(Cut(cut.frame, cut.number + nth, cut.when))
    for _ in range(nth + 1):
        add(connection, "plain")
        connection.commit()
    connection.enqueue("plain", b"4")
    connection.commit()
    assert had + ground.taken("plain") == BODIES * (nth + 1) + [b"4"]
    connection.close()
    assert ground.taken(TOKENS) == []


@pytest.mark.parametrize("cut", LOST, ids=str)
def test_another_space_gets_nothing_of_it(ground: Ground, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to the address while the client asks; the next transaction is its own."""

    before_it_asks(monkeypatch, ground.serve_another)
    monkeypatch.setattr(ResendingManager, "_tries", lambda _: iter([None]))
    connection = ground.connect(cut)
    add(connection, "plain")
    with pytest.raises(OutcomeUnknown):
        connection.commit()
    assert ground.taken("plain") == []
    with suppress(Error):
        connection.rollback()
    add(connection, "plain")
    connection.commit()
    assert ground.taken("plain") == BODIES
    connection.close()


@pytest.mark.parametrize("cut", LOST, ids=str)
@pytest.mark.parametrize("is_gone", [False, True])
def test_without_a_token_nobody_guesses(
    ground: Ground, cut: Cut, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """is_gone: whichever was there is too old meanwhile, by whatever clock; else there never was one."""

    def ends() -> None:
        while is_gone and not ground.taken(TOKENS):  # the session that was cut off may have it yet
            time.sleep(0.01)
        ground.start_anew(kill=False)

    if not is_gone:
        ground.has_no_tokens()
        cut = Cut(cut.frame, 2, cut.when)
    before_it_asks(monkeypatch, ends)
    connection = ground.connect(cut)
    add(connection, "plain")
    connection.enqueue("other", b"beside")
    came = cut.frame == "answer"
    for _ in range(2):
        with nullcontext() if came and ground.has_journal else pytest.raises(OutcomeUnknown):
            connection.commit()
    assert (ground.taken("plain"), ground.taken("other")) == ((BODIES, [b"beside"]) if came else ([], []))
    connection.close()


@pytest.mark.parametrize("cut", LOST, ids=str)
@pytest.mark.parametrize("ground", ["NONE"], indirect=True)
def test_a_token_that_went_before_saves_the_next_one(ground: Ground, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was to take was too old when it was committed: that it has come is known, that it has not is not."""
    before_it_asks(monkeypatch, lambda: ground.start_anew(kill=False))
    connection = ground.connect(Cut(cut.frame, 5, cut.when))
    add(connection, "plain")
    connection.commit()
    assert len(ground.taken(TOKENS)) == 1
    add(connection, "plain")
    came = cut.frame == "answer"
    with nullcontext() if came else pytest.raises(OutcomeUnknown):
        connection.commit()
    assert ground.taken("plain") == BODIES * (1 + came)
    connection.close()


def test_a_token_makes_room_for_the_next_one(ground: Ground) -> None:
    """The queue has a limit of as many as there are clients."""
    with xaqueue.connect(ground.server.url) as other:
        other.define(TOKENS, max_messages=1)
    with ground.connect(Cut("request", 100, "before")) as connection:
        for _ in range(3):
            add(connection, "plain")
            connection.commit()
            connection._manager._renew_at = 0.0  # type: ignore[attr-defined]
    assert ground.taken("plain") == 3 * BODIES


@pytest.mark.parametrize("ground", ["NONE"], indirect=True)
def test_where_no_token_can_be_left_work_goes_on(ground: Ground) -> None:
    with xaqueue.connect(ground.server.url) as other:
        other.define(TOKENS, max_messages=1)
        other.enqueue(TOKENS, b"in the way")
        other.commit()
        connection = xaqueue.connect(ground.server.url, resend=True)
        for _ in range(2):
            add(connection, "plain")
            connection.commit()
            assert ground.taken("plain") == BODIES
        connection.close()
        assert [message.body for message in other.browse(TOKENS)] == [b"in the way"]


@pytest.mark.parametrize("ground", ["NONE"], indirect=True)
@pytest.mark.parametrize("restarts", [False, True])
def test_where_the_tokens_queue_goes_work_goes_on(ground: Ground, restarts: bool) -> None:
    """As it does without one."""
    with ground.connect(Cut("request", 100, "before")) as connection:
        for tokens in (1, 0, 0):
            add(connection, "plain")
            connection.commit()
            assert ground.taken("plain") == BODIES
            assert (connection._manager._token is not None) == tokens  # type: ignore[attr-defined]
            if tokens and restarts:
                ground.has_no_tokens()
            elif tokens:
                ground.taken(TOKENS)
                with xaqueue.connect(ground.server.url) as other:
                    other.undefine(TOKENS)


@pytest.mark.parametrize("ground", ["NONE"], indirect=True)
@pytest.mark.parametrize("cut", [Cut("request", number, "before") for number in (100, 5, 6)], ids=str)
def test_a_close_waits_for_no_server_that_is_away(ground: Ground, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it, or in the middle of what takes its token away."""
    connection = ground.connect(cut)
    add(connection, "plain")
    connection.commit()
    if cut.number == 100:
        ground.server.kill()
        ground.proxy.hang_up()
    with monkeypatch.context() as closing:
        closing.setattr(ResendingManager, "_connect", lambda _: pytest.fail("it connects again"))
        connection.close()
    connection.close()


@pytest.mark.parametrize("ground", ["NONE"], indirect=True)
def test_a_close_waits_for_no_server_that_hangs(ground: Ground) -> None:
    """An answer may take two minutes else."""
    connection, goes_on = ground.connect(Cut("request", 100, "before")), threading.Event()
    add(connection, "plain")
    connection.commit()
    ground.server.server.loop.call_soon_threadsafe(goes_on.wait, PATIENCE_S)
    connection.close()
    assert not goes_on.is_set()
    goes_on.set()


@pytest.mark.parametrize(
    "second", [Cut(*one) for one in product(("request", "answer"), range(2, 8), ("before",))], ids=str
)
@pytest.mark.parametrize("first", LOST, ids=str)
def test_what_is_lost_again_comes_once(
    ground: Ground, first: Cut, second: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told that it is unknown calls commit again, as ever."""

    def ends() -> None:
        ground.start_anew()
        ground.proxy.arm(second)

    before_it_asks(monkeypatch, ends)
    connection = ground.connect(first)
    add(connection, "plain")
    for _ in range(9):
        try:
            connection.commit()
        except ConnectionLost:
            continue
        break
    assert ground.taken("plain") == BODIES
    connection.close()


@pytest.mark.parametrize("cut", LOST, ids=str)
def test_a_server_that_is_away_for_long_tells_when_it_is_back(
    ground: Ground, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked of it before the same commit is called again."""
    xid, is_away, connects = xaqueue.Xid(7, b"between", b""), True, ResendingManager._connect

    def ends() -> None:
        with xaqueue.connect(ground.server.url) as other:
            other.tpc_begin(xid)
            other.enqueue("other", b"between")
            other.tpc_prepare()
        ground.start_anew()
        monkeypatch.setattr(ResendingManager, "_connect", connect)

    def connect(self: ResendingManager) -> None:
        if is_away:
            raise ConnectionLost("away")
        connects(self)

    before_it_asks(monkeypatch, ends)
    monkeypatch.setattr(ResendingManager, "_tries", lambda _: iter([None]))
    connection = ground.connect(cut)
    add(connection, "plain")
    for _ in range(5):
        with pytest.raises(OutcomeUnknown):
            connection.commit()
    is_away = False
    connection.tpc_commit(xid)
    connection.commit()
    assert (ground.taken("plain"), ground.taken("other")) == (BODIES, [b"between"])
    connection.close()


def test_who_takes_as_well_is_told(ground: Ground) -> None:
    with xaqueue.connect(ground.server.url) as other:
        other.enqueue("plain", b"0")
        other.commit()
    connection = ground.connect(Cut("answer", 5, "before"))
    assert connection.dequeue("plain") is not None
    add(connection, "plain")
    with pytest.raises(OutcomeUnknown):
        connection.commit()
    connection.commit()
    assert ground.taken("plain") == BODIES
    connection.close()
