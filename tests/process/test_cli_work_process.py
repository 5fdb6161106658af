"""The demo and the benchmarks by their verbs, where a process is needed to tell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xaqueue.cli.exits import ExitCode
from xaqueue.cli.main import app


def test_a_missing_driver_is_named() -> None:
    script = "import sys; sys.modules['psycopg'] = None\nfrom xaqueue.cli.main import main; main()"
    command = [sys.executable, "-c", script, "demo", "--ledger"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.ERROR
    assert done.stderr == 'xaqueue: psycopg is not installed: pip install "xaqueue[postgres]"\n'


def test_a_missing_extra_is_named() -> None:
    script = "import sys; sys.modules['matplotlib'] = None\nfrom xaqueue.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.ERROR
    assert done.stderr == 'xaqueue: matplotlib is not installed: pip install "xaqueue[demo]"\n'


def test_opening_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    words = ["--messages", "20", "--directory", str(tmp_path), "--json", str(figures)]
    result = CliRunner().invoke(app, ["bench", "open", *words])
    assert result.exit_code == 0, result.output
    assert json.loads(figures.read_text())["messages"] == 20


@pytest.mark.parametrize(
    ("words", "reached"),
    [
        (["spark", "--messages", "500000", "--per-trigger", "2", "--sources"], "500000 3 2 False"),
        (["--spark"], "100000 3 None True"),
    ],
)
def test_spark_is_measured(words: list[str], reached: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(
        space: Path,
        queue: str,
        messages: int,
        *,
        rounds: int,
        per_trigger: int | None,
        whole: bool,
        progress: Callable[[str], None],
    ) -> dict[str, Any]:
        progress(f"{space.parent.parent} {queue} {messages} {rounds} {per_trigger} {whole}")
        return {"messages": messages, "runs": {}, "ratio": 20.0}

    monkeypatch.setattr("xaqueue.bench.spark_bench.measure", measure)
    result = CliRunner().invoke(app, ["bench", *words, "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"{tmp_path} bench {reached}",
        "xaqueue is 20.0 times binaryFile as shipped",
        "met: times binaryFile as shipped: 20.0, at least 20 is wanted",
    ]


@pytest.mark.parametrize(("passed", "code"), [(True, ExitCode.OK), (False, ExitCode.NOTHING)])
def test_the_ledger_tells_whether_its_books_agree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, passed: bool, code: ExitCode
) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")

    def run(orders: int | None, directory: Path | None, report: Callable[[str], None], *, keep: bool) -> bool:
        report(f"{orders} {directory} {keep}")
        return passed

    monkeypatch.setattr("xaqueue.demo.ledger.run", run)
    result = CliRunner().invoke(app, ["demo", "--ledger", "--orders", "70", "--directory", str(tmp_path), "--keep"])
    assert (result.exit_code, result.stdout) == (code, f"70 {tmp_path} True\n")
