"""Blocks of many messages where the files are the record: what is gone of them is overwritten in place."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.bare_space import BareSpace
from support.forgetful import ForgetfulFileSystem
from xaqueue.core.engine.log import CommitPending
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import read_gone
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.message_block import encode_gone
from xaqueue.core.model.message_name import Named
from xaqueue.errors import DamagedBlock, ResourceFailed, RetryLater
from xaqueue.message import MessageId

MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
NAMED = Named(1, 20, MessageId(bytes(range(16))))
BODIES = [b"%03d" % number for number in range(20)]
GONE = f"{layout.queue_path('q')}/{layout.GONE}"


@pytest.fixture(params=["NONE", "FSYNC", "FDATASYNC;DSYNC"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", request.param, definitions=MANY_EACH)
    with opened.connect() as connection:
        connection.enqueue_many("q", BODIES)
    yield opened
    opened.crash()


def take(bare: BareSpace, count: int) -> list[bytes]:
    with bare.connect() as connection:
        return [message.body for message in connection.dequeue_many("q", count)]


FULL = {
    "its first bitmap": ("write_at", GONE, 0),
    "the directory of that": ("make_dir", GONE, 0),
    "a later one": ("write_at", GONE, 2),
    "the block itself": ("unlink", layout.range_path("q", 1), 19),
}


@pytest.mark.parametrize("where", FULL)
def test_a_take_that_finds_no_room_is_none(bare: BareSpace, where: str) -> None:
    """Its messages are there, and who takes others meanwhile does not take them along."""
    call, path, before = FULL[where]
    if before:
        take(bare, before)
    first, second = bare.connect(), bare.connect()
    assert [message.body for message in first.dequeue_many("q", 1)] == BODIES[before : before + 1]
    bare.fs.faults[call, path] = errno.ENOSPC
    with pytest.raises(RetryLater, match="nothing was done"):
        first.commit()
    assert bare.fs.struck
    bare.fs.faults.clear()
    assert [message.body for message in second.dequeue_many("q", 2)] == BODIES[before + 1 : before + 3]
    second.commit()
    bare.reopen()
    assert take(bare, 99) == [BODIES[before], *BODIES[before + 3 :]]


def test_what_is_past_its_commit_point_is_gone_once_there_is_room(bare: BareSpace) -> None:
    """Others take from the same block meanwhile, and the process may be killed then."""
    for is_killed in (False, True):
        connection, other = bare.connect(), bare.connect()
        connection.tpc_begin(connection.xid(1, f"two {is_killed}", ""))
        taken = [message.body for message in connection.dequeue_many("q", 2)]
        connection.enqueue("others", b"x")
        connection.tpc_prepare()
        bare.fs.faults["write_at", GONE] = errno.ENOSPC
        with pytest.raises(RetryLater) as pending:
            connection.tpc_commit()
        assert isinstance(pending.value, CommitPending)
        bare.fs.faults.clear()
        taken += [message.body for message in other.dequeue_many("q", 2)]
        other.commit()
        if is_killed:
            bare.reopen()
        else:
            connection.tpc_commit()
    assert take(bare, 99) == BODIES[8:]
    bare.reopen()
    assert take(bare, 99) == []


def test_a_take_is_done_whatever_finds_no_room_behind_it(bare: BareSpace) -> None:
    """Its file is all that is left to remove: that is never "nothing was done"."""
    connection = bare.connect()
    connection.tpc_begin(connection.xid(1, "run", ""))
    connection.dequeue_many("q", 3)
    connection.tpc_prepare()
    bare.fs.faults["unlink", layout.PREPARED] = errno.ENOSPC
    with pytest.raises(ResourceFailed):
        connection.tpc_commit()
    bare.fs.faults.clear()
    bare.reopen()
    assert take(bare, 99) == BODIES[3:]


def test_the_last_take_is_done_though_the_bitmap_finds_no_room_to_go(bare: BareSpace) -> None:
    """Its block went before: the message is nowhere any more. The next open removes what is left."""
    take(bare, 19)
    bare.fs.faults["unlink", GONE] = errno.ENOSPC
    assert take(bare, 1) == BODIES[19:]
    assert bare.fs.struck
    bare.fs.faults.clear()
    bare.reopen()
    assert bare.space.report.quarantined == []
    assert take(bare, 99) == []
    assert [*(bare.root / GONE).iterdir()] == []


def test_nothing_is_left_of_a_block_that_went(bare: BareSpace) -> None:
    take(bare, 5)
    take(bare, 15)
    assert [path for path in bare.root.glob("committed/queue=q/*/*") if "+" in path.name or ".gone" in path.parts] == []


@pytest.mark.parametrize("content", [b"", bytes(60)])
def test_a_bitmap_that_was_on_its_way_says_nothing(bare: BareSpace, content: bytes) -> None:
    (block,) = bare.root.glob("committed/queue=q/range=*/*")
    bitmap = bare.root / GONE / f"{1:016x}.{block.name[-32:]}"
    bitmap.parent.mkdir()
    bitmap.write_bytes(content)
    bare.reopen()
    assert bare.space.report.quarantined == []
    assert take(bare, 3) == BODIES[:3]
    bare.reopen()
    assert take(bare, 99) == BODIES[3:]


class Changing(ForgetfulFileSystem):
    """Of each read the next of these, and at last the same again and again."""

    def __init__(self, *reads: bytes) -> None:
        super().__init__()
        self.reads = list(reads)

    def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        return self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]


def test_half_a_write_is_no_damage() -> None:
    """Of the owner, who overwrites it."""
    old, new = (b"".join(encode_gone("q", NAMED, gone, 1)) for gone in (1, 0xFFF))
    half, other = new[:52] + old[52:], old[:52] + new[52:]
    assert read_gone(Changing(half, new), "q", NAMED) == 0xFFF
    assert read_gone(Changing(half, other, new), "q", NAMED) == 0xFFF
    with suppress(DamagedBlock):
        read_gone(Changing(half, other, other), "q", NAMED)
        raise AssertionError("what stays so is damage")


def test_neighbours_are_one_file_until_they_are_gone(bare: BareSpace) -> None:
    """Of a branch that is active, in doubt and committed; and given back they count a try each."""
    connection = bare.connect()
    connection.tpc_begin(xid := connection.xid(1, "run", ""))
    assert [message.body for message in connection.dequeue_many("q", 7)] == BODIES[:7]
    assert len([*bare.root.glob("active/*")]) == 1
    connection.tpc_prepare()
    assert [path.name.rpartition(".")[2] for path in bare.root.glob("prepared/*")] == [layout.FIRST]
    bare.reopen()
    bare.connect().tpc_rollback(xid)
    with bare.connect() as connection:
        assert [message.tries for message in connection.dequeue_many("q", 8)] == [1] * 7 + [0]
    bare.reopen()
    assert take(bare, 99) == BODIES[8:]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_neighbours_count_a_try_each_where_their_process_is_killed(bare: BareSpace, is_prepared: bool) -> None:
    connection = bare.connect()
    connection.tpc_begin(xid := connection.xid(1, "run", ""))
    connection.dequeue_many("q", 7)
    if is_prepared:
        connection.tpc_prepare()
    bare.reopen()
    if is_prepared:
        bare.connect().tpc_rollback(xid)
    with bare.connect() as connection:
        assert [message.tries for message in connection.dequeue_many("q", 20)] == [1] * 7 + [0] * 13
