"""What a participant did by itself is said, hardened and kept until a person forgets it; a hazard is never a commit."""

from __future__ import annotations

import pytest

from support.tm_both import pytest_generate_tests, way  # noqa: F401
from support.tm_scene import Scene
from support.tm_world import COMMITTED, PREPARED, ROLLED_BACK, OperationalError
from xaqueue.errors import HeuristicHazard, HeuristicMixed, ProtocolError, RetryLater, RolledBack
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.records import Heuristic, TransactionState
from xaqueue.tm.voting import ParticipantOutcome as Ended
from xaqueue.xa import Outcome


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_unknown_branch_is_a_hazard_at_the_first_commit_only(scene: Scene) -> None:
    """After a failover of the participant, others had a heuristic that stuck until a restart."""
    scene.a.faults = {"commit": ["gone"]}
    rig = scene.boot()
    with pytest.raises(HeuristicHazard, match="forget") as raised:
        rig.transact("a", "b")
    assert raised.value.parties == {"a": Ended.HEUR_HAZARD.value, "b": Ended.COMMITTED.value}
    (noted,) = rig.coordinator.in_doubt()
    assert (noted.state, noted.outstanding) == (TransactionState.HEURISTIC, ())
    assert [one.outcome for one in noted.heuristics] == [Ended.HEUR_HAZARD]
    assert rig.coordinator.outcome(noted.gtrid) is Outcome.COMMITTED

    scene.a.faults = {"commit": ["request lost"]}
    tx = rig.transact("a", "b")
    assert tx.pending == ("a",)
    scene.a.decide_by_hand(ROLLED_BACK, forget=True)
    rig.recover()
    assert [one.gtrid for one in rig.coordinator.in_doubt()] == [noted.gtrid], "in a retry it means: finished before"


def test_a_participant_that_can_tell_is_asked() -> None:
    scene = Scene(tells=True)
    rig = scene.boot()
    scene.a.faults = {"commit": ["gone"]}
    with pytest.raises(HeuristicMixed) as raised:
        rig.transact("a", "b")
    assert raised.value.parties["a"] == Ended.HEUR_ROLLED_BACK.value

    scene.a.faults = {"commit": ["answer lost"]}
    tx = rig.transact("a", "b")
    assert rig.recover()["a"].finished_before == [tx.gtrid]

    scene.a.faults = {"commit": ["request lost"]}
    tx = rig.transact("a", "b")
    scene.a.decide_by_hand(ROLLED_BACK, forget=True)
    (noted,) = rig.recover()["a"].heuristics
    assert (noted.gtrid, noted.outcome, noted.agrees) == (tx.gtrid, Ended.HEUR_ROLLED_BACK, False)


def test_a_hazard_whose_branch_turns_up_again_is_committed(scene: Scene) -> None:
    """A standby that took over without its last transactions, and got them back."""
    scene.a.faults = {"commit": ["gone"]}
    rig = scene.boot()
    with pytest.raises(HeuristicHazard):
        rig.transact("a", "b")
    (xid,) = scene.a.forgotten
    scene.a.branches[xid] = PREPARED
    rig = scene.reboot()
    assert rig.recover()["a"].committed == [xid[1].encode()]
    assert scene.a.branches[xid] == COMMITTED


def test_a_refusal_is_no_hazard_and_is_not_told_again(scene: Scene) -> None:
    """Others rolled the refuser back once more, and took its "unknown" for a heuristic hazard."""
    scene.b.faults = {"prepare": ["refused"]}
    rig = scene.boot()
    with pytest.raises(RolledBack, match="refuses") as raised:
        rig.transact("a", "b")
    assert isinstance(raised.value.__cause__, OperationalError)
    assert rig.coordinator.in_doubt() == []
    assert set(scene.world.states(scene.first).values()) == {ROLLED_BACK}


def test_heuristics_are_kept_until_a_person_forgets_them(scene: Scene) -> None:
    scene.a.faults = {"commit": ["hand-rollback"]}
    rig = scene.boot()
    with pytest.raises(HeuristicMixed) as raised:
        rig.transact("a", "b")
    assert raised.value.parties == {"a": Ended.HEUR_ROLLED_BACK.value, "b": Ended.COMMITTED.value}
    for _ in range(3):
        rig = scene.reboot()
        report = rig.recover()["a"]
        assert report.complete
        assert report.heuristics == []
        (noted,) = rig.coordinator.in_doubt()
    rig.log.forget(noted.gtrid)
    assert rig.coordinator.in_doubt() == []
    assert scene.boot().coordinator.in_doubt() == []


def test_what_is_not_over_is_not_forgotten(scene: Scene) -> None:
    scene.a.faults = {"commit": ["hand-rollback"]}
    scene.b.faults = {"commit": ["request lost"]}
    rig = scene.boot()
    with pytest.raises(HeuristicMixed):
        rig.transact("a", "b")
    (noted,) = rig.coordinator.in_doubt()
    with pytest.raises(ProtocolError, match="b has to acknowledge"):
        rig.log.forget(noted.gtrid)
    rig.recover()
    rig.log.forget(noted.gtrid)
    assert rig.coordinator.in_doubt() == []


def test_what_a_person_did_to_an_undecided_branch_is_noted(scene: Scene) -> None:
    gtrid = scene.die_at(Step.DECIDE)
    scene.a.decide_by_hand(COMMITTED)
    rig = scene.reboot()
    (noted,) = rig.recover()["a"].heuristics
    assert (noted.decision, noted.outcome, noted.agrees) == (Outcome.ROLLED_BACK, Ended.HEUR_COMMITTED, False)
    assert scene.world.states(gtrid) == {"a": COMMITTED, "b": ROLLED_BACK}
    assert [one.gtrid for one in rig.coordinator.in_doubt()] == [gtrid]
    assert rig.recover()["a"].heuristics == []


def test_a_person_who_agrees_raises_nothing_and_is_noted(scene: Scene) -> None:
    scene.a.faults = {"commit": ["hand-commit"]}
    rig = scene.boot()
    tx = rig.transact("a", "b")
    assert tx.outcome is Outcome.COMMITTED
    (noted,) = rig.coordinator.in_doubt()
    assert [one.agrees for one in noted.heuristics] == [True]


def test_a_heuristic_that_could_not_be_recorded_is_said_and_noted_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scene.boot()
    note = rig.log.note

    def full(heuristic: Heuristic) -> bool:
        raise RetryLater("no room in the journal")

    monkeypatch.setattr(rig.log, "note", full)
    scene.a.faults = {"commit": ["hand-rollback"]}
    with pytest.raises(HeuristicMixed, match="could not be recorded yet: no room"):
        rig.transact("a", "b")
    assert rig.coordinator.live() == []
    assert not rig.resolvers["a"].run_once().complete
    monkeypatch.setattr(rig.log, "note", note)
    (noted,) = rig.recover()["a"].heuristics
    assert noted.outcome is Ended.HEUR_ROLLED_BACK
    assert [one.state for one in rig.coordinator.in_doubt()] == [TransactionState.HEURISTIC]
