"""A dead letter says why: whatever way a delivery has failed, the type and the text of what was raised come with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from support.contract_connection import Connect, Contract, Host, put
from support.patience import eventually
from xaqueue.connection import Connection
from xaqueue.errors import InvalidArgument
from xaqueue.message import REASON_LIMIT, Message

LONG = RuntimeError("smtp.example.com refuses:\n\x1b[31m550 \udcff" + "é" * 2 * REASON_LIMIT)
"""What no terminal and no record takes as it is."""
TOLD = "RuntimeError: smtp.example.com refuses: [31m550 éé"


def in_a_block(connection: Connection, error: Exception) -> None:
    with suppress(RuntimeError, ValueError), connection.transaction():
        assert connection.dequeue("orders") is not None
        raise error


def as_a_block(connection: Connection, error: Exception) -> None:
    with suppress(RuntimeError, ValueError), connection:
        assert connection.dequeue("orders") is not None
        raise error


def in_two_phases(connection: Connection, error: Exception) -> None:
    with suppress(RuntimeError, ValueError), connection:
        connection.tpc_begin(connection.xid(1, "two phases", "x"))
        assert connection.dequeue("orders") is not None
        raise error


def by_hand(connection: Connection, error: Exception) -> None:
    assert connection.dequeue("orders") is not None
    connection.explain_rollback(error)
    connection.rollback()


def by_hand_in_two_phases(connection: Connection, error: Exception) -> None:
    connection.tpc_begin(connection.xid(1, "by hand", "x"))
    assert connection.dequeue("orders") is not None
    connection.tpc_end()
    connection.explain_rollback(error)
    connection.tpc_rollback()


def accepted(connection: Connection, error: Exception) -> None:
    (delivery,) = connection.receive("orders")
    with suppress(RuntimeError, ValueError), connection.transaction():
        connection.accept(delivery)
        raise error


def rejected(connection: Connection, error: Exception) -> None:
    (delivery,) = connection.receive("orders")
    delivery.reject(error)


def in_a_block_of_nothing(connection: Connection) -> None:
    with suppress(RuntimeError), connection.transaction():
        connection.dequeue("orders")
        raise RuntimeError("of nothing")


Way = Callable[[Connection, Exception], None]
WAYS: list[Way] = [in_a_block, as_a_block, in_two_phases, by_hand, by_hand_in_two_phases, accepted, rejected]


def dead(connection: Connection) -> Message:
    eventually(lambda: len(list(connection.browse("replies"))) == 1)
    (moved,) = connection.browse("replies")
    return moved


class ReasonContract(Contract):
    """The reason of a failed delivery."""

    @pytest.mark.parametrize("way", WAYS)
    def test_a_dead_letter_says_why(self, connect: Connect, way: Way) -> None:
        setup = connect()
        setup.define("orders", max_tries=1, failure_queue="replies")
        put(setup, b"x")
        way(connect(), LONG)
        moved = dead(setup)
        assert moved.origin is not None
        detail = moved.origin.detail
        assert detail.startswith(TOLD)
        assert detail.isprintable()
        assert len(detail) == REASON_LIMIT
        assert moved.origin.queue == "orders"

    @pytest.mark.parametrize("way", [one for one in WAYS if one is not rejected])
    def test_it_outlives_a_kill_between_the_failure_and_the_move(self, host: Host, connect: Connect, way: Way) -> None:
        setup = connect()
        setup.define("orders", max_tries=5, retry_delay_s=3600, failure_queue="replies")
        put(setup, b"x")
        way(connect(), ValueError("no such customer"))
        eventually(lambda: [message.tries for message in setup.browse("orders")] == [1])
        host.kill()
        again = connect()
        again.define("orders", max_tries=1, failure_queue="replies")
        moved = dead(again)
        assert moved.origin is not None
        assert (moved.origin.tries, moved.origin.detail) == (1, "ValueError: no such customer")

    def test_a_nack_says_why_and_is_no_try(self, host: Host, connect: Connect) -> None:
        setup = connect()
        setup.define("orders", max_tries=5, failure_queue="replies")
        put(setup, b"x")
        in_a_block(connect(), ValueError("first"))
        consumer = connect()
        eventually(lambda: [message.tries for message in setup.browse("orders")] == [1])
        (delivery,) = consumer.receive("orders")
        delivery.nack(reason=ValueError("second"))
        (delivery,) = consumer.receive("orders")
        assert delivery.message.tries == 1
        with pytest.raises(InvalidArgument, match="reason"):
            delivery.nack(reason="")
        delivery.nack(3600, "third")
        host.kill()
        again = connect()
        again.define("orders", max_tries=1, failure_queue="replies")
        moved = dead(again)
        assert moved.origin is not None
        assert (moved.origin.tries, moved.origin.detail) == (1, "third")

    def test_without_a_reason_it_was_rolled_back(self, connect: Connect) -> None:
        """As by a client that tells none; what a branch before it said is none of it."""
        setup = connect()
        setup.define("orders", max_tries=1, failure_queue="replies")
        one = connect()
        one.explain_rollback("outside of a transaction")
        in_a_block_of_nothing(one)
        put(setup, b"x")
        assert one.dequeue("orders") is not None
        one.rollback()
        moved = dead(setup)
        assert moved.origin is not None
        assert moved.origin.detail == "rolled back"

    def test_a_message_without_room_for_it_moves_all_the_same(self, connect: Connect) -> None:
        setup = connect()
        setup.define("orders", max_tries=1, failure_queue="replies")
        for value_bytes in (56_000, 64_000):
            put(setup, b"x", headers={"h": "v" * value_bytes})
        for _ in range(2):
            in_a_block(connect(), ValueError("\U0001f4a5" * REASON_LIMIT))
        eventually(lambda: len(list(setup.browse("replies"))) == 2)
        moved = sorted(setup.browse("replies"), key=lambda message: len(message.headers["h"]))
        assert [message.origin and message.origin.reason for message in moved] == ["tries", "tries"]
        assert [len(message.origin.detail) if message.origin else None for message in moved] == [REASON_LIMIT, 0]

    def test_of_a_process_that_was_killed_it_is_said_so(self, host: Host, connect: Connect) -> None:
        setup = connect()
        setup.define("orders", max_tries=1, failure_queue="replies")
        put(setup, b"x")
        assert setup.dequeue("orders") is not None
        host.kill()
        moved = dead(connect())
        assert moved.origin is not None
        assert moved.origin.detail == "the process ended before it was done"
