"""The branches in doubt of a space, seen without owning it: what each adds and holds, and what operators decided.

Nothing here writes or locks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId
from xaqueue.space.engine import heuristics
from xaqueue.space.engine.heuristics import Decision
from xaqueue.space.model import layout
from xaqueue.space.model.block import Kind, decode, unpack_list
from xaqueue.space.model.block_files import read_block
from xaqueue.space.offline.redo_view import look_into
from xaqueue.space.recovery import prepared
from xaqueue.space.recovery.prepared import Holds, Standing, Verdict
from xaqueue.storage.fs import FileSystem
from xaqueue.xid import Xid

PAGE = 1000
"""Branches, with the messages that they add and hold, after which others get their turn."""


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
    files, _ = prepared.prepared(fs)
    lost = prepared.lost_blocks(fs)
    suspects = []
    holds = _holds(fs)
    for xid in {**files, **lost}:
        standing = _standing(fs, xid, files.get(xid, {}), lost.get(xid, ()), holds)
        if standing is not None and standing.damage and again is not None:  # or its owner is at it just now
            suspects.append(xid)
        elif standing is not None:
            yield from _open(standing)
    if suspects and again is not None:
        fs = again()
        files, _ = prepared.prepared(fs)
        lost, holds = prepared.lost_blocks(fs), _holds(fs)
        for xid in suspects:
            standing = _standing(fs, xid, files.get(xid, {}), lost.get(xid, ()), holds)
            if standing is not None:
                yield from _open(standing)


def _open(standing: Standing) -> Iterator[InDoubt]:
    """The branch, unless it is over, or was promised to nobody."""
    if standing.verdict in (Verdict.IN_DOUBT, Verdict.COMMITTING) and (standing.blocks or standing.damage):
        yield _told(standing)


def _standing(fs: FileSystem, xid: Xid, files: dict[str, str], lost: Sequence[str], holds: Holds) -> Standing | None:
    """None where a file vanished meanwhile: its owner is finishing it."""
    try:
        return prepared.survey(fs, xid, files, lost, holds)
    except FileNotFoundError:
        return None


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
            known[queue] = prepared.ids_in(fs, queue)
        return message_id.hex() in known[queue]

    return holds


def _decided(fs: FileSystem) -> Iterator[InDoubt]:
    for name in prepared.listed(fs, layout.HEURISTIC):
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
        added = [Content(row.queue, row.message_id) for row in rows if row.kind is Kind.ENQUEUE]
        held = [Content(row.queue, row.message_id) for row in rows if row.kind is Kind.DEQUEUE]
        state = heuristics.OUTCOMES[decision.outcome].value
        yield InDoubt(xid, state, decision.at, added, held, [], decision)
