"""Driver and executors agree on a path alone: what another machine has under it is the same space, or no row is given.

An executor elsewhere is this process, once something else has come under the path that was planned.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue.errors import ConnectionLost, InvalidArgument, OperationalError, ResourceFailed, SpaceError, SpaceInUse
from xaqueue.features.session import Session, attach

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark.sql.pandas.types import from_arrow_schema

from support import spark_reading
from support.served import ServerThread
from support.sink_scene import Scene, texts
from support.spark_reading import ALL, Query, rows
from xaqueue.lake import batches
from xaqueue.rpc.client import server_launcher
from xaqueue.spark import executor, sink
from xaqueue.spark.source import consumer
from xaqueue.spark.source import reader as reading
from xaqueue.spark.source.source import QueueSource, StreamReader

MODES = ["spark.read", "keep", "delete", "archive"]
REMOVING = ["delete", "archive"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A space with ten orders, whose owner is in this process; what a task does not see it does not wait for."""
    sessions: list[Session] = []

    def reach(path: str, server: str | None) -> Session:
        sessions.append(attach(path))
        return sessions[-1]

    monkeypatch.setattr(consumer, "reach_owner", reach)
    monkeypatch.setattr(reading, "SEEN_S", 0.0)
    yield filled(tmp_path / "space", b"right")
    for session in sessions:
        session.close()


def filled(root: Path, body: bytes, count: int = 10) -> Path:
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        connection.enqueue_many("orders", [body] * count)
    return root


def stream(root: Path, consume: str, **options: object) -> StreamReader:
    return spark_reading.stream(root, "orders", consume=consume, **options)


def planned(root: Path, mode: str, **options: object) -> tuple[reading.Reader, list[Any]]:
    """A batch of all messages, as tasks are given it."""
    if mode == "spark.read":
        source = QueueSource({"path": str(root), "queue": "orders"} | {name: str(at) for name, at in options.items()})
        reader = source.reader(source.schema())
        return reader, reader.partitions()
    query = stream(root, mode, **options)
    begun = query.initialOffset()
    return query, query.partitions(begun, query.latestOffset(begun, ALL))


def another(root: Path) -> None:
    filled(root.with_name("another"), b"foreign", 20).rename(root)


def nothing(root: Path) -> None:
    pass


def an_empty_directory(root: Path) -> None:
    root.mkdir()


def what_was_one(root: Path) -> None:
    another(root)
    (root / "FORMAT").unlink()


@pytest.mark.parametrize("put", [another, nothing, an_empty_directory, what_was_one])
@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_an_executor_with_something_else_gives_no_row(
    root: Path, mode: str, lossy: bool, put: Callable[[Path], None]
) -> None:
    reader, tasks = planned(root, mode, failOnDataLoss=not lossy)
    root.rename(root.with_name("elsewhere"))
    put(root)
    saw = "sees another space, " if put is another else "does not see the space"
    with pytest.raises(SpaceError, match=saw) as raised:
        rows(reader, tasks)
    for said in (executor.here(), str(root), executor.SAME):
        assert said in str(raised.value)
    assert "xaqueue init" not in str(raised.value)


@pytest.mark.parametrize("mode", MODES)
def test_a_space_that_is_exchanged_while_it_is_read_fails_the_task(
    root: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 1)
    reader, (task,) = planned(root, mode)
    given = reader.read(task)
    next(given)
    root.rename(root.with_name("elsewhere"))
    another(root)
    with pytest.raises(SpaceError, match="another space"):
        list(given)


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("mode", REMOVING)
def test_an_executor_with_a_copy_gives_no_row(root: Path, mode: str, lossy: bool) -> None:
    """It has the same id and the same numbers; what is reserved in the space itself is not in it."""
    copy = shutil.copytree(root, root.with_name("copy"))
    reader, tasks = planned(root, mode, failOnDataLoss=not lossy)
    root.rename(root.with_name("elsewhere"))
    copy.rename(root)
    with pytest.raises(SpaceError, match=r"not reserved for stream spark@.*a copy"):
        rows(reader, tasks)


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("mode", [*REMOVING, "keep"])
def test_an_executor_with_a_copy_that_the_stream_knew_gives_no_row(root: Path, mode: str, lossy: bool) -> None:
    """It was made while the stream was at an earlier batch."""
    query = Query(stream(root, "delete", maxMessagesPerTrigger=3))
    query.batch()
    copy = shutil.copytree(root, root.with_name("copy"), ignore=shutil.ignore_patterns("socket"))
    query.batch()  # and with it the first is consumed
    end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    query.reader.commit(query.offset)
    reader: StreamReader = stream(root, mode, failOnDataLoss=not lossy)
    if mode == "keep":
        begun = reader.initialOffset()
        tasks = reader.partitions(begun, reader.latestOffset(begun, ALL))
    else:
        tasks = reader.partitions(query.offset, end)
    root.rename(root.with_name("elsewhere"))
    copy.rename(root)
    with pytest.raises(SpaceError, match=r"is consumed to 0, and to 6 as the driver sees it"):
        rows(reader, tasks)


@pytest.mark.parametrize("mode", REMOVING)
def test_a_task_asks_again_for_what_a_cache_does_not_show_yet(
    root: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network file system, as it was before the stream reserved the queue."""
    before = shutil.copytree(root, root.with_name("before"))
    reader, tasks = planned(root, mode)
    right = root.rename(root.with_name("elsewhere"))
    before.rename(root)
    looks: list[float] = []

    def later(pause_s: float) -> None:
        looks.append(pause_s)
        if len(looks) == 3:
            root.rename(before)
            right.rename(root)

    monkeypatch.setattr(reading, "SEEN_S", 60.0)
    monkeypatch.setattr(reading, "sleep", later)
    assert [row["body"] for row in rows(reader, tasks)] == [b"right"] * 10
    assert len(looks) == 3


@pytest.mark.parametrize("closed", ["FORMAT", "streams", "watermark", "range="])
def test_an_executor_that_may_not_read_says_who_and_the_way_out(
    root: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, tasks = planned(root, "delete")
    opened = os.open

    def refusing(path: Any, *args: Any, **options: Any) -> int:
        if closed in os.fspath(path):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(
        SpaceError, match=r"may not read the space .*Permission denied.*`group` of \[access\]"
    ) as raised:
        rows(reader, tasks)
    assert executor.here() in str(raised.value)


# Who writes, and who removes


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Two spaces that are served, and in ``at`` a link to the first, as the driver sees it."""
    made = Scene(tmp_path / "spaces", monkeypatch, spaces=2)
    at(made).symlink_to(made.roots[0])
    yield made
    made.stop()


def at(scene: Scene) -> Path:
    return scene.roots[0].with_name("at")


def writer(scene: Scene, kind: str) -> Any:
    table = texts(1)
    if kind == "batch":
        return scene.batch(table, path=str(at(scene)))
    return scene.stream(table, path=str(at(scene)))


@pytest.mark.parametrize("kind", ["batch", "stream"])
@pytest.mark.parametrize("there", ["another", "nothing"])
def test_a_task_of_the_sink_writes_nowhere_else(scene: Scene, kind: str, there: str) -> None:
    made = writer(scene, kind)
    at(scene).unlink()
    if there == "another":
        at(scene).symlink_to(scene.roots[1])
    saw = "sees another space, " if there == "another" else "does not see the space"
    with pytest.raises(SpaceError, match=saw) as raised:
        scene.task(made, texts(1))
    assert executor.here() in str(raised.value)
    assert "xaqueue init" not in str(raised.value)
    assert [scene.in_doubt(number) for number in (0, 1)] == [0, 0]


DENIED = PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    "failure",
    [
        (ConnectionLost("no server answers (Permission denied)"), DENIED),
        (SpaceError("no server can be started: it said Permission denied"), None),
    ],
)
def test_a_task_of_another_user_says_who_and_the_way_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, failure: tuple[Exception, Exception | None]
) -> None:
    """It can neither start the space's owner nor open its socket."""
    made, (raised, cause) = writer(scene, "stream"), failure

    def refusing(*_: object) -> Any:
        raise raised from cause

    monkeypatch.setattr(server_launcher, "reach", refusing)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(type(raised), match="no server"):
        scene.task(made, texts(1))
    monkeypatch.setattr(os, "geteuid", lambda: 64_999)
    with pytest.raises(SpaceError, match=r"user 64999\) does not own .*Permission denied.*option \"server\""):
        scene.task(made, texts(1))


@pytest.mark.parametrize("failure", [ConnectionLost("it hangs"), SpaceInUse("by a shell"), ResourceFailed("fenced")])
def test_what_another_reason_has_is_not_put_down_to_the_user(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    made = writer(scene, "stream")

    def refusing(*_: object) -> Any:
        raise failure

    monkeypatch.setattr(server_launcher, "reach", refusing)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "geteuid", lambda: 64_999)
    with pytest.raises(type(failure)) as raised:
        scene.task(made, texts(1))
    assert raised.value is failure


def test_a_sink_that_no_task_reaches_fails_before_anything_is_reserved(root: Path, scene: Scene) -> None:
    """The first batch of a query that consumes is empty, and has a task all the same; then comes the driver's turn."""
    made = writer(scene, "stream")
    reader = stream(root, "delete")
    begun = reader.initialOffset()
    end = reader.latestOffset(begun, reader.getDefaultReadLimit())
    (task,) = reader.partitions(begun, end)
    assert rows(reader, [task]) == []
    prepared = scene.tasks(made, [texts()])
    at(scene).unlink()
    with pytest.raises(SpaceError, match="does not see the space"):
        scene.task(made, texts())
    with pytest.raises(SpaceError, match="no queue space"):
        made.commit(prepared, 0)
    with xaqueue.connect(root) as connection:
        assert connection.dequeue("orders") is not None


def test_a_url_that_leads_elsewhere_on_an_executor_commits_nothing(scene: Scene) -> None:
    schema = from_arrow_schema(texts(1).schema)
    driver, task = (sink.StreamWriter({"server": one.url, "queue": "orders"}, schema, False) for one in scene.servers)
    prepared = scene.tasks(task, [texts(1)])
    with pytest.raises(OperationalError, match="tasks have another space at xaq"):
        driver.commit(prepared, 0)
    assert (scene.bodies(0), scene.bodies(1)) == ([], [])


def test_a_copy_that_has_the_batch_already_passes_no_row_over(scene: Scene, tmp_path: Path) -> None:
    """The driver's space was restored from before the batch, and an executor has the newer one yet."""
    ignored = shutil.ignore_patterns("lock", "owner", "socket")
    older = shutil.copytree(scene.roots[0], tmp_path / "older", ignore=ignored)
    made = writer(scene, "stream")
    made.commit(scene.tasks(made, [texts(1)]), 0)
    server = ServerThread(older, tmp_path / "older.socket")
    try:
        prepared = scene.tasks(made, [texts(1)])
        assert prepared[0].passed_over == 1
        at(scene).unlink()
        at(scene).symlink_to(older)
        with pytest.raises(OperationalError, match=r"tasks have another space at .*but a copy"):
            made.commit(prepared, 0)
        made.commit(scene.tasks(made, [texts(1)]), 0)
    finally:
        server.stop()


@pytest.mark.parametrize("mode", REMOVING)
def test_a_url_of_another_space_has_nothing_removed_there(scene: Scene, mode: str) -> None:
    for number in (0, 1):
        made = scene.stream(texts(1), path=str(scene.roots[number]))
        made.commit(scene.tasks(made, [texts(1, 2)]), 0)
    query = Query(stream(scene.roots[0], mode, server=scene.servers[1].url))
    with pytest.raises(InvalidArgument, match=r"serves another space than .*: mend option"):
        query.all()
    assert scene.bodies(1) == [b"1", b"2"]
