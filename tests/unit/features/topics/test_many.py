"""Many messages in one call: all of them, or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import A_FILE_EACH, bare_space
from support.damages import flip
from xaqueue.core.engine import many, messages
from xaqueue.core.engine.messages import add
from xaqueue.core.model.block import split_message
from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.message_block import MOST_BYTES
from xaqueue.errors import DiskFull, QueueFull, RolledBack
from xaqueue.features.session import Session
from xaqueue.features.topics.blocks import FEWEST, MOST
from xaqueue.features.topics.runs import RUN
from xaqueue.xa import Flag
from xaqueue.xid import Xid

ONCE = Definitions(default=QueueDefinition(options={"dedup_window_s": 600.0}))
LEVELS = ["NONE", "FDATASYNC;DSYNC", "JOURNAL"]


class Broken(Exception):
    """What stops a call between two of its messages, as Ctrl-C does."""


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_was_taken_before_it_broke_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, group: str | None, at: int
) -> None:
    with bare_space(tmp_path, sync) as made, made.connect() as connection:
        connection.enqueue_many("q", [b"1", b"2", b"3"], group=group)
        connection.enqueue("mine", b"x")
        connection.commit()
        assert connection.dequeue("mine") is not None
        calls = 0

        def broken(data: bytes) -> object:
            nonlocal calls
            calls += 1
            if calls == at:
                raise Broken
            return split_message(data)

        with monkeypatch.context() as patch:
            patch.setattr(many, "split_message", broken)
            with pytest.raises(Broken):
                connection.dequeue_many("q", 3)
        connection.commit()
        assert made.space.queues["q"].index.locked == 0
        found = connection.dequeue_many("q", 9)
        assert [(message.body, message.tries) for message in found] == [(b"1", 0), (b"2", 0), (b"3", 0)]
        assert connection.dequeue("mine") is None


@pytest.mark.parametrize("sync", LEVELS)
def test_many_are_taken_around_what_is_damaged_and_with_their_tries(tmp_path: Path, sync: str) -> None:
    bodies = [b"body %04d" % number for number in range(2 * RUN + 3)]
    with bare_space(tmp_path, sync, definitions=A_FILE_EACH) as made:
        with made.connect() as connection:
            connection.enqueue_many("q", bodies)
            connection.commit()
            assert [message.body for message in connection.dequeue_many("q", 2)] == bodies[:2]
            connection.rollback()
        made.space.log.settle()
        damaged = (bodies[1], bodies[RUN], bodies[-1])
        paths = [made.message_file("q", body) for body in damaged]
        made.reopen()
        for path in paths:
            flip(path, -1)
        with made.connect() as connection:
            found = connection.dequeue_many("q", len(bodies))
            assert [message.body for message in found] == [body for body in bodies if body not in damaged]
            assert [message.tries for message in found[:2]] == [1, 0]
            assert len(made.quarantined()) == len(damaged)
            assert made.space.queues["q"].redelivered == 1
            connection.commit()
            assert connection.dequeue("q") is None
            assert made.space.queues["q"].index.locked == 0


@pytest.mark.parametrize("sync", LEVELS)
def test_many_are_taken_up_to_so_many_bytes(tmp_path: Path, sync: str) -> None:
    with bare_space(tmp_path, sync) as made, made.connect() as connection:
        connection.enqueue_many("q", [b"x" * 10] * 9)
        connection.commit()
        session = Session(made.space)
        session.start(Xid(1, b"x", b""))
        assert len(session.dequeue_many("q", 9, most_bytes=31)) == 4  # type: ignore[call-arg]
        assert len(connection.dequeue_many("q", 9)) == 5
        connection.rollback()
        session.end(Xid(1, b"x", b""))
        session.commit(Xid(1, b"x", b""), Flag.ONEPHASE)
        assert [message.tries for message in connection.dequeue_many("q", 9)] == [1] * 5


@pytest.mark.parametrize("sync", LEVELS)
def test_an_enqueue_many_that_is_interrupted_is_not_committed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    with bare_space(tmp_path, sync) as made, made.connect() as connection:
        calls = 0

        def interrupted(*arguments: Any, **options: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise KeyboardInterrupt
            add(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(messages, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.enqueue_many("q", [b"1", b"2", b"3"])
        with pytest.raises(RolledBack, match="1 of 3 messages were added: KeyboardInterrupt"):
            connection.commit()
        connection.rollback()
        assert connection.dequeue("q") is None


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_one_that_is_interrupted_between_two_blocks_is_not_committed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, at: int
) -> None:
    """The last of its messages have a file each."""
    wanted = 2 * MOST + FEWEST - 1
    with bare_space(tmp_path, sync) as made, made.connect() as connection:
        left, add = at, made.space.log.add

        def interrupted(*arguments: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            add(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(made.space.log, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.enqueue_many("q", [b"%d" % number for number in range(wanted)])
        added = min(at, 2) * MOST + max(at - 2, 0)
        with pytest.raises(RolledBack, match=f"{added} of {wanted} messages were added: KeyboardInterrupt"):
            connection.commit()
        connection.rollback()
        assert connection.dequeue("q") is None


@pytest.mark.parametrize("sync", LEVELS)
def test_what_another_session_does_in_the_branch_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    with bare_space(tmp_path, sync) as made:
        made.put("q", b"1", b"2", b"3")
        made.put("theirs", b"x", b"y")
        one, other, xid = Session(made.space), Session(made.space), Xid(1, b"both", b"")
        one.start(xid)
        other.start(xid, Flag.JOIN)

        calls = 0

        def broken(data: bytes) -> object:
            nonlocal calls
            calls += 1
            if calls == 2:
                other.enqueue("q", b"4")
                assert other.dequeue("theirs") is not None
                raise Broken
            return split_message(data)

        with monkeypatch.context() as patch:
            patch.setattr(many, "split_message", broken)
            with pytest.raises(Broken):
                one.dequeue_many("q", 3)
        one.end(xid)
        other.end(xid)
        one.commit(xid, Flag.ONEPHASE)
        assert made.take("q") == [b"1", b"2", b"3", b"4"]
        assert made.take("theirs") == [b"y"]


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_disk_that_becomes_full_among_them_adds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, at: int
) -> None:
    with bare_space(tmp_path, sync) as made, made.connect() as connection:
        connection.enqueue("q", b"before")
        calls = 0

        def full(*arguments: object, **options: object) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise DiskFull(os.strerror(errno.ENOSPC))
            add(*arguments, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(messages, "add", full)
            with pytest.raises(DiskFull):
                connection.enqueue_many("q", [b"1", b"2", b"3"])
        if at == 1:
            connection.commit()
        else:
            with pytest.raises(RolledBack, match=f"{at - 1} of 3 messages were added"):
                connection.commit()
        assert made.take("q") == ([b"before"] if at == 1 else [])
        assert not made.space.queues["q"].pending


def each(count: int, **more: Any) -> list[Any]:
    return [(b"%d" % number, {"headers": {"n": str(number)}, **more}) for number in range(count)]


@pytest.mark.parametrize("sync", LEVELS)
@pytest.mark.parametrize("keyed", [[], [20], [0, 39], [*range(15, 25)]])
def test_what_has_keys_is_in_doubt_with_what_has_not(tmp_path: Path, sync: str, keyed: list[int]) -> None:
    """One with a dedup_key has a file of its own, in its place."""
    sent = each(40)
    for at in keyed:
        sent[at][1]["dedup_key"] = str(at)
    xid = Xid(1, b"x", b"")
    with bare_space(tmp_path, sync, definitions=ONCE) as made:
        with made.connect() as connection:
            connection.tpc_begin(xid)
            ids = connection.enqueue_many("q", sent)
            assert connection.tpc_prepare()
        made.reopen()
        with made.connect() as connection:
            connection.tpc_commit(xid)
            made.space.log.settle()
            assert len(made.messages("q")) == {0: 1, 1: 3, 2: 3, 10: 40}[len(keyed)]
            again = connection.enqueue_many("q", [sent[at] for at in keyed])
            assert again == [ids[at] for at in keyed]
            found = connection.dequeue_many("q", 99)
            assert [(one.message_id, one.body, one.headers["n"]) for one in found] == [
                (message_id, body, body.decode()) for message_id, (body, _) in zip(ids, sent, strict=True)
            ]
            connection.commit()


@pytest.mark.parametrize("sync", LEVELS)
def test_large_headers_of_each_make_small_blocks(tmp_path: Path, sync: str) -> None:
    with bare_space(tmp_path, sync) as made, made.connect() as connection:
        sent: list[Any] = [(b"%d" % number, {"headers": {"n": f"{number:020000}"}}) for number in range(100)]
        connection.enqueue_many("q", sent)
        connection.commit()
        made.space.log.settle()
        sizes = [path.stat().st_size for path in made.messages("q")]
        assert len(sizes) == 4
        assert max(sizes) <= MOST_BYTES
        assert [one.body for one in connection.dequeue_many("q", 100)] == [body for body, _ in sent]


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("sync", LEVELS)
def test_many_of_their_own_that_are_interrupted_are_not_committed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, at: int
) -> None:
    sent = each(40)
    sent[20][1]["dedup_key"] = "k"
    with bare_space(tmp_path, sync, definitions=ONCE) as made, made.connect() as connection:
        left, add = at, made.space.log.add

        def interrupted(*arguments: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            add(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(made.space.log, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.enqueue_many("q", sent)
        with pytest.raises(RolledBack, match=f"{19 + at} of 40 messages were added: KeyboardInterrupt"):
            connection.commit()
        connection.rollback()
        assert connection.dequeue("q") is None
        assert len(connection.enqueue_many("q", sent)) == 40
        connection.commit()
        assert len(connection.dequeue_many("q", 99)) == 40


@pytest.mark.parametrize("sync", LEVELS)
def test_what_each_has_of_its_own_counts_for_a_full_queue(tmp_path: Path, sync: str) -> None:
    full = Definitions(default=QueueDefinition(options={"max_bytes": 40_000}))
    with bare_space(tmp_path, sync, definitions=full) as made, made.connect() as connection:
        large: list[Any] = [(b"x", {"headers": {"n": f"{number:01000}"}}) for number in range(40)]
        with pytest.raises(QueueFull):
            connection.enqueue_many("q", large)
        connection.enqueue_many("q", large[:36])
        with pytest.raises(QueueFull):
            connection.enqueue_many("q", large[36:])
        connection.commit()
        assert len(connection.dequeue_many("q", 99)) == 36
