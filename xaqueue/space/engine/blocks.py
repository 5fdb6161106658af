"""The blocks of a branch as files in active/: written at once, and made durable before a step needs them.

A journal records small branches whole, so that their files need no sync. A branch that is too large for a record is
made durable by its files, as without a journal, and its record says only that they have moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from xaqueue.errors import DiskFull
from xaqueue.message import MessageId, Properties
from xaqueue.space.model.block import UNLIMITED, Block, Kind, Listed, encode_with_checksum, pack_list
from xaqueue.space.model.branch import Branch, Written
from xaqueue.space.model.layout import ACTIVE, FIRST, PREPARED, block_path
from xaqueue.storage.fs import NO_ROOM
from xaqueue.storage.group_commit import touched

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

NO_MESSAGE = MessageId(bytes(16))
NOTHING = Listed(Kind.BRANCH, "", NO_MESSAGE, 0)
_PER_BLOCK_BYTES = 1024
"""More than a record holds of a block beside its message."""
_SURE_BYTES = 256 * 1024
"""A record of this size finds room in a journal on a full disk."""
KEPT_BYTES = 1024 * 1024
"""How much of its blocks a branch keeps in memory for its record, at most; the rest is read again."""

Content = tuple[bytes, bytes]
"""Head and body of a block."""


def write(space: Space, branch: Branch, chunks: Sequence[bytes], suffix: str, *, spare: bool = False) -> None:
    """Writes a block's bytes into active/. Raises DiskFull, and dooms the branch, where there is no room.

    spare: the reserve may be used.
    """
    path = block_path(ACTIVE, branch.name, suffix)
    try:
        if spare:
            space.room.create(space.fs.create, path, chunks)
        else:
            space.fs.create(path, chunks)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise space.fence(error) from error
        branch.doom = DiskFull(
            f"no room for a block of {sum(map(len, chunks)):,} bytes: {error.strerror}; {space.fs.room().free_bytes:,} "
            f"bytes are free. Branch {branch.xid} is rollback-only: roll it back"
        )
        raise branch.doom from error


def write_dequeue(space: Space, branch: Branch, written: Written, *, spare: bool = False) -> None:
    """Writes the block that names the message to remove. Raises as ``write`` does."""
    block = Block(Kind.DEQUEUE, written.message_id, _properties_of(written.queue), epoch=space.epoch)
    head, written.checksum = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    write(space, branch, [head], written.suffix, spare=spare)
    if space.register is not None and written.entry is not None:
        try:
            space.register.add(written.queue, written.entry)
        except OSError as error:
            raise space.fence(error) from error
    keep(branch, written, head, b"")
    written.on_disk = True


def keep(branch: Branch, written: Written, head: bytes, body: bytes) -> None:
    """Holds the content in memory, as long as its branch is small."""
    size = len(head) + len(body)
    if branch.kept_bytes + size <= KEPT_BYTES:
        branch.kept_bytes += size
        written.content = head, body


def content_of(space: Space, branch: Branch, written: Written) -> Content:
    """What the block's file in active/ holds."""
    return written.content or (space.fs.read(block_path(ACTIVE, branch.name, written.suffix)), b"")


def write_pending(space: Space, branch: Branch) -> None:
    """Writes the dequeue blocks for which there was no room when they were dequeued."""
    for written in branch.blocks:
        if not written.on_disk:
            write_dequeue(space, branch, written, spare=True)


@lru_cache(maxsize=1024)
def _properties_of(queue: str) -> Properties:
    return Properties(queue)


def write_list(space: Space, branch: Branch) -> None:
    """Writes the branch block, which lists all others. Raises as ``write`` does."""
    if branch.listed:  # a commit in one phase found no room
        space.fs.unlink(block_path(ACTIVE, branch.name, FIRST))
        branch.listed = False
    if space.barrier.journal is None and space.was_here(branch.xid):  # its old blocks must not come back among these
        space.barrier.perform(lambda: touched((PREPARED,)))
    branch.blocks.sort(key=lambda written: written.number)
    block = Block(Kind.BRANCH, NO_MESSAGE, Properties(""), pack_list(list_of(branch)), space.epoch)
    head, _ = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    write(space, branch, [head, block.body], FIRST, spare=True)
    branch.listed, branch.list_content = True, (head, block.body)


def harden_content(space: Space, branch: Branch) -> None:
    """Content before name: every block of the branch, its branch block too, is on disk."""
    if not space.hardening.content:
        return
    suffixes = [written.suffix for written in branch.blocks]
    if branch.listed:
        suffixes.append(FIRST)
    space.barrier.harden_content([block_path(ACTIVE, branch.name, suffix) for suffix in suffixes])


def harden_names(space: Space) -> None:
    """What stands in active/ is found there after a crash; and, for a journal, everything that was done before."""
    if space.barrier.journal is None:
        space.barrier.perform(lambda: touched((ACTIVE,)))
    else:
        space.sync_all()


def is_recorded_whole(space: Space, branch: Branch) -> bool:
    """Whether the journal takes the blocks themselves into a record."""
    if space.barrier.journal is None:
        return False
    size = sum(_PER_BLOCK_BYTES + written.size_bytes for written in branch.blocks)
    if size > _SURE_BYTES and space.fs.room().free_bytes < 2 * size:
        return False
    return space.barrier.journal.fits(size)


def list_of(branch: Branch) -> list[Listed]:
    """What a branch block says: a row for each number, an empty one where a dequeue came to nothing."""
    rows = [NOTHING] * branch.blocks[-1].number
    for written in branch.blocks:
        rows[written.number - 1] = Listed(written.kind, written.queue, written.message_id, written.checksum)
    return rows
