"""A transaction manager and processes: forked children, what an import loads, a thread that outlives the main one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.tm_world import Bank, BankConnection, World
from xaqueue import TransactionManager
from xaqueue.errors import (
    InterfaceError,
)
from xaqueue.xa import Outcome


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "log"


def banks(*names: str) -> dict[str, Bank]:
    world = World()
    return {name: Bank(world, name) for name in names}


def over(log_dir: Path, found: dict[str, Bank], **options: Any) -> TransactionManager:
    return TransactionManager(log_dir, {name: bank.connect for name, bank in found.items()}, **options)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_no_part_in_it(log_dir: Path) -> None:
    found = banks("a", "b")
    with over(log_dir, found) as tm:
        child = os.fork()
        if child == 0:
            try:
                tm.transaction("a")
            except InterfaceError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        with tm.transaction("a", "b") as tx:
            pass
        assert tx.outcome is Outcome.COMMITTED


def test_whoever_only_uses_queues_does_not_load_it() -> None:
    told = "import sys, xaqueue; print([name for name in sys.modules if name.startswith('xaqueue.tm')])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "TransactionManager" in xaqueue.__all__


PATIENCE_S = 60.0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("error", [None, OSError("in the child")])
def test_a_child_that_leaves_the_parents_transaction_ends_nothing(tmp_path: Path, error: OSError | None) -> None:
    """Its connections are the parent's: what it said there would be said in the parent's name."""
    read, write = os.pipe()
    bank = Bank(World(), "a")

    class Heard(BankConnection):
        def _call(self, verb: str, *args: Any, **options: Any) -> None:
            os.write(write, f"{os.getpid() == parent} {verb}\n".encode())
            super()._call(verb, *args, **options)

    parent = os.getpid()
    with (
        TransactionManager(tmp_path / "log", {"a": lambda: Heard(bank)}, recovery_interval_s=PATIENCE_S) as manager,
        manager.transaction("a") as tx,
    ):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                tx.__exit__(type(error) if error else None, error, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    os.close(write)
    told = b"".join(iter(lambda: os.read(read, 4096), b""))
    os.close(read)
    assert [line for line in told.decode().splitlines() if line.startswith("False")] == []
    assert tx.outcome is Outcome.COMMITTED


def test_a_thread_that_outlives_the_main_one_goes_on(tmp_path: Path) -> None:
    told = f"""
import threading, xaqueue
places = {{n: {str(tmp_path)!r} + "/" + n for n in "ab"}}
manager = xaqueue.TransactionManager({str(tmp_path / "log")!r},
    {{n: (lambda place=place: xaqueue.connect(place, create=True, sync="NONE")) for n, place in places.items()}})
def work():
    threading.main_thread().join()
    with manager.transaction() as tx:
        for name in places:
            tx[name].enqueue("q", b"x")
    manager.close()
    print("committed")
threading.Thread(target=work).start()
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "committed\n", done.stderr
