"""The bench measures what it says, tells where it measured, and leaves nothing behind. No figure is asserted here."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.bare_space import bare_space
from xaqueue.bench import engine, environment, limits, opening, tables
from xaqueue.bench.checkpoints import Checkpoints
from xaqueue.bench.options import Options
from xaqueue.bench.peers.peer import OPERATIONS
from xaqueue.bench.rates import Rate
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.main import app
from xaqueue.errors import InvalidArgument, ResourceFailed
from xaqueue.space.model.format import read_format
from xaqueue.space.owner.open import attach


def test_each_flag_thread_and_operation_is_measured_against_the_bare_calls(tmp_path: Path) -> None:
    lines: list[str] = []
    flags = ("NONE", "FDATASYNC;DSYNC")
    options = Options(tmp_path, threads=(1, 2), flags=flags, size_bytes=64, seconds=0.05, rounds=1)
    result = engine.run(options, lines.append)
    rows = {(row["flags"], row["threads"], row["operation"]): row for row in result["results"]}
    raw = {(row["name"], row["threads"]): row for row in result["raw"]}
    assert set(rows) == {(flag, threads, name) for flag in flags for threads in (1, 2) for name in OPERATIONS}
    assert set(raw) == {(name, threads) for name in limits.RAW for threads in (1, 2)}
    for row in rows.values():
        assert row["engine_per_s"] > 0
        assert row["bare_per_s"] > 0
        assert row["ratio"] == pytest.approx(row["engine_per_s"] / row["bare_per_s"])
        assert row["of_floor"] == pytest.approx(row["engine_per_s"] / raw[limits.FLOOR, row["threads"]]["per_s"])
        assert (row["times_one_thread"] is None) == (row["threads"] == 1)
        assert 0 < row["engine_p50_us"] <= row["engine_p99_us"] <= row["engine_p999_us"]
        assert row["messages_per_s"] == row["engine_per_s"]
    assert json.loads(json.dumps(result))["options"]["directory"] == str(tmp_path)
    assert any("bare/s" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_rounds_of_syncs_are_counted_for_each_transaction(tmp_path: Path) -> None:
    options = Options(tmp_path, threads=(1,), flags=("NONE", "FSYNC;DSYNC"), seconds=0.05, rounds=1)
    rows = engine.run(options, lambda _: None)["results"]
    for row in rows:
        alone = row["flags"] == "FSYNC;DSYNC"
        assert row["rounds_per_transaction"] == pytest.approx(2.0 if alone else 0.0, abs=0.5)


def test_a_branch_of_several_messages_is_one_transaction(tmp_path: Path) -> None:
    options = Options(tmp_path, threads=(1,), flags=("NONE",), seconds=0.05, rounds=1, messages_per_branch=3)
    rows = engine.run(options, lambda _: None)["results"]
    assert [row["operation"] for row in rows] == list(OPERATIONS)
    for row in rows:
        assert row["messages_per_s"] == pytest.approx(3 * row["engine_per_s"])
        assert row["bare_per_s"] > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": ()},
        {"threads": (0,)},
        {"rounds": 0},
        {"seconds": 0.0},
        {"size_bytes": -1},
        {"messages_per_branch": 0},
        {"postgres_dsn": "dbname=x"},
        {"seconds": 1.0, "checkpoints_s": 1.0},
        {"checkpoints_s": 0.0},
    ],
)
def test_options_that_measure_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="bench"):
        Options(**wrong)


def test_flags_that_do_not_exist_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(InvalidArgument, match="FDATASYNC"):
        Options(flags=("SYNC",))


def test_what_fails_or_is_interrupted_leaves_no_space_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Rate:
        raise KeyboardInterrupt

    monkeypatch.setattr("xaqueue.bench.workload.rate_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(Options(tmp_path, threads=(1,), flags=("NONE",), seconds=0.01, rounds=1), lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_are_compared_with_none(tmp_path: Path) -> None:
    lines: list[str] = []
    options = Options(tmp_path, threads=(2,), flags=(), seconds=0.2, rounds=1, checkpoints_s=0.02)
    result = engine.run(options, lines.append)
    (row,) = result["checkpoints"]
    assert row["threads"] == 2
    assert row["checkpoints"] > 0
    assert row["checkpoint_ms"] > 0
    for name in ("without", "with"):
        assert row[f"{name}_per_s"] > 0
        assert 0 < row[f"{name}_p50_us"] <= row[f"{name}_p999_us"] <= row[f"{name}_max_us"]
    added_us = row["with_p999_us"] - row["without_p999_us"]
    assert row["stall_in_syncs"] == pytest.approx(added_us / row["median_sync_us"])
    assert any(line.startswith("without") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_fails_is_raised(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.fs.faults["sync_all", ""] = errno.EIO
        with pytest.raises(ResourceFailed, match="fenced"), Checkpoints(bare.space, 0.001) as checkpoints:
            checkpoints._thread.join()


def test_columns_of_numbers_stand_to_the_right() -> None:
    assert tables.aligned(("name", "per s"), [("a", "1,000"), ("bcdef", "5")]) == [
        "name   per s",
        "a      1,000",
        "bcdef      5",
    ]


def test_a_chart_has_a_bar_for_all_that_was_measured(tmp_path: Path) -> None:
    chart = pytest.importorskip("xaqueue.bench.chart", reason="matplotlib is not installed")
    options = Options(tmp_path, threads=(1, 2), flags=("NONE",), seconds=0.02, rounds=1, peers=("sqlite",))
    result = engine.run(options, lambda _: None)
    for operation in OPERATIONS:
        labels = [label for label, _, _ in chart.bars(result, operation, 2)]
        assert sorted(labels) == [
            "limit: append, 2 fdatasync",
            "limit: preallocated overwrite, 2 fdatasync",
            "sqlite (one phase)",
            "xaqueue NONE",
        ]
    for name, magic in (("chart.svg", b"<?xml"), ("chart.png", b"\x89PNG")):
        chart.draw(result, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(magic)


def test_a_deep_queue_is_laid_out_as_its_owner_would_and_opened_by_a_child(tmp_path: Path) -> None:
    lines: list[str] = []
    result = opening.run(500, tmp_path, lines.append)
    assert result["messages"] == 500
    assert result["seconds"] > 0
    assert result["peak_bytes"] > 1 << 20
    assert json.loads(json.dumps(result)) == result
    assert any("500 messages open in" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_the_layout_is_a_space_that_the_engine_reads_whole(tmp_path: Path) -> None:
    opening.lay_out(tmp_path / "space", 4100, lambda _: None)
    assert read_format(tmp_path / "space").name == opening.QUEUE
    said: list[dict[str, Any]] = []
    opening.measure_here(tmp_path / "space", said.append)
    assert said[-1]["messages"] == 4100
    session = attach(tmp_path / "space", watch=False)
    try:
        assert session.space.report.quarantined == []
        assert [message.seq for message in session.browse(opening.QUEUE)] == list(range(1, 4101))
    finally:
        session.close()


def test_no_room_for_the_messages_is_said_before_they_are_laid_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="inodes"):
        opening.run(10**13, tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("share", "warned"), [(0.05, False), (0.5, True)])
def test_a_machine_that_others_use_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, warned: bool
) -> None:
    monkeypatch.setattr(environment, "busy_share", lambda: share)
    result = engine.run(Options(tmp_path, threads=(1,), flags=(), seconds=0.01, rounds=2), lambda _: None)
    assert result["environment"]["busy_share"] == [share, share]
    assert any("others used 50%" in warning for warning in result["environment"]["warnings"]) == warned


def test_the_verb_takes_threads_peers_and_a_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra chart is not installed")
    words = ["--flags", "NONE", "--seconds", "0.02", "--rounds", "1", "--threads", "1,2", "--threads", "3"]
    more = ["--peer", "sqlite", "--messages-per-branch", "2", "--chart", str(tmp_path / "chart.png")]
    where = ["--directory", str(tmp_path / "made"), "--json", str(tmp_path / "figures.json")]
    result = CliRunner().invoke(app, ["bench", *words, *more, *where])
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "figures.json").read_text())
    assert told["options"]["threads"] == [1, 2, 3]
    assert {row["peer"] for row in told["peers"]} == {"sqlite"}
    assert told["options"]["messages_per_branch"] == 2
    assert f"the chart is in {tmp_path / 'chart.png'}" in result.stdout
    assert (tmp_path / "chart.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--chart", "figures.txt"], ".svg or .png"), (["--peer", "x"], "sqlite"), (["--flags", "SAFE"], "FDATASYNC")],
)
def test_the_verb_refuses_before_anything_is_made(tmp_path: Path, words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--directory", str(tmp_path / "made"), *words])
    assert result.exit_code == ExitCode.USAGE
    assert said in result.stderr
    assert not (tmp_path / "made").exists()
