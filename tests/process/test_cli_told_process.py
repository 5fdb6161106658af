"""What the command line as a program writes to terminals and pipes, and how a server that it serves is ended."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from support.doubtful import RUN, leave_in_doubt, listed, run
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.features.opening import create
from xaqueue.xid import Xid

LONG = Xid(1480676162, b"7f3c0b529a4e4a869f0e0d6c6b1a2c3d-of-a-long-name", b"a-participant-of-a-long-name")
PATIENCE_S = 60.0
QUEUES = '[queues.a]\n[queues.urgent]\norder = "priority"\n[queues.stack]\norder = "lifo"\n[space]\nsync = "JOURNAL"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create(tmp_path / "space")
    write_definitions(tmp_path / "space", QUEUES)
    return tmp_path / "space"


def on_terminal(columns: int, *words: object) -> str:
    """What a command shows on a terminal of that width."""
    terminal, side = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": str(columns)}
    shown = b""
    try:
        subprocess.run([*RUN, *map(str, words)], stdout=side, env=environment, check=True, timeout=PATIENCE_S)
        os.write(side, b"\x04")
        while not shown.endswith(b"\x04"):
            shown += os.read(terminal, 4096)
    finally:
        os.close(terminal)
        os.close(side)
    return shown[:-1].decode().replace("\r\n", "\n")


@pytest.mark.parametrize("body", ["no end", "an end\n"])
def test_a_terminal_gets_a_line_end(root: Path, body: str) -> None:
    run("put", "a", body, "--space", root)
    run("put", "a", body, "--space", root)
    assert on_terminal(80, "get", "a", "--space", root) == body.removesuffix("\n") + "\n"
    piped = subprocess.run([*RUN, "get", "a", "--space", str(root)], stdout=subprocess.PIPE, check=True)
    assert piped.stdout == body.encode()


@pytest.mark.parametrize("columns", [40, 80, 300])
def test_what_is_copied_stands_in_one_line(tmp_path: Path, columns: int) -> None:
    root = leave_in_doubt(tmp_path / "space", LONG)
    message_id = run("put", "orders", "x" * 60, "--correlation-id", "c" * 60, "--space", root).strip()
    assert str(LONG) in on_terminal(columns, "indoubt", "list", "--space", root)
    assert message_id in on_terminal(columns, "browse", "orders", "--space", root)
    (branch,) = listed("--space", root)
    shown = on_terminal(columns, "indoubt", "show", LONG, "--space", root)
    for content in (*branch["added"], *branch["held"]):
        assert content["message_id"] in shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 0), (signal.SIGTERM, 0), (signal.SIGINT, 0)])
def test_a_server_is_ended_in_order(root: Path, number: int, code: int) -> None:
    child = subprocess.Popen(
        [*RUN, "serve", "--space", str(root)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # whoever runs this may ignore it
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("serving")
        child.send_signal(number)
        assert child.wait(PATIENCE_S) == code
    finally:
        child.kill()
        child.communicate()
    assert not (root / "socket").exists()


def test_nohup_keeps_a_server_alive(root: Path) -> None:
    child = subprocess.Popen(
        [*RUN, "serve", "--space", str(root)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("serving")
        child.send_signal(signal.SIGHUP)
        assert run("put", "a", "x", "--space", root)
        assert child.poll() is None
    finally:
        child.terminate()
        child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0
