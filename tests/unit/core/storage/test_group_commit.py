"""Concurrent steps share rounds of syncs, each directory once and in the safe order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.group_commit_scene import NONE, PATIENCE_S, STRICT, Scene, change, log_of, told, watched
from xaqueue.core.model.change import Change
from xaqueue.core.storage import group_commit
from xaqueue.core.storage.group_commit import Step
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import RolledBack


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(9) as threads:
        yield threads


@pytest.fixture
def scene(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with watched(Scene(), monkeypatch) as watching:
        yield watching


def test_a_step_alone_leads_its_round_and_wakes_nobody(scene: Scene) -> None:
    scene.perform("a")
    assert scene.fs.paths("dsync") == ["committed", "prepared"]
    assert (scene.applied, scene.published, scene.groups) == (["a"], ["a"], [1])
    assert (scene.log.rounds, scene.log.steps) == (1, 1)
    assert scene.asleep.empty()


def test_steps_that_gather_while_one_leads_share_one_round(scene: Scene, pool: ThreadPoolExecutor) -> None:
    names = [f"step {number}" for number in range(8)]
    waits = scene.behind_a_leader(pool, scene.named(names))
    assert (scene.applied, scene.published) == (["leader"], [])
    scene.go_on()
    assert told(waits) == [None] * 9
    assert scene.fs.paths("dsync") == ["held", "committed", "prepared"]
    assert scene.published == ["leader", *names]
    assert scene.groups == [1, 9]
    assert (scene.log.rounds, scene.log.steps) == (2, 9)


def test_applying_and_publishing_are_in_the_order_of_gathering(scene: Scene, pool: ThreadPoolExecutor) -> None:
    """Sequence numbers are given when a step is applied, and must appear in their order."""
    names = ["c", "a", "b"]
    waits = scene.behind_a_leader(pool, scene.named(names))
    scene.go_on()
    told(reversed(waits))
    assert scene.applied == scene.published == ["leader", *names]


def test_one_wake_up_a_waiter(scene: Scene, pool: ThreadPoolExecutor) -> None:
    steps: list[Step] = []
    waits = scene.behind_a_leader(pool, scene.named("abcd"))
    scene.go_on()
    told(waits)
    steps = [step for step in scene.woken if step.waiter is not None]
    assert len(steps) == len({id(step) for step in steps}) == 4


def test_nothing_is_published_before_its_syncs(scene: Scene) -> None:
    def look(path: str) -> None:
        assert (scene.applied, scene.published) == (["a"], []), path

    scene.fs.during = look
    scene.perform("a")
    assert scene.published == ["a"]


def test_no_lock_is_held_while_it_syncs(scene: Scene) -> None:
    """A dequeue or a browse goes on, and the next steps gather, however slow the disk is."""

    def look(path: str) -> None:
        for lock in (scene.lock, scene.log._mutex):
            assert lock.acquire(blocking=False), path
            lock.release()

    scene.fs.during = look
    scene.perform("a")
    log_of(scene).sync_contents(["block"])
    assert len(scene.fs.synced) == 3


def test_directories_that_gain_come_before_those_that_lose(scene: Scene, pool: ThreadPoolExecutor) -> None:
    """Or a crash between the two syncs could lose a block that is on its way."""
    moves: list[Callable[[], None]] = [
        lambda: scene.perform("prepare", "prepared", "active"),
        lambda: scene.perform("commit"),
        lambda: scene.log.perform(change("new", "target", arrivals=[("q", 1)])),
    ]
    waits = scene.behind_a_leader(pool, moves)
    scene.go_on()
    assert told(waits) == [None] * 4
    assert scene.fs.synced[1:] == [
        ("fdatasync", "committed/queue=q/.watermark"),
        ("dsync", "committed"),
        ("dsync", "committed/queue=q"),
        ("dsync", "target"),
        ("dsync", "prepared"),
        ("dsync", "active"),
    ]


@pytest.mark.parametrize(
    ("flags", "synced"),
    [
        ("NONE", []),
        ("FSYNC", ["fsync content", "fsync file"]),
        ("FDATASYNC", ["fdatasync content", "fdatasync file"]),
        ("DSYNC", ["dsync target", "dsync source"]),
        ("FSYNC;DSYNC", ["fsync content", "fsync file", "dsync target", "dsync source"]),
        ("FDATASYNC;DSYNC", ["fdatasync content", "fdatasync file", "dsync target", "dsync source"]),
    ],
)
def test_the_flags_choose_the_syncs(flags: str, synced: list[str]) -> None:
    scene = Scene(Hardening.parse(flags))
    log_of(scene).sync_contents(["content"])
    scene.log.perform(change("file", "target", "source", arrivals=[("q", 1)]))
    made = [f"{call} {path}".replace("committed/queue=q/.watermark", "file") for call, path in scene.fs.synced]
    assert [sync for sync in made if "committed" not in sync] == synced
    assert ("dsync committed" in made) == ("DSYNC" in flags)


def test_many_files_are_each_synced_once(scene: Scene) -> None:
    paths = [f"block {number}" for number in range(100)]
    log_of(scene).sync_contents(paths)
    scene.log.close()
    assert sorted(scene.fs.paths("fdatasync")) == sorted(paths)


def test_where_nothing_is_ever_synced_there_are_no_rounds() -> None:
    scene = Scene(NONE)
    scene.perform("a")
    assert (scene.applied, scene.published, scene.groups, scene.fs.synced) == (["a"], ["a"], [1], [])
    assert (scene.log.rounds, scene.log.steps) == (0, 1)


def test_what_needs_no_sync_still_waits_for_what_came_before_it(scene: Scene, pool: ThreadPoolExecutor) -> None:
    waits = scene.behind_a_leader(pool, [*scene.named(["behind"]), lambda: scene.perform("free", "")])
    assert not any(wait.done() for wait in waits)
    scene.go_on()
    assert told(waits) == [None] * 3
    assert scene.published == ["leader", "behind", "free"]


@pytest.mark.parametrize("hardening", [NONE, STRICT], ids=str)
def test_an_error_of_a_step_concerns_it_alone(hardening: Hardening, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Change:
        raise RolledBack("refused")

    with watched(Scene(hardening), monkeypatch) as scene:
        with pytest.raises(RolledBack, match="refused"):
            scene.log.perform(refused, lambda: scene.publish("refused"))
        scene.perform("a")
        assert scene.published == ["a"]
        assert scene.log.failure is None


def test_an_error_of_a_step_in_a_group_concerns_it_alone(scene: Scene, pool: ThreadPoolExecutor) -> None:
    def refused() -> Change:
        raise RolledBack("refused")

    steps = [*scene.named("a"), lambda: scene.log.perform(refused), *scene.named("b")]
    waits = scene.behind_a_leader(pool, steps)
    scene.go_on()
    assert told(waits) == [None, None, RolledBack, None]
    assert scene.published == ["leader", "a", "b"]


@pytest.mark.parametrize("rounds", [1, 8])
def test_a_step_that_is_woken_before_it_sleeps(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be handed the lead, or finished, while its thread is still on its way to sleep."""
    monkeypatch.setattr(group_commit, "ROUNDS_A_LEADER", rounds)
    ready, may_sleep, sleep = threading.Event(), threading.Event(), Step.sleep

    def late_sleep(step: Step) -> None:
        if step.round is None:
            ready.set()
            assert may_sleep.wait(PATIENCE_S)
        sleep(step)

    monkeypatch.setattr(Step, "sleep", late_sleep)
    scene = Scene()
    with ThreadPoolExecutor(2) as pool:
        scene.fs.gate("held")
        leader = pool.submit(scene.perform, "leader", "held", "")
        assert scene.fs.reached["held"].wait(PATIENCE_S)
        late = pool.submit(scene.perform, "late")
        assert ready.wait(PATIENCE_S)
        scene.go_on()
        assert told([leader]) == [None]
        assert scene.published == ["leader", "late"][: 1 if rounds == 1 else 2]
        may_sleep.set()
        assert told([late]) == [None]
    assert scene.published == ["leader", "late"]


@pytest.mark.parametrize("rounds", [1, 8])
def test_many_threads_lose_no_wake_up(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "ROUNDS_A_LEADER", rounds)
    scene = Scene()

    def work(thread: int) -> None:
        for number in range(100):
            name = f"{thread}.{number}"
            scene.perform(name, f"queue {thread % 3}")
            assert name in scene.published

    with ThreadPoolExecutor(8) as pool:
        assert told([pool.submit(work, thread) for thread in range(8)]) == [None] * 8
    assert scene.published == scene.applied
    assert [name for name in scene.published if name.startswith("3.")] == [f"3.{number}" for number in range(100)]
    assert scene.log.rounds <= scene.log.steps == 800
    assert len(scene.fs.paths("dsync")) <= 4 * scene.log.rounds


def test_a_leader_that_has_led_long_enough_hands_the_lead_on(
    scene: Scene, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own step was done in the first of its rounds; whoever called it waits no longer than for a few more."""
    monkeypatch.setattr(group_commit, "ROUNDS_A_LEADER", 2)
    leaders: list[int] = []
    scene.fs.during = lambda _: leaders.append(threading.get_ident())
    scene.fs.gate("second")
    scene.fs.gate("third")
    waits = scene.behind_a_leader(pool, [lambda: scene.perform("b", "second", "")])
    scene.go_on()
    assert scene.fs.reached["second"].wait(PATIENCE_S)
    waits.append(pool.submit(scene.perform, "c", "third", ""))
    scene.asleep.get(timeout=PATIENCE_S)
    scene.fs.gates["second"].set()
    assert scene.fs.reached["third"].wait(PATIENCE_S)
    assert told(waits[:2]) == [None, None]
    assert not waits[2].done()
    scene.fs.gates["third"].set()
    assert told(waits) == [None] * 3
    assert leaders[0] == leaders[1] != leaders[2]
