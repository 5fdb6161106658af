"""The methods that concern the server as a whole: who is there, what it holds, and how it is drained.

    branch     {"xid": xid, "state": "active", "in doubt" or "committing", "since": int microseconds UTC}
    drained    {"draining": bool, "active": count, "in_doubt": count, "left": [branch], the oldest first}
    status     the fields of ``xaqueue.space.offline.inspect.Status``, from the server's memory, and
      sessions      how many are open
      waiting       how many of them wait for a message
      draining      whether new branches are refused

``since`` is when a branch was begun, or prepared; 0 where nobody knows. Not counted: what is decided or rolled back
already, and only waits for somebody to be told so. What only files tell of a space (room, journal, quarantine,
queues.toml) is read from them, beside the loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xaqueue.errors import InvalidArgument
from xaqueue.rpc import wire
from xaqueue.space.engine import disk_space as room
from xaqueue.space.engine.state import Space
from xaqueue.space.model import layout
from xaqueue.space.model.block import Kind
from xaqueue.space.model.branch import HEURISTICS, Branch, State
from xaqueue.space.model.format import Format, read_format
from xaqueue.space.offline import inspect
from xaqueue.space.offline.inspect import QueueStatus, Status
from xaqueue.space.offline.inspect_journal import JournalStatus, journal_status
from xaqueue.space.owner.open import READ_ONLY, READY, Owner, read_definitions, read_owner
from xaqueue.space.recovery import prepared
from xaqueue.space.recovery.prepared import Verdict
from xaqueue.storage.fs import DirectoryFileSystem, Room

if TYPE_CHECKING:
    from xaqueue.rpc.server.authorizer import Caller

KEY_BYTES = 16
"""Of a session's key, at least."""
LISTED = 1000
"""Branches of one answer, at most."""
ACTIVE = "active"


def hello(caller: Caller, said: Any = None) -> dict[str, Any]:
    """What a lost session has sent, and this server has not read yet, is never read: its client goes on here."""
    given = said if isinstance(said, Mapping) else {}
    protocol = given.get("protocol", wire.PROTOCOL)
    if type(protocol) is not int or protocol < 1:
        raise InvalidArgument(f"protocol {protocol!r} is refused: this server speaks 1 to {wire.PROTOCOL}")
    key, lost = _key(given, "session"), _key(given, "instead_of")
    caller.key = key or caller.key
    if lost is not None:
        caller.cut(lost)
    definitions = caller.session.space.definitions
    return {
        "protocol": min(protocol, wire.PROTOCOL),
        "sync": str(caller.session.space.hardening),
        "epoch": caller.session.space.epoch,
        "queues": sorted(definitions.queues),
        "any_queue": definitions.default is not None,
        "max_body_bytes": definitions.max_body_bytes,
    }


def _key(given: Mapping[Any, Any], name: str) -> bytes | None:
    key = given.get(name)
    if key is not None and not (isinstance(key, bytes) and KEY_BYTES <= len(key) <= 4 * KEY_BYTES):
        raise InvalidArgument(f"the {name} is refused: {KEY_BYTES} to {4 * KEY_BYTES} random bytes are wanted")
    return key


def echo(caller: Caller, value: Any = None) -> Any:
    return value


def close(caller: Caller) -> None:
    """What the session has active is rolled back; nothing more is taken of it."""
    caller.session.close()


def status(caller: Caller) -> dict[str, Any]:
    return caller.status()


class OpenBranches(NamedTuple):
    """Branches that are neither prepared nor over, and those that are prepared and not finished."""

    active: list[Branch]
    in_doubt: list[Branch]


def left(space: Space) -> OpenBranches:
    found = OpenBranches([], [])
    with space.lock:
        for branch in space.branches.values():
            if branch.decided is not None:
                continue
            if branch.base in (State.PREPARED, State.COMMITTING):
                found.in_doubt.append(branch)
            elif branch.base in _UNPREPARED:
                found.active.append(branch)
    return found


def drain(caller: Caller, on: Any = None) -> dict[str, Any]:
    """Takes no new branches from here on (true), or takes them again (false); nil only asks. Tells what is left."""
    if on is not None and not isinstance(on, bool):
        raise InvalidArgument(f"drain of {on!r} is refused: true, false or nil is wanted")
    space = caller.session.space
    if on is not None:
        space.draining = on
    found = left(space)
    listed = sorted(
        (_branch_to(space, branch) for branch in (*found.active, *found.in_doubt)), key=lambda b: b["since"]
    )
    counts = {"active": len(found.active), "in_doubt": len(found.in_doubt)}
    return {"draining": space.draining, **counts, "left": listed[:LISTED]}


def _branch_to(space: Space, branch: Branch) -> dict[str, Any]:
    if branch.base is State.COMMITTING:
        state = Verdict.COMMITTING.value
    elif branch.base is State.PREPARED:
        state = Verdict.IN_DOUBT.value
    else:
        state = ACTIVE
    return {"xid": branch.xid, "state": state, "since": _since(space, branch)}


def _since(space: Space, branch: Branch) -> int:
    if branch.prepared_at or not branch.begun:
        return branch.prepared_at
    return space.now_us() - int((time.monotonic() - branch.begun) * 1_000_000)


_UNPREPARED = (State.ACTIVE, State.IDLE, State.ROLLBACK_ONLY)


SERVICE_METHODS = (hello, echo, close, status, drain)


class _Files(NamedTuple):
    """What is read from the directory."""

    format: Format
    owner: Owner | None
    complaint: str
    room: Room
    quarantined: int
    journal: JournalStatus | None


def status_in(space: Space, root: Path, sessions: int) -> dict[str, Any]:
    """Waits until recovery is done. Raises SpaceError, ResourceFailed."""
    space.wait_until_loaded()
    found = space.waiting.run(partial(_files, root))
    branches, decided = left(space), [b for b in space.branches.values() if b.base in HEURISTICS or b.decided]
    made = Status(
        directory=str(root),
        format=found.format,
        owner=found.owner,
        owned=True,
        sync=str(space.hardening),
        promise=space.hardening.promise,
        queues=queue_list(space),
        active=len(branches.active),
        in_doubt=sum(1 for branch in branches.in_doubt if branch.base is not State.COMMITTING),
        damaged=sum(1 for branch in branches.in_doubt if branch.damage and branch.base is not State.COMMITTING),
        committing=sum(1 for branch in branches.in_doubt if branch.base is State.COMMITTING),
        heuristic=len(decided),
        quarantined=found.quarantined,
        free_bytes=found.room.free_bytes,
        free_inodes=found.room.free_inodes if found.room.total_inodes else None,
        low=room.refusal(space.definitions, found.room),
        complaint=found.complaint,
        journal=found.journal,
        cache=(log.hits, log.misses) if (log := space.journal_log) is not None else None,
        state=READY if space.read_only is None else READ_ONLY,
    )
    with space.lock:
        waiting = len({number for branch in space.branches.values() for number in branch.working})
    return {**wire.encode(made), "sessions": sessions, "waiting": waiting, "draining": space.draining}


def queue_list(space: Space) -> list[QueueStatus]:
    """The queues that are defined or have a directory, sorted."""
    definitions = space.definitions
    with space.lock:
        used = (name for name, queue in space.queues.items() if queue.exists or queue.last or queue.record)
        names = {*definitions.queues, *used}
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


def status_of(answer: Mapping[str, Any]) -> Status:
    """What ``status`` of the directory would show, of a server's answer. Raises MalformedFrame."""
    return wire.decode(Status, answer)
