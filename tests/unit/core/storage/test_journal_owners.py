"""A writer whose journal another one has taken over changes nothing of the new one, and nothing of it is replayed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import xaqueue
from support.forgetful import Crashed, Tree
from support.journals import (
    PLACE,
    archives,
    bytes_of,
    content,
    entry,
    fill,
    found,
    journal_of,
    overwrite,
    segment_names,
    sound,
    started,
    write,
)
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.journal_format import Entry, Record, parse_name
from xaqueue.core.storage.journal_reader import look
from xaqueue.features.opening import create
from xaqueue.features.session import attach


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Callable[[], DirectoryFileSystem]]:
    """Ports of different processes over one directory."""
    opened: list[DirectoryFileSystem] = []

    def disk() -> DirectoryFileSystem:
        opened.append(DirectoryFileSystem(tmp_path))
        return opened[-1]

    yield disk
    for one in opened:
        one.close()


def taken_over(fs: FileSystem) -> Journal:
    """By another owner, who carries over what it has found."""
    journal = journal_of(fs)
    journal.start([_again(record) for record in journal.replay])
    return journal


def _again(record: Record) -> Entry:
    return Entry(record.kind, record.meta, [bytes(record.body)] if record.body else [])


def _goes_on(journal: Journal) -> None:
    write(journal, entry(100, 3000))


def _switches(journal: Journal) -> None:
    fill(journal, 100)
    fill(journal, 200)


def _recycles(journal: Journal) -> None:
    fill(journal, 100)
    journal.write_checkpoint(journal.position)
    journal.recycle()
    fill(journal, 200)


LATE = [_goes_on, _switches, _recycles]


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("begun", ["in its first segment", "in its second", "recycled"])
def test_what_an_owner_that_slept_writes_is_never_taken(
    disks: Callable[[], DirectoryFileSystem], late: Callable[[Journal], None], begun: str
) -> None:
    first, fs = started(disks()), disks()
    write(first, entry(1, 500))
    if begun != "in its first segment":
        fill(first, 2)
    if begun == "recycled":
        first.write_checkpoint(first.position)
        first.recycle()
        write(first, entry(90, 500))
    before = found(fs)
    second = taken_over(fs)
    write(second, entry(1000, 500))
    mine = content(fs)
    with suppress(OSError):  # its files are gone
        late(first)
    assert {name: data for name, data in content(fs).items() if name in mine} == mine
    assert found(fs) == [*before, 1000]
    write(second, entry(1001, 500))
    third = taken_over(disks())
    assert found(fs) == [*before, 1000, 1001]
    (epoch,) = {said.epoch for name in segment_names(fs) if (said := parse_name(name)) is not None}
    assert epoch == 3
    write(third, entry(1002))
    assert found(fs) == [*before, 1000, 1001, 1002]


def test_a_record_of_another_epoch_than_its_segment_is_refused(disks: Callable[[], DirectoryFileSystem]) -> None:
    fs = disks()
    journal = started(fs)
    write(journal, entry(1, 500))
    for epoch in (0, 2):
        late = bytes_of(entry(2, 500), journal.position, journal.position, epoch=epoch)
        overwrite(fs, segment_names(fs)[0], journal.position - 0, late)
        assert found(fs) == [1]


def test_an_owner_that_fails_before_it_has_begun_takes_nothing_away(disks: Callable[[], DirectoryFileSystem]) -> None:
    fs = disks()
    first = started(fs)
    write(first, entry(1, 500))
    journal_of(disks())
    write(first, entry(2, 500))
    assert found(fs) == [1, 2], "nobody has been told anything else"
    assert archives(fs) == {}
    assert fs.is_dir(PLACE)


@pytest.mark.parametrize("following", [True, False])
def test_a_takeover_that_is_cut_off_leaves_one_journal_or_the_other(following: bool) -> None:
    """At any call, by a kill or a power loss: nothing is lost, and nothing is taken for a journal that was given up."""
    whole = Tree({PLACE: None}).open()
    journal = started(whole)
    before = [90] if following else [*fill(journal, 1), 90]
    write(journal, entry(90, 500))
    for crash_after in count():
        fs = whole.tree_after_kill().open(crash_after)
        with suppress(Crashed):
            taken_over(fs)
        for tree in (fs.tree_after_kill(), *fs.trees_after_crash(limit=64, seed=crash_after)):
            after = tree.open()
            assert found(after) == before
            assert look(after, PLACE, sound).abandoned == []
            write(taken_over(after), entry(1000))
            assert found(after) == [*before, 1000]
            assert archives(after) == {}
        if not fs.crashed:
            assert crash_after > 8
            return


@pytest.mark.parametrize("sync", ["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
@pytest.mark.parametrize("stopped", ["at work", "idle"])
def test_no_owner_of_a_space_goes_on_in_the_journal_of_another(tmp_path: Path, sync: str, stopped: str) -> None:
    """What the former one had written comes back, as if it was late: what the next one has done stays as it is."""
    root = tmp_path / "s"
    create(root, any_queue=True)
    with xaqueue.connect(root, sync="JOURNAL") as first:
        first.enqueue("q", b"1")
        first.commit()
        late = {path: path.read_bytes() for path in (root / PLACE).glob("*.log")}
    if stopped == "at work":
        for path, data in late.items():
            path.write_bytes(data)
    with xaqueue.connect(root, sync=sync) as second:
        assert second.dequeue("q") is not None
        second.commit()
        assert not any(path.exists() for path in late)
    for path, data in late.items():
        path.write_bytes(data)
    attached = attach(root, watch=False)
    try:
        assert [len(queue.index) for queue in attached.space.queues.values()] in ([], [0])
    finally:
        attached.close()


def test_a_journal_that_its_last_writer_may_write_to_still_is_not_gone_on_with(tmp_path: Path) -> None:
    """Without room for another one its records would stand where those of the former owner may come yet."""
    create(tmp_path / "s", any_queue=True)
    fs = FullFileSystem(tmp_path / "s")
    first = journal_of(fs)
    first.start()
    fs.is_full = True
    assert "it goes on in the old one" in journal_of(fs).start([])[0]
    with pytest.raises(OSError, match="No space"):
        journal_of(fs).start([], is_shared=True)


class FullFileSystem(DirectoryFileSystem):
    """Has no room for another segment."""

    is_full = False

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().create(path, chunks, modified_ns)
