"""A snapshot is judged by all that is in it before it is used: what is damaged, or of another space, is passed over."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.patience import eventually
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.model.format import read_format
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import RetryLater, SpaceError
from xaqueue.features import opening
from xaqueue.features.session import attach
from xaqueue.features.snapshots import manifest, store
from xaqueue.features.snapshots.chores import TakeSnapshots
from xaqueue.features.snapshots.copies import copy_and_keep
from xaqueue.features.snapshots.restored import RESTORED
from xaqueue.features.snapshots.restoring import restore
from xaqueue.offline import inspect

BODIES = [b"0", b"1", b"2", b"3"]


def copied(snapshot: Path) -> None:
    """It has files of its own, as on another file system."""
    shutil.copytree(snapshot, beside := snapshot.with_name("x"))
    shutil.rmtree(snapshot)
    beside.rename(snapshot)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With two snapshots, that share no file."""
    path = tmp_path / "orders"
    with xaqueue.connect(path, create=True) as connection:
        for body in BODIES:
            connection.enqueue("q", body)
        connection.commit()
        for _ in range(2):
            connection.snapshot()
    for number in "12":
        copied(path / "snapshots" / number)
    return path


def blocks(snapshot: Path) -> list[Path]:
    return sorted(snapshot.glob("committed/queue=q/range=*/*"))


def bodies(root: Path) -> list[bytes]:
    with xaqueue.connect(root) as connection:
        return [message.body for message in connection.browse("q")]


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def exchanged(path: Path) -> None:
    """Whole, and another message's."""
    path.write_bytes(next(other for other in path.parent.iterdir() if other != path).read_bytes())


DAMAGES = [flipped, lambda path: path.write_bytes(b""), lambda path: path.unlink(), linked, exchanged]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("lost", [["committed", "FORMAT"], ["committed"], []])
def test_one_that_is_damaged_is_passed_over(root: Path, damage: Callable[[Path], None], lost: list[str]) -> None:
    """STD-38."""
    damage(blocks(root / "snapshots/2")[1])
    for name in lost:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    done = restore(root)
    assert done.snapshot == 1
    assert len(done.passed) == 1
    assert done.passed[0].startswith("snapshot 2 is passed over: snapshots/2")
    assert bodies(root) == BODIES


def test_where_all_are_damaged_it_is_for_somebody_to_say(root: Path) -> None:
    """And nothing was changed before."""
    for number in "12":
        flipped(blocks(root / "snapshots" / number)[2])
    with pytest.raises(SpaceError, match=r"--snapshot N takes one .*snapshot 2 is passed over: .*snapshot 1 is passed"):
        restore(root, exact=True)
    assert bodies(root) == BODIES
    done = restore(root, 2, exact=True)
    assert "is used as it is: " in done.passed[0]
    assert bodies(root) == [b"0", b"1", b"3"]


def other(path: Path, make: Callable[[Path], object]) -> None:
    """Something else stands under its name."""
    path.unlink()
    make(path)


OTHERS: list[Callable[[Path], object]] = [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("MANIFEST")]


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        *(partial(other, make=make) for make in OTHERS),
    ],
)
def test_its_checksums_are_a_part_of_it(root: Path, damage: Callable[[Path], object]) -> None:
    """Who asks for this one gets it all the same: its blocks have checksums of their own."""
    damage(root / "snapshots/2/CHECKSUMS")
    assert restore(root).passed == ["snapshot 2 is passed over: snapshots/2/CHECKSUMS is missing or damaged"]
    assert "is used as it is" in restore(root, 2).passed[0]
    assert bodies(root) == BODIES


@pytest.mark.parametrize("name", ["queues.toml", "FORMAT"])
@pytest.mark.parametrize("make", OTHERS[1:])
def test_what_was_copied_and_cannot_be_read_is_damage_of_this_one(
    root: Path, name: str, make: Callable[[Path], object]
) -> None:
    other(root / "snapshots/2" / name, make)
    wrong = f"snapshots/2/{name} is not what it was when it was copied"
    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        assert store.check(fs, 2, 1) == [wrong]
    assert restore(root).passed == [f"snapshot 2 is passed over: {wrong}"]
    assert bodies(root) == BODIES


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_nothing_is_found_in_one_that_is_removed_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    listed, calls = DirectoryFileSystem.list, count(1)

    def removed_before(fs: DirectoryFileSystem, path: str) -> list[str]:
        if path.startswith("snapshots/2") and next(calls) == at:
            shutil.rmtree(root / "snapshots/2")
        return listed(fs, path)

    monkeypatch.setattr(DirectoryFileSystem, "list", removed_before)
    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        assert store.check(fs, 2, 1) == []


def test_one_that_an_older_version_has_taken_has_none(root: Path) -> None:
    place = root / "snapshots/2"
    with closing(DirectoryFileSystem(place, keep_unsynced=False)) as fs:
        made = manifest.read(fs, "")
    said = json.loads(manifest.encode(made))["snapshot"]
    del said["checksums"]
    crc = zlib.crc32(json.dumps(said, sort_keys=True).encode())
    (place / "MANIFEST").write_text(json.dumps({"snapshot": said, "crc": crc}))
    (place / "CHECKSUMS").unlink()
    assert (restore(root).snapshot, bodies(root)) == (2, BODIES)


def test_who_closes_the_space_waits_for_no_look_at_every_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for none of the names."""
    with xaqueue.connect(root) as connection:
        connection.define("q", blocks="one")
        connection.enqueue_many("q", [b""] * 3 * manifest.PIECE)
        connection.commit()
        space, looked = connection._manager.space, list[str]()  # type: ignore[attr-defined]

        def look(_: object, path: str) -> bytes:
            space.is_closing = True
            looked.append(path)
            return bytes(4)

        monkeypatch.setattr(manifest, "_checksum", look)
        with pytest.raises(RetryLater, match="given up: the space is being closed"):
            connection.snapshot()
        assert len(looked) <= manifest.PIECE
    assert sorted(path.name for path in (root / "snapshots").iterdir()) == ["1", "2"]


def test_one_that_was_due_is_read_and_the_log_says_what_is_damaged(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TakeSnapshots, "left_of_interval_s", lambda _: 60.0 if (root / "snapshots/3").exists() else 0.0)
    flipped(blocks(root)[1])
    (root / "queues.toml").write_text((root / "queues.toml").read_text() + "[snapshots]\ninterval_min = 1\nkeep = 9\n")
    with xaqueue.connect(root):
        eventually(lambda: (root / "snapshots/3/CHECKED").exists())
        eventually(lambda: any("[snapshot-damaged] snapshot 3 has 1 problem" in one for one in caplog.messages))


def test_each_that_is_whole_is_copied_to_another_disk(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STD-34, STD-41: and the space comes back from there, whatever became of it."""
    backup, another, taken = tmp_path / "backup", tmp_path / "another", root / "snapshots"
    monkeypatch.setattr(TakeSnapshots, "left_of_interval_s", lambda _: 60.0 if (taken / "3").exists() else 0.0)
    for space in (root, another):
        opening.create(space)
        (space / "queues.toml").write_text('[default]\n[snapshots]\nkeep = 3\npath = "../backup"\n')
    with xaqueue.connect(root):
        eventually(lambda: any("backup is no directory" in one for one in caplog.messages))
    assert len(inspect.status(root).snapshots) == 1
    backup.mkdir()
    shutil.rmtree(taken / "3")
    flipped(blocks(root)[1])
    with xaqueue.connect(root):
        eventually(lambda: any("[snapshot-damaged] snapshot 3" in one for one in caplog.messages))
    assert not list(backup.glob("*/*")), "one that is damaged is copied nowhere"
    damaged, uncopied = inspect.status(root).snapshots
    assert damaged.startswith("snapshot 3, the newest, is damaged: snapshots/3/committed/queue=q/")
    assert uncopied == "no snapshot of late is in [snapshots] path = '../backup': the log says why"
    with closing(attach(root)) as session:
        for number in (1, 2, 1, 2):
            copy_and_keep(session.space, root, number, lambda: None)
    assert sorted(path.name for path in backup.glob("snapshots/*")) == ["2", "3", "4"]
    (root / "snapshots/3/CHECKED").unlink()
    same = "[snapshots] path = '../backup' is on the disk of the space: mount another one there"
    assert inspect.status(root).snapshots == [same], "as where that is not mounted"
    with monkeypatch.context() as elsewhere:
        at, there = backup.stat(), Path.stat
        mounted = os.stat_result((*at[:2], at.st_dev + 1, *at[3:]))
        elsewhere.setattr(Path, "stat", lambda path, **how: mounted if path.name == "backup" else there(path, **how))
        assert inspect.status(root).snapshots == []
    later_ns = time.time_ns() + 2881 * 60 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    late, uncopied_late = inspect.status(root).snapshots
    assert (late.startswith("no snapshot was taken in twice the 1,440 minutes"), uncopied_late) == (True, uncopied)
    monkeypatch.undo()
    for _ in ("whole", "damaged"):
        with closing(attach(another)) as session, pytest.raises(SpaceError, match="of another space"):
            copy_and_keep(session.space, another, 1, lambda: None)
        (another / RESTORED).write_bytes(b"damaged")
    shutil.rmtree(root)
    assert CliRunner().invoke(app, ["restore", "--space", str(backup), "--yes"]).exit_code == 0
    assert bodies(backup) == BODIES


def test_the_newest_that_was_read_and_is_good_stays(root: Path) -> None:
    """Else what damages the space would go round, until no good one is left."""

    def kept() -> list[int]:
        with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
            store.keep(fs, 2, 0)
            return [one.number for one in store.statuses(fs)]

    def taken(count: int) -> None:
        for _ in range(count):
            with xaqueue.connect(root) as connection, closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
                store.check(fs, connection.snapshot().number, 1)

    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        assert [store.check(fs, number, 1) for number in (1, 2)] == [[], []]
    good = blocks(root)[1].read_bytes()
    flipped(blocks(root)[1])
    taken(3)
    assert kept() == [2, 4, 5]
    assert kept() == [2, 4, 5]
    blocks(root)[1].write_bytes(good)
    taken(1)
    assert kept() == [5, 6]


def test_what_is_none_of_a_space_is_damage(root: Path) -> None:
    (root / "snapshots/2/committed/queue=q/x").write_text("")
    assert "is none of the files that a snapshot has" in restore(root).passed[0]


def test_what_an_older_version_has_copied_with_it_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took whatever stood in the space, and such a snapshot is as good as any."""
    foreign = blocks(root)[0].with_name("notes.txt")
    with xaqueue.connect(root) as connection, monkeypatch.context() as older:
        foreign.write_text("")
        older.setattr(manifest, "is_copied", lambda _: True)
        connection.snapshot()
    assert (root / "snapshots/3" / foreign.relative_to(root)).exists()
    for number in (3, None):
        assert (done := restore(root, number, exact=True)).passed == []
        assert done.snapshot == 3
        assert bodies(root) == BODIES
        assert not foreign.exists()


def test_one_of_another_space_is_not_used_but_as_a_new_one(root: Path, tmp_path: Path) -> None:
    with xaqueue.connect(tmp_path / "bills", create=True) as connection:
        connection.enqueue("q", b"bill")
        connection.commit()
        connection.snapshot()
    shutil.copytree(tmp_path / "bills/snapshots/1", root / "snapshots/3")
    assert "snapshot 3 is passed over: it is of another space" in restore(root).passed[0]
    with pytest.raises(SpaceError, match="--as-new"):
        restore(root, 3)
    assert bodies(root) == BODIES
    assert restore(root, 3, as_new=True).newer == 0
    assert bodies(root) == [b"bill"]


def test_those_of_its_earlier_lives_are_its_own(root: Path) -> None:
    ids = {read_format(root).id}
    for _ in range(3):
        assert restore(root, 1).passed == []
        ids.add(read_format(root).id)
    assert len(ids) == 4


def test_so_are_they_where_an_older_version_has_restored_it(root: Path) -> None:
    """Which did not write down what the ids were."""
    restore(root, 1)
    path = root / RESTORED
    said = json.loads(path.read_text())
    del said["lives"]
    path.write_text(json.dumps(said))
    assert [restore(root, number).passed for number in (2, 1, None)] == [[], [], []]
    assert bodies(root) == BODIES


def test_they_are_looked_at_whatever_else_is_lost(root: Path) -> None:
    (root / "FORMAT").unlink()
    flipped(blocks(root / "snapshots/1")[0])
    run = CliRunner().invoke
    listed = run(app, ["--space", str(root), "snapshot", "list", "--json"])
    assert listed.exit_code == ExitCode.OK
    checked = run(app, ["--space", str(root), "snapshot", "check"])
    assert checked.exit_code == ExitCode.NOTHING
    assert "is damaged: checksum does not match\nsnapshot 1: 1 problem\nsnapshot 2: no damage" in checked.output


def test_one_of_a_damaged_message_says_so_when_it_is_taken(root: Path, tmp_path: Path) -> None:
    """STD-44: and the list says what was found, and when; also in a copy. A server's clock is not asked."""
    flipped(blocks(root)[1])
    run = CliRunner().invoke
    taken = run(app, ["snapshot", "take", "--space", str(root)])
    assert (taken.exit_code, taken.stderr.count("damaged in snapshot 3: ")) == (ExitCode.NOTHING, 1)
    first, second, third = json.loads(run(app, ["snapshot", "list", "--json", "--space", str(root)]).stdout)
    assert [first["checked_at"], second["checked_at"], first["problem"]] == [0, 0, ""]
    assert third["checked_at"] >= third["taken_at"]
    assert "checksum" in third["problem"]
    assert run(app, ["snapshot", "take", "--no-check", "--space", str(root)]).exit_code == 0
    copied_to = tmp_path / "copy"
    assert run(app, ["snapshot", "take", "--to", str(copied_to), "--space", str(root)]).exit_code == ExitCode.NOTHING
    assert (copied_to / "CHECKED").exists()


def test_what_a_check_has_noted_is_no_part_of_the_snapshot(root: Path) -> None:
    run = CliRunner().invoke
    assert run(app, ["snapshot", "check", "--space", str(root)]).exit_code == 0
    flipped(blocks(root / "snapshots/2")[1])
    (root / "snapshots/2/.CHECKED.new").write_bytes(b"torn")
    assert run(app, ["snapshot", "check", "2", "--space", str(root)]).exit_code == ExitCode.NOTHING
    listed = json.loads(run(app, ["snapshot", "list", "--json", "--space", str(root)]).stdout)
    assert [bool(one["problem"]) for one in listed] == [False, True]
    (root / "snapshots/1/CHECKED").write_bytes(b"damaged")
    assert restore(root).snapshot == 1
    assert sorted(bodies(root)) == BODIES
    assert not (root / "CHECKED").exists()


def test_a_copy_that_is_put_back_is_held_by_nobody(root: Path, tmp_path: Path) -> None:
    """Else it would go after a day, as what a killed command has left."""
    copied_to = tmp_path / "copy"
    assert CliRunner().invoke(app, ["snapshot", "take", "--to", str(copied_to), "--space", str(root)]).exit_code == 0
    assert '"is_held": false' in (copied_to / "MANIFEST").read_text()
    shutil.copytree(copied_to, root / "snapshots/9")
    assert CliRunner().invoke(app, ["snapshot", "check", "9", "--space", str(root)]).exit_code == 0


def test_a_format_that_a_flipped_bit_makes_later_is_damage(root: Path) -> None:
    place = root / "snapshots/1/MANIFEST"
    place.write_text(re.sub("xaqueue [0-9] ", "xaqueue 9 ", place.read_text()))
    with pytest.raises(SpaceError, match="is damaged"):
        manifest.read(DirectoryFileSystem(place.parent), "")
