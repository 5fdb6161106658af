"""What both demos stand on: a directory that goes at the end, programs that are killed, progress, and claims."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from xaqueue.errors import InvalidArgument, OperationalError

TENTHS = 10
LONGEST_S = 120.0
LOOK_S = 0.01
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
        if directory is None and not keep:
            _remove(place, report)
        else:
            report(f"Everything else is in {place}")


def tenths(report: Report, what: str, total: int) -> Callable[[int], None]:
    """A function that is called with how many of ``total`` are done, and reports a line at every tenth."""
    reported = 0

    def advance(done: int) -> None:
        nonlocal reported
        tenth = done * TENTHS // total
        if tenth > reported:
            reported = tenth
            report(f"  {what}: {done:,} of {total:,}")

    return advance


def _remove(place: Path, report: Report) -> None:
    try:
        shutil.rmtree(place, ignore_errors=True)
    except KeyboardInterrupt:
        report(f"What is left is in {place}: remove it with rm -r")


def _temporary() -> str:
    """On a disk where there is one: /tmp may be memory, where syncs mean nothing and room is scarce."""
    chosen = os.environ.get("TMPDIR") or "/var/tmp"
    return chosen if os.access(chosen, os.W_OK) else tempfile.gettempdir()


class Program:
    """One run of a program. What it says is kept in the file ``output``, behind what an earlier run said.

    As a context manager it does not outlive its block.
    """

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self.output = output
        self._command = command
        self._start()

    def _start(self) -> None:
        self._from = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as said, self.output.with_suffix(".err").open("ab") as complained:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=said, stderr=complained)

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

    def tally(self) -> Counter[str]:
        """How many lines of two words it has said, by the first one."""
        return Counter(line[0] for line in self.lines() if len(line) == 2)

    def wait_for(self, word: str) -> None:
        """Until a line begins with this word. Raises OperationalError where the program ends first, or is stuck."""
        deadline = Deadline(f"no {word!r} in {self.output}")
        while all(line[:1] != [word] for line in self.lines()):
            if self.ended() is not None:
                raise OperationalError(f"{self.output.stem} ended with code {self.ended()}:\n{self.complaint()}")
            deadline.look()

    def complaint(self) -> str:
        """Its last words on stderr."""
        return last_words(self.output.with_suffix(".err"))

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

    def __exit__(self, *_: object) -> None:
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


def last_words(path: Path, lines: int = TAIL) -> str:
    """The end of what a program said into a file."""
    return "\n".join(path.read_text("utf-8", "replace").strip().splitlines()[-lines:])
