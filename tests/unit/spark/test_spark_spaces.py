"""Many spaces and queues are one stream: each message once, whoever joins, goes, comes back or hangs meanwhile."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from support.spark_space import FabricatedSpace
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format as format_of_space
from xaqueue.core.model.layout import RANGE_SIZE
from xaqueue.errors import InvalidArgument, SpaceError, UnknownQueue

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark.sql.streaming.datasource import ReadMaxRows

from support.spark_reading import ALL, Query, places, rows, stream
from xaqueue.spark.source import plan
from xaqueue.spark.source.consumer import Consumer
from xaqueue.spark.source.options import parse
from xaqueue.spark.source.reader import ReadTask
from xaqueue.spark.source.snapshot import THREADS, call_with_deadline
from xaqueue.spark.source.source import QueueSource


@pytest.fixture
def spaces(tmp_path: Path) -> Path:
    """The directory of spaces ``a`` with orders 1 to 5, and ``b`` with orders 1 to 3 and bills 1 and 2."""
    one, other = FabricatedSpace(tmp_path / "spaces" / "a"), FabricatedSpace(tmp_path / "spaces" / "b")
    one.fill("orders", range(1, 6))
    other.fill("orders", range(1, 4))
    other.fill("bills", range(1, 3))
    return tmp_path / "spaces"


def kept(path: object, queue: str = "orders", **options: object) -> Query:
    return Query(stream(path, queue, **{"consume": "keep"} | options))


def reopened(root: Path) -> FabricatedSpace:
    """A handle on a space that is there."""
    space = FabricatedSpace.__new__(FabricatedSpace)
    space.root = root
    return space


ORDERS = [*(("a", "orders", seq) for seq in range(1, 6)), *(("b", "orders", seq) for seq in range(1, 4))]
BILLS = [("b", "bills", 1), ("b", "bills", 2)]


@pytest.mark.parametrize(
    ("paths", "queue", "expected"),
    [
        ("*", "orders", ORDERS),
        ("[ab]", "orders", ORDERS),
        ("a,b", "orders", ORDERS),
        ("b,a,a", "orders", ORDERS),
        ("a", "orders", ORDERS[:5]),
        ("*", "*", sorted(ORDERS + BILLS)),
        ("*", "orders,bills", sorted(ORDERS + BILLS)),
        ("*", "b*", BILLS),
        ("b", "b*,ord?rs", BILLS + ORDERS[5:]),
    ],
)
def test_paths_and_queues_are_names_lists_and_patterns(
    spaces: Path, paths: str, queue: str, expected: list[tuple[str, str, int]]
) -> None:
    path = ",".join(str(spaces / part) for part in paths.split(","))
    (found,) = kept(path, queue).all()
    assert places(found) == expected


def test_load_with_a_list_of_paths_is_the_same(spaces: Path) -> None:
    source = QueueSource({"paths": f'["{spaces}/a", "{spaces}/b"]', "queue": "orders"})
    reader = source.reader(source.schema())
    assert places(rows(reader, reader.partitions())) == ORDERS


def test_a_space_under_two_paths_is_refused_and_not_read_twice(spaces: Path) -> None:
    (spaces / "link").symlink_to(spaces / "a")
    for path in (spaces / "*", f"{spaces}/a,{spaces}/link"):
        with pytest.raises(InvalidArgument, match=r"spaces/a and \S+spaces/link are one space.*name it once"):
            kept(path)


def test_a_link_that_comes_later_is_refused_too(spaces: Path) -> None:
    query = kept(spaces / "*")
    query.all()
    (spaces / "0").symlink_to(spaces / "a")
    with pytest.raises(InvalidArgument, match="are one space"):
        query.batch()


def test_another_space_under_the_same_path_is_refused(spaces: Path) -> None:
    """Its numbers are others: what lies below the stream's would be passed over, and consumed unread."""
    query = kept(spaces / "*")
    begun = query.begun
    query.all()
    (spaces / "a").rename(spaces / "../away")
    other = FabricatedSpace(spaces / "a")
    (other.root / layout.FORMAT).write_text(f"xaqueue 1 other {UUID(int=0xABCDEF << 104)}\n")
    other.fill("orders", range(1, 20))
    with pytest.raises(SpaceError, match=r"spaces/a is another space .* \(abcdef00 and not 00000000\).*checkpoint"):
        query.batch()
    with pytest.raises(SpaceError, match="is another space"):
        query.reader.partitions(begun, query.offset)


def test_an_offset_that_does_not_say_which_spaces_it_is_of_is_gone_on_with(spaces: Path) -> None:
    before = {"stream": "s#1", "spaces": {f"{spaces}/b": {"orders": 1}}}
    query = Query(stream(spaces / "b", consume="keep"), before)
    assert [places(found) for found in query.all()] == [[("b", "orders", 2), ("b", "orders", 3)]]
    assert query.offset["ids"] == {f"{spaces}/b": "00000000"}


def test_what_is_no_space_is_not_matched(spaces: Path) -> None:
    (spaces / "lost+found").mkdir()
    (spaces / "note").write_text("x")
    (found,) = kept(spaces / "*").all()
    assert places(found) == ORDERS


def test_a_pattern_that_matches_no_space_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"no queue space matches .*mend the pattern"):
        kept(tmp_path / "*")


def test_a_queue_that_no_space_knows_is_refused_with_the_known_ones(spaces: Path) -> None:
    with pytest.raises(UnknownQueue, match=r"has no queue 'bils': did you mean 'bills'\? Its queues are bills, orders"):
        kept(spaces / "*", "bils,orders")


@pytest.mark.parametrize("consume", ["keep", "delete"])
@pytest.mark.parametrize("kind", ["queue", "subscribe"])
def test_a_queue_that_may_come_is_refused_unless_it_is_to_be_waited_for(spaces: Path, kind: str, consume: str) -> None:
    (spaces / "a" / layout.QUEUES).write_text("[default]\n")
    options = {"path": str(spaces / "a"), kind: "ordrs", "consume": consume}
    with pytest.raises(
        UnknownQueue, match=r"did you mean 'orders'\?.*`xaqueue define ordrs --space \S+/a`.*createQueues"
    ):
        QueueSource(options).streamReader(QueueSource(options).schema())
    told = {"createQueues": "true"}
    QueueSource(options | told).streamReader(QueueSource(options).schema())
    (spaces / "a" / layout.QUEUES).write_text("")
    with pytest.raises(UnknownQueue) as raised:
        QueueSource(options | told).streamReader(QueueSource(options).schema())
    assert "createQueues" not in str(raised.value)


def test_a_queue_that_one_of_the_spaces_has_is_enough(spaces: Path) -> None:
    (found,) = kept(spaces / "*", "bills").all()
    assert places(found) == BILLS


def test_a_queue_that_is_to_be_waited_for_is_read_when_it_comes(spaces: Path, caplog: pytest.LogCaptureFixture) -> None:
    (spaces / "a" / layout.QUEUES).write_text("[default]\n[queues.planned]\n")
    query = Query(stream(spaces / "*", "later,planned,orders", createQueues=True))
    assert len(query.all()) == 1
    reopened(spaces / "a").fill("later", [1])
    assert [places(found) for found in query.all()] == [[("a", "later", 1)]]
    assert len(Query(stream(spaces / "a", "orders,planned")).all()) == 1
    assert not caplog.records


@pytest.mark.parametrize("consume", ["keep", "delete"])
def test_a_space_that_has_gone_is_not_to_be_made_anew(
    spaces: Path, monkeypatch: pytest.MonkeyPatch, consume: str
) -> None:
    """Its disk may be away: a new space in its place would begin at number one, and know of nothing."""
    query = Query(stream(spaces / "a", consume=consume))
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "connect", lambda *_: {})
        end = query.reader.latestOffset(query.offset, ALL)
    shutil.rmtree(spaces / "a")
    wanted = {str(spaces / "a"): {"orders": (0, 1)}}
    for step in (
        lambda: stream(spaces / "a", consume=consume),
        lambda: query.reader.latestOffset(end, ALL),
        lambda: query.reader.partitions(query.offset, end),
        lambda: Consumer(parse({"path": str(spaces / "a"), "queue": "orders"})).reserve("s#1", wanted),
    ):
        with pytest.raises(SpaceError, match="no queue space: mend the path, or bring back") as raised:
            step()
        assert "init" not in str(raised.value)


def test_a_new_space_and_a_new_queue_join_from_their_beginning(spaces: Path) -> None:
    query = kept(spaces / "*", "*", startingOffsets="latest")
    assert query.all() == []
    FabricatedSpace(spaces / "c").fill("orders", range(1, 4))
    assert [places(found) for found in query.all()] == [[("c", "orders", seq) for seq in (1, 2, 3)]]
    reopened(spaces / "a").fill("letters", [1])
    assert [places(found) for found in query.all()] == [[("a", "letters", 1)]]
    reopened(spaces / "c").put("orders", 4)
    reopened(spaces / "c").publish("orders", 4)
    assert [places(found) for found in query.all()] == [[("c", "orders", 4)]]


def test_where_a_first_batch_began_is_in_the_offset_of_its_end(spaces: Path) -> None:
    """A restart before the first batch was done makes another initial offset: it must not count."""
    query = kept(spaces / "*", startingOffsets="latest")
    reopened(spaces / "a").put("orders", 6)
    reopened(spaces / "a").publish("orders", 6)
    end = query.reader.latestOffset(query.offset, ALL)
    restarted = stream(spaces / "*", consume="keep", startingOffsets="latest")
    begun = restarted.initialOffset()
    assert begun["spaces"][f"{spaces}/a"] == {"orders": 6}
    assert places(rows(restarted, restarted.partitions(begun, end))) == [("a", "orders", 6)]


def test_nothing_new_is_the_same_offset(spaces: Path) -> None:
    query = kept(spaces / "*", "*")
    query.all()
    FabricatedSpace(spaces / "empty")
    assert query.reader.latestOffset(query.offset, ALL) == query.offset


def test_a_space_that_is_gone_fails_the_query_and_says_what_to_do(spaces: Path) -> None:
    query = kept(spaces / "*")
    assert len(query.all()) == 1
    (spaces / "b").rename(spaces / "../away")
    with pytest.raises(SpaceError, match=f"{spaces}/b is no queue space.*skipMissingSpaces"):
        query.batch()


def test_a_space_that_is_skipped_goes_on_where_it_was(spaces: Path) -> None:
    query = kept(spaces / "*", skipMissingSpaces=True)
    query.all()
    (spaces / "b").rename(spaces / "../away")
    reopened(spaces / "a").put("orders", 6)
    reopened(spaces / "a").publish("orders", 6)
    assert [places(found) for found in query.all()] == [[("a", "orders", 6)]]
    assert query.offset["spaces"][f"{spaces}/b"] == {"orders": 3}
    (spaces / "../away").rename(spaces / "b")
    reopened(spaces / "b").put("orders", 4)
    reopened(spaces / "b").publish("orders", 4)
    assert [places(found) for found in query.all()] == [[("b", "orders", 4)]]


def test_what_is_not_named_any_more_is_not_read_any_more_and_its_offset_stays(spaces: Path) -> None:
    query = kept(spaces / "*", "*")
    query.all()
    for name in ("a", "b"):
        reopened(spaces / name).fill("orders", range(6, 8))
    reopened(spaces / "b").fill("bills", [3])
    (spaces / "b").rename(spaces / "../away")
    narrowed = Query(stream(spaces / "a", "orders", consume="keep"), query.offset)
    assert [places(found) for found in narrowed.all()] == [[("a", "orders", 6), ("a", "orders", 7)]]
    assert narrowed.offset["spaces"][f"{spaces}/b"] == {"bills": 2, "orders": 3}
    (spaces / "../away").rename(spaces / "b")
    bills = Query(stream(spaces / "*", "bills", consume="keep"), narrowed.offset)
    assert [places(found) for found in bills.all()] == [[("b", "bills", 3)]]


def test_what_is_missing_is_told_once(spaces: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = kept(spaces / "*", skipMissingSpaces=True)
    query.all()
    (spaces / "b").rename(spaces / "../away")
    for _ in range(5):
        assert query.batch() is None
    assert [record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [
        f"[space-missing] left out until they are back: {spaces}/b is no queue space: mend the path, or bring back "
        "the disk that it is on"
    ]


def test_a_batch_that_was_written_down_is_not_read_without_its_spaces(spaces: Path) -> None:
    query = kept(spaces / "*", skipMissingSpaces=True)
    end = query.reader.latestOffset(query.offset, ALL)
    (spaces / "b").rename(spaces / "../away")
    with pytest.raises(SpaceError, match=r"bring the space back.*failOnDataLoss=false"):
        query.reader.partitions(query.offset, end)
    lossy = stream(spaces / "*", consume="keep", skipMissingSpaces=True, failOnDataLoss=False)
    assert places(rows(lossy, lossy.partitions(query.offset, end))) == ORDERS[:5]


def test_missing_spaces_are_skipped_at_the_start_as_long_as_one_is_there(spaces: Path) -> None:
    path = f"{spaces}/a,{spaces}/none"
    with pytest.raises(SpaceError, match=r"none is no queue space.*skipMissingSpaces"):
        kept(path)
    (found,) = kept(path, skipMissingSpaces=True).all()
    assert places(found) == ORDERS[:5]
    with pytest.raises(SpaceError, match="none is no queue space"):
        kept(spaces / "none", skipMissingSpaces=True)


@pytest.fixture
def hung(spaces: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Space b does not answer until the event is set."""
    answers = threading.Event()

    def read_format(path: str, *, is_expected: bool) -> object:
        if path.endswith("/b"):
            answers.wait()
        return format_of_space(path, is_expected=is_expected)

    monkeypatch.setattr("xaqueue.lake.place.read_format", read_format)
    yield answers
    answers.set()


def test_a_space_that_hangs_is_missing_for_the_batch(spaces: Path, hung: threading.Event) -> None:
    with pytest.raises(SpaceError, match="b does not answer within 1 seconds"):
        kept(spaces / "*", spaceTimeout=1)
    query = kept(spaces / "*", skipMissingSpaces=True, spaceTimeout=1)
    assert [places(found) for found in query.all()] == [ORDERS[:5]]
    hung.set()
    while (found := query.batch()) is None:
        pass  # until the thread that hung is back
    assert places(found) == ORDERS[5:]


def test_one_that_hangs_keeps_no_thread_from_the_others() -> None:
    """More hang than there are threads: each has its time, and those behind them are asked all the same."""
    release, stuck = threading.Event(), dict[str, Future[Any]]()
    hanging = {f"hanging {number}" for number in range(THREADS + 3)}

    def question(place: str) -> str:
        if place in hanging:
            release.wait()
        return place.upper()

    answers, failures = call_with_deadline(question, [*sorted(hanging), "sound"], 0.3, stuck)
    assert answers == {"sound": "SOUND"}
    assert set(failures) == hanging
    answers, failures = call_with_deadline(question, ["sound", "hanging 1"], 60, stuck)
    assert answers == {"sound": "SOUND"}
    assert "still does not answer" in str(failures["hanging 1"])
    release.set()
    while "hanging 1" not in answers:
        answers, _ = call_with_deadline(question, ["hanging 1"], 60, stuck)
    assert answers == {"hanging 1": "HANGING 1"}


def test_what_a_question_raises_is_the_failure() -> None:
    def question(place: str) -> str:
        raise KeyError(place)

    answers, failures = call_with_deadline(question, ["one", "other"], 60, {}, (KeyError,))
    assert answers == {}
    assert {place: type(failure) for place, failure in failures.items()} == {"one": KeyError, "other": KeyError}
    with pytest.raises(KeyError):
        call_with_deadline(question, ["one"], 60, {})


def test_a_limit_is_shared_fairly_and_the_largest_lag_starves_nobody(spaces: Path) -> None:
    reopened(spaces / "a").fill("orders", range(1, 61))
    found = kept(spaces / "*", "*", maxOffsetsPerTrigger=9).batch()
    assert found is not None
    assert places(found) == [*(("a", "orders", seq) for seq in range(1, 5)), *BILLS, *ORDERS[5:]]
    many = kept(spaces / "*", "*", maxMessagesPerTrigger=9).all()
    assert all(len(found) <= 9 for found in many)
    assert sorted(place for found in many for place in places(found)) == [
        *(("a", "orders", seq) for seq in range(1, 61)),
        *BILLS,
        *ORDERS[5:],
    ]


def test_a_limit_below_the_number_of_queues_serves_them_by_turns(spaces: Path) -> None:
    batches = [places(found) for found in kept(spaces / "*", "*", maxMessagesPerTrigger=1).all()]
    assert [len(found) for found in batches] == [1] * 10
    assert {(space, queue) for ((space, queue, _),) in batches[:3]} == {
        ("a", "orders"),
        ("b", "orders"),
        ("b", "bills"),
    }


@pytest.mark.parametrize(
    ("sizes", "most", "turn", "expected"),
    [
        ([5, 5], 100, 0, [5, 5]),
        ([100, 2, 50], 12, 0, [5, 2, 5]),
        ([100, 100, 100], 4, 0, [2, 1, 1]),
        ([100, 100, 100], 4, 2, [1, 1, 2]),
        ([7, 7, 7], 2, 1, [0, 1, 1]),
        ([0, 9], 3, 5, [0, 3]),
        ([], 3, 0, []),
    ],
)
def test_fair_shares(sizes: list[int], most: int, turn: int, expected: list[int]) -> None:
    assert plan.fair_shares(sizes, most, turn) == expected


def test_available_now_ends_at_what_all_spaces_had_when_it_began(spaces: Path) -> None:
    query = kept(spaces / "*", "*")
    query.reader.prepareForTriggerAvailableNow()
    reopened(spaces / "a").fill("orders", range(6, 9))
    FabricatedSpace(spaces / "c").fill("orders", [1])
    batches = query.all(ReadMaxRows(4))
    assert sorted(place for found in batches for place in places(found)) == sorted(ORDERS + BILLS)
    assert query.reader.reportLatestOffset()["spaces"][f"{spaces}/a"] == {"orders": 8}


def test_partitions_hold_parts_of_several_queues(spaces: Path) -> None:
    for wanted in (1, 2, 3, 10, 100):
        reader = stream(spaces / "*", "*", consume="keep", minPartitions=wanted)
        begun = reader.initialOffset()
        shares = reader.partitions(begun, reader.latestOffset(begun, ALL))
        assert len(shares) == min(wanted, 10)
        assert all(isinstance(share, ReadTask) and share.spans for share in shares)
        assert places(rows(reader, shares)) == sorted(ORDERS + BILLS)


def test_dealing_covers_every_number_once() -> None:
    spans = [
        plan.QueueSpan("one", 3, 40, [plan.Span(3, 10), plan.Span(20, 33)]),
        plan.QueueSpan("gone", 0, 7, []),
        plan.QueueSpan("two", 0, 5, [plan.Span(0, 5)]),
    ]
    for pieces in range(1, 30):
        tasks = plan.partition(spans, pieces)
        covered = [(key, seq) for task in tasks for key, span in task for seq in range(span.after + 1, span.upto + 1)]
        assert covered == [
            *(("one", seq) for seq in range(4, 41)),
            *(("gone", seq) for seq in range(1, 8)),
            *(("two", seq) for seq in range(1, 6)),
        ]
        assert len(tasks) <= pieces


def sizes_of(found: list[dict[str, object]] | None) -> list[object]:
    assert found is not None
    return [(row["seq"], len(row["body"])) for row in found]  # type: ignore[arg-type]


def test_a_limit_in_bytes_is_kept_by_the_files_themselves(tmp_path: Path) -> None:
    space = FabricatedSpace(tmp_path / "space")
    space.fill("orders", range(1, 11), content=b"x" * 1_000)
    size = space.path("orders", 1).stat().st_size
    query = kept(space.root, maxBytesPerTrigger=3 * size + size // 2)
    assert [len(found) for found in query.all()] == [3, 3, 3, 1]


def test_of_two_limits_the_first_that_is_reached_counts(tmp_path: Path) -> None:
    space = FabricatedSpace(tmp_path / "space")
    space.fill("orders", range(1, 7), content=b"x")
    for seq in range(7, 13):
        space.put("orders", seq, b"x" * 1_000)
    space.publish("orders", 12)
    size = space.path("orders", 12).stat().st_size
    query = kept(space.root, maxMessagesPerTrigger=4, maxBytesPerTrigger=2 * size)
    assert [[row["seq"] for row in found] for found in query.all()] == [[1, 2, 3, 4], [5, 6, 7], [8, 9], [10, 11], [12]]


def test_a_message_over_the_limit_in_bytes_comes_alone(tmp_path: Path) -> None:
    space = FabricatedSpace(tmp_path / "space")
    space.fill("orders", range(1, 4), content=b"x" * 500)
    assert [len(found) for found in kept(space.root, maxBytesPerTrigger=10).all()] == [1, 1, 1]


def test_bytes_are_shared_fairly_and_gaps_are_passed_over(tmp_path: Path) -> None:
    far = 3 * RANGE_SIZE
    for name in ("a", "b"):
        space = FabricatedSpace(tmp_path / "spaces" / name)
        space.fill("orders", [1, far, far + 1], content=b"x" * 100)
        space.publish("orders", far + 9)
    size = space.path("orders", 1).stat().st_size
    batches = [places(found) for found in kept(tmp_path / "spaces" / "*", maxBytesPerTrigger=4 * size).all()]
    assert batches == [
        [("a", "orders", 1), ("a", "orders", far), ("b", "orders", 1), ("b", "orders", far)],
        [("a", "orders", far + 1), ("b", "orders", far + 1)],
    ]


def test_planning_by_bytes_looks_at_no_more_files_than_the_batch_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = FabricatedSpace(tmp_path / "space")
    space.fill("orders", range(1, 200), content=b"x")
    reader = stream(space.root, consume="keep", maxBytesPerTrigger=10 * space.path("orders", 1).stat().st_size)
    begun, looked = reader.initialOffset(), []
    real: Callable[..., os.stat_result] = os.stat

    def stat(name: object, **where: object) -> os.stat_result:
        if "dir_fd" in where:
            looked.append(name)
        return real(name, **where)

    monkeypatch.setattr(os, "stat", stat)
    end = reader.latestOffset(begun, reader.getDefaultReadLimit())
    assert end["spaces"][str(space.root)] == {"orders": 10}
    assert len(looked) <= 12
