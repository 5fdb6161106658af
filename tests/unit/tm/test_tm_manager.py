"""The whole transaction manager, with its threads, over queue spaces and over participants that misbehave."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.patience import eventually
from support.tm_world import COMMITTED, PREPARED, ROLLED_BACK, Bank, World
from xaqueue import Connection, TransactionManager
from xaqueue.core.engine import heuristics
from xaqueue.core.owner import open
from xaqueue.errors import (
    HeuristicHazard,
    HeuristicMixed,
    InterfaceError,
    InvalidArgument,
    ProtocolError,
    RolledBack,
    UnknownXid,
)
from xaqueue.tm import manager as managers
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.log_directory import view_log
from xaqueue.tm.records import TransactionState
from xaqueue.tm.transaction import Transaction
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

PATIENCE_S = 60.0


class Spaces:
    """Two queue spaces, which stay open."""

    def __init__(self, place: Path) -> None:
        self.paths = {"a": place / "a", "b": place / "b"}
        self.kept = {name: xaqueue.connect(path, create=True, sync="NONE") for name, path in self.paths.items()}

    @property
    def participants(self) -> dict[str, Callable[[], Connection]]:
        return {name: lambda path=path: xaqueue.connect(path) for name, path in self.paths.items()}  # type: ignore[misc]

    def messages(self, name: str, queue: str = "q") -> list[bytes]:
        return [message.body for message in self.kept[name].browse(queue)]

    def in_doubt(self) -> list[Xid]:
        return [xid for connection in self.kept.values() for xid in connection.tpc_recover()]

    def close(self) -> None:
        for connection in self.kept.values():
            connection.close()


@pytest.fixture
def spaces(tmp_path: Path) -> Any:
    made = Spaces(tmp_path)
    yield made
    made.close()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "log"


def banks(*names: str) -> dict[str, Bank]:
    world = World()
    return {name: Bank(world, name) for name in names}


def over(log_dir: Path, found: dict[str, Bank], **options: Any) -> TransactionManager:
    return TransactionManager(log_dir, {name: bank.connect for name, bank in found.items()}, **options)


# Over queue spaces


def test_two_queues_commit_together_or_not_at_all(spaces: Spaces, log_dir: Path) -> None:
    with TransactionManager(log_dir, spaces.participants) as tm:
        with tm.transaction() as tx:
            tx["a"].enqueue("q", b"one")
            tx["b"].enqueue("q", b"one")
        assert tm.outcome(tx.gtrid) is Outcome.COMMITTED
        with pytest.raises(ZeroDivisionError), tm.transaction("a", "b") as tx:
            fail_after(tx["a"].enqueue("q", b"two"), tx["b"].enqueue("q", b"two"))
        assert tm.outcome(tx.gtrid) is Outcome.ROLLED_BACK
        assert (spaces.messages("a"), spaces.messages("b")) == ([b"one"], [b"one"])
        assert tm.in_doubt() == []


def put_in_both(tx: Transaction) -> None:
    tx["a"].enqueue("q", b"one")
    tx["b"].enqueue("q", b"one")


def fail_after(*done: object) -> None:
    raise ZeroDivisionError(done)


def test_a_message_moves_from_one_space_to_another(spaces: Spaces, log_dir: Path) -> None:
    with TransactionManager(log_dir, spaces.participants) as tm:
        with tm.transaction() as tx:
            tx["a"].enqueue("q", b"one")
        with tm.transaction() as tx:
            message = tx["a"].dequeue("q")
            tx["b"].enqueue("q", message.body)
        assert (spaces.messages("a"), spaces.messages("b")) == ([], [b"one"])
        with tm.transaction() as tx:
            assert tx["a"].dequeue("q") is None, "which is a read-only vote"
            tx["b"].enqueue("q", b"two")
        assert spaces.messages("b") == [b"one", b"two"]


def test_a_decorated_function_runs_in_a_transaction_of_its_own_or_in_the_callers(spaces: Spaces, log_dir: Path) -> None:
    with TransactionManager(log_dir, spaces.participants) as tm:

        @tm.transactional
        def put(name: str, body: bytes, *, tx: Transaction) -> Transaction:
            tx[name].enqueue("q", body)
            return tx

        @tm.transactional("a", timeout_s=30.0)
        def put_both(body: bytes, *, fails: bool = False, tx: Transaction) -> bytes:
            assert put("a", body, tx=tx) is tx
            assert put("b", body, tx=tx) is tx
            if fails:
                raise ZeroDivisionError
            return tx.gtrid

        assert put("a", b"one").outcome is Outcome.COMMITTED
        assert tm.outcome(put_both(b"two")) is Outcome.COMMITTED
        with pytest.raises(ZeroDivisionError):
            put_both(b"three", fails=True)
        assert put_both.__name__ == "put_both"
    assert (spaces.messages("a"), spaces.messages("b")) == ([b"one", b"two"], [b"two"])


def test_what_an_operator_decided_is_told_kept_and_forgotten(spaces: Spaces, log_dir: Path) -> None:
    space = open._attached[spaces.paths["a"].resolve()].space

    def decide(step: Step, gtrid: bytes, name: str) -> None:
        if (step, name) == (Step.COMMIT, "a"):
            (xid,) = spaces.kept["a"].tpc_recover()
            heuristics.decide(space, xid, False, "somebody")

    with TransactionManager(log_dir, spaces.participants, on_step=decide) as tm:
        with pytest.raises(HeuristicMixed) as raised, tm.transaction("a", "b") as tx:
            put_in_both(tx)
        assert raised.value.parties == {"a": "rolled back by itself", "b": "committed"}
        assert (spaces.messages("a"), spaces.messages("b")) == ([], [b"one"])
        (kept,) = tm.in_doubt()
        assert (kept.gtrid, kept.state, kept.participants) == (tx.gtrid, TransactionState.HEURISTIC, ("a",))
    with TransactionManager(log_dir, spaces.participants) as tm:
        assert tm.recover(PATIENCE_S).complete
        assert [one.gtrid for one in tm.in_doubt()] == [tx.gtrid]
        assert [xid.gtrid for xid in spaces.in_doubt()] == [tx.gtrid]
        (forgotten,) = tm.forget(tx.gtrid.decode())
        assert (forgotten.participant, forgotten.decision) == ("a", Outcome.COMMITTED)
        assert (tm.in_doubt(), spaces.in_doubt()) == ([], [])
        with pytest.raises(UnknownXid, match="no heuristics"):
            tm.forget(tx.gtrid)
        assert tm.recover(PATIENCE_S).complete
        assert tm.in_doubt() == []


def test_two_transaction_managers_and_their_recovery_share_the_same_spaces(
    spaces: Spaces, log_dir: Path, tmp_path: Path
) -> None:
    """Live transactions of both, side by side with the recovery of both, which leaves them all alone."""
    errors: list[BaseException] = []

    def work(tm: TransactionManager, who: int) -> None:
        try:
            for number in range(15):
                with tm.transaction() as tx:
                    tx["a"].enqueue("q", b"%d %d" % (who, number))
                    tx["b"].enqueue("q", b"%d %d" % (who, number))
        except BaseException as error:
            errors.append(error)

    with (
        TransactionManager(log_dir, spaces.participants, recovery_interval_s=0.002) as one,
        TransactionManager(tmp_path / "other", spaces.participants, recovery_interval_s=0.002) as other,
    ):
        assert one.node != other.node
        threads = [threading.Thread(target=work, args=((one, other)[who % 2], who)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        eventually(lambda: not one.in_doubt() and not other.in_doubt())
    assert Counter(spaces.messages("a")) == Counter(spaces.messages("b"))
    assert len(set(spaces.messages("a"))) == len(spaces.messages("a")) == 60
    assert spaces.in_doubt() == []


def test_a_log_goes_on_in_another_place(log_dir: Path, tmp_path: Path) -> None:
    """A machine that goes takes no decisions with it, as long as its log is moved."""
    found = banks("a", "b")
    found["b"].faults = {"commit": ["request lost"]}

    def go(step: Step, gtrid: bytes, name: str) -> None:
        found["b"].is_down = found["b"].is_down or (step, name) == (Step.COMMITTED, "b")

    with over(log_dir, found, on_step=go) as tm, tm.transaction("a", "b"):
        node = tm.node
    shutil.move(log_dir, tmp_path / "moved")
    found["b"].is_down = False
    with over(tmp_path / "moved", found) as tm:
        assert tm.node == node
        eventually(lambda: not found["b"].prepared())
    assert set(found["b"].branches.values()) == {COMMITTED}


# In the background


def test_who_was_lost_in_the_second_phase_is_told_without_being_asked_for(log_dir: Path) -> None:
    found = banks("a", "b")
    with over(log_dir, found) as tm:
        for _ in range(3):
            found["a"].faults = {"commit": ["request lost"] * 3}
            with tm.transaction("a", "b") as tx:
                pass
            assert tx.outcome is Outcome.COMMITTED
        eventually(lambda: not tm.in_doubt())
        assert set(found["a"].branches.values()) == {COMMITTED}
        eventually(lambda: not view_log(log_dir).open)  # and what is done is recorded as done


def test_a_participant_that_is_down_delays_only_its_own(log_dir: Path) -> None:
    """Others did not start as long as one transaction could not be recovered."""
    found = banks("a", "b", "c")
    found["b"].faults = {"commit": ["request lost"]}
    found["c"].faults = {"commit": ["request lost"]}

    def go(step: Step, gtrid: bytes, name: str) -> None:
        if (step, name) == (Step.COMMITTED, "c"):
            found["b"].is_down = found["c"].is_down = True

    with over(log_dir, found, on_step=go) as tm, tm.transaction("a", "b", "c"):
        pass
    hanging = threading.Event()

    def hang() -> Any:
        assert hanging.wait(PATIENCE_S)
        return found["c"].connect()

    try:
        found["b"].is_down = found["c"].is_down = False
        with TransactionManager(log_dir, {"a": found["a"].connect, "b": found["b"].connect, "c": hang}) as tm:
            eventually(lambda: not found["b"].prepared())
            with tm.transaction("a", "b") as tx:
                pass
            assert tx.outcome is Outcome.COMMITTED
            (left,) = tm.in_doubt()
            assert left.outstanding == ("c",)
            report = tm.recover(0.01)
            assert not report.complete
            assert "not answered" in report.scans["c"].error
            hanging.set()
            eventually(lambda: not tm.in_doubt())
            assert tm.recover(PATIENCE_S).complete
    finally:
        hanging.set()
    assert set(found["c"].branches.values()) == {COMMITTED}


def test_what_an_earlier_boot_left_is_rolled_back_at_the_start(log_dir: Path) -> None:
    found = banks("a", "b")

    def die(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.DECIDE:
            raise KeyboardInterrupt

    tm = over(log_dir, found, on_step=die)
    for resolver in tm._recoveries.values():
        resolver.stop(PATIENCE_S)  # so that nobody comes before the next boot does
    with pytest.raises(KeyboardInterrupt), tm.transaction("a", "b"):
        pass
    tm.close()
    states = {state for bank in found.values() for state in bank.branches.values()}
    assert states <= {PREPARED, ROLLED_BACK}
    with over(log_dir, found):
        eventually(lambda: not found["a"].prepared() and not found["b"].prepared())
    assert {state for bank in found.values() for state in bank.branches.values()} == {ROLLED_BACK}


def test_a_hazard_is_forgotten_although_its_participant_knows_nothing_of_it(log_dir: Path) -> None:
    found = banks("a", "b")
    found["a"].faults = {"commit": ["gone"]}
    with over(log_dir, found) as tm:
        with pytest.raises(HeuristicHazard), tm.transaction("a", "b") as tx:
            pass
        found["a"].is_down = True
        with pytest.raises(Exception, match="down"):
            tm.forget(tx.gtrid)
        assert len(tm.in_doubt()) == 1
        found["a"].is_down = False
        assert len(tm.forget(tx.gtrid)) == 1
        assert tm.in_doubt() == []


def test_what_is_not_acknowledged_everywhere_is_not_forgotten(log_dir: Path) -> None:
    found = banks("a", "b")
    found["a"].faults = {"commit": ["hand-rollback"]}
    found["b"].faults = {"commit": ["request lost"]}

    def go(step: Step, gtrid: bytes, name: str) -> None:
        if (step, name) == (Step.COMMITTED, "b"):
            found["b"].is_down = True

    with over(log_dir, found, on_step=go) as tm:
        with pytest.raises(HeuristicMixed), tm.transaction("a", "b") as tx:
            pass
        with pytest.raises(ProtocolError, match="not over"):
            tm.forget(tx.gtrid)
        assert found["a"].by_hand, "its participant was not made to forget it, either"
        tm._coordinator.step = lambda *_: None
        found["b"].is_down = False
        eventually(lambda: not found["b"].prepared())
        eventually(lambda: tm.in_doubt()[0].state is TransactionState.HEURISTIC)
        assert tm.forget(tx.gtrid)
        assert not found["a"].by_hand


def test_an_expired_statement_is_interrupted_by_the_upkeep(log_dir: Path) -> None:
    woken = threading.Event()

    class Hanging:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def work(self) -> None:
            assert woken.wait(PATIENCE_S)
            raise OSError("cancelled")

        def cancel(self) -> None:
            woken.set()

    (bank,) = banks("a").values()
    with TransactionManager(log_dir, {"a": lambda: Hanging(bank.connect())}) as tm:
        tx = tm.transaction("a", timeout_s=PATIENCE_S)
        with pytest.raises(RolledBack, match="took more than"), tx:
            hang_in(tx)
    assert set(bank.branches.values()) == {ROLLED_BACK}


def hang_in(tx: Transaction) -> None:
    connection = tx["a"]
    tx._deadline = time.monotonic()
    connection.work()


# The end, and the beginning


def test_a_second_one_on_the_same_log_has_a_slot_of_its_own(log_dir: Path) -> None:
    with over(log_dir, banks("a")) as tm, over(log_dir, banks("a")) as second:
        assert (tm.epoch, second.epoch) == (1, 1)
        assert tm.node != second.node
    with over(log_dir, banks("a")) as tm:
        assert tm.epoch == 2


def test_after_close_nothing_goes_on(log_dir: Path) -> None:
    before = set(threading.enumerate())  # those of spaces that other tests have killed
    found = banks("a", "b")
    tm = over(log_dir, found)
    left = tm.transaction("a", "b").__enter__()
    tm.close()
    tm.close()
    verbs: list[Callable[[], object]] = [tm.transaction, tm.recover, lambda: tm.forget(b""), tm.__enter__]
    for verb in verbs:
        with pytest.raises(InterfaceError, match="closed"):
            verb()
    with pytest.raises(Exception, match="rolled back"):
        left.commit()
    assert {state for bank in found.values() for state in bank.branches.values()} == {ROLLED_BACK}
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name.startswith("xaqueue-")]


def test_close_waits_for_a_commit_on_its_way(log_dir: Path) -> None:
    found = banks("a", "b")
    deciding, goes_on = threading.Event(), threading.Event()

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.DECIDED:
            deciding.set()
            assert goes_on.wait(PATIENCE_S)

    tm = over(log_dir, found, on_step=on_step)

    def commit() -> None:
        with tm.transaction("a", "b"):
            pass

    committing = threading.Thread(target=commit)
    committing.start()
    assert deciding.wait(PATIENCE_S)
    closing = threading.Thread(target=tm.close)
    closing.start()
    eventually(lambda: tm._coordinator.is_closing)
    goes_on.set()
    committing.join()
    closing.join()
    assert {state for bank in found.values() for state in bank.branches.values()} == {COMMITTED}
    assert view_log(log_dir).open == []


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"recovery_interval_s": -1.0}, {"last_resource": "nobody"}])
def test_wrong_options_are_refused_before_anything_is_made(log_dir: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        over(log_dir, banks("a"), **options)
    assert not log_dir.exists()


def test_wrong_arguments_of_a_transaction_are_refused(log_dir: Path) -> None:
    with over(log_dir, banks("a")) as tm:
        with pytest.raises(InvalidArgument, match="no participant"):
            tm.transaction("b")
        with pytest.raises(InvalidArgument, match="above 0"):
            tm.transaction(timeout_s=0)


@pytest.mark.parametrize("comes", ["a connection", "an error", "an answer", "no answer"])
def test_an_end_says_nothing_of_going_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """Whatever a participant was asked for when it was closed, and what comes of that."""
    bank, asked, goes_on = Bank(World(), "a"), threading.Event(), threading.Event()

    def connect() -> Any:
        asked.set()
        assert goes_on.wait(PATIENCE_S)
        if comes == "an error":
            raise ConnectionError("gone")
        connection = bank.connect()
        if comes == "no answer":
            monkeypatch.setattr(connection, "tpc_recover", None)
        return connection

    manager = TransactionManager(tmp_path / "log", {"a": connect})
    assert asked.wait(PATIENCE_S)
    thread = manager._recoveries["a"]._thread
    assert thread is not None
    closing = threading.Thread(target=manager.close)
    closing.start()
    eventually(lambda: manager._recoveries["a"]._stopped)
    goes_on.set()
    closing.join(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [record.message for record in caplog.records if "participant-waits" in record.message] == []


def test_what_was_committed_late_is_not_hardened_at_each_look(
    spaces: Spaces, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are rows removed: both wait for many of them."""
    looks: list[None] = []
    monkeypatch.setattr(managers, "HOUSEKEEPING_S", 0.001)
    monkeypatch.setattr(managers, "PRUNING_S", 2 * PATIENCE_S)
    monkeypatch.setattr(Transaction, "interrupt_if_expired", lambda _: looks.append(None))
    with TransactionManager(log_dir, spaces.participants) as tm, tm.transaction():
        tm._coordinator._deferred.add("a")
        eventually(lambda: len(looks) > 5)
        assert tm._coordinator._deferred == {"a"}
        monkeypatch.setattr(managers, "PRUNING_S", 0.0)
        eventually(lambda: not tm._coordinator._deferred)
