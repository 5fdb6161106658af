"""Many messages in one call: all of them, or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import bare_space
from xaqueue.core.engine import messages
from xaqueue.core.engine.messages import add, fetch
from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import Branch, Written
from xaqueue.errors import DiskFull, RolledBack
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

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

        def broken(space: Space, branch: Branch, written: Written) -> object:
            nonlocal calls
            calls += 1
            if calls == at:
                raise Broken
            return fetch(space, branch, written)

        with monkeypatch.context() as patch:
            patch.setattr(messages, "fetch", broken)
            with pytest.raises(Broken):
                connection.dequeue_many("q", 3)
        connection.commit()
        assert made.space.queues["q"].index.locked == 0
        found = connection.dequeue_many("q", 9)
        assert [(message.body, message.tries) for message in found] == [(b"1", 0), (b"2", 0), (b"3", 0)]
        assert connection.dequeue("mine") is None


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
def test_what_another_session_does_in_the_branch_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    with bare_space(tmp_path, sync) as made:
        made.put("q", b"1", b"2", b"3")
        made.put("theirs", b"x", b"y")
        one, other, xid = Session(made.space), Session(made.space), Xid(1, b"both", b"")
        one.start(xid)
        other.start(xid, Flag.JOIN)

        def broken(space: Space, branch: Branch, written: Written) -> object:
            if written.queue == "q" and len(branch.blocks) > 1:
                other.enqueue("q", b"4")
                assert other.dequeue("theirs") is not None
                raise Broken
            return fetch(space, branch, written)

        with monkeypatch.context() as patch:
            patch.setattr(messages, "fetch", broken)
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
