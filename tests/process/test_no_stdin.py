"""A supervisor may start a command without a standard input: nothing is asked then, and nothing breaks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import xaqueue

pytestmark = pytest.mark.xdist_group("no-stdin")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("put", "orders", "two"), 0),
        (("put", "orders"), 2),
        (("get", "orders"), 0),
        (("purge", "orders"), 1),
        (("indoubt", "list"), 0),
        (("top",), 0),
        (("import", "-"), 2),
    ],
)
def test_a_command_without_it(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    with xaqueue.connect(tmp_path / "s", create=True) as connection:
        connection.enqueue("orders", b"one")
    command = [sys.executable, "-m", "xaqueue", *words, "--space", str(tmp_path / "s")]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
