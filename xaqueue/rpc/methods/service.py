"""The methods that concern the server as a whole, who is there and what it holds, and those of operators.

Their forms are in ``man/xaqueue.5``. ``since`` is when a branch was begun, or prepared; 0 where nobody knows. Not
counted as left: what is decided or rolled back already, and only waits for somebody to be told so. What only files tell
of a space (room, journal, quarantine, queues.toml) is read from them, beside the loop. Operators do what ``xaqueue
indoubt`` does on the directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from xaqueue.access import ADMIN, BROWSE, EITHER, NOTHING, RESOLVE, Need, Right
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.heuristics import Decision, Forgotten
from xaqueue.core.engine.state import Space
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import HEURISTICS, Branch, State
from xaqueue.core.model.entry import Entry
from xaqueue.core.owner.record import READ_ONLY, READY, read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import ConnectionLost, InvalidArgument, OutcomeUnknown, RetryLater
from xaqueue.features.carry.carriers import carriers_of
from xaqueue.features.counters.counters import counted, counters_of
from xaqueue.features.dedup.options import WINDOW_S
from xaqueue.features.leases.leases import adopt
from xaqueue.features.limits.queue_room import room_of, size_of
from xaqueue.features.replica.shipping import shipping_of
from xaqueue.features.streams.record import record_of
from xaqueue.message import MessageId, check_queue_name
from xaqueue.offline.inspect import QueueStatus, Status, depths_in, described, fields_of_files
from xaqueue.offline.inspect_branches import InDoubt, bodies_in, by_age, pages
from xaqueue.offline.queue_files import share, sum_of
from xaqueue.offline.redo_view import read_journal
from xaqueue.rpc import wire
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.methods.sessions import ACTIVE, UNFINISHED, UNPREPARED, SessionStatus, age_of_oldest, since_of
from xaqueue.rpc.verb import method, methods
from xaqueue.rpc.wire import decode
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

T = TypeVar("T")

Page = tuple[bool, list[dict[str, Any]]]
"""Whether ``indoubt_next`` has more, and some branches."""
KEY_BYTES = 16
"""Of a session's key, at least."""
LISTED = 1000
"""Branches of one answer, at most."""
BODY_SHOWN = 4096
"""Bytes of a body of a branch in doubt."""
IN_DOUBT = (State.PREPARED, State.DELEGATED)


def hello(caller: Caller, said: Any = None) -> dict[str, Any]:
    """What a lost session has sent, and this server has not read yet, is never read: its client goes on here."""
    given = said if isinstance(said, Mapping) else {}
    protocol = given.get("protocol", 1)
    if type(protocol) is not int or protocol < 1:
        raise InvalidArgument(f"protocol {protocol!r} is refused: this server speaks 1 to {wire.PROTOCOL}")
    space = caller.session.space
    space.check_owner()  # who asks one that was taken over is to ask the other one
    caller.is_replica = _is_replica(given.get("replica"), space.id)
    if space.shipping is not None and not caller.is_replica:
        space.shipping.check_shown()
    key, lost = _key(given, "session"), _key(given, "instead_of")
    caller.key = caller.session.key = key or caller.key
    caller.protocol = min(protocol, wire.PROTOCOL)
    if lost is not None:
        caller.host.cut(lost)
        adopt(caller.session, lost)
    definitions = caller.session.space.definitions
    return {
        "protocol": caller.protocol,
        "sync": str(caller.session.space.hardening),
        "space": space.id,
        "epoch": caller.session.space.epoch,
        "queues": sorted(definitions.queues),
        "windows": {name: length_s for name, one in definitions.queues.items() if (length_s := WINDOW_S.of(one))},
        "any_queue": definitions.default is not None,
        "max_body_bytes": definitions.max_body_bytes,
    }


def _is_replica(said: Any, here: str) -> bool:
    """said: the id of the space that it is a copy of, as soon as it is one. An LSN says nothing in another one."""
    if isinstance(said, str) and said != here:
        raise InvalidArgument(
            f"this is space {here}, and the replica is a copy of {said}: name where that one is served. Was it "
            "restored, and has this id since, copy it into an empty directory"
        )
    return said is True or isinstance(said, str)


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
    return status_in(caller.session.space, caller.host.root, caller.host.session_count)


def metrics(caller: Caller) -> dict[str, Any]:
    return caller.host.metrics()


def sessions(caller: Caller) -> list[SessionStatus]:
    return caller.host.session_list(caller)


def _left(space: Space) -> tuple[list[Branch], list[Branch]]:
    """Branches that are neither prepared nor over, and those that are prepared and not finished."""
    with space.lock:
        branches = [branch for branch in space.branches.values() if branch.decided is None]
        active = [branch for branch in branches if branch.base in UNPREPARED]
        return active, [branch for branch in branches if branch.base in UNFINISHED]


def drain(caller: Caller, on: Any = None) -> dict[str, Any]:
    """Takes no new branches from here on (true), or takes them again (false); nil only asks. Tells what is left."""
    if on is not None and not isinstance(on, bool):
        raise InvalidArgument(f"drain of {on!r} is refused: true, false or nil is wanted")
    space = caller.session.space
    if on is not None:
        space.draining = on
        if not on:
            space.wakes.consumed.wake()  # nothing was moved to other queues meanwhile
    active, unfinished = _left(space)
    listed = sorted((_branch_to(space, branch) for branch in (*active, *unfinished)), key=lambda one: one["since"])
    counts = {"active": len(active), "in_doubt": len(unfinished)}
    return {"draining": space.draining, **counts, "left": listed[:LISTED]}


def _branch_to(space: Space, branch: Branch) -> dict[str, Any]:
    return {"xid": branch.xid, "state": UNFINISHED.get(branch.base, ACTIVE), "since": since_of(space, branch)}


def status_in(space: Space, root: Path, sessions: int) -> dict[str, Any]:
    """Waits until recovery is done. Raises SpaceError, ResourceFailed."""
    space.wait_until_loaded()
    files = space.waiting.run(partial(_status_of_files, space, root))
    if (shipping := shipping_of(space)) is not None:
        files["replication"] = shipping.status
    active, unfinished = _left(space)
    decided = [branch for branch in space.branches.values() if branch.base in HEURISTICS or branch.decided]
    in_doubt = [branch for branch in unfinished if branch.base is not State.COMMITTING]
    made = Status(
        **files,
        owned=True,
        sync=str(space.hardening),
        promise=space.hardening.promise,
        queues=queue_list(space),
        active=len(active),
        carriers=[carriers_of(space).by_name[name].status for name in sorted(carriers_of(space).by_name)],
        in_doubt=len(in_doubt),
        damaged=sum(1 for branch in in_doubt if branch.damage),
        committing=len(unfinished) - len(in_doubt),
        heuristic=len(decided),
        cache=space.log.reads_of_memory,
        state=READY if space.read_only is None else READ_ONLY,
        counting=counted(space)[0],
    )
    with space.lock:
        waiting = len({number for branch in space.branches.values() for number in branch.working})
    more = {"waiting": waiting, "draining": space.draining, "in_doubt_age": age_of_oldest(space, in_doubt)}
    queues = space.waiting.run(
        lambda: [wire.plain(one) | {"counters": wire.plain(one.counters)} for one in made.queues]
    )
    return {**wire.plain(made), "queues": queues, "sessions": sessions, **more}


def queue_list(space: Space) -> list[QueueStatus]:
    """The queues that are defined or have a directory, sorted. The lock is held for one queue at a time."""
    definitions = space.definitions
    with space.lock:
        used = [name for name, queue in space.queues.items() if queue.exists or queue.last or queue.record]
        branches = list(space.branches.values())
    names, holders = sorted({*definitions.queues, *used}), _holders(branches)

    def look() -> list[QueueStatus]:
        looked = (_queue(space, name, holders.get(name, ()), share(len(names))) for name in names)
        return [one for one in (_measured(space, *found) for found in looked) if one.is_known]

    return space.waiting.run(look)  # there may be very many


def _holders(branches: Iterable[Branch]) -> dict[str, list[tuple[Branch, int]]]:
    """Of each queue the prepared branches that hold messages of it, and how many."""
    found: dict[str, list[tuple[Branch, int]]] = {}
    for branch in branches:
        if branch.base in IN_DOUBT:
            taken = (written for written in branch.blocks if written.kind is Kind.DEQUEUE)
            held = Counter(written.queue for written in taken for _ in written.ids)
            for queue, messages in held.items():
                found.setdefault(queue, []).append((branch, messages))
    return found


def _queue(
    space: Space, name: str, holders: Iterable[tuple[Branch, int]], most: int
) -> tuple[dict[str, Any], Entry | None, list[Entry] | None]:
    """The fields of its status, as far as memory has them; the message that is ready for longest; and up to so many
    whose sizes are to be found; None: they are known. All is of one moment; a branch that was prepared a moment ago may
    be counted as one at work."""
    order, description = described(space.definitions, name)
    made: dict[str, Any] = {"name": name, "order": order, "description": description}
    with space.lock:
        queue = space.queues.get(name)
        if queue is None:
            return made | {"depth": 0, "watermark": 0, "consumers": 0}, None, None
        index, now, room = queue.index, space.now_us(), room_of(queue)
        known = space.branches
        in_doubt = sum(n for one, n in holders if one.base in IN_DOUBT and known.get(one.xid) is one)
        exhausted, held, delayed = len(index.exhausted), index.locked - queue.leaving, index.delayed(now)
        made |= {
            "depth": len(index) - queue.leaving + exhausted,
            "watermark": queue.published,
            "ready": len(index) - index.locked - delayed,
            "delayed": delayed,
            "held": held,
            "in_doubt": min(in_doubt, held),
            "size_bytes": room.size_bytes if room is not None else 0,
            "consumers": queue.takers,
            "exhausted": exhausted,
            "stuck": queue.stuck,
            "counters": counters_of(queue),
        }
        if room is not None:
            has = len(index) + len(queue.pending), room.size_bytes
            made |= {"full": room.limits.reached(*has), "used": room.limits.used(*has)}
        if (record := record_of(queue)) is not None:
            stream = "" if queue.keeper is None else record.stream or "unknown: its record is damaged"
            made |= {"stream": stream, "consumed": queue.consumed_through, "in_flight": queue.in_flight}
        return made, queue.oldest(now), index.some(most) if room is None or room.sizes is None else None


def _measured(space: Space, made: dict[str, Any], oldest: Entry | None, some: list[Entry] | None) -> QueueStatus:
    """What files tell of it, by their names. One that is in the journal only has been committed just now."""
    since = None
    if oldest is not None:
        try:
            since = space.fs.modified_ns(space.queues[made["name"]].path_of(oldest)) // 1000
        except OSError:
            since = space.now_us()
    made["oldest"] = since
    if some is not None:
        sizes = [size_of(space, space.queues[made["name"]], entry) for entry in some]
        made |= {"size_bytes": sum_of(sizes, made["depth"]), "is_estimated": len(sizes) < made["depth"]}
    return QueueStatus(**made)


def _status_of_files(space: Space, root: Path) -> dict[str, Any]:
    fs, owner = DirectoryFileSystem(root, keep_unsynced=False), read_owner(root)
    return fields_of_files(root, fs, owner, read_journal(fs, owner, True), space.definitions)


def status_of(answer: Mapping[str, Any]) -> Status:
    """What ``status`` of the directory would show, of a server's answer. Raises MalformedFrame."""
    return wire.decode(Status, answer)


# What operators ask


def indoubt_list(caller: Caller) -> Page:
    """The first branches in doubt, committing or decided by an operator, in no order: there may be very many."""
    caller.session.space.settle()
    caller.listing = pages(caller.session.space.fs)
    return indoubt_next(caller)


def indoubt_next(caller: Caller) -> Page:
    """The next ones of the list that this session began last."""
    listing = caller.listing
    if listing is None:
        raise InvalidArgument("no list is open: it ended, or was never begun in this session")
    page = _read(caller, lambda _: next(listing, None))
    if page is None:
        caller.listing = None
    return page is not None, [_in_doubt_to(branch) for branch in page or ()]


def indoubt_decide(caller: Caller, xid: Xid, commit: Any, by: Any, reason: Any = "") -> Decision:
    """Records an operator's decision and carries it out; the answer is the decision that holds."""
    if not isinstance(commit, bool):
        raise InvalidArgument(f"commit {commit!r} is refused: true (commit) or false (roll back) is wanted")
    return heuristics.decide(caller.session.space, xid, commit, _signed(caller, by), reason)


def indoubt_forget(caller: Caller, xid: Xid, by: Any, reason: Any = "") -> None:
    """Ends the memory of a decision, by hand."""
    caller.session.forget_by_hand(xid, _signed(caller, by), reason)


def indoubt_forgotten(caller: Caller) -> list[Forgotten]:
    """The decisions that operators forgot, in their order."""
    return _read(caller, heuristics.forgotten_in)


def indoubt_bodies(caller: Caller, queue: Any, xid: Xid) -> list[tuple[MessageId, bytes, int]]:
    """Id, beginning of the body and its size of messages that a branch adds to a queue and holds of it."""
    name, most = check_queue_name(queue), LISTED // 10
    caller.session.space.settle()
    found = _read(caller, lambda fs: list(islice(bodies_in(fs, xid, name), most)))
    return [(message_id, body[:BODY_SHOWN], len(body)) for message_id, body in found]


def depths(caller: Caller, names: Any) -> dict[str, int]:
    """How many messages these queues have, with those that branches hold."""
    if not isinstance(names, list):
        raise InvalidArgument(f"queues {names!r} are refused: a list of names is wanted")
    wanted = [check_queue_name(name) for name in names]
    caller.session.space.settle()
    return _read(caller, lambda fs: depths_in(fs, wanted))


SERVICE_METHODS = (
    *methods(NOTHING, hello, echo, close, status, metrics),
    method(Need((Right.RESOLVE, Right.ADMIN)), sessions),
    method(ADMIN, drain),
    *methods(EITHER, indoubt_list, indoubt_next, indoubt_forgotten),
    *methods(RESOLVE, indoubt_decide, indoubt_forget),
    method(Need((Right.RESOLVE,), queue=Right.BROWSE), depths),
    method(BROWSE, indoubt_bodies),
)


def _in_doubt_to(branch: InDoubt) -> dict[str, Any]:
    added, held = ([astuple(content) for content in contents] for contents in (branch.added, branch.held))
    return {**wire.plain(branch), "added": added, "held": held}


def _signed(caller: Caller, by: Any) -> Any:
    """Who somebody says to be, and who they were seen to be."""
    identity = caller.identity
    return f"{by} ({identity})" if isinstance(by, str) and not identity.owner else by


def _read(caller: Caller, read: Callable[[FileSystem], T]) -> T:
    """What is seen in the directories, which may take a while. Raises RetryLater where they cannot be read now."""
    space = caller.session.space
    space.check_readable()
    try:
        return space.waiting.run(partial(read, space.fs))
    except OSError as error:
        raise RetryLater(f"the directories cannot be read now ({error.strerror}): try again") from error


# On the client


class RemoteOperator:
    """Each call raises ConnectionLost where the server does not answer, and what it refuses with."""

    def __init__(self, manager: RemoteManager) -> None:
        self._manager = manager

    def sessions(self) -> list[SessionStatus]:
        return [decode(SessionStatus, value) for value in self._manager.call("sessions")]

    def in_doubt(self) -> list[InDoubt]:
        return by_age(decode(InDoubt, value) for value in self._pages())

    def _pages(self) -> Iterator[Any]:
        more, page = self._manager.call("indoubt_list")
        yield from page
        while more:
            more, page = self._manager.call("indoubt_next")
            yield from page

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        answer: dict[str, Any] = self._manager.call("depths", list(queues))
        return {str(name): int(count) for name, count in answer.items()}

    def decide(self, xid: Xid, commit: bool, by: str, reason: str) -> Decision:
        """Raises OutcomeUnknown where the answer is lost."""
        return decode(Decision, self._change("indoubt_decide", "decided", xid, commit, by, reason))

    def forget(self, xid: Xid, by: str, reason: str) -> None:
        """Raises OutcomeUnknown where the answer is lost."""
        self._change("indoubt_forget", "forgotten", xid, by, reason)

    def forgotten(self) -> list[Forgotten]:
        return [decode(Forgotten, value) for value in self._manager.call("indoubt_forgotten")]

    def _change(self, method: str, done: str, xid: Xid, *params: Any) -> Any:
        try:
            return self._manager.call(method, xid, *params)
        except ConnectionLost as lost:
            raise OutcomeUnknown(
                f"{lost}. Whether branch {xid} was {done} is unknown: `xaqueue indoubt show {xid}` tells", xid
            ) from lost
