"""How messages of a queue with an archive leave it: what ``taken`` says, in the steps by which they do.

    a commit, an expiry     the file of a message moves to the archive, and a record says who took it; that of many
                            moves with the last of them, however that leaves
    a crash                 where files are the record it may leave a message in both places: the archive wins, and who
                            was to be answered was not. With a journal the record of the step has all of it

What the branch adds to another queue under the same id has only moved: its file goes; of a block the record says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xaqueue.core.engine import many
from xaqueue.core.engine.redo import is_that, make_dirs
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import ADDS
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.branch import Branch, Rider
from xaqueue.core.model.change import DROP, MOVE, PUT, Change, Final, Moved, Op
from xaqueue.core.model.entry import Entry, Run
from xaqueue.core.model.message_name import parse_any
from xaqueue.core.model.queue import Queue
from xaqueue.core.model.record_kinds import Opening, RecordKind
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.features.streams.taken import (
    BY_BRANCH,
    CONSUMED,
    EXPIRED,
    NAME,
    TAKEN,
    Taken,
    encode_taken,
    parse_taken,
    read_all,
    read_taken,
    spans_of,
    taken_directory,
    taken_path,
)
from xaqueue.message import MessageId

PARQUET = f"{layout.ARCHIVE}/parquet"
Beside = list[Sequence[Any]]


@dataclass(slots=True)
class _Before(Rider):
    """What a branch has added that is rolled forward, also what has come already."""

    acts = False
    added: set[MessageId]


def keep(space: Space, branch: Branch, ops: list[Op], removals: list[Op]) -> Beside:
    """See ``Features.keep``."""
    added = {one for written in branch.blocks if written.kind in ADDS for one in written.ids}
    goes_on = [rider.added for rider in branch.riders if isinstance(rider, _Before)]
    added.update(*goes_on)
    leaving: dict[str, list[Entry]] = {}
    for written in branch.blocks:
        entry = written.entry
        if written.kind not in ADDS and entry is not None and space.queues[written.queue].kept_in:
            leaving.setdefault(written.queue, []).append(entry)
    beside: Beside = []
    for name, entries in leaving.items():
        said = _keep(space, space.queues[name], entries, added, (str(branch.xid), BY_BRANCH), ops, removals)
        if goes_on and said:
            said[0] = _said_before(space, name, said[0], str(branch.xid))
        beside += said
    return beside


def _said_before(space: Space, queue: str, row: Sequence[Any], by: str) -> Sequence[Any]:
    """Of a step that has begun, and has no point before what it does: torn with the power, what it says is lost when a
    message has left its block for another queue. So it is on disk before, by who did not come to the end, or by this.
    """
    fs, (path, *content), directory = space.fs, row, taken_directory(queue)
    before = read_taken(fs, queue, path)
    if before is None or before.by != by:
        if not space.hardening.content:
            return row
        try:
            make_dirs(fs, directory)
            discard(fs, path)
            fs.create(path, content)
            fs.sync_file(path)
            for name in (directory, directory.rpartition("/")[0], layout.ARCHIVE, ""):
                fs.sync_dir(name)
        except OSError:
            return row
    return (path,)


def removal(space: Space, queue: Queue, entries: Sequence[Entry]) -> Change:
    """As ``many.removal`` of what has expired."""
    change = many.removal(space, queue, entries)
    if not queue.kept_in:
        return change
    files = {queue.path_of(entry) for entry in entries}
    ops, rest = list(change.ops), [op for op in change.rest if op[1] not in files]
    removals = [op for op in change.rest if op[1] in files]
    beside = _keep(space, queue, entries, (), ("", EXPIRED), ops, removals)
    return change._replace(ops=ops + removals, rest=rest, beside=beside)


def _keep(
    space: Space,
    queue: Queue,
    entries: Iterable[Entry],
    added: Collection[bytes],
    who: tuple[str, str],
    ops: list[Op],
    removals: list[Op],
) -> Beside:
    """Of these messages of one queue. added: ids of what moves."""
    taken, moved, kept = list[int](), list[int](), dict[str, str]()
    for entry in entries:
        if queue.block_of(entry.seq) is not None:
            for seq, one in enumerate(entry.ids if type(entry) is Run else (entry.message_id,), entry.seq):
                (moved if one in added else taken).append(seq)
        elif entry.message_id not in added:
            taken.append(entry.seq)
            path = entry.path or queue.path_of(entry)
            if space.log.is_atomic or space.fs.exists(path):
                kept[path] = queue.kept(path)
    removals[:] = [(MOVE, op[1], kept[op[1]], 0) if op[0] == DROP and op[1] in kept else op for op in removals]
    if not taken and not moved:
        return []
    said = Taken(max(space.now_us(), space.last_commit_us), *who, spans_of(taken), spans_of(moved))
    path, content = taken_path(queue.name, said), encode_taken(queue.name, said, space.epoch)
    if space.log.is_atomic:
        ops.append((PUT, path, *content, 0))
        return []
    ranges = {target.rpartition("/")[0]: target for target in kept.values()}
    return [(path, *content), *((target,) for target in ranges.values())]


def harden_before(space: Space, queue: Queue, ranges: Iterable[int]) -> None:
    """Before range directories go: what has moved out of them is in the archive, durably. Raises ResourceFailed."""
    if queue.kept_in and space.log.is_atomic and any(queue.is_spent(number) for number in ranges):
        space.sync_all()


class TakenKind(RecordKind):
    directory = TAKEN
    names: re.Pattern[str] | None = NAME

    def find(self, opening: Opening) -> None:
        """What is in both places is taken. Blocks of which some is kept go where that does, whatever the queue's
        definition says by now."""
        fs = opening.space.fs
        for queue in opening.space.queues.values():
            queue.kept_in = queue.kept_in or layout.ARCHIVE * _is_kept_in_part(fs, queue)
        for directory in _filled(opening.space) if opening.space.read_only is None else ():
            here = layout.COMMITTED + directory.removeprefix(layout.ARCHIVE)
            there = set(listed(fs, directory))
            for name in listed(fs, here):
                if name in there and is_that(fs, f"{directory}/{name}", f"{directory}/{name}"):
                    fs.unlink(f"{here}/{name}")

    def adopt(self, space: Any, branch: Branch, found: Any) -> None:
        branch.riders = (*branch.riders, _Before({row.message_id for row in found.rows if row.kind in ADDS}))

    def finish(self, opening: Opening) -> None:
        """A step that never came to be may have said that it takes what is there."""
        space = opening.space
        for queue in space.queues.values() if space.read_only is None else ():
            for name in listed(space.fs, taken_directory(queue.name)):
                ends = parse_taken(name)
                with space.lock:
                    is_there = ends is not None and queue.index.numbered(ends[0]) is not None
                if is_there:
                    discard(space.fs, f"{taken_directory(queue.name)}/{name}")

    def places(self, space: Any) -> Iterable[str]:
        """A range that lost a name is synced behind these; who was killed may have made a directory alone."""
        above = [f"{layout.ARCHIVE}/queue={name}" for name in space.queues]
        inner = [*(f"{one}/{TAKEN}" for one in above), *_filled(space)]
        found = [path for path in (*inner, *above, layout.ARCHIVE) if space.fs.is_dir(path)]
        return [*found, ""] if found else []

    def hardened(self, space: Any) -> Iterable[str]:
        """With a journal it was all replayed."""
        for name in space.queues if not space.log.is_atomic else ():
            yield from (f"{taken_directory(name)}/{one}" for one in listed(space.fs, taken_directory(name)))

    def replayed(self, fs: FileSystem, wanted: Final) -> None:
        """What is a row of a table by now is not missed."""
        for path, want in list(wanted.items()):
            if isinstance(want, Moved) and path.startswith(f"{layout.ARCHIVE}/"):
                has_rows = fs.exists(f"{PARQUET}/{path.split('/')[1]}")
                if has_rows and not any(map(fs.exists, (path, *want.places))):
                    del wanted[path]


def _is_kept_in_part(fs: FileSystem, queue: Queue) -> bool:
    """Whether some of a block is that has not moved yet; a stream cuts its blocks."""
    spans = [span for one in read_all(fs, queue.name) if one.how != CONSUMED for span in one.spans]
    for number in queue.ranges if spans else ():
        for named in map(parse_any, listed(fs, layout.range_path(queue.name, number << layout.RANGE_BITS))):
            if named is None or not named.is_block:
                continue
            if any(first <= named.last and named.first <= last for first, last in spans):
                return True
    return False


def _filled(space: Any) -> Iterator[str]:
    """Range directories of the archive into which something was being moved."""
    for queue in space.queues.values():
        for number in queue.ranges:
            directory = layout.ARCHIVE + layout.range_path(queue.name, number << layout.RANGE_BITS).removeprefix(
                layout.COMMITTED
            )
            if space.fs.is_dir(directory):
                yield directory
