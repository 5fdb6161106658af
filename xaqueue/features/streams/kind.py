"""The records of streams, as an open and a look find them: who consumes the queues, and how far."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from xaqueue.core.engine import redo
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.change import Content, Final, Moved
from xaqueue.core.model.record_kinds import Looking, Opening, RecordKind
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.record import (
    STREAMS,
    StreamRecord,
    StreamStep,
    archived_gone,
    archived_path,
    decode_stream,
    read_stream,
    record_of,
    stream_path,
)
from xaqueue.message import QUEUE_NAME


class StreamKind(RecordKind):
    directory = STREAMS
    names = re.compile(rf"queue={QUEUE_NAME.pattern}")
    steps = tuple(StreamStep)

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
                record = read_stream(space.fs, queue_name)
            except DamagedBlock as damage:
                record = StreamRecord(queue_name, "", damage=str(damage))
            if record is not None:
                space.queue(queue_name).keep(record)
                if record.damage:
                    opening.note(f"{path}: {record.refusal()}")

    def replayed(self, fs: FileSystem, wanted: Final) -> None:
        _keep_further(fs, wanted)
        _without_consumed(fs, wanted)

    def hardened(self, space: Any) -> Iterable[str]:
        found = [record for queue in space.queues.values() if (record := record_of(queue)) is not None]
        return [stream_path(record.queue) for record in found if not record.damage]

    def places(self, space: Any) -> Iterable[str]:
        return [STREAMS]

    def check(self, look: Looking, name: str, path: str) -> None:
        queue = layout.parse_queue_directory(name)
        if queue is None:
            look.damaged(path, "is no record of a stream: its name is not queue=<name>")
            return
        try:
            read_stream(look.fs, queue)
        except DamagedBlock as damage:
            advice = f"the queue is kept for it until `xaqueue release {queue}`"
            look.broken(path, f"the record of the stream that consumes queue {queue}: {damage}: {advice}")

    def view_queue(self, fs: FileSystem, queue: str) -> dict[str, Any]:
        try:
            record = read_stream(fs, queue)
        except (DamagedBlock, OSError) as error:
            return {"stream": f"unknown: its record is damaged: {error}"}
        if record is None:
            return {}
        return {"stream": "" if record.released else record.stream, "consumed": record.consumed}

    def queues(self, fs: FileSystem) -> Iterable[str]:
        return [queue for name in listed(fs, STREAMS) if (queue := layout.parse_queue_directory(name))]


def _keep_further(fs: FileSystem, wanted: Final) -> None:
    """Where a record was lost, the directories may be further than those that can be read: no stream goes back."""
    for path in [path for path in wanted if path.startswith(f"{STREAMS}/")]:
        queue = layout.parse_queue_directory(path.rpartition("/")[2])
        found = _record_of(fs, queue, None) if queue else None
        want = _record_of(fs, queue, wanted[path]) if queue else None
        if found is not None and want is not None and found.consumed > want.consumed:
            del wanted[path]


def _without_consumed(fs: FileSystem, wanted: Final) -> None:
    """What a stream has consumed is not made again, wherever its file is by now; what is to be kept of it is, in
    ``archive/``."""
    known: dict[str, StreamRecord | None] = {}
    for path in [path for path, want in wanted.items() if want is not None]:
        place = layout.parse_path(path)
        if place is None:
            continue
        queue, seq = place[0], place[1].last
        if queue not in known:
            known[queue] = _record_of(fs, queue, wanted.get(stream_path(queue)))
        record = known[queue]
        if record is None or seq > record.consumed:
            continue
        want, gone = wanted.pop(path), wanted.pop(layout.gone_path(*place), None)
        if record.archives(seq):
            given = gone.head + bytes(gone.body) if isinstance(gone, Content) else b""
            if place[1].is_block and (kept := archived_gone(fs, record, place[1], given)):
                wanted[archived_path(layout.gone_path(*place))] = Content(*kept, 0)
            if isinstance(want, Moved):
                want = Moved((path, *want.places), want.when_us)
            else:
                wanted[path] = None  # what is left of it there may be torn
            wanted[archived_path(path)] = want


def _record_of(fs: FileSystem, queue: str, want: Content | Moved | None) -> StreamRecord | None:
    """Who consumes the queue in the end, and how far."""
    data = want.head + bytes(want.body) if isinstance(want, Content) else redo.read(fs, stream_path(queue))
    try:
        return decode_stream(data, queue) if data else None
    except DamagedBlock:
        return None
