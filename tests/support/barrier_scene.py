"""What the tests of the barrier share: syncs that are counted, held up or fail, and a group behind a held leader."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from errno import EIO
from typing import TYPE_CHECKING

import pytest

from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.storage.group_commit import Barrier, Step, Touched, touched
from xaqueue.storage.hardening import Hardening

if TYPE_CHECKING:
    from collections.abc import Iterator

STRICT = Hardening.parse("FDATASYNC;DSYNC")
NONE = Hardening.parse("NONE")
PATIENCE_S = 30.0


class CountingSyncs(DirectoryFileSystem):
    """Only its syncs are called. Each is counted; one on a path in ``gates`` blocks, one in ``broken`` fails."""

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

    def sync_file(self, path: str) -> None:
        self._synced("fsync", path)

    def sync_data(self, path: str) -> None:
        self._synced("fdatasync", path)

    def sync_dir(self, path: str) -> None:
        self._synced("dsync", path)

    def _synced(self, call: str, path: str) -> None:
        self.synced.append((call, path))
        if path in self.gates:
            self.reached[path].set()
            assert self.gates[path].wait(PATIENCE_S)
        self.during(path)
        if path in self.broken:
            raise self.broken[path]


class Scene:
    """A barrier, and what happened to its steps, in the order in which it did."""

    def __init__(self, hardening: Hardening = STRICT) -> None:
        self.fs = CountingSyncs()
        self.lock = threading.Lock()
        self.applied: list[str] = []
        self.published: list[str] = []
        self.groups: list[int] = []
        """How many steps were published when each group ended."""
        self.barrier = Barrier(self.fs, hardening, self.lock, lambda: self.groups.append(len(self.published)))
        self.asleep: queue.SimpleQueue[Step] = queue.SimpleQueue()
        """Steps whose threads are about to wait."""
        self.slept: list[Step] = []
        self.woken: list[Step] = []

    def perform(
        self, name: str, targets: Iterable[str] = ("committed",), sources: Iterable[str] = ("prepared",)
    ) -> None:
        def apply() -> Touched:
            assert self.lock.locked(), name
            self.applied.append(name)
            return touched(targets, sources)

        self.barrier.perform(apply, publish=lambda: self.publish(name))

    def publish(self, name: str) -> None:
        assert self.lock.locked(), name
        self.published.append(name)

    def behind_a_leader(self, pool: ThreadPoolExecutor, steps: Iterable[Callable[[], None]]) -> list[Future[None]]:
        """A leader blocked in its round, and steps that gather meanwhile, in this order; ``go_on`` ends the block."""
        self.fs.gate("held")
        waits = [pool.submit(self.perform, "leader", ("held",), ())]
        assert self.fs.reached["held"].wait(PATIENCE_S)
        for step in steps:
            waits.append(pool.submit(step))
            self.asleep.get(timeout=PATIENCE_S)
        return waits

    def named(self, names: Iterable[str]) -> list[Callable[[], None]]:
        return [lambda name=name: self.perform(name) for name in names]  # type: ignore[misc]

    def go_on(self) -> None:
        self.fs.gates["held"].set()


@contextmanager
def watched(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Every step that waits or is woken is noted; a test that fails leaves no thread waiting."""
    sleep, wake = Step.sleep, Step.wake

    def noted_sleep(step: Step) -> None:
        if not step.lead:
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
            scene.barrier.fail(RuntimeError("the test is over"))
            for step in scene.slept:
                wake(step)
    scene.barrier.close()


def told(waits: Iterable[Future[None]]) -> list[type[BaseException] | None]:
    """What each of these ended with; none may hang."""
    errors = [wait.exception(PATIENCE_S) for wait in waits]
    return [None if error is None else type(error) for error in errors]
