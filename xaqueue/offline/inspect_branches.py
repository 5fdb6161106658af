"""The branches in doubt of a space, seen without owning it: what each adds and holds, and what operators decided.

Nothing here writes or locks; what a decision by hand would do to the queues is arithmetic over what was seen.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from xaqueue.core.engine import heuristics, quarantine
from xaqueue.core.engine.heuristics import Decision
from xaqueue.core.model import layout
from xaqueue.core.model.block import ADDS, Head, Kind, decode, unpack_list
from xaqueue.core.model.block_files import ids_taken, listed, read_block, read_checked
from xaqueue.core.model.branch import HEURISTICS
from xaqueue.core.model.message_block import decode_table
from xaqueue.core.model.message_name import ID_DIGITS
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.prepared import Holds, PreparedBranch, Verdict
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock, HeuristicOutcome, ProtocolError
from xaqueue.features.kinds import KINDS
from xaqueue.features.streams.message_files import QueueMessages, ids_in
from xaqueue.message import MessageId
from xaqueue.offline.redo_view import look_into
from xaqueue.xid import Xid

PAGE = 1000
"""Branches, with the messages that they add and hold, after which others get their turn."""


@dataclass(frozen=True, slots=True)
class BranchMessage:
    """A message that a branch adds or holds. ``size_bytes`` of its file, or of its body in a block of many; None where
    only its name is known."""

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
    added: list[BranchMessage]
    held: list[BranchMessage]
    damage: list[str]
    decision: Decision | None = None


def in_doubt(path: str | os.PathLike[str]) -> list[InDoubt]:
    """Branches in doubt, committing or decided by an operator, the oldest first. Raises SpaceError."""
    looked = look_into(path)
    return in_doubt_in(looked.fs, looked.again)


def in_doubt_in(fs: FileSystem, again: Callable[[], FileSystem] | None = None) -> list[InDoubt]:
    """As ``in_doubt``, of the space behind a port."""
    return by_age(branch for page in pages(fs, again) for branch in page)


def by_age(branches: Iterable[InDoubt]) -> list[InDoubt]:
    """The oldest first, each once: decided where it was both."""
    found: dict[Xid, InDoubt] = {}
    for branch in branches:
        if branch.decision is not None or branch.xid not in found:
            found[branch.xid] = branch
    return sorted(found.values(), key=lambda branch: (branch.since, str(branch.xid)))


def pages(fs: FileSystem, again: Callable[[], FileSystem] | None = None) -> Iterator[list[InDoubt]]:
    """The branches of ``in_doubt`` in no order, some at a time, since there may be very many."""
    page, size = [], 0
    for branch in chain(_prepared(fs, again), _decided(fs)):
        page.append(branch)
        size += 1 + len(branch.added) + len(branch.held)
        if size >= PAGE:
            yield page
            page, size = [], 0
    if page:
        yield page


def _prepared(fs: FileSystem, again: Callable[[], FileSystem] | None) -> Iterator[InDoubt]:
    suspects = []
    for status in _statuses(fs):
        if status.damage and again is not None:  # or its owner is at it just now
            suspects.append(status.xid)
        else:
            yield from _open(fs, status)
    if suspects and again is not None:
        later = again()
        for status in _statuses(later, suspects):
            yield from _open(later, status)


def _statuses(fs: FileSystem, xids: Iterable[Xid] | None = None) -> Iterator[PreparedBranch]:
    """Of these branches, or of all; not of one of which a file vanished meanwhile: its owner is finishing it."""
    files, _ = prepared.prepared(fs)
    lost, holds = quarantine.lost_blocks(fs), _holds(fs)
    for xid in {**files, **lost} if xids is None else xids:
        try:
            status = prepared.survey(fs, xid, files.get(xid, {}), lost.get(xid, ()), holds, kinds=KINDS)
        except FileNotFoundError:
            continue
        yield status


def _open(fs: FileSystem, status: PreparedBranch) -> Iterator[InDoubt]:
    """The branch, unless it is over, or was promised to nobody."""
    if status.verdict in (Verdict.IN_DOUBT, Verdict.COMMITTING) and (status.blocks or status.damage):
        contents: dict[bool, list[BranchMessage]] = {True: [], False: []}
        for path, head in status.blocks:
            contents[head.kind is Kind.DEQUEUE] += _messages_of(fs, path, head)
        state, since = status.verdict.value, status.prepared_at
        yield InDoubt(status.xid, state, since, contents[False], contents[True], status.damage)


def _messages_of(fs: FileSystem, path: str, head: Head) -> list[BranchMessage]:
    """That a block of a branch adds or holds: of a damaged block of many the first."""
    queue = head.properties.queue
    with suppress(DamagedBlock, OSError):
        if head.kind is Kind.MESSAGES:
            table = decode_table(read_checked(fs, path))
            return list(map(partial(BranchMessage, queue), table.message_ids(), table.sizes))
    if head.kind is Kind.DEQUEUE:
        return [BranchMessage(queue, one) for one in ids_taken(fs, head)]
    return [BranchMessage(queue, head.message_id, head.size_bytes)]


def bodies_in(fs: FileSystem, xid: Xid, queue: str) -> Iterator[tuple[MessageId, bytes]]:
    """Of the messages that a branch in doubt adds to a queue and holds of it; without those that cannot be read."""
    files, _ = prepared.prepared(fs)
    status = prepared.survey(fs, xid, files.get(xid, {}), (), lambda *_: True)
    there: QueueMessages | None = None
    for path, head in status.blocks:
        if head.properties.queue != queue:
            continue
        with suppress(DamagedBlock, OSError):
            if head.kind is Kind.ENQUEUE:
                yield head.message_id, decode(read_checked(fs, path)).body
            elif head.kind is Kind.MESSAGES:
                data = read_checked(fs, path)
                table = decode_table(data)
                yield from zip(table.message_ids(), table.bodies(data, 0, table.count), strict=True)
            elif head.kind is Kind.DEQUEUE:
                there = there or QueueMessages(fs, queue)
                held = {one.hex() for one in ids_taken(fs, head)}
                for name in [name for name in there.names if name[ID_DIGITS] in held]:
                    yield MessageId(bytes.fromhex(name[ID_DIGITS])), decode(there.read(name)).body


def _holds(fs: FileSystem) -> Holds:
    """A queue is listed once, when the first branch asks for one of its messages."""
    known: dict[str, frozenset[str]] = {}

    def holds(queue: str, message_id: MessageId) -> bool:
        if queue not in known:
            known[queue] = ids_in(fs, queue)
        return message_id.hex() in known[queue]

    return holds


def _decided(fs: FileSystem) -> Iterator[InDoubt]:
    for name in listed(fs, layout.HEURISTIC):
        path = f"{layout.HEURISTIC}/{name}"
        xid = layout.parse_xid(name)
        if xid is None:
            continue
        try:
            decision = heuristics.read(fs, path)
            rows = unpack_list(decode(read_block(fs, path)).body)
        except FileNotFoundError:
            continue  # forgotten meanwhile
        except DamagedBlock as damage:
            yield InDoubt(xid, "decided, and the record is damaged", 0, [], [], [f"{path}: {damage}"])
            continue
        added = [BranchMessage(row.queue, row.message_id) for row in rows if row.kind in ADDS]
        held = [BranchMessage(row.queue, row.message_id) for row in rows if row.kind is Kind.DEQUEUE]
        state = heuristics.OUTCOMES[decision.outcome].value
        yield InDoubt(xid, state, decision.at, added, held, [], decision)


class Traffic(NamedTuple):
    """What a commit would do to one queue."""

    queue: str
    adds: int
    holds: int

    def __str__(self) -> str:
        signed = [f"+{self.adds}"] if self.adds else []
        signed += [f"-{self.holds}"] if self.holds else []
        return " ".join((self.queue, *signed))


def traffic_of(branch: InDoubt) -> list[Traffic]:
    """By queue, sorted, how many messages the branch adds and holds."""
    adds = Counter(content.queue for content in branch.added)
    holds = Counter(content.queue for content in branch.held)
    return [Traffic(queue, adds[queue], holds[queue]) for queue in sorted({*adds, *holds})]


@dataclass(frozen=True, slots=True)
class Effect:
    """One queue that a branch touches. Messages count those that are held; held, by branches in doubt."""

    queue: str
    adds: int
    holds: int
    messages: int
    messages_after: int
    held: int
    held_after: int


def dry_run_of(branch: InDoubt, waiting: Sequence[InDoubt], depths: Mapping[str, int], commit: bool) -> list[Effect]:
    """What becomes of every queue that the branch touches, sorted by name.

    waiting: all branches in doubt; depths: of those queues. Raises what ``decide`` would refuse with.
    """
    check_open(branch, commit)
    held = Counter(content.queue for other in waiting if other.decision is None for content in other.held)
    changes = []
    for queue, adds, holds in traffic_of(branch):
        before = depths.get(queue, 0)
        after = max(before - holds, 0) + adds if commit else before
        changes.append(Effect(queue, adds, holds, before, after, held[queue], held[queue] - holds))
    return changes


def check_open(branch: InDoubt, commit: bool) -> None:
    """HeuristicOutcome where it was decided before, ProtocolError where a rollback comes too late."""
    if branch.decision is not None:
        code = HEURISTICS[heuristics.OUTCOMES[branch.decision.outcome]]
        raise HeuristicOutcome(f"branch {branch.xid} is {branch.state} already; forget ends this", code)
    if branch.state not in (Verdict.IN_DOUBT.value, Verdict.COMMITTING.value):
        raise DamagedBlock(f"branch {branch.xid} is {branch.state}: open the space once, and look again")
    if branch.state == Verdict.COMMITTING.value and not commit:
        raise ProtocolError(f"branch {branch.xid} is past its commit point: it can only be committed")
