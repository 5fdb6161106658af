"""Programs name a directory while its server is killed, stopped and started again: it is theirs to wait for, and never
the directory to be opened, so that the server can come back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import xaqueue
from support.served import RUN, Process
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.core.owner.record import read_owner
from xaqueue.errors import ConnectionLost
from xaqueue.features.opening import create
from xaqueue.rpc.client import reach

PATIENCE_S = 60.0
SHORT_S = 0.3
BUSY_S, GAP_S = 0.4, 0.3
"""How long the programs are at work with a server, and without one."""

# Puts messages until its input ends, over one connection or a new one for each; what is unknown is not put again.
PROGRAM = """
import sys, threading, xaqueue
root, keeps = sys.argv[1], sys.argv[2] == "keeps"
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
connection, known, unknown = None, 0, 0
while not over.is_set():
    connection = connection or xaqueue.connect(root)
    assert not connection.is_embedded
    try:
        connection.enqueue("orders", b"x")
        connection.commit()
        known += 1
    except xaqueue.OutcomeUnknown:
        unknown += 1
        if keeps:
            connection.rollback()
    except xaqueue.RolledBack:
        pass
    if not keeps:
        connection.close()
        connection = None
    if known == 1:
        print("begun", flush=True)
print(known, unknown)
"""
# In a child of a fork, and of the parent's connection.
FORKED = """
import os, sys, xaqueue
root = sys.argv[1]
with xaqueue.connect(root) as connection:
    print("connected", flush=True)
    sys.stdin.readline()
    if os.fork() == 0:
        try:
            connection.enqueue("orders", b"x")
        except xaqueue.ResourceFailed as refused:
            print(refused, flush=True)
        with xaqueue.connect(root) as own:
            own.enqueue("orders", b"child")
            own.commit()
            print(own.is_embedded, flush=True)
        os._exit(0)
    os.wait()
    connection.enqueue("orders", b"parent")
    connection.commit()
    print(connection.is_embedded, flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    create(tmp_path / "space", sync="JOURNAL", any_queue=True)
    yield tmp_path / "space"
    reach._led.clear()


def program(script: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def programs(*found: subprocess.Popen[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in found:
            stack.enter_context(one)
            stack.callback(one.kill)
        yield


def line(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline().rstrip("\n")


def epoch(root: Path) -> int:
    """How often the directory was opened."""
    owner = read_owner(root)
    assert owner is not None
    return owner.epoch


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_comes_back_beside_programs_at_work(root: Path, number: signal.Signals) -> None:
    """Twice, and nobody but servers has opened the directory; each message that was acknowledged is there."""
    with ExitStack() as stack:
        server = stack.enter_context(Process(root))
        clients = [program(PROGRAM, root, how) for how in ("keeps", "keeps", "anew", "anew")]
        stack.enter_context(programs(*clients))
        assert [line(client) for client in clients] == ["begun"] * 4
        for _ in range(2):
            time.sleep(BUSY_S)
            server.end(number)
            time.sleep(GAP_S)
            server = stack.enter_context(Process(root))
        time.sleep(BUSY_S)
        said = [client.communicate("", PATIENCE_S)[0].split() for client in clients]
        assert [client.returncode for client in clients] == [0] * 4
        assert epoch(root) == 3, "a program has opened the directory"
        with xaqueue.connect(root) as connection:
            there = len(list(connection.browse("orders")))
    known, unknown = (sum(int(words[place]) for words in said) for place in (-2, -1))
    assert known <= there <= known + unknown


def test_a_server_that_never_comes_back(root: Path) -> None:
    """A connection says for how long it was missed, and what opens the directory; a new one does, and the server that
    comes then says who has it."""
    with Process(root) as server, xaqueue.connect(root, server_s=SHORT_S) as connection:
        server.end(signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(
                ConnectionLost, match=rf"start it again, .*; a connect opens .* after {SHORT_S} s without"
            ):
                connection.enqueue("orders", b"x")
        opens = "import sys, xaqueue; c = xaqueue.connect(sys.argv[1], server_s=0.3); print(c.is_embedded, flush=True)"
        owner = program(f"{opens}; sys.stdin.read()", root)
        with programs(owner):
            assert line(owner) == "True"
            with pytest.raises(ConnectionLost, match=rf"process {owner.pid} on .*, which opened the directory itself"):
                connection.enqueue("orders", b"x")
            refused = subprocess.run([*RUN, "serve", "--space", root], capture_output=True, text=True, check=False)
            assert refused.returncode == ExitCode.SPACE
            since = read_owner(root)
            assert since is not None
            assert f"process {owner.pid} on {since.host} since {since.since} (-c), which opened" in refused.stderr
            owner.communicate("", PATIENCE_S)
        with Process(root):
            connection.enqueue("orders", b"x")
            connection.commit()
            assert not connection.is_embedded


def test_a_server_that_is_long_gone(root: Path) -> None:
    """Its address leads nowhere: a program that never was there opens the directory behind ``server_s``, once."""
    with Process(root) as server:
        server.end(signal.SIGKILL)
    opens = "import sys, xaqueue; print(xaqueue.connect(sys.argv[1], server_s=float(sys.argv[2])).is_embedded)"
    for server_s in (SHORT_S, PATIENCE_S):  # the second one would be too late
        one = program(opens, root, server_s)
        with programs(one):
            assert one.communicate("", PATIENCE_S / 2)[0] == "True\n"


def test_two_servers_by_turns(root: Path) -> None:
    """Each at an address of its own: the owner file says where."""
    with ExitStack() as stack:
        server: Process | Standby = stack.enter_context(Process(root))
        connection = stack.enter_context(closing(xaqueue.connect(root)))
        for turn in range(2):
            place = root.with_name(f"socket{turn}")
            words = [*RUN, "serve", "--space", str(root), "--standby", "--unix", str(place)]
            standby = stack.enter_context(Standby(words))
            connection.enqueue("orders", b"%d" % turn)
            connection.commit()
            server.end(signal.SIGKILL)
            connection.enqueue("orders", b"%d" % turn)
            connection.commit()
            assert reach.served_at(root) == f"xaq+unix://{place}"
            server = standby
        assert sorted(message.body for message in connection.browse("orders")) == [b"0", b"0", b"1", b"1"]
        assert epoch(root) == 3


class Standby:
    """A server that waits for the space."""

    def __init__(self, words: list[str]) -> None:
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, text=True)

    def end(self, number: int) -> int:
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_S)

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)


def test_a_child_of_a_fork_waits_as_well(root: Path) -> None:
    """It knows that there was a server, which is away when it begins; the connection of its parent is not its own."""
    with Process(root) as server:
        parent = program(FORKED, root)
        with programs(parent):
            assert line(parent) == "connected"
            server.end(signal.SIGTERM)
            assert parent.stdin is not None
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert "belongs to the parent of this forked process: connect again" in line(parent)
            time.sleep(GAP_S)
            with Process(root):
                assert [line(parent), line(parent)] == ["False", "False"]
                assert parent.wait(PATIENCE_S) == os.EX_OK
    assert epoch(root) == 2
