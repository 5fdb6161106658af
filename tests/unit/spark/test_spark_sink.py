"""The sink's own parts, called as Spark calls them: a batch is committed once, whoever was lost on the way."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from support.sink_scene import QUERY, Scene, as_bytes, texts
from xaqueue.batch import ONE_SPACE, parse_gtrid
from xaqueue.core.model import definitions
from xaqueue.core.owner import open as attach_room
from xaqueue.errors import (
    ConnectionLost,
    InvalidArgument,
    OperationalError,
    OutcomeUnknown,
    RolledBack,
    SpaceError,
    UnknownQueue,
    UnknownXid,
)
from xaqueue.rpc.client.manager import RemoteManager, remote_manager
from xaqueue.spark import batch_commit, sink
from xaqueue.spark import sink_task as branches
from xaqueue.spark.batch_commit import way_on
from xaqueue.xa import Flag, Vote
from xaqueue.xid import Xid


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.stop()


def told_by_spark(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Not of the server, which says who is connected."""
    return [record for record in caplog.records if record.name == "xaqueue.spark"]


def test_a_batch_is_seen_once_it_is_committed(scene: Scene) -> None:
    parts = [texts(1, 2), texts(3), texts()]
    writer = scene.stream(parts[0])
    messages = scene.tasks(writer, parts)
    assert [message.messages for message in messages] == [2, 1, 0]
    assert (scene.bodies(), scene.in_doubt()) == ([], 2)
    writer.commit(messages, 0)
    assert (scene.bodies(), scene.in_doubt()) == (as_bytes([1, 2, 3]), 0)


def test_what_a_task_says_and_the_names_of_its_branches(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "BRANCH_ROWS", 2)
    table = texts(1, 2, 3, 4, 5)
    message = scene.task(scene.stream(table), table, number=7, partition=3)
    assert pickle.loads(pickle.dumps(message)) == message
    assert (message.batch.query, message.batch.number, message.space, message.messages) == (QUERY, 7, 0, 5)
    assert len(message.xids) == 3
    assert {xid.format_id for xid in message.xids} == {ONE_SPACE}
    assert {parse_gtrid(xid.gtrid) for xid in message.xids} == {(QUERY.replace("-", ""), 7)}
    assert [xid.bqual.decode().split(".")[::3] for xid in message.xids] == [["p3", "0"], ["p3", "1"], ["p3", "2"]]


def test_large_rows_end_a_branch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "BRANCH_BYTES", 5)
    table = texts("12", "34", "5", "6", "123456789")
    assert len(scene.task(scene.stream(table), table).xids) == 3


def test_what_comes_together_lies_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that failed, one that counts, and the batch once more: each message once, in its order."""
    monkeypatch.setattr(definitions, "BLOCKS", definitions.MANY)
    scene = Scene(tmp_path, monkeypatch, sync="JOURNAL")
    try:
        table = pa.table({"body": [f"{n:02}" for n in range(60)], "group": [None] * 20 + ["g"] * 20 + [None] * 20})
        writer = scene.stream(table)
        scene.task(writer, table)
        messages: list[Any] = [scene.task(writer, table)]
        assert (scene.bodies(), scene.in_doubt()) == ([], 2)
        for _ in range(2):
            writer.commit(messages, 0)
            messages = [scene.task(writer, table)]
        assert scene.in_doubt() == 0
        with closing(remote_manager(scene.servers[0].url)) as manager:
            found = [(message.body, message.properties.group) for message in manager.browse("orders")]
    finally:
        scene.stop()
    assert found == [(b"%02d" % n, "g" if 20 <= n < 40 else None) for n in range(60)]
    files = [path.name[16:20] for path in (scene.roots[0] / "committed").rglob("range=*/*")]
    assert files == ["+03c"]


def test_a_writer_can_be_pickled(scene: Scene) -> None:
    table = texts(1)
    for made in (scene.stream(table), scene.batch(table)):
        writer: Any = pickle.loads(pickle.dumps(made))
        message = scene.task(writer, table)
        assert message.messages == 1


def test_a_batch_that_is_written_again_is_not_written_twice(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    writer.commit(scene.tasks(writer, [texts(1, 2)]), 0)
    again = scene.tasks(writer, [texts(1), texts(2)])
    assert [message.xids for message in again] == [[], []]
    writer.commit(again, 0)
    assert (scene.bodies(), scene.in_doubt()) == (as_bytes([1, 2]), 0)


def test_the_driver_is_asked_twice_with_other_branches(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    one, two = (scene.tasks(writer, [texts(1, 2)]) for _ in range(2))
    for messages in (two, one):
        writer.commit(messages, 0)
    assert (scene.bodies(), scene.in_doubt()) == (as_bytes([1, 2]), 0)


def test_attempts_that_failed_are_rolled_back_with_the_decision(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    for _ in range(3):
        messages = scene.tasks(writer, [texts(1)])
    assert scene.in_doubt() == 3
    writer.commit(messages, 0)
    assert (scene.bodies(), scene.in_doubt()) == ([b"1"], 0)


def test_an_attempt_that_comes_late_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = scene.stream(texts(1))
    writer.commit(scene.tasks(writer, [texts(1)]), 0)
    monkeypatch.setattr(RemoteManager, "decision", lambda *_: None)  # it looked before
    with pytest.raises(RolledBack):
        scene.task(writer, texts(1))
    assert (scene.bodies(), scene.in_doubt()) == ([b"1"], 0)


def test_a_task_that_fails_leaves_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "BRANCH_ROWS", 1)
    table = pa.table({"body": ["1", "2", None]})
    with pytest.raises(InvalidArgument, match="a body is null"):
        scene.task(scene.stream(table), table)
    monkeypatch.setattr("xaqueue.spark.sink_task.SLICE_ROWS", 1)
    with pytest.raises(InvalidArgument, match="a body is null"):
        scene.task(scene.stream(table), table)
    assert scene.in_doubt() == 0


def test_what_the_server_refuses_fails_the_task_with_its_words(scene: Scene) -> None:
    table = pa.table({"body": ["1"], "priority": [10]})
    with pytest.raises(InvalidArgument, match="priority"):
        scene.task(scene.stream(table), table)
    assert scene.in_doubt() == 0


def test_a_lost_answer_to_prepare_is_written_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare: Callable[..., Vote] = RemoteManager.prepare
    lost = iter([OutcomeUnknown("lost", Xid(1, b"", b"")), ConnectionLost("lost")])

    def losing(self: RemoteManager, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        vote = prepare(self, xid, flags)
        for error in lost:
            raise error
        return vote

    monkeypatch.setattr(RemoteManager, "prepare", losing)
    writer = scene.stream(texts(1))
    messages = scene.tasks(writer, [texts(1)])
    assert (len(messages[0].xids), scene.in_doubt()) == (1, 3)
    writer.commit(messages, 0)
    assert (scene.bodies(), scene.in_doubt()) == ([b"1"], 0)


def test_a_server_that_does_not_come_back_fails_the_task(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> Vote:
        raise ConnectionLost("lost")

    monkeypatch.setattr(RemoteManager, "prepare", lose)
    with pytest.raises(ConnectionLost):
        scene.task(scene.stream(texts(1)), texts(1))
    assert scene.in_doubt() == 0


def planned(checkpoint: Path, number: int, offsets: str) -> str:
    """Writes down what Spark writes before it runs a batch; the option that names it."""
    path = checkpoint / "offsets" / str(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'v1\n{{"batchTimestampMs":{time.time_ns()}}}\n{offsets}')
    return str(checkpoint)


def test_what_another_plan_has_under_the_same_number_is_refused(scene: Scene, tmp_path: Path) -> None:
    """An older checkpoint is put back, and its batch is planned anew with other messages."""
    fifty, sixty = (json.dumps({"stream": "s#1", "spaces": {"/data": {"orders": n}}}) for n in (50, 60))
    writer = scene.stream(texts(1), checkpointLocation=planned(tmp_path / "checkpoint", 0, fifty))
    writer.commit(scene.tasks(writer, [texts(1)]), 0)
    writer.commit(scene.tasks(writer, [texts(1)]), 0)  # after a crash: the same bytes
    planned(tmp_path / "checkpoint", 0, sixty)
    with pytest.raises(InvalidArgument) as told:
        writer.commit(scene.tasks(writer, [texts(2)]), 0)
    for part in (
        "batch 0 of query",
        sixty,
        fifty,
        "An older checkpoint was put back",
        'startingOffsets={"/data":{"orders":50}}',
        'with subscribe {"orders":{"0":51}}',
        "`xaqueue release orders --through 50 --space /data`",
    ):
        assert part in str(told.value)
    planned(tmp_path / "checkpoint", 0, fifty)  # the same offsets at another time: who knows what the rows are
    with pytest.raises(InvalidArgument, match=r"\(digest .*, not .*\)"):
        writer.commit(scene.tasks(writer, [texts(2)]), 0)
    assert (scene.bodies(), scene.in_doubt()) == ([b"1"], 0)


def test_the_way_on_names_every_queue_in_words_for_a_shell() -> None:
    queues = {f"queue{number}": number for number in range(1, 100)}
    told = way_on(json.dumps({"stream": "s#1", "spaces": {"/data of ours": queues | {"empty": 0}}}))
    for queue, seq in queues.items():
        assert f"`xaqueue release {queue} --through {seq} --space '/data of ours'`" in told
    assert "release empty" not in told, "which was never read: that would be an error"


def test_a_number_below_the_last_is_refused(scene: Scene, tmp_path: Path) -> None:
    writer = scene.stream(texts(1), checkpointLocation=str(tmp_path / "checkpoint"))
    for number in range(3):
        planned(tmp_path / "checkpoint", number, f'{{"orders":{{"0":{number}}}}}')
        writer.commit(scene.tasks(writer, [texts(number)], number=number), number)
    for number in (0, 1):
        planned(tmp_path / "checkpoint", number, '{"orders":{"0":9}}')
        messages = scene.tasks(writer, [texts("new")], number=number)
        with pytest.raises(InvalidArgument, match=r'to batch 2 already, .*"0":2.* startingOffsets=.*"orders":.*"0":2'):
            writer.commit(messages, number)
        writer.abort(messages, number)
    assert (scene.bodies(), scene.in_doubt()) == (as_bytes([0, 1, 2]), 0)


def test_where_no_plan_can_be_seen_it_is_said_what_is_passed_over(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    writer = scene.stream(texts(1), checkpointLocation="s3a://bucket/checkpoint")
    for _ in range(2):
        writer.commit(scene.tasks(writer, [texts(1, 2), texts(3)]), 0)
    (record,) = told_by_spark(caplog)
    assert re.match(
        r"\[batch-passed-over\] 3 rows were passed over: batch 0 of .* was written before, at 20\d\d-",
        record.getMessage(),
    )
    assert scene.bodies() == as_bytes([1, 2, 3])


def test_the_checkpoint_that_the_session_names(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark keeps it in a directory named after the query there."""
    monkeypatch.setitem(scene.properties, sink.CHECKPOINTS, str(tmp_path))
    writer = scene.stream(texts(1), queryname="nightly")
    planned(tmp_path / "nightly", 0, '{"orders":{"0":1}}')
    writer.commit(scene.tasks(writer, [texts(1)]), 0)
    planned(tmp_path / "nightly", 0, '{"orders":{"0":2}}')
    with pytest.raises(InvalidArgument, match="An older checkpoint was put back"):
        writer.commit(scene.tasks(writer, [texts(2)]), 0)
    unnamed = scene.stream(texts(1))
    assert scene.task(unnamed, texts(1), number=1).checkpoint == ""


def test_what_has_expired_stops_no_copy(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    times = [soon, None, soon - timedelta(hours=2), soon]
    hidden = [None, None, None, soon + timedelta(hours=1)]
    types = pa.timestamp("us", "UTC")
    table = pa.table(
        {"body": ["1", "2", "3", "4"], "expires_at": pa.array(times, types), "not_before": pa.array(hidden, types)}
    )
    writer = scene.stream(table)
    writer.commit(scene.tasks(writer, [table]), 0)
    assert scene.bodies() == as_bytes([1, 2])
    assert [record.getMessage() for record in told_by_spark(caplog)] == [
        f"[rows-expired] 2 rows of batch 0 of query {QUERY} were not written: they have expired"
    ]


def test_a_queue_that_is_not_defined_is_told_before_anything_is_written(tmp_path: Path) -> None:
    attach_room.create(tmp_path / "space", any_queue=False)
    schema = StructType([StructField("body", StringType())])
    for make in (sink.BatchWriter, sink.StreamWriter):
        with pytest.raises(UnknownQueue, match=r"queue 'orders' is not defined.*xaqueue define orders"):
            make({"path": str(tmp_path / "space"), "queue": "orders"}, schema, False)


@pytest.mark.parametrize("stream", [False, True])
def test_options_of_a_kafka_connection_are_ignored_with_one_line(
    scene: Scene, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    options = {"kafka.bootstrap.servers": "broker:9092", "kafka.acks": "all"}
    if stream:
        for number in (0, 1):
            writer: Any = scene.stream(texts(1), **options)
            writer.commit(scene.tasks(writer, [texts(number)], number=number), number)
    else:
        writer = scene.batch(texts(1), **options)
        writer.commit(scene.tasks(writer, [texts(0)]))
    (record,) = told_by_spark(caplog)
    assert "kafka.bootstrap.servers, kafka.acks" in record.getMessage()


@pytest.mark.parametrize("known", ["messages", "txnAppId", "checkpointLocation"])
def test_abort_rolls_back_the_batch_where_its_query_is_known(scene: Scene, tmp_path: Path, known: str) -> None:
    (tmp_path / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    values = {"txnAppId": "app", "checkpointLocation": f"file://{tmp_path}"}
    writer = scene.stream(texts(1), **({known: values[known]} if known in values else {}))
    messages = scene.tasks(writer, [texts(1), texts(2)])
    other = scene.tasks(writer, [texts(3)], number=1)
    writer.abort([None, messages[1] if known == "messages" else None], 0)
    assert scene.in_doubt() == 1
    writer.commit(other, 1)
    assert scene.bodies() == [b"3"]


def test_the_range_of_a_batch_is_on_disk_before_its_decision(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else after a power loss Spark may plan the batch anew, with more messages, and it is known to be written."""
    (tmp_path / "offsets").mkdir()
    for name in ("metadata", "offsets/0", "offsets/.0.crc"):
        (tmp_path / name).write_text(f'{{"id": "{QUERY}"}}')
    steps: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: steps.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    monkeypatch.setattr(batch_commit.BatchCommit, "commit", lambda *_: steps.append("decided"))
    for location in (str(tmp_path), f"file://{tmp_path}"):
        writer = scene.stream(texts(1), checkpointLocation=location, txnAppId="app")
        steps.clear()
        writer.commit([], 0)
        assert steps[-1] == "decided"
        for name in ("metadata", "offsets/0", "offsets/.0.crc", "offsets", "."):
            assert os.path.normpath(tmp_path / name) in steps[:-1]
    for location in ("s3://bucket/checkpoint", str(tmp_path / "elsewhere")):
        scene.stream(texts(1), checkpointLocation=location, txnAppId="app").commit([], 0)


def test_abort_of_an_unknown_query_leaves_it_to_the_next_try(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    scene.tasks(writer, [texts(1)])
    writer.abort([None], 0)
    assert scene.in_doubt() == 1


def test_abort_of_a_decided_batch_undoes_nothing(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    messages = scene.tasks(writer, [texts(1)])
    writer.commit(messages, 0)
    writer.abort(messages, 0)
    assert scene.bodies() == [b"1"]


def test_a_branch_that_is_gone_stops_the_batch(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    messages = scene.tasks(writer, [texts(1), texts(2)])
    with_manager(scene, lambda manager: manager.rollback(messages[1].xids[0]))
    with pytest.raises(UnknownXid, match="is not prepared"):
        writer.commit(messages, 0)
    assert scene.bodies() == []
    writer.abort(messages, 0)
    assert scene.in_doubt() == 0


def with_manager(scene: Scene, call: Callable[[RemoteManager], object]) -> None:
    manager = remote_manager(scene.servers[0].url)
    try:
        call(manager)
    finally:
        manager.close()


def test_an_empty_batch(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    writer.commit(scene.tasks(writer, [texts()]), 0)
    writer.commit([], 1)
    scene.stream(texts(1), txnAppId="app").commit([], 2)
    assert scene.bodies() == []


def test_messages_of_another_batch_are_refused(scene: Scene) -> None:
    writer = scene.stream(texts(1), txnAppId="app")
    messages = scene.tasks(writer, [texts(1)], number=1)
    with pytest.raises(OperationalError, match="for batch 1 of query app and not for batch 2"):
        writer.commit(messages, 2)
    with pytest.raises(OperationalError, match="without saying what it wrote"):
        writer.commit([None], 2)


def test_a_task_that_is_told_nothing_says_how_to_go_on(scene: Scene) -> None:
    with pytest.raises(OperationalError, match="foreachBatch"):
        scene.stream(texts(1)).write(iter(texts(1).to_batches()))


def test_a_batch_query_without_a_name_writes_each_time(scene: Scene) -> None:
    for _ in range(2):
        writer = scene.batch(texts(1))
        writer.commit(scene.tasks(writer, [texts(1), texts(2)]))
    assert scene.bodies() == as_bytes([1, 1, 2, 2])
    lost = scene.batch(texts(1))
    scene.tasks(lost, [texts(1)])
    lost.abort([None])
    assert scene.in_doubt() == 0


def test_a_batch_query_with_a_name_and_number_writes_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """What is passed over is counted: it may be other rows under a number that was used."""
    for number in ("1", "1", "2", "0", "1"):
        writer = scene.batch(texts(1), txnAppId="nightly", txnVersion=number)
        writer.commit(scene.tasks(writer, [texts(number), texts("x", "y")]))
    assert (scene.bodies(), scene.in_doubt()) == (as_bytes([1, "x", "y", 2, "x", "y"]), 0)
    told = [record.getMessage() for record in told_by_spark(caplog)]
    assert [record.levelname for record in told_by_spark(caplog)] == ["WARNING"] * 3
    assert told[0].startswith(
        "[batch-passed-over] 3 rows were passed over: batch 1 of query nightly was written before, at 20"
    )
    for below, line in enumerate(told[1:]):
        assert line.startswith(
            f"[batch-passed-over] 3 rows were passed over: batch {below} of query nightly is below batch 2"
        )


def test_nothing_is_overwritten() -> None:
    schema = StructType([StructField("body", StringType())])
    with pytest.raises(InvalidArgument, match=r'use .mode\("append"\)'):
        sink.BatchWriter({"path": "/a", "queue": "orders"}, schema, True)
    with pytest.raises(InvalidArgument, match='use "append"'):
        sink.StreamWriter({"path": "/a", "queue": "orders"}, schema, True)


def test_a_path_that_is_no_space_is_told_before_anything_is_written(tmp_path: Path) -> None:
    schema = StructType([StructField("body", StringType())])
    for make, told in ((sink.BatchWriter, "make it one with"), (sink.StreamWriter, "or bring back the disk")):
        with pytest.raises(SpaceError, match=f"none is no queue space: .*{told}"):
            make({"path": str(tmp_path / "none"), "queue": "orders"}, schema, False)


def test_by_url_alone(scene: Scene) -> None:
    schema = StructType([StructField("body", StringType())])
    writer = sink.StreamWriter({"server": scene.servers[0].url, "topic": "orders"}, schema, False)
    writer.commit(scene.tasks(writer, [texts(1)]), 0)
    assert scene.bodies() == [b"1"]
