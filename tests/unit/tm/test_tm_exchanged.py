"""A participant by path, in whose place another space is found between the votes and the commit: that one never heard
of the branch, and what it does not list was not done. The decision waits until the right one is back."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import xaqueue
from support.served import ServerThread
from xaqueue import TransactionManager
from xaqueue.core.model.format import read_format
from xaqueue.errors import ProtocolError
from xaqueue.features.opening import create
from xaqueue.tm import last_resource, recovery
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.last_resource import DecisionRow, DecisionRows
from xaqueue.tm.participant import Opens
from xaqueue.tm.recovery import ScanReport
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

ROWS = DecisionRows()


class Place:
    """Space ``queue``, and ``other`` that is to stand in its place; beside it a second queue, or a database."""

    def __init__(self, root: Path, second: str) -> None:
        self.root, self.second = root, second
        for name in ("queue", "other", "space"):
            create(root / name, any_queue=True)
        with sqlite3.connect(root / "db") as database:
            database.execute("CREATE TABLE done (n INTEGER)")
        database.close()
        self.id = read_format(root / "queue").id
        self.server = self._serve()

    def _serve(self) -> ServerThread:
        return ServerThread(self.root / "queue", self.root / "socket")

    def manager(self, on_step: Callable[[Step, bytes, str], None] | None = None) -> TransactionManager:
        second: Opens = (lambda: sqlite3.connect(self.root / "db")) if self.second == "db" else self.root / "space"
        made = TransactionManager(self.root / "log", {"queue": self.root / "queue", self.second: second})
        made.recover(60)
        if on_step is not None:
            made._coordinator.step = on_step
            made._coordinator.wake = lambda _: None
        return made

    def exchange(self) -> None:
        """The server of the one is killed, and one of the other is there."""
        self.server.kill()
        for name, new in (("queue", "away"), ("other", "queue"), ("away", "other")):
            (self.root / name).rename(self.root / new)
        self.server = self._serve()

    def holds(self) -> tuple[list[bytes], list[Xid], int]:
        """Messages and branches in doubt of the space that is there, and how much the second one has."""
        with xaqueue.connect(self.root / "queue") as queue:
            found = [message.body for message in queue.browse("q")], queue.tpc_recover()
        if self.second == "db":
            database = sqlite3.connect(self.root / "db")
            (count,) = database.execute("SELECT count(*) FROM done").fetchone()
            database.close()
        else:
            with xaqueue.connect(self.root / "space") as space:
                count = len(list(space.browse("q")))
        return *found, count


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery looks only when it is asked: between two servers it would open the space by itself."""
    monkeypatch.setattr(recovery, "FIRST_PAUSE_S", 60.0)


@pytest.fixture(params=["space", "db"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(tmp_path, request.param)
    yield made
    made.server.stop()


def transact(manager: TransactionManager, second: str) -> None:
    with manager.transaction() as tx:
        tx["queue"].enqueue("q", b"a")
        if second == "db":
            tx["db"].execute("INSERT INTO done VALUES (1)")
        else:
            tx["space"].enqueue("q", b"a")


class Killed(BaseException):
    """The process is over at that step."""


def exchanged(place: Place) -> bytes:
    """The gtrid of a transaction that was decided, of which this participant has not heard."""
    decided = Step.COMMITTED_LAST if place.second == "db" else Step.DECIDED
    gtrids = list[bytes]()

    def exchange(step: Step, gtrid: bytes, name: str) -> None:
        if step is decided:
            gtrids.append(gtrid)
            place.exchange()
            raise Killed

    manager = place.manager(exchange)
    with pytest.raises(Killed):
        transact(manager, place.second)
    assert_waits(place, manager, gtrids[0])
    manager.close()
    return gtrids[0]


def assert_waits(place: Place, manager: TransactionManager, gtrid: bytes) -> None:
    report = recovered(manager)
    assert f"{gtrid.decode()} is to be committed in space {place.id}, and this is another one" in report.error
    (left,) = manager.in_doubt()
    assert (left.gtrid, left.outstanding) == (gtrid, ("queue",))
    assert "this is another one" in left.trouble["queue"]
    assert place.holds() == ([], [], 1)


def recovered(manager: TransactionManager) -> ScanReport:
    return manager.recover(60).scans["queue"]


def test_the_decision_waits_for_the_right_space(place: Place) -> None:
    """While the manager runs, and after it was opened anew."""
    gtrid = exchanged(place)
    manager = place.manager()
    assert_waits(place, manager, gtrid)
    place.exchange()
    assert recovered(manager).complete
    assert manager.in_doubt() == []
    manager.close()
    assert place.holds() == ([b"a"], [], 1)


def test_a_checkpoint_keeps_which_space_it_was(place: Place) -> None:
    gtrid = exchanged(place)
    manager = place.manager()
    manager._log.checkpoint()
    manager.close()
    manager = place.manager()
    assert_waits(place, manager, gtrid)
    manager.close()


def test_somebody_says_that_it_is_gone_for_good(place: Place) -> None:
    gtrid = exchanged(place)
    manager = place.manager()
    with pytest.raises(ProtocolError):
        manager.release(read_format(place.root / "queue").id)
    assert manager.release(place.id) == [gtrid]
    assert recovered(manager).complete
    assert manager.in_doubt() == []
    manager.close()


def test_a_commit_on_its_way_is_not_answered_as_done(place: Place) -> None:
    """The program is told, and the branch is in doubt where it voted; it is finished there."""
    decided = Step.COMMITTED_LAST if place.second == "db" else Step.DECIDED

    def exchange(step: Step, gtrid: bytes, name: str) -> None:
        if step is decided and not done:
            done.append(gtrid)
            place.exchange()

    done = list[bytes]()
    manager = place.manager(exchange)
    transact(manager, place.second)
    assert_waits(place, manager, done[0])
    place.exchange()
    assert recovered(manager).complete
    manager.close()
    assert place.holds() == ([b"a"], [], 1)


def test_a_row_has_room_for_as_many_names_as_before_there_were_ids(tmp_path: Path) -> None:
    """And a transaction manager of so many participants is opened."""
    names = [f"participant{number}" for number in range(100)]
    with TransactionManager(tmp_path / "log", {name: partial(sqlite3.connect, ":memory:") for name in names}):
        pass
    gtrid = bytes(Gtrid("0123456789abcdef", 1, 1))
    database = sqlite3.connect(":memory:")
    ROWS.make_ready(database, "0123456789abcdef", is_known=False)
    ids = {name: str(uuid.UUID(int=number)) for number, name in enumerate(names)}
    for voters in names, names[:30]:
        ROWS.insert_unmarked(database, DecisionRow(gtrid, Outcome.COMMITTED, tuple(voters), spaces=ids))
        (row,) = ROWS.read(database, "0123456789abcdef", 2)
        assert row.participants == tuple(voters)
        assert row.spaces == ({name: ids[name] for name in voters} if len(voters) == 30 else {})
        assert len(last_resource.names_of(row.participants, row.spaces)) <= last_resource.NAMES_LENGTH
        ROWS.delete(database, [gtrid])
    database.close()
