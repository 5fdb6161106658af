"""Opening lists every message once, in order, reads none, and says how far it is; what a name says decides its turn."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.bare_space import DURABLE, BareSpace, FaultyFileSystem, bare_space, lay
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout, message_name
from xaqueue.core.model.block import HEAD_READ_BYTES
from xaqueue.core.model.entry import Retry
from xaqueue.core.model.layout import RANGE_SIZE
from xaqueue.core.model.message_name import correlation_hash
from xaqueue.features.opening import open_space
from xaqueue.features.retries.tries import encode_retry
from xaqueue.message import MessageId, Properties
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.inspect import browse
from xaqueue.offline.reader import QueueReader

NOON_US = 1_800_000_000_000_000


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path) as space:
        yield space


def identity(number: int) -> MessageId:
    return MessageId(number.to_bytes(16, "big"))


def seqs(space: Space) -> list[int]:
    return [entry.seq for entry in space.queues["q"].index.entries(0)]


def test_no_message_is_read(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def note(self: FaultyFileSystem, path: str, size: int | None = None) -> bytes:
        read.append(path)
        return real(self, path, size)

    real = FaultyFileSystem.read
    for seq in (1, 2, 3, RANGE_SIZE, RANGE_SIZE + 5):
        lay(bare, seq, identity(seq))
    lay(bare, 4, identity(4), Properties("q", priority=9, correlation_id=b"c"))
    monkeypatch.setattr(FaultyFileSystem, "read", note)
    assert seqs(bare.reopen()) == [1, 2, 3, 4, RANGE_SIZE, RANGE_SIZE + 5]
    assert [path for path in read if "range=" in path] == []


def test_many_come_in_their_order(bare: BareSpace) -> None:
    for seq in range(1, 400):
        lay(bare, seq, identity(seq), body=b"%d" % seq)
    space = bare.reopen()
    assert seqs(space) == list(range(1, 400))
    assert [space.queues["q"].index.take(0).seq for _ in range(399)] == list(range(1, 400))  # type: ignore[union-attr]


def test_what_is_foreign_among_many_is_set_aside_and_nothing_else(bare: BareSpace) -> None:
    paths = [lay(bare, seq, identity(seq)) for seq in range(1, 200)]
    foreign = ["notes", f"{9:016x}.{'A' * 32}", f"{9:016x}.{'a' * 32}.p4", f"{RANGE_SIZE:016x}.{'a' * 32}"]
    for name in (*foreign, ".hidden"):
        (paths[0].parent / name).write_text("x")
    space = bare.reopen()
    assert seqs(space) == list(range(1, 200))
    assert len(space.report.quarantined) == len(bare.quarantined()) == len(foreign)
    assert (paths[0].parent / ".hidden").exists()


def test_an_error_that_concerns_the_space_ends_the_opening(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(bare, 1, identity(1))

    def few(self: FaultyFileSystem, path: str) -> Sequence[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patch:
        patch.setattr(FaultyFileSystem, "list", few)
        with pytest.raises(OSError, match="open files"):
            bare.reopen()
    assert seqs(bare.reopen()) == [1]


def test_everything_that_decides_a_turn_is_in_the_name(bare: BareSpace) -> None:
    given = Properties("q", correlation_id=b"c", priority=7, not_before=5, expires_at=2**60, content_type="text/plain")
    lay(bare, 1, identity(1), given).write_bytes(b"nobody reads it")
    lay(bare, 2, identity(2), Properties("q", headers={"k": "v"}, dedup_key=b"d", traceparent="t"))
    lay(bare, 3, identity(3), Properties("q", unknown={"later": 1}))
    lay(bare, 4, identity(4), body=bytes(HEAD_READ_BYTES))
    record = bare.root / layout.retry_path("q", 1, identity(1))
    record.parent.mkdir()
    record.write_bytes(encode_retry("q", identity(1), Retry(2), 1))
    first, *others = bare.reopen().queues["q"].index.entries(0)
    assert (first.correlation, first.priority, first.not_before, first.expires_at, first.tries) == (
        *(correlation_hash(b"c"), 7, 5, 2**60, 2),
    )
    turns = [(one.tags, one.correlation, one.priority, one.not_before, one.expires_at, one.tries) for one in others]
    assert turns == [("", None, 4, None, None, 0)] * 3


@pytest.mark.parametrize("sync", ["NONE", DURABLE, "JOURNAL"])
def test_what_was_put_has_the_name_that_tells_it_and_comes_back_so(tmp_path: Path, sync: str) -> None:
    with bare_space(tmp_path, sync, now_us=lambda: NOON_US) as made:
        with made.connect() as connection:
            connection.enqueue("q", b"plain")
            connection.enqueue("q", b"first", priority=9)
            connection.enqueue("q", b"later", not_before=NOON_US + 7)
            connection.enqueue("q", b"short", expires_at=NOON_US + 9)
            connection.enqueue("q", b"answer", correlation_id=b"c")
            connection.commit()
        made.space.checkpoint()
        names = [path.name for path in made.messages("q")]
        assert [name[message_name.PLAIN_NAME :] for name in names] == [
            *("", ".p9", f".n{NOON_US + 7:x}", f".e{NOON_US + 9:x}", f".c{correlation_hash(b'c')}"),
        ]
        before = [(one.seq, one.message_id, one.tags) for one in made.space.queues["q"].index.entries(0)]
        made.reopen()
        assert [(one.seq, one.message_id, one.tags) for one in made.space.queues["q"].index.entries(0)] == before
        with made.connect() as connection:
            answer = connection.dequeue("q", correlation_id=b"c")
            assert answer is not None
            assert answer.body == b"answer"
            connection.rollback()
        assert made.take("q") == [b"plain", b"first", b"short", b"answer"]
        made.now_us = lambda: NOON_US + 9
        made.reopen()
        assert made.take("q") == [b"plain", b"first", b"later", b"answer"]
        assert [one for one in check(made.root, live=False) if one.severity is Severity.DAMAGE] == []


def test_another_correlation_id_with_the_same_hash_is_passed_over(
    bare: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_name, "_TEXTS", (lambda correlation_id: "0" * 16, *message_name._TEXTS[1:]))
    monkeypatch.setattr("xaqueue.core.engine.taking.correlation_hash", lambda correlation_id: "0" * 16)
    with bare.connect() as connection:
        for name in (b"a", b"b", b"c", b"b"):
            connection.enqueue("q", name, correlation_id=name)
        connection.commit()
        first, second = (connection.dequeue("q", correlation_id=b"b") for _ in range(2))
        assert first is not None
        assert second is not None
        assert (first.seq, second.seq) == (2, 4)
        assert connection.dequeue("q", correlation_id=b"b") is None
        assert connection.dequeue("q", correlation_id=b"d", wait_s=0.05) is None
        assert connection.dequeue("q", message_id=identity(1), correlation_id=b"d") is None
        connection.commit()
    assert bare.take("q") == [b"a", b"c"]
    assert bare.space.queues["q"].index.locked == 0


@pytest.mark.parametrize("sync", ["NONE", DURABLE, "JOURNAL"])
def test_a_tag_of_a_later_version_stays_and_its_message_is_delivered(tmp_path: Path, sync: str) -> None:
    """Nobody destroys what he does not know: its name stays whole until it is consumed, and goes whole."""
    with bare_space(tmp_path, sync) as made:
        made.put("q", b"plain")
        made.space.checkpoint()
        for seq, tags in ((2, ".k0123456789abcdef"), (3, ".a1.p9.zlater")):
            properties = Properties("q", priority=9 if "p9" in tags else 4)
            lay(made, seq, identity(seq), properties, b"%d" % seq, tags)
        (made.root / layout.watermark_path("q")).write_bytes(layout.format_watermark(layout.Watermark(3, 10)))
        made.reopen()
        assert made.space.report.quarantined == []
        assert made.take("q") == [b"plain", b"2", b"3"]
        names = [path.name for path in made.messages("q")]
        assert [name[message_name.PLAIN_NAME :] for name in names] == ["", ".k0123456789abcdef", ".a1.p9.zlater"]
        assert [one.body for one in browse(made.root, "q", lambda seq, why: None)] == [b"plain", b"2", b"3"]
        assert [seq for seq, _, _ in QueueReader(made.root, "q", even_behind=True).read(0, 3)] == [1, 2, 3]
        assert [one for one in check(made.root, live=False) if one.severity is Severity.DAMAGE] == []
        assert [entry.priority for entry in made.space.queues["q"].index.entries(0)] == [4, 4, 9]
        with made.connect() as connection:
            while connection.dequeue("q") is not None:
                pass
            connection.commit()
        made.space.checkpoint()
        assert made.messages("q") == []


def test_a_name_that_says_another_thing_than_its_head_is_damage_that_a_rename_mends(bare: BareSpace) -> None:
    path = lay(bare, 1, identity(1), Properties("q", priority=9), tags="")
    (bare.root / layout.watermark_path("q")).write_bytes(layout.format_watermark(layout.Watermark(1, 10)))
    (found,) = [one for one in check(bare.root, live=False) if one.severity is Severity.DAMAGE]
    assert not found.movable
    assert found.problem.startswith("its name does not say what its head says: rename it to ")
    path.rename(path.with_name(found.problem.split()[-5]))
    assert [one for one in check(bare.root, live=False) if one.severity is Severity.DAMAGE] == []


def test_a_message_that_an_earlier_version_has_moved_is_whole_and_stays(bare: BareSpace) -> None:
    """It keeps what it does not know of the head, and gives it no tag."""
    lay(bare, 1, identity(1), Properties("q", priority=9, persistent=False), tags=".p9")
    (bare.root / layout.watermark_path("q")).write_bytes(layout.format_watermark(layout.Watermark(1, 10)))
    assert [one for one in check(bare.root, live=False) if one.severity is Severity.DAMAGE] == []
    assert seqs(bare.reopen()) == [1]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda bare: lay(bare, 1, identity(1), Properties("r")), "belongs to queue"),
        (lambda bare: _renamed(bare), "not the one it is named after"),
        (lambda bare: lay(bare, 1, identity(1)).write_bytes(b"x"), "1 bytes are less than a prefix"),
        (lambda bare: _directory(bare), "it is a directory, not a file"),
    ],
)
def test_what_is_no_such_message_is_set_aside_by_who_dequeues_it(bare: BareSpace, make: object, why: str) -> None:
    make(bare)  # type: ignore[operator]
    lay(bare, 2, identity(2), body=b"next")
    space = bare.reopen()
    assert space.report.quarantined == []
    assert bare.take("q") == [b"next"]
    (aside,) = space.report.quarantined
    assert why in aside
    assert seqs(space) == [2]


def _renamed(bare: BareSpace) -> None:
    lay(bare, 1, identity(1)).rename(bare.root / layout.message_path("q", 1, identity(9)))


def _directory(bare: BareSpace) -> None:
    path = lay(bare, 1, identity(1))
    path.unlink()
    path.mkdir()


def test_commit_times_go_on_behind_the_newest_message(bare: BareSpace) -> None:
    later_ns = time.time_ns() + 10**12
    os.utime(lay(bare, 1, identity(1)), ns=(later_ns, later_ns))
    bare.reopen()
    bare.put("q", b"2")
    assert bare.messages("q")[-1].stat().st_mtime_ns >= later_ns // 1000 * 1000


@pytest.mark.parametrize("tags", ["", ".p9"])
def test_of_two_messages_with_one_number_or_one_id_the_first_is_kept(bare: BareSpace, tags: str) -> None:
    lay(bare, 1, identity(1))
    lay(bare, 1, identity(2), tags=tags)
    lay(bare, 2, identity(1), tags=tags)
    lay(bare, 2, identity(3))
    lay(bare, RANGE_SIZE, identity(3))
    space = bare.reopen()
    assert [(entry.seq, entry.message_id) for entry in space.queues["q"].index.entries(0)] == [
        *((1, identity(1)), (2, identity(3))),
    ]
    assert sorted("twice" in text for text in space.report.quarantined) == [False, True, True]
    assert len(space.queues["q"].index) == 2
    assert space.queues["q"].ranges == {0: 2}


def test_a_branch_finds_its_messages_whole_or_is_told(bare: BareSpace) -> None:
    """What a branch in doubt takes is the one thing that an opening reads."""
    bare.put("q", b"one", b"two")
    first, second = bare.messages("q")
    xid = bare.prepare("taker", take=["q", "q"])
    assert bare.reopen().branches[xid].damage == []
    second.write_bytes(b"torn")
    branch = bare.reopen().branches[xid]
    assert [second.name[message_name.ID_DIGITS] in damage for damage in branch.damage] == [True]
    assert len(bare.quarantined()) == 1
    assert first.exists()


def test_progress_ends_with_as_many_as_there_are(bare: BareSpace) -> None:
    numbers = [*range(1, 11), *range(RANGE_SIZE, RANGE_SIZE + 2), 9 * RANGE_SIZE]
    for seq in numbers:
        lay(bare, seq, identity(seq))
    told: list[tuple[int, int]] = []
    bare.crash()
    opened = open_space(
        bare.fs,
        bare.space.definitions,
        hardening=bare.space.hardening,
        progress=lambda *at: told.append(at),
    )
    assert told == [(10, 30), (12, 18), (13, 13)]
    assert opened.report.messages == 13
