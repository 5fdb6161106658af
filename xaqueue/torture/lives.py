"""One life of a child process, from its start to an end that is not its own, and all it said until then."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xaqueue.torture.ledger import Ledger, Said

LONGEST_START_S = 60.0
"""A child that is not to be killed while it recovers has so long to begin its work."""

Child = subprocess.Popen[bytes]


class LifeFailed(Exception):
    """The child ended by itself. ``code``: its exit code."""

    def __init__(self, code: int, complaint: str) -> None:
        super().__init__(complaint)
        self.code = code


@dataclass(frozen=True)
class Life:
    """``end`` ends it and waits for that: ``start_s`` after its start, or ``work_s`` after it said that it is ready.

    ``loses_power``: what it says while ``end`` is at work may be untrue.
    """

    command: Sequence[str]
    end: Callable[[Child], None]
    work_s: float
    start_s: float = LONGEST_START_S
    loses_power: bool = False

    def run(self, ledger: Ledger) -> bool:
        """Returns whether it said "stopped", which ended it. Raises LifeFailed where nobody killed it."""
        ledger.begin_life()
        with tempfile.TemporaryFile() as decided, tempfile.TemporaryFile() as complaint:
            decided.write(json.dumps(sorted(ledger.decided())).encode())
            decided.seek(0)
            with subprocess.Popen(self.command, stdin=decided, stdout=subprocess.PIPE, stderr=complaint) as child:
                try:
                    return self._listen(child, ledger)
                except EOFError:
                    code = child.wait()
                    if code == -signal.SIGKILL:
                        return False
                    complaint.seek(0)
                    raise LifeFailed(code, complaint.read().decode("utf-8", "replace").strip()) from None
                finally:
                    child.kill()

    def _listen(self, child: Child, ledger: Ledger) -> bool:
        """Until its end. Raises EOFError where that is its own."""
        assert child.stdout is not None
        pipe, until, stopped, rest = child.stdout.fileno(), time.monotonic() + self.start_s, False, b""
        left = self.start_s
        while _is_ready(pipe, left):
            heard = os.read(pipe, 1 << 16)
            if not heard:
                raise EOFError
            *lines, rest = (rest + heard).split(b"\n")
            for said in map(Said.parse, lines):
                ledger.hear(said)
                if said.event == "ready":
                    until = time.monotonic() + self.work_s
                elif said.event == "stopped":
                    stopped = True
            if left == 0.0:
                break
            left = 0.0 if stopped else max(0.0, until - time.monotonic())
        self.end(child)
        for line in (rest + child.stdout.read()).split(b"\n")[:-1]:
            ledger.hear(Said.parse(line), late=self.loses_power)
        return stopped


def _is_ready(pipe: int, within_s: float) -> bool:
    return bool(select.select([pipe], [], [], within_s)[0])


def kill(child: Child) -> None:
    """Raises EOFError where it had ended by itself just before."""
    child.kill()
    if child.wait() != -signal.SIGKILL:
        raise EOFError
