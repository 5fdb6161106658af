"""What a space is and holds can be seen without owning it, also while its owner works in it.

Nothing here writes or locks. The journal is read, too, where there is one: what it says is so, whether the directories
have it yet or not. What is told of a live space is true of some moment while it was read: files that vanish meanwhile
have moved on and are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xaqueue.errors import DamagedBlock, InvalidArgument, SpaceError
from xaqueue.space.engine import disk_space
from xaqueue.space.model import layout, stream_records
from xaqueue.space.model.definitions import Definitions
from xaqueue.space.model.format import Format, read_format
from xaqueue.space.offline.inspect_branches import in_doubt_in
from xaqueue.space.offline.inspect_journal import JournalStatus, status_of
from xaqueue.space.offline.redo_view import look_into
from xaqueue.space.owner.checkpointer import parse_counters
from xaqueue.space.owner.open import FLAGS_VARIABLE, Owner, read_definitions
from xaqueue.space.recovery import prepared
from xaqueue.space.recovery.prepared import Verdict
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.hardening import DEFAULT, Hardening

UNDEFINED = "undefined"
"""Stands for the order of a queue that has messages and no definition."""
WATERMARK_TRIES = 50


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue. ``depth`` counts its message files; ``watermark`` is the highest published sequence number."""

    name: str
    order: str
    description: str
    depth: int
    watermark: int | None
    """None where it cannot be read."""
    stream: str = ""
    """For which it is reserved; empty where anybody may take its messages."""
    consumed: int = 0
    """Everything up to this number is consumed by a stream."""
    in_flight: tuple[int, int] | None = None
    """What that stream reads now, above the first number and up to the second, where the owner was asked."""
    held: int = 0
    """Messages that branches hold, where the owner was asked."""
    in_doubt: int = 0
    """Of those, what branches in doubt hold."""

    @property
    def lag(self) -> int:
        """Numbers that were published and that the stream has not consumed."""
        return max(0, (self.watermark or 0) - self.consumed) if self.stream else 0


@dataclass(frozen=True, slots=True)
class Status:
    """A space at one moment."""

    directory: str
    format: Format
    owner: Owner | None
    """The present owner, or the last."""
    owned: bool
    sync: str
    """The flags in force where the space is owned, else those of the next open."""
    promise: str
    queues: list[QueueStatus]
    active: int
    """Branches not yet prepared: at work, or (no owner) left by a crash."""
    in_doubt: int
    damaged: int
    """How many of those in doubt have lost something."""
    committing: int
    heuristic: int
    quarantined: int
    free_bytes: int
    free_inodes: int | None
    """None where the file system does not count them."""
    low: str
    """Why enqueues are refused for want of room, or empty."""
    complaint: str
    """What is wrong with queues.toml, or empty."""
    journal: JournalStatus | None = None
    cache: tuple[int, int] | None = None
    """Reads that an owner with a journal answered from memory, and those from files, about a second ago."""
    state: str = ""
    """Of an owner at work: "recovering", "ready" or "read-only"; "alive" where it does not say; else empty."""

    @property
    def recovery(self) -> str:
        """What the last open reported; empty before the first."""
        return self.owner.recovery if self.owner is not None else ""

    @property
    def trouble(self) -> str:
        """Why the owner is fenced, or the last one was; else empty."""
        return self.owner.trouble if self.owner is not None else ""


def status(path: str | os.PathLike[str], environment: Mapping[str, str] = os.environ) -> Status:
    """What the space is and holds. Raises SpaceError where the directory is none."""
    written = read_format(path)
    looked = look_into(path)
    owned, owner, fs = looked.owned, looked.owner, looked.fs
    definitions, complaint = _definitions(path)
    hardening = _hardening(owner if owned else None, definitions, environment)
    left = fs.room()
    waiting = in_doubt_in(fs, looked.again)
    doubtful = [branch for branch in waiting if branch.state == Verdict.IN_DOUBT.value]
    aside = prepared.listed(fs, layout.QUARANTINE)
    return Status(
        directory=os.fspath(path),
        format=written,
        owner=owner,
        owned=owned,
        sync=str(hardening),
        promise=hardening.promise,
        queues=queue_list_in(fs, definitions),
        active=len(prepared.unprepared(fs)),
        in_doubt=len(doubtful),
        damaged=sum(1 for branch in doubtful if branch.damage),
        committing=sum(1 for branch in waiting if branch.state == Verdict.COMMITTING.value),
        heuristic=sum(1 for branch in waiting if branch.decision is not None),
        quarantined=sum(1 for name in aside if not name.endswith(".reason")),
        free_bytes=left.free_bytes,
        free_inodes=left.free_inodes if left.total_inodes else None,
        low=disk_space.refusal(definitions, left),
        complaint=complaint,
        journal=status_of(fs, looked.journal),
        cache=_counters(fs) if owned and hardening.journal else None,
        state=((owner.state if owner is not None else "") or "alive") if owned else "",
    )


def queue_list(path: str | os.PathLike[str], definitions: Definitions | None = None) -> list[QueueStatus]:
    """The queues that are defined or have a directory, sorted. Raises SpaceError."""
    if definitions is None:
        definitions, _ = _definitions(path)
    return queue_list_in(look_into(path).fs, definitions)


def queue_list_in(fs: FileSystem, definitions: Definitions) -> list[QueueStatus]:
    """As ``queue_list``, of the space behind a port."""
    reserved = {queue for name in prepared.listed(fs, layout.STREAMS) if (queue := layout.parse_queue_directory(name))}
    return [_queue(fs, name, definitions) for name in sorted({*queues_in(fs), *definitions.queues, *reserved})]


def queues_in(fs: FileSystem) -> list[str]:
    """The queues that have a directory, sorted. Raises SpaceError."""
    try:
        names = fs.list(layout.COMMITTED)
    except FileNotFoundError:
        raise SpaceError(f"this is no queue space: it has no {layout.COMMITTED}/ directory") from None
    return sorted(queue for name in names if (queue := layout.parse_queue_directory(name)))


def depths(path: str | os.PathLike[str], names: Iterable[str]) -> dict[str, int]:
    """How many messages these queues have, with those that branches hold."""
    return depths_in(look_into(path).fs, names)


def depths_in(fs: FileSystem, names: Iterable[str]) -> dict[str, int]:
    """As ``depths``, of the space behind a port."""
    return {name: len(prepared.message_names(fs, name)) for name in names}


def check_known(path: str | os.PathLike[str], queue: str) -> str:
    """The queue's name, if it has messages or a definition. Raises UnknownQueue, SpaceError, InvalidArgument."""
    if queue not in queues_in(look_into(path).fs):
        read_definitions(path).find(queue)
    return queue


def _counters(fs: FileSystem) -> tuple[int, int] | None:
    try:
        return parse_counters(fs.read(layout.COUNTERS, 4096))
    except OSError:
        return None


def _definitions(path: str | os.PathLike[str]) -> tuple[Definitions, str]:
    try:
        return read_definitions(path), ""
    except InvalidArgument as error:
        return Definitions(), str(error)


def _hardening(owner: Owner | None, definitions: Definitions, environment: Mapping[str, str]) -> Hardening:
    asked = owner.sync if owner is not None else environment.get(FLAGS_VARIABLE)
    return Hardening.parse(asked) if asked is not None else definitions.sync or DEFAULT


def _queue(fs: FileSystem, name: str, definitions: Definitions) -> QueueStatus:
    definition = definitions.queues.get(name) or definitions.default
    watermark = watermark_in(fs, name)
    order = definition.order.value if definition is not None else UNDEFINED
    description = definition.description if definition is not None else ""
    depth = len(prepared.message_names(fs, name))
    try:
        record = stream_records.read(fs, name)
    except (DamagedBlock, OSError) as error:
        return QueueStatus(name, order, description, depth, watermark, f"unknown: its record is damaged: {error}")
    if record is None:
        return QueueStatus(name, order, description, depth, watermark)
    stream = "" if record.released else record.stream
    return QueueStatus(name, order, description, depth, watermark, stream, record.consumed)


def watermark_in(fs: FileSystem, queue: str) -> int | None:
    """The highest published number of a queue; 0 where there was none yet, None where that cannot be read."""
    path = layout.watermark_path(queue)
    for _ in range(WATERMARK_TRIES):
        try:
            data = fs.read(path, layout.WATERMARK_BYTES)
        except OSError as error:
            return 0 if isinstance(error, FileNotFoundError) else None
        watermark = layout.parse_watermark(data)
        if watermark is not None:
            return watermark.published
        if not data and not prepared.listed(fs, layout.queue_path(queue)):
            return 0  # the queue's first message is on its way, or was when the power went
        time.sleep(0.001)  # half a write was seen
    return None
