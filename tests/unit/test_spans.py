"""Spans tell what is sent, received, processed and settled, and nothing of them changes what becomes of a message."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

import xaqueue
from support.served import ServerThread
from xaqueue import spans
from xaqueue.features.opening import create
from xaqueue.testing import MemorySpace
from xaqueue.xid import Xid

QUEUES = ("orders", "parcels")


@pytest.fixture
def space() -> Iterator[MemorySpace]:
    with MemorySpace(QUEUES) as made:
        yield made


def use(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    use(provider, monkeypatch)
    return made


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    found = {span.name: span for span in exporter.get_finished_spans()}
    exporter.clear()
    return found


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def told(span: ReadableSpan) -> dict[str, Any]:
    return {key.removeprefix("messaging."): value for key, value in (span.attributes or {}).items()}


def test_a_message_carries_its_trace_and_its_reader_links_to_it(
    space: MemorySpace, exporter: InMemorySpanExporter
) -> None:
    with space.connect() as connection:
        message_id = connection.enqueue("orders", b"apples")
        connection.commit()
        message = connection.dequeue("orders")
        connection.rollback()
    assert message is not None
    found = named(exporter)
    assert list(found) == ["send orders", "receive orders", "rollback orders"]
    send, receive, settle = found.values()
    assert [span.kind.name for span in found.values()] == ["PRODUCER", "CONSUMER", "CLIENT"]
    common = {"system": "xaqueue", "destination.name": "orders"}
    one = {"message.id": message_id.hex(), "message.body.size": 6}
    assert told(send) == common | one | {"operation.type": "send", "operation.name": "send"}
    assert told(receive) == common | one | {"operation.type": "receive", "operation.name": "receive"}
    assert told(settle) == common | {"operation.type": "settle", "operation.name": "rollback"}
    context = send.get_span_context()
    assert context is not None
    *parts, flags = str(message.properties.traceparent).split("-")
    assert parts == ["00", f"{context.trace_id:032x}", f"{context.span_id:016x}"]
    assert int(flags, 16) & 1, "sampled"
    assert [link.context.span_id for link in receive.links] == [context.span_id]


def test_many_at_once_are_one_span(space: MemorySpace, exporter: InMemorySpanExporter) -> None:
    with space.connect() as connection:
        connection.enqueue_many("orders", [b"a", (b"bc", {"priority": 7}), (b"d", {})])
        connection.enqueue_to(["orders", "parcels"], b"both")
        connection.commit()
        assert len(connection.dequeue_many("orders", 9)) == 4
        connection.commit()
        (delivery,) = connection.receive("parcels")
        delivery.ack()
    found = named(exporter)
    assert list(found) == ["send orders", "send", "receive orders", "commit orders", "receive parcels", "ack parcels"]
    assert told(found["send orders"])["batch.message_count"] == 3
    assert told(found["send orders"])["message.body.size"] == 4
    assert len(found["receive orders"].links) == 4
    assert told(found["commit orders"])["batch.message_count"] == 4


def test_a_block_settles_as_it_ends(space: MemorySpace, exporter: InMemorySpanExporter) -> None:
    connection = space.connect()
    connection.enqueue("orders", b"one")
    connection.commit()
    with pytest.raises(xaqueue.UnknownQueue), connection.transaction():
        connection.enqueue(connection.dequeue("orders").body.decode(), b"to a queue of this name")  # type: ignore[union-attr]
    with connection.transaction():
        connection.dequeue("orders")
    connection.close()
    assert [span.name for span in exporter.get_finished_spans() if "settle" in str(span.attributes)] == [
        *("rollback orders", "commit orders")
    ]


ENDED, LEFT = Xid(1, b"ended", b"b"), Xid(1, b"left", b"b")
CALLS: list[tuple[Any, ...]] = [
    *(("enqueue", "orders", b"1"), ("enqueue_to", ["orders"], b"2"), ("enqueue_many", "orders", [b"3"] * 5)),
    *(("define_topic", "news"), ("subscribe", "news", "orders"), ("publish", "news", b"9"), ("commit",)),
    *(("dequeue", "orders"), ("rollback",), ("dequeue_many", "orders", 2), ("commit",)),
    *(("receive", "orders"), ("tpc_begin", ENDED), ("dequeue", "orders"), ("tpc_prepare",), ("tpc_commit",)),
    *(("tpc_begin", LEFT), ("dequeue", "orders"), ("tpc_rollback",), ("dequeue", "orders")),
]


def test_an_async_connection_has_the_spans_of_one_for_threads(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    create(tmp_path / "s", sync="NONE", any_queue=True)
    server = ServerThread(tmp_path / "s", tmp_path / "socket")

    def of_threads() -> None:
        with xaqueue.connect(server.url) as connection:
            for name, *given in CALLS:
                getattr(connection, name)(*given)

    async def of_tasks() -> None:
        async with await xaqueue.connect_async(server.url) as connection:
            for name, *given in CALLS:
                await getattr(connection, name)(*given)

    try:
        of_threads()
        expected = [span.name for span in exporter.get_finished_spans()]
        exporter.clear()
        asyncio.run(of_tasks())
    finally:
        server.stop()
    assert [span.name for span in exporter.get_finished_spans()] == expected
    assert {name.split()[0] for name in expected} == {"send", "receive", "commit", "rollback"}


def test_what_the_caller_gives_is_kept_and_what_cannot_be_read_breaks_nothing(
    space: MemorySpace, exporter: InMemorySpanExporter
) -> None:
    given = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    with space.connect() as connection:
        for text in (given, "no trace at all", None):
            connection.enqueue("orders", b"one", traceparent=text)
        connection.commit()
        found = connection.dequeue_many("orders", 3)
        connection.commit()
    assert [message.properties.traceparent for message in found] == [given, "no trace at all", None]
    assert [link.context.span_id for link in named(exporter)["receive orders"].links] == [0xBBBBBBBBBBBBBBBB]


def test_a_span_that_is_not_sampled_is_passed_on_and_asks_nothing(
    space: MemorySpace, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(TracerProvider(sampler=ParentBased(ALWAYS_OFF)), monkeypatch)
    with space.connect() as connection, trace.get_tracer("own").start_as_current_span("dropped") as here:
        connection.enqueue("orders", b"one")
        connection.commit()
        message = connection.dequeue("orders")
        connection.commit()
    assert message is not None
    *parts, flags = str(message.properties.traceparent).split("-")
    assert parts[2] == f"{here.get_span_context().span_id:016x}"
    assert not int(flags, 16) & 1
    assert named(exporter) == {}


@pytest.mark.parametrize("way", ["switched off", "nobody has loaded it", "nobody has set it up"])
def test_off_there_is_nothing_of_it(space: MemorySpace, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way != "nobody has set it up":
        use(TracerProvider(), monkeypatch)
    if way == "switched off":
        monkeypatch.setenv("XAQUEUE_NO_OTEL", "1")
    elif way == "nobody has loaded it":
        monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    with space.connect() as connection:
        assert type(connection) is xaqueue.Connection
    assert spans.Tracing.of_process() is None


class Breaking:
    """Stands for a part of OpenTelemetry, which raises at the n-th thing that is asked of it, and of all it returns."""

    def __init__(self, of: Any, left: list[int]) -> None:
        self._of, self._left = of, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        return Breaking(found, self._left) if callable(found) else found

    def __call__(self, *given: Any, **more: Any) -> Any:
        self._left[0] -= 1
        if self._left[0] == 0:
            raise RuntimeError("of a processor")
        made = self._of(*given, **more)
        return Breaking(made, self._left) if isinstance(made, trace.Span) else made


def story(space: MemorySpace) -> list[object]:
    with space.connect() as connection:
        ids = [connection.enqueue("orders", b"one", message_id=b"i" * 16), connection.enqueue_many("orders", [b"two"])]
        connection.commit()
        taken = connection.dequeue("orders")
        connection.commit()
        left = [message.body for message in connection.dequeue_many("orders", 3)]
        connection.rollback()
        with pytest.raises(xaqueue.UnknownQueue):
            connection.enqueue("nowhere", b"three")
        connection.commit()
    xaqueue.Worker(space, "orders", lambda message, tx: tx.enqueue("parcels", message.body), until_empty=True).run()
    parcels = [message.body for message in space.messages("parcels")]
    return [len(ids), taken and taken.body, left, len(space.messages("orders")), parcels]


def test_whatever_is_raised_changes_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with MemorySpace(QUEUES) as space:
        expected = story(space)
    broken = 0
    for number in range(1, 200):
        left, provider = [number], TracerProvider()
        exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        with monkeypatch.context() as patched, MemorySpace(QUEUES) as space:
            use(provider, patched)
            patched.setattr(spans, "_has_failed", False)
            tracer = Breaking(provider.get_tracer("own"), left)
            patched.setattr(trace, "get_tracer", lambda *_, tracer=tracer: tracer)
            caplog.clear()
            assert story(space) == expected
        if left[0] > 0:
            break
        broken += 1
        assert len([one for one in caplog.records if "[trace-failed]" in one.message]) == 1
    assert broken > 20


def test_a_branch_that_others_end_leaves_nothing_behind(space: MemorySpace, exporter: InMemorySpanExporter) -> None:
    with space.connect() as connection, space.connect() as other:
        for number in range(20):
            connection.enqueue("orders", b"%d" % number)
        connection.commit()
        xid = connection.xid(1, "one", "queue")
        connection.tpc_begin(xid)
        connection.dequeue_many("orders", 20)
        connection.tpc_prepare()
        other.tpc_rollback(xid)
        with pytest.raises(xaqueue.Error):
            connection.tpc_commit()
        exporter.clear()
        connection.tpc_begin(connection.xid(1, "two", "queue"))
        connection.dequeue("orders")
        connection.tpc_commit()
    found = named(exporter)
    assert "batch.message_count" not in told(found["commit orders"])
    assert len(found["receive orders"].links) == 1


def test_a_worker_works_within_the_trace_of_the_sender(space: MemorySpace, exporter: InMemorySpanExporter) -> None:
    def handle(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
        tx.enqueue("parcels", message.body)
        if message.body == b"bad":
            raise ValueError("an order of nothing")

    with space.connect() as connection:
        connection.enqueue("orders", b"good")
    xaqueue.Worker(space, "orders", handle, until_empty=True).run()
    found = named(exporter)
    send, process = found["send orders"], found["process orders"]
    parcel = found["send parcels"]
    assert process.parent is not None
    assert parcel.parent is not None
    assert (process.parent.span_id, parcel.parent.span_id) == (id_of(send), id_of(process))
    with space.connect() as connection:
        connection.enqueue("orders", b"bad")
    xaqueue.Worker(space, "orders", handle, until_empty=True).run()
    assert told(named(exporter)["process orders"])["error.type"] == "ValueError"


def test_steps_of_a_transaction_manager(space: MemorySpace, exporter: InMemorySpanExporter, tmp_path: Any) -> None:
    with MemorySpace(QUEUES) as second:
        parts = {"one": space.connect, "two": second.connect}
        with (
            xaqueue.TransactionManager(tmp_path / "log", parts) as tm,
            trace.get_tracer("own").start_as_current_span("shop"),
            tm.transaction() as tx,
        ):
            tx["one"].enqueue("orders", b"one")
            tx["two"].enqueue("orders", b"two")
    found = named(exporter)
    assert [name for name in found if name.startswith("xaqueue ")] == [
        *("xaqueue prepare", "xaqueue decide", "xaqueue commit")
    ]
    own = id_of(found.pop("shop"))
    assert all(span.parent is not None and span.parent.span_id == own for span in found.values())
    assert told(found["xaqueue decide"])["xaqueue.participants"] == ("one", "two")
