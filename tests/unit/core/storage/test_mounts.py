"""Whoever opens a space is warned of a file system that keeps nothing, or that other machines use, too."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import xaqueue
from xaqueue.core.storage import mounts


@pytest.mark.parametrize(
    ("file_system", "is_durable", "said"),
    [
        ("tmpfs", True, "is memory"),
        ("ramfs", True, "is memory"),
        ("tmpfs", False, ""),
        ("ext4", True, ""),
        ("xfs", True, ""),
        ("nfs4", True, "iotest /data/s --peer"),
        ("nfs4", False, "iotest /data/s --peer"),
        ("fuse.sshfs", True, "network file system"),
    ],
)
def test_what_is_said_of_a_place(tmp_path: Path, file_system: str, is_durable: bool, said: str) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n41 27 7:0 / /data rw - {file_system} source rw\n")
    trouble = mounts.trouble_of("/data/s", is_durable=is_durable, mountinfo=str(mountinfo))
    assert said in trouble
    assert bool(trouble) is bool(said)


def test_nothing_is_said_where_nobody_tells_of_mounts(tmp_path: Path) -> None:
    assert mounts.trouble_of("/data/s", is_durable=True, mountinfo=str(tmp_path / "missing")) == ""


@pytest.mark.parametrize(("sync", "is_warned"), [("JOURNAL", True), ("FSYNC;DSYNC", True), ("NONE", False)])
def test_an_open_in_memory_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sync: str, is_warned: bool
) -> None:
    place = mounts.Mount("0:1", "/", "tmpfs", "tmpfs")
    monkeypatch.setattr(mounts, "mount_of", lambda *_: place)
    with caplog.at_level(logging.WARNING, "xaqueue"), xaqueue.connect(tmp_path / "s", create=True, sync=sync):
        xaqueue.connect(tmp_path / "s").close()
    assert [f"{tmp_path / 's'} is on tmpfs" in message for message in caplog.messages] == [True] * is_warned
