"""How a change is done in the directories: by the follower, by a replay at open, by salvage and by a roll-forward.

It works out the final state of every path that the changes name and makes the directories so. A replay does that in
whatever state a crash left them: it may be cut off at any call and done again. Content that is not in a record was on
disk before it, and so was all that was recorded earlier: then it is found in one of the places that it moved through
since. Where it stands nowhere whole, what was acknowledged is lost: that is damage, and found before anything is
changed. Not so what was set aside in quarantine, which was said then, and what is missing in the archive, which is
others' to empty.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from xaqueue.core.engine import quarantine
from xaqueue.core.model import layout
from xaqueue.core.model.block import Kind, decode_head, has_valid_checksum
from xaqueue.core.model.block_files import read_block
from xaqueue.core.model.change import Content, Final, Moved, final_states, highest_numbers, ops_of
from xaqueue.core.model.layout import Watermark
from xaqueue.core.model.message_name import parse_any
from xaqueue.core.model.record_kinds import RecordKinds
from xaqueue.core.storage.fs import NO_LINK, NO_ROOM, FileSystem, discard
from xaqueue.core.storage.journal_format import Record
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import DamagedBlock, JournalDamaged

_OF_MESSAGES = (layout.COMMITTED, layout.ARCHIVE)
MAKING = ".replay"
"""In active/, where a name that starts with a dot is no block."""
_MAKING = f"{layout.ACTIVE}/{MAKING}"

log = logging.getLogger("xaqueue")


class _Move(NamedTuple):
    source: str
    """The target itself where it stands there."""
    target: str
    when_us: int


def apply(fs: FileSystem, left: dict[str, Content | Moved], gone: dict[str, None]) -> int:
    """Does in the directories what changes come to, behind a space that works: files stand where they were left.

    What is done is struck out, so that it may be called again where it found no room; what is ``gone`` in the end is
    left to ``apply_removals``. Returns how many files it made. Raises OSError.
    """
    made = 0
    stands: dict[tuple[bytes, int], str] = {}
    for path, want in list(left.items()):  # a file leaves its place before another one takes that
        if isinstance(want, Moved):
            _follow(fs, want.places[-1], path, want.when_us)
            gone.pop(want.places[-1], None)  # from here on that is another file's name
        else:
            _create(fs, path, want, stands.setdefault((want.head, want.when_us), path))
            made += 1
        del left[path]
    return made


def apply_removals(fs: FileSystem, gone: dict[str, None], keep: dict[str, Content | Moved]) -> None:
    """As ``apply``, of what is gone in the end; the places of what ``keep`` is still to move stay."""
    places = {place for want in keep.values() if isinstance(want, Moved) for place in want.places}
    may_be_gone = suppress(FileNotFoundError)  # it never was a file, or somebody was faster
    for path in [path for path in gone if path not in places]:
        with may_be_gone:
            fs.unlink(path)
        del gone[path]


def _create(fs: FileSystem, path: str, content: Content, first: str) -> None:
    """It appears by a rename: whoever looks at the directory, or finds it after a kill, never sees a part.

    first: where the same content was made before, if that is not this path.
    """
    if first is not path and _is_linked(fs, first, path):
        return
    chunks = [content.head, bytes(content.body)] if content.body else [content.head]
    try:
        fs.create(_MAKING, chunks, content.when_us * 1000)
    except FileExistsError:  # of an apply that found no room for the name
        discard(fs, _MAKING)
        fs.create(_MAKING, chunks, content.when_us * 1000)
    _name(fs, fs.rename, _MAKING, path)


def _name(fs: FileSystem, call: Callable[[str, str], None], source: str, path: str) -> None:
    """Gives a file this name; its directory may be missing."""
    try:
        call(source, path)
    except (FileNotFoundError, NotADirectoryError):
        make_dirs(fs, path.rpartition("/")[0])
        call(source, path)


def _is_linked(fs: FileSystem, first: str, path: str) -> bool:
    """Whether it is another name of the first from now on; not where another file stands, or links end."""
    try:
        _name(fs, fs.link, first, path)
    except OSError as error:
        if error.errno not in (*NO_LINK, errno.ENOENT, errno.EEXIST):
            raise
        return False
    return True


def _follow(fs: FileSystem, source: str, target: str, when_us: int) -> None:
    """Its time first: behind the rename nothing is left that could fail, and be done again with another file."""
    try:
        if when_us:
            fs.set_modified_ns(source, when_us * 1000)
        fs.rename(source, target)
    except (FileNotFoundError, NotADirectoryError):
        make_dirs(fs, target.rpartition("/")[0])
        if fs.exists(source):
            fs.rename(source, target)
        elif not fs.exists(target):
            gone = "something else removed it before it was moved"
            raise OSError(errno.EIO, gone, source) from None


def replay(
    fs: FileSystem,
    records: Sequence[Record],
    kinds: RecordKinds,
    *,
    rewrites: bool = False,
    without_lost: bool = False,
) -> list[str]:
    """Makes the directories what the records say; the caller syncs it all. Returns what is worth a note.

    rewrites: content is written again where it stands already, which may be in memory only, whatever a sync says.
    without_lost: what is found nowhere is given up. Raises OSError, and else JournalDamaged, with nothing changed.
    """
    wanted, highest = _wanted(fs, records, kinds)
    moves, lost = _planned(fs, wanted)
    known = {path for path in lost if _is_known(fs, path, wanted[path])}
    if lost.keys() - known and not without_lost:
        raise lost_error([reason for path, reason in lost.items() if path not in known])
    _remove(fs, _MAKING)
    for directory in sorted({path.rpartition("/")[0] for path, want in wanted.items() if want is not None}):
        make_dirs(fs, directory)
    for move in moves:
        if move.source != move.target:
            make_way(fs, move.target)
            fs.rename(move.source, move.target)
        if move.when_us:
            fs.set_modified_ns(move.target, move.when_us * 1000)
    stands: dict[tuple[bytes, int], str] = {}
    for path, want in wanted.items():
        if isinstance(want, Content):
            _make(fs, path, want, rewrites, stands.setdefault((want.head, want.when_us), path))
    for path, want in wanted.items():
        if want is None:
            _remove(fs, path)
    for queue, seq in highest.items():
        _reserve(fs, queue, seq)
    return list(lost.values())


def find_lost(fs: FileSystem, records: Sequence[Record], kinds: RecordKinds) -> dict[str, str]:
    """What a replay would find lost: by path, what is wrong. Changes nothing. Raises OSError."""
    wanted, _ = _wanted(fs, records, kinds)
    _, lost = _planned(fs, wanted)
    return {path: reason for path, reason in lost.items() if not _is_known(fs, path, wanted[path])}


def lost_error(lost: Sequence[str]) -> JournalDamaged:
    more = f", and so it is with {len(lost) - 1:,} more" if len(lost) > 1 else ""
    damage = JournalDamaged(
        f"{lost[0]}{more}. What was acknowledged is missing, so nothing was changed: put it back from a copy if there "
        "is one; `xaqueue check` names every file, and `xaqueue salvage-journal` goes on without what is lost"
    )
    damage.lost_files = tuple(lost)
    return damage


def _planned(fs: FileSystem, wanted: Final) -> tuple[list[_Move], dict[str, str]]:
    """The moves, in their order, and by path why it cannot be made what it is to be."""
    moves: list[_Move] = []
    lost: dict[str, str] = {}
    left: set[str] = set()
    moved = [(path, want) for path, want in wanted.items() if isinstance(want, Moved)]
    moved.sort(key=lambda one: one[0].startswith(layout.PREPARED))  # where a later branch of its name takes its place
    for path, want in moved:
        source = place_of(fs, path, want, left)
        if source is None:
            how = "is damaged" if fs.exists(path) else "is nowhere"
            lost[path] = f"{path}, which was {want.places[-1]} once, {how}: the journal has only its name"
            continue
        if source != path:
            left.add(source)
        moves.append(_Move(source, path, want.when_us))
    return moves, lost


def _is_known(fs: FileSystem, path: str, want: Content | Moved | None) -> bool:
    """Whether that it is lost is no news."""
    places = want.places if isinstance(want, Moved) else ()
    return path.startswith(layout.ARCHIVE) or quarantine.holds(fs, (path, *places))


def _wanted(fs: FileSystem, records: Sequence[Record], kinds: RecordKinds) -> tuple[Final, dict[str, int]]:
    wanted = final_states(ops_of(record) for record in records)
    highest = highest_numbers(records)
    for kind in kinds:
        kind.replayed(fs, wanted)
    return wanted, highest


def make_dirs(fs: FileSystem, directory: str) -> None:
    above = directory.rpartition("/")[0]
    if above:
        make_dirs(fs, above)
    if not fs.is_dir(directory):
        try:
            fs.make_dir(directory)
        except FileExistsError:
            _set_aside(fs, directory, "no directory where one should be")
            fs.make_dir(directory)


def make_way(fs: FileSystem, path: str) -> None:
    """A directory that stands where a file is made, or was, is set aside."""
    if fs.is_dir(path):
        _set_aside(fs, path, "a directory where a file should be")


def _set_aside(fs: FileSystem, path: str, reason: str) -> None:
    aside = quarantine.move(fs, path, reason, time.time_ns() // 1000, foreign=True)
    log.warning("[quarantined] %s as %s: %s", path, aside, reason)


def _remove(fs: FileSystem, path: str) -> None:
    with suppress(FileNotFoundError):
        try:
            fs.unlink(path)
        except IsADirectoryError:
            make_way(fs, path)


def _make(fs: FileSystem, path: str, content: Content, rewrites: bool, first: str) -> None:
    """Puts the content there, unless it is there. first: where it was made before, if that is not this path."""
    data = read(fs, path)
    stands = len(data) == len(content.head) + len(content.body) and data == content.head + bytes(content.body)
    if not stands:
        make_way(fs, path)
    if (rewrites or not stands) and not (first is not path and _relink(fs, first, path)):
        rewrite(fs, path, [data] if stands else [content.head, bytes(content.body)], stands)
    if content.when_us:
        fs.set_modified_ns(path, content.when_us * 1000)


def _relink(fs: FileSystem, first: str, path: str) -> bool:
    """Whether what stands there is only another name of the first from now on."""
    try:
        fs.link(first, _MAKING)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        return False
    fs.rename(_MAKING, path)
    discard(fs, _MAKING)  # a rename between two names of one file does nothing
    return True


def rewrite(
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
    modified_ns = fs.modified_ns(path) if stands else 0
    try:
        fs.create(_MAKING, chunks, modified_ns)
        harden([_MAKING])
        fs.rename(_MAKING, path)
    except OSError as error:
        if error.errno not in NO_ROOM or not stands:
            raise
        discard(fs, _MAKING)
        fs.write_at(path, 0, chunks)
        fs.set_modified_ns(path, modified_ns)
        harden([path])


def is_that(fs: FileSystem, place: str, path: str) -> bool:
    """Whether a whole block stands in a place, and can be the one that belongs to this path: of a message the one that
    added it to its queue, and not one that takes it, or that adds to another queue under the same id."""
    data = read(fs, place)
    named = parse_any(path.rpartition("/")[2]) if path.startswith(_OF_MESSAGES) else None
    if named is None or not has_valid_checksum(data):
        return has_valid_checksum(data)
    try:
        head = decode_head(data)
    except DamagedBlock:
        return False
    adds = head.kind is (Kind.MESSAGES if named.is_block else Kind.ENQUEUE) and head.message_id == named.message_id
    return adds and head.properties.queue in ("", path.split("/")[1].removeprefix("queue="))


def place_of(fs: FileSystem, path: str, want: Moved, left: Collection[str] = ()) -> str | None:
    """Where a file that has this path in the end stands whole; None for nowhere, or only in places that it has left.

    A place of a branch may be that of an earlier one of its name, whose file nobody has removed, or of a later one.
    Then it has come no further than the place before.
    """
    places = (path, *want.places)
    once = [place for place in places if place.startswith(_OF_MESSAGES)]
    places = (*once, *(place for place in reversed(places) if place not in once))
    return next((place for place in places if place not in left and is_that(fs, place, path)), None)


def read(fs: FileSystem, path: str) -> bytes:
    """Of a block; empty where it is gone or cannot be read. Raises OSError."""
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
    make_dirs(fs, layout.queue_path(queue))
    path = layout.watermark_path(queue)
    data = read(fs, path)
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
