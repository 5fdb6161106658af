"""An owner that lost the lock, or whose directory another one has taken over, acknowledges and clears nothing."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.bare_space import ANY_QUEUE, BareSpace, FaultyFileSystem
from xaqueue import Connection
from xaqueue.core.model import layout
from xaqueue.core.owner import open as attach_room
from xaqueue.core.owner import threads
from xaqueue.core.storage import owner_file
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import replace_file
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import DecisionLogError, ResourceFailed
from xaqueue.features.opening import create, open_space
from xaqueue.features.session import attach
from xaqueue.features.streams import cleanup
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.tm.log_directory import open_log
from xaqueue.xid import Xid

LEVELS = ["JOURNAL", "FSYNC;DSYNC", "FDATASYNC", "NONE"]
TAKE_OVER = "import sys, xaqueue; xaqueue.connect(sys.argv[1]).close()"


def by_another_file(root: Path) -> None:
    """The lock is replaced, and another process takes the new one."""
    (root / "lock.new").touch()
    (root / "lock.new").rename(root / "lock")
    subprocess.run([sys.executable, "-c", TAKE_OVER, root], check=True, timeout=60)


def by_a_lost_file(root: Path) -> None:
    (root / "lock").unlink()


def by_a_server_that_forgot(root: Path) -> None:
    """The same lock is given to another one, which says so before it does anything else."""
    replace_file(DirectoryFileSystem(root), owner_file.OWNER, b'{"epoch": 9, "host": "other", "pid": 1}')


def by_a_backup(root: Path) -> None:
    """What was copied before the owner began is copied back over it."""
    shutil.copytree(root.with_name("backup"), root, dirs_exist_ok=True)


WAYS = [by_another_file, by_a_lost_file, by_a_server_that_forgot, by_a_backup]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create(tmp_path / "s", any_queue=True)
    attach(tmp_path / "s", watch=False).close()
    shutil.copytree(tmp_path / "s", tmp_path / "backup")
    return tmp_path / "s"


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("lose", WAYS)
def test_whoever_lost_the_lock_acknowledges_nothing(
    root: Path, sync: str, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    connection = xaqueue.connect(root, sync=sync)
    connection.enqueue("orders", b"before")
    connection.commit()
    prepared = Xid(1, b"prepared", b"")
    connection.tpc_begin(prepared)
    connection.enqueue("orders", b"in doubt")
    connection.tpc_prepare()
    other = xaqueue.connect(root)
    other.tpc_begin(Xid(1, b"next", b""))
    other.enqueue("orders", b"not any more")
    lose(root)
    with caplog.at_level(logging.CRITICAL, "xaqueue"):
        for call in (other.tpc_prepare, connection.tpc_commit, lambda: _put(root)):
            with pytest.raises(ResourceFailed, match="the space is fenced"):
                call()
        for each in (connection, other):
            with suppress(ResourceFailed):
                each.close()
    if lose is not by_another_file:  # who may have taken away what was about to be moved
        (said,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
        assert re.search(r"this process owns it no more: .*find out who else has", said)


def _put(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"no")
        connection.commit()


@pytest.mark.parametrize("sync", LEVELS)
def test_what_only_looks_different_takes_nothing_away(root: Path, sync: str) -> None:
    """A backup tool, a change of modes, the same owner copied back: it is the owner still, and looks once."""
    with xaqueue.connect(root, sync=sync) as connection:
        for change in (
            lambda: (root / "lock").chmod(0o640),
            lambda: os.utime(root / "owner"),
            lambda: (shutil.copy2(root / "owner", root / "kept"), (root / "kept").rename(root / "owner")),
            lambda: attach_room.announce(root, "xaq+unix:///run/x.sock"),
        ):
            change()
            connection.enqueue("orders", b"x")
            connection.commit()
        assert len(list(connection.browse("orders"))) == 4


@pytest.mark.parametrize("lose", [by_another_file, by_a_backup])
def test_a_look_by_way_of_an_open_sees_as_much(
    root: Path, lose: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is done on NFS."""
    monkeypatch.setattr(owner_file, "_is_nfs", lambda root: True)
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
        lose(root)
        with pytest.raises(ResourceFailed, match="owns it no more"):
            _put(root)


@pytest.mark.parametrize("sync", LEVELS)
def test_it_costs_two_looks_a_round(root: Path, sync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    real = owner_file._look

    def look(path: str) -> owner_file._Seen:
        looks.append(path)
        return real(path)

    monkeypatch.setattr(owner_file, "_look", look)
    monkeypatch.setattr(threads, "LAG_S", 60.0)
    session = attach(root, sync=sync, watch=False)
    connection = xaqueue.connect(root)
    before, steps = len(looks), session.space.log.steps
    for _ in range(20):
        connection.enqueue("orders", b"x")
        connection.commit()
    assert session.space.log.steps - steps == 20
    assert len(looks) - before <= 2 * 20
    connection.close()
    session.close()


# An owner that slept


@pytest.mark.parametrize("sync", ["JOURNAL", "FSYNC", "FDATASYNC", "NONE"])
def test_an_owner_that_is_continued_after_another_has_begun(root: Path, sync: str) -> None:
    """Whatever was acknowledged, by the one before it was stopped or by the other, is there once; nothing after."""
    for _ in range(3):
        _stop_and_go(root, sync)
    assert [finding for finding in check(root) if finding.severity is Severity.DAMAGE] == []


def _stop_and_go(root: Path, sync: str) -> None:
    command = [sys.executable, str(SUPPORT / "owner_child.py"), str(root), sync]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        told = [first.stdout.readline().strip() for _ in range(20)]
        os.kill(first.pid, signal.SIGSTOP)
        (root / "lock.new").touch()
        (root / "lock.new").rename(root / "lock")
        with xaqueue.connect(root, sync=sync) as second:
            second.enqueue("orders", b"second")
            second.commit()
            rest: list[str] = []
            reader = threading.Thread(target=lambda: rest.extend(line.strip() for line in first.stdout or ()))
            os.kill(first.pid, signal.SIGCONT)
            reader.start()
            for _ in range(50):
                second.enqueue("orders", b"second")
                second.commit()
            assert first.wait(60) == 0
            reader.join()
        told += rest
    assert told[-1].startswith("fenced the space is fenced")
    with xaqueue.connect(root) as connection:
        found: Counter[str] = Counter()
        while message := connection.dequeue("orders"):
            found[message.body.decode()] += 1
        connection.commit()
    assert {body: found[body] for body in told[:-1] if found[body] != 1} == {}
    assert found["second"] == 51
    assert len(found) - 1 <= len(told[:-1]) + 1, "at most the step that was on its way has happened all the same"


# At every call


class LosingFileSystem(FaultyFileSystem):
    """Another process takes the directory over at a call of this one."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.left = at
        self.counting = False
        self.calls: list[str] = []

    def strike(self, call: str, path: str) -> None:
        super().strike(call, path)
        if self.counting and call != "read":
            self.left -= 1
            self.calls.append(call)

    def lost(self) -> str:
        if self.counting:
            self.calls.append("look")
        return "by the test" if self.left < 0 else ""


def _prepared(connection: Connection, name: bytes) -> None:
    connection.tpc_begin(Xid(1, name, b""))
    connection.enqueue("orders", b"x")
    assert connection.dequeue("orders") is not None
    connection.tpc_prepare()


def _local(connection: Connection) -> None:
    connection.enqueue("orders", b"x")
    assert connection.dequeue("orders") is not None
    connection.commit()


STEPS: dict[str, tuple[bool, Callable[[Connection], object]]] = {
    "local": (False, _local),
    "prepare": (False, lambda connection: _prepared(connection, b"now")),
    "commit": (True, lambda connection: connection.tpc_commit()),
    "rollback": (True, lambda connection: connection.tpc_rollback()),
}
"""Whether it is of a branch that is prepared before, and what it calls."""


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("step", STEPS)
def test_no_step_is_acknowledged_once_the_directory_is_lost(tmp_path: Path, sync: str, step: str) -> None:
    """At whatever call of it that happens, up to its last sync."""
    create(tmp_path / "s", any_queue=True)
    answers = ""
    for at in range(200):
        fs = LosingFileSystem(tmp_path / "s", at)
        bare = BareSpace.__new__(BareSpace)
        bare.space = open_space(fs, ANY_QUEUE, hardening=Hardening.parse(sync), lost=fs.lost)
        bare.put("orders", b"1", b"2")
        connection = bare.connect()
        after_prepare, call = STEPS[step]
        if after_prepare:
            _prepared(connection, b"before")
        fs.counting = True
        try:
            call(connection)
        except ResourceFailed:
            answers += "-"
        else:
            answers += "+"
        fs.counting, lost = False, fs.left < 0
        bare.space.log.fail(OSError("crashed"))
        fs.close()
        shutil.rmtree(tmp_path / "s")
        create(tmp_path / "s", any_queue=True)
        if not lost:
            break
    refused, acknowledged = answers.count("-"), answers.count("+")
    assert answers == "-" * refused + "+" * acknowledged
    assert refused, "nothing was done"
    calls = ["sync" if call.startswith("sync") else call for call in fs.calls]
    if "sync" in calls and step != "rollback":  # behind which the tries are counted
        assert "look" in calls[len(calls) - calls[::-1].index("sync") :]


# Behind the steps


def test_what_lags_behind_is_left_to_the_other_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LAG_S", 60.0)
    session = attach(root, sync="JOURNAL", watch=False)
    with xaqueue.connect(root) as connection:
        for number in range(5):
            connection.enqueue("orders", b"%d" % number)
            connection.commit()
        by_a_server_that_forgot(root)
        before = _files(root)
        for call in (session.space.log.settle, session.space.checkpoint):
            with pytest.raises(ResourceFailed, match=r"owns it no more|fenced"):
                call()
    session.close()
    assert _files(root) == before


def test_what_was_consumed_is_left_to_the_other_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup.Clear, "wake", lambda self: None)
    session = attach(root, sync="FSYNC", watch=False)
    with xaqueue.connect(root) as connection:
        for number in range(5):
            connection.enqueue("orders", b"%d" % number)
        connection.commit()
        session.reserve("orders", "stream", 0, 5)
        session.consume("orders", "stream", 5)
        by_a_server_that_forgot(root)
        before = _files(root)
        with pytest.raises(ResourceFailed, match="owns it no more"):
            cleanup.clear(session.space)
    session.close()
    assert _files(root) == before


def _files(root: Path) -> list[str]:
    """Those that a step makes or takes, and the journal as it was."""
    return sorted(
        f"{path} {path.read_bytes() if path.parent.name == layout.JOURNAL else b''!r}"
        for path in root.rglob("*")
        if path.is_file()
    )


def test_who_only_waits_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xaqueue.core.owner.threads.WATCH_S", 0.05)
    connection = xaqueue.connect(root)
    threading.Timer(0.3, by_a_server_that_forgot, [root]).start()
    with pytest.raises(ResourceFailed, match="owns it no more"):
        connection.dequeue("orders", wait_s=60)
    with suppress(ResourceFailed):
        connection.close()


def test_nobody_writes_the_owner_file_of_another_one(root: Path) -> None:
    session = attach(root, watch=False)
    by_a_server_that_forgot(root)
    with pytest.raises(ResourceFailed, match="names another owner"):
        attach_room.announce(root, "xaq+unix:///run/x.sock")
    session.close()
    assert b'"epoch": 9' in (root / "owner").read_bytes()


# Decision logs


@pytest.mark.parametrize("lose", [by_a_lost_file, by_a_server_that_forgot])
def test_a_decision_log_that_was_taken_over_decides_nothing(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    owned = open_log(tmp_path / "tm")
    owned.decide(b"one", ["queue"])
    lose(tmp_path / "tm")
    with caplog.at_level(logging.CRITICAL, "xaqueue"):
        for name in (b"two", b"three"):
            with pytest.raises(DecisionLogError, match="owns the decision log no more"):
                owned.decide(name, ["queue"])
    assert len(caplog.records) == 1
    owned.close()


class _SlowFileSystem(DirectoryFileSystem):
    """A rename takes until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_there, self.let_go = threading.Event(), threading.Event()

    def rename(self, source: str, target: str) -> None:
        self.is_there.set()
        assert self.let_go.wait(60)
        super().rename(source, target)


@pytest.mark.parametrize("hangs", [False, True])
def test_the_directory_is_nobody_elses_before_the_last_word_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Whoever tells of a fence, as the owner closes, would else replace what the next one has written."""
    monkeypatch.setattr(owner_file, "RELEASE_S", 0.05 if hangs else 60)
    lock, fs = owner_file.OwnerFile(root), _SlowFileSystem(root)
    assert lock.acquire()
    tells = threading.Thread(target=lock.write, args=(fs, b"last"))
    tells.start()
    assert fs.is_there.wait(60)
    closes = threading.Thread(target=lock.release)
    closes.start()
    while not lock._ended:
        time.sleep(0.001)
    time.sleep(0.05)
    if hangs:
        closes.join(60)
        assert not closes.is_alive()
    assert owner_file.is_owned(root)
    fs.let_go.set()
    for thread in (tells, closes):
        thread.join(60)
    assert not owner_file.is_owned(root)
    assert owner_file.read_owner_file(root) == b"last"


def test_who_looks_for_long_releases_what_the_closing_one_could_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_file, "RELEASE_S", 0.05)
    lock = owner_file.OwnerFile(root)
    assert lock.acquire()
    lock.write(DirectoryFileSystem(root), b"owner")
    is_there, let_go = threading.Event(), threading.Event()

    def look() -> str:
        is_there.set()
        assert let_go.wait(60)
        return ""

    monkeypatch.setattr(lock, "_lost", look)
    (root / "owner").touch()
    looks = threading.Thread(target=lock.lost)
    looks.start()
    assert is_there.wait(60)
    lock.release()
    assert owner_file.is_owned(root)
    let_go.set()
    looks.join(60)
    assert not owner_file.is_owned(root)
