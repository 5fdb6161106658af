"""One process owns a space: a second is told who, a killed one frees it, and the child of a fork has no part in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import xaqueue
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.errors import SpaceInUse
from xaqueue.offline.check import repair

OWNER_PROCESS = """
import sys, xaqueue
connection = xaqueue.connect(sys.argv[1], create=True, sync="NONE")
connection.enqueue("orders", b"the owner's")
connection.commit()
print("ready", flush=True)
sys.stdin.read()
"""
FORKING_PROCESS = """
import os, sys, xaqueue
from xaqueue.errors import ResourceFailed, SpaceInUse

def refused(error, call):
    try:
        call()
    except error as told:
        return str(told)
    os._exit(3)

connection = xaqueue.connect(sys.argv[1], create=True, sync="FSYNC;DSYNC")
connection.enqueue("orders", b"before the fork")
files = sorted(os.listdir(sys.argv[1] + "/active"))
child = os.fork()
if child == 0:
    for call in (
        lambda: connection.enqueue("orders", b"the child's"),
        lambda: connection.dequeue("orders"),
        connection.commit,
        lambda: connection.browse("orders").__next__(),
        connection.tpc_recover,
    ):
        assert "belongs to the parent" in refused(ResourceFailed, call)
    connection.close()
    assert f"process {os.getppid()} " in refused(SpaceInUse, lambda: xaqueue.connect(sys.argv[1]))
    assert sorted(os.listdir(sys.argv[1] + "/active")) == files
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 0, status
connection.enqueue("orders", b"after the fork")
connection.commit()
print(*(message.body.decode() for message in connection.browse("orders")), sep=", ")
connection.close()
"""


@contextmanager
def owned_elsewhere(root: Path) -> Iterator[int]:
    """Another process owns the space meanwhile; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER_PROCESS, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()
        assert process.wait(60) == 0


def files_of(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [root, *root.rglob("*")]
    }


def test_a_second_process_is_told_host_pid_and_since_when(tmp_path: Path) -> None:
    """OMS-23."""
    with owned_elsewhere(tmp_path / "s") as pid:
        assert is_owned(tmp_path / "s")
        owner = read_owner(tmp_path / "s")
        assert owner is not None
        with pytest.raises(SpaceInUse) as told:
            xaqueue.connect(tmp_path / "s")
        for part in (f"process {pid} ", f" on {socket.gethostname()} ", f" since {owner.since}"):
            assert part in str(told.value)
    assert not is_owned(tmp_path / "s")
    with xaqueue.connect(tmp_path / "s") as connection:
        assert [message.body for message in connection.browse("orders")] == [b"the owner's"]


def test_a_second_process_changes_nothing_when_it_is_refused(tmp_path: Path) -> None:
    with owned_elsewhere(tmp_path / "s"):
        before = files_of(tmp_path / "s")
        with pytest.raises(SpaceInUse):
            xaqueue.connect(tmp_path / "s", create=True)
        assert files_of(tmp_path / "s") == before


def test_an_owner_that_is_killed_frees_the_space(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER_PROCESS, str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait(60)
    with xaqueue.connect(tmp_path / "s") as connection:
        assert [message.body for message in connection.browse("orders")] == [b"the owner's"]


def test_the_child_of_a_fork_is_fenced_and_its_parent_is_not(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKING_PROCESS, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in run.stderr.splitlines() if "is on tmpfs" not in line]
    assert (run.returncode, complaints) == (0, [])
    assert run.stdout == "before the fork, after the fork\n"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """Two messages in orders, one in replies, closed cleanly."""
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        connection.enqueue("orders", b"first")
        connection.enqueue("orders", b"second")
        connection.enqueue("replies", b"third")
        connection.commit()
    return root


def test_repair_needs_a_space_that_nobody_else_owns(space: Path) -> None:
    child, parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        connection = xaqueue.connect(space)
        os.write(child[1], b"x")
        os.read(parent[0], 1)
        connection.close()
        os._exit(0)
    os.read(child[0], 1)
    try:
        with pytest.raises(SpaceInUse, match=f"process {pid} on"):
            repair(space)
    finally:
        os.write(parent[1], b"x")
        os.waitpid(pid, 0)
        for end in (*child, *parent):
            os.close(end)
