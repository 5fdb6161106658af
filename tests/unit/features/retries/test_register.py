"""Each dequeue whose process is killed counts one try of its message, and nothing else does."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.bare_space import DURABLE, BareSpace, bare_space
from support.crash_level import LAGGING, open_space
from support.forgetful import Crashed, Tree
from xaqueue.core.engine import many, taking
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import split_message
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.entry import Entry, Retry, Run
from xaqueue.core.model.layout import ACTIVE
from xaqueue.errors import QueueFull, ResourceFailed, RetryLater
from xaqueue.features.retries import register
from xaqueue.features.retries.register import TRIES
from xaqueue.features.session import Session
from xaqueue.message import MessageId
from xaqueue.offline.check import check
from xaqueue.xa import Flag
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

LEVEL = replace(LAGGING, left_bytes=None, segment_bytes=256 * 1024)
FEW = 100
"""Bytes of a register that is full after two entries."""

messages = st.integers(1, 3)
names = st.text("abc", min_size=1, max_size=3)
tries = st.integers(0, register.RUN - 1) | st.just(register.RETURNED)
taken = st.tuples(names, st.integers(1, 3), messages, tries)
runs = st.lists(messages, min_size=2, max_size=4)


def identity(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def record(queue: str, seq: int, number: int, tries: int) -> bytes:
    return register.encode(queue, Entry(seq, identity(number), retry=Retry(tries)))


def told(entries: list[tuple[str, int, int, int]]) -> dict[register.Taken, int]:
    """The model: the highest of each message."""
    found: dict[register.Taken, int] = {}
    for queue, seq, number, tries in entries:
        place = queue, seq, identity(number)
        if tries == register.RETURNED:
            found.pop(place, None)
        else:
            found[place] = max(tries, found.get(place, 0))
    return found


def joined(entries: list[tuple[str, int, int, int]]) -> bytes:
    """As the register writes them: the end of one is the place of the next."""
    return b"".join(record(*entry) for entry in entries)


@given(st.lists(taken, max_size=5), st.lists(taken, max_size=5))
def test_it_is_read_up_to_its_end_whatever_follows(
    entries: list[tuple[str, int, int, int]], old: list[tuple[str, int, int, int]]
) -> None:
    assert register.decode(joined(entries) + bytes(4) + joined(old)) == told(entries)


@given(st.lists(taken, min_size=1, max_size=5), st.data())
def test_it_is_read_up_to_the_first_bad_entry(entries: list[tuple[str, int, int, int]], data: st.DataObject) -> None:
    whole = joined(entries)
    place = data.draw(st.integers(0, len(whole) - 1))
    good = [n for n in range(len(entries) + 1) if len(joined(entries[:n])) <= place][-1]
    assert register.decode(whole[:place]) == told(entries[:good])
    torn = bytearray(whole)
    torn[place] ^= data.draw(st.integers(1, 255))
    assert register.decode(bytes(torn)) == told(entries[:good])


@given(st.lists(taken, max_size=2), names, runs, st.lists(taken, max_size=2), st.data())
def test_a_run_is_one_entry_that_says_the_same_of_each(
    before: list[tuple[str, int, int, int]],
    queue: str,
    run: list[int],
    after: list[tuple[str, int, int, int]],
    data: st.DataObject,
) -> None:
    whole = register.encode(queue, Run([identity(number) for number in run], 1))
    each = [(queue, seq, number, 0) for seq, number in enumerate(run, 1)]
    assert register.decode(joined(before) + whole + joined(after)) == told([*before, *each, *after])
    end = data.draw(st.integers(0, len(whole) - 1))
    assert register.decode(joined(before) + whole[:end] + bytes(len(whole))) == told(before)


class Consumer:
    """Branches that take one message each, in a process that is killed now and then, beside what must come of it."""

    def __init__(self) -> None:
        self.fs = Tree(dict.fromkeys(layout.directories())).open()
        self.branches = count(1)
        self.tries = dict.fromkeys((1, 2, 3), 0)
        self.held: dict[int, Xid] = {}
        self.prepared: set[int] = set()
        self.space = self.open()
        for number in self.tries:
            self.put(number)

    def open(self) -> Space:
        space = open_space(self.fs, LEVEL)
        self.session = Session(space)
        return space

    def begin(self) -> Xid:
        xid = Xid(1, b"%d" % next(self.branches), b"")
        self.session.start(xid)
        return xid

    def put(self, number: int) -> None:
        xid = self.begin()
        self.session.enqueue("q", b"body", message_id=identity(number))
        self.session.end(xid)
        self.session.commit(xid, Flag.ONEPHASE)

    def take(self, number: int) -> None:
        if number not in self.held:
            self.held[number] = self.begin()
            message = self.session.dequeue("q", message_id=identity(number))
            assert message is not None
            assert message.tries == self.tries[number]
            self.session.end(self.held[number])

    def prepare(self, number: int) -> None:
        if number in self.held and number not in self.prepared:
            self.session.prepare(self.held[number])
            self.prepared.add(number)

    def rollback(self, number: int) -> None:
        if number in self.held:
            self.session.rollback(self.held.pop(number))
            self.prepared.discard(number)
            self.tries[number] += 1

    def consume(self, number: int) -> None:
        """A message of the same id comes after it, and after its block has gone: that tells of messages by their id."""
        if number in self.held:
            flags = Flag.NOFLAGS if number in self.prepared else Flag.ONEPHASE
            self.session.commit(self.held.pop(number), flags)
            self.prepared.discard(number)
            self.tries[number] = 0
            self.flush(number)
            self.put(number)

    def flush(self, number: int) -> None:
        self.space.log.settle()

    def checkpoint(self, number: int) -> None:
        self.space.checkpoint()

    def kill(self, number: int) -> None:
        self.fs = self.fs.tree_after_kill().open()
        self.space = self.open()
        for one in self.held.keys() - self.prepared:
            del self.held[one]
            self.tries[one] += 1
        self.agrees()

    def agrees(self) -> None:
        found = {int.from_bytes(entry.message_id, "big"): entry for entry in self.space.queue("q").index.entries(0)}
        assert {number: entry.tries for number, entry in found.items()} == self.tries
        assert {number for number, entry in found.items() if entry.locked} == self.prepared


verbs = st.sampled_from(("take", "take", "take", "prepare", "rollback", "consume", "flush", "checkpoint", "kill"))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(verbs, messages), max_size=40), st.sampled_from((FEW, register.SIZE_BYTES)))
def test_every_kill_counts_exactly_what_was_under_way(script: list[tuple[str, int]], size_bytes: int) -> None:
    """However often the register began again, and whatever stands in active/ as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(register, "SIZE_BYTES", size_bytes)
        consumer = Consumer()
        for verb, number in script:
            getattr(consumer, verb)(number)
        consumer.kill(0)
        consumer.kill(0)


def test_an_opening_that_is_killed_at_any_call_counts_nothing_twice() -> None:
    consumer = Consumer()
    for number in consumer.tries:
        consumer.take(number)
    left = consumer.fs.tree_after_kill()
    for crash_after in count():
        fs = left.open(crash_after)
        try:
            open_space(fs, LEVEL)
        except (Crashed, ResourceFailed):
            assert fs.crashed
            again = open_space(fs.tree_after_kill().open(), LEVEL)
            assert [entry.tries for entry in again.queue("q").index.entries(0)] == [1, 1, 1]
            assert again.fs.list(ACTIVE) == []
        else:
            assert crash_after > len(consumer.tries)
            break


def test_a_power_loss_keeps_a_try_that_was_rolled_back_and_the_next_one_perhaps() -> None:
    consumer = Consumer()
    consumer.checkpoint(0)
    consumer.take(1)
    consumer.rollback(1)
    consumer.take(1)
    for tree in consumer.fs.trees_after_crash():
        (first, *_) = open_space(tree.open(), LEVEL).queue("q").index.entries(0)
        assert 1 <= first.tries <= 2


def test_a_branch_in_doubt_that_is_rolled_back_while_the_space_opens_counts_once() -> None:
    consumer = Consumer()
    consumer.take(1)
    consumer.prepare(1)
    fs = consumer.fs.tree_after_kill().open()
    space = open_space(fs, LEVEL, lambda space: Session(space).rollback(consumer.held[1]))
    assert [entry.tries for entry in space.queue("q").index.entries(0)] == [1, 0, 0]


@pytest.fixture
def journalled(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path, "JOURNAL") as made:
        made.put("q", b"one", b"two")
        yield made


def tries_of(bare: BareSpace) -> list[int]:
    return [entry.tries for entry in bare.space.queue("q").index.entries(0)]


def take_and_be_killed(bare: BareSpace) -> list[int]:
    connection = bare.connect()
    assert connection.dequeue("q") is not None
    bare.reopen()
    return tries_of(bare)


def test_it_is_part_of_a_space(journalled: BareSpace) -> None:
    assert take_and_be_killed(journalled) == [1, 0]
    assert (journalled.root / TRIES).stat().st_size == register.SIZE_BYTES
    assert [finding for finding in check(journalled.root) if TRIES in str(finding)] == []


def test_without_a_journal_none_is_made(tmp_path: Path) -> None:
    with bare_space(tmp_path, DURABLE) as bare:
        bare.put("q", b"one")
        assert take_and_be_killed(bare) == [1]
        assert not (tmp_path / TRIES).exists()


def test_it_is_read_by_an_owner_without_journal(journalled: BareSpace) -> None:
    holder = journalled.connect()
    assert holder.dequeue("q") is not None
    journalled.sync = DURABLE
    journalled.reopen()
    assert tries_of(journalled) == [1, 0]
    assert take_and_be_killed(journalled) == [2, 0], "its entries are behind by now"


def test_a_space_that_has_none_gets_one(journalled: BareSpace) -> None:
    journalled.crash()
    (journalled.root / TRIES).unlink()
    journalled.reopen()
    assert take_and_be_killed(journalled) == [1, 0]


def test_without_room_for_it_a_try_is_not_counted_until_there_is(journalled: BareSpace) -> None:
    (journalled.root / TRIES).unlink()
    journalled.fs.faults = {("create", TRIES): errno.ENOSPC}
    journalled.reopen()
    assert take_and_be_killed(journalled) == [0, 0]
    assert journalled.fs.struck == [("create", TRIES)]
    journalled.fs.faults.clear()
    journalled.space.checkpoint()
    assert take_and_be_killed(journalled) == [1, 0]


def test_a_full_disk_that_copies_on_write_stops_no_dequeue(journalled: BareSpace) -> None:
    journalled.fs.faults = {("write_at", TRIES): errno.ENOSPC}
    assert take_and_be_killed(journalled) == [0, 0]
    journalled.fs.faults.clear()
    assert take_and_be_killed(journalled) == [1, 0]


def test_tries_for_which_there_was_no_room_are_counted_by_the_next_opening(journalled: BareSpace) -> None:
    journalled.fs.faults = {("rename", layout.retries_path("q")): errno.ENOSPC}
    connection = journalled.connect()
    for tried in (0, 1):
        message = connection.dequeue("q")
        assert message is not None
        assert message.tries == tried
        assert tries_of(journalled) == [tried, 0]
        connection.rollback()
    with pytest.raises(RetryLater):
        journalled.space.sync_all()
    assert [call for call, _ in journalled.fs.struck] != []
    journalled.fs.faults.clear()
    journalled.reopen()
    assert tries_of(journalled) == [2, 0]


def test_what_finds_no_room_is_not_counted(journalled: BareSpace) -> None:
    journalled.fs.faults = {("write_at", TRIES): errno.ENOSPC}
    with closing(journalled.connect()) as connection:
        assert [connection.dequeue("q") is not None for _ in range(2)] == [True, True]
        assert ("write_at", TRIES) in journalled.fs.struck
        connection.commit()


def test_an_error_of_the_disk_fences_the_space(journalled: BareSpace) -> None:
    journalled.fs.faults = {("write_at", TRIES): errno.EIO}
    connection = journalled.connect()
    with pytest.raises(ResourceFailed, match="fenced"):
        connection.dequeue("q")


def test_one_that_cannot_be_read_is_set_aside(journalled: BareSpace) -> None:
    journalled.fs.faults = {("read", TRIES): errno.EIO}
    journalled.reopen()
    assert [path.name for path in journalled.quarantined()] == [TRIES]
    assert "cannot be read" in journalled.space.report.quarantined[0]
    journalled.fs.faults.clear()
    assert take_and_be_killed(journalled) == [1, 0]


@pytest.mark.parametrize("flags", ["NONE", DURABLE, "JOURNAL"])
def test_a_move_that_is_refused_is_no_try(tmp_path: Path, flags: str) -> None:
    """Its message was taken for it, and is back before the process is killed."""
    full = Definitions({"full": QueueDefinition(options={"max_messages": 1})}, QueueDefinition())
    with bare_space(tmp_path, flags, definitions=full) as bare:
        bare.put("full", b"1")
        bare.put("q", b"2")
        for tries in (0, 1):
            session = Session(bare.space)
            (message,) = session.browse("q")
            assert message.tries == tries
            session.start(Xid(1, b"%d" % tries, b""))
            with pytest.raises(QueueFull):
                session.move("q", message.message_id, "full")
            if tries == 0:
                assert session.dequeue("q", message_id=message.message_id) is not None
            bare.reopen()
        assert [one.tries for one in Session(bare.space).browse("q")] == [1]


def test_a_dequeue_of_many_is_one_write_and_a_try_of_each(
    journalled: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalled.put("q", *(b"%d" % number for number in range(20)))
    write_at, written = journalled.fs.write_at, list[str]()

    def counted(path: str, offset: int, chunks: Sequence[bytes]) -> None:
        written.append(path)
        write_at(path, offset, chunks)

    monkeypatch.setattr(journalled.fs, "write_at", counted)
    connection = journalled.connect()
    assert len(connection.dequeue_many("q", 20)) == 20
    assert written.count(TRIES) == 1
    journalled.reopen()
    assert tries_of(journalled) == [1] * 20 + [0] * 2


def test_who_is_killed_before_a_dequeue_of_many_returns_has_tried_none(
    journalled: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(path: str, offset: int, chunks: Sequence[bytes]) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(journalled.fs, "write_at", killed)
        with pytest.raises((Killed, ResourceFailed)):
            journalled.connect().dequeue_many("q", 2)
    journalled.reopen()
    assert tries_of(journalled) == [0, 0]


@pytest.mark.parametrize("level", [DURABLE, "JOURNAL"])
def test_a_dequeue_of_many_that_fails_is_no_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    with bare_space(tmp_path, level) as bare:
        bare.put("q", b"one", b"two", b"three")
        left = iter((split_message, split_message, interrupted))
        with monkeypatch.context() as patch, closing(bare.connect()) as connection:
            patch.setattr(many, "split_message", lambda data: next(left)(data))
            with pytest.raises(KeyboardInterrupt):
                connection.dequeue_many("q", 3)
            connection.commit()
        assert tries_of(bare) == [0, 0, 0]
        bare.reopen()
        assert tries_of(bare) == [0, 0, 0]
        assert bare.take("q") == [b"one", b"two", b"three"]


def interrupted(data: bytes) -> Any:
    raise KeyboardInterrupt


IN_BLOCKS = Definitions(default=QueueDefinition(blocks=MANY))
RUN_ENTRY = len(register.encode("q", Run([identity(number) for number in range(10)], 1)))


def test_neighbours_are_one_entry_and_a_try_of_each(tmp_path: Path) -> None:
    """Also where the register begins again while they are held, and of those that were returned none."""
    with bare_space(tmp_path, "JOURNAL", definitions=IN_BLOCKS) as bare:
        with bare.connect() as connection:
            connection.enqueue_many("q", [b"body"] * 40)
        bare.reopen()
        session: Any = Session(bare.space)
        session.start(Xid(1, b"x", b""))
        before = bare.space.log.register._end  # type: ignore[attr-defined]
        messages = session.dequeue_many("q", 10)
        assert bare.space.log.register._end == before + RUN_ENTRY  # type: ignore[attr-defined]
        assert len(session.dequeue_many("q", 20)) == 20
        branch = bare.space.branches[Xid(1, b"x", b"")]
        assert len(session.dequeue_many("q", 10)) == 10
        taking.return_taken(bare.space, branch, branch.blocks[-1])  # as one
        bare.space.log.register._full = 0  # type: ignore[attr-defined]
        other = bare.connect()
        assert other.dequeue("q") is not None
        many.expand(bare.space, branch)
        for written in [*branch.blocks]:
            if written.message_id in (messages[3].message_id, messages[9].message_id):
                taking.return_taken(bare.space, branch, written)
        bare.reopen()
        assert tries_of(bare) == [0 if number in (3, 9) else 1 for number in range(31)] + [0] * 9
        bare.reopen()
        assert tries_of(bare) == [0 if number in (3, 9) else 1 for number in range(31)] + [0] * 9


def test_what_is_held_and_finds_no_place_in_it_ends_it_nowhere(
    journalled: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again with as many as half of the largest takes: the entry behind those is read as well."""
    monkeypatch.setattr(register, "LARGEST_BYTES", 2 * FEW)
    monkeypatch.setattr(register, "SIZE_BYTES", 2 * FEW)
    journalled.put("q", *(b"%d" % number for number in range(3)))
    connection = journalled.connect()
    for _ in range(4):
        assert connection.dequeue("q") is not None
    journalled.space.log.register._full = 0  # type: ignore[attr-defined]
    assert connection.dequeue("q") is not None
    journalled.reopen()
    assert tries_of(journalled) == [1, 1, 0, 0, 1]
