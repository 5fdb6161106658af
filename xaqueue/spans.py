"""Traces by OpenTelemetry, where its API is installed and XAQUEUE_NO_OTEL is not set: ``pip install 'xaqueue[otel]'``.

Its messaging conventions name the spans: ``send`` for what is enqueued, ``receive`` for what is dequeued, ``process``
around a worker's function, ``settle`` for the end of a transaction that has taken messages; a transaction manager's
steps are spans of their own. A message carries the context of its ``send`` as ``traceparent``.

Nothing here changes what becomes of a message: whatever a tracer, a sampler or a processor raises is logged once, and
the work goes on without the span.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from xaqueue.connection import Connection
from xaqueue.delivery import Delivery, Detail
from xaqueue.message import EnqueueOptions, Message, MessageId
from xaqueue.xa import Flag
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, SpanKind

    from xaqueue.resource_manager import ResourceManager

P = ParamSpec("P")
T = TypeVar("T")

OFF_VARIABLE = "XAQUEUE_NO_OTEL"
LINKS = 128
"""Of messages that one span links to, at most: as many as a span keeps by default."""

log = logging.getLogger("xaqueue")


def connection(manager: ResourceManager, fresh: Callable[[], bytes]) -> Connection:
    """A connection, traced where that is on."""
    tracing = Tracing.of_process()
    return Connection(manager, fresh) if tracing is None else TracedConnection(manager, fresh, tracing)


_has_failed = False


def _failed(error: Exception) -> None:
    global _has_failed
    if not _has_failed:
        _has_failed = True
        log.warning("[trace-failed] a span is lost, and more may be; no message is concerned: %r", error)


def _harmless(method: Callable[P, T]) -> Callable[P, T | None]:
    """The same, but None where a tracer, a sampler or a processor raises in it."""

    @wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> T | None:
        try:
            return method(*arguments, **options)
        except Exception as error:
            _failed(error)
            return None

    return call


class Tracing:
    """Makes spans. No method raises an Exception of its own; the blocks raise what is in them."""

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context, self._trace = context, trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("xaqueue")

    @staticmethod
    @_harmless
    def of_process() -> Tracing | None:
        """None where it is off, or where nobody has set a provider of tracers up: then there is no cost at all.

        Looked up for each connection, worker and transaction manager.
        """
        if os.environ.get(OFF_VARIABLE) or "opentelemetry.trace" not in sys.modules:
            return None
        from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

        return None if isinstance(get_tracer_provider(), ProxyTracerProvider) else Tracing()

    @_harmless
    def send(self, queue: str, options: EnqueueOptions, count: int = 1) -> Span | None:
        """Begins the span of an enqueue, and gives the message its context; None where nothing is recorded."""
        dropped = self._dropped()
        if dropped is not None:
            options.setdefault("traceparent", _text_of(dropped))
            return None
        span = self._begin("send", queue, self._trace.SpanKind.PRODUCER, count=count)
        made = span.get_span_context()
        if made.is_valid:
            options.setdefault("traceparent", _text_of(made))
        return span if span.is_recording() else None

    @_harmless
    def sent(self, span: Span | None, made: object, bodies: Sequence[Any]) -> None:
        """made: the id of the message, or of several a list."""
        if span is not None:
            if isinstance(made, bytes):
                span.set_attribute("messaging.message.id", made.hex())
            span.set_attribute("messaging.message.body.size", sum(map(len, bodies)))
            span.end()

    @_harmless
    def received(self, messages: Sequence[Message], began_ns: int) -> bool:
        """Whether it is recorded. began_ns: of the clock of the day. Of a look that has found nothing there is no span.

        Links are added afterwards: most spans may be dropped, and to read a context takes as long as a sampler.
        """
        if not messages or self._dropped() is not None:
            return False
        kind = self._trace.SpanKind.CONSUMER
        span = self._begin("receive", messages[0].queue, kind, count=len(messages), start_time=began_ns)
        is_recorded = span.is_recording()
        if is_recorded:
            for context in self._contexts(messages):
                span.add_link(context)
            if len(messages) == 1:
                span.set_attribute("messaging.message.id", messages[0].message_id.hex())
                span.set_attribute("messaging.message.body.size", len(messages[0].body))
        span.end()
        return is_recorded

    @_harmless
    def settle(self, taken: Mapping[str, int], how: str) -> Span | None:
        """Begins the span of the end of a transaction that has taken so many messages of these queues."""
        if self._dropped() is not None:
            return None
        queue = next(iter(taken)) if len(taken) == 1 else ""
        span = self._begin("settle", queue, self._trace.SpanKind.CLIENT, count=sum(taken.values()), name=how)
        return span if span.is_recording() else None

    @_harmless
    def end(self, span: Span | None, failure: BaseException | None = None) -> None:
        if span is not None:
            if failure is not None:
                span.set_attribute("error.type", type(failure).__name__)
                span.set_status(self._trace.StatusCode.ERROR, str(failure))
            span.end()

    @contextmanager
    def process(self, message: Message) -> Iterator[None]:
        """Around what a worker does with a message: within the trace of who has sent it."""
        found, kind = self._remote(message), self._trace.SpanKind.CONSUMER
        with self._around(lambda: self._begin("process", message.queue, kind, context=found, of=message)):
            yield

    def step(self, name: str, gtrid: str, participants: Sequence[str]) -> AbstractContextManager[None]:
        """Around a step of a transaction manager."""
        attributes = {"xaqueue.gtrid": gtrid, "xaqueue.participants": list(participants)}
        return self._around(lambda: self._tracer.start_span(f"xaqueue {name}", attributes=attributes))

    # Inside

    def _dropped(self) -> SpanContext | None:
        """The span of now, where that is not recorded: nor is what is within it, so no sampler need be asked."""
        here = self._trace.get_current_span().get_span_context()
        return here if here.is_valid and not here.trace_flags.sampled else None

    def _begin(
        self,
        operation: str,
        queue: str,
        kind: SpanKind,
        *,
        count: int = 1,
        name: str = "",
        start_time: int | None = None,
        context: Context | None = None,
        of: Message | None = None,
    ) -> Span:
        attributes: dict[str, Any] = {
            "messaging.system": "xaqueue",
            "messaging.operation.type": operation,
            "messaging.operation.name": name or operation,
        }
        if queue:
            attributes["messaging.destination.name"] = queue
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        if of is not None:
            attributes["messaging.message.id"] = of.message_id.hex()
        title = f"{name or operation} {queue}".rstrip()
        return self._tracer.start_span(title, context, kind, attributes, None, start_time)

    @contextmanager
    def _around(self, begin: Callable[[], Span]) -> Iterator[None]:
        span = token = None
        try:
            span = begin()
            token = self._context.attach(self._trace.set_span_in_context(span))
        except Exception as error:
            _failed(error)
        failure = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            if token is not None:
                try:
                    self._context.detach(token)
                except Exception as error:
                    _failed(error)
            self.end(span, failure)

    def _contexts(self, messages: Sequence[Message]) -> Iterator[SpanContext]:
        """Of who has sent these."""
        for message in messages[:LINKS]:
            found = self._remote(message)
            if found is not None:
                yield self._trace.get_current_span(found).get_span_context()

    @_harmless
    def _remote(self, message: Message) -> Context | None:
        """The context of who has sent it; None where it has none that can be read."""
        given = message.properties.traceparent
        found = self._propagator.extract({"traceparent": given}) if given else None
        is_valid = found is not None and self._trace.get_current_span(found).get_span_context().is_valid
        return found if is_valid else None


def _text_of(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"


def process(tracing: Tracing | None, message: Message) -> AbstractContextManager[None]:
    return nullcontext() if tracing is None else tracing.process(message)


def _taking(
    method: Callable[Concatenate[Connection, P], T], *, on_lease: bool = False
) -> Callable[Concatenate[TracedConnection, P], T]:
    """The same, with a span of what it has found. on_lease: that is not taken in the transaction."""

    @wraps(method)
    def traced(self: TracedConnection, /, *arguments: P.args, **options: P.kwargs) -> T:
        began_ns = time.time_ns()
        found = method(self, *arguments, **options)
        received: list[Any] = found if isinstance(found, list) else [] if found is None else [found]
        self._received([one.message for one in received] if on_lease else received, began_ns, on_lease=on_lease)
        return found

    return traced


class TracedConnection(Connection):
    """A connection whose calls are spans."""

    def __init__(self, manager: ResourceManager, fresh: Callable[[], bytes], tracing: Tracing) -> None:
        self._tracing = tracing
        self._taken: dict[str, int] = {}
        """What this transaction has taken and recorded, by queue. No message is kept for a span."""
        super().__init__(manager, fresh)

    def enqueue(self, queue: str, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]) -> MessageId:
        span = self._tracing.send(queue, options)
        if span is None:
            return super().enqueue(queue, body, **options)
        return self._send(span, partial(super().enqueue, queue, body, **options), [body])

    def enqueue_to(
        self, queues: Sequence[str], body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]
    ) -> MessageId:
        span = self._tracing.send(queues[0] if isinstance(queues, list | tuple) and len(queues) == 1 else "", options)
        return self._send(span, partial(super().enqueue_to, queues, body, **options), [body])

    def publish(self, topic: str, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]) -> MessageId:
        span = self._tracing.send(topic, options)
        return self._send(span, partial(super().publish, topic, body, **options), [body])

    def enqueue_many(self, queue: str, bodies: Any, **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        bodies = list(bodies) if not isinstance(bodies, str | bytes | bytearray | memoryview) else bodies
        span = self._tracing.send(queue, options, len(bodies) if isinstance(bodies, list) else 1)
        sent = [one[0] if isinstance(one, tuple) and one else one for one in bodies]
        return self._send(span, partial(super().enqueue_many, queue, bodies, **options), sent)

    def _send(self, span: Span | None, call: Callable[[], T], bodies: Sequence[Any]) -> T:
        made = self._failing(span, call)
        self._tracing.sent(span, made, bodies)
        return made

    def _failing(self, span: Span | None, call: Callable[[], T]) -> T:
        """Where it fails, the span ends so."""
        try:
            return call()
        except BaseException as error:
            self._tracing.end(span, error)
            raise

    dequeue = _taking(Connection.dequeue)
    _take_ahead = _taking(Connection._take_ahead)  # noqa: SLF001
    dequeue_many = _taking(Connection.dequeue_many)
    receive = _taking(Connection.receive, on_lease=True)

    def accept(self, delivery: Delivery) -> None:
        super().accept(delivery)
        self._count(delivery.message.queue, 1)

    def _received(self, messages: Sequence[Message], began_ns: int, *, on_lease: bool) -> None:
        if self._tracing.received(messages, began_ns) and not on_lease:
            self._count(messages[0].queue, len(messages))

    def _count(self, queue: str, taken: int) -> None:
        self._taken[queue] = self._taken.get(queue, 0) + taken

    def _settle(self, delivery: Delivery, how: str, detail: Detail) -> None:
        self._settled(
            {delivery.message.queue: 1}, how, lambda: super(TracedConnection, self)._settle(delivery, how, detail)
        )

    # The end of a transaction

    def commit(self) -> None:
        self._end("commit", super().commit)

    def rollback(self) -> None:
        self._end("rollback", super().rollback)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        block = super().transaction()
        block.__enter__()
        try:
            yield self
        except BaseException as error:
            raised = type(error), error, error.__traceback__
            self._end("rollback", lambda: block.__exit__(*raised))
            raise
        self._end("commit", lambda: block.__exit__(None, None, None))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        how = "commit" if kind is None else "rollback"
        self._end(how, partial(super().__exit__, kind, error, trace))

    def tpc_begin(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        super().tpc_begin(xid, flags, timeout_s)
        self._taken = {}  # of a branch that somebody else has ended

    def tpc_commit(self, xid: Xid | None = None, *, late: bool = False) -> None:
        self._end("commit", partial(super().tpc_commit, xid, late=late), is_own=xid is None)

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        self._end("rollback", partial(super().tpc_rollback, xid), is_own=xid is None)

    def _end(self, how: str, call: Callable[[], object], *, is_own: bool = True) -> None:
        if not is_own or not self._taken:
            call()
            return
        taken, self._taken = self._taken, {}
        try:
            self._settled(taken, how, call)
        finally:
            if self.in_transaction:  # it was refused for now
                self._taken = taken

    def _settled(self, taken: Mapping[str, int], how: str, call: Callable[[], object]) -> None:
        span = self._tracing.settle(taken, how)
        self._failing(span, call)
        self._tracing.end(span)
