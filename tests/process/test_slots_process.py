"""Slots of a shared directory and processes: forks, locks that are lost, copies, and a space that awaits a carrier."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.patience import PATIENCE_S, eventually
from support.tm_world import PREPARED, ROLLED_BACK, Bank, World
from xaqueue import TransactionManager
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import replace_file
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.errors import DecisionLogError
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.log_directory import log_of_slot, open_log, take_over, view_log
from xaqueue.tm.slots import open_slot


def over(log_dir: Path, bank: Bank) -> TransactionManager:
    return TransactionManager(log_dir, {"a": bank.connect}, recovery_interval_s=0.02)


def prepared(bank: Bank, node: str, epoch: int) -> Callable[[], str]:
    """A branch of that node, and what becomes of it."""
    xid = FORMAT_ID, str(Gtrid(node, epoch, 1)), "a"
    bank.branches[xid] = PREPARED
    return lambda: bank.branches[xid]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_keeps_no_slot(tmp_path: Path) -> None:
    """It outlives its parent, or who was adopting a slot at that moment; and it may have a slot of its own."""
    read, write = os.pipe()
    log = open_slot(tmp_path / "log")
    child = os.fork()
    if child == 0:
        with closing(open_slot(tmp_path / "log")) as own:
            os.write(write, f"{own.node}\n".encode())
            signal.pause()
        os._exit(0)
    node = os.read(read, 100).decode().strip()
    assert node == view_log(log_of_slot(tmp_path / "log", 1)).node
    assert log.owner is not None
    os.close(log.owner._lock._fd)  # as the kernel does, of a process that is killed
    log.owner._lock._fd = -1
    assert not is_owned(tmp_path / "log")
    assert is_owned(log_of_slot(tmp_path / "log", 1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not is_owned(log_of_slot(tmp_path / "log", 1))


def test_who_lost_its_lock_decides_nothing_that_an_heir_has_not_read(tmp_path: Path) -> None:
    """As a server of NFS loses it, of a machine that it has not heard of for a while."""
    bank, place = Bank(World(), "a"), log_of_slot(tmp_path / "log", 1)
    slow = open_log(place)
    state = prepared(bank, slow.node, slow.epoch)
    assert slow.owner is not None
    slow.owner._lock.release()
    slow.owner._lock = type(slow.owner._lock)(tmp_path / "elsewhere")  # which it takes for its own
    with over(tmp_path / "log", bank):
        eventually(lambda: state() == ROLLED_BACK)
        with pytest.raises(DecisionLogError, match="owns the decision log no more"):
            slow.decide(bytes(Gtrid(slow.node, slow.epoch, 1)), ["a"])
        assert view_log(place).open == []
    assert state() == ROLLED_BACK


def test_an_owner_that_a_lock_server_forgot_is_no_heir(tmp_path: Path) -> None:
    """Who adopts says so before it reads; who finds another owner there then gives up."""
    log = open_log(log_of_slot(tmp_path / "log", 1))
    replace_file(DirectoryFileSystem(log_of_slot(tmp_path / "log", 1)), "owner", b'{"pid": 1}')
    with pytest.raises(DecisionLogError, match="no more"):
        log.decide(b"one", ["a"])
    log.close()


def test_an_older_copy_that_is_put_back_leaves_what_is_newer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bank, root = Bank(World(), "a"), tmp_path / "log"
    for number in (0, 1):
        open_log(log_of_slot(root, number)).close()
    shutil.copytree(root, tmp_path / "copy")
    for _ in range(3):
        own = open_log(log_of_slot(root, 1))
        own.close()
    state = prepared(bank, own.node, own.epoch)
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    take_over(root)
    with over(root, bank) as tm:
        eventually(lambda: "it is an older copy, of epoch 1: a branch of epoch 4 is in doubt" in caplog.text)
        for _ in range(5):
            tm.recover(PATIENCE_S)
    assert state() == PREPARED
    assert view_log(log_of_slot(root, 1)).epoch == 1


CARRIES = """
import os, sqlite3, sys
from pathlib import Path
import xaqueue
from support.carrying import small, wait_until_it_carries
place = Path(sys.argv[1])
tm = xaqueue.TransactionManager(place / "log", {
    "queue": lambda: xaqueue.connect(place / "queue"), "ledger": lambda: sqlite3.connect(place / "db")})
wait_until_it_carries(tm)
def on_step(step, gtrid, name):
    if step.value == "committed-last":
        print(tm.node, flush=True)
        os.kill(os.getpid(), 9)
tm._coordinator.step = on_step
with tm.transaction() as tx:
    small('ledger', 'queue')(tx)
"""


def test_a_space_that_awaits_a_carrier_has_it_adopted(tmp_path: Path) -> None:
    """What only the database has is handed to the space by whoever opens that, though nothing is in doubt anywhere."""
    xaqueue.connect(tmp_path / "queue", create=True).close()
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute("create table entries (name text)")
    first = open_log(tmp_path / "log")
    words = [sys.executable, "-c", CARRIES, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(SUPPORT.parent)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=env)
    assert done.returncode == -signal.SIGKILL, done.stderr
    first.close()
    queues = {
        "queue": lambda: xaqueue.connect(tmp_path / "queue"),
        "ledger": lambda: sqlite3.connect(tmp_path / "db"),
    }
    with TransactionManager(tmp_path / "log", queues, recovery_interval_s=0.1) as tm:
        assert tm.node != done.stdout.strip() == view_log(log_of_slot(tmp_path / "log", 1)).node
        assert tm.recover(PATIENCE_S).complete
        with closing(xaqueue.connect(tmp_path / "queue")) as connection:
            assert not any(one.is_awaited for one in connection.carriers().carriers)
