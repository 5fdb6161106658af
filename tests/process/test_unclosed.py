"""What was not closed well in this boot is written anew by who opens it; after a clean close it is trusted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import xaqueue
from xaqueue.core.owner import open as owner_open
from xaqueue.core.storage import owner_file
from xaqueue.core.storage.owner_file import OWNER
from xaqueue.features.opening import open_space
from xaqueue.features.session import attach
from xaqueue.tm.log_directory import open_log

KILLED = """
import os, sys, xaqueue
connection = xaqueue.connect(sys.argv[1], create=True, sync=sys.argv[2])
for number in range(5):
    connection.enqueue("orders", b"%d" % number)
    connection.commit()
os.kill(os.getpid(), 9)
"""
LEVELS = ["JOURNAL", "FDATASYNC;DSYNC"]


def killed(root: Path, sync: str = "JOURNAL") -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED, str(root), sync], check=False)
    assert ran.returncode == -signal.SIGKILL


def is_suspect(root: Path, sync: str | None = None) -> bool:
    """Whether whoever opens it takes what it reads for what may be in memory only."""
    with patch.object(owner_open, "open_space", wraps=open_space) as opening:
        attach(root, sync=sync, watch=False).close()
    suspect: bool = opening.call_args.kwargs["suspect"]
    return suspect


def change_owner(root: Path, **fields: Any) -> None:
    told = json.loads((root / OWNER).read_text())
    (root / OWNER).write_text(json.dumps(told | fields))


@pytest.mark.parametrize("sync", LEVELS)
def test_a_killed_owner_is_suspect_and_one_that_closed_is_not(tmp_path: Path, sync: str) -> None:
    root = tmp_path / "space"
    killed(root, sync)
    assert is_suspect(root)
    assert not is_suspect(root)


def test_so_is_one_that_nobody_can_name(tmp_path: Path) -> None:
    killed(tmp_path / "space")
    (tmp_path / "space" / OWNER).write_bytes(b"")
    assert is_suspect(tmp_path / "space")


def test_another_boot_reads_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(tmp_path / "space")
    change_owner(tmp_path / "space", unclosed="another boot")
    assert not is_suspect(tmp_path / "space")
    killed(tmp_path / "space")
    monkeypatch.setattr(owner_file, "boot_id", lambda: "")
    change_owner(tmp_path / "space", unclosed="unknown")
    assert is_suspect(tmp_path / "space"), "a system that does not tell its boots"


def test_an_open_that_fails_leaves_it_suspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "space"
    killed(root)
    real = os.fdatasync

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(xaqueue.SpaceError):
        xaqueue.connect(root)
    monkeypatch.setattr(os, "fdatasync", real)
    assert is_suspect(root)


def kept(tmp_path: Path, paths: list[Path]) -> dict[Path, Path]:
    """A second name of each, so that its inode is not used again."""
    old = {path: tmp_path / f"old {number}" for number, path in enumerate(paths)}
    for path, other in old.items():
        other.hardlink_to(path)
    return old


def test_files_and_journal_are_other_ones_afterwards(tmp_path: Path) -> None:
    """The old pages are never believed: every file above the checkpoint and every segment is a new one."""
    root = tmp_path / "space"
    killed(root)
    seen = kept(tmp_path, [*root.glob("committed/*/range=*/*"), *root.glob("journal/*")])
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("orders")] == [b"%d" % number for number in range(5)]
        assert [path for path, old in seen.items() if path.exists() and path.samefile(old)] == []


def test_flags_are_no_matter(tmp_path: Path) -> None:
    """A space that was opened at a lower level is opened at a higher one."""
    killed(tmp_path / "space", "NONE")
    assert is_suspect(tmp_path / "space", "FDATASYNC;DSYNC")


@pytest.mark.parametrize("closed", [True, False])
def test_a_decision_log_likewise(tmp_path: Path, closed: bool) -> None:
    """However it was left: every owner begins a journal of its own."""
    root = tmp_path / "log"
    owned = open_log(root)
    owned.decide(b"1", ["a", "b"])
    seen = kept(tmp_path, list(root.glob("journal/*")))
    if closed:
        owned.close()
    else:
        assert owned.owner is not None
        owned.owner.release()  # as the kernel does, of a process that dies
    owned = open_log(root)
    assert not any(path.exists() and path.samefile(old) for path, old in seen.items())
    assert set(owned.table.open) == {b"1"}
    owned.close()


PREPARED = """
import os, sys, time, xaqueue
connection = xaqueue.connect(sys.argv[1], create=True, sync=sys.argv[2])
connection.tpc_begin(connection.xid(1, "old", "b"))
connection.enqueue("orders", b"1")
connection.tpc_prepare()
while not os.listdir(f"{sys.argv[1]}/prepared"):  # the directories follow
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("sync", LEVELS)
def test_what_is_written_anew_is_as_old_as_it_was(tmp_path: Path, sync: str) -> None:
    """An operator goes by the age of what is in doubt."""
    root, before = tmp_path / "space", 1_600_000_000 * 10**9
    subprocess.run([sys.executable, "-c", PREPARED, str(root), sync], check=False)
    (block,) = (root / "prepared").iterdir()
    os.utime(block, ns=(before, before))
    inode = block.stat().st_ino
    attach(root, watch=False).close()
    (block,) = (root / "prepared").iterdir()
    assert block.stat().st_ino != inode, "it was written anew"
    assert block.stat().st_mtime_ns == before
