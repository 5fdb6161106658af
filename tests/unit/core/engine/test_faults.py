"""What the world does to a process: failing syncs, no descriptors, a kill, a clock that steps back (rules 8 and 10).

A failed write, sync or rename fences the space: nothing is tried twice, only a reopen clears it, and nothing that was
acknowledged is lost. A lack of descriptors is no failure: the call can be tried again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, bare_space
from support.fault_exercise import BILLS, RANGE, check_exercise, check_fenced, exercise
from support.space_scan import scan
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.errors import DiskFull, InvalidArgument, ResourceFailed, RetryLater, RolledBack
from xaqueue.features.streams import cleanup
from xaqueue.xid import Xid

# Failures that fence


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", DURABLE) as opened:
        yield opened


FAILURES = [
    ("create", "active/", errno.EIO),
    ("create", "active/", errno.EROFS),
    ("sync_data", "active/", errno.EIO),
    ("sync_data", "active/", errno.ENOSPC),
    ("sync_data", "active/", errno.EDQUOT),
    ("sync_dir", "active", errno.EIO),
    ("sync_dir", "prepared", errno.EIO),
    ("sync_dir", "prepared", errno.ENOSPC),
    ("sync_dir", RANGE, errno.EIO),
    ("sync_dir", BILLS, errno.EIO),
    ("sync_data", f"{BILLS}/.watermark", errno.EIO),
    ("rename", "prepared/", errno.EIO),
    ("rename", "prepared/1.c2V2ZXJhbA.Yg.commit", errno.EIO),
    ("rename", "prepared/1.c2V2ZXJhbA.Yg.002", errno.EIO),
    ("rename", RANGE, errno.EIO),
    ("rename", BILLS, errno.EROFS),
    ("make_dir", BILLS, errno.EIO),
    ("write_at", f"{BILLS}/.watermark", errno.EIO),
    ("unlink", RANGE, errno.EIO),
    ("unlink", "prepared/", errno.EIO),
    ("unlink", "prepared/1.c2V2ZXJhbA.Yg.commit", errno.EIO),
]


@pytest.mark.parametrize(("call", "path", "number"), FAILURES)
def test_a_failure_fences_the_space_and_a_reopen_loses_nothing(
    bare: BareSpace, call: str, path: str, number: int
) -> None:
    bare.put("orders", b"first", b"second")
    witness = bare.prepare("witness", add=[("other", b"witness")])
    said: list[str] = []
    bare.fs.faults[call, path] = number
    with pytest.raises(ResourceFailed, match="fenced"):
        exercise(bare, said)
    check_fenced(bare, witness)
    assert len(bare.fs.struck) == 1, "a failed call was tried again"
    bare.fs.faults.clear()
    bare.reopen()
    check_exercise(bare, said)
    with closing(bare.connect()) as connection:
        connection.tpc_commit(witness)
    assert bare.take("other") == [b"witness"]
    bare.crash()
    assert scan(bare.root) == []


def test_a_failed_early_sync_of_another_branch_is_no_disk_full(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many unsynced files: the oldest is synced early. Its failure, of whatever kind, must not pass for room."""
    monkeypatch.setattr("xaqueue.core.storage.directory_fs.OPEN_FILES", 4)
    first = bare.connect()
    first.tpc_begin(Xid(1, b"first", b"b"))
    first.enqueue("orders", b"early")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    with closing(bare.connect()) as second:
        for _ in range(3):
            second.enqueue("orders", b"x")
        with pytest.raises(ResourceFailed):
            second.enqueue("orders", b"one file too many")
    monkeypatch.undo()
    with pytest.raises(ResourceFailed):
        first.tpc_prepare()


@pytest.mark.parametrize("flags", ["FSYNC", "FSYNC;DSYNC"])
def test_with_fsync_a_failed_sync_of_content_fences_too(tmp_path: Path, flags: str) -> None:
    with bare_space(tmp_path / "space", flags) as bare:
        bare.put("orders", b"first")
        bare.fs.faults["sync_file", "active/"] = errno.EIO
        with closing(bare.connect()) as connection:
            connection.enqueue("orders", b"second")
            with pytest.raises(ResourceFailed):
                connection.commit()
        assert len(bare.fs.struck) == 1
        bare.fs.faults.clear()
        bare.reopen()
        assert bare.take("orders") == [b"first"]


SYNCS: dict[str, Callable[[Space], object]] = {
    "contents": lambda space: space.log.sync_contents([layout.watermark_path("orders")]),
    "names": lambda space: space.log.sync_names([layout.QUARANTINE]),
    "all": lambda space: space.sync_all(),
}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("sync", [DURABLE, "JOURNAL"])
@pytest.mark.parametrize("what", SYNCS)
def test_a_failed_sync_outside_a_step_fences(tmp_path: Path, what: str, sync: str, number: int) -> None:
    """None is "no room, try again": the kernel would say that all is well."""
    with bare_space(tmp_path / "space", sync) as bare:
        bare.put("orders", b"first")
        bare.space.settle()
        bare.fs.faults = {(call, ""): number for call in ("sync_data", "sync_dir", "sync_all")}
        for _ in range(2):
            with pytest.raises(ResourceFailed):
                SYNCS[what](bare.space)
        assert bare.space.log.fenced
        assert len(bare.fs.struck) == 1


@pytest.mark.parametrize(
    ("sync", "fault"), [(DURABLE, ("sync_dir", "prepared")), ("JOURNAL", ("sync_data", "journal/"))]
)
def test_everybody_who_waits_for_a_round_that_fails_is_told(tmp_path: Path, sync: str, fault: tuple[str, str]) -> None:
    threads = 6
    together = threading.Barrier(threads)
    told: list[str] = []

    def run_one(bare: BareSpace, name: int) -> None:
        with closing(bare.connect()) as connection:
            connection.tpc_begin(Xid(1, b"%d" % name, b"b"))
            connection.enqueue("orders", b"%d" % name)
            together.wait()
            try:
                connection.tpc_prepare()
            except ResourceFailed as failed:
                told.append(str(failed))

    with bare_space(tmp_path / "space", sync) as bare:
        bare.put("orders", b"first")
        bare.fs.faults[fault] = errno.EIO
        waiting = [threading.Thread(target=run_one, args=(bare, name)) for name in range(threads)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        assert len(told) == threads
        assert [call for call, _ in bare.fs.struck] == [fault[0]]
        bare.fs.faults.clear()
        bare.reopen()
        with closing(bare.connect()) as connection:
            for xid in connection.tpc_recover():
                connection.tpc_rollback(xid)
        assert bare.take("orders") == [b"first"]


# Limits of a process


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_an_enqueue_that_finds_no_descriptor_dooms_its_branch_alone(bare: BareSpace, number: int) -> None:
    with closing(bare.connect()) as connection, closing(bare.connect()) as other:
        other.enqueue("orders", b"other")
        bare.fs.faults["create", "active/"] = number
        with pytest.raises(DiskFull, match=os.strerror(number)):
            connection.enqueue("orders", b"third")
        bare.fs.faults.clear()
        with pytest.raises(RolledBack):
            connection.commit()
        other.commit()
        connection.enqueue("orders", b"again")
        connection.commit()
    assert bare.take("orders") == [b"other", b"again"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failure_while_closing_is_told_and_the_space_is_closed(bare: BareSpace, number: int) -> None:
    bare.put("orders", b"first")
    bare.fs.faults["write_at", "committed/queue=orders/.watermark"] = number
    with pytest.raises(ResourceFailed):
        bare.space.close()
    bare.space.close()
    bare.fs.faults.clear()
    bare.reopen()
    assert bare.take("orders") == [b"first"]


def test_a_failure_to_remove_what_expired_fences(tmp_path: Path) -> None:
    clock = Clock(NOON)
    with bare_space(tmp_path / "space", now_us=clock) as bare:
        with closing(bare.connect()) as connection:
            connection.enqueue("orders", b"expiring", expires_at=NOON + HOUR)
            connection.enqueue("orders", b"plain")
            connection.commit()
        bare.fs.faults["unlink", RANGE] = errno.EIO
        clock.now_us += HOUR
        assert bare.take("orders") == [b"plain"], "a dequeue removes nothing"
        for _ in range(2):
            with pytest.raises(ResourceFailed):
                cleanup.expire(bare.space)
        bare.fs.faults.clear()
        bare.reopen()
        assert bare.take("orders") == [b"plain"]


# The clock


class Clock:
    """Shows what the test says."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


HOUR = 3_600_000_000
NOON = 1_800_000_000_000_000


def test_a_clock_that_steps_back_changes_no_order_and_no_commit_time(tmp_path: Path) -> None:
    clock = Clock(NOON)
    with bare_space(tmp_path / "space", now_us=clock) as bare:
        for number, when in enumerate((NOON, NOON - HOUR, NOON - 2 * HOUR, NOON - HOUR // 2, NOON + 5)):
            clock.now_us = when
            bare.put("orders", b"%d" % number)
        times = [path.stat().st_mtime_ns for path in bare.messages("orders")]
        assert times == [NOON * 1000] * 4 + [(NOON + 5) * 1000]
        clock.now_us = NOON - 3 * HOUR
        bare.reopen()
        bare.put("orders", b"5")
        assert [path.stat().st_mtime_ns for path in bare.messages("orders")] == [*times, (NOON + 5) * 1000]
        assert bare.take("orders") == [b"0", b"1", b"2", b"3", b"4", b"5"]
        with closing(bare.connect()) as connection:
            assert [message.seq for message in connection.browse("orders")] == sorted(
                message.seq for message in connection.browse("orders")
            )
        bare.crash()
        assert scan(bare.root) == []


def test_delayed_messages_follow_the_clock_back_and_forth(tmp_path: Path) -> None:
    clock = Clock(NOON)
    with bare_space(tmp_path / "space", now_us=clock) as bare, closing(bare.connect()) as connection:
        connection.enqueue("orders", b"delayed", not_before=NOON + HOUR)
        connection.enqueue("orders", b"expiring", expires_at=NOON + 2 * HOUR)
        connection.enqueue("orders", b"plain")
        connection.commit()
        assert bare.take("orders") == [b"expiring", b"plain"]
        clock.now_us = NOON + HOUR
        assert bare.take("orders") == [b"delayed", b"expiring", b"plain"]
        clock.now_us = NOON - HOUR
        assert bare.take("orders") == [b"expiring", b"plain"]
        clock.now_us = NOON + HOUR
        assert bare.take("orders") == [b"delayed", b"expiring", b"plain"]
        clock.now_us = NOON + 2 * HOUR
        assert bare.take("orders") == [b"delayed", b"plain"]
        clock.now_us = NOON
        assert bare.take("orders") == [b"plain"], "what has expired does not come back"
        assert cleanup.expire(bare.space)
        bare.reopen()
        assert bare.take("orders") == [b"plain"]


def test_message_ids_stay_unique_over_a_restart_with_an_earlier_clock(tmp_path: Path) -> None:
    clock = Clock(NOON)
    with bare_space(tmp_path / "space", now_us=clock) as bare:
        bare.put("orders", b"first")
        (path,) = bare.messages("orders")
        given = bytes.fromhex(path.name.split(".")[1])
        clock.now_us = NOON - HOUR
        bare.reopen()
        with closing(bare.connect()) as connection, pytest.raises(InvalidArgument, match="ids are unique"):
            connection.enqueue("orders", b"again", message_id=given)


NO_RIGHTS = [errno.EACCES, errno.EPERM]


@pytest.mark.parametrize("number", NO_RIGHTS)
@pytest.mark.parametrize("sync", [DURABLE, "JOURNAL"])
def test_a_message_that_this_user_may_not_read_stays_where_it_is(tmp_path: Path, sync: str, number: int) -> None:
    """Somebody's chmod, or a restore as root, is no damage: nothing goes to quarantine for it."""
    with bare_space(tmp_path / "space", sync) as bare:
        bare.put("q", b"1", b"2")
        bare.reopen()
        with closing(bare.connect()) as connection:
            bare.fs.faults["read", layout.COMMITTED] = number
            for _ in range(2):
                with pytest.raises(RetryLater, match=r"as the user that the space belongs to.*rights and owner back"):
                    connection.dequeue("q")
                with pytest.raises(RetryLater, match="rights and owner back"):
                    list(connection.browse("q"))
            connection.rollback()
        assert (bare.space.failure, bare.quarantined()) == (None, [])
        bare.fs.faults.clear()
        assert bare.take("q") == [b"1", b"2"]


@pytest.mark.parametrize("number", NO_RIGHTS)
@pytest.mark.parametrize("sync", [DURABLE, "JOURNAL"])
def test_a_branch_in_doubt_that_this_user_may_not_read_keeps_the_space_closed(
    tmp_path: Path, sync: str, number: int
) -> None:
    with bare_space(tmp_path / "space", sync) as bare:
        xid = bare.prepare("x", add=[("q", b"1")])
        bare.space.log.settle()
        bare.crash()
        bare.fs.faults["read", "prepared/"] = number
        with pytest.raises(PermissionError):
            bare.reopen()
        bare.fs.faults.clear()
        bare.reopen()
        assert (bare.in_doubt(), bare.quarantined()) == ([xid], [])
