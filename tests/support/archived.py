"""What the files of a queue with an archive say of messages that have left it, by the rules of xaqueue(5), Taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from xaqueue.core.model import layout
from xaqueue.core.model.block import HOLLOW, decode_message
from xaqueue.core.model.block_files import listed, ranges_in, read_gone
from xaqueue.core.model.message_block import decode_table
from xaqueue.core.model.message_name import Named, parse_any
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.taken import Span, Taken, read_all


class Left(NamedTuple):
    """A message that has left its queue. by: the newest record that names it."""

    message_id: bytes
    body: bytes
    by: Taken | None


def names_in(fs: FileSystem, top: str, queue: str, number: int) -> dict[str, Named]:
    directory = f"{top}/queue={queue}/range={number:013x}"
    names = listed(fs, directory) if fs.is_dir(directory) else []
    return {f"{directory}/{name}": named for name in names if (named := parse_any(name)) is not None}


def archived(fs: FileSystem, queue: str) -> dict[int, Left]:
    """By number what was taken of the queue, or expired."""
    top = f"{layout.ARCHIVE}/queue={queue}"
    ranges = {*ranges_in(fs, queue), *(n for name in listed(fs, top) if (n := layout.parse_range(name)) is not None)}
    found: dict[int, Left] = {}
    records = read_all(fs, queue)
    for number in sorted(ranges):
        here = names_in(fs, layout.COMMITTED, queue, number)
        stand = [one for path, named in here.items() for one in _each(fs, queue, path, named)]
        live = {seq for seq, _, _, is_gone in stand if not is_gone}
        there = names_in(fs, layout.ARCHIVE, queue, number)
        for path, named in [*here.items(), *there.items()]:
            for seq, message_id, body, is_gone in _each(fs, queue, path, named):
                if seq in live or not is_gone:
                    continue
                by = max((one for one in records if _names(one, seq)), key=lambda one: one.at_us, default=None)
                if not named.is_block or by is None or not _is_in(by.moved, seq):
                    found[seq] = Left(message_id, body, by)
    return found


def live(fs: FileSystem, queue: str) -> set[int]:
    """Numbers of the messages that are there."""
    return {
        seq
        for number in ranges_in(fs, queue)
        for path, named in names_in(fs, layout.COMMITTED, queue, number).items()
        for seq, _, _, is_gone in _each(fs, queue, path, named)
        if not is_gone
    }


def _each(fs: FileSystem, queue: str, path: str, named: Named) -> Iterator[tuple[int, bytes, bytes, bool]]:
    """Number, id, body, and whether it has left, of each message of a file."""
    is_archived, data = path.startswith(layout.ARCHIVE), fs.read(path)
    if not named.is_block:
        message_id, _, body = decode_message(data)
        yield named.first, message_id, body, is_archived
        return
    table, gone = decode_table(data), 0
    if not is_archived:
        with suppress(DamagedBlock):
            gone = read_gone(fs, queue, named)
    for index in range(named.count):
        if table.sizes[index] != HOLLOW:
            is_gone = is_archived or bool(gone >> index & 1)
            yield named.first + index, table.message_id(index), table.body(data, index), is_gone


def _names(taken: Taken, seq: int) -> bool:
    return _is_in(taken.spans, seq) or _is_in(taken.moved, seq)


def _is_in(spans: Sequence[Span], seq: int) -> bool:
    return any(first <= seq <= last for first, last in spans)
