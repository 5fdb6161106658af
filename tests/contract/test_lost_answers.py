"""A connection that is cut anywhere leaves no doubt that cannot be asked about, and nothing is done twice or by halves.

A proxy cuts before, within and after every request and every answer of a transaction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple, cast

import pytest

import xaqueue
from support.cutting_proxy import Cut, CuttingProxy
from support.patience import eventually
from support.served import PATIENCE_S, ServerThread
from xaqueue.connection import Connection
from xaqueue.core.engine import memory
from xaqueue.errors import ConnectionLost, OutcomeUnknown, ProtocolError, RolledBack, UnknownXid
from xaqueue.rpc.client import ahead
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.sockets import ClientSocket
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

X = Xid(1, b"gtrid", b"bqual")
UNFINISHED = {Outcome.UNKNOWN, Outcome.ROLLED_BACK}

Step = tuple[str, Callable[[Connection], object]]


def work(connection: Connection) -> None:
    message = connection.dequeue("orders")  # request 2
    assert message is not None
    connection.enqueue("replies", b"done: " + message.body)
    connection.enqueue("replies", b"and more")


TWO_PHASE: list[Step] = [  # request 1 is the greeting
    ("begin", lambda connection: connection.tpc_begin(X)),
    ("work", work),
    ("prepare", lambda connection: connection.tpc_prepare()),  # 3
    ("commit", lambda connection: connection.tpc_commit()),  # 4
]
TWO_PHASE_BACK: list[Step] = [*TWO_PHASE[:3], ("rollback", lambda connection: connection.tpc_rollback())]
ACTIVE_BACK: list[Step] = [*TWO_PHASE[:2], ("rollback", lambda connection: connection.tpc_rollback())]
ONE_PHASE: list[Step] = [("work", work), ("commit", lambda connection: connection.commit())]
ONE_PHASE_BACK: list[Step] = [("work", work), ("rollback", lambda connection: connection.rollback())]


def cuts(requests: int) -> list[Cut]:
    points = product(("request", "answer"), range(1, requests + 1), ("before", "within", "after"))
    return [Cut(*point) for point in points]


class Ground(NamedTuple):
    """A server with one message to consume, and a proxy before it."""

    server: ServerThread
    proxy: CuttingProxy
    connections: list[Connection]

    def connect(self, cut: Cut | None = None) -> Connection:
        self.proxy.arm(cut)
        self.connections.append(xaqueue.connect(self.proxy.url))
        return self.connections[-1]

    def stands(self) -> tuple[list[bytes], list[bytes], list[Xid]]:
        """What is in orders and can be taken, what is in replies, and what is in doubt."""
        with xaqueue.connect(self.server.url) as other:
            taken = []
            while (message := other.dequeue("orders")) is not None:
                taken.append(message.body)
            other.rollback()
            return taken, [message.body for message in other.browse("replies")], other.tpc_recover()

    def quiet(self, sessions: int = 0) -> None:
        """Returns once the server has seen that all others are gone: then an outcome is final."""
        eventually(lambda: self.server.call(lambda: len(self.server.server.sessions)) <= sessions)


def consumed(connection: Connection) -> Iterator[bytes]:
    """What a consumer has committed, who comes back after a loss and asks what he is not told."""
    consumer = connection.consume("many", wait_s=0)
    while True:
        try:
            message = next(consumer)
        except ConnectionLost:
            connection.rollback()
            consumer = connection.consume("many", wait_s=0)
            continue
        except StopIteration:
            return
        try:
            connection.commit()
        except OutcomeUnknown:
            with suppress(RolledBack):
                connection.commit()
                yield message.body
        except RolledBack:
            consumer = connection.consume("many", wait_s=0)
        else:
            yield message.body


UNDONE: tuple[list[bytes], list[bytes], list[Xid]] = ([b"order"], [], [])
DONE: tuple[list[bytes], list[bytes], list[Xid]] = ([], [b"done: order", b"and more"], [])


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with xaqueue.connect(tmp_path / "space", create=True, sync="NONE") as connection:
        connection.enqueue("orders", b"order")
        connection.commit()
    server = ServerThread(tmp_path / "space", tmp_path / "socket", sync="NONE")
    proxy = CuttingProxy(tmp_path / "proxy", server.path)
    made = Ground(server, proxy, [])
    yield made
    for connection in made.connections:
        connection.close()
    proxy.close()
    server.stop()


def run(ground: Ground, connection: Connection, steps: list[Step], cut: Cut) -> tuple[str, BaseException | None]:
    """The step that failed, and how. A cut behind an answer is seen by the client before its next step."""
    first = stream_of(connection)
    behind = (cut.frame, cut.when) == ("answer", "after")
    assert not behind or cut.number > 1 or ground.proxy.has_cut.wait(PATIENCE_S)
    greeting: Step = ("greeting", stream_of)
    for name, step in [greeting, *steps]:
        try:
            step(connection)
        except (ConnectionLost, RolledBack) as error:
            return name, error
        if behind and ground.proxy.has_cut.is_set():
            hear_of_cut(connection, first)
    return "", None


def hear_of_cut(connection: Connection, first: ClientSocket | None) -> None:
    eventually(lambda: not (stream_of(connection) is first and is_connected(connection)))


def stream_of(connection: Connection) -> ClientSocket | None:
    manager = connection._manager
    assert isinstance(manager, RemoteManager)
    return manager._socket


def is_connected(connection: Connection) -> bool:
    stream = stream_of(connection)
    return stream is not None and not stream.has_said(0)


def expected(cut: Cut, verbs: list[str]) -> tuple[str, type[BaseException] | None]:
    """Which step is told of the loss, and how; ``verbs`` are those that requests 2, 3 and so on stand for."""
    if cut.number == 1:
        return "", None  # it connects again
    told = cut.number - 2
    if (cut.frame, cut.when) != ("answer", "after"):
        return verbs[told], OutcomeUnknown if verbs[told] != "work" else ConnectionLost
    if verbs[told] == "work":
        return verbs[told + 1], RolledBack
    return "", None  # the next verb depends on no session


def check_told(told: tuple[str, BaseException | None], cut: Cut, verbs: list[str]) -> None:
    where, how = expected(cut, verbs)
    if (where, how) == ("rollback", RolledBack):
        where, how = "", None  # which is what was asked for
    step, error = told
    assert (step, type(error) if error is not None else None) == (where, how)
    if isinstance(error, RolledBack):
        assert error.code is Code.XA_RBCOMMFAIL


def goes_on(connection: Connection) -> None:
    """Between transactions it connects again by itself."""
    connection.enqueue("others", b"another")
    connection.commit()
    message = connection.dequeue("others")
    assert message is not None
    assert message.body == b"another"
    connection.commit()
    connection.close()


def finish_two_phase(ground: Ground, connection: Connection, step: str, cut: Cut) -> bool:
    """Does what an application or its transaction manager does then; returns whether the work is done."""
    outcome = connection.outcome(X)
    if step == "work":
        assert outcome in UNFINISHED
        connection.tpc_rollback()
        return False
    if step == "prepare":
        certain = {Outcome.IN_DOUBT} if cut.frame == "answer" else UNFINISHED
        assert outcome in (certain if cut.when != "after" else {Outcome.IN_DOUBT, *UNFINISHED})
        connection.tpc_rollback()
        return False
    assert step == "commit"
    if outcome is Outcome.COMMITTED:
        assert cut != Cut("request", 4, "before")
        with pytest.raises(UnknownXid):  # it is finished
            connection.tpc_commit()
    else:
        assert outcome is Outcome.IN_DOUBT
        assert cut.frame == "request"
        connection.tpc_commit()
    assert connection.outcome(X) is Outcome.COMMITTED
    return True


@pytest.mark.parametrize("cut", cuts(4), ids=str)
def test_two_phase_commit(ground: Ground, cut: Cut) -> None:
    connection = ground.connect(cut)
    told = run(ground, connection, TWO_PHASE, cut)
    check_told(told, cut, ["work", "prepare", "commit"])
    ground.quiet(sessions=1 if is_connected(connection) else 0)
    step, error = told
    if isinstance(error, OutcomeUnknown):
        assert error.xid == X
    done = True
    if isinstance(error, RolledBack):
        done = False
    elif step:
        done = finish_two_phase(ground, connection, step, cut)
    assert ground.stands() == (DONE if done else UNDONE)
    goes_on(connection)


BRANCH_ONE_PHASE: list[Step] = [*TWO_PHASE[:2], ("commit", lambda connection: connection.tpc_commit())]
STORIES = {
    "two phases": (TWO_PHASE, 4),
    "two phases back": (TWO_PHASE_BACK, 4),
    "branch back": (ACTIVE_BACK, 3),
    "branch in one phase": (BRANCH_ONE_PHASE, 3),
    "local": (ONE_PHASE, 3),
    "local back": (ONE_PHASE_BACK, 3),
}
"""Each verb whose answer may be lost, with the number of its request."""
POINTS = [(name, cut) for name, (_, requests) in STORIES.items() for cut in cuts(requests) if cut.number > 1]


def until_known(call: Callable[[], object]) -> object:
    """What a call says once it knows: its result, or its error."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except OutcomeUnknown:
            assert time.monotonic() < deadline
        except (RolledBack, UnknownXid) as error:
            return error


def take_up(connection: Connection, step: str, again: Callable[[Connection], object], way: str) -> bool:
    """Does what OutcomeUnknown invites to, and checks that all answers agree; returns whether the work is done."""
    if step == "prepare":
        if way == "ask" and connection.outcome(X) is Outcome.IN_DOUBT:
            connection.tpc_commit()
            return True
        if way == "rollback":
            assert not isinstance(until_known(connection.tpc_rollback), RolledBack)
            return False
        answer = until_known(lambda: again(connection) if way == "again" else connection.tpc_commit())
        if isinstance(answer, RolledBack):
            assert not connection.in_transaction
            assert connection.outcome(X) in UNFINISHED
            return False
        if way == "again":
            assert answer is True
            assert connection.outcome(X) is Outcome.IN_DOUBT
            connection.tpc_commit()
        return True
    answer = until_known(lambda: again(connection))
    if step == "rollback":
        return False
    return not isinstance(answer, RolledBack)


@pytest.mark.parametrize("way", ["again", "ask", "commit", "rollback"])
@pytest.mark.parametrize(("story", "cut"), POINTS, ids=lambda value: str(value))
def test_what_a_lost_answer_invites_to_is_right(ground: Ground, story: str, cut: Cut, way: str) -> None:
    """The same call again asks and says what is true, a commit commits what outcome() calls in doubt; at once, while
    the lost session may be at it still."""
    steps, _ = STORIES[story]
    connection = ground.connect(cut)
    step, error = run(ground, connection, steps, cut)
    if isinstance(error, OutcomeUnknown):
        done = take_up(connection, step, dict(steps)[step], way)
    elif error is not None:
        if connection.in_transaction:
            (connection.tpc_rollback if steps[0][0] == "begin" else connection.rollback)()
        done = False
    else:
        done = steps[-1][0] == "commit"
    ground.quiet(sessions=1 if is_connected(connection) else 0)
    assert ground.stands() == (DONE if done else UNDONE)
    goes_on(connection)


@pytest.mark.parametrize("cut", [cut for cut in cuts(3) if cut.number == 3], ids=str)
def test_a_read_only_prepare_whose_answer_is_lost(ground: Ground, cut: Cut) -> None:
    connection = ground.connect(cut)
    first = stream_of(connection)
    connection.tpc_begin(X)
    assert connection.dequeue("nothing") is None
    try:
        assert connection.tpc_prepare() is False
    except OutcomeUnknown:
        answer = until_known(connection.tpc_prepare)
        assert answer is False or isinstance(answer, RolledBack)
    if connection.in_transaction:
        connection.tpc_commit()
    assert ground.proxy.has_cut.wait(PATIENCE_S)
    hear_of_cut(connection, first)
    goes_on(connection)


@pytest.mark.parametrize("verb", ["prepare", "commit", "rollback"])
def test_what_gets_to_the_server_when_its_client_has_gone_on_is_never_read(ground: Ground, verb: str) -> None:
    connection = ground.connect(Cut("request", 1, "late"))
    connection.tpc_begin(X)
    connection.enqueue("replies", b"late")
    if verb == "commit":
        with pytest.raises(OutcomeUnknown):
            connection.tpc_commit()
        assert connection.outcome(X) is not Outcome.COMMITTED
    else:
        with pytest.raises(OutcomeUnknown):
            connection.tpc_prepare()
        if verb == "prepare":
            with pytest.raises(RolledBack):
                connection.tpc_prepare()
        else:
            connection.tpc_rollback()
    ground.proxy.let_go.set()
    connection.close()
    ground.quiet()
    assert ground.stands() == UNDONE


@pytest.mark.parametrize("earlier", ["committed at once", "committed", "rolled back"])
@pytest.mark.parametrize("verb", ["prepare", "commit"])
def test_an_earlier_life_of_the_xid_answers_for_nothing(ground: Ground, verb: str, earlier: str) -> None:
    """This one has never got to the server: it is no vote, and nothing was committed."""
    with ground.connect() as first:
        first.tpc_begin(X)
        first.enqueue("replies", b"first")
        if earlier != "committed at once":
            first.tpc_prepare()
        (first.tpc_rollback if earlier == "rolled back" else first.tpc_commit)()
    connection = ground.connect(Cut("request", 2, "early"))
    connection.tpc_begin(X)
    connection.enqueue("replies", b"second")
    call = connection.tpc_prepare if verb == "prepare" else connection.tpc_commit
    with pytest.raises(OutcomeUnknown):
        call()
    with pytest.raises(RolledBack):
        call()
    _, replies, in_doubt = ground.stands()
    assert (replies, in_doubt) == ([] if earlier == "rolled back" else [b"first"], [])


@pytest.mark.parametrize("steps", [ACTIVE_BACK, ONE_PHASE_BACK], ids=["branch", "local"])
@pytest.mark.parametrize("cut", cuts(3), ids=str)
def test_rollback_of_active_work(ground: Ground, cut: Cut, steps: list[Step]) -> None:
    connection = ground.connect(cut)
    told = run(ground, connection, steps, cut)
    check_told(told, cut, ["work", "rollback"])
    ground.quiet(sessions=1 if is_connected(connection) else 0)
    if told[0]:
        steps[-1][1](connection)  # again, or at last: it is no error
    assert ground.stands() == UNDONE
    goes_on(connection)


@pytest.mark.parametrize("cut", cuts(3), ids=str)
def test_one_phase_commit(ground: Ground, cut: Cut) -> None:
    connection = ground.connect(cut)
    told = run(ground, connection, ONE_PHASE, cut)
    check_told(told, cut, ["work", "commit"])
    step, error = told
    ground.quiet(sessions=1 if is_connected(connection) else 0)
    done = not step
    if isinstance(error, OutcomeUnknown):
        assert error.xid is not None
        outcome = connection.outcome(error.xid)
        assert outcome in {Outcome.COMMITTED, *UNFINISHED}
        done = outcome is Outcome.COMMITTED
        assert done or cut.frame == "request"
        assert not done or (cut.frame, cut.when) not in {("request", "before"), ("request", "within")}
    elif type(error) is ConnectionLost:
        with pytest.raises(RolledBack):
            connection.commit()
    assert ground.stands() == (DONE if done else UNDONE)
    goes_on(connection)


def test_work_in_a_lost_transaction_is_refused(ground: Ground) -> None:
    """Whatever is called, a new session never goes on with the work of an old one."""
    connection = ground.connect(Cut("answer", 2, "after"))
    connection.tpc_begin(X)
    work(connection)
    ground.quiet()
    assert list(connection.browse("replies")) == []  # on a new session
    assert is_connected(connection)
    for call in (
        lambda: connection.enqueue("replies", b"late"),
        lambda: connection.dequeue("orders"),
        connection.flush,
        connection.tpc_prepare,
    ):
        with pytest.raises(RolledBack) as told:
            call()
        assert told.value.code is Code.XA_RBCOMMFAIL
    with pytest.raises(ProtocolError):
        connection.tpc_prepare()
    assert ground.stands() == UNDONE
    goes_on(connection)


def test_a_lost_connection_between_transactions_goes_unnoticed(ground: Ground) -> None:
    calls: list[Callable[[Connection], object]] = [
        lambda connection: connection.tpc_recover(),
        lambda connection: connection.outcome(X),
        lambda connection: list(connection.browse("orders")),
        lambda connection: connection.flush(),
        lambda connection: connection.commit(),
        goes_on,
    ]
    for number, call in enumerate(calls, start=1):
        connection = ground.connect(Cut("answer", 1, "after"))
        assert ground.proxy.has_cut.wait(PATIENCE_S)
        ground.quiet()
        call(connection)
        connection.close()
        assert ground.proxy.connections >= number
    with ground.connect(Cut("answer", 2, "after")) as connection:
        assert connection.outcome(X) is Outcome.UNKNOWN
        ground.quiet()
        with pytest.raises(UnknownXid):
            connection.tpc_commit(X)
    assert ground.stands() == UNDONE


def test_browsing_says_that_its_connection_was_lost(ground: Ground) -> None:
    with xaqueue.connect(ground.server.url) as other:
        for _ in range(2500):
            other.enqueue("replies", b"")
        other.commit()
    with ground.connect(Cut("answer", 3, "within")) as connection:
        found = connection.browse("replies")
        with pytest.raises(ConnectionLost):
            list(found)
        assert len(list(connection.browse("replies"))) == 2500


def test_a_server_that_starts_again_is_found_again(ground: Ground) -> None:
    connection = xaqueue.connect(ground.server.url)
    connection.tpc_begin(X)
    work(connection)
    connection.tpc_prepare()
    ground.server.stop()
    again = ServerThread(ground.server.root, ground.server.path, sync="NONE")
    connection.tpc_commit()
    connection.close()
    again.stop()


@pytest.mark.parametrize("two_phases", [False, True])
def test_what_no_server_has_heard_of_is_sent_to_the_next_one(ground: Ground, two_phases: bool) -> None:
    """Enqueues of a transaction are sent with its commit: a connection that was lost before has none of them."""
    connection = ground.connect()
    if two_phases:
        connection.tpc_begin(X)
    ids = [connection.enqueue("replies", body) for body in (b"1", b"2")]
    ids += connection.enqueue_many("replies", [b"3"])
    first = stream_of(connection)
    ground.proxy.hang_up()
    hear_of_cut(connection, first)
    ground.quiet()
    if two_phases:
        assert connection.tpc_prepare() is True
        connection.tpc_commit()
    else:
        connection.commit()
    with xaqueue.connect(ground.server.url) as other:
        assert [(message.message_id, message.body) for message in other.browse("replies")] == list(
            zip(ids, (b"1", b"2", b"3"), strict=True)
        )
    goes_on(connection)
    assert ground.stands()[2] == []


@pytest.mark.parametrize("sent", ["asked", "large", "rolled back", "lost again"])
def test_what_a_server_has_heard_of_is_not_sent_again(ground: Ground, sent: str) -> None:
    connection = ground.connect()
    connection.enqueue("replies", b"1")
    if sent == "asked":
        assert connection.dequeue("others") is None
    elif sent == "large":
        connection.enqueue("replies", b"x" * 70_000)
    first = stream_of(connection)
    ground.proxy.arm(Cut("request", 2, "after") if sent == "lost again" else None)
    ground.proxy.hang_up()
    hear_of_cut(connection, first)
    ground.quiet()
    if sent == "rolled back":
        connection.rollback()
    elif sent == "lost again":
        with pytest.raises(OutcomeUnknown):
            connection.commit()
        ground.quiet()
        with pytest.raises((RolledBack, OutcomeUnknown)) if not ground.stands()[1] else nullcontext():
            connection.commit()
    else:
        with pytest.raises(RolledBack) as refused:
            connection.commit()
        assert refused.value.code is Code.XA_RBCOMMFAIL
    ground.quiet(sessions=1)
    found = ground.stands()[1]
    assert found == [] or (sent == "lost again" and found == [b"1"])


LAST = {
    Cut("request", 2, "early"): False,
    Cut("request", 2, "before"): False,
    Cut("answer", 2, "before"): True,
}
"""Whether a commit in one phase is done that was cut there."""


@pytest.mark.parametrize("cut", LAST, ids=str)
@pytest.mark.parametrize("two_phases", [False, True])
def test_a_session_s_last_branch_is_known_for_long(
    ground: Ground, two_phases: bool, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others are over since; and where not even its start came, it is known to be undone."""
    monkeypatch.setattr(memory, "FINISHED_LIMIT", 2)
    connection = ground.connect(cut)
    if two_phases:
        connection.tpc_begin(X)
    connection.enqueue("replies", b"answer")
    if two_phases:  # call by call, as other clients send it
        connection.tpc_end()
        manager = cast(RemoteManager, connection._manager)
        manager._pipeline_deferred(manager._branch)
    end = connection.tpc_prepare if two_phases else connection.commit
    with pytest.raises(OutcomeUnknown):
        end()
    ground.quiet()
    with xaqueue.connect(ground.server.url) as other:
        for _ in range(3):
            other.enqueue("others", b"another")
            other.commit()
    done = LAST[cut] or (two_phases and cut.when != "early")  # what came of it, and was ended, is prepared now
    if done:
        end()
    else:
        with pytest.raises(RolledBack):
            end()
    if two_phases and done:
        connection.tpc_commit()
    assert not connection.in_transaction
    assert ground.stands() == ([b"order"], [b"answer"] if done else [], [])


@pytest.mark.parametrize("cut", cuts(9), ids=str)
def test_a_consumer_that_asks_ahead_takes_each_message_once(
    ground: Ground, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests 2 and 3 are the first dequeue and its commit, 4 is behind that, 5 and 6 go out together again."""
    monkeypatch.setattr(ahead, "PROMPT_S", math.inf)
    with xaqueue.connect(ground.server.url) as filler:
        filler.enqueue_many("many", [b"%d" % number for number in range(5)])
    connection = ground.connect(cut)
    bodies = list(consumed(connection))
    connection.close()
    ground.quiet()
    with xaqueue.connect(ground.server.url) as other:
        left = [message.body for message in other.dequeue_many("many", 9)]
        other.rollback()
    assert sorted(bodies + left) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(left) <= 2  # what a lost session had may be free too late for a consumer that does not wait
    assert ground.proxy.has_cut.is_set()
