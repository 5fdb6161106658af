"""How far the directories are behind a journal: the changes that nobody has followed yet, and what is read meanwhile.

What they put is held by its path until it is followed, and what is a message's a while longer, as a cache: a reader
that keeps up reads no file.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from xaqueue.core.model import layout
from xaqueue.core.model.change import DROP, MOVE, PUT, Moved, Op, final_states
from xaqueue.core.model.layout import Watermark

_BLOCKS = layout.PREPARED, layout.COMMITTED
"""There no path that a life of the space puts first was one before it; but for names that begin with a dot."""


class Turn:
    """Changes that are followed together, and the watermarks behind them."""

    def __init__(self, changes: Sequence[Sequence[Op]], marks: dict[str, Watermark], standing: set[str]) -> None:
        """standing: where an earlier one may have left something in prepared/, or was interrupted."""
        self.changes = changes
        self.marks = marks
        self.final = final_states(changes)
        self.left = {path: want for path, want in self.final.items() if want is not None}
        """What is still to be made."""
        first = _first(changes)
        gone = [path for path, want in self.final.items() if want is None]
        never = {path for path in gone if first[path] == PUT and path.startswith(_BLOCKS) and "/." not in path}
        self.gone = dict.fromkeys(path for path in gone if path not in never or path in standing)
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
        """Where something may stand in prepared/ that was followed; and anywhere, of a turn that was interrupted."""
        self.held: dict[str, Op] = {}
        """By path, the PUT of what the directories lack, with the time that it has there."""
        self.cached: OrderedDict[str, Op] = OrderedDict()
        """By path, the PUT of a message that they have, the oldest first."""
        self._cached_bytes = 0
        self.dropped: Counter[str] = Counter()
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
            else:
                self.dropped[op[1]] += 1
                if op[1] in held:
                    del held[op[1]]
                elif op[1] in self.cached:
                    self._let_go(op[1])

    def followed(self, turn: Turn, left: Sequence[Sequence[Op]]) -> None:
        """All but what is ``left`` of the turn is done; what that put is only cached from now on, unless a later
        change has put it again.
        """
        put_bytes = _put_bytes(left) - _put_bytes(turn.changes)
        count = sum(map(len, left)) - sum(map(len, turn.changes))
        dropped = Counter(_drops(left))
        dropped.subtract(_drops(turn.changes))
        with self._lock:
            gone = (path for path, want in turn.final.items() if want is None and path not in turn.gone)
            self.standing.difference_update(gone)
            self.changes[: len(turn.changes)] = left
            self.size_bytes += put_bytes
            self.files += count
            for path, difference in dropped.items():
                self.dropped[path] += difference
                if not self.dropped[path]:
                    del self.dropped[path]
            for path, want in turn.final.items():
                put = self.held.get(path)
                if put is None or want is None or path in turn.left:
                    continue
                if put[1] != path if isinstance(want, Moved) else put[2] is want.head:
                    del self.held[path]
                    self._remember(path, put)

    def _remember(self, path: str, put: Op) -> None:
        size = len(put[2]) + len(put[3])
        if size > self._cache_bytes or not path.startswith(layout.COMMITTED):
            return
        self.cached[path] = put
        self._cached_bytes += size
        while self._cached_bytes > self._cache_bytes:
            self._let_go(next(iter(self.cached)))

    def _let_go(self, path: str) -> None:
        put = self.cached.pop(path)
        self._cached_bytes -= len(put[2]) + len(put[3])


def _first(changes: Iterable[Sequence[Op]]) -> dict[str, int]:
    """What these changes do first at each path; to move there what they have put is to put it, too."""
    first: dict[str, int] = {}
    for op in chain.from_iterable(changes):
        code = first.setdefault(op[1], op[0])
        if op[0] == MOVE:
            first.setdefault(op[2], code)
    return first


def _drops(changes: Iterable[Sequence[Op]]) -> Iterator[str]:
    return (op[1] for ops in changes for op in ops if op[0] == DROP)


def _put_bytes(changes: Iterable[Sequence[Op]]) -> int:
    return sum(len(op[2]) + len(op[3]) for ops in changes for op in ops if op[0] == PUT)
