"""Packed rows cost little, also where they are few and far apart, and every one comes out as it went in."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable

import pytest

from xaqueue.core.model.entry import Entry
from xaqueue.core.model.index import QueueIndex
from xaqueue.core.model.layout import RANGE_BITS
from xaqueue.core.model.order import Order
from xaqueue.core.model.packed_index import TABLE_BITS, PackedRows, Row
from xaqueue.message import MessageId

MANY = 20_000
every_order = pytest.mark.parametrize("order", Order)


def identity(seq: int) -> MessageId:
    return MessageId(seq.to_bytes(16, "big"))


def row(seq: int) -> Row:
    return seq, identity(seq)


def rows_of(*seqs: int, newest_first: bool = False) -> PackedRows:
    rows = PackedRows(newest_first)
    for seq in seqs:
        assert rows.add(*row(seq))
    return rows


def bytes_of(fill: Callable[[QueueIndex], None], order: Order = Order.FIFO) -> int:
    """What a queue holds in memory after this."""
    index = QueueIndex(order)
    tracemalloc.start()
    try:
        fill(index)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def add(index: QueueIndex, seq: int) -> None:
    index.add(Entry(seq, MessageId(os.urandom(16))))


def consume(index: QueueIndex, count: int) -> None:
    for _ in range(count):
        taken = index.take(0)
        assert taken is not None
        index.remove(taken)


def test_a_table_has_the_messages_of_a_range_directory() -> None:
    assert TABLE_BITS == RANGE_BITS


@every_order
def test_a_plain_message_costs_at_most_200_bytes(order: Order) -> None:
    def fill(index: QueueIndex) -> None:
        for seq in range(1, MANY + 1):
            add(index, seq)

    assert bytes_of(fill, order) / MANY < 200


@every_order
def test_it_still_does_when_the_queue_has_moved_on(order: Order) -> None:
    def fill(index: QueueIndex) -> None:
        for seq in range(1, MANY + 1):
            add(index, seq)
        for seq in range(MANY + 1, 3 * MANY):
            add(index, seq)
            consume(index, 1)

    assert bytes_of(fill, order) / MANY < 250  # of it 60 are what a dict in motion keeps in reserve


@every_order
def test_a_queue_that_was_emptied_holds_nothing(order: Order) -> None:
    def fill(index: QueueIndex) -> None:
        for seq in range(1, MANY + 1):
            add(index, seq)
        consume(index, MANY)
        index.add(Entry(MANY + 1, identity(1)))

    reserve = 700_000  # of the dict, which shrinks when it grows next
    assert bytes_of(fill, order) < reserve


def test_a_queue_that_is_consumed_and_never_taken_from_holds_nothing() -> None:
    def fill(index: QueueIndex) -> None:
        for seq in range(1, 3 * MANY + 1):
            add(index, seq)
            if not seq % 100:
                assert len(index.remove_through(seq)) == 100

    assert bytes_of(fill) < 200_000


def test_messages_far_apart_cost_little_more_than_their_entries() -> None:
    def fill(index: QueueIndex) -> None:
        for number in range(1000):
            add(index, number << RANGE_BITS | 4000)

    assert bytes_of(fill) / 1000 < 700


@every_order
def test_the_few_that_others_leave_behind_cost_little_more_than_their_entries(order: Order) -> None:
    def fill(index: QueueIndex) -> None:
        for seq in range(1, MANY + 1):
            index.add(Entry(seq, identity(seq)))
        for seq in range(1, MANY + 1):
            if seq % 100:
                taken = index.take(0, message_id=identity(seq))
                assert taken is not None
                index.remove(taken)

    reserve = 700_000
    assert bytes_of(fill, order) < reserve + MANY // 100 * 700


def test_the_head_is_the_lowest_or_the_highest() -> None:
    rows = rows_of(5, 6, 9, 5000)
    assert rows.head == 5
    rows.turn(newest_first=True)
    assert rows.head == 5000
    assert rows.pop(5000) == [row(5000)]
    assert rows.head == 9
    assert list(rows.rows()) == [row(9), row(6), row(5)]
    rows.turn(newest_first=False)
    assert rows.head == 5
    assert rows.take_run(6, 9) == [identity(5), identity(6)]
    assert rows.head == 9
    assert rows.take_run(100, 100) == [identity(9)]
    assert rows.head == -1
    assert list(rows.rows()) == []
    assert list(rows.rows()) == []


def test_only_what_is_there_is_said_to_be() -> None:
    rows = rows_of(4097, 4099)
    assert [seq for seq in range(9000) if seq in rows] == [4097, 4099]
    rows.pop(4099)
    assert [seq for seq in range(9000) if seq in rows] == [4097]


def test_a_row_below_its_table_is_refused_and_one_in_a_gap_is_not() -> None:
    rows = rows_of(100, 103)
    assert not rows.add(*row(99))
    assert rows.add(*row(102))
    assert rows.add(*row(99 + (1 << TABLE_BITS)))
    assert list(rows.rows()) == [row(100), row(102), row(103), row(99 + (1 << TABLE_BITS))]


def test_a_snapshot_stays_as_it_was() -> None:
    rows = rows_of(1, 2, 3)
    snapshot = rows.rows()
    rows.pop(2)
    rows.add(*row(4))
    assert list(snapshot) == [row(1), row(2), row(3)]


def test_rows_left_far_apart_come_out_with_the_last_that_goes() -> None:
    rows = rows_of(*range(1, 101))
    for seq in range(2, 98):
        if seq not in (30, 60):
            assert rows.pop(seq) == [row(seq)]
    assert rows.pop(98) == [row(98), row(1), row(30), row(60), row(99), row(100)]
    assert rows.head == -1


def test_what_is_trimmed_is_not_lost() -> None:
    rows = rows_of(*range(1, 101))
    for seq in (*range(1, 50), *range(55, 101)):
        assert rows.pop(seq) == [row(seq)]
    assert list(rows.rows()) == [row(seq) for seq in range(50, 55)]
    assert rows.add(*row(55))
    assert not rows.add(*row(49))


@every_order
def test_rows_that_come_out_together_keep_their_order(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xaqueue.core.model.order.UNPACKED", 0)
    index = QueueIndex(order)
    seqs = [1, 30, 60, 90, 100]
    for seq in seqs:
        index.add(Entry(seq, identity(seq)))
    found = index.take(0, message_id=identity(60))
    assert found is not None
    index.remove(found)
    seqs.remove(60)
    taken = [entry.seq for entry in iter(lambda: index.take(0), None)]
    assert taken == (seqs[::-1] if order is Order.LIFO else seqs)


def test_many_rows_are_added_behind_those_of_their_table_or_not_at_all() -> None:
    seqs = range(10, 20)
    for there in (10, 15, 19, 30):
        rows = rows_of(there)
        assert not rows.add_all(seqs, [identity(seq) for seq in seqs])
        assert list(rows.rows()) == [row(there)]
    for there in (3, 9, 1 << TABLE_BITS):
        rows = rows_of(there)
        assert rows.add_all(seqs, [identity(seq) for seq in seqs])
        assert list(rows.rows()) == [row(seq) for seq in sorted((there, *seqs))]
        assert rows.head == min(there, 10)


@pytest.mark.parametrize("gaps", [(), (3,), (0,), (3, 4, 9)])
def test_a_run_ends_at_a_gap(gaps: tuple[int, ...]) -> None:
    seqs = [seq for seq in range(10) if seq not in gaps]
    rows = rows_of(*seqs)
    begin = rows.head
    run = rows.take_run(8, 6)
    last = begin + len(run) - 1
    assert run == [identity(seq) for seq in range(begin, last + 1)]
    assert list(rows.rows()) == [row(seq) for seq in seqs if seq > last]
    assert len(run) == 6 or last == 8 or last + 1 in gaps
    assert rows.head == min(seq for seq in seqs if seq > last)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_table_with_gaps_is_as_if_each_was_added(newest_first: bool) -> None:
    seqs = [3, 4, 7, 20]
    rows, each = PackedRows(newest_first), rows_of(*seqs, newest_first=newest_first)
    assert rows.add_all(seqs, [identity(seq) for seq in seqs])
    assert rows.head == each.head == (20 if newest_first else 3)
    assert list(rows.rows()) == list(each.rows())
    assert 5 not in rows
    assert rows.pop(7) == [row(7)]
    assert rows.add(*row(5))
    rows.turn(newest_first=False)
    assert rows.take_run(20, 20) == [identity(3), identity(4), identity(5)]


def test_an_index_takes_many_also_where_its_table_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xaqueue.core.model.order.UNPACKED", 0)
    index = QueueIndex()
    for seq in (9, 8):
        index.add(Entry(seq, identity(seq)))
    index.add_plain(range(10, 20), [identity(seq) for seq in range(10, 20)])
    assert [entry.seq for entry in index.entries(0)] == list(range(8, 20))
    assert all(identity(seq) in index for seq in range(8, 20))
    assert index.has_any([identity(1), identity(19)])
    assert not index.has_any([identity(1), identity(20)])
