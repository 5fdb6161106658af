"""A damaged journal of a space with blocks of many messages: every step that can be read is done again, by message."""

from __future__ import annotations

from pathlib import Path

import pytest

import xaqueue
from support import broken_journal
from support.bare_space import BareSpace
from support.broken_journal import damage, lose_directories
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.salvage import find_loss, salvage
from xaqueue.xid import Xid

MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
FIRST, SECOND = ([b"%d of %s" % (number, name) for number in range(20)] for name in (b"first", b"second"))
LAST = [b"last"]
PUT, TAKE, PUT_MORE, PREPARE, TAKE_MORE, TAKE_ALL, PUT_LAST = range(7)
"""The records: a block comes, three of it go; a block comes; three more are held in doubt; two go; the second goes; and
one comes by itself."""
IN_DOUBT = Xid(1, b"in doubt", b"")
LEFT = [*FIRST[3:6], *FIRST[8:], *LAST]
"""What is there in the end, the three that are held among it."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    bare = BareSpace(tmp_path / "space", "JOURNAL", definitions=MANY_EACH)
    put(bare, FIRST)
    take(bare, 3)
    put(bare, SECOND)
    holder = bare.connect()
    holder.tpc_begin(IN_DOUBT)
    assert len(holder.dequeue_many("q", 3)) == 3
    holder.tpc_prepare()
    take(bare, 2)
    connection = bare.connect()
    for message in list(connection.browse("q")):
        if message.body in SECOND:
            assert connection.dequeue("q", message_id=message.message_id)
    connection.commit()
    put(bare, LAST)
    bare.space.log.settle()
    bare.space.sync_all()
    bare.crash()
    broken_journal.killed(bare.root)
    return bare.root


def put(bare: BareSpace, bodies: list[bytes]) -> None:
    connection = bare.connect()
    connection.enqueue_many("q", bodies)
    connection.commit()


def take(bare: BareSpace, count: int) -> None:
    connection = bare.connect()
    assert len(connection.dequeue_many("q", count)) == count
    connection.commit()


def found_in(root: Path) -> list[bytes]:
    """What is there, what is held included; nothing is wrong with it, and all of it can be taken, once."""
    with xaqueue.connect(root) as connection:
        found = [message.body for message in connection.browse("q")]
        for xid in connection.tpc_recover():
            connection.tpc_rollback(xid)
    with xaqueue.connect(root) as connection:
        taken = [message.body for message in connection.dequeue_many("q", 100)]
        connection.commit()
    assert sorted(taken) == sorted(found)
    assert [finding for finding in check(root) if finding.severity is Severity.DAMAGE] == []
    with xaqueue.connect(root) as connection:
        assert list(connection.browse("q")) == []
    assert not [path for path in (root / layout.queue_path("q") / layout.GONE).glob("*") if path.is_file()]
    return found


RECORDS = {
    PUT: LAST,
    TAKE: LEFT,
    PUT_MORE: LEFT,
    PREPARE: LEFT,
    TAKE_MORE: [*FIRST[3:], *LAST],
    TAKE_ALL: [*LEFT[:-1], *SECOND, *LAST],
}
"""By the record that is lost, what the others come to."""


@pytest.mark.parametrize("bad", RECORDS)
def test_every_step_that_can_be_read_is_done_again(root: Path, bad: int) -> None:
    damage(root, bad)
    lose_directories(root)
    loss = find_loss(root)
    assert loss is not None
    assert [step.queues for step in loss.steps] == [["q"]] * 6
    assert salvage(root).steps == 6
    assert found_in(root) == RECORDS[bad]


@pytest.mark.parametrize("bad", [[one] for one in RECORDS] + [[*range(6)]], ids=str)
def test_what_had_reached_the_directories_is_there(root: Path, bad: list[int]) -> None:
    """But what was taken by a lost step that others do not tell of comes back, as a message that has a file does."""
    damage(root, *bad)
    salvage(root)
    assert found_in(root) == (RECORDS[bad[0]] if bad in ([TAKE_MORE], [TAKE_ALL]) else LEFT)
