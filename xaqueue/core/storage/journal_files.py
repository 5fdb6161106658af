"""The files of a journal's segments: how one is made, which there are, where they are, and what is in them.

A segment is in the journal's own directory, or in that to which it releases them. One that ends in what nobody was
promised is kept, under another name.
"""

from __future__ import annotations

from collections.abc import Sequence

from xaqueue.core.storage.fs import FileSystem, synced
from xaqueue.core.storage.journal_format import (
    LSN,
    PREFIX_BYTES,
    SECTOR_BYTES,
    VERSION,
    BadHeader,
    NewerHeader,
    Segment,
    header_of,
    parse_header,
    parse_name,
)
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import SpaceError

NEW = ".new"
"""Behind the name of a segment in the making."""
ARCHIVE = ".archive"
OWN_BYTES = 2 * (PREFIX_BYTES + LSN.size)
"""Kept free at the end of every segment, for one of each of the journal's own records."""


def make_segment(fs: FileSystem, directory: str, segment: Segment, records: Sequence[bytes] = ()) -> Segment:
    """Makes the file of a segment, its first part allocated, or as much as the records need.

    Raises OSError: where it is one of NO_ROOM, nothing is left of it.
    """
    used = SECTOR_BYTES + sum(map(len, records))
    segment.allocated = segment.growth
    while segment.allocated < used + OWN_BYTES:
        segment.allocated += segment.growth
    path = f"{directory}/{segment.name}"
    new = path + NEW
    if fs.exists(new):
        fs.unlink(new)
    fs.create(new, [header_of(segment), *records, bytes(segment.allocated - used)])
    try:
        fs.sync_file(new)
        fs.hold_dir(directory)
        fs.rename(new, path)
    except OSError:
        fs.unlink(new)
        raise
    synced(fs.sync_dir, directory)
    return segment


def free_archive(fs: FileSystem, path: str) -> str:
    """A name beside this one under which nothing was kept yet."""
    archive, copies = path + ARCHIVE, 1
    while fs.exists(archive):
        copies += 1
        archive = f"{path}{ARCHIVE}~{copies}"
    return archive


def headers(fs: FileSystem, directory: str) -> tuple[list[Segment], list[str], list[str]]:
    """The segments, sorted by epoch and LSN; the names of strays; and the names of files whose header is damaged.

    None of all where there is no directory. Raises SpaceError for a newer format.
    """
    segments, orphans, damaged = [], [], []
    for name in names_in(fs, directory):
        said = parse_name(name)
        if said is None:
            if name.endswith(".log" + NEW):
                orphans.append(name)  # a crash cut its making off
            continue
        path = f"{directory}/{name}"
        try:
            segment = parse_header(fs.read(path, SECTOR_BYTES))
            segment.allocated = segment.allocated_of(fs.size(path))
        except BadHeader:
            damaged.append(name)
            continue
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            damaged.append(name)
            continue
        except NewerHeader as newer:
            raise SpaceError(
                f"{path} has journal format {newer.args[0]}; this xaqueue reads format {VERSION}: use a newer one. "
                "Nothing was changed"
            ) from None
        segment.epoch = said.epoch
        if segment.start == said.start:
            segments.append(segment)
        else:
            orphans.append(name)  # a crash cut its recycling off
    return segments, orphans, damaged


def names_in(fs: FileSystem, directory: str) -> list[str]:
    return sorted(fs.list(directory)) if fs.is_dir(directory) else []


def content(fs: FileSystem, directory: str, segment: Segment) -> bytes:
    """What is in a segment, whatever follows it in its file; nothing where that is no file. Raises OSError."""
    try:
        return fs.read(f"{directory}/{segment.name}", segment.size)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return b""
