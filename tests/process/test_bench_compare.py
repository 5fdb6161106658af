"""The project's own measurements run, and the bare calls beside the engine are what the flags ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bench import engine
from bench.bare import BareCalls, BareProtocol, lines_of
from bench.engine import BenchPlan
from xaqueue.core.storage.hardening import Hardening


def files_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_bare_calls_move_a_message_in_and_out(tmp_path: Path) -> None:
    with closing(BareProtocol(tmp_path, Hardening.parse("FDATASYNC;DSYNC"), 100)) as calls:
        calls.enqueue("a")
        assert (tmp_path / "committed/range/a").stat().st_size == 100
        calls.dequeue("a")
    assert files_in(tmp_path) == [".watermark"]


@pytest.mark.parametrize("flags", ["NONE", "FSYNC;DSYNC", "JOURNAL"])
def test_bare_calls_move_a_branch_of_several_messages_in_and_out(tmp_path: Path, flags: str) -> None:
    with closing(BareProtocol(tmp_path, Hardening.parse(flags), 100, messages=3)) as calls:
        calls.enqueue("a")
        messages = tmp_path / "committed/range"
        assert [(path.name, path.stat().st_size) for path in sorted(messages.iterdir())] == [
            ("a.1", 100),
            ("a.2", 100),
            ("a.3", 100),
        ]
        calls.dequeue("a")
    assert files_in(tmp_path) == [".watermark"] + ["log.0"] * (flags == "JOURNAL")


@pytest.mark.parametrize(
    ("flags", "synced"),
    [("NONE", 0), ("FDATASYNC", 1), ("FDATASYNC;DSYNC", 5), ("JOURNAL", 2)],
)
def test_bare_calls_sync_what_the_flags_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, synced: int
) -> None:
    syncs: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _, name=name: syncs.append(name))
    with closing(BareProtocol(tmp_path, Hardening.parse(flags), 100)) as calls:
        syncs.clear()
        calls.enqueue_next()
    assert len(syncs) == synced


@pytest.mark.parametrize("messages", [1, 3])
def test_bare_calls_stand_beside_the_engine(tmp_path: Path, messages: int) -> None:
    flags, threads = ("NONE", "FDATASYNC;DSYNC"), (1, 2)
    plan = BenchPlan(tmp_path, threads, flags, size_bytes=64, seconds=0.05, rounds=1, messages_per_branch=messages)
    bare = BareCalls(plan)
    rows = engine.run(plan, lambda _: None, [bare.measure])["results"]
    bare.join(rows)
    assert len(rows) == 8
    for row in rows:
        assert row["bare_per_s"] > 0
        assert row["ratio"] == pytest.approx(row["per_s"] / row["bare_per_s"])
    assert "bare/s" in "\n".join(lines_of(rows))
    assert list(tmp_path.iterdir()) == []


def test_the_projects_own_measurements_run(tmp_path: Path) -> None:
    """Those in tests/bench, beside a peer and through a server; the others need Spark or minutes."""
    short = ["--flags", "JOURNAL", "--seconds", "0.05", "--rounds", "1", "--threads", "1"]
    for program in (["bench.compare", *short, "--peer", "sqlite", "--server"], ["bench.opening", "--messages", "300"]):
        command = [sys.executable, "-m", *program, "--directory", str(tmp_path)]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
