"""What the journal records of a step: the files it makes, moves and removes; and how they are made so again.

A record is physical: *put* a file with this content, *move* one, *drop* one. A replay works out the final state of
every path that is named and makes the directories so, in whatever state a crash left them: that may be cut off at any
call and done again. Content that is not in a record was on disk before it, and so was all that was recorded earlier:
then it is found in one of the places that it moved through since. Where it stands nowhere whole, what was acknowledged
is lost: that is damage, and found before anything is changed. Not so what was set aside in quarantine, which was told
then, and what is missing in the archive, which is others' to empty.

    meta  MessagePack [xid, operations]
          [1, path, head, size of body, time]   the block's head stands here, its body in the record's body
          [2, source, target, time]             time: int microseconds UTC for the file's modification time, 0 for none
          [3, path]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from xaqueue.errors import DamagedBlock, JournalDamaged
from xaqueue.space.engine import quarantine
from xaqueue.space.model import layout
from xaqueue.space.model.block import PREFIX, decode_head, is_sound
from xaqueue.space.model.block_files import read_block
from xaqueue.space.model.layout import Watermark
from xaqueue.space.model.stream_records import StreamRecord, decode_record
from xaqueue.storage.fs import NO_ROOM, FileSystem, discard
from xaqueue.storage.journal_format import Entry, Record
from xaqueue.storage.regular import NO_FILE

PUT, MOVE, DROP = 1, 2, 3
_OF_MESSAGES = (layout.COMMITTED, layout.ARCHIVE)
MAKING = ".replay"
"""In active/, where a name that starts with a dot is no block."""

log = logging.getLogger("xaqueue")


class Kind(IntEnum):
    """Which step a record is of; for those who look at a journal, since a replay reads the operations."""

    PREPARE = 1
    COMMIT = 2
    ROLLBACK = 3
    ONE_PHASE = 4
    DECISION = 5
    FORGET = 6
    BATCH = 7
    STREAM = 8
    EXPIRY = 9


class Redo:
    """A record in the making."""

    def __init__(self, kind: Kind, xid: str) -> None:
        self._kind = kind
        self._xid = xid
        self._operations: list[tuple[Any, ...]] = []
        self._bodies: list[bytes] = []

    def put(self, path: str, head: bytes, body: bytes, when_us: int = 0) -> None:
        self._operations.append((PUT, path, head, len(body), when_us))
        if body:
            self._bodies.append(body)

    def move(self, source: str, target: str, when_us: int = 0) -> None:
        self._operations.append((MOVE, source, target, when_us))

    def drop(self, path: str) -> None:
        self._operations.append((DROP, path))

    def entry(self) -> Entry:
        packed: bytes = msgpack.packb((self._xid, self._operations), use_bin_type=True)
        return Entry(self._kind, packed, self._bodies)


def operations_of(record: Record) -> list[list[Any]]:
    _, operations = msgpack.unpackb(record.meta)
    return list(operations)


def xid_of(record: Record) -> str:
    """The name of the branch that it is a step of."""
    name, _ = msgpack.unpackb(record.meta)
    return str(name)


def paths_of(record: Record) -> list[str]:
    """Every path that it names."""
    return [path for operation in operations_of(record) for path in operation[1 : 3 if operation[0] == MOVE else 2]]


def targets_of(record: Record) -> list[str]:
    """Every path at which it puts something."""
    return [operation[2 if operation[0] == MOVE else 1] for operation in operations_of(record) if operation[0] != DROP]


def queues_of(record: Record) -> list[str]:
    """The queues that it adds to or takes from."""
    messages = [layout.parse_message_path(path) for path in paths_of(record)]
    puts = [decode_head(operation[2]) for operation in operations_of(record) if operation[0] == PUT]
    return sorted({place[0] for place in messages if place} | {head.properties.queue for head in puts} - {""})


def sound(record: Record) -> bool:
    """Whether it can be read, and each body is the one that its head has the checksum of."""
    offset = 0
    try:
        operations = operations_of(record)
    except (ValueError, TypeError, msgpack.UnpackException):
        return False
    for operation in operations:
        if operation[0] == PUT:
            _, _, head, size, _ = operation
            if not is_sound(head, record.body[offset : offset + size]):
                return False
            offset += size
    return offset == len(record.body)


@dataclass(slots=True)
class _Content:
    head: bytes
    body: memoryview
    when_us: int


@dataclass(slots=True)
class _Moved:
    places: tuple[str, ...]
    """Where it was, the last place first: a crash may have left it in any of them."""
    when_us: int


_Wanted = dict[str, _Content | _Moved | None]
"""By path what it is in the end, None for gone."""


class _Move(NamedTuple):
    source: str
    """The target itself where it stands there."""
    target: str
    when_us: int


def replay(fs: FileSystem, records: Iterable[Record], *, anew: bool = False, without_lost: bool = False) -> list[str]:
    """Makes the directories what the records say; the caller syncs it all. Returns what is worth a note.

    anew: content is written again where it stands already, which may be in memory only, whatever a sync says.
    without_lost: what is found nowhere is given up. Raises OSError, and else JournalDamaged, with nothing changed.
    """
    wanted, highest = _wanted(fs, records)
    moves, lost = _planned(fs, wanted)
    known = {path for path in lost if _is_known(fs, path, wanted[path])}
    if lost.keys() - known and not without_lost:
        raise _damage([told for path, told in lost.items() if path not in known])
    _remove(fs, f"{layout.ACTIVE}/{MAKING}")
    for directory in sorted({path.rpartition("/")[0] for path, want in wanted.items() if want is not None}):
        _make_dirs(fs, directory)
    for move in moves:
        if move.source != move.target:
            _clear(fs, move.target)
            fs.rename(move.source, move.target)
        if move.when_us:
            fs.set_modified_ns(move.target, move.when_us * 1000)
    for path, want in wanted.items():
        if isinstance(want, _Content):
            _make(fs, path, want, anew)
    for path, want in wanted.items():
        if want is None:
            _remove(fs, path)
    for queue, seq in highest.items():
        _reserve(fs, queue, seq)
    return list(lost.values())


def find_lost(fs: FileSystem, records: Iterable[Record]) -> dict[str, str]:
    """What a replay would find lost: by path, what is wrong. Changes nothing. Raises OSError."""
    wanted, _ = _wanted(fs, records)
    _, lost = _planned(fs, wanted)
    return {path: told for path, told in lost.items() if not _is_known(fs, path, wanted[path])}


def check_lost(fs: FileSystem, records: Iterable[Record]) -> None:
    """As ``find_lost``. Raises JournalDamaged."""
    lost = find_lost(fs, records)
    if lost:
        raise _damage(list(lost.values()))


def _damage(lost: Sequence[str]) -> JournalDamaged:
    more = f", and so it is with {len(lost) - 1:,} more" if len(lost) > 1 else ""
    damage = JournalDamaged(
        f"{lost[0]}{more}. What was acknowledged is missing, so nothing was changed: put it back from a copy if there "
        "is one; `xaqueue check` names every file, and `xaqueue salvage-journal` goes on without what is lost"
    )
    damage.lost_files = tuple(lost)
    return damage


def _planned(fs: FileSystem, wanted: _Wanted) -> tuple[list[_Move], dict[str, str]]:
    """The moves, in their order, and by path why it cannot be made what it is to be."""
    moves: list[_Move] = []
    lost: dict[str, str] = {}
    left: set[str] = set()
    for path, want in wanted.items():
        if not isinstance(want, _Moved):
            continue
        source: str | None = path
        if path in left or not is_sound(_read(fs, path)):
            places = (place for place in want.places if place not in left)
            source = next((place for place in places if is_that(fs, place, path)), None)
        if source is None:
            told = "is damaged" if fs.exists(path) else "is nowhere"
            lost[path] = f"{path}, which was {want.places[-1]} once, {told}: the journal has only its name"
            continue
        if source != path:
            left.add(source)
        moves.append(_Move(source, path, want.when_us))
    return moves, lost


def _is_known(fs: FileSystem, path: str, want: _Content | _Moved | None) -> bool:
    """Whether that it is lost is no news."""
    places = want.places if isinstance(want, _Moved) else ()
    return path.startswith(layout.ARCHIVE) or quarantine.holds(fs, (path, *places))


def _wanted(fs: FileSystem, records: Iterable[Record]) -> tuple[_Wanted, dict[str, int]]:
    wanted, highest = _final(records)
    _keep_further_streams(fs, wanted)
    _without_consumed(fs, wanted)
    return wanted, highest


def _final(records: Iterable[Record]) -> tuple[_Wanted, dict[str, int]]:
    """What each path is in the end, and the highest number that the records gave out in each queue."""
    wanted: _Wanted = {}
    highest: dict[str, int] = {}
    for record in records:
        offset = 0
        for operation in operations_of(record):
            if operation[0] == DROP:
                wanted[operation[1]] = None
                continue
            if operation[0] == PUT:
                _, path, head, size, when_us = operation
                wanted[path] = _Content(head, record.body[offset : offset + size], when_us)
                offset += size
            else:
                _, source, path, when_us = operation
                want = wanted.get(source)
                if isinstance(want, _Content):
                    wanted[path] = _Content(want.head, want.body, when_us)
                else:
                    wanted[path] = _Moved((source, *(want.places if want is not None else ())), when_us)
                wanted[source] = None
            number = layout.parse_message_path(path)
            if number is not None:
                queue, seq = number
                highest[queue] = max(highest.get(queue, 0), seq)
    return wanted, highest


def _keep_further_streams(fs: FileSystem, wanted: _Wanted) -> None:
    """Where a record was lost, the directories may be further than those that can be read: no stream goes back."""
    for path in [path for path in wanted if path.startswith(f"{layout.STREAMS}/")]:
        queue = layout.parse_queue_directory(path.rpartition("/")[2])
        found = _record_of(fs, queue, None) if queue else None
        want = _record_of(fs, queue, wanted[path]) if queue else None
        if found is not None and want is not None and found.consumed > want.consumed:
            del wanted[path]


def _without_consumed(fs: FileSystem, wanted: _Wanted) -> None:
    """What a stream has consumed is not made again, wherever its file is by now; what is to be kept of it is, in
    ``archive/``."""
    known: dict[str, StreamRecord | None] = {}
    for path in [path for path, want in wanted.items() if want is not None]:
        place = layout.parse_message_path(path)
        if place is None:
            continue
        queue, seq = place
        if queue not in known:
            known[queue] = _record_of(fs, queue, wanted.get(layout.stream_path(queue)))
        record = known[queue]
        if record is None or seq > record.consumed:
            continue
        want = wanted.pop(path)
        if record.archives(seq):
            if isinstance(want, _Moved):
                want = _Moved((path, *want.places), want.when_us)
            else:
                wanted[path] = None  # what is left of it there may be torn
            wanted[layout.archived_path(path)] = want


def _record_of(fs: FileSystem, queue: str, want: _Content | _Moved | None) -> StreamRecord | None:
    """Who consumes the queue in the end, and how far."""
    data = want.head + bytes(want.body) if isinstance(want, _Content) else _read(fs, layout.stream_path(queue))
    try:
        return decode_record(data, queue) if data else None
    except DamagedBlock:
        return None


def _make_dirs(fs: FileSystem, directory: str) -> None:
    above = directory.rpartition("/")[0]
    if above:
        _make_dirs(fs, above)
    if not fs.is_dir(directory):
        try:
            fs.make_dir(directory)
        except FileExistsError:
            _set_aside(fs, directory, "no directory where one should be")
            fs.make_dir(directory)


def _clear(fs: FileSystem, path: str) -> None:
    """A directory that stands where a file is made, or was, is set aside."""
    if fs.is_dir(path):
        _set_aside(fs, path, "a directory where a file should be")


def _set_aside(fs: FileSystem, path: str, reason: str) -> None:
    aside = quarantine.move(fs, path, reason, time.time_ns() // 1000, foreign=True)
    log.warning("quarantined %s as %s: %s", path, aside, reason)


def _remove(fs: FileSystem, path: str) -> None:
    with suppress(FileNotFoundError):
        try:
            fs.unlink(path)
        except IsADirectoryError:
            _clear(fs, path)


def _make(fs: FileSystem, path: str, content: _Content, anew: bool) -> None:
    """Puts the content there, unless it is there."""
    data = _read(fs, path)
    stands = len(data) == len(content.head) + len(content.body) and data == content.head + bytes(content.body)
    if not stands:
        _clear(fs, path)
    if anew or not stands:
        write_anew(fs, path, [data] if stands else [content.head, bytes(content.body)], stands)
    if content.when_us:
        fs.set_modified_ns(path, content.when_us * 1000)


def write_anew(
    fs: FileSystem,
    path: str,
    chunks: Sequence[bytes],
    stands: bool = True,
    harden: Callable[[Sequence[str]], object] = lambda _: None,
) -> None:
    """Puts a new file in the place of whatever stands there, elsewhere on the disk.

    stands: that has this content; then the new file is as old, and where there is no room for one, it is overwritten
    with itself, which is better than a space that cannot be opened. harden: has the content on disk before it takes the
    name, where no journal has it.
    """
    making = f"{layout.ACTIVE}/{MAKING}"
    modified_ns = fs.modified_ns(path) if stands else 0
    try:
        fs.create(making, chunks)
        if stands:
            fs.set_modified_ns(making, modified_ns)
        harden([making])
        fs.rename(making, path)
    except OSError as error:
        if error.errno not in NO_ROOM or not stands:
            raise
        discard(fs, making)
        fs.write_at(path, 0, chunks)
        fs.set_modified_ns(path, modified_ns)
        harden([path])


def is_that(fs: FileSystem, place: str, path: str) -> bool:
    """Whether a whole block stands in a place, and can be the one that belongs to this path."""
    data = _read(fs, place)
    message = layout.parse_message(path.rpartition("/")[2]) if path.startswith(_OF_MESSAGES) else None
    return is_sound(data) and (message is None or PREFIX.unpack_from(data)[-1] == message[1])


def _read(fs: FileSystem, path: str) -> bytes:
    try:
        return read_block(fs, path)
    except OSError as error:
        if error.errno in NO_ROOM:  # no descriptor: that says nothing of the file
            raise
        return b""


def _reserve(fs: FileSystem, queue: str, seq: int) -> None:
    """No number that the journal has seen is given out again. A watermark that is lost is made from what it saw last.

    One that is damaged is left to those who quarantine it.
    """
    _make_dirs(fs, layout.queue_path(queue))
    path = layout.watermark_path(queue)
    data = _read(fs, path)
    watermark = layout.parse_watermark(data)
    if watermark is None and (data.strip(b"\0") or _is_no_file(fs, path)):
        return
    published, reserved = watermark or (0, 0)
    if reserved < seq:
        fs.write_at(path, 0, [layout.format_watermark(Watermark(published, max(seq, published)))])


def _is_no_file(fs: FileSystem, path: str) -> bool:
    try:
        fs.size(path)
    except OSError as error:
        return error.errno in NO_FILE
    return False


class Last(NamedTuple):
    """What a path is in the end, for those who look at a journal."""

    chunks: tuple[bytes, memoryview] | None
    """Its content; None where the records have only its name."""
    places: tuple[str, ...]
    """Where it was before, the last place first."""
    when_us: int


def last_states(records: Iterable[Record]) -> tuple[dict[str, Last | None], dict[str, int]]:
    """What each path is in the end, None where it is gone, and the highest number given out in each queue."""
    wanted, highest = _final(records)
    return {path: _last(want) for path, want in wanted.items()}, highest


def _last(want: _Content | _Moved | None) -> Last | None:
    if want is None:
        return None
    if isinstance(want, _Moved):
        return Last(None, want.places, want.when_us)
    return Last((want.head, want.body), (), want.when_us)
