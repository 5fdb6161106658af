"""The decision log keeps what was decided, belongs to one process, and does not open where decisions may be lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.journals import FullFileSystem
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import Syncing
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.journal_format import Entry
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.errors import (
    DecisionLogDamaged,
    DecisionLogError,
    DecisionLogInUse,
    InvalidArgument,
    RetryLater,
)
from xaqueue.tm import log_directory
from xaqueue.tm.advice import LogStatus
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid, checked_name, parse_listed
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.log_directory import log_of_slot, open_log, take_over, view_log
from xaqueue.tm.records import Heuristic, TransactionState
from xaqueue.tm.slots import open_slot
from xaqueue.tm.voting import ParticipantOutcome as Ended
from xaqueue.xa import Outcome


def small(path: Path, fs: DirectoryFileSystem | None = None) -> DecisionLog:
    path.mkdir(exist_ok=True)
    return DecisionLog(fs or DirectoryFileSystem(path), segment_bytes=SMALLEST_SEGMENT_BYTES)


def gtrid_of(log: DecisionLog, counter: int) -> bytes:
    return bytes(Gtrid(log.node, log.epoch, counter))


def heuristic(gtrid: bytes) -> Heuristic:
    return Heuristic(gtrid, "a", Outcome.COMMITTED, Ended.HEUR_ROLLED_BACK, 7, "by an operator")


# Names


def test_the_name_of_a_transaction() -> None:
    name = Gtrid("0123456789abcdef", 0x2A, 0xFF)
    assert str(name) == "XAQ10123456789abcdef0000002a00000000000000ff"
    assert len(bytes(name)) == 44
    assert Gtrid.parse(bytes(name)) == Gtrid.parse(str(name)) == name


@pytest.mark.parametrize(
    "text", ["", "XAQ1", "XAQ2" + "0" * 40, "XAQ1" + "0" * 40, "XAQ1" + "A" * 40, "XAQ1" + "1" * 41, b"\xff" * 44]
)
def test_what_is_no_name_of_ours(text: str | bytes) -> None:
    assert Gtrid.parse(text) is None


@pytest.mark.parametrize(("node", "epoch", "counter"), [("0" * 15, 1, 1), ("0" * 16, 0, 1), ("0" * 16, 1, 2**64)])
def test_a_name_cannot_be_wrong(node: str, epoch: int, counter: int) -> None:
    with pytest.raises(InvalidArgument):
        Gtrid(node, epoch, counter)


def test_whose_a_listed_branch_is() -> None:
    name = Gtrid("0123456789abcdef", 1, 2)
    for parts in ((str(name), "ledger"), (bytes(name), b"ledger")):
        found = parse_listed((FORMAT_ID, *parts))
        assert found is not None
        assert (found.gtrid, found.participant) == (name, "ledger")
    for xid in ((1, str(name), "a"), (FORMAT_ID, "other", "a"), (None, str(name), None), (FORMAT_ID, str(name), None)):
        assert parse_listed(xid) is None
    assert checked_name("ledger") == "ledger"


# Decisions


def test_what_was_decided_and_is_not_done_is_there_after_a_reopen(tmp_path: Path) -> None:
    log = small(tmp_path)
    first, second, third = (gtrid_of(log, number) for number in (1, 2, 3))
    log.decide(first, ["a", "b"])
    log.decide(second, ["a"])
    log.decide(third, ["b"])
    assert not log.acknowledged(first, "a")
    assert log.acknowledged(second, "a")
    log.close()
    again = small(tmp_path)
    assert {name: made.participants for name, made in again.table.open.items()} == {first: ("a", "b"), third: ("b",)}
    assert again.table.open[first].outstanding == {"a", "b"}, "who has acknowledged is asked again"
    assert again.table.decision_on(first) is Outcome.COMMITTED
    assert again.table.decision_on(third) is Outcome.COMMITTED
    assert again.table.decision_on(second) is None
    assert (again.node, again.epoch) == (log.node, log.epoch + 1)


def test_done_rides_with_the_next_decision(tmp_path: Path) -> None:
    log = small(tmp_path)
    log.decide(gtrid_of(log, 1), ["a"])
    syncs = log.syncs
    assert log.acknowledged(gtrid_of(log, 1), "a")
    assert log.syncs == syncs
    log.decide(gtrid_of(log, 2), ["a"])
    assert log.syncs == syncs + 1
    assert set(view_log(tmp_path).table.open) == {gtrid_of(log, 2)}
    log.close()


def test_concurrent_decisions_share_syncs(tmp_path: Path) -> None:
    """While one sync takes place the others gather, and the next one is for all of them."""
    entered, goes_on = threading.Event(), threading.Event()

    class Slow(DirectoryFileSystem):
        slow = False

        def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
            if self.slow:
                entered.set()
                assert goes_on.wait(60)
            super().write_synced(path, offset, chunks, syncing)

    tmp_path.joinpath("log").mkdir()
    fs = Slow(tmp_path / "log")
    log = small(tmp_path / "log", fs)
    fs.slow = True
    syncs = log.syncs
    threads = [threading.Thread(target=log.decide, args=(gtrid_of(log, number), ["a"])) for number in range(1, 9)]
    threads[0].start()
    assert entered.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(log._commit._gathering) < 7:
        time.sleep(0.001)
    goes_on.set()
    for thread in threads:
        thread.join()
    assert len(log.table.open) == 8
    assert log.syncs == syncs + 2
    log.close()


def test_a_checkpoint_carries_over_what_dangles(tmp_path: Path) -> None:
    log = small(tmp_path)
    many = [f"{number:060}" for number in range(64)]
    dangling, noted = gtrid_of(log, 1), gtrid_of(log, 2)
    log.decide(dangling, ["a", "b"])
    log.note(heuristic(noted))
    for number in range(3, 60):
        log.decide(gtrid_of(log, number), many)
        for name in many:
            log.acknowledged(gtrid_of(log, number), name)
        if log.wants_checkpoint:
            log.checkpoint()
    log.close()
    segments = list((tmp_path / "journal").glob("*.log"))
    assert len(segments) <= 2, "what is covered is released"
    again = small(tmp_path)
    assert set(again.table.open) == {dangling}
    assert list(again.table.heuristics.values()) == [heuristic(noted)]


def test_heuristics_are_hardened_once_and_kept_until_they_are_forgotten(tmp_path: Path) -> None:
    log = small(tmp_path)
    gtrid = gtrid_of(log, 1)
    assert log.note(heuristic(gtrid))
    assert not log.note(heuristic(gtrid))
    log.close()
    log = small(tmp_path)
    assert log.table.heuristics == {(gtrid, "a"): heuristic(gtrid)}
    assert log.table.decision_on(gtrid) is Outcome.COMMITTED
    log.checkpoint()
    log.forget(gtrid)
    log.close()
    assert small(tmp_path).table.heuristics == {}


# A log that fails


def test_no_room_is_no_decision(tmp_path: Path) -> None:
    """What is done meanwhile is recorded once there is room again."""
    fs = FullFileSystem(tmp_path)
    log = small(tmp_path, fs)
    dangling, many = gtrid_of(log, 0), [f"{number:060}" for number in range(64)]
    log.decide(dangling, ["a"])
    fs.full = True

    def decide_all() -> None:
        for number in range(1, 100):
            log.decide(gtrid_of(log, number), many)
            for name in many:
                log.acknowledged(gtrid_of(log, number), name)

    with pytest.raises(RetryLater, match="no room"):
        decide_all()
    assert set(log.table.open) == {dangling}
    fs.full = False
    log.decide(gtrid_of(log, 100), ["a"])
    assert set(view_log(tmp_path).table.open) == {dangling, gtrid_of(log, 100)}
    log.close()


def test_with_no_room_old_segments_go_where_nothing_dangles(tmp_path: Path) -> None:
    fs = FullFileSystem(tmp_path)
    log = small(tmp_path, fs)
    fs.full = True
    many = [f"{number:060}" for number in range(64)]
    for number in range(1, 100):
        log.decide(gtrid_of(log, number), many)
        for name in many:
            log.acknowledged(gtrid_of(log, number), name)
    log.close()
    assert small(tmp_path).table.open == {}


def test_after_a_failed_sync_it_decides_nothing_more(tmp_path: Path, quiet: None) -> None:
    fs = FullFileSystem(tmp_path)
    log = small(tmp_path, fs)

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    fs.before["sync_data"] = fail
    with pytest.raises(DecisionLogError, match=r"Input/output error.*open it again"):
        log.decide(gtrid_of(log, 1), ["a"])
    fs.before.clear()
    verbs: list[Callable[[], None]] = [lambda: log.decide(gtrid_of(log, 2), ["a"]), log.check, log.checkpoint]
    for verb in verbs:
        with pytest.raises(DecisionLogError, match="takes no more decisions"):
            verb()
    log.close()
    assert set(small(tmp_path).table.open) <= {gtrid_of(log, 1)}


# Damage


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def with_decisions(path: Path, count: int = 3) -> list[bytes]:
    log = small(path)
    names = [gtrid_of(log, number) for number in range(1, count + 1)]
    for name in names:
        log.decide(name, ["a", "b"])
    log.close()
    return names


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("what", ["record", "header", "segments", "node", "node lost", "kind"])
def test_a_log_that_may_have_lost_decisions_does_not_open(tmp_path: Path, what: str) -> None:
    with_decisions(tmp_path)
    (segment, following) = sorted((tmp_path / "journal").glob("*.log"))
    if what == "record":
        flip(segment, 512 + 60)
    elif what == "header":
        flip(segment, 20)
    elif what == "segments":
        segment.unlink()
        following.unlink()
    elif what == "node":
        (tmp_path / "NODE").write_text("xaqueue-tm 1 what?\n")
    elif what == "node lost":
        (tmp_path / "NODE").unlink()
    else:
        log = DecisionLog(DirectoryFileSystem(tmp_path))
        log._journal.write([Entry(99, b"\xc1")])
        log._fs.close()
    before = content(tmp_path)
    with pytest.raises(DecisionLogDamaged, match=r"(?i)nothing was changed,? and nothing is rolled back"):
        small(tmp_path)
    with pytest.raises(DecisionLogDamaged):
        view_log(tmp_path)
    assert content(tmp_path) == before


def test_a_torn_tail_is_kept_and_cut_off(tmp_path: Path) -> None:
    names = with_decisions(tmp_path)
    segment = min((tmp_path / "journal").glob("*.log"))
    data = segment.read_bytes()
    last = data.rindex(b"XAQJ")
    flip(segment, last + 50)
    log = small(tmp_path)
    assert set(log.table.open) == set(names[:-1])
    log.close()
    (kept,) = (tmp_path / "journal").glob("*.archive")
    assert names[-1][-16:] in kept.read_bytes()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with_decisions(tmp_path)
    node = tmp_path / "NODE"
    node.write_text(node.read_text().replace("xaqueue-tm 1", "xaqueue-tm 2"))
    with pytest.raises(DecisionLogError, match=r"format 2.*newer"):
        small(tmp_path)


def test_a_log_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    class Unreadable(DirectoryFileSystem):
        def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with pytest.raises(DecisionLogError, match=r"Permission denied.*Nothing is rolled back"):
        small(tmp_path, Unreadable(tmp_path))


# The directory


def test_it_belongs_to_one_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "some" / "where"
    owned = open_log(place)
    assert is_owned(place)
    with pytest.raises(DecisionLogInUse, match=rf"process {os.getpid()} on .* since"):
        open_log(place)
    owned.close()
    assert not is_owned(place)
    open_log(place).close()


def test_a_directory_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(DecisionLogError, match="precious"):
        open_log(tmp_path)
    with pytest.raises(DecisionLogError, match="cannot be a decision log"):
        open_log(tmp_path / "precious" / "log")
    assert [child.name for child in tmp_path.iterdir()] == ["precious"]


def test_a_url_is_no_directory_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="is a URL, and a decision log is a directory"):
        open_log("xaq://host:7878")
    assert not [*tmp_path.iterdir()]


def test_two_logs_have_two_node_ids(tmp_path: Path) -> None:
    assert small(tmp_path / "a").node != small(tmp_path / "b").node


def test_a_log_is_looked_at_while_its_owner_is_at_work(tmp_path: Path) -> None:
    owned = open_log(tmp_path)
    gtrid = gtrid_of(owned, 1)
    owned.decide(gtrid, ["a", "b"])
    owned.note(heuristic(gtrid))
    view = view_log(tmp_path)
    assert (view.node, view.epoch, view.in_use) == (owned.node, 1, True)
    (shown,) = view.open
    assert (shown.gtrid, shown.state, shown.outstanding) == (gtrid, TransactionState.COMMITTING, ("a", "b"))
    assert shown.heuristics == (heuristic(gtrid),)
    assert view.table.decision_on(gtrid) is Outcome.COMMITTED
    assert view.table.decision_on(b"another") is None
    owned.close()
    assert not view_log(tmp_path).in_use


def test_a_log_knows_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a copy, by another host, behind a boot, and as an earlier version left it."""
    monkeypatch.setattr(log_directory, "_machine_id", lambda: "machine")
    here, copy = tmp_path / "log", tmp_path / "copy"
    owned = open_log(here)
    gtrid = Gtrid(owned.node, 1, 1)
    shutil.copytree(here, copy)
    (tmp_path / "link").symlink_to(here)
    statuses = {path.name: view_log(path).status(gtrid) for path in (here, copy, tmp_path / "link")}
    assert statuses == {"log": LogStatus.LIVE, "copy": LogStatus.ELSEWHERE, "link": LogStatus.LIVE}
    owned.close()
    assert view_log(here).status(gtrid) is LogStatus.NONE
    assert view_log(copy).status(gtrid) is LogStatus.ELSEWHERE
    with monkeypatch.context() as behind_a_boot:
        behind_a_boot.setattr(log_directory, "boot_id", lambda: "another")
        assert view_log(here).status(gtrid) is LogStatus.NONE
        for machine in ("another", ""):
            behind_a_boot.setattr(log_directory, "_machine_id", lambda machine=machine: machine)
            assert view_log(here).status(gtrid) is LogStatus.ELSEWHERE
        behind_a_boot.setattr(log_directory, "_machine_id", lambda: "machine")
        behind_a_boot.setattr("socket.gethostname", lambda: "another")
        assert view_log(here).status(gtrid) is LogStatus.ELSEWHERE
    owner = json.loads((copy / "owner").read_text())
    (copy / "lock").unlink()
    assert view_log(copy).is_elsewhere
    olds: list[Any] = [
        {key: owner[key] for key in ("node", "epoch", "pid", "host", "since")},
        {**owner, "lock": 7},
        [],
        "",
    ]
    for old in olds:
        (copy / "owner").write_text(json.dumps(old))
        assert view_log(copy).is_elsewhere is None
        assert view_log(copy).status(gtrid) is LogStatus.NONE
        assert "does not say where it was opened" in view_log(copy).use
    open_log(copy).close()
    assert view_log(copy).status(Gtrid(owned.node, 2, 1)) is LogStatus.NONE, "it is where it was opened last"


def test_a_copy_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would roll back what the other one commits. Behind a boot, a rename, and on another host that has the disk it
    is none."""
    here, copy = tmp_path / "log", tmp_path / "copy"
    open_log(here).close()
    open_log(log_of_slot(here, 1)).close()
    shutil.copytree(here, copy)
    for slot in (0, 1):
        for _ in range(2):
            with pytest.raises(DecisionLogError, match=f"`xaqueue tm recover --moved {copy}` takes this one over"):
                open_log(log_of_slot(copy, slot))
        assert view_log(log_of_slot(copy, slot)).epoch == 1
    with pytest.raises(DecisionLogError, match="is a copy of a log"):
        open_slot(copy)
    take_over(copy)
    for slot in (0, 1):
        assert view_log(log_of_slot(copy, slot)).epoch == 1, "what is newer than an old copy stays so"
        open_log(log_of_slot(copy, slot)).close()
    here.rename(tmp_path / "renamed")
    open_log(tmp_path / "renamed").close()
    monkeypatch.setattr(log_directory, "boot_id", lambda: "another")
    open_log(tmp_path / "renamed").close()
    monkeypatch.setattr(log_directory, "boot_id", lambda: "one more")
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert open_log(tmp_path / "renamed").epoch == 4


def test_looking_at_what_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(DecisionLogError, match="no decision log"):
        view_log(tmp_path)
    with pytest.raises(DecisionLogError, match="no decision log"):
        view_log(tmp_path / "missing")
