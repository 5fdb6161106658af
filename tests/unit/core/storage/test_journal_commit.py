"""With a journal a round is one write: what it recorded is published, and what it could not record is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EIO, ENOSPC
from functools import partial

import pytest

from support.forgetful import ForgetfulFileSystem
from support.group_commit_scene import CountingSyncs, Scene, told, watched
from xaqueue.core.storage.group_commit import GroupCommit, JournalCommit
from xaqueue.core.storage.hardening import JOURNAL, Hardening
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.journal_format import Entry
from xaqueue.errors import ResourceFailed, RetryLater, RolledBack


class NotedJournal(Journal):
    """Notes which entries were hardened. ``failures``: what its next writes end with."""

    def __init__(self, at_a_time: int = 1000) -> None:
        self.files = ForgetfulFileSystem()
        super().__init__(self.files, segment_bytes=64 * 1024)
        self.start()
        self.syncing = CountingSyncs()
        self.at_a_time = at_a_time
        self.hardened: list[str] = []
        self.writes: list[int] = []
        self.failures: list[int] = []

    def write(self, entries: Sequence[Entry], syncing: Callable[[int], None] | None = None) -> int:
        if self.failures and (failure := self.failures.pop(0)):
            raise OSError(failure, os.strerror(failure), "journal")
        written = super().write(entries[: self.at_a_time], syncing)
        names = [entry.meta.decode() for entry in entries[:written]]
        for name in names:
            self.syncing.pass_by(name)
        self.hardened += names
        self.writes.append(written)
        return written


class JournalScene(Scene):
    """A scene that records: ``applied`` are its plans."""

    held = "leader"

    def __init__(self, journal: NotedJournal) -> None:
        self.journal = journal
        self.relieved: list[int] = []
        super().__init__(JOURNAL)
        journal.syncing = self.fs

    def _log(self, hardening: Hardening) -> GroupCommit:
        return JournalCommit(self.lock, self.journal, self.owner, relieve=self.relieved.append)

    def perform(self, name: str, target: str = "committed", source: str = "prepared") -> None:
        self.record(name)

    def record(self, name: str, entry: Callable[[], Entry | None] | None = None) -> None:
        def plan() -> Entry | None:
            assert self.lock.locked(), name
            self.applied.append(name)
            return entry() if entry is not None else Entry(1, name.encode())

        def publish() -> None:
            assert entry is not None or name in self.journal.hardened, f"{name} was published before it was hardened"
            self.publish(name)

        self.log.perform(plan, publish)

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


def test_a_step_is_planned_recorded_hardened_and_published(scene: JournalScene) -> None:
    scene.record("a")
    assert scene.applied == scene.journal.hardened == scene.published == ["a"]


def test_a_round_is_one_write_and_one_sync(scene: JournalScene, pool: ThreadPoolExecutor) -> None:
    before = scene.journal.syncs
    waits = scene.behind_a_leader(pool, scene.recording("abcdefgh"))
    scene.go_on()
    assert told(waits) == [None] * 9
    assert (scene.journal.writes, scene.journal.syncs - before) == ([1, 8], 2)
    assert scene.applied == scene.journal.hardened == scene.published == ["leader", *"abcdefgh"]
    assert (scene.log.rounds, scene.log.steps) == (2, 9)


def test_steps_with_and_without_entries_share_a_round(scene: JournalScene, pool: ThreadPoolExecutor) -> None:
    """All are published in their order, behind the sync of those that have one."""
    steps = [*scene.recording("a"), lambda: scene.record("b", lambda: None), *scene.recording("c")]
    waits = scene.behind_a_leader(pool, steps)
    scene.go_on()
    assert told(waits) == [None] * 4
    assert scene.journal.writes == [1, 2]
    assert scene.applied == scene.published == ["leader", "a", "b", "c"]


def test_what_needs_no_record_costs_no_write(scene: JournalScene) -> None:
    scene.record("a", lambda: None)
    assert (scene.journal.writes, scene.published) == ([], ["a"])


def journal_commit(scene: JournalScene) -> JournalCommit:
    assert isinstance(scene.log, JournalCommit)
    return scene.log


def defer(scene: JournalScene, *names: str) -> None:
    for name in names:
        journal_commit(scene).perform_late(partial(Entry, 1, name.encode()), partial(scene.publish, name))


def test_what_rides_is_published_at_once_and_recorded_before_the_next_round(scene: JournalScene) -> None:
    before = scene.journal.syncs
    defer(scene, "a", "b")
    assert (scene.published, scene.journal.hardened, scene.journal.syncs) == (["a", "b"], [], before)
    scene.record("c")
    assert scene.published == scene.journal.hardened == ["a", "b", "c"]
    assert (scene.journal.writes, scene.journal.syncs) == ([3], before + 1)
    journal_commit(scene).harden_late()
    assert scene.journal.syncs == before + 1, "nothing is deferred any more"
    defer(scene, "d")
    journal_commit(scene).harden_late()
    assert scene.journal.hardened == list("abcd")


def test_what_comes_to_ride_while_a_round_is_made_waits_for_the_next(
    scene: JournalScene, pool: ThreadPoolExecutor
) -> None:
    """Who hardens it waits for that round, too: what it took along is not on disk yet."""
    waits = scene.behind_a_leader(pool, [])
    defer(scene, "a")
    assert scene.published == ["a"], "it waits for nobody"
    waits.append(pool.submit(journal_commit(scene).harden_late))
    scene.go_on()
    assert told(waits) == [None] * 2
    assert scene.journal.hardened == ["leader", "a"]


def test_what_rides_and_finds_no_room_rides_on_and_whoever_builds_on_it_is_refused(scene: JournalScene) -> None:
    defer(scene, "a", "b")
    scene.journal.failures = [ENOSPC, ENOSPC]
    with pytest.raises(RetryLater):
        scene.record("c")
    scene.journal.failures = [ENOSPC, ENOSPC]
    with pytest.raises(RetryLater):
        journal_commit(scene).harden_late()
    assert scene.journal.hardened == []
    scene.record("d")
    assert scene.journal.hardened == ["a", "b", "d"]
    assert scene.published == ["a", "b", "d"]


def test_of_what_rides_a_part_may_find_room(scene: JournalScene) -> None:
    scene.journal.at_a_time = 1
    defer(scene, "a", "b", "c")
    scene.journal.failures = [0, ENOSPC, ENOSPC]
    with pytest.raises(RetryLater):
        scene.record("d")
    assert scene.journal.hardened == ["a"]
    scene.journal.failures = [0, ENOSPC, ENOSPC]
    with pytest.raises(RetryLater):
        journal_commit(scene).harden_late()
    assert scene.journal.hardened == ["a", "b"]
    journal_commit(scene).harden_late()
    assert scene.journal.hardened == ["a", "b", "c"]


def test_who_hardens_is_told_that_the_round_under_way_found_no_room(
    scene: JournalScene, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = scene.behind_a_leader(pool, [])
    defer(scene, "a")
    scene.journal.failures = [ENOSPC] * 4
    waits += [pool.submit(scene.record, "b"), pool.submit(journal_commit(scene).harden_late)]
    for _ in waits[1:]:
        scene.asleep.get(timeout=30)
    scene.go_on()
    assert [type(wait.exception()) for wait in waits] == [type(None), RetryLater, RetryLater]
    assert len(journal_commit(scene).deferred) == 1


def test_what_rides_is_lost_with_the_log(scene: JournalScene) -> None:
    """Its publication is undone by the next opening."""
    defer(scene, "a")
    scene.journal.failures = [EIO]
    with pytest.raises(ResourceFailed):
        scene.record("b")
    with pytest.raises(ResourceFailed):
        defer(scene, "c")
    with pytest.raises(ResourceFailed):
        journal_commit(scene).harden_late()
    assert scene.journal.hardened == []


def test_the_lock_is_not_held_while_the_journal_syncs(scene: JournalScene, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    sync_data = scene.journal.files.sync_data

    def look(path: str) -> None:
        looked.append(scene.lock.locked() or scene.log._mutex.locked())
        sync_data(path)

    monkeypatch.setattr(scene.journal.files, "sync_data", look)
    scene.record("a")
    assert looked == [False]


def test_those_of_the_last_round_are_awake_while_the_next_one_syncs(
    scene: JournalScene, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They work while the disk does."""
    scene.fs.gate("second")
    sync_data, over = scene.journal.files.sync_data, []

    def sync(path: str) -> None:
        if "second" in scene.applied:
            over.append(told(waits[1:2]))
        sync_data(path)

    waits = scene.behind_a_leader(pool, scene.recording("a"))
    scene.fs.gate("a")
    scene.go_on()
    assert scene.fs.reached["a"].wait(30)
    waits.append(pool.submit(scene.record, "second"))
    scene.asleep.get(timeout=30)
    monkeypatch.setattr(scene.journal.files, "sync_data", sync)
    scene.fs.gates["a"].set()
    assert scene.fs.reached["second"].wait(30)
    scene.fs.gates["second"].set()
    assert told(waits) == [None] * 3
    assert over == [[None]]


def test_an_error_of_a_plan_concerns_its_step_alone(scene: JournalScene, pool: ThreadPoolExecutor) -> None:
    def refused() -> Entry:
        raise RolledBack("no number for it")

    waits = scene.behind_a_leader(
        pool, [*scene.recording("a"), lambda: scene.record("b", refused), *scene.recording("c")]
    )
    scene.go_on()
    assert told(waits) == [None, None, RolledBack, None]
    assert scene.journal.hardened == scene.published == ["leader", "a", "c"]


@pytest.mark.parametrize("failure", [EIO, 0], ids=["write", "plan"])
def test_a_failure_of_the_journal_fences(scene: JournalScene, failure: int) -> None:
    def broken() -> Entry:
        raise OSError(EIO, "Input/output error")

    scene.journal.failures = [failure] if failure else []
    with pytest.raises(ResourceFailed, match="Input/output error"):
        scene.record("a", None if failure else broken)
    with pytest.raises(ResourceFailed, match="Input/output error"):
        scene.record("b")
    assert (scene.journal.hardened, scene.applied, scene.published) == ([], ["a"], [])
    assert scene.relieved == []


def test_a_failure_of_the_journal_reaches_everybody_in_the_round(scene: JournalScene, pool: ThreadPoolExecutor) -> None:
    waits = scene.behind_a_leader(pool, scene.recording("abc"))
    scene.journal.failures = [EIO]
    scene.go_on()
    assert told(waits) == [None] + [ResourceFailed] * 3
    assert scene.journal.hardened == scene.published == ["leader"]


def test_a_full_journal_is_relieved_once_and_goes_on(scene: JournalScene) -> None:
    scene.record("a")
    begin = scene.journal.position
    scene.journal.failures = [ENOSPC]
    scene.record("b")
    assert scene.relieved == [begin]
    assert scene.published == ["a", "b"]


def test_what_has_no_room_in_the_journal_fails_alone_and_is_not_published(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(scene := JournalScene(NotedJournal(at_a_time=2)), monkeypatch):
        waits = scene.behind_a_leader(pool, scene.recording("abcd"))
        begin = scene.journal.position
        scene.journal.failures = [0, ENOSPC, ENOSPC]
        scene.go_on()
        assert told(waits) == [None, None, None, RetryLater, RetryLater]
        assert scene.journal.hardened == scene.published == ["leader", "a", "b"]
        assert scene.relieved == [begin], "what of this round was written is not published yet"
        scene.record("c")
        assert scene.published[-1] == "c"
