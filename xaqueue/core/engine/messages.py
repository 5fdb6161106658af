"""The blocks of a branch before they are prepared, given to the space's log: one for each message that it adds, which
the branch numbers, and those that end it, made when the work is done."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

from xaqueue.core.engine.state import Busy, Space
from xaqueue.core.model.block import (
    NO_MESSAGE,
    NOTHING,
    UNLIMITED,
    Block,
    Kind,
    Listed,
    before_time,
    encode_with_checksum,
    head_of,
    pack,
    pack_list,
    pack_properties,
)
from xaqueue.core.model.branch import Branch, Rider, State, Written
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.layout import PREPARED
from xaqueue.core.model.message_name import tags_of
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import DiskFull, DiskLow, InvalidArgument
from xaqueue.message import EnqueueOptions, MessageId, Properties, body_of, id_of, properties_of


class Terms(NamedTuple):
    """On which a message is added."""

    is_given: bool = False
    """Its id is an older one, which the queue may have already."""
    may_wait: bool = True
    """For room in the queue, where that is defined so, and for the directories, where they are far behind."""
    wanted: Properties | None = None
    """See ``Rider.added_locked``."""


PLAIN, _NAMED = Terms(), Terms(is_given=True)
_ENQUEUE = Kind.ENQUEUE


def enqueue(space: Space, branch: Branch, name: str, body: bytes, options: EnqueueOptions) -> MessageId:
    """Adds a message's block; see ``ResourceManager.enqueue``."""
    definitions = space.definitions
    if name not in definitions.known:
        definitions.find(name)
    if type(body) is not bytes:
        body = body_of(body)
    if not space.room.has(len(body)):
        check_room(space, branch, len(body))
    given = options.get("message_id") if options else None
    if options and (given is None or len(options) > 1):
        return _enqueue_with(space, branch, name, body, options)
    message_id = MessageId(fresh_id()) if given is None else id_of(given)
    packed = before_time(name) + pack(space.now_ns() // 1000)
    head, checksum = head_of(_ENQUEUE, message_id, packed, body, space.epoch, definitions.max_body_bytes)
    written = Written(0, _ENQUEUE, name, message_id, checksum, Entry(0, message_id))
    add(space, branch, written, (head, body), _NAMED if options else PLAIN)
    return message_id


def _enqueue_with(space: Space, branch: Branch, name: str, body: bytes, options: EnqueueOptions) -> MessageId:
    """A message that has properties of its own."""
    given = options.get("message_id")
    message_id = MessageId(fresh_id()) if given is None else id_of(given)
    properties = properties_of(name, space.now_ns() // 1000, options)
    packed, tags = pack_properties(properties), tags_of(properties)
    head, checksum = head_of(Kind.ENQUEUE, message_id, packed, body, space.epoch, space.definitions.max_body_bytes)
    there = space.features.admit(space, branch, name, message_id, properties)
    if there is not None:
        return there
    written = Written(0, Kind.ENQUEUE, name, message_id, checksum, Entry(0, message_id, tags))
    add(space, branch, written, (head, body), Terms(given is not None, wanted=properties))
    return message_id


def add(space: Space, branch: Branch, written: Written, content: tuple[bytes, bytes], terms: Terms) -> None:
    """Adds the block of a new message to the branch, which numbers it. content: its head and body.

    Raises InvalidArgument where the queue has a message of this id, QueueFull, and what ``without_room`` says.
    """
    name, message_id = written.queue, written.message_id
    head, body = content
    try:
        with space.lock:
            if name not in space.definitions.known:
                space.definitions.find(name)  # raises where it was undefined since the caller has looked
            queue = space.queues.get(name) or space.queue(name)
            if queue.room is not None or terms is not PLAIN:
                _admit_locked(space, branch, queue, written, len(head) + len(body), terms)
            branch.numbers = written.number = branch.numbers + 1
            queue.pending.add(message_id)
        space.log.add(branch, written, head, body, may_wait=terms.may_wait)
        branch.blocks.append(written)
        if branch.riders:
            with space.lock:
                for rider in branch.riders:
                    rider.added_locked(space, branch, written, terms.wanted)
    except BaseException as error:
        take_back(space, branch, written, content, error)
        raise


def take_back(
    space: Space, branch: Branch, written: Written, content: tuple[bytes, bytes], error: BaseException
) -> None:
    """Of a block that was not added, for this error, nothing is left. Raises what ``without_room`` says."""
    if not written.number:  # nothing was done
        return
    with space.lock:
        for message_id in written.ids:
            space.queue(written.queue).withdraw(message_id)
        if written in branch.blocks:
            branch.blocks.remove(written)
    if isinstance(error, OSError):
        raise without_room(space, branch, sum(map(len, content)), error) from error
    if written.path:  # interrupted: a later branch of its name may have a block of this number
        space.discard([written.path])


def _admit_locked(space: Space, branch: Branch, queue: Queue, written: Written, size_bytes: int, terms: Terms) -> None:
    """There is room in the queue, and it has no message of this id. Raises as ``add``."""
    message_id, room = written.message_id, queue.room
    if room is not None:
        room.admit(space, branch, queue, size_bytes, may_wait=terms.may_wait)
    if terms.is_given and (message_id in queue.pending or message_id in queue.index):
        raise there_is(queue, message_id)
    if queue.room is not None:  # by now
        queue.room.hold(message_id, size_bytes)
    if terms.is_given:
        reuses_locked(space, branch)


def reuses_locked(space: Space, branch: Branch) -> None:
    """Ids that it adds may be those of earlier messages."""
    if space.log.hardens_names and REUSED not in branch.riders:
        branch.riders = (*branch.riders, REUSED)


def there_is(queue: Queue, message_id: MessageId) -> InvalidArgument:
    return InvalidArgument(f"message {message_id.hex()} is in queue {queue.name} already: ids are unique")


class _Reused(Rider):
    """An id that a caller chose may be one of a message that was consumed. Before a commit in one phase, whose messages
    no block in prepared/ has held: else the dequeue of that earlier life could come back, and lock this one. Where
    names are the record only."""

    def stage(self, space: Space, branch: Branch, together: dict[Any, Any]) -> None:
        if branch.base is State.ACTIVE:
            space.log.sync_names((PREPARED,))


REUSED = _Reused()


def check_room(space: Space, branch: Branch, size_bytes: int) -> None:
    with space.fencing():
        try:
            space.room.check(space.definitions, space.log, branch, size_bytes)
        except DiskLow:
            if not write_early(space, branch):
                raise
            space.room.check(space.definitions, space.log, branch, size_bytes)  # by what the disk says now


# Blocks that end a branch


def add_last(space: Space, branch: Branch, written: Written, head: bytes, body: bytes = b"") -> None:
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


def write_early(space: Space, branch: Branch) -> bool:
    """What this branch and all that are idle keep in memory is written while there is room: somebody else may take the
    rest, and what is under way is to find what it needs. Returns whether there was something. Called by a session that
    is at work in this branch. Raises OSError, ResourceFailed.
    """
    before = space.kept()
    space.log.write_early(branch)
    with space.lock:
        others = [one for one in space.branches.values() if _is_kept(one)]
    for other in others:
        with space.lock:
            if space.branches.get(other.xid) is not other or not _is_kept(other):
                continue
            other.busy = True
        with Busy(space, other):
            space.log.write_early(other)
    return space.kept() < before


def _is_kept(branch: Branch) -> bool:
    """Whether memory has blocks of it, and nobody is about to change them. Called with the lock held."""
    return (
        branch.base is State.ACTIVE
        and not (branch.busy or branch.working or branch.rollback_reason)
        and any(written.content is not None and not written.path for written in branch.blocks)
    )


def add_branch_block(space: Space, branch: Branch) -> None:
    """Adds the branch block, which lists all others. Raises as ``add_last`` does."""
    if branch.branch_block is not None:  # a commit in one phase found no room
        space.discard([branch.branch_block.path])
        branch.branch_block = None
    if space.log.hardens_names and space.was_here(branch.xid):  # its old blocks must not come back among these
        space.log.sync_names((PREPARED,))
    branch.blocks.sort(key=attrgetter("number"))
    block = Block(Kind.BRANCH, NO_MESSAGE, Properties(""), pack_list(list_of(branch)), space.epoch)
    head, checksum = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    written = Written(0, Kind.BRANCH, "", NO_MESSAGE, checksum)
    add_last(space, branch, written, head, block.body)
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
