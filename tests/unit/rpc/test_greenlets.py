"""Who leads rounds and who syncs under an event loop: the loop itself while that is brief and one task is alone with
it, and threads otherwise.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from xaqueue.rpc.server import scheduler
from xaqueue.rpc.server.scheduler import Scheduler


def leaders(*rounds: Callable[[], None]) -> list[bool]:
    """Whether the loop's thread led each of these, one after the other in a task."""
    led: list[bool] = []

    async def main() -> None:
        scheduler_ = Scheduler(asyncio.get_running_loop())
        over = asyncio.Event()

        def run() -> None:
            for done in rounds:

                def perform(done: Callable[[], None] = done) -> None:
                    led.append(scheduler_.is_here())
                    done()

                scheduler_.run_rounds(perform)
            over.set()

        scheduler_.spawn(run).switch()
        await asyncio.wait_for(over.wait(), 60)
        scheduler_.close()

    asyncio.run(main())
    return led


def nothing() -> None: ...


def test_after_a_slow_round_a_thread_leads_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def takes(seconds: float) -> Callable[[], None]:
        def pass_by() -> None:
            now[0] += seconds

        return pass_by

    brief, slow, rest = takes(scheduler.BRIEF_S / 2), takes(scheduler.BRIEF_S * 2), takes(scheduler.APART_S)
    assert leaders(brief, slow, nothing, rest, nothing) == [True, True, False, False, True]


def test_the_loop_goes_on_while_a_thread_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "BRIEF_S", -1.0)

    async def main() -> None:
        scheduler_ = Scheduler(asyncio.get_running_loop())
        turned, over = threading.Event(), asyncio.Event()

        def run() -> None:
            scheduler_.run_rounds(lambda: None)
            scheduler_.run_rounds(lambda: waited.append(turned.wait(60)))
            over.set()

        waited: list[bool] = []
        scheduler_.spawn(run).switch()
        turned.set()
        await asyncio.wait_for(over.wait(), 60)
        assert waited == [True]
        scheduler_.close()

    asyncio.run(main())


def played(*tasks: Callable[[Scheduler], None]) -> None:
    """Runs each in a task, all begun in one turn of the loop, to their ends."""

    async def main() -> None:
        made = Scheduler(asyncio.get_running_loop())
        ended: list[asyncio.Event] = []
        for task in tasks:
            over = asyncio.Event()
            ended.append(over)

            def run(task: Callable[[Scheduler], None] = task, over: asyncio.Event = over) -> None:
                task(made)
                over.set()

            made.spawn(run).switch()
        await asyncio.wait_for(asyncio.gather(*(over.wait() for over in ended)), 60)
        made.close()

    asyncio.run(main())


def syncs(*, times: int, here: list[bool]) -> Callable[[Scheduler], None]:
    """A task that leads so many rounds, and notes whether each sync was made in the loop."""

    def run(made: Scheduler) -> None:
        for _ in range(times):
            made.yield_once()
            made.harden(lambda _: here.append(made.is_here()), "path")

    return run


def test_who_is_alone_syncs_in_the_loop() -> None:
    here: list[bool] = []
    played(syncs(times=3, here=here))
    assert here == [False, True, True]


def test_of_several_each_sync_is_made_by_the_thread() -> None:
    here: list[bool] = []
    played(syncs(times=3, here=here), syncs(times=3, here=here))
    assert here == [False] * 6


def test_who_waited_ends_the_solitude() -> None:
    here: list[bool] = []

    def run(made: Scheduler) -> None:
        syncs(times=2, here=here)(made)
        made.waiter()
        syncs(times=2, here=here)(made)

    played(run)
    assert here == [False, True, False, True]


def test_the_loop_goes_on_while_a_sync_hangs_and_its_failure_is_the_leader_s() -> None:
    goes_on, found = threading.Event(), list[object]()

    def leads(made: Scheduler) -> None:
        def hangs(path: str) -> None:
            assert goes_on.wait(60)
            raise OSError(5, path)

        made.yield_once()
        try:
            made.harden(hangs, "journal")
        except OSError as error:
            found.append(error.args)

    def works(made: Scheduler) -> None:
        for turn in range(5):
            made.yield_once()
            found.append(turn)
        goes_on.set()

    played(leads, works)
    assert found == [0, 1, 2, 3, 4, (5, "journal")]


def test_time_in_which_a_thread_synced_was_not_the_loop_s(monkeypatch: pytest.MonkeyPatch) -> None:
    now, led = [1000.0], list[bool]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(_: str) -> None:
        now[0] += 2 * scheduler.BRIEF_S

    def run(made: Scheduler) -> None:
        def lead() -> None:
            led.append(made.is_here())
            made.harden(slow, "path")

        for _ in range(3):  # the first sync is a thread's, the second one's the loop's
            made.yield_once()
            made.run_rounds(lead)

    played(run)
    assert led == [True, True, False]
