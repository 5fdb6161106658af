"""The figures as a picture: for each operation and number of threads, engine, peers and limits as bars, longest on top.

Matplotlib decides by the name's ending what is written: ``.svg``, ``.png``, ``.pdf``. What ``bench.compare --json`` and
``python -m bench.ledger --json`` have written is drawn as well. So the charts of man/guide/performance.md are made:

    PYTHONPATH=tests python -m bench.chart man/guide/figures/engine.json man/guide/pictures/engine.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

ENGINE, SERVED, PEER, LIMIT = "#33658a", "#5f8f5a", "#c9783c", "#b8b8b8"
OURS = ("carried", "row", "two phases")

Bar = tuple[str, float, str]
"""Label, branches a second, colour."""


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the result of a run as a chart."""
    operations = ("produce", "consume") if "way" in result["results"][0] else ("enqueue", "dequeue")
    panels = {
        (operation, threads): bars(result, operation, threads)
        for operation in operations
        for threads in result["options"]["threads"]
    }
    across = len(result["options"]["threads"])
    tallest = max(map(len, panels.values()))
    figure = Figure(figsize=(6.4 * across, 2 * (0.28 * tallest + 1.0)), layout="constrained")
    grid = figure.subplots(2, across, squeeze=False)
    for axes, ((operation, threads), found) in zip(grid.flat, panels.items(), strict=True):
        axes.barh([label for label, _, _ in found], [value for _, value, _ in found], color=[bar[2] for bar in found])
        for row, (_, value, _) in enumerate(found):
            axes.annotate(f"{value:,.0f}", (value, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_xlim(0, max(1.0, *(value for _, value, _ in found)) * 1.15)
        axes.set_title(f"{operation}, {threads} client{'s' if threads > 1 else ''}", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.suptitle(_title(result), fontsize=9)
    with rc_context({"svg.hashsalt": "xaqueue", "svg.fonttype": "none"}):  # the same figures, the same file
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def bars(result: dict[str, Any], operation: str, threads: int) -> list[Bar]:
    """One panel's bars, the longest last, which is drawn on top."""
    found: list[Bar] = [
        (f"xaqueue {row['flags']}", row["per_s"], ENGINE)
        if "flags" in row
        else (row["way"], row["per_s"], ENGINE if row["way"] in OURS or row["way"].startswith("xaqueue") else PEER)
        for row in result["results"]
        if (row.get("operation", row.get("transaction")), row["threads"]) == (operation, threads)
    ]
    for row in result.get("others", ()):
        if (row["operation"], row["clients"]) == (operation, threads):
            ours = row["queue"].startswith("server")
            found.append((f"{row['queue']}, {row['kind']}", row["per_s"], SERVED if ours else PEER))
    found += [
        ("floor: two fdatasync", row["per_s"], LIMIT) for row in result.get("floor", ()) if row["threads"] == threads
    ]
    return sorted(found, key=lambda bar: bar[1])


def _title(result: dict[str, Any]) -> str:
    options, place = result["options"], result["environment"]
    messages = options.get("messages_per_branch", 1)
    branch = "a message" if messages == 1 else f"{messages} messages"
    return (
        f"transactions a second, {branch} of {options['size_bytes']:,} bytes in each, {place['file_system']}, "
        f"{place['processors']} processors, Python {place['python']}"
    )


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
