"""A last participant without two phases decides by its own commit, and by the row that commits with it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.forgetful import Crashed, Tree
from support.tm_both import pytest_generate_tests, way  # noqa: F401
from support.tm_last_scene import FILES, Scene
from support.tm_world import COMMITTED, PREPARED, ROLLED_BACK, Rig
from xaqueue import TransactionManager
from xaqueue.cli.tm_config import ParticipantConfig, opener
from xaqueue.errors import InvalidArgument, OperationalError, OutcomeUnknown, RolledBack
from xaqueue.tm import branch, driver, last_resource
from xaqueue.tm.branch import enlist
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.last_resource import DecisionRows
from xaqueue.tm.participant import Participant, sources
from xaqueue.tm.records import TransactionState
from xaqueue.xa import Code, Outcome

ROWS = DecisionRows()

WAYS = ("general",)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for connection in made.opened:
        connection.close()


def test_it_is_committed_between_the_phases_with_its_row(scene: Scene) -> None:
    rig = scene.boot()
    assert scene.transact(rig, "one", "a", "b") is Outcome.COMMITTED
    assert scene.files == ["one"]
    assert scene.states() == {COMMITTED}
    assert scene.rows == ["commit"]
    assert rig.log.table.open == {}
    rig.recover()
    assert scene.rows == [], "rows go once everybody has acknowledged"


def test_the_log_hardens_nothing_for_it_but_once_a_life(scene: Scene) -> None:
    """From which on a branch without a decision is not presumed to be rolled back."""
    rig = scene.boot()
    syncs = rig.log.syncs
    for name in ("one", "two", "three"):
        scene.transact(rig, name, "a", "b")
    assert rig.log.syncs == syncs + 1
    assert rig.log.table.lasts == {FILES: (rig.log.epoch, rig.log.epoch)}
    rig.log.close()
    rig = scene.boot()
    assert rig.log.table.lasts == {FILES: (1, 1)}
    scene.transact(rig, "four", "a", "b")
    rig.log.checkpoint()
    rig.log.close()
    assert scene.boot().log.table.lasts == {FILES: (1, 2)}


def test_alone_it_needs_no_row(scene: Scene) -> None:
    rig = scene.boot()
    assert scene.transact(rig, "one") is Outcome.COMMITTED
    syncs = rig.log.syncs
    scene.a.votes_read_only = True
    assert scene.transact(rig, "two", "a") is Outcome.COMMITTED
    assert (scene.files, scene.rows, rig.log.syncs) == (["one", "two"], [], syncs)


def test_without_it_a_transaction_is_as_any_other(scene: Scene) -> None:
    rig = scene.boot()
    assert rig.transact("a", "b").outcome is Outcome.COMMITTED
    rig.recover()
    assert scene.rows == []


def test_those_of_sqlite3_are_not_kept(scene: Scene) -> None:
    """Each is its thread's, and an unfinished SELECT would keep its snapshot for the next transaction."""
    rig = scene.boot()
    for name in ("one", "two"):
        assert scene.transact(rig, name, "a") is Outcome.COMMITTED
    assert rig.coordinator.sources[FILES]._idle == []
    for connection in scene.opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("select 1")


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_that_is_replaced_between_transactions_gets_the_next_one(tmp_path: Path, mode: str) -> None:
    """As a restored backup is."""
    path, backup = tmp_path / "files.db", tmp_path / "backup.db"
    for one in (path, backup):
        with contextlib.closing(sqlite3.connect(one)) as connection:
            connection.execute(f"pragma journal_mode = {mode}")
            connection.execute("create table files (number integer)")
    participants = {FILES: lambda: sqlite3.connect(path)}
    with TransactionManager(tmp_path / "log", participants, last_resource=FILES) as manager:
        manager.recover()
        for number in range(2):
            with manager.transaction() as tx:
                tx[FILES].execute("insert into files values (?)", (number,))
            if number == 0:
                backup.replace(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select number from files").fetchall() == [(1,)]


def left_in_a_transaction(connection: sqlite3.Connection) -> None:
    connection.execute("insert into files values ('left behind')")


def left_without_transactions(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None


@pytest.mark.parametrize("leave", [left_in_a_transaction, left_without_transactions])
def test_a_connection_that_is_not_at_rest_is_not_kept(
    scene: Scene, leave: Callable[[sqlite3.Connection], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "is_shared", lambda _: True)
    source = scene.boot().coordinator.sources[FILES]
    connection = source.open()
    leave(connection)
    source.return_connection(connection, source.abilities(connection))
    assert source.take_idle() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("select 1")
    assert scene.files == []


def test_a_transaction_never_meets_what_an_unread_select_saw(tmp_path: Path) -> None:
    """With the journal mode WAL such a statement keeps the state of the database that it began with."""
    path = tmp_path / "db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table t (n integer)")
        connection.executemany("insert into t values (?)", [(n,) for n in range(5)])
        connection.commit()
    with TransactionManager(
        tmp_path / "log", {FILES: lambda: sqlite3.connect(path, timeout=1)}, last_resource=FILES
    ) as manager:
        with manager.transaction() as tx:
            unread = tx[FILES].execute("select n from t")
            assert unread.fetchone() == (0,)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("delete from t")
            connection.commit()
        with manager.transaction() as tx:
            assert tx[FILES].execute("select count(*) from t").fetchone() == (0,)
            tx[FILES].execute("insert into t values (7)")
        del unread


def test_it_is_rolled_back_where_another_refuses(scene: Scene) -> None:
    scene.b.faults = {"prepare": ["refused"]}
    with pytest.raises(RolledBack, match="'b'"):
        scene.transact(scene.boot(), "one", "a", "b")
    assert (scene.files, scene.rows, scene.states()) == ([], [], {ROLLED_BACK})


def test_the_others_are_rolled_back_where_it_cannot_commit(scene: Scene) -> None:
    """Deferred constraints fail at the commit, and the row goes with it."""
    rig = scene.boot()
    with contextlib.closing(sqlite3.connect(scene.path)) as connection:
        connection.execute("create table child (name text references files deferrable initially deferred)")
    with pytest.raises(RolledBack, match="FOREIGN KEY"), rig.transaction("a", "b", FILES) as tx:
        tx[FILES].execute("insert into child values ('nobody')")
    assert (scene.rows, scene.states()) == ([], {ROLLED_BACK})
    assert all(report.complete for report in rig.recover().values())
    assert rig.coordinator.in_doubt() == []


def test_a_locked_database_is_no_decision(scene: Scene) -> None:
    rig = scene.boot()
    scene.transact(rig, "zero", "a")
    with contextlib.closing(sqlite3.connect(scene.path)) as other:
        other.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            scene.transact(rig, "one", "a", "b")
    assert scene.files == ["zero"]


@pytest.mark.parametrize(
    ("step", "committed"),
    [
        ((Step.PREPARED, "b"), False),
        ((Step.COMMIT_LAST, FILES), False),
        ((Step.COMMITTED_LAST, FILES), True),
        ((Step.COMMIT, "a"), True),
        ((Step.COMMITTED, "a"), True),
        ((Step.COMMITTED, "b"), True),
        ((Step.DONE, ""), True),
    ],
    ids=str,
)
def test_dead_at_any_step_the_row_decides(scene: Scene, step: tuple[Step, str], committed: bool) -> None:
    gtrid = scene.die(*step)
    rig = scene.boot()
    for _ in range(2):
        assert all(report.complete for report in rig.recover().values())
    assert scene.files == (["one"] if committed else [])
    assert scene.states() == {COMMITTED if committed else ROLLED_BACK}
    rig.recover()
    assert scene.rows == ([] if committed else ["rollback"])
    rig.recover()
    assert rig.coordinator.in_doubt() == []
    assert rig.coordinator.outcome(gtrid) in (
        Outcome.COMMITTED if committed else Outcome.ROLLED_BACK,
        Outcome.UNKNOWN,
    )
    rig.log.close()
    scene.boot().recover()
    assert scene.rows == [], "what rules a commit out goes once the life that could have made it is over"


def test_undecided_as_long_as_it_cannot_be_read(scene: Scene) -> None:
    gtrid = scene.die(Step.COMMITTED_LAST, FILES)
    scene.is_down = True
    for _ in range(2):
        rig = scene.boot()
        reports = rig.recover()
        assert not reports[FILES].complete
        assert reports["a"].left == [gtrid]
        assert scene.states() == {PREPARED}
        (left,) = rig.coordinator.in_doubt()
        assert (left.state, left.last_resource) == (TransactionState.UNDECIDED, FILES)
        assert left.outstanding == ("a", "b")
        assert "unable to open" in left.trouble[FILES]
    scene.is_down = False
    rig.recover()
    assert scene.states() == {COMMITTED}


def test_undecided_as_long_as_it_is_not_configured(scene: Scene) -> None:
    """A transaction manager that is started without it must not take its decisions for none."""
    scene.die(Step.COMMITTED_LAST, FILES)
    rig = scene.boot(last=None)
    rig.recover()
    assert scene.states() == {PREPARED}
    (left,) = rig.coordinator.in_doubt()
    assert "configured" in left.trouble[FILES]
    scene.boot().recover()
    assert scene.states() == {COMMITTED}


@pytest.mark.parametrize(("fault", "outcome"), [("answer lost", Outcome.COMMITTED), ("request lost", None)])
def test_a_commit_without_an_answer_is_read(scene: Scene, fault: str, outcome: Outcome | None) -> None:
    rig = scene.boot()
    scene.transact(rig, "zero", "a")
    scene.faults.append(fault)
    if outcome is Outcome.COMMITTED:
        assert scene.transact(rig, "one", "a", "b") is outcome
        assert scene.files == ["one", "zero"]
    else:
        with pytest.raises(RolledBack, match="request lost"):
            scene.transact(rig, "one", "a", "b")
        assert scene.files == ["zero"]
        assert scene.rows == ["commit", "rollback"], "a commit that is still on its way can never succeed"
    rig.recover()
    assert scene.rows == ([] if outcome is Outcome.COMMITTED else ["rollback"])


@pytest.mark.parametrize("fault", ["answer lost", "request lost"])
def test_a_commit_without_an_answer_that_cannot_be_read_is_in_doubt(
    scene: Scene, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch, "READ_S", 0.1)
    rig = scene.boot()
    scene.transact(rig, "zero", "a")

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT_LAST:
            scene.faults.append(fault)
            scene.is_down = True

    rig.coordinator.step = on_step
    with pytest.raises(OutcomeUnknown, match="in doubt") as raised:
        scene.transact(rig, "one", "a", "b")
    assert raised.value.xid is not None
    gtrid = raised.value.xid.gtrid
    assert FILES in rig.woken
    assert rig.coordinator.outcome(gtrid) is Outcome.IN_DOUBT
    rig.recover()
    assert len(scene.a.prepared()) == len(scene.b.prepared()) == 1
    scene.is_down = False
    rig.recover()
    committed = fault == "answer lost"
    assert rig.coordinator.outcome(gtrid) is (Outcome.COMMITTED if committed else Outcome.ROLLED_BACK)
    assert scene.files == (["one", "zero"] if committed else ["zero"])
    assert set(scene.world.states(gtrid).values()) == {COMMITTED if committed else ROLLED_BACK}


def test_what_is_being_decided_is_nobody_elses(scene: Scene) -> None:
    """Its row must not be made impossible by recovery, which would find it undecided."""
    rig = scene.boot()
    seen: list[bytes] = []

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMITTED_LAST:
            assert (rig.coordinator.undecided(), rig.coordinator.in_doubt()) == ([], [])
            assert rig.coordinator.outcome(gtrid) is Outcome.IN_DOUBT
            assert all(report.complete for report in rig.recover().values())
            seen.append(gtrid)

    rig.coordinator.step = on_step
    assert scene.transact(rig, "one", "a", "b") is Outcome.COMMITTED
    assert len(seen) == 1


@pytest.mark.parametrize("fault", ["answer lost", "request lost"])
def test_a_database_that_is_back_in_a_moment_is_waited_for(scene: Scene, fault: str) -> None:
    rig = scene.boot()
    scene.transact(rig, "zero", "a")

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT_LAST:
            scene.faults.append(fault)
            scene.is_down = True
            threading.Timer(0.2, setattr, (scene, "is_down", False)).start()

    rig.coordinator.step = on_step
    if fault == "answer lost":
        assert scene.transact(rig, "one", "a", "b") is Outcome.COMMITTED
    else:
        with pytest.raises(RolledBack, match="request lost"):
            scene.transact(rig, "one", "a", "b")
    assert rig.coordinator.in_doubt() == []


@pytest.mark.parametrize("look", ["mark", "in_doubt"])
def test_a_transaction_that_begins_while_recovery_looks_around_is_live(scene: Scene, look: str) -> None:
    """It was not among the live ones a moment before, and its record is in the log already."""
    rig = scene.boot()
    scene.transact(rig, "zero", "a")
    lock, decided, goes_on = rig.log.lock, threading.Event(), threading.Event()

    def wait(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT:
            decided.set()
            assert goes_on.wait(60)

    rig.coordinator.step = wait
    late = threading.Thread(target=scene.transact, args=(rig, "one", "a", "b"), daemon=True)

    class Late:
        """The log's lock; whoever takes it first has been overtaken."""

        def __enter__(self) -> None:
            rig.log.lock = lock
            late.start()
            assert decided.wait(60)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    rig.log.lock = Late()  # type: ignore[assignment]
    try:
        if look == "mark":
            assert not rig.coordinator.outstanding("a", rig.coordinator.snapshot())
        else:
            assert getattr(rig.coordinator, look)() == []
    finally:
        goes_on.set()
        late.join()
    assert rig.log.lock is lock
    assert scene.files == ["one", "zero"]


def test_the_row_of_a_transaction_that_is_not_done_stays(scene: Scene) -> None:
    rig = scene.boot()
    scene.a.faults = {"commit": ["request lost"]}
    scene.transact(rig, "one", "a", "b")
    scene.a.is_down = True
    for _ in range(2):
        rig.recover()
        assert scene.rows == ["commit"]
    scene.a.is_down = False
    rig.recover()
    rig.recover()
    assert scene.rows == []


def test_rows_of_others_stay(scene: Scene, tmp_path: Path) -> None:
    first = scene.boot()
    scene.transact(first, "one", "a", "b")
    first.log.close()
    mine, scene.fs = scene.fs, Tree({}).open()
    scene.boot().recover()
    assert scene.rows == ["commit"]
    scene.fs = mine
    last = scene.boot()
    for _ in range(2):
        last.recover()
    assert scene.rows == []


def test_what_is_done_is_durable_before_its_row_goes(scene: Scene) -> None:
    """Or else recovery would read no row, and take what everybody has committed for rolled back."""
    rig = scene.boot()
    scene.transact(rig, "one", "a", "b")
    rig.resolvers[FILES].run_once()
    assert scene.rows == []
    for tree in scene.fs.trees_after_crash(limit=32):
        scene.fs = tree.open()
        assert scene.boot().log.table.open == {}


@pytest.mark.parametrize("options", [{"isolation_level": None}, {"autocommit": True}], ids=str)
def test_a_connection_that_commits_by_itself_is_refused(scene: Scene, options: dict[str, Any]) -> None:
    if "autocommit" in options and not hasattr(sqlite3.Connection, "autocommit"):
        made = type("Auto", (sqlite3.Connection,), {"autocommit": True})
        options = {"factory": made}
    rig = Rig(scene.fs, {"a": scene.a.connect, FILES: lambda: sqlite3.connect(scene.path, **options)}, last=FILES)
    with pytest.raises(InvalidArgument, match="autocommit"), rig.transaction("a", FILES):
        pass
    assert scene.states() == {ROLLED_BACK}


PATIENCE_S = 60.0


def test_over_where_all_that_had_to_answer_acted_by_themselves(scene: Scene) -> None:
    rig = scene.boot((Step.DONE, ""))
    scene.a.faults = {"commit": ["hand-rollback"]}
    with contextlib.suppress(Crashed):
        scene.transact(rig, "one", "a")
    rig = scene.boot()
    rig.recover()
    (left,) = rig.coordinator.in_doubt()
    assert left.state is TransactionState.HEURISTIC
    rig.log.forget(left.gtrid)
    assert rig.coordinator.in_doubt() == []


def test_a_successor_that_has_ruled_it_out_is_not_overtaken(scene: Scene) -> None:
    """Closed in the middle of a commit that hangs, and opened again: the row that kept it out is gone by then."""
    scene.level = "DEFERRED"  # it has not written yet
    rig = scene.boot()
    successor: list[Rig] = []

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMIT_LAST and not successor:
            for _ in range(2):
                [rig, *successor][-1].log.close()
                successor.append(Rig(scene.fs, {"a": scene.a.connect, FILES: scene.connect}, last=FILES))
                successor[-1].recover()

    rig.coordinator.step = on_step
    tx = rig.transaction("a", FILES).__enter__()
    with pytest.raises(RolledBack):
        tx.commit()
    assert (scene.states(), scene.rows) == ({ROLLED_BACK}, [])
    assert successor[-1].coordinator.in_doubt() == []


@pytest.mark.parametrize("sqlstate", ["08007", "08P01", "40003", "57P01", "58000", "XX000"])
def test_a_pooler_that_lost_the_database_has_not_said_no(scene: Scene, sqlstate: str) -> None:
    class Lost(sqlite3.OperationalError):
        pass

    class Pooled(sqlite3.Connection):
        def commit(self) -> None:
            told = self.in_transaction and self.execute(f"select count(*) from {last_resource.TABLE}").fetchone()[0]
            super().commit()
            if told:
                error = Lost("server conn crashed?")
                error.sqlstate = sqlstate  # type: ignore[attr-defined]
                raise error

    rig = scene.boot()
    rig.recover()

    def connect() -> sqlite3.Connection:
        scene.opened.append(sqlite3.connect(scene.path, timeout=0.05, factory=Pooled))
        return scene.opened[-1]

    rig.coordinator.sources[FILES].participant = Participant(connect)
    assert scene.transact(rig, "one", "a", "b") is Outcome.COMMITTED
    assert (scene.files, scene.states()) == (["one"], {COMMITTED})


def test_another_database_does_not_decide(scene: Scene, tmp_path: Path) -> None:
    """A path as seen from elsewhere: sqlite3 makes the file, and no row is in it."""
    gtrid = scene.die(Step.COMMITTED_LAST, FILES)
    right, scene.path = scene.path, tmp_path / "elsewhere.db"
    with contextlib.closing(sqlite3.connect(scene.path)) as connection:
        connection.execute("create table files (name text primary key)")
    rig = scene.boot()
    assert "another database, or an old copy" in rig.recover()[FILES].error
    with pytest.raises(OperationalError, match="another database, or an old copy"):
        scene.transact(rig, "two", "a")
    with contextlib.closing(sqlite3.connect(scene.path)) as connection:
        connection.execute(last_resource.create_statement(Dialect.SQLITE))
    assert "is not there" in rig.recover()[FILES].error, "a table of somebody else's decisions makes it no better"
    assert scene.a.branches[next(xid for xid in scene.a.branches if xid[1] == gtrid.decode())] == PREPARED
    scene.path = right
    scene.boot().recover()
    assert set(scene.world.states(gtrid).values()) == {COMMITTED}


def test_it_is_rolled_back_by_its_own_thread(scene: Scene, tmp_path: Path) -> None:
    """sqlite3 refuses another one, and the database stays locked for as long as somebody has the connection."""
    parties: dict[str, Any] = {
        "a": side_by_side(scene.a.connect),
        FILES: lambda: sqlite3.connect(scene.path, timeout=0.05),
    }
    with TransactionManager(tmp_path / "log", parties, last_resource=FILES) as manager:
        tx = manager.transaction("a", FILES).__enter__()
        kept = tx[FILES]
        kept.execute("insert into files values ('one')")
        tx.rollback()
        with contextlib.closing(sqlite3.connect(scene.path, timeout=PATIENCE_S)) as other, other:
            other.execute("insert into files values ('two')")
    assert scene.files == ["two"]
    kept.close()


def test_an_operators_command_makes_no_database(tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        opener(ParticipantConfig("files", "sqlite", str(path)))()
    assert not path.exists()


def test_interrupted_behind_a_commit_in_one_phase_it_is_not_called_rolled_back(scene: Scene) -> None:
    scene.a.votes_read_only = True
    rig = scene.boot()

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.COMMITTED:
            raise KeyboardInterrupt

    rig.coordinator.step = on_step
    tx = rig.transaction("a", FILES).__enter__()
    tx[FILES].execute("insert into files values ('one')")
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert scene.files == ["one"]
    assert tx.outcome is rig.coordinator.outcome(tx.gtrid) is Outcome.UNKNOWN


@pytest.mark.parametrize(("at", "told"), [(Step.COMMIT_LAST, "rolled back"), (Step.COMMITTED_LAST, "in doubt")])
def test_cut_off_around_the_commit_that_decides_it_is_told_later(scene: Scene, at: Step, told: str) -> None:
    class Cut(BaseException):
        pass

    rig = scene.boot()

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is at:
            raise Cut

    rig.coordinator.step = on_step
    tx = rig.transaction("a", FILES).__enter__()
    tx["a"].work()
    tx[FILES].execute("insert into files values ('one')")
    with pytest.raises(Cut):
        tx.commit()
    assert tx.outcome is rig.coordinator.outcome(tx.gtrid) is Outcome(told)
    rig.recover()
    decided = COMMITTED if at is Step.COMMITTED_LAST else ROLLED_BACK
    assert (scene.states(), scene.files) == ({decided}, ["one"] if decided == COMMITTED else [])
    assert (rig.coordinator.in_doubt(), rig.coordinator.undecided()) == ([], [])


def side_by_side(connect: Any) -> Participant:
    return Participant(connect, parallel=True)


def test_one_that_took_too_long_is_rolled_back_before_its_database_decides(scene: Scene) -> None:
    rig = scene.boot()

    def on_step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.PREPARED:
            tx._deadline = 0.0

    rig.coordinator.step = on_step
    tx = rig.transaction("a", FILES).__enter__()
    tx[FILES].execute("insert into files values ('one')")
    with pytest.raises(RolledBack, match="it took more than 60 s") as raised:
        tx.commit()
    assert raised.value.code is Code.XA_RBTIMEOUT
    assert (scene.files, scene.rows, scene.states()) == ([], [], {ROLLED_BACK})
    assert not rig.coordinator.is_undecided(tx.gtrid)


def test_two_databases_without_two_phases_do_not_share_a_transaction(scene: Scene) -> None:
    participants: dict[str, Any] = {"a": scene.a.connect, FILES: scene.connect, "other": scene.connect}
    rig = Rig(scene.fs, participants)
    with pytest.raises(InvalidArgument, match="'files' and 'other' have no two-phase commit"):
        rig.transaction("a", FILES, "other").__enter__()
    assert (scene.files, scene.states()) == ([], {ROLLED_BACK})
    for name in (FILES, "other"):
        with rig.transaction() as tx:
            tx["a"].work()
            tx[name].execute("insert into files values (?)", (name,))
    assert scene.files == [FILES, "other"]
    assert rig.log.table.lasts.keys() == {FILES, "other"}


def test_without_two_phases_and_with_two_phases_for_all_exclude_one_another(scene: Scene) -> None:
    with pytest.raises(InvalidArgument, match="exclude one another"):
        sources({FILES: scene.connect}, FILES, two_phase=True)
    with pytest.raises(InvalidArgument, match="too long"):
        sources({f"{number:064}": scene.connect for number in range(40)}, None)


def test_sqlite_syncs_the_commit_that_decides(scene: Scene) -> None:
    source = sources({FILES: scene.connect}, None)[FILES]
    connection = scene.connect()
    connection.execute("pragma synchronous = normal")
    source.participant = Participant(lambda: connection)
    enlisted = enlist(source, bytes(Gtrid("0123456789abcdef", 1, 1)))
    assert enlisted.connection.execute("pragma synchronous").fetchone() == (2,)


class Mysql:
    """A connection of a MySQL that says so of its settings."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings, self.said = settings, ""

    def cursor(self) -> Mysql:
        return self

    def execute(self, statement: str) -> None:
        self.said = self.settings[statement.removeprefix("SELECT @@GLOBAL.")]

    def fetchall(self) -> list[tuple[str]]:
        return [(self.said,)]

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"log_bin": "0", "innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit = 1"),
        ({"log_bin": "1", "innodb_flush_log_at_trx_commit": "1", "sync_binlog": "0"}, "sync_binlog = 1"),
    ],
)
def test_a_mysql_that_does_not_sync_is_refused_with_the_setting(settings: dict[str, str], named: str) -> None:
    connection = type("Connection", (Mysql,), {"__module__": "pymysql.connections"})(settings)
    with pytest.raises(InvalidArgument, match=f"SET GLOBAL {named}"):
        ROWS.make_ready(connection, "0123456789abcdef", is_known=False)
