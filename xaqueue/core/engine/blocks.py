"""The blocks of a branch before they are prepared: made when the work is done, and given to the space's log."""

from __future__ import annotations

from operator import attrgetter

from xaqueue.core.engine.state import Busy, Space
from xaqueue.core.model.block import (
    NO_MESSAGE,
    NOTHING,
    UNLIMITED,
    Block,
    Kind,
    Listed,
    encode_with_checksum,
    pack_list,
)
from xaqueue.core.model.branch import Branch, State, Written
from xaqueue.core.model.layout import PREPARED
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.errors import DiskFull
from xaqueue.message import Properties


def add(space: Space, branch: Branch, written: Written, head: bytes, body: bytes = b"") -> None:
    """Adds a block that ends a branch: the reserve may be used for it. Raises what ``without_room`` says."""
    try:
        try:
            space.log.add(branch, written, head, body)
        except OSError as error:
            space.room.retry(error, lambda: space.log.add(branch, written, head, body))
    except OSError as error:
        raise without_room(space, branch, len(head) + len(body), error) from error


def without_room(space: Space, branch: Branch, size_bytes: int, error: OSError) -> Exception:
    """What is to be raised where a block was not added: DiskFull, and then the branch is doomed, or ResourceFailed."""
    if error.errno not in NO_ROOM:
        return space.fence(error)
    branch.rollback_reason = DiskFull(
        f"no room for a block of {size_bytes:,} bytes: {error.strerror}; "
        f"{space.fs.room().free_bytes:,} bytes are free. Branch {branch.xid} is rollback-only: roll it back"
    )
    return branch.rollback_reason


def spill(space: Space, branch: Branch) -> bool:
    """What this branch and all that are idle keep in memory is written while there is room: somebody else may take the
    rest, and what is under way is to find what it needs. Returns whether there was something. Called by a session that
    is at work in this branch. Raises OSError, ResourceFailed.
    """
    before = space.kept()
    space.log.spill(branch)
    with space.lock:
        others = [one for one in space.branches.values() if _is_kept(one)]
    for other in others:
        with space.lock:
            if space.branches.get(other.xid) is not other or not _is_kept(other):
                continue
            other.busy = True
        with Busy(space, other):
            space.log.spill(other)
    return space.kept() < before


def _is_kept(branch: Branch) -> bool:
    """Whether memory has blocks of it, and nobody is about to change them. Called with the lock held."""
    return (
        branch.base is State.ACTIVE
        and not (branch.busy or branch.working or branch.rollback_reason)
        and any(written.content is not None and not written.path for written in branch.blocks)
    )


def add_branch_block(space: Space, branch: Branch) -> None:
    """Adds the branch block, which lists all others. Raises as ``add`` does."""
    if branch.branch_block is not None:  # a commit in one phase found no room
        space.discard([branch.branch_block.path])
        branch.branch_block = None
    if space.log.hardens_names and space.was_here(branch.xid):  # its old blocks must not come back among these
        space.log.sync_names((PREPARED,))
    branch.blocks.sort(key=attrgetter("number"))
    block = Block(Kind.BRANCH, NO_MESSAGE, Properties(""), pack_list(list_of(branch)), space.epoch)
    head, checksum = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    written = Written(0, Kind.BRANCH, "", NO_MESSAGE, checksum)
    add(space, branch, written, head, block.body)
    branch.branch_block = written


def list_of(branch: Branch) -> list[Listed]:
    """What a branch block says: a row for each number, an empty one where a dequeue came to nothing."""
    rows = [NOTHING] * branch.blocks[-1].number
    said: dict[int, bytes] = {}
    for rider in branch.riders:
        said.update(rider.listed())
    for written in branch.blocks:
        key = said.get(written.number, b"")
        rows[written.number - 1] = Listed(written.kind, written.queue, written.message_id, written.checksum, key)
    return rows
