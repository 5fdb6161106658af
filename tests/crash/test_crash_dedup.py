"""A dedup_key whose message a database carries, dead at any call: it is known exactly if the row was committed.

All other keys are the world's business (``tests/sim/rules/dedup.py``).
"""

from __future__ import annotations

import pytest

from support.crash_cases import trees_of
from support.crash_level import CHECKPOINTS, LAGGING, NOON_US, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import RolledBack
from xaqueue.features.session import Session
from xaqueue.message import MessageId
from xaqueue.xa import Code, Flag
from xaqueue.xid import Xid

ONCE = Definitions(default=QueueDefinition(options={"dedup_window_s": 10}))
CARRIER = f"{1:016x}.ledger"


def opened(fs: ForgetfulFileSystem, level: Level, *, goes_on: bool = False, now_us: int = NOON_US) -> Space:
    return open_space(fs, level, goes_on=goes_on, definitions=ONCE, now_us=lambda: now_us)


def id_of(key: str) -> MessageId:
    return MessageId(key.encode().ljust(16))


def begin(space: Space, name: str) -> tuple[Session, Xid]:
    session, xid = Session(space), Xid(1, name.encode(), b"")
    session.start(xid)
    return session, xid


def put(session: Session, key: str, body: bytes = b"first") -> bytes:
    first = id_of(key) if body == b"first" else None
    return session.enqueue("a", body, dedup_key=key.encode(), message_id=first)


def carry(level: Level) -> list[tuple[ForgetfulFileSystem, list[bytes]]]:
    """What a crash before each call leaves, and what a database has then: its row is committed behind the vote."""
    fs = ready(EMPTY, level).open()
    rows: list[bytes] = []
    left: list[tuple[ForgetfulFileSystem, list[bytes]]] = []
    fs.before_call = lambda: left.append((fs.copy(), [*rows]))
    space = opened(fs, level, goes_on=True)
    session, xid = begin(space, "carried")
    put(session, "one")
    session.end(xid)
    change = session.carry(xid, CARRIER)
    assert change is not None
    rows.append(change.encode())
    session.commit(xid, Flag.LATE)
    session.harden()
    follow(space, level, "commit")
    fs.before_call = lambda: None
    return [*left, (fs.copy(), [*rows])]


def send_again(space: Space) -> bool | None:
    """Whether its key is known; None where nobody knows yet."""
    session, xid = begin(space, "again")
    found = put(session, "one", b"again")
    session.end(xid)
    try:
        session.commit(xid, Flag.ONEPHASE)
    except RolledBack as refused:
        if refused.code is not Code.XA_RBTRANSIENT:
            raise
        return None
    return found == id_of("one")


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [LAGGING, CHECKPOINTS], ids=str)
def test_what_a_database_has_is_there_once(level: Level) -> None:
    before = set()
    for fs, rows in carry(level):
        for tree in (fs.tree_after_kill(), *trees_of(fs, level)):
            space = opened(tree.open(), level)
            if space.gates or rows:
                before.add(send_again(space))
            session = Session(space)
            assert session.deliver(CARRIER, session.carriers().secret, rows, 0, 0)
            assert send_again(space) is bool(rows)
            assert len(list(session.browse("a"))) == 1
            space.close()
    assert before == {None, True}
