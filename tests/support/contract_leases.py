"""What every connection promises of messages on lease: many at once, each settled by itself, and nothing lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from support.contract_connection import PATIENCE_S, Connect, Contract, Host, bodies, drain, put
from support.patience import eventually
from xaqueue.connection import Connection
from xaqueue.errors import Error, InvalidArgument, LeaseExpired, ProtocolError, RolledBack
from xaqueue.xa import Code
from xaqueue.xid import Xid

SHORT_S = 0.05


def tries(connection: Connection, queue: str = "orders") -> list[int]:
    return [message.tries for message in connection.browse(queue)]


class LeaseContract(Contract):
    """receive, and a delivery's ack, nack, extend and reject; accept."""

    def test_several_are_held_and_settled_in_any_order(self, host: Host, connect: Connect) -> None:
        one, two = connect(), connect()
        one.define("orders", failure_queue="replies")
        put(one, *(b"%d" % number for number in range(5)))
        held = one.receive("orders", 4, lease_s=600)
        assert [delivery.body for delivery in held] == [b"0", b"1", b"2", b"3"]
        assert not one.in_transaction
        assert [delivery.body for delivery in two.receive("orders", 9)] == [b"4"]
        held[2].ack()
        held[0].reject("no such customer")
        held[1].extend(600)
        held[1].ack()
        held[3].nack(timedelta(hours=1))
        for delivery in held:
            with pytest.raises(ProtocolError, match="settled already"):
                delivery.ack()
        assert (bodies(one), tries(one), bodies(one, "replies")) == ([b"3", b"4"], [0, 0], [b"0"])
        (moved,) = one.browse("replies")
        assert moved.origin is not None
        assert (moved.origin.reason, moved.origin.detail) == ("rejected", "no such customer")
        host.restart()
        three = connect()
        assert (bodies(three), tries(three), bodies(three, "replies")) == ([b"3", b"4"], [0, 1], [b"0"])
        assert drain(three) == [b"4"], "the other one is put off, which its connection's end has not changed"

    def test_who_is_late_is_refused_and_nothing_is_done(self, connect: Connect) -> None:
        one, two = connect(), connect()
        put(one, b"slow", b"next")
        (late,) = one.receive("orders", lease_s=SHORT_S)
        eventually(lambda: tries(one) == [1, 0])
        two.enqueue("replies", b"effect")
        calls: list[Callable[[], None]] = [late.ack, late.nack, late.extend, lambda: two.accept(late)]
        for call in calls:
            with pytest.raises(LeaseExpired) as told:
                call()
            assert told.value.code is Code.XAER_NOTA
        two.commit()
        assert (bodies(one), bodies(one, "replies")) == ([b"slow", b"next"], [b"effect"])
        (again,) = two.receive("orders")
        assert (again.body, again.message.tries) == (b"slow", 1)
        with pytest.raises(LeaseExpired):
            late.ack()
        again.ack()
        assert bodies(one) == [b"next"]

    @pytest.mark.parametrize("ends", ["commit", "rollback", "two-phase", "two-phase rollback", "kill"])
    def test_what_is_accepted_goes_with_the_transaction(
        self, host: Host, connect: Connect, xid: Xid, ends: str
    ) -> None:
        one, two = connect(), connect()
        put(one, b"a", b"b")
        first, second = one.receive("orders", 2)
        if ends.startswith("two-phase"):
            two.tpc_begin(xid)
        two.enqueue("replies", b"of a")
        two.accept(first)
        assert two.in_transaction
        with pytest.raises(ProtocolError):
            first.ack()
        second.ack()
        if ends.startswith("two-phase"):
            assert two.tpc_prepare()
            two.tpc_rollback() if "rollback" in ends else two.tpc_commit()
        elif ends == "kill":
            host.kill()
            one = connect()
        else:
            two.rollback() if ends == "rollback" else two.commit()
        if ends in ("commit", "two-phase"):
            assert (bodies(one), bodies(one, "replies")) == ([], [b"of a"])
        else:
            assert (bodies(one), tries(one), bodies(one, "replies")) == ([b"a"], [1], [])

    @pytest.mark.parametrize("ends", ["close", "restart", "kill"])
    def test_what_is_held_at_the_end_has_been_tried(self, host: Host, connect: Connect, ends: str) -> None:
        holder = connect()
        put(holder, b"a", b"b", b"c")
        held = holder.receive("orders", 3, lease_s=600)
        held[0].ack()
        held[1].nack(0)
        {"close": holder.close, "restart": host.restart, "kill": host.kill}[ends]()
        other = connect()
        assert (bodies(other), tries(other)) == ([b"b", b"c"], [0, 1])
        assert drain(other) == [b"b", b"c"]

    def test_it_stands_beside_the_transaction(self, connect: Connect) -> None:
        """A rollback of the connection ends no lease, and an ack is no part of its transaction."""
        one = connect()
        put(one, b"a", b"b")
        one.enqueue("replies", b"never")
        first, second = one.receive("orders", 2)
        first.ack()
        one.rollback()
        second.ack()
        assert (bodies(one), bodies(one, "replies")) == ([], [])

    def test_it_waits_for_the_first(self, connect: Connect) -> None:
        one, two = connect(), connect()
        assert one.receive("orders", 5, wait_s=0.01) == []
        put(two, b"a")
        (held,) = one.receive("orders", 5, wait_s=PATIENCE_S)
        held.ack()

    def test_what_is_wrong_is_refused_and_held_still(self, connection: Connection) -> None:
        put(connection, b"a")
        (held,) = connection.receive("orders")
        with pytest.raises(InvalidArgument, match="failure_queue"):
            held.reject("nowhere to go")
        wrong: list[Callable[[], object]] = [
            lambda: held.nack(-1),
            lambda: held.extend(0),
            lambda: held.extend(10**6),
            lambda: held.reject(""),
            lambda: connection.receive("orders", 0),
            lambda: connection.receive("orders", 1001),
            lambda: connection.receive("orders", lease_s=0),
            lambda: connection.receive("orders", wait_s=-1),
            lambda: connection.receive("no such queue"),
        ]
        for call in wrong:
            with pytest.raises(Error) as told:
                call()
            assert told.value.code is Code.XAER_INVAL
        held.ack()
        assert bodies(connection) == []

    def test_a_transaction_that_is_over_accepts_nothing(self, connection: Connection, xid: Xid) -> None:
        put(connection, b"a")
        (held,) = connection.receive("orders")
        connection.tpc_begin(xid, timeout_s=SHORT_S)
        connection.flush()
        time.sleep(2 * SHORT_S)
        with pytest.raises(RolledBack):
            connection.accept(held)
        connection.tpc_rollback()
        held.ack()
        assert bodies(connection) == []
