"""The process that test_kill_tm kills: transactions over two queue spaces and, now and then, a database of sqlite3.

Arguments: directory, life, number of transactions, fault ("" or step:participant:number). It says "begin <id>" before
a transaction, "ack <id>" once it has committed, and "ready" once it has begun.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path

import xaqueue
from xaqueue import TransactionManager
from xaqueue.tm.coordinator import TraceStep as Step

SYNC = "NONE"
"""Nobody cuts the power here: what the kernel has, a killed process has not lost."""


class Doom:
    """Ends the process at a named step, at its so-manieth time; stands still there, with ":stop" behind it."""

    def __init__(self, fault: str) -> None:
        step, self.participant, number, *stop = fault.split(":") if fault else ("", "", "0")
        self.step, self.left = step, int(number)
        self.signal = signal.SIGSTOP if stop else signal.SIGKILL
        self.mutex = threading.Lock()

    def __call__(self, step: Step, gtrid: bytes, participant: str) -> None:
        if step == self.step and participant == self.participant:
            with self.mutex:
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), self.signal)


def manager(place: Path, rollback_reason: Doom) -> TransactionManager:
    return TransactionManager(
        place / "log",
        {
            "a": lambda: xaqueue.connect(place / "a", sync=SYNC),
            "b": lambda: xaqueue.connect(place / "b", sync=SYNC),
            "files": lambda: sqlite3.connect(place / "files.db"),
        },
        last_resource="files",
        recovery_interval_s=0.05,
        on_step=rollback_reason,
    )


def main(place: Path, life: str, count: int, fault: str) -> None:
    with manager(place, Doom(fault)) as tm:
        say("ready")
        for number in range(count):
            name = f"{life}.{number}"
            say(f"begin {name}")
            with tm.transaction() as tx:
                tx["a"].enqueue("q", name.encode())
                tx["b"].enqueue("q", name.encode())
                if number % 2:
                    tx["files"].execute("insert into files values (?)", (name,))
            say(f"ack {name}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
