"""What the tests of group commit share: syncs that are counted, held up or fail, and a group behind a held leader."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from errno import EIO
from typing import TYPE_CHECKING, Any

import pytest

from support.log_owner import LogOwner
from xaqueue.core.engine.directory_log import DirectoryLog
from xaqueue.core.engine.unsynced_log import UnsyncedLog
from xaqueue.core.model.change import MOVE, PUT, Change, CoreStep
from xaqueue.core.model.definitions import UNDEFINED
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.group_commit import GroupCommit, Step
from xaqueue.core.storage.hardening import Hardening

if TYPE_CHECKING:
    from collections.abc import Iterator

STRICT = Hardening.parse("FDATASYNC;DSYNC")
NONE = Hardening.parse("NONE")
PATIENCE_S = 30.0


class CountingSyncs(DirectoryFileSystem):
    """Its names are nowhere. Each sync is counted; one on a path in ``gates`` blocks, one in ``broken`` fails."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.synced: list[tuple[str, str]] = []
        self.gates: dict[str, threading.Event] = {}
        self.reached: dict[str, threading.Event] = {}
        self.broken: dict[str, BaseException] = {}
        self.during: Callable[[str], None] = lambda _: None

    def gate(self, path: str) -> None:
        self.gates[path], self.reached[path] = threading.Event(), threading.Event()

    def fail_on(self, path: str) -> None:
        self.broken[path] = OSError(EIO, "Input/output error", path)

    def paths(self, call: str) -> list[str]:
        return [path for made, path in self.synced if made == call]

    def rename(self, source: str, target: str) -> None:
        pass

    def unlink(self, path: str) -> None:
        pass

    def hold_dir(self, path: str) -> None:
        pass

    def sync_file(self, path: str) -> None:
        self._synced("fsync", path)

    def sync_data(self, path: str) -> None:
        self._synced("fdatasync", path)

    def sync_dir(self, path: str) -> None:
        self._synced("dsync", path)

    def _synced(self, call: str, path: str) -> None:
        self.synced.append((call, path))
        self.pass_by(path)

    def pass_by(self, path: str) -> None:
        if path in self.gates:
            self.reached[path].set()
            assert self.gates[path].wait(PATIENCE_S)
        self.during(path)
        if path in self.broken:
            raise self.broken[path]


class FreshQueues(dict[str, Queue]):
    """Every number begins a range."""

    def __missing__(self, name: str) -> Queue:
        return FreshQueue(name, UNDEFINED, threading.Condition())


class FreshQueue(Queue):
    def make_range(self, fs: object, seq: int) -> None:
        pass


class Scene:
    """A directory log, and what happened to its steps, in the order in which it did."""

    held = "held"
    """Where the leader is held up."""

    def __init__(self, hardening: Hardening = STRICT) -> None:
        self.fs = CountingSyncs()
        self.lock = threading.Lock()
        self.applied: list[str] = []
        self.published: list[str] = []
        self.groups: list[int] = []
        """How many steps were published when each group ended."""
        self.owner = LogOwner(lambda _: self.groups.append(len(self.published)))
        self.owner.queues = FreshQueues()
        self.log: GroupCommit = self._log(hardening)
        self.asleep: queue.SimpleQueue[Step] = queue.SimpleQueue()
        """Steps whose threads are about to wait."""
        self.slept: list[Step] = []
        self.woken: list[Step] = []

    def _log(self, hardening: Hardening) -> GroupCommit:
        kind = UnsyncedLog if hardening == NONE else DirectoryLog
        log = kind(self.fs, hardening, self.lock, self.owner)
        log.changed_queues["q"] = Queue("q", UNDEFINED, threading.Condition())
        return log

    def perform(self, name: str, target: str = "committed", source: str = "prepared") -> None:
        def plan() -> Any:
            assert self.lock.locked(), name
            self.applied.append(name)
            return change(name, target, source)

        self.log.perform(plan, lambda: self.publish(name))

    def publish(self, name: str) -> None:
        assert self.lock.locked(), name
        self.published.append(name)

    def behind_a_leader(self, pool: ThreadPoolExecutor, steps: Iterable[Callable[[], None]]) -> list[Future[None]]:
        """A leader blocked in its round, and steps that gather meanwhile, in this order; ``go_on`` ends the block."""
        waits = [self.lead(pool)]
        for step in steps:
            waits.append(pool.submit(step))
            self.asleep.get(timeout=PATIENCE_S)
        return waits

    def lead(self, pool: ThreadPoolExecutor) -> Future[None]:
        self.fs.gate(self.held)
        leader = pool.submit(self.perform, "leader", "held", "")
        assert self.fs.reached[self.held].wait(PATIENCE_S)
        return leader

    def named(self, names: Iterable[str]) -> list[Callable[[], None]]:
        return [lambda name=name: self.perform(name) for name in names]  # type: ignore[misc]

    def go_on(self) -> None:
        self.fs.gates[self.held].set()


def change(name: str, target: str = "committed", source: str = "prepared", **fields: Any) -> Change | None:
    """A file of this name moves, or is put where it comes from nowhere."""
    if not target:
        return None
    path = f"{target}/{name}"
    return Change(
        CoreStep.COMMIT, name, [(MOVE, f"{source}/{name}", path, 0) if source else (PUT, path, b"", b"", 0)], **fields
    )


@contextmanager
def watched(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Every step that waits or is woken is noted; a test that fails leaves no thread waiting."""
    sleep, wake = Step.sleep, Step.wake

    def noted_sleep(step: Step) -> None:
        if step.round is None:
            scene.slept.append(step)
            scene.asleep.put(step)
        sleep(step)

    def noted_wake(step: Step) -> None:
        scene.woken.append(step)
        wake(step)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "sleep", noted_sleep)
        patch.setattr(Step, "wake", noted_wake)
        try:
            yield scene
        finally:
            scene.log.fail(RuntimeError("the test is over"))
            for step in scene.slept:
                wake(step)
    scene.log.close()


def told(waits: Iterable[Future[None]]) -> list[type[BaseException] | None]:
    """What each of these ended with; none may hang."""
    errors = [wait.exception(PATIENCE_S) for wait in waits]
    return [None if error is None else type(error) for error in errors]


def log_of(scene: Scene) -> DirectoryLog:
    assert isinstance(scene.log, DirectoryLog)
    return scene.log
