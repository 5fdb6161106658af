"""Processes that share a directory of decisions: who has which slot, and who finishes what one has left that ended."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.forgetful import Crashed
from support.patience import PATIENCE_S, eventually
from support.tm_world import COMMITTED, PREPARED, ROLLED_BACK, Bank, BankConnection, OperationalError, World
from xaqueue import TransactionManager
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.errors import DecisionLogDamaged, DecisionLogInUse, UnknownXid
from xaqueue.tm import manager as managers
from xaqueue.tm import slots
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.log_directory import every_log, log_of_slot, open_log, view_log, view_logs
from xaqueue.tm.records import Heuristic
from xaqueue.tm.slots import open_slot
from xaqueue.tm.voting import ParticipantOutcome
from xaqueue.xa import Outcome

PAUSE_S = 0.02


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "log"


def banks(*names: str) -> dict[str, Bank]:
    world = World()
    return {name: Bank(world, name) for name in names}


def over(log_dir: Path, found: dict[str, Bank], interval_s: float = PAUSE_S, **options: Any) -> TransactionManager:
    connects = {name: bank.connect for name, bank in found.items()}
    return TransactionManager(log_dir, connects, recovery_interval_s=interval_s, **options)


class Ended:
    """A process that has had a slot and is killed."""

    def __init__(self, log_dir: Path, number: int, found: dict[str, Bank]) -> None:
        self.path, self.banks, self.counter = log_of_slot(log_dir, number), found, 0
        self.log = open_log(self.path)

    def prepared(self, *names: str, is_decided: bool, gone: str = "") -> bytes:
        """A transaction at these; gone: who has committed already."""
        self.counter += 1
        gtrid = bytes(Gtrid(self.log.node, self.log.epoch, self.counter))
        for name in names:
            self.banks[name].branches[FORMAT_ID, gtrid.decode(), name] = COMMITTED if name == gone else PREPARED
        if is_decided:
            self.log.decide(gtrid, names)
        return gtrid

    def killed(self) -> None:
        assert self.log.owner is not None
        self.log.owner.release()


def is_done(found: dict[str, Bank], gtrid: bytes, state: str) -> bool:
    return {one for bank in found.values() for xid, one in bank.branches.items() if xid[1] == gtrid.decode()} == {state}


# Who has which


def test_each_has_the_first_that_is_free(log_dir: Path) -> None:
    with over(log_dir, banks("a")) as first, over(log_dir, banks("a")) as second:
        with over(log_dir, banks("a")) as third:
            assert len({first.node, second.node, third.node}) == 3
            assert every_log(log_dir) == [log_dir, log_dir / "slots" / "1", log_dir / "slots" / "2"]
            assert [view.node for view in view_logs(log_dir)] == [first.node, second.node, third.node]
        nodes = first.node, second.node
        second.close()
        with over(log_dir, banks("a")) as again:
            assert (again.node, again.epoch) == (nodes[1], 2)
    with over(log_dir, banks("a")) as again:
        assert (again.node, again.epoch) == (nodes[0], 2)
    assert len(every_log(log_dir)) == 3, "none is ever removed"


def test_one_that_is_named_is_one(log_dir: Path) -> None:
    """Tools say which log they mean."""
    with over(log_dir, banks("a")), over(log_dir, banks("a")) as second:
        for open_it in (open_log, open_slot):
            with pytest.raises(DecisionLogInUse, match=r"slots/1 is in use by process"):
                open_it(log_dir / "slots" / "1")
        with pytest.raises(DecisionLogInUse):
            open_log(log_dir)
        second.close()
        with over(log_dir / "slots" / "1", banks("a")) as named:
            assert named.node == second.node
    assert len(every_log(log_dir)) == 2


def test_many_that_start_at_once_have_one_each(log_dir: Path) -> None:
    go = threading.Barrier(8)

    def open_one(_: int) -> DecisionLog:
        go.wait(PATIENCE_S)
        return open_slot(log_dir)

    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(open_one, range(8)))
    assert len({log.node for log in opened}) == 8
    assert {log.owner.root for log in opened if log.owner} == set(every_log(log_dir))
    for log in opened:
        log.close()
    assert not any(is_owned(path) for path in every_log(log_dir))


def test_other_files_beside_the_numbers_are_no_slots(log_dir: Path) -> None:
    with over(log_dir, banks("a")):
        (log_dir / "slots").mkdir()
        (log_dir / "slots" / "lost+found").mkdir()
        assert every_log(log_dir) == [log_dir]


class Watched(DirectoryFileSystem):
    """Ends its process at one call, and knows of names that no sync has put on disk."""

    left = 0
    names: set[tuple[str, str]] = set()  # noqa: RUF012

    def _look(self) -> None:
        if Watched.left == 0:
            raise Crashed
        Watched.left -= 1

    def make_dir(self, path: str) -> None:
        self._look()
        super().make_dir(path)
        assert "/" not in path or os.path.dirname(path)  # noqa: PTH120
        Watched.names.add((os.path.realpath(self.root), path))

    def sync_dir(self, path: str) -> None:
        self._look()
        super().sync_dir(path)
        at = os.path.realpath(Path(self.root, path))
        Watched.names = {(parent, name) for parent, name in Watched.names if parent != at}

    def rename(self, source: str, target: str) -> None:
        self._look()
        super().rename(source, target)

    def sync_data(self, path: str) -> None:
        self._look()
        super().sync_data(path)


@pytest.mark.parametrize("is_shared", [False, True])
def test_killed_at_any_call_of_its_making(tmp_path: Path, is_shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes next has a whole slot, and each of its names is on disk, whoever has made it."""
    from xaqueue.tm import log_directory

    monkeypatch.setattr(log_directory, "DirectoryFileSystem", Watched)
    for calls in range(200):
        root = tmp_path / str(calls)
        Watched.left = -1
        with ExitStack() as stack:
            if is_shared:
                stack.callback(open_slot(root).close)
            Watched.left, Watched.names = calls, set()
            is_whole = False
            try:
                open_slot(root).close()
                is_whole = True
            except Crashed:
                pass
            Watched.left = -1
            log = open_slot(root)
            assert not {name for name in Watched.names if "journal" not in name}, calls
            assert log.owner is not None
            assert log.owner.root == log_of_slot(root, int(is_shared))
            log.close()
        if is_whole:
            assert calls > 8
            return
    raise AssertionError("it never comes to its end")


def test_another_that_comes_at_any_call_of_its_making(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes make one slot at once: each has its own in the end."""
    from xaqueue.tm import log_directory

    for at in range(12):
        root, calls, others = log_dir / str(at), iter(range(at)), list[DecisionLog]()

        class Disturbed(DirectoryFileSystem):
            def _step(self) -> None:
                if next(calls, None) is None and not others:  # noqa: B023
                    others.append(None)  # type: ignore[arg-type]  # noqa: B023
                    others[0] = open_slot(root)  # noqa: B023

            def make_dir(self, path: str) -> None:
                self._step()
                super().make_dir(path)

            def sync_dir(self, path: str) -> None:
                super().sync_dir(path)
                self._step()

        first = open_slot(root)
        with monkeypatch.context() as patched:
            patched.setattr(log_directory, "DirectoryFileSystem", Disturbed)
            second = open_slot(root)
        opened = [first, second, *others]
        assert len({log.node for log in opened}) == len({log.owner.root for log in opened if log.owner}) == len(opened)
        assert others or at > 4
        for log in opened:
            log.close()


# What one has left


def test_what_it_has_left_is_finished(log_dir: Path) -> None:
    found = banks("a", "b")
    ended = Ended(log_dir, 1, found)
    decided, undecided = ended.prepared("a", "b", is_decided=True), ended.prepared("a", "b", is_decided=False)
    half = ended.prepared("a", "b", is_decided=True, gone="a")
    with over(log_dir, found) as tm:
        tm.recover(PATIENCE_S)
        assert {xid for bank in found.values() for xid in bank.prepared()} == {
            (FORMAT_ID, gtrid.decode(), name)
            for gtrid, names in ((decided, "ab"), (undecided, "ab"), (half, "b"))
            for name in names
        }, "it lives"
        ended.killed()
        eventually(lambda: not any(bank.prepared() for bank in found.values()))
        assert is_done(found, decided, COMMITTED)
        assert is_done(found, undecided, ROLLED_BACK)
        assert is_done(found, half, COMMITTED)
        eventually(lambda: not (is_owned(ended.path) or view_log(ended.path).open))
        assert tm.epoch == 1


@pytest.mark.parametrize("number", [0, 1, 3])
def test_recover_waits_for_it(log_dir: Path, number: int) -> None:
    found = banks("a", "b")
    for each in range(number):
        open_log(log_of_slot(log_dir, each)).close()
    ended = Ended(log_dir, number, found)
    decided, undecided = ended.prepared("a", "b", is_decided=True), ended.prepared("a", is_decided=False)
    with ExitStack() as stack:
        if number == 0:  # which is not free when it starts
            tm = stack.enter_context(over(log_dir, found, PATIENCE_S))
        ended.killed()
        if number:
            tm = stack.enter_context(over(log_dir, found, PATIENCE_S))
        tm.recover(PATIENCE_S)
        assert tm._slots is not None
        assert tm._slots.adopt(PATIENCE_S, at_once=True) == [], "though nobody was asked since"
        again = tm.recover(PATIENCE_S)
        assert (again.complete, again.committed, again.rolled_back) == (True, 0, 0)
        assert is_done(found, decided, COMMITTED)
        assert is_done(found, undecided, ROLLED_BACK)
        assert tm.in_doubt() == []


def test_nothing_is_opened_in_vain(log_dir: Path) -> None:
    found = banks("a")
    for number in (0, 1, 2):
        open_log(log_of_slot(log_dir, number)).close()
    with over(log_dir, found) as tm, over(log_dir, found) as other, other.transaction("a"):
        for _ in range(3):
            tm.recover(PATIENCE_S)
        assert [view.epoch for view in view_logs(log_dir)] == [2, 2, 1]


def test_one_that_is_being_made_is_left_to_its_maker(log_dir: Path) -> None:
    found = banks("a")
    with over(log_dir, found) as tm:
        log_of_slot(log_dir, 1).mkdir(parents=True)
        assert tm._slots is not None
        assert tm._slots.adopt(PATIENCE_S, at_once=True) == []
        assert list(log_of_slot(log_dir, 1).iterdir()) == []
        with over(log_dir, found) as second:
            assert second.node == view_log(log_of_slot(log_dir, 1)).node


def test_what_arrives_late_is_finished_too(log_dir: Path) -> None:
    """A prepare that was on its way while its process was killed, and its slot adopted."""
    found = banks("a", "b")
    ended = Ended(log_dir, 1, found)
    ended.prepared("a", "b", is_decided=True)
    ended.killed()
    with over(log_dir, found) as tm:
        tm.recover(PATIENCE_S)
        late = ended.prepared("b", is_decided=False)
        eventually(lambda: is_done(found, late, ROLLED_BACK))


def test_a_participant_that_is_down_is_waited_for(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The slot is not held meanwhile: a process that starts may have it."""
    found = banks("a", "b")
    ended = Ended(log_dir, 1, found)
    decided = ended.prepared("a", "b", is_decided=True)
    ended.killed()
    found["b"].is_down = True
    with over(log_dir, found) as tm:
        assert not tm.recover(PATIENCE_S).complete
        assert [one.gtrid for one in tm.in_doubt()] == [decided]
        eventually(lambda: not is_owned(ended.path))
        open_log(ended.path).close()
        found["b"].is_down = False
        eventually(lambda: is_done(found, decided, COMMITTED))
    said = [record.message for record in caplog.records if "participant-waits" in record.message]
    assert len(said) < 4, "once, and not by each that has adopted it"


def test_one_that_hangs_holds_nobody_up(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "ROUND_S", 0.05)
    monkeypatch.setattr(managers, "CLOSE_PATIENCE_S", 0.05)
    goes_on, found = threading.Event(), banks("a", "b")

    class Hanging(BankConnection):
        def tpc_commit(self, xid: Any = None) -> None:
            assert goes_on.wait(PATIENCE_S)
            super().tpc_commit(xid)

    ended, other = Ended(log_dir, 1, found), Ended(log_dir, 2, found)
    decided, undecided = ended.prepared("a", "b", is_decided=True), other.prepared("a", is_decided=False)
    ended.killed()
    other.killed()
    connects: dict[str, Callable[[], Any]] = {"a": found["a"].connect, "b": lambda: Hanging(found["b"])}
    with TransactionManager(log_dir, connects, recovery_interval_s=PAUSE_S):
        eventually(lambda: is_done(found, undecided, ROLLED_BACK) and not found["a"].prepared())
        eventually(lambda: not is_owned(ended.path))
        before, epoch = threading.active_count(), view_log(ended.path).epoch
        pause = threading.Event()
        pause.wait(0.3)
        assert threading.active_count() <= before
        assert view_log(ended.path).epoch == epoch
        goes_on.set()
        eventually(lambda: is_done(found, decided, COMMITTED))


def test_an_older_copy_is_left_alone(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A few more openings, and a branch of the right log's later life would be rolled back."""
    found = banks("a")
    ended = Ended(log_dir, 1, found)
    ended.killed()
    later = bytes(Gtrid(ended.log.node, 3, 1))
    found["a"].branches[FORMAT_ID, later.decode(), "a"] = PREPARED
    with over(log_dir, found) as tm:
        for _ in range(5):
            tm.recover(PATIENCE_S)
        eventually(lambda: "it is an older copy, of epoch 1: a branch of epoch 3 is in doubt" in caplog.text)
        assert is_done(found, later, PREPARED)
    assert view_log(ended.path).epoch == 1
    assert caplog.text.count("older copy") == 1


@pytest.mark.parametrize("what", ["NODE", "journal"])
def test_a_damaged_one_stops_no_other(log_dir: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    found = banks("a")
    ended, other = Ended(log_dir, 1, found), Ended(log_dir, 2, found)
    decided = ended.prepared("a", is_decided=True)
    undecided = other.prepared("a", is_decided=False)
    ended.killed()
    other.killed()
    if what == "NODE":
        (ended.path / "NODE").write_text("nothing\n")
    else:
        for segment in (ended.path / "journal").iterdir():
            segment.unlink()
    with over(log_dir, found):
        eventually(lambda: is_done(found, undecided, ROLLED_BACK))
        eventually(lambda: "slots/1: the decision log is damaged" in caplog.text)
        assert is_done(found, decided, PREPARED)
    holder = open_log(log_dir)
    with pytest.raises(DecisionLogDamaged, match=r"slots/1: the decision log is damaged"):
        over(log_dir, found)
    holder.close()


def test_what_nobody_has_any_more_is_said(log_dir: Path) -> None:
    """A participant that is configured nowhere: the rest is finished, and the slot is not opened again and again."""
    found = banks("a", "b")
    ended = Ended(log_dir, 1, found)
    decided = ended.prepared("a", "b", is_decided=True)
    ended.killed()
    with over(log_dir, {"a": found["a"]}, 30.0) as tm:
        eventually(lambda: not found["a"].prepared() and not is_owned(ended.path))
        (left,) = tm.in_doubt()
        assert left.gtrid == decided
        epoch = view_log(ended.path).epoch
        tm._slots._heard.set()  # type: ignore[union-attr]
        eventually(lambda: not tm._slots._heard.is_set())  # type: ignore[union-attr]
        assert view_log(ended.path).epoch == epoch


def test_heuristics_are_kept_and_forgotten_there(log_dir: Path) -> None:
    found = banks("a")
    ended = Ended(log_dir, 1, found)
    gtrid = ended.prepared(is_decided=False)
    ended.log.note(Heuristic(gtrid, "a", Outcome.COMMITTED, ParticipantOutcome.HEUR_ROLLED_BACK, 1, "by hand"))
    with over(log_dir, found) as tm:
        with pytest.raises(UnknownXid):
            tm.forget(gtrid)
        ended.killed()
        tm.recover(PATIENCE_S)
        assert view_log(ended.path).epoch == 1, "which are no reason to open it"
        assert [one.gtrid for one in tm.in_doubt()] == [gtrid]
        assert [one.participant for one in tm.forget(gtrid)] == ["a"]
        assert tm.in_doubt() == []
        with pytest.raises(UnknownXid):
            tm.forget(gtrid)


def test_close_stops_an_adoption(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "ROUND_S", PATIENCE_S)
    monkeypatch.setattr(managers, "CLOSE_PATIENCE_S", 0.2)
    goes_on, found = threading.Event(), banks("a")

    class Hanging(BankConnection):
        def tpc_recover(self) -> Any:
            goes_on.wait(PATIENCE_S)
            raise OperationalError("gone")

    ended = Ended(log_dir, 1, found)
    decided = ended.prepared("a", is_decided=True)
    ended.killed()
    tm = TransactionManager(log_dir, {"a": lambda: Hanging(found["a"])}, recovery_interval_s=PAUSE_S)
    eventually(lambda: is_owned(ended.path))
    tm.close()
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("xaqueue-tm-slots")], 5.0)
    assert not is_owned(ended.path)
    goes_on.set()
    assert is_done(found, decided, PREPARED)


def test_two_that_live_do_it_once(log_dir: Path) -> None:
    found = banks("a", "b")
    ended = Ended(log_dir, 2, found)
    decided = [ended.prepared("a", "b", is_decided=True) for _ in range(20)]
    with over(log_dir, found) as one, over(log_dir, found) as other:
        ended.killed()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda tm: tm.recover(PATIENCE_S), (one, other)))
        eventually(lambda: all(is_done(found, gtrid, COMMITTED) for gtrid in decided))
        eventually(lambda: not (is_owned(ended.path) or view_log(ended.path).open))
    for bank in found.values():
        assert sorted(gtrid for verb, gtrid in bank.calls if verb == "commit") == sorted(g.decode() for g in decided)


def test_it_starts_again_while_its_slot_is_adopted(log_dir: Path) -> None:
    """It has another slot then, and finds what it had left finished."""
    found = banks("a", "b")
    with over(log_dir, found):
        for life in range(12):
            ended = Ended(log_dir, 1 + life % 3, found)
            decided, undecided = ended.prepared("a", "b", is_decided=True), ended.prepared("a", "b", is_decided=False)
            ended.killed()
            with over(log_dir, found) as again:
                eventually(lambda: is_done(found, decided, COMMITTED))  # noqa: B023
                eventually(lambda: is_done(found, undecided, ROLLED_BACK))  # noqa: B023
                with again.transaction("a", "b"):
                    pass
            eventually(lambda: not any(is_owned(path) for path in every_log(log_dir)[1:]))
    assert len(every_log(log_dir)) <= 4


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, "xaqueue"):
        yield
