"""What every connection promises of savepoints: what was done since is undone, and the transaction goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from support.contract_connection import PATIENCE_S, Connect, Contract, Host, bodies, drain, put
from support.contract_leases import tries
from xaqueue.connection import Connection
from xaqueue.errors import LeaseExpired, ProtocolError, QueueFull, RolledBack, UnknownQueue
from xaqueue.xid import Xid

DEPTH = 10
WAYS = ["one phase", "two phases"]


class RefusedError(Exception):
    """Of the work in a block."""


def begin(connection: Connection, way: str, xid: Xid) -> None:
    if way == "two phases":
        connection.tpc_begin(xid)


def end(connection: Connection, way: str) -> None:
    if way == "one phase":
        connection.commit()
    else:
        assert connection.tpc_prepare()
        connection.tpc_commit()


def within(connection: Connection, *calls: Callable[[], object]) -> None:
    """In a savepoint's block."""
    with connection.savepoint():
        for call in calls:
            call()


def refuse() -> None:
    raise RefusedError


def undone(connection: Connection, *calls: Callable[[], object]) -> None:
    """Done in a savepoint, and rolled back."""
    with pytest.raises(RefusedError):
        within(connection, *calls, refuse)


class SavepointContract(Contract):
    @pytest.mark.parametrize("way", WAYS)
    def test_what_a_block_did_is_undone_on_an_exception(self, connection: Connection, xid: Xid, way: str) -> None:
        put(connection, b"a", b"b", b"c")
        begin(connection, way, xid)
        connection.enqueue("replies", b"1")
        assert connection.dequeue("orders") is not None
        undone(
            connection,
            lambda: connection.enqueue("replies", b"2"),
            lambda: connection.enqueue_many("replies", [b"3"] * 40),
            lambda: connection.dequeue("orders"),
        )
        with connection.savepoint():
            connection.enqueue("replies", b"4")
        end(connection, way)
        assert (bodies(connection, "replies"), bodies(connection)) == ([b"1", b"4"], [b"b", b"c"])
        assert tries(connection) == [0, 0]

    @pytest.mark.parametrize("way", WAYS)
    def test_ten_deep_and_rolled_back_at_each_depth(self, connection: Connection, xid: Xid, way: str) -> None:
        for at in range(DEPTH):
            begin(connection, way, xid)
            made = []
            for depth in range(DEPTH):
                made.append(connection.savepoint())
                connection.enqueue("orders", b"%d" % depth)
            made[at].rollback()
            assert [one.is_over for one in made] == [depth > at for depth in range(DEPTH)]
            connection.enqueue("orders", b"behind")
            end(connection, way)
            assert drain(connection) == [*(b"%d" % depth for depth in range(at)), b"behind"]
            connection.commit()

    def test_rolled_back_twice_released_and_rolled_back_with_an_outer_one(self, connection: Connection) -> None:
        outer = connection.savepoint()
        connection.enqueue("orders", b"1")
        inner = connection.savepoint()
        for _ in range(2):
            connection.enqueue("orders", b"2")
            inner.rollback()
        connection.enqueue("orders", b"3")
        inner.release()
        with pytest.raises(ProtocolError, match="is over"):
            inner.rollback()
        outer.release()
        whole = connection.savepoint()
        connection.enqueue("orders", b"4")
        with connection.savepoint():
            connection.enqueue("orders", b"5")
        whole.rollback()
        connection.commit()
        assert drain(connection) == [b"1", b"3"]

    def test_it_begins_a_transaction_and_ends_with_it(self, connection: Connection, xid: Xid) -> None:
        with pytest.raises(RolledBack, match="block of a savepoint"):
            within(connection, lambda: connection.enqueue("orders", b"1"), connection.commit)
        undone(connection, lambda: connection.enqueue("orders", b"2"), connection.rollback)
        connection.savepoint()
        assert connection.in_transaction
        connection.commit()
        connection.tpc_begin(xid)
        savepoint = connection.savepoint()
        connection.enqueue("orders", b"3")
        assert connection.tpc_prepare()
        for call in (savepoint.rollback, savepoint.release):
            with pytest.raises(ProtocolError, match="is over"):
                call()
        connection.tpc_commit()
        assert drain(connection) == [b"3"]
        with pytest.raises(ProtocolError, match="is over"):
            savepoint.rollback()

    def test_what_is_refused_in_it_is_told_at_once_and_the_transaction_goes_on(self, connection: Connection) -> None:
        connection.define("small", max_messages=2)
        connection.enqueue("orders", b"1")
        one_more = partial(connection.enqueue, "small", b"back")
        with pytest.raises(QueueFull):
            within(connection, one_more, one_more, one_more)
        with pytest.raises(UnknownQueue):
            within(connection, one_more, lambda: connection.enqueue("none", b""))
        connection.enqueue_many("small", [b"0", b"1"])
        connection.commit()
        assert (drain(connection), drain(connection, "small")) == ([b"1"], [b"0", b"1"])

    def test_room_and_keys_are_given_back(self, connection: Connection) -> None:
        connection.define("small", max_messages=40, dedup_window_s=60)
        kept = connection.enqueue("small", b"first", dedup_key="a")
        undone(connection, lambda: [connection.enqueue("small", b"", dedup_key=key) for key in "abc"])
        undone(connection, lambda: connection.enqueue_many("small", [b""] * 39))
        assert connection.enqueue("small", b"", dedup_key="a") == kept
        connection.enqueue("small", b"second", dedup_key="b")
        connection.enqueue_many("small", [b"rest"] * 38)
        connection.commit()
        assert drain(connection, "small") == [b"first", b"second", *[b"rest"] * 38]

    def test_topics_groups_moves_and_removals(self, connection: Connection) -> None:
        connection.define_topic("news")
        for queue in ("replies", "urgent"):
            connection.subscribe("news", queue)
        put(connection, b"1", b"2", b"3", group="g")
        connection.publish("news", b"kept")
        undone(connection, lambda: [connection.publish("news", b"%d" % number) for number in range(40)])
        undone(connection, lambda: connection.enqueue_to(["replies", "stack"], bytes(50_000)))
        (first, second, _) = connection.browse("orders")
        undone(connection, lambda: connection.move("orders", first.message_id, "stack"))
        undone(connection, lambda: connection.remove("orders", second.message_id))
        taken = connection.dequeue("orders")
        assert taken is not None
        undone(connection, lambda: connection.dequeue("orders"))
        again = connection.dequeue("orders")
        assert again is not None
        assert (taken.body, again.body) == (b"1", b"2")
        connection.commit()
        assert [bodies(connection, queue) for queue in ("orders", "stack")] == [[b"3"], []]
        assert [drain(connection, queue) for queue in ("replies", "urgent")] == [[b"kept"]] * 2

    def test_a_delivery_that_was_accepted_is_back(self, connect: Connect) -> None:
        one, two = connect(), connect()
        put(one, b"a", b"b")
        first, second = one.receive("orders", 2)
        second.ack()
        one.enqueue("replies", b"kept")
        undone(one, lambda: one.accept(first))
        with pytest.raises((LeaseExpired, ProtocolError)):
            first.ack()
        message = two.dequeue("orders")
        assert message is not None
        assert (message.body, message.tries) == (b"a", 0)
        two.commit()
        one.commit()
        assert (bodies(one), bodies(one, "replies")) == ([], [b"kept"])

    def test_who_waits_gets_what_is_back(self, connect: Connect) -> None:
        one, two = connect(), connect()
        put(one, *(b"%d" % number for number in range(3)))
        one.dequeue("orders")
        undone(one, lambda: one.dequeue_many("orders", 5))
        found = two.dequeue_many("orders", 5, wait_s=PATIENCE_S)
        assert [message.body for message in found] == [b"1", b"2"]

    def test_a_kill_undoes_it_as_a_whole(self, host: Host, connect: Connect) -> None:
        one = connect()
        put(one, b"a", b"b")
        one.dequeue("orders")
        undone(one, lambda: one.dequeue("orders"))
        one.enqueue("replies", b"")
        host.kill()
        other = connect()
        assert (bodies(other), tries(other), bodies(other, "replies")) == ([b"a", b"b"], [1, 0], [])

    def test_a_transaction_that_can_only_be_rolled_back_stays_so(self, connection: Connection, xid: Xid) -> None:
        put(connection, b"a")
        connection.tpc_begin(xid, timeout_s=0.05)
        connection.dequeue("orders")
        undone(connection, lambda: time.sleep(0.1))
        with pytest.raises(RolledBack):
            connection.enqueue("orders", b"b")
        connection.tpc_rollback()
        assert drain(connection) == [b"a"]
