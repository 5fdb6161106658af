"""Where the segments of a journal are, and how one begins: in the journal's directory, or in that of those it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_files import content, headers
from xaqueue.core.storage.journal_format import CHECKPOINT, TIME, Segment, lsn_in, records_in


class Place(NamedTuple):
    directory: str
    segment: Segment


def places(fs: FileSystem, directories: Sequence[str]) -> list[Place]:
    """All segments, by epoch and LSN. One that has a name in several directories is one file."""
    found = {
        segment.name: Place(directory, segment) for directory in directories for segment in headers(fs, directory)[0]
    }
    return sorted(found.values(), key=lambda place: (place.segment.epoch, place.segment.start))


def begin_of(fs: FileSystem, place: Place) -> tuple[int | None, int | None]:
    """Where the journal before it had ended, and when; as its first records tell."""
    goods = islice(records_in(content(fs, place.directory, place.segment), place.segment.start), 2)
    own = {good.record.kind: lsn_in(good.record) for good in goods if good.record.kind >= TIME}
    return own.get(CHECKPOINT), own.get(TIME)
