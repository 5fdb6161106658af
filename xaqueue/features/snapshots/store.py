"""The snapshots that a space has: which there are, whether they are whole, and the removal of old ones.

Paths are relative to the space's directory. A snapshot is a directory named by its number; one that is being made, or
removed, has a dot before it, so that what a crash leaves passes for none. The epoch of who makes it is behind that: an
owner that was taken over, and is continued, gives its number to nothing that another one is making.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from xaqueue.core.model import block_files, layout
from xaqueue.core.model.block import decode
from xaqueue.core.model.block_files import read_checked
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.core.storage.journal_files import headers
from xaqueue.core.storage.journal_format import Segment, parse_name
from xaqueue.errors import DamagedBlock, InvalidArgument, SpaceError
from xaqueue.features.replica import options as replica
from xaqueue.features.snapshots import manifest
from xaqueue.features.snapshots.manifest import CHECKED, KEPT_JOURNAL, SNAPSHOTS, Manifest
from xaqueue.features.snapshots.options import policy_of
from xaqueue.features.snapshots.restored import RESTORE_READY
from xaqueue.snapshot import SnapshotStatus

MOST_CHECKED_BYTES = 64 * 1024
REMOVING = ".removing."
HELD_US = 86_400_000_000
"""For so long, a day, nobody else removes a snapshot that is being copied."""


def listed(fs: FileSystem) -> list[Manifest]:
    """Those whose manifest is whole, the oldest first. Raises OSError."""
    found = []
    for number in _numbers(fs):
        with suppress(SpaceError):
            found.append(_read(fs, number))
    return found


def _read(fs: FileSystem, number: int) -> Manifest:
    """Its number is that of its directory, whatever it was taken under: it may be a copy that was put back."""
    return replace(manifest.read(fs, f"{SNAPSHOTS}/{number}"), number=number)


def suspects(fs: FileSystem) -> list[tuple[int, str]]:
    """Those whose manifest is not, and why. Raises OSError."""
    found = []
    for number in _numbers(fs):
        try:
            manifest.read(fs, f"{SNAPSHOTS}/{number}")
        except SpaceError as error:
            found.append((number, str(error)))
    return found


def _numbers(fs: FileSystem) -> list[int]:
    return sorted(int(name) for name in block_files.listed(fs, SNAPSHOTS) if name.isascii() and name.isdigit())


def find(fs: FileSystem, number: int | None) -> Manifest:
    """The one of this number, or the newest. Raises SpaceError, OSError."""
    if number is not None:
        if number not in _numbers(fs):
            raise SpaceError(f"there is no snapshot {number}: `xaqueue snapshot list` names those there are")
        return _read(fs, number)
    found = listed(fs)
    if not found:
        raise SpaceError("there is no snapshot that is whole: `xaqueue snapshot take` makes one")
    return found[-1]


def damage(
    fs: FileSystem, directory: str, *, bodies: bool = True, pause: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """What is wrong with the snapshot in a directory, a line each. Raises OSError.

    bodies: whether every block is read. The rest is its manifest, its names and what was copied. pause: called between
    two pieces of them; raises where it is given up.
    """
    try:
        made = manifest.read(fs, directory)
    except SpaceError as error:
        yield str(error)
        return
    names = manifest.files_below(fs, directory)
    if manifest.crc_of(names) != made.names:
        for path in names:
            if not manifest.is_copied(path):  # else an older xaqueue has found it in the space: a restore leaves it out
                yield f"{directory}/{path} is none of the files that a snapshot has"
        yield f"{directory}: it has {len(names):,} files, and not the {made.files:,} that it was made with"
    for path, crc in made.copies.items():
        if path in names and manifest.read_same(fs, f"{directory}/{path}", crc) is None:
            yield f"{directory}/{path} is not what it was when it was copied"
    if bodies:
        yield from _damaged_blocks(fs, directory, made, names, pause)


def _damaged_blocks(
    fs: FileSystem, directory: str, made: Manifest, names: list[str], pause: Callable[[], object]
) -> Iterator[str]:
    checksums: dict[str, int] = {}
    if manifest.crc_of(names) == made.names:  # else nobody can tell whose they are
        try:
            checksums = manifest.read_checksums(fs, directory, made, names)
        except SpaceError as error:
            yield str(error)
    for count, path in enumerate(names):
        if count % manifest.PIECE == 0:
            pause()
        if layout.is_recorded(path):
            try:
                block = decode(read_checked(fs, f"{directory}/{path}"))
            except (DamagedBlock, FileNotFoundError) as error:
                yield f"{directory}/{path} is damaged: {error}"
            else:
                if checksums.get(path, 0) not in (0, block.checksum):
                    yield f"{directory}/{path} is damaged: it is another block than when the snapshot was taken"


def check(fs: FileSystem, number: int, now_us: int, pause: Callable[[], object] = lambda: None) -> list[str]:
    """As ``damage``; noted beside it, where that can be written, for ``statuses``. Nothing is found in one that is
    removed meanwhile. Raises OSError, and what pause does."""
    directory = f"{SNAPSHOTS}/{number}"
    found = []
    try:
        found = list(damage(fs, directory, pause=pause))
    except FileNotFoundError:
        if fs.exists(directory):
            raise
    if not fs.exists(directory):
        return []
    text = found[0] + (f", and so it is with {len(found) - 1:,} more" if len(found) > 1 else "") if found else ""
    new = f"{directory}/.{CHECKED}.new"
    with suppress(OSError):  # another user's, or read-only: who asked is told all the same
        discard(fs, new)
        fs.create(new, [json.dumps({"at": now_us, "problem": text}).encode() + b"\n"])
        fs.sync_file(new)
        fs.rename(new, f"{directory}/{CHECKED}")
        fs.sync_dir(directory)
    return found


def statuses(fs: FileSystem) -> list[SnapshotStatus]:
    """Of all, with what a check found, and when. Raises OSError."""
    whole = [replace(one.status, **_checked(fs, one.number)) for one in listed(fs)]
    suspect = [SnapshotStatus(number, 0, "", 0, 0, 0, 0, problem) for number, problem in suspects(fs)]
    return sorted((*whole, *suspect), key=lambda one: one.number)


def trouble(fs: FileSystem, root: Path, definitions: Definitions, now_us: int) -> list[str]:
    """Why snapshots that are taken by themselves, or their copies, would be of little help now."""
    policy, found = policy_of(definitions), list[str]()
    late_us = 2 * policy.interval_min * 60_000_000
    own = _readable(fs) if late_us else []
    if not own:  # the first is on its way
        return []
    if now_us - own[-1].taken_at > late_us:
        found.append(f"no snapshot was taken in twice the {policy.interval_min:,} minutes of interval_min: see the log")
    if problem := _checked(fs, own[-1].number).get("problem"):
        found.append(f"snapshot {own[-1].number}, the newest, is damaged: {problem}")
    if policy.path:
        place = root / policy.path
        with closing(DirectoryFileSystem(place, keep_unsynced=False)) as there:
            copied = _readable(there)
        if not copied or now_us - copied[-1].taken_at > late_us:
            found.append(f"no snapshot of late is in [snapshots] path = {policy.path!r}: the log says why")
        elif place.stat().st_dev == root.stat().st_dev:
            found.append(f"[snapshots] path = {policy.path!r} is on the disk of the space: mount another one there")
    return found


def _readable(fs: FileSystem) -> list[Manifest]:
    with suppress(OSError):  # another user's, or no disk
        return listed(fs)
    return []


def _checked(fs: FileSystem, number: int) -> dict[str, Any]:
    with suppress(OSError, ValueError, TypeError, KeyError):  # damaged: as if nobody had looked
        said = json.loads(fs.read(f"{SNAPSHOTS}/{number}/{CHECKED}", MOST_CHECKED_BYTES))
        return {"checked_at": int(said["at"]), "problem": str(said["problem"])}
    return {}


def remove(fs: FileSystem, numbers: Sequence[int]) -> None:
    """Raises InvalidArgument where one is not there, and removes none; OSError."""
    missing = sorted(set(numbers) - set(_numbers(fs)))
    if missing:
        raise InvalidArgument(
            f"there is no snapshot {missing[0]}, and none was removed: `xaqueue snapshot list` names those there are"
        )
    for number in numbers:
        with suppress(FileNotFoundError):  # somebody was faster
            going = _set_aside(fs, f"{number}")
            fs.sync_dir(SNAPSHOTS)
            remove_tree(fs, going)


def _set_aside(fs: FileSystem, name: str) -> str:
    """Where it is removed from."""
    going = f"{SNAPSHOTS}/{REMOVING}{name}"
    if fs.exists(going):
        remove_tree(fs, going)
    fs.rename(f"{SNAPSHOTS}/{name}", going)
    return going


def next_number(fs: FileSystem) -> int:
    """Above all that are there, suspect ones too. Raises OSError."""
    return max(_numbers(fs), default=0) + 1


def keep(fs: FileSystem, count: int, now_us: int) -> list[int]:
    """Removes all but the newest so many that are whole, 0 for all of them; returns their numbers. Raises OSError.

    What damages the space is in each new one: of those that were read, the newest in which nothing was found stays. One
    that is being copied is not among these; one that was to be, and was left for a day, goes.
    """
    found = listed(fs)
    old = [one.number for one in found if one.is_held and now_us - one.taken_at > HELD_US]
    if count:
        numbers = [one.number for one in found if not one.is_held]
        good = next((number for number in reversed(numbers) if _checked(fs, number).get("problem") == ""), None)
        old += [number for number in numbers[:-count] if number != good]
    remove(fs, old)
    return old


def prune_journal(fs: FileSystem, keep_bytes: int = 0, *, for_snapshots: bool = True) -> None:
    """Of the journal that is kept what lies before the oldest snapshot goes. Raises OSError.

    keep_bytes: so much of the newest stays all the same, for replicas. for_snapshots: whether it is kept for these.
    """
    oldest = min(((one.journal, one.lsn) for one in listed(fs) if one.lsn and for_snapshots), default=None)
    kept = 0
    for segment in reversed(_kept_journal(fs)):
        kept += segment.size
        if kept > keep_bytes and (oldest is None or (segment.epoch, segment.end) <= oldest):
            discard(fs, f"{KEPT_JOURNAL}/{segment.name}")


def _kept_journal(fs: FileSystem) -> list[Segment]:
    """Its segments. Somebody else may be pruning it: what goes while this looks is looked for no more."""
    while True:
        with suppress(FileNotFoundError):
            return headers(fs, KEPT_JOURNAL)[0]


def prune_for(fs: FileSystem, definitions: Definitions) -> None:
    """As queues.toml has it. Raises OSError."""
    replication = replica.policy_of(definitions)
    is_kept = policy_of(definitions).point_in_time or not replication.is_on
    prune_journal(fs, replication.keep_bytes, for_snapshots=is_kept)


def journal_epoch(fs: FileSystem) -> int:
    """The highest of a journal that snapshots tell of, or that is kept; 0 for none. No later one may be taken for it.
    Raises OSError.
    """
    names = block_files.listed(fs, KEPT_JOURNAL)
    return max([said.epoch for name in names if (said := parse_name(name))] + [one.journal for one in listed(fs)] + [0])


def give_up_restore(fs: FileSystem) -> None:
    """One that was cut off before it touched the space, or when all was done, is never finished from now on: it would
    put back what it found then. For who has opened the space, which has its FORMAT. Raises OSError.
    """
    if fs.exists(RESTORE_READY):
        fs.unlink(RESTORE_READY)
        fs.sync_dir(RESTORE_READY.partition("/")[0])


def retire_unfinished(fs: FileSystem) -> None:
    """For who takes a space over: what its former owner is making gets no number, however late that is asked for.
    Raises OSError."""
    for name in fs.list(SNAPSHOTS) if fs.is_dir(SNAPSHOTS) else ():
        if name.startswith(".") and not name.startswith(REMOVING):
            with suppress(FileNotFoundError):  # it has its number by now
                _set_aside(fs, name)


def remove_unfinished(fs: FileSystem) -> None:
    """What was cut off while it was made or removed. Raises OSError."""
    for name in fs.list(SNAPSHOTS):
        if name.startswith("."):
            remove_tree(fs, f"{SNAPSHOTS}/{name}")


def remove_tree(fs: FileSystem, path: str) -> None:
    """A file, or a directory with all that is in it. Somebody else may be at it, too. Raises OSError."""
    with suppress(FileNotFoundError):
        try:
            fs.unlink(path)
        except IsADirectoryError:
            for name in fs.list(path):
                remove_tree(fs, f"{path}/{name}")
            fs.remove_dir(path)
