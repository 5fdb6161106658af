"""Blocks of which little is left are made smaller: when, what stays of them, and what is read meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import BareSpace, wall_clock
from support.block_space import body_of, id_of, put_block
from support.damages import flip
from xaqueue.core.model import layout, message_block
from xaqueue.core.model.block_files import read_messages
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.message_name import parse_any
from xaqueue.core.owner.chores import Chores
from xaqueue.core.storage.fs import Room
from xaqueue.errors import RetryLater
from xaqueue.features import opening
from xaqueue.features.scrub import scrub
from xaqueue.features.session import Session, attach
from xaqueue.features.topics import hollow
from xaqueue.features.topics.hollow import AGE_US, Hollow
from xaqueue.message import MessageId
from xaqueue.offline import check
from xaqueue.offline.findings import Severity
from xaqueue.xa import Flag
from xaqueue.xid import Xid

MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
X = Xid(1, b"x", b"")


class Clock:
    """The wall clock, and so much more."""

    ahead_us = 0

    def __call__(self) -> int:
        return wall_clock() + self.ahead_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["JOURNAL", "NONE", "FDATASYNC;DSYNC", "FSYNC"])
def bare(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", request.param, clock, definitions=MANY_EACH)
    yield opened
    opened.crash()


def put(bare: BareSpace, count: int, size: int = 100, queue: str = "q") -> list[MessageId]:
    connection = bare.connect()
    ids = connection.enqueue_many(queue, [b"%0*d" % (size, number) for number in range(count)])
    connection.commit()
    return ids


def take(bare: BareSpace, *ids: MessageId, queue: str = "q") -> None:
    connection = bare.connect()
    for message_id in ids:
        assert connection.dequeue(queue, message_id=message_id) is not None
    connection.commit()


def bodies(bare: BareSpace, queue: str = "q") -> list[int]:
    return [int(one.body) for one in bare.connect().browse(queue)]


def look(bare: BareSpace, is_over: Callable[[], bool] = lambda: False) -> None:
    """A turn of the chore."""
    turn = Chores(bare.space, [])
    turn.is_over = is_over  # type: ignore[method-assign]
    Hollow(bare.space).run(turn)


def held(bare: BareSpace, queue: str = "q") -> list[int]:
    """How many bodies the blocks in the directories have, by the number of the first message."""
    bare.space.settle()
    found = [parse_any(path.name) for path in sorted(bare.messages(queue))]
    return [read_messages(bare.fs, queue, named)[0].held for named in found if named is not None and named.is_block]


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("sync", ["NONE", "JOURNAL"])
def test_a_hollow_block_is_opened(tmp_path: Path, sync: str) -> None:
    """Of what is gone nothing is known any more but that it is."""
    opening.create(root := tmp_path / "space", sync=sync, any_queue=True)
    made = put_block(root, 1, 20)
    made.take(gone := (1 << 20) - 1 - (1 << 4) - (1 << 17))
    made.hollow(gone)
    for _ in range(2):
        session = attach(root)
        (block,) = session.space.queue("orders").blocks[0]
        found = session.space.report.quarantined, [one.body for one in session.browse("orders")]
        assert (block.left, block.held, *found) == (2, 2, [], [body_of(5), body_of(18)])
        assert [one.message_id for one in session.browse("orders")] == [id_of(5), id_of(18)]
        session.close()


def test_less_than_a_quarter_left_is_too_little(bare: BareSpace, clock: Clock) -> None:
    ids = put(bare, 20)
    take(bare, *ids[:15])
    before = clock()
    clock.ahead_us += AGE_US
    look(bare)
    assert held(bare) == [20]
    take(bare, ids[17])
    look(bare)
    assert (held(bare), bodies(bare)) == ([4], [15, 16, 18, 19])
    (file,) = bare.messages("q")
    assert file.stat().st_size < 900
    assert abs(file.stat().st_mtime_ns // 1000 - before) < AGE_US, "when it came"
    bare.reopen()
    assert bodies(bare) == [15, 16, 18, 19]
    take(bare, *ids[15:17], ids[18])
    look(bare)
    assert (held(bare), bodies(bare)) == ([4], [19])
    bare.reopen()
    take(bare, ids[19])
    bare.space.checkpoint()
    assert bare.messages("q") == []
    assert {finding.severity for finding in check.check(bare.root)} <= {Severity.LEFTOVER}


def test_a_young_one_stands_as_it_came(bare: BareSpace, clock: Clock) -> None:
    ids = put(bare, 20)
    take(bare, *ids[1:])
    look(bare)
    assert held(bare) == [20]
    clock.ahead_us += AGE_US
    look(bare)
    assert held(bare) == [1]


def test_what_is_in_doubt_keeps_its_body(bare: BareSpace, clock: Clock) -> None:
    ids = put(bare, 20)
    session = Session(bare.space)
    session.start(X)
    for message_id in ids[3:5]:
        assert session.dequeue("q", message_id=message_id) is not None
    session.end(X)
    session.prepare(X)
    take(bare, *ids[:3], *ids[5:])
    clock.ahead_us += AGE_US
    look(bare)
    assert held(bare) == [2]
    bare.reopen()
    Session(bare.space).rollback(X)
    assert bodies(bare) == [3, 4]


@pytest.mark.parametrize("bare", ["FDATASYNC;DSYNC"], indirect=True)
def test_what_is_gone_and_not_synced_keeps_its_body(bare: BareSpace, clock: Clock) -> None:
    ids = put(bare, 20)
    take(bare, *ids[2:])
    clock.ahead_us += AGE_US
    bare.fs.meanwhile[("sync_data", f"{layout.queue_path('q')}/.gone/")] = lambda: look(bare)
    take(bare, ids[1])
    assert (held(bare), bare.fs.meanwhile) == ([20], {})
    look(bare)
    assert held(bare) == [1]


@pytest.mark.parametrize("bare", ["JOURNAL"], indirect=True)
def test_what_a_step_on_its_way_takes_keeps_its_body(
    bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may find no room, and then nothing was taken."""
    ids = put(bare, 20)
    take(bare, *ids[2:])
    clock.ahead_us += AGE_US
    session, write = Session(bare.space), bare.space.log.journal.write  # type: ignore[attr-defined]
    session.start(X)
    assert session.dequeue("q") is not None
    session.end(X)

    def full(*_: Any) -> int:
        monkeypatch.setattr(bare.space.log.journal, "write", full_again)  # type: ignore[attr-defined]
        look(bare)
        raise OSError(errno.ENOSPC, "full")

    def full_again(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(bare.space.log.journal, "write", full)  # type: ignore[attr-defined]
    with pytest.raises(RetryLater):
        session.commit(X, Flag.ONEPHASE)
    monkeypatch.setattr(bare.space.log.journal, "write", write)  # type: ignore[attr-defined]
    session.rollback(X)
    look(bare)
    assert held(bare) == [2]
    bare.reopen()
    assert bodies(bare) == [0, 1]


@pytest.mark.parametrize("left", [0, 1])
def test_what_goes_while_it_is_read_is_no_more(
    bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """One of two, or both, and the block with them: it does not come back."""
    ids, encode = put(bare, 20), message_block.encode
    take(bare, *ids[2:])
    clock.ahead_us += AGE_US

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        take(bare, *ids[left:2])
        return encode(*arguments, **options)

    monkeypatch.setattr(hollow, "encode", meanwhile)
    look(bare)
    assert (held(bare), bodies(bare)) == ([2] * left, [0] * left)
    bare.reopen()
    assert bodies(bare) == [0] * left


def test_one_that_goes_right_behind_is_gone(bare: BareSpace, clock: Clock) -> None:
    """Before the directories have followed either."""
    ids = put(bare, 20)
    take(bare, *ids[2:])
    bare.space.settle()
    clock.ahead_us += AGE_US
    look(bare)
    take(bare, *ids[:2])
    bare.space.checkpoint()
    assert bare.messages("q") == []
    bare.reopen()
    assert bodies(bare) == []


def test_what_was_listed_and_has_gone_since_is_not_damaged(
    bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever looks through a queue goes on behind it, as where each message has a file."""
    ids = put(bare, 20)
    bare.space.settle()
    listed = bare.connect().browse("q")
    assert int(next(listed).body) == 0
    damaged = scrub._damaged

    def late(*arguments: Any) -> Any:
        take(bare, *ids[:17])
        clock.ahead_us += AGE_US
        look(bare)
        assert held(bare) == [3]
        return damaged(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(scrub, "_damaged", late)
        assert scrub.scrub_queue(bare.space, "q") == scrub.Scrubbed(20, [], [])
    assert [int(one.body) for one in listed] == [17, 18, 19]
    assert caplog.messages == []


def test_a_journal_with_nothing_newer_is_whole(bare: BareSpace, clock: Clock) -> None:
    """The record names messages that came long before others."""
    ids = put(bare, 20)
    put(bare, 20)
    take(bare, *ids[2:])
    bare.space.checkpoint()
    clock.ahead_us += AGE_US
    look(bare)
    bare.reopen()
    assert bodies(bare) == [0, 1, *range(20)]
    assert [finding for finding in check.check(bare.root) if finding.severity is Severity.DAMAGE] == []


def test_without_room_nothing_is_done_and_nothing_said(
    bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for queue in ("q", "r"):
        take(bare, *put(bare, 20, queue=queue)[1:], queue=queue)
    clock.ahead_us += AGE_US
    with monkeypatch.context() as patched:
        patched.setattr(type(bare.fs), "room", lambda _: Room(10, 10, 1 << 40, 1000))
        look(bare)
    assert (held(bare), held(bare, "r"), caplog.text) == ([20], [20], "")
    look(bare)
    assert (held(bare), held(bare, "r")) == ([1], [1])


def test_a_block_is_read_once(bare: BareSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes of it; one that was made smaller is known as such to the next open."""
    for queue in ("q", "r"):
        take(bare, *put(bare, 20, queue=queue)[1:], queue=queue)
    clock.ahead_us += AGE_US
    bare.space.checkpoint()
    (damaged,) = bare.messages("r")
    flip(damaged, 60)
    bare.reopen()
    reads, read = list[str](), type(bare.space).read_record

    def counted(space: Any, path: str) -> bytes:
        reads.append(path)
        return read(space, path)

    monkeypatch.setattr(type(bare.space), "read_record", counted)
    for _ in range(3):
        look(bare)
    assert len(reads) == 2
    bare.reopen()
    look(bare)
    assert len(reads) == 3


def test_one_that_is_opened_is_let_go(bare: BareSpace, clock: Clock) -> None:
    ids = put(bare, 20)
    take(bare, *ids[2:])
    opened, (block,) = list[bool](), bare.space.queue("q").blocks[0]
    with bare.connect() as connection:
        connection.dequeue("q")
        opened.append(block.opened is not None)
        connection.rollback()
    clock.ahead_us += AGE_US
    look(bare)
    opened.append(block.opened is not None)
    assert opened == [True, False]
    assert bodies(bare) == [0, 1]


def test_it_is_broken_off_between_two(bare: BareSpace, clock: Clock) -> None:
    for queue in ("q", "r"):
        take(bare, *put(bare, 20, queue=queue)[1:], queue=queue)
    clock.ahead_us += AGE_US
    asked = [True, False]
    look(bare, asked.pop)
    assert sorted([*held(bare), *held(bare, "r")]) == [1, 20]


def test_what_a_stream_has_in_part_goes_as_it_is(bare: BareSpace, clock: Clock) -> None:
    """It may be archived."""
    ids = put(bare, 20)
    session = Session(bare.space)
    session.reserve("q", "s", 0, 18)
    session.consume("q", "s", 18)
    clock.ahead_us += AGE_US
    look(bare)
    assert held(bare) == [20]
    session.release("q")
    assert bodies(bare) == [18, 19]
    assert len(ids) == 20


def test_of_what_is_tried_for_a_day_twice_its_bodies_are_kept(bare: BareSpace, clock: Clock) -> None:
    """Twenty blocks of a thousand messages, of which one each fails and is put off."""
    directory = bare.root / layout.queue_path("q")
    for _ in range(20):
        ids, connection = put(bare, 1000, 1000), bare.connect()
        (delivery,) = connection.receive("q")
        delivery.nack(86_400.0)
        assert len(connection.dequeue_many("q", 1000)) == len(ids[1:])
        connection.commit()
    bare.space.settle()
    before = size_of(directory)
    clock.ahead_us += AGE_US
    look(bare)
    bare.space.settle()
    after = size_of(directory)
    assert before > 20_000_000
    assert after <= 2 * 20 * 1000, (before, after)
    clock.ahead_us += 86_400_000_000
    with bare.connect() as connection:
        assert [len(one.body) for one in connection.dequeue_many("q", 100)] == [1000] * 20
        connection.commit()
