"""What an owner has to do with replicas: whether it may open a directory, and what it had not shipped.

What a space had recorded that its replica never had, when that was promoted, is listed, kept, and merged by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from xaqueue.core.model import layout
from xaqueue.core.model.change import is_valid, name_of, paths_of, queues_of, step_name, targets_of
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.layout import JOURNAL
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.journal_files import content, places
from xaqueue.core.storage.journal_format import TIME, Record, records_in
from xaqueue.core.storage.scheduling import THREADS, Threads
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.replica import replicated
from xaqueue.features.replica.options import policy_of
from xaqueue.features.replica.replicated import UNSHIPPED, Replicated
from xaqueue.features.snapshots.manifest import KEPT_JOURNAL


def list_unshipped(fs: FileSystem, made: Replicated) -> int:
    """Writes the list, durably, a line of JSON a step; returns how many there are. Raises OSError."""
    lines = [json.dumps(_line(record)) for record in _records(fs, made)]
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


def _line(record: Record) -> dict[str, object]:
    """Messages by queue and number."""
    added = [found for path in targets_of(record) if (found := layout.parse_message_path(path)) is not None]
    gone = [layout.parse_message_path(path) for path in paths_of(record) if path not in targets_of(record)]
    return {
        "lsn": record.lsn,
        "step": step_name(record.kind),
        "branch": name_of(record),
        "queues": queues_of(record),
        "added": added,
        "taken": [found for found in gone if found is not None],
    }


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
