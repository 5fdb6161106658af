"""The answer as a PNG: one bar a carrier, drawn without any display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from xaqueue.demo.answer import Answer, ranked


def draw(answer: Answer, names: Mapping[str, str], path: Path) -> None:
    """Writes the chart to ``path``, the longest delay at the top."""
    carriers = list(reversed(ranked(answer)))
    means = [delay.mean for _, delay in carriers]
    figure = Figure(figsize=(9, 0.38 * len(carriers) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([names.get(code, code) for code, _ in carriers], means, color="#33658a")
    for row, (mean, (_, delay)) in enumerate(zip(means, carriers, strict=True)):
        label = f"{mean:.1f}  ({delay.flights:,} flights)"  # right of zero, clear of the names
        axes.annotate(label, (max(mean, 0.0), row), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(min(0.0, *means) * 1.1, max(1.0, *means) * 1.3)
    axes.set_xlabel("mean departure delay, minutes")
    axes.set_title("Flights that left New York in 2013, by carrier", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
