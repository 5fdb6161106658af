"""Many places are asked at once, and one that does not answer costs the others nothing but its time limit.

A thread that hangs in a dead mount cannot be stopped: it is left behind, another takes its turn, and its place is not
asked again before it has come back. So a place never has more than one thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar

THREADS = 16

Answer = TypeVar("Answer")


def call_with_deadline(
    question: Callable[[str], Answer], places: Iterable[str], timeout_s: float, stuck: dict[str, Future[Any]]
) -> tuple[dict[str, Answer], dict[str, BaseException]]:
    """The answers, and what the others failed with: TimeoutError for one that takes longer than ``timeout_s``.

    stuck: what did not come back in earlier calls of the same caller, who keeps this between calls.
    """
    answers: dict[str, Answer] = {}
    failures: dict[str, BaseException] = {}
    waiting: deque[str] = deque()
    for place in places:
        if place in stuck and not stuck[place].done():
            failures[place] = TimeoutError(f"{place} still does not answer what it was asked before")
        else:
            waiting.append(place)
    running: dict[str, tuple[Future[Answer], float]] = {}
    returned: SimpleQueue[str] = SimpleQueue()

    def ask(place: str, future: Future[Answer]) -> None:
        try:
            future.set_result(question(place))
        except BaseException as error:
            future.set_exception(error)
        returned.put(place)

    while waiting or running:
        while waiting and len(running) < THREADS:
            place = waiting.popleft()
            running[place] = Future(), monotonic()
            threading.Thread(target=ask, args=(place, running[place][0]), name=f"ask {place}", daemon=True).start()
        try:
            place = returned.get(
                timeout=max(0.0, min(since for _, since in running.values()) + timeout_s - monotonic())
            )
        except Empty:
            for place in [place for place, (_, since) in running.items() if monotonic() - since >= timeout_s]:
                stuck[place], _ = running.pop(place)
                failures[place] = TimeoutError(f"{place} does not answer within {timeout_s:g} seconds")
        else:
            future, _ = running.pop(place, (None, 0.0))  # none: it was given up meanwhile
            if future is not None:
                failure = future.exception()
                if failure is None:
                    answers[place] = future.result()
                else:
                    failures[place] = failure
    return answers, failures
