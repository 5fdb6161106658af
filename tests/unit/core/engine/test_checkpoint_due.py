"""When a checkpoint is due, the log says."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.bare_space import bare_space
from support.forgetful import ForgetfulFileSystem
from support.journal_log_scene import RANGE, LoggedDirectories, directories
from support.log_owner import LogOwner
from support.woken import Woken
from xaqueue.core.engine import journal_log
from xaqueue.core.engine.journal_log import LOOK_S
from xaqueue.core.engine.log import NEVER
from xaqueue.core.engine.unsynced_log import UnsyncedLog
from xaqueue.core.model.change import PUT
from xaqueue.core.storage.hardening import NOTHING
from xaqueue.errors import RetryLater

HOUR_S = 3600.0


def test_directories_need_none() -> None:
    log = UnsyncedLog(ForgetfulFileSystem(), NOTHING, threading.Lock(), LogOwner(lambda _: None))
    log.checkpoint()
    assert (log.checkpoint_in(0.0), log.checkpoints, log.is_covered) == (NEVER, 0, True)


def test_it_is_due_after_a_while_where_something_was_recorded() -> None:
    log = LoggedDirectories(directories())
    assert log.checkpoint_in(0.0) == LOOK_S, "there is nothing to cover"
    log.do((PUT, f"{RANGE}/a", b"x", b"", 0))
    assert log.checkpoint_in(0.0) <= 0.0
    assert 0.0 < log.checkpoint_in(HOUR_S) <= LOOK_S
    log.settle()
    log.checkpoint()
    assert (log.checkpoint_in(0.0), log.checkpoints, log.is_covered) == (LOOK_S, 1, True)


def test_many_new_files_make_it_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_log, "NEW_FILES", 1)
    log = LoggedDirectories(directories())
    for name in "ab":
        log.do((PUT, f"{RANGE}/{name}", b"x", b"", 0))
    assert log.checkpoint_in(HOUR_S) > 0.0
    log.settle()
    assert log.checkpoint_in(HOUR_S) == 0.0
    log.checkpoint()
    assert log.checkpoint_in(HOUR_S) == LOOK_S


def test_a_full_segment_makes_it_due() -> None:
    log, told = LoggedDirectories(directories()), list[bool]()
    log.owner.wakes.full = Woken(lambda: told.append(log.checkpoint_in(HOUR_S) == 0.0))
    while not log.journal.switches:
        assert told == []
        log.do((PUT, f"{RANGE}/a", bytes(200_000), b"", 0))
    assert told == [True]


def test_one_that_finds_no_room_is_not_made_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise RetryLater("no room")

    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        assert bare.space.checkpoint()
        monkeypatch.setattr(bare.space.log, "checkpoint", full)
        assert not bare.space.checkpoint()
        monkeypatch.undo()
