"""With a journal, too, a failed write or sync fences the space, and what was acknowledged is there after a reopen."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.bare_space import ANY_QUEUE, BareSpace, bare_space
from support.fault_exercise import BILLS, RANGE, check_exercise, check_fenced, exercise
from support.space_scan import scan
from xaqueue.errors import DiskFull, ResourceFailed, RetryLater
from xaqueue.space.model import layout
from xaqueue.space.model.definitions import Definitions, QueueDefinition
from xaqueue.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.storage.journal_format import name_of
from xaqueue.xid import Xid

LEFT = ["A prepared", "A", "B prepared", "B", "C", "D"]
"""What the story acknowledges."""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", "JOURNAL") as opened:
        yield opened


class Said(list[str]):
    """What was acknowledged. The fault comes once there is so much of it."""

    def __init__(self, bare: BareSpace, after: int, call: str, path: str, number: int) -> None:
        super().__init__()
        self._bare = bare
        self._after = after
        self._fault = call, path, number

    def append(self, word: str) -> None:
        super().append(word)
        self.look()

    def look(self) -> None:
        call, path, number = self._fault
        if len(self) == self._after:
            self._bare.fs.faults[call, path] = number


def exercise_and_follow(bare: BareSpace, said: Said) -> None:
    """The directories follow at the end."""
    exercise(bare, said)
    bare.space.checkpoint()


def check_failure(bare: BareSpace, said: Said) -> Xid:
    """The story, and what a reopen finds. Returns a branch that was in doubt all the time."""
    witness = bare.prepare("witness", add=[("other", b"witness")])
    said.look()
    with pytest.raises(ResourceFailed, match="fenced"):
        exercise_and_follow(bare, said)
    check_fenced(bare, witness)
    assert len(bare.fs.struck) == 1, "a failed call was tried again"
    bare.fs.faults.clear()
    bare.reopen()
    check_exercise(bare, said)
    with closing(bare.connect()) as connection:
        connection.tpc_commit(witness)
    assert bare.take("other") == [b"witness"]
    bare.space.checkpoint()
    bare.crash()
    assert scan(bare.root) == []
    return witness


@pytest.mark.parametrize("after", range(len(LEFT)))
@pytest.mark.parametrize(
    ("call", "number"),
    [("write_at", errno.EIO), ("sync_data", errno.EIO), ("sync_data", errno.ENOSPC), ("sync_data", errno.EDQUOT)],
)
def test_a_failed_write_or_sync_of_the_journal_fences(bare: BareSpace, call: str, number: int, after: int) -> None:
    bare.put("orders", b"first", b"second")
    said = Said(bare, after, call, "journal/", number)
    check_failure(bare, said)
    assert said == LEFT[:after]


CHECKPOINT_FAILURES = [
    ("sync_all", "", errno.EIO),
    ("sync_all", "", errno.ENOSPC),
    ("create", RANGE, errno.EIO),
    ("create", RANGE, errno.EROFS),
    ("write_at", f"{BILLS}/.watermark", errno.EIO),
    ("unlink", RANGE, errno.EIO),
]


@pytest.mark.parametrize(("call", "path", "number"), CHECKPOINT_FAILURES)
def test_a_failure_while_the_directories_follow_fences_and_loses_nothing(
    bare: BareSpace, call: str, path: str, number: int
) -> None:
    bare.put("orders", b"first", b"second")
    bare.space.checkpoint()
    said = Said(bare, 0, call, path, number)
    check_failure(bare, said)
    assert said == LEFT


@pytest.mark.parametrize("call", ["create", "unlink"])
def test_a_failure_with_a_block_that_outlives_the_lag_fences(bare: BareSpace, call: str) -> None:
    bare.put("orders", b"first", b"second")
    assert bare.space.lag is not None
    with closing(bare.connect()) as connection:
        assert connection.dequeue("orders") is not None
        bare.fs.faults[call, "active/"] = errno.EIO
        if call == "unlink":
            bare.space.lag.flush()
            connection.commit()
        with pytest.raises(ResourceFailed):
            bare.space.checkpoint()
    assert [struck for struck, _ in bare.fs.struck] == [call]
    bare.fs.faults.clear()
    bare.reopen()
    assert bare.take("orders") == ([b"first", b"second"] if call == "create" else [b"second"])


def test_a_block_that_waits_for_room_keeps_no_journal_from_being_used_again(tmp_path: Path) -> None:
    """Whoever consumes on a full disk goes on, also where what goes leaves no room."""
    small = Definitions(default=QueueDefinition(), journal_segment_bytes=SMALLEST_SEGMENT_BYTES)
    with bare_space(tmp_path, "JOURNAL", definitions=small) as bare:
        bare.put("orders", *[b"x"] * 600)
        bare.space.checkpoint()
        for directory in ("active/", "journal/"):
            bare.fs.faults["create", directory] = errno.ENOSPC
        with closing(bare.connect()) as connection:
            while connection.dequeue("orders") is not None:
                connection.commit()
        assert {path.partition("/")[0] for _, path in bare.fs.struck} >= {"active", "journal"}
        bare.reopen()
        assert bare.take("orders") == []


STEP_FAILURES = [
    ("write_at", layout.TRIES, errno.EIO, 0),
    ("make_dir", BILLS, errno.EIO, 1),
    ("make_dir", f"{BILLS}/range=", errno.EROFS, 1),
]


@pytest.mark.parametrize(("call", "path", "number", "acknowledged"), STEP_FAILURES)
def test_a_failure_in_a_step_fences(bare: BareSpace, call: str, path: str, number: int, acknowledged: int) -> None:
    bare.put("orders", b"first", b"second")
    said = Said(bare, 0, call, path, number)
    check_failure(bare, said)
    assert said == LEFT[:acknowledged]


@pytest.mark.parametrize("call", ["sync_data", "rename", "sync_dir"])
def test_a_failure_while_a_segment_is_recycled_fences(tmp_path: Path, call: str) -> None:
    small = replace(ANY_QUEUE, journal_segment_bytes=SMALLEST_SEGMENT_BYTES)
    with bare_space(tmp_path / "space", "JOURNAL", definitions=small) as bare:
        journal = bare.space.barrier.journal
        assert journal is not None
        body = bytes(10_000)
        messages = 0
        bare.fs.faults["create", "journal/"] = errno.ENOSPC  # so that the next segment has to be a recycled one
        while not journal.full_segments:
            bare.put("orders", body)
            messages += 1
        bare.fs.faults.clear()
        bare.fs.struck.clear()
        if call == "sync_data":  # of the header of the segment that is recycled, and not of the checkpoint's record
            bare.fs.faults[call, f"journal/{name_of(2 * SMALLEST_SEGMENT_BYTES)}"] = errno.EIO
        else:
            bare.fs.faults[call, "journal"] = errno.EIO
        with pytest.raises(ResourceFailed):
            bare.space.checkpoint()
        assert len(bare.fs.struck) == 1
        bare.fs.faults.clear()
        bare.reopen()
        assert bare.take("orders") == [body] * messages


def test_everybody_in_a_round_whose_record_fails_is_told(bare: BareSpace) -> None:
    threads = 6
    together = threading.Barrier(threads)
    told: list[str] = []
    bare.put("orders", b"first")

    def run_one(name: int) -> None:
        with closing(bare.connect()) as connection:
            connection.tpc_begin(Xid(1, b"%d" % name, b"b"))
            connection.enqueue("orders", b"%d" % name)
            together.wait()
            try:
                connection.tpc_prepare()
            except ResourceFailed as failed:
                told.append(str(failed))

    bare.fs.faults["sync_data", "journal/"] = errno.EIO
    waiting = [threading.Thread(target=run_one, args=(name,)) for name in range(threads)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert len(told) == threads
    assert len(bare.fs.struck) == 1
    bare.fs.faults.clear()
    bare.reopen()
    with closing(bare.connect()) as connection:
        for xid in connection.tpc_recover():
            connection.tpc_rollback(xid)
    assert bare.take("orders") == [b"first"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_record_that_finds_no_room_concerns_its_step_alone(bare: BareSpace, number: int) -> None:
    """As where files are copied on write."""
    bare.put("orders", b"first")
    in_doubt = bare.prepare("in doubt", add=[("orders", b"second")])
    bare.fs.faults["write_at", "journal/"] = number
    with closing(bare.connect()) as connection:
        with pytest.raises(RetryLater, match="no room in the journal"):
            connection.tpc_commit(in_doubt)
        connection.tpc_begin(Xid(1, b"another", b"b"))
        connection.enqueue("orders", b"never")
        with pytest.raises(DiskFull, match="no room in the journal"):
            connection.tpc_prepare()
        bare.fs.faults.clear()
        connection.tpc_commit(in_doubt)
    bare.reopen()
    assert bare.in_doubt() == []
    assert bare.take("orders") == [b"first", b"second"]
