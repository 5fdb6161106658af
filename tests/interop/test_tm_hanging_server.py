"""A queue server that is stopped in whatever it is asked holds up those transactions alone that have work there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import xaqueue
from support.served import Process
from xaqueue import TransactionManager
from xaqueue.features.opening import create
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.transaction import Transaction
from xaqueue.xa import Outcome

PATIENCE_S = 60.0
SOON_S = 20.0
"""Others commit within this, while one hangs for longer."""
STEPS = [Step.BEGIN, Step.PREPARE, Step.COMMIT, Step.ROLLBACK]


class Shop:
    """A transaction manager over two servers, of which ``stuck`` can be stopped."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place = place
        self.urls, self.pids = {}, {}
        for name in ("stuck", "fine"):
            create(place / name / "space", any_queue=True)
            server = stack.enter_context(Process(place / name / "space"))
            self.urls[name], self.pids[name] = f"xaq+unix://{server.path}", server.pid
        self.reached = threading.Event()
        self.at: Step | None = None

    def stop_at(self, step: Step, gtrid: bytes, name: str) -> None:
        if (step, name) == (self.at, "stuck"):
            self.at = None
            os.kill(self.pids["stuck"], signal.SIGSTOP)
            self.reached.set()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Behind the block the server goes on, whatever happened."""
        try:
            yield
        finally:
            os.kill(self.pids["stuck"], signal.SIGCONT)

    def found(self, name: str) -> list[bytes]:
        with xaqueue.connect(self.urls[name]) as connection:
            return sorted(message.body for message in connection.browse("orders"))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(tmp_path, stack)


def put(tx: Transaction, body: bytes, *names: str) -> None:
    for name in names:
        tx[name].enqueue("orders", body)


@pytest.mark.parametrize("step", STEPS)
def test_of_threads(shop: Shop, step: Step) -> None:
    opened = {name: lambda url=url: xaqueue.connect(url) for name, url in shop.urls.items()}
    with TransactionManager(shop.place / "log", opened, on_step=shop.stop_at, timeout_s=PATIENCE_S) as tm:
        tm.recover(PATIENCE_S)
        shop.at = step

        def hang() -> Transaction:
            with tm.transaction() as tx:
                put(tx, b"held up", "fine", "stuck")
                if step is Step.ROLLBACK:
                    tx.rollback()
            return tx

        with ThreadPoolExecutor(2) as pool, shop.going_on():
            held_up = pool.submit(hang)
            assert shop.reached.wait(PATIENCE_S)

            def others() -> None:
                for number in range(5):
                    with tm.transaction() as tx:
                        put(tx, b"%d" % number, "fine")

            pool.submit(others).result(SOON_S)
            assert not held_up.done()
            os.kill(shop.pids["stuck"], signal.SIGCONT)
            wanted = Outcome.ROLLED_BACK if step is Step.ROLLBACK else Outcome.COMMITTED
            assert held_up.result(PATIENCE_S).outcome is wanted
    held = [] if step is Step.ROLLBACK else [b"held up"]
    assert shop.found("stuck") == held
    assert shop.found("fine") == [*(b"%d" % number for number in range(5)), *held]


@pytest.mark.parametrize("step", STEPS)
def test_of_tasks(shop: Shop, step: Step) -> None:
    opened = {name: lambda url=url: xaqueue.connect_async(url) for name, url in shop.urls.items()}

    async def main() -> None:
        async with TransactionManager(shop.place / "log", opened, on_step=shop.stop_at, timeout_s=PATIENCE_S) as tm:
            await asyncio.to_thread(tm.recover, PATIENCE_S)
            shop.at = step

            async def hang() -> None:
                async with tm.transaction("fine", "stuck") as tx:
                    for name in ("fine", "stuck"):
                        await tx[name].enqueue("orders", b"held up")
                    if step is Step.ROLLBACK:
                        raise ZeroDivisionError

            held_up = asyncio.ensure_future(hang())
            with shop.going_on():
                assert await asyncio.to_thread(shop.reached.wait, PATIENCE_S)
                async with asyncio.timeout(SOON_S):
                    for number in range(5):
                        async with tm.transaction("fine") as tx:
                            await tx["fine"].enqueue("orders", b"%d" % number)
                assert not held_up.done()
            if step is Step.ROLLBACK:
                with pytest.raises(ZeroDivisionError):
                    await held_up
            else:
                await held_up

    asyncio.run(main())
    held = [] if step is Step.ROLLBACK else [b"held up"]
    assert shop.found("stuck") == held
    assert shop.found("fine") == [*(b"%d" % number for number in range(5)), *held]
