"""A queue as a table: what is there of it now, read from its directory or by its server; nothing of it is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime

import pyarrow as pa

from xaqueue.endpoint import is_url
from xaqueue.errors import InvalidArgument
from xaqueue.lake import columns as house
from xaqueue.lake.batches import record_batches
from xaqueue.lake.columns import Columns, Rows
from xaqueue.lake.place import Place, QueueScan, place_at
from xaqueue.message import check_queue_name


def scan(
    space: str | os.PathLike[str],
    queue: str,
    columns: Sequence[str] | None = None,
    *,
    between: tuple[datetime | None, datetime | None] = (None, None),
    after: int = 0,
) -> pa.RecordBatchReader:
    """The committed messages of a queue, in their order, as Arrow batches; what was taken is not among them.

    space: a directory, or the URL of its server, where the right to browse is enough. columns: names, in this order;
    without them seq, message_id, queue, body, correlation_id, priority, enqueued_at, headers, content_type, tries,
    space and committed_at. between: committed at the first of these times or later, and before the second. after: a
    number, behind which it begins.

    It ends where the queue ended when it was called. A message that is taken before its batch is read may be left out.
    Raises UnknownQueue for a queue that the space has not, SpaceError, InvalidArgument; reading it, DamagedBlock.
    """
    path = os.fspath(space)
    wanted = chosen(columns)
    place = place_at(path, path if is_url(path) else "")
    try:
        place.id()
        place.check()
        reader = place.queue(check_queue_name(queue))
        found = reader.position()
        begin, end = max(after, found.consumed), found.seen
        since, before = (_ms(time) for time in between)
        if since is not None:
            begin = max(begin, reader.last_before(since, end))
        if before is not None:
            end = min(end, reader.last_before(before, end))
    except BaseException:
        place.close()
        raise
    return pa.RecordBatchReader.from_batches(wanted.schema, _batches(place, reader, path, (begin, end), wanted))


def _batches(
    place: Place, reader: QueueScan, path: str, span: tuple[int, int], columns: Columns
) -> Iterator[pa.RecordBatch]:
    with closing(place):
        tries = reader.tries() if "tries" in columns.schema.names else {}
        yield from record_batches(reader.files(*span), Rows(reader.queue, path, tries=tries), columns)


def chosen(names: Sequence[str] | None) -> Columns:
    known = {**house.HOUSE, **house.MORE}
    wanted = list(house.HOUSE if names is None else names)
    for name in wanted:
        if name not in known:
            raise InvalidArgument(f"a message has no column {name!r}: {', '.join(known)} may be named")
    fields = [pa.field(name, known[name].kind, nullable=known[name].nullable) for name in wanted]
    return Columns(pa.schema(fields), [known[name] for name in wanted])


def _ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    if time.tzinfo is None:
        raise InvalidArgument(f"{time} says no zone: datetime.now(UTC), or replace(tzinfo=UTC), is wanted")
    return round(time.timestamp() * 1000)
