"""A server whose stderr nobody reads works on, and ends when it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import xaqueue


def test_nobody_waits_for_who_reads_events(tmp_path: Path) -> None:
    place = tmp_path / "s"
    xaqueue.connect(place, create=True).close()
    command = [sys.executable, "-m", "xaqueue", "serve", "--space", str(place), "--log-level", "info"]
    reading, writing = os.pipe()
    with subprocess.Popen(command, stderr=writing, stdout=subprocess.DEVNULL) as server:
        os.close(writing)
        deadline = time.monotonic() + 120
        while not (place / "socket").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(700):  # each is logged as it comes and goes: far more than a pipe holds
            connection = xaqueue.connect(f"xaq+unix://{place}/socket")
            connection.close()
        with xaqueue.connect(f"xaq+unix://{place}/socket") as connection:
            connection.enqueue("orders", b"one")
        server.terminate()
        assert server.wait(120) == 0
    told = os.read(reading, 1 << 20)
    os.close(reading)
    assert len(told) >= 32_000, "the pipe was full"
    with xaqueue.connect(place) as connection:
        assert len(list(connection.browse("orders"))) == 1
