"""A branch in doubt that holds neighbours of one block: one file of it names all of them, whatever an open finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import DURABLE, BareSpace
from support.block_space import MadeBlock
from xaqueue.core.engine import heuristics, many, taking
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.message_block import read_taken
from xaqueue.core.model.message_name import parse_any
from xaqueue.errors import RetryLater
from xaqueue.features.retries.register import TRIES
from xaqueue.features.session import Session
from xaqueue.offline.check import check
from xaqueue.offline.findings import WRONG
from xaqueue.offline.inspect_branches import in_doubt, traffic_of
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
COUNT, TAKEN = 40, 10
BODIES = [b"<%03d>" % number for number in range(COUNT)]
"""One block of these; the branch has the messages behind the first two."""
BEFORE = 2
HELD, LEFT = BODIES[BEFORE : BEFORE + TAKEN], BODIES[BEFORE + TAKEN :]


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", "JOURNAL", definitions=MANY_EACH)
    put(opened, BODIES)
    assert take(opened, BEFORE) == BODIES[:BEFORE]
    yield opened
    opened.crash()


def put(bare: BareSpace, bodies: list[bytes], queue: str = "q") -> None:
    with bare.connect() as connection:
        connection.enqueue_many(queue, bodies)


def take(bare: BareSpace, count: int = 1000, queue: str = "q") -> list[bytes]:
    with bare.connect() as connection:
        return [message.body for message in connection.dequeue_many(queue, count)]


def prepare(bare: BareSpace, *, adds: bool = False) -> Session:
    session = Session(bare.space)
    session.start(X)
    assert [message.body for message in session.dequeue_many("q", TAKEN)] == HELD
    if adds:
        session.enqueue("other", b"added")
    session.end(X)
    session.prepare(X)
    return session


def made(bare: BareSpace) -> MadeBlock:
    """The block of the queue."""
    bare.space.settle()
    bare.space.checkpoint()
    (path,) = (bare.root / layout.queue_path("q")).glob("range=*/*+*")
    named = parse_any(path.name)
    assert named is not None
    return MadeBlock(bare.root, "q", named)


def prepared_files(bare: BareSpace) -> list[Path]:
    bare.space.settle()
    return sorted((bare.root / layout.PREPARED).iterdir())


def damage(bare: BareSpace) -> list[str]:
    return list(bare.space.branches[X].damage)


def at_end(bare: BareSpace) -> None:
    """Nothing is left of it."""
    bare.reopen()
    assert bare.in_doubt() == []
    assert prepared_files(bare) == []
    assert bare.space.report.quarantined == []


@pytest.mark.parametrize("adds", [False, True])
def test_one_file_names_all_of_them(bare: BareSpace, adds: bool) -> None:
    prepare(bare, adds=adds)
    first, *rest = prepared_files(bare)
    assert len(rest) == (2 if adds else 0)
    properties = decode((rest[0] if adds else first).read_bytes()).properties
    named, bits = read_taken(properties) or (None, 0)
    assert (named, bits) == (made(bare).named, (1 << TAKEN) - 1 << BEFORE)
    assert (properties.tries, properties.queue) == (0, "q")


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("opens", [0, 1, 2])
def test_all_of_them_go_or_come_back(bare: BareSpace, opens: int, adds: bool, by_hand: bool, commits: bool) -> None:
    """Each with a try more, before and after a kill."""
    prepare(bare, adds=adds)
    for _ in range(opens):
        bare.reopen()
    assert take(bare, 1) == LEFT[:1]
    session = Session(bare.space)
    if by_hand:
        assert heuristics.decide(bare.space, X, commits, "ops").outcome == ("commit" if commits else "rollback")
        (told,) = in_doubt(bare.root)
        assert (len(told.held), len(told.added)) == (TAKEN, adds)
        session.forget(X)
    else:
        (session.commit if commits else session.rollback)(X)
    bare.reopen()
    with bare.connect() as connection:
        found = connection.dequeue_many("q", 1000)
    assert [message.body for message in found] == [*([] if commits else HELD), *LEFT[1:]]
    assert {message.tries for message in found[: 0 if commits else TAKEN]} == (set() if commits else {1})
    assert {message.tries for message in found[0 if commits else TAKEN :]} == {0}
    assert take(bare, queue="other") == ([b"added"] if adds and commits else [])
    at_end(bare)


def test_who_looks_counts_each(bare: BareSpace) -> None:
    """With an owner and without, by files and by what the owner says."""
    prepare(bare, adds=True)
    for _ in range(2):
        (branch,) = in_doubt(bare.root)
        assert [str(one) for one in traffic_of(branch)] == ["other +1", "q -10"]
        assert len({message.message_id for message in branch.held}) == TAKEN
        assert branch.damage == []
        bare.reopen()
    bare.space.checkpoint()
    bare.crash()
    assert [finding for finding in check(bare.root) if finding.severity in WRONG] == []
    bare.reopen()


@pytest.mark.parametrize("register", [True, False])
def test_a_kill_between_the_files_of_a_prepare_counts_a_try_of_each(bare: BareSpace, register: bool) -> None:
    """Its list is not there: promised to nobody. Once, by its file and by the register of tries, or by the file."""
    prepare(bare, adds=True)
    bare.space.settle()
    bare.space.checkpoint()
    bare.block("prepared", X, "000").unlink()
    if not register:
        (bare.root / TRIES).unlink()
    bare.reopen()
    assert bare.in_doubt() == []
    with bare.connect() as connection:
        found = connection.dequeue_many("q", 1000)
    assert [(message.body, message.tries) for message in found] == [
        *((body, 1) for body in HELD),
        *((body, 0) for body in LEFT),
    ]
    at_end(bare)


def lose(bare: BareSpace, indexes: range) -> None:
    """These are gone, by the bitmap, whoever did that."""
    block = made(bare)
    bits = (1 << BEFORE) - 1
    for index in indexes:
        bits |= 1 << index
    block.take(bits)


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("lost", [range(BEFORE, BEFORE + 1), range(BEFORE + 3, BEFORE + 5)], ids=["first", "some"])
@pytest.mark.parametrize("commits", [True, False])
def test_some_of_them_are_gone(bare: BareSpace, lost: range, adds: bool, commits: bool) -> None:
    """It stays in doubt, and says so; the others go or come back."""
    prepare(bare, adds=adds)
    lose(bare, lost)
    for _ in range(2):
        bare.reopen()
        assert bare.in_doubt() == [X]
        (told,) = damage(bare)
        assert ("with 1 others" in told, "gone" in told or "quarantine" in told) == (len(lost) == 2, True)
    session = Session(bare.space)
    there = [body for index, body in enumerate(HELD, BEFORE) if index not in lost]
    if commits:
        with pytest.raises(RetryLater):
            session.commit(X)
        assert heuristics.decide(bare.space, X, True, "ops").outcome == "mixed"
        session.forget(X)
    else:
        session.rollback(X)
    bare.reopen()
    assert take(bare) == [*([] if commits else there), *LEFT]
    at_end(bare)


def test_one_that_was_decided_takes_what_is_left(bare: BareSpace) -> None:
    """Its .commit alone decides, though the first message of those, by which the list knows it, is gone."""
    prepare(bare, adds=True)
    lose(bare, range(BEFORE, BEFORE + 1))
    bare.crash()
    bare.block("prepared", X, "000").rename(bare.block("prepared", X, "commit"))
    bare.reopen()
    assert take(bare) == LEFT
    assert take(bare, queue="other") == [b"added"]
    at_end(bare)


def test_one_whose_messages_all_went_is_finished(bare: BareSpace) -> None:
    prepare(bare)
    lose(bare, range(BEFORE, BEFORE + TAKEN))
    bare.reopen()
    assert bare.space.report.committed == 1
    assert take(bare) == LEFT
    at_end(bare)


def harm_both(block: MadeBlock) -> None:
    block.harm_table()
    block.harm_copy()


@pytest.mark.parametrize("adds", [True, False])
def test_their_block_is_damaged_through_and_through(bare: BareSpace, adds: bool) -> None:
    """In quarantine, and the branch in doubt until somebody decides."""
    prepare(bare, adds=adds)
    harm_both(made(bare))
    for _ in range(2):
        bare.reopen()
        assert bare.in_doubt() == [X]
        assert len(damage(bare)) == 1
    assert [path.name for path in bare.quarantined() if "+" in path.name] != []
    Session(bare.space).rollback(X)
    bare.reopen()
    assert (take(bare), bare.in_doubt()) == ([], [])


@pytest.mark.parametrize(
    "harm", [MadeBlock.harm_table, MadeBlock.harm_copy, MadeBlock.harm_gone], ids=lambda h: h.__name__
)
def test_their_block_can_be_read_still(bare: BareSpace, harm: Callable[[MadeBlock], None]) -> None:
    """By one table of two; without a bitmap all that was gone is back, and what the branch has is not."""
    prepare(bare)
    harm(made(bare))
    bare.reopen()
    assert (bare.in_doubt(), damage(bare)) == ([X], [])
    back = BODIES[:BEFORE] if harm is MadeBlock.harm_gone else []
    assert take(bare) == [*back, *LEFT]
    Session(bare.space).rollback(X)
    assert take(bare) == HELD


def test_their_block_is_missing(bare: BareSpace) -> None:
    """As a message of which somebody removed the file: a branch of one block has done its work, one of several lacks
    it."""
    prepare(bare, adds=True)
    made(bare).file.unlink()
    bare.reopen()
    assert (bare.in_doubt(), len(damage(bare))) == ([X], 1)
    (told,) = in_doubt(bare.root)
    assert len(told.held) == 1
    Session(bare.space).rollback(X)
    bare.reopen()
    assert (bare.in_doubt(), take(bare)) == ([], [])


def test_a_body_of_them_is_damaged(bare: BareSpace) -> None:
    """It is found by whoever gets it next, and set aside alone."""
    prepare(bare)
    made(bare).harm_body(BEFORE + 4)
    bare.reopen()
    assert (bare.in_doubt(), damage(bare)) == ([X], [])
    Session(bare.space).rollback(X)
    assert take(bare) == [*HELD[:4], *HELD[5:], *LEFT]
    assert len(bare.quarantined()) == 1


def test_a_space_in_which_each_has_a_block_of_its_own_opens(bare: BareSpace) -> None:
    """As who takes them one by one has it, and a branch of which a part was returned."""
    session: Any = Session(bare.space)
    session.start(X)
    messages = session.dequeue_many("q", TAKEN)
    branch = bare.space.branches[X]
    many.expand(bare.space, branch)
    (third,) = (written for written in branch.blocks if written.message_id == messages[3].message_id)
    taking.return_taken(bare.space, branch, third)
    session.end(X)
    session.prepare(X)
    assert len(prepared_files(bare)) == TAKEN
    bare.reopen()
    assert take(bare) == [HELD[3], *LEFT]
    Session(bare.space).rollback(X)
    with bare.connect() as connection:
        found = connection.dequeue_many("q", 1000)
    assert [(message.body, message.tries) for message in found] == [
        (body, 1) for number, body in enumerate(HELD) if number != 3
    ]


def test_without_room_for_its_rollback_it_is_held_still(bare: BareSpace) -> None:
    """What was taken apart for that is committed as one all the same."""
    session = prepare(bare)
    journal = bare.space.log.journal  # type: ignore[attr-defined]
    write, journal.write = journal.write, _full
    with pytest.raises(RetryLater):
        session.rollback(X)
    journal.write = write
    assert take(bare, 1) == LEFT[:1]
    session.commit(X)
    bare.reopen()
    assert take(bare) == LEFT[1:]
    at_end(bare)


def _full(*_: object) -> int:
    raise OSError(28, "full")


@pytest.mark.parametrize("level", ["NONE", DURABLE])
def test_a_kill_with_neighbours_in_hand_counts_a_try_of_each(tmp_path: Path, level: str) -> None:
    """Where the files are the record."""
    bare = BareSpace(tmp_path / "space", level, definitions=MANY_EACH)
    put(bare, BODIES)
    session = Session(bare.space)
    session.start(X)
    assert len(session.dequeue_many("q", TAKEN)) == TAKEN
    for _ in range(2):
        bare.reopen()
    with bare.connect() as connection:
        found = connection.dequeue_many("q", 1000)
    assert [message.tries for message in found] == [1] * TAKEN + [0] * (COUNT - TAKEN)
    bare.crash()
