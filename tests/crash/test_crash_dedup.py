"""A dedup_key whose message is committed, consumed and forgotten, dead at any call: it is known exactly if its message
was committed, wherever that is, until its window is over. Who sends again what was not acknowledged has it there once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from support.crash_cases import FULL, trees_of
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, NOON_US, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem, Tree
from xaqueue.batch import ONE_SPACE, Batch
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.errors import RolledBack
from xaqueue.features.dedup import dedup
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import MessageId
from xaqueue.xa import Code, Flag, Vote
from xaqueue.xid import Xid

ONCE = Definitions(default=QueueDefinition(options={"dedup_window_s": 10}))
LATER_US = NOON_US + 10_000_000
KEYS = {"one": "one", "two": "two", "list": "two", "batch": "batch"}
"""With the step that commits its message."""
CARRIER = f"{1:016x}.ledger"
TREES = 256 if FULL else 3


@dataclass
class Told:
    """What was begun, and what was acknowledged."""

    begun: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)


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


def commit_one(space: Space, level: Level) -> None:
    """In one phase, beside one who comes too late."""
    late, late_xid = begin(space, "late")
    put(late, "one", b"second")
    late.end(late_xid)
    session, xid = begin(space, "one")
    put(session, "one")
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    follow(space, level, "one-phase")
    assert late.prepare(late_xid) is Vote.RDONLY


def commit_two(space: Space, level: Level) -> None:
    """In two phases: one message alone, and two beside one that is left out."""
    for keys in (("two",), ("list", "one", "other")):
        session, xid = begin(space, keys[0])
        for key in keys:
            put(session, key, b"second" if key == "one" else b"first")
        session.end(xid)
        session.prepare(xid)
        follow(space, level, "prepare")
        session.commit(xid)
        follow(space, level, "commit")


def commit_batch(space: Space, level: Level) -> None:
    """Of two branches that have the same message."""
    batch, session = Batch("query", 0), Session(space)
    xids = [Xid(ONE_SPACE, batch.gtrid, bqual) for bqual in (b"b", b"a")]
    for xid in xids:
        session.start(xid)
        put(session, "batch", b"first" if xid is xids[0] else b"second")
        session.end(xid)
        session.prepare(xid)
    follow(space, level, "prepare")
    session.commit_all(batch, xids)
    follow(space, level, "commit")


def consume(space: Space, level: Level) -> None:
    session, xid = begin(space, "consume")
    for key in KEYS:
        assert session.dequeue("a", message_id=id_of(key)) is not None
    session.end(xid)
    session.commit(xid, Flag.ONEPHASE)
    follow(space, level, "one-phase")


def clear(space: Space, level: Level) -> None:
    space.now_ns = lambda: LATER_US * 1000
    assert dedup.clear(space, cleanup.never)
    follow(space, level, "expire")


STEPS = {"one": commit_one, "two": commit_two, "batch": commit_batch, "consume": consume, "clear": clear}


def play(level: Level) -> list[tuple[ForgetfulFileSystem, Told]]:
    """What a crash before each call leaves, and one at the end."""
    fs, told = ready(EMPTY, level).open(), Told()
    left: list[tuple[ForgetfulFileSystem, Told]] = []
    fs.before_call = lambda: left.append((fs.copy(), Told({*told.begun}, {*told.done})))
    space = opened(fs, level, goes_on=True)
    for name, step in STEPS.items():
        told.begun.add(name)
        step(space, level)
        told.done.add(name)
    space.close()
    fs.before_call = lambda: None
    return [*left, (fs.copy(), told)]


def judge(tree: Tree, level: Level, told: Told) -> str:
    """Returns in which state the first key was found."""
    fs = tree.open()
    space = opened(fs, level)
    for xid in list(space.branches):
        if xid.format_id == ONE_SPACE:
            Session(space).rollback(xid)
        else:
            Session(space).commit(xid)
    there = {message.message_id for message in Session(space).browse("a")}
    seen = {}
    for key, step in KEYS.items():
        session, xid = begin(space, f"again {key}")
        found = put(session, key, b"again")
        session.end(xid)
        session.commit(xid, Flag.ONEPHASE)
        seen[key] = found == id_of(key)
        is_over = "clear" in told.begun
        assert seen[key] or is_over or id_of(key) not in there, f"{key} is there twice"
        if step in told.done and not is_over:
            assert seen[key], f"{key} would be there twice"
        if "consume" not in told.begun:
            assert seen[key] is (id_of(key) in there), f"{key} is lost"
        if "consume" in told.done:
            assert id_of(key) not in there
    space.log.end(OSError("killed"))
    again = opened(fs.tree_after_kill().open(), level)
    keys = [message.properties.dedup_key for message in Session(again).browse("a")]
    assert len(keys) == len({*keys}), "each once"
    again.now_ns = lambda: LATER_US * 1000
    assert dedup.clear(again, cleanup.never)
    again.close()
    return "gone" if not seen["one"] else "there" if id_of("one") in there else "consumed"


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
def test_what_an_open_has_seen_after_a_kill_is_on_disk() -> None:
    """Before what tells of it goes: the power may be lost then."""
    seen = set()
    for fs, told in play(STRICT):
        if len(told.begun) == 1:
            fs.survive_kill()
            space = opened(fs, STRICT)
            for tree in fs.trees_after_crash(TREES):
                if tree.key() not in seen:
                    seen.add(tree.key())
                    judge(tree, STRICT, told)
            space.log.end(OSError("killed"))
    assert len(seen) > len(STEPS)


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


@pytest.mark.crash
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [STRICT, LAGGING, JOURNAL, CHECKPOINTS], ids=str)
def test_a_key_is_known_exactly_if_its_message_was_committed(level: Level) -> None:
    left, ends = play(level), dict[object, str]()
    for fs, told in left:
        for tree in (fs.tree_after_kill(), *trees_of(fs, level, TREES)):
            key = tree.key(), *map(len, (told.begun, told.done))
            if key not in ends:
                ends[key] = judge(tree, level, told)
    assert set(ends.values()) == {"gone", "there", "consumed"}
    last, told = left[-1]
    assert told.done == set(STEPS)
    assert not [path for path in last.tree_after_kill().nodes if path.startswith(f"{dedup.keys_path('a')}/")]
