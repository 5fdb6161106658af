"""Names reach the disk in the order in which their files move, whoever else syncs the same directories meanwhile.

A move is in two directories, and each of them is synced by itself: where the one that loses a name is on disk before
the one that gains it, a crash in between keeps neither.
"""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

import pytest

from support.contract_batches import batch
from support.crash_level import STRICT, open_space
from support.crash_story import EMPTY
from support.forgetful import ForgetfulFileSystem, Tree
from support.journal_of import rounds_of
from support.lockstep import Lockstep
from xaqueue.batch import ONE_SPACE
from xaqueue.core.engine.state import Space
from xaqueue.core.model.layout import COMMITTED, PREPARED
from xaqueue.core.storage.group_commit import Step
from xaqueue.errors import RetryLater, UnknownXid
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

PATIENCE_S = 30.0
TREES = 256
X, OTHER = Xid(1, b"x", b""), Xid(1, b"other", b"")
BATCH = batch()
BRANCHES = [Xid(ONE_SPACE, BATCH.gtrid, bqual) for bqual in (b"x1", b"x2")]
Work = Sequence[tuple[str, bytes]]
"""Queues and bodies."""


def ended(space: Space, xid: Xid, add: Work = (), take: str = "") -> Session:
    """A branch that has added these, under ids of its own choice, and taken a message of this queue."""
    session = Session(space)
    session.start(xid)
    for number, (name, body) in enumerate(add):
        session.enqueue(name, body, message_id=(xid.bqual or xid.gtrid).ljust(15, b"-") + b"%d" % number)
    if take:
        assert session.dequeue(take) is not None
    session.end(xid)
    return session


def check_kept(tree: Tree) -> None:
    """The message of X was prepared, and that was acknowledged."""
    kept = [path for path, content in tree.nodes.items() if content and b"of x" in content]
    assert any(path.startswith((f"{PREPARED}/", f"{COMMITTED}/")) for path in kept), sorted(tree.nodes)


def check_whole(tree: Tree) -> None:
    """The two messages of X are there, or none of them."""
    session = Session(open_space(tree.open(), STRICT))
    bodies = [message.body for name in "qr" for message in session.browse(name) if message.body.endswith(b"of x")]
    assert bodies in ([], [b"one of x", b"two of x"])


def test_one_round_gains_names_before_it_loses_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """In it somebody prepares, X is committed into a range, and what another takes leaves that range."""
    asleep: queue.SimpleQueue[Step] = queue.SimpleQueue()
    sleep = Step.sleep

    def noted_sleep(step: Step) -> None:
        asleep.put(step)
        sleep(step)

    fs = EMPTY.open()
    space = open_space(fs, STRICT)
    first, taking, adding = (Xid(1, name, b"") for name in (b"first", b"taking", b"adding"))
    ended(space, first, [("q", b"first")]).commit(first, Flag.ONEPHASE)
    x = ended(space, X, [("q", b"of x")])
    x.prepare(X)
    takes = ended(space, taking, take="q")
    takes.prepare(taking)
    adds = ended(space, adding, [("q", b"added")])
    calls = [lambda: adds.prepare(adding), lambda: x.commit(X), lambda: takes.commit(taking)]
    monkeypatch.setattr(Step, "sleep", noted_sleep)
    rounds_of(space)._leading = True  # so that all three gather
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
        asleep.get(timeout=PATIENCE_S)
    copies: list[ForgetfulFileSystem] = []
    fs.before_call = lambda: copies.append(fs.copy())
    rounds = rounds_of(space)
    group, rounds._gathering = rounds._gathering, []
    rounds._lead(group)
    fs.before_call = lambda: None
    for thread in threads:
        thread.join(PATIENCE_S)
    assert space.log.failure is None
    assert copies
    for copy in copies:
        for tree in copy.trees_after_crash(TREES):
            check_kept(tree)


def of_x(tree: Tree) -> frozenset[tuple[str, bytes]]:
    """Its files, wherever they stand."""
    nodes = ((path, content or b"") for path, content in tree.nodes.items())
    return frozenset(node for node in nodes if b"of x" in node[1] or node[0].rpartition("/")[2].startswith(f"{X}."))


def prepared_one(space: Space) -> Callable[[], object]:
    session = ended(space, X, [("q", b"one of x")])
    session.prepare(X)
    return lambda: session.commit(X)


def active_two(space: Space) -> Callable[[], object]:
    session = ended(space, X, [("q", b"one of x"), ("r", b"two of x")])
    return lambda: session.commit(X, Flag.ONEPHASE)


def interrupted(branch: Callable[[Space], Callable[[], object]], other: Work, at: int) -> list[ForgetfulFileSystem]:
    """The directories before each call of X's commit from this one on; none once it has fewer calls.

    Before this one the other commits in one phase, as far as it comes without what X's commit holds.
    """
    with Lockstep() as steps:
        fs = EMPTY.open()
        space = open_space(fs, STRICT)
        commit, second, calls = branch(space), ended(space, OTHER, other), count()
        copies: list[ForgetfulFileSystem] = []

        def called() -> None:
            now = not steps.is_second and next(calls) == at
            if now:
                steps.second(lambda: second.commit(OTHER, Flag.ONEPHASE))
            if now or copies:
                copies.append(fs.copy())

        fs.before_call = called
        commit()
        fs.before_call = lambda: None
        assert not steps.is_parked
        assert steps.raised is None
    return copies


@pytest.mark.parametrize(
    ("branch", "other", "check"),
    [
        (prepared_one, [("q", b"1")], check_kept),
        (active_two, [("q", b"1"), ("q", b"2")], check_whole),
    ],
    ids=["two phases", "one phase"],
)
def test_a_commit_is_not_cut_in_two_by_what_another_syncs(
    branch: Callable[[Space], Callable[[], object]], other: Work, check: Callable[[Tree], None]
) -> None:
    """The other one comes before any of its calls."""
    seen: set[frozenset[tuple[str, bytes]]] = set()
    for at in count():
        copies = interrupted(branch, other, at)
        for copy in copies:
            for tree in copy.trees_after_crash(TREES):
                if (files := of_x(tree)) not in seen:
                    seen.add(files)
                    check(tree)
        if not copies:
            break
    assert len(seen) > 1


def fill(fs: ForgetfulFileSystem) -> None:
    """There is no room for the second message of X, once."""
    rename, moved = fs.rename, count(1)

    def full(source: str, target: str) -> None:
        if target.startswith(COMMITTED) and b"of x" in fs.read(source) and next(moved) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", target)
        rename(source, target)

    fs.rename = full  # type: ignore[method-assign]


def prepared_two(space: Space) -> Callable[[], object]:
    session = ended(space, X, [("q", b"one of x"), ("r", b"two of x")])
    session.prepare(X)
    return lambda: session.commit(X)


def of_a_batch(space: Space) -> Callable[[], object]:
    for name, add in zip(BRANCHES, (("q", b"one of x"), ("r", b"two of x")), strict=True):
        ended(space, name, [add]).prepare(name)
    return lambda: Session(space).commit_all(BATCH, BRANCHES)


@pytest.mark.parametrize("branch", [prepared_two, active_two, of_a_batch])
def test_what_goes_back_for_want_of_room_is_kept(branch: Callable[[Space], Callable[[], object]]) -> None:
    """Its name is on disk again before it goes where it had none yet."""
    fs = EMPTY.open()
    space = open_space(fs, STRICT)
    for name in "qr":
        ended(space, OTHER, [(name, b"first")]).commit(OTHER, Flag.ONEPHASE)
    commit = branch(space)
    fill(fs)
    copies: list[ForgetfulFileSystem] = []
    fs.before_call = lambda: copies.append(fs.copy())
    with pytest.raises(RetryLater):
        commit()
    later = Xid(1, b"later", b"")
    ended(space, later, [("q", b"later")]).commit(later, Flag.ONEPHASE)
    fs.before_call = lambda: None
    for copy in copies:
        for tree in copy.trees_after_crash(TREES):
            session = Session(open_space(tree.open(), STRICT))
            with suppress(UnknownXid):
                if branch is of_a_batch:
                    session.commit_all(BATCH, BRANCHES)
                else:
                    session.commit(X)
            bodies = [message.body for name in "qr" for message in session.browse(name) if b"of x" in message.body]
            assert bodies == [b"one of x", b"two of x"] or (bodies == [] and branch is active_two)
