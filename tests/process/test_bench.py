"""The bench measures what it says, tells where it measured, and leaves nothing behind. No figure is asserted here."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from bench import engine, rates
from bench.compare import main
from bench.engine import OPERATIONS, BenchPlan
from bench.rates import Rate, aligned, latency_us, rate_of
from xaqueue.errors import InvalidArgument
from xaqueue.tools.rates import SEGMENT_BYTES, Preallocated, percentile


def test_each_flag_thread_and_operation_is_measured_against_the_disk(tmp_path: Path) -> None:
    lines: list[str] = []
    flags = ("NONE", "FDATASYNC;DSYNC")
    options = BenchPlan(tmp_path, threads=(1, 2), flags=flags, size_bytes=64, seconds=0.05, rounds=1)
    result = engine.run(options, lines.append)
    rows = {(row["flags"], row["threads"], row["operation"]): row for row in result["results"]}
    floors = {row["threads"]: row["per_s"] for row in result["floor"]}
    assert set(rows) == {(flag, threads, name) for flag in flags for threads in (1, 2) for name in OPERATIONS}
    assert set(floors) == {1, 2}
    for row in rows.values():
        assert row["per_s"] > 0
        assert row["of_floor"] == pytest.approx(row["per_s"] / floors[row["threads"]])
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"]
        assert row["messages_per_s"] == row["per_s"]
    assert json.loads(json.dumps(result))["options"]["directory"] == str(tmp_path)
    assert any("xaqueue/s" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_rounds_of_syncs_are_counted_for_each_transaction(tmp_path: Path) -> None:
    options = BenchPlan(tmp_path, threads=(1,), flags=("NONE", "FSYNC;DSYNC"), seconds=0.05, rounds=1)
    rows = engine.run(options, lambda _: None)["results"]
    for row in rows:
        alone = row["flags"] == "FSYNC;DSYNC"
        assert row["rounds_per_transaction"] == pytest.approx(2.0 if alone else 0.0, abs=0.5)


def test_a_branch_of_several_messages_is_one_transaction(tmp_path: Path) -> None:
    options = BenchPlan(tmp_path, threads=(1,), flags=("NONE",), seconds=0.05, rounds=1, messages_per_branch=3)
    rows = engine.run(options, lambda _: None)["results"]
    assert [row["operation"] for row in rows] == list(OPERATIONS)
    for row in rows:
        assert row["messages_per_s"] == pytest.approx(3 * row["per_s"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": ()},
        {"threads": (0,)},
        {"rounds": 0},
        {"seconds": 0.0},
        {"size_bytes": 64 * 1024 * 1024 + 1},
        {"size_bytes": -1},
        {"messages_per_branch": 0},
    ],
)
def test_options_that_measure_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="bench"):
        BenchPlan(**wrong)


def test_flags_that_do_not_exist_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(InvalidArgument, match="FDATASYNC"):
        BenchPlan(flags=("SYNC",))


def test_what_fails_or_is_interrupted_leaves_no_space_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Rate:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.engine.rate_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(BenchPlan(tmp_path, threads=(1,), flags=("NONE",), seconds=0.01, rounds=1), lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_columns_of_numbers_stand_to_the_right() -> None:
    assert aligned(("name", "per s"), [("a", "1,000"), ("bcdef", "5")]) == [
        "name   per s",
        "a      1,000",
        "bcdef      5",
    ]


@pytest.mark.parametrize(("share", "warned"), [(0.05, False), (0.5, True)])
def test_a_machine_that_others_use_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, warned: bool
) -> None:
    monkeypatch.setattr(rates, "busy_share", lambda: share)
    result = engine.run(BenchPlan(tmp_path, threads=(1,), flags=(), seconds=0.01, rounds=2), lambda _: None)
    assert result["environment"]["busy_share"] == [share, share]
    assert any("others used 50%" in warning for warning in result["environment"]["warnings"]) == warned


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


def test_preallocated_space_is_overwritten_from_its_start_again(tmp_path: Path) -> None:
    quarter = SEGMENT_BYTES // 4
    log = Preallocated(tmp_path / "log", 100)
    try:
        for number in range(1, 6):
            log.write(bytes([number]) * quarter)
    finally:
        os.close(log.fd)
    content = (tmp_path / "log").read_bytes()
    assert len(content) == SEGMENT_BYTES
    assert list(content[::quarter]) == [5, 2, 3, 4]


def test_the_program_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--flags", "NONE", "--seconds", "0.02", "--rounds", "1", "--threads", "1,2", "--size", "10"]
    where = ["--directory", str(tmp_path / "made"), "--json", str(tmp_path / "figures.json")]
    main(["--messages-per-branch", "2", *words, *where])
    told = json.loads((tmp_path / "figures.json").read_text())
    assert told["options"]["threads"] == [1, 2]
    assert told["options"]["messages_per_branch"] == 2
    assert "xaqueue/s" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "said"), [(["--threads", "one"], "'one'"), (["--flags", "SAFE"], "FDATA")])
def test_the_program_refuses_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--directory", str(tmp_path / "made"), *words])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
