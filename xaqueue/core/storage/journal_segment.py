"""The file of a journal's segment is made, and kept where it ends in what nobody was promised."""

from __future__ import annotations

from collections.abc import Sequence

from xaqueue.core.storage.fs import FileSystem, synced
from xaqueue.core.storage.journal_format import LSN, PREFIX_BYTES, SECTOR_BYTES, Segment, header_of
from xaqueue.core.storage.journal_reader import ARCHIVE, NEW

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
