"""The producer as a child process that can be frozen, looked at, let go on, and killed with SIGKILL.

A process that is stopped cannot move between the look and the kill, so what was seen is what the kill hits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from xaqueue.errors import OperationalError

STOPS_WITHIN_S = 30.0
"""A thread in a sync stops when the disk answers."""
TAIL = 12


class Child:
    """One run of a Python module as a process. What it prints is kept in the file ``output``.

    As a context manager it does not outlive its block.
    """

    def __init__(self, module: str, arguments: Sequence[str], output: Path) -> None:
        self.output = output
        command = [sys.executable, "-m", module, *arguments]
        with output.open("wb") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        """Whether it has ended by itself. Raises OperationalError with its last words where it failed."""
        code = self._process.poll()
        if code:
            last = self.output.read_text("utf-8", "replace").splitlines()[-TAIL:]
            raise OperationalError(f"the producer, process {self.pid}, ended with code {code}:\n" + "\n".join(last))
        return code is not None

    def freeze(self) -> bool:
        """Stops every thread of it; False where it has ended. ``thaw`` lets it go on."""
        if self._process.returncode is not None:
            return False
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + STOPS_WITHIN_S
        while True:
            seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is not None:
                return seen.si_code == os.CLD_STOPPED
            if time.monotonic() > deadline:
                raise OperationalError(f"the producer, process {self.pid}, does not stop: its disk does not answer")
            time.sleep(0.0001)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns once it is gone and its locks are free."""
        self._process.kill()
        self._process.wait(STOPS_WITHIN_S)

    def said(self, key: str) -> Any:
        """What it printed under this key as a line of JSON; None where it has not."""
        for line in self.output.read_text("utf-8", "replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                found = json.loads(line)
                if key in found:
                    return found[key]
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()
