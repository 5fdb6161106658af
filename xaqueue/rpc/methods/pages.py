"""What lies between two numbers of a queue, for who has not its directory: as it is in the files, page by page.

    position   {"queue", "watermark", "record"}: how far the queue is, and what is known of the stream that consumes it
    file       [number, name, commit time in ns, content, nil], or of a block of many messages [first number that is
               wanted, name, commit time, content, bitmap of what is gone of it]

Whoever reads checks what he gets as he checks a file. All of it is read from the files, as by another process: outside
of the space's lock, and beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from xaqueue.access import BROWSE
from xaqueue.errors import AccessDenied, InvalidArgument, RetryLater
from xaqueue.features.streams.streams import check_number
from xaqueue.offline.reader import queues
from xaqueue.offline.spans import FoundMany, Position, QueueFiles
from xaqueue.rpc.verb import methods
from xaqueue.rpc.wire import PAGE, PAGE_BYTES

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

T = TypeVar("T")

SIZES = 10_000
"""Of one answer, at most."""


def positions(caller: Caller, named: Any = None) -> list[Position]:
    """Of these queues, in their order; without names of all that the caller may browse."""
    return _in_files(caller, lambda: [_reader(caller, queue).position() for queue in _wanted(caller, named)])


def span(caller: Caller, queue: str, after: int, upto: int) -> tuple[int, list[Any]]:
    """The first page of what there is with after < number <= upto, and up to which number that is all."""
    check_span(after, upto)
    return _in_files(caller, partial(_page, _reader(caller, queue), after, upto))


def _page(reader: QueueFiles, after: int, upto: int) -> tuple[int, list[Any]]:
    found: list[Any] = []
    size_bytes = 0
    for seq, name, data, time_ns in reader.files(after, upto):
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


def span_sizes(caller: Caller, queue: str, after: int, upto: int) -> tuple[int, list[tuple[int, int]]]:
    """The same of (number, size in bytes), without what is in them."""
    check_span(after, upto)

    def found() -> tuple[int, list[tuple[int, int]]]:
        some = list(islice(_reader(caller, queue).sizes(after, upto), SIZES))
        return (some[-1][0] if len(some) == SIZES else upto), some

    return _in_files(caller, found)


def span_before(caller: Caller, queue: str, time_ms: int, upto: int) -> int:
    """The number behind which what was committed at this time or later begins; ``upto`` where nothing was."""
    check_span(0, upto)
    if type(time_ms) is not int:
        raise InvalidArgument(f"time {time_ms!r} is refused: milliseconds since 1970 are wanted")
    return _in_files(caller, partial(_reader(caller, queue).last_before, time_ms, upto))


def ranges(caller: Caller, queue: str) -> list[int]:
    """Of the directories that there are; range r holds what has number >> 12 == r."""
    return _in_files(caller, _reader(caller, queue).ranges)


def tries(caller: Caller, queue: str) -> list[tuple[int, int]]:
    """(number, how often it was given back) of messages that were."""
    return _in_files(caller, lambda: list(_reader(caller, queue).tries().items()))


PAGE_METHODS = methods(BROWSE, positions, span, span_sizes, span_before, ranges, tries)


def check_span(after: Any, upto: Any) -> None:
    """Raises InvalidArgument."""
    if check_number(after) > check_number(upto):
        raise InvalidArgument(f"range ({after}, {upto}] is refused: it ends before it begins")


def _wanted(caller: Caller, named: Any) -> Iterator[str]:
    yield from named or filter(partial(_may_browse, caller), queues(caller.host.root))


def _may_browse(caller: Caller, queue: str) -> bool:
    try:
        caller.check("positions", BROWSE, [queue])
    except AccessDenied:
        return caller.identity.owner
    return True


def _reader(caller: Caller, queue: str) -> QueueFiles:
    caller.session.space.check_readable()
    return QueueFiles(caller.host.root, queue, even_behind=True)


def _in_files(caller: Caller, look: Callable[[], T]) -> T:
    try:
        return caller.session.space.waiting.run(look)
    except OSError as error:
        raise RetryLater(f"the space's files cannot be read now ({error.strerror}): ask again") from error
