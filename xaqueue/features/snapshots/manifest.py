"""The manifest of a snapshot: what it is of, as of when, and what must be in it. JSON, with a CRC-32 over itself.

    {"snapshot": {"number": 7, "space": "xaqueue 1 orders <id>", "taken_at": microseconds UTC, "sync": "JOURNAL",
                  "epoch": 3, "lsn": 4711, "journal": 3, "queues": {"orders": [messages, published, reserved]},
                  "files": count, "names": CRC-32 of the sorted paths, "copies": {path: CRC-32 of its content},
                  "is_held": bool, "checksums": CRC-32 of CHECKSUMS},
     "crc": CRC-32}

Who has it has the whole snapshot: it is made last, before the directory takes its name. Blocks have checksums of their
own; CHECKSUMS has these, 4 bytes little-endian for each path in their order, so that no other block, whole as it may
be, passes for one of them. 0 stands for what is no block, and for one that cannot be read.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from struct import unpack
from typing import Any
from zlib import crc32

from xaqueue.core.model import format, layout, options
from xaqueue.core.model.block import CHECKSUM_OFFSET
from xaqueue.core.model.layout import COMMITTED, FORMAT, NAME_BYTES, OPERATORS, QUARANTINE, QUEUES
from xaqueue.core.storage.fs import NO_ROOM, FileSystem, is_damage
from xaqueue.errors import SpaceError
from xaqueue.message import QUEUE_NAME
from xaqueue.snapshot import SnapshotStatus

SNAPSHOTS = "snapshots"
"""Snapshots by their numbers; made with the first."""
KEPT_JOURNAL = f"{SNAPSHOTS}/journal"
"""The segments that the journal has released since the oldest snapshot, where a moment in between may be asked for."""
MANIFEST = "MANIFEST"
"""In the directory of a snapshot, and nowhere else."""
CHECKSUMS = "CHECKSUMS"
"""Beside it: what each block says of its own content."""
CHECKED = "CHECKED"
"""In a snapshot: what was found when all of it was read."""
_OWN = frozenset({MANIFEST, CHECKSUMS, CHECKED, f".{CHECKED}.new"})
MOST_BYTES = 64 * 1024 * 1024
"""What is longer is none of ours."""
PIECE = 64
"""Blocks between two calls of who may give up."""
_NONE = bytes(4)
_COPIED = re.compile(rf"{COMMITTED}/queue={QUEUE_NAME.pattern}/\.watermark|{QUARANTINE}/(?!\.\.?\Z)[^/\0]+")


def copied() -> tuple[str, ...]:
    """Of the top what a snapshot copies: small, and written in place, or by people."""
    return tuple(chain((FORMAT, QUEUES, OPERATORS), *(kind.copied for kind in options.everything().kinds())))


def is_copied(path: str) -> bool:
    """Whether a snapshot, or a replica's copy of one, may have it: what a record may name, and what is copied beside
    that."""
    if layout.is_recorded(path) or path in copied():
        return True
    return _COPIED.fullmatch(path) is not None and len(os.fsencode(path.rpartition("/")[2])) <= NAME_BYTES


def is_in_place(path: str) -> bool:
    """Whether it is a bitmap of a block of messages, which may be overwritten: it has no other name, but copies."""
    return f"/{layout.GONE}/" in path


@dataclass(frozen=True, slots=True)
class Manifest:
    number: int
    space: str
    """The line of FORMAT."""
    taken_at: int
    """Microseconds UTC."""
    sync: str
    epoch: int
    lsn: int
    """Every change below it is in the snapshot and no other; 0 where there is no journal."""
    queues: dict[str, tuple[int, int, int]]
    """By name: messages, highest published number, highest reserved one."""
    files: int
    names: int
    copies: dict[str, int]
    journal: int = 0
    """The epoch of the journal whose LSN that is."""
    is_held: bool = False
    """Who had it taken copies and removes it: for a day nobody else removes it, and it is none of those to be kept."""
    checksums: int = 0
    """0 for one that was taken without."""

    @property
    def messages(self) -> int:
        return sum(messages for messages, _, _ in self.queues.values())

    @property
    def status(self) -> SnapshotStatus:
        return SnapshotStatus(
            self.number, self.taken_at, self.sync, self.lsn, len(self.queues), self.messages, self.files
        )


def encode(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    return json.dumps({"snapshot": fields, "crc": crc32(_canonical(fields))}, indent=1).encode() + b"\n"


def read(fs: FileSystem, directory: str) -> Manifest:
    """Of the snapshot in this directory. Raises SpaceError where it is missing, damaged or cannot be read, OSError."""
    path = f"{directory}/{MANIFEST}".lstrip("/")
    try:
        document: Any = json.loads(fs.read(path, MOST_BYTES))
        fields = document["snapshot"]
        queues = {name: tuple(numbers) for name, numbers in fields["queues"].items()}
        found = Manifest(**{**fields, "queues": queues})
        space = _check(found)
        is_whole = crc32(_canonical(fields)) == document["crc"]
    except FileNotFoundError:
        raise SpaceError(f"{directory or '.'} is no snapshot: it has no {MANIFEST}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpaceError(f"{path} is damaged ({error}): use another snapshot") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise SpaceError(f"{path} cannot be read ({error.strerror}): use another snapshot") from error
    if not is_whole:
        raise SpaceError(f"{path} is damaged (its checksum is wrong): use another snapshot")
    format.check_version(space, f"snapshot {found.number}")
    return found


def _check(found: Manifest) -> format.Format:
    """What it says of its space. It may have come from elsewhere. Raises ValueError, TypeError."""
    numbers = [found.number, found.taken_at, found.epoch, found.lsn, found.files, found.names, found.journal]
    numbers.append(found.checksums)
    for marks in found.queues.values():
        messages, published, reserved = marks
        numbers += [messages, published, reserved]
    if not all(type(number) is int and 0 <= number < 2**63 for number in (*numbers, *found.copies.values())):
        raise ValueError("a number is none")
    if type(found.is_held) is not bool:
        raise ValueError("is_held is neither true nor false")
    if not all(map(QUEUE_NAME.fullmatch, found.queues)) or not all(map(is_copied, found.copies)):
        raise ValueError("it names what is none of a space")
    space = format.parse(found.space)
    if space is None:
        raise ValueError("it says no space")
    return space


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()


def files_below(fs: FileSystem, directory: str) -> list[str]:
    """Every path below it but the manifest and what a check noted, relative to it, sorted. Raises OSError."""
    found: list[str] = []
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        is_range = "/range=" in inner  # where only files stand, and very many
        for name in fs.list(f"{directory}/{inner}".rstrip("/")):
            path = f"{inner}{name}"
            if not is_range and fs.is_dir(f"{directory}/{path}"):
                waiting.append(f"{path}/")
            else:
                found.append(path)
    return sorted(path for path in found if path not in _OWN)


def crc_of(names: list[str]) -> int:
    return crc32("\n".join(names).encode("utf-8", "surrogateescape"))


def checksums_below(fs: FileSystem, directory: str, names: list[str], check: Callable[[], object]) -> bytes:
    """What CHECKSUMS is to say of these. check: called now and then, since each block is looked into; raises where it
    is given up. Raises OSError."""
    found = []
    for count, path in enumerate(names):
        if count % PIECE == 0:
            check()
        found.append(_checksum(fs, f"{directory}/{path}") if layout.is_recorded(path) else _NONE)
    return b"".join(found)


def _checksum(fs: FileSystem, path: str) -> bytes:
    try:
        return fs.read(path, len(_NONE), CHECKSUM_OFFSET).ljust(len(_NONE), b"\0")
    except OSError as error:
        if not is_damage(fs, path, error):
            raise
        return _NONE


def read_checksums(fs: FileSystem, directory: str, made: Manifest, names: list[str]) -> dict[str, int]:
    """By path; empty for a snapshot that was taken without. Raises SpaceError where they are damaged, OSError."""
    if not made.checksums:
        return {}
    path = f"{directory}/{CHECKSUMS}"
    data = read_same(fs, path, made.checksums, len(names) * len(_NONE) + 1)
    if data is None or len(data) != len(names) * len(_NONE):
        raise SpaceError(f"{path} is missing or damaged")
    return dict(zip(names, unpack(f"<{len(names)}I", data), strict=True))


def read_same(fs: FileSystem, path: str, crc: int, size: int | None = None) -> bytes | None:
    """What stands there, where it has this CRC-32; None where it has not, is gone, or that one file cannot be read.
    Raises OSError."""
    try:
        data = fs.read(path, size)
    except OSError as error:
        if error.errno != errno.ENOENT and not is_damage(fs, path, error):
            raise
        return None
    return data if crc32(data) == crc else None
