"""Global transactions over an Engine and a queue space, each in a process that dies at a named step.

A line of standard input has, as JSON, url, space, decision log, way, step and participant. For each a child is forked,
which costs less than another interpreter; the answer is a line with its wait status.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from sqlalchemy import create_engine

from support.sqlalchemy_scene import manager, take


def perform(url: str, space: str, log: str, way: str, fatal: str, victim: str) -> None:
    def on_step(step: str, gtrid: bytes, participant: str) -> None:
        if (step, participant) == (fatal, victim):
            os.kill(os.getpid(), signal.SIGKILL)

    opened = manager(create_engine(url), Path(space), Path(log), way, on_step=on_step)
    with opened, opened.transaction("db", "queue") as tx:
        take(tx, 1)
        if fatal == "rollback":
            tx.rollback()


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            perform(*json.loads(line))
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)  # noqa: T201
