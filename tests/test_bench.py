"""The bench measures what it says, tells where it measured, and leaves nothing behind. No figure is asserted here."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from xaqueue.bench import engine, environment, limits, opening
from xaqueue.bench.engine import Options
from xaqueue.bench.limits import Rate, rate_of
from xaqueue.errors import InvalidArgument
from xaqueue.space.attach import attach
from xaqueue.space.format import read_format
from xaqueue.storage.flags import Hardening

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
41 27 7:0 / /data rw,relatime shared:1 master:2 - ext4 /dev/loop0 rw
42 41 0:40 / /data/in\\040memory rw - tmpfs none rw
43 27 8:1 / /over rw - ext3 /dev/sda1 rw
44 43 8:2 / /over rw - xfs /dev/sda2 rw
"""


def test_each_flag_thread_and_operation_is_measured_against_the_bare_calls(tmp_path: Path) -> None:
    lines: list[str] = []
    flags = ("NONE", "FDATASYNC;DSYNC")
    options = Options(tmp_path, threads=(1, 2), flags=flags, size_bytes=64, seconds=0.05, rounds=1)
    result = engine.run(options, lines.append)
    rows = {(row["flags"], row["threads"], row["operation"]): row for row in result["results"]}
    assert set(rows) == {(flag, threads, name) for flag in flags for threads in (1, 2) for name in engine.OPERATIONS}
    for row in rows.values():
        assert row["engine_per_s"] > 0
        assert row["bare_per_s"] > 0
        assert row["ratio"] == pytest.approx(row["engine_per_s"] / row["bare_per_s"])
        assert (row["times_one_thread"] is None) == (row["threads"] == 1)
    assert {(row["name"], row["threads"]) for row in result["raw"]} == {(n, t) for n in limits.RAW for t in (1, 2)}
    assert json.loads(json.dumps(result))["options"]["directory"] == str(tmp_path)
    assert any("bare/s" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_rounds_of_syncs_are_counted_for_each_transaction(tmp_path: Path) -> None:
    options = Options(tmp_path, threads=(1,), flags=("NONE", "FSYNC;DSYNC"), seconds=0.05, rounds=1)
    rows = engine.run(options, lambda _: None)["results"]
    for row in rows:
        alone = row["flags"] == "FSYNC;DSYNC"
        assert row["rounds_per_transaction"] == pytest.approx(2.0 if alone else 0.0, abs=0.5)


@pytest.mark.parametrize(
    "wrong", [{"threads": ()}, {"threads": (0,)}, {"rounds": 0}, {"seconds": 0.0}, {"size_bytes": -1}]
)
def test_options_that_measure_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Options(**wrong)


def test_flags_that_do_not_exist_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(InvalidArgument, match="FDATASYNC"):
        Options(flags=("SYNC",))


def test_what_fails_or_is_interrupted_leaves_no_space_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Rate:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "rate_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(Options(tmp_path, threads=(1,), flags=("NONE",), seconds=0.01, rounds=1), lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_fails_ends_all_threads_and_is_raised() -> None:
    before = threading.active_count()

    def fails() -> bool:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        rate_of([lambda: True, fails], seconds=60.0)
    assert threading.active_count() == before


def test_a_step_with_nothing_left_ends_before_the_time_does() -> None:
    left = iter(range(5))
    rate = rate_of([lambda: next(left, None) is not None], seconds=60.0)
    assert rate.operations == 5
    assert Rate(10, 2.0, 0.001).per_s == 5.0
    assert Rate(10, 2.0, 0.001).cpu_us == pytest.approx(100.0)
    assert Rate(0, 0.0, 0.0).per_s == Rate(0, 0.0, 0.0).cpu_us == 0.0


def test_bare_calls_move_a_message_in_and_out(tmp_path: Path) -> None:
    with limits.bare_protocol(tmp_path, Hardening.parse("FDATASYNC;DSYNC"), 100) as bare:
        bare.enqueue("a")
        assert (tmp_path / "committed/range/a").stat().st_size == 100
        bare.dequeue("a")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".watermark"]


def test_a_deep_queue_is_laid_out_as_its_owner_would_and_opened_by_a_child(tmp_path: Path) -> None:
    lines: list[str] = []
    result = opening.run(500, tmp_path, lines.append)
    assert result["messages"] == 500
    assert result["seconds"] > 0
    assert result["peak_bytes"] > 1 << 20
    assert json.loads(json.dumps(result)) == result
    assert any("500 messages open in" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_the_layout_is_a_space_that_the_engine_reads_whole(tmp_path: Path) -> None:
    opening.lay_out(tmp_path / "space", 4100, lambda _: None)
    assert read_format(tmp_path / "space").name == opening.QUEUE
    said: list[dict[str, Any]] = []
    opening.measure_here(tmp_path / "space", said.append)
    assert said[-1]["messages"] == 4100
    session = attach(tmp_path / "space", watch=False)
    try:
        assert session.space.report.quarantined == []
        assert [message.seq for message in session.browse(opening.QUEUE)] == list(range(1, 4101))
    finally:
        session.close()


def test_no_room_for_the_messages_is_said_before_they_are_laid_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="inodes"):
        opening.run(10**13, tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "point", "file_system"),
    [
        ("/", "/", "ext4"),
        ("/database", "/", "ext4"),
        ("/data/queue", "/data", "ext4"),
        ("/data/in memory/x", "/data/in memory", "tmpfs"),
        ("/over/x", "/over", "xfs"),
    ],
)
def test_the_mount_is_the_deepest_and_the_last_there(place: str, point: str, file_system: str) -> None:
    mount = environment.mount_of(place, MOUNTS)
    assert (mount.point, mount.file_system) == (point, file_system)


def test_lines_that_are_no_mounts_are_passed_over() -> None:
    assert environment.mount_of("/x", "\nnonsense\n1 2 - \n").file_system == "unknown"


def fake_root(tmp_path: Path, mounts: str, journal_task: str | None = None) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    if journal_task is not None:
        (tmp_path / "sys/fs/ext4/loop0").mkdir(parents=True)
        (tmp_path / "sys/fs/ext4/loop0/journal_task").write_text(journal_task + "\n")
    return tmp_path


def mounted(tmp_path: Path, file_system: str, source: str = "/dev/loop0") -> str:
    return f"41 27 7:0 / {tmp_path.resolve()} rw - {file_system} {source} rw\n"


def test_ext4_without_a_journal_is_recognised_and_said_plainly(tmp_path: Path) -> None:
    found = environment.look(tmp_path, fake_root(tmp_path, mounted(tmp_path, "ext4"), "<none>"))
    assert found.journal is False
    said = "\n".join(found.lines())
    assert "WITHOUT a journal" in said
    assert "NO JOURNAL" in said
    assert "mount -o loop" in said
    assert found.as_dict()["warnings"] == found.warnings


def test_ext4_with_a_journal_needs_no_warning(tmp_path: Path) -> None:
    found = environment.look(tmp_path, fake_root(tmp_path, mounted(tmp_path, "ext4"), "4711"))
    assert found.journal is True
    assert found.warnings == []
    assert found.file_system == "ext4"
    assert found.device == "/dev/loop0"


def test_the_device_is_found_by_its_number_where_the_mount_names_another(tmp_path: Path) -> None:
    root = fake_root(tmp_path, mounted(tmp_path, "ext4", "/dev/root"), "<none>")
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/devices/loop0").mkdir(parents=True)
    (root / "sys/dev/block/7:0").symlink_to("../../devices/loop0")
    assert environment.look(tmp_path, root).journal is False


def test_a_journal_is_known_by_its_thread_where_sysfs_is_silent(tmp_path: Path) -> None:
    root = fake_root(tmp_path, mounted(tmp_path, "ext4"))
    (root / "proc/fs/jbd2/loop0-8").mkdir(parents=True)
    assert environment.look(tmp_path, root).journal is True


def test_a_journal_nobody_can_tell_of_is_not_guessed(tmp_path: Path) -> None:
    found = environment.look(tmp_path, fake_root(tmp_path, mounted(tmp_path, "ext4", f"{tmp_path}/no-device")))
    assert found.journal is None
    assert "dumpe2fs" in found.warnings[0]


@pytest.mark.parametrize(
    ("file_system", "journal", "warned"),
    [("tmpfs", None, "memory"), ("ext2", False, "JOURNAL"), ("ext3", True, ""), ("xfs", None, ""), ("btrfs", None, "")],
)
def test_other_file_systems(tmp_path: Path, file_system: str, journal: bool | None, warned: str) -> None:
    found = environment.look(tmp_path, fake_root(tmp_path, mounted(tmp_path, file_system)))
    assert found.journal is journal
    assert warned in " ".join(found.warnings)
    assert bool(found.warnings) == bool(warned)


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    found = environment.look(tmp_path)
    assert found.processors >= 1
    assert found.file_system != "unknown"
    assert len(found.lines()) == 2 + len(found.warnings)
