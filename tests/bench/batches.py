"""What a message costs by how many come, or go, in one call: in a file each, and in blocks of many.

Counted by the steps of the interpreter, as ``bench.steps`` does, so that a busy machine does not bend them: of the
thread that calls, embedded, with a journal, bodies of 1 KiB. So the chart of man/guide/batching.md is made:

    PYTHONPATH=tests python -m bench.batches man/guide/figures/batches.json man/guide/pictures/batches.svg
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

import xaqueue
from bench.chart import ENGINE, PEER
from bench.steps import VERSION, Interpreter, fresh
from bench.transactions import BODY, Scene, Verb, space_of, wait_for_late
from xaqueue.connection import Connection
from xaqueue.core.model.definitions import MANY, ONE

SIZES = (1, 4, 15, 16, 100, 1000)
"""15: the most that have a file each where blocks are asked for."""
TICKS, STEPS = (1, 4, 16, 100, 1000), (30, 100, 300, 1000, 3000)
TIMES = 4
COLOURS = {ONE: PEER, MANY: ENGINE}


def measured(blocks: str, size: int) -> list[dict[str, Any]]:
    with fresh(Path("/dev/shm")) as root:
        with xaqueue.connect(root / "space", create=True, sync="JOURNAL") as connection:
            connection.define("q", blocks=blocks)
        with xaqueue.connect(root / "space", sync="JOURNAL") as connection, Interpreter() as steps:
            scene = Scene({"caller": "embedded"}, str(root), partial(wait_for_late, space_of(connection)))
            calls: dict[str, Callable[[], Sequence[object]]] = {
                "enqueue_many": partial(connection.enqueue_many, "q", [BODY] * size),
                "dequeue_many": partial(connection.dequeue_many, "q", size),
            }
            for name, call in calls.items():
                steps.measure(scene, Verb(name, partial(commit, connection, call), TIMES, size))
    return [
        {"call": name, "blocks": blocks, "messages": size, "bytecodes": round(found.bytecodes, 1)}
        for (_, name), found in steps.found.items()
    ]


def commit(connection: Connection, call: Callable[[], Sequence[object]]) -> None:
    call()
    connection.commit()


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    calls = list(dict.fromkeys(row["call"] for row in rows))
    figure = Figure(figsize=(5 * len(calls), 3.2), layout="constrained")
    for axes, call in zip(figure.subplots(1, len(calls), squeeze=False).flat, calls, strict=True):
        for blocks, colour in COLOURS.items():
            found = [
                (row["messages"], row["bytecodes"]) for row in rows if (row["call"], row["blocks"]) == (call, blocks)
            ]
            axes.plot(*zip(*found, strict=True), marker="o", color=colour, label=f'blocks = "{blocks}"')
        axes.set(xscale="log", yscale="log", xlabel="messages in a call")
        axes.set_title(f"{call}, commit", loc="left")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"bytecodes a message, embedded, JOURNAL, 1 KiB, Python {VERSION}", fontsize=9)
    with rc_context({"svg.hashsalt": "xaqueue", "svg.fonttype": "none"}):  # the same figures, the same file
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    logging.getLogger("xaqueue").setLevel(logging.ERROR)  # a space in memory
    figures, picture = map(Path, sys.argv[1:])
    rows = [row for blocks in COLOURS for size in SIZES for row in measured(blocks, size)]
    figures.write_text(json.dumps({"python": VERSION, "results": rows}, indent=1) + "\n")
    draw(rows, picture)
