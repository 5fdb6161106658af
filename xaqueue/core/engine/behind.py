"""How far the directories are behind a journal: the changes that nobody has followed yet, and what is read meanwhile.

What they put is held by its path until it is followed, and what is a message's a while longer, as a cache: a reader
that keeps up reads no file.

What is published before it is recorded is a *deferred* step. One is deferred whose loss in a crash undoes nothing that
anybody was promised: who plans it says so, or all queues of its branch do, and it is no prepare. It is seen at once,
and read from memory; its record is in the next round, before all that follows from it. The follower, and the watermarks
by which readers of the directories go, wait for that record.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain

from xaqueue.core.engine.log import HELD_BYTES, Log, Owner
from xaqueue.core.model import layout
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.change import DROP, MOVE, PUT, Change, Moved, Op, final_states
from xaqueue.core.model.entry import is_volatile
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.group_commit import JournalCommit
from xaqueue.errors import RetryLater

_BLOCKS = layout.PREPARED, layout.COMMITTED
"""There no path that a life of the space puts first was one before it; but for names that begin with a dot, and blocks
of many messages, which are made smaller."""
_AGAIN = re.compile(r"/\.|\+").search


class Turn:
    """Changes that are followed together. Made without the lock: there may be many."""

    def __init__(self, changes: Sequence[Sequence[Op]], standing: set[str]) -> None:
        """standing: where an earlier one may have left something in prepared/, or was interrupted."""
        self.changes = changes
        put: set[str] = set()
        self.final = final_states(changes, put)
        self.left = {path: want for path, want in self.final.items() if want is not None}
        """What is still to be made."""
        self.gone = {
            path: None
            for path, want in self.final.items()
            if want is None and (path not in put or path in standing or not path.startswith(_BLOCKS) or _AGAIN(path))
        }
        """What is still to be removed: not the blocks that came and went, and never were files."""
        standing.update(path for path in self.left if path.startswith(layout.PREPARED))

    def rest(self) -> list[Op]:
        """One change that comes to what is not done."""
        ops: list[Op] = []
        for path, want in self.left.items():
            if isinstance(want, Moved):
                ops.append((MOVE, want.places[-1], path, want.when_us))
            else:
                ops.append((PUT, path, want.head, want.body, want.when_us))
        return ops + [(DROP, path) for path in self.gone]


class Behind:
    """Of one space; read by anybody, and changed with its lock held."""

    def __init__(self, lock: threading.Lock, cache_bytes: int) -> None:
        self._lock = lock
        self._cache_bytes = cache_bytes
        self.changes: list[Sequence[Op]] = []
        """What was published and is not followed yet, in the order of the log."""
        self.size_bytes = 0
        """Of all that they put."""
        self.files = 0
        """How many operations they have."""
        self.standing: set[str] = set()
        """Where something may stand in prepared/ that was followed; and anywhere, of a turn that was interrupted. Of
        whoever follows alone, who needs no lock for it."""
        self.held: dict[str, Op] = {}
        """By path, the PUT of what the directories lack, with the time that it has there."""
        self.cached: OrderedDict[str, Op] = OrderedDict()
        """By path, the PUT of a message that they have, the oldest first."""
        self.used = set[str]()
        """Of those what was read since it came, or since it was spared. Who reads holds no lock."""
        self._cached_bytes = 0
        self.dropped: dict[str, int] = {}
        """By path, how many DROPs of it the directories lack: what stands there is another file, or none."""

    def show(self, ops: Iterable[Op]) -> None:
        """What memory holds of files goes their ways with them. Called with the lock held."""
        held = self.held
        for op in ops:
            code = op[0]
            if code == PUT:
                _, path, head, body, _ = op
                if path in self.cached:
                    self._let_go(path)
                held[path] = op
                self.size_bytes += len(head) + len(body)
            elif code == MOVE:
                _, source, target, when_us = op
                put = held.pop(source, None)
                if put is not None:
                    held[target] = (*put[:4], when_us)
                elif source in self.cached:
                    self._let_go(source)
            else:
                self.dropped[op[1]] = self.dropped.get(op[1], 0) + 1
                if op[1] in held:
                    del held[op[1]]
                elif op[1] in self.cached:
                    self._let_go(op[1])

    def followed(self, turn: Turn, left: Sequence[Sequence[Op]]) -> None:
        """All but what is ``left`` of the turn is done; what that put is only cached from now on, unless a later
        change has put it again.
        """
        (put_bytes, drops), (left_bytes, left_drops) = _sums(turn.changes), _sums(left)
        held, dropped = self.held, self.dropped
        with self._lock:
            self.changes[: len(turn.changes)] = left
            self.size_bytes += left_bytes - put_bytes
            self.files += sum(map(len, left)) - sum(map(len, turn.changes))
            for path in left_drops:
                dropped[path] = dropped.get(path, 0) + 1
            for path in drops:
                if dropped[path] > 1:
                    dropped[path] -= 1
                else:
                    del dropped[path]
            for path, want in turn.final.items():
                if want is None:
                    if path not in turn.gone:
                        self.standing.discard(path)
                elif path in held and path not in turn.left:
                    put = held[path]
                    if put[1] != path if isinstance(want, Moved) else put[2] is want.head:
                        del held[path]
                        self._remember(path, put)

    def _remember(self, path: str, put: Op) -> None:
        size = len(put[2]) + len(put[3])
        if size > self._cache_bytes or not path.startswith(layout.COMMITTED) or "/." in path:
            return
        self.cached[path] = put
        self._cached_bytes += size
        while self._cached_bytes > self._cache_bytes:
            first = next(iter(self.cached))
            if first not in self.used:
                self._let_go(first)
            else:  # it is spared, once
                self.used.remove(first)
                self.cached.move_to_end(first)
        if len(self.used) > len(self.cached):  # somebody was reading what went just then
            self.used.clear()

    def _let_go(self, path: str) -> None:
        put = self.cached.pop(path)
        self._cached_bytes -= len(put[2]) + len(put[3])
        self.used.discard(path)


def _sums(changes: Iterable[Sequence[Op]]) -> tuple[int, list[str]]:
    """How many bytes these put, and what they drop."""
    put_bytes, drops = 0, []
    for op in chain.from_iterable(changes):
        if op[0] == PUT:
            put_bytes += len(op[2]) + len(op[3])
        elif op[0] == DROP:
            drops.append(op[1])
    return put_bytes, drops


class DeferringCommit(JournalCommit, Log):
    """Decides which steps are deferred, and knows what of them is not recorded yet."""

    _owner: Owner
    behind: Behind
    _marks: dict[str, Queue]
    """Those whose watermark is to say how far they are by then, once that is followed."""

    def _is_late(self, of: Branch | None, late: bool) -> bool:
        return self._owner.serving and (late or (of is not None and not self._waits(of)))

    def _waits(self, branch: Branch) -> bool:
        """Whether its steps wait for their syncs: not where all its queues or messages say so. What has a rule for its
        xid does, since others rely on that; and what is too much to be in memory only until the next sync.
        """
        if branch.kept[0] > HELD_BYTES or branch.to_harden or branch.xid[0] in self._owner.features.rules:
            return True
        for written in branch.blocks:
            definition = self._owner.definitions.of(written.queue)
            if (definition is None or definition.waits) and not is_volatile(written.entry):
                return True
        return False

    def _is_amid(self, of: Branch | None) -> bool:
        """Not where another step takes from a block that this takes from: what it says is gone may be back."""
        taken = [one for one in of.blocks if one.kind is Kind.DEQUEUE and one.entry is not None] if of else ()
        queues = self._owner.queues
        blocks = [queues[one.queue].block_of(one.entry.seq) for one in taken if one.entry and queues[one.queue].blocks]
        return any(block is not None and not block.is_settled for block in blocks)

    def _defers(self, planned: Change) -> None:
        """Its record is what is followed, and what watermarks tell of, so both wait for that."""
        self.behind.show(chain(planned.point, planned.ops, planned.rest))
        self._owner.arrived_locked()
        self._owner.wakes.pending.wake()

    def unhardened(self) -> dict[str, int]:
        lowest: dict[str, int] = {}
        for step in self.deferred:
            for queue, number in step.planned.arrivals:
                lowest[queue] = min(number, lowest.get(queue, number))
        return lowest

    def mark_published_locked(self) -> None:
        """What was kept back until now counts as published. Called with the lock held.

        A round may be under way, whose changes are recorded and do not count yet.
        """
        self._owner.published_locked(self._marks)

    def _harden_deferred(self) -> None:
        """What finds no room stays deferred."""
        if self.deferred:
            with suppress(RetryLater):
                self.harden_late()

    def _deferred_ops(self) -> list[Sequence[Op]]:
        return [(*one.ops, *one.rest) for step in self.deferred if type(one := step.planned) is Change]
