"""A space that writes blocks of many messages, seen by who does not own it: by its directories and by its journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bare_space import BareSpace
from xaqueue.core.engine import heuristics
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.format import read_format
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.inspect import browse, message_ids, queue_list
from xaqueue.offline.inspect_branches import in_doubt, traffic_of
from xaqueue.offline.reader import QueueReader
from xaqueue.xid import Xid

MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
BODIES = [b"%d" % number for number in range(40)]


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", "JOURNAL", definitions=MANY_EACH)
    yield opened
    opened.crash()


def put(bare: BareSpace) -> None:
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()


def take(bare: BareSpace, count: int) -> None:
    connection = bare.connect()
    assert len(connection.dequeue_many("q", count)) == count
    connection.commit()


def browsed(bare: BareSpace) -> list[bytes]:
    return [message.body for message in browse(bare.root, "q", lambda seq, why: pytest.fail(why))]


@pytest.mark.parametrize("followed", [(), (0,), (0, 1)], ids=["journal", "block in its directory", "both"])
def test_the_journal_is_read_before_it_is_followed(bare: BareSpace, followed: tuple[int, ...]) -> None:
    put(bare)
    if 0 in followed:
        bare.space.settle()
    take(bare, 3)
    if 1 in followed:
        bare.space.settle()
    assert browsed(bare) == BODIES[3:]
    assert len(message_ids(bare.root, "q")) == 37
    (status,) = queue_list(bare.root)
    assert (status.depth, status.ready) == (37, 37)
    assert [found for found in check(bare.root) if found.severity is Severity.DAMAGE] == []
    if followed == (0, 1):
        reader = QueueReader(bare.root, "q", even_behind=True)
        assert len(list(reader.read(0, reader.watermark()))) == 37
    take(bare, 37)
    assert browsed(bare) == []


def test_a_branch_in_doubt_is_told_by_message(bare: BareSpace) -> None:
    put(bare)
    connection = bare.connect()
    xid = Xid(1, b"x", b"")
    connection.tpc_begin(xid)
    connection.enqueue_many("r", BODIES)
    assert len(connection.dequeue_many("q", 5)) == 5
    connection.tpc_prepare()
    bare.space.settle()
    assert read_format(bare.root).id
    (branch,) = in_doubt(bare.root)
    assert list(map(str, traffic_of(branch))) == ["q -5", "r +40"]
    assert (len({one.message_id for one in branch.added}), len({one.message_id for one in branch.held})) == (40, 5)
    assert sum(one.size_bytes or 0 for one in branch.added) == sum(map(len, BODIES))
    (status,) = [one for one in queue_list(bare.root) if one.name == "q"]
    assert (status.depth, status.ready, status.in_doubt) == (40, 35, 5)
    assert [found for found in check(bare.root) if found.severity is Severity.DAMAGE] == []


@pytest.mark.parametrize("is_opened_again", [False, True])
@pytest.mark.parametrize("to_commit", [False, True])
def test_a_decided_branch_is_told_by_message(bare: BareSpace, to_commit: bool, is_opened_again: bool) -> None:
    """Its blocks are gone, or stand among others, by the time that somebody looks."""
    put(bare)
    connection, xid = bare.connect(), Xid(1, b"x", b"")
    connection.tpc_begin(xid)
    added = connection.enqueue_many("r", BODIES)
    held = [message.message_id for message in connection.dequeue_many("q", 5)]
    connection.tpc_prepare()
    if is_opened_again:
        bare.crash()
        bare = BareSpace(bare.root, "JOURNAL", definitions=MANY_EACH)
    heuristics.decide(bare.space, xid, to_commit, "somebody")
    bare.space.settle()
    (branch,) = in_doubt(bare.root)
    bare.crash()
    assert list(map(str, traffic_of(branch))) == ["q -5", "r +40"]
    assert [one.message_id for one in branch.added] == added
    assert [one.message_id for one in branch.held] == held
