"""A dequeue that was rolled back is counted in the message itself, so that a poisoned message shows after a restart.

Of those that a killed process had begun tell their blocks in active/, and with a journal ``register``.
The message file is written anew beside it and renamed over it: any crash leaves the old file or the new one. A try
that is not counted for want of room is only a try not counted, and one whose block a power loss brings back is counted
twice; the message is safe either way.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.space.model import layout
from xaqueue.space.model.block import UNLIMITED, decode, encode_with_checksum
from xaqueue.space.model.block_files import read_block
from xaqueue.space.model.branch import Branch
from xaqueue.space.model.index import Entry
from xaqueue.space.model.layout import ACTIVE, block_path, numbered
from xaqueue.storage.fs import NO_ROOM
from xaqueue.storage.regular import DAMAGE

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space


def count(space: Space, branch: Branch, held: Sequence[tuple[str, Entry]]) -> None:
    """One more try of each locked message (queue, entry), in memory and in its file. Raises ResourceFailed."""
    if not held:
        return
    try:
        anew = [pair for queue, entry in held if (pair := _write_anew(space, branch, queue, entry))]
        try:
            space.barrier.harden_content([source for source, _ in anew])
            space.range_images.void(space, held)
        except RetryLater:
            for source, _ in anew:
                space.fs.unlink(source)
            return
        for source, path in anew:
            space.fs.set_modified_ns(source, space.fs.modified_ns(path))
            space.fs.rename(source, path)
    except OSError as error:
        raise space.fence(error) from error


def _write_anew(space: Space, branch: Branch, queue: str, entry: Entry) -> tuple[str, str] | None:
    entry.tries += 1
    path = layout.message_path(queue, entry.seq, entry.message_id)
    try:
        block = decode(read_block(space.fs, path))
        entry.tries = max(entry.tries, block.properties.tries + 1)  # memory has it of an image, which a copy may mix
    except DamagedBlock:
        return None  # the next dequeue finds it so, and says so
    except OSError as error:
        if error.errno in NO_ROOM or error.errno == errno.ENOENT or error.errno in DAMAGE:
            return None
        raise
    counted = replace(block, properties=replace(block.properties, tries=entry.tries))
    head, _ = encode_with_checksum(counted, body_limit_bytes=UNLIMITED)
    source = _free_path(space, branch)
    try:
        space.fs.create(source, [head, block.body] if block.body else [head])
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return None
    entry.size_bytes = len(head) + len(block.body)
    return source, path


def _free_path(space: Space, branch: Branch) -> str:
    """A name in active/ that no block has: of a branch found in doubt, a power loss may have brought one back."""
    while True:
        branch.numbers += 1
        path = block_path(ACTIVE, branch.name, numbered(branch.numbers))
        if not space.fs.exists(path):
            return path
