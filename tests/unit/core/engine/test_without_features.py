"""The core alone is a queue that takes part in transactions, and recovers: nothing is attached to it here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import ANY_QUEUE, FaultyFileSystem
from xaqueue.connection import Connection
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.features import Features, Gate
from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import Branch, Rider
from xaqueue.core.owner import open
from xaqueue.core.recovery.recover import open_space
from xaqueue.core.storage.hardening import Hardening
from xaqueue.errors import Error, ProtocolError, QueueWaiting
from xaqueue.features.session import Session
from xaqueue.message import Message, MessageId, Properties
from xaqueue.xid import Xid


@pytest.fixture(params=["NONE", "JOURNAL"])
def level(request: pytest.FixtureRequest) -> Hardening:
    return Hardening.parse(request.param)


def opened(root: Path, level: Hardening, features: Features | None = None) -> Space:
    open.create(root, any_queue=True)
    return open_space(FaultyFileSystem(root), ANY_QUEUE, hardening=level, features=features or Features())


def connected(space: Space) -> Connection:
    return Connection(Session(space), lambda: os.urandom(16))


def test_commit_prepare_and_recovery(tmp_path: Path, level: Hardening) -> None:
    space = opened(tmp_path, level)
    connection = connected(space)
    connection.enqueue("orders", b"one")
    connection.commit()
    xid = connection.xid(1, b"x", b"")
    connection.tpc_begin(xid)
    assert connection.dequeue("orders") is not None
    connection.enqueue("billing", b"two")
    connection.tpc_prepare()
    space.log.end(OSError("killed"))
    again = connected(opened(tmp_path, level))
    assert again.tpc_recover() == [xid]
    again.tpc_commit(xid)
    assert again.dequeue("orders") is None
    found = again.dequeue("billing")
    assert found is not None
    assert found.body == b"two"
    again.close()


def test_a_rollback_counts_no_try(tmp_path: Path, level: Hardening) -> None:
    connection = connected(opened(tmp_path, level))
    connection.enqueue("orders", b"one")
    connection.commit()
    for _ in range(3):
        found = connection.dequeue("orders")
        assert found is not None
        assert (found.body, found.properties.tries) == (b"one", 0)
        connection.rollback()
    connection.close()


def test_who_has_a_say_may_keep_a_message_out(tmp_path: Path, level: Hardening) -> None:
    asked = list[str]()
    there = MessageId(bytes(16))

    def admit(
        space: Space, branch: Branch, queue: str, message_id: MessageId, properties: Properties
    ) -> MessageId | None:
        asked.append(queue)
        return there if properties.priority == 9 else None

    features = Features()
    features.admits = (admit,)
    connection = connected(opened(tmp_path, level, features))
    connection.enqueue("orders", b"plain")
    assert connection.enqueue("orders", b"kept out", priority=9) == there
    assert connection.enqueue("orders", b"let in", priority=1) != there
    connection.commit()
    assert asked == ["orders", "orders"]
    assert sorted(message.body for message in connection.browse("orders")) == [b"let in", b"plain"]
    connection.close()


class Shut(Gate):
    def shuts(self, queue: str) -> Error | None:
        return QueueWaiting("not now") if queue == "orders" else None

    def passes(self, message: Message) -> None:
        message.properties.possible_duplicate = True


def test_a_gate_holds_back_and_marks(tmp_path: Path, level: Hardening) -> None:
    space = opened(tmp_path, level)
    connection = connected(space)
    for queue in ("orders", "billing"):
        connection.enqueue(queue, b"one")
    connection.commit()
    space.gates = (Shut(),)
    for look in (connection.dequeue, lambda queue: list(connection.browse(queue))):
        with pytest.raises(QueueWaiting, match="not now"):
            look("orders")
    found = connection.dequeue("billing")
    assert found is not None
    assert found.properties.possible_duplicate
    space.gates = ()
    other = connection.dequeue("orders")
    assert other is not None
    assert not other.properties.possible_duplicate
    connection.close()


def test_a_part_is_made_once(tmp_path: Path, level: Hardening) -> None:
    space = opened(tmp_path, level)
    assert space.memory_of(Shut) is space.memory_of(Shut)


class Performs(Rider):
    """Gives its commit to the log by itself, and hears of its end."""

    def __init__(self) -> None:
        self.heard = list[object]()

    def performs(self, space: Space, branch: Branch, plan: Callable[[], Any], publish: Callable[[], None]) -> bool:
        space.log.perform(plan, publish)
        self.heard.append("performed")
        return True

    def committed(self, space: Space, *, late: bool) -> None:
        self.heard.append(late)

    def check_by_hand(self, branch: Branch) -> None:
        raise ProtocolError("not by hand")


def test_a_rider_performs_a_commit(tmp_path: Path, level: Hardening) -> None:
    space, rider, xid = opened(tmp_path, level), Performs(), Xid(1, b"x", b"")
    connection = connected(space)
    connection.tpc_begin(xid)
    connection.enqueue("orders", b"one")
    space.branches[xid].riders = (rider,)
    connection.tpc_prepare()
    with pytest.raises(ProtocolError, match="not by hand"):
        heuristics.decide(space, xid, True, "somebody")
    connection.tpc_commit()
    assert rider.heard == ["performed", False]
    assert [message.body for message in connection.browse("orders")] == [b"one"]
    connection.close()
