"""Ways in which a transaction could be torn apart unnoticed, or never be over: each of these was found in a review."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import support.tm_last_scene as last
from support.tm_scene import Scene
from support.tm_world import COMMITTED, PREPARED, ROLLED_BACK, Bank, BankConnection, ProgrammingError, Rig, World

import xaqueue
from xaqueue import TransactionManager
from xaqueue.cli.tm_config import ParticipantConfig, opener
from xaqueue.demo import postgres
from xaqueue.errors import RolledBack
from xaqueue.space.owner import open
from xaqueue.tm import manager as manager_of
from xaqueue.tm import marker
from xaqueue.tm.coordinator import PARALLEL_CALLS
from xaqueue.tm.participants import Participant
from xaqueue.tm.standing import State
from xaqueue.tm.steps import Step
from xaqueue.torture.forgetful import Crashed
from xaqueue.xa import Outcome

PATIENCE_S = 60.0


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[last.Scene]:
    made = last.Scene(tmp_path)
    yield made
    for connection in made.opened:
        connection.close()


# Acknowledged without proof


def test_a_participant_that_lists_nothing_is_told_all_the_same(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEP 249 lets tpc_recover return an empty list where a database cannot tell."""
    gtrid = scene.die_at(Step.COMMITTED, "a")
    monkeypatch.setattr(BankConnection, "tpc_recover", lambda self: [])
    scene.reboot().recover()
    assert scene.world.states(gtrid) == {"a": COMMITTED, "b": COMMITTED}


def test_a_listed_branch_is_not_gone_because_of_some_programming_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some drivers have ProgrammingError for whatever goes wrong; then the decision was forgotten and undone."""

    def closed(self: Any, xid: Any = None) -> None:
        raise ProgrammingError("the connection is closed")

    gtrid = scene.die_at(Step.COMMITTED, "a")
    rig = scene.reboot()
    with monkeypatch.context() as patch:
        patch.setattr(BankConnection, "tpc_commit", closed)
        assert not rig.recover()["b"].complete
    rig.recover()
    assert scene.world.states(gtrid) == {"a": COMMITTED, "b": COMMITTED}


# The last resource


def test_over_where_all_that_had_to_answer_acted_by_themselves(files: last.Scene) -> None:
    rig = files.boot((Step.DONE, ""))
    files.a.faults = {"commit": ["hand-rollback"]}
    with contextlib.suppress(Crashed):
        files.transact(rig, "one", "a")
    rig = files.boot()
    rig.recover()
    (left,) = rig.coordinator.in_doubt()
    assert left.state is State.HEURISTIC
    rig.log.forget(left.gtrid)
    assert rig.coordinator.in_doubt() == []


def test_a_successor_that_has_ruled_it_out_is_not_overtaken(files: last.Scene) -> None:
    """Closed in the middle of a commit that hangs, and opened again: the row that kept it out is gone by then."""
    rig = files.boot()
    successor: list[Rig] = []

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT_LAST and not successor:
            rig.log.close()
            successor.append(Rig(files.fs, {"a": files.a.connect, last.FILES: files.connect}, last=last.FILES))
            for _ in range(2):
                successor[0].recover()

    rig.coordinator.step = on_step
    tx = rig.transaction("a", last.FILES).__enter__()
    with pytest.raises(RolledBack):
        tx.commit()
    assert (files.states(), files.rows) == ({ROLLED_BACK}, [])
    assert successor[0].coordinator.in_doubt() == []


@pytest.mark.parametrize("sqlstate", ["08007", "08P01", "40003"])
def test_a_pooler_that_lost_the_database_has_not_said_no(files: last.Scene, sqlstate: str) -> None:
    class Lost(sqlite3.OperationalError):
        pass

    class Pooled(sqlite3.Connection):
        def commit(self) -> None:
            told = self.in_transaction and self.execute(f"select count(*) from {marker.TABLE}").fetchone()[0]
            super().commit()
            if told:
                error = Lost("server conn crashed?")
                error.sqlstate = sqlstate  # type: ignore[attr-defined]
                raise error

    rig = files.boot()
    rig.recover()

    def connect() -> sqlite3.Connection:
        files.opened.append(sqlite3.connect(files.path, timeout=0.05, factory=Pooled))
        return files.opened[-1]

    rig.coordinator.sources[last.FILES].participant = Participant(connect)
    assert files.transact(rig, "one", "a", "b") is Outcome.COMMITTED
    assert (files.files, files.states()) == (["one"], {COMMITTED})


def test_another_database_does_not_decide(files: last.Scene, tmp_path: Path) -> None:
    """A path as seen from elsewhere: sqlite3 makes the file, and no row is in it."""
    gtrid = files.die(Step.COMMITTED_LAST, last.FILES)
    right, files.path = files.path, tmp_path / "elsewhere.db"
    with contextlib.closing(sqlite3.connect(files.path)) as connection:
        connection.execute("create table files (name text primary key)")
    rig = files.boot()
    assert "no such table" in rig.recover()[last.FILES].error
    with pytest.raises(RolledBack, match="no such table"):
        files.transact(rig, "two", "a")
    rig.recover()
    assert files.a.branches[next(xid for xid in files.a.branches if xid[1] == gtrid.decode())] == PREPARED
    files.path = right
    files.boot().recover()
    assert set(files.world.states(gtrid).values()) == {COMMITTED}


def test_it_is_rolled_back_by_its_own_thread(files: last.Scene, tmp_path: Path) -> None:
    """sqlite3 refuses another one, and the database stays locked for as long as somebody has the connection."""
    parties: dict[str, Any] = {
        "a": side_by_side(files.a.connect),
        last.FILES: lambda: sqlite3.connect(files.path, timeout=0.05),
    }
    with TransactionManager(tmp_path / "log", parties, last_resource=last.FILES) as manager:
        tx = manager.transaction("a", last.FILES).__enter__()
        kept = tx[last.FILES]
        kept.execute("insert into files values ('one')")
        tx.rollback()
        with contextlib.closing(sqlite3.connect(files.path, timeout=PATIENCE_S)) as other, other:
            other.execute("insert into files values ('two')")
    assert files.files == ["two"]
    kept.close()


def test_an_operators_command_makes_no_database(tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        opener(ParticipantConfig("files", "sqlite", str(path)))()
    assert not path.exists()


# Interrupted


def test_interrupted_behind_a_commit_in_one_phase_it_is_not_called_rolled_back(files: last.Scene) -> None:
    files.a.votes_read_only = True
    rig = files.boot()

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMITTED:
            raise KeyboardInterrupt

    rig.coordinator.step = on_step
    tx = rig.transaction("a", last.FILES).__enter__()
    tx[last.FILES].execute("insert into files values ('one')")
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert files.files == ["one"]
    assert tx.outcome is rig.coordinator.outcome(tx.gtrid) is Outcome.UNKNOWN


def test_a_connection_that_was_interrupted_is_not_used_again() -> None:
    """The interruption may arrive late, in the next transaction's statement."""
    bank = Bank(World(), "a")

    class Cancelled(BankConnection):
        def cancel(self) -> None:
            pass

    scene = Scene()
    rig = Rig(scene.fs, {"a": lambda: Cancelled(bank)})
    tx = rig.transaction("a").__enter__()
    connection = tx["a"]
    tx._is_expired = lambda: True  # type: ignore[method-assign]
    tx.interrupt_if_expired()
    tx.rollback()
    with rig.transaction("a") as tx:
        assert tx["a"] is not connection
    assert connection.closed


# Threads, and children


def test_close_does_not_wait_for_an_interruption_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg's cancel connects, and nobody may be there."""
    hangs, goes_on = threading.Event(), threading.Event()
    bank = Bank(World(), "a")

    class Hanging(BankConnection):
        def cancel(self) -> None:
            hangs.set()
            assert goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(manager_of, "CLOSE_PATIENCE_S", 0.1)
    manager = TransactionManager(tmp_path / "log", {"a": lambda: Hanging(bank)})
    tx = manager.transaction("a").__enter__()
    tx._deadline = 0.0
    assert hangs.wait(PATIENCE_S)
    closing = threading.Thread(target=manager.close)
    closing.start()
    closing.join(PATIENCE_S)
    closed = not closing.is_alive()
    goes_on.set()
    closing.join()
    assert closed


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("error", [None, OSError("in the child")])
def test_a_child_that_leaves_the_parents_transaction_ends_nothing(tmp_path: Path, error: OSError | None) -> None:
    """Its connections are the parent's: what it said there would be said in the parent's name."""
    read, write = os.pipe()
    bank = Bank(World(), "a")

    class Heard(BankConnection):
        def _call(self, verb: str, *args: Any, **options: Any) -> None:
            os.write(write, f"{os.getpid() == parent} {verb}\n".encode())
            super()._call(verb, *args, **options)

    parent = os.getpid()
    with (
        TransactionManager(tmp_path / "log", {"a": lambda: Heard(bank)}, recovery_interval_s=PATIENCE_S) as manager,
        manager.transaction("a") as tx,
    ):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                tx.__exit__(type(error) if error else None, error, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    os.close(write)
    told = b"".join(iter(lambda: os.read(read, 4096), b""))
    os.close(read)
    assert [line for line in told.decode().splitlines() if line.startswith("False")] == []
    assert tx.outcome is Outcome.COMMITTED


# Spaces


def test_threads_that_open_a_space_for_the_first_time_make_it_once(tmp_path: Path) -> None:
    """As recovery and the first transaction do."""
    failed: list[Exception] = []
    for number in range(5):
        begin = threading.Barrier(4)

        def connect(begin: threading.Barrier = begin, place: Path = tmp_path / str(number)) -> None:
            begin.wait(PATIENCE_S)
            try:
                xaqueue.connect(place, create=True).close()
            except xaqueue.Error as error:
                failed.append(error)

        threads = [threading.Thread(target=connect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_recovery_opens_a_fenced_space_again(tmp_path: Path) -> None:
    """Kept connections held it open, and what is fenced stays so until its last connection is closed."""
    place = tmp_path / "space"
    fenced: list[str] = []
    parties = {"a": lambda: xaqueue.connect(place, create=True), "b": Bank(World(), "b").connect}
    manager = TransactionManager(tmp_path / "log", parties, recovery_interval_s=0.05)

    def fence(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT and name == "a" and not fenced:
            fenced.append(name)
            open._attached[place.resolve()].space.barrier.fail(OSError(5, "Input/output error"))

    with manager:
        with manager.transaction("a", "b") as one, manager.transaction("a") as other:  # two connections
            other["a"].enqueue("q", b"0")
            one["a"].enqueue("q", b"1")
        manager._coordinator.step = fence
        with manager.transaction("a", "b") as tx:
            tx["a"].enqueue("q", b"2")
        assert tx.pending == ("a",)
        deadline = time.monotonic() + PATIENCE_S
        while manager.in_doubt():
            assert time.monotonic() < deadline, manager.in_doubt()
            time.sleep(0.01)


# Side by side


class Slow(BankConnection):
    """Prepares when it may."""

    goes_on: threading.Event
    prepares: threading.Semaphore

    def tpc_prepare(self) -> bool | None:
        self.prepares.release()
        assert self.goes_on.wait(PATIENCE_S)
        return super().tpc_prepare()


def side_by_side(connect: Any) -> Participant:
    return Participant(connect, parallel=True)


def test_transactions_that_hang_hold_up_no_others(tmp_path: Path) -> None:
    world, goes_on, prepares = World(), threading.Event(), threading.Semaphore(0)
    slow = type("Stuck", (Slow,), {"goes_on": goes_on, "prepares": prepares})
    found = {name: Bank(world, name) for name in "abcz"}
    parties = {name: side_by_side(found[name].connect) for name in "abc"}
    parties["z"] = side_by_side(lambda: slow(found["z"]))
    with TransactionManager(tmp_path / "log", parties) as manager:

        def transact(*names: str) -> None:
            with manager.transaction(*names):
                pass

        hanging = [threading.Thread(target=transact, args=("a", "z")) for _ in range(PARALLEL_CALLS + 1)]
        for thread in hanging:
            thread.start()
        try:
            assert all(prepares.acquire(timeout=PATIENCE_S) for _ in hanging)
            transact("b", "c")
        finally:
            goes_on.set()
            for thread in hanging:
                thread.join()


def test_the_end_of_the_manager_rolls_back_those_that_work_side_by_side(tmp_path: Path) -> None:
    found = {name: Bank(World(), name) for name in "ab"}
    manager = TransactionManager(tmp_path / "log", {name: side_by_side(bank.connect) for name, bank in found.items()})
    with manager.transaction("a", "b"):
        pass
    left = manager.transaction("a", "b").__enter__()
    manager.close()
    with pytest.raises(RolledBack, match="closed"):
        left.commit()
    assert left.outcome is Outcome.ROLLED_BACK
    assert found["a"].branches.popitem()[1] == found["b"].branches.popitem()[1] == ROLLED_BACK


def test_a_thread_that_outlives_the_main_one_goes_on(tmp_path: Path) -> None:
    told = f"""
import threading, xaqueue
places = {{n: {str(tmp_path)!r} + "/" + n for n in "ab"}}
manager = xaqueue.TransactionManager({str(tmp_path / "log")!r},
    {{n: (lambda place=place: xaqueue.connect(place, create=True, sync="NONE")) for n, place in places.items()}})
def work():
    threading.main_thread().join()
    with manager.transaction() as tx:
        for name in places:
            tx[name].enqueue("q", b"x")
    manager.close()
    print("committed")
threading.Thread(target=work).start()
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "committed\n", done.stderr


# PostgreSQL


def test_the_table_is_made_by_whoever_comes_first(dsn: str) -> None:
    """Two that make it at once: PostgreSQL refuses one of them, although it was to be made where it is missing."""
    errors: list[BaseException] = []
    for _ in range(5):
        begin = threading.Barrier(4)

        def make(begin: threading.Barrier = begin) -> None:
            with psycopg.connect(dsn) as connection:
                begin.wait(PATIENCE_S)
                try:
                    marker.create(connection)
                except psycopg.Error as error:
                    errors.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with psycopg.connect(dsn) as connection:
            connection.execute(f"drop table {marker.TABLE}")
    assert errors == []


def test_the_table_may_be_made_by_somebody_else(dsn: str) -> None:
    """For a role that may make none."""
    with psycopg.connect(dsn) as connection:
        marker.create(connection)
        connection.execute("create role clerk login")
        connection.execute(f"grant all on {marker.TABLE} to clerk")
    try:
        with psycopg.connect(dsn, user="clerk") as connection:
            marker.create(connection)
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute(f"revoke all on {marker.TABLE} from clerk")
            connection.execute("drop role clerk")


def test_a_server_whose_last_one_was_killed_is_waited_for() -> None:
    """The lock file of the killed one says that it is ready."""
    if not any(postgres.directories()):
        pytest.skip(postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        for _ in range(2):
            server = postgres.Server(Path(name), keep=True, settings=postgres.HASTY)
            try:
                server.wait()
                psycopg.connect(server.dsn).close()
            finally:
                assert server._process is not None
                os.killpg(server._process.pid, signal.SIGKILL)
                server._process.wait()
                server.stop()
