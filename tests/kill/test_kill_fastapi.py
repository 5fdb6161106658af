"""The FastAPI service of the examples and its worker are killed at work: each order is a row, and is handled once."""

from __future__ import annotations

import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

import xaqueue
from support import ROOT
from xaqueue.core.owner.definitions_file import write_definitions

ORDERS = 40
SERVICE_DIES, WORKER_DIES = (8, 21, 33), (13, 27)
FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
OUTAGES_S = {17: 1.5, **({20: 1.0, 23: 5.0, 26: 15.0, 29: 30.0, 32: 45.0} if FULL else {})}
"""The server is gone for so long. While these orders are sent."""
LONG_OUTAGES_S = {**OUTAGES_S, 35: 60.0}
"""As long as a program waits that may open the directory at last."""
PATIENCE_S = 120.0 if FULL else 60.0
log = logging.getLogger(__name__)


class Process:
    """A program of the examples that is started again when it was killed."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.directory, self.words = directory, words
        self.kills = 0
        self.start()

    def start(self) -> None:
        path = os.pathsep.join((str(ROOT / "examples"), os.environ["PYTHONPATH"]))
        with (self.directory / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, *self.words],
                cwd=self.directory,
                env=os.environ | {"PYTHONPATH": path},
                stdout=said,
                stderr=said,
            )

    def kill_soon(self, delay_s: float, outage_s: float = 0.0) -> None:
        """And then starts it again, where it is missed for so long."""

        def kill() -> None:
            self.process.kill()
            self.kills += self.process.wait() == -signal.SIGKILL
            time.sleep(outage_s)
            self.start()

        threading.Timer(delay_s, kill).start()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(directory: Path, served_only: bool) -> Iterator[Process]:
    """The programs name the directory, and begin once it is served."""
    xaqueue.connect(directory / "queue", create=True).close()
    if served_only:
        write_definitions(directory / "queue", "[default]\n[space]\nserved_only = true\n")
    server = Process(directory, "-m", "xaqueue", "serve", "--space", "queue")
    try:
        until = time.monotonic() + PATIENCE_S
        while not (directory / "queue" / "socket").exists():
            assert time.monotonic() < until, (directory / "said").read_text()
            time.sleep(0.05)
        yield server
    finally:
        server.stop()


def put(client: httpx.Client, number: int) -> None:
    """Until it is answered, as any client has to."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            if client.put(f"/orders/{number}", params={"item": "apples"}).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail(f"order {number} is not taken")


def handled(database: Path) -> dict[int, int]:
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("select number, handled from orders"))


# httpx leaves the socket of a connection that was refused to the collector of garbage.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("served_only", [False, True] if FULL else [False])
def test_each_order_is_a_row_and_is_handled_once(tmp_path: Path, served_only: bool) -> None:
    outages_s = LONG_OUTAGES_S if served_only else OUTAGES_S
    seed = int(os.environ.get("XAQUEUE_KILL_SEED", random.randrange(1 << 32)))
    log.info("XAQUEUE_KILL_SEED=%d", seed)
    chance, socket = random.Random(seed), tmp_path / "http"
    with serving(tmp_path, served_only) as server:
        service = Process(tmp_path, *("-m", "uvicorn", "fastapi_service:app", "--uds", str(socket)))
        worker = Process(tmp_path, str(ROOT / "examples" / "fastapi_worker.py"))
        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://shop") as client:
                for number in range(1, ORDERS + 1):
                    if number in SERVICE_DIES:
                        service.kill_soon(chance.uniform(0, 0.008))
                    if number in outages_s:
                        server.kill_soon(0.0, outages_s[number])
                    if number in WORKER_DIES:
                        worker.kill_soon(chance.uniform(0, 0.02))
                    put(client, number)
                expected = dict.fromkeys(range(1, ORDERS + 1), 1)
                until = time.monotonic() + PATIENCE_S
                while handled(tmp_path / "shop.db") != expected:
                    assert time.monotonic() < until, (tmp_path / "said").read_text()
                    time.sleep(0.05)
                assert client.get("/orders/1").json() == {"number": 1, "item": "apples", "handled": 1}
            assert server.process.poll() is None, "somebody else had the space when it came back"
        finally:
            service.stop()
            worker.stop()
        with xaqueue.connect(tmp_path / "queue") as queue:
            assert not queue.is_embedded
            assert list(queue.browse("orders")) == []
            assert list(queue.tpc_recover()) == []
    assert (service.kills, worker.kills, server.kills) == (len(SERVICE_DIES), len(WORKER_DIES), len(outages_s))
    assert handled(tmp_path / "shop.db") == expected
