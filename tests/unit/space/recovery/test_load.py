"""Opening reads every message once, in order, whatever it finds on the way, and says how far it is."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import BareSpace, bare_space, lay
from xaqueue.message import MessageId, Properties
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout
from xaqueue.space.model.block import HEAD_READ_BYTES
from xaqueue.space.model.layout import RANGE_SIZE
from xaqueue.space.recovery import load, readers

MANY = 3 * readers.SLICE + 7


@pytest.fixture(autouse=True, params=["warm", "cold"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the disk was waited for, so that threads read what follows."""
    if request.param == "cold":
        monkeypatch.setattr(readers, "blocks_read", count().__next__)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path) as space:
        yield space


def identity(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def seqs(space: Space) -> list[int]:
    return [entry.seq for entry in space.queues["q"].index.entries(0)]


def test_many_are_read_at_once_and_come_in_their_order(bare: BareSpace) -> None:
    for seq in range(1, MANY + 1):
        lay(bare, seq, identity(seq), body=b"%d" % seq)
    space = bare.reopen()
    assert seqs(space) == list(range(1, MANY + 1))
    assert [space.queues["q"].index.take(0).seq for _ in range(MANY)] == list(range(1, MANY + 1))  # type: ignore[union-attr]


def test_what_is_damaged_among_many_is_set_aside_and_nothing_else(bare: BareSpace) -> None:
    paths = [lay(bare, seq, identity(seq)) for seq in range(1, MANY + 1)]
    damaged = [1, readers.SLICE, readers.SLICE + 1, MANY]
    for seq in damaged:
        paths[seq - 1].write_bytes(b"x")
    (paths[0].parent / "notes").write_text("x")
    space = bare.reopen()
    assert seqs(space) == [seq for seq in range(1, MANY + 1) if seq not in damaged]
    assert len(space.report.quarantined) == len(damaged) + 1
    assert len(bare.quarantined()) == len(damaged) + 1


def test_an_error_that_concerns_the_space_ends_the_opening(bare: BareSpace) -> None:
    for seq in range(1, MANY + 1):
        lay(bare, seq, identity(seq))
    bare.fs.faults["read", layout.message_path("q", MANY // 2, identity(MANY // 2))] = errno.EMFILE
    with pytest.raises(OSError, match="open files"):
        bare.reopen()
    bare.fs.faults.clear()
    assert len(seqs(bare.reopen())) == MANY


def test_everything_that_decides_a_turn_is_read(bare: BareSpace) -> None:
    given = Properties(
        "q", correlation_id=b"c", priority=7, not_before=5, expires_at=2**60, tries=2, content_type="text/plain"
    )
    lay(bare, 1, identity(1), given)
    lay(bare, 2, identity(2), Properties("q", headers={"k": "v"}, group="g", dedup_key=b"d", traceparent="t"))
    lay(bare, 3, identity(3), Properties("q", unknown={"later": 1}))
    lay(bare, 4, identity(4), body=bytes(HEAD_READ_BYTES))
    first, *others = bare.reopen().queues["q"].index.entries(0)
    assert (first.correlation_id, first.priority, first.not_before, first.expires_at, first.tries) == (
        *(b"c", 7, 5, 2**60, 2),
    )
    assert [entry.is_plain for entry in others] == [True, True, True]
    assert [entry.size_bytes for entry in (first, *others)] == [path.stat().st_size for path in bare.messages("q")]


@pytest.mark.parametrize("other", [Properties("r"), Properties("")])
def test_a_message_of_another_queue_is_set_aside(bare: BareSpace, other: Properties) -> None:
    lay(bare, 1, identity(1), other)
    assert "belongs to queue" in bare.reopen().report.quarantined[0]


def test_a_message_under_the_name_of_another_is_set_aside(bare: BareSpace) -> None:
    lay(bare, 1, identity(1)).rename(bare.root / layout.message_path("q", 1, identity(2)))
    assert "not the one it is named after" in bare.reopen().report.quarantined[0]


def test_commit_times_go_on_behind_the_newest_message(bare: BareSpace) -> None:
    later_ns = time.time_ns() + 10**12
    os.utime(lay(bare, 1, identity(1)), ns=(later_ns, later_ns))
    bare.reopen()
    bare.put("q", b"2")
    assert bare.messages("q")[-1].stat().st_mtime_ns >= later_ns // 1000 * 1000


def test_of_two_messages_with_one_number_or_one_id_the_first_is_kept(bare: BareSpace) -> None:
    lay(bare, 1, identity(1))
    lay(bare, 1, identity(2))
    lay(bare, 2, identity(1))
    lay(bare, 2, identity(3))
    space = bare.reopen()
    assert [(entry.seq, entry.message_id) for entry in space.queues["q"].index.entries(0)] == [
        *((1, identity(1)), (2, identity(3))),
    ]
    assert sorted("twice" in text for text in space.report.quarantined) == [False, True]
    assert len(space.queues["q"].index) == 2


def test_progress_ends_with_as_many_as_there_are(bare: BareSpace) -> None:
    numbers = [*range(1, 11), *range(RANGE_SIZE, RANGE_SIZE + 2), 9 * RANGE_SIZE]
    for seq in numbers:
        lay(bare, seq, identity(seq))
    told: list[tuple[int, int]] = []
    bare.crash()
    opened = Space(
        bare.fs, bare.space.definitions, hardening=bare.space.hardening, progress=lambda *at: told.append(at)
    )
    assert told == [(10, 30), (12, 18), (13, 13)]
    assert opened.report.messages == 13


def test_the_rest_takes_as_long_as_it_did_so_far() -> None:
    assert load.remaining_s(250, 1000, 10.0) == 30.0
    assert load.remaining_s(0, 1000, 10.0) == 0.0
    assert load.remaining_s(1000, 1000, 10.0) == 0.0
