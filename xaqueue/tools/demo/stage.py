"""What the demos stand on: a directory that goes at the end, programs that are killed, progress, and claims."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import xaqueue
from xaqueue.errors import InvalidArgument, OperationalError

STOP_S = 60.0
SILENT_S = 240.0
"""Longer than the demos' own programs let themselves be stuck: those say where."""
TAIL = 12

Report = Callable[[str], None]
"""Takes what is said about the demo, a line each."""


class Expectation(NamedTuple):
    """One thing that must hold, and whether it does."""

    text: str
    holds: bool

    def __str__(self) -> str:
        return f"  {'ok   ' if self.holds else 'WRONG'}  {self.text}"


def judge(claims: Iterable[Expectation], report: Report) -> bool:
    """Reports all of them; whether all hold."""
    listed = list(claims)
    report("The check:")
    for claim in listed:
        report(str(claim))
    return all(claim.holds for claim in listed)


@contextmanager
def place_for(directory: Path | None, report: Report, *, keep: bool) -> Iterator[Path]:
    """A new or empty directory for the time of the block: a temporary one, gone after it unless ``keep``, for None.

    Raises InvalidArgument where there is something in the directory.
    """
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise InvalidArgument(f"{directory} is not empty: the demo wants a new directory, or an empty one")
    place = (directory or Path(tempfile.mkdtemp(prefix="xaqueue-demo-", dir=_temporary()))).absolute()
    place.mkdir(parents=True, exist_ok=True)
    if directory is None:
        place.chmod(0o711)  # PostgreSQL may be another user
    try:
        yield place
    finally:
        if directory is not None or keep:
            report(f"Everything else is in {place}")
        else:
            try:
                shutil.rmtree(place, ignore_errors=True)
            except KeyboardInterrupt:
                report(f"What is left is in {place}: remove it with rm -r")


def _temporary() -> str:
    """On a disk where there is one: /tmp may be memory, where syncs mean nothing and room is scarce."""
    chosen = os.environ.get("TMPDIR") or "/var/tmp"
    return chosen if os.access(chosen, os.W_OK) else tempfile.gettempdir()


def tenths(report: Report, what: str, total: int) -> Callable[[int], None]:
    """A function that is called with how many of ``total`` are done, and reports a line at every tenth."""
    reported = 0

    def advance(done: int) -> None:
        nonlocal reported
        if (tenth := done * 10 // total) > reported:
            reported = tenth
            report(f"  {what}: {done:,} of {total:,}")

    return advance


@contextmanager
def progress(report: Report, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """As ``tenths``; on a terminal it is one line that lives as long as the block, below what is reported."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console, counted = Console(), TextColumn("  {task.description}: {task.completed:,} of {task.total:,}")
    if not console.is_terminal:
        yield tenths(report, what, total)
        return
    with Progress(counted, BarColumn(), TimeElapsedColumn(), console=console, transient=True) as line:
        task = line.add_task(what, total=total)
        yield lambda done: line.update(task, completed=done)


class Program:
    """A process whose lines are read as it says them. What it complains of is in ``log``, behind earlier complaints.

    As a context manager it does not outlive its block.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self._name, self._log = name, log
        with log.open("ab") as complaints:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints
            )

    def __iter__(self) -> Iterator[list[str]]:
        """The words of each line, until it ends. Raises OperationalError where it says none for ``SILENT_S``."""
        assert self._process.stdout is not None
        said, begun = select.poll(), b""
        said.register(self._process.stdout, select.POLLIN)
        while said.poll(SILENT_S * 1000):
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                return
            *lines, begun = (begun + data).split(b"\n")
            for line in lines:
                yield line.decode().split()
        raise OperationalError(f"{self._name} has said nothing for {SILENT_S:.0f} s, see {self._log}")

    def was_killed(self) -> bool:
        """Waits for its end. False: it was through. Raises OperationalError where it failed, with its last words, or
        does not end."""
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise OperationalError(f"{self._name} does not end, see {self._log}") from None
        if code not in (0, -signal.SIGKILL):
            said = self._log.read_text("utf-8", "replace").strip().splitlines()
            raise OperationalError("\n".join([f"{self._name} ended with code {code}:", *said[-TAIL:]]))
        return code != 0

    def kill(self) -> None:
        """SIGKILL; returns once it is gone and its locks are free."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


def say(word: str, what: object) -> None:
    """A line to the demo, from a program of it; it is out when this returns."""
    os.write(1, f"{word} {what}\n".encode())


def in_doubt(space: str | Path) -> int:
    """How many branches of a space wait for a decision."""
    with xaqueue.connect(space) as connection:
        return len(connection.tpc_recover())
