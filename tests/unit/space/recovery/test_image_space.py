"""A space that was closed cleanly opens by its images, and shows what it would show without them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bare_space import BareSpace, FaultyFileSystem
from support.index_images import all_of
from xaqueue.space.engine import image
from xaqueue.space.engine.state import wall_clock
from xaqueue.space.model import layout
from xaqueue.space.model.layout import Watermark
from xaqueue.space.offline.check import check
from xaqueue.space.offline.inspect import queue_list
from xaqueue.space.offline.reader import QueueReader

MANY = 300
"""More than are held as entries."""


@pytest.fixture(autouse=True)
def every_queue_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "WORTH", 1)


class Space(BareSpace):
    """A bare space that can be closed cleanly and opened again."""

    def open(self) -> None:
        self.fs = FaultyFileSystem(self.root)
        self.space = self._open()

    def seqs(self, queue: str = "q") -> list[int]:
        return [entry.seq for entry in self.space.queues[queue].index.entries(0)]


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    opened = Space(tmp_path / "space")
    yield opened
    opened.crash()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the message files that were read."""
    names: list[str] = []
    real = FaultyFileSystem.read

    def noted(self: FaultyFileSystem, path: str, size: int | None = None) -> bytes:
        if "/range=" in path:
            names.append(path.rpartition("/")[2])
        return real(self, path, size)

    monkeypatch.setattr(FaultyFileSystem, "read", noted)
    return names


def test_a_clean_open_reads_no_message(space: Space, read: list[str]) -> None:
    space.put("q", *(b"%d" % number for number in range(MANY)))
    before = all_of(space.space.queues["q"].index)
    space.space.close()
    space.open()
    assert read == []
    assert all_of(space.space.queues["q"].index) == before
    assert space.take("q") == [b"%d" % number for number in range(MANY)]
    assert space.space.report.messages == MANY


def test_an_opened_space_has_no_image_and_a_killed_one_is_read_anew(space: Space, read: list[str]) -> None:
    space.put("q", b"1", b"2")
    space.space.close()
    assert (space.root / layout.image_path("q")).exists()
    space.open()
    assert not (space.root / layout.image_path("q")).exists()
    space.reopen()
    assert len(read) == 2
    assert space.take("q") == [b"1", b"2"]


def test_what_came_and_went_while_nobody_owned_the_space_is_seen(space: Space, read: list[str]) -> None:
    space.put("q", *(b"%d" % number for number in range(5)))
    space.space.close()
    paths = space.messages("q")
    content = paths[1].read_bytes()
    paths[1].unlink()
    space.open()
    assert space.seqs() == [1, 3, 4, 5]
    space.space.close()
    paths[1].write_bytes(content)
    read.clear()
    space.open()
    assert space.seqs() == [1, 2, 3, 4, 5]
    assert read == [paths[1].name]


def test_a_foreign_name_is_set_aside_as_without_an_image(space: Space) -> None:
    space.put("q", b"1", b"2")
    space.space.close()
    (space.messages("q")[0].parent / "notes.txt").write_text("x")
    space.open()
    assert len(space.space.report.quarantined) == 1
    assert space.take("q") == [b"1", b"2"]


def test_what_makes_a_message_special_is_kept(space: Space, read: list[str]) -> None:
    with space.connect() as connection:
        connection.enqueue("q", b"later", not_before=wall_clock() + 10**9)
        connection.enqueue("q", b"gone", ttl=0.001)
        connection.enqueue("q", b"related", correlation_id=b"c")
        connection.enqueue("q", b"tried")
        connection.commit()
        time.sleep(0.01)
        assert connection.dequeue("q", correlation_id=b"c") is not None
        assert connection.dequeue("q") is not None
        connection.rollback()
    before = all_of(space.space.queues["q"].index)
    space.space.close()
    read.clear()
    space.open()
    assert read == []
    assert all_of(space.space.queues["q"].index) == before
    with space.connect() as connection:
        related = connection.dequeue("q", correlation_id=b"c")
        tried = connection.dequeue("q")
        assert related is not None
        assert tried is not None
        assert (related.body, related.tries, tried.body, tried.tries) == (b"related", 1, b"tried", 1)
        assert connection.dequeue("q") is None


def test_a_branch_in_doubt_finds_its_messages(space: Space) -> None:
    space.put("q", b"1", b"2")
    xid = space.prepare("x", add=[("q", b"3")], take=["q"])
    space.space.close()
    space.open()
    assert space.take("q") == [b"2"]
    with space.connect() as connection:
        connection.tpc_commit(xid)
    assert space.take("q") == [b"2", b"3"]


def test_an_image_that_is_not_of_the_owner_before_is_not_believed(space: Space, read: list[str]) -> None:
    space.put("q", b"1")
    index, epoch = space.space.queues["q"].index, space.space.epoch
    space.space.close()
    image.write(space.fs, "q", index, epoch + 1)
    read.clear()
    space.open()
    assert len(read) == 1


def test_damage_that_an_image_hides_is_found_by_who_dequeues(space: Space) -> None:
    space.put("q", b"1", b"2")
    space.space.close()
    space.messages("q")[0].write_bytes(b"")
    space.open()
    assert space.space.report.quarantined == []
    assert space.take("q") == [b"2"]
    assert len(space.quarantined()) == 1


@pytest.mark.parametrize("call", ["create", "sync_data"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_image_that_cannot_be_written_is_left_out(space: Space, call: str, number: int, read: list[str]) -> None:
    space.put("q", b"1")
    space.fs.faults[call, layout.image_path("q")] = number
    space.space.close()
    assert space.fs.struck == [(call, layout.image_path("q"))]
    assert not (space.root / layout.image_path("q")).exists()
    space.open()
    assert len(read) == 1
    assert space.take("q") == [b"1"]


def test_numbers_and_commit_times_go_on_behind_what_an_image_tells(space: Space) -> None:
    space.put("q", b"1", b"2")
    space.space.close()
    (space.root / layout.watermark_path("q")).write_bytes(layout.format_watermark(Watermark(1, 1)))
    later_ns = time.time_ns() + 10**12
    os.utime(space.messages("q")[-1], ns=(later_ns, later_ns))
    space.open()
    space.put("q", b"3")
    assert space.seqs() == [1, 2, 3]
    assert space.messages("q")[-1].stat().st_mtime_ns >= later_ns // 1000 * 1000


def test_a_shallow_queue_needs_none(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "WORTH", 3)
    space.put("shallow", b"1", b"2")
    space.put("deep", b"1", b"2", b"3")
    space.space.close()
    assert not (space.root / layout.image_path("shallow")).exists()
    assert (space.root / layout.image_path("deep")).exists()
    space.open()


def test_nobody_else_minds_an_image(space: Space) -> None:
    space.put("q", b"1", b"2")
    space.space.close()
    assert (space.root / layout.image_path("q")).exists()
    assert list(check(space.root)) == []
    assert [(queue.name, queue.depth) for queue in queue_list(space.root)] == [("q", 2)]
    assert [seq for seq, _, _ in QueueReader(space.root, "q").read(0, 9)] == [1, 2]
    space.open()
