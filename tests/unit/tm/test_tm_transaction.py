"""A transaction commits what joined it, in order, everywhere or nowhere, and says which."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.forgetful import Tree
from support.tm_both import pytest_generate_tests, way  # noqa: F401
from support.tm_world import (
    COMMITTED,
    PREPARED,
    READ_ONLY,
    ROLLED_BACK,
    Bank,
    BankConnection,
    OperationalError,
    Rig,
    World,
)
from support.tm_world import ProgrammingError as PlainProgrammingError
from xaqueue.errors import InterfaceError, InvalidArgument, OutcomeUnknown, ProtocolError, RolledBack, UnknownXid
from xaqueue.tm import participant
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.driver import is_unknown_xid
from xaqueue.tm.participant import Participant, sources
from xaqueue.tm.transaction import Transaction
from xaqueue.xa import Code, Outcome


class Scene:
    def __init__(self) -> None:
        self.world = World()
        self.a, self.b, self.c = (Bank(self.world, name) for name in "abc")
        self.steps: list[tuple[str, str]] = []
        self.fs = Tree({}).open()
        self.rig = self.boot({name: bank.connect for name, bank in self.world.banks.items()})

    def boot(self, participants: dict[str, Any], **options: Any) -> Rig:
        def on_step(step: Step, gtrid: bytes, name: str) -> None:
            self.steps.append((str(step), name))

        return Rig(Tree({}).open(), participants, on_step=on_step, **options)

    def states(self) -> dict[str, str]:
        return {name: state for name, bank in self.world.banks.items() for state in bank.branches.values()}


@pytest.fixture
def scene() -> Scene:
    return Scene()


# How it goes


def test_the_named_steps_of_a_transaction(scene: Scene) -> None:
    tx = scene.rig.transact("a", "b")
    assert tx.outcome is Outcome.COMMITTED
    assert scene.states() == {"a": COMMITTED, "b": COMMITTED}
    assert scene.steps == [
        *[("begin", "a"), ("begin", "b")],
        *[("prepare", "a"), ("prepared", "a"), ("prepare", "b"), ("prepared", "b")],
        *[("decide", ""), ("decided", "")],
        *[("commit", "a"), ("committed", "a"), ("commit", "b"), ("committed", "b")],
        ("done", ""),
    ]


def test_a_participant_joins_at_its_first_use_or_at_once_when_named(scene: Scene) -> None:
    with scene.rig.transaction("b") as tx:
        assert (scene.a.opened, scene.b.opened) == (0, 1)
        assert tx["a"] is tx["a"]
    assert (scene.a.opened, scene.b.opened, scene.c.opened) == (1, 1, 0)


def test_one_participant_needs_no_log(scene: Scene) -> None:
    syncs = scene.rig.log.syncs
    scene.rig.transact("a")
    assert scene.steps == [("begin", "a"), ("commit", "a"), ("committed", "a")]
    assert scene.rig.log.syncs == syncs
    assert scene.states() == {"a": COMMITTED}


def test_read_only_voters_are_left_out_and_alone_need_no_log(scene: Scene) -> None:
    scene.a.votes_read_only = scene.b.votes_read_only = True
    syncs = scene.rig.log.syncs
    scene.rig.transact("a", "b")
    assert scene.rig.log.syncs == syncs
    scene.rig.transact("a", "b", "c")
    assert scene.rig.log.syncs == syncs + 1
    assert scene.states() == {"a": READ_ONLY, "b": READ_ONLY, "c": COMMITTED}
    assert ("commit", "a") not in scene.steps


def test_only_false_is_a_read_only_vote(scene: Scene) -> None:
    """PEP 249 has no such vote: a driver that returns None has prepared."""
    assert scene.a.votes_read_only is False
    tx = scene.rig.transact("a", "b")
    assert tx.outcome is Outcome.COMMITTED
    assert scene.states() == {"a": COMMITTED, "b": COMMITTED}


def test_an_exception_rolls_back_and_is_not_replaced(scene: Scene) -> None:
    with pytest.raises(ZeroDivisionError), scene.rig.transaction("a", "b") as tx:
        raise ZeroDivisionError
    assert tx.outcome is Outcome.ROLLED_BACK
    assert scene.states() == {"a": ROLLED_BACK, "b": ROLLED_BACK}


def test_rollback_and_commit_by_hand_end_it(scene: Scene) -> None:
    with scene.rig.transaction("a", "b") as tx:
        tx.rollback()
    assert tx.outcome is Outcome.ROLLED_BACK
    for verb in (tx.commit, tx.rollback):
        with pytest.raises(ProtocolError, match="over"):
            verb()
    with pytest.raises(ProtocolError, match="over"):
        tx["a"]
    with scene.rig.transaction("a", "b") as tx:
        tx.commit()
        assert tx.outcome is Outcome.COMMITTED


def test_an_empty_transaction_commits_and_rolls_back(scene: Scene) -> None:
    with scene.rig.transaction() as tx:
        pass
    assert tx.outcome is Outcome.COMMITTED
    tx = scene.rig.transaction()
    tx.rollback()
    assert tx.outcome is Outcome.ROLLED_BACK


def test_an_unknown_participant_is_refused(scene: Scene) -> None:
    with pytest.raises(InvalidArgument, match=r"'d' is no participant: there are \['a', 'b', 'c'\]"):
        scene.rig.transact("a", "d")
    assert scene.states() == {"a": ROLLED_BACK}


def test_a_participant_that_cannot_be_opened_ends_the_transaction(scene: Scene) -> None:
    scene.b.is_down = True
    with pytest.raises(OperationalError, match="b is down"), scene.rig.transaction("a", "b") as tx:
        tx["a"].work()
    assert scene.states() == {"a": ROLLED_BACK}
    assert scene.rig.coordinator.live() == []


def test_participants_are_prepared_in_the_order_of_their_keys(scene: Scene) -> None:
    rig = scene.boot(
        {
            "a": Participant(scene.a.connect, sort_key="3"),
            "b": Participant(scene.b.connect, sort_key="1"),
            "c": scene.c.connect,
        }
    )
    sorted_by_itself = type("Sorted", (BankConnection,), {"sortKey": lambda self: "2"})
    rig.coordinator.sources["c"].participant = Participant(lambda: sorted_by_itself(scene.c))
    rig.transact("a", "b", "c")
    assert [name for step, name in scene.steps if step == "prepare"] == ["b", "c", "a"]


def test_side_by_side_where_all_of_them_allow_it(scene: Scene) -> None:
    """Both wait in their prepare until the other one is there, too."""
    together = threading.Barrier(2)

    class Meeting(BankConnection):
        def tpc_prepare(self) -> bool | None:
            together.wait(60)
            return super().tpc_prepare()

    connects: dict[str, Any] = {
        name: Participant(lambda bank=bank: Meeting(bank), parallel=True)
        for name, bank in (("a", scene.a), ("b", scene.b))
    }
    tx = scene.boot(connects).transact("a", "b")
    assert tx.outcome is Outcome.COMMITTED
    assert scene.states() == {"a": COMMITTED, "b": COMMITTED}


def test_no_call_goes_to_a_thread_where_another_transaction_is_at_work(scene: Scene) -> None:
    """Who works beside it has more use for the processor."""
    preparing: list[int] = []

    class Noting(BankConnection):
        def tpc_prepare(self) -> bool | None:
            preparing.append(threading.get_ident())
            return super().tpc_prepare()

    connects: dict[str, Any] = {
        name: Participant(lambda bank=bank: Noting(bank), parallel=True)
        for name, bank in (("a", scene.a), ("b", scene.b))
    }
    rig = scene.boot(connects)
    with rig.transaction("a"):
        rig.transact("a", "b")
        assert set(preparing) == {threading.get_ident()}
    assert scene.states() == {"a": COMMITTED, "b": COMMITTED}


# What goes wrong


@pytest.mark.parametrize("fault", ["refused", "request lost", "answer lost"])
def test_whoever_cannot_prepare_rolls_all_back(scene: Scene, fault: str) -> None:
    scene.b.faults = {"prepare": [fault]}
    with pytest.raises(RolledBack, match="because of 'b'") as raised:
        scene.rig.transact("a", "b", "c")
    assert isinstance(raised.value.__cause__, OperationalError)
    left = PREPARED if fault == "answer lost" else ROLLED_BACK
    assert scene.states() == {"a": ROLLED_BACK, "b": left, "c": ROLLED_BACK}
    scene.rig.recover()
    assert set(scene.states().values()) == {ROLLED_BACK}


def test_the_first_failure_is_the_cause(scene: Scene) -> None:
    scene.a.faults = {"rollback": ["request lost"]}
    scene.c.faults = {"prepare": ["refused"]}
    with pytest.raises(RolledBack, match="because of 'c': c refuses"):
        scene.rig.transact("a", "b", "c")


@pytest.mark.parametrize(("fault", "state"), [("request lost", PREPARED), ("answer lost", COMMITTED)])
def test_a_participant_lost_in_the_second_phase_is_told_later(scene: Scene, fault: str, state: str) -> None:
    scene.a.faults = {"commit": [fault]}
    tx = scene.rig.transact("a", "b")
    assert tx.outcome is Outcome.COMMITTED
    assert tx.pending == ("a",)
    assert scene.rig.woken == ["a"]
    assert scene.states() == {"a": state, "b": COMMITTED}
    assert scene.rig.recover()["a"].complete
    assert scene.states() == {"a": COMMITTED, "b": COMMITTED}
    assert scene.rig.coordinator.in_doubt() == []


def test_a_commit_in_one_phase_without_an_answer_is_unknown_or_asked_for(scene: Scene) -> None:
    scene.a.faults = {"commit": ["answer lost"]}
    with pytest.raises(OutcomeUnknown, match="'a'") as raised:
        scene.rig.transact("a")
    assert raised.value.xid is not None
    assert raised.value.xid.bqual == b"a"
    scene.a.tells = True
    scene.a.faults = {"commit": ["answer lost"]}
    assert scene.rig.transact("a").outcome is Outcome.COMMITTED
    scene.a.faults = {"commit": ["request lost"]}
    with pytest.raises(RolledBack):
        scene.rig.transact("a")


def test_a_failed_statement_is_a_vote_against(scene: Scene) -> None:
    """PostgreSQL answers PREPARE TRANSACTION and COMMIT in a failed transaction with a rollback, and no error."""

    class Info:
        transaction_status = 3

    class Failed(BankConnection):
        info = Info()

        def tpc_prepare(self) -> None:
            raise AssertionError("it would be taken for prepared")

    rig = scene.boot({"a": lambda: Failed(scene.a), "b": scene.b.connect})
    for names in (("a",), ("a", "b")):
        with pytest.raises(RolledBack, match="failed before"):
            rig.transact(*names)
        assert set(scene.states().values()) == {ROLLED_BACK}


class UnderPrivileged(Exception):
    """As psycopg's: a ProgrammingError by its class."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("no")
        self.sqlstate = sqlstate


ProgrammingError = type("ProgrammingError", (UnderPrivileged,), {})


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (UnknownXid("no such branch"), True),
        (ProtocolError("out of order"), False),
        (ProgrammingError("42704"), True),
        (ProgrammingError("42501"), False),
        (PlainProgrammingError("no such transaction"), True),
        (OperationalError("lost"), False),
        (OSError("lost"), False),
    ],
)
def test_which_errors_say_that_a_branch_is_unknown(error: Exception, unknown: bool) -> None:
    """A missing right is a ProgrammingError, too, and to take it for a finished branch would lose the branch."""
    assert is_unknown_xid(error) is unknown


# Time


def test_after_its_time_it_can_only_be_rolled_back(scene: Scene) -> None:
    endings: list[Callable[[Transaction], object]] = [lambda tx: tx["b"], lambda tx: None, lambda tx: 1 / 0]
    for ending in endings:
        with pytest.raises(RolledBack, match="took more than") as raised:
            run_out(scene.rig.transaction("a", timeout_s=0.25), ending)
        assert raised.value.code is Code.XA_RBTIMEOUT
        assert scene.states() == {"a": ROLLED_BACK}
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def run_out(transaction: Transaction, ending: Callable[[Transaction], object]) -> None:
    with transaction as tx:
        while not tx._is_expired():
            time.sleep(0.001)
        ending(tx)


@pytest.mark.parametrize(("step", "outcome"), [(Step.PREPARED, Outcome.ROLLED_BACK), (Step.DECIDED, Outcome.COMMITTED)])
def test_the_time_counts_until_the_decision_and_not_after(scene: Scene, step: Step, outcome: Outcome) -> None:
    now = [0.0]

    def on_step(found: Step, gtrid: bytes, name: str) -> None:
        if found is step:
            now[0] = 100.0

    scene.rig.coordinator.step = on_step
    tx = scene.rig.transaction("a", "b")
    tx._is_expired = lambda: now[0] > 50.0  # type: ignore[method-assign]
    if outcome is Outcome.COMMITTED:
        tx.commit()
    else:
        with pytest.raises(RolledBack):
            tx.__enter__().commit()
    assert tx.outcome is outcome


def test_a_statement_that_hangs_past_the_time_is_interrupted(scene: Scene) -> None:
    """Two transactions that wait for each other in different systems end no other way."""
    hangs, woken = threading.Event(), threading.Event()

    class Hanging(BankConnection):
        def work(self) -> None:
            hangs.set()
            assert woken.wait(60)
            raise OperationalError("cancelled")

        def cancel(self) -> None:
            woken.set()

    tx = scene.boot({"a": lambda: Hanging(scene.a)}).transaction("a")
    tx._is_expired = hangs.is_set  # type: ignore[method-assign]

    def watch() -> None:
        while not woken.is_set():
            tx.interrupt_if_expired()
            time.sleep(0.001)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    with pytest.raises(RolledBack) as raised, tx:
        tx["a"].work()
    watching.join()
    assert raised.value.code is Code.XA_RBTIMEOUT


# Connections


def test_connections_are_kept_for_the_next_transaction(scene: Scene) -> None:
    for _ in range(5):
        scene.rig.transact("a", "b")
    assert (scene.a.opened, scene.b.opened) == (1, 1)


def test_a_connection_on_which_anything_went_wrong_is_not_used_again(scene: Scene) -> None:
    scene.b.faults = {"prepare": ["refused"]}
    with pytest.raises(RolledBack):
        scene.rig.transact("a", "b")
    scene.rig.transact("a", "b")
    assert (scene.a.opened, scene.b.opened) == (1, 2)


def test_a_kept_connection_that_was_lost_is_replaced_without_a_word(scene: Scene) -> None:
    scene.rig.transact("a", "b")
    scene.a.faults = {"begin": ["request lost"]}
    assert scene.rig.transact("a", "b").outcome is Outcome.COMMITTED
    scene.a.faults = {"begin": ["request lost", "request lost"]}
    with pytest.raises(OperationalError):
        scene.rig.transact("a", "b")


def test_no_more_connections_are_kept_than_wanted(scene: Scene) -> None:
    (source,) = sources({"a": Participant(scene.a.connect, idle=2)}, None).values()
    opened = [source.open() for _ in range(4)]
    for connection in opened:
        source.return_connection(connection, source.abilities(connection))
    assert [connection.closed for connection in opened] == [True, True, False, False]
    source.close()
    assert all(connection.closed for connection in opened)


def test_one_that_was_idle_for_long_is_not_used_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is between may have forgotten it, and a statement on it would wait for an answer for ever."""
    scene.rig.transact("a")
    scene.rig.transact("a")
    assert scene.a.opened == 1
    monkeypatch.setattr(participant, "KEPT_S", 0.0)
    scene.rig.transact("a")
    assert scene.a.opened == 2


@pytest.mark.parametrize("said", [{"autocommit": True}, {"autocommit": lambda: None, "get_autocommit": lambda _: True}])
def test_a_connection_in_autocommit_is_refused(scene: Scene, said: dict[str, Any]) -> None:
    auto = type("Auto", (BankConnection,), said)
    rig = scene.boot({"a": lambda: auto(scene.a)})
    with pytest.raises(InvalidArgument, match="autocommit"), rig.transaction("a"):
        pass


def test_a_participant_without_two_phases_is_refused(scene: Scene, tmp_path: Path) -> None:
    """Unless its database may decide."""
    participants = {"a": scene.a.connect, "files": lambda: sqlite3.connect(tmp_path / "files.db")}
    for refusing in (sources(participants, "a"), sources(participants, None, two_phase=True)):
        with pytest.raises(InvalidArgument, match=r"'files' has no two-phase commit .*only a last_resource"):
            refusing["files"].open()
    sources(participants, None)["files"].open().close()


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "é"])
def test_names_that_no_xid_can_hold_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="printable ASCII"):
        sources({name: lambda: None}, None)


@pytest.mark.parametrize(
    "make",
    [lambda: sources({"a": lambda: None}, "b"), lambda: sources({"a": 7}, None)],  # type: ignore[dict-item]
)
def test_wrong_participants_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument):
        make()


def test_nothing_begins_once_it_is_closed(scene: Scene) -> None:
    scene.rig.coordinator.close(0)
    with pytest.raises(InterfaceError, match="closed"):
        scene.rig.transaction()
