"""After a kill a space opens by the images of its full ranges, and shows what it would show without them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xaqueue
from support.bare_space import BareSpace, FaultyFileSystem
from support.index_images import Facts, all_of, entries
from xaqueue.space.engine import cleanup, image, range_images
from xaqueue.space.model import layout
from xaqueue.space.model.index import Entry, Order, QueueIndex
from xaqueue.space.model.layout import RANGE_SIZE, Watermark
from xaqueue.space.offline.check import check
from xaqueue.space.offline.inspect import queue_list
from xaqueue.space.offline.reader import QueueReader
from xaqueue.space.owner.open import attach
from xaqueue.storage.hardening import Hardening

PATIENCE_S = 60
FIRST = RANGE_SIZE - 3
"""The first number that is given; it has three messages in its range."""
BODIES = [b"%d" % number for number in range(5)]


@pytest.fixture(autouse=True)
def every_range_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_images, "WORTH", 1)
    monkeypatch.setattr(range_images, "PAUSE_S", 0.0)


class Space(BareSpace):
    """A bare space with a journal, whose first messages fill a range."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "JOURNAL")
        self.crash()
        start_at(root, FIRST)
        self.open()

    def open(self) -> None:
        self.fs = FaultyFileSystem(self.root)
        self.space = self._open()

    def kill(self) -> None:
        """What is in memory stays there; what follows opens the space anew."""
        self.reopen()

    def facts(self) -> list[Facts]:
        return all_of(self.space.queues["q"].index)

    def without(self) -> list[Facts]:
        """What a killed space shows without images."""
        self.crash()
        for path in self.images():
            path.unlink()
        self.open()
        return self.facts()

    def images(self) -> list[Path]:
        return sorted((self.root / layout.queue_path("q")).glob(".index.*"))

    def try_one(self, body: bytes) -> None:
        """Dequeues this message, and rolls back."""
        with self.connect() as connection:
            while message := connection.dequeue("q"):
                if message.body == body:
                    break
                connection.commit()
            connection.rollback()


def start_at(root: Path, seq: int) -> None:
    (root / layout.queue_path("q")).mkdir()
    (root / layout.watermark_path("q")).write_bytes(layout.format_watermark(Watermark(seq - 1, seq - 1)))


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    made = Space(tmp_path / "space")
    yield made
    made.crash()


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


def names(*seqs: int) -> list[str]:
    return [f"{seq:016x}" for seq in seqs]


def numbers(read: list[str]) -> list[str]:
    return [name[:16] for name in read]


# What is written


@settings(deadline=None)
@given(given=st.lists(entries, max_size=60, unique_by=lambda entry: entry.seq), order=st.sampled_from(Order))
def test_the_image_of_a_range_is_its_part_of_the_whole(given: list[Entry], order: Order) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xaqueue.space.model.index.UNPACKED", 5)
        index = QueueIndex(order)
        for entry in given:
            index.add(entry)
        whole = image.decode(b"".join(image.encode("q", index, 7)), "q")
        assert whole is not None
        for number, section in whole.sections.items():
            alone = image.decode(b"".join(image.encode_range("q", *image.range_of(index, number), 7)), "q")
            assert alone is not None
            assert alone.sections.keys() == {number}
            part = alone.sections[number]
            assert (part.names, part.sizes, part.special) == (section.names, section.sizes, section.special)


def test_after_a_kill_only_what_came_since_is_read(space: Space, read: list[str]) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    assert len(space.images()) == 1
    before = space.facts()
    space.kill()
    assert numbers(read) == names(RANGE_SIZE, RANGE_SIZE + 1)
    assert space.facts() == before == space.without()
    assert space.take("q") == BODIES


def test_what_was_consumed_since_is_gone_and_nothing_is_read_for_it(space: Space, read: list[str]) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    with space.connect() as connection:
        assert connection.dequeue("q") is not None
        connection.commit()
    space.kill()
    assert not {*numbers(read)} & {*names(FIRST + 1, FIRST + 2)}
    assert [one[0] for one in space.facts()] == [FIRST + n for n in range(1, 5)]
    assert space.facts() == space.without()


def test_a_range_that_still_takes_messages_gets_none(space: Space) -> None:
    space.put("q", *BODIES[:2])
    range_images.checkpoint(space.space)
    assert space.images() == []


def test_few_messages_are_not_worth_one(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_images, "WORTH", 4)
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    assert space.images() == []


def test_it_is_written_once(space: Space) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    (written,) = space.images()
    before = written.stat().st_ino
    space.put("q", b"more")
    range_images.checkpoint(space.space)
    space.kill()
    space.put("q", b"more")
    range_images.checkpoint(space.space)
    assert written.stat().st_ino == before


def test_without_a_checkpoint_there_is_none(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called, and found no room."""
    space.put("q", *BODIES)
    monkeypatch.setattr(space.space, "checkpoint", lambda: None)
    range_images.checkpoint(space.space)
    assert space.images() == []


# What makes it untrue


def test_a_counted_try_removes_it_and_the_next_checkpoint_tells_of_it(space: Space, read: list[str]) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    space.try_one(b"0")
    assert space.images() == []
    space.kill()
    assert {*names(FIRST, FIRST + 1, FIRST + 2)} <= {*numbers(read)}
    assert space.facts()[0][-2] == 1
    space.put("q", b"more")
    range_images.checkpoint(space.space)
    assert len(space.images()) == 2  # numbers went on in the next range
    read.clear()
    space.kill()
    assert not {*numbers(read)} & {*names(FIRST, FIRST + 1, FIRST + 2)}
    assert space.facts()[0][-2] == 1
    assert space.facts() == space.without()


def test_a_try_that_a_killed_process_had_begun_is_counted_beside_an_image(space: Space) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    connection = space.connect()
    assert connection.dequeue("q") is not None
    space.kill()
    assert space.facts()[0][-2] == 1
    assert space.images() == []
    assert space.facts() == space.without()


def test_a_try_that_is_counted_while_the_checkpoint_is_made_leaves_none(space: Space) -> None:
    space.put("q", *BODIES)
    due = space.space.range_images.due(space.space)
    space.try_one(b"0")
    space.space.checkpoint()
    space.space.range_images.leave(space.space, due, lambda: False)
    assert space.images() == []


def test_a_damaged_one_is_not_believed_and_is_written_anew(space: Space, read: list[str]) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    (path,) = space.images()
    data = path.read_bytes()
    for damaged in (data[:-1], b"", data[:30] + bytes([data[30] ^ 1]) + data[31:]):
        path.write_bytes(damaged)
        before = space.facts()
        read.clear()
        space.kill()
        assert {*names(FIRST, FIRST + 1, FIRST + 2)} <= {*numbers(read)}
        assert space.facts() == before
        space.put("q", b"more")
        range_images.checkpoint(space.space)
        assert image.decode(path.read_bytes(), "q") is not None


def test_one_that_could_not_be_read_is_not_believed_later(space: Space) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    space.crash()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "read_path", lambda *_: None)
        space.open()
    assert space.images() == []
    space.try_one(b"0")
    (space.root / layout.TRIES).write_bytes(b"")
    space.kill()
    assert space.facts()[0][-2] == 1


def test_tries_are_counted_on_from_those_of_the_file_where_a_copy_has_an_older_image(space: Space) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    (path,) = space.images()
    older = path.read_bytes()
    for _ in range(3):
        space.try_one(b"0")
    space.crash()
    path.write_bytes(older)
    (space.root / layout.TRIES).write_bytes(b"")
    space.open()
    space.try_one(b"0")
    with space.connect() as connection:
        message = connection.dequeue("q")
        assert message is not None
        assert (message.body, message.tries) == (b"0", 4)


@pytest.mark.parametrize("call", ["unlink", "hold_dir"])
def test_one_that_cannot_be_removed_for_want_of_room_costs_a_try_and_no_more(space: Space, call: str) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)

    def fails(path: str) -> None:
        raise OSError(errno.ENOSPC, "no room", path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space.fs, call, fails)
        space.try_one(b"0")
    space.try_one(b"0")
    assert space.images() == []
    assert space.facts()[0][-2] == 2
    space.kill()
    assert space.facts()[0][-2] == 2


def test_no_room_to_remove_one_with_its_range_stops_nobody(space: Space) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    path = layout.range_image_path("q", 0)
    space.fs.faults["unlink", path] = errno.EDQUOT
    with space.connect() as connection:
        for _ in BODIES:
            assert connection.dequeue("q") is not None
        connection.commit()
    cleanup.clear(space.space)
    assert space.fs.struck == [("unlink", path)]
    space.fs.faults.clear()
    space.kill()
    assert space.images() == []


def test_one_under_the_name_of_another_is_not_believed(space: Space, read: list[str]) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    (path,) = space.images()
    path.rename(space.root / layout.range_image_path("q", 1))
    space.kill()
    assert len(read) == len(BODIES)


# What becomes of it


def test_it_goes_with_its_range(space: Space) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    with space.connect() as connection:
        for _ in BODIES:
            assert connection.dequeue("q") is not None
        connection.commit()
    cleanup.clear(space.space)
    assert space.images() == []


def test_one_whose_range_is_gone_goes_when_the_space_is_opened(space: Space) -> None:
    space.put("q", *BODIES)
    stray = space.root / layout.range_image_path("q", 77)
    stray.write_bytes(b"x")
    space.kill()
    assert not stray.exists()


@pytest.mark.parametrize("sync", ["NONE", "FDATASYNC", "FDATASYNC;DSYNC"])
def test_an_owner_without_a_journal_keeps_none(space: Space, sync: str) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    before = space.facts()
    space.crash()
    space.sync = sync
    space.open()
    assert space.facts() == before
    assert space.images() == []
    range_images.checkpoint(space.space)
    assert space.images() == []
    assert not Hardening.parse(sync).journal


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_one_that_cannot_be_written_is_left_out(space: Space, number: int) -> None:
    space.put("q", *BODIES)
    path = layout.range_image_path("q", 0)
    space.fs.faults["create", path] = number
    range_images.checkpoint(space.space)
    assert space.fs.struck == [("create", path)]
    assert space.images() == []
    space.fs.faults.clear()
    assert space.take("q") == BODIES
    space.kill()
    assert space.take("q") == BODIES


def test_nobody_else_minds_it(space: Space) -> None:
    space.put("q", *BODIES)
    range_images.checkpoint(space.space)
    space.space.close()
    assert len(space.images()) == 1
    assert list(check(space.root)) == []
    assert [(queue.name, queue.depth) for queue in queue_list(space.root)] == [("q", 5)]
    assert [seq for seq, _, _ in QueueReader(space.root, "q").read(0, RANGE_SIZE + 9)] == [FIRST + n for n in range(5)]
    space.open()


def test_the_owner_of_a_space_leaves_them_behind_its_checkpoints(tmp_path: Path) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()
    (root / layout.QUEUES).write_text('[default]\n[space]\nsync = "JOURNAL"\ncheckpoint_s = 1\n')
    start_at(root, FIRST)
    with xaqueue.Connection(attach(root, watch=False), lambda: os.urandom(16)) as connection:
        for body in BODIES:
            connection.enqueue("q", body)
        connection.commit()
        until = time.monotonic() + PATIENCE_S
        while not (root / layout.range_image_path("q", 0)).exists():
            assert time.monotonic() < until
            time.sleep(0.05)
