"""What a dequeue costs in a deep queue of groups, priorities and delays, beside one in a plain queue as deep.

    python -m bench.deep_turns [--messages 1000000] [--group 20] [--directory /dev/shm]

Each queue is laid out without the engine, in a space of its own, which a process of its own opens: so that the memory
that one takes is not the other's. Both dequeue in turns, two-phase and with a journal, and medians of the rounds are
told: of wall time; of the CPU time of the process, in which are the follower and the collector; and of the 10th
percentile of the thread's own, which others on the machine change least. The directory is removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median

from xaqueue.connection import Connection
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode
from xaqueue.core.model.message_name import tags_of
from xaqueue.features.opening import create
from xaqueue.features.session import attach
from xaqueue.message import MessageId, Properties

CHILD, LAY = "child", "lay"
KINDS = ("plain", "turns")
FIGURES = ("wall", "CPU", "own CPU")
QUEUE = "bench"
ROUNDS = 20
TRANSACTIONS = 200
DELAYED = 0.1
"""The share of messages that are due later."""
DELAYED_S = 3600
"""Some become due all the time."""


def lay_out(space: Path, kind: str, messages: int, group: int) -> None:
    """group: messages of each group, about."""
    create(space, sync="JOURNAL")
    (space / layout.QUEUES).write_text(f'[queues.{QUEUE}]\norder = "{"priority" if kind == "turns" else "fifo"}"\n')
    (space / layout.queue_path(QUEUE)).mkdir()
    dice, now_us, body = random.Random(messages), time.time_ns() // 1000, os.urandom(200)
    for seq in range(1, messages + 1):
        if seq == 1 or seq % layout.RANGE_SIZE == 0:
            (space / layout.range_path(QUEUE, seq)).mkdir()
        properties = Properties(QUEUE, enqueued_at=now_us)
        if kind == "turns":
            properties.group = f"{dice.randrange(max(messages // group, 1))}"
            properties.priority = dice.randrange(10)
            if dice.random() < DELAYED:
                properties.not_before = now_us + dice.randrange(DELAYED_S * 1_000_000)
        message_id = MessageId(os.urandom(16))
        path = f"{space}/{layout.message_path(QUEUE, seq, message_id, tags_of(properties))}"
        _write(path, b"".join(encode(Block(Kind.ENQUEUE, message_id, properties, body, epoch=1))))
    mark = layout.format_watermark(layout.Watermark(messages, messages))
    _write(f"{space}/{layout.watermark_path(QUEUE)}", mark)


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)


def serve(space: Path) -> None:
    """Dequeues so many messages for each line with a number, and says what one took, in microseconds."""
    session = attach(space, watch=False)
    with Connection(session, lambda: os.urandom(16)) as connection:
        numbers = count()

        def take() -> float:
            began = time.thread_time_ns()
            connection.tpc_begin(connection.xid(1, b"%d" % next(numbers), b"bench"))
            assert connection.dequeue(QUEUE) is not None, "all groups wait for a message that is due later"
            connection.tpc_prepare()
            connection.tpc_commit()
            return (time.thread_time_ns() - began) / 1000

        print(session.space.report.messages, flush=True)
        for line in sys.stdin:
            wall, cpu = time.perf_counter(), time.process_time()
            own = sorted(take() for _ in range(int(line)))
            mean = [1e6 * spent / len(own) for spent in (time.perf_counter() - wall, time.process_time() - cpu)]
            print(json.dumps([*mean, own[len(own) // 10]]), flush=True)


class _Child:
    def __init__(self, space: Path) -> None:
        command = [sys.executable, "-m", "bench.deep_turns", CHILD, os.fspath(space)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def measure(self, transactions: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{transactions}\n")
        self._process.stdin.flush()
        return list(json.loads(self._hear()))

    def end(self) -> None:
        self._process.communicate()


def run(messages: int, group: int, directory: Path, report: Callable[[str], object]) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="xaqueue-turns-", dir=directory) as scratch:
        spaces = {kind: Path(scratch) / kind for kind in KINDS}
        report(f"laying out twice {messages:,} messages")
        program = [sys.executable, "-m", "bench.deep_turns", LAY]
        lays = [[*program, str(spaces[kind]), kind, f"{messages}", f"{group}"] for kind in KINDS]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda command: subprocess.run(command, check=True), lays))
        report("opening")
        children = {kind: _Child(space) for kind, space in spaces.items()}
        taken: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        for number in range(ROUNDS + 1):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                once = children[kind].measure(TRANSACTIONS)
                if number:  # the first warms up
                    taken[kind].append(once)
        for child in children.values():
            child.end()
    found = {
        kind: dict(zip(FIGURES, map(median, zip(*took, strict=True)), strict=True)) for kind, took in taken.items()
    }
    ratios = [[a / b for a, b in zip(*pair, strict=True)] for pair in zip(taken["turns"], taken["plain"], strict=True)]
    found["ratio"] = dict(zip(FIGURES, map(median, zip(*ratios, strict=True)), strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.deep_turns", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--group", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    found = run(given.messages, given.group, given.directory, lambda line: print(line, flush=True))
    for name, values in found.items():
        print(f"{name}: " + ", ".join(f"{figure} {value:.2f}" for figure, value in values.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        serve(Path(sys.argv[2]))
    elif sys.argv[1:2] == [LAY]:
        lay_out(Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main()
