"""Message files become Arrow batches: 2,000 rows or 4 MiB, whichever comes first, and no block is shared out among two.

Every bit is checked; damage is reported by the name of the file, and nothing damaged is ever passed over. A block of
many messages is read once, cut by number, and its columns are Arrow's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from xaqueue.core.model.block import split_message, stored_in
from xaqueue.core.model.layout import messages_path, range_path
from xaqueue.core.model.message_block import check_block
from xaqueue.core.model.message_name import ID_DIGITS, parse_any
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.message_files import whole_table
from xaqueue.lake.columns import Columns, Rows, of_buffers
from xaqueue.offline.spans import Found

BATCH_ROWS = 2_000
BATCH_BYTES = 4 * 1024 * 1024
LARGE_BYTES = 1024 * 1024


def record_batches(found: Iterator[Found], empty: Rows, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Batches in the order of the messages; ``empty``: of their queue. Raises DamagedBlock and not its batch."""
    rows, size_bytes, tries, unpacks = _fresh(empty), 0, empty.tries, columns.unpacks
    for seq, name, time_ns, data, unwanted in found:
        if unwanted is not None:
            size_bytes += _add_block(rows, (name, data, unwanted), time_ns, unpacks=unpacks)
        else:
            try:
                message_id, packed, body = split_message(data)
                if message_id.hex() != name[ID_DIGITS]:
                    raise DamagedBlock(f"holds message {message_id.hex()}: renamed or copied by hand")  # noqa: TRY301
                if unpacks:
                    stored = stored_in(packed)
                    if seq in tries:
                        stored["tries"] = tries[seq]
                    rows.stored.append(stored)
            except DamagedBlock as damage:
                raise _named(empty, f"{range_path(empty.queue, seq)}/{name}", damage) from None
            rows.seqs.append(seq)
            rows.times_ns.append(time_ns)
            size_bytes += len(data)
            if len(data) < LARGE_BYTES:
                rows.ids.append(message_id)
                rows.bodies.append(body)
            else:  # it is not copied: its column is where it was read
                begin = len(data) - len(body)
                del body
                bodies = of_buffers(pa.binary(), 1, array("i", [begin, len(data)]), data)
                rows.together.append((len(rows.ids), {"ids": pa.array([message_id]), "bodies": bodies}))
                del bodies, data
        if len(rows.seqs) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
            yield columns.batch(rows)
            rows, size_bytes = _fresh(empty), 0
    if rows.seqs:
        yield columns.batch(rows)


def _named(rows: Rows, path: str, damage: DamagedBlock) -> DamagedBlock:
    way = f"`xaqueue check {rows.queue} --repair --space {rows.space}` sets aside what is damaged"
    return DamagedBlock(f"{Path(rows.space) / path}: {damage}. {way}")


def _add_block(rows: Rows, read: tuple[str, bytes, bytes], time_ns: int, *, unpacks: bool) -> int:
    """Every bit of these messages is checked, and ids and bodies are columns as they lie in the block; returns their
    bytes. Raises DamagedBlock."""
    name, data, unwanted = read
    named = parse_any(name)
    if named is None:
        raise DamagedBlock(f"{name} of queue {rows.queue} in {rows.space} is no name of a block")
    try:
        table = whole_table(data)
        check_block(table, rows.queue, named)
        if not (left := table.left(int.from_bytes(unwanted, "little"))):
            return 0
        view, offsets = memoryview(data), table.offsets
        checksums = [crc32(view[offsets[index] : offsets[index + 1]]) for index in left]
        if checksums != [table.checksums[index] for index in left]:
            for index in left:
                table.body(data, index)  # says which it is
        shared = stored_in(table.packed) if unpacks else {}
    except DamagedBlock as damage:
        raise _named(rows, messages_path(rows.queue, named), damage) from None
    count, first = table.count, left[0]
    ids = of_buffers(pa.binary(), count, array("i", range(0, 16 * count + 1, 16)), table.ids)
    found = {"ids": ids, "bodies": of_buffers(pa.binary(), count, array("i", offsets), data)}
    if left[-1] - first < len(left):
        found = {name: column.slice(first, len(left)) for name, column in found.items()}
    else:
        found = {name: column.take(pa.array(left)) for name, column in found.items()}
    rows.together.append((len(rows.ids), found))
    seqs = [named.first + index for index in left]
    rows.seqs.extend(seqs)
    if unpacks and (table.own or not rows.tries.keys().isdisjoint(seqs)):
        for index, seq in zip(left, seqs, strict=True):
            stored = shared | table.own[index][1] if index in table.own else shared
            rows.stored.append(stored | {"tries": rows.tries[seq]} if seq in rows.tries else stored)
        rows.times_ns += [time_ns] * len(left)
    else:
        rows.several.append((len(rows.times_ns), len(left)))
        rows.stored.append(shared)
        rows.times_ns.append(time_ns)
    return int(found["bodies"].nbytes)


def _fresh(empty: Rows) -> Rows:
    return Rows(empty.queue, empty.space, empty.number, empty.tries, empty.taken)
