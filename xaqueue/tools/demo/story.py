"""What the demo leaves: a chart of the run with its result, and a page that tells it, of one file each."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from xaqueue.tools.demo.records import Delay
from xaqueue.tools.demo.stage import Expectation

COMMITTED, KILLED, STARTING, RECOVERED = "#33658a", "#b8352f", "#d8dce0", "#4c7a45"
LEGEND = ("SIGKILL, in the middle of a commit", "Python starts", "the queue recovers")


@dataclass
class Kill:
    """One SIGKILL, and what the sender said that was started after it. Times are those of ``time.monotonic``."""

    at: float
    when: str
    """In the transaction, in words."""
    begun: float = 0.0
    """Python was there, and the program's first line ran."""
    doubtful: float = 0.0
    """How many branches it found in doubt."""
    recovered: float = 0.0

    @property
    def recovery_s(self) -> float:
        """What the engine took: to open both spaces and the decision log, and to finish all that was left."""
        return self.recovered - self.begun

    def __str__(self) -> str:
        return (
            f"{self.doubtful:.0f} branches in doubt: all of it finished in {self.recovery_s:.2f} s, "
            f"behind {self.begun - self.at:.1f} s in which Python started"
        )


@dataclass
class Timeline:
    """What happened on the way."""

    flights: int
    size: int
    """Flights of a page; the last one may have fewer."""
    began: float = field(default_factory=time.monotonic)
    kills: list[Kill] = field(default_factory=list)
    committed: list[tuple[float, int]] = field(default_factory=list)
    """How many flights were committed at some times."""

    @property
    def pages(self) -> int:
        return -(-self.flights // self.size)

    @property
    def done(self) -> int:
        return self.committed[-1][1] if self.committed else 0

    def hear(self, word: str, said: float) -> None:
        """A line of the sender: what it has sent, how many pages are left, or what belongs to its start."""
        if word == "sent":
            self.committed.append((time.monotonic(), self.done + int(said)))
        elif word == "left":
            self.committed.append((time.monotonic(), min(self.flights, (self.pages - int(said)) * self.size)))
        elif self.kills:
            setattr(self.kills[-1], word, said)


def draw(result: str, times: Timeline, path: Path) -> None:
    """Writes the chart of the run to ``path``, legible at half its size."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    committed = [(when - times.began, count) for when, count in times.committed]
    axes.plot(*zip(*committed, strict=True), color=COMMITTED, linewidth=2.5, drawstyle="steps-post")
    for number, kill in enumerate(times.kills, 1):
        at, begun, recovered = (when - times.began for when in (kill.at, kill.begun, kill.recovered))
        labels = LEGEND if number == 1 else ("", "", "")
        axes.axvline(at, color=KILLED, linewidth=2, label=labels[0])
        axes.axvspan(at, begun, color=STARTING, linewidth=0, label=labels[1])
        axes.axvspan(begun, recovered, color=RECOVERED, linewidth=0, label=labels[2])
        told = f"{kill.recovery_s:.2f} s"
        axes.text(at, 1.02, told, transform=axes.get_xaxis_transform(), fontsize=14, color=RECOVERED)
    axes.set(xlim=(0, None), ylim=(0, times.flights * 1.05))
    axes.set_xlabel("seconds", fontsize=14)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(labelsize=13)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("messages committed", fontsize=14)
    figure.suptitle(result, fontsize=18, fontweight="bold", x=0.01, ha="left")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=13)
    figure.savefig(path, dpi=120)


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>xaqueue: {result}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 17px/1.55 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }}
img {{ width: 100%; background: white }} li {{ margin: .4rem 0 }} .wrong {{ color: #b8352f; font-weight: bold }}
td, th {{ padding: .1rem 1.2rem .1rem 0; text-align: right }} td:first-child, th:first-child {{ text-align: left }}
</style>
<h1>{result}</h1>
<p>The flights that left New York in 2013 wait in a queue, {size} to a page. A program takes a page out of it and puts
its flights into another queue, each a message, in one transaction over both. It is killed in the middle of a commit,
and started again, and knows nothing but its directory.</p>
<img alt="messages committed over time, with the kills" src="data:image/png;base64,{chart}">
<h2>What happened</h2>
<ol>{kills}</ol>
<p>Then Spark read the queue as a stream, and what it read was counted, message by message, and held against the file
that the flights came from.</p>
<h2>The check</h2>
<ul>{claims}</ul>
<h2>What Spark made of it</h2>
<table><tr><th>carrier<th>flights<th>mean departure delay{carriers}</table>
</html>
"""


def write(
    result: str,
    times: Timeline,
    claims: Iterable[Expectation],
    carriers: Iterable[tuple[str, Delay]],
    chart: Path,
) -> None:
    """Writes the page beside the chart, which is in it."""
    kills = (f"<li><b>SIGKILL {escape(kill.when)}.</b> Started again, {escape(str(kill))}." for kill in times.kills)
    checked = (f"<li class={'right' if claim.holds else 'wrong'}>{escape(claim.text)}" for claim in claims)
    rows = (f"<tr><td>{escape(name)}<td>{delay.flights:,}<td>{delay.mean:.1f} min" for name, delay in carriers)
    page = PAGE.format(
        result=escape(result),
        size=times.size,
        chart=b64encode(chart.read_bytes()).decode(),
        kills="".join(kills),
        claims="".join(checked),
        carriers="".join(rows),
    )
    chart.with_suffix(".html").write_text(page, "utf-8")
