"""Which messages the blocks of branches name: recovery needs these before it can judge a branch, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId
from xaqueue.space.model.block import NOTHING, Kind
from xaqueue.space.model.layout import ACTIVE
from xaqueue.space.recovery.load import read_head, read_list
from xaqueue.storage.fs import FileSystem

Named = tuple[str, MessageId]
"""Queue and id."""


def named(fs: FileSystem, paths: Iterable[str]) -> dict[str, set[MessageId]]:
    """By queue the messages that these blocks add or remove. A damaged block names none."""
    found: dict[str, set[MessageId]] = {}
    for path in paths:
        for queue, message_id in _named_by(fs, path):
            found.setdefault(queue, set()).add(message_id)
    return found


def _named_by(fs: FileSystem, path: str) -> Iterator[Named]:
    try:
        head = read_head(fs, path)
        listed = read_list(fs, path) if head.kind is Kind.BRANCH else []
    except DamagedBlock:
        return
    if head.kind is Kind.BRANCH:
        yield from ((item.queue, item.message_id) for item in listed if item != NOTHING)
    elif head.kind is not Kind.ENQUEUE or not path.startswith(ACTIVE):  # which is in no queue yet
        yield head.properties.queue, head.message_id


def stands_at(fs: FileSystem, directory: str, seqs: Iterable[int]) -> bool:
    """Whether a message of the directory has one of these numbers."""
    prefixes = {f"{seq:016x}." for seq in seqs}
    return fs.is_dir(directory) and any(name[:17] in prefixes for name in fs.list(directory))
