"""However many messages a branch has, no more than a few of its files move or go while everybody else waits."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bare_space import A_FILE_EACH, BareSpace, bare_space
from support.crash_cases import EXTREMES, STORIES, sample, trees_of
from support.crash_jury import Jury
from support.crash_level import CHECKPOINTS, JOURNAL, LAGGING, NOON_US, STRICT, Level
from support.crash_story import crashes
from support.journal_of import journal_log
from support.woken import Woken
from xaqueue.core.engine import commit, directory_log, taking
from xaqueue.core.model import layout
from xaqueue.core.model import order as order_of
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.index import QueueIndex
from xaqueue.core.model.layout import PREPARED, RANGE_SIZE, block_path, numbered
from xaqueue.core.model.message_name import tags_of
from xaqueue.errors import DiskFull
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.message import MessageId, Properties
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

IN_DIRECTORIES = ["NONE", "FDATASYNC;DSYNC"]
SYNCS = [*IN_DIRECTORIES, "JOURNAL"]
EVERY = 4
BLOCKS = 20
PIECE = 3
X, Y = Xid(1, b"x", b""), Xid(1, b"y", b"")


def filled(bare: BareSpace) -> Session:
    session = Session(bare.space)
    session.start(X)
    for number in range(BLOCKS):
        session.enqueue("q", b"%d" % number)
    session.end(X)
    return session


class Witness:
    """Of each call on the branch's files: whether the space's lock was held. It may do something in the first."""

    def __init__(self, bare: BareSpace, patch: pytest.MonkeyPatch, call: str) -> None:
        self.held: list[bool] = []
        self.meanwhile: Callable[[], object] = lambda: None
        real = getattr(bare.space.fs, call)

        def called(path: str, *others: str) -> None:
            if any(str(X) in str(each) for each in (path, *others)):
                self.held.append(bare.space.lock.locked())
                if not self.held[-1]:
                    meanwhile, self.meanwhile = self.meanwhile, lambda: None
                    meanwhile()
            real(path, *others)

        patch.setattr(bare.space.fs, call, called)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commit, directory_log):
        monkeypatch.setattr(module, "STEP_FILES", PIECE)


@pytest.mark.parametrize("sync", IN_DIRECTORIES)
def test_a_prepare_moves_few_files_with_the_lock_held(
    tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bare_space(tmp_path / "s", sync, definitions=A_FILE_EACH) as bare:
        session = filled(bare)
        witness = Witness(bare, monkeypatch, "rename")
        witness.meanwhile = lambda: bare.put("other", b"1")
        session.prepare(X)
        assert sum(witness.held) <= PIECE
        assert len(witness.held) == BLOCKS + 1
        assert bare.take("other") == [b"1"]
        session.commit(X)
        assert bare.take("q") == [b"%d" % number for number in range(BLOCKS)]


@pytest.mark.parametrize(
    ("sync", "prepared"), [("NONE", True), ("FDATASYNC;DSYNC", True), ("FDATASYNC;DSYNC", False)]
)  # what is not prepared at NONE is in memory
def test_a_rollback_removes_few_files_with_the_lock_held(
    tmp_path: Path, sync: str, prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bare_space(tmp_path / "s", sync, definitions=A_FILE_EACH) as bare:
        session = filled(bare)
        if prepared:
            session.prepare(X)
        witness = Witness(bare, monkeypatch, "unlink")
        witness.meanwhile = lambda: bare.put("other", b"1")
        session.rollback(X)
        assert sum(witness.held) <= PIECE + 1
        assert len(witness.held) >= BLOCKS
        assert bare.take("other") == [b"1"]
        assert bare.take("q") == []
        assert session.outcome(X) is Outcome.ROLLED_BACK
        assert not [path for path in (tmp_path / "s").rglob(f"{X}.*") if path.is_file()]


def test_the_directories_follow_a_journal_without_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bare_space(tmp_path / "s", "JOURNAL", definitions=A_FILE_EACH) as bare:
        session = filled(bare)
        made, removed = Witness(bare, monkeypatch, "rename"), Witness(bare, monkeypatch, "unlink")
        session.prepare(X)
        assert made.held == []
        bare.space.log.settle()
        session.rollback(X)
        assert removed.held == []
        bare.space.log.settle()
        assert made.held == removed.held == [False] * (BLOCKS + 1)


@pytest.mark.parametrize("sync", IN_DIRECTORIES)
@pytest.mark.parametrize("lacking", [numbered(2), numbered(BLOCKS - 1)])
def test_a_prepare_without_room_leaves_nothing(tmp_path: Path, sync: str, lacking: str) -> None:
    with bare_space(tmp_path / "s", sync, definitions=A_FILE_EACH) as bare:
        session = filled(bare)
        bare.space.log.settle()
        bare.fs.faults["rename", block_path(PREPARED, str(X), lacking)] = errno.ENOSPC
        with pytest.raises(DiskFull):
            session.prepare(X)
        bare.fs.faults.clear()
        assert bare.take("q") == []
        bare.put("q", b"1")
        bare.reopen()
        assert bare.take("q") == [b"1"]
        assert not [path for path in (tmp_path / "s").rglob(f"{X}.*") if path.is_file()]


WORK = ("puts in new queues", "put and take", "takes", "several")
ENDS = ("rollback", "prepared", "two_phase", "undone", "decided_commit", "decided_rollback")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("level", [STRICT, JOURNAL, LAGGING, CHECKPOINTS], ids=str)
@pytest.mark.parametrize("name", [f"{done}: {end}" for done in WORK for end in ENDS])
def test_a_crash_between_the_pieces(name: str, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (commit, directory_log):
        monkeypatch.setattr(module, "STEP_FILES", 1)
    jury = Jury(STORIES[name], level)
    for fs, record in crashes(STORIES[name], level, sample(EVERY, name, level)):
        jury.judge(fs.tree_after_kill(), record)
        for tree in trees_of(fs, level, EXTREMES):
            jury.judge(tree, record)


def late(seq: int) -> Entry:
    return Entry(seq, MessageId(seq.to_bytes(16, "big")), tags_of(Properties("q", expires_at=NOON_US)))


@pytest.mark.parametrize("due", [True, False])
def test_a_take_passes_over_few_at_a_time(due: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_of, "SKIPPED", PIECE)
    index = QueueIndex()
    for seq in range(1, BLOCKS + 1):
        index.add(late(seq))
    index.add(Entry(BLOCKS + 1, MessageId(bytes(16)), tags_of(Properties("q", not_before=NOON_US if due else None))))
    passed, found = 0, None
    while found is None:
        found = index.take(NOON_US)
        assert len(index.expired) - passed <= PIECE
        assert found is not None or index.is_unfinished
        passed = len(index.expired)
    assert found.seq == BLOCKS + 1
    assert not index.is_unfinished


def test_a_dequeue_lets_others_go_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_of, "SKIPPED", PIECE)
    now = [NOON_US]
    with bare_space(tmp_path / "s", "NONE", lambda: now[0]) as bare:
        session = Session(bare.space)
        session.start(X)
        for number in range(BLOCKS):
            session.enqueue("q", b"%d" % number, expires_at=NOON_US + 10)
        session.enqueue("q", b"stays")
        session.end(X)
        session.commit(X, Flag.ONEPHASE)
        now[0] += 10
        waited: list[float | None] = []
        condition = bare.space.queue("q").arrived
        real = condition.wait

        def wait(timeout: float | None = None) -> bool:
            waited.append(timeout)
            return real(timeout)

        monkeypatch.setattr(condition, "wait", wait)
        assert bare.take("q") == [b"stays"]
        assert waited
        assert set(waited) == {taking.BREATH_S}


@pytest.mark.parametrize("sync", SYNCS)
def test_who_empties_a_range_flushes_nothing_with_the_lock_held(
    tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bare_space(tmp_path / "s", sync, definitions=A_FILE_EACH) as bare:
        bare.put("q", b"last")
        queue = bare.space.queue("q")
        queue.last = queue.reserved = RANGE_SIZE - 1  # what follows goes into the next range
        spent = bare.root / layout.range_path("q", 1)
        held: list[bool] = []
        bare.space.log.settle()
        real = bare.space.log.settle

        def settle() -> None:
            held.append(bare.space.lock.locked())
            real()

        monkeypatch.setattr(bare.space.log, "settle", settle)
        told: list[None] = []
        bare.space.wakes.consumed = Woken(lambda: told.append(None))
        bare.put("p", b"pending")
        with bare.connect() as connection:
            assert connection.dequeue("q") is not None
            connection.commit()
        assert told
        assert spent.is_dir()
        assert cleanup.clear(bare.space)
        assert not spent.exists()
        assert held.count(True) == 0
        assert journal_log(bare.space) is None or held
