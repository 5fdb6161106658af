"""The calls of a whole transaction in one frame, ``work``: a start, what it adds or takes, and how it ends.

They are the calls of the same names, one behind the other: what refuses one of them refuses this one with its ``ride``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgpack

from xaqueue.access import NOTHING, TRANSACT_OR_LOCAL
from xaqueue.core.engine import taking
from xaqueue.core.engine.log import HELD_BYTES
from xaqueue.core.engine.session import Session
from xaqueue.core.model.block import Kind
from xaqueue.errors import InvalidArgument, ProtocolError
from xaqueue.rpc.plain import Answer, Ending, Put, Take, Taken, Whole, Work
from xaqueue.rpc.verb import method, methods
from xaqueue.rpc.wire import RESPONSE, check_depth, enqueue_of, xid_known
from xaqueue.xa import Flag
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.plain import WholeSession
    from xaqueue.rpc.server.peer import Caller

ENDINGS = {"prepare": [], "commit": [Flag.ONEPHASE.value]}
"""With what follows their xid."""
PLAIN_ENDINGS = {None: Ending.OPEN, "prepare": Ending.PREPARE, "commit": Ending.ONE_PHASE}

NamedCall = tuple[str, list[Any]]


def work(caller: Caller, xid: Any, begins: Any, works: Any, ending: Any = None) -> list[NamedCall]:
    """The calls that it stands for; the last one answers. What those take they look at themselves.

    Raises InvalidArgument, MalformedFrame."""
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
    for name, params in calls:
        check_depth(name, params)
    return calls


def try_work(session: WholeSession, params: list[Any]) -> Whole | None:
    """A work up to its round, where it is plain and right: see ``rpc.plain``. Raises as that."""
    try:
        given, begins, works, ending = params if len(params) == 4 else (*params, None)
        xid, how = xid_known(*given), PLAIN_ENDINGS[ending]
    except (TypeError, ValueError, KeyError, InvalidArgument):  # which whoever does it call by call says
        return None
    if type(works) is not list or begins is not (not session.is_in_branch) or (how is Ending.OPEN and not works):
        return None
    plain: list[Work] = []
    for one in works:
        types = [*map(type, one)] if type(one) is list else []
        if types == _PUT and len(one[2]) == 16:
            plain.append(_new(Put, one))
        elif types == _TAKE and how is Ending.OPEN:  # else its message would be nobody's
            plain.append(_new(Take, one))
        else:
            return None
    return session.try_work(xid, plain, how)


def try_commit(session: WholeSession, params: list[Any]) -> Whole | None:
    """The same for the commit of what was prepared."""
    try:
        ((format_id, gtrid, bqual),) = params
        xid = xid_known(format_id, gtrid, bqual)
    except (TypeError, ValueError, InvalidArgument):
        return None
    return session.try_commit(xid)


PLAIN = {"work": try_work, "commit": try_commit}
begins_plain = re.compile(
    rb"\x94\x00(?:[\x00-\x7f]|\xcc.|\xcd..|\xce....)(?:%b)[\x91-\x94]" % b"|".join(map(msgpack.packb, PLAIN)), re.DOTALL
).match
"""Whether bytes that are one frame are a request for one of these: its id is packed as everybody does it, and its
parameters are a few."""


def answer_to(number: int, answer: Answer, pack: Callable[[Any], bytes]) -> bytes:
    """Of the request with this number: a large body by another packer, since this one keeps room for the largest that
    it has seen."""
    if type(answer) is not Taken:
        return pack((RESPONSE, number, None, answer))
    message_id, queue, seq, properties, body = answer
    head = pack((RESPONSE, number, None, (message_id, queue, seq, None, None)))[:-2]  # a byte each of what comes here
    return head + properties + (pack if len(body) <= HELD_BYTES else msgpack.packb)(body)


_new = tuple.__new__
_PUT, _TAKE = [str, bytes, bytes], [str]


def return_unseen(self: Session, xid: Xid) -> None:
    """Of the branch that the session is in, to which nobody has added anything, and of which nobody has seen a message:
    they are back, without a try, and it is over. Raises ProtocolError in no branch, and in another one."""
    with self._work() as branch:
        if branch.xid != xid:
            raise ProtocolError(f"the session is in branch {branch.xid}: it has nothing of {xid} to be returned")
        taking.return_taken(self.space, branch, *[one for one in branch.blocks if one.kind is Kind.DEQUEUE])
    self.end(xid)
    self.rollback(xid)


WORK_METHODS = (*methods(NOTHING, work), method(TRANSACT_OR_LOCAL, return_unseen, "return"))
"""Each of the calls of a work asks for its own right."""
