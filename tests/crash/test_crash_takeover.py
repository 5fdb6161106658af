"""A whole takeover at each file call of the owner before: it acknowledges nothing more, and its late call does no harm.

The other owner takes the space over in the middle of the call, finishes what is in doubt, takes every message and makes
a checkpoint; then the call is done, and whatever the former owner wants to do behind it is refused. A power loss is no
business of these: both owners live, and what a crash leaves is tried with each of them alone.

``XAQUEUE_CRASH_FULL=1``: at every call; else at a few, which are others each time.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from typing import ClassVar

import pytest

from support.bare_space import FaultyFileSystem
from support.crash_cases import FULL
from xaqueue import Connection
from xaqueue.core.model import layout
from xaqueue.core.model.format import read_format
from xaqueue.core.owner import open as owning
from xaqueue.core.owner.open import _Attached
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.errors import Error, ResourceFailed, SpaceError
from xaqueue.features.counters import counters as counter_files
from xaqueue.features.opening import WHOLE, create
from xaqueue.features.pair import standby
from xaqueue.features.pair.pair_fs import OWN
from xaqueue.features.retries.register import TRIES
from xaqueue.features.session import Session, attach
from xaqueue.features.streams import cleanup
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

SAMPLE = 8
CALLS = 40
"""At least so many there are."""
LARGE = b"x" * (1024 * 1024 + 1)
"""More than a branch keeps in memory: its block goes to active/."""
QUEUES = "abcsd"
UNREAD = (layout.JOURNAL, TRIES, layout.HEARTBEAT)


class WatchedFileSystem(FaultyFileSystem):
    """Says so before each call that changes or hardens something."""

    called: ClassVar[Callable[[str], object]] = staticmethod(lambda call: None)

    def strike(self, call: str, path: str) -> None:
        super().strike(call, path)
        if call not in ("read", "hold_dir"):
            WatchedFileSystem.called(f"{call} {path}")

    def link(self, source: str, target: str) -> None:
        self.strike("link", target)
        super().link(source, target)

    def remove_dir(self, path: str) -> None:
        self.strike("remove_dir", path)
        super().remove_dir(path)


class Owner:
    """One of the pair, without threads that would make it different each time."""

    def __init__(self, root: Path, lock: OwnerFile) -> None:
        self.lock = lock
        found = read_format(root)
        self.attached: _Attached = owning._open(root, found, WHOLE, None, False, None, THREADS, lambda _: None, lock)
        self.space = self.attached.space

    def connect(self) -> Connection:
        return Connection(Session(self.space), fresh_id)

    def write_owner(self) -> None:
        self.attached.held.say(endpoint="xaq://elsewhere:1")

    def leave(self) -> None:
        """As a server that ends, whether it is the owner still or not."""
        with suppress(ResourceFailed):
            self.space.close()
        self.attached.held.files.close()
        self.die()

    def die(self) -> None:
        """As a process that is killed."""
        self.space.log.end(OSError("killed"))
        self.attached.held.guard.stop()
        if self.attached.watchdog is not None:
            self.attached.watchdog.stop()
        self.lock.release()


class Story:
    """What the first owner does, and what of it was acknowledged when it was taken over."""

    def __init__(self, root: Path, at: int) -> None:
        self.root = root
        self.left = at
        self.is_over = False
        self.call = ""
        """The one that is late."""
        self.late: list[str] = []
        """Those behind it."""
        self.failure: Exception | None = None
        self.there: Counter[bytes] = Counter()
        self.step: tuple[list[bytes], list[bytes]] = [], []
        """What the step on its way adds and takes."""
        self.first = Owner(root, standby.wait(root))
        self.one = self.first.connect()
        self.prepared = {name: self.first.connect() for name in (b"in doubt", b"undone")}

    def before(self) -> None:
        with self.first.connect() as connection:
            for body in (b"a1", b"a2", b"a3"):
                connection.enqueue("a", body)
            for body in (b"s1", b"s2", b"s3"):
                connection.enqueue("s", body)
        for (name, connection), body in zip(self.prepared.items(), (b"p1", b"u1"), strict=True):
            connection.tpc_begin(Xid(1, name, b""))
            connection.enqueue("b", body)
            connection.tpc_prepare()
        self.first.space.checkpoint()
        self.there.update([b"a1", b"a2", b"a3", b"s1", b"s2", b"s3", b"p1"])  # the first branch is to be committed

    def steps(self) -> Iterator[tuple[Callable[[], object], list[bytes], list[bytes]]]:
        """Each with what it adds and takes."""
        first, space, one = self.first, self.first.space, self.one
        yield self.prepared[b"in doubt"].tpc_commit, [], []
        yield self.prepared[b"undone"].tpc_rollback, [], []
        yield lambda: (one.enqueue_to(["b", "c"], b"twin"), one.commit()), [b"twin", b"twin"], []
        yield lambda: (one.dequeue("a"), one.commit()), [], [b"a1"]
        yield space.log.settle, [], []
        yield lambda: (one.enqueue("a", LARGE), one.commit()), [LARGE], []
        yield lambda: (one.enqueue("d", b"d1", priority=3), one.commit()), [b"d1"], []
        yield lambda: (one.dequeue("d"), one.commit()), [], [b"d1"]
        yield lambda: Session(space).reserve("s", "stream", 0, 2), [], []
        yield lambda: Session(space).consume("s", "stream", 2, True), [], [b"s1", b"s2"]
        yield lambda: cleanup.clear(space), [], []
        yield space.checkpoint, [], []
        yield first.write_owner, [], []
        yield lambda: (one.enqueue("c", b"last"), one.commit()), [b"last"], []
        yield lambda: counter_files.write(space, closed=True), [], []
        yield space.log.settle, [], []

    def play(self) -> None:
        """All steps, whoever refuses them. A step that adds or takes is acknowledged by an owner alone."""
        for step, adds, takes in self.steps():
            self.step = adds, takes
            try:
                step()
            except (Error, OSError):
                assert self.is_over, "a step was refused before anybody took over"
                continue
            assert not (self.is_over and (adds or takes)), "a step was acknowledged by who is the owner no more"
            if not self.is_over:
                self.there.update(adds)
                self.there.subtract(takes)
            self.step = [], []

    def reopen(self) -> None:
        """The first owner is killed, and opens the space again."""
        self.first.die()
        WatchedFileSystem.called = self._called
        try:
            self.first = Owner(self.root, standby.wait(self.root))
        except (ResourceFailed, SpaceError):  # the first, where it had taken the lock before
            assert self.is_over, "a space could not be opened"
        else:
            self.first.leave()

    def _called(self, call: str) -> None:
        if self.left == 0:
            self.call, self.is_over, WatchedFileSystem.called = call, True, lambda call: None
            try:
                self._take_over()
            except Exception as error:  # whoever was interrupted would take it for its own
                self.failure = error
            WatchedFileSystem.called = self.late.append
        self.left -= 1

    def _take_over(self) -> None:
        adds, takes = self.step
        lock = OwnerFile(self.root)
        assert lock.take_over(lock.locked)
        self.second = Owner(self.root, lock)
        with self.second.connect() as connection:
            for xid in connection.tpc_recover():
                (connection.tpc_commit if xid[1] == b"in doubt" else connection.tpc_rollback)(xid)
            for kept in Session(self.second.space).reservations():
                Session(self.second.space).release(kept.queue)
            found = Counter[bytes]()
            for queue in QUEUES:
                while (message := connection.dequeue(queue)) is not None:
                    found[message.body] += 1
        with_step = self.there + Counter(adds) - Counter(takes)
        assert found in (+self.there, with_step), self.call
        with self.second.connect() as connection:
            for queue in QUEUES:  # its numbers are higher than those of the former owner from now on
                connection.enqueue(queue, b"more")
                connection.commit()
                connection.dequeue(queue)
        self.second.space.checkpoint()
        self.files = _files(self.root)

    def judge(self) -> None:
        """The former one is over; what it did late changes nothing, now and for whoever comes next."""
        if self.failure is not None:
            raise self.failure
        changes = [call for call in self.late if not call.startswith(("sync", "list")) and f"/{OWN}" not in call]
        assert changes == [], self.call
        assert _files(self.root) == self.files, self.call
        with self.second.connect() as connection:
            assert [queue for queue in QUEUES if connection.dequeue(queue) is not None] == [], self.call
            connection.enqueue("a", b"after")
        self.second.leave()
        found = [str(one) for one in check(self.root) if one.severity is Severity.DAMAGE]
        assert found == [], self.call
        session = attach(self.root, watch=False)
        with Connection(Session(session.space), fresh_id) as connection:
            assert connection.tpc_recover() == []
            message = connection.dequeue("a")
            assert message is not None
            assert message.body == b"after", self.call
            assert [queue for queue in QUEUES if connection.dequeue(queue) is not None] == [], self.call
        session.close()
        left = [path.name for name in (layout.ACTIVE, layout.PREPARED) for path in (self.root / name).iterdir()]
        assert left == [], self.call


def _files(root: Path) -> dict[str, bytes]:
    """All that an open believes, but of the journal, whose segments of a former owner nobody reads."""
    found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items() if name.parts[0] not in UNREAD}


def play(root: Path, at: int, *, opens: bool = False) -> str:
    """The call at which it was taken over; empty where there are not so many. opens: in the middle of an open."""
    shutil.rmtree(root, ignore_errors=True)
    create(root, any_queue=True)
    story = Story(root, at)
    story.before()
    if opens:
        story.play()
        story.reopen()
    else:
        WatchedFileSystem.called = story._called
        story.play()
        story.first.leave()
    WatchedFileSystem.called = lambda call: None
    if not story.is_over:
        return ""
    story.judge()
    return story.call


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owning, "DirectoryFileSystem", WatchedFileSystem)
    monkeypatch.setattr(owning, "start_background", lambda *_, **__: [])
    monkeypatch.setattr(cleanup, "_making", threading.RLock())  # which two processes have one each of


@pytest.mark.parametrize("opens", [False, True])
def test_taken_over_at_a_call(tmp_path: Path, opens: bool) -> None:
    if FULL:
        calls = list(takewhile(bool, (play(tmp_path / "s", at, opens=opens) for at in count())))
        assert len({call.split()[0] for call in calls}) > 6
        return
    for at in random.Random().sample(range(CALLS), SAMPLE):
        assert play(tmp_path / "s", at, opens=opens), f"there is no call {at} any more: CALLS is too large"
