"""An order and its parcel as one trace: python tracing.py DIRECTORY

Spans are printed here. In a program of yours OpenTelemetry's SDK sends them to a collector, and xaqueue needs no more
than that its API is installed. Needs: pip install 'xaqueue[otel]' opentelemetry-sdk
"""

from __future__ import annotations

import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import xaqueue


def line_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    parent = f"in {span.parent.span_id:016x}" if span.parent else "of its own"
    return f"{span.name}: trace {context.trace_id if context else 0:032x}, {parent}\n"


def pack(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
    tx.enqueue("parcels", b"parcel of " + message.body)


def main(directory: Path) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stdout, formatter=line_of)))
    trace.set_tracer_provider(provider)
    span = trace.get_tracer("shop").start_as_current_span("take an order")
    with span, xaqueue.connect(directory, create=True) as connection:
        connection.enqueue("orders", b"two apples")
    xaqueue.Worker(directory, "orders", pack, until_empty=True).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
