"""A failure ends group commit for all: everybody is told, nobody hangs, nothing is tried twice."""

from __future__ import annotations

import linecache
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from errno import EIO
from types import FrameType
from typing import Any

import pytest

from support.group_commit_scene import NONE, PATIENCE_S, STRICT, Scene, change, log_of, told, watched
from xaqueue.core.engine import directory_log
from xaqueue.core.storage import group_commit
from xaqueue.core.storage.group_commit import Step, nothing
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import ResourceFailed


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(9) as threads:
        yield threads


@pytest.fixture
def scene(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with watched(Scene(), monkeypatch) as watching:
        yield watching


def test_a_failed_sync_fences_and_wakes_everybody(scene: Scene, pool: ThreadPoolExecutor) -> None:
    """Crash rule 8: nothing is acknowledged any more, and no sync is tried twice."""
    waits = scene.behind_a_leader(pool, scene.named("abcdefgh"))
    scene.fs.fail_on("held")
    scene.go_on()
    assert told(waits) == [ResourceFailed] * 9
    assert scene.fs.synced == [("dsync", "held")]
    assert (scene.applied, scene.published) == (["leader"], [])
    for call in (
        scene.log.check,
        lambda: scene.perform("later"),
        lambda: log_of(scene).sync_contents(["x"]),
    ):
        with pytest.raises(ResourceFailed, match=r"fenced.*Input/output error"):
            call()
    assert scene.fs.synced == [("dsync", "held")]
    assert scene.applied == ["leader"]


def test_a_failure_in_the_middle_of_a_round_acknowledges_none_of_it(scene: Scene, pool: ThreadPoolExecutor) -> None:
    scene.fs.fail_on("prepared")
    waits = scene.behind_a_leader(pool, scene.named("ab"))
    scene.go_on()
    assert told(waits[1:]) == [ResourceFailed] * 2
    assert scene.published == ["leader"]
    assert scene.fs.paths("dsync") == ["held", "committed", "prepared"]


def test_a_leader_whose_own_round_is_over_is_told_so_whatever_becomes_of_the_next(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    scene.fs.fail_on("prepared")
    waits = scene.behind_a_leader(pool, scene.named("a"))
    scene.go_on()
    assert told(waits) == [None, ResourceFailed]


def test_a_failure_reaches_those_who_gather_in_the_round_that_fails(scene: Scene, pool: ThreadPoolExecutor) -> None:
    scene.fs.gate("committed")
    scene.fs.fail_on("committed")
    waits = scene.behind_a_leader(pool, scene.named("a"))
    scene.go_on()
    assert scene.fs.reached["committed"].wait(PATIENCE_S)
    waits.append(pool.submit(scene.perform, "b"))
    scene.asleep.get(timeout=PATIENCE_S)
    scene.fs.gates["committed"].set()
    assert told(waits[1:]) == [ResourceFailed] * 2
    assert scene.published == ["leader"]


@pytest.mark.parametrize("files", [1, 50])
def test_a_failed_content_sync_fences(scene: Scene, files: int) -> None:
    scene.fs.fail_on("block 0")
    with pytest.raises(ResourceFailed):
        log_of(scene).sync_contents([f"block {number}" for number in range(files)])
    assert isinstance(scene.log.failure, OSError)
    scene.log.close()
    assert len(scene.fs.synced) == len(set(scene.fs.synced)) <= files
    with pytest.raises(ResourceFailed):
        scene.log.check()


@pytest.mark.parametrize("hardening", [NONE, STRICT], ids=str)
@pytest.mark.parametrize("where", ["plan", "publish", "published"])
def test_what_is_no_error_of_a_step_fences(where: str, hardening: Hardening) -> None:
    def broken(*_: object) -> Any:
        raise OSError(EIO, "watermark")

    scene = Scene(hardening)
    if where == "published":
        scene.owner.published = broken
    for _ in range(2):
        with pytest.raises(ResourceFailed, match="watermark"):
            scene.log.perform(broken if where == "plan" else change("a"), broken if where == "publish" else nothing)
    assert not scene.lock.locked()


def test_the_first_failure_is_the_one_that_is_told(scene: Scene) -> None:
    scene.log.fail(OSError(EIO, "first"))
    scene.log.fail(OSError(EIO, "second"))
    with pytest.raises(ResourceFailed, match="first"):
        scene.log.check()


def test_a_failure_from_elsewhere_reaches_those_who_wait(scene: Scene, pool: ThreadPoolExecutor) -> None:
    waits = scene.behind_a_leader(pool, scene.named("ab"))
    scene.log.fail(OSError(EIO, "elsewhere"))
    assert told(waits[1:]) == [ResourceFailed] * 2, "while the round of the leader is still on its way"
    scene.go_on()
    told(waits)
    assert scene.applied == ["leader"]


def test_a_failure_reaches_a_step_that_is_not_asleep_yet(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, may_sleep, sleep = threading.Event(), threading.Event(), Step.sleep

    def late_sleep(step: Step) -> None:
        if step.round is None:
            ready.set()
            assert may_sleep.wait(PATIENCE_S)
        sleep(step)

    monkeypatch.setattr(Step, "sleep", late_sleep)
    scene.fs.gate("held")
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(scene.perform, "leader", "held", "")
        assert scene.fs.reached["held"].wait(PATIENCE_S)
        late = pool.submit(scene.perform, "late")
        assert ready.wait(PATIENCE_S)
        scene.log.fail(OSError(EIO, "elsewhere"))
        may_sleep.set()
        assert told([late]) == [ResourceFailed]
        scene.go_on()
        told([leader])


def test_one_that_is_abandoned_takes_no_locks_that_others_held(scene: Scene) -> None:
    """As in a forked child, where a thread of the parent held the lock for ever."""
    assert scene.log._mutex.acquire()
    scene.log.abandon(ResourceFailed("the parent's"))
    with pytest.raises(ResourceFailed, match="parent's"):
        scene.perform("a")
    assert scene.applied == []


def test_an_interrupted_leader_tells_those_who_wait(scene: Scene, pool: ThreadPoolExecutor) -> None:
    waits = scene.behind_a_leader(pool, scene.named("ab"))
    scene.fs.broken["held"] = KeyboardInterrupt()
    scene.go_on()
    assert told(waits) == [KeyboardInterrupt, ResourceFailed, ResourceFailed]
    with pytest.raises(ResourceFailed):
        scene.perform("later")


@pytest.mark.parametrize("gathered", [True, False])
def test_an_interrupt_between_gathering_and_leading_leaves_nobody_waiting(scene: Scene, *, gathered: bool) -> None:
    """Whoever comes later would wait for it to lead. One that has not gathered yet leaves nothing behind."""
    mutex = scene.log._mutex

    class Interrupted:
        def __enter__(self) -> None:
            scene.log._mutex = mutex
            if not gathered:
                raise KeyboardInterrupt
            mutex.acquire()

        def __exit__(self, *error: object) -> None:
            mutex.release()
            raise KeyboardInterrupt

    scene.log._mutex = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        scene.perform("a")
    if gathered:
        with pytest.raises(ResourceFailed, match="KeyboardInterrupt"):
            scene.perform("b")
    else:
        scene.perform("b")
        assert scene.published == ["b"]


def interrupt_main(scene: Scene) -> None:
    """As Ctrl-C does, once the main thread's step sleeps; whether before or behind its wake-up is all the same."""
    scene.asleep.get(timeout=PATIENCE_S)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_an_interrupted_follower_waits_for_its_step_and_hears_of_the_interrupt_behind_it(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    waits = scene.behind_a_leader(pool, scene.named("a"))

    def interrupt() -> None:
        interrupt_main(scene)
        scene.go_on()

    waits.append(pool.submit(interrupt))
    scene.perform("main")
    assert "main" in scene.published
    assert told(waits) == [None] * 3
    with pytest.raises(KeyboardInterrupt):
        scene.log.deliver_interrupt()
    scene.log.deliver_interrupt()
    scene.perform("later")


def test_an_interrupted_follower_that_is_handed_the_lead_leads(
    scene: Scene, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "ROUNDS_A_LEADER", 1)
    waits = scene.behind_a_leader(pool, scene.named(""))

    def interrupt() -> None:
        interrupt_main(scene)
        waits.append(pool.submit(scene.perform, "b"))
        scene.go_on()

    waits.append(pool.submit(interrupt))
    scene.perform("main")
    assert told(waits) == [None] * len(waits)
    assert sorted(scene.published) == ["b", "leader", "main"]
    with pytest.raises(KeyboardInterrupt):
        scene.log.deliver_interrupt()


def test_a_follower_that_is_interrupted_twice_fences(
    scene: Scene, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step may have been done or not, and nobody is there to hear."""
    sleep = Step.sleep

    def interrupted(step: Step) -> None:
        if scene.asleep.empty():
            sleep(step)
        else:
            raise KeyboardInterrupt

    waits = scene.behind_a_leader(pool, scene.named("a"))
    scene.asleep.put(Step())
    monkeypatch.setattr(Step, "sleep", interrupted)
    waits.append(pool.submit(scene.perform, "b"))
    assert told(waits[1:]) == [ResourceFailed, KeyboardInterrupt]
    scene.go_on()
    told(waits)
    assert scene.applied == ["leader"]
    with pytest.raises(ResourceFailed):
        scene.perform("later")


OF_ROUNDS = (group_commit.__file__, directory_log.__file__)


class Interruption:
    """Interrupts a thread at the n-th line of a round that it reaches, once it is armed.

    Not at a ``with``: between its body and its end no signal is delivered.
    """

    def __init__(self, line: int) -> None:
        self.left = line
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Interruption | None:
        if frame.f_code.co_filename not in OF_ROUNDS:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not line.lstrip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("rounds", [1, 8])
def test_wherever_a_leader_is_interrupted_nobody_waits_for_ever(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "ROUNDS_A_LEADER", rounds)
    line = 0
    while True:
        line += 1
        interruption = Interruption(line)
        with ThreadPoolExecutor(4) as pool, watched(Scene(), monkeypatch) as scene:
            waits = interrupted_leader(scene, pool, interruption)
            scene.go_on()
            assert not wait(waits, PATIENCE_S).not_done, interruption.where
            for future, name in zip(waits[1:], "ab", strict=True):
                error = future.exception()
                assert isinstance(error, ResourceFailed | None), interruption.where
                assert (name in scene.published) or error is not None, interruption.where
            after = [pool.submit(scene.perform, "after")]
            assert told(after) in ([None], [ResourceFailed]), interruption.where
        if not interruption.where:
            break
    assert line > 20


def interrupted_leader(scene: Scene, pool: ThreadPoolExecutor, interruption: Interruption) -> list[Any]:
    """A leader that is interrupted after two others have gathered behind it."""

    def arm(path: str) -> None:
        if path != "held":
            return
        frame: FrameType | None = sys._getframe()
        sys.settrace(interruption)
        while frame is not None:
            if frame.f_code.co_filename in OF_ROUNDS:
                frame.f_trace = interruption
            frame = frame.f_back

    def lead() -> None:
        scene.fs.during = arm
        try:
            scene.perform("leader", "held", "")
        finally:
            sys.settrace(None)

    scene.fs.gate("held")
    leader = pool.submit(lead)
    assert scene.fs.reached["held"].wait(PATIENCE_S)
    waits = [leader]
    for step in scene.named("ab"):
        waits.append(pool.submit(step))
        scene.asleep.get(timeout=PATIENCE_S)
    return waits
