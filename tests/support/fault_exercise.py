"""Work whose calls fail in turn, and what must be left of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

import xaqueue
from support.bare_space import BareSpace
from xaqueue.core.engine import heuristics
from xaqueue.errors import ResourceFailed
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

RANGE = "committed/queue=orders/range=0"
BILLS = "committed/queue=bills"


def exercise(bare: BareSpace, said: list[str]) -> None:
    """Two-phase branches of one and of several blocks, one phase, and a rollback; ``said``: what was acknowledged."""
    with closing(bare.connect()) as connection:
        connection.tpc_begin(Xid(1, b"several", b"b"))
        connection.enqueue("orders", b"A1")
        connection.enqueue("bills", b"A2")
        assert connection.dequeue("orders") is not None
        connection.tpc_prepare()
        said.append("A prepared")
        connection.tpc_commit()
        said.append("A")
        connection.tpc_begin(Xid(1, b"single", b"b"))
        connection.enqueue("orders", b"B")
        connection.tpc_prepare()
        said.append("B prepared")
        connection.tpc_rollback()
        said.append("B")
        connection.enqueue("orders", b"C")
        connection.commit()
        said.append("C")
        assert connection.dequeue("orders") is not None
        connection.commit()
        said.append("D")


def check_fenced(bare: BareSpace, prepared: Xid) -> None:
    """Every verb, of every session, is refused; a session still closes."""
    verbs: list[Callable[[xaqueue.Connection], object]] = [
        lambda connection: connection.enqueue("orders", b"x"),
        lambda connection: connection.dequeue("orders"),
        lambda connection: list(connection.browse("orders")),
        lambda connection: connection.tpc_recover(),
        lambda connection: connection.tpc_commit(prepared),
        lambda connection: connection.tpc_rollback(prepared),
        lambda connection: connection.tpc_begin(Xid(1, b"new", b"b")),
    ]
    for verb in verbs:
        with pytest.raises(ResourceFailed, match="open it again"), closing(bare.connect()) as connection:
            verb(connection)
    with pytest.raises(ResourceFailed):
        heuristics.decide(bare.space, prepared, True, "operator")


def check_exercise(bare: BareSpace, said: list[str]) -> None:
    """What was acknowledged is there; the step that failed came about as a whole or not at all."""
    several, single = Xid(1, b"several", b"b"), Xid(1, b"single", b"b")
    in_doubt = bare.in_doubt()
    with closing(bare.connect()) as connection:
        if "A prepared" in said and "A" not in said:
            assert several in in_doubt or connection.outcome(several) is Outcome.COMMITTED
        if "B prepared" in said and "B" not in said:
            assert single in in_doubt or b"B" not in bare.take("orders")
        committed = "A" in said or connection.outcome(several) is Outcome.COMMITTED
        if several in in_doubt:
            connection.tpc_commit(several)
            committed = True
        if single in in_doubt:
            connection.tpc_rollback(single)
    orders, bills = bare.take("orders"), bare.take("bills")
    start = [[b"second", b"A1"], [b"A2"]] if committed else [[b"first", b"second"], []]
    allowed = {
        "nothing": start,
        "C": [[*start[0], b"C"], start[1]],
        "D": [[*start[0][1:], b"C"], start[1]],
    }
    if "D" in said:
        assert [orders, bills] == allowed["D"]
    elif "C" in said:
        assert [orders, bills] in (allowed["C"], allowed["D"])
    else:
        assert [orders, bills] in (allowed["nothing"], allowed["C"])
