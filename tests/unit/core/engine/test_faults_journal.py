"""With a journal, too, a failed write or sync fences the space, and what was acknowledged is there after a reopen."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.bare_space import ANY_QUEUE, DURABLE, BareSpace, bare_space
from support.fault_exercise import BILLS, RANGE, check_exercise, check_fenced, exercise
from support.space_scan import scan
from xaqueue.core.engine.journal_log import JournalLog
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.journal_format import name_of
from xaqueue.errors import DiskFull, ResourceFailed, RetryLater
from xaqueue.features.retries.register import TRIES
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
    ("create", "active/.replay", errno.EIO),
    ("set_modified_ns", "active/.replay", errno.EIO),
    ("rename", RANGE, errno.EIO),
    ("rename", RANGE, errno.EROFS),
    ("write_at", f"{BILLS}/.watermark", errno.EIO),
    ("unlink", RANGE, errno.EIO),
    ("make_dir", BILLS, errno.EIO),
    ("make_dir", f"{BILLS}/range=", errno.EROFS),
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


@pytest.mark.parametrize("verb", ["dequeue", "browse", "receive"])
@pytest.mark.parametrize(
    ("call", "path", "number"),
    [
        ("rename", "committed/queue=orders/range=", errno.EIO),
        ("rename", "committed/queue=orders/range=", errno.EROFS),
        ("write_at", "committed/queue=orders/.watermark", errno.EIO),
        ("write_at", "committed/queue=orders/.watermark", errno.ESTALE),
    ],
)
def test_a_read_for_which_the_directories_cannot_follow_says_nothing_of_the_message(
    bare: BareSpace, call: str, path: str, number: int, verb: str
) -> None:
    """It is not where it was, and not yet where it is going to be; what fails then is no damage of it."""
    branch = bare.prepare("branch", add=[("orders", b"whole")])
    bare.reopen()  # so that memory has it no more
    with closing(bare.connect()) as connection:
        connection.tpc_commit(branch)
        bare.fs.faults[call, path] = number
        with pytest.raises(ResourceFailed, match="fenced"):
            list(getattr(connection, verb)("orders") or ())
    assert len(bare.fs.struck) == 1
    bare.fs.faults.clear()
    bare.reopen()
    assert (bare.take("orders"), bare.quarantined()) == ([b"whole"], [])


def test_whoever_consumes_on_a_full_disk_goes_on(tmp_path: Path) -> None:
    """Also where what goes leaves no room, and a step is recorded in a journal that cannot grow."""
    small = Definitions(default=QueueDefinition(), journal_segment_bytes=SMALLEST_SEGMENT_BYTES)
    with bare_space(tmp_path, "JOURNAL", definitions=small) as bare:
        bare.put("orders", *[b"x"] * 600)
        bare.space.checkpoint()
        bare.fs.faults["create", "journal/"] = bare.fs.faults["write_at", TRIES] = errno.ENOSPC
        with closing(bare.connect()) as connection:
            while connection.dequeue("orders") is not None:
                connection.commit()
        assert {path.partition("/")[0] for _, path in bare.fs.struck} == {TRIES, "journal"}
        bare.reopen()
        assert bare.take("orders") == []


@pytest.mark.parametrize(
    ("sync", "fault"),
    [
        *(("JOURNAL", ("create", "active/.replay")), ("JOURNAL", ("rename", RANGE))),
        *(("JOURNAL", ("rename", "quarantine/")), (DURABLE, ("rename", "quarantine/"))),
    ],
)
def test_a_damaged_message_found_on_a_full_disk_is_set_aside_later(
    tmp_path: Path, sync: str, fault: tuple[str, str]
) -> None:
    """Before that its queue must be as the journal says. Where either finds no room, that is no failure."""
    with (
        bare_space(tmp_path / "space", sync, definitions=replace(ANY_QUEUE, cache_bytes=0)) as bare,
        closing(bare.connect()) as connection,
    ):
        bare.put("orders", b"damaged", b"whole")
        bare.space.checkpoint()
        path = bare.message_file("orders", b"damaged")
        path.write_bytes(b"rubbish")
        bare.put("orders", b"waits")
        bare.fs.faults[fault] = errno.ENOSPC
        for _ in range(2):
            with pytest.raises(RetryLater, match="no room"):
                connection.dequeue("orders")
            assert (path.exists(), bare.quarantined(), bare.space.failure) == (True, [], None)
        bare.fs.faults.clear()
        assert bare.take("orders") == [b"whole", b"waits"]
        assert len(bare.quarantined()) == 1
        assert len(list((bare.root / layout.QUARANTINE).iterdir())) == 2, "with its reason, once"
        bare.reopen()
        assert bare.take("orders") == [b"whole", b"waits"]


def test_a_try_that_cannot_be_recorded_fences(bare: BareSpace) -> None:
    bare.put("orders", b"first", b"second")
    said = Said(bare, 0, "write_at", TRIES, errno.EIO)
    check_failure(bare, said)
    assert said == []


@pytest.mark.parametrize("call", ["sync_data", "rename", "sync_dir"])
def test_a_failure_while_a_segment_is_recycled_fences(tmp_path: Path, call: str) -> None:
    small = replace(ANY_QUEUE, journal_segment_bytes=SMALLEST_SEGMENT_BYTES)
    with bare_space(tmp_path / "space", "JOURNAL", definitions=small) as bare:
        assert isinstance(bare.space.log, JournalLog)
        journal = bare.space.log.journal
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


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_sync_that_fails_where_a_step_makes_room_in_the_journal_fences(tmp_path: Path, number: int) -> None:
    """Whatever its error: it is not the journal that has no room."""
    small = replace(ANY_QUEUE, journal_segment_bytes=SMALLEST_SEGMENT_BYTES)
    with bare_space(tmp_path / "space", "JOURNAL", definitions=small) as bare:
        bare.fs.faults["create", "journal/"] = errno.ENOSPC
        bare.fs.faults["sync_all", ""] = number
        with pytest.raises(ResourceFailed):
            bare.put("orders", *[bytes(10_000)] * 30)
        messages = len(bare.space.queues["orders"].index)
        assert [call for call, _ in bare.fs.struck].count("sync_all") == 1
        assert bare.space.log.fenced
        bare.fs.faults.clear()
        bare.reopen()
        assert len(bare.take("orders")) == messages > 0


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
