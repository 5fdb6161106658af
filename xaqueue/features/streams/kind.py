"""What an open makes of the records of streams: who consumes the queues, and how far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xaqueue.core.model import layout, records
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.layout import STREAMS
from xaqueue.core.model.record_kinds import Opening, RecordKind
from xaqueue.core.model.records import StreamRecord
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.cleanup import filled_archives


class StreamKind(RecordKind):
    directory = STREAMS

    def find(self, opening: Opening) -> None:
        """A damaged record stays, and its queue is kept for nobody knows whom. No crash leaves one: its content is
        hardened before its name."""
        space = opening.space
        for name in listed(space.fs, STREAMS):
            path, queue_name = f"{STREAMS}/{name}", layout.parse_queue_directory(name)
            if queue_name is None:
                opening.set_aside(path, "no record of a stream: its name is not queue=<name>")
                continue
            try:
                record = records.read_stream(space.fs, queue_name)
            except DamagedBlock as damage:
                record = StreamRecord(queue_name, "", damage=str(damage))
            if record is not None:
                space.queue(queue_name).keep(record)
                if record.damage:
                    opening.note(f"{path}: {records.refusal(record)}")

    def hardened(self, space: Any) -> Iterable[str]:
        found = [queue.record for queue in space.queues.values() if queue.record is not None]
        return [layout.stream_path(record.queue) for record in found if not record.damage]

    def places(self, space: Any) -> Iterable[str]:
        return [*filled_archives(space), STREAMS]
