"""Many places are asked at once, and one that does not answer costs the others nothing but its time limit.

A thread that hangs in a dead mount cannot be stopped: it is left behind, another takes its turn, and its place is not
asked again before it has come back. So a place never has more than one thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

THREADS = 16

Answer = TypeVar("Answer")


@dataclass
class _Round(Generic[Answer]):
    """One call of ``ask``."""

    question: Callable[[str], Answer]
    waiting: deque[str]
    running: dict[str, float] = field(default_factory=dict)
    """And since when."""
    answers: dict[str, Answer] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)


class Asker:
    """Asks in daemon threads. Used by one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._stuck: set[str] = set()

    def ask(
        self, places: Iterable[str], question: Callable[[str], Answer], timeout_s: float
    ) -> tuple[dict[str, Answer], dict[str, BaseException]]:
        """The answers, and what the others failed with: TimeoutError for one that takes longer than ``timeout_s``."""
        with self._changed:
            wanted = list(places)
            turn = _Round(question, deque(place for place in wanted if place not in self._stuck))
            for place in wanted:
                if place in self._stuck:
                    turn.failures[place] = TimeoutError(f"{place} still does not answer what it was asked before")
            for _ in range(min(THREADS, len(turn.waiting))):
                self._begin(turn)
            while turn.waiting or turn.running:
                self._give_up(turn, timeout_s)
                if turn.running:
                    self._changed.wait(max(0.0, min(turn.running.values()) + timeout_s - self._clock()))
            return turn.answers, turn.failures

    def _give_up(self, turn: _Round[Answer], timeout_s: float) -> None:
        for place, since in list(turn.running.items()):
            if self._clock() - since >= timeout_s:
                del turn.running[place]
                self._stuck.add(place)
                turn.failures[place] = TimeoutError(f"{place} does not answer within {timeout_s:g} seconds")
                if turn.waiting:
                    self._begin(turn)

    def _begin(self, turn: _Round[Answer]) -> None:
        place = turn.waiting.popleft()
        turn.running[place] = self._clock()
        threading.Thread(target=self._work, args=(turn, place), name=f"ask {place}", daemon=True).start()

    def _work(self, turn: _Round[Answer], first: str) -> None:
        place: str | None = first
        while place is not None:
            failure, answer = None, None
            try:
                answer = turn.question(place)
            except BaseException as error:
                failure = error
            place = self._keep(turn, place, answer, failure)

    def _keep(
        self, turn: _Round[Answer], place: str, answer: Answer | None, failure: BaseException | None
    ) -> str | None:
        """The next place for this thread; None for one that was given up, whose turn another has taken."""
        with self._changed:
            if place not in turn.running:
                self._stuck.discard(place)
                return None
            del turn.running[place]
            if failure is not None:
                turn.failures[place] = failure
            else:
                turn.answers[place] = answer  # type: ignore[assignment]
            following = turn.waiting.popleft() if turn.waiting else None
            if following is not None:
                turn.running[following] = self._clock()
            self._changed.notify_all()
            return following
