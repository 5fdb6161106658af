"""Who leads rounds under an event loop: the loop itself while they are brief, and a thread while they are not."""

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
