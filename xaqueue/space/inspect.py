"""What a space is and holds can be seen without owning it, also while its owner works in it.

Nothing here writes or locks. What is told of a live space is true of some moment while it was read: files that
vanish meanwhile have moved on and are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from xaqueue.command import Kind, decode, unpack_list
from xaqueue.errors import DamagedBlock, InvalidArgument, SpaceError
from xaqueue.message import MessageId
from xaqueue.space import heuristic, layout, room, stream_records, survey
from xaqueue.space.attach import FLAGS_VARIABLE, Owner, is_owned, read_definitions, read_owner
from xaqueue.space.checkpointer import parse_counters
from xaqueue.space.definitions import Definitions
from xaqueue.space.format import Format, read_format
from xaqueue.space.heuristic import Decision
from xaqueue.space.inspect_journal import JournalStatus, journal_status
from xaqueue.space.reader import QueueReader, queues
from xaqueue.space.survey import Holds, Standing, Verdict
from xaqueue.storage.flags import DEFAULT, Hardening
from xaqueue.storage.fs import DirectoryFileSystem, FileSystem
from xaqueue.xid import Xid

UNDEFINED = "undefined"
"""Stands for the order of a queue that has messages and no definition."""
WRITING_S = 0.02
"""How long an owner may take to write a small file that is seen to be short."""


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


@dataclass(frozen=True, slots=True)
class Content:
    """A message that a branch adds or holds. ``size_bytes`` of its file; None where only its name is known."""

    queue: str
    message_id: MessageId
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A branch that waits for its transaction manager, or that an operator decided and nobody forgot yet."""

    xid: Xid
    state: str
    since: int
    """When it was prepared, or decided; int microseconds UTC, 0 where that is lost."""
    added: list[Content]
    held: list[Content]
    damage: list[str]
    decision: Decision | None = None


def status(path: str | os.PathLike[str], environment: Mapping[str, str] = os.environ) -> Status:
    """What the space is and holds. Raises SpaceError where the directory is none."""
    written = read_format(path)
    owned, owner = is_owned(path), read_owner(path)
    definitions, complaint = _definitions(path)
    hardening = _hardening(owner if owned else None, definitions, environment)
    fs = _files(path)
    left = fs.room()
    waiting = in_doubt(path)
    doubtful = [branch for branch in waiting if branch.state == Verdict.IN_DOUBT.value]
    aside = survey.listed(fs, layout.QUARANTINE)
    return Status(
        directory=os.fspath(path),
        format=written,
        owner=owner,
        owned=owned,
        sync=str(hardening),
        promise=hardening.promise,
        queues=queue_list(path, definitions),
        active=len(survey.branches(fs, layout.ACTIVE)[0]),
        in_doubt=len(doubtful),
        damaged=sum(1 for branch in doubtful if branch.damage),
        committing=sum(1 for branch in waiting if branch.state == Verdict.COMMITTING.value),
        heuristic=sum(1 for branch in waiting if branch.decision is not None),
        quarantined=sum(1 for name in aside if not name.endswith(".reason")),
        free_bytes=left.free_bytes,
        free_inodes=left.free_inodes if left.total_inodes else None,
        low=room.refusal(definitions, left),
        complaint=complaint,
        journal=journal_status(fs, owner, owned),
        cache=_counters(fs) if owned and hardening.journal else None,
        state=((owner.state if owner is not None else "") or "alive") if owned else "",
    )


def queue_list(path: str | os.PathLike[str], definitions: Definitions | None = None) -> list[QueueStatus]:
    """The queues that are defined or have a directory, sorted. Raises SpaceError."""
    if definitions is None:
        definitions, _ = _definitions(path)
    fs = _files(path)
    reserved = {queue for name in survey.listed(fs, layout.STREAMS) if (queue := layout.parse_queue_directory(name))}
    return [_queue(path, fs, name, definitions) for name in sorted({*queues(path), *definitions.queues, *reserved})]


def depths(path: str | os.PathLike[str], names: Iterable[str]) -> dict[str, int]:
    """How many messages these queues have, with those that branches hold."""
    return depths_in(_files(path), names)


def depths_in(fs: FileSystem, names: Iterable[str]) -> dict[str, int]:
    """As ``depths``, of the space behind a port."""
    return {name: len(survey.message_names(fs, name)) for name in names}


def check_known(path: str | os.PathLike[str], queue: str) -> str:
    """The queue's name, if it has messages or a definition. Raises UnknownQueue, SpaceError, InvalidArgument."""
    read_format(path)
    if queue not in queues(path):
        read_definitions(path).find(queue)
    return queue


def in_doubt(path: str | os.PathLike[str]) -> list[InDoubt]:
    """Branches in doubt, committing or decided by an operator, the oldest first. Raises SpaceError."""
    read_format(path)
    return in_doubt_in(_files(path))


def in_doubt_in(fs: FileSystem) -> list[InDoubt]:
    """As ``in_doubt``, of the space behind a port."""
    found = {branch.xid: branch for branch in _prepared(fs)}
    found.update({branch.xid: branch for branch in _decided(fs)})
    return sorted(found.values(), key=lambda branch: (branch.since, str(branch.xid)))


def _counters(fs: FileSystem) -> tuple[int, int] | None:
    try:
        return parse_counters(fs.read(layout.COUNTERS))
    except OSError:
        return None


def _files(path: str | os.PathLike[str]) -> FileSystem:
    return DirectoryFileSystem(Path(path), keep_unsynced=False)


def _definitions(path: str | os.PathLike[str]) -> tuple[Definitions, str]:
    try:
        return read_definitions(path), ""
    except InvalidArgument as error:
        return Definitions(), str(error)


def _hardening(owner: Owner | None, definitions: Definitions, environment: Mapping[str, str]) -> Hardening:
    asked = owner.sync if owner is not None else environment.get(FLAGS_VARIABLE)
    return Hardening.parse(asked) if asked is not None else definitions.sync or DEFAULT


def _queue(path: str | os.PathLike[str], fs: FileSystem, name: str, definitions: Definitions) -> QueueStatus:
    definition = definitions.queues.get(name) or definitions.default
    try:
        watermark: int | None = QueueReader(path, name, even_behind=True).watermark()
    except SpaceError:
        watermark = None
    order = definition.order.value if definition is not None else UNDEFINED
    description = definition.description if definition is not None else ""
    depth = len(survey.message_names(fs, name))
    try:
        record = stream_records.read(fs, name)
    except (DamagedBlock, OSError) as error:
        return QueueStatus(name, order, description, depth, watermark, f"unknown: its record is damaged: {error}")
    if record is None:
        return QueueStatus(name, order, description, depth, watermark)
    stream = "" if record.released else record.stream
    return QueueStatus(name, order, description, depth, watermark, stream, record.consumed)


def _prepared(fs: FileSystem) -> list[InDoubt]:
    files, _ = survey.prepared(fs)
    lost = survey.lost_blocks(fs)
    holds = _holds(fs)
    told = []
    for xid in {**files, **lost}:
        try:
            standing = survey.survey(fs, xid, files.get(xid, {}), lost.get(xid, ()), holds)
            if standing.damage:  # or its owner is writing it just now
                time.sleep(WRITING_S)
                standing = survey.survey(fs, xid, files.get(xid, {}), lost.get(xid, ()), _holds(fs))
        except FileNotFoundError:
            continue  # its owner is finishing it
        if standing.verdict in (Verdict.IN_DOUBT, Verdict.COMMITTING) and (standing.blocks or standing.damage):
            told.append(_told(standing))
    return told


def _told(standing: Standing) -> InDoubt:
    contents: dict[bool, list[Content]] = {True: [], False: []}
    for _, head in standing.blocks:
        held = head.kind is Kind.DEQUEUE
        size = None if held else head.size_bytes
        contents[held].append(Content(head.properties.queue, head.message_id, size))
    return InDoubt(
        standing.xid,
        standing.verdict.value,
        standing.prepared_at,
        contents[False],
        contents[True],
        standing.damage,
    )


def _holds(fs: FileSystem) -> Holds:
    """A queue is listed once, when the first branch asks for one of its messages."""
    known: dict[str, frozenset[str]] = {}

    def holds(queue: str, message_id: MessageId) -> bool:
        if queue not in known:
            known[queue] = survey.ids_in(fs, queue)
        return message_id.hex() in known[queue]

    return holds


def _decided(fs: FileSystem) -> list[InDoubt]:
    found = []
    for name in survey.listed(fs, layout.HEURISTIC):
        path = f"{layout.HEURISTIC}/{name}"
        xid = layout.parse_xid(name)
        if xid is None:
            continue
        try:
            decision = heuristic.read(fs, path)
            rows = unpack_list(decode(fs.read(path)).body)
        except FileNotFoundError:
            continue  # forgotten meanwhile
        except DamagedBlock as damage:
            found.append(InDoubt(xid, "decided, and the record is damaged", 0, [], [], [f"{path}: {damage}"]))
            continue
        added = [Content(row.queue, row.message_id) for row in rows if row.kind is Kind.ENQUEUE]
        held = [Content(row.queue, row.message_id) for row in rows if row.kind is Kind.DEQUEUE]
        state = heuristic.OUTCOMES[decision.outcome].value
        found.append(InDoubt(xid, state, decision.at, added, held, [], decision))
    return found
