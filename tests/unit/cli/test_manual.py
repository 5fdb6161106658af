"""``xaqueue man`` shows what came with the package, whatever formatters there are."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from xaqueue.cli import manual
from xaqueue.cli.main import app


@pytest.mark.parametrize("section", ["1", "5", "7", "tm", "spark", "operating"])
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


def test_sentences_are_whole_without_a_formatter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    shown = CliRunner().invoke(app, ["man", "7"]).stdout.splitlines()
    assert "No number of theirs is used again." in shown
    assert (
        manual._stripped(".Nm Cm status Fl Fl json ,\n.Fl Fl sync\n.Pq Fl q") == "xaqueue status --json ,\n--sync\n-q"
    )


def test_a_page_is_found_where_pip_has_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --user, say, it is not below the interpreter's own prefix."""
    record = tmp_path / "lib" / "xaqueue-9.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("../share/man/man7/xaqueue.7,,\n")
    (record.parent / "METADATA").write_text("Name: xaqueue\nVersion: 9\n")
    page = tmp_path / "share" / "man" / "man7" / "xaqueue.7"
    page.parent.mkdir(parents=True)
    page.write_text(".Sh HERE\n")
    monkeypatch.setattr(xaqueue, "__file__", str(tmp_path / "lib" / "xaqueue" / "__init__.py"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), *sys.path])
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert CliRunner().invoke(app, ["man", "7"]).stdout.split() == ["HERE"]
    page.unlink()
    done = CliRunner().invoke(app, ["man", "7"])
    assert done.exit_code == 3
    assert "pip install --force-reinstall xaqueue" in done.stderr


def test_a_page_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "files", lambda _: None)  # a package that pip knows nothing of
    monkeypatch.setattr(xaqueue, "__file__", "/srv/none/xaqueue/__init__.py")
    done = CliRunner().invoke(app, ["man", "7"])
    assert done.exit_code == 3
    assert "pip install --force-reinstall xaqueue" in done.stderr
