"""A space with branches of a batch in it, that fails where a test says."""

from __future__ import annotations

from support.bare_space import BareSpace
from support.contract_batches import batch, prepared
from xaqueue.features.batches import record
from xaqueue.features.session import Session
from xaqueue.xid import Xid

RECORD = record.batch_path(batch().key, batch().number)
MOVES = ("rename", "committed/queue=orders/range=")


def three(session: Session) -> list[Xid]:
    """Two to commit, and one that failed."""
    works = {"a": (b"1",), "b": (b"2", b"3"), "failed": (b"x", b"y")}
    return [prepared(session, bqual, batch(), *bodies) for bqual, bodies in works.items()]


def flushed(bare: BareSpace) -> None:
    bare.space.log.settle()


def reopened(bare: BareSpace) -> Session:
    """After a crash in which the kernel has kept everything, and a clean close is not seen."""
    flushed(bare)
    return Session(bare.reopen())
