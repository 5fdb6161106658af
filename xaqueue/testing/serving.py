"""A real server in a process of its own, in a directory that goes with it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xaqueue
from xaqueue.core.model import definitions
from xaqueue.core.owner import definitions_file
from xaqueue.errors import OperationalError
from xaqueue.features import opening
from xaqueue.testing.memory import Queues, text_of

START_S = 60.0
"""A server that is not ready by then never will be."""
STOP_S = 10.0
LOOK_S = 0.02


@contextmanager
def served(queues: Queues = (), *, sync: str | None = None) -> Iterator[str]:
    """Runs `xaqueue serve` on a new space, and gives the URL of its Unix socket once it is ready.

    queues, sync: as for MemorySpace; all of a queues.toml has its effect here. At the end of the block the server is
    ended, and its space removed. Raises InvalidArgument, and OperationalError with what it printed where it does not
    start.
    """
    with tempfile.TemporaryDirectory(prefix="xaqueue-") as home, tempfile.TemporaryFile() as printed:
        space, socket = f"{home}/space", f"{home}/socket"
        text = text_of(queues)
        definitions.parse(text)
        opening.create(space)
        definitions_file.write_definitions(space, text)
        command = [sys.executable, "-P", "-m", "xaqueue", "serve", "--space", space, "--unix", socket]
        command += ["--sync", sync] if sync is not None else []
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT)
        try:
            if not _is_ready(server, socket):
                printed.seek(0)
                raise OperationalError(f"`xaqueue serve` did not start: {printed.read().decode(errors='replace')}")
            yield f"xaq+unix://{socket}"
        finally:
            server.terminate()
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _is_ready(server: subprocess.Popen[bytes], socket: str) -> bool:
    until = time.monotonic() + START_S
    while not Path(socket).exists():
        if server.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    xaqueue.connect(f"xaq+unix://{socket}").close()
    return True
