"""Recovery finishes what is its own and over, and nothing else; each test is a way in which others got it wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.patience import eventually
from support.tm_both import pytest_generate_tests, way  # noqa: F401
from support.tm_scene import Scene
from support.tm_world import (
    ACTIVE,
    COMMITTED,
    PREPARED,
    ROLLED_BACK,
    Bank,
    BankConnection,
    LateConnection,
    ProgrammingError,
    Rig,
    World,
)
from xaqueue import TransactionManager
from xaqueue.carried import Carriers
from xaqueue.core.owner import open
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.errors import RolledBack
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.participant import Participant
from xaqueue.tm.records import TransactionState
from xaqueue.xa import Outcome


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_decided_is_committed_everywhere_however_late_a_participant_comes_back(scene: Scene) -> None:
    """Others rolled back what was in doubt after a restart, although the other branch had committed."""
    gtrid = scene.die_at(Step.COMMITTED, "a")
    assert scene.world.states(gtrid) == {"a": COMMITTED, "b": PREPARED}
    scene.b.is_down = True
    for _ in range(3):
        rig = scene.reboot()
        reports = rig.recover()
        assert reports["a"].complete
        assert not reports["b"].complete
        (left,) = rig.coordinator.in_doubt()
        assert (left.gtrid, left.state, left.outstanding) == (gtrid, TransactionState.COMMITTING, ("b",))
        assert "down" in left.trouble["b"]
    scene.b.is_down = False
    rig = scene.reboot()
    assert rig.recover()["b"].committed == [gtrid]
    assert scene.world.states(gtrid) == {"a": COMMITTED, "b": COMMITTED}
    assert rig.coordinator.in_doubt() == []


def test_a_commit_that_is_forgotten_between_its_answer_and_its_hardening_is_made_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue's server was started anew there, and the connection goes on with it."""
    gtrid = scene.die_at(Step.COMMITTED, "a")
    rig, lives, harden = scene.reboot(), [1], LateConnection.harden
    scene.a.is_deferred, scene.a.late = True, [xid for xid, state in scene.a.branches.items() if state == COMMITTED]

    def harden_anew(self: LateConnection) -> None:
        if lives == [1]:
            scene.a.lose_sessions()
            lives[0] = 2
        harden(self)

    monkeypatch.setattr(LateConnection, "carriers", lambda _: Carriers("space", lives[0], "secret"), raising=False)
    monkeypatch.setattr(LateConnection, "harden", harden_anew)
    assert not rig.recover()["a"].complete
    assert scene.world.states(gtrid) == {"a": PREPARED, "b": COMMITTED}
    assert rig.recover()["a"].committed == [gtrid]
    assert scene.world.states(gtrid) == {"a": COMMITTED, "b": COMMITTED}
    assert rig.coordinator.in_doubt() == []


@pytest.mark.parametrize("step", [Step.PREPARE, Step.PREPARED, Step.DECIDE])
def test_undecided_of_an_earlier_boot_is_rolled_back(scene: Scene, step: Step) -> None:
    gtrid = scene.die_at(step, "" if step is Step.DECIDE else "b")
    scene.reboot().recover()
    assert set(scene.world.states(gtrid).values()) == {ROLLED_BACK}


@pytest.mark.parametrize("step", [Step.PREPARED, Step.DECIDE, Step.DECIDED, Step.COMMIT, Step.COMMITTED])
def test_a_live_transaction_is_left_alone(scene: Scene, step: Step) -> None:
    """Others met the live commit in the background, which then failed with a protocol error."""
    rig = scene.boot()
    rounds = []

    def on_step(now: Step, gtrid: bytes, name: str) -> None:
        if now is step:
            for report in rig.recover().values():
                rounds.append(report)
                assert not report.committed
                assert not report.rolled_back
                assert not report.finished_before

    rig.coordinator.step = on_step
    rig.transact("a", "b")
    assert rounds
    assert scene.a.calls.count(("commit", scene.a.calls[0][1])) == 1


def test_a_transaction_that_begins_while_a_list_is_on_its_way_is_left_alone(scene: Scene) -> None:
    """What is not known from before the list was asked for may be live."""
    rig = scene.boot()
    begun = []

    def begin_and_prepare() -> None:
        tx = rig.transaction("a", "b").__enter__()
        scene.a.branches = dict.fromkeys(scene.a.branches, PREPARED)
        begun.append(tx)

    scene.a.before_scan = begin_and_prepare
    report = rig.resolvers["a"].run_once()
    assert report.left == [begun[0].gtrid]
    assert scene.a.prepared()


def test_a_transaction_that_commits_while_a_list_is_on_its_way_is_not_rolled_back(scene: Scene) -> None:
    """Listed while it was prepared, and over when it was looked at: what was live then is left alone now."""
    rig = scene.boot()
    live = rig.transaction("a", "b").__enter__()
    gtrid = live.gtrid

    def commit() -> None:
        scene.a.others = [(FORMAT_ID, gtrid.decode(), "a")]
        live.commit()

    scene.a.after_scan = commit
    report = rig.resolvers["a"].run_once()
    assert report.left == [gtrid]
    assert ("rollback", gtrid.decode()) not in scene.a.calls


def test_a_prepare_that_arrives_after_the_scan_is_found_by_the_next_one(scene: Scene) -> None:
    """A participant that is slow to prepare for a caller that is gone."""
    gtrid = scene.die_at(Step.PREPARE, "a")
    rig = scene.reboot()
    assert rig.recover()["a"].rolled_back == []
    late = (FORMAT_ID, gtrid.decode(), "a")
    scene.a.branches[late] = PREPARED
    assert rig.recover()["a"].rolled_back == [gtrid]
    assert scene.a.branches[late] == ROLLED_BACK


def test_an_orphan_of_this_boot_is_rolled_back_once_its_transaction_is_over(scene: Scene) -> None:
    scene.a.faults = {"prepare": ["answer lost"]}
    rig = scene.boot()
    with pytest.raises(RolledBack):
        rig.transact("a", "b")
    assert scene.a.prepared()
    assert "a" in rig.woken
    assert len(rig.recover()["a"].rolled_back) == 1
    assert not scene.a.prepared()


def test_a_participant_that_cannot_list_proves_nothing(scene: Scene) -> None:
    """Others took an error for an empty list, and what was decided for done."""
    gtrid = scene.die_at(Step.DECIDED)
    rig = scene.reboot()
    scene.a.faults = {"recover": ["request lost"]}
    report = rig.resolvers["a"].run_once()
    assert not report.complete
    assert "lost" in report.error
    (left,) = rig.coordinator.in_doubt()
    assert left.outstanding == ("a", "b")
    rig.recover()
    assert set(scene.world.states(gtrid).values()) == {COMMITTED}


def test_one_branch_that_fails_delays_no_other(scene: Scene) -> None:
    first, second = scene.die_at(Step.DECIDED), None
    scene.world.revive()
    second = scene.die_at(Step.DECIDED)
    rig = scene.reboot()
    scene.a.faults = {"commit": ["busy"]}
    report = rig.resolvers["a"].run_once()
    assert report.error == ""
    assert set(report.committed) == {first, second}


def test_a_commit_that_fails_in_recovery_is_tried_again(scene: Scene) -> None:
    gtrid = scene.die_at(Step.DECIDED)
    rig = scene.reboot()
    scene.a.faults = {"commit": ["request lost"] * 3}
    for _ in range(3):
        assert not rig.resolvers["a"].run_once().complete
        assert rig.coordinator.in_doubt()
    rig.recover()
    assert set(scene.world.states(gtrid).values()) == {COMMITTED}


def test_done_needs_a_complete_list_of_every_participant_that_was_named(scene: Scene) -> None:
    """A participant that is not configured any more has not answered: its decision is kept, and it is said."""
    gtrid = scene.die_at(Step.DECIDED)
    rig = scene.reboot("a")
    rig.recover()
    (left,) = rig.coordinator.in_doubt()
    assert left.outstanding == ("b",)
    assert "configured" in left.trouble["b"]
    rig = scene.reboot()
    rig.recover()
    assert set(scene.world.states(gtrid).values()) == {COMMITTED}
    assert rig.coordinator.in_doubt() == []


def test_own_branches_of_a_participant_that_was_renamed_are_told(scene: Scene) -> None:
    scene.die_at(Step.DECIDE)
    rig = scene.reboot("a")
    scene.a.others = [*scene.b.prepared()]
    assert rig.recover()["a"].strangers == ["b"]
    assert scene.b.prepared()


def test_the_log_is_hardened_before_anybody_commits(scene: Scene) -> None:
    """Others flushed it after the second phase had begun."""
    seen: list[bool] = []
    fs = scene.fs

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT:
            for tree in fs.trees_after_crash(limit=64):
                log = DecisionLog(tree.open(), segment_bytes=SMALLEST_SEGMENT_BYTES)
                seen.append(log.table.decision_on(gtrid) is Outcome.COMMITTED)

    rig = Rig(fs, {"a": scene.a.connect, "b": scene.b.connect}, on_step=on_step)
    rig.transact("a", "b")
    assert seen
    assert all(seen)


def test_two_transaction_managers_at_the_same_participants_touch_nothing_of_each_other(scene: Scene) -> None:
    mine = scene.die_at(Step.DECIDE)
    scene.world.revive()
    other = Scene()
    other.world, other.a, other.b = scene.world, scene.a, scene.b
    theirs = other.die_at(Step.DECIDED)
    foreign = [(FORMAT_ID, "not one of ours", "a"), (1, mine.decode(), "a"), (None, "unparsed", None)]
    scene.a.others = list(foreign)
    scene.world.revive()
    rig = scene.boot()
    rig.recover()
    assert set(scene.world.states(mine).values()) == {ROLLED_BACK}
    assert set(scene.world.states(theirs).values()) == {PREPARED}
    rig = other.reboot()
    rig.recover()
    assert set(scene.world.states(theirs).values()) == {COMMITTED}


def test_the_participants_of_one_server_list_each_others_branches(scene: Scene) -> None:
    """PostgreSQL lists those of all its databases: each is finished through the participant of its name."""
    gtrid = scene.die_at(Step.DECIDED)
    xids = [*scene.a.prepared(), *scene.b.prepared()]
    scene.a.others, scene.b.others = xids[1:], xids[:1]
    reports = scene.reboot().recover()
    assert [reports[name].committed for name in "ab"] == [[gtrid], [gtrid]]
    assert [call for call in scene.a.calls if call[0] == "commit"] == [("commit", gtrid.decode())]


def test_a_copy_of_the_log_that_is_older_leaves_later_branches_alone(scene: Scene) -> None:
    """A log that was put back from a copy has an earlier epoch: what a later one prepared is nobody's to judge."""
    scene.boot().log.close()
    copy = scene.fs.tree_after_kill()
    for _ in range(3):
        scene.boot().log.close()
    gtrid = scene.die_at(Step.DECIDED)
    scene.world.revive()
    scene.fs = copy.open()
    report = scene.boot().recover()["a"]
    assert (report.rolled_back, report.left) == ([], [gtrid])
    assert report.strangers == ["a of epoch 5"]
    assert set(scene.world.states(gtrid).values()) == {PREPARED}


def test_a_failed_log_presumes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision may be on disk all the same: only the next boot can tell."""
    rig = scene.boot()
    monkeypatch.setattr(scene.fs, "sync_data", fail)
    with pytest.raises(Exception, match="in doubt"):
        rig.transact("a", "b")
    assert len(scene.a.prepared()) == len(scene.b.prepared()) == 1
    report = rig.recover()["a"]
    assert (report.rolled_back, len(report.left)) == ([], 1)
    monkeypatch.undo()
    rig = scene.reboot()
    rig.recover()
    assert not scene.a.prepared()
    assert len(set(scene.world.states(scene.first).values())) == 1


def fail(path: str) -> None:
    raise OSError(5, "Input/output error", path)


def test_a_participant_that_lost_its_prepared_branch_without_a_decision_is_no_matter(scene: Scene) -> None:
    gtrid = scene.die_at(Step.DECIDE)
    scene.a.branches = dict.fromkeys(scene.a.branches, ROLLED_BACK)
    rig = scene.reboot()
    assert all(report.complete for report in rig.recover().values())
    assert scene.world.states(gtrid) == {"a": ROLLED_BACK, "b": ROLLED_BACK}


def test_nothing_is_active_after_an_interruption() -> None:
    """Whatever is raised in the middle of a commit: what is decided goes on, and the connections are closed."""
    for wanted, ends in ((Step.DECIDE, ROLLED_BACK), (Step.DECIDED, COMMITTED), (Step.COMMITTED, COMMITTED)):
        scene = Scene()

        def on_step(step: Step, gtrid: bytes, name: str, wanted: Step = wanted) -> None:
            if step is wanted:
                raise KeyboardInterrupt

        rig = Rig(scene.fs, {"a": scene.a.connect, "b": scene.b.connect}, on_step=on_step)
        with pytest.raises(KeyboardInterrupt):
            rig.transact("a", "b")
        rig.coordinator.step = lambda *_: None
        assert rig.coordinator.live() == []
        rig.recover()
        states = set(scene.world.states(scene.first).values())
        assert states == {ends}
        assert ACTIVE not in states


def test_the_counter_goes_on_and_names_are_never_used_twice(scene: Scene) -> None:
    names = []
    for _ in range(3):
        rig = scene.boot()
        names += [Gtrid.parse(rig.transact("a", "b").gtrid) for _ in range(2)]
        rig.log.close()
    assert [(name.epoch, name.counter) for name in names if name] == [(e, c) for e in (1, 2, 3) for c in (1, 2)]
    assert len({name.node for name in names if name}) == 1


def test_interrupted_when_all_is_done_it_is_committed(scene: Scene) -> None:
    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.DONE:
            raise KeyboardInterrupt

    rig = Rig(scene.fs, {"a": scene.a.connect, "b": scene.b.connect}, on_step=on_step)
    tx = rig.transaction("a", "b").__enter__()
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert tx.outcome is rig.coordinator.outcome(tx.gtrid) is Outcome.COMMITTED
    assert rig.coordinator.live() == []


def test_a_recovery_that_hung_until_the_end_touches_nothing(scene: Scene) -> None:
    gtrid = scene.die_at(Step.DECIDE)
    rig = scene.reboot()
    scene.a.before_scan = lambda: rig.resolvers["a"].stop(0)
    assert not rig.resolvers["a"].run_once().complete
    connect = rig.resolvers["b"]._source.participant.connect

    def hang() -> object:
        rig.resolvers["b"].stop(0)
        return connect()

    rig.resolvers["b"]._source.participant = Participant(hang)
    assert rig.resolvers["b"].run_once().error == "closed"
    assert set(scene.world.states(gtrid).values()) == {PREPARED}


PATIENCE_S = 60.0


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


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), GeneratorExit()])
def test_recovery_goes_on_whatever_a_driver_raises(tmp_path: Path, error: BaseException) -> None:
    bank, errors = Bank(World(), "a"), [error]

    def connect() -> BankConnection:
        if errors and threading.current_thread().name.startswith("xaqueue-recovery"):
            raise errors.pop()
        return bank.connect()

    parties = {"a": connect, "b": Bank(World(), "b").connect}
    with TransactionManager(tmp_path / "log", parties, recovery_interval_s=0.05) as manager:
        eventually(lambda: not (errors or not manager.recover(timeout_s=PATIENCE_S).complete))


def test_recovery_opens_a_fenced_space_again(tmp_path: Path) -> None:
    """Kept connections held it open, and what is fenced stays so until its last connection is closed."""
    place = tmp_path / "space"
    fenced: list[str] = []
    parties = {"a": lambda: xaqueue.connect(place, create=True), "b": Bank(World(), "b").connect}
    manager = TransactionManager(tmp_path / "log", parties, recovery_interval_s=0.05)

    def fence(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT and name == "a" and not fenced:
            fenced.append(name)
            open._attached[place.resolve()].space.log.fail(OSError(5, "Input/output error"))

    with manager:
        # two connections
        with manager.transaction("a", "b") as one, manager.transaction("a", independent=True) as other:
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
