"""The demos by their verb: options reach them, and a missing extra is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app


@pytest.mark.parametrize(("passed", "code"), [(True, ExitCode.OK), (False, ExitCode.NOTHING)])
def test_the_demo_tells_whether_its_check_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, passed: bool, code: ExitCode
) -> None:
    pytest.importorskip("matplotlib", reason="the extra demo is not installed")

    def run(flights: int | None, directory: Path | None, report: Callable[[str], None], *, keep: bool) -> bool:
        report(f"{flights} {directory} {keep}")
        return passed

    monkeypatch.setattr("xaqueue.tools.demo.flights.run", run)
    result = CliRunner().invoke(app, ["demo", "--flights", "200", "--directory", str(tmp_path), "--keep"])
    assert (result.exit_code, result.stdout) == (code, f"200 {tmp_path} True\n")
