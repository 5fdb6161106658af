"""What a served space is and holds: the keys of ``inspect.Status``, from its server's memory, and more.

    sessions      how many are open
    waiting       how many of them wait for a message
    draining      whether new branches are refused

What only files tell (room, journal, quarantine, queues.toml) is read from them, beside the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from xaqueue.errors import InvalidArgument
from xaqueue.rpc.server_methods import left
from xaqueue.rpc.wire import MalformedFrame
from xaqueue.space.engine import disk_space as room
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout
from xaqueue.space.model.block import Kind
from xaqueue.space.model.branch import HEURISTICS, State
from xaqueue.space.model.format import Format, read_format
from xaqueue.space.offline import inspect
from xaqueue.space.offline.inspect import QueueStatus, Status
from xaqueue.space.offline.inspect_journal import JournalStatus, journal_status
from xaqueue.space.owner.open import READ_ONLY, READY, Owner, read_definitions, read_owner
from xaqueue.space.recovery import prepared
from xaqueue.storage.fs import DirectoryFileSystem, Room


class _Files(NamedTuple):
    """What is read from the directory."""

    format: Format
    owner: Owner | None
    complaint: str
    room: Room
    quarantined: int
    journal: JournalStatus | None


def status(space: Space, root: Path, sessions: int) -> dict[str, Any]:
    """Waits until recovery is done. Raises SpaceError, ResourceFailed."""
    space.wait_until_loaded()
    found = space.waiting.run(partial(_files, root))
    branches, decided = left(space), [b for b in space.branches.values() if b.base in HEURISTICS or b.decided]
    told = Status(
        directory=str(root),
        format=found.format,
        owner=found.owner,
        owned=True,
        sync=str(space.hardening),
        promise=space.hardening.promise,
        queues=queue_list(space),
        active=len(branches.active),
        in_doubt=sum(1 for branch in branches.in_doubt if not branch.committing),
        damaged=sum(1 for branch in branches.in_doubt if branch.damage and not branch.committing),
        committing=sum(1 for branch in branches.in_doubt if branch.committing),
        heuristic=len(decided),
        quarantined=found.quarantined,
        free_bytes=found.room.free_bytes,
        free_inodes=found.room.free_inodes if found.room.total_inodes else None,
        low=room.refusal(space.definitions, found.room),
        complaint=found.complaint,
        journal=found.journal,
        cache=(space.lag.hits, space.lag.misses) if space.lag is not None else None,
        state=READY if space.read_only is None else READ_ONLY,
    )
    with space.lock:
        waiting = len({number for branch in space.branches.values() for number in branch.working})
    return {**asdict(told), "sessions": sessions, "waiting": waiting, "draining": space.draining}


def queue_list(space: Space) -> list[QueueStatus]:
    """The queues that are defined or have a directory, sorted."""
    definitions = space.definitions
    with space.lock:
        names = {*definitions.queues, *(name for name, queue in space.queues.items() if queue.exists or queue.record)}
        in_doubt = Counter(
            written.queue
            for branch in space.branches.values()
            if branch.base is State.PREPARED
            for written in branch.blocks
            if written.kind is Kind.DEQUEUE
        )
        return [_queue(space, name, in_doubt[name]) for name in sorted(names)]


def _queue(space: Space, name: str, in_doubt: int) -> QueueStatus:
    definition = space.definitions.queues.get(name) or space.definitions.default
    order = definition.order.value if definition is not None else inspect.UNDEFINED
    description = definition.description if definition is not None else ""
    queue = space.queues.get(name)
    depth = published = held = 0
    if queue is not None:
        published = queue.published
        depth, held = len(queue.index) - queue.leaving, queue.index.locked - queue.leaving
    if queue is None or queue.record is None:
        return QueueStatus(name, order, description, depth, published, held=held, in_doubt=in_doubt)
    stream = "" if queue.keeper is None else queue.record.stream or "unknown: its record is damaged"
    consumed, in_flight = queue.consumed_through, queue.in_flight
    return QueueStatus(name, order, description, depth, published, stream, consumed, in_flight, held, in_doubt)


def _files(root: Path) -> _Files:
    fs, owner = DirectoryFileSystem(root, keep_unsynced=False), read_owner(root)
    try:
        read_definitions(root)
    except InvalidArgument as error:
        complaint = str(error)
    else:
        complaint = ""
    aside = sum(1 for name in prepared.listed(fs, layout.QUARANTINE) if not name.endswith(".reason"))
    return _Files(read_format(root), owner, complaint, fs.room(), aside, journal_status(fs, owner, True))


def _queue_of(told: Mapping[str, Any]) -> QueueStatus:
    in_flight = told.get("in_flight")
    return QueueStatus(**{**told, "in_flight": None if in_flight is None else tuple(in_flight)})


def status_of(told: Mapping[str, Any]) -> Status:
    """What ``status`` of the directory would show, of a server's answer. Raises MalformedFrame."""
    try:
        given = {name: told[name] for name in Status.__dataclass_fields__}
        given["format"] = Format(**given["format"])
        given["owner"] = Owner.of(given["owner"]) if given["owner"] is not None else None
        given["queues"] = [_queue_of(queue) for queue in given["queues"]]
        given["journal"] = JournalStatus(**given["journal"]) if given["journal"] is not None else None
        given["cache"] = tuple(given["cache"]) if given["cache"] is not None else None
        return Status(**given)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFrame(f"{str(told)[:60]} is no status of a space: {error!r}") from None
