"""What is struck from a decision is on the queue's disk, whatever comes while a sweeper asks."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.patience import PATIENCE_S, eventually
from xaqueue.carried import Carriers
from xaqueue.tm import guard
from xaqueue.tm import manager as managers
from xaqueue.tm.awaiting import AsyncLoop
from xaqueue.tm.gtrid import Gtrid, ListedBranch, parse_listed
from xaqueue.tm.last_resource import DecisionRow
from xaqueue.tm.node_schema import Timing
from xaqueue.tm.node_tables import NodeTables, Standing
from xaqueue.tm.participant import sources
from xaqueue.tm.sweep import Sweep
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

NODE, MINE, SPACE = "a" * 16, "b" * 16, "0000-1111"


class Queue:
    """One branch, which is prepared on disk. What is committed late is in memory only."""

    space_id = SPACE

    def __init__(self, gtrid: bytes) -> None:
        self.branch = Xid(0x58415154, gtrid, b"queue")
        self.memory = self.disk = Outcome.IN_DOUBT
        self.epoch = 1

    def commit_late(self) -> None:
        self.memory = Outcome.COMMITTED

    def crash(self) -> None:
        self.memory = self.disk
        self.epoch += 1

    def harden(self) -> None:
        self.disk = self.memory

    def xid(self, format_id: int, gtrid: bytes, bqual: bytes) -> Xid:
        return Xid(format_id, gtrid, bqual)

    def outcome(self, xid: Xid) -> Outcome:
        return self.memory

    def carriers(self) -> Carriers:
        return Carriers(SPACE, self.epoch, "secret")

    def tpc_recover(self) -> list[Xid]:
        return [self.branch] if self.memory is Outcome.IN_DOUBT else []

    def listed(self) -> list[ListedBranch]:
        return [found for found in map(parse_listed, self.tpc_recover()) if found is not None]


class Scene:
    """A decision of an ended node, and who sweeps."""

    def __init__(self, path: Path) -> None:
        self.own = sqlite3.connect(path)
        found = NodeTables.find(self.own, make=True)
        assert found is not None
        self.tables = found
        self.gtrid = bytes(Gtrid(NODE, 1, 1, found.database))
        self.queue = Queue(self.gtrid)
        found.register(self.own, NODE, SPACE)
        self.source = sources({"db": lambda: sqlite3.connect(path)}, "db", carry=False, loop=AsyncLoop())["db"]

    def decide(self) -> None:
        self.own.execute("BEGIN IMMEDIATE")
        guard.mark(self.own, self.tables.dialect)
        row = DecisionRow(self.gtrid, Outcome.COMMITTED, ("queue",), spaces={"queue": SPACE})
        assert self.tables.insert(self.own, row, self.tables.dialect)
        self.own.commit()

    def sweep(self, before: Callable[[], None], behind: Callable[[], None]) -> None:
        """before, behind: what comes just then to the queue's list."""
        sweep = Sweep(self.tables, self.source, MINE, SPACE, self.queue, buried_s=-1.0)
        before()
        listed = self.queue.listed()
        behind()
        sweep.strike(listed)

    @property
    def stands(self) -> tuple[bool, bool]:
        """The decision, and the tombstone."""
        state = self.tables.state_of(self.own, self.gtrid)
        return state.decision is Outcome.COMMITTED, state.is_ended

    def close(self) -> None:
        self.source.close()
        self.own.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path / "db")) as made:
        yield made


def nothing() -> None:
    pass


def test_a_commit_that_comes_just_before_the_list_is_hardened(scene: Scene) -> None:
    scene.decide()
    assert scene.tables.end(scene.own, NODE)
    scene.sweep(scene.queue.commit_late, nothing)
    scene.queue.crash()
    assert scene.queue.memory is Outcome.COMMITTED
    assert scene.stands == (False, True)


def test_what_another_one_has_carried_out_and_struck_is_not_undone(scene: Scene) -> None:
    """Its own list is older than that."""
    scene.decide()
    assert scene.tables.end(scene.own, NODE)
    sweep = Sweep(scene.tables, scene.source, MINE, SPACE, scene.queue, buried_s=-1.0)
    listed = scene.queue.listed()
    scene.queue.commit_late()
    scene.sweep(nothing, nothing)
    assert not scene.stands[0]
    assert [swept.outcome for swept in sweep.words(listed)] == [None]
    assert scene.tables.state_of(scene.own, scene.gtrid).decision is None
    scene.queue.memory = Outcome.IN_DOUBT  # as one that was prepared late is
    assert [swept.outcome for swept in sweep.words(listed)] == [Outcome.ROLLED_BACK]


def test_a_row_stays_as_long_as_its_node_may_look_for_it(scene: Scene) -> None:
    """Another one was faster at the only participant, and the node has no answer yet of its commit."""
    scene.decide()
    (standing,) = scene.tables.decided(scene.own)
    scene.tables.strike(scene.own, standing, SPACE)
    assert scene.tables.is_struck(scene.own, scene.gtrid, SPACE)
    assert scene.tables.resolve_own(scene.own, scene.gtrid).outcome is Outcome.COMMITTED
    assert scene.tables.end(scene.own, NODE)
    scene.queue.memory = Outcome.COMMITTED
    scene.sweep(nothing, nothing)
    assert not scene.stands[0]


def test_a_row_by_hand_holds_up_no_other(scene: Scene) -> None:
    scene.decide()
    by_hand = f"{scene.gtrid.decode()[:36]}of mine"
    scene.own.execute(
        "insert into xaqueue_decisions (gtrid, decision, participants) values (?, 'commit', ?)",
        (by_hand, f"queue={SPACE}"),
    )
    scene.own.commit()
    assert scene.tables.end(scene.own, NODE)
    scene.queue.commit_late()
    scene.sweep(nothing, nothing)
    assert [row.key for row in scene.tables.decided(scene.own)] == [by_hand]


@pytest.mark.parametrize("fault", ["cannot be struck", "cannot be read"])
def test_one_that_fails_holds_up_no_other(scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    scene.decide()
    first, strike = scene.gtrid.decode(), NodeTables.strike
    scene.gtrid = bytes(Gtrid(NODE, 1, 2, scene.tables.database))
    scene.decide()
    if fault == "cannot be read":
        scene.own.execute("update xaqueue_decisions set carried = x'01' where gtrid = ?", (first,))
        scene.own.commit()
    assert scene.tables.end(scene.own, NODE)

    def strike_others(tables: NodeTables, own: Any, standing: Standing, identity: str) -> None:
        if standing.key == first:
            raise sqlite3.OperationalError(fault)
        strike(tables, own, standing, identity)

    monkeypatch.setattr(NodeTables, "strike", strike_others)
    scene.queue.commit_late()
    sweep = Sweep(scene.tables, scene.source, MINE, SPACE, scene.queue, buried_s=-1.0)
    failures = sweep.strike(scene.queue.listed())
    assert [row.key for row in scene.tables.decided(scene.own)] == [first]
    assert list(failures) == [first]
    assert fault in failures[first]


def test_a_queue_that_forgets_behind_its_list_is_asked_again(scene: Scene) -> None:
    scene.decide()
    assert scene.tables.end(scene.own, NODE)
    scene.queue.commit_late()
    scene.sweep(nothing, scene.queue.crash)
    assert scene.queue.memory is Outcome.IN_DOUBT
    assert scene.stands == (True, True)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_tombstone_stays_for_what_a_queue_has_forgotten(scene: Scene, *, is_early: bool) -> None:
    """A rollback that is in memory alone, of which nobody else would know."""
    assert scene.tables.end(scene.own, NODE)

    def roll_back() -> None:
        scene.queue.memory = Outcome.ROLLED_BACK

    if is_early:
        roll_back()
    scene.sweep(nothing if is_early else roll_back, scene.queue.crash if is_early else nothing)
    scene.queue.crash()
    assert scene.stands[1] == (scene.queue.memory is Outcome.IN_DOUBT)


def bring_back(monkeypatch: pytest.MonkeyPatch, *, carried: bool) -> threading.Event:
    """A decision that is removed comes back once, as by a crash of a database that had not synced that. Returns what is
    set then."""
    came_back, delete = threading.Event(), NodeTables.delete

    def forget(tables: NodeTables, connection: Any, gtrids: Sequence[bytes], *rest: Any) -> None:
        found = connection.execute("select * from xaqueue_decisions where decision = 'commit'").fetchall()
        rows = [row for row in found if row[0].encode() in gtrids and bool(row[3]) is carried]
        delete(tables, connection, gtrids, *rest)
        if rows and not came_back.is_set():
            connection.executemany("insert into xaqueue_decisions values (?, ?, ?, ?)", rows)
            connection.commit()
            came_back.set()

    monkeypatch.setattr(NodeTables, "delete", forget)
    return came_back


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_a_removal_that_a_crash_undoes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closes: bool, carry: bool
) -> None:
    """By its node while that lives; else behind it there is a tombstone, so that others see to it."""
    came_back = bring_back(monkeypatch, carried=carry)
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: Timing(sign=60.0 if closes else 0.05))
    path, space = tmp_path / "db", tmp_path / "space"
    xaqueue.connect(space, create=True).close()
    parties: dict[str, Any] = {"db": partial(sqlite3.connect, path), "queue": str(space)}
    with (
        xaqueue.TransactionManager(parties, recovery_interval_s=0.05, carry=carry) as tm,
        closing(sqlite3.connect(path)) as own,
    ):

        def count(what: str) -> int:
            return int(own.execute(f"select count(*) from xaqueue_{what}").fetchone()[0])

        number = 0
        while not came_back.wait(0.05):  # the first ones are prepared in any case
            number += 1
            with tm.transaction() as tx:
                tx["db"].execute("create table if not exists orders (n int)")
                tx["queue"].enqueue("q", b"%d" % number)
            assert number < PATIENCE_S * 20
        if not closes:
            eventually(lambda: not count("decisions where decision = 'commit'"))
    with closing(sqlite3.connect(path)) as own:
        left = [own.execute(f"select count(*) from xaqueue_{one}").fetchone()[0] for one in ("nodes", "ended")]
    assert left == [0, int(closes)]


def test_a_node_that_closes_while_it_removes_a_decision_leaves_a_tombstone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may come to nothing, and then another one has to see to the decision."""
    begun, goes_on, delete = threading.Event(), threading.Event(), NodeTables.delete

    def hang(tables: NodeTables, connection: Any, gtrids: Sequence[bytes], *rest: Any) -> None:
        if gtrids:
            begun.set()
            goes_on.wait(PATIENCE_S)
            raise sqlite3.OperationalError("the connection was lost")
        delete(tables, connection, gtrids, *rest)

    monkeypatch.setattr(managers, "CLOSE_PATIENCE_S", 0.1)
    monkeypatch.setattr(NodeTables, "delete", hang)
    path, space = tmp_path / "db", tmp_path / "space"
    xaqueue.connect(space, create=True).close()
    parties: dict[str, Any] = {"db": partial(sqlite3.connect, path), "queue": str(space)}
    with xaqueue.TransactionManager(parties, recovery_interval_s=0.05) as tm:
        with tm.transaction() as tx:
            tx["db"].execute("create table orders (n int)")
            tx["queue"].enqueue("q", b"1")
        assert begun.wait(PATIENCE_S)
    goes_on.set()
    with closing(sqlite3.connect(path)) as own:
        counts = [own.execute(f"select count(*) from xaqueue_{table}").fetchone() for table in ("nodes", "ended")]
    assert counts == [(0,), (1,)]
