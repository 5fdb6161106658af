"""The live screen on a real terminal: drawn, told to end by a key or Ctrl-C, and leaving the terminal as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.doubtful import RUN, run
from support.served import Process
from xaqueue.cli.exit_codes import ExitCode

PATIENCE_S = 60.0
ENTERS, LEAVES = b"\x1b[?1049h", b"\x1b[?1049l"
"""The screen that a program has for itself."""


class Screen:
    """``xaqueue top`` with a terminal of 80 columns and 24 lines, which is the one that its keys come from."""

    def __init__(self, *words: object) -> None:
        self._side, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(side)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*RUN, "top", *map(str, words)],
            stdin=side,
            stdout=side,
            stderr=side,
            env=environment | {"TERM": "xterm-256color"},
            preexec_fn=self._owns_terminal,
        )
        self._other = side
        self.drawn = b""

    @staticmethod
    def _owns_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def until(self, *texts: bytes) -> None:
        """All of these were drawn since the last call."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(text in self.drawn for text in texts):
            assert time.monotonic() < deadline, self.drawn[-4000:]
            if select.select([self._side], [], [], 1.0)[0]:
                self.drawn += os.read(self._side, 65536)
        self.drawn = b""

    def press(self, key: bytes) -> None:
        os.write(self._side, key)

    def end(self) -> int:
        """The exit code, with the terminal as it was before."""
        self.until(LEAVES)
        code = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self._other) == self.before
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._side)
        os.close(self._other)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run("init", tmp_path / "space", "--sync", "NONE")
    run("define", "orders", "--space", tmp_path / "space")
    return tmp_path / "space"


@pytest.fixture
def screen(root: Path) -> Iterator[Screen]:
    made = Screen("--interval", 0.1, "--space", root)
    yield made
    made.close()


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it(screen: Screen, key: bytes) -> None:
    screen.until(ENTERS, b"orders", b"nobody has the space open")
    screen.press(b"x")
    screen.until(b"orders")
    screen.press(key)
    assert screen.end() == ExitCode.OK


def test_a_server_that_comes_works_and_dies(screen: Screen, root: Path) -> None:
    """It follows the directory from its files to the server, and back."""
    screen.until(ENTERS, b"nobody has the space open")
    with Process(root, "--sync", "NONE") as server, xaqueue.connect(f"xaq+unix://{server.path}") as connection:
        connection.enqueue("orders", b"x")
        connection.flush()
        screen.until(b"all is well", b"sessions: 1", f"pid {os.getpid()}".encode())
        connection.commit()
    screen.until(b"nobody has the space open", b"orders")
    screen.press(b"Q")
    assert screen.end() == ExitCode.OK


def test_what_was_seen_stays_while_a_server_is_away(root: Path) -> None:
    with Process(root, "--sync", "NONE") as server:
        url, screen = f"xaq+unix://{server.path}", Screen("--interval", 0.1, "--space", f"xaq+unix://{server.path}")
        screen.until(ENTERS, b"all is well", b"orders")
    screen.until(b"it is tried again", b"orders")
    with Process(root, "--sync", "NONE") as server:
        assert f"xaq+unix://{server.path}" == url
        screen.until(b"all is well")
    screen.press(b"q")
    assert screen.end() == ExitCode.OK
    screen.close()


def test_kill_leaves_the_terminal_as_it_was(screen: Screen) -> None:
    screen.until(ENTERS, b"orders")
    screen.process.terminate()
    assert screen.end() == 143
