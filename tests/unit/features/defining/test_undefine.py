"""When a definition is taken away, and when it stays."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue.core.model.block import head_of
from xaqueue.core.owner import definitions_file
from xaqueue.errors import QueueReserved, RetryLater, UnknownQueue
from xaqueue.features import opening
from xaqueue.features.defining import queues_file
from xaqueue.features.session import attach
from xaqueue.offline import inspect
from xaqueue.rpc.methods.service import queue_list


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opening.create(tmp_path / "space")
    queues_file.define(tmp_path / "space", "orders", {"order": "lifo"})
    return tmp_path / "space"


def test_a_queue_of_a_stream_stays(root: Path) -> None:
    session = attach(root)
    session.reserve("orders", "query#1", 0, 9)
    with pytest.raises(QueueReserved, match="reserved for stream"):
        session.undefine("orders")
    session.release("orders")
    session.undefine("orders")
    session.close()
    assert definitions_file.read_definitions(root).queues == {}


def test_the_default_holds_for_what_is_not_defined_any_more(root: Path) -> None:
    file = root / "queues.toml"
    file.write_text(f"[default]\norder = 'priority'\n{file.read_text()}")
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"1")
        connection.commit()
        assert connection.dequeue("orders") is not None
        connection.commit()
        connection.undefine("orders")
        with pytest.raises(UnknownQueue, match=r"not defined in queues\.toml"):
            connection.undefine("orders")
        for priority in (1, 9):
            connection.enqueue("orders", b"%d" % priority, priority=priority)
        connection.commit()
        first = connection.dequeue("orders")
        assert first is not None
        assert first.body == b"9"
        connection.rollback()


def test_it_is_listed_no_more_and_numbers_go_on(root: Path) -> None:
    session = attach(root)
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"1")
        connection.commit()
        (before,) = connection.browse("orders")
        connection.remove("orders", before.message_id)
        connection.commit()
        assert [queue.name for queue in queue_list(session.space)] == ["orders"]
        connection.undefine("orders")
        assert queue_list(session.space) == []
        assert inspect.queue_list(root) == []
        connection.define("orders")
        connection.enqueue("orders", b"2")
        connection.commit()
        (after,) = connection.browse("orders")
        assert after.seq > before.seq
    session.close()


def test_nobody_adds_a_message_while_the_file_is_replaced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown before the file says so, and known again where the file cannot be replaced."""
    session, refused = attach(root), list[BaseException]()

    def enqueue() -> None:
        with xaqueue.connect(root) as connection:
            try:
                connection.enqueue("orders", b"1")
            except UnknownQueue as error:
                refused.append(error)
            connection.rollback()

    def fail(*_: object) -> None:
        other = threading.Thread(target=enqueue)
        other.start()
        other.join()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(queues_file, "write_definitions", fail)
        with pytest.raises(RetryLater, match="No space left on device"):
            session.undefine("orders")
    assert len(refused) == 1
    enqueue()
    assert len(refused) == 1, "it is known again"
    session.close()
    assert list(definitions_file.read_definitions(root).queues) == ["orders"]


def test_a_message_that_was_on_its_way_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had looked before, and is added behind."""
    session, place = attach(root), "xaqueue.core.engine.messages.head_of"

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(place, head_of)
        session.undefine("orders")
        return head_of(*arguments)

    with xaqueue.connect(root) as connection:
        monkeypatch.setattr(place, meanwhile)
        with pytest.raises(UnknownQueue):
            connection.enqueue("orders", b"1")
        connection.commit()
    assert session.space.queue("orders").pending == set()
    assert len(session.space.queue("orders").index) == 0
    session.close()


@pytest.mark.parametrize("queues", [["orders"], ["other", "orders"]])
def test_who_waits_for_room_is_refused(root: Path, queues: list[str]) -> None:
    """The last message goes, and the queue with it."""
    queues_file.define(root, "orders", {"max_messages": 1, "when_full": "wait"})
    queues_file.define(root, "other", {})
    session = attach(root)
    with xaqueue.connect(root) as connection, xaqueue.connect(root) as taker:
        taker.enqueue("orders", b"1")
        taker.commit()
        queue, lock = session.space.queues["orders"], session.space.lock

        def wait(_: float) -> None:
            lock.release()
            try:
                assert taker.dequeue("orders") is not None
                taker.commit()
                session.undefine("orders")
            finally:
                lock.acquire()

        queue.arrived.wait = wait  # type: ignore[method-assign,assignment]
        with pytest.raises(UnknownQueue):
            connection.enqueue_to(queues, b"2")
        connection.commit()
    assert len(queue.index) == len(queue.pending) == 0
    session.close()
