"""What is shown before it is recorded: to the sessions of this owner, and to nobody else."""

from __future__ import annotations

import errno
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.crash_level import LAGGING, NONE, STRICT, Level, open_space
from support.crash_story import EMPTY, body_of, message_id
from support.forgetful import ForgetfulFileSystem
from support.journal_of import journal_log, journal_of
from support.patience import eventually
from support.served import ServerThread
from xaqueue.core.engine.journal_log import LAG_S
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.storage import group_commit
from xaqueue.core.storage.journal import Journal
from xaqueue.errors import InvalidArgument, RetryLater
from xaqueue.features.session import Session
from xaqueue.offline.reader import QueueReader
from xaqueue.rpc.server import scheduler
from xaqueue.xa import Flag
from xaqueue.xid import Xid

PATIENCE_S = 30.0


def opened(level: Level = LAGGING) -> tuple[Space, ForgetfulFileSystem]:
    fs = EMPTY.open()
    return open_space(fs, level), fs


def prepared(space: Space, number: int, size: int = 0) -> tuple[Session, Xid]:
    session, xid = Session(space), Xid(1, b"%d" % number, b"")
    session.start(xid)
    session.enqueue("a", body_of(number) + bytes(size), message_id=message_id(number))
    session.end(xid)
    session.prepare(xid)
    return session, xid


def put_late(space: Space, *numbers: int) -> None:
    for number in numbers:
        session, xid = prepared(space, number)
        session.commit(xid, Flag.LATE)


def test_it_makes_no_sync_and_is_taken_by_others_whose_own_sync_hardens_it() -> None:
    space, fs = opened()
    session, xid = prepared(space, 1)
    syncs = journal_of(space).journal.syncs
    session.commit(xid, Flag.LATE)
    assert journal_of(space).journal.syncs == syncs
    taker = Session(space)
    taker.start(Xid(1, b"taker", b""))
    message = taker.dequeue("a")
    assert message is not None
    taker.end(Xid(1, b"taker", b""))
    taker.commit(Xid(1, b"taker", b""), Flag.ONEPHASE)
    assert journal_of(space).journal.syncs == syncs + 1
    for tree in (fs.tree_after_kill(), *fs.trees_after_crash(limit=8)):
        again = open_space(tree.open(), LAGGING)
        assert not again.branches
        assert not len(again.queues["a"].index)


@pytest.mark.parametrize("level", [STRICT, NONE])
def test_without_a_journal_it_is_a_commit_as_any_other(level: Level) -> None:
    space, fs = opened(level)
    put_late(space, 1)
    assert len(open_space(fs.tree_after_kill().open(), level).queues["a"].index) == 1


def test_watermarks_and_readers_wait_for_the_record() -> None:
    """Also where another message of the queue is recorded meanwhile, by a step that was planned before."""
    space, _ = opened()
    put_late(space, 1)
    queue = space.queues["a"]
    assert (queue.shown, queue.published) == (1, 0)
    assert space.log.pending
    log = journal_log(space)
    assert log is not None
    with space.lock:
        log._publish([])  # a round that was under way
    assert queue.published == 0
    space.log.settle()
    assert (queue.shown, queue.published) == (1, 1)
    mark = layout.parse_watermark(space.fs.read(layout.watermark_path("a")))
    assert mark is not None
    assert mark.published == 1


def test_with_one_phase_it_has_no_meaning() -> None:
    space, _ = opened()
    session, xid = Session(space), Xid(1, b"x", b"")
    session.start(xid)
    session.enqueue("a", b"x")
    session.end(xid)
    with pytest.raises(InvalidArgument, match="LATE"):
        session.commit(xid, Flag.ONEPHASE | Flag.LATE)
    session.commit(xid, Flag.ONEPHASE)


def test_so_many_ride_and_the_next_one_makes_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MOST_DEFERRED", 3)
    space, _ = opened()
    branches = [prepared(space, number) for number in range(1, 6)]
    for session, xid in branches[:3]:
        session.commit(xid, Flag.LATE)
    assert len(journal_of(space).deferred) == 3
    for session, xid in branches[3:]:
        session.commit(xid, Flag.LATE)
    assert len(journal_of(space).deferred) == 1


def test_without_room_it_goes_on_being_shown_and_nothing_is_hardened_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space, fs = opened()
    sessions = [prepared(space, number) for number in (1, 2)]
    sessions[0][0].commit(sessions[0][1], Flag.LATE)
    log = journal_log(space)
    assert log is not None
    write, full = log.journal.write, [True]

    def refuse(*given: object) -> int:
        if full:
            raise OSError(errno.ENOSPC, "full")
        return write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(log.journal, "write", refuse)
    with pytest.raises(RetryLater):
        sessions[0][0].harden()
    with pytest.raises(RetryLater):
        sessions[1][0].commit(sessions[1][1])
    log.settle()
    assert log.followed < log.journal.position or not log.behind.changes
    assert len(space.queues["a"].index) == 1
    full.clear()
    sessions[1][0].commit(sessions[1][1])
    assert len(open_space(fs.tree_after_kill().open(), LAGGING).queues["a"].index) == 2


def test_who_waits_for_a_message_is_woken_and_a_moment_later_it_is_on_disk(tmp_path: Path) -> None:
    with xaqueue.connect(tmp_path, create=True) as one, xaqueue.connect(tmp_path) as other:
        found: list[object] = []
        waiting = threading.Thread(target=lambda: found.append(other.dequeue("a", wait_s=PATIENCE_S)))
        waiting.start()
        one.tpc_begin(one.xid(1, "x", ""))
        one.enqueue("a", b"1")
        one.enqueue("b", b"2")
        one.tpc_prepare()
        one.tpc_commit(late=True)
        waiting.join(PATIENCE_S)
        assert [getattr(message, "body", None) for message in found] == [b"1"]
        deadline = time.monotonic() + PATIENCE_S
        reader = QueueReader(tmp_path, "b", even_behind=True)
        while reader.watermark() != 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(list(reader.read(0, 1))) == 1


def test_what_is_shown_is_read_while_its_record_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory has its content no more, and its file is where the prepare has put it until the round is over."""
    writes, goes_on, write = threading.Event(), threading.Event(), Journal.write

    def wait(journal: Journal, *given: Any) -> int:
        writes.set()
        assert goes_on.wait(PATIENCE_S)
        return write(journal, *given)

    with xaqueue.connect(tmp_path, create=True) as one, xaqueue.connect(tmp_path) as other:
        one.tpc_begin(one.xid(1, "x", ""))
        one.enqueue("a", b"1")
        one.tpc_prepare()
        eventually(lambda: list((tmp_path / "prepared").iterdir()))
        time.sleep(2 * LAG_S)
        monkeypatch.setattr(Journal, "write", wait)
        one.tpc_commit(late=True)
        writing = threading.Thread(target=lambda: [one.enqueue("b", b"2"), one.commit()])
        writing.start()
        assert writes.wait(PATIENCE_S)
        found: list[object] = []
        reading = threading.Thread(target=lambda: found.append(other.dequeue("a")))
        reading.start()
        reading.join(0.1)
        goes_on.set()
        for thread in (writing, reading):
            thread.join(PATIENCE_S)
        assert [getattr(message, "body", None) for message in found] == [b"1"]
        other.commit()


def test_a_server_whose_slow_calls_are_all_taken_makes_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who settles waits for a round, and that needs a turn where slow calls are made."""
    write = Journal.write

    def slow(journal: Journal, *given: Any) -> int:
        time.sleep(0.015)
        return write(journal, *given)

    monkeypatch.setattr(scheduler, "SLOW_CALLS", 1)
    monkeypatch.setattr(Journal, "write", slow)
    directory = Path(tempfile.mkdtemp(prefix="xaq-"))  # a socket's path has 107 bytes at most
    xaqueue.connect(tmp_path, create=True).close()
    server = ServerThread(tmp_path, directory / "socket")
    url = server.url
    try:

        def commit(number: int) -> None:
            with xaqueue.connect(url) as connection:
                for turn in range(15):
                    connection.tpc_begin(connection.xid(1, f"{number}.{turn}", ""))
                    connection.enqueue("a", b"x")
                    connection.tpc_prepare()
                    connection.tpc_commit(late=True)

        def ask(_: int) -> None:
            with xaqueue.connect(url) as connection:
                for _ in range(15):
                    connection._manager.call("depths", ["a"])  # type: ignore[attr-defined]

        with ThreadPoolExecutor(6) as pool:
            calls = [*(pool.submit(commit, number) for number in range(3)), *(pool.submit(ask, n) for n in range(3))]
            for call in calls:
                call.result(PATIENCE_S)
    finally:
        server.stop()
        shutil.rmtree(directory)
