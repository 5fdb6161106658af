"""The archive, where a snapshot takes the place of a space: it is what was, and stays. What is there again leaves it.

A snapshot has of it only who took what of blocks that were there; with a moment, what moved into it up to then comes
as well. Both are put in where they are missing. Of files of messages that stand in their queue again, and of what says
that these were taken, ``removed/`` has the first. Parquet keeps its rows: whoever reads a queue as a whole takes what
is there before these. All of it can be done once more where it was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator

from xaqueue.core.engine import redo
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed, ranges_in
from xaqueue.core.model.message_name import Named, parse_any
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.features.snapshots.manifest import files_below
from xaqueue.features.streams.message_files import gone_of
from xaqueue.features.streams.record import archived_path, consumed_in
from xaqueue.features.streams.taken import (
    Taken,
    encode_taken,
    meets,
    read_taken,
    spans_of,
    taken_directory,
    taken_path,
    without,
)


def put_back(fs: FileSystem, place: str, removed: str, *, is_another: bool) -> None:
    """Once the queues are as the snapshot has them. place: where that was built. is_another: of another space, and
    nothing of this one's is its own. Raises OSError."""
    if is_another:
        move_away(fs, layout.ARCHIVE, removed)
    built = f"{place}/{layout.ARCHIVE}"
    for path in files_below(fs, built) if fs.is_dir(built) else ():
        if not fs.exists(target := f"{layout.ARCHIVE}/{path}"):
            redo.make_dirs(fs, target.rpartition("/")[0])
            fs.rename(f"{built}/{path}", target)
    for name in listed(fs, layout.ARCHIVE) if not is_another else ():
        if (queue := layout.parse_queue_directory(name)) is not None:
            _leave(fs, queue, removed)


def _leave(fs: FileSystem, queue: str, removed: str) -> None:
    directories = [layout.range_path(queue, number << layout.RANGE_BITS) for number in ranges_in(fs, queue)]
    names = {directory: _names(fs, directory) for directory in directories}
    consumed = consumed_in(fs, queue)
    numbers = (seq for found in names.values() for named in found for seq in _numbers(fs, queue, named))
    there = spans_of(seq for seq in numbers if seq > consumed)
    for directory, found in names.items():
        for named in (*_names(fs, archived_path(directory)), *(one for one in found if one.is_block)):
            if meets(there, named.first, named.last):
                move_away(fs, archived_path(layout.messages_path(queue, named)), removed)
                move_away(fs, archived_path(layout.gone_path(queue, named)), removed)
    for taken, path in _told(fs, queue, ""):
        if any(meets(there, *span) for span in (*taken.spans, *taken.moved)):
            move_away(fs, path, removed)
    for taken, _ in _told(fs, queue, f"{removed}/"):
        left = taken._replace(spans=without(taken.spans, there), moved=without(taken.moved, there))
        if left.spans or left.moved:
            discard(fs, path := taken_path(queue, left))
            fs.create(path, encode_taken(queue, left, 0))


def _names(fs: FileSystem, directory: str) -> list[Named]:
    return [named for name in listed(fs, directory) if (named := parse_any(name)) is not None]


def _numbers(fs: FileSystem, queue: str, named: Named) -> Iterator[int]:
    """Of the messages that are there."""
    gone = gone_of(fs, queue, named) if named.is_block else 0
    return (named.first + index for index in range(named.count) if not gone >> index & 1)


def _told(fs: FileSystem, queue: str, below: str) -> Iterator[tuple[Taken, str]]:
    """Who took what, by the records below this, each with its path; one that cannot be read tells nothing."""
    for name in listed(fs, directory := below + taken_directory(queue)):
        if (taken := read_taken(fs, queue, path := f"{directory}/{name}")) is not None:
            yield taken, path


def move_away(fs: FileSystem, path: str, removed: str) -> None:
    """To the same place below ``removed``."""
    if fs.exists(path):
        if not fs.exists(target := f"{removed}/{path}"):
            redo.make_dirs(fs, target.rpartition("/")[0])
            fs.rename(path, target)
        elif not fs.is_dir(path):  # the power went when its new name was on disk, and the old one not gone there
            discard(fs, path)
