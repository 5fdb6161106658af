"""What nodes of one database survive that is no death of a process: copies, clocks, outages, one another."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import xaqueue
from support.doubtful import run as cli
from support.node_child import FAST
from support.node_scene import Killed, Scene, Sweeper, die, die_in, enter, kill, node_of, put
from support.patience import PATIENCE_S, eventually
from xaqueue.connection import Connection
from xaqueue.tm import manager as manager_module
from xaqueue.tm.branch import EnlistedBranch
from xaqueue.tm.node_tables import NodeTables
from xaqueue.tm.recovery import RecoveryThread

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
NODES = 200 if FULL else 10
MONTH_US = 31 * 86_400 * 1_000_000


@pytest.fixture
def scene(dsn: str, tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path, partial(psycopg.connect, dsn))) as made:
        yield made


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Scene]:
    """Of SQLite."""
    with closing(Scene(tmp_path, partial(sqlite3.connect, tmp_path / "db"))) as made:
        yield made


# Its name


def test_a_copied_machine_takes_a_name_of_its_own(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    manager = scene.make()
    put(manager, 1)
    name = manager.node
    scene.execute("update xaqueue_signs set n = n + 100")
    eventually(lambda: manager.node not in ("", name))
    assert f"somebody else gives signs as node {name}" in caplog.text
    put(manager, 2)
    assert scene.rows == scene.messages() == [1, 2]


def test_a_database_that_has_lost_commits_is_told_of(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A standby that was promoted without them, or an older copy."""
    manager = scene.make()
    put(manager, 1)
    name = manager.node
    with manager.transaction() as tx:
        enter(tx, 2)
    eventually(lambda: node_of(manager).epoch > 1)
    scene.execute("delete from xaqueue_decisions")
    scene.execute("update xaqueue_signs set n = 1")
    eventually(lambda: manager.node not in ("", name))
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.CRITICAL]
    assert "database-lost-commits" in said
    assert tx.gtrid.decode() in said


def test_nobody_is_ended_for_a_database_that_was_away(scene: Scene) -> None:
    scene.timing = replace(FAST, sign=FAST.sign / 2)
    managers = scene.make(), scene.make()
    for number, manager in enumerate(managers):
        put(manager, number)
    names = [manager.node for manager in managers]
    for _ in range(3):
        scene.is_down = True
        time.sleep(2 * scene.timing.silent * scene.timing.sign)
        scene.is_down = False
        time.sleep(2 * scene.timing.sign)
    for number, manager in enumerate(managers):
        put(manager, 10 + number)
    assert [manager.node for manager in managers] == names
    assert scene.count("ended") == 0
    assert scene.rows == scene.messages() == [0, 1, 10, 11]


def test_an_interval_counts_between_two_signs_of_ones_own_alone(scene: Scene) -> None:
    """A database that is away, and back for moments: whoever comes through to it just then sees others silent."""
    scene.timing = replace(FAST, sign=3600.0, stale=7200.0)
    watcher, other = scene.make(), scene.make()
    put(watcher, 1)
    put(other, 2)
    node = node_of(watcher)
    for _ in range(3 * scene.timing.silent):
        node.turn()
        scene.is_down = True
        with pytest.raises(psycopg.OperationalError):
            node.turn()
        node._has_signed = False  # as its thread says of it
        scene.is_down = False
    assert scene.count("ended") == 0
    for _ in range(1 + scene.timing.silent):
        node.turn()
    assert scene.count("ended") == 1


# Its end


def test_nodes_that_close_leave_nothing_and_those_that_die_a_tombstone_for_a_month(scene: Scene) -> None:
    for number in range(NODES):
        manager = scene.make()
        put(manager, number)
        manager.close()
    assert [scene.count(table) for table in ("nodes", "signs", "ended", "decisions")] == [0, 0, 0, 0]
    for number in range(NODES, 2 * NODES):
        kill(scene.dead("committed-last", number))
    other = scene.make()
    eventually(lambda: scene.count("nodes") == 1 and not scene.in_doubt())
    eventually(lambda: scene.count("decisions") == 0)
    assert scene.count("ended") == NODES
    assert scene.rows == scene.messages() == [*range(2 * NODES)]
    scene.execute(f"update xaqueue_ended set at = at - {MONTH_US}")
    eventually(lambda: scene.count("ended") == 0)
    assert scene.count("signs") == 1
    other.close()


def test_a_tombstone_stays_until_each_queue_was_asked(scene: Scene) -> None:
    """However old: its branch there is undecided, and nobody else would know that."""
    far = scene.new_space("far")
    scene.dead("prepared", 1, space=far)
    near = scene.make()
    put(near, 2)
    eventually(lambda: scene.count("ended") == 1)
    scene.execute(f"update xaqueue_ended set at = at - {MONTH_US}")
    time.sleep(4 * FAST.sweep)
    assert scene.count("ended") == 1
    scene.make(space=far)
    eventually(lambda: scene.count("ended") == 0)
    assert scene.in_doubt(far) == []
    assert scene.messages(far) == []


def test_a_close_beside_a_transaction_under_way_leaves_a_tombstone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have prepared by then, and be stopped for good."""
    monkeypatch.setattr(manager_module, "CLOSE_PATIENCE_S", 0.2)
    prepared, goes_on = threading.Event(), threading.Event()

    def hold(step: str, gtrid: bytes, name: str) -> None:
        if step == "commit-last":
            prepared.set()
            assert goes_on.wait(PATIENCE_S)
            raise Killed

    manager = scene.make(on_step=hold)

    thread = threading.Thread(target=die_in, args=(manager, 1))
    thread.start()
    assert prepared.wait(PATIENCE_S)
    manager.close()
    goes_on.set()
    thread.join(PATIENCE_S)
    scene.make()
    eventually(lambda: not scene.in_doubt())
    assert scene.rows == scene.messages() == []


def test_a_queue_that_nobody_has_any_more_is_waited_for_and_holds_nobody_up(scene: Scene, dsn: str) -> None:
    far = scene.new_space("far")
    name = scene.dead("committed-last", 1, space=far).node
    shutil.rmtree(far)
    other = scene.make()
    put(other, 2)
    eventually(lambda: scene.count("ended") == 1)
    scene.execute(f"update xaqueue_ended set at = at - {MONTH_US}")
    put(other, 3)
    time.sleep(2 * FAST.sweep)
    assert scene.count("ended") == 1
    assert scene.select("count(*) from xaqueue_decisions where participants <> ''") == [(1,)]
    words = conninfo_to_dict(dsn)
    told = cli("tm", "status", f"postgresql://{words['user']}@/{words['dbname']}?host={words['host']}", "--json")
    (node,) = [one for one in json.loads(told)["nodes"] if one["ended_us"]]
    assert (node["node"], node["decisions"]) == (name, 1)
    assert scene.rows == [1, *scene.messages()] == [1, 2, 3]


# Who may touch what


def test_two_services_with_one_name_for_two_queues(scene: Scene) -> None:
    """The other one's queue knows no such branch, and says nothing by that."""
    here, there = scene.space, scene.new_space("there")
    scene.dead("commit", 1, space=there)
    other = scene.make(space=here)
    put(other, 2)
    eventually(lambda: scene.count("ended") == 1)
    time.sleep(4 * FAST.sweep)
    assert scene.select("count(*) from xaqueue_decisions where participants <> ''")[0][0] >= 1
    assert len(scene.in_doubt(there)) == 1
    scene.make(space=there)
    eventually(lambda: not scene.in_doubt(there))
    eventually(lambda: scene.count("decisions") == 0)
    assert scene.messages(there) == [1]
    assert scene.messages(here) == [2]


def test_what_is_decided_is_carried_out_for_a_node_that_lives(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recovery hangs; its transactions go on."""
    hangs, goes_on, scan = threading.Event(), threading.Event(), RecoveryThread._scan
    is_armed = False

    def die(at: str, gtrid: bytes, name: str) -> None:
        if is_armed and at == "commit":
            raise Killed

    def hang(recovery: RecoveryThread, report: Any) -> None:
        if recovery._coordinator is manager._coordinator:
            hangs.set()
            assert goes_on.wait(PATIENCE_S)
        scan(recovery, report)

    manager = scene.make(on_step=die)
    put(manager, 1)
    monkeypatch.setattr(RecoveryThread, "_scan", hang)
    assert hangs.wait(PATIENCE_S)
    is_armed = True
    die_in(manager, 2)
    is_armed = False
    put(manager, 3)
    assert len(scene.in_doubt()) == 1
    scene.make().transaction().rollback()
    eventually(lambda: not scene.in_doubt())
    assert scene.rows == scene.messages() == [1, 2, 3]
    assert scene.count("ended") == 0
    goes_on.set()
    eventually(lambda: scene.count("decisions") == 0)


@pytest.mark.parametrize("step", ["prepared", "commit-last", "committed-last", "commit"])
def test_two_queues_alone_of_a_node_that_died(scene: Scene, step: str) -> None:
    """The decision is all that its transaction has in the database, and stays until both have carried it out."""
    spaces = [scene.new_space(name) for name in ("a", "b")]
    parties: dict[str, Any] = {"db": scene.connect, **{one.name: partial(xaqueue.connect, one) for one in spaces}}

    def die(at: str, gtrid: bytes, name: str) -> None:
        if at == step:
            raise Killed

    dead = scene.manage(parties, on_step=die)
    tx = dead.transaction()
    for one in spaces:
        tx[one.name].enqueue("q", b"1")
    kill(dead)
    with pytest.raises(Killed):
        tx.commit()
    for branch in tx.branches.values():
        branch.discard()
    is_away = True

    def reach() -> Any:
        if is_away:
            raise xaqueue.OperationalError("it is away")
        return xaqueue.connect(spaces[1])

    scene.manage({**parties, "b": reach}, decides="db").transaction().rollback()
    eventually(lambda: scene.count("ended") == 1 and not scene.in_doubt(spaces[0]))
    eventually(lambda: not scene.select("gtrid from xaqueue_decisions where participants like 'a=%'"))
    is_away = False
    eventually(lambda: not any(scene.in_doubt(one) for one in spaces))
    eventually(lambda: not scene.select("gtrid from xaqueue_decisions where decision = 'commit'"))
    assert [scene.messages(one) for one in spaces] == [[1] * (step in ("committed-last", "commit"))] * 2


def test_sessions_whose_decisions_overlap_while_their_node_is_suspected(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no moment is none of eight on its way: whoever wants to end their node finds it deciding, and waits for
    nothing; none of them waits for that. Once they are over it is ended."""
    changed, deciding, is_over, done = threading.Condition(), 0, False, []
    commit = EnlistedBranch._commit_deciding

    def overlap(branch: EnlistedBranch) -> Any:
        nonlocal deciding
        if branch.source is not manager._sources["db"]:
            return commit(branch)
        with changed:
            deciding += 1
            changed.notify_all()
            assert changed.wait_for(lambda: deciding > 1 or is_over, PATIENCE_S)
            answer = commit(branch)
            deciding -= 1
            return answer

    impatient = partial(scene.connect, options="-c lock_timeout=1s")
    manager, other = scene.make(impatient), scene.make()
    put(manager, 0)
    put(other, 1)
    node = node_of(manager)
    node._closed.set()  # it gives no sign any more
    node._signed_s = float("inf")
    monkeypatch.setattr(EnlistedBranch, "_commit_deciding", overlap)
    numbers = count(2)

    def work() -> None:
        while not is_over:
            with changed:
                number = next(numbers)
            put(manager, number)
            done.append(number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: node_of(other)._seen.get(node.node, (0, 0))[1] > 2 * FAST.silent)
    assert scene.count("ended") == 0
    with changed:
        is_over = True
        changed.notify_all()
    for thread in threads:
        thread.join(PATIENCE_S)
    eventually(lambda: scene.count("ended") == 1)
    assert len(done) >= 8
    assert scene.rows == scene.messages() == sorted([0, 1, *done])


def test_with_sqlite_all_writers_wait_for_who_stands_still_behind_its_decision(
    files: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has to go on, or to end: nobody else can end it."""
    decided, goes_on = threading.Event(), threading.Event()
    commit = EnlistedBranch._commit_deciding

    def hold(branch: EnlistedBranch) -> Any:
        if branch.source is manager._sources["db"]:
            decided.set()
            assert goes_on.wait(PATIENCE_S)
        return commit(branch)

    manager, other = files.make(), files.make(partial(files.connect, timeout=0.1))
    put(other, 1)
    put(manager, 2)
    monkeypatch.setattr(EnlistedBranch, "_commit_deciding", hold)
    thread = threading.Thread(target=put, args=(manager, 3))
    thread.start()
    assert decided.wait(PATIENCE_S)
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            put(other, 4)
    goes_on.set()
    thread.join(PATIENCE_S)
    put(other, 5)
    assert files.rows == files.messages() == [1, 2, 3, 5]
    assert files.count("ended") == 0


def test_what_is_undecided_of_a_node_that_lives_is_left(scene: Scene) -> None:
    prepared, goes_on = threading.Event(), threading.Event()

    def hold(step: str, gtrid: bytes, name: str) -> None:
        if step == "commit-last":
            prepared.set()
            assert goes_on.wait(PATIENCE_S)

    manager, other = scene.make(on_step=hold), scene.make()
    thread = threading.Thread(target=put, args=(manager, 1))
    thread.start()
    assert prepared.wait(PATIENCE_S)
    put(other, 2)
    time.sleep(4 * FAST.sweep + FAST.sign * FAST.silent)
    assert len(scene.in_doubt()) == 1
    goes_on.set()
    thread.join(PATIENCE_S)
    assert scene.rows == scene.messages() == [1, 2]
    assert scene.count("ended") == 0


def test_a_clone_that_was_taken_while_a_node_lives_touches_nothing_of_it(
    files: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the node's row, which is silent there; an application of its own is on the same queue."""
    prepared, goes_on = threading.Event(), threading.Event()

    def hold(step: str, gtrid: bytes, name: str) -> None:
        if step == "commit-last" and len(names) > 1:
            prepared.set()
            assert goes_on.wait(PATIENCE_S)

    names: list[int] = []
    manager = files.make(on_step=hold)
    put(manager, 1)
    names.append(node_of(manager).epoch)
    shutil.copy(files.place.parent / "db", files.place / "clone")
    eventually(lambda: node_of(manager).epoch > names[0])
    names.append(node_of(manager).epoch)
    thread = threading.Thread(target=put, args=(manager, 2))
    thread.start()
    assert prepared.wait(PATIENCE_S)
    connect = partial(sqlite3.connect, files.place / "clone")
    clone = files.make(connect)
    put(clone, 3)
    eventually(lambda: files.select("count(*) from xaqueue_ended", connect)[0][0] == 1)
    eventually(lambda: "branch-left" in caplog.text)
    assert len(files.in_doubt()) == 1
    goes_on.set()
    thread.join(PATIENCE_S)
    assert files.rows == [1, 2]
    assert files.messages() == [1, 2, 3]


# Sweepers


class Watched(psycopg.Cursor[Any]):
    """Of a sweeper, to whom something happens at one of its statements, before or after that is carried out."""

    left = 0
    is_after = False
    happens: Callable[[], object]

    def execute(self, *arguments: Any, **options: Any) -> Any:
        Watched.left -= 1
        is_due = Watched.left == 0
        if is_due and not Watched.is_after:
            Watched.happens()
        super().execute(*arguments, **options)
        if is_due and Watched.is_after:
            Watched.happens()
        return self


def test_a_decision_goes_behind_what_was_listed_and_hardened(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue's commit behind a row is late: killed before it is hardened, its branch is in doubt again. One that comes
    between list and hardening is hardened, too."""
    sweeper, calls = Sweeper(scene, scene.connect), list[str]()
    scene.dead("committed", 1)

    def note(kind: type, name: str) -> None:
        call = getattr(kind, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return call(*arguments, **options)

        monkeypatch.setattr(kind, name, noted)

    note(NodeTables, "of_ended")
    note(NodeTables, "strike")
    note(Connection, "harden")
    note(Connection, "tpc_recover")
    sweeper.sweep()
    assert calls == ["of_ended", "tpc_recover", "harden", "strike"]
    assert scene.count("decisions") == 0


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("what", ["dies", "is overtaken"])
def test_two_sweepers_whatever_happens_to_one_at_any_statement(
    scene: Scene, dsn: str, what: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed, and the other one begins anew; or the other one does all of it in between, in its own time."""
    # Who stands still is not ended by the database here, for it may take longer than 5 s; a lock is waited for shortly.
    monkeypatch.setattr("xaqueue.tm.node_schema._HASTY", "set_config('lock_timeout', '100ms', true)")
    Watched.left = 0
    first, second = Sweeper(scene, partial(psycopg.connect, dsn, cursor_factory=Watched)), Sweeper(scene, scene.connect)
    Watched.is_after = is_after
    Watched.happens = staticmethod(die if what == "dies" else partial(second.sweep, "LockNotAvailable"))
    number = statement = 0
    while statement == 0 or Watched.left <= 0:
        statement += 1
        scene.dead("prepared", number + 1)
        scene.dead("committed-last", number + 2)
        scene.dead("committed", number + 3)
        number += 3
        Watched.left = statement
        with suppress(Killed):
            first.sweep()
        first.die()
        reached, Watched.left = Watched.left, 0
        second.sweep()
        second.sweep()
        assert scene.in_doubt() == []
        assert scene.rows == scene.messages() == [one for one in range(1, number + 1) if one % 3 != 1]
        assert scene.select("gtrid from xaqueue_decisions where decision = 'commit'") == []
        Watched.left = reached
    assert statement > 10
