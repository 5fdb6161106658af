"""What every connection promises, whatever is behind it: one suite for the embedded and for a remote space.

A test module gives a ``host`` fixture, a Host with an empty space, and subclasses the classes here. The numbers in
docstrings are the black-box behaviours of the reference systems that a test shows.
"""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

import pytest

from xaqueue.connection import Connection
from xaqueue.errors import (
    DataError,
    HeuristicOutcome,
    InterfaceError,
    InvalidArgument,
    MessageTooLarge,
    NoReply,
    OperationalError,
    ProgrammingError,
    ProtocolError,
    QueueFull,
    RetryLater,
    RolledBack,
    UnknownQueue,
    UnknownXid,
)
from xaqueue.message import Message
from xaqueue.xa import Code, Flag, Outcome
from xaqueue.xid import Xid

PATIENCE_S = 60.0
QUEUES = """
[space]
max_body_bytes = 100_000
[queues.orders]
[queues.replies]
[queues.stack]
order = "lifo"
[queues.urgent]
order = "priority"
"""

Connect = Callable[[], Connection]


class Host(Protocol):
    """A queue space with the definitions in QUEUES, and the power over whoever serves it."""

    root: Path

    def connect(self) -> Connection:
        """A new connection; the host closes what a test leaves open."""

    def restart(self) -> None:
        """Ends the service in good order, with all connections closed, and begins it again."""

    def kill(self) -> None:
        """Ends the service as SIGKILL does, connections open, and begins it again."""

    def decide(self, xid: Xid, commit: bool) -> None:
        """An operator's decision on a branch in doubt."""


def put(connection: Connection, *bodies: bytes, queue: str = "orders", **options: Any) -> None:
    for body in bodies:
        connection.enqueue(queue, body, **options)
    connection.commit()


def drain(connection: Connection, queue: str = "orders", **options: Any) -> list[bytes]:
    """Everything that can be taken now, taken in the connection's transaction."""
    found = []
    while (message := connection.dequeue(queue, **options)) is not None:
        found.append(message.body)
    return found


def bodies(connection: Connection, queue: str = "orders") -> list[bytes]:
    return [message.body for message in connection.browse(queue)]


def block_files(root: Path) -> list[str]:
    return sorted(path.name for name in ("active", "prepared") for path in (root / name).iterdir())


def message_files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "committed").rglob("*.*") if path.is_file() and path.name[0] != ".")


class Contract:
    """The fixtures that all parts share."""

    @pytest.fixture
    def connect(self, host: Host) -> Connect:
        return host.connect

    @pytest.fixture
    def connection(self, connect: Connect) -> Connection:
        return connect()

    @pytest.fixture
    def xid(self, connection: Connection) -> Xid:
        return connection.xid(42, "gtrid", "bqual")


class TwoPhaseContract(Contract):
    """PEP 249, "Two-Phase Commit Extensions", to the letter, and what python-oracledb adds to it."""

    def test_xid_is_a_sequence_of_three(self, connection: Connection) -> None:
        xid = connection.xid(42, "gtrid", b"bqual")
        assert len(xid) == 3
        assert (xid[0], xid[1], xid[2]) == tuple(xid) == (42, b"gtrid", b"bqual")
        assert tuple(connection.xid(0, "", "")) == (0, b"", b"")

    @pytest.mark.parametrize("parts", [(-1, "", ""), (2**31, "", ""), (1, "x" * 65, ""), (1, "", "x" * 65)])
    def test_xid_out_of_bounds_is_refused(self, connection: Connection, parts: tuple[int, str, str]) -> None:
        with pytest.raises(ProgrammingError):
            connection.xid(*parts)

    @pytest.mark.parametrize("shape", [tuple, list])
    def test_plain_sequences_are_taken_for_xids(self, connection: Connection, shape: Callable[[Any], Any]) -> None:
        given = shape((42, "gtrid", b"bqual"))
        connection.tpc_begin(given)
        connection.enqueue("orders", b"x")
        connection.tpc_prepare()
        connection.tpc_commit()
        connection.tpc_begin(given)
        connection.enqueue("orders", b"x")
        connection.tpc_prepare()
        connection.close()

    @pytest.mark.parametrize("given", [(1, "x"), "abc", None, 7, (1, "x", "y", "z"), ("1", "x", "y")])
    def test_what_is_no_xid_is_refused(self, connection: Connection, given: Any) -> None:
        for call in (connection.tpc_begin, connection.tpc_forget, connection.outcome):
            with pytest.raises(InvalidArgument):
                call(given)

    def test_begin_is_only_outside_a_transaction(self, connection: Connection, xid: Xid) -> None:
        connection.enqueue("orders", b"local")
        with pytest.raises(ProgrammingError, match="local transaction"):
            connection.tpc_begin(xid)
        connection.commit()
        connection.tpc_begin(xid)
        with pytest.raises(ProgrammingError, match="two-phase"):
            connection.tpc_begin(connection.xid(42, "other", ""))

    def test_commit_and_rollback_are_refused_within(self, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        for _ in range(2):
            with pytest.raises(ProgrammingError, match="use tpc_commit"):
                connection.commit()
            with pytest.raises(ProgrammingError, match="use tpc_rollback"):
                connection.rollback()
            if _ == 0:
                connection.tpc_prepare()
        connection.tpc_commit()
        assert bodies(connection) == [b"x"]

    def test_outside_the_two_phase_methods_are_refused(self, connection: Connection) -> None:
        for call in (connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback, connection.tpc_end):
            with pytest.raises(ProgrammingError):
                call()
        connection.enqueue("orders", b"local")
        for call in (connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback, connection.tpc_end):
            with pytest.raises(ProgrammingError):
                call()
        connection.commit()
        assert bodies(connection) == [b"local"]

    def test_after_prepare_only_commit_and_rollback_follow(self, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        assert connection.tpc_prepare() is True
        for call in (
            lambda: connection.enqueue("orders", b"y"),
            lambda: connection.dequeue("orders"),
            connection.tpc_prepare,
            connection.tpc_end,
            lambda: connection.tpc_begin(xid),
        ):
            with pytest.raises(ProgrammingError, match="prepared"):
                call()
        connection.tpc_rollback()
        assert bodies(connection) == []

    def test_commit_without_prepare_is_one_phase(self, host: Host, connection: Connection, xid: Xid) -> None:
        """37."""
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        connection.tpc_commit()
        assert connection.outcome(xid) is Outcome.COMMITTED
        host.kill()
        again = host.connect()
        assert bodies(again) == [b"x"]
        assert again.tpc_recover() == []

    def test_a_late_commit_is_seen_at_once_and_kept_once_it_is_hardened(self, host: Host, connect: Connect) -> None:
        one, other = connect(), connect()
        put(one, b"first")
        listed = []
        for number in range(3):
            xid = one.xid(42, str(number), "")
            one.tpc_begin(xid)
            one.enqueue("orders", xid.gtrid)
            if not number:
                assert one.dequeue("orders") is not None
            one.tpc_prepare()
            listed.append(xid)
            if number:
                one.tpc_commit(late=True)
            else:
                one.close()
                one = connect()
                one.tpc_commit(xid, late=True)
            assert bodies(other) == [each.gtrid for each in listed]
            assert one.outcome(xid) is Outcome.COMMITTED
            assert other.tpc_recover() == []
            with pytest.raises(UnknownXid):
                other.tpc_commit(xid)
        other.harden()
        host.kill()
        again = host.connect()
        assert bodies(again) == [b"0", b"1", b"2"]
        assert again.tpc_recover() == []

    def test_late_without_prepare_is_a_commit_in_one_phase(self, host: Host, connection: Connection, xid: Xid) -> None:
        connection.harden()
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        connection.tpc_commit(late=True)
        host.kill()
        assert bodies(host.connect()) == [b"x"]

    @pytest.mark.parametrize("prepared", [True, False])
    def test_rollback_before_and_after_prepare(self, connection: Connection, xid: Xid, prepared: bool) -> None:
        put(connection, b"there")
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"new")
        assert connection.dequeue("orders") is not None
        if prepared:
            connection.tpc_prepare()
        connection.tpc_rollback()
        assert bodies(connection) == [b"there"]
        assert connection.outcome(xid) is Outcome.ROLLED_BACK
        put(connection, b"the connection goes on")

    def test_forms_with_an_xid_are_only_outside_a_transaction(self, connect: Connect, xid: Xid) -> None:
        one, other = connect(), connect()
        one.tpc_begin(xid)
        one.enqueue("orders", b"x")
        one.tpc_prepare()
        for method in (one.tpc_commit, one.tpc_rollback):
            with pytest.raises(ProgrammingError):
                method(xid)
        other.enqueue("orders", b"local")
        for method in (other.tpc_commit, other.tpc_rollback):
            with pytest.raises(ProgrammingError, match="local transaction"):
                method(xid)
        other.rollback()
        other.tpc_commit(xid)
        with pytest.raises(UnknownXid):
            one.tpc_commit()
        put(one, b"one goes on")
        assert bodies(other) == [b"x", b"one goes on"]

    def test_an_unknown_xid_is_a_programming_error(self, connection: Connection, xid: Xid) -> None:
        for method in (connection.tpc_commit, connection.tpc_rollback, connection.tpc_forget):
            with pytest.raises(ProgrammingError) as told:
                method(xid)
            assert told.value.code is Code.XAER_NOTA
        assert connection.outcome(xid) is Outcome.UNKNOWN

    def test_recover_gives_what_the_xid_forms_take(self, host: Host, connection: Connection) -> None:
        """31: each once, and usable as it is."""
        xids = [connection.xid(42, str(number), "") for number in range(4)]
        for xid in xids:
            connection.tpc_begin(xid)
            connection.enqueue("orders", xid.gtrid)
            connection.tpc_prepare()
            connection.close()
            connection = host.connect()
        listed = connection.tpc_recover()
        assert sorted(listed, key=str) == sorted(xids, key=str)
        assert [connection.outcome(xid) for xid in listed] == [Outcome.IN_DOUBT] * 4
        connection.tpc_commit(xids[0])
        connection.tpc_rollback(xids[1])
        connection.tpc_commit(tuple(xids[2]))  # type: ignore[arg-type]
        connection.tpc_rollback(list(xids[3]))  # type: ignore[arg-type]
        assert connection.tpc_recover() == []
        assert bodies(connection) == [b"0", b"2"]

    def test_recover_leaves_the_transaction_as_it_is(self, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        assert connection.tpc_recover() == []
        connection.enqueue("orders", b"y")
        connection.tpc_prepare()
        assert connection.tpc_recover() == [xid]
        connection.tpc_commit()
        assert bodies(connection) == [b"x", b"y"]

    def test_an_xid_in_use_is_refused(self, connect: Connect, xid: Xid) -> None:
        one, other = connect(), connect()
        one.tpc_begin(xid)
        one.flush()

        def begin() -> None:
            other.tpc_begin(xid)
            other.flush()

        with pytest.raises(ProgrammingError) as told:
            begin()
        assert told.value.code is Code.XAER_DUPID
        put(other, b"other goes on")

    def test_what_has_no_utf8_is_refused_and_nothing_else(self, connection: Connection) -> None:
        for wrong in (
            lambda: connection.define("orders", description="\udcff"),
            lambda: connection.dequeue("orders", correlation_id="\udcff"),
            lambda: connection.enqueue("orders", b"1", group="\udcff"),
            lambda: connection.enqueue("orders", b"1", headers={"a": "\udcff"}),
        ):
            with pytest.raises(InvalidArgument, match="udcff"):
                wrong()
        connection.enqueue("orders", b"2")
        connection.commit()
        assert drain(connection) == [b"2"]

    def test_a_queue_is_defined_while_others_use_the_space(self, connection: Connection) -> None:
        connection.define("newest", order="lifo")
        for body in (b"one", b"two"):
            connection.enqueue("newest", body)
        connection.commit()
        message = connection.dequeue("newest")
        assert message is not None
        assert message.body == b"two"
        connection.rollback()
        with pytest.raises(InvalidArgument, match="did you mean 'order'"):
            connection.define("newest", ordr="fifo")

    def test_what_is_published_goes_to_all_who_subscribe(self, host: Host, connection: Connection, xid: Xid) -> None:
        connection.define_topic("events", description="what happens")
        connection.subscribe("events", "audit")
        connection.subscribe("events", "paid", match={"kind": "paid*"})
        first = connection.publish("events", b"1", headers={"kind": "opened"})
        connection.rollback()
        assert bodies(connection, "audit") == []
        connection.tpc_begin(xid)
        second = connection.publish("events", b"2", headers={"kind": "paid late"})
        connection.enqueue_to(["audit", "orders"], b"3")
        assert connection.tpc_prepare()
        connection.tpc_commit()
        assert first != second
        assert (bodies(connection, "audit"), bodies(connection, "paid")) == ([b"2", b"3"], [b"2"])
        assert drain(connection) == [b"3"]
        (one,) = connection.browse("paid")
        assert (one.message_id, one.properties.queue) == (second, "paid")
        connection.unsubscribe("paid")
        connection.publish("events", b"4", headers={"kind": "paid"})
        connection.commit()
        assert (bodies(connection, "audit"), bodies(connection, "paid")) == ([b"2", b"3", b"4"], [b"2"])
        with pytest.raises(UnknownQueue, match="did you mean 'events'"):
            connection.publish("evnts", b"x")
        connection.rollback()
        with pytest.raises(InvalidArgument, match=r"\[queues.late\] topic = 'evnts' is not defined"):
            connection.subscribe("evnts", "late")
        with pytest.raises(InvalidArgument, match="one is named twice"):
            connection.enqueue_to(["audit", "audit"], b"x")

    def test_a_message_moves_with_all_that_it_has_and_comes_back(self, connection: Connection) -> None:
        for queue in ("one", "two", "three"):
            connection.define(queue)
        message_id = connection.enqueue("one", b"body", priority=7, headers={"k": "v"}, group="g", correlation_id=b"c")
        connection.commit()
        assert connection.move("one", message_id, "two") == message_id
        connection.rollback()
        assert [one.message_id for one in connection.browse("one")] == [message_id]
        assert connection.move("one", message_id, "two") == message_id
        assert connection.move("one", message_id, "two") is None, "this transaction has it already"
        connection.commit()
        (moved,) = connection.browse("two")
        assert (moved.body, moved.priority, moved.headers, moved.correlation_id) == (b"body", 7, {"k": "v"}, b"c")
        assert moved.properties.group == "g"
        assert moved.origin is not None
        assert (moved.origin.queue, moved.origin.reason) == ("one", "moved")
        connection.move("two", message_id, "three")
        connection.commit()
        assert connection.requeue("three", message_id) == message_id
        connection.commit()
        (back,) = connection.browse("one")
        assert back.origin is None
        assert (back.message_id, back.properties.group) == (message_id, "g")
        with pytest.raises(InvalidArgument, match="was not moved here"):
            connection.requeue("one", message_id)
        assert connection.move("one", bytes(16), "two") is None
        with pytest.raises(InvalidArgument, match="name another"):
            connection.move("one", message_id, "one")
        connection.commit()
        assert [one.message_id for one in connection.browse("one")] == [message_id], "it stays where it is refused"

    def test_a_message_moves_in_a_prepared_transaction(self, connection: Connection, xid: Xid) -> None:
        for queue in ("one", "two"):
            connection.define(queue)
        message_id = connection.enqueue("one", b"body")
        connection.commit()
        for finish, queue in ((connection.tpc_rollback, "one"), (connection.tpc_commit, "two")):
            connection.tpc_begin(xid)
            connection.move("one", message_id, "two")
            connection.tpc_prepare()
            finish()
            assert [one.body for one in connection.browse(queue)] == [b"body"]

    def test_many_messages_come_back_as_they_were(self, host: Host, connect: Connect) -> None:
        one = connect()
        own = [(b"%d" % number, {"headers": {"n": str(number)}, "correlation_id": "c"}) for number in range(1_100)]
        one.enqueue_many("orders", [*own, (b"key", {"dedup_key": "k"})])  # type: ignore[list-item]
        one.commit()
        before = list(one.browse("orders"))
        assert [message.tries for message in one.dequeue_many("orders", 2)] == [0, 0]
        one.rollback()
        before = list(one.browse("orders"))
        assert one.restore_many(before[:3]) == [False] * 3
        assert one.restore_many([*before, before[0]], "urgent") == [True] * 1_101 + [False]
        assert one.restore_many([*before[:2], replace(before[2], queue="urgent")], "replies") == [True] * 3
        assert one.restore_many([]) == []
        assert one.restore_many([replace(before[2], queue=name) for name in ("orders", "replies")]) == [False, False]
        with pytest.raises(ProgrammingError, match="is no message"):
            one.restore_many([before[0], b"x"], "urgent")  # type: ignore[list-item]
        with pytest.raises(DataError, match="over the limit"):
            one.restore_many([before[5], replace(before[0], body=bytes(100_001))], "replies")
        one.commit()
        host.restart()
        other = host.connect()
        found = [replace(message, seq=0) for message in other.browse("urgent")]
        assert found == [
            replace(message, seq=0, queue="urgent", properties=replace(message.properties, queue="urgent"))
            for message in before
        ]
        assert [message.tries for message in found[:3]] == [1, 1, 0]
        assert drain(other, "replies") == [b"0", b"1", b"2"]

    def test_a_message_comes_back_as_it_was(self, connection: Connection) -> None:
        for queue in ("one", "two"):
            connection.define(queue)
        options: Any = {
            "priority": 7,
            "headers": {"k": "v"},
            "group": "g",
            "correlation_id": b"c",
            "dedup_key": b"\xff",
        }
        message_id = connection.enqueue("one", b"body", **options, not_before=datetime(2001, 1, 1, tzinfo=UTC))
        connection.commit()
        for _ in range(2):
            assert connection.dequeue("one") is not None
            connection.rollback()
        connection.move("one", message_id, "two")
        connection.commit()
        assert connection.dequeue("two") is not None
        connection.rollback()
        (before,) = connection.browse("two")
        assert (before.tries, before.origin and before.origin.tries) == (1, 2)
        assert connection.restore(before) is False, "it is there"
        assert connection.remove("two", message_id)
        with pytest.raises(InvalidArgument, match="taken by this same transaction"):
            connection.restore(before)
        connection.commit()
        assert connection.restore(before) is True
        assert connection.restore(before) is False, "this transaction adds it"
        connection.rollback()
        assert list(connection.browse("two")) == []
        assert connection.restore(before) is True
        assert connection.restore(before, "one") is True
        connection.commit()
        (back,) = connection.browse("two")
        assert (back.message_id, back.body, back.properties) == (message_id, b"body", before.properties)
        assert back.seq > before.seq
        assert connection.dequeue("two") == back
        connection.rollback()
        assert [one.tries for one in connection.browse("two")] == [2], "it goes on counting"
        (other,) = connection.browse("one")
        assert replace(other.properties, queue="two") == before.properties
        for wrong in (
            {"priority": 10},
            {"tries": -1},
            {"tries": 2**28},
            {"enqueued_at": 1},
            {"origin": b"x"},
            {"headers": {"k": 1}},
            {"unknown": {"later": {1: 2}}},
            {"unknown": {"later": 2**64}},
        ):
            with pytest.raises(InvalidArgument):
                connection.restore(replace(before, properties=replace(before.properties, **wrong)), "orders")
        with pytest.raises(MessageTooLarge):
            connection.restore(replace(before, body=bytes(100_001)), "orders")
        with pytest.raises(UnknownQueue):
            connection.restore(before, "nowhere")
        with pytest.raises(InvalidArgument, match="is no message"):
            connection.restore(b"body")  # type: ignore[arg-type]
        connection.commit()
        assert list(connection.browse("orders")) == []

    def test_a_message_of_another_transaction_is_not_passed_over(
        self, connection: Connection, connect: Connect
    ) -> None:
        other = connect()
        put(connection, b"one")
        (message,) = connection.browse("orders")
        assert connection.restore(message, "replies")
        with pytest.raises(InvalidArgument, match="ids are unique"):
            other.restore(message, "replies")
        connection.rollback()
        assert other.restore(message, "replies")
        other.commit()

    def test_one_message_is_looked_at_by_its_id(self, connection: Connection) -> None:
        put(connection, *(b"%d" % number for number in range(200)))
        found = list(connection.browse("orders"))
        for message in found[::50]:
            for name in (message.message_id, message.message_id.hex(), message.message_id.hex().upper()):
                assert list(connection.browse("orders", message_id=name)) == [message]
        digit = found[0].message_id.hex()[0]
        assert list(connection.browse("orders", message_id=digit)) == [
            one for one in found if one.message_id.hex()[0] == digit
        ]
        assert list(connection.browse("orders", message_id=bytes(16))) == []
        for wrong in ("x", "", "0" * 33, b"0"):
            with pytest.raises(InvalidArgument, match="message id"):
                list(connection.browse("orders", message_id=wrong))

    def test_a_snapshot_has_what_is_committed(self, connection: Connection, connect: Connect) -> None:
        connection.enqueue("orders", b"one")
        connection.commit()
        other = connect()
        other.enqueue("orders", b"not yet")
        first, second = connection.snapshot(), other.snapshot()
        assert (first.number, first.messages, first.problem) == (1, 1, "")
        assert (second.number, second.messages) == (2, 1)
        other.commit()
        assert [message.body for message in connection.browse("orders")] == [b"one", b"not yet"]

    def test_a_queue_is_undefined_once_it_is_empty(
        self, host: Host, connection: Connection, connect: Connect, xid: Xid
    ) -> None:
        other = connect()
        connection.define("target")
        connection.define("handled", failure_queue="target", description="handled")
        with pytest.raises(InvalidArgument, match=r"named by \[queues.handled\] failure_queue"):
            connection.undefine("target")
        with pytest.raises(UnknownQueue, match="did you mean 'handled'"):
            connection.undefine("handle")
        other.tpc_begin(xid)
        other.enqueue("handled", b"body")
        other.tpc_prepare()
        with pytest.raises(RetryLater, match="are adding 1"):
            connection.undefine("handled")
        other.tpc_commit()
        assert other.dequeue("handled") is not None
        with pytest.raises(RetryLater, match=r"has 1 messages \(1 held"):
            connection.undefine("handled")
        other.commit()
        connection.undefine("handled")
        connection.undefine("target")
        for name in ("handled", "target"):
            assert f"[queues.{name}]" not in (host.root / "queues.toml").read_text()
            with pytest.raises(UnknownQueue):
                other.dequeue(name)
            other.rollback()
        connection.define("handled")
        first = other.enqueue("handled", b"again")
        other.commit()
        assert [(one.message_id, one.seq > 1) for one in connection.browse("handled")] == [(first, True)]

    def test_a_failed_delivery_is_put_off(self, connection: Connection) -> None:
        connection.define("tried", retry_delay_s=3600)
        connection.enqueue("tried", b"poison")
        connection.commit()
        assert connection.dequeue("tried") is not None
        connection.rollback()
        assert connection.dequeue("tried") is None
        (message,) = connection.browse("tried")
        assert message.tries == 1

    def test_after_its_last_try_a_message_moves(self, connection: Connection) -> None:
        connection.define("failed")
        connection.define("handled", max_tries=1, failure_queue="failed")
        connection.enqueue("handled", b"poison")
        connection.commit()
        assert connection.dequeue("handled") is not None
        connection.rollback()
        message = connection.dequeue("failed", wait_s=PATIENCE_S)
        assert message is not None
        assert (message.body, message.tries) == (b"poison", 0)
        assert message.origin is not None
        assert (message.origin.queue, message.origin.tries) == ("handled", 1)
        connection.commit()
        assert connection.dequeue("handled") is None

    def test_a_full_queue_refuses_and_the_transaction_goes_on(self, connection: Connection) -> None:
        connection.define("small", max_messages=2, max_bytes=100_000)
        connection.define("beside")
        connection.enqueue("small", b"1")
        connection.enqueue("small", b"2")
        for _ in range(2):
            with pytest.raises(QueueFull, match="max_messages = 2") as told:
                connection.enqueue("small", b"3")
            assert told.value.code is Code.XA_RETRY
        connection.enqueue("beside", b"goes on")
        connection.commit()
        assert drain(connection, "beside") == [b"goes on"]
        assert connection.dequeue("small") is not None
        connection.enqueue("small", b"3")
        connection.commit()
        assert drain(connection, "small") == [b"2", b"3"]
        with pytest.raises(InvalidArgument, match="max_messages = 0: a number of messages from 1"):
            connection.define("small", max_messages=0)

    def test_a_full_queue_refuses_a_transaction_whole(self, host: Host, connection: Connection, xid: Xid) -> None:
        """What is pipelined to a server is refused later, with RolledBack: then nothing else of it is committed."""
        connection.define("small", max_messages=1)
        other = host.connect()
        put(other, b"1", queue="small")
        with pytest.raises(OperationalError, match="queue small is full"):
            put(other, b"2", queue="small")
        other.rollback()
        two_phase = host.connect()

        def prepare() -> None:
            two_phase.tpc_begin(xid)
            two_phase.enqueue_many("small", [b"2", b"3"])
            two_phase.tpc_prepare()

        with pytest.raises(OperationalError, match="queue small is full"):
            prepare()
        two_phase.close()
        put(other, b"beside")
        assert drain(other, "small") == [b"1"]

    def test_a_branch_without_work_votes_read_only(self, host: Host, connection: Connection, xid: Xid) -> None:
        """36, and 8: an empty queue in a transaction is no message, and the transaction still commits."""
        for finish in (connection.tpc_commit, connection.tpc_rollback):
            connection.tpc_begin(xid)
            assert connection.dequeue("orders") is None
            assert connection.tpc_prepare() is False
            assert connection.tpc_recover() == []
            finish()
        assert block_files(host.root) == []
        put(connection, b"goes on")

    def test_after_a_read_only_vote_the_next_branch_may_begin(self, connection: Connection, xid: Xid) -> None:
        for _ in range(2):
            connection.tpc_begin(xid)
            assert connection.tpc_prepare() is False
            with pytest.raises(ProgrammingError, match="read-only"):
                connection.enqueue("orders", b"of no branch")
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        connection.tpc_commit()
        assert bodies(connection) == [b"x"]

    def test_commit_and_rollback_of_nothing_do_nothing(self, connection: Connection) -> None:
        connection.commit()
        connection.rollback()
        assert connection.dequeue("orders") is None
        connection.commit()

    def test_close_rolls_back_what_is_not_prepared(self, connect: Connect, xid: Xid) -> None:
        seed = connect()
        put(seed, b"1", b"2", b"3")
        local, active, ended = connect(), connect(), connect()
        active.tpc_begin(xid)
        ended.tpc_begin(seed.xid(42, "ended", ""))
        for connection in (local, active, ended):
            connection.enqueue("orders", b"lost")
            assert connection.dequeue("orders") is not None
        ended.tpc_end()
        for connection in (local, active, ended):
            connection.close()
        assert bodies(seed) == [b"1", b"2", b"3"]
        assert seed.tpc_recover() == []
        assert drain(seed) == [b"1", b"2", b"3"]

    def test_close_keeps_what_is_prepared(self, connect: Connect, xid: Xid) -> None:
        with connect() as one:
            one.tpc_begin(xid)
            one.enqueue("orders", b"x")
            one.tpc_prepare()
        other = connect()
        assert other.tpc_recover() == [xid]
        other.tpc_commit(xid)
        assert bodies(other) == [b"x"]

    def test_a_closed_connection_refuses_everything(self, connection: Connection, xid: Xid) -> None:
        connection.close()
        connection.close()
        calls: list[Callable[[], object]] = [
            lambda: connection.enqueue("orders", b""),
            lambda: connection.dequeue("orders"),
            lambda: connection.browse("orders"),
            connection.commit,
            connection.rollback,
            lambda: connection.tpc_begin(xid),
            connection.tpc_end,
            connection.tpc_prepare,
            connection.tpc_commit,
            connection.tpc_rollback,
            lambda: connection.tpc_commit(xid),
            connection.tpc_recover,
            lambda: connection.tpc_forget(xid),
            lambda: connection.outcome(xid),
        ]
        for call in calls:
            with pytest.raises(InterfaceError, match="closed"):
                call()

    def test_suspend_and_resume(self, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"first half")
        connection.tpc_end(flags=Flag.SUSPEND)
        put(connection, b"between")
        connection.tpc_begin(xid, Flag.RESUME)
        connection.enqueue("orders", b"second half")
        connection.tpc_commit()
        assert bodies(connection) == [b"between", b"first half", b"second half"]

    def test_a_suspended_branch_is_ended_by_its_xid(self, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        connection.tpc_end(xid, Flag.SUSPEND)
        connection.tpc_end(xid)
        connection.tpc_rollback(xid)
        assert connection.outcome(xid) is Outcome.ROLLED_BACK

    def test_two_connections_work_in_one_branch(self, connect: Connect, xid: Xid) -> None:
        one, other = connect(), connect()
        one.tpc_begin(xid)
        one.enqueue("orders", b"one's")
        one.tpc_end(flags=Flag.SUSPEND | Flag.MIGRATE)
        other.tpc_begin(xid, Flag.RESUME)
        other.enqueue("orders", b"other's")
        other.tpc_end()
        assert other.tpc_prepare() is True
        other.tpc_commit()
        assert bodies(one) == [b"one's", b"other's"]

    def test_end_with_fail_dooms(self, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        connection.tpc_end(flags=Flag.FAIL)
        with pytest.raises(ProgrammingError):
            connection.tpc_prepare()
        connection.tpc_rollback()
        assert bodies(connection) == []

    @pytest.mark.parametrize("told_by", ["enqueue", "tpc_end", "tpc_prepare", "tpc_commit"])
    def test_a_timeout_is_told_once_and_the_connection_goes_on(
        self, connection: Connection, xid: Xid, told_by: str
    ) -> None:
        """21: later work says that the transaction is gone, and commit says that it was rolled back."""
        connection.tpc_begin(xid, timeout_s=0.0)
        arguments = ("orders", b"late") if told_by == "enqueue" else ()

        def work() -> None:
            getattr(connection, told_by)(*arguments)
            connection.flush()

        with pytest.raises(RolledBack) as told:
            work()
        assert told.value.code is Code.XA_RBTIMEOUT
        if told_by in ("enqueue", "tpc_end"):
            connection.tpc_rollback()
        assert connection.tpc_recover() == []
        put(connection, b"goes on")

    def test_an_operators_decision_is_told_to_the_connection_that_waits(
        self, host: Host, connect: Connect, xid: Xid
    ) -> None:
        """32."""
        for commit, code in ((True, Code.XA_HEURCOM), (False, Code.XA_HEURRB)):
            connection = connect()
            connection.tpc_begin(xid)
            connection.enqueue("orders", b"x")
            connection.tpc_prepare()
            host.decide(xid, commit)
            with pytest.raises(HeuristicOutcome) as told:
                connection.tpc_commit()
            assert told.value.code is code
            assert connection.tpc_recover() == [xid]
            connection.tpc_forget(xid)
            assert connection.tpc_recover() == []
            put(connection, b"goes on", queue="replies")
        assert bodies(connection) == [b"x"]

    def test_an_operators_decision_is_kept_over_a_kill_until_forget(self, host: Host, xid: Xid) -> None:
        """32."""
        connection = host.connect()
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"x")
        connection.tpc_prepare()
        host.decide(xid, commit=True)
        host.kill()
        again = host.connect()
        assert bodies(again) == [b"x"]
        assert again.tpc_recover() == [xid]
        with pytest.raises(HeuristicOutcome):
            again.tpc_rollback(xid)
        again.tpc_forget(xid)
        host.restart()
        again = host.connect()
        assert again.tpc_recover() == []
        assert bodies(again) == [b"x"]


class BlockContract(Contract):
    """A block commits at its end and rolls back on an exception; what is lost without one is told."""

    def test_a_block_commits_and_closes(self, connect: Connect) -> None:
        with connect() as one:
            put(one, b"1")
            assert one.dequeue("orders") is not None
            one.enqueue("orders", b"2")
        with pytest.raises(InterfaceError, match="closed"):
            one.commit()
        assert bodies(connect()) == [b"2"]

    def test_a_block_without_work_does_nothing(self, connect: Connect) -> None:
        with connect():
            pass
        with connect() as one:
            one.close()
        assert bodies(connect()) == []

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, GeneratorExit])
    def test_a_block_rolls_back_on_an_exception(self, connect: Connect, kind: type[BaseException]) -> None:
        with pytest.raises(kind), connect() as one:  # noqa: PT012
            one.enqueue("orders", b"x")
            raise kind
        with pytest.raises(kind), connect() as one:  # noqa: PT012
            one.tpc_begin(one.xid(1, "x", ""))
            one.enqueue("orders", b"x")
            raise kind
        assert bodies(connect()) == []
        assert connect().tpc_recover() == []

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_branch_that_its_block_leaves_unprepared_is_rolled_back_and_told(
        self, connect: Connect, xid: Xid, ended: bool
    ) -> None:
        with pytest.raises(ProgrammingError, match="neither prepared nor committed"), connect() as one:  # noqa: PT012
            one.tpc_begin(xid)
            one.enqueue("orders", b"x")
            if ended:
                one.tpc_end()
        other = connect()
        assert (bodies(other), other.tpc_recover()) == ([], [])
        assert other.outcome(xid) is Outcome.ROLLED_BACK

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_block_leaves_a_prepared_branch_in_doubt(self, connect: Connect, xid: Xid, fails: bool) -> None:
        def prepare() -> None:
            with connect() as one:
                one.tpc_begin(xid)
                one.enqueue("orders", b"x")
                assert one.tpc_prepare()
                if fails:
                    raise ValueError

        if fails:
            with pytest.raises(ValueError):  # noqa: PT011
                prepare()
        else:
            prepare()
        assert connect().tpc_recover() == [xid]

    def test_a_block_says_that_its_commit_failed(self, connect: Connect, xid: Xid) -> None:
        with pytest.raises(RolledBack), connect() as one:  # noqa: PT012
            one.tpc_begin(xid, timeout_s=0.0)
            one.enqueue("orders", b"x")
            one.tpc_commit()
        assert bodies(connect()) == []

    def test_a_transaction_is_a_block_on_an_open_connection(self, connection: Connection) -> None:
        with connection.transaction() as same:
            assert same is connection or not isinstance(connection, Connection)
            connection.enqueue("orders", b"1")
        with pytest.raises(ValueError), connection.transaction():  # noqa: PT011, PT012
            connection.enqueue("orders", b"2")
            raise ValueError
        assert not connection.in_transaction
        assert bodies(connection) == [b"1"]

    def test_a_transaction_stands_in_no_other(self, connection: Connection, xid: Xid) -> None:
        def block() -> None:
            with connection.transaction():
                pass

        connection.enqueue("orders", b"1")
        with pytest.raises(ProgrammingError, match="local transaction"):
            block()
        connection.commit()
        with connection.transaction():
            with pytest.raises(ProgrammingError, match="local transaction"):
                block()
            with pytest.raises(ProgrammingError, match="local transaction"):
                connection.tpc_begin(xid)
            connection.enqueue("orders", b"2")
        connection.tpc_begin(xid)
        with pytest.raises(ProgrammingError, match="two-phase"):
            block()
        connection.tpc_rollback()
        assert bodies(connection) == [b"1", b"2"]

    @pytest.mark.parametrize("work", ["enqueue", "dequeue", "two-phase"])
    def test_closing_with_work_undone_warns(self, connect: Connect, xid: Xid, work: str) -> None:
        other = connect()
        put(other, b"there")
        one = connect()
        if work == "two-phase":
            one.tpc_begin(xid)
        if work == "dequeue":
            assert one.dequeue("orders") is not None
        else:
            one.enqueue("orders", b"lost")
        with pytest.warns(ResourceWarning, match="closed with work undone"):
            one.close()
        assert drain(other) == [b"there"]

    def test_closing_without_work_undone_is_quiet(self, connect: Connect, xid: Xid) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            empty, done, prepared, failed = connect(), connect(), connect(), connect()
            assert empty.dequeue("orders") is None
            put(done, b"x")
            prepared.tpc_begin(xid)
            prepared.enqueue("orders", b"y")
            prepared.tpc_prepare()
            for connection in (empty, done, prepared):
                connection.close()
            failed.enqueue("orders", b"z")
            failed.rollback()
            failed.close()


class MessagesContract(Contract):
    """What comes out is what went in, in the order of the queue."""

    def test_body_and_properties_come_back_and_nothing_is_left(self, host: Host, connection: Connection) -> None:
        """1."""
        body = bytes(range(256)) * 100
        message_id = connection.enqueue(
            "orders",
            body,
            correlation_id="kä",
            priority=7,
            headers={"grüße": "µ"},
            content_type="application/octet-stream",
            reply_queue="replies",
        )
        connection.commit()
        message = connection.dequeue("orders")
        connection.commit()
        assert message is not None
        assert (message.body, message.message_id, message.queue, message.seq) == (body, message_id, "orders", 1)
        assert (message.correlation_id, message.priority, message.headers) == ("kä".encode(), 7, {"grüße": "µ"})
        assert (message.content_type, message.properties.reply_queue) == ("application/octet-stream", "replies")
        assert message.tries == 0
        assert message.enqueued_at > 0
        host.restart()
        assert message_files(host.root) == block_files(host.root) == []

    @pytest.mark.parametrize(("queue", "reverse"), [("orders", False), ("stack", True)])
    def test_order_across_a_restart(self, host: Host, connection: Connection, queue: str, reverse: bool) -> None:
        """2 and 3: three queues in one transaction."""
        given = [b"%d" % number for number in range(30)]
        connection.tpc_begin(connection.xid(1, "x", ""))
        for body in given:
            for name in (queue, "replies", "urgent"):
                connection.enqueue(name, body)
        connection.tpc_prepare()
        connection.tpc_commit()
        host.restart()
        again = host.connect()
        assert drain(again, queue) == (given[::-1] if reverse else given)
        assert drain(again, "replies") == drain(again, "urgent") == given
        again.commit()
        host.restart()
        assert [drain(host.connect(), name) for name in (queue, "replies", "urgent")] == [[], [], []]

    def test_priority_then_commit_order(self, host: Host, connection: Connection) -> None:
        for number, priority in enumerate((0, 9, 4, 9, 0)):
            put(connection, b"%d" % number, queue="urgent", priority=priority)
        assert drain(connection, "urgent") == [b"1", b"3", b"2", b"0", b"4"]

    @pytest.mark.parametrize("queue", ["orders", "stack", "urgent"])
    def test_messages_of_a_group_come_in_order_one_at_a_time(
        self, host: Host, connection: Connection, queue: str
    ) -> None:
        """In the order in which they were committed, whatever the queue's is; across a restart."""
        first = connection.enqueue(queue, b"a1", group="a")
        put(connection, b"a2", queue=queue, group="a")
        put(connection, b"a3", queue=queue, group="a", priority=9)
        put(connection, b"b1", queue=queue, group="b")
        host.restart()
        one, two = host.connect(), host.connect()
        assert one.dequeue(queue, message_id=first) is not None
        assert drain(two, queue) == [b"b1"]
        two.commit()
        one.rollback()
        assert drain(two, queue) == [b"a1", b"a2", b"a3"]  # a transaction may have several of a group
        assert one.dequeue(queue) is None
        two.commit()
        assert bodies(one, queue) == []

    def test_a_loop_takes_each_message_as_it_comes(self, connect: Connect) -> None:
        one, two = connect(), connect()
        put(one, b"1", b"2", b"3")
        found = []
        for message in one.consume("orders", wait_s=0.05):
            found.append((message.body, message.tries))
            if len(found) == 2:
                one.rollback()
                continue
            one.commit()
            if len(found) == 4:
                put(two, b"4")
        assert found == [(b"1", 0), (b"2", 0), (b"2", 1), (b"3", 0), (b"4", 0)]
        assert bodies(two) == []
        with pytest.raises(ProgrammingError, match="not defined"):
            next(one.consume("ordres"))

    def test_many_messages_in_one_call(self, host: Host, connection: Connection) -> None:
        sent = [b"%d" % number for number in range(2_500)]
        ids = connection.enqueue_many("orders", sent, headers={"k": "v"})
        big = connection.enqueue_many("urgent", [bytes(90_000), bytearray(90_000)] * 8, priority=9)
        assert connection.enqueue_many("orders", []) == []
        assert len(set(ids + big)) == len(sent) + 16
        connection.commit()
        host.restart()
        again = host.connect()
        first = again.dequeue_many("orders", 2_200, wait_s=1)
        rest = again.dequeue_many("orders", 9_999)
        assert [message.message_id for message in first + rest] == ids
        assert [message.body for message in first + rest] == sent
        assert {message.headers["k"] for message in first} == {"v"}
        assert len(first) == 2_200
        assert [message.message_id for message in again.dequeue_many("urgent", 20)] == big
        assert again.dequeue_many("orders", 1) == []
        again.rollback()
        assert [message.tries for message in again.dequeue_many("orders", 2)] == [1, 1]

    def test_many_with_options_of_their_own_in_one_call(self, host: Host, connect: Connect) -> None:
        connection, last = connect(), bytes(range(16))
        sent: list[Any] = [
            *((b"%d" % number, {"headers": {"n": str(number)}, "group": f"g{number % 3}"}) for number in range(1_200)),
            *(b"plain", (bytearray(b"again"), {}), (memoryview(b"none"), {"priority": None, "reply_queue": None})),
            (b"key", {"correlation_id": "c", "ttl": 3_600, "message_id": last.hex()}),
        ]
        ids = connection.enqueue_many("orders", sent, priority=7, reply_queue="replies")
        assert len(set(ids)) == len(sent)
        assert ids[-1] == last
        connection.commit()
        host.restart()
        other = host.connect()
        found = [*other.browse("orders")]
        assert [message.message_id for message in found] == ids
        assert [message.body for message in found] == [one if type(one) is bytes else bytes(one[0]) for one in sent]
        assert [message.headers for message in found] == [{"n": str(number)} for number in range(1_200)] + [{}] * 4
        assert [message.properties.group for message in found[:4]] == ["g0", "g1", "g2", "g0"]
        assert [message.priority for message in found] == [7] * 1_202 + [4, 7]
        assert {message.properties.reply_queue for message in found} == {"replies", None}
        keyed = other.dequeue("orders", correlation_id="c")
        assert keyed is not None
        assert abs((keyed.properties.expires_at or 0) - keyed.enqueued_at - 3_600_000_000) < 60_000_000
        assert [message.body for message in other.dequeue_many("orders", 2)] == [b"0", b"1"]
        other.commit()

    def test_of_many_some_have_a_dedup_key(self, host: Host, connect: Connect) -> None:
        one, two = connect(), connect()
        one.define("once", dedup_window_s=600)
        sent: list[Any] = [(b"%d" % number, {"headers": {"n": str(number)}}) for number in range(40)]
        sent[20] = b"20", {"dedup_key": "k"}
        sent[30] = b"30", {"dedup_key": "k"}
        sent[35] = b"35", {"dedup_key": "other", "message_id": bytes(16)}
        ids = one.enqueue_many("once", sent)
        assert ids[30] == ids[20] != ids[35] == bytes(16)
        one.commit()
        assert two.enqueue_many("once", [(b"x", {"dedup_key": "k"}), (b"40", {})])[0] == ids[20]
        two.commit()
        host.restart()
        three = host.connect()
        assert drain(three, "once") == [b"%d" % number for number in range(41) if number != 30]
        assert three.enqueue("once", b"y", dedup_key="other") == bytes(16)

    def test_many_are_refused_as_one_is_and_nothing_has_changed(self, connection: Connection) -> None:
        connection.enqueue("orders", b"before")
        limit = 100_000
        for wrong, told in (
            ([b"a", bytes(limit + 1)], "over the limit"),
            ([b"a", "b"], "bytes are wanted"),
            (b"ab", "a list"),
        ):
            with pytest.raises((DataError, ProgrammingError), match=told):
                connection.enqueue_many("orders", wrong)  # type: ignore[arg-type]
        with pytest.raises(ProgrammingError, match="makes the ids"):
            connection.enqueue_many("orders", [b"a"], message_id=bytes(16))
        connection.commit()
        assert drain(connection) == [b"before"]

    def test_many_of_which_one_is_refused_for_its_options_are_none(self, connection: Connection) -> None:
        connection.enqueue("orders", b"before", message_id=bytes(16))
        many: list[Any] = [(b"%d" % number, {"group": str(number)}) for number in range(20)]
        wrong: list[tuple[Any, str]] = [
            ({"priority": 10}, "int 0 to 9"),
            ({"colour": "red"}, "is not an option of enqueue"),
            ({"ttl": 1, "expires_at": 2**60}, "ttl and expires_at say the same"),
            ({"headers": {"k": "x" * 70_000}}, "64 KiB|properties of"),
            ({"message_id": b"short"}, "16 bytes"),
            ({"message_id": bytes(16)}, "ids are unique"),
            ("text", "options 'text' are refused"),
        ]
        for own, told in wrong:
            with pytest.raises((DataError, ProgrammingError), match=told):
                connection.enqueue_many("orders", [*many, (b"wrong", own)])
        pairs: list[Any] = [(), (b"one",), (b"a", {}, {}), ("text", {})]
        for pair in pairs:
            with pytest.raises(ProgrammingError, match="bytes are wanted"):
                connection.enqueue_many("orders", [*many, (b"x", {}), pair])
        with pytest.raises(ProgrammingError, match="did you mean 'orders'"):
            connection.enqueue_many("ordres", [b"a"])
        with pytest.raises(ProgrammingError, match="did you mean 'orders'"):
            connection.dequeue_many("ordres", 1)
        for count in (0, -1, True, 1.5, None):
            with pytest.raises(ProgrammingError, match="from 1"):
                connection.dequeue_many("orders", count)  # type: ignore[arg-type]
        connection.commit()
        assert drain(connection) == [b"before"]

    def test_a_group_that_waits_for_a_retry_holds_only_itself_up(self, connect: Connect) -> None:
        one, two = connect(), connect()
        one.define("slow", retry_delay_s=600)
        ids = [one.enqueue("slow", body, group=body[:1].decode()) for body in (b"a1", b"a2", b"b1", b"a3")]
        one.enqueue("slow", b"alone")
        one.commit()
        assert one.dequeue("slow", message_id=ids[1]) is None
        assert one.dequeue("slow", message_id=ids[0]) is not None
        one.rollback()
        assert drain(two, "slow") == [b"b1", b"alone"]
        assert two.dequeue("slow", message_id=ids[1]) is None
        assert two.move("slow", ids[3], "orders") == ids[3], "to move it is not to deliver it"
        two.commit()
        assert drain(two) == [b"a3"]

    def test_a_second_message_of_a_key_comes_to_nothing(self, host: Host, connect: Connect) -> None:
        one, two = connect(), connect()
        one.define("once", dedup_window_s=600)
        first = one.enqueue("once", b"1", dedup_key="k")
        assert one.enqueue("once", b"2", dedup_key=b"k") == first
        assert one.enqueue_many("once", [b"3", b"4"], dedup_key="k") == [first, first]
        (other,) = one.enqueue_many("once", [b"5"], dedup_key="other")
        one.commit()
        assert two.enqueue("once", b"6", dedup_key="k") == first
        two.commit()
        assert drain(two, "once") == [b"1", b"5"]
        two.commit()
        host.restart()
        three = host.connect()
        assert three.enqueue("once", b"7", dedup_key="other") == other
        assert three.enqueue("orders", b"8", dedup_key="k") != three.enqueue("orders", b"9", dedup_key="k")
        three.commit()
        assert drain(three, "once") == []
        with pytest.raises(ProgrammingError, match="dedup_window_s = -1"):
            three.define("once", dedup_window_s=-1)
        three.rollback()

    def test_two_transactions_of_a_key_never_both_win(self, connect: Connect) -> None:
        one, two, three = connect(), connect(), connect()
        one.define("once", dedup_window_s=600)
        ids = []
        for number, connection in enumerate((one, two, three)):
            connection.tpc_begin(connection.xid(1, "once", str(number)))
            ids.append(connection.enqueue("once", b"%d" % number, dedup_key="k"))
        assert len(set(ids)) == 3, "nobody knows yet"
        assert one.tpc_prepare() is True
        with pytest.raises(RolledBack, match="has a message of the same dedup_key") as refused:
            two.tpc_prepare()
        assert refused.value.code is Code.XA_RBTRANSIENT
        one.tpc_commit()
        assert three.tpc_prepare() is False, "nothing is left to commit"
        assert two.enqueue("once", b"again", dedup_key="k") == ids[0]
        two.commit()
        assert drain(two, "once") == [b"0"]
        two.commit()

    def test_whatever_a_message_waits_for_it_can_be_removed(self, host: Host, connect: Connect) -> None:
        one, two = connect(), connect()
        one.define("slow", retry_delay_s=600)
        off = one.enqueue("slow", b"put off")
        delayed = one.enqueue("slow", b"delayed", delay=600)
        first, behind = (one.enqueue("slow", body, group="g") for body in (b"first", b"behind"))
        stays = one.enqueue("slow", b"stays", delay=600)
        one.commit()
        assert one.dequeue("slow", message_id=off) is not None
        one.rollback()
        assert one.dequeue("slow", message_id=first) is not None
        assert [two.remove("slow", message_id) for message_id in (off, delayed, first)] == [True, True, False]
        assert two.remove("slow", bytes(16)) is False
        two.rollback()
        assert [two.remove("slow", message_id) for message_id in (off, delayed, behind)] == [True, True, True]
        assert two.remove("slow", off) is False
        with pytest.raises(ProgrammingError):
            two.remove("slow", b"short")
        two.commit()
        one.commit()
        assert [message.message_id for message in one.browse("slow")] == [stays]
        host.restart()
        assert [message.message_id for message in host.connect().browse("slow")] == [stays]

    @pytest.mark.parametrize("queue", ["orders", "stack", "urgent"])
    def test_rollback_puts_all_back_in_place_and_counts_a_try(
        self, host: Host, connection: Connection, queue: str
    ) -> None:
        """4, but that each rolled-back dequeue counts as a try here. 5."""
        put(connection, b"0", b"1", b"2", b"3", queue=queue)
        first = drain(connection, queue)
        connection.rollback()
        assert bodies(connection, queue) == first
        assert [message.tries for message in connection.browse(queue)] == [1, 1, 1, 1]
        assert drain(connection, queue) == first
        connection.commit()
        assert drain(connection, queue) == []
        host.restart()
        assert drain(host.connect(), queue) == []

    def test_tries_are_counted_over_a_restart_and_a_kill(self, host: Host, connection: Connection) -> None:
        put(connection, b"poison")
        seen = []
        for ends in (connection.rollback, host.restart, host.kill):
            message = connection.dequeue("orders")
            assert message is not None
            seen.append(message.tries)
            ends()
            connection = host.connect()
        message = connection.dequeue("orders")
        assert message is not None
        assert [*seen, message.tries] == [0, 1, 2, 3]
        assert message.body == b"poison"

    def test_what_is_not_committed_is_seen_by_nobody(self, connect: Connect) -> None:
        """6: nor by the transaction itself."""
        one, other = connect(), connect()
        one.enqueue("orders", b"x")
        for connection in (one, other):
            assert bodies(connection) == []
            assert connection.dequeue("orders") is None
        one.commit()
        assert bodies(other) == [b"x"]

    def test_a_locked_message_is_skipped(self, connect: Connect) -> None:
        """7, and 10: a look hides nothing and takes nothing."""
        one, other = connect(), connect()
        put(one, b"1", b"2")
        assert bodies(other) == [b"1", b"2"]
        first, second = one.dequeue("orders"), other.dequeue("orders")
        assert first is not None
        assert second is not None
        assert (first.body, second.body) == (b"1", b"2")
        assert other.dequeue("orders") is None
        assert bodies(other) == [b"1", b"2"]
        one.rollback()
        other.commit()
        assert bodies(one) == [b"1"]

    def test_browse_is_bounded_and_shows_what_is_delayed(self, connection: Connection) -> None:
        """10."""
        put(connection, b"1", b"2", b"3")
        put(connection, b"later", delay=timedelta(days=365))
        put(connection, b"too late", ttl=timedelta(milliseconds=50))
        time.sleep(0.06)
        shown = [message.body for message in connection.browse("orders")]
        assert shown == [b"1", b"2", b"3", b"later"]
        assert [message.body for message in connection.browse("orders", limit=2)] == shown[:2]
        assert list(connection.browse("orders", limit=0)) == []
        assert drain(connection) == [b"1", b"2", b"3"]

    @pytest.mark.parametrize("call", ["enqueue", "dequeue", "browse"])
    def test_an_unknown_queue_is_refused_with_a_suggestion(self, connection: Connection, call: str) -> None:
        """9."""
        calls: dict[str, Callable[[str], object]] = {
            "enqueue": lambda name: connection.enqueue(name, b""),
            "dequeue": connection.dequeue,
            "browse": lambda name: list(connection.browse(name)),
        }
        with pytest.raises(UnknownQueue, match="did you mean 'orders'"):
            calls[call]("order")
        for name in ("a" * 128, "a/b", "../orders", ".hidden", ""):
            with pytest.raises(InvalidArgument, match="1 to 127"):  # 38
                calls[call](name)
        connection.rollback()
        put(connection, b"goes on")

    def test_a_refused_message_leaves_the_transaction_as_it_was(self, connection: Connection) -> None:
        message_id = connection.enqueue("orders", b"1")
        for refused in (
            lambda: connection.enqueue("orders", b"2", message_id=message_id),
            lambda: connection.enqueue("orders", b"2", priority=10),
            lambda: connection.enqueue("orders", "text"),  # type: ignore[arg-type]
            lambda: connection.enqueue("orders", b"2", message_id=b"short"),
            lambda: connection.dequeue("orders", message_id=b"short"),
            lambda: connection.dequeue("orders", correlation_id=[b"x"]),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgument):
                refused()
        connection.enqueue("orders", b"3")
        connection.commit()
        assert bodies(connection) == [b"1", b"3"]

    def test_a_message_over_a_limit_is_refused_with_the_way_out(self, connection: Connection) -> None:
        connection.enqueue("orders", b"x" * 100_000)
        with pytest.raises(MessageTooLarge, match="max_body_bytes"):
            connection.enqueue("orders", b"x" * 100_001)
        with pytest.raises(MessageTooLarge, match="65,536"):
            connection.enqueue("orders", b"", headers={"k": "x" * 66_000})
        connection.commit()
        assert bodies(connection) == [b"x" * 100_000]

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            ({"expires_at": int(time.time()) + 3600}, "these look like seconds"),
            ({"not_before": int(time.time()) + 3600}, "these look like seconds"),
            ({"not_before": int(time.time() * 1000)}, "these look like milliseconds"),
            ({"expires_at": time.time_ns()}, "these look like nanoseconds"),
            ({"expires_at": 60}, "give ttl="),
            ({"not_before": 60}, "give delay="),
            ({"expires_at": -1}, "before the year 2000"),
            ({"expires_at": 2**63}, "nanoseconds"),
            ({"expires_at": True}, "wanted"),
            ({"expires_at": time.time() + 60}, "wanted"),
            ({"expires_at": "2030-01-01"}, "wanted"),
            ({"not_before": datetime(2030, 1, 1)}, "no time zone"),
            ({"expires_at": datetime(2001, 1, 1, tzinfo=UTC)}, "it expires now"),
            ({"expires_at": datetime(1999, 1, 1, tzinfo=UTC)}, "before the year 2000"),
            ({"expires_at": timedelta(0)}, "it expires now"),
            ({"ttl": 0}, "it expires now"),
            ({"ttl": timedelta(seconds=-1)}, "negative"),
            ({"delay": -1}, "seconds from 0"),
            ({"delay": float("nan")}, "seconds from 0"),
            ({"delay": float("inf")}, "timedelta"),
            ({"delay": "5m"}, "seconds from 0"),
            ({"ttl": 5, "delay": 10}, "before its not_before"),
            ({"ttl": 5, "expires_at": timedelta(seconds=5)}, "say the same"),
            ({"delay": 5, "not_before": timedelta(seconds=5)}, "say the same"),
        ],
    )
    def test_a_time_that_cannot_be_meant_is_refused(
        self, connection: Connection, wrong: dict[str, Any], told: str
    ) -> None:
        connection.enqueue("orders", b"1")
        with pytest.raises(InvalidArgument, match=told):
            connection.enqueue("orders", b"2", **wrong)
        connection.commit()
        assert bodies(connection) == [b"1"]

    def test_times_are_taken_as_people_have_them(self, connection: Connection) -> None:
        later = datetime(2040, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))
        later_us = int(later.timestamp()) * 1_000_000 + 678
        before = time.time_ns() // 1000
        given: list[dict[str, Any]] = [
            {"not_before": later, "expires_at": later + timedelta(seconds=1)},
            {"not_before": later_us, "expires_at": later_us + 1_000_000},
            {"delay": 3600, "ttl": timedelta(hours=2)},
            {"not_before": timedelta(hours=1), "expires_at": timedelta(hours=2)},
        ]
        for options in given:
            connection.enqueue("orders", b"", **options)
        connection.commit()
        after = time.time_ns() // 1000
        found = [message.properties for message in connection.browse("orders")]
        for absolute in found[:2]:
            assert (absolute.not_before, absolute.expires_at) == (later_us, later_us + 1_000_000)
        for relative in found[2:]:
            assert before <= (relative.not_before or 0) - 3_600_000_000 <= after
            assert before <= (relative.expires_at or 0) - 7_200_000_000 <= after
        assert connection.dequeue("orders") is None

    def test_a_ttl_is_over_and_a_delay_too(self, connection: Connection) -> None:
        put(connection, b"gone", ttl=0.05)
        put(connection, b"later", delay=0.1)
        time.sleep(0.06)
        message = connection.dequeue("orders", wait_s=PATIENCE_S)
        assert message is not None
        assert message.body == b"later"

    @pytest.mark.parametrize("wrong", [float("nan"), -1, -0.001, float("-inf"), "1", b"1", [1], True])
    def test_a_wait_that_is_no_time_is_refused_and_loses_nothing(self, connection: Connection, wrong: Any) -> None:
        connection.enqueue("replies", b"x")
        with pytest.raises(InvalidArgument, match="wait_s"):
            connection.dequeue("orders", wait_s=wrong)
        connection.commit()
        assert bodies(connection, "replies") == [b"x"]

    @pytest.mark.parametrize("ever", [None, float("inf"), 1e300, 1e12, 10**400], ids=lambda ever: f"{ever}"[:5])
    def test_a_wait_without_an_end_waits_until_there_is_one(self, connect: Connect, ever: Any) -> None:
        waits, other = connect(), connect()

        def wait() -> Message | None:
            with waits.transaction():
                return waits.dequeue("orders", wait_s=ever)

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(wait)
            time.sleep(0.05)
            assert not found.done()
            put(other, b"at last")
            message = found.result(PATIENCE_S)
        assert message is not None
        assert message.body == b"at last"

    def test_a_body_is_bytes_or_what_has_them(self, connection: Connection) -> None:
        for body in (b"1", bytearray(b"2"), memoryview(b"-3-")[1:2], memoryview(b"4-4-")[::2]):
            connection.enqueue("orders", body)
        with pytest.raises(InvalidArgument, match=r"encode it: body.encode\(\)"):
            connection.enqueue("orders", "text")  # type: ignore[arg-type]
        for wrong in (None, 5, {"a": 1}, [b"x"]):
            with pytest.raises(InvalidArgument, match="bytes are wanted"):
                connection.enqueue("orders", wrong)  # type: ignore[arg-type]
        connection.commit()
        assert bodies(connection) == [b"1", b"2", b"3", b"44"]

    def test_an_id_is_taken_in_hex(self, connection: Connection) -> None:
        message_id = connection.enqueue("orders", b"x", message_id="00112233445566778899aAbBcCdDeEfF")
        connection.commit()
        assert message_id == bytes.fromhex("00112233445566778899aabbccddeeff")
        for wrong in ("abc", "g" * 32, b"short", 5):
            with pytest.raises(InvalidArgument, match="32 hex digits"):
                connection.dequeue("orders", message_id=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="32 hex digits"):
                connection.enqueue("orders", b"", message_id=wrong)  # type: ignore[arg-type]
        message = connection.dequeue("orders", message_id=message_id.hex())
        assert message is not None
        assert message.body == b"x"

    def test_what_has_the_wrong_type_is_refused_and_loses_nothing(self, connection: Connection, xid: Xid) -> None:
        wrong: list[Callable[[Any], object]] = [
            lambda some: connection.enqueue(some, b""),
            lambda some: connection.dequeue(some),
            lambda some: list(connection.browse(some)),
            lambda some: list(connection.browse("orders", limit=some if some is not None else -1)),
        ]
        connection.enqueue("orders", b"x")
        for call in wrong:
            for some in (["a", "b"], b"orders", 5.0, {"a"}, None):
                with pytest.raises(InvalidArgument):
                    call(some)
        connection.commit()
        for timeout_s in ("5", -1, float("nan"), [5]):
            with pytest.raises(InvalidArgument, match="timeout_s"):
                connection.tpc_begin(xid, timeout_s=timeout_s)  # type: ignore[arg-type]
        assert bodies(connection) == [b"x"]

    def test_by_id_out_of_order(self, connect: Connect) -> None:
        """11."""
        one, other = connect(), connect()
        ids = [one.enqueue("orders", b"%d" % number) for number in range(3)]
        one.commit()
        message = one.dequeue("orders", message_id=ids[1])
        assert message is not None
        assert message.body == b"1"
        assert other.dequeue("orders", message_id=ids[1]) is None
        assert other.dequeue("orders", message_id=bytes(16)) is None
        assert other.dequeue("replies", message_id=ids[0]) is None
        one.commit()
        assert drain(other) == [b"0", b"2"]

    @pytest.mark.parametrize(("queue", "expected"), [("orders", [b"1", b"3"]), ("stack", [b"3", b"1"])])
    def test_by_correlation_id_across_a_restart(
        self, host: Host, connection: Connection, queue: str, expected: list[bytes]
    ) -> None:
        """12: a queue of its own within the queue, mixed with plain messages."""
        for number in range(5):
            put(connection, b"%d" % number, queue=queue, correlation_id=b"odd" if number % 2 else None)
        host.restart()
        again = host.connect()
        assert drain(again, queue, correlation_id="even") == []
        assert drain(again, queue, correlation_id="odd") == expected
        again.rollback()
        assert len(drain(again, queue)) == 5

    def test_a_due_message_is_found_by_correlation_id_only(self, host: Host, connection: Connection) -> None:
        """14."""
        soon = time.time_ns() // 1000 + 50_000
        put(connection, b"delayed", correlation_id=b"c", not_before=soon)
        host.restart()
        message = host.connect().dequeue("orders", correlation_id=b"c", wait_s=PATIENCE_S)
        assert message is not None
        assert time.time_ns() // 1000 >= soon

    def test_sequence_numbers_go_on_over_restart_and_kill(self, host: Host, connection: Connection) -> None:
        numbers = []
        for ends in (host.restart, host.kill, host.restart):
            put(connection, b"x")
            message = connection.dequeue("orders")
            assert message is not None
            numbers.append(message.seq)
            connection.commit()
            ends()
            connection = host.connect()
        assert numbers[0] == 1
        assert numbers == sorted(set(numbers))


class KillContract(Contract):
    """What a killed service leaves: rolled back, in doubt or committed, and never in part."""

    def test_before_prepare_is_gone(self, host: Host, connection: Connection, xid: Xid) -> None:
        """23."""
        put(connection, b"there")
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"lost")
        assert connection.dequeue("orders") is not None
        host.kill()
        with pytest.raises(OperationalError):
            connection.tpc_commit()
        again = host.connect()
        assert again.tpc_recover() == []
        assert again.outcome(xid) is Outcome.UNKNOWN
        assert bodies(again) == [b"there"]
        assert block_files(host.root) == []

    @pytest.mark.parametrize("blocks", [1, 3])
    @pytest.mark.parametrize("commit", [True, False])
    def test_after_prepare_is_in_doubt(
        self, host: Host, connection: Connection, xid: Xid, blocks: int, commit: bool
    ) -> None:
        """25: listed, locked and not visible; committed once, or undone."""
        put(connection, b"there", b"free")
        connection.tpc_begin(xid)
        taken = connection.dequeue("orders")
        assert taken is not None
        added = [b"%d" % number for number in range(blocks - 1)]
        for body in added:
            connection.enqueue("replies", body)
        connection.tpc_prepare()
        host.kill()
        again = host.connect()
        assert again.tpc_recover() == [xid]
        assert again.outcome(xid) is Outcome.IN_DOUBT
        assert again.dequeue("orders", message_id=taken.message_id) is None
        assert drain(again) == [b"free"]
        again.rollback()
        assert bodies(again, "replies") == []
        (again.tpc_commit if commit else again.tpc_rollback)(xid)
        host.kill()
        last = host.connect()
        assert bodies(last) == ([b"free"] if commit else [b"there", b"free"])
        assert bodies(last, "replies") == (added if commit else [])
        assert last.tpc_recover() == []
        assert block_files(host.root) == []

    def test_in_doubt_stays_over_every_restart(self, host: Host, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        connection.enqueue("orders", b"1")
        connection.enqueue("replies", b"2")
        connection.tpc_prepare()
        for ends in (host.restart, host.kill, host.kill, host.restart):
            ends()
            assert host.connect().tpc_recover() == [xid]
        host.connect().tpc_commit(xid)
        assert (bodies(host.connect()), bodies(host.connect(), "replies")) == ([b"1"], [b"2"])

    def test_committed_is_there_and_a_second_finish_is_nota(self, host: Host, connection: Connection, xid: Xid) -> None:
        connection.tpc_begin(xid)
        for number in range(20):
            connection.enqueue("orders", b"%d" % number)
        connection.tpc_prepare()
        connection.tpc_commit()
        host.kill()
        again = host.connect()
        assert bodies(again) == [b"%d" % number for number in range(20)]
        for finish in (again.tpc_commit, again.tpc_rollback):
            with pytest.raises(UnknownXid):
                finish(xid)

    def test_foreign_files_are_kept_and_the_rest_serves(self, host: Host, connection: Connection, xid: Xid) -> None:
        """34."""
        put(connection, b"1", b"2")
        connection.tpc_begin(xid)
        connection.enqueue("replies", b"in doubt")
        connection.tpc_prepare()
        host.kill()
        junk = {}
        folder = host.root / "committed" / "queue=orders" / "range=0000000000000"
        folder.mkdir(parents=True, exist_ok=True)  # a journal's follower may not have come to it
        for place in ("active", "prepared", "heuristic", "committed", "committed/queue=orders"):
            for name in ("README.txt", ".hidden", "1.Z3RyaWQ.YnF1YWw.x", "ü"):
                content = f"junk {place} {name}".encode()
                (host.root / place / name).write_bytes(content)
                junk[content] = f"{place}/{name}"
        (folder / "junk").write_bytes(b"junk message")
        junk[b"junk message"] = "range"
        again = host.connect()
        assert bodies(again) == [b"1", b"2"]
        assert again.tpc_recover() == [xid]
        again.tpc_commit(xid)
        assert bodies(again, "replies") == [b"in doubt"]
        kept = {path.read_bytes() for path in host.root.rglob("*") if path.is_file()}
        assert [where for content, where in junk.items() if content not in kept] == []


class ConcurrencyContract(Contract):
    """Connections of several threads see whole branches, and those who wait are woken."""

    @pytest.fixture
    def pool(self) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(4) as threads:
            yield threads

    def test_connections_share_the_space(self, connect: Connect) -> None:
        one, other = connect(), connect()
        put(one, b"1")
        put(other, b"2")
        one.enqueue("orders", b"3")
        put(other, b"4")
        one.commit()
        assert drain(one) == [b"1", b"2", b"4", b"3"]

    @pytest.mark.parametrize("in_doubt", [True, False])
    def test_a_waiting_dequeue_gets_what_is_committed_meanwhile(
        self, connect: Connect, pool: ThreadPoolExecutor, in_doubt: bool
    ) -> None:
        consumer, producer = connect(), connect()
        waiting = threading.Event()

        def wait() -> Message | None:
            waiting.set()
            return consumer.dequeue("orders", wait_s=PATIENCE_S)

        found = pool.submit(wait)
        assert waiting.wait(PATIENCE_S)
        if in_doubt:
            producer.tpc_begin(producer.xid(1, "x", ""))
        producer.enqueue("orders", b"x")
        if in_doubt:
            producer.tpc_prepare()
            producer.tpc_commit()
        else:
            producer.commit()
        message = found.result(PATIENCE_S)
        assert message is not None
        assert message.body == b"x"

    def test_a_waiting_dequeue_gets_what_is_rolled_back_meanwhile(
        self, connect: Connect, pool: ThreadPoolExecutor
    ) -> None:
        consumer, holder = connect(), connect()
        put(holder, b"x")
        assert holder.dequeue("orders") is not None
        waiting = threading.Event()

        def wait() -> Message | None:
            waiting.set()
            return consumer.dequeue("orders", wait_s=PATIENCE_S)

        found = pool.submit(wait)
        assert waiting.wait(PATIENCE_S)
        holder.rollback()
        message = found.result(PATIENCE_S)
        assert message is not None
        assert (message.body, message.tries) == (b"x", 1)

    def test_a_waiting_enqueue_goes_on_once_there_is_room(self, connect: Connect, pool: ThreadPoolExecutor) -> None:
        producer, consumer = connect(), connect()
        producer.define("small", max_messages=1, when_full="wait", full_wait_s=PATIENCE_S)
        put(producer, b"1", queue="small")
        waiting = threading.Event()

        def add() -> None:
            waiting.set()
            put(producer, b"2", queue="small")

        done = pool.submit(add)
        assert waiting.wait(PATIENCE_S)
        for body in (b"1", b"2"):
            message = consumer.dequeue("small", wait_s=PATIENCE_S)
            assert message is not None
            assert message.body == body
            consumer.commit()
        done.result(PATIENCE_S)

    def test_a_wait_ends_without_a_message(self, connection: Connection) -> None:
        assert connection.dequeue("orders", wait_s=0.01) is None
        connection.commit()

    @pytest.mark.parametrize("names", ["its message id", "a correlation id"])
    def test_a_request_gets_its_reply(self, connect: Connect, pool: ThreadPoolExecutor, names: str) -> None:
        client, worker = connect(), connect()
        options: dict[str, Any] = {"correlation_id": "the last one"} if names == "a correlation id" else {}
        put(client, b"another's reply", queue="replies")

        def answer() -> None:
            request = worker.dequeue("orders", wait_s=PATIENCE_S)
            assert request is not None
            assert request.properties.expires_at is not None
            assert request.headers == {"k": "v"}
            worker.reply(request, request.body.upper(), priority=7)
            worker.commit()

        found = pool.submit(answer)
        reply = client.request(
            "orders", b"how many", reply_queue="replies", timeout_s=PATIENCE_S, headers={"k": "v"}, **options
        )
        found.result(PATIENCE_S)
        assert (reply.body, reply.priority, reply.queue) == (b"HOW MANY", 7, "replies")
        assert reply.properties.expires_at is not None
        assert not client.in_transaction
        assert bodies(client, "replies") == [b"another's reply"]

    def test_a_late_reply_is_not_lost_and_a_request_expires(self, connect: Connect) -> None:
        client, worker = connect(), connect()
        with pytest.raises(TimeoutError, match=r"no reply to message [0-9a-f]{32} of queue orders came into") as late:
            client.request("orders", b"slow", reply_queue="replies", timeout_s=0.2, ttl=PATIENCE_S)
        request = worker.dequeue("orders")
        assert request is not None
        worker.reply(request, b"late")
        worker.commit()
        reply = client.dequeue("replies", correlation_id=late.value.correlation_id)  # type: ignore[attr-defined]
        assert reply is not None
        assert reply.body == b"late"
        client.commit()
        with pytest.raises(NoReply):
            client.request("orders", b"forgotten", reply_queue="replies", timeout_s=0.05)
        assert worker.dequeue("orders") is None

    def test_what_a_request_refuses(self, connection: Connection) -> None:
        """And then nothing was sent."""
        with pytest.raises(UnknownQueue, match=r"orders\.replies"):
            connection.request("orders", b"x")
        with pytest.raises(InvalidArgument, match="timeout_s"):
            connection.request("orders", b"x", reply_queue="replies", timeout_s=-1)
        assert not connection.in_transaction
        connection.enqueue("orders", b"plain")
        with pytest.raises(ProtocolError, match="commit it or roll it back first"):
            connection.request("orders", b"x", reply_queue="replies")
        connection.commit()
        plain = connection.dequeue("orders")
        assert plain is not None
        with pytest.raises(InvalidArgument, match="it wants no reply"):
            connection.reply(plain, b"x")
        connection.commit()
        assert bodies(connection) == []

    @pytest.mark.parametrize("looks", ["browse", "dequeue"])
    def test_the_messages_of_a_branch_become_visible_together(
        self, connect: Connect, pool: ThreadPoolExecutor, looks: str
    ) -> None:
        """26, without the kill: no reader ever sees a strict subset of a branch."""
        size, branches = 200, 4
        done = threading.Event()
        counts: list[int] = []

        def look() -> None:
            consumer = connect()
            last = False
            while not last:
                last = done.is_set()
                counts.append(len(bodies(consumer)) if looks == "browse" else len(drain(consumer)))
                consumer.rollback()

        looking = pool.submit(look)
        producer = connect()
        for number in range(branches):
            producer.tpc_begin(producer.xid(1, str(number), ""))
            for message in range(size):
                producer.enqueue("orders", b"%d.%d" % (number, message))
            if number % 2:
                producer.tpc_prepare()
            producer.tpc_commit()
        done.set()
        looking.result(PATIENCE_S)
        assert counts[-1] == size * branches
        assert [count for count in counts if count % size] == []

    def test_who_waits_gets_the_next_of_a_group_once_the_one_before_is_gone(
        self, connect: Connect, pool: ThreadPoolExecutor
    ) -> None:
        holder, consumer = connect(), connect()
        put(holder, b"1", b"2", group="g")
        assert holder.dequeue("orders") is not None
        found = pool.submit(lambda: consumer.dequeue("orders", wait_s=PATIENCE_S))
        holder.commit()
        message = found.result(PATIENCE_S)
        assert message is not None
        assert message.body == b"2"

    def test_each_group_keeps_its_order_with_many_consumers_and_failures(
        self, connect: Connect, pool: ThreadPoolExecutor
    ) -> None:
        groups, size = 5, 12
        producer = connect()
        producer.define("work", retry_delay_s=0.002, retry_multiplier=1)
        for number in range(size):
            for group in range(groups):
                producer.enqueue("work", b"%d %d" % (group, number), group=str(group))
        producer.commit()
        handled: list[bytes] = []

        def consume(share: int) -> None:
            consumer, dice = connect(), random.Random(share)
            while len(handled) < groups * size:
                message = consumer.dequeue("work", wait_s=0.05)
                if message is None or dice.random() < 0.2:
                    consumer.rollback()
                    continue
                handled.append(message.body)  # nobody else has one of this group
                consumer.commit()

        for future in [pool.submit(consume, share) for share in range(4)]:
            future.result(PATIENCE_S)
        assert len(handled) == groups * size
        for group in range(groups):
            taken = [int(body.split()[1]) for body in handled if int(body.split()[0]) == group]
            assert taken == list(range(size))

    def test_every_message_is_consumed_once_by_many(self, connect: Connect, pool: ThreadPoolExecutor) -> None:
        producer = connect()
        put(producer, *(b"%d" % number for number in range(120)))

        def consume(number: int) -> list[bytes]:
            consumer = connect()
            found: list[bytes] = []
            while (message := consumer.dequeue("orders")) is not None:
                if len(found) % 7 == number:
                    consumer.rollback()
                    message = consumer.dequeue("orders")
                    if message is None:
                        break
                found.append(message.body)
                consumer.commit()
            return found

        shares = [future.result(PATIENCE_S) for future in [pool.submit(consume, number) for number in range(4)]]
        taken = [body for share in shares for body in share] + drain(producer)
        assert sorted(taken, key=int) == [b"%d" % number for number in range(120)]
