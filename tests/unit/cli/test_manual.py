"""``xaqueue man`` shows what came with the package, whatever formatters there are."""

from __future__ import annotations

import shutil
import sys

import pytest
from typer.testing import CliRunner

import xaqueue
from xaqueue.cli.main import app


@pytest.mark.parametrize("section", ["1", "5", "7"])
@pytest.mark.parametrize("formatter", [True, False])
def test_a_page_is_shown_as_text(section: str, formatter: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not formatter:
        monkeypatch.setattr(shutil, "which", lambda _: None)
    done = CliRunner().invoke(app, ["man", section])
    assert done.exit_code == 0
    assert "xaqueue" in done.stdout
    assert "\x08" not in done.stdout
    assert len(done.stdout.splitlines()) > 500
    assert not [line for line in done.stdout.splitlines() if line.startswith((".Sh", ".It", ".Pp"))]


def test_a_page_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/")
    monkeypatch.setattr(xaqueue, "__file__", "/srv/none/xaqueue/__init__.py")
    done = CliRunner().invoke(app, ["man", "7"])
    assert done.exit_code == 3
    assert "pip install --force-reinstall xaqueue" in done.stderr
