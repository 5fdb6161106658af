"""What an owner has to do with replicas: whether it may open a directory, and what it had not shipped.

What a space had recorded that its replica never had, when that was promoted, is listed, kept, and merged by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from xaqueue.core.model import layout
from xaqueue.core.model.block import decode_head
from xaqueue.core.model.change import (
    PUT,
    CoreStep,
    is_valid,
    name_of,
    ops_of,
    paths_of,
    queues_of,
    step_name,
    targets_of,
)
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.layout import JOURNAL
from xaqueue.core.model.message_name import Named, parse_seq
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.journal_files import content
from xaqueue.core.storage.journal_format import TIME, Record, records_in
from xaqueue.core.storage.scheduling import THREADS, Threads
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.replica import replicated
from xaqueue.features.replica.options import policy_of
from xaqueue.features.replica.replicated import UNSHIPPED, Replicated
from xaqueue.features.snapshots.manifest import KEPT_JOURNAL
from xaqueue.features.snapshots.segments import places

_Number = tuple[str, int]


def list_unshipped(fs: FileSystem, made: Replicated) -> int:
    """Writes the list, durably, a line of JSON a step; returns how many there are. Raises OSError."""
    lines = [json.dumps(line) for line in map(_Told().line, _records(fs, made))]
    discard(fs, UNSHIPPED)
    fs.create(UNSHIPPED, ["".join(f"{line}\n" for line in lines).encode()])
    fs.sync_file(UNSHIPPED)
    return len(lines)


def _records(fs: FileSystem, made: Replicated) -> Iterator[Record]:
    """From where the promoted one has nothing any more."""
    for place in places(fs, (KEPT_JOURNAL, JOURNAL)):
        segment = place.segment
        if (segment.epoch, segment.end) <= (made.journal, made.lsn):
            continue
        for good in records_in(content(fs, place.directory, segment), segment.start):
            is_new = (segment.epoch, good.record.lsn) >= (made.journal, made.lsn)
            if is_new and good.record.kind < TIME and is_valid(good.record):
                yield good.record


class _Told:
    """Messages by queue and number. What is gone of a block is recorded as a whole each time, and reported once; of a
    block that was there before, the first line has all that was gone by then."""

    def __init__(self) -> None:
        self._gone: dict[str, int] = {}
        """Of each block of which something is gone, by the path of that."""

    def line(self, record: Record) -> dict[str, object]:
        added, taken = list[_Number](), list[_Number]()
        targets = set(targets_of(record))
        for path in targets_of(record) if record.kind != CoreStep.HOLLOW else ():
            if (found := layout.parse_path(path)) is not None:
                added += _numbers(*found)
        for op in ops_of(record):
            if op[0] == PUT and f"/{layout.GONE}/" in op[1]:
                taken += self._newly_gone(op[1], op[2], op[3])
        for path in paths_of(record):
            found = layout.parse_path(path) if path not in targets else None
            if found is not None:
                gone = self._gone.pop(layout.gone_path(*found), 0)
                taken += [one for at, one in enumerate(_numbers(*found)) if not gone >> at & 1]
        return {
            "lsn": record.lsn,
            "step": step_name(record.kind),
            "branch": name_of(record),
            "queues": queues_of(record),
            "added": added,
            "taken": taken,
        }

    def _newly_gone(self, path: str, head: bytes, body: bytes | memoryview) -> Iterator[_Number]:
        queue, first = decode_head(head).properties.queue, parse_seq(path.rpartition("/")[2])
        gone = int.from_bytes(body, "little")
        new = gone & ~self._gone.get(path, 0)
        self._gone[path] = gone
        for at in range(new.bit_length() if first is not None else 0):
            if new >> at & 1:
                yield queue, (first or 0) + at


def _numbers(queue: str, named: Named) -> list[_Number]:
    return [(queue, seq) for seq in range(named.first, named.last + 1)]


def check_replication(root: Path, definitions: Definitions, hardening: Hardening, waiting: Threads) -> None:
    """Raises SpaceError and InvalidArgument where the directory is not opened, or not in this way."""
    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        refused = replicated.refusal(replicated.read(fs), str(root))
    if refused:
        raise SpaceError(refused)
    if policy_of(definitions).is_on and not hardening.journal:
        raise InvalidArgument(
            "queues.toml: [replication] needs sync = JOURNAL, which is what replicas follow, and this space is to have "
            f"{hardening}"
        )
    if policy_of(definitions).waits and waiting is THREADS:
        raise SpaceError(
            f'{root} has [replication] acknowledge = "replica" in queues.toml, and only a server ships to a replica: '
            f"start `xaqueue serve --space {root}`, and work through it"
        )
