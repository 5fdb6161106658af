"""A call that hangs in the kernel fences the space: whoever waits is told, and who hangs is told when it returns."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.bare_space import DURABLE, BareSpace
from support.journal_of import rounds_of
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.owner import record, threads
from xaqueue.core.owner.open import announce
from xaqueue.core.owner.threads import Watchdog
from xaqueue.core.storage import layers
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.errors import ResourceFailed
from xaqueue.features.opening import attach, open_space
from xaqueue.xid import Xid

PATIENCE_S = 30.0
SHORT_S = 0.05
LEVELS = [DURABLE, "JOURNAL"]


# What is on its way


CALLS: list[tuple[str, tuple[Any, ...], str]] = [
    ("write_at", ("a", 0, [b"x"]), "the write of a"),
    ("rename", ("a", "b"), "the rename of b"),
    ("unlink", ("a",), "the unlink of a"),
    ("sync_file", ("a",), "the sync of a"),
    ("sync_data", ("a",), "the sync of a"),
    ("sync_dir", ("a",), "the sync of a"),
    ("sync_all", (), "the sync of the whole file system"),
]


@pytest.mark.parametrize(("call", "arguments", "told"), CALLS)
@pytest.mark.parametrize("end", [None, OSError, KeyboardInterrupt])
def test_a_call_is_seen_as_long_as_it_takes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    arguments: tuple[Any, ...],
    told: str,
    end: type[BaseException] | None,
) -> None:
    class Derived(DirectoryFileSystem):
        """Whose calls are seen each; of the others see test_noted.py."""

    now_s = [100.0]
    monkeypatch.setattr(layers, "monotonic", lambda: now_s[0])
    behind = Derived(tmp_path)
    files = OwnerFileSystem(behind)
    seen: list[str] = []

    def slowly(*given: object) -> None:
        assert given == arguments
        seen.append(files.slow(2.0))
        now_s[0] += 2.5
        seen.append(files.slow(3.0))
        seen.append(files.slow(2.0))
        if end is not None:
            raise end

    monkeypatch.setattr(behind, call, slowly)
    if end is None:
        getattr(files, call)(*arguments)
    else:
        with pytest.raises(end):
            getattr(files, call)(*arguments)
    assert seen == ["", "", f"{told} has taken 2.5 s"]
    assert files.running == {}
    assert files.slow(0.0) == ""


def test_of_several_calls_the_longest_is_told(tmp_path: Path) -> None:
    files = OwnerFileSystem(DirectoryFileSystem(tmp_path))
    files.running.update({1: (20.0, "sync", "second"), 2: (10.0, "sync", "first"), 3: (30.0, "sync", "third")})
    assert files.slow(0.0).startswith("the sync of first has taken ")


def test_it_is_the_port(tmp_path: Path) -> None:
    fs = OwnerFileSystem(DirectoryFileSystem(tmp_path))
    fs.make_dir("directory")
    fs.create("directory/a", [b"abc"])
    fs.sync_file("directory/a")
    fs.rename("directory/a", "directory/b")
    fs.write_at("directory/b", 1, [b"x"])
    fs.sync_data("directory/b")
    fs.set_modified_ns("directory/b", 10**18)
    fs.hold_dir("directory")
    fs.sync_dir("directory")
    fs.sync_all()
    assert (fs.read("directory/b"), fs.size("directory/b"), fs.modified_ns("directory/b")) == (b"axc", 3, 10**18)
    assert (fs.list(""), fs.is_dir("directory"), fs.exists("directory/a")) == (["directory"], True, False)
    assert fs.room().free_bytes > 0
    fs.unlink("directory/b")
    fs.remove_dir("directory")
    fs.close()
    assert list(tmp_path.iterdir()) == []


# A space with a watchdog


class Hang:
    """A call of the port that hangs from its nth time on, each time until ``release``."""

    def __init__(self, fs: DirectoryFileSystem, call: str, path: str, after: int = 0) -> None:
        self._real = getattr(fs, call)
        self._path = path
        self._after = after
        self._gate = threading.Event()
        self.reached = threading.Event()
        setattr(fs, call, self)

    def __call__(self, *arguments: Any) -> None:
        if not arguments or str(arguments[-1 if len(arguments) == 2 else 0]).startswith(self._path):
            self._after -= 1
            if self._after < 0:
                self.reached.set()
                assert self._gate.wait(PATIENCE_S)
        self._real(*arguments)

    def release(self) -> None:
        self._gate.set()


class WatchedSpace(BareSpace):
    """What hangs in it for a moment is noticed; ``told``: what the watchdog said."""

    def _open(self) -> Space:
        self.told: list[str] = []
        self.heard = threading.Event()
        files = OwnerFileSystem(self.fs)
        definitions = replace(self.definitions, io_deadline_s=PATIENCE_S)
        space = open_space(files, definitions, hardening=Hardening.parse(self.sync))
        self.watchdog = Watchdog(space, files, self._hear)
        return space

    def _hear(self, told: str) -> None:
        self.told.append(told)
        self.heard.set()

    def lose_patience(self) -> None:
        """What is on its way now takes too long; before, nothing did."""
        assert self.told == []
        self.space.definitions = replace(self.definitions, io_deadline_s=SHORT_S)  # whoever holds the lock

    def crash(self) -> None:
        self.watchdog.stop()
        super().crash()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WATCH_S", SHORT_S)


@pytest.fixture(params=LEVELS)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WatchedSpace]:
    opened = WatchedSpace(tmp_path / "space", request.param)
    yield opened
    opened.crash()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(12) as threads:
        yield threads


def hanging(bare: WatchedSpace, after: int = 0) -> Hang:
    """The sync that makes a prepare durable."""
    if bare.sync == "JOURNAL":
        return Hang(bare.fs, "sync_data", "journal/", after)
    return Hang(bare.fs, "sync_dir", "prepared", after)


def prepare(bare: BareSpace, name: str) -> None:
    bare.prepare(name, add=[("orders", name.encode())])


def check_told(future: Future[Any]) -> None:
    with pytest.raises(ResourceFailed, match=r"has taken [\d.]+ s, and io_deadline_s is 0.05"):
        future.result(PATIENCE_S)


def gathered(bare: BareSpace, steps: int) -> None:
    """Returns once so many steps wait for the next round."""
    waiting = threading.Event()
    while len(rounds_of(bare.space)._gathering) < steps:
        waiting.wait(0.001)


def reason_told(bare: WatchedSpace) -> str:
    """Why the space is fenced: told once, by a thread of its own, which may come a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while not bare.told and time.monotonic() < deadline:
        time.sleep(0.001)
    (told,) = bare.told
    return told


def test_those_who_wait_are_told_while_their_leader_hangs(bare: WatchedSpace, pool: ThreadPoolExecutor) -> None:
    bare.put("orders", b"acknowledged")
    hang = hanging(bare)
    leader = pool.submit(prepare, bare, "leader")
    assert hang.reached.wait(PATIENCE_S)
    waiting = [pool.submit(prepare, bare, f"{number}") for number in range(4)]
    gathered(bare, 4)
    bare.lose_patience()
    for future in waiting:
        check_told(future)
    assert not leader.done()
    with closing(bare.connect()) as connection:
        for verb in (connection.tpc_recover, lambda: connection.enqueue("orders", b"x")):
            with pytest.raises(ResourceFailed, match="has taken"):
                verb()
    hang.release()
    check_told(leader)
    assert "has taken" in reason_told(bare)
    bare.reopen()
    with closing(bare.connect()) as connection:
        for xid in connection.tpc_recover():
            connection.tpc_rollback(xid)
    assert bare.take("orders") == [b"acknowledged"]


def test_those_in_the_round_that_hangs_are_told_too(bare: WatchedSpace, pool: ThreadPoolExecutor) -> None:
    first, second = hanging(bare), hanging(bare, after=1)
    first_step = pool.submit(prepare, bare, "leader")
    assert first.reached.wait(PATIENCE_S)
    waiting = [pool.submit(prepare, bare, f"{number}") for number in range(4)]
    gathered(bare, 4)
    first.release()
    assert second.reached.wait(PATIENCE_S)
    bare.lose_patience()
    for future in waiting:
        check_told(future)
    assert not first_step.done()
    second.release()
    first_step.result(PATIENCE_S)
    bare.reopen()
    assert b"leader" in {xid.gtrid for xid in bare.in_doubt()}


def test_what_returns_too_late_is_not_published(bare: WatchedSpace, pool: ThreadPoolExecutor) -> None:
    """Those who waited for it were told that it is uncertain."""
    hang = hanging(bare)
    leader = pool.submit(prepare, bare, "late")
    assert hang.reached.wait(PATIENCE_S)
    bare.lose_patience()
    assert bare.heard.wait(PATIENCE_S)
    hang.release()
    check_told(leader)
    assert [branch.prepared_at for branch in bare.space.branches.values()] == [0]


def test_who_waits_for_a_branch_or_a_message_is_told(bare: WatchedSpace, pool: ThreadPoolExecutor) -> None:
    hang = hanging(bare)
    leader = pool.submit(prepare, bare, "busy")
    assert hang.reached.wait(PATIENCE_S)

    def roll_back() -> None:
        with closing(bare.connect()) as connection:
            connection.tpc_rollback(Xid(1, b"busy", b"b"))

    def wait_for_a_message() -> None:
        with closing(bare.connect()) as connection:
            connection.dequeue("orders", wait_s=PATIENCE_S)

    waiting = [pool.submit(roll_back), pool.submit(wait_for_a_message)]
    bare.lose_patience()
    for future in waiting:
        check_told(future)
    hang.release()
    check_told(leader)


def test_a_rename_that_hangs_fences_though_it_holds_the_lock(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    bare = WatchedSpace(tmp_path / "space", DURABLE)
    hang = Hang(bare.fs, "rename", "prepared/")
    leader = pool.submit(prepare, bare, "hangs")
    assert hang.reached.wait(PATIENCE_S)
    other = pool.submit(bare.in_doubt)
    bare.lose_patience()
    assert bare.heard.wait(PATIENCE_S)
    assert "the rename of prepared/" in reason_told(bare)
    hang.release()
    check_told(leader)
    check_told(other)
    bare.crash()


def test_a_checkpoint_that_hangs_fences(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    bare = WatchedSpace(tmp_path / "space", "JOURNAL")
    bare.put("orders", b"acknowledged")
    hang = Hang(bare.fs, "sync_all", "")
    checkpoint = pool.submit(bare.space.checkpoint)
    assert hang.reached.wait(PATIENCE_S)
    bare.lose_patience()
    assert bare.heard.wait(PATIENCE_S)
    with (
        pytest.raises(ResourceFailed, match="the sync of the whole file system"),
        closing(bare.connect()) as connection,
    ):
        connection.enqueue("orders", b"x")
    hang.release()
    check_told(checkpoint)
    bare.reopen()
    assert bare.take("orders") == [b"acknowledged"]
    bare.crash()


def test_a_slow_sync_that_returns_in_time_is_no_failure(bare: WatchedSpace, pool: ThreadPoolExecutor) -> None:
    hang = hanging(bare)
    leader = pool.submit(prepare, bare, "slow")
    assert hang.reached.wait(PATIENCE_S)
    waiting = pool.submit(prepare, bare, "waiting")
    gathered(bare, 1)
    hang.release()
    leader.result(PATIENCE_S)
    waiting.result(PATIENCE_S)
    assert {xid.gtrid for xid in bare.in_doubt()} == {b"slow", b"waiting"}
    assert bare.told == []


def test_it_stops_with_the_space(bare: WatchedSpace) -> None:
    bare.watchdog.stop()
    bare.watchdog._thread.join(PATIENCE_S)
    assert not bare.watchdog._thread.is_alive()
    bare.space.close()
    assert bare.told == []


def test_a_fence_of_any_kind_is_told(bare: WatchedSpace) -> None:
    bare.fs.faults["sync_data", ""] = errno.EIO
    with pytest.raises(ResourceFailed):
        bare.put("orders", b"first")
    assert bare.heard.wait(PATIENCE_S)
    assert "Input/output error" in reason_told(bare)


# Through the process that owns a space


def test_a_space_that_closes_well_had_no_trouble(tmp_path: Path) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        connection.enqueue("orders", b"first")
        connection.commit()
    owner = record.read_owner(root)
    assert owner is not None
    assert owner.trouble == ""
    assert "trouble" in json.loads((root / layout.OWNER).read_bytes())


def test_a_fenced_server_stands_where_it_stood(tmp_path: Path) -> None:
    """Whoever is led to it hears why it is over, and waits for it to come back."""
    root = tmp_path / "space"
    session = attach(root, create_missing=True, watch=False)
    announce(root, "xaq://elsewhere:1", awaited=True)
    session.space.fence(OSError(errno.EIO, "Input/output error"))
    deadline = time.monotonic() + PATIENCE_S
    while not (owner := record.read_owner(root)) or not owner.trouble:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert (owner.endpoint, owner.awaited) == ("xaq://elsewhere:1", True)
    with suppress(ResourceFailed):
        session.close()
