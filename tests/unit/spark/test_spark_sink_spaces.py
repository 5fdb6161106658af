"""One batch over several spaces: the first decides for all, and a crash at any step is finished by the next try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa

from support.served import ServerThread
from support.sink_scene import QUERY, Scene, as_bytes, texts
from xaqueue.batch import MANY_SPACES, Batch
from xaqueue.core.model.format import read_format
from xaqueue.core.owner import open as attach_room
from xaqueue.errors import InvalidArgument, OperationalError, UnknownXid
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.server_launcher import reach
from xaqueue.spark import sink_task as branches
from xaqueue.xid import Xid

SPACES = 3
PARTS = [texts(n, n + 10) for n in range(4)]
"""Of partitions 0 to 3: two go to the first space, one to each of the others."""
WHOLE = [as_bytes([0, 10, 3, 13]), as_bytes([1, 11]), as_bytes([2, 12])]
ALL = as_bytes([0, 1, 2, 3, 10, 11, 12, 13])
NOTHING: list[list[bytes]] = [[], [], []]
CALLS = ("commit_all", "rollback_all", "decision", "outcome")


class Crashed(BaseException):
    """The driver is gone."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spaces")


_scenes = count()


@pytest.fixture
def scene(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(scratch / str(next(_scenes)), monkeypatch, spaces=SPACES)
    yield made
    made.stop()


def bodies(scene: Scene) -> list[list[bytes]]:
    return [scene.bodies(number) for number in range(SPACES)]


def in_doubt(scene: Scene) -> list[int]:
    return [scene.in_doubt(number) for number in range(SPACES)]


def decided(scene: Scene, number: int = 0) -> list[Any]:
    """What each space remembers of the batch."""
    found = []
    for root in scene.roots:
        manager = reach(root)
        found.append(manager.decision(Batch(QUERY, number)))
        manager.close()
    return found


class Crash:
    """Ends the driver before or after its call number ``at`` to a space, counted from 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> None:
        self._at, self._after = at, after
        self.calls = 0
        self.names: list[str] = []
        for name in CALLS:
            monkeypatch.setattr(RemoteManager, name, self._around(name, getattr(RemoteManager, name)))

    def _around(self, name: str, call: Any) -> Any:
        def wrapped(manager: RemoteManager, *params: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            self.names.append(name)
            if number == self._at and not self._after:
                raise Crashed
            answer = call(manager, *params)
            if number == self._at:
                raise Crashed
            return answer

        return wrapped


def test_tasks_are_spread_over_the_spaces(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    messages = scene.tasks(writer, PARTS)
    assert [message.space for message in messages] == [0, 1, 2, 0]
    assert {xid.format_id for message in messages for xid in message.xids} == {MANY_SPACES}
    writer.commit(messages, 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])
    home, one, two = decided(scene)
    ids = [read_format(root).id for root in scene.roots]
    assert [(space, xid) for space, xid in home.others] == [
        (ids[1], messages[1].xids[0]),
        (ids[2], messages[2].xids[0]),
    ]
    assert (one.others, two.others) == ((), ())
    writer.commit(scene.tasks(writer, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_every_step_of_the_driver(scratch: Path, after: bool) -> None:
    """The batch is then written again as Spark does it, with the rows in other partitions."""
    seen: set[str] = set()
    for at in count():
        with pytest.MonkeyPatch.context() as patched:
            scene = Scene(scratch / f"{after}{at}", patched, spaces=SPACES)
            try:
                writer = scene.stream(texts(1))
                messages = scene.tasks(writer, PARTS)
                with pytest.MonkeyPatch.context() as crashing:
                    crash = Crash(crashing, at, after=after)
                    ended = not _crashes(writer, messages)
                seen.add(crash.names[-1])
                there = bodies(scene)
                assert all(found in ([], whole) for found, whole in zip(there, WHOLE, strict=True))
                assert there[0] or there == NOTHING  # the first decides
                writer.commit(scene.tasks(writer, PARTS[::-1]), 0)
                if there == NOTHING:  # the rows are where they were written this time
                    assert sorted(body for found in bodies(scene) for body in found) == ALL
                else:
                    assert bodies(scene) == WHOLE
                assert in_doubt(scene) == [0, 0, 0]
                if ended:
                    break
            finally:
                scene.stop()
    assert seen >= {"decision", "outcome", "commit_all"}


def _crashes(writer: Any, messages: Sequence[Any]) -> bool:
    try:
        writer.commit(messages, 0)
    except Crashed:
        return True
    return False


def crash_after_decision(scene: Scene, writer: Any, messages: Sequence[Any]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        commit_all: Callable[..., Any] = RemoteManager.commit_all

        def crashing(self: RemoteManager, batch: Batch, xids: Sequence[Xid], *more: Any) -> Any:
            commit_all(self, batch, xids, *more)
            raise Crashed

        patched.setattr(RemoteManager, "commit_all", crashing)
        assert _crashes(writer, messages)
    assert bodies(scene) == [WHOLE[0], [], []]


def test_abort_undoes_nothing_of_what_the_first_decided(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    messages = scene.tasks(writer, PARTS)
    crash_after_decision(scene, writer, messages)
    writer.abort(messages, 0)
    assert in_doubt(scene) == [0, 1, 1]
    writer.commit(scene.tasks(writer, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])


def test_the_next_batch_is_not_decided_before_every_space_has_the_last(scene: Scene) -> None:
    """Nobody wrote that again: with the record of the first would go what the others have to do."""
    writer = scene.stream(texts(1))
    crash_after_decision(scene, writer, scene.tasks(writer, PARTS))
    writer.commit(scene.tasks(writer, [texts("next")], number=1), 1)
    assert bodies(scene) == [sorted([*WHOLE[0], b"next"]), *WHOLE[1:]]
    assert in_doubt(scene) == [0, 0, 0]
    for record in (scene.roots[2] / "batches").iterdir():  # as if it were restored from an older copy
        record.unlink()
    scene.servers[2].stop()
    for segment in (scene.roots[2] / "journal").glob("*"):
        segment.unlink()
    scene.servers[2] = ServerThread(scene.roots[2], scene.roots[2].with_suffix(".socket"))
    writer.commit(scene.tasks(writer, [texts("after")], number=2), 2)
    assert [one and one.batch.number for one in decided(scene, 2)] == [2, 2, 2]


def test_abort_before_a_decision_rolls_back_everywhere(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    writer.abort([*scene.tasks(writer, PARTS)[:1], None], 0)
    assert (bodies(scene), in_doubt(scene)) == (NOTHING, [0, 0, 0])


def test_what_a_failed_task_has_prepared_goes_with_its_batch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody rolls back alone what another space may have decided."""
    monkeypatch.setattr(branches, "BRANCH_ROWS", 1)
    writer = scene.stream(texts(1))
    wrong = pa.table({"body": pa.array([None], pa.string())})
    with pytest.raises(InvalidArgument, match="body"):
        scene.task(writer, pa.concat_tables([texts("lost", "too"), wrong]), partition=2)
    assert in_doubt(scene) == [0, 0, 1]
    writer.commit(scene.tasks(writer, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])


def test_a_branch_that_is_gone_elsewhere_stops_the_batch_before_its_decision(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    messages = scene.tasks(writer, PARTS)
    manager = reach(scene.roots[2])
    manager.rollback_all(Batch(QUERY, 0))
    manager.close()
    with pytest.raises(UnknownXid, match=r"no longer prepared in .*space2: nothing of batch 0"):
        writer.commit(messages, 0)
    assert (bodies(scene), decided(scene)) == (NOTHING, [None, None, None])


def test_the_spaces_in_another_order(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    crash_after_decision(scene, writer, scene.tasks(writer, PARTS))
    changed = scene.stream(texts(1), path=",".join(str(scene.roots[number]) for number in (1, 0, 2)))
    changed.commit(scene.tasks(changed, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])


def test_a_space_that_is_missing_when_its_branches_are_to_be_committed(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    crash_after_decision(scene, writer, scene.tasks(writer, PARTS))
    fewer = scene.stream(texts(1), path=f"{scene.roots[0]},{scene.roots[1]}")
    lacking = read_format(scene.roots[2]).id
    with pytest.raises(InvalidArgument, match=rf"went to .*space0, .*space1, {lacking} and is now .* name those"):
        fewer.commit(scene.tasks(fewer, PARTS), 0)
    writer.commit(scene.tasks(writer, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])


@pytest.mark.parametrize("given", [[2, 1], [2], [1, 2, 0, 3]])
@pytest.mark.parametrize("parts", [PARTS, PARTS[:1]])
def test_every_space_knows_where_the_batch_went(scene: Scene, given: list[int], parts: list[pa.Table]) -> None:
    """Also one to which no row of it went: with other spaces it would be written again."""
    writer = scene.stream(texts(1))
    writer.commit(scene.tasks(writer, parts), 0)
    there = bodies(scene)
    attach_room.create(scene.roots[0].with_name("more"), any_queue=True)
    roots = [*scene.roots, scene.roots[0].with_name("more")]
    changed = scene.stream(texts(1), path=",".join(str(roots[number]) for number in given))
    with pytest.raises(InvalidArgument, match=r"batch 0 .* is refused .* it went to .* name those again"):
        commit_or_abort(changed, scene.tasks(changed, parts), 0)
    assert (bodies(scene), in_doubt(scene)) == (there, [0, 0, 0])
    changed.commit(scene.tasks(changed, [texts("next")], number=1), 1)
    writer.commit(scene.tasks(writer, [texts("back")], number=2), 2)


def test_a_batch_that_home_may_have_decided_is_not_written_without_it(scene: Scene) -> None:
    """Home has the decision, and the others have not been told yet, when the spaces are named anew without home."""
    writer = scene.stream(texts(1))
    crash_after_decision(scene, writer, scene.tasks(writer, PARTS))
    home = read_format(scene.roots[0]).id
    without = scene.stream(texts(1), path=f"{scene.roots[2]},{scene.roots[1]}")
    with pytest.raises(InvalidArgument, match=rf"the space of id {home[:12]}\.\.\. may have committed it"):
        commit_or_abort(without, scene.tasks(without, PARTS), 0)
    assert in_doubt(scene) == [0, 1, 1]
    writer.commit(scene.tasks(writer, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])


def test_a_home_that_was_restored_from_an_older_copy(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    writer.commit(scene.tasks(writer, PARTS), 0)
    scene.servers[0].stop()
    for record in (scene.roots[0] / "batches").iterdir():
        record.unlink()
    for segment in (scene.roots[0] / "journal").glob("*"):
        segment.unlink()
    scene.servers[0] = ServerThread(scene.roots[0], scene.roots[0].with_suffix(".socket"))
    with pytest.raises(OperationalError, match="space0 had decided, which knows nothing of it"):
        commit_or_abort(writer, scene.tasks(writer, PARTS), 0)
    assert bodies(scene) == WHOLE


def commit_or_abort(writer: Any, messages: Sequence[Any], number: int) -> None:
    """As Spark does it."""
    try:
        writer.commit(messages, number)
    except BaseException:
        writer.abort(messages, number)
        raise


def test_a_batch_of_the_first_space_alone_is_known_as_whole(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    writer.commit(scene.tasks(writer, PARTS[:1]), 0)
    writer.commit(scene.tasks(writer, PARTS), 0)
    changed = scene.stream(texts(1), path=",".join(str(root) for root in scene.roots[::-1]))
    changed.commit(scene.tasks(changed, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == ([as_bytes([0, 10]), [], []], [0, 0, 0])


def test_a_batch_without_a_row(scene: Scene) -> None:
    writer = scene.stream(texts(1))
    for _ in range(2):
        writer.commit(scene.tasks(writer, [texts()] * SPACES), 0)
    assert bodies(scene) == NOTHING


def test_a_stream_that_gets_more_spaces_remembers_what_it_wrote(scene: Scene) -> None:
    alone = scene.stream(texts(1), path=str(scene.roots[1]))
    alone.commit(scene.tasks(alone, PARTS), 0)
    writer = scene.stream(texts(1))
    with pytest.raises(InvalidArgument, match=r"it went to the spaces of id .*space1 and is now to go to"):
        commit_or_abort(writer, scene.tasks(writer, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == ([[], ALL, []], [0, 0, 0])
    alone.commit(scene.tasks(alone, PARTS), 0)
    writer.commit(scene.tasks(writer, [texts("more")], number=1), 1)
    assert bodies(scene) == [[b"more"], ALL, []]


def test_the_same_space_under_two_names(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(scene.roots[0])
    writer = scene.stream(texts(1), path=f"{scene.roots[0]},{tmp_path}/link")
    with pytest.raises(OperationalError, match="the same space is named twice"):
        writer.commit(scene.tasks(writer, PARTS), 0)


def test_by_urls(scene: Scene) -> None:
    urls = ",".join(server.url for server in scene.servers)
    writer = scene.stream(texts(1), server=urls)
    crash_after_decision(scene, writer, scene.tasks(writer, PARTS))
    writer.commit(scene.tasks(writer, PARTS), 0)
    assert (bodies(scene), in_doubt(scene)) == (WHOLE, [0, 0, 0])
