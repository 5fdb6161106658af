"""Every path through a run that chooses: depth first, by replaying a prefix of choices and taking the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Choices:
    """Of one run. The first option is what happens when nothing goes wrong."""

    def __init__(self, prefix: Sequence[int] = ()) -> None:
        self._prefix = prefix
        self.taken: list[tuple[int, int]] = []
        """Of each choice: which one was taken, and out of how many."""
        self._named: list[tuple[str, object]] = []

    def choose(self, options: Sequence[T], name: str = "") -> T:
        at = len(self.taken)
        which = self._prefix[at] if at < len(self._prefix) else 0
        self.taken.append((which, len(options)))
        self._named.append((name, options[which]))
        return options[which]

    def __str__(self) -> str:
        return " ".join(f"{name}={option!s}" for name, option in self._named)


def every_path(run: Callable[[Choices], R]) -> Iterator[tuple[Choices, R]]:
    """Runs it once for every combination of what it may choose."""
    prefix: list[int] = []
    while True:
        choices = Choices(prefix)
        yield choices, run(choices)
        taken = choices.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        prefix = [which for which, _ in taken]
        prefix[-1] += 1
