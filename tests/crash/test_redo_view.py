"""Whoever looks without owning is told what is in doubt: at every call of the owner, beside it and after its kill."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue.core.model import layout
from xaqueue.core.owner import open
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.features.opening import create
from xaqueue.offline import findings
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.inspect import depths_in, queue_list, status
from xaqueue.offline.inspect_branches import in_doubt
from xaqueue.offline.redo_view import look_into
from xaqueue.xid import Xid

CALLS = (
    "create write_at write_synced set_modified_ns rename unlink make_dir remove_dir "
    "sync_file sync_data sync_dir sync_all"
)
"""Those between which a directory differs, and those that take long."""
LARGE = b"x" * 30_000
"""Too large for a record of a journal of the smallest segments: it has the names only."""


class Derived(DirectoryFileSystem):
    """Each of its calls is made by its name."""


class Paused:
    """A file system that lets somebody look before each of its calls, while nobody else makes one."""

    def __init__(self) -> None:
        self.look: Callable[[], None] = lambda: None
        self.calls = 0
        self.wrong: list[str] = []
        self._alone = threading.RLock()
        self._looking = False

    def of(self, fs: DirectoryFileSystem) -> DirectoryFileSystem:
        for name in CALLS.split():
            setattr(fs, name, self._paused(getattr(fs, name)))
        return fs

    def _paused(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*arguments: Any) -> Any:
            with self._alone:
                self.calls += 1
                self.at()
                return call(*arguments)

        return paused

    def at(self) -> None:
        with self._alone:
            if self._looking:
                return
            self._looking = True
            try:
                self.look()
            except Exception as wrong:  # it must not pass for a failing disk
                self.wrong.append(f"call {self.calls}: {wrong!r}")
            finally:
                self._looking = False


class Story:
    """Branches of every shape, prepared and decided, and who may be in doubt at any moment."""

    def __init__(self, root: Path, paused: Paused, *, journalled: bool) -> None:
        self.root = root
        self.journalled = journalled
        self.paused = paused
        self.open: set[Xid] = set()
        """Prepared, and nobody has begun to decide it."""
        self.moving: set[Xid] = set()

    def run(self) -> None:
        bodies = {"several": [b"1", b"22", b"333"]}
        if self.journalled:
            bodies |= {"one": [b"1"], "large": [LARGE, b"1", LARGE], "alone": [LARGE]}
        with xaqueue.connect(self.root) as connection:
            self.paused.look = self._look
            for (name, added), held, commits in itertools.product(bodies.items(), (False, True), (True, False)):
                self._branch(connection, f"{name}{held}{commits}", added, held=held, commits=commits)
            self._branch(connection, "takes", [], held=True, commits=True)
            connection.enqueue("orders", b"one phase")
            connection.enqueue("orders", LARGE)
            connection.commit()
            self.paused.look = lambda: None

    def _branch(self, connection: Any, name: str, added: list[bytes], *, held: bool, commits: bool) -> None:
        if held:
            connection.enqueue("orders", b"to be held")
            connection.commit()
        xid = Xid(7, name.encode(), b"b")
        connection.tpc_begin(xid)
        for body in added:
            connection.enqueue("replies", body)
        if held:
            assert connection.dequeue("orders") is not None
        self.moving = {xid}
        connection.tpc_prepare()
        self.open, self.moving = {xid}, set()
        self.paused.at()
        self.open, self.moving = set(), {xid}
        (connection.tpc_commit if commits else connection.tpc_rollback)()
        self.moving = set()
        self.paused.at()

    def _look(self) -> None:
        raise NotImplementedError

    def expect(self, root: Path) -> None:
        told = {branch.xid for branch in in_doubt(root) if branch.state == "in doubt"}
        assert self.open <= told <= self.open | self.moving
        assert all(not branch.damage for branch in in_doubt(root))
        found = status(root)
        assert found.in_doubt == len(told)
        assert found.damaged == 0


class Beside(Story):
    def _look(self) -> None:
        self.expect(self.root)
        assert [f for f in check(self.root) if f.severity is not Severity.NOTE] == []


class Killed(Story):
    def _look(self) -> None:
        copy = self.root.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        self.paused.calls += 1
        shutil.copytree(self.root, copy)
        self.expect(copy)
        for finding in check(copy):
            assert finding.severity is not Severity.DAMAGE
            for xid in self.open:
                assert str(xid) not in finding.path or "too: the later state wins" in finding.problem
        seen = contents(copy)
        xaqueue.connect(copy).close()
        assert status(copy).journal is None or contents(copy) == seen, "the next open finds something else"


def contents(root: Path) -> tuple[Any, ...]:
    """What somebody who looks is told."""
    branches = {branch.xid: (branch.state, branch.added, branch.held) for branch in in_doubt(root)}
    return branches, [(queue.name, queue.depth) for queue in queue_list(root)]


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Paused:
    found = Paused()
    monkeypatch.setattr(open, "DirectoryFileSystem", lambda *a, **k: found.of(Derived(*a, **k)))
    monkeypatch.setattr(findings, "SECOND_LOOK_S", 0)
    return found


@pytest.mark.parametrize("level", ["JOURNAL", "FSYNC;DSYNC", "NONE"])
@pytest.mark.parametrize("story", [Beside, Killed])
def test_no_prepared_branch_is_denied_at_any_call(story: type[Story], level: str, memory: Path, paused: Paused) -> None:
    root = memory / f"{story.__name__} {level}" / "space"
    create(root, sync=level, any_queue=True)
    if level == "JOURNAL":
        small = f'[default]\n[space]\nsync = "JOURNAL"\njournal_segment_bytes = {SMALLEST_SEGMENT_BYTES}\n'
        write_definitions(root, small)
    story(root, paused, journalled=level == "JOURNAL").run()
    assert paused.wrong == []
    assert paused.calls > 100


def test_an_owner_that_works_is_never_taken_for_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes, uses segments again and makes checkpoints while somebody looks, as fast as both can."""
    monkeypatch.setattr(findings, "SECOND_LOOK_S", 0.05)
    root = tmp_path / "space"
    create(root, any_queue=True)
    small = f'[default]\n[space]\nsync = "JOURNAL"\njournal_segment_bytes = {SMALLEST_SEGMENT_BYTES}\n'
    write_definitions(root, small)
    stays = Xid(7, b"stays", b"b")
    ended = threading.Event()

    def work() -> None:
        with xaqueue.connect(root) as connection:
            while not ended.is_set():
                connection.tpc_begin(connection.xid(7, "moves", "b"))
                for _ in range(20):
                    connection.enqueue("replies", b"x" * 500)
                connection.tpc_prepare()
                connection.tpc_commit()
                for _ in range(20):
                    connection.dequeue("replies")
                connection.commit()

    with xaqueue.connect(root) as connection:
        worker = threading.Thread(target=work)
        worker.start()
        try:
            connection.tpc_begin(stays)
            connection.enqueue("orders", b"1")
            connection.tpc_prepare()
            for _ in range(30):
                told = [branch for branch in in_doubt(root) if branch.xid == stays]
                assert [(branch.state, branch.damage) for branch in told] == [("in doubt", [])]
                assert depths_in(look_into(root).fs, ["orders"]) == {"orders": 0}
            assert [f for f in check(root) if f.severity is Severity.DAMAGE] == []
        finally:
            ended.set()
            worker.join()
            connection.tpc_commit()
    assert not list((root / layout.QUARANTINE).iterdir())
