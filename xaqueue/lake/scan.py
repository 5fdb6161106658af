"""A queue as a table: what is there of it now, read from its directory or by its server, and with what was there and is
kept, where that is asked for; nothing of it is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from xaqueue.endpoint import is_url
from xaqueue.errors import InvalidArgument
from xaqueue.lake import columns as house
from xaqueue.lake.columns import Columns
from xaqueue.lake.history import history, live
from xaqueue.lake.place import Place, QueueScan, check_known, check_settled, place_at
from xaqueue.message import check_queue_name

_MS = pa.timestamp("ms", tz="UTC")
Span = tuple[int, int]
Times = tuple[int | None, int | None]
"""From, and before which, in milliseconds."""


def scan(
    space: str | os.PathLike[str],
    queue: str,
    columns: Sequence[str] | None = None,
    *,
    between: tuple[datetime | None, datetime | None] = (None, None),
    after: int = 0,
    archived: bool = False,
) -> pa.RecordBatchReader:
    """The committed messages of a queue, in their order, as Arrow batches; what was taken is not among them.

    space: a directory, or the URL of its server, where the right to browse is enough. columns: names, in this order;
    without them seq, message_id, queue, body, correlation_id, priority, enqueued_at, headers, content_type, tries,
    space and committed_at. between: committed at the first of these times or later, and before the second. after: a
    number, behind which it begins. archived: with what was taken and is kept; columns are then also
    taken_at and taken_by, which a message that is there has not.

    It ends where the queue ended when it was called. A message that is taken before its batch is read may be left out,
    unless it is kept and ``archived``: then each is there once. Raises UnknownQueue for a queue that the space has not,
    SpaceError, InvalidArgument; reading it, DamagedBlock.
    """
    path = os.fspath(space)
    wanted = chosen(columns, archived=archived)
    place = place_at(path, path if is_url(path) else "")
    try:
        place.id()
        place.check()
        check_settled(place, queue.__eq__)
        reader = place.queue(check_queue_name(queue))
        found = reader.position()
        if not found.seen:
            check_known(path, queue, place.known().names)
        times = _ms(between[0]), _ms(between[1])
        span = after, found.seen
        if not archived:
            span = _span(reader, max(after, found.consumed), found.seen, times)
    except BaseException:
        place.close()
        raise
    if archived:
        batches = _with_archived(place, reader, path, span, wanted, times)
    else:
        batches = _batches(place, reader, path, span, wanted)
    return pa.RecordBatchReader.from_batches(wanted.schema, batches)


def _span(reader: QueueScan, begin: int, end: int, times: Times) -> Span:
    since, before = times
    if since is not None:
        begin = max(begin, reader.last_before(since, end))
    if before is not None:
        end = min(end, reader.last_before(before, end))
    return begin, end


def _batches(place: Place, reader: QueueScan, path: str, span: Span, columns: Columns) -> Iterator[pa.RecordBatch]:
    with closing(place):
        yield from live(reader, path, columns)(*span)


def _with_archived(
    place: Place, reader: QueueScan, path: str, span: Span, columns: Columns, times: Times
) -> Iterator[pa.RecordBatch]:
    names = columns.schema.names
    with closing(place):
        every = chosen([*dict.fromkeys(["seq", *names, "committed_at"])], archived=True)
        since, before = times
        for table in history(reader, path, every, span):
            found = table
            if since is not None:
                found = found.filter(pc.greater_equal(found["committed_at"], pa.scalar(since, _MS)))
            if before is not None:
                found = found.filter(pc.less(found["committed_at"], pa.scalar(before, _MS)))
            yield from found.select(names).cast(columns.schema).to_batches()


def chosen(names: Sequence[str] | None, *, archived: bool = False) -> Columns:
    taken = house.TAKEN if archived else {}
    known = {**house.HOUSE, **house.MORE, **taken}
    wanted = list({**house.HOUSE, **taken} if names is None else names)
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
