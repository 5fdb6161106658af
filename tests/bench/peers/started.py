"""A server that a peer starts for itself, over its own directory, and ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xaqueue.errors import OperationalError

START_S, STOP_S = 60.0, 30.0


class Started:
    """The process of a server that listens on this Unix socket or port. Raises OperationalError where it is not
    installed, or does not come up. ``environment``: instead of this process's."""

    def __init__(
        self, command: Sequence[str], place: str | int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        program = shutil.which(command[0])
        if program is None:
            raise OperationalError(f"{command[0]} is not installed")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
            )
        end = time.monotonic() + START_S
        while True:
            with suppress(OSError):
                connected(place).close()
                return
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise OperationalError(f"{command[0]} did not come up: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.02)

    def cpu_s(self) -> float:
        """See proc_pid_stat(5)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8", "replace").rpartition(") ")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def connected(place: str | int) -> socket.socket:
    """To a Unix socket, or a port of this machine."""
    if isinstance(place, str):
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(place)
        except OSError:
            made.close()
            raise
        return made
    made = socket.create_connection(("127.0.0.1", place))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def version_of(*command: str) -> str:
    """What a program says of itself; empty where it is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
