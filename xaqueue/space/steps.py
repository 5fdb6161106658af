"""The durable steps of a branch, in the order that the crash rules ask for. Each returns once it is hardened.

    prepare    content of every block -> rename into prepared/, .000 last -> sync prepared/, active/
    commit     one block: rename into committed/ (or unlink of the message) is the commit point
               several: .000 becomes .commit, sync prepared/: that is the commit point; then the moves, their
               syncs, and .commit goes. A crash in between is rolled forward.
    rollback   of a prepared branch: .000 goes first, which un-prepares it; sync prepared/

One-phase commit does the same from active/, where what was not committed is rolled back at start, so its blocks
need not pass through prepared/. Several blocks need their names hardened in active/ first: without it a crash could
keep the .commit and lose a block that it lists.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from xaqueue.branch import Branch, State, Written
from xaqueue.command import UNLIMITED, Block, Kind, Listed, encode_with_checksum, pack_list
from xaqueue.errors import DiskFull, RetryLater
from xaqueue.index import Entry
from xaqueue.message import MessageId, Properties
from xaqueue.space import layout, quarantine, tries
from xaqueue.space.layout import ACTIVE, COMMIT, FIRST, PREPARED, QUARANTINE, block_path
from xaqueue.space.queue import Queue, Touched
from xaqueue.storage.fs import NO_ROOM
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.space.space import Space

NO_MESSAGE = MessageId(bytes(16))


NOTHING = Listed(Kind.BRANCH, "", NO_MESSAGE, 0)

Moved = tuple[Queue, Entry]
Place = tuple[Written, Queue, int]


def write(space: Space, branch: Branch, chunks: Sequence[bytes], suffix: str) -> None:
    """Writes a block's bytes into active/. Raises DiskFull, and dooms the branch, where there is no room."""
    try:
        space.fs.create(block_path(ACTIVE, branch.name, suffix), chunks)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise space.fence(error) from error
        branch.doom = DiskFull(
            f"no room for a block of {sum(map(len, chunks)):,} bytes: {error.strerror}; {space.fs.free_bytes():,} "
            f"bytes are free. Branch {branch.xid} is rollback-only: roll it back"
        )
        raise branch.doom from error


def write_block(space: Space, branch: Branch, block: Block, suffix: str) -> int:
    """Encodes and writes a block; returns its checksum. Raises as ``write`` does."""
    head, checksum = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    write(space, branch, [head, block.body] if block.body else [head], suffix)
    return checksum


def write_pending(space: Space, branch: Branch) -> None:
    """Writes the dequeue blocks for which there was no room when they were dequeued."""
    for written in branch.blocks:
        if not written.on_disk:
            written.checksum = write_block(space, branch, dequeue_block(space, written), written.suffix)
            written.on_disk = True


def dequeue_block(space: Space, written: Written) -> Block:
    """The block that names the message to remove."""
    return Block(Kind.DEQUEUE, written.message_id, _properties_of(written.queue), epoch=space.epoch)


@lru_cache(maxsize=1024)
def _properties_of(queue: str) -> Properties:
    return Properties(queue)


def prepare(space: Space, branch: Branch) -> None:
    """After it, nothing but commit, rollback or an operator's decision removes the branch."""
    name = branch.name
    harden_blocks(space, branch)
    with space.step():
        suffixes = [(written.suffix, written.suffix) for written in branch.blocks]
        suffixes = [*suffixes, (FIRST, FIRST)] if branch.listed else [(suffixes[0][0], FIRST)]
        try:
            _move(space, [(block_path(ACTIVE, name, a), block_path(PREPARED, name, b)) for a, b in suffixes])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            branch.doom = DiskFull(f"no room in {PREPARED}/: {error.strerror}. Branch {branch.xid} is rolled back")
            raise branch.doom from error
        if not branch.listed:
            branch.blocks[0].suffix = FIRST
        branch.prepared_at = space.now_us()
        ticket = space.barrier.submit(targets=(PREPARED,), sources=(ACTIVE,))
    space.barrier.wait(ticket)


def harden_blocks(space: Space, branch: Branch) -> None:
    """Content before name: all blocks of the branch, with its branch block where they are several, are on disk."""
    write_pending(space, branch)
    if len(branch.blocks) == 1:
        space.barrier.harden_content((block_path(ACTIVE, branch.name, branch.blocks[0].suffix),))
        return
    if branch.listed:  # a commit in one phase found no room
        space.fs.unlink(block_path(ACTIVE, branch.name, FIRST))
        branch.listed = False
    branch.blocks.sort(key=lambda written: written.number)
    block = Block(Kind.BRANCH, NO_MESSAGE, Properties(""), pack_list(list_of(branch)), space.epoch)
    write_block(space, branch, block, FIRST)
    branch.listed = True
    suffixes = [*(written.suffix for written in branch.blocks), FIRST]
    space.barrier.harden_content([block_path(ACTIVE, branch.name, suffix) for suffix in suffixes])


def list_of(branch: Branch) -> list[Listed]:
    """What a branch block says: a row for each number, an empty one where a dequeue came to nothing."""
    rows = [NOTHING] * branch.blocks[-1].number
    for written in branch.blocks:
        rows[written.number - 1] = Listed(written.kind, written.queue, written.message_id, written.checksum)
    return rows


def commit_one_phase(space: Space, branch: Branch) -> None:
    """Commits a branch that was never prepared. Called again after RetryLater, it goes on where it was."""
    if branch.committing:
        commit(space, branch, ACTIVE)
        return
    if len(branch.blocks) > 1:
        harden_blocks(space, branch)
        with space.step():
            ticket = space.barrier.submit(targets=(ACTIVE,))
        space.barrier.wait(ticket)
    elif branch.blocks[0].kind is Kind.ENQUEUE:
        harden_blocks(space, branch)
    commit(space, branch, ACTIVE)


def commit(space: Space, branch: Branch, directory: str = PREPARED) -> None:
    """Commits a branch whose blocks stand in ``directory``. RetryLater: nothing was lost, commit again later."""
    name = branch.name
    if branch.listed and not branch.committing:
        with space.step():
            _hold(space, branch)
            try:
                space.fs.rename(block_path(directory, name, FIRST), block_path(PREPARED, name, COMMIT))
            except OSError as error:
                raise _later(branch, error) from error
            branch.committing = True
            ticket = space.barrier.submit(targets=(PREPARED,), sources={directory} - {PREPARED})
        space.barrier.wait(ticket)
    sources = {written.number: block_path(directory, name, written.suffix) for written in branch.blocks}
    complete(space, branch, sources)
    space.finish(branch, Outcome.COMMITTED)


def complete(space: Space, branch: Branch, sources: Mapping[int, str]) -> None:
    """What follows the commit point: messages enter or leave committed/, and then the branch's files go.

    ``sources``: where each block stands, by its number. Run again after a crash, it does what is left to do.
    """
    arrivals = [written for written in branch.blocks if written.kind is Kind.ENQUEUE]
    removals = [written for written in branch.blocks if written.kind is Kind.DEQUEUE]
    with space.step():
        touched = Touched()
        places = _allocate(space, branch, arrivals, removals, touched)
        arrived = _move_in(space, branch, places, sources)
        consumed = _move_out(space, removals)
        emptied = dict.fromkeys(sources[written.number].partition("/")[0] for written in arrivals)
        if any(written.given for written in arrivals):
            emptied[PREPARED] = None  # no .commit of an earlier life of this id may come back and remove it
        ticket = space.barrier.submit(
            files=touched.files,
            targets=touched.targets,
            sources=emptied,
            publish=partial(space.publish, arrived, consumed),
        )
    space.barrier.wait(ticket)
    for written in removals:
        if written.on_disk:
            _remove(space, sources[written.number])
    if branch.listed:
        _remove(space, block_path(PREPARED, branch.name, COMMIT))


def _remove(space: Space, path: str) -> None:
    """Unlinks what may be gone already: this step may be the second try after a crash."""
    try:
        space.fs.unlink(path)
    except FileNotFoundError:
        return


def _allocate(
    space: Space, branch: Branch, arrivals: Sequence[Written], removals: Sequence[Written], touched: Touched
) -> list[Place]:
    """Numbers for what arrives, and all that the syncs will need. RetryLater before anything has moved."""
    try:
        places = []
        for written in arrivals:
            queue = space.queue(written.queue)
            again = written.entry.seq if written.entry is not None else 0
            places.append((written, queue, queue.allocate(space.fs, touched, again)))
        for written in removals:
            if written.entry is not None:
                touched.targets[layout.range_path(written.queue, written.entry.seq)] = None
        if space.hardening.directories:
            for path in touched.targets:
                space.fs.hold_dir(path)
    except OSError as error:
        raise _later(branch, error) from error
    return places


def _move_in(space: Space, branch: Branch, places: Sequence[Place], sources: Mapping[int, str]) -> list[Moved]:
    when_ns = space.commit_time_us() * 1000
    arrived: list[Moved] = []
    moves = [(sources[w.number], layout.message_path(queue.name, seq, w.message_id)) for w, queue, seq in places]
    try:
        for source, _ in moves:
            space.fs.set_modified_ns(source, when_ns)
        _move(space, moves)
    except OSError as error:
        raise _later(branch, error) from error
    for written, queue, seq in places:
        assert written.entry is not None
        written.entry.seq = seq
        queue.occupy(seq)
        arrived.append((queue, written.entry))
    return arrived


def _move(space: Space, moves: Sequence[tuple[str, str]]) -> None:
    """All of these renames, or none: a directory that must grow on a full disk does not."""
    done: list[tuple[str, str]] = []
    try:
        for source, target in moves:
            space.fs.rename(source, target)
            done.append((target, source))
    except OSError:
        for target, source in reversed(done):  # where it stood a moment ago there is room
            try:
                space.fs.rename(target, source)
            except OSError as stuck:  # half moved: never "no room, try again"
                raise OSError(errno.EIO, f"cannot be moved back: {stuck.strerror}", target) from stuck
        raise


def _move_out(space: Space, removals: Sequence[Written]) -> list[Moved]:
    consumed: list[Moved] = []
    for written in removals:
        if written.entry is not None:
            _remove(space, layout.message_path(written.queue, written.entry.seq, written.message_id))
            consumed.append((space.queue(written.queue), written.entry))
    return consumed


def _hold(space: Space, branch: Branch) -> None:
    """What a commit may lack, it lacks before its commit point."""
    try:
        for written in branch.blocks:
            if written.kind is Kind.ENQUEUE:
                space.queue(written.queue).hold(space.fs)
    except OSError as error:
        raise _later(branch, error) from error


def _later(branch: Branch, error: OSError) -> Exception:
    if error.errno not in NO_ROOM:
        return error
    return RetryLater(f"commit of branch {branch.xid} found no room ({error.strerror}): free some and commit again")


def rollback(space: Space, branch: Branch) -> None:
    """Undoes a branch; its dequeued messages are back where they were, with one more try."""
    name = branch.name
    prepared = branch.base is State.PREPARED
    directory = PREPARED if prepared else ACTIVE
    suffixes = [FIRST] if prepared or len(branch.blocks) > 1 else []
    suffixes += [written.suffix for written in branch.blocks if written.on_disk and written.suffix != FIRST]
    with space.step():
        for suffix in suffixes:
            _remove(space, block_path(directory, name, suffix))
        ticket = space.barrier.submit(sources=(PREPARED,) if prepared else ())
    space.barrier.wait(ticket)
    release(space, branch)
    if branch.damage:
        resolve_damage(space, branch.xid)
    space.finish(branch, Outcome.ROLLED_BACK)


def resolve_damage(space: Space, xid: Xid) -> None:
    """What quarantine has of a branch that is decided now holds it in doubt no longer."""
    with space.step():
        quarantine.resolve(space.fs, xid)
        ticket = space.barrier.submit(targets=(QUARANTINE,))
    space.barrier.wait(ticket)


def release(space: Space, branch: Branch) -> None:
    """Counts a try of every message that the branch held and gives it back; forgets what it had added."""
    tries.count(space, branch, [(w.queue, w.entry) for w in branch.blocks if w.kind is Kind.DEQUEUE and w.entry])
    with space.lock:
        for written in branch.blocks:
            queue = space.queue(written.queue)
            if written.kind is Kind.ENQUEUE:
                queue.pending.discard(written.message_id)
            elif written.entry is not None:
                queue.index.release(written.entry)
                queue.arrived.notify_all()  # the first who waits may wait for another id
