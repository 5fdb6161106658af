"""How long Spark reads a queue of 10,000 to 1,000,000 messages, beside Parquet, its own binaryFile and its rate source.

All in one run: each way in a JVM of its own (``spark_sources``), warmed on the smallest queue; they take turns, a batch
of all that there is, into the sink ``noop``, from memory. Parquet has the queue's rows; the rate source makes numbers
of nothing, which is what a query costs at least. What a row costs in a task alone is ``spark_rows``.

    python -m bench.spark_growth --directory DIR --json ../man/guide/figures/spark.json
    python -m bench.spark_growth --page ../man/guide/performance.md --json ../man/guide/figures/spark.json

The second line draws what the first has written, and puts it into the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench import page_cache, spark_rows
from bench.rates import busy_share
from bench.spark_rows import KINDS, cpu_s, served
from bench.spark_sources import Source, apart
from xaqueue.tools.environment import look

SIZES = (10_000, 100_000, 1_000_000)
BINARY_FILES = 100_000
"""That source takes half an hour for ten times as many."""
WARM_ROUNDS = 3
WAYS = {
    **{f"xaqueue, files, {kind}": ("xaqueue", queue) for queue, kind in KINDS.items()},
    **{f"xaqueue, server, {kind}": ("xaqueue_served", queue) for queue, kind in KINDS.items()},
    "Parquet": ("parquet", "one"),
    "binaryFile, tuned": ("binary_file_tuned", "one"),
    "rate": ("rate", "one"),
}
"""What each is called, its source, and of which queue."""
BEGIN, END = "<!-- bench.spark_growth -->", "<!-- /bench.spark_growth -->"
BUSY_SHARE = 0.1


def measure(directory: Path, sizes: tuple[int, ...], rounds: int, say: Any = print) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for size in sizes:
        say(f"laying out {size:,} messages", flush=True)
        spark_rows.fill(directory / f"space{size}", size)
        spark_rows.parquet(directory / f"space{size}", "one", directory / f"parquet{size}")
    os.sync()
    busy = busy_share()
    with ExitStack() as opened:
        run = opened.enter_context(apart())
        servers = {size: opened.enter_context(served(directory / f"space{size}")) for size in sizes}
        for way in WAYS:
            say(f"warming {way}", flush=True)
            for _ in range(WARM_ROUNDS):
                run(_source(directory, way, sizes[0], servers[sizes[0]][0]), directory)
        for size in sizes:
            url, server = servers[size]
            taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way in WAYS if size <= BINARY_FILES else [way for way in WAYS if not way.startswith("binary")]:
                    for queue in KINDS:
                        page_cache.fill(directory / f"space{size}", queue)
                    before = _server_s(server)
                    figures = run(_source(directory, way, size, url), directory).figures()
                    assert figures["rows"] == size, (way, figures)
                    figures["server_us_a_row"] = (_server_s(server) - before) / size * 1e6
                    taken[way].append(figures)
                    say(f"{way}: {size:,} in {figures['seconds']:.2f} s", flush=True)
            middle = ("seconds", "cpu_us_a_row", "server_us_a_row", "jvm_mb", "python_mb")
            found += [
                {"way": way, "messages": size, **{name: median(one[name] for one in runs) for name in middle}}
                for way, runs in taken.items()
                if runs
            ]
    say("what a row costs in a task", flush=True)
    place = {**asdict(look(directory)), "date": datetime.now(UTC).date().isoformat(), "busy_share": [busy]}
    rows, large = spark_rows.measure(directory, sizes[len(sizes) // 2]), spark_rows.large(directory)
    return {"environment": place, "rounds": rounds, "sizes": sizes, "results": found, "rows": rows, "large": large}


def _source(directory: Path, way: str, size: int, url: str) -> Source:
    name, queue = WAYS[way]
    space = directory / (f"parquet{size}" if name == "parquet" else f"space{size}")
    return Source(name, space, queue, size if name == "rate" else None, url if name == "xaqueue_served" else "")


def _server_s(server: int) -> float:
    return cpu_s(server) + sum(map(cpu_s, spark_rows.below(server)))


def draw(result: dict[str, Any], path: Path) -> None:
    """Seconds, and processor time of a row, by the number of messages."""
    figure = Figure(figsize=(12.0, 4.6), layout="constrained")
    panels = {"seconds of a query": "seconds", "us of processor time a message": "cpu_us_a_row"}
    for axes, (title, name) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for way in WAYS:
            rows = [row for row in result["results"] if row["way"] == way]
            more = "server_us_a_row" if name == "cpu_us_a_row" else ""
            axes.plot(
                [row["messages"] for row in rows],
                [row[name] + (row[more] if more and "server" in way else 0.0) for row in rows],
                *("-" if way.startswith("xaqueue") else "--",),
                **{"marker": "o", "label": way},
            )
        axes.set(xscale="log", yscale="log", xlabel="messages")
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    with rc_context({"svg.hashsalt": "xaqueue", "svg.fonttype": "none"}):  # the same figures, the same file
        figure.savefig(path, metadata={"Date": None})


def section(result: dict[str, Any]) -> str:
    """In Markdown, with nothing in it that was not measured."""
    return "\n".join(_lines(result))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    place = result["environment"]
    rounds = "one round" if result["rounds"] == 1 else f"medians of {result['rounds']} rounds"
    yield f"Measured on {place['date']}: {rounds} in which all took turns;"
    yield f"{place['processors']} processors, {place['file_system']} on {place['device']}, Linux {place['kernel']},"
    yield f"Python {place['python']}; bodies of about 200 bytes."
    if max(place["busy_share"]) > BUSY_SHARE:
        others = f"{max(place['busy_share']):.0%}"
        yield f"**The machine was not quiet**: others used {others} of it before. Compare within this run only."
    yield from (
        "",
        "![Seconds and processor time by the number of messages; the table has the figures](pictures/spark.svg)",
        "",
    )
    yield "| way | messages | seconds | a second | us a message: Spark | us: server | JVM MB | Python MB |"
    yield "|---" * 8 + "|"
    for row in result["results"]:
        rate = f"{row['messages'] / row['seconds']:,.0f}"
        costs = f"{row['cpu_us_a_row']:.1f} | {row['server_us_a_row'] if 'server' in row['way'] else 0:.1f}"
        memory = f"{row['jvm_mb']:,.0f} | {row['python_mb']:,.0f}"
        yield f"| {row['way']} | {row['messages']:,} | {row['seconds']:.2f} | {rate} | {costs} | {memory} |"
    yield from ("", "In a task alone, without Spark (`lake.scan`, all columns):", "")
    yield "| us of processor time a message | task | server | page maker |"
    yield "|---|---|---|---|"
    for row in result["rows"]:
        yield f"| {row['way']} | {row['task']:.1f} | {row.get('server', 0):.1f} | {row.get('page maker', 0):.1f} |"
    large = ", ".join(f"{bodies:.1f} by {way}" for way, bodies in result["large"].items())
    yield from ("", f"With bodies of 48 MiB so many of them are in a task's memory at most: {large}.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_growth", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.page is None:
        with tempfile.TemporaryDirectory(prefix="xaqueue-bench-", dir=given.directory) as scratch:
            result = measure(Path(scratch), tuple(given.sizes), given.rounds)
        given.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    else:
        result = json.loads(given.json.read_text())
        draw(result, given.page.parent / "pictures" / "spark.svg")
        page = given.page.read_text()
        made = f"{BEGIN}\n{section(result)}\n{END}"
        given.page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: made, page, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
