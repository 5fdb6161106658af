"""What a space is and holds can be seen without owning it, also while its owner works in it.

Nothing here writes or locks. The journal is read, too, where there is one: what it says is so, whether the directories
have it yet or not. What is said of a live space is true of some moment while it was read: files that vanish meanwhile
have moved on and are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xaqueue.carried import CarrierStatus
from xaqueue.core.engine import disk_space
from xaqueue.core.engine.taking import message_of
from xaqueue.core.model import layout, message_name, records
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.format import Format, read_format
from xaqueue.core.model.order import Order
from xaqueue.core.owner.definitions_file import hardening_of, usable_definitions
from xaqueue.core.owner.record import Owner
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.prepared import Verdict
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.features.ages.options import ends_at
from xaqueue.features.carry import carrier_note
from xaqueue.features.counters import counters
from xaqueue.features.counters.values import Counters, Counting
from xaqueue.features.kinds import KINDS
from xaqueue.features.replica.replicated import ReplicationStatus
from xaqueue.features.retries.options import limit_of
from xaqueue.features.snapshots import restored, store
from xaqueue.features.streams.message_files import QueueMessages, message_names
from xaqueue.features.topics.options import TopicStatus, topic_list
from xaqueue.message import Message, MessageId
from xaqueue.offline import aside
from xaqueue.offline.aside import Aside
from xaqueue.offline.inspect_branches import InDoubt, in_doubt_in
from xaqueue.offline.queue_files import QueueFiles, share
from xaqueue.offline.reader import queues_in, watermark_in
from xaqueue.offline.redo_view import JournalRead, look_into, of_those_there, segments_in

Place = tuple[tuple[int, MessageId, str], str]
"""Number, id and tags of a message, and its name."""
UNDEFINED = "undefined"
"""Stands for the order of a queue that has messages and no definition."""


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
    ready: int = 0
    """Messages that wait for nothing but their turn. The others are ``delayed``, ``held`` or ``exhausted``."""
    delayed: int = 0
    """Messages that wait for their time."""
    held: int = 0
    """Messages that branches hold, or, where the owner was not asked, that prepared ones hold."""
    in_doubt: int = 0
    """Of those, what branches in doubt hold."""
    oldest: int | None = None
    """When the first that is ready was committed, int microseconds UTC; None where none is, or very many that are not
    ready are before it."""
    size_bytes: int = 0
    """Of its messages' files."""
    is_estimated: bool = False
    """Of ``size_bytes``: by the sizes of some of them, for there are very many."""
    consumers: int | None = None
    """Sessions that wait for a message of it now; None where there is an owner that was not asked."""
    exhausted: int = 0
    """Messages that had all their tries, are given to nobody, and are to move to the failure queue."""
    stuck: str = ""
    """Why messages cannot be moved to another queue, where the owner was asked."""
    full: str = ""
    """The limit by which it is full, where the owner was asked."""
    used: float = 0.0
    """The share of its max_messages or max_bytes that it has, where the owner was asked; 0 without limits."""
    counters: Counters = field(default_factory=Counters)

    @property
    def locked(self) -> int | None:
        """Messages that branches at work hold; None where only the owner knows, which was not asked. They are among
        those that are ready, or delayed, then."""
        return None if self.consumers is None else self.held - self.in_doubt

    @property
    def is_known(self) -> bool:
        """It is defined, or something is left of it: one that was undefined is not listed."""
        return self.order != UNDEFINED or bool(self.depth or self.stream)

    @property
    def lag(self) -> int:
        """Numbers that were published and that the stream has not consumed."""
        return max(0, (self.watermark or 0) - self.consumed) if self.stream else 0


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """``end`` is the LSN of the next record; everything below ``checkpoint`` is durable in the directories."""

    end: int
    checkpoint: int
    segments: int
    allocated_bytes: int
    ahead: int
    """Records since the checkpoint."""
    damage: str = ""
    """What is wrong with it; then the other figures are those of its files."""


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
    carriers: list[CarrierStatus] = field(default_factory=list)
    """Databases that carry changes of it, or did."""
    cache: tuple[int, int] | None = None
    """Reads that an owner with a journal answered from memory, and those from files, as it has said last."""
    aside: list[Aside] = field(default_factory=list)
    """What was set aside: of quarantine/, of segments of the journal, and of what a restore has replaced."""
    scrubbed: tuple[int, str] | None = None
    """When the last scrub came to its end, and what it found."""
    replication: ReplicationStatus | None = None
    """What it is to a replica, or as one."""
    state: str = ""
    """Of an owner at work: "recovering", "ready" or "read-only"; "alive" where it does not say; else empty."""
    counting: Counting | None = None
    """Since when the queues are counted; None where that is not written, or damaged."""
    topics: list[TopicStatus] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    """What is wrong with those that are taken by themselves."""

    @property
    def recovery(self) -> str:
        """What the last open reported; empty before the first."""
        return self.owner.recovery if self.owner is not None else ""

    @property
    def trouble(self) -> str:
        """Why the owner is fenced, or the last one was; else empty."""
        return self.owner.trouble if self.owner is not None else ""


def status(path: str | os.PathLike[str]) -> Status:
    """What the space is and holds. Raises SpaceError where the directory is none."""
    looked = look_into(path)
    owned, owner, fs = looked.owned, looked.owner, looked.fs
    definitions, _ = definitions_in(path)
    hardening = hardening_of(owner.sync if owned and owner is not None else None, definitions)
    waiting = in_doubt_in(fs, looked.again)
    counted, counting = counters.read(fs), None
    if counted is not None and owner is not None:
        counting = counters.found_by(counted[0], owner.epoch if owned else owner.epoch + 1, time.time_ns() // 1000)
    doubtful = [branch for branch in waiting if branch.state == Verdict.IN_DOUBT.value]
    return Status(
        **fields_of_files(path, fs, owner, looked.journal, definitions),
        owned=owned,
        sync=str(hardening),
        promise=hardening.promise,
        queues=queue_list_in(fs, definitions, waiting, owned=owned),
        active=_unprepared(fs),
        carriers=carrier_note.statuses(fs, owned=owned),
        in_doubt=len(doubtful),
        damaged=sum(1 for branch in doubtful if branch.damage),
        committing=sum(1 for branch in waiting if branch.state == Verdict.COMMITTING.value),
        heuristic=sum(1 for branch in waiting if branch.decision is not None),
        cache=(counting.hits, counting.misses) if counting and owned and hardening.journal else None,
        counting=counting,
        state=((owner.state if owner is not None else "") or "alive") if owned else "",
    )


def fields_of_files(
    path: str | os.PathLike[str], fs: FileSystem, owner: Owner | None, seen: JournalRead, definitions: Definitions
) -> dict[str, Any]:
    """Those of a ``Status`` that only the directory tells, also to its owner."""
    left = fs.room()
    return {
        "directory": os.fspath(path),
        "format": read_format(path),
        "owner": owner,
        "quarantined": sum(1 for name in listed(fs, layout.QUARANTINE) if not name.endswith(".reason")),
        "free_bytes": left.free_bytes,
        "free_inodes": left.free_inodes if left.total_inodes else None,
        "low": disk_space.refusal(definitions, left),
        "complaint": definitions_in(path)[1],
        "topics": topic_list(definitions),
        "snapshots": store.trouble(fs, Path(path), definitions, time.time_ns() // 1000),
        "aside": aside.totals(fs),
        "journal": journal_status(fs, seen),
        **{name: said for kind in KINDS for name, said in kind.view(fs).items()},
    }


def queue_list(path: str | os.PathLike[str]) -> list[QueueStatus]:
    """The queues that are defined or have a directory, sorted. Raises SpaceError."""
    looked = look_into(path)
    return queue_list_in(looked.fs, definitions_in(path)[0], in_doubt_in(looked.fs, looked.again), owned=looked.owned)


def queue_list_in(
    fs: FileSystem, definitions: Definitions, branches: Iterable[InDoubt], *, owned: bool
) -> list[QueueStatus]:
    """As ``queue_list``, of the space behind a port. branches: of ``in_doubt``."""
    kept = {queue for kind in KINDS for queue in kind.queues(fs)}
    names = sorted({*queues_in(fs), *definitions.queues, *kept})
    held: dict[str, dict[str, bool]] = {}
    for branch in branches:
        for content in branch.held if branch.decision is None else ():
            held.setdefault(content.queue, {})[content.message_id.hex()] = branch.state == Verdict.IN_DOUBT.value
    files, known = QueueFiles(fs, time.time_ns() // 1000, share(len(names))), (counters.read(fs) or (None, {}))[1]
    found = (
        replace(
            _queue(fs, name, definitions, files, held.get(name, {})),
            counters=known.get(name, Counters()),
            consumers=None if owned else 0,
        )
        for name in names
    )
    return [queue for queue in found if queue.is_known]


def depths_in(fs: FileSystem, names: Iterable[str]) -> dict[str, int]:
    """How many messages these queues have, with those that branches hold."""
    return {name: len(message_names(fs, name)) for name in names}


def message_ids(path: str | os.PathLike[str], queue: str) -> set[bytes]:
    """Of all messages of a queue."""
    names = message_names(look_into(path).fs, queue)
    return {place[1] for name in names if (place := message_name.parse(name)) is not None}


def check_known(path: str | os.PathLike[str], queue: str) -> str:
    """The queue's name, if it has messages or a definition. Raises UnknownQueue, SpaceError, InvalidArgument."""
    if queue not in queues_in(look_into(path).fs):
        usable_definitions(path)[0].find(queue)
    return queue


def definitions_in(path: str | os.PathLike[str]) -> tuple[Definitions, str]:
    try:
        return usable_definitions(path)
    except InvalidArgument as error:
        return Definitions(), str(error)


def described(definitions: Definitions, queue: str) -> tuple[str, str]:
    """Order and description of a queue, in words."""
    definition = definitions.of(queue)
    return (definition.order.value, definition.description) if definition is not None else (UNDEFINED, "")


def _queue(
    fs: FileSystem, name: str, definitions: Definitions, files: QueueFiles, held: Mapping[str, bool]
) -> QueueStatus:
    watermark, (order, description) = _watermark(fs, name), described(definitions, name)
    messages, definition = QueueMessages(fs, name), definitions.of(name)
    limit = limit_of(name, definition) if definition is not None else 0
    seen = files.glance(name, messages, held, limit)._asdict()
    for kind in KINDS:
        seen |= kind.view_queue(fs, name)
    return QueueStatus(name, order, description, len(messages.names), watermark, **seen)


def _watermark(fs: FileSystem, queue: str) -> int | None:
    """As ``watermark_in``; None also where its file cannot be read."""
    try:
        return watermark_in(fs, queue)
    except OSError:
        return None


def journal_status(fs: FileSystem, seen: JournalRead) -> JournalStatus | None:
    """Of a journal that was read; None where there is none."""
    if seen.found is not None:
        return JournalStatus(seen.found.position, seen.found.checkpoint, *_files(fs), len(seen.records))
    return JournalStatus(0, 0, *_files(fs), 0, seen.damage) if seen.damage else None


def _files(fs: FileSystem) -> tuple[int, int]:
    """How many segments there are, and their bytes."""
    sizes = list(of_those_there(fs.size, segments_in(fs)))
    return len(sizes), sum(sizes)


def browse(
    path: str | os.PathLike[str], queue: str, damaged: Callable[[int, str], None], id_digits: str = ""
) -> Iterator[Message]:
    """What is committed, in the order of the queue; also what is locked or not due yet, and nothing that has expired.

    damaged: called with the number of a message that cannot be read, and why. id_digits: with which its id begins.
    Raises SpaceError.
    """
    looked = look_into(path)
    fs = looked.fs
    messages, hex_id = QueueMessages(fs, queue, damaged), message_name.ID_DIGITS
    names = [name for name in sorted(messages.names) if name[hex_id].startswith(id_digits)]
    places = [(place, name) for name in names if (place := message_name.parse(name))]
    upto = _watermark(fs, queue) if looked.owned else None  # what is above is not acknowledged, or the next open's
    if upto is not None:
        places = [found for found in places if found[0][0] <= upto]
    retries, past = records.read_retries(fs, queue), restored.read(fs)
    definition = _defined(path, queue)
    for (seq, message_id, _), name in _ordered(places, definition.order):
        where, retry = messages.path(name) or "", retries.get((seq, message_id))
        try:
            message = message_of(queue, seq, message_id, messages.read(name), retry.tries if retry else 0)
            ends = ends_at(fs, where, message, definition)
        except FileNotFoundError:
            continue  # consumed meanwhile
        except DamagedBlock as damage:
            damaged(seq, str(damage))
            continue
        message.properties.possible_duplicate |= past.came_back(queue, seq)
        if ends > time.time_ns() // 1000:
            yield message


def _defined(path: str | os.PathLike[str], queue: str) -> QueueDefinition:
    definitions, _ = definitions_in(path)  # what is wrong with them is said by status
    return definitions.of(queue) or QueueDefinition()


def _ordered(places: list[Place], order: Order) -> list[Place]:
    if order is Order.LIFO:
        return places[::-1]
    if order is Order.PRIORITY:
        return sorted(places, key=lambda place: -message_name.read_tags(place[0][2]).priority)
    return places


def _unprepared(fs: FileSystem) -> int:
    """How many branches have blocks in ``active/``, and none in ``prepared/``."""
    found, _ = prepared.branches(fs, layout.ACTIVE)
    prepared_too = {parsed[0] for name in listed(fs, layout.PREPARED) if (parsed := layout.parse_block(name))}
    return len(found.keys() - prepared_too)
