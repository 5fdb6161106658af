"""One participant hangs in whatever call, for as long as it likes: nobody else waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support import postgres
from support.patience import eventually
from support.tm_world import COMMITTED, ROLLED_BACK, Bank, World
from xaqueue import TransactionManager
from xaqueue.errors import Error, RolledBack
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.participant import INTERRUPTIONS, Participant
from xaqueue.tm.transaction import Transaction
from xaqueue.xa import Code

PATIENCE_S = 60.0
VERBS = ("cancel", "statement", "prepare", "commit", "rollback", "begin", "open", "recover", "close")


class Hanging:
    """Connections of a bank, of which one verb hangs; a statement of all is interrupted by ``cancel``."""

    def __init__(self, bank: Bank, verb: str = "") -> None:
        self.bank, self.verb = bank, verb
        self.hangs, self.goes_on = threading.Semaphore(0), threading.Event()

    def connect(self) -> Any:
        self.reach("open")
        return _Connection(self, self.bank.connect())

    def reach(self, verb: str) -> None:
        if verb == self.verb:
            self.hangs.release()
            assert self.goes_on.wait(10 * PATIENCE_S)


class _Connection:
    def __init__(self, party: Hanging, inner: Any) -> None:
        self._party, self._inner = party, inner
        self._woken = threading.Event()

    def __getattr__(self, name: str) -> Any:
        verb = name.removeprefix("tpc_")
        if verb in VERBS:
            self._party.reach(verb)
        return getattr(self._inner, name)

    def work(self) -> None:
        """A statement that waits for another transaction."""
        self._party.reach("statement")
        assert self._woken.wait(PATIENCE_S)
        raise OSError("cancelled")

    def cancel(self) -> None:
        self._party.reach("cancel")
        self._woken.set()


@pytest.fixture
def parties() -> Iterator[dict[str, Hanging]]:
    world = World()
    made = {name: Hanging(Bank(world, name)) for name in ("fine", "other", "stuck")}
    yield made
    for party in made.values():
        party.goes_on.set()


def manager(log_dir: Path, parties: dict[str, Hanging]) -> TransactionManager:
    return TransactionManager(
        log_dir,
        {name: Participant(party.connect, parallel=True) for name, party in parties.items()},
        recovery_interval_s=3600,
        timeout_s=PATIENCE_S,
    )


def wait_in(tx: Transaction, name: str) -> None:
    connection = tx[name]
    tx._deadline = time.monotonic()
    connection.work()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        with suppress(Error, OSError, psycopg.Error):  # what became of it is of no concern here
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_waits_for_a_participant_that_hangs(tmp_path: Path, parties: dict[str, Hanging], verb: str) -> None:
    """Timeouts are kept, statements are interrupted, transactions commit, and the decision log gets its checkpoint."""
    stuck = parties["stuck"]
    tm = manager(tmp_path / "log", parties)

    def hang() -> None:
        with tm.transaction("other", "stuck") as tx:
            if verb in ("cancel", "statement"):
                wait_in(tx, "stuck")
            if verb in ("rollback", "close"):
                tx["stuck"].bank.faults["prepare"] = ["refused"]

    stuck.verb = verb
    threads = [in_thread(tm.recover if verb == "recover" else hang) for _ in range(3)]
    assert stuck.hangs.acquire(timeout=PATIENCE_S), "it was never called"

    log = tm._coordinator.log
    assert isinstance(log, DecisionLog)
    switched = log._journal.position
    log._covered -= 1  # a segment is full: the log wants a checkpoint
    with pytest.raises(RolledBack) as raised, tm.transaction("fine", "other") as tx:
        wait_in(tx, "fine")
    assert raised.value.code is Code.XA_RBTIMEOUT
    with tm.transaction("fine", "other") as tx:
        pass
    assert COMMITTED in parties["fine"].bank.branches.values()
    eventually(lambda: not log.wants_checkpoint and log._journal.checkpoint >= switched)
    stuck.goes_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    tm.close()


def test_interruptions_that_hang_are_bounded(tmp_path: Path, parties: dict[str, Hanging]) -> None:
    """Each has a thread, and a participant that answers none of them does not get more and more."""
    stuck = parties["stuck"]
    stuck.verb = "cancel"
    tm = manager(tmp_path / "log", parties)
    open_ones = [tm.transaction("stuck", independent=True).__enter__() for _ in range(INTERRUPTIONS + 3)]
    for tx in open_ones:
        tx._deadline = time.monotonic()
    for _ in range(5):
        for tx in open_ones:
            tx.interrupt_if_expired()
    named = [thread for thread in threading.enumerate() if thread.name == "xaqueue-interrupt-stuck"]
    assert len(named) == INTERRUPTIONS
    stuck.goes_on.set()
    for tx in open_ones:
        with pytest.raises(RolledBack):
            tx.commit()
    for thread in named:
        thread.join(PATIENCE_S)
    assert set(stuck.bank.branches.values()) <= {ROLLED_BACK, "active"}, "nothing that expired was prepared"
    tm.close()


def test_an_interruption_that_does_not_hold_the_interpreter_is_preferred(
    tmp_path: Path, parties: dict[str, Hanging]
) -> None:
    called: list[float] = []
    fine = parties["fine"]

    class Safe(_Connection):
        def cancel(self) -> None:
            raise AssertionError("it holds the interpreter")

        def cancel_safe(self, *, timeout: float) -> None:
            called.append(timeout)
            self._woken.set()

    tm = TransactionManager(tmp_path / "log", {"fine": lambda: Safe(fine, fine.bank.connect())})
    with pytest.raises(RolledBack), tm.transaction("fine") as tx:
        wait_in(tx, "fine")
    assert called
    assert 0 < called[0] < PATIENCE_S
    tm.close()


def test_a_database_that_hangs_leaves_the_process_running(tmp_path: Path, parties: dict[str, Hanging]) -> None:
    """psycopg's own ``cancel`` stops every thread of the process until the server answers."""
    if not psycopg.capabilities.has_cancel_safe():
        pytest.skip("libpq 17 is wanted, as in psycopg[binary]")
    with postgres.started() as server, postgres.database(server) as dsn:
        assert server._process is not None
        postmaster = server._process.pid
        participants = {"ledger": lambda: psycopg.connect(dsn), "fine": parties["fine"].connect}
        tm = TransactionManager(tmp_path / "log", participants, recovery_interval_s=3600)
        begun, stopped = threading.Event(), threading.Event()

        def hang() -> None:
            with tm.transaction("ledger") as tx:
                connection = tx["ledger"]
                begun.set()
                assert stopped.wait(PATIENCE_S)
                tx._deadline = time.monotonic()
                connection.execute("select pg_sleep(600)")

        thread = in_thread(hang)
        assert begun.wait(PATIENCE_S)
        os.kill(postmaster, signal.SIGSTOP)
        waker = subprocess.Popen(["/bin/sh", "-c", f"sleep {PATIENCE_S}; kill -CONT {postmaster}"])
        try:
            stopped.set()
            eventually(lambda: any(one.name == "xaqueue-interrupt-ledger" for one in threading.enumerate()))
            with pytest.raises(RolledBack), tm.transaction("fine") as tx:
                wait_in(tx, "fine")  # it is interrupted while the interruption of the other one hangs
            assert waker.poll() is None, "every thread stood still until the server went on"
        finally:
            waker.kill()
            waker.wait()
            os.kill(postmaster, signal.SIGCONT)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        tm.close()


class Interrupted(BaseException):
    """As Ctrl-C, and as what a program's own alarm raises."""


class Freezing(psycopg.Connection[Any]):
    """Its backend stands still right behind its BEGIN."""

    def tpc_begin(self, xid: Any) -> None:
        super().tpc_begin(xid)
        os.kill(self.info.backend_pid, signal.SIGSTOP)


def test_a_database_that_freezes_behind_its_begin_can_be_interrupted(tmp_path: Path, dsn: str) -> None:
    """What the transaction manager says to it there gets no answer, and the thread hears of signals all the same."""
    backends: list[int] = []

    def connect() -> Any:
        connection = Freezing.connect(dsn)
        backends.append(connection.info.backend_pid)
        return connection

    def interrupted(*_: object) -> None:
        raise Interrupted

    def thaw() -> None:
        os.kill(backends[-1], signal.SIGCONT)

    before, goes_on = signal.signal(signal.SIGUSR2, interrupted), threading.Timer(PATIENCE_S / 2, thaw)
    try:
        with TransactionManager(tmp_path / "log", {"ledger": connect}, recovery_interval_s=3600) as tm:
            tm.recover()
            goes_on.start()
            with subprocess.Popen(["/bin/sh", "-c", f"sleep 2; kill -USR2 {os.getpid()}"]), pytest.raises(Interrupted):
                tm.transaction("ledger").__enter__()
            assert goes_on.is_alive(), "the thread stood still until the server went on"
            assert tm._coordinator.live() == []
    finally:
        goes_on.cancel()
        thaw()
        signal.signal(signal.SIGUSR2, before)
