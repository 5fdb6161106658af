"""What a row costs of processor time, and large bodies of memory, where a task reads it: without Spark, whose own is
``spark_growth``'s. The server's share is counted apart, and that of the process that makes pages for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import xaqueue

MANY = 100
"""Messages of a transaction, and so of a block."""
TICKS = os.sysconf("SC_CLK_TCK")
ROUNDS = 3
LARGE_BYTES, LARGE = 48 * 1024 * 1024, 6
MB = 1024 * 1024
KINDS = {"one": "a file each", "many": f"{MANY} in a file"}


def body(number: int) -> bytes:
    """About 200 bytes."""
    return b'{"order": %d, "customer": "%032x", "total": "%d.90", "note": "%s"}' % (
        *(number, number * 0x9E3779B97F4A7C15 % 2**128, number % 977, b"as it came" * 9),
    )


def fill(space: Path, messages: int) -> None:
    """The same messages in two queues, each in a file of its own, and many in a file."""
    xaqueue.connect(space, create=True, sync="NONE").close()
    (space / "queues.toml").write_text('[queues.one]\nblocks = "one"\n[queues.many]\n')
    with xaqueue.connect(space, sync="NONE") as queues:
        for queue in KINDS:
            for first in range(0, messages, MANY):
                queues.enqueue_many(queue, [body(number) for number in range(first, min(first + MANY, messages))])
                queues.commit()


@contextmanager
def served(space: Path) -> Iterator[tuple[str, int]]:
    """Its URL, and the server's pid."""
    place = space.parent / f"{space.name}.socket"
    words = ("serve", "--space", str(space), "--unix", str(place))
    with subprocess.Popen([sys.executable, "-m", "xaqueue", *words], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield f"xaq+unix://{place}", server.pid
        finally:
            server.terminate()


def cpu_s(pid: int) -> float:
    """Of a process, and of all that it has waited for."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) / TICKS


def below(pid: int) -> list[int]:
    listed = [children.read_text() for children in Path(f"/proc/{pid}/task").glob("*/children")]
    return [*map(int, " ".join(listed).split())]


def read(space: str, queue: str) -> int:
    from xaqueue.lake import scan

    with closing(scan(space, queue)) as reader:
        return sum(batch.num_rows for batch in reader)


def parquet(space: Path, queue: str, place: Path, rows_a_file: int = 100_000) -> None:
    """The queue's rows as files, as the archive has them."""
    import pyarrow as pa
    from pyarrow import parquet as files

    from xaqueue.lake import scan

    place.mkdir()
    table = pa.Table.from_batches(scan(space, queue))
    for first in range(0, table.num_rows, rows_a_file):
        files.write_table(table.slice(first, rows_a_file), place / f"{first:012d}.parquet", compression="zstd")


def read_parquet(place: Path) -> int:
    from pyarrow import dataset

    return sum(batch.num_rows for batch in dataset.dataset(place).to_batches())


def measure(directory: Path, messages: int) -> list[dict[str, Any]]:
    """Microseconds of a row, of the round that took least; and how many bodies of 48 MiB stood in memory at once."""
    space = directory / "rows"
    fill(space, messages)
    found = [{"way": f"files, {kind}", **_cheapest(partial(read, str(space), queue))} for queue, kind in KINDS.items()]
    parquet(space, "one", directory / "rows-parquet")
    found.append({"way": "Parquet", **_cheapest(partial(read_parquet, directory / "rows-parquet"))})
    with served(space) as (url, pid):
        for queue, kind in KINDS.items():
            read(url, queue)  # from here on there is a process that makes pages
            (maker,) = below(pid)
            beside = {"server": pid, "page maker": maker}
            found.append({"way": f"server, {kind}", **_cheapest(partial(read, url, queue), beside)})
    return found


def _cheapest(reads: Callable[[], int], beside: dict[str, int] | None = None) -> dict[str, float]:
    rounds = []
    for _ in range(ROUNDS):
        before = {name: cpu_s(pid) for name, pid in (beside or {}).items()}
        begun = time.process_time()
        rows = reads()
        taken = {"task": time.process_time() - begun}
        taken |= {name: cpu_s(pid) - before[name] for name, pid in (beside or {}).items()}
        rounds.append({name: seconds / rows * 1e6 for name, seconds in taken.items()})
    return min(rounds, key=lambda one: sum(one.values()))


def large(directory: Path) -> dict[str, float]:
    """By files and by a server: the most memory that a task had, in bodies."""
    space = directory / "large"
    with xaqueue.connect(space, create=True, sync="NONE") as queues:
        queues.define("q")
        for _ in range(LARGE):
            queues.enqueue("q", os.urandom(LARGE_BYTES))
            queues.commit()
    with served(space) as (url, _):
        return {way: _apart(place) / LARGE_BYTES for way, place in (("files", str(space)), ("server", url))}


def _apart(place: str) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_peak_bytes, place).result()


def _peak_bytes(place: str) -> float:
    from xaqueue.lake import scan

    with closing(scan(place, "q", after=LARGE)) as reader:
        list(reader)
    before = _most_kb()
    with closing(scan(place, "q", ["body"])) as reader:
        for batch in reader:
            del batch
    return (_most_kb() - before) * 1024.0


def _most_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
