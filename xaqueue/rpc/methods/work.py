"""The calls of a whole transaction in one frame, ``work``: a start, what it adds or takes, and how it ends.

    begins    whether its start is one of them
    works     [queue, body, message id or options] of an enqueue; [queue] of a dequeue, which is the last of all
    ending    "prepare" or "commit" (in one phase), with an end before it; nil: it stays open

They are the calls of the same names, one behind the other: what refuses one of them refuses this one with its ``ride``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xaqueue.access import NOTHING
from xaqueue.errors import InvalidArgument
from xaqueue.rpc.verb import methods
from xaqueue.rpc.wire import enqueue_of
from xaqueue.xa import Flag

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

PREPARE, COMMIT = "prepare", "commit"
ENDINGS = {PREPARE: [], COMMIT: [Flag.ONEPHASE.value]}
"""With what follows their xid."""

NamedCall = tuple[str, list[Any]]


def work(caller: Caller, xid: Any, begins: Any, works: Any, ending: Any = None) -> list[NamedCall]:
    """The calls that it stands for; the last one answers. What those take they look at themselves."""
    is_known = ending is None or (type(ending) is str and ending in ENDINGS)
    if type(begins) is not bool or type(works) is not list or not is_known:
        raise InvalidArgument("work is refused: [xid, begins, works, ending] is wanted, see xaqueue(5)")
    calls: list[NamedCall] = [("start", [xid])] if begins else []
    for at, one in enumerate(works):
        if type(one) is list and len(one) == 3:
            calls.append(("enqueue", enqueue_of(one)))
        elif type(one) is list and len(one) == 1 and at == len(works) - 1 and ending is None:
            calls.append(("dequeue", one))
        else:
            raise InvalidArgument(
                "work is refused: it is a list of [queue, body, message id], and the last one may be [queue], of a "
                "dequeue with no ending behind it"
            )
    if ending is not None:
        calls += [("end", [xid]), (ending, [xid, *ENDINGS[ending]])]
    if not calls:
        raise InvalidArgument("work is refused: there is none in it")
    return calls


WORK_METHODS = methods(NOTHING, work)
"""Each of the calls asks for its own right."""
