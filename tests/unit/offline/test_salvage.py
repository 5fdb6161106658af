"""A damaged journal is given up: what can be read is done again, from any crash on the way, and all of it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import xaqueue
from support import broken_journal
from support.bare_space import bare_space
from support.broken_journal import DECIDED, IN_DOUBT, STEPS, damage, files, lose_directories
from support.journals import spoil
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.journal_format import SECTOR_BYTES, name_of
from xaqueue.errors import SpaceError, SpaceInUse
from xaqueue.features.session import Session, attach
from xaqueue.offline.salvage import find_loss, salvage

ALL = {b"first", b"second", b"fourth", b"fifth"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return broken_journal.make(tmp_path / "space")


def opened(root: Path) -> tuple[set[bytes], set[object]]:
    """Bodies, and branches that are listed."""
    with xaqueue.connect(root) as connection:
        bodies = {message.body for message in connection.browse("orders")}
        listed: set[object] = set(connection.tpc_recover())
        connection.enqueue("orders", b"and on it goes")
        connection.commit()
    with xaqueue.connect(root) as connection:
        assert {message.body for message in connection.browse("orders")} == bodies | {b"and on it goes"}
    return bodies, listed


def test_a_sound_journal_has_no_loss(root: Path) -> None:
    before = files(root)
    assert find_loss(root) is None
    with pytest.raises(SpaceError, match="is sound"):
        salvage(root)
    assert files(root) == before


def test_the_loss_is_told(root: Path) -> None:
    damage(root, 2)
    before = files(root)
    loss = find_loss(root)
    assert loss is not None
    assert "the record at LSN" in loss.damage
    (gap,) = loss.gaps
    assert [step.kind for step in loss.steps] == STEPS[:2] + STEPS[3:]
    assert [step.behind for step in loss.steps] == [False, False, True, True, True, True]
    assert [step.lsn < gap.start for step in loss.steps] == [not step.behind for step in loss.steps]
    assert [step.xid for step in loss.steps[2:5]] == [str(DECIDED)] * 3
    assert [step.queues for step in loss.steps[2:5]] == [["orders"], [], ["orders"]]
    assert files(root) == before


# The records: 0 and 1 add first and second, 2 prepares the branch in doubt, 3 to 5 add fourth, 6 adds fifth
@pytest.mark.parametrize(
    ("bad", "bodies", "listed"),
    [
        ([0], ALL - {b"first"}, {IN_DOUBT, DECIDED}),
        ([1], ALL - {b"second"}, {IN_DOUBT, DECIDED}),
        ([2], ALL, {DECIDED}),
        ([4], ALL, {IN_DOUBT}),
        ([5], ALL, {IN_DOUBT, DECIDED}),
        ([0, 5], ALL - {b"first"}, {IN_DOUBT, DECIDED}),
        ([0, 1, 2, 3, 4, 5], {b"fifth"}, set()),
    ],
    ids=["first", "second", "prepare", "decision", "its commit", "two losses", "all but the last"],
)
def test_every_step_that_can_be_read_is_done_again(
    root: Path, bad: list[int], bodies: set[bytes], listed: set[object]
) -> None:
    damage(root, *bad)
    lose_directories(root)
    assert salvage(root).steps == len(STEPS) - len(bad)
    assert find_loss(root) is None
    assert opened(root) == (bodies, listed)


@pytest.mark.parametrize("bad", [[0], [2], [0, 1, 2, 3, 4, 5]], ids=str)
def test_what_had_reached_the_directories_is_there(root: Path, bad: list[int]) -> None:
    damage(root, *bad)
    salvage(root)
    assert opened(root) == (ALL, {IN_DOUBT, DECIDED})


def test_all_segments_are_kept(root: Path) -> None:
    damage(root, 2)
    journal = root / layout.JOURNAL
    for path in journal.glob("*.log"):
        os.utime(path, (1e9, 1e9))
    kept = {f"{path.name}.archive": path.read_bytes() for path in journal.glob("*.log")}
    done = salvage(root)
    assert done.archives == sorted(f"{layout.JOURNAL}/{name}" for name in kept)
    assert {path.name: path.read_bytes() for path in journal.glob("*.archive")} == kept
    assert min(path.stat().st_mtime for path in journal.glob("*.archive")) > 1e9, "their age begins here"
    assert [path.name for path in journal.glob("*.log")] == [name_of(1 << 32, 2)]
    opened(root)
    assert {path.name: path.read_bytes() for path in journal.glob("*.archive")} == kept
    broken_journal.killed(root)
    min(journal.glob("*.log")).unlink()
    salvage(root)
    assert [path.name[17:] for path in journal.glob("*.log")] == [f"{2 << 32:016x}.log"], "no LSN is used twice"


def test_a_journal_that_is_gone_is_begun_anew(root: Path) -> None:
    for path in (root / layout.JOURNAL).iterdir():
        path.unlink()
    (root / layout.JOURNAL).rmdir()
    loss = find_loss(root)
    assert loss is not None
    assert (loss.steps, [str(gap) for gap in loss.gaps]) == ([], ["from LSN 0x0 on (missing)"])
    salvage(root)
    assert opened(root) == (ALL, {IN_DOUBT, DECIDED})


def test_a_damaged_header_loses_nothing(root: Path) -> None:
    fs = DirectoryFileSystem(root)
    spoil(fs, 0)
    fs.close()
    lose_directories(root)
    loss = find_loss(root)
    assert loss is not None
    assert (len(loss.steps), loss.gaps) == (len(STEPS), [])
    assert not any(step.behind for step in loss.steps)
    salvage(root)
    assert opened(root) == (ALL, {IN_DOUBT, DECIDED})


def test_a_space_in_use_is_left_alone(root: Path) -> None:
    damage(root, 2)
    session = attach(root)
    before = files(root)
    with pytest.raises(SpaceInUse, match="stop its owner first"):
        salvage(root)
    assert files(root) == before
    session.close()
    salvage(root)


def test_its_segments_have_the_size_that_is_asked_for(root: Path) -> None:
    damage(root, 2)
    (root / layout.QUEUES).write_text(f"[default]\n[space]\njournal_segment_bytes = {SMALLEST_SEGMENT_BYTES + 700}\n")
    salvage(root)
    (segment,) = (root / layout.JOURNAL).glob("*.log")
    assert segment.stat().st_size == SMALLEST_SEGMENT_BYTES + SECTOR_BYTES


# Crashes


def test_what_a_stream_has_consumed_does_not_come_back(tmp_path: Path) -> None:
    """The record of its last step is lost, and what it did stands in the directories: an earlier one undoes nothing."""
    root = tmp_path / "space"
    with bare_space(root, sync="JOURNAL") as bare:
        bare.put("orders", b"first", b"second", b"third")
        session = Session(bare.space)
        session.reserve("orders", "query#1", 0, 9)
        for upto in (1, 2):
            session.consume("orders", "query#1", upto)
        bare.put("orders", b"fourth")
        bare.space.sync_all()
    broken_journal.killed(root)
    damage(root, len(broken_journal.records(root)) - 2)
    salvage(root)
    session = attach(root)
    assert [message.body for message in session.browse("orders")] == [b"third", b"fourth"]
    assert [one.consumed for one in session.reservations()] == [2]
    session.close()
