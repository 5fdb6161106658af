"""How the tasks of an event loop wait for rounds, and which calls of a round leave the loop to others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.journals import entry, started
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.rpc.server.scheduler import Scheduler


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


def test_who_is_alone_gives_no_turn_away() -> None:
    """Others come first, until a task has led two rounds and nobody waited in between."""
    order = list[str]()

    def leads(made: Scheduler) -> None:
        for _ in range(3):
            made.loop.call_soon(lambda: order.append("other"))
            made.yield_once()
            order.append("round")
        made.waiter()
        made.loop.call_soon(lambda: order.append("other"))
        made.yield_once()
        order.append("round")

    played(leads)
    assert order[:6] == ["other", "round", "round", "round", "other", "other"]


def test_the_loop_goes_on_while_the_journal_grows(tmp_path: Path) -> None:
    """And a round that does not grow it leaves the loop to nobody."""
    fs = DirectoryFileSystem(tmp_path)
    journal = started(fs)
    goes_on, calls, seen = threading.Event(), list[tuple[str, bool]](), list[int]()

    def leads(made: Scheduler) -> None:
        journal.waiting = made
        sync, create = fs.write_synced, journal._ensure_following

        def watched(*arguments: Any) -> None:
            calls.append(("sync", made.is_here()))
            sync(*arguments)

        def grows(size: int = 0) -> None:
            calls.append(("grow", made.is_here()))
            assert goes_on.wait(60)
            create(size)

        fs.write_synced = watched  # type: ignore[method-assign,assignment]
        journal._ensure_following = grows  # type: ignore[method-assign]
        journal.write([entry(1, 100)])
        assert calls == [("sync", True)]
        while journal.switches == 0:
            journal.write([entry(2, SMALLEST_SEGMENT_BYTES // 5)])

    def works(made: Scheduler) -> None:
        for turn in range(5):
            made.let_others()
            seen.append(turn)
        goes_on.set()

    played(leads, works)
    assert ("grow", False) in calls
    assert seen == [0, 1, 2, 3, 4]
