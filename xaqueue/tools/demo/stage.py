"""What both demos stand on: a directory that goes at the end, progress in lines, and claims that hold or do not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from xaqueue.errors import InvalidArgument

TENTHS = 10

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
