"""What lies between two numbers of a queue, for who has not its directory: as it is in the files, page by page.

Its forms are in ``man/xaqueue.5``. Whoever reads checks what he gets as he checks a file. All of it is read from the
files by a process of its own: outside of the space's lock, and beside the loop.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from xaqueue.access import BROWSE
from xaqueue.errors import AccessDenied, Error, InvalidArgument, NotSupportedError
from xaqueue.features.streams.streams import check_number
from xaqueue.message import check_queue_name
from xaqueue.offline.reader import queues
from xaqueue.rpc.verb import methods
from xaqueue.rpc.wire import Packed

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller


def positions(caller: Caller, named: Any = None) -> Packed:
    """Of these queues, in their order; without names of all that the caller may browse."""
    if named is not None and not (isinstance(named, list) and {*map(type, named)} <= {str}):
        raise InvalidArgument(f"positions of {str(named)[:60]!r} are refused: a list of queues is wanted")
    with suppress(Error):  # a full disk, or a space that is only read: then it is as far as it is
        caller.session.space.settle()
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


def span_kept(caller: Caller, queue: str, after: int, upto: int, columns: list[str]) -> Packed:
    """The first page of what left it and is kept, as Arrow's stream, and up to which number that is all."""
    _check_span(after, upto)
    if not (isinstance(columns, list) and {*map(type, columns)} <= {str}):
        raise InvalidArgument(f"columns {str(columns)[:60]!r} are refused: a list of their names is wanted")
    if find_spec("pyarrow") is None:
        raise NotSupportedError("the server has no PyArrow: pip install 'xaqueue[lake]' there")
    caller.session.space.check_readable()
    return caller.host.kept_pages.ask("span_kept", check_queue_name(queue), after, upto, columns)


PAGE_METHODS = methods(BROWSE, positions, span, span_sizes, span_before, span_kept, ranges, tries)


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
