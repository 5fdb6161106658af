"""With a journal a round is one write: what is recorded is applied after it, and what could not be recorded is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EIO, ENOSPC

import pytest

from support.barrier_scene import Scene, told, watched
from xaqueue.errors import ResourceFailed, RetryLater, RolledBack
from xaqueue.storage.group_commit import Touched
from xaqueue.storage.hardening import Hardening
from xaqueue.storage.journal import Journal
from xaqueue.storage.journal_format import Entry
from xaqueue.tools.torture.forgetful import ForgetfulFileSystem


class NotedJournal(Journal):
    """Notes which entries were hardened. ``failures``: what its next writes end with."""

    def __init__(self, at_a_time: int = 1000) -> None:
        self.files = ForgetfulFileSystem()
        super().__init__(self.files, segment_bytes=64 * 1024)
        self.start()
        self.at_a_time = at_a_time
        self.hardened: list[str] = []
        self.writes: list[int] = []
        self.failures: list[int] = []

    def write(self, entries: Sequence[Entry]) -> int:
        if self.failures and (failure := self.failures.pop(0)):
            raise OSError(failure, os.strerror(failure), "journal")
        written = super().write(entries[: self.at_a_time])
        self.hardened += [entry.meta.decode() for entry in entries[:written]]
        self.writes.append(written)
        return written


class JournalScene(Scene):
    """A scene whose barrier records; ``events`` has everything in its order."""

    def __init__(self, journal: NotedJournal) -> None:
        super().__init__(Hardening.parse("JOURNAL"))
        self.journal = journal
        self.barrier.journal = journal
        self.relieved: list[int] = []
        self.barrier.relieve = self.relieved.append
        self.recorded: list[str] = []

    def record(self, name: str, entry: Callable[[], Entry | None] | None = None) -> None:
        """Performs a step that has an entry."""

        def own_entry() -> Entry:
            assert self.lock.locked(), name
            self.recorded.append(name)
            return Entry(1, name.encode())

        def apply() -> Touched:
            assert self.lock.locked(), name
            assert name in self.journal.hardened, f"{name} was applied before its record was hardened"
            assert name not in self.published
            self.applied.append(name)
            return Touched({"file": None}, {"target": None}, {"source": None})

        self.barrier.perform(apply, entry=entry or own_entry, publish=lambda: self.publish(name))

    def recording(self, names: str) -> list[Callable[[], None]]:
        return [lambda name=name: self.record(name) for name in names]  # type: ignore[misc]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(9) as threads:
        yield threads


@pytest.fixture
def scene(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[JournalScene]:
    scene = JournalScene(NotedJournal())
    with watched(scene, monkeypatch):
        yield scene


def test_a_step_is_recorded_hardened_applied_and_published(scene: JournalScene) -> None:
    scene.record("a")
    assert scene.recorded == scene.journal.hardened == scene.applied == scene.published == ["a"]
    assert scene.fs.synced == [], "its record is its hardening"


def test_a_round_is_one_write_and_one_sync(scene: JournalScene, pool: ThreadPoolExecutor) -> None:
    before = scene.journal.syncs
    waits = scene.behind_a_leader(pool, scene.recording("abcdefgh"))
    scene.go_on()
    assert told(waits) == [None] * 9
    assert (scene.journal.writes, scene.journal.syncs - before) == ([8], 1)
    assert scene.fs.synced == [("dsync", "held")]
    assert scene.journal.hardened == list("abcdefgh")
    assert scene.applied == scene.published == ["leader", *"abcdefgh"]
    assert scene.groups == [1, 9]


def test_steps_with_and_without_entries_share_a_round(scene: JournalScene, pool: ThreadPoolExecutor) -> None:
    """Those without are applied first and synced as ever; all are published in their order."""
    steps = [*scene.recording("a"), *scene.named("b"), *scene.recording("c"), lambda: scene.record("d", lambda: None)]
    scene.journal.hardened.append("d")  # which has no entry this time, as if it was recorded before
    waits = scene.behind_a_leader(pool, steps)
    scene.go_on()
    assert told(waits) == [None] * 5
    assert scene.applied == ["leader", "b", "d", "a", "c"]
    assert scene.published == ["leader", "a", "b", "c", "d"]
    assert scene.fs.paths("dsync") == ["held", "committed", "target", "prepared", "source"]


def test_the_lock_is_not_held_while_the_journal_syncs(scene: JournalScene, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    sync_data = scene.journal.files.sync_data

    def look(path: str) -> None:
        looked.append(scene.lock.locked() or scene.barrier._mutex.locked())
        sync_data(path)

    monkeypatch.setattr(scene.journal.files, "sync_data", look)
    scene.record("a")
    assert looked == [False]


def test_an_error_of_an_entry_concerns_its_step_alone(scene: JournalScene, pool: ThreadPoolExecutor) -> None:
    def refused() -> Entry:
        raise RolledBack("no number for it")

    waits = scene.behind_a_leader(
        pool, [*scene.recording("a"), lambda: scene.record("b", refused), *scene.recording("c")]
    )
    scene.go_on()
    assert told(waits) == [None, None, RolledBack, None]
    assert scene.journal.hardened == ["a", "c"]
    assert scene.published == ["leader", "a", "c"]


@pytest.mark.parametrize("failure", [EIO, 0], ids=["write", "entry"])
def test_a_failure_of_the_journal_fences(scene: JournalScene, failure: int) -> None:
    def broken() -> Entry:
        raise OSError(EIO, "Input/output error")

    scene.journal.failures = [failure] if failure else []
    with pytest.raises(ResourceFailed, match="Input/output error"):
        scene.record("a", None if failure else broken)
    with pytest.raises(ResourceFailed, match="Input/output error"):
        scene.record("b")
    assert (scene.journal.hardened, scene.applied, scene.published) == ([], [], [])
    assert scene.relieved == []


def test_a_full_journal_is_relieved_once_and_goes_on(scene: JournalScene) -> None:
    scene.record("a")
    begin = scene.journal.position
    scene.journal.failures = [ENOSPC]
    scene.record("b")
    assert scene.relieved == [begin]
    assert scene.published == ["a", "b"]


def test_what_has_no_room_in_the_journal_fails_alone_and_is_not_applied(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(scene := JournalScene(NotedJournal(at_a_time=2)), monkeypatch):
        waits = scene.behind_a_leader(pool, scene.recording("abcd"))
        begin = scene.journal.position
        scene.journal.failures = [0, ENOSPC, ENOSPC]
        scene.go_on()
        assert told(waits) == [None, None, None, RetryLater, RetryLater]
        assert scene.journal.hardened == ["a", "b"]
        assert scene.applied == scene.published == ["leader", "a", "b"]
        assert scene.relieved == [begin], "what of this round was written is not applied yet"
        scene.record("c")
        assert scene.published[-1] == "c"
