"""The operator's verbs on a terminal, and on a space that another process owns."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
from pathlib import Path

import pytest

import xaqueue
from support import broken_journal
from support.broken_journal import damage
from support.doubtful import RUN, XID, leave_in_doubt, listed
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.model import layout

PATIENCE_S = 60.0


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XAQUEUE_SPACE", str(tmp_path / "space"))
    return leave_in_doubt(tmp_path / "space")


def test_a_space_in_use_is_not_decided_upon(space: Path) -> None:
    with xaqueue.connect(space):
        done = subprocess.run(
            [*RUN, "indoubt", "commit", str(XID), "--reason", "why"], capture_output=True, text=True, check=False
        )
    assert done.returncode == ExitCode.SPACE
    assert f"is in use by process {os.getpid()} on {socket.gethostname()} since 20" in done.stderr
    assert done.stderr.count("\n") == 1
    assert listed()[0]["state"] == "in doubt"


@pytest.mark.parametrize(
    ("answer", "code", "state"),
    [(b"n\n", ExitCode.NOTHING, "in doubt"), (b"y\n", ExitCode.OK, "heuristically committed")],
)
def test_on_a_terminal_the_operator_is_asked(space: Path, answer: bytes, code: int, state: str) -> None:
    terminal, side = pty.openpty()
    try:
        with subprocess.Popen(
            [*RUN, "indoubt", "commit", str(XID)], stdin=side, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as deciding:
            os.write(terminal, answer)
            _, asked = deciding.communicate(timeout=PATIENCE_S)
    finally:
        os.close(terminal)
        os.close(side)
    assert b"adds 1 message and holds 1 message: commit it without its transaction manager?" in asked
    assert deciding.returncode == code
    assert listed()[0]["state"] == state


def test_with_yes_nobody_is_asked(space: Path) -> None:
    terminal, side = pty.openpty()
    try:
        done = subprocess.run(
            [*RUN, "indoubt", "rollback", str(XID), "--yes", "--reason", "why"],
            stdin=side,
            capture_output=True,
            check=True,
        )
    finally:
        os.close(terminal)
        os.close(side)
    assert done.stderr == b""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Killed, its third record damaged."""
    made = broken_journal.make(tmp_path / "space")
    damage(made, 2)
    monkeypatch.setenv("XAQUEUE_SPACE", str(made))
    monkeypatch.delenv("XAQUEUE_FLAGS", raising=False)
    return made


@pytest.mark.parametrize(("answer", "done"), [(b"y\n", True), (b"n\n", False)])
def test_on_a_terminal_it_asks(root: Path, answer: bytes, done: bool) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen([*RUN, "salvage-journal"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(theirs)
    os.write(ours, answer)
    _, complaint = child.communicate(timeout=60)
    os.close(ours)
    assert b"go on without what is lost? [y/N]" in complaint
    assert child.returncode == (ExitCode.OK if done else ExitCode.NOTHING)
    assert bool(list((root / layout.JOURNAL).glob("*.archive"))) is done
