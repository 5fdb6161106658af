"""Blocks of many messages: how they come, how they are read, and how messages leave them.

A message leaves a block by its bit in the block's bitmap, which is always written whole. With a journal the bits of a
step are set in its plan, with the space's lock held, so that each step says what those before it have said; one that
fails takes its bits back (``Change.take_back``) before the next is planned. Without one they are set where the step is
carried out (``DirectoryLog``). Where none is left the block goes, then its bitmap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from xaqueue.core.engine import quarantine
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import block_files, layout
from xaqueue.core.model.block import (
    CHECKSUM_OFFSET,
    HEAD_CRC,
    HOLLOW,
    PREFIX_BYTES,
    Kind,
    check_message,
    decode,
    head_of,
    pack,
    split_message,
)
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.change import DROP, MOVE, PUT, Change, CoreStep, Op
from xaqueue.core.model.entry import Entry, MessageBlock, Run
from xaqueue.core.model.message_block import MOST_BYTES, Table, check_block, decode_table, encode_gone
from xaqueue.core.model.message_name import Named
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import discard
from xaqueue.errors import DamagedBlock

KEPT = 8
"""Blocks of a space, of 1 MiB at most, that stay in memory because somebody has just read them."""


def number(queue: Queue, run: Run, arrivals: list[tuple[str, int]]) -> str:
    """Gives its messages their numbers, which are new arrivals; or they have kept theirs. Returns its path."""
    count, name = len(run.ids), queue.name
    run.seq = seq = queue.keep_number(run.seq, count) if run.seq else queue.allocate_many(count)
    arrivals += [(name, seq), (name, seq + count - 1)]
    run.block = block = queue.block(Named(seq, seq + count - 1, run.message_id))
    return block.path


def takes(queue: Queue, entry: Entry, taken: dict[MessageBlock, int]) -> bool:
    """Whether the message lies in a block: then its bit is added to what is taken of that."""
    block = entry.block or queue.block_of(entry.seq)
    if block is not None:
        taken[block] = taken.get(block, 0) | block.bits(entry)
    return block is not None


def expand(space: Space, branch: Branch) -> None:
    """What it has taken together it has taken one by one from here on: whoever undoes it sees it so, or a part."""
    with space.lock:
        for written in [*branch.blocks]:
            run = written.entry
            if type(run) is Run and written.kind is Kind.DEQUEUE:
                name, at = written.queue, branch.blocks.index(written)
                singles = [
                    Written(number, Kind.DEQUEUE, name, entry.message_id, 0, entry)
                    for number, entry in enumerate(space.queues[name].index.expand(run), branch.numbers + 1)
                ]
                singles[0].path = written.path  # the file of all, where there is one
                branch.numbers += len(singles)
                branch.blocks[at : at + 1], written.path = singles, ""  # no interrupt comes between


def publish(space: Space, queue: Queue, run: Run, kind: Kind) -> None:
    """Its messages are visible, or gone. Called with the lock held."""
    if kind is Kind.DEQUEUE:
        queue.dequeued += len(run.ids)
        if queue.consumed_run(run):
            space.wakes.consumed.wake()
        return
    assert run.block is not None
    queue.add_block(run.block)
    ids, seqs = run.ids, range(run.seq, run.seq + len(run.ids))
    for seq, entry in zip(seqs, run.entries, strict=False):
        entry.seq = seq
        queue.index.add(entry)
    if not run.entries:
        queue.index.add_plain(seqs, ids)
    queue.pending.difference_update(ids)
    queue.enqueued += len(ids)
    queue.shown = max(queue.shown, seqs[-1])
    space.log.changed_queues[queue.name] = queue


class _Opened(list[MessageBlock]):
    """The blocks of a space that were read last, or are gone since then."""


def opened(space: Space, block: MessageBlock, *, may_wait: bool = True) -> tuple[Table, bytes]:
    """Its table and all of it. Raises DamagedBlock, OSError."""
    if (found := block.opened) is not None:
        return found
    data = space.log.read(block.path, may_wait=may_wait, at_once=MOST_BYTES)
    try:
        table = decode_table(data)
    except DamagedBlock:
        table, data = block_files.read_messages(space.fs, block.queue, block.named)  # by the copy of its table
    check_block(table, block.queue, block.named)
    kept = space.memory_of(_Opened)
    kept.append(block)
    if len(kept) > KEPT:
        kept.pop(0).opened = None
    block.opened = found = table, data
    return found


def content(space: Space, queue: Queue, entry: Entry, *, may_wait: bool = True) -> tuple[bytes, bytes]:
    """Packed properties and body of a message, wherever that lies. Raises DamagedBlock, OSError."""
    block = queue.block_of(entry.seq) if queue.blocks else None
    if block is None:
        entry.path = path = layout.message_path(queue.name, entry.seq, entry.message_id, entry.tags)
        data = space.log.read(path, may_wait=may_wait)
        found, packed, body = split_message(data)
        if found != entry.message_id:
            check_message(decode(data), queue.name, entry.message_id)
        return packed, body
    table, data = block.opened or opened(space, block, may_wait=may_wait)
    entry.block, index = block, entry.seq - block.named.first
    return _packed(table, index) if table.own else table.packed, table.body(data, index)


def _packed(table: Table, index: int) -> bytes:
    return pack(table.stored(index)) if index in table.own else table.packed


def set_aside(space: Space, queue: Queue, entry: Entry, reason: str, *, is_whole: bool = False) -> bool:
    """Whether the message lies in a block whose table can be read: then what there is of it is copied to quarantine,
    and it leaves. RetryLater without room, and nothing was done; ResourceFailed."""
    block = queue.block_of(entry.seq)
    try:
        if block is None:
            return False
        table, data = opened(space, block)
    except (DamagedBlock, OSError):
        return False
    index = entry.seq - block.named.first
    path = layout.message_path(queue.name, entry.seq, entry.message_id, table.tags_of(index))
    body = data[table.offsets[index] : table.offsets[index + 1]]
    head, checksum = head_of(Kind.ENQUEUE, entry.message_id, _packed(table, index), body, table.epoch)
    if not is_whole:
        head = b"".join((head[:CHECKSUM_OFFSET], HEAD_CRC.pack(checksum ^ HOLLOW), head[PREFIX_BYTES:]))
    aside = layout.staged_path(path)
    with space.fencing(f"to set message {entry.message_id.hex()} aside", f"it is damaged: {reason}"):
        discard(space.fs, aside)
        space.fs.create(aside, [head, body])
        space.log.sync_contents([aside])
        quarantine.move(space.fs, aside, reason, space.now_us(), stood=path)
    space.log.sync_names((layout.QUARANTINE,))
    space.log.perform(partial(removal, space, queue, [entry]))
    space.report.quarantined.append(f"{path}: {reason}")
    log.error("[quarantined] message %s of %s: %s", entry.message_id.hex(), block.path, reason)
    return True


def removal(space: Space, queue: Queue, entries: Sequence[Entry]) -> Change:
    """The plan of a step in which these messages leave, and nobody gets them."""
    ops, rest, taken = list[Op](), list[Op](), dict[MessageBlock, int]()
    for entry in entries:
        if not (queue.blocks and takes(queue, entry, taken)):
            rest.append((DROP, queue.path_of(entry)))
        if entry.retry is not None:
            rest.append((DROP, layout.retry_path(queue.name, entry.seq, entry.message_id)))
    leave(space, taken, ops, rest)
    return Change(CoreStep.EXPIRY, queue.name, ops, rest=rest, taken=taken)


def leave(space: Space, taken: Mapping[MessageBlock, int], ops: list[Op], rest: list[Op]) -> None:
    """Messages with these bits leave their blocks in a step that is being planned: adds what it does, and its rest.
    Where the files are the record the log does that, once the step is decided."""
    for block, bits in taken.items() if space.log.is_atomic else ():
        block.gone |= bits
        if block.gone.bit_count() == block.count:
            kept = space.queues[block.queue].kept(block.path)
            ops.append((MOVE, block.path, kept, 0) if kept else (DROP, block.path))
            rest.append((DROP, block.gone_path))
        else:
            ops.append((PUT, block.gone_path, *encode_gone(block.queue, block.named, block.gone, space.epoch), 0))
