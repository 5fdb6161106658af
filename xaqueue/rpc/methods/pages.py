"""What lies between two numbers of a queue, for who has not its directory: as it is in the files, page by page.

    position   {"queue", "watermark", "record"}: how far the queue is, and what is known of the stream that consumes it
    file       [number, name, commit time in ns, content, nil], or of a block of many messages [first number that is
               wanted, name, commit time, content, bitmap of what is gone of it]

Whoever reads checks what he gets as he checks a file. All of it is read from the files by a process of its own: outside
of the space's lock, and beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from xaqueue.access import BROWSE
from xaqueue.errors import AccessDenied, InvalidArgument
from xaqueue.features.streams.streams import check_number
from xaqueue.message import check_queue_name
from xaqueue.offline.reader import queues
from xaqueue.offline.spans import FoundMany, Position, QueueFiles
from xaqueue.rpc.verb import methods
from xaqueue.rpc.wire import PAGE, PAGE_BYTES, Packed

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

SIZES = 10_000
"""Of one answer, at most."""
QUEUES = 1_000
"""Whose readers are kept."""


class Pages:
    """What the process that reads them answers."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._readers: dict[str, QueueFiles] = {}
        made = (self.positions, self.span, self.span_sizes, self.span_before, self.ranges, self.tries)
        self.calls: dict[str, Callable[..., Any]] = {call.__name__: call for call in made}

    def _reader(self, queue: str) -> QueueFiles:
        if queue not in self._readers:
            if len(self._readers) >= QUEUES:
                self._readers.clear()
            self._readers[queue] = QueueFiles(self._root, queue, even_behind=True)
        return self._readers[queue]

    def positions(self, named: Iterable[str]) -> list[Position]:
        return [self._reader(queue).position() for queue in named]

    def span(self, queue: str, after: int, upto: int) -> tuple[int, list[Any]]:
        found: list[Any] = []
        size_bytes = 0
        for seq, name, data, time_ns in self._reader(queue).files(after, upto):
            last, gone = seq, None
            if isinstance(data, FoundMany):
                block = data.block
                seq += data.left[0]  # the first that is wanted
                last, gone = block.named.last, block.gone.to_bytes((block.named.count + 7) // 8, "little")
                data = block.data
            found.append((seq, name, time_ns, data, gone))
            size_bytes += len(data)
            if size_bytes >= PAGE_BYTES or len(found) >= PAGE:
                return min(last, upto), found
        return upto, found

    def span_sizes(self, queue: str, after: int, upto: int) -> tuple[int, list[tuple[int, int]]]:
        some = list(islice(self._reader(queue).sizes(after, upto), SIZES))
        return (some[-1][0] if len(some) == SIZES else upto), some

    def span_before(self, queue: str, time_ms: int, upto: int) -> int:
        return self._reader(queue).last_before(time_ms, upto)

    def ranges(self, queue: str) -> list[int]:
        return self._reader(queue).ranges()

    def tries(self, queue: str) -> list[tuple[int, int]]:
        return list(self._reader(queue).tries().items())


def positions(caller: Caller, named: Any = None) -> Packed:
    """Of these queues, in their order; without names of all that the caller may browse."""
    wanted = named or filter(partial(_may_browse, caller), queues(caller.host.root))
    return _ask(caller, "positions", [check_queue_name(queue) for queue in wanted])


def span(caller: Caller, queue: str, after: int, upto: int) -> Packed:
    """The first page of what there is with after < number <= upto, and up to which number that is all."""
    _check_span(after, upto)
    return _ask(caller, "span", check_queue_name(queue), after, upto)


def span_sizes(caller: Caller, queue: str, after: int, upto: int) -> Packed:
    """The same of (number, size in bytes), without what is in them."""
    _check_span(after, upto)
    return _ask(caller, "span_sizes", check_queue_name(queue), after, upto)


def span_before(caller: Caller, queue: str, time_ms: int, upto: int) -> Packed:
    """The number behind which what was committed at this time or later begins; ``upto`` where nothing was."""
    _check_span(0, upto)
    if type(time_ms) is not int:
        raise InvalidArgument(f"time {time_ms!r} is refused: milliseconds since 1970 are wanted")
    return _ask(caller, "span_before", check_queue_name(queue), time_ms, upto)


def ranges(caller: Caller, queue: str) -> Packed:
    """Of the directories that there are; range r holds what has number >> 12 == r."""
    return _ask(caller, "ranges", check_queue_name(queue))


def tries(caller: Caller, queue: str) -> Packed:
    """(number, how often it was given back) of messages that were."""
    return _ask(caller, "tries", check_queue_name(queue))


PAGE_METHODS = methods(BROWSE, positions, span, span_sizes, span_before, ranges, tries)


def _check_span(after: Any, upto: Any) -> None:
    """Raises InvalidArgument."""
    if check_number(after) > check_number(upto):
        raise InvalidArgument(f"range ({after}, {upto}] is refused: it ends before it begins")


def _may_browse(caller: Caller, queue: str) -> bool:
    try:
        caller.check("positions", BROWSE, [queue])
    except AccessDenied:
        return caller.identity.owner
    return True


def _ask(caller: Caller, method: str, *params: Any) -> Packed:
    caller.session.space.check_readable()
    return caller.host.pages.ask(method, *params)
