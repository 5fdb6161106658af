"""Whole transactions in one call (``rpc.plain``), and the rounds in which they are hardened."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

from xaqueue.core.engine.disk_space import RoomLimit
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.features.session import Session
from xaqueue.rpc.plain import Answer, Ending, Whole, Work
from xaqueue.xid import Xid


def try_work(session: Session, name: Xid, works: Sequence[Work], ending: Ending) -> Whole | None:
    """As long as nobody has to look how much room there is."""
    with mock.patch.object(RoomLimit, "has", return_value=True):
        return session.try_work(name, works, ending)


def whole_work(session: Session, name: Xid, works: Sequence[Work], ending: Ending) -> list[Answer]:
    whole = try_work(session, name, works, ending)
    assert whole is not None
    if not whole.done:
        perform(session, whole)
    return finished(session, whole)


def whole_commit(session: Session, name: Xid) -> list[Answer]:
    whole = session.try_commit(name)
    assert whole is not None
    perform(session, whole)
    return finished(session, whole)


def finished(session: Session, whole: Whole) -> list[Answer]:
    """Its answers, behind its round."""
    if not whole.done or whole.error is not None:
        session.once_more(whole)
    return whole.answers


def perform(session: Session, whole: Whole) -> None:
    """In a round of its own, or behind those that are under way."""
    log, whole.waiter = session.space.log, THREADS.waiter()
    log.gather(whole)
    if whole.round is None:
        whole.waiter.acquire()
    if whole.round is not None and not whole.done:
        log.run_rounds(whole)
