"""The run as a PNG: what was committed over time, with the kills, and Spark's answer; drawn without any display."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xaqueue.tools.demo.records import Delay, ranked

COMMITTED, KILLED, RECOVERED = "#33658a", "#b8352f", "#5f8f5a"


@dataclass(slots=True)
class Toll:
    """What happened on the way. Times are seconds since the start."""

    began: float = field(default_factory=time.monotonic)
    kills: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """When a sender that was started after a kill had finished what that one left."""
    committed: list[tuple[float, int]] = field(default_factory=list)
    """How many flights were committed at some times."""

    def now(self) -> float:
        return time.monotonic() - self.began


def draw(answer: Mapping[str, Delay], names: Mapping[str, str], toll: Toll, path: Path) -> None:
    """Writes the chart to ``path``: the run above, below it one bar a carrier, the longest delay at the top."""
    figure = Figure(figsize=(9, 3.2 + 0.34 * len(answer) + 1.4), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[3.2, 0.34 * len(answer) + 1.0])
    _draw_run(above, toll)
    _draw_answer(below, answer, names)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_run(axes: Axes, toll: Toll) -> None:
    times, flights = [when for when, _ in toll.committed], [count for _, count in toll.committed]
    axes.plot(times, flights, color=COMMITTED, drawstyle="steps-post", label="messages committed")
    for number, when in enumerate(toll.kills):
        axes.axvline(when, color=KILLED, linewidth=1, label="" if number else "killed in the middle of a commit")
    for number, when in enumerate(toll.recoveries):
        axes.axvline(when, color=RECOVERED, linewidth=1, linestyle="--", label="" if number else "recovered, goes on")
    axes.set_xlabel("seconds")
    axes.set_ylim(0)
    axes.set_xlim(0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left", framealpha=1.0, edgecolor="none", fontsize=8)
    axes.set_title("Flights committed to the queue, while their producer is killed", loc="left")


def _draw_answer(axes: Axes, answer: Mapping[str, Delay], names: Mapping[str, str]) -> None:
    carriers = list(reversed(ranked(answer)))
    means = [delay.mean for _, delay in carriers]
    axes.barh([names.get(code, code) for code, _ in carriers], means, color=COMMITTED)
    for row, (mean, (_, delay)) in enumerate(zip(means, carriers, strict=True)):
        label = f"{mean:.1f}  ({delay.flights:,} flights)"  # right of zero, clear of the names
        axes.annotate(label, (max(mean, 0.0), row), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(min(0.0, *means) * 1.1, max(1.0, *means) * 1.3)
    axes.set_xlabel("mean departure delay, minutes")
    axes.set_title("What Spark read from it, each message once: delays by carrier", loc="left")
