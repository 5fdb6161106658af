"""A standby takes a space that is free, or whose owner says that it beats and is silent; and no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from support.patience import eventually
from xaqueue.core.model import layout
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.core.owner.record import read_owner
from xaqueue.core.storage import owner_file
from xaqueue.errors import InvalidArgument, ResourceFailed, SpaceError
from xaqueue.features.opening import create
from xaqueue.features.pair import pair, standby
from xaqueue.features.session import Session, attach
from xaqueue.features.snapshots import restore as restoring
from xaqueue.features.snapshots.restoring import restore
from xaqueue.offline import reconstruct, salvage


class Stopped(Exception):
    """The test has seen enough."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    create(tmp_path / "s", any_queue=True)
    monkeypatch.setattr(owner_file, "LOCK_TRIES", 1)
    monkeypatch.setattr(owner_file, "_PAUSE_S", 0.0)
    return tmp_path / "s"


class Clock:
    """The time of a standby: each pause adds a second."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 1.0

    def until(self, end_s: float) -> Callable[[], None]:
        def look() -> None:
            if self.now > end_s:
                raise Stopped

        return look


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(standby, "time", made)
    monkeypatch.setattr(pair, "BEAT_S", 0.001)
    return made


def is_silent() -> bool:
    return not any(thread.name == "xaqueue-heartbeat" for thread in threading.enumerate())


def own(root: Path) -> Session:
    """One of a pair."""
    return attach(root, watch=False, lock=standby.wait(root))


def test_a_space_that_is_free_is_taken_at_once(root: Path) -> None:
    lock = standby.wait(root, takeover_s=60)
    assert owner_file.is_owned(root)
    session = attach(root, watch=False, lock=lock)
    owner = read_owner(root)
    assert owner is not None
    assert owner.beats
    with xaqueue.connect(root) as connection:
        connection.enqueue("q", b"x")
    session.close()
    assert list((root / layout.ACTIVE).iterdir()) == []
    assert not owner_file.is_owned(root)


def test_an_owner_that_is_well_is_waited_for(root: Path, clock: Clock) -> None:
    session = own(root)

    def look() -> None:
        before = (root / layout.HEARTBEAT).read_bytes()
        eventually(lambda: (root / layout.HEARTBEAT).read_bytes() != before)
        clock.until(50)()

    with pytest.raises(Stopped):
        standby.wait(root, takeover_s=10, look=look)
    session.close()
    standby.wait(root, takeover_s=10).release()


def test_an_owner_in_no_pair_is_waited_for_however_silent(root: Path, clock: Clock) -> None:
    own(root).close()  # which leaves a heartbeat behind
    session = attach(root, watch=False)
    with pytest.raises(Stopped):
        standby.wait(root, takeover_s=10, look=clock.until(50))
    session.close()


def test_one_that_is_silent_is_not_taken_over_unasked(root: Path, clock: Clock) -> None:
    session = own(root)
    session.space.fence(OSError("its disk"))
    eventually(is_silent)
    with pytest.raises(Stopped):
        standby.wait(root, look=clock.until(50))
    session.close()


def test_one_that_is_fenced_is_silent(root: Path, clock: Clock) -> None:
    session = own(root)
    first = xaqueue.connect(root)
    session.space.fence(OSError("its disk"))
    eventually(is_silent)
    lock = standby.wait(root, takeover_s=10)
    assert 10 <= clock.now <= 12
    with pytest.raises(ResourceFailed):
        first.enqueue("q", b"x")
    assert lock.lost() == ""
    first.close()
    session.close()
    lock.release()


def test_one_that_is_stopped_and_continued_fences_itself(root: Path, clock: Clock) -> None:
    session = own(root)
    stopped, go = threading.Event(), threading.Event()
    real = session.space.check_owner

    def check() -> None:
        stopped.set()
        assert go.wait(60)
        real()

    session.space.check_owner = check  # type: ignore[method-assign]
    assert stopped.wait(60)
    lock = standby.wait(root, takeover_s=10)
    go.set()
    eventually(lambda: session.space.failure is not None)
    assert "owns it no more" in str(session.space.failure)
    session.close()
    lock.release()


def test_who_asks_one_that_lost_the_space_is_told_so(root: Path) -> None:
    session = own(root)
    xid = xaqueue.Connection.xid(1, "g", "b")
    with xaqueue.connect(root) as connection:
        other = owner_file.OwnerFile(root)
        assert other.take_over(other.locked)
        for ask in (connection.tpc_recover, lambda: connection.outcome(xid)):
            with pytest.raises(ResourceFailed):
                ask()
    session.close()
    other.release()


@pytest.mark.parametrize("sync", ["FSYNC;DSYNC", "FDATASYNC", "NONE"])
def test_other_levels_are_refused_by_name(root: Path, sync: str) -> None:
    with pytest.raises(InvalidArgument, match=f"sync = JOURNAL, and this space is to have {sync}"):
        standby.wait(root, sync=sync)
    write_definitions(root, f'[space]\nsync = "{sync}"\n')
    with pytest.raises(InvalidArgument, match=sync):
        standby.wait(root)
    assert not (root / layout.LOCK).exists()


def test_a_level_that_was_changed_meanwhile(root: Path) -> None:
    lock = standby.wait(root)
    write_definitions(root, '[space]\nsync = "NONE"\n')
    with pytest.raises(InvalidArgument, match="NONE"):
        attach(root, watch=False, lock=lock)
    assert not owner_file.is_owned(root)


def test_what_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"after 1\.5 s is refused: 2 or more"):
        standby.wait(root, takeover_s=1.5)
    with pytest.raises(SpaceError):
        standby.wait(tmp_path / "none")


def test_a_heartbeat_that_cannot_be_written_is_said_once(
    root: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (root / layout.HEARTBEAT).mkdir()
    session = own(root)
    eventually(lambda: "[heartbeat-unwritten]" in caplog.text)
    session.close()
    eventually(is_silent)
    assert len([record for record in caplog.records if "[heartbeat-unwritten]" in record.getMessage()]) == 1


def test_a_snapshot_of_one_of_a_pair(root: Path) -> None:
    session = own(root)
    with xaqueue.connect(root) as connection:
        connection.enqueue("q", b"x")
        connection.commit()
        taken = connection.snapshot()
    session.close()
    restore(root, taken.number, exact=True)
    with xaqueue.connect(root) as connection:
        message = connection.dequeue("q")
        assert message is not None
        assert message.body == b"x"


@pytest.mark.parametrize("command", ["restore", "remake", "salvage"])
def test_no_command_that_has_the_space_closed_is_taken_over(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Its last owner beats no more, and says in ``owner`` that it does."""
    session = attach(root, lock=standby.wait(root))
    session.snapshot()
    session.close()
    found = read_owner(root)
    assert found is not None
    assert found.beats

    def stand_by(*_: object, **__: object) -> None:
        with pytest.raises(Stopped):
            standby.wait(root, takeover_s=2.0, look=clock.until(clock.now + 20))
        raise Stopped

    for module, name in ((restoring, "restore"), (reconstruct, "make_format"), (salvage, "_damage")):
        monkeypatch.setattr(module, name, stand_by)
    calls: dict[str, Callable[[], object]] = {
        "restore": lambda: restore(root, exact=True),
        "remake": lambda: reconstruct.remake(root),
        "salvage": lambda: salvage.salvage(root),
    }
    with pytest.raises(Stopped):
        calls[command]()


def test_one_that_loses_the_space_while_it_opens_it_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whatever look at its lock; it is no space that cannot be used, and a supervisor starts the server again."""
    looks, real = [0], owner_file.OwnerFile.lost

    def lost(self: owner_file.OwnerFile) -> str:
        looks[0] -= threading.current_thread() is threading.main_thread()
        if looks[0] < 0 and not taken:
            taken.append(owner_file.FileLock(root / ".other"))
            taken[0].acquire()
            (root / ".other").rename(root / "lock")
        return real(self)

    monkeypatch.setattr(owner_file.OwnerFile, "lost", lost)
    refused = 0
    for at in range(1000):
        taken: list[owner_file.FileLock] = []
        lock, looks[0] = standby.wait(root), at
        try:
            session = attach(root, watch=False, lock=lock)
        except ResourceFailed:  # and no SpaceError
            refused += 1
        else:
            if not taken:
                session.close()
                break
            with suppress(ResourceFailed):
                session.close()
        taken[0].release()
    assert refused > 3
