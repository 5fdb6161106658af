"""The figures as text: the raw limits, then the engine beside the bare calls, then the peers with what they promise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

HEADINGS = (
    *("flags", "threads", "two-phase", "engine/s", "messages/s", "bare/s", "engine/bare", "of floor", "x 1 thread"),
    *("CPU us", "bare CPU", "p99 us", "p99.9 us", "rounds/tx", "steps/round"),
)
RAW_HEADINGS = ("raw limit", "threads", "per second", "CPU us", "p99 us", "p99.9 us")
PEER_HEADINGS = (
    *("peer", "clients", "as", "operation", "two-phase", "per second", "messages/s"),
    *("CPU us", "of server", "p50 us", "p99 us", "p99.9 us"),
)
SERVER_HEADINGS = (
    *("server", "clients", "operation", "per second", "messages/s", "of floor", "x embedded"),
    *("client CPU us", "server CPU us", "p50 us", "p99 us", "p99.9 us", "round trips", "rounds/tx", "steps/round"),
)
CHECKPOINT_HEADINGS = (
    *("JOURNAL", "threads", "checkpoints", "per second", "p50 us", "p99 us", "p99.9 us", "most us"),
    *("a checkpoint ms", "a sync us", "p99.9 in syncs more"),
)


def table(result: dict[str, Any]) -> list[str]:
    """The result of a run as lines."""
    names = list(dict.fromkeys(row["peer"] for row in result["peers"]))
    lines = [
        *aligned(RAW_HEADINGS, [_raw(row) for row in result["raw"]]),
        "",
        *aligned((*HEADINGS, *(f"x {name}" for name in names)), [_engine(row, names) for row in result["results"]]),
    ]
    if result["checkpoints"]:
        lines += ["", *aligned(CHECKPOINT_HEADINGS, [line for row in result["checkpoints"] for line in _stalls(row)])]
    if result["server"]:
        headings = (*SERVER_HEADINGS, *(f"x {name}" for name in names))
        lines += ["", *aligned(headings, [_server(row, names) for row in result["server"]])]
    if names:
        lines += ["", *aligned(PEER_HEADINGS, [_peer(row) for row in result["peers"]])]
        lines += [f"{name}: {promise}" for name, promise in result["durability"].items()]
    return [*lines, *(f"WARNING: {warning}" for warning in result["environment"]["warnings"])]


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; a column whose cells end with a digit is one of numbers, to the right."""
    texts = list(rows)
    columns = list(zip(headings, *texts, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numbers = [all(cell[-1:].isdigit() or cell == "" for cell in column[1:]) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in (headings, *texts)
    ]


def _raw(row: dict[str, Any]) -> list[str]:
    return [row["name"], str(row["threads"]), _whole(row["per_s"]), *_costs(row)]


def _engine(row: dict[str, Any], peers: Sequence[str]) -> list[str]:
    times = row["times_one_thread"]
    return [
        *(row["flags"], str(row["threads"]), row["operation"]),
        *(_whole(row["engine_per_s"]), _whole(row["messages_per_s"]), _whole(row["bare_per_s"])),
        *(f"{row['ratio']:.2f}", f"{row['of_floor']:.2f}", "" if times is None else f"{times:.2f}"),
        *(_whole(row["engine_cpu_us"]), _whole(row["bare_cpu_us"])),
        *(_whole(row["engine_p99_us"]), _whole(row["engine_p999_us"])),
        *(f"{row['rounds_per_transaction']:.2f}", f"{row['steps_per_round']:.2f}"),
        *(f"{row['times_peer'][name]:.2f}" for name in peers),
    ]


def _server(row: dict[str, Any], peers: Sequence[str]) -> list[str]:
    bare = row["operation"] == "echo"
    ratios = [row["of_floor"], row["times_embedded"], *(row["times_peer"].get(name) for name in peers)]
    of_floor, times_embedded, *times_peer = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    costs = ("client_cpu_us", "server_cpu_us", "p50_us", "p99_us", "p999_us")
    each = ("round_trips", "rounds_per_transaction", "steps_per_round")
    return [
        *(row["flags"], str(row["clients"]), row["operation"], _whole(row["per_s"])),
        *("" if bare else _whole(row["messages_per_s"]), of_floor, times_embedded),
        *(_whole(row[name]) for name in costs),
        *(f"{row[name]:.2f}" for name in each),
        *times_peer,
    ]


def _peer(row: dict[str, Any]) -> list[str]:
    cpu, *latencies = [_whole(row[name]) for name in ("cpu_us", "p50_us", "p99_us", "p999_us")]
    return [
        *(row["peer"], str(row["clients"]), row["kind"], row["operation"], "yes" if row["two_phase"] else "no"),
        *(_whole(row["per_s"]), _whole(row["messages_per_s"])),
        *((cpu, _whole(row["server_cpu_us"])) if row["cpu_of_server"] else (f"{cpu} + server", "")),
        *latencies,
    ]


def _stalls(row: dict[str, Any]) -> list[list[str]]:
    lines = []
    for name in ("without", "with"):
        latencies = [_whole(row[f"{name}_{key}"]) for key in ("per_s", "p50_us", "p99_us", "p999_us", "max_us")]
        lines.append([name, str(row["threads"]), str(row["checkpoints"]) if name == "with" else "0", *latencies])
    lines[0] += ["", _whole(row["median_sync_us"]), ""]
    lines[1] += [f"{row['checkpoint_ms']:.1f}", _whole(row["median_sync_us"]), f"{row['stall_in_syncs']:.1f}"]
    return lines


def _costs(row: dict[str, Any]) -> list[str]:
    return [_whole(row[name]) for name in ("cpu_us", "p99_us", "p999_us")]


def _whole(number: float) -> str:
    return f"{number:,.0f}"
