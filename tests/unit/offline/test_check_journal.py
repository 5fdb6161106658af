"""The journal as the checker and the inspector see it, at rest, damaged, and while it is written to."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from zlib import crc32

import pytest

import xaqueue
from support import broken_journal
from support.broken_journal import STEPS, damage, files, lose_directories, records
from support.journals import PLACE
from xaqueue.core.model import layout
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.journal_format import CRC, HEADER, MAGIC, SECTOR_BYTES, Segment, header_of, name_of
from xaqueue.offline.check import check, repair
from xaqueue.offline.findings import Finding, Severity
from xaqueue.offline.inspect import JournalStatus, journal_status, status
from xaqueue.offline.redo_view import read_journal

SMALL = f'[default]\n[space]\nsync = "JOURNAL"\njournal_segment_bytes = {SMALLEST_SEGMENT_BYTES}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return broken_journal.make(tmp_path / "space")


def found(root: Path, severity: Severity) -> list[tuple[str, str]]:
    return [(f.path, f.problem) for f in check(root) if f.severity is severity]


def journal(root: Path) -> JournalStatus:
    told = status(root).journal
    assert told is not None
    return told


def test_a_clean_close_leaves_nothing_to_tell(root: Path) -> None:
    xaqueue.connect(root).close()
    assert list(check(root)) == []
    told = journal(root)
    assert (told.ahead, told.damage) == (0, "")
    assert told.checkpoint < told.end
    assert told.segments == 2
    assert told.allocated_bytes == sum(path.stat().st_size for path in (root / PLACE).glob("*.log"))


def test_a_space_without_a_journal_has_none(tmp_path: Path) -> None:
    xaqueue.connect(tmp_path / "space", create=True, sync="NONE").close()
    assert status(tmp_path / "space").journal is None
    assert list(check(tmp_path / "space")) == []


def test_records_that_were_not_done_again_are_told(root: Path) -> None:
    before = files(root)
    assert found(root, Severity.LEFTOVER) == [
        (PLACE, f"the directories may be behind: {len(STEPS)} records to be done again by the next open")
    ]
    assert found(root, Severity.DAMAGE) == []
    told = journal(root)
    assert (told.ahead, told.checkpoint) == (len(STEPS), 0)
    assert told.end > records(root)[-1].lsn
    assert files(root) == before


def test_what_the_journal_makes_good_is_no_damage(root: Path) -> None:
    """A power loss leaves files empty, and the next open makes them what they are to be."""
    for directory in (layout.COMMITTED, layout.PREPARED, layout.HEURISTIC):
        for path in (root / directory).rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                path.write_bytes(b"")
    assert found(root, Severity.DAMAGE) == []
    told = [problem for _, problem in found(root, Severity.LEFTOVER)]
    assert sum("the journal has what it is to be" in problem for problem in told) >= 5
    foreign = root / layout.PREPARED / "1.b3RoZXI.Yg.000"
    foreign.write_bytes(b"")
    assert [path for path, _ in found(root, Severity.DAMAGE)] == [f"{layout.PREPARED}/{foreign.name}"]
    foreign.unlink()
    xaqueue.connect(root).close()
    assert list(check(root)) == []


def test_a_torn_tail_is_a_note(root: Path) -> None:
    lose_directories(root)
    damage(root, len(STEPS) - 1)
    ((path, problem),) = found(root, Severity.NOTE)
    assert path == f"{PLACE}/{name_of(0)}"
    assert problem.endswith("bytes of a torn record, promised to nobody: kept beside it and cut off by the next open")
    assert found(root, Severity.DAMAGE) == []
    xaqueue.connect(root).close()
    ((path, problem),) = found(root, Severity.NOTE)
    assert (path, problem) == (
        f"{PLACE}/{name_of(0)}.archive",
        "what was cut off the journal: nothing reads it any more",
    )


def test_damage_is_damage_and_says_what_is_lost(root: Path) -> None:
    damage(root, 2)
    lose_directories(root)
    before = files(root)
    (first, second) = found(root, Severity.DAMAGE)
    assert first[0] == PLACE
    assert "xaqueue salvage-journal" in first[1]
    assert second[0] == f"{PLACE}/{name_of(0)}"
    assert second[1].startswith("cannot be read from LSN 0x")
    told = journal(root)
    assert told.damage == first[1]
    assert (told.end, told.segments) == (0, 2)
    assert files(root) == before


def test_a_journal_that_is_gone_is_damage_where_it_was_in_use(root: Path) -> None:
    for path in (root / PLACE).iterdir():
        path.unlink()
    (root / PLACE).rmdir()
    assert [path for path, _ in found(root, Severity.DAMAGE)] == [PLACE, PLACE]
    assert "all its segments are missing" in journal(root).damage
    assert journal(root).segments == 0


def test_a_newer_format_is_told(root: Path) -> None:
    segment = root / PLACE / name_of(0)
    header = HEADER.pack(MAGIC, 2, 0, 0, segment.stat().st_size, 0)
    segment.write_bytes((header + CRC.pack(crc32(header))).ljust(SECTOR_BYTES, b"\0"))
    ((path, problem),) = found(root, Severity.DAMAGE)
    assert path == PLACE
    assert "use a newer one" in problem


def test_other_files_are_told(root: Path) -> None:
    xaqueue.connect(root).close()
    (root / PLACE / "notes.txt").write_text("foreign")
    (root / PLACE / f"{name_of(1 << 40)}.new").write_bytes(b"half made")
    stray = root / PLACE / name_of(1 << 41)
    stray.write_bytes(header_of(Segment(1 << 42, SMALLEST_SEGMENT_BYTES)))
    assert found(root, Severity.NOTE) == [(f"{PLACE}/notes.txt", "is no part of a journal; left alone")]
    assert found(root, Severity.LEFTOVER) == [
        (f"{PLACE}/{name_of(1 << 40)}.new", "is needed no more: to be removed"),
        (f"{PLACE}/{name_of(1 << 41)}", "is needed no more: to be removed"),
    ]
    xaqueue.connect(root).close()
    assert [finding.path for finding in check(root)] == [f"{PLACE}/notes.txt"]


def test_what_was_given_up_is_kept_by_the_next_open(root: Path) -> None:
    """A crash came between the new segment and the renames."""
    damage(root, 2)
    fs = DirectoryFileSystem(root)
    header = header_of(Segment(1 << 32, SMALLEST_SEGMENT_BYTES, 0, 1 << 32))
    fs.create(f"{PLACE}/{name_of(1 << 32)}", [header.ljust(SMALLEST_SEGMENT_BYTES, b"\0")])
    fs.close()
    abandoned = [path for path, problem in found(root, Severity.LEFTOVER) if "given up for its damage" in problem]
    assert len(abandoned) == 2
    xaqueue.connect(root).close()
    assert sorted(f"{PLACE}/{path.name}" for path in (root / PLACE).glob("*.archive")) == [
        f"{path}.archive" for path in abandoned
    ]


def test_repair_replays(root: Path) -> None:
    lose_directories(root)
    assert repair(root).opened.startswith("4 messages")
    assert list(check(root)) == []


# A live space


def test_a_live_journal_may_be_ahead(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
        assert journal(root).ahead > 0
        assert [finding.path for finding in check(root)] == [layout.OWNER]


def test_the_state_of_an_owner(root: Path) -> None:
    assert status(root).state == ""
    with xaqueue.connect(root):
        assert status(root).state == "ready"
    assert status(root).state == ""


def test_an_owner_that_only_reads_says_so_and_so_does_the_check(root: Path) -> None:
    damage(root, 0)
    with xaqueue.connect(root):
        told = status(root)
        assert told.state == "read-only"
        assert told.journal is not None
        assert "is damaged" in told.journal.damage
        assert [path for path, _ in found(root, Severity.DAMAGE)] == [PLACE, f"{PLACE}/{name_of(0)}"]


def test_a_state_that_is_not_told_is_alive(root: Path) -> None:
    with xaqueue.connect(root):
        written = (root / layout.OWNER).read_bytes()
        (root / layout.OWNER).write_text("{}")
        assert status(root).state == "alive"
        (root / layout.OWNER).write_bytes(written)


def test_a_journal_that_is_written_to_is_never_damaged(tmp_path: Path) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True, sync="NONE").close()
    (root / layout.QUEUES).write_text(SMALL)
    stop = threading.Event()

    def traffic() -> None:
        with xaqueue.connect(root) as connection:
            while not stop.is_set():
                connection.enqueue("orders", bytes(3000))
                connection.commit()
                assert connection.dequeue("orders") is not None
                connection.commit()

    thread = threading.Thread(target=traffic)
    thread.start()
    while not is_owned(root):
        time.sleep(0.01)
    try:
        ends: list[int] = []
        while len(set(ends)) < 12 or max(ends) < 3 * SMALLEST_SEGMENT_BYTES:
            said: list[Finding] = [finding for finding in check(root) if finding.path.startswith(PLACE)]
            assert said == []
            told = status(root).journal
            if told is not None:
                assert told.damage == ""
                ends.append(told.end)
    finally:
        stop.set()
        thread.join()


class Flicker(DirectoryFileSystem):
    """What is read while it is written may be old in part: the first segment that is read has a bad record."""

    bad = 1

    def read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        data = super().read(path, size, offset)
        if self.bad and size != SECTOR_BYTES and path.endswith(name_of(0)):
            self.bad -= 1
            data = data[:SECTOR_BYTES] + b"old" + data[SECTOR_BYTES + 3 :]
        return data


def test_what_looks_damaged_once_is_not(root: Path) -> None:
    fs = Flicker(root)
    told = journal_status(fs, read_journal(fs, read_owner(root), owned=True))
    assert told is not None
    assert (fs.bad, told.damage, told.ahead) == (0, "", len(STEPS))
    fs.bad = 2
    told = journal_status(fs, read_journal(fs, read_owner(root), owned=True))
    assert told is not None
    assert "is damaged" in told.damage


def test_a_servers_socket_belongs_to_the_space(tmp_path: Path) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()
    (root / layout.SOCKET).touch()
    (root / "notes.txt").touch()
    assert list(check(root)) == [Finding(Severity.NOTE, "notes.txt", "is no part of a queue space; left alone")]
