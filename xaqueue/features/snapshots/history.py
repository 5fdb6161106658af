"""What the journal tells of the time since a snapshot: the segments that it has released, and those that it has still.

It is read from the LSN of the snapshot to the last round that was written by a moment. Every round begins with its
time, and what an opening begins anew with the LSN at which the one before it ended, and a time: what has none was
written while the journal was not kept, or when steps left no record. A gap of any kind is an error that names the
latest moment before it, since what was there behind it nobody can tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from xaqueue.core.model.change import is_valid
from xaqueue.core.model.layout import JOURNAL
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_files import content
from xaqueue.core.storage.journal_format import (
    EPOCH_BITS,
    SECTOR_BYTES,
    SWITCH,
    TIME,
    Placed,
    Record,
    Segment,
    lsn_in,
    records_in,
)
from xaqueue.errors import SpaceError
from xaqueue.features.snapshots.manifest import KEPT_JOURNAL, Manifest
from xaqueue.features.snapshots.segments import Place, begin_of, places


class History:
    """Of a snapshot, up to a moment: int microseconds UTC."""

    def __init__(self, fs: FileSystem, found: Manifest, at_us: int) -> None:
        self._fs = fs
        self._found = found
        self._at_us = at_us
        self._places = places(fs, (KEPT_JOURNAL, JOURNAL))
        self._position = found.lsn
        """The LSN of what is read next."""
        self._epoch = 0
        self._until_us = 0
        """The time of the last round that was read: up to here nothing is missing."""
        self._wrong = ""
        """What is behind that, where it cannot be used."""

    def records(self) -> Iterator[list[Record]]:
        """In their order, a segment's at a time. Raises SpaceError where some are missing, OSError."""
        found = self._found
        place: Place | None = self._at(lambda one: one.epoch == found.journal and one.start <= found.lsn < one.end)
        while place is not None:
            records, last = self._read(place)
            yield records
            if self._at_us <= self._until_us or (last is not None and last.record.kind == TIME):
                return  # no round has the same time, and this one is later
            if self._wrong:
                raise self._gap(self._wrong)
            place = self._behind(place.segment, last)

    def _read(self, place: Place) -> tuple[list[Record], Placed | None]:
        """Those of a segment; and the record that leads on, or that ends it all."""
        segment, found = place.segment, list[Record]()
        begun, before, count = -1, 0, 0  # of the present round the LSN; the time of the one before it, and its records
        limit = self._limit(segment)
        for good in records_in(content(self._fs, place.directory, segment), segment.start):
            record = good.record
            if record.lsn >= limit:
                break
            is_own = record.kind >= TIME
            if record.lsn < self._position or not self._belongs(good, segment) or not (is_own or is_valid(record)):
                continue
            if record.lsn != self._position:
                if good.first > self._position:  # else a torn round, promised to nobody
                    self._wrong = f"{place.directory}/{segment.name} is damaged"
                    if begun >= 0:  # of which a part may be missing
                        del found[count:]
                        self._until_us = before
                break
            if record.kind == TIME and lsn_in(record) > self._at_us:
                return found, good
            self._position, self._epoch = good.end, good.epoch
            if record.kind == SWITCH:
                return found, good
            if record.kind == TIME:
                begun, before, count = record.lsn, self._until_us, len(found)
                self._until_us = lsn_in(record)
            elif not is_own:
                if good.first != begun:
                    self._wrong = "steps were recorded without their times"
                    break
                found.append(record)
        return found, None

    def _limit(self, segment: Segment) -> int:
        """Where the next owner found the end: what a former one wrote behind it, late, was promised to nobody."""
        later = next((one for one in self._places if one.segment.epoch > segment.epoch), None)
        covered = begin_of(self._fs, later)[0] if later is not None and later.segment.start == segment.end else None
        return sys.maxsize if covered is None else covered

    def _belongs(self, good: Placed, segment: Segment) -> bool:
        return good.epoch >= self._epoch and good.epoch >> EPOCH_BITS == segment.epoch

    def _behind(self, segment: Segment, last: Placed | None) -> Place | None:
        """The segment in which it goes on; None where that was all."""
        if last is not None:
            start = lsn_in(last.record)
            self._position = start + SECTOR_BYTES
            return self._at(lambda one: one.epoch == segment.epoch and one.start == start)
        later = [place for place in self._places if place.segment.epoch > segment.epoch]
        if not later:
            if not any(place.directory == JOURNAL for place in self._places):
                raise self._gap(f"{JOURNAL}/ is lost, or replaced")
            return None
        first = later[0]
        covered, time_us = begin_of(self._fs, first)
        if first.segment.start not in (segment.end, 0):  # 0: of the life behind a restore
            raise self._gap("a segment is missing")
        if time_us is None or (first.segment.start == 0 and time_us <= self._at_us):
            raise self._gap("the journal was begun anew, and not kept from there on")
        if first.segment.start == 0:
            return None
        if covered != self._position:
            raise self._gap(f"the end of {segment.name} is lost")
        self._position = first.segment.start + SECTOR_BYTES
        return first

    def _at(self, is_that: Callable[[Segment], bool]) -> Place:
        for place in self._places:
            if is_that(place.segment):
                return place
        raise self._gap("a segment is missing")

    def _gap(self, why: str) -> SpaceError:
        known = f"as of snapshot {self._found.number} only: restore that, by --snapshot"
        if self._until_us:
            known = f"up to {_text(self._until_us)}: restore to that, or without --at"
        return SpaceError(
            f"what was there at {_text(self._at_us)} is not known ({why}), and nothing was changed. It is known {known}"
        )


def _text(time_us: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat()
