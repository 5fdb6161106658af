"""Each Python of a Spark job looks here as it starts, and dies where the test says: ``XAQUEUE_TEST_DEATH=POINT:BATCH``.

Spark makes drivers, planners, workers and servers by itself; what reaches all of them is PYTHONPATH. A point is a
function of the product that is wrapped as its module is imported, so nothing is in the product for it. The driver is
the process group ``XAQUEUE_TEST_GROUP``, its JVM included.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

POINT, _, _BATCH = os.environ.get("XAQUEUE_TEST_DEATH", "").partition(":")
NUMBER = int(_BATCH or 0)
"""The point is passed over in batches before this one."""


def die() -> None:
    """The driver and its JVM, and whoever reached the point: also a server that has outlived its driver."""
    with suppress(ProcessLookupError):
        os.killpg(int(os.environ["XAQUEUE_TEST_GROUP"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, before: Callable[..., None] | None, after: Callable[..., None] | None) -> None:
    original = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        if before is not None:
            before(*given)
        answer = original(*given, **named)
        if after is not None:
            after(answer, *given)
        return answer

    setattr(owner, name, call)


def task() -> tuple[int, int, int]:
    """The batch, the partition and the attempt of this task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    return batch, context.partitionId(), context.attemptNumber()


def at_reading(module: Any) -> None:
    """In the middle of a share. Some points end the worker or the task alone."""
    original = module.Reader.read

    def read(self: Any, partition: Any) -> Iterator[Any]:
        for number, rows in enumerate(original(self, partition)):
            batch, partition, attempt = task()
            yield rows
            if number == 0 and batch >= NUMBER:
                stop(batch, partition, attempt)

    module.Reader.read = read


def stop(batch: int, partition: int, attempt: int) -> None:
    if POINT == "reading":
        die()
    first = batch == NUMBER and attempt == 0
    if POINT == "worker" and first and partition == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if POINT == "fails for good" or (POINT == "fails once" and first):
        raise RuntimeError(f"attempt {attempt} fails")


def at_planning(module: Any) -> None:
    def planned(end: Any, _: Any, start: Any, limit: object) -> None:
        if end != start:
            die()

    around(module.StreamReader, "latestOffset", None, planned)


def at_writing(module: Any) -> None:
    """A branch of the task is prepared, and the task has not ended."""

    def written(_: object, branches: Any, part: object) -> None:
        if branches._prepared.batch.number >= NUMBER:
            die()

    around(module.Branches, "_write", None, written)


def at_slow_writing(module: Any) -> None:
    from support.dying import slow_attempts

    slow_attempts.arm(module, NUMBER)


def at_commit(module: Any) -> None:
    def before(deciding: Any, *more: object) -> None:
        if POINT == "written" and deciding._batch.number >= NUMBER:
            die()

    def after(_: object, deciding: Any, *more: object) -> None:
        if POINT == "committed" and deciding._batch.number >= NUMBER:
            die()

    around(module.BatchCommit, "commit", before, after)


def at_half_of_the_spaces(module: Any) -> None:
    """Home has decided and committed; the others have not."""

    def before(deciding: Any, *more: object) -> None:
        if deciding._batch.number >= NUMBER:
            die()

    around(module.BatchCommit, "_finish", before, None)


def at_consuming(module: Any) -> None:
    calls: list[object] = []

    def before(*_: object) -> None:
        calls.append(None)
        if POINT == "consuming" and len(calls) > 1:
            die()

    def after(*_: object) -> None:
        if POINT == "consumed" and len(calls) > 1:
            die()

    around(module.Consumer, "consume", before, after)


def at_decision(module: Any) -> None:
    """In the server: with the driver, it dies as soon as the decision is durable, or amid what follows."""
    singly: list[object] = []

    def decided(_: object, __: object, decision: Any, *more: object) -> None:
        if decision.batch.number >= NUMBER:
            die()

    def followed(_: object, __: object, gtrid: bytes, branches: Sequence[object]) -> None:
        if int(gtrid.rpartition(b":")[2]) >= NUMBER:
            singly.append(branches)
            if len(singly) == 2:
                die()

    if POINT == "decided":
        around(module, "decide", None, decided)
    else:
        around(module, "_commit", None, followed)
    if POINT == "half":
        module._groups = lambda branches: ([branch] for branch in branches)


PLACES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "planning": ("xaqueue.spark.source.source", at_planning),
    "reading": ("xaqueue.spark.source.reader", at_reading),
    "worker": ("xaqueue.spark.source.reader", at_reading),
    "fails once": ("xaqueue.spark.source.reader", at_reading),
    "fails for good": ("xaqueue.spark.source.reader", at_reading),
    "writing": ("xaqueue.spark.sink_task", at_writing),
    "slow": ("xaqueue.spark.sink_task", at_slow_writing),
    "written": ("xaqueue.spark.batch_commit", at_commit),
    "decided": ("xaqueue.features.batches.batch_steps", at_decision),
    "half": ("xaqueue.features.batches.batch_steps", at_decision),
    "half of the spaces": ("xaqueue.spark.batch_commit", at_half_of_the_spaces),
    "committed": ("xaqueue.spark.batch_commit", at_commit),
    "consuming": ("xaqueue.spark.source.consumer", at_consuming),
    "consumed": ("xaqueue.spark.source.consumer", at_consuming),
}


class Finder(importlib.abc.MetaPathFinder):
    """Wraps one function of one module, as soon as that is imported."""

    def __init__(self, module: str, arm: Callable[[Any], None]) -> None:
        self.module = module
        self.arm = arm

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self.arm(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if POINT in PLACES:
    sys.meta_path.insert(0, Finder(*PLACES[POINT]))
