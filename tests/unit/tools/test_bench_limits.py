"""What the engine is compared with: rates are timed alike, and the bare calls are those of the protocol."""

from __future__ import annotations

import os
import threading
from array import array
from pathlib import Path

import pytest

from xaqueue.bench import limits
from xaqueue.bench.bare import bare_protocol
from xaqueue.bench.rates import Rate, latency_us, percentile, rate_of, together
from xaqueue.storage.hardening import Hardening


def files_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_a_step_that_fails_ends_all_threads_and_is_raised() -> None:
    before = threading.active_count()

    def fails() -> bool:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        rate_of([lambda: True, fails], seconds=60.0)
    assert threading.active_count() == before


def test_a_step_with_nothing_left_ends_before_the_time_does() -> None:
    left = iter(range(5))
    rate = rate_of([lambda: next(left, None) is not None], seconds=60.0)
    assert rate.operations == len(rate.latencies_s) == 5
    assert 0 < sum(rate.latencies_s) <= rate.seconds
    assert Rate(10, 2.0, 0.001).per_s == 5.0
    assert Rate(10, 2.0, 0.001).cpu_us == pytest.approx(100.0)
    assert Rate(0, 0.0, 0.0).per_s == Rate(0, 0.0, 0.0).cpu_us == 0.0


def test_a_stall_shows_in_the_latencies_and_not_in_the_median() -> None:
    naps = iter([0.0] * 50 + [0.1] + [0.0] * 49)

    def step() -> bool:
        nap = next(naps, None)
        if nap:
            threading.Event().wait(nap)
        return nap is not None

    middle, worst = latency_us([rate_of([step], seconds=60.0)], 50, 100)
    assert middle < 50_000
    assert worst >= 100_000


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(0, 99, 0.0), (1, 99, 0.0), (100, 50, 49.0), (100, 99, 98.0), (100, 99.9, 99.0), (1000, 99.9, 998.0)],
)
def test_a_percentile_is_one_of_the_values(count: int, percent: float, expected: float) -> None:
    assert percentile([float(number) for number in range(count)], percent) == expected


def test_rates_of_several_processes_add_up() -> None:
    rates = [Rate(10, 2.0, 0.5, array("d", [0.1])), Rate(30, 4.0, 0.5, array("d", [0.3]))]
    both = together(rates)
    assert (both.operations, both.seconds, both.cpu_seconds) == (40, 4.0, 1.0)
    assert list(both.latencies_s) == [0.1, 0.3]


def test_bare_calls_move_a_message_in_and_out(tmp_path: Path) -> None:
    with bare_protocol(tmp_path, Hardening.parse("FDATASYNC;DSYNC"), 100) as bare:
        bare.enqueue("a")
        assert (tmp_path / "committed/range/a").stat().st_size == 100
        bare.dequeue("a")
    assert files_in(tmp_path) == [".watermark"]


@pytest.mark.parametrize("flags", ["NONE", "FSYNC;DSYNC", "JOURNAL"])
def test_bare_calls_move_a_branch_of_several_messages_in_and_out(tmp_path: Path, flags: str) -> None:
    with bare_protocol(tmp_path, Hardening.parse(flags), 100, messages=3) as bare:
        bare.enqueue("a")
        messages = tmp_path / "committed/range"
        assert [(path.name, path.stat().st_size) for path in sorted(messages.iterdir())] == [
            ("a.1", 100),
            ("a.2", 100),
            ("a.3", 100),
        ]
        bare.dequeue("a")
    assert files_in(tmp_path) == [".watermark"] + ["log.0"] * (flags == "JOURNAL")


@pytest.mark.parametrize(
    ("flags", "synced"),
    [("NONE", 0), ("FDATASYNC", 1), ("FDATASYNC;DSYNC", 5), ("JOURNAL", 2)],
)
def test_bare_calls_sync_what_the_flags_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, synced: int
) -> None:
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _, name=name: calls.append(name))
    with bare_protocol(tmp_path, Hardening.parse(flags), 100) as bare:
        step = bare.enqueuer(0, [])
        calls.clear()
        step()
    assert len(calls) == synced


def test_preallocated_space_is_overwritten_from_its_start_again(tmp_path: Path) -> None:
    quarter = limits.SEGMENT_BYTES // 4
    log = limits.Preallocated(tmp_path / "log", 100)
    try:
        for number in range(1, 6):
            log.write(bytes([number]) * quarter)
    finally:
        os.close(log.fd)
    content = (tmp_path / "log").read_bytes()
    assert len(content) == limits.SEGMENT_BYTES
    assert list(content[::quarter]) == [5, 2, 3, 4]
