"""Sessions do not depend on each other: not on one that waits, that does not read, that is slow, or that is killed."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.contract_connection import block_files
from support.journal_of import journal_log, show_writes
from support.patience import eventually
from support.raw_client import MIGRATE, ONEPHASE, PATIENCE_S, SUSPEND, RawClient, UnknownXid
from support.raw_work import Worker, judge, stock
from support.served import Process, ServerThread
from xaqueue.offline.check import check

SYNC = ("NONE", "JOURNAL")


@pytest.fixture(params=SYNC)
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    xaqueue.connect(tmp_path / "space", create=True, sync=request.param).close()
    made = ServerThread(tmp_path / "space", tmp_path / "socket", sync=request.param)
    yield made
    made.stop()


def fill(client: RawClient, most_bytes: int) -> int:
    """Sends requests and reads no answer until the server reads no more; how many bytes that took."""
    client.socket.setblocking(False)
    request, sent = client.packed("echo", bytes(60_000)), 0
    while sent < most_bytes:
        if not select.select([], [client.socket], [], 0.25)[1]:
            break
        sent += client.socket.send(request[sent % len(request) :])
    client.socket.settimeout(PATIENCE_S)
    return sent


def commits(path: Path, name: int, count: int) -> int:
    """So many two-phase transactions, every answer awaited."""
    with RawClient(path) as client:
        for number in range(count):
            xid = (1, b"%d.%d" % (name, number), b"")
            client.call("start", xid)
            client.call("enqueue", "out", b"x")
            client.call("end", xid)
            assert client.call("prepare", xid) == "ok"
            client.call("commit", xid)
    return count


def test_nobody_waits_for_another_session(served: ServerThread) -> None:
    """1,000 requests of others are answered while one waits, one does not read, one is silent in mid-frame."""
    with (
        RawClient(served.path) as waiting,
        RawClient(served.path) as deaf,
        RawClient(served.path) as halfway,
        RawClient(served.path) as holder,
        RawClient(served.path) as blocked,
    ):
        waiting.call("start", (1, b"waiting", b""))
        asked = waiting.ask("dequeue", "late", {"wait_s": PATIENCE_S})
        fill(deaf, 2**28)
        started = halfway.packed("echo", b"whole")
        halfway.send(started[:-3])
        holder.call("start", (1, b"held", b""))
        holder.call("enqueue", "out", b"never")
        blocked.call("start", (1, b"blocked", b""))
        behind = [blocked.ask("dequeue", "late", {"wait_s": PATIENCE_S}), blocked.ask("echo", "behind")]
        with ThreadPoolExecutor(4) as threads:
            done = list(threads.map(lambda name: commits(served.path, name, 50), range(4)))
        assert sum(done) * 5 == 1000
        for number in range(2):
            holder.call("enqueue", "late", b"%d" % number)
        holder.call("end", (1, b"held", b""))
        holder.call("commit", (1, b"held", b""), ONEPHASE)
        assert sorted([waiting.result(asked)[4], blocked.result(behind[0])[4]]) == [b"0", b"1"]
        assert blocked.result(behind[1]) == "behind"
        halfway.send(started[-3:])
        assert halfway.answer()[3] == b"whole"
        assert deaf.answer()[3] == bytes(60_000)


def test_a_busy_branch_holds_up_only_those_who_want_it(served: ServerThread) -> None:
    """Two phases of one branch from two sessions, pipelined, while others work."""
    with RawClient(served.path) as one, RawClient(served.path) as other:
        for number in range(50):
            xid = (1, b"%d" % number, b"")
            asked = [one.ask("start", xid), one.ask("enqueue", "out", b"x"), one.ask("end", xid)]
            for sent in asked:
                one.result(sent)
            prepared, done = one.ask("prepare", xid), other.ask("rollback", xid)
            try:
                other.result(done)
            except UnknownXid:
                raise AssertionError("the branch was there from its end to its rollback") from None
            answer = one.answer()
            assert answer[1] == prepared
            assert answer[2] is None or answer[2]["name"] == "XAER_NOTA"
        assert one.call("browse", "out") == [None, []]


def test_a_client_that_is_not_served_yet_holds_no_room(tmp_path: Path) -> None:
    """What 16 sessions send and never read stays in their sockets and not in the server."""
    stock(tmp_path / "space", 1, "NONE")
    with Process(tmp_path / "space", "--sync", "NONE") as process:
        with RawClient(process.path) as first:
            fill(first, 2**28)
            before = process.resident_bytes
            clients = [RawClient(process.path) for _ in range(16)]
            sent = sum(fill(client, 2**26) for client in clients)
            assert sent < 16 * 2**25, "the server reads on without end"
            assert process.resident_bytes - before < 16 * 2**23
            for client in clients:
                client.reset()
        with RawClient(process.path) as last:
            for _ in range(1000):
                assert last.call("echo", 1) == 1
        assert process.end(signal.SIGTERM) == 0


def test_sessions_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    stock(tmp_path / "space", 1, "NONE")
    with Process(tmp_path / "space", "--sync", "NONE") as process:

        def come_and_go(times: int) -> None:
            for number in range(times):
                client = RawClient(process.path)
                client.ride("start", (1, b"%d" % number, b""))
                client.ride("enqueue", "out", bytes(10_000))
                client.call("browse", "in")
                (client.reset if number % 2 else client.close)()

        come_and_go(300)
        before = process.resident_bytes
        come_and_go(1500)
        assert process.resident_bytes - before < 8 * 2**20
        with RawClient(process.path) as last:
            assert last.call("browse", "out") == [None, []]
        assert process.end(signal.SIGTERM) == 0


def states(path: Path) -> dict[str, RawClient]:
    """A session in every state that one can be in."""
    clients = {
        name: RawClient(path)
        for name in ("new", "active", "suspended", "migrating", "idle", "prepared", "failed", "waiting", "halfway")
    }
    for name, client in clients.items():
        xid = (1, name.encode(), b"")
        if name == "new":
            continue
        client.call("start", xid)
        if name == "waiting":
            client.ask("dequeue", "late", {"wait_s": PATIENCE_S})
            continue
        client.call("enqueue", "out", name.encode())
        assert client.call("dequeue", "in") is not None
        if name in ("suspended", "migrating"):
            client.call("end", xid, SUSPEND | (MIGRATE if name == "migrating" else 0))
        elif name in ("idle", "prepared"):
            client.call("end", xid)
            if name == "prepared":
                client.call("prepare", xid)
        elif name == "failed":
            client.ride("enqueue", "out", "no bytes")
        elif name == "halfway":
            client.send(client.packed("commit", xid, ONEPHASE)[:-2])
    clients["deaf"] = RawClient(path)
    fill(clients["deaf"], 2**28)
    return clients


@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("ends", ["stop", "kill", "loss"])
def test_a_session_in_every_state_when_it_ends(tmp_path: Path, ends: str, sync: str) -> None:
    """However it ends only what was prepared is left, and what others held can be taken."""
    root = tmp_path / "space"
    stock(root, 20, sync)
    with Process(root, "--sync", sync) as process:
        clients = states(process.path)
        if ends == "stop":
            clients["deaf"].close()  # which would be waited for
        if ends == "loss":
            for client in clients.values():
                client.reset()
            with xaqueue.connect(f"xaq+unix://{process.path}") as connection:
                for name in ("idle", "migrating"):  # they belong to no session: their transaction manager ends them
                    if name == "migrating":
                        connection.tpc_begin(connection.xid(1, name, ""), xaqueue.xa.Flag.RESUME)
                        connection.tpc_rollback()
                    else:
                        connection.tpc_rollback(connection.xid(1, name, ""))
                eventually(lambda: left(connection) == 19)
                assert connection.tpc_recover() == [connection.xid(1, "prepared", "")]
        code = process.end(signal.SIGKILL if ends == "kill" else signal.SIGTERM)
        assert code == (-signal.SIGKILL if ends == "kill" else 0)
        for client in clients.values():
            client.close()
        with xaqueue.connect(root, sync=sync, server_s=0) as connection:
            assert left(connection) == 19
            assert connection.tpc_recover() == [connection.xid(1, "prepared", "")]
            connection.tpc_commit(connection.xid(1, "prepared", ""))
            assert [message.body for message in connection.browse("out")] == [b"prepared"]
        assert block_files(root) == []


def left(connection: xaqueue.Connection) -> int:
    """How many messages can be taken."""
    count = 0
    while connection.dequeue("in") is not None:
        count += 1
    connection.rollback()
    return count


@pytest.mark.parametrize("sync", SYNC)
def test_stopped_amid_the_work_of_many(tmp_path: Path, sync: str) -> None:
    """SIGTERM while 16 sessions work: what was acknowledged is there, the rest is in doubt or undone."""
    root = tmp_path / "space"
    stock(root, 5000, sync)
    with Process(root, "--sync", sync) as process:
        workers = [Worker(process.path, number, "stop", 5000 // 16, dies=0.0) for number in range(16)]
        for worker in workers:
            worker.start()
        eventually(lambda: all(len(worker.transactions) > 3 for worker in workers))
        assert process.end(signal.SIGTERM) == 0
        for worker in workers:
            worker.join(PATIENCE_S)
            assert worker.failure is None
        with xaqueue.connect(root, sync=sync) as connection:
            verdict = judge(connection, [one for worker in workers for one in worker.transactions], 5000)
        assert verdict.faults == []
        assert list(check(root)) == []


def test_the_first_call_of_a_session_may_wait_while_more_comes(served: ServerThread) -> None:
    """It goes on when what it waits for is there, and not when the socket brings something."""

    def first_words(name: int) -> list[object]:
        wrong: list[object] = []
        for number in range(30):
            xid = (1, b"%d.%d" % (name, number), b"")
            with RawClient(served.path) as client:
                calls = [client.packed("start", xid), client.packed("enqueue", "out", b"x"), client.packed("end", xid)]
                client.send(b"".join([*calls, client.packed("commit", xid, ONEPHASE)]))
                for _ in range(5):
                    client.send(client.packed("echo"))
                wrong += [error for _, _, error, _ in (client.answer() for _ in range(9)) if error is not None]
        return wrong

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(first_words, range(8))) == [[]] * 8
    with RawClient(served.path) as client:
        assert len(client.call("browse", "out")[1]) == 240


def test_a_session_that_hangs_up_in_a_branch_leaves_a_line(
    served: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(served.path) as client:
        client.call("start", (1, b"half", b""))
        client.socket.shutdown(socket.SHUT_WR)
        eventually(lambda: "branch 1.aGFsZg., in which it was, is rolled back" in caplog.text)


@pytest.mark.parametrize("served", ["JOURNAL"], indirect=True)
def test_behind_a_sync_that_hangs_each_is_answered_in_its_order(
    served: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop does nothing else meanwhile; nothing that was asked is lost, and what was to be synced is so."""
    log = journal_log(served.space)
    assert log is not None
    hangs, go_on = threading.Event(), threading.Event()
    files = log.journal._fs
    write_synced = files.write_synced

    def sync(*arguments: Any) -> None:
        hangs.set()
        assert go_on.wait(PATIENCE_S)
        write_synced(*arguments)

    def work(client: RawClient, name: bytes) -> tuple[int, bytes, bytes]:
        xid = (1, name, b"")
        for call in (("start", xid), ("enqueue", "out", name), ("end", xid)):
            client.call(*call)
        return xid

    with RawClient(served.path) as first, RawClient(served.path) as second, RawClient(served.path) as third:
        first.call("prepare", work(first, b"before"))
        leading, waiting = work(second, b"leading"), work(first, b"waiting")
        show_writes(monkeypatch, log.journal)
        monkeypatch.setattr(files, "write_synced", sync)
        asked = [second.ask("prepare", leading), second.ask("echo", "behind"), second.ask("commit", leading)]
        assert hangs.wait(PATIENCE_S)
        behind = [first.ask("prepare", waiting), first.ask("echo", "behind")]
        xid = (1, b"third", b"")
        asked_too = [third.ask("echo", 1), third.ask("start", xid), third.ask("enqueue", "out", b"third")]
        asked_too += [third.ask("end", xid), third.ask("rollback", xid), third.ask("browse", "no such")]
        assert not select.select([first.socket, second.socket, third.socket], [], [], 0)[0]
        go_on.set()
        answers = [third.answer() for _ in asked_too]
        assert [answer[1] for answer in answers] == asked_too
        assert [answer[2] for answer in answers[:5]] == [None] * 5
        assert [second.answer()[1] for _ in asked] == asked
        assert [first.answer()[1] for _ in behind] == behind
        first.call("commit", waiting)
        assert [message[4] for message in third.call("browse", "out")[1]] == [b"leading", b"waiting"]
