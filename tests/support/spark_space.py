"""A space directory as an owner would leave it, made of files alone, so that readers are tested without the engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from xaqueue.core.model import block as command
from xaqueue.core.model import layout
from xaqueue.core.model.entry import Retry
from xaqueue.core.model.message_name import tags_of
from xaqueue.features.retries.tries import encode_retry
from xaqueue.features.streams.record import StreamRecord, stream_path
from xaqueue.features.streams.streams import encode_stream
from xaqueue.message import MessageId, Properties

ENQUEUED_AT = 1_700_000_000_000_000


def message_id(seq: int) -> MessageId:
    return MessageId(seq.to_bytes(16, "big"))


def body(seq: int) -> bytes:
    return b"message %d" % seq


def keep(root: Path, queue: str, stream: str, consumed: int = 0) -> None:
    record = root / stream_path(queue)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(b"".join(encode_stream(StreamRecord(queue, stream, since=1, consumed=consumed), 1)))


class FabricatedSpace:
    """Messages appear in it with ``put``, and are visible to readers once ``publish`` has raised the watermark."""

    def __init__(self, root: Path, name: str = "fabricated", number: int = 1) -> None:
        self.root = root
        for directory in layout.directories():
            (root / directory).mkdir(parents=True)
        (root / layout.FORMAT).write_text(f"xaqueue 1 {name} {UUID(int=number)}\n")

    def put(self, queue: str, seq: int, content: bytes | None = None, **properties: Any) -> Path:
        """One committed message, not yet under the watermark. Its file. Tries stand beside it."""
        tries = properties.pop("tries", 0)
        stored = Properties(queue, **({"enqueued_at": ENQUEUED_AT + seq} | properties))
        block = command.Block(
            command.Kind.ENQUEUE, message_id(seq), stored, body(seq) if content is None else content, epoch=1
        )
        path = self.root / layout.message_path(queue, seq, message_id(seq), tags_of(stored))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(command.encode(block)))
        if tries:
            record = self.root / layout.retry_path(queue, seq, message_id(seq))
            record.parent.mkdir(exist_ok=True)
            record.write_bytes(encode_retry(queue, message_id(seq), Retry(tries), 1))
        return path

    def publish(self, queue: str, upto: int) -> None:
        path = self.root / layout.watermark_path(queue)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(layout.format_watermark(layout.Watermark(upto, upto + 1_000)))

    def fill(self, queue: str, seqs: Iterable[int], content: bytes | None = None) -> None:
        """Messages with these ascending numbers, all published."""
        seq = 0
        for seq in seqs:
            self.put(queue, seq, content)
        self.publish(queue, seq)

    def keep(self, queue: str, stream: str, consumed: int = 0) -> None:
        """The queue is reserved for the stream, as its owner writes it down."""
        keep(self.root, queue, stream, consumed)

    def consume(self, queue: str, seqs: Iterable[int]) -> None:
        """As an owner does it: the file goes, and a range directory that is empty is cleaned up."""
        for seq in seqs:
            path = self.path(queue, seq)
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()

    def path(self, queue: str, seq: int) -> Path:
        plain = self.root / layout.message_path(queue, seq, message_id(seq))
        return next(plain.parent.glob(f"{plain.name}*"), plain)
