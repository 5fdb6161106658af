"""Concurrent steps share rounds of syncs, each directory once and in the safe order; a failure ends it for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from errno import EIO

import pytest

from xaqueue.errors import ResourceFailed
from xaqueue.storage.barrier import Barrier, Ticket
from xaqueue.storage.flags import Hardening
from xaqueue.storage.fs import DirectoryFileSystem

DURABLE = Hardening()
NONE = Hardening.parse("NONE")
PATIENCE_S = 30.0


class CountingSyncs(DirectoryFileSystem):
    """Only its syncs are called. Each is counted; one on a path in ``gates`` blocks, one in ``broken`` fails."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.synced: list[tuple[str, str]] = []
        self.gates: dict[str, threading.Event] = {}
        self.reached: dict[str, threading.Event] = {}
        self.broken: set[str] = set()
        self.during: Callable[[str], None] = lambda _: None

    def gate(self, path: str) -> None:
        self.gates[path], self.reached[path] = threading.Event(), threading.Event()

    def paths(self, call: str) -> list[str]:
        return [path for made, path in self.synced if made == call]

    def sync_file(self, path: str) -> None:
        self._synced("fsync", path)

    def sync_data(self, path: str) -> None:
        self._synced("fdatasync", path)

    def sync_dir(self, path: str) -> None:
        self._synced("dsync", path)

    def _synced(self, call: str, path: str) -> None:
        self.synced.append((call, path))
        if path in self.gates:
            self.reached[path].set()
            assert self.gates[path].wait(PATIENCE_S)
        self.during(path)
        if path in self.broken:
            raise OSError(EIO, "Input/output error", path)


class Published:
    """The order in which tickets were published."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.groups: list[int] = []

    def __call__(self, group: Sequence[Ticket]) -> None:
        self.groups.append(len(group))
        for ticket in group:
            if ticket.publish is not None:
                ticket.publish()


@pytest.fixture
def fs() -> CountingSyncs:
    return CountingSyncs()


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def barrier(fs: CountingSyncs, published: Published) -> Barrier:
    return Barrier(fs, DURABLE, published)


def submit(barrier: Barrier, published: Published, name: str, targets: Iterable[str] = ("committed",)) -> Ticket:
    return barrier.submit(targets=targets, sources=("prepared",), publish=lambda: published.names.append(name))


def group_behind_a_leader(
    fs: CountingSyncs, barrier: Barrier, published: Published, pool: ThreadPoolExecutor, names: Iterable[str]
) -> list[Future[None]]:
    """A leader blocked in its round, and waiters who gathered meanwhile; the gate of "held" lets it go on."""
    fs.gate("held")
    leader = barrier.submit(targets=("held",), publish=lambda: published.names.append("leader"))
    waits = [pool.submit(barrier.wait, leader)]
    assert fs.reached["held"].wait(PATIENCE_S)
    tickets = [submit(barrier, published, name) for name in names]
    return waits + [pool.submit(barrier.wait, ticket) for ticket in tickets]


def test_steps_that_gather_while_one_leads_share_one_round(
    fs: CountingSyncs, barrier: Barrier, published: Published
) -> None:
    names = [f"step {number}" for number in range(8)]
    with ThreadPoolExecutor(9) as pool:
        waits = group_behind_a_leader(fs, barrier, published, pool, names)
        assert published.names == []
        fs.gates["held"].set()
        for wait in waits:
            wait.result(PATIENCE_S)
    assert fs.synced == [("dsync", "held"), ("dsync", "committed"), ("dsync", "prepared")]
    assert published.names == ["leader", *names]
    assert published.groups == [1, 8]
    assert (barrier.rounds, barrier.tickets) == (2, 9)


def test_publication_is_in_the_order_of_submission_whoever_waits_first(barrier: Barrier, published: Published) -> None:
    first, second, third = (submit(barrier, published, name) for name in "abc")
    barrier.wait(third)
    assert published.names == ["a", "b", "c"]
    for ticket in (second, first):
        barrier.wait(ticket)
    assert barrier.rounds == 1


def test_nothing_is_published_before_its_syncs(fs: CountingSyncs, barrier: Barrier, published: Published) -> None:
    def look(path: str) -> None:
        assert published.names == [], path

    fs.during = look
    barrier.wait(submit(barrier, published, "a"))
    assert published.names == ["a"]


def test_directories_that_gain_come_before_those_that_lose(fs: CountingSyncs, barrier: Barrier) -> None:
    """Or a crash between the two syncs could lose a block that is on its way."""
    moves = [
        barrier.submit(targets=("prepared",), sources=("active",)),
        barrier.submit(targets=("committed",), sources=("prepared",)),
        barrier.submit(files=("watermark",), targets=("committed",), sources=("prepared",)),
    ]
    for ticket in moves:
        barrier.wait(ticket)
    assert fs.synced == [
        ("fdatasync", "watermark"),
        ("dsync", "committed"),
        ("dsync", "prepared"),
        ("dsync", "active"),
    ]


@pytest.mark.parametrize(
    ("flags", "synced"),
    [
        ("NONE", []),
        ("FSYNC", ["fsync content", "fsync file"]),
        ("FDATASYNC", ["fdatasync content", "fdatasync file"]),
        ("DSYNC", ["dsync target", "dsync source"]),
        ("FSYNC;DSYNC", ["fsync content", "fsync file", "dsync target", "dsync source"]),
        ("FDATASYNC;DSYNC", ["fdatasync content", "fdatasync file", "dsync target", "dsync source"]),
    ],
)
def test_the_flags_choose_the_syncs(fs: CountingSyncs, flags: str, synced: list[str]) -> None:
    barrier = Barrier(fs, Hardening.parse(flags))
    barrier.harden_content(["content"])
    barrier.wait(barrier.submit(files=["file"], targets=["target"], sources=["source"]))
    assert [f"{call} {path}" for call, path in fs.synced] == synced


def test_many_files_are_each_synced_once(fs: CountingSyncs, barrier: Barrier) -> None:
    paths = [f"block {number}" for number in range(100)]
    barrier.harden_content(paths)
    barrier.close()
    assert sorted(fs.paths("fdatasync")) == sorted(paths)


def test_what_needs_no_sync_is_published_at_once(fs: CountingSyncs, published: Published) -> None:
    barrier = Barrier(fs, NONE, published)
    ticket = submit(barrier, published, "a")
    assert (published.names, ticket.done, fs.synced) == (["a"], True, [])
    barrier.wait(ticket)
    assert barrier.rounds == 0


def test_what_needs_no_sync_still_waits_for_what_was_submitted_before_it(
    fs: CountingSyncs, barrier: Barrier, published: Published
) -> None:
    with ThreadPoolExecutor(3) as pool:
        waits = group_behind_a_leader(fs, barrier, published, pool, ["behind"])
        free = barrier.submit(publish=lambda: published.names.append("free"))
        assert not free.done
        waits.append(pool.submit(barrier.wait, free))
        fs.gates["held"].set()
        for wait in waits:
            wait.result(PATIENCE_S)
    assert published.names == ["leader", "behind", "free"]


def test_a_step_that_is_handed_the_lead_before_it_waits(
    fs: CountingSyncs, barrier: Barrier, published: Published
) -> None:
    """The lead may reach a ticket whose thread is still on its way from submit to wait."""
    late: list[Ticket] = []
    fs.during = lambda path: late.append(submit(barrier, published, "late")) if path == "first" else None
    barrier.wait(barrier.submit(targets=("first",)))
    assert late[0].lead
    barrier.wait(late[0])
    assert published.names == ["late"]


def test_a_failure_reaches_a_step_that_was_handed_the_lead_before_it_waits(
    fs: CountingSyncs, barrier: Barrier, published: Published
) -> None:
    late: list[Ticket] = []
    fs.during = lambda path: late.append(submit(barrier, published, "late")) if path == "first" else None
    barrier.wait(barrier.submit(targets=("first",)))
    barrier.fail(OSError(EIO, "elsewhere"))
    with pytest.raises(ResourceFailed, match="elsewhere"):
        barrier.wait(late[0])
    assert published.names == []


def test_a_failed_sync_fences_and_wakes_everybody(fs: CountingSyncs, barrier: Barrier, published: Published) -> None:
    """Crash rule 8: nothing is acknowledged any more, and no sync is tried twice."""
    with ThreadPoolExecutor(9) as pool:
        waits = group_behind_a_leader(fs, barrier, published, pool, [str(number) for number in range(8)])
        fs.broken.add("held")
        fs.gates["held"].set()
        for wait in waits:
            with pytest.raises(ResourceFailed, match="fenced"):
                wait.result(PATIENCE_S)
    assert fs.synced == [("dsync", "held")]
    assert published.names == []
    for call in (barrier.check, lambda: submit(barrier, published, "later"), lambda: barrier.harden_content(["x"])):
        with pytest.raises(ResourceFailed, match="Input/output error"):
            call()
    assert fs.synced == [("dsync", "held")]


def test_a_failure_in_the_middle_of_a_round_acknowledges_none_of_it(
    fs: CountingSyncs, barrier: Barrier, published: Published
) -> None:
    fs.broken.add("prepared")
    with ThreadPoolExecutor(9) as pool:
        waits = group_behind_a_leader(fs, barrier, published, pool, ["a", "b"])
        fs.gates["held"].set()
        waits[0].result(PATIENCE_S)
        for wait in waits[1:]:
            with pytest.raises(ResourceFailed):
                wait.result(PATIENCE_S)
    assert published.names == ["leader"]
    assert fs.paths("dsync") == ["held", "committed", "prepared"]


@pytest.mark.parametrize("files", [1, 50])
def test_a_failed_content_sync_fences(fs: CountingSyncs, barrier: Barrier, files: int) -> None:
    fs.broken.add("block 0")
    with pytest.raises(ResourceFailed):
        barrier.harden_content([f"block {number}" for number in range(files)])
    assert isinstance(barrier.failure, OSError)
    barrier.close()
    assert len(fs.synced) == len(set(fs.synced)) <= files
    with pytest.raises(ResourceFailed):
        barrier.check()


def test_a_failed_publication_fences(fs: CountingSyncs, barrier: Barrier) -> None:
    def broken() -> None:
        raise OSError(EIO, "watermark")

    failing = Barrier(fs, DURABLE, lambda group: next(ticket.publish() for ticket in group if ticket.publish))
    ticket = failing.submit(targets=("a",), publish=broken)
    with pytest.raises(ResourceFailed):
        failing.wait(ticket)
    with pytest.raises(ResourceFailed):
        failing.check()


def test_the_first_failure_is_the_one_that_is_told(barrier: Barrier) -> None:
    barrier.fail(OSError(EIO, "first"))
    barrier.fail(OSError(EIO, "second"))
    with pytest.raises(ResourceFailed, match="first"):
        barrier.check()


def test_an_abandoned_barrier_takes_no_locks_that_others_held(fs: CountingSyncs, barrier: Barrier) -> None:
    """As in a forked child, where a thread of the parent held the lock for ever."""
    assert barrier._mutex.acquire()
    barrier.abandon(ResourceFailed("the parent's"))
    with pytest.raises(ResourceFailed, match="parent's"):
        barrier.submit(targets=("a",))


def test_many_threads_lose_no_wake_up(fs: CountingSyncs, published: Published) -> None:
    barrier = Barrier(fs, DURABLE, published)
    order = threading.Lock()
    submitted: list[str] = []

    def work(thread: int) -> None:
        for number in range(100):
            name = f"{thread}.{number}"
            with order:
                submitted.append(name)
                ticket = submit(barrier, published, name, (f"queue {thread % 3}",))
            barrier.wait(ticket)
            assert ticket.done

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, thread) for thread in range(8)]:
            done.result(PATIENCE_S)
    assert published.names == submitted
    assert barrier.rounds <= barrier.tickets == 800
    assert len(fs.paths("dsync")) <= 4 * barrier.rounds
