"""What a space does for queries that write in batches: one suite for a session and for a client of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from xaqueue.batch import MANY_SPACES, ONE_SPACE, Batch, BatchDecision, Plan
from xaqueue.errors import HeuristicOutcome, InvalidArgument, ProtocolError, RolledBack, UnknownXid
from xaqueue.features.session import Session
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.xa import Code, Flag, Outcome
from xaqueue.xid import Xid

PATIENCE_S = 60.0
SCAN = Flag.STARTRSCAN | Flag.ENDRSCAN
QUERY = "7f3c0b52-9a4e-4a86-9f0e-0d6c6b1a2c3d"


NINE = Plan("9" * 64, '{"orders": "nine"}', ("one", "two"))


Manager = Session | RemoteManager


class Host(Protocol):
    """A space that takes any queue."""

    root: Path

    def connect(self) -> Manager:
        """A new session; the host closes it."""

    def restart(self) -> None:
        """Closes all sessions and the space; the next session opens it again."""

    def decide(self, xid: Xid, commit: bool) -> None:
        """An operator's decision."""


def batch(number: int = 1) -> Batch:
    return Batch(QUERY, number)


def prepared(rm: Manager, bqual: str, of: Batch, *bodies: bytes, format_id: int = ONE_SPACE) -> Xid:
    """A branch that adds these messages."""
    xid = Xid(format_id, of.gtrid, bqual.encode())
    rm.start(xid)
    for body in bodies or (bqual.encode(),):
        rm.enqueue("orders", body)
    end(rm, xid)
    return xid


def end(rm: Manager, xid: Xid) -> None:
    """The work is over; over a socket, what is wrong with that is told by the answer to prepare."""
    rm.end(xid)
    rm.prepare(xid)


def bodies(rm: Manager) -> list[bytes]:
    return [message.body for message in rm.browse("orders")]


def in_doubt(rm: Manager) -> set[Xid]:
    return set(rm.recover(100, SCAN))


class BatchesContract:
    @pytest.fixture
    def rm(self, host: Host) -> Manager:
        return host.connect()

    def test_what_is_listed_is_committed_and_all_else_rolled_back(self, rm: Manager) -> None:
        listed = [prepared(rm, "a", batch(), b"1", b"2"), prepared(rm, "b", batch())]
        failed = [prepared(rm, "c", batch()), prepared(rm, "d", batch(), b"3", b"4")]
        beside = [prepared(rm, "a", batch(2)), prepared(rm, "a", batch(), format_id=7)]
        decision = rm.commit_all(batch(), listed)
        assert (decision.batch, decision.xids, decision.others, decision.messages) == (batch(), tuple(listed), (), 3)
        assert decision.decided_at > 0
        assert bodies(rm) == [b"1", b"2", b"b"]
        assert in_doubt(rm) == set(beside)
        assert [rm.outcome(xid) for xid in listed] == [Outcome.COMMITTED] * 2
        assert [rm.outcome(xid) for xid in failed] == [Outcome.ROLLED_BACK] * 2
        assert [rm.outcome(xid) for xid in beside] == [Outcome.IN_DOUBT] * 2

    def test_asked_again_it_gives_the_same_decision(self, host: Host, rm: Manager) -> None:
        listed = [prepared(rm, "a", batch()), prepared(rm, "b", batch())]
        decision = rm.commit_all(batch(), listed)
        assert rm.commit_all(batch(), listed) == decision
        assert host.connect().commit_all(batch(), [Xid(ONE_SPACE, batch().gtrid, b"of a replay")]) == decision
        assert rm.decision(batch()) == decision
        host.restart()
        rm = host.connect()
        assert rm.decision(batch()) == rm.commit_all(batch(), listed) == decision
        assert bodies(rm) == [b"a", b"b"]
        assert [rm.outcome(xid) for xid in listed] == [Outcome.COMMITTED] * 2

    def test_without_one_of_them_nothing_is_done(self, rm: Manager) -> None:
        there = [prepared(rm, "a", batch()), prepared(rm, "b", batch())]
        with pytest.raises(UnknownXid, match="not prepared"):
            rm.commit_all(batch(), [*there, Xid(ONE_SPACE, batch().gtrid, b"lost")])
        assert in_doubt(rm) == set(there)
        assert bodies(rm) == []
        assert rm.decision(batch()) is None
        assert rm.commit_all(batch(), there).messages == 2

    def test_a_branch_that_is_not_prepared_yet_is_none(self, host: Host, rm: Manager) -> None:
        at_work = host.connect()
        xid = Xid(ONE_SPACE, batch().gtrid, b"at work")
        at_work.start(xid)
        at_work.enqueue("orders", b"")
        at_work.flush()
        with pytest.raises(UnknownXid):
            rm.commit_all(batch(), [xid])

    def test_a_batch_may_be_empty(self, rm: Manager) -> None:
        failed = prepared(rm, "a", batch())
        decision = rm.commit_all(batch(), [])
        assert (decision.xids, decision.messages) == ((), 0)
        assert rm.decision(batch()) == decision
        assert rm.outcome(failed) is Outcome.ROLLED_BACK

    def test_a_branch_that_comes_late_is_refused(self, host: Host, rm: Manager) -> None:
        late, later = host.connect(), host.connect()
        working = Xid(ONE_SPACE, batch().gtrid, b"late")
        late.start(working)
        late.enqueue("orders", b"late")
        late.flush()
        rm.commit_all(batch(), [prepared(rm, "a", batch())])
        with pytest.raises(RolledBack, match="too late"):
            end(late, working)
        late.rollback(working)
        with pytest.raises(RolledBack, match="too late"):
            prepared(later, "later", batch())
        assert in_doubt(rm) == set()
        assert bodies(rm) == [b"a"]

    def test_what_is_not_decided_can_be_rolled_back(self, rm: Manager) -> None:
        for bqual in ("a", "b", "c"):
            prepared(rm, bqual, batch())
        assert rm.rollback_all(batch()) == 3
        assert rm.rollback_all(batch()) == 0
        assert (in_doubt(rm), rm.decision(batch())) == (set(), None)
        rm.commit_all(batch(), [prepared(rm, "again", batch())])
        assert rm.rollback_all(batch()) == 0
        assert bodies(rm) == [b"again"]

    def test_the_decision_of_a_batch_over_several_spaces(self, host: Host, rm: Manager) -> None:
        xid = prepared(rm, "here", batch(), format_id=MANY_SPACES)
        others = [(space, Xid(MANY_SPACES, batch().gtrid, b"%d" % n)) for space in ("two", "three") for n in (1, 2)]
        decision = rm.commit_all(batch(), [xid], others)
        assert (decision.xids, decision.others) == ((xid,), tuple(others))
        host.restart()
        assert host.connect().decision(batch()) == decision

    def test_one_that_may_be_decided_elsewhere_is_not_rolled_back_alone(self, host: Host, rm: Manager) -> None:
        xids = [prepared(rm, bqual, batch(), format_id=MANY_SPACES) for bqual in ("a", "b")]
        for manager in (rm, host.connect()):
            with pytest.raises(ProtocolError, match=rf"may have committed it.*xaqueue indoubt rollback {xids[0]}"):
                manager.rollback(xids[0])
        host.decide(xids[1], False)
        assert rm.outcome(xids[0]) is Outcome.IN_DOUBT
        assert rm.commit_all(batch(2), [prepared(rm, "c", batch(2), format_id=MANY_SPACES)]).messages == 1
        assert rm.rollback_all(batch()) == 1
        rm.forget(xids[1])
        assert (bodies(rm), in_doubt(rm)) == ([b"c"], set())

    def test_one_that_is_not_prepared_yet_is_rolled_back_by_its_own(self, rm: Manager) -> None:
        xid = Xid(MANY_SPACES, batch().gtrid, b"a")
        rm.start(xid)
        rm.enqueue("orders", b"1")
        rm.end(xid)
        rm.rollback(xid)
        assert (bodies(rm), in_doubt(rm)) == ([], set())

    def test_branches_of_others_are_refused(self, rm: Manager) -> None:
        xid = prepared(rm, "a", batch())
        several = Xid(MANY_SPACES, batch().gtrid, b"a")
        with pytest.raises(InvalidArgument, match="is none of batch 1"):
            rm.commit_all(batch(), [Xid(1, batch().gtrid, b"a")])
        with pytest.raises(InvalidArgument, match="format id"):
            rm.commit_all(batch(), [xid], [("other", several)])
        assert in_doubt(rm) == {xid}

    def test_thousands_of_branches_can_be_named(self, rm: Manager) -> None:
        prepared(rm, "a", batch())
        many = [Xid(ONE_SPACE, batch().gtrid, b"%d" % number) for number in range(2500)]
        with pytest.raises(UnknownXid, match="not prepared"):
            rm.commit_all(batch(), many)

    def test_many_who_commit_it_at_once_get_one_decision(self, host: Host, rm: Manager) -> None:
        attempts = [[prepared(rm, f"{attempt}.{n}", batch(), b"%d" % n) for n in range(3)] for attempt in range(4)]
        managers = [host.connect() for _ in attempts]
        found: list[BatchDecision] = []

        def commit(manager: Manager, xids: Sequence[Xid]) -> None:
            with suppress(UnknownXid):
                found.append(manager.commit_all(batch(), xids))

        _together([partial(commit, *pair) for pair in zip(managers, attempts, strict=True)])
        assert len(found) == len(attempts)
        assert len(set(found)) == 1
        assert bodies(rm) == [b"0", b"1", b"2"]
        assert in_doubt(rm) == set()

    # What a query has written last is remembered, and from what

    def test_the_last_one_is_kept_and_older_ones_are_refused(self, host: Host, rm: Manager) -> None:
        for number in (1, 2, 4):
            last = rm.commit_all(batch(number), [prepared(rm, f"{number}", batch(number))], plan=NINE)
        for _ in ("as it was", "opened again"):
            assert [rm.decision(batch(n)) for n in range(7)] == [*[last] * 5, None, None]
            for number in (0, 2, 3):
                with pytest.raises(InvalidArgument, match=rf"batch {number} of .* up to batch 4 .* made from .*nine"):
                    rm.commit_all(batch(number), [], plan=NINE)
                with pytest.raises(RolledBack, match="has written batch 4 already"):
                    prepared(host.connect(), "late", batch(number))
            host.restart()
            rm = host.connect()
        assert (bodies(rm), in_doubt(rm)) == ([b"1", b"2", b"4"], set())
        assert rm.commit_all(Batch("another", 1), []).xids == ()

    def test_one_made_from_something_else_is_refused(self, host: Host, rm: Manager) -> None:
        """The way in which rows were lost: what is planned anew under the number of what was written."""
        decision = rm.commit_all(batch(), [prepared(rm, "a", batch())], plan=NINE)
        assert decision.plan == NINE
        other = Plan("d" * 64, '{"orders": "ten"}')
        for _ in ("as it was", "opened again"):
            with pytest.raises(InvalidArgument, match=r"is made from .*ten.* before, made from .*nine.*999.*ddd"):
                rm.commit_all(batch(), [], plan=other)
            assert rm.commit_all(batch(), [], plan=NINE) == decision
            assert rm.commit_all(batch(), []) == decision, "who cannot say what it was made from is believed"
            host.restart()
            rm = host.connect()
        assert rm.commit_all(batch(2), [prepared(rm, "b", batch(2))], plan=other).plan == other
        assert bodies(rm) == [b"a", b"b"]

    def test_one_that_goes_to_other_spaces_is_refused(self, rm: Manager) -> None:
        xid = prepared(rm, "a", batch(), format_id=MANY_SPACES)
        decision = rm.commit_all(batch(), [xid], plan=Plan(spaces=("one", "two")))
        for spaces in (("one",), ("one", "two", "three"), ("one", "three")):
            with pytest.raises(InvalidArgument, match="of id one, two and is now to go to one"):
                rm.commit_all(batch(), [], plan=Plan(spaces=spaces))
        assert rm.commit_all(batch(), [], plan=Plan(spaces=("two", "one"))) == decision
        assert rm.commit_all(batch(2), [], plan=Plan(spaces=("three",))).plan.spaces == ("three",)

    def test_what_another_space_may_have_committed_is_not_touched_without_it(self, host: Host, rm: Manager) -> None:
        xids = [prepared(rm, bqual, batch(), format_id=MANY_SPACES) for bqual in ("a@0123456789ab", "b@ba9876543210")]
        here, there = Plan(spaces=("ba9876543210ff",)), Plan(spaces=("ba9876543210ff", "0123456789abcd"))
        with pytest.raises(InvalidArgument, match=rf"id 0123456789ab... may have .* indoubt rollback {xids[0]}"):
            rm.commit_all(batch(), xids[1:], plan=here)
        assert rm.rollback_all(batch(), here.spaces) == 1
        assert in_doubt(rm) == {xids[0]}
        with pytest.raises(InvalidArgument, match="may have committed it"):
            rm.commit_all(batch(), [], plan=here)
        host.decide(xids[0], False)
        assert rm.commit_all(batch(), [], plan=here).plan == here, "an operator has looked"
        xid = prepared(rm, "c@0123456789ab", batch(2), format_id=MANY_SPACES)
        rm.commit_all(batch(2), [xid], plan=there)
        assert bodies(rm) == [b"c@0123456789ab"]

    def test_a_number_is_decided_once_however_many_come_with_another(self, host: Host, rm: Manager) -> None:
        """Two queries over copies of one checkpoint."""
        xids = {number: prepared(rm, f"{number}", batch(number)) for number in range(8)}
        managers = [host.connect() for _ in xids]

        def commit(manager: Manager, number: int) -> None:
            with suppress(InvalidArgument):
                manager.commit_all(batch(number), [xids[number]])

        _together([partial(commit, manager, number) for manager, number in zip(managers, xids, strict=True)])
        assert b"7" in bodies(rm)
        host.restart()
        last = host.connect().decision(batch(0))
        assert last is not None
        assert last.batch == batch(7)

    # What operators decided before

    def test_a_branch_that_was_rolled_back_by_hand_keeps_its_batch_undecided(self, host: Host, rm: Manager) -> None:
        xids = [prepared(rm, "a", batch()), prepared(rm, "b", batch())]
        host.decide(xids[0], False)
        with pytest.raises(HeuristicOutcome, match="nothing of batch 1") as told:
            rm.commit_all(batch(), xids)
        assert told.value.code is Code.XA_HEURRB
        assert (rm.outcome(xids[1]), rm.decision(batch())) == (Outcome.IN_DOUBT, None)
        again = [prepared(rm, "a2", batch()), prepared(rm, "b2", batch())]
        assert rm.commit_all(batch(), again).messages == 2
        assert bodies(rm) == [b"a2", b"b2"]
        assert in_doubt(rm) == set(), "the operator did what the decision says, and is forgotten"

    def test_a_branch_that_was_committed_by_hand_is_part_of_the_decision(self, host: Host, rm: Manager) -> None:
        xids = [prepared(rm, "a", batch()), prepared(rm, "b", batch())]
        host.decide(xids[0], True)
        assert rm.commit_all(batch(), xids).xids == tuple(xids)
        assert bodies(rm) == [b"a", b"b"]
        assert in_doubt(rm) == set()

    def test_what_may_be_decided_elsewhere_is_carried_out_and_the_difference_told(
        self, host: Host, rm: Manager
    ) -> None:
        xids = [prepared(rm, bqual, batch(), format_id=MANY_SPACES) for bqual in ("a", "b", "c")]
        host.decide(xids[0], False)
        for _ in range(2):
            with pytest.raises(HeuristicOutcome, match="rolled back") as told:
                rm.commit_all(batch(), xids)
            assert told.value.code is Code.XA_HEURMIX
        assert bodies(rm) == [b"b", b"c"]
        assert in_doubt(rm) == {xids[0]}
        rm.forget(xids[0])
        assert rm.commit_all(batch(), xids).xids == tuple(xids)

    def test_a_branch_outside_the_decision_that_was_committed_by_hand_is_told(self, host: Host, rm: Manager) -> None:
        failed, xid = prepared(rm, "failed", batch()), prepared(rm, "a", batch())
        host.decide(failed, True)
        with pytest.raises(HeuristicOutcome, match="committed with 1 branches") as told:
            rm.commit_all(batch(), [xid])
        assert told.value.code is Code.XA_HEURMIX
        assert sorted(bodies(rm)) == [b"a", b"failed"]
        assert rm.decision(batch()) is not None
        rm.forget(failed)
        assert rm.commit_all(batch(), [xid]).xids == (xid,)

    def test_a_single_branch_that_is_ended_by_its_own_is_no_part_of_a_batch_any_more(self, rm: Manager) -> None:
        xids = [prepared(rm, "a", batch()), prepared(rm, "b", batch())]
        rm.rollback(xids[0])
        with pytest.raises(UnknownXid):
            rm.commit_all(batch(), xids)
        rm.commit_all(batch(), xids[1:])
        with pytest.raises(UnknownXid):
            rm.commit(xids[1])


def _together(calls: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
