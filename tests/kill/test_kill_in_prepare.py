"""An owner that is killed between two calls of a prepare."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.contract_connection import (
    block_files,
    bodies,
    drain,
    put,
)
from support.served import EmbeddedHost

KILLED_IN_PREPARE = """
import os, signal, sys
import xaqueue
from xaqueue.core.owner import open as attaching

renames = int(sys.argv[2])

class Mortal(attaching.DirectoryFileSystem):
    def rename(self, source, target):
        global renames
        if target.startswith("prepared/"):
            if renames == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            renames -= 1
        super().rename(source, target)

attaching.DirectoryFileSystem = Mortal
connection = xaqueue.connect(sys.argv[1], sync="FDATASYNC;DSYNC")
connection.tpc_begin(connection.xid(42, "gtrid", "bqual"))
assert connection.dequeue("orders").body == b"there"
connection.enqueue("replies", b"1")
connection.enqueue("replies", b"2")
connection.tpc_prepare()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[EmbeddedHost]:
    made = EmbeddedHost(tmp_path / "space")
    yield made
    made.restart()


@pytest.mark.parametrize("renames", range(5))
def test_killed_inside_prepare(host: EmbeddedHost, renames: int) -> None:
    """24 and 25: until its last block is in ``prepared/`` the branch is rolled back at boot; then it is in doubt."""
    put(host.connect(), b"there")
    host.restart()
    run = subprocess.run([sys.executable, "-c", KILLED_IN_PREPARE, str(host.root), str(renames)], check=False)
    assert run.returncode == -signal.SIGKILL
    connection = host.connect()
    if renames < 4:
        assert connection.tpc_recover() == []
        assert bodies(connection) == [b"there"]
        assert block_files(host.root) == []
        assert drain(connection) == [b"there"]
        return
    (xid,) = connection.tpc_recover()
    assert drain(connection) == []
    connection.rollback()
    connection.tpc_commit(xid)
    assert (bodies(connection), bodies(connection, "replies")) == ([], [b"1", b"2"])
