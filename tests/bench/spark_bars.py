"""The figures of Spark as text, and whether each is what it is to be. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LEAST, LARGE = 100_000, 1_000_000
READ_PER_S, READ_LARGE_PER_S = 45_000, 80_000
SINK_PER_S = 5_000
TIMES_SHIPPED, TIMES_TUNED = 20, 10
PLANNING_MS = 10
NAMES = {
    "xaqueue": "xaqueue, keep",
    "xaqueue_delete": "xaqueue, delete",
    "binary_file": "binaryFile as shipped",
    "binary_file_tuned": "binaryFile tuned",
    "binary_file_delete": "binaryFile tuned, cleanSource",
}


def lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """A row for each source, then what else was measured, then the bars."""
    for key, name in NAMES.items():
        run = measured["runs"].get(key)
        if run is not None:
            yield _row(name, run, measured["messages"])
    for key, name in (("ratio", "as shipped"), ("ratio_tuned", "tuned")):
        if key in measured:
            yield f"xaqueue is {measured[key]:.1f} times binaryFile {name}"
    for key, per_s in measured.get("from_disk_per_s", {}).items():
        yield f"from disk, {NAMES[key]}: {per_s:,.0f} messages a second"
    for depth, run in measured.get("planning", {}).items():
        yield f"planning with {int(depth):,} waiting: {run['planning_ms']:.1f} ms, at most {run['planning_max_ms']:.1f}"
    if "sink" in measured:
        yield f"sink, JOURNAL: {measured['sink']['messages_per_s']:,.0f} messages a second"
    if "scale" in measured:
        cost = measured["scale"]
        a_space = f"{cost['ms_a_space']:.1f} ms a space" if cost["ms_a_space"] > 0 else "a space less than runs differ"
        yield f"cost: {cost['us_a_message']:.1f} us a message, {cost['ms_a_batch']:.0f} ms a batch, {a_space}"
    yield from verdicts(measured)


def verdicts(measured: Mapping[str, Any]) -> Iterator[str]:
    """Each bar as ``met`` or ``MISSED``; those that this run did not measure are left out."""
    if measured["messages"] < LEAST:
        yield f"what is wanted is for {LEAST:,} messages and more: below that a query's start is most of its time"
        return
    for name, value, bar, least in _bars(measured):
        met = value >= bar if least else value < bar
        wanted = f"{'at least' if least else 'below'} {bar:,}"
        yield f"{'met' if met else 'MISSED'}: {name}: {value:,.1f}, {wanted} is wanted"


def _bars(measured: Mapping[str, Any]) -> Iterator[tuple[str, float, int, bool]]:
    bar = READ_LARGE_PER_S if measured["messages"] >= LARGE else READ_PER_S
    for key in ("xaqueue", "xaqueue_delete"):
        if key in measured["runs"]:
            yield f"messages a second, {NAMES[key]}", measured["runs"][key]["rows_per_s"], bar, True
    if "ratio" in measured:
        yield "times binaryFile as shipped", measured["ratio"], TIMES_SHIPPED, True
    if "ratio_tuned" in measured:
        yield "times binaryFile tuned", measured["ratio_tuned"], TIMES_TUNED, True
    for depth, run in measured.get("planning", {}).items():
        yield f"ms of planning with {int(depth):,} waiting", run["planning_ms"], PLANNING_MS, False
    if "sink" in measured:
        yield "messages a second into the sink", measured["sink"]["messages_per_s"], SINK_PER_S, True


def _row(name: str, run: Mapping[str, float], messages: int) -> str:
    sampled = f" (of a sample: {int(run['rows']):,} of {messages:,})" if run["rows"] < messages else ""
    return (
        f"{name}: {run['rows_per_s']:,.0f} messages a second{sampled}, {int(run['batches'])} batches, planning "
        f"{run['planning_ms']:.1f} ms, JVM {run['jvm_mb']:,.0f} MB, Python {run['python_mb']:,.0f} MB, checkpoint "
        f"{run['checkpoint_kb']:,.0f} KB"
    )
