"""The parties of the ledger as processes that can be killed: the queue server, a PostgreSQL backend, the service.

Whoever was killed is started again, as a service manager would; PostgreSQL recovers by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from xaqueue.errors import OperationalError
from xaqueue.tools.demo.ledger_service import Addresses

LONGEST_S = 120.0
LOOK_S = 0.01
TAIL = 12
COMMAND = (sys.executable, "-c", "from xaqueue.cli.main import main; main()")
SERVICE = (sys.executable, "-m", "xaqueue.tools.demo.ledger_service")
BACKENDS = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


class Program:
    """One run of a program. What it says is kept in the file ``output``, behind what an earlier run said.

    As a context manager it does not outlive its block.
    """

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self.output = output
        self._from = output.stat().st_size if output.exists() else 0
        with output.open("ab") as said, output.with_suffix(".err").open("ab") as complained:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=complained)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def lines(self) -> list[list[str]]:
        """The words of each whole line of this run."""
        with self.output.open("rb") as file:
            file.seek(self._from)
            whole = file.read().rpartition(b"\n")[0]
        return [line.split() for line in whole.decode().splitlines()]

    def wait_for(self, word: str) -> None:
        """Until a line begins with this word. Raises OperationalError where the program ends first, or is stuck."""
        deadline = Deadline(f"no {word!r} in {self.output}")
        while all(line[:1] != [word] for line in self.lines()):
            if self.ended() is not None:
                raise OperationalError(f"{self.output.stem} ended with code {self.ended()}:\n{self.complaint()}")
            deadline.look()

    def complaint(self) -> str:
        """Its last words on stderr."""
        text = self.output.with_suffix(".err").read_text("utf-8", "replace")
        return "\n".join(text.splitlines()[-TAIL:])

    def kill(self) -> None:
        """SIGKILL; returns once it is gone and its locks are free."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM; SIGKILL if that does not help."""
        self._process.terminate()
        try:
            self._process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended() is None:
            self.stop()


class Deadline:
    """Ends in OperationalError where something takes far too long."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._until = time.monotonic() + LONGEST_S

    def look(self) -> None:
        """A short pause between two looks."""
        if time.monotonic() > self._until:
            raise OperationalError(f"{self._what} for {LONGEST_S:.0f} s")
        time.sleep(LOOK_S)


class QueueServer:
    """``xaqueue serve`` over one space, started again when it was killed."""

    def __init__(self, space: Path, socket: Path, output: Path) -> None:
        self.url = f"xaq+unix://{socket}"
        self.deaths = 0
        self._command = (*COMMAND, "serve", "--space", str(space), "--unix", str(socket))
        self._output = output
        self._program = self._started()

    @property
    def pid(self) -> int:
        return self._program.pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def revive(self) -> bool:
        """Starts it again if it was killed, by whomever; whether it was. Raises OperationalError if it failed."""
        code = self._program.ended()
        if code is None:
            return False
        if code != -signal.SIGKILL:
            raise OperationalError(f"the queue server ended with code {code}:\n{self._program.complaint()}")
        self.deaths += 1
        self._program = self._started()
        return True

    def stop(self) -> None:
        self._program.stop()

    def _started(self) -> Program:
        program = Program(self._command, self._output)
        program.wait_for("serving")
        return program


def reached(dsn: str) -> psycopg.Connection:
    """A connection, also right after a crash: then the server refuses for as long as it recovers."""
    deadline = Deadline("PostgreSQL refuses")
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            deadline.look()


def kill_a_backend(dsn: str, choose: Callable[[Sequence[int]], int]) -> bool:
    """SIGKILL to the backend of somebody else; PostgreSQL then ends all of them and recovers. False: there is none."""
    with reached(dsn) as connection:
        pids = [row[0] for row in connection.execute(BACKENDS)]
        if not pids:
            return False
        os.kill(choose(pids), signal.SIGKILL)
    return True


def service(place: Addresses, life: str, orders: int, output: Path) -> Program:
    return Program([*SERVICE, place.dsn, place.queue, str(place.log), life, str(orders)], output)


def tally(program: Program) -> Counter[str]:
    """How many lines of each kind it has said."""
    return Counter(line[0] for line in program.lines() if len(line) == 2)
