"""A report of figures knows where it was measured, and what makes figures from there misleading."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.rates import busy_share
from xaqueue.core.storage.mounts import mount_of
from xaqueue.tools import environment

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
41 27 7:0 / /data rw,relatime shared:1 master:2 - ext4 /dev/loop0 rw
42 41 0:40 / /data/in\\040memory rw - tmpfs none rw
43 27 8:1 / /over rw - ext3 /dev/sda1 rw
44 43 8:2 / /over rw - xfs /dev/sda2 rw
"""


def test_others_that_use_the_processors_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir()
    stat.write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr("time.sleep", lambda _: stat.write_text("cpu  130 0 120 730 120 0 0 0 0 0\n"))
    assert busy_share(1.0, tmp_path) == pytest.approx(0.5)
    stat.write_text("cpu  130 0 120 730 120 0 0 0 0 0\n")
    assert busy_share(1.0, tmp_path) == 0.0


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
    mount = mount_of(place, MOUNTS)
    assert (mount.point, mount.file_system) == (point, file_system)


def test_lines_that_are_no_mounts_are_passed_over() -> None:
    assert mount_of("/x", "\nnonsense\n1 2 - \n").file_system == "unknown"


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
