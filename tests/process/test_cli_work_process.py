"""The demo and the benchmarks by their verbs, where a process is needed to tell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app


def test_a_missing_driver_is_named() -> None:
    script = "import sys; sys.modules['psycopg'] = None\nfrom xaqueue.cli.main import main; main()"
    command = [sys.executable, "-c", script, "demo", "--ledger"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.ERROR
    assert done.stderr == 'xaqueue: psycopg is not installed: pip install "xaqueue[postgres]"\n'


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("matplotlib", 'matplotlib is not installed: pip install "xaqueue[demo]"'),
        ("pyspark", 'pyspark is missing: pip install "xaqueue[spark]" brings what Spark needs'),
    ],
)
def test_a_missing_extra_is_named(package: str, said: str) -> None:
    script = f"import sys; sys.modules['{package}'] = None\nfrom xaqueue.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.ERROR
    assert done.stderr == f"xaqueue: {said}\n"


@pytest.mark.parametrize(("passed", "code"), [(True, ExitCode.OK), (False, ExitCode.NOTHING)])
def test_the_ledger_tells_whether_its_books_agree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, passed: bool, code: ExitCode
) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")

    def run(orders: int | None, directory: Path | None, report: Callable[[str], None], *, keep: bool) -> bool:
        report(f"{orders} {directory} {keep}")
        return passed

    monkeypatch.setattr("xaqueue.tools.demo.ledger.run", run)
    result = CliRunner().invoke(app, ["demo", "--ledger", "--orders", "70", "--directory", str(tmp_path), "--keep"])
    assert (result.exit_code, result.stdout) == (code, f"70 {tmp_path} True\n")
