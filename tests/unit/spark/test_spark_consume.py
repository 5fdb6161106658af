"""A stream reserves what it reads and removes it once it is committed: nothing twice, nothing lost, nobody else's."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.block_space import put_block
from support.patience import eventually
from support.spark_space import FabricatedSpace, keep
from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.errors import ConnectionLost, InvalidArgument, QueueReserved, SpaceError
from xaqueue.features.session import Session, attach
from xaqueue.offline.reader import QueueReader
from xaqueue.reservation import Reservation

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support import spark_reading
from support.spark_reading import ALL, Query, places, rows, through_json
from xaqueue.cli import ingest
from xaqueue.lake import batches
from xaqueue.spark.source import consumer
from xaqueue.spark.source import reader as reading
from xaqueue.spark.source.source import QueueSource, StreamReader


def stream(path: object, consume: str = "delete", **options: object) -> StreamReader:
    return spark_reading.stream(path, "orders", consume=consume, **options)


class RecordingOwner:
    """An owner that writes down what it is asked, for spaces that have none; ``down`` it cannot be reached."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.down: set[str] = set()

    def reach(self, path: str, server: str | None) -> Recording:
        if path in self.down:
            raise ConnectionLost(f"nobody at {path}")
        return Recording(self, path, server)


class Recording:
    """A session with it."""

    def __init__(self, owner: RecordingOwner, path: str, server: str | None) -> None:
        self.owner, self.path, self.server = owner, path, server
        self.space = {"space": read_format(path).id}

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        self._told("reserve", queue, after, upto)
        keep(Path(self.path), queue, stream)
        return Reservation(queue, stream, latest=upto)

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        self._told("archive" if archive else "consume", queue, upto)
        return Reservation(queue, stream, consumed=upto)

    def _told(self, verb: str, *what: object) -> None:
        if self.path in self.owner.down:
            raise ConnectionLost(f"nobody at {self.path}")
        self.owner.asked.append((verb, self.path.rpartition("/")[2], *what))


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> RecordingOwner:
    recording = RecordingOwner()
    monkeypatch.setattr(consumer, "reach_owner", recording.reach)
    return recording


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    made = FabricatedSpace(tmp_path / "spaces" / "one")
    made.fill("orders", range(1, 11))
    return made


def test_a_batch_is_reserved_before_it_is_read_and_consumed_with_the_next(
    space: FabricatedSpace, owner: RecordingOwner
) -> None:
    query = Query(stream(space.root, maxMessagesPerTrigger=4))
    query.batch()
    assert owner.asked == [("reserve", "one", "orders", 0, 4)]
    query.batch()
    assert owner.asked[1:] == [("consume", "one", "orders", 4), ("reserve", "one", "orders", 4, 8)]


def test_the_last_batch_is_consumed_when_there_is_nothing_new(space: FabricatedSpace, owner: RecordingOwner) -> None:
    query = Query(stream(space.root))
    assert [len(found) for found in query.all()] == [10]
    assert owner.asked == [("reserve", "one", "orders", 0, 10), ("consume", "one", "orders", 10)]
    query.all()
    assert len(owner.asked) == 2


@pytest.mark.parametrize("queue", [{"queue": "orders"}, {"subscribe": "orders"}, {"subscribePattern": "o.*"}])
def test_nothing_is_removed_or_reserved_by_who_does_not_say_so(
    space: FabricatedSpace, owner: RecordingOwner, queue: dict[str, str]
) -> None:
    source = QueueSource({"path": str(space.root), "startingOffsets": "earliest", **queue})
    query = Query(source.streamReader(source.schema()))
    assert len(query.all()) == 1
    query.reader.commit(query.offset)
    Query(query.reader, query.offset).all()
    assert owner.asked == []
    assert list(source.reader(source.schema()).partitions())
    default = inspect.signature(ingest.ingest).parameters["consume"].default
    assert default == "keep"


def test_the_first_batch_of_a_new_query_has_no_messages_and_reserves_nothing(
    space: FabricatedSpace, owner: RecordingOwner
) -> None:
    """A sink that fails in it, whatever its kind, fails before anything is reserved; and it comes once."""
    reader = stream(space.root)
    begun = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(begun, limit)
    assert (end, rows(reader, reader.partitions(begun, end))) == (begun, [])
    assert owner.asked == []
    after = reader.latestOffset(end, limit)
    reader.commit(end)
    assert len(rows(reader, reader.partitions(end, after))) == 10
    assert owner.asked == [("reserve", "one", "orders", 0, 10)]
    owner.asked.clear()
    restarted = stream(space.root)  # and the checkpoint has that first batch
    after = restarted.latestOffset(end, limit)
    assert (len(rows(restarted, restarted.partitions(end, after))), len(owner.asked)) == (10, 1)


def test_a_query_that_has_one_batch_only_has_its_messages_in_it(space: FabricatedSpace, owner: RecordingOwner) -> None:
    """Trigger.Once: Spark admits everything, which it does at no other time."""
    reader = stream(space.root)
    begun = reader.initialOffset()
    assert reader.getDefaultReadLimit() != ALL
    assert len(rows(reader, reader.partitions(begun, reader.latestOffset(begun, ALL)))) == 10


def test_a_restarted_query_consumes_what_it_did_not_come_to(space: FabricatedSpace, owner: RecordingOwner) -> None:
    query = Query(stream(space.root))
    query.batch()
    del owner.asked[:]
    assert Query(stream(space.root), query.offset).all() == []
    assert owner.asked == [("reserve", "one", "orders", 10, 10), ("consume", "one", "orders", 10)]


@pytest.mark.parametrize(("consume", "verbs"), [("archive", {"reserve", "archive"}), ("keep", set())])
def test_it_may_be_archived_or_kept(
    space: FabricatedSpace, owner: RecordingOwner, consume: str, verbs: set[str]
) -> None:
    query = Query(stream(space.root, consume=consume, maxMessagesPerTrigger=4))
    query.all()
    query.reader.commit(query.offset)
    assert {asked[0] for asked in owner.asked} == verbs


@pytest.mark.parametrize("gone", [0b111, 0b11])
def test_to_begin_behind_what_is_gone_of_a_block_is_no_harm(tmp_path: Path, owner: RecordingOwner, gone: int) -> None:
    root = FabricatedSpace(tmp_path / "blocks").root
    put_block(root, 1, 20, gone=gone)
    query = Query(stream(root, startingOffsets=3))
    if gone == 0b111:
        assert numbers([query.batch() or []]) == list(range(4, 21))
    else:
        with pytest.raises(InvalidArgument, match="would remove them unread"):
            query.batch()


@pytest.mark.parametrize("start", ["latest", "3", '{"orders": 3}'])
def test_to_begin_behind_messages_that_would_be_removed_unread_is_refused(
    space: FabricatedSpace, owner: RecordingOwner, start: str
) -> None:
    query = Query(stream(space.root, startingOffsets=start))
    with pytest.raises(InvalidArgument, match="would remove them unread"):
        query.batch()
    assert owner.asked == []
    space.consume("orders", range(1, 11))
    query = Query(stream(space.root, startingOffsets=start))
    space.put("orders", 11)
    space.publish("orders", 11)
    assert [row["seq"] for found in query.all() for row in found] == [11]


def test_an_owner_who_does_not_answer_is_a_missing_space(tmp_path: Path, owner: RecordingOwner) -> None:
    for name in ("a", "b"):
        FabricatedSpace(tmp_path / "spaces" / name).fill("orders", range(1, 4))
    everywhere = tmp_path / "spaces" / "*"
    owner.down = {f"{tmp_path}/spaces/b"}
    with pytest.raises(SpaceError, match=r"spaces/b: its owner cannot be reached: nobody.*skipMissingSpaces"):
        Query(stream(everywhere)).batch()
    query = Query(stream(everywhere, skipMissingSpaces=True))
    assert [places(found) for found in query.all()] == [[("a", "orders", seq) for seq in (1, 2, 3)]]
    assert query.offset["spaces"][f"{tmp_path}/spaces/b"] == {"orders": 0}
    owner.down = set()
    assert [places(found) for found in query.all()] == [[("b", "orders", seq) for seq in (1, 2, 3)]]


def test_an_owner_who_goes_after_the_batch_was_planned_fails_it(space: FabricatedSpace, owner: RecordingOwner) -> None:
    query = Query(stream(space.root, skipMissingSpaces=True))
    end = query.reader.latestOffset(query.offset, ALL)
    owner.down = {str(space.root)}
    with pytest.raises(SpaceError, match=r"cannot be reserved: .*consume=keep"):
        query.reader.partitions(query.offset, end)


def test_what_could_not_be_consumed_is_consumed_later(space: FabricatedSpace, owner: RecordingOwner) -> None:
    query = Query(stream(space.root, skipMissingSpaces=True, maxMessagesPerTrigger=5))
    query.batch()
    owner.down = {str(space.root)}
    query.reader.commit(query.offset)
    owner.down = set()
    query.all()
    assert owner.asked[-1] == ("consume", "one", "orders", 10)
    owner.down = {str(space.root)}
    strict = stream(space.root)
    with pytest.raises(SpaceError, match="cannot be consumed"):
        strict.commit(query.offset)


def test_a_server_that_has_a_copy_is_told_by_its_numbers(
    space: FabricatedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, str | None]] = []

    class Elsewhere(Recording):
        def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
            return Reservation(queue, stream, latest=2)

    def reach(path: str, server: str | None) -> Elsewhere:
        given.append((path, server))
        return Elsewhere(RecordingOwner(), path, server)

    monkeypatch.setattr(consumer, "reach_owner", reach)
    with pytest.raises(InvalidArgument, match=r'serves a copy of the space\. Mend option "server"'):
        Query(stream(space.root, server="xaq://there:1")).batch()
    assert given == [(str(space.root), "xaq://there:1")]
    with pytest.raises(InvalidArgument, match='"server" is one URL and there may be several'):
        Query(stream(f"{space.root}*", server="xaq://there:1")).batch()
    with pytest.raises(InvalidArgument, match="serves a copy"):
        Query(stream(f"{space.root}*", server=f'{{"{space.root}": "xaq://here:2"}}')).batch()
    assert given[-1] == (str(space.root), "xaq://here:2")


def test_a_space_that_is_not_named_any_more_is_not_asked(tmp_path: Path, owner: RecordingOwner) -> None:
    for name in ("a", "b"):
        FabricatedSpace(tmp_path / "spaces" / name).fill("orders", range(1, 4))
    query = Query(stream(tmp_path / "spaces" / "*"))
    query.batch()
    owner.asked.clear()
    owner.down = {f"{tmp_path}/spaces/b"}
    narrowed = stream(tmp_path / "spaces" / "a")
    narrowed.commit(query.offset)
    assert Query(narrowed, query.offset).all() == []
    assert owner.asked == [("reserve", "a", "orders", 3, 3), ("consume", "a", "orders", 3)]


# With the engine behind it, in this process instead of behind a server


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    sessions: list[Session] = []

    def reach(path: str, server: str | None) -> Session:
        sessions.append(attach(path))
        return sessions[-1]

    monkeypatch.setattr(consumer, "reach_owner", reach)
    yield tmp_path / "space"
    for session in sessions:
        session.close()


@pytest.fixture
def shop(root: Path) -> Iterator[Connection]:
    """A connection to a space with ten orders."""
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        put(connection, 10)
        yield connection


def put(connection: Connection, count: int) -> None:
    for _ in range(count):
        connection.enqueue("orders", b"x")
    connection.commit()


def numbers(batches: list[list[dict[str, Any]]]) -> list[int]:
    return [row["seq"] for found in batches for row in found]


def test_a_queue_is_consumed_and_is_empty_afterwards(root: Path, shop: Connection) -> None:
    query = Query(stream(root, maxMessagesPerTrigger=3))
    assert numbers(query.all()) == list(range(1, 11))
    assert list(shop.browse("orders")) == []
    assert QueueReader(root, "orders").consumed() == 10
    put(shop, 2)
    assert numbers(query.all()) == [11, 12]


def test_a_worker_is_refused_while_a_stream_consumes(root: Path, shop: Connection) -> None:
    query = Query(stream(root, maxMessagesPerTrigger=3, streamName="to the lake"))
    query.batch()
    with pytest.raises(QueueReserved, match="to the lake"):
        shop.dequeue("orders")
    shop.rollback()
    assert numbers(query.all()) == list(range(4, 11))


def test_a_stream_is_refused_where_a_worker_has_a_message(root: Path, shop: Connection) -> None:
    assert shop.dequeue("orders") is not None
    query = Query(stream(root))
    with pytest.raises(QueueReserved):
        query.batch()
    shop.rollback()
    assert numbers(query.all()) == list(range(1, 11))


def test_a_second_stream_is_refused_and_one_that_keeps_reads_what_is_left(root: Path, shop: Connection) -> None:
    first = Query(stream(root, maxMessagesPerTrigger=4, streamName="first"))
    first.batch()
    second = Query(stream(root, streamName="second"))
    with pytest.raises(QueueReserved, match="first#"):
        second.batch()
    first.batch()
    assert numbers(Query(stream(root, consume="keep")).all()) == list(range(5, 11))
    first.all()
    with pytest.raises(QueueReserved, match="first#"):  # also where there is nothing to read
        Query(stream(root, streamName="second")).batch()
    owner = attach(root)
    owner.release("orders")
    owner.close()
    put(shop, 1)
    assert numbers(Query(stream(root, streamName="third")).all()) == [11]


@pytest.mark.parametrize("limit", [None, ALL])
def test_a_query_whose_checkpoint_was_deleted_is_told_the_way_on(root: Path, shop: Connection, limit: Any) -> None:
    """The command that the error gives, and then the number from which it reads: nothing twice, nothing passed over."""
    first = Query(stream(root, maxMessagesPerTrigger=4))
    first.batch()
    first.batch()
    with pytest.raises(QueueReserved) as raised:
        Query(stream(root)).batch(limit)
    (command,) = re.findall("`xaqueue (.+?)`", str(raised.value))
    assert f"stream {first.begun['stream']}" in str(raised.value)
    assert "reads from message 5 on" in str(raised.value)
    assert command == f"release orders --space {root}"
    owner = attach(root)
    owner.release("orders")
    owner.close()
    assert numbers(Query(stream(root)).all()) == list(range(5, 11))


def test_a_batch_is_replayed_whole_after_a_crash(root: Path, shop: Connection) -> None:
    query = Query(stream(root, maxMessagesPerTrigger=4))
    query.batch()
    begun = query.offset
    end = query.reader.latestOffset(begun, query.reader.getDefaultReadLimit())
    query.reader.commit(begun)
    query.reader.partitions(begun, end)
    put(shop, 3)
    restarted = stream(root, maxMessagesPerTrigger=4)
    assert [row["seq"] for row in rows(restarted, restarted.partitions(begun, end))] == [5, 6, 7, 8]
    assert numbers(Query(restarted, end).all()) == [9, 10, 11, 12, 13]


class Killed(Exception):
    """The driver is gone."""


class Job:
    """What Spark keeps of an availableNow query and its sink, and its calls in their order; each run is a new process.

    It is killed before step number ``dies_at``, counted from 0.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.offsets: list[dict[str, Any]] = []
        self.done = -1
        self.sink: dict[int, list[dict[str, Any]]] = {}
        self.steps = 0

    def run(self, dies_at: float = inf) -> None:
        self.steps = 0
        self._dies_at = dies_at
        reader = stream(self.root, maxMessagesPerTrigger=4)
        begun = None
        if not self.offsets:
            begun = self._step(reader.initialOffset)
        self._step(reader.prepareForTriggerAvailableNow)
        if self.done < len(self.offsets) - 1:
            self._batch(reader, begun)
        while True:
            start = self.offsets[-1] if self.offsets else begun
            assert start is not None
            end = through_json(self._step(reader.latestOffset, start, reader.getDefaultReadLimit()))
            if self.offsets and end == start:
                return
            self._step(self.offsets.append, end)
            if len(self.offsets) > 1:
                self._step(reader.commit, start)
            self._batch(reader, begun)

    def _batch(self, reader: StreamReader, begun: dict[str, Any] | None) -> None:
        number = len(self.offsets) - 1
        start = self.offsets[number - 1] if number else begun or reader.initialOffset()
        tasks = self._step(reader.partitions, start, self.offsets[number])
        found = self._step(rows, reader, tasks)
        self._step(self.sink.__setitem__, number, found)
        self._step(setattr, self, "done", number)

    def _step(self, call: Callable[..., Any], *given: Any) -> Any:
        if self.steps == self._dies_at:
            raise Killed
        self.steps += 1
        return call(*given)


def test_a_job_that_is_killed_at_any_step_reads_all_when_it_is_run_again(root: Path) -> None:
    """Also in its first batch, which is empty: it is not over before the messages are read."""
    for dies_at in range(100):
        space = root.with_name(f"space{dies_at}")
        with xaqueue.connect(space, create=True, sync="NONE") as connection:
            put(connection, 10)
        job = Job(space)
        try:
            job.run(dies_at)
        except Killed:
            job.run()
            assert numbers([*job.sink.values()]) == list(range(1, 11)), dies_at
        else:
            assert dies_at > 20
            return
    pytest.fail("it never came to its end")


def test_a_checkpoint_older_than_what_was_consumed_is_an_error_or_told(root: Path, shop: Connection) -> None:
    query = Query(stream(root, maxMessagesPerTrigger=4))
    query.batch()
    old, end = query.begun, query.offset
    query.batch()
    restored = stream(root)
    with pytest.raises(SpaceError, match=r"is consumed to 4 by stream .*failOnDataLoss=false"):
        restored.partitions(old, end)
    lossy = stream(root, failOnDataLoss=False)
    assert rows(lossy, lossy.partitions(old, end)) == []


def test_a_stream_opens_a_space_that_nobody_did_since_the_machine_went_down(root: Path) -> None:
    with xaqueue.connect(root, create=True, sync="JOURNAL") as connection:
        put(connection, 3)
    owner_file = root / layout.OWNER
    left = json.loads(owner_file.read_bytes())
    owner_file.write_text(json.dumps(left | {"boot": "an earlier one", "journalled": True}))
    with pytest.raises(SpaceError, match="was not opened since the machine went down"):
        stream(root, consume="keep")
    assert numbers(Query(stream(root)).all()) == [1, 2, 3]


@pytest.mark.parametrize("committed", [True, False])
def test_a_stream_that_kept_does_not_begin_to_consume_what_it_never_read(
    root: Path, shop: Connection, committed: bool
) -> None:
    query = Query(stream(root, consume="keep", startingOffsets=4, maxMessagesPerTrigger=3))
    query.batch()
    begun, _ = query.offset, query.batch()
    consuming, end = stream(root), query.offset
    resumed = Query(consuming, end).batch if committed else partial(consuming.partitions, begun, end)
    with pytest.raises(InvalidArgument, match=r"behind \d+ of queue 'orders' .* remove them unread.*new checkpoint"):
        resumed()
    assert len(list(shop.browse("orders"))) == 10


def test_a_stream_that_kept_from_the_front_may_consume(root: Path, shop: Connection) -> None:
    query = Query(stream(root, consume="keep", maxMessagesPerTrigger=4))
    query.batch()
    assert numbers(Query(stream(root), query.offset).all()) == list(range(5, 11))
    assert list(shop.browse("orders")) == []


def test_a_space_that_was_renamed_is_refused_and_not_read_twice(root: Path, shop: Connection) -> None:
    """What was read last is in the queue yet, and the offsets know it by another path."""
    query = Query(stream(root))
    assert numbers([query.batch() or []]) == list(range(1, 11))
    renamed = root.rename(root.with_name("renamed"))
    with pytest.raises(SpaceError, match=r"'orders' of \S+/renamed .* read it as \S+/space .*its former path"):
        Query(stream(renamed), query.offset).batch()
    renamed.rename(root)
    assert Query(stream(root), query.offset).all() == []


def test_a_start_below_what_was_consumed_is_an_error_or_told(root: Path, shop: Connection) -> None:
    Query(stream(root)).all()
    put(shop, 1)
    with pytest.raises(SpaceError, match=r"startingOffsets 4 of queue 'orders' .* lies below 10"):
        Query(stream(root, consume="keep", startingOffsets=4))
    for options in ({"startingOffsets": 4, "failOnDataLoss": False}, {"startingOffsets": "earliest"}):
        assert numbers(Query(stream(root, consume="keep", **options)).all()) == [11]


def test_what_another_stream_takes_meanwhile_is_no_silent_gap(root: Path, shop: Connection) -> None:
    keeps = stream(root, consume="keep")
    begun = keeps.initialOffset()
    end = keeps.latestOffset(begun, ALL)
    shares = keeps.partitions(begun, end)
    Query(stream(root, maxMessagesPerTrigger=4, streamName="quick")).all()
    with pytest.raises(SpaceError, match=r"was consumed to 10 by stream quick#.* while \(0, 10\] was read"):
        rows(keeps, shares)
    lossy = stream(root, consume="keep", failOnDataLoss=False)
    assert rows(lossy, shares) == []


def test_a_queue_released_while_it_is_read_is_no_silent_gap(
    root: Path, shop: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SEEN_S", 0.0)
    monkeypatch.setattr(batches, "BATCH_ROWS", 1)
    reader = stream(root)
    begun = reader.initialOffset()
    end = reader.latestOffset(begun, ALL)
    (share,) = reader.partitions(begun, end)
    given = reader.read(share)
    next(given)
    owner = attach(root)
    owner.release("orders")
    owner.close()
    assert shop.dequeue("orders") is not None
    shop.commit()
    with pytest.raises(SpaceError, match=r"was released from stream .* while it was read"):
        list(given)
    with pytest.raises(SpaceError, match=r"not reserved for stream .*: it was released"):
        rows(reader, [share])
    with pytest.raises(QueueReserved):
        reader.partitions(begun, end)


def test_archived_messages_are_kept_beside_the_queue(root: Path, shop: Connection) -> None:
    files = {path.name for path in root.glob("committed/queue=orders/range=*/*")}
    assert numbers(Query(stream(root, consume="archive")).all()) == list(range(1, 11))
    assert list(shop.browse("orders")) == []
    eventually(lambda: {path.name for path in root.glob("archive/queue=orders/range=*/*")} == files)
    assert len(files) == 10
