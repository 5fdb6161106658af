"""Blocks of many messages, written by hand into the directory of a space: whole, partial, hollow, damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, encode, pack_properties
from xaqueue.core.model.layout import Watermark
from xaqueue.core.model.message_block import decode_table, encode_gone
from xaqueue.core.model.message_block import encode as encode_many
from xaqueue.core.model.message_name import Named, tags_of
from xaqueue.message import MessageId, Properties

US_PER_S = 1_000_000

WHEN_S = 1_700_000_000
"""When its messages were committed, the first one of them."""


def id_of(seq: int) -> MessageId:
    return MessageId(seq.to_bytes(16, "big"))


def body_of(seq: int) -> bytes:
    return b"body %d" % seq


@dataclass(frozen=True)
class MadeBlock:
    """One that was written."""

    root: Path
    queue: str
    named: Named

    @property
    def path(self) -> str:
        return layout.messages_path(self.queue, self.named)

    @property
    def gone_path(self) -> str:
        return layout.gone_path(self.queue, self.named)

    @property
    def file(self) -> Path:
        return self.root / self.path

    @property
    def gone_file(self) -> Path:
        return self.root / self.gone_path

    def flip(self, offset: int) -> None:
        data = bytearray(self.file.read_bytes())
        data[offset] ^= 1
        self._write(data)

    def harm_table(self) -> None:
        self.flip(60)

    def harm_copy(self) -> None:
        self.flip(-10)

    def harm_body(self, index: int) -> None:
        self.flip(decode_table(self.file.read_bytes()).offsets[index])

    def harm_gone(self) -> None:
        self.gone_file.write_bytes(self.gone_file.read_bytes()[:-1] + b"\xff")

    def hollow(self, gone: int) -> None:
        """Without the bodies of these."""
        data = self.file.read_bytes()
        table = decode_table(data)
        hollow = [index for index in range(table.count) if gone >> index & 1]
        bodies = [b"" if index in hollow else table.body(data, index) for index in range(table.count)]
        head, body, _ = encode_many(
            table.packed, table.message_ids(), bodies, 1, tags=table.tags, own=table.own, hollow=hollow
        )
        self._write(head + body)

    def take(self, gone: int) -> None:
        self.gone_file.parent.mkdir(exist_ok=True)
        self.gone_file.write_bytes(b"".join(encode_gone(self.queue, self.named, gone, 1)))

    def _write(self, data: bytes | bytearray) -> None:
        when_ns = self.file.stat().st_mtime_ns
        self.file.write_bytes(data)
        os.utime(self.file, ns=(when_ns, when_ns))


def put_block(
    root: Path,
    first: int,
    count: int,
    *,
    queue: str = "orders",
    gone: int = 0,
    options: Mapping[int, Mapping[str, Any]] | None = None,
    ids: Sequence[MessageId] | None = None,
) -> MadeBlock:
    """Numbers ``first`` and on. gone: what of it is, a bit each. options: by index what a message has of its own."""
    numbers = range(first, first + count)
    ids = ids or [id_of(seq) for seq in numbers]
    own = {index: (tags_of(Properties(queue, **given)), dict(given)) for index, given in (options or {}).items()}
    packed = pack_properties(Properties(queue, enqueued_at=WHEN_S * US_PER_S))
    head, body, _ = encode_many(packed, ids, list(map(body_of, numbers)), 1, own=own)
    made = MadeBlock(root, queue, Named(first, numbers[-1], ids[0]))
    _put(made.file, head + body, first)
    if gone:
        made.take(gone)
    _mark(root, queue, numbers[-1])
    return made


def put_message(root: Path, seq: int, *, queue: str = "orders") -> Path:
    """One in a file of its own."""
    properties = Properties(queue, enqueued_at=WHEN_S * US_PER_S)
    path = root / layout.message_path(queue, seq, id_of(seq))
    _put(path, b"".join(encode(Block(Kind.ENQUEUE, id_of(seq), properties, body_of(seq), 1))), seq)
    _mark(root, queue, seq)
    return path


def _put(path: Path, data: bytes, seq: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (WHEN_S + seq, WHEN_S + seq))


def _mark(root: Path, queue: str, seq: int) -> None:
    path = root / layout.watermark_path(queue)
    found = layout.parse_watermark(path.read_bytes()) if path.exists() else None
    published, reserved = found or (0, 0)
    path.write_bytes(layout.format_watermark(Watermark(max(published, seq), max(reserved, seq))))
