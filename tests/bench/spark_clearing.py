"""Whether reading a queue is slower while what a stream has consumed of it is cleared, by files and by the server.

A space with the default level; one half of its messages, each in a file, is consumed, and goes while the other half is
read. In turns with the same reading where nothing is cleared:

    python -m bench.spark_clearing --directory DIR
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from bench import page_cache
from bench.spark_rows import fill, served
from xaqueue.lake import scan
from xaqueue.rpc.client.manager import remote_manager

QUEUE, STREAM = "one", "0123456789abcdef0123456789abcdef"


def files_left(space: Path) -> int:
    return sum(1 for _ in (space / "committed" / f"queue={QUEUE}").glob("range=*/*"))


def timed(place: str, after: int) -> tuple[float, float, float]:
    """Microseconds a message: of this thread's time, by the clock, and for which it waited, not for a processor."""
    begun, (cpu, queued) = time.perf_counter_ns(), _scheduled_ns()
    with closing(scan(place, QUEUE, after=after)) as reader:
        rows = sum(batch.num_rows for batch in reader)
    taken, (cpu_now, queued_now) = time.perf_counter_ns() - begun, _scheduled_ns()
    ran = cpu_now - cpu
    return ran / rows / 1e3, taken / rows / 1e3, (taken - ran - (queued_now - queued)) / rows / 1e3


def _scheduled_ns() -> tuple[int, int]:
    """For how long this thread ran, and for how long it waited to run, since others did."""
    ran, queued, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    return ran, queued


def measure(directory: Path, messages: int, rounds: int) -> None:
    taken: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
    shares: list[float] = []
    for number in range(rounds):
        for way in ("files", "server"):
            space = directory / f"{way}{number}"
            fill(space, 2 * messages)
            os.sync()
            page_cache.fill(space, QUEUE)
            with served(space) as (url, _), closing(remote_manager(url)) as streams:
                place = url if way == "server" else str(space)
                timed(place, messages)
                taken.setdefault((way, False), []).append(timed(place, messages))
                streams.reserve(QUEUE, STREAM, 0, messages)
                streams.consume(QUEUE, STREAM, messages)
                taken.setdefault((way, True), []).append(timed(place, messages))
                shares.append((files_left(space) - messages) / messages)
    for (way, is_clearing), found in taken.items():
        ran, clock, waited = (median(one) for one in zip(*found, strict=True))
        what = f"{way}, {'beside clearing' if is_clearing else 'alone'}"
        print(
            f"{what}: us a message: ran {ran:.1f}, by the clock {clock:.1f}, waited, not for a processor, {waited:.1f}"
        )
    print(f"of what was consumed {min(shares):.0%} to {max(shares):.0%} was there still at the end of a reading")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_clearing", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=given.directory) as scratch:
        measure(Path(scratch), given.messages, given.rounds)


if __name__ == "__main__":
    main()
