"""A queue's order holds whatever is locked, delayed, released or expired: by example, and against a slow list."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.interruption import interrupt
from xaqueue.core.model import order as order_module
from xaqueue.core.model import packed_index
from xaqueue.core.model.entry import Entry, Retry
from xaqueue.core.model.index import QueueIndex
from xaqueue.core.model.message_name import correlation_hash, tags_of
from xaqueue.core.model.order import Order
from xaqueue.features.groups.groups import Group, Groups
from xaqueue.message import DEFAULT_PRIORITY, MessageId, Properties

C = correlation_hash(b"c")


def identity(seq: int) -> MessageId:
    return MessageId(seq.to_bytes(16, "big"))


def entry(
    seq: int,
    *,
    correlation_id: bytes | None = None,
    priority: int = DEFAULT_PRIORITY,
    not_before: int | None = None,
    expires_at: int | None = None,
    group: str | None = None,
) -> Entry:
    told = Properties("q", correlation_id, priority=priority, not_before=not_before, expires_at=expires_at)
    properties = replace(told, group=group)
    return Entry(seq, identity(seq), tags_of(properties))


def group_of(one: Entry) -> str | None:
    return one.tags.partition(".g")[2][:16] or None


def made(order: Order = Order.FIFO) -> QueueIndex:
    index = QueueIndex(order)
    index.lines = Groups(index)
    return index


def filled(*entries: Entry, order: Order = Order.FIFO) -> QueueIndex:
    index = made(order)
    for one in entries:
        index.add(one)
    return index


def seq_of(taken: Entry | None) -> int | None:
    return None if taken is None else taken.seq


def drained(index: QueueIndex, now: int = 0) -> list[int]:
    """The sequence numbers in the order they are given out; all stay locked."""
    found = []
    while (taken := index.take(now)) is not None:
        found.append(taken.seq)
    return found


def test_fifo_is_by_commit_sequence_whatever_the_order_of_arrival() -> None:
    assert drained(filled(entry(2), entry(1), entry(3))) == [1, 2, 3]


def test_lifo_is_newest_first() -> None:
    assert drained(filled(entry(2), entry(1), entry(3), order=Order.LIFO)) == [3, 2, 1]


def test_priority_is_9_before_0_and_each_in_commit_sequence() -> None:
    given = [entry(1, priority=0), entry(2, priority=9), entry(3), entry(4, priority=9), entry(5, priority=0)]
    assert drained(filled(*given, order=Order.PRIORITY)) == [2, 4, 3, 1, 5]
    assert drained(filled(*[entry(one.seq, priority=one.priority) for one in given])) == [1, 2, 3, 4, 5]


def test_a_locked_message_is_skipped_and_not_waited_for() -> None:
    """Black-box behaviour 7."""
    index = filled(entry(1), entry(2))
    assert seq_of(index.take(0)) == 1
    assert seq_of(index.take(0)) == 2
    assert index.take(0) is None
    assert (index.locked, len(index)) == (2, 2)


@pytest.mark.parametrize(("order", "expected"), [(Order.FIFO, [1, 2, 3]), (Order.LIFO, [3, 2, 1])])
def test_release_puts_a_message_back_where_it_was(order: Order, expected: list[int]) -> None:
    """Black-box behaviour 4: in whatever sequence they are given back."""
    index = filled(entry(1), entry(2), entry(3), order=order)
    taken = [index.take(0) for _ in range(3)]
    for one in (taken[1], taken[2], taken[0]):
        assert one is not None
        index.release(one)
    assert drained(index) == expected


def test_removed_is_gone_from_every_way_in() -> None:
    index = filled(entry(1, correlation_id=b"c"))
    taken = index.take(0)
    assert taken is not None
    index.remove(taken)
    assert (len(index), index.locked, identity(1) in index) == (0, 0, False)
    assert index.take(0) is index.take(0, message_id=identity(1)) is index.take(0, correlation=C) is None
    assert list(index.entries(0)) == []


def test_by_id_out_of_order_and_never_a_locked_or_unknown_one() -> None:
    """Black-box behaviour 11."""
    index = filled(entry(1), entry(2), entry(3))
    assert seq_of(index.take(0, message_id=identity(2))) == 2
    assert index.take(0, message_id=identity(2)) is None
    assert index.take(0, message_id=identity(9)) is None
    assert drained(index) == [1, 3]


def test_by_id_with_another_correlation_id_is_no_match() -> None:
    index = filled(entry(1, correlation_id=b"c"))
    assert index.take(0, message_id=identity(1), correlation=correlation_hash(b"other")) is None
    assert seq_of(index.take(0, message_id=identity(1), correlation=correlation_hash(b"c"))) == 1


@pytest.mark.parametrize(("order", "expected"), [(Order.FIFO, [2, 4, 1, 3]), (Order.LIFO, [4, 2, 3, 1])])
def test_messages_of_one_correlation_id_are_a_queue_of_their_own(order: Order, expected: list[int]) -> None:
    """Black-box behaviour 12."""
    index = filled(*(entry(seq, correlation_id=b"c" if seq % 2 == 0 else None) for seq in range(1, 5)), order=order)
    correlated = [seq_of(index.take(0, correlation=C)) for _ in range(2)]
    assert index.take(0, correlation=C) is None
    assert correlated + drained(index) == expected


def test_a_delayed_message_is_hidden_until_due_and_then_in_its_place() -> None:
    """Black-box behaviour 14, as far as order goes."""
    index = filled(entry(1, not_before=10), entry(2))
    taken = index.take(9)
    assert taken is not None
    assert taken.seq == 2
    assert index.next_due() == 10
    assert index.take(9) is None
    index.release(taken)
    assert drained(index, 10) == [1, 2]


def test_a_due_message_that_is_asked_for_by_correlation_id_only_is_found() -> None:
    """Black-box behaviour 14, the stricter half."""
    index = filled(entry(1, correlation_id=b"c", not_before=10))
    assert index.take(9, correlation=C) is None
    assert index.next_due(correlation=C) == 10
    assert seq_of(index.take(10, correlation=C)) == 1


def test_what_has_the_hash_and_was_passed_is_not_found_again() -> None:
    index = filled(entry(1, correlation_id=b"c"), entry(2, correlation_id=b"c"))
    assert seq_of(index.take(0, correlation=C, passed={1})) == 2
    assert index.take(0, message_id=identity(1), correlation=C, passed={1}) is None
    assert index.take(0, correlation=C, passed={1}) is None
    assert seq_of(index.take(0, correlation=C)) == 1


def test_a_due_message_that_is_asked_for_by_id_only_is_found() -> None:
    index = filled(entry(1, not_before=10))
    assert index.take(9, message_id=identity(1)) is None
    assert index.next_due(message_id=identity(1)) == 10
    assert seq_of(index.take(10, message_id=identity(1))) == 1


def test_a_due_message_taken_another_way_does_not_come_twice() -> None:
    index = filled(entry(1, not_before=10), entry(2, not_before=5))
    assert index.take(0) is None
    by_id = index.take(10, message_id=identity(1))
    assert by_id is not None
    index.release(by_id)
    assert drained(index, 10) == [1, 2]


@pytest.mark.parametrize("way", ["next", "id", "correlation"])
def test_an_expired_message_is_set_aside_and_not_delivered(way: str) -> None:
    index = filled(entry(1, correlation_id=b"c", expires_at=10), entry(2))
    asked: dict[str, Callable[[], Entry | None]] = {
        "next": lambda: index.take(10),
        "id": lambda: index.take(10, message_id=identity(1)),
        "correlation": lambda: index.take(10, correlation=C),
    }
    assert seq_of(asked[way]()) == (2 if way == "next" else None)
    assert [one.seq for one in index.expired] == [1]
    index.remove(index.expired.pop())
    assert [one.seq for one in index.entries(10)] == [2]


def test_what_expired_is_found_without_a_reader_a_piece_at_a_time() -> None:
    lasting = [entry(number) for number in range(10, 12)]
    index = filled(*[entry(number, expires_at=number) for number in range(1, 6)], *lasting, entry(12, expires_at=99))
    held = index.take(0)
    assert held is not None
    index.find_expired(5, 2)
    assert [one.seq for one in index.expired] == [2, 3]
    index.find_expired(5, 100)
    assert [one.seq for one in index.expired] == [2, 3, 4, 5]
    index.release(held)
    index.find_expired(5, 100)
    assert [one.seq for one in index.expired] == [2, 3, 4, 5, 1]
    for one in index.expired:
        index.remove(one)
    index.expired.clear()
    index.find_expired(5, 100)
    assert index.expired == []
    assert len(index) == 3


def test_what_is_gone_before_it_expires_takes_no_memory() -> None:
    index = filled()
    for number in range(1, 10_000):
        index.add(entry(number, expires_at=1 << 60))
        taken = index.take(0)
        assert taken is not None
        index.remove(taken)
    assert len(index._expiring) < 2_000


def test_a_message_that_expires_at_its_due_time_is_never_seen() -> None:
    index = filled(entry(1, not_before=10, expires_at=10))
    assert index.take(9) is None
    assert index.take(10) is None
    assert len(index.expired) == 1


def test_entries_are_all_in_order_and_change_nothing() -> None:
    """Black-box behaviour 10: a look shows locked and delayed messages too, and hides none from anybody."""
    index = filled(entry(1), entry(2, not_before=99), entry(3), entry(4, expires_at=5))
    index.take(0)
    assert [one.seq for one in index.entries(5)] == [1, 2, 3]
    assert [one.seq for one in index.entries(4)] == [1, 2, 3, 4]
    assert drained(index) == [3, 4]


def test_lock_is_for_branches_found_prepared() -> None:
    index = filled(entry(1), entry(2))
    assert seq_of(index.lock(identity(1))) == 1
    assert index.lock(identity(9)) is None
    assert (index.locked, drained(index)) == (1, [2])


def test_reorder_keeps_locks_delays_and_what_is_there() -> None:
    index = filled(entry(1), entry(2, correlation_id=b"c"), entry(3, not_before=10), entry(4), entry(5))
    locked = index.take(0)
    assert locked is not None
    index.reorder(Order.LIFO)
    assert seq_of(index.take(0, correlation=C)) == 2
    assert drained(index) == [5, 4]
    assert index.locked == 4
    index.release(locked)
    assert drained(index, 10) == [3, 1]
    index.reorder(Order.LIFO)
    assert index.order is Order.LIFO


Facts = tuple[int, bytes, str, str | None, int, int | None, int | None, int, bool]


def facts(one: Entry) -> Facts:
    """All that an entry says."""
    return (
        *(one.seq, one.message_id, one.tags, one.correlation, one.priority, one.not_before, one.expires_at),
        *(one.tries, one.locked),
    )


@dataclass
class Known:
    """What the slow model holds of a message: its entry as it was added or last taken, and whether it is out."""

    entry: Entry
    tries: int = 0
    out: bool = False

    def facts(self) -> Facts:
        one = self.entry
        rest = one.tags, one.correlation, one.priority, one.not_before, one.expires_at
        return (one.seq, identity(one.seq), *rest, self.tries, self.out)


SLOW_KEYS: dict[Order, Callable[[Entry], tuple[int, ...]]] = {
    Order.FIFO: lambda one: (one.seq,),
    Order.LIFO: lambda one: (-one.seq,),
    Order.PRIORITY: lambda one: (-one.priority, one.seq),
}


HOLDERS = (object(), object())


class IndexAgainstList(RuleBasedStateMachine):
    """The model sorts and filters a list at every call; the clock goes back now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(order_module, "SECOND_US", 1)
        self.index = made()
        self.order = Order.FIFO
        self.known: dict[int, Known] = {}
        self.now = self.latest = 100
        self.seq = 0
        self.holders: dict[str, object] = {}
        """Who has taken all that is out of a group, where that is one."""

    def matches(self, correlation: str | None = None, seq: int | None = None) -> list[Known]:
        """Those not locked that a take looks at, in order."""
        free = [one for one in self.known.values() if not one.out]
        chosen = [one for one in free if correlation in (None, one.entry.correlation)]
        chosen = [one for one in chosen if seq in (None, one.entry.seq)]
        return sorted(chosen, key=lambda one: SLOW_KEYS[self.order](one.entry))

    def is_late(self, one: Known) -> bool:
        return one.entry.expires_at is not None and one.entry.expires_at <= self.now

    def expected(self, correlation: str | None = None, seq: int | None = None, holder: object = None) -> int | None:
        for one in self.matches(correlation, seq):
            early = one.entry.not_before is not None and one.entry.not_before > self.now
            if not self.is_late(one) and not early and self.is_next(one, holder):
                self.go_out(one, holder)
                return one.entry.seq
        return None

    def out_of(self, group: str) -> list[Known]:
        return [one for one in self.known.values() if group_of(one.entry) == group and one.out]

    def is_next(self, one: Known, holder: object) -> bool:
        group = group_of(one.entry)
        if group is None:
            return True
        before = [
            other
            for seq, other in self.known.items()
            if group_of(other.entry) == group and seq < one.entry.seq and not other.out and not self.is_late(other)
        ]
        return not before and (not self.out_of(group) or (holder is not None and self.holders[group] is holder))

    def go_out(self, one: Known, holder: object) -> None:
        group = group_of(one.entry)
        if group is not None and not one.out:
            self.holders[group] = holder if not self.out_of(group) or self.holders[group] is holder else None
        one.out = True

    def bury(self) -> None:
        for one in self.index.expired:
            assert one.expires_at is not None
            assert one.expires_at <= self.now
            del self.known[one.seq]
            self.index.remove(one)
        self.index.expired.clear()

    @rule(limit=st.integers(0, 5))
    def sweep(self, limit: int) -> None:
        self.index.find_expired(self.now, limit)
        assert len(self.index.expired) <= limit
        self.bury()

    def note(self, taken: Entry | None) -> int | None:
        """The sequence number of what was taken, whose entry is the one to be given back."""
        if taken is None:
            return None
        assert facts(taken) == replace(self.known[taken.seq], out=True).facts()
        self.known[taken.seq].entry = taken
        return taken.seq

    @rule(
        correlation_id=st.sampled_from([None, None, b"a", b"b"]),
        priority=st.integers(0, 9),
        delay=st.none() | st.integers(-5, 20),
        lifetime=st.none() | st.integers(1, 30),
        group=st.sampled_from([None, None, "x", "x", "y"]),
    )
    def add(
        self, correlation_id: bytes | None, priority: int, delay: int | None, lifetime: int | None, group: str | None
    ) -> None:
        self.seq += 1
        added = entry(
            self.seq,
            correlation_id=correlation_id,
            priority=priority,
            not_before=None if delay is None else self.now + delay,
            expires_at=None if lifetime is None else self.now + lifetime,
            group=group,
        )
        self.known[self.seq] = Known(added)
        self.index.add(added)

    @rule(gaps=st.lists(st.sampled_from([0, 0, 0, 0, 1, 5, 200]), max_size=20))
    def add_plain_ones(self, gaps: list[int]) -> None:
        for gap in gaps:
            self.seq += 1 + gap
            self.known[self.seq] = Known(entry(self.seq))
            self.index.add(entry(self.seq))

    @rule(back=st.integers(1, 30), group=st.sampled_from([None, "x", "y"]))
    def add_one_that_is_late(self, back: int, group: str | None) -> None:
        seq = self.seq - back
        if seq > 0 and seq not in self.known:
            self.known[seq] = Known(entry(seq, group=group))
            self.index.add(entry(seq, group=group))

    @rule(count=st.integers(1, 40), step=st.integers(1, 3))
    def add_a_range(self, count: int, step: int) -> None:
        first = ((self.seq >> packed_index.TABLE_BITS) + 1) << packed_index.TABLE_BITS
        seqs = range(first, first + min(count, 1 << packed_index.TABLE_BITS), step)
        self.seq = seqs[-1]
        self.known.update({seq: Known(entry(seq)) for seq in seqs})
        self.index.add_plain(seqs, [identity(seq) for seq in seqs])

    @precondition(lambda self: self.known)
    @rule(data=st.data(), locked=st.booleans())
    def find(self, data: st.DataObject, locked: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(self.known)))
        found = self.index.lock(identity(seq)) if locked else self.index.find(identity(seq))
        assert found is not None
        if locked:
            self.go_out(self.known[seq], None)
        assert facts(found) == self.known[seq].facts()
        self.known[seq].entry = found
        assert self.index.find(identity(seq)) is found
        assert identity(self.seq + 1) not in self.index
        assert identity(seq) in self.index

    @rule(
        correlation=st.sampled_from([None, None, *map(correlation_hash, (b"a", b"b"))]),
        holder=st.sampled_from([None, *HOLDERS]),
    )
    def take(self, correlation: str | None, holder: object) -> None:
        expected = self.expected(correlation, holder=holder)
        assert self.note(self.index.take(self.now, correlation=correlation, holder=holder)) == expected
        self.bury()

    @precondition(lambda self: self.known)
    @rule(data=st.data(), holder=st.sampled_from([None, *HOLDERS]))
    def take_by_id(self, data: st.DataObject, holder: object) -> None:
        seq = data.draw(st.sampled_from(sorted(self.known)))
        expected = self.expected(seq=seq, holder=holder)
        assert self.note(self.index.take(self.now, message_id=identity(seq), holder=holder)) == expected
        self.bury()

    @precondition(lambda self: self.known)
    @rule(data=st.data(), holder=st.sampled_from([None, *HOLDERS]))
    def take_early(self, data: st.DataObject, holder: object) -> None:
        one = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        seq = one.entry.seq
        expected = None if one.out or self.is_late(one) else seq
        if expected is not None:
            self.go_out(one, holder)
        assert (
            self.note(self.index.take(self.now, message_id=identity(seq), holder=holder, even_early=True)) == expected
        )
        self.bury()

    @rule(step=st.integers(2, 9), dice=st.randoms(use_true_random=False))
    def take_most_by_id(self, step: int, dice: random.Random) -> None:
        """All but every n-th are taken by their ids and removed, in any order."""
        seqs = [seq for seq, one in sorted(self.known.items()) if not one.out]
        dice.shuffle(seqs)
        for seq in seqs:
            if seq % step and self.expected(seq=seq) is not None:
                taken = self.index.take(self.now, message_id=identity(seq))
                assert self.note(taken) == seq
                assert taken is not None
                self.index.remove(taken)
                del self.known[seq]
                self.bury()

    @precondition(lambda self: any(one.out for one in self.known.values()))
    @rule(data=st.data(), removed=st.booleans(), tried=st.booleans())
    def finish(self, data: st.DataObject, removed: bool, tried: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(seq for seq, one in self.known.items() if one.out)))
        if removed:
            self.index.remove(self.known.pop(seq).entry)
        else:
            self.known[seq].out = False
            self.known[seq].tries += tried
            self.known[seq].entry.tries += tried
            self.index.release(self.known[seq].entry)

    @rule(most=st.integers(1, 40))
    def consume(self, most: int) -> None:
        """Many are taken and removed, one by one."""
        for _ in range(most):
            expected = self.expected()
            taken = self.index.take(self.now)
            assert self.note(taken) == expected
            self.bury()
            if taken is None:
                break
            self.index.remove(taken)
            del self.known[taken.seq]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove_through(self, data: st.DataObject) -> None:
        """As far as nothing is locked; also past the last message and before the first."""
        locked = [seq for seq, one in self.known.items() if one.out]
        upto = data.draw(st.integers(0, min(locked, default=self.seq + 9) - (1 if locked else 0)))
        assert self.index.locked_through(upto) == 0
        assert self.index.locked_through(self.seq) == len(locked)
        gone = [seq for seq in self.known if seq <= upto]
        assert len(self.index.remove_through(upto)) == len(gone)
        for seq in gone:
            assert identity(seq) not in self.index
            del self.known[seq]

    @rule(by=st.integers(-3, 15))
    def pass_time(self, by: int) -> None:
        self.now += by

    @rule(order=st.sampled_from(Order))
    def reorder(self, order: Order) -> None:
        self.order = order
        self.index.reorder(order)

    def teardown(self) -> None:
        self.patch.undo()

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.index) == len(self.known)
        assert self.index.locked == sum(one.out for one in self.known.values())

    @invariant()
    def those_that_wait_for_their_time_are_counted(self) -> None:
        """Once the clock is where it was when somebody asked before."""
        if self.now >= self.latest:
            times = [one.entry.not_before for one in self.known.values() if not one.out]
            assert self.index.delayed(self.now) == sum(time is not None and time > self.now for time in times)
            self.latest = self.now

    @invariant()
    def the_oldest_that_is_ready_is_found(self) -> None:
        free = [one.entry for one in self.known.values() if not one.out]
        ready = [one.seq for one in free if one.not_before is None or one.not_before <= self.now]
        everywhere = [range(self.seq // 2), range(self.seq // 2, self.seq + 1)]
        assert seq_of(self.index.oldest(self.now, everywhere)) == min(ready, default=None)

    @invariant()
    def some_are_as_many_as_wanted_or_all(self) -> None:
        for count in (1, 7, len(self.known)):
            found = {one.seq for one in self.index.some(count)} if count else set()
            assert found <= self.known.keys()
            assert min(count, len(self.known), 1) <= len(found) <= 2 * count + 2
        assert len(found) == len(self.known)

    @invariant()
    def a_look_shows_all_in_order(self) -> None:
        shown = sorted(self.known.values(), key=lambda one: SLOW_KEYS[self.order](one.entry))
        alive = [one.facts() for one in shown if one.entry.expires_at is None or one.entry.expires_at > self.now]
        assert [facts(one) for one in self.index.entries(self.now)] == alive

    @invariant()
    def somebody_who_waits_is_not_told_too_late(self) -> None:
        """``next_due`` after an empty take is at or before the first delayed message's time."""
        if self.index.next_due() is None or self.index.locked:
            return
        for correlation in map(correlation_hash, (b"a", b"b")):
            due = [one.entry.not_before for one in self.matches(correlation) if one.entry.not_before is not None]
            assert self.index.next_due(correlation=correlation) == min(due, default=None)


class PackedIndexAgainstList(IndexAgainstList):
    """The same with hardly any entries and small tables, so that few messages meet every edge of packing."""

    def __init__(self) -> None:
        super().__init__()
        self.patch.setattr(order_module, "UNPACKED", 0)
        self.patch.setattr(order_module, "PIECE", 3)
        self.patch.setattr(order_module, "FEW", 0)
        self.patch.setattr(packed_index, "TABLE_BITS", 4)
        self.patch.setattr(packed_index, "SPARSE", 2)


SETTINGS = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestIndexAgainstList = IndexAgainstList.TestCase
TestIndexAgainstList.settings = SETTINGS
TestPackedIndexAgainstList = PackedIndexAgainstList.TestCase
TestPackedIndexAgainstList.settings = SETTINGS


MANY = 5000
KEPT = 1100
"""Keys of an index that are kept, at most, of messages that are gone."""


def keyed(number: int, *, not_before: int | None = None) -> Entry:
    properties = Properties("q", correlation_id=b"%d" % number, not_before=not_before)
    return Entry(number, MessageId(number.to_bytes(16, "big")), tags_of(properties))


@pytest.mark.parametrize("by", ["message id", "correlation id"])
def test_keys_of_an_index_that_is_only_read_by_ids_do_not_grow(by: str) -> None:
    index = made()
    stays = keyed(MANY + 1)
    index.add(stays)
    for number in range(1, MANY + 1):
        added = keyed(number)
        index.add(added)
        if by == "message id":
            taken = index.take(0, message_id=added.message_id)
        else:
            taken = index.take(0, correlation=added.correlation)
        assert taken is added
        index.remove(taken)
    assert len(index._ready) <= KEPT
    assert index.take(0) is stays


def test_keys_of_messages_that_leave_behind_the_first_of_their_group_do_not_stay() -> None:
    count, holder = 20_000, object()
    index = filled(entry(1, group="g"), entry(2, group="g", not_before=count))
    assert seq_of(index.take(0, holder=holder)) == 1
    for seq in range(3, count):
        index.add(entry(seq, group="g"))
    for seq in range(3, count):
        assert index.take(0, holder=holder) is None
        gone = index.take(0, message_id=identity(seq), holder=holder, even_early=True)
        assert gone is not None
        index.remove(gone)
    (group,) = index.lines.by_name.values()
    assert isinstance(group, Group)
    assert len(index._ready) + len(index._delayed) + len(group.waiting) < 3 * order_module.SPARE_KEYS


def test_who_holds_many_groups_does_not_look_at_each_of_them() -> None:
    count, holder = 2000, object()
    index = made()
    for seq in range(1, 2 * count + 1):
        index.add(entry(seq, group=str(seq % count)))
    found = [index.take(0, holder=holder) for _ in range(2 * count)]
    assert [one.seq for one in found if one is not None] == list(range(1, 2 * count + 1))
    assert index.take(0, holder=object()) is None


def test_one_that_had_all_its_tries_may_be_taken_by_its_id_before_it_is_moved() -> None:
    index = made()
    index.max_tries = 1
    failed = entry(1)
    index.add(failed)
    taken = index.take(0)
    assert taken is failed
    index.fail(failed, Retry(1))
    assert index.take(0) is None
    assert index.exhausted == [failed]
    assert index.take(0, message_id=identity(1)) is None
    assert index.take(0, message_id=identity(1), even_early=True) is failed
    assert (index.exhausted, index.locked) == ([], 1)
    index.remove(failed)
    assert len(index) == index.locked == 0


def test_keys_of_delayed_messages_that_were_taken_by_their_ids_do_not_stay() -> None:
    index = made()
    delayed = [keyed(number, not_before=10) for number in range(1, MANY + 1)]
    for added in delayed:
        index.add(added)
    while index.take(0) is None and index.is_unfinished:
        pass
    for added in delayed[:-1]:
        assert index.take(10, message_id=added.message_id) is added
        index.remove(added)
    assert len(index._delayed) <= KEPT
    assert index.next_due() == 10
    assert index.take(10) is delayed[-1]


def test_times_of_messages_that_were_taken_do_not_pile_up_where_nobody_asks() -> None:
    index = made()
    for seq in range(1, 5001):
        later = entry(seq, not_before=seq * 1_000_000)
        index.add(later)
        assert index.take(seq * 1_000_000) is later
        index.remove(later)
    found = index._delays
    assert len(found._by_second) == 0
    assert len(found._seconds) < 100
    index.add(entry(5001, not_before=5_001_000_000))
    assert (index.delayed(5_000_000_000), index.delayed(5_001_000_000)) == (1, 0)


HELD_BACK = order_module.SKIPPED + 100


def expired_heads(index: QueueIndex, count: int) -> None:
    for seq in range(1, count + 1):
        index.add(entry(seq, group=str(seq), priority=0, expires_at=9))


def exhausted_heads(index: QueueIndex, count: int) -> None:
    """As an opening finds them."""
    index.limit_tries(1)
    for seq in range(1, count + 1):
        failed = entry(seq, group=str(seq), priority=0)
        index.add(Entry(seq, failed.message_id, failed.tags, Retry(1)))


def heads_above_a_new_limit(index: QueueIndex, count: int) -> None:
    index.limit_tries(5)
    for seq in range(1, count + 1):
        failed = entry(seq, group=str(seq), priority=0)
        index.add(Entry(seq, failed.message_id, failed.tags, Retry(2)))
    index.find_exhausted()
    index.limit_tries(2)


@pytest.mark.parametrize("count", [1, HELD_BACK])
@pytest.mark.parametrize("heads", [expired_heads, exhausted_heads, heads_above_a_new_limit])
def test_what_is_to_leave_holds_back_no_higher_priority(heads: Callable[[QueueIndex, int], None], count: int) -> None:
    """The last group has the most urgent message, behind one that nobody is given."""
    index = made(Order.PRIORITY)
    heads(index, count)
    for seq in range(1, count + 1):
        index.add(entry(count + seq, group=str(seq), priority=9 if seq == count else 8))
    index.add(entry(2 * count + 1, priority=8))
    taken = index.take(10)
    while taken is None and index.is_unfinished:
        taken = index.take(10)
    assert seq_of(taken) == 2 * count
    assert len(index.expired) + len(index.exhausted) == count


def test_where_nobody_has_lines_a_group_means_nothing() -> None:
    index = QueueIndex()
    for seq in (1, 2):
        index.add(entry(seq, group="g"))
    assert [seq_of(index.take(0, holder=object())) for _ in range(3)] == [1, 2, None]


def noting(take: Callable[..., Entry | None], held: set[int], now: int, **options: Any) -> Entry | None:
    taken = take(now, **options)
    held.add(taken.seq if taken is not None else 0)
    return taken


def mixed(order: Order) -> QueueIndex:
    """Some of everything; two of it are locked."""
    index = filled(*(entry(seq, priority=seq % 10) for seq in range(1, 4)), order=order)
    for seq in range(4, 40):
        index.add(entry(seq))
    for seq, group in zip(range(40, 46), "aabbcc", strict=True):
        index.add(entry(seq, group=group))
    index.add(entry(46, not_before=50, correlation_id=b"c"))
    index.add(entry(47, not_before=500))
    index.add(entry(48, expires_at=50))
    index.add(entry(49, expires_at=500, correlation_id=b"c"))
    for seq in (20, 41):
        assert index.take(1, message_id=identity(seq), even_early=True) is not None
    return index


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(
    "take",
    [
        lambda index: index.take(100),
        lambda index: index.take(100, message_id=identity(20)),
        lambda index: index.take(100, message_id=identity(40)),
        lambda index: index.take(100, message_id=identity(46)),
        lambda index: index.take(100, correlation=C),
        partial(drained, now=100),
    ],
    ids=["next", "locked", "by id", "delayed", "correlated", "all"],
)
def test_an_interrupt_in_the_middle_of_it_loses_nothing(
    order: Order, take: Callable[[QueueIndex], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "UNPACKED", 8)
    monkeypatch.setattr(order_module, "PIECE", 8)
    step = 31 if isinstance(take, partial) else 1
    for at in range(0, 100_000, step):
        index, held = mixed(order), set[int]()

        index.take = partial(noting, index.take, held)  # type: ignore[method-assign]
        if not interrupt(at, partial(take, index)):
            break
        twin = mixed(order)
        for seq in held:
            assert not seq or twin.take(100, message_id=identity(seq), even_early=True) is not None
        assert (len(index), index.locked - len(index.expired)) == (len(twin), twin.locked)
        assert drained(index, 100) == drained(twin, 100), at
        assert index.delayed(100) == twin.delayed(100)
        assert {one.seq for one in index.expired} == {one.seq for one in twin.expired} == {48}
    assert at > 3
