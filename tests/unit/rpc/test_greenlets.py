"""Who leads rounds under an event loop: the loop itself while they are brief, and a thread while they are not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from xaqueue.rpc import greenlets
from xaqueue.rpc.greenlets import Hub


def leaders(*rounds: Callable[[], None]) -> list[bool]:
    """Whether the loop's thread led each of these, one after the other in a task."""
    led: list[bool] = []

    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        over = asyncio.Event()

        def lead() -> None:
            for done in rounds:

                def perform(done: Callable[[], None] = done) -> None:
                    led.append(hub.is_here())
                    done()

                hub.lead(perform)
            over.set()

        hub.spawn(lead).switch()
        await asyncio.wait_for(over.wait(), 60)
        hub.close()

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

    brief, slow, rest = takes(greenlets.BRIEF_S / 2), takes(greenlets.BRIEF_S * 2), takes(greenlets.APART_S)
    assert leaders(brief, slow, nothing, rest, nothing) == [True, True, False, False, True]


def test_the_loop_goes_on_while_a_thread_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greenlets, "BRIEF_S", -1.0)

    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        turned, over = threading.Event(), asyncio.Event()

        def lead() -> None:
            hub.lead(lambda: None)
            hub.lead(lambda: waited.append(turned.wait(60)))
            over.set()

        waited: list[bool] = []
        hub.spawn(lead).switch()
        turned.set()
        await asyncio.wait_for(over.wait(), 60)
        assert waited == [True]
        hub.close()

    asyncio.run(main())
