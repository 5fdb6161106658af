"""Savepoints against a model of a dozen lines, through kills; and a crash at every call of a branch that is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.bare_space import DURABLE, BareSpace
from support.crash_cases import FULL
from support.crash_level import JOURNAL, LAGGING, MOVING, NONE, STRICT, Level, follow, open_space, ready
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem
from support.served import RemoteHost
from xaqueue import Connection
from xaqueue.core.model.definitions import MANY, ONE, Definitions, QueueDefinition
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

pytestmark = pytest.mark.usefixtures("quiet")

RUNS = 10_000 if FULL else 30
CALLS, DRAWN = 20, 40 if FULL else 4
"""Of the calls so many by chance, and so many trees of each loss of power."""
FRESH = count()


class Place(Protocol):
    def connect(self) -> Connection: ...

    def kill(self) -> None: ...


class Model:
    """What is in one queue, what of that is left to be taken, and what the transaction adds."""

    def __init__(self) -> None:
        self.there: list[int] = []
        self.begin()

    def begin(self) -> None:
        self.left, self.added, self.saved = [*self.there], list[int](), list[tuple[list[int], list[int]]]()

    def mark(self) -> None:
        self.saved.append(([*self.left], [*self.added]))

    def cut(self, depth: int) -> None:
        left, added = self.saved[depth]
        self.left, self.added, self.saved = [*left], [*added], self.saved[: depth + 1]

    def commit(self) -> None:
        self.there = self.left + self.added
        self.begin()


STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from([1, 1, 1, 2, 20])),
    st.tuples(st.just("add many"), st.sampled_from([1, 16, 40])),
    st.tuples(st.just("take"), st.sampled_from([1, 1, 2, 5])),
    st.tuples(st.just("take many"), st.sampled_from([1, 10, 100])),
    st.tuples(st.just("mark"), st.just(0)),
    st.tuples(st.just("mark"), st.just(0)),
    st.tuples(st.just("cut"), st.integers(0, 9)),
    st.tuples(st.just("cut"), st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["commit", "two phases", "rollback", "kill", "kill in doubt"]), st.just(0)),
)
SCRIPTS = st.one_of(st.lists(STEPS, max_size=40), st.lists(STEPS, min_size=20, max_size=60))


def run(place: Place, queue: str, script: list[tuple[str, int]]) -> None:
    model, numbers, connection, made = Model(), count(), place.connect(), list[object]()
    for step, given_ in [*script, ("commit", 0)]:
        many = step.endswith("many")
        if step in ("commit", "two phases", "rollback", "kill", "kill in doubt"):
            connection = _end(place, connection, step)
            model.begin() if step in ("rollback", "kill") else model.commit()
            found = [int(message.body) for message in connection.browse(queue)]
            assert found == model.there
            continue
        if not connection.in_transaction:
            connection.tpc_begin(Xid(1, b"%d" % next(FRESH), b""))
            made = []
        if step.startswith("add"):
            new = [next(numbers) for _ in range(given_)]
            texts = [b"%d" % number for number in new]
            connection.enqueue_many(queue, texts) if many else [connection.enqueue(queue, text) for text in texts]
            model.added += new
        elif step.startswith("take"):
            singly = (connection.dequeue(queue) for _ in range(given_))
            taken = connection.dequeue_many(queue, given_) if many else [one for one in singly if one is not None]
            assert [int(message.body) for message in taken] == model.left[:given_]
            del model.left[:given_]
        elif step == "mark":
            made.append(connection.savepoint())
            model.mark()
        elif made:
            savepoint = made[depth := given_ % len(made)]
            if step == "cut":
                savepoint.rollback()  # type: ignore[attr-defined]
                model.cut(depth)
                del made[depth + 1 :]
            else:
                savepoint.release()  # type: ignore[attr-defined]
                del made[depth:], model.saved[depth:]
    connection.close()


def _end(place: Place, connection: Connection, how: str) -> Connection:
    if how == "kill":
        place.kill()
        return place.connect()
    if not connection.in_transaction:
        return connection
    if how == "rollback":
        connection.tpc_rollback()
    elif how == "commit":
        connection.tpc_commit()
    elif connection.tpc_prepare():
        if how == "two phases":
            connection.tpc_commit()
        else:
            place.kill()
            connection = place.connect()
            (xid,) = connection.tpc_recover()
            connection.tpc_commit(xid)
    else:
        connection.tpc_commit()
    return connection


class Embedded(BareSpace):
    def kill(self) -> None:
        self.reopen()


def bounded(runs: int) -> settings:
    return settings(max_examples=runs, deadline=None, suppress_health_check=list(HealthCheck), database=None)


LEVELS = [("NONE", MANY), (DURABLE, MANY), ("JOURNAL", MANY), ("JOURNAL", ONE)]


@pytest.mark.parametrize(("sync", "blocks"), LEVELS)
def test_the_model_embedded(sync: str, blocks: str, tmp_path: Path) -> None:
    definitions = Definitions(default=QueueDefinition(blocks=blocks))
    embedded = Embedded(tmp_path / "space", sync, definitions=definitions)

    @bounded(RUNS // len(LEVELS))
    @given(script=SCRIPTS)
    def each(script: list[tuple[str, int]]) -> None:
        run(embedded, f"q{next(FRESH)}", script)

    each()
    embedded.crash()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RemoteHost]:
    made = RemoteHost(tmp_path / "space", "JOURNAL")
    yield made
    made.restart()


def test_the_model_served(served: RemoteHost) -> None:
    class Served:
        kill = staticmethod(served.kill)

        def connect(self) -> Connection:
            return served.connect()

    @bounded(RUNS // 10)
    @given(script=SCRIPTS)
    def each(script: list[tuple[str, int]]) -> None:
        with served.connect() as definer:
            definer.define(queue := f"q{next(FRESH)}")
        run(Served(), queue, script)

    each()


# A crash at every call

A, B = Xid(1, b"a", b""), Xid(1, b"b", b"")
MANY_QUEUE = Definitions(default=QueueDefinition(blocks=MANY))
ALL = [b"%02d" % number for number in range(40)]
NEW = [b"new %d" % number for number in range(3)]


def story(fs: ForgetfulFileSystem, level: Level, reached: list[str], ends: str) -> None:
    """40 messages; then a branch that takes the first and adds one, and does much that is cut back."""
    space = open_space(fs, level, goes_on=True, definitions=MANY_QUEUE)
    session = Session(space)
    session.start(A)
    session.enqueue_many("q", ALL)
    session.end(A)
    session.commit(A, Flag.ONEPHASE)
    follow(space, level, "one-phase")
    reached.append("put")
    session.start(B)
    session.dequeue("q")
    session.enqueue("r", NEW[0])
    mark = session.mark()
    for _ in range(2):
        session.dequeue("q")
        session.dequeue_many("q", 20)
        session.enqueue_to(["r", "s"], b"cut")
        for _ in range(17):
            session.enqueue("s", b"cut")
        session.enqueue_many("r", [b"cut" + bytes(400)] * 16)
        session.cut(mark)
    session.enqueue("r", NEW[1])
    session.end(B)
    reached.append("cut")
    if ends == "two phases":
        session.prepare(B)
        follow(space, level, "prepare")
        reached.append("prepared")
        session.commit(B)
    else:
        session.commit(B, Flag.ONEPHASE)
    reached.append("committed")
    follow(space, level, "commit")


def judge(fs: ForgetfulFileSystem, level: Level, reached: list[str], dice: random.Random) -> None:
    lost = () if level is NONE else fs.some_trees_after_crash(DRAWN, dice)
    for tree in (fs.tree_after_kill(), *lost):
        space = open_space(tree.open(), level, definitions=MANY_QUEUE)
        session = Session(space)
        in_doubt = session.recover(9, Flag.STARTRSCAN)
        for xid in in_doubt:
            session.commit(xid)
        found = {queue: [message.body for message in session.browse(queue)] for queue in "qrs"}
        before, behind = {"q": ALL, "r": [], "s": []}, {"q": ALL[1:], "r": NEW[:2], "s": []}
        if in_doubt or not {"prepared", "committed"}.isdisjoint(reached):
            assert found == behind, reached
        elif "put" in reached:
            assert found == before or ("cut" in reached and found == behind), reached
        else:
            assert found in (before, {"q": [], "r": [], "s": []}), reached
        assert {message.tries for message in session.browse("q")} <= {0, 1}
        space.close()


@pytest.mark.crash
@pytest.mark.parametrize("ends", ["one phase", "two phases"])
@pytest.mark.parametrize("level", [NONE, STRICT, JOURNAL, LAGGING, MOVING], ids=str)
def test_a_crash_at_every_call_of_a_branch_that_is_cut(level: Level, ends: str) -> None:
    fs = ready(EMPTY, level).open()
    left, reached = list[tuple[ForgetfulFileSystem, list[str]]](), list[str]()
    fs.before_call = lambda: left.append((fs.copy(), [*reached]))
    story(fs, level, reached, ends)
    fs.before_call = lambda: None
    assert reached[-1] == "committed"
    dice = random.Random(f"{level} {ends}")
    for copy, known in left if FULL else dice.sample(left, CALLS):
        judge(copy, level, known, dice)
