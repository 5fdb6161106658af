"""Transactions over a lake, each in a process that dies at a named moment.

A line of standard input has, as JSON, kind, url, place, way and moment: a step and its participant, as
``commit-last db``; ``file N``: at the N-th time that a file is created, is closed, or has its name synced; ``after S``:
so many seconds after it was ready, in which it goes on until the queue is empty. For each a child is forked, which
costs less than another interpreter; the answer is a line with its wait status.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from support.lake_scene import Lake
from xaqueue.lake.iceberg import SyncedFiles, SyncedStream

WARM = (
    *("xaqueue.tm.manager", "xaqueue.contrib.sqlalchemy", "xaqueue.features.opening", "xaqueue.rpc.client.reach"),
    *("xaqueue.core.owner.open", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg", "rich.table"),
)
"""What each child would load by itself."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doomed(call: Callable[..., Any], is_due: Callable[[], bool]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        if is_due():
            die()
        return call(*arguments)

    return called


def perform(kind: str, url: str, place: str, way: str, moment: str) -> None:
    lake = Lake(kind, url, Path(place), way)

    def on_step(step: str, gtrid: bytes, name: str) -> None:
        if f"{step} {name}" == moment:
            die()

    with lake.manager(on_step) as tm:
        if moment.startswith("file "):
            numbers, last = count(1), int(moment[5:])
            for kind_of, name in ((SyncedFiles, "create"), (SyncedFiles, "sync"), (SyncedStream, "close")):
                setattr(kind_of, name, doomed(getattr(kind_of, name), lambda: next(numbers) == last))
        if moment.startswith("after "):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which no handler of anybody hears
            signal.setitimer(signal.ITIMER_REAL, float(moment[6:]))
        is_left = True
        while is_left:
            with tm.transaction() as tx:
                is_left = bool(lake.take(tx))
                if moment.startswith("rollback"):
                    tx.rollback()
            if not moment.startswith("after "):
                break


if __name__ == "__main__":
    for name in WARM:
        import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            perform(*json.loads(line))
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)  # noqa: T201
