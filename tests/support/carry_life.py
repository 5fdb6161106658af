"""One life of a program whose database carries what two spaces do, and what is so behind it.

Arguments of the process, in JSON: place; the participants' names, of "east", "west" and "db"; the first number; seed;
``has_log``: whether its transaction manager has a directory; ``end``: a named step and at which time it comes the
process is killed, as ``committed-last:3``, a number of transactions, or nothing; ``back_s``: so far its
clock is behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

SPACES = ("east", "west")
NAMES = {"east": "east", "west": "west", "db": "db"}
TABLES = (
    "create table sent (n integer primary key, space text not null)",
    "create table handled (n integer primary key, space text not null)",
)


def participants(place: Path, names: Mapping[str, str]) -> dict[str, Callable[[], Any]]:
    import xaqueue

    found: dict[str, Callable[[], Any]] = {
        names[space]: partial(xaqueue.connect, place / space) for space in SPACES if space in names
    }
    found[names["db"]] = partial(sqlite3.connect, place / "db.sqlite", timeout=20)
    return found


def turn_back(back_s: float) -> None:
    """The clock of this process, before anybody takes it into his own module."""
    real = time.time_ns
    back_ns = int(back_s * 1e9)
    time.time_ns = lambda: real() - back_ns
    time.time = lambda: time.time_ns() / 1e9


def live(place: Path, names: Mapping[str, str], first: int, end: str, seed: int, *, has_log: bool) -> None:
    from support.carrying import wait_until_it_carries
    from xaqueue import TransactionManager

    step_name, _, times = end.partition(":")
    left = [int(times) if times else 0, False]

    def on_step(step: str, gtrid: bytes, name: str) -> None:
        if left[1] and step == step_name:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    dice = random.Random(seed)
    given: list[Any] = [*([place / "tm"] if has_log else []), participants(place, names)]
    with TransactionManager(*given, on_step=on_step) as tm:
        for space in SPACES:
            wait_until_it_carries(tm, names["db"], names[space])
        left[1] = True
        for number in count(first):
            if step_name.isdecimal() and number - first == int(step_name):
                break
            nth = number - first
            space = SPACES[nth] if nth < len(SPACES) else dice.choice(SPACES)
            takes, fails = (nth >= len(SPACES) and dice.random() < part for part in (0.4, 0.1))
            with suppress(ZeroDivisionError), tm.transaction() as tx:
                did = work(tx[names[space]], tx[names["db"]], (number, space), takes=takes)
                1 // (not fails)
                tx.commit()
                os.write(1, f"{did}\n".encode())


def work(queue: Any, db: Any, row: tuple[int, str], *, takes: bool) -> str:
    """Sends one, or handles one of those that there are; returns which."""
    message = queue.dequeue("orders") if takes else None
    if message is None:
        db.execute("insert into sent values (?, ?)", row)
        queue.enqueue("orders", str(row[0]).encode())
        return f"sent {row[0]}"
    db.execute("insert into handled values (?, ?)", (int(message.body), row[1]))
    return f"handled {int(message.body)}"


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["back_s"]:
        turn_back(given["back_s"])
    words = [given[word] for word in ("names", "first", "end", "seed")]
    live(Path(given["place"]), *words, has_log=given["has_log"])
