"""A call that hangs, seen from outside the process; and a forked child, which has no watchdog."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.bare_space import DURABLE
from xaqueue.cli.main import app
from xaqueue.core.model import layout
from xaqueue.core.owner import threads
from xaqueue.offline import inspect

PATIENCE_S = 30.0
SHORT_S = 0.05
LEVELS = [DURABLE, "JOURNAL"]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WATCH_S", SHORT_S)


CHILD = """
import os, sys, threading
import xaqueue
from xaqueue.errors import ResourceFailed
root = sys.argv[1]
connection = xaqueue.connect(root)
never = threading.Event()
write = os.pwritev
os.fdatasync = lambda fd: never.wait()
os.pwritev = lambda *arguments: write(*arguments) if len(arguments) < 4 else never.wait()  # what syncs has flags
def hang():
    connection.enqueue("orders", b"first")
    connection.commit()
leader = threading.Thread(target=hang, daemon=True)
leader.start()
other = xaqueue.connect(root)
try:
    other.dequeue("orders", wait_s=30)
except ResourceFailed as failed:
    print(failed, flush=True)
    assert sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_printed_to_stderr_and_shown_in_status(tmp_path: Path, level: str) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()
    (root / layout.QUEUES).write_text(f'[default]\n[space]\nsync = "{level}"\nio_deadline_s = 1\n')
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert "has taken" in owner.stdout.readline()
        status = await_trouble(root)
        shown = CliRunner().invoke(app, ["--space", str(root), "status"])
        _, stderr = owner.communicate("go on\n", timeout=PATIENCE_S)
    assert status.owned
    assert "has taken 1" in status.trouble
    assert "and io_deadline_s is 1" in shown.stdout
    assert stderr.count("the space is fenced: TimeoutError('the sync of ") == 1
    with xaqueue.connect(root):
        assert inspect.status(root).trouble == ""


def await_trouble(root: Path) -> inspect.Status:
    waiting = threading.Event()
    while not (status := inspect.status(root)).trouble:
        waiting.wait(0.01)
    return status


FORK = """
import os, sys, threading
import xaqueue
connection = xaqueue.connect(sys.argv[1])
connection.enqueue("orders", b"first")
child = os.fork()
names = [thread.name for thread in threading.enumerate()]
if not child:
    os._exit("xaqueue-watchdog" in names)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "xaqueue-watchdog" in names)
connection.commit()
connection.close()
"""


def test_a_forked_child_has_no_watchdog(tmp_path: Path) -> None:
    xaqueue.connect(tmp_path / "space", create=True).close()
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path / "space")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "0 True\n"
    assert inspect.status(tmp_path / "space").trouble == ""
