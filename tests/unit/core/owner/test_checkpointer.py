"""Checkpoints are made in the background: when a segment is full, and now and then; readers know when they may look."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

import xaqueue
from support.journal_of import journal_of
from xaqueue.core.engine import journal_log
from xaqueue.core.model import layout
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES, Journal
from xaqueue.core.storage.owner_file import boot_id
from xaqueue.errors import SpaceError
from xaqueue.features.counters import counters as counter_files
from xaqueue.features.session import Session, attach
from xaqueue.offline import inspect
from xaqueue.offline.reader import QueueReader

SMALL = f'[default]\n[space]\nsync = "JOURNAL"\njournal_segment_bytes = {SMALLEST_SEGMENT_BYTES}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    xaqueue.connect(tmp_path / "space", create=True).close()
    (tmp_path / "space" / layout.QUEUES).write_text(SMALL)
    return tmp_path / "space"


def segments(root: Path) -> list[Path]:
    return sorted((root / layout.JOURNAL).glob("*.log"))


class Recycled:
    """Told of each checkpoint that released its segments."""

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.event = threading.Event()
        self._recycle = journal.recycle
        monkeypatch.setattr(journal, "recycle", self.recycle)

    def recycle(self) -> None:
        self._recycle()
        self.event.set()


def opened(root: Path) -> tuple[Session, Journal]:
    session = attach(root, watch=False)
    return session, journal_of(session.space).journal


def test_full_segments_are_released_while_work_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, journal = opened(root)
    recycled = Recycled(journal, monkeypatch)
    messages = 0
    with xaqueue.Connection(session, lambda: os.urandom(16)) as connection:
        while journal.position < 20 * SMALLEST_SEGMENT_BYTES:
            connection.enqueue("orders", bytes(1000))
            connection.commit()
            messages += 1
            if journal.full_segments > 2:
                assert recycled.event.wait(30)
                recycled.event.clear()
        assert len(segments(root)) < 10
    with xaqueue.connect(root) as connection:
        assert sum(1 for _ in connection.browse("orders")) == messages


def test_checkpoints_come_with_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / layout.QUEUES).write_text(SMALL + "checkpoint_s = 1\n")
    session, journal = opened(root)
    recycled = Recycled(journal, monkeypatch)
    before = journal.checkpoint
    with xaqueue.Connection(session, lambda: os.urandom(16)) as connection:
        connection.enqueue("orders", b"one")
        connection.commit()
        assert recycled.event.wait(30)
        assert before < journal.checkpoint < journal.position


def test_checkpoints_come_with_new_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file above the last one is made anew by an open after a kill."""
    monkeypatch.setattr(journal_log, "NEW_FILES", 5)
    session, journal = opened(root)
    recycled = Recycled(journal, monkeypatch)
    before = journal.checkpoint
    with xaqueue.Connection(session, lambda: os.urandom(16)) as connection:
        for _ in range(6):
            connection.enqueue("orders", b"one")
        connection.commit()
        assert recycled.event.wait(30)  # sooner than checkpoint_s
        assert before < journal.checkpoint < journal.position


def test_the_status_tells_of_the_cache(root: Path) -> None:
    session, _ = opened(root)
    with xaqueue.Connection(session, lambda: os.urandom(16)) as connection:
        for _ in range(3):
            connection.enqueue("orders", b"one")
        connection.commit()
        while connection.dequeue("orders"):
            pass
        connection.commit()
        counter_files.write(session.space)
        assert inspect.status(root).cache == (3, 0)
    assert inspect.status(root).cache is None


def test_a_reader_refuses_directories_that_a_reboot_left_behind(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"one")
        connection.commit()
        owner = json.loads((root / layout.OWNER).read_bytes())
        assert owner["boot"] == boot_id()
    assert json.loads((root / layout.OWNER).read_bytes())["boot"] == ""
    assert QueueReader(root, "orders").watermark() == 1
    (root / layout.OWNER).write_text(json.dumps({**owner, "boot": "another"}))
    with pytest.raises(SpaceError, match=r"not opened since the machine went down.*check --repair"):
        QueueReader(root, "orders")
    xaqueue.connect(root).close()
    assert QueueReader(root, "orders").watermark() == 1
