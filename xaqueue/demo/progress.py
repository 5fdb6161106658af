"""Progress is a bar on stderr where that is a terminal, and a reported line at every tenth where it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

STEPS = 10


class Progress:
    """Shows how far each part of the job is."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._bar: Bar | None = None

    def report(self, line: str) -> None:
        """Reports a line; a bar makes way for it."""
        if self._bar is None:
            self._report(line)
            return
        self._bar.stop()
        self._report(line)
        self._bar.start()

    @contextmanager
    def task(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Within it, the function it gives is called with how many of ``total`` are done."""
        if not sys.stderr.isatty():
            yield self._lines(what, total)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar = bar
            task = bar.add_task(what, total=total)
            try:
                yield lambda done: bar.update(task, completed=done)
            finally:
                self._bar = None

    def _lines(self, what: str, total: int) -> Callable[[int], None]:
        reported = 0

        def advance(done: int) -> None:
            nonlocal reported
            tenth = done * STEPS // total
            if tenth > reported:
                reported = tenth
                self._report(f"  {what}: {done:,} of {total:,}")

        return advance
