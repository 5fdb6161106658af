"""What the world does to a process: limits of files and descriptors, errors from the kernel, a kill."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import xaqueue
from support import SUPPORT
from support.space_scan import scan
from xaqueue.core.owner import open
from xaqueue.core.storage.directory_fs import has_dsync
from xaqueue.errors import SpaceInUse

CHILD = SUPPORT / "fault_child.py"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("sync", "call", "when"),
    [("FDATASYNC;DSYNC", "fsync", 40), ("FDATASYNC;DSYNC", "fdatasync", 7), ("JOURNAL", "pwritev2", 7)],
)
def test_an_error_from_the_kernel_fences_and_loses_nothing(tmp_path: Path, sync: str, call: str, when: int) -> None:
    """Injected into a real process: one sync of a file or directory fails in the middle of its work."""
    if shutil.which("strace") is None or run("strace", "-o", "/dev/null", "true").returncode:
        pytest.skip("strace is not installed or not permitted")
    if call == "pwritev2" and not has_dsync(str(tmp_path)):
        pytest.skip("this file system is written to and synced by two calls")
    space = tmp_path / "space"
    xaqueue.connect(space, create=True).close()
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={when}"]
    child = [sys.executable, str(CHILD), "commit", str(space), sync]
    ran = run("strace", "-f", "-o", str(tmp_path / "trace"), *inject, *child)
    said = [json.loads(line) for line in ran.stdout.splitlines()]
    acked = [fact["number"] for fact in said if fact["verb"] == "acked"]
    assert acked
    refused = [fact for fact in said if fact["verb"] != "acked"]
    assert [fact["error"] for fact in refused] == ["ResourceFailed"] * 3, ran.stderr
    trace = (tmp_path / "trace").read_text()
    assert trace.count("EIO") == 1
    assert [line for line in trace.partition("EIO")[2].splitlines() if call in line] == [], "synced after a failure"
    with xaqueue.connect(space) as connection:
        for xid in connection.tpc_recover():
            connection.tpc_rollback(xid)
        there = [int(message.body) for message in connection.browse("orders")]
    assert there[: len(acked)] == acked
    assert len(there) <= len(acked) + 1


def child_says(verb: str, space: Path) -> list[dict[str, object]]:
    ran = run(sys.executable, str(CHILD), verb, str(space))
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_without_descriptors_nothing_is_lost_and_it_goes_on_afterwards(tmp_path: Path) -> None:
    xaqueue.connect(tmp_path / "space", create=True).close()
    said = {str(fact["verb"]): fact for fact in child_says("descriptors", tmp_path / "space")}
    errors = {verb: fact.get("error") for verb, fact in said.items()}
    assert errors == {
        "starved enqueue": None,  # what the space keeps open makes room for it
        "starved dequeue": None,
        "starved browse": None,
        "starved rollback of a dequeue": None,
        "starved commit of a dequeue": None,
        "starved commit": None,
        "starved rollback": None,
        "starved rollback of nothing": None,
        "fed enqueue": None,
        "fed commit": None,
        "left": None,
    }
    assert said["left"]["bodies"] == ["second", "spare", "doubtful", "third"]


def test_a_space_that_finds_no_descriptors_at_its_opening_says_so_and_lets_go(tmp_path: Path) -> None:
    space = tmp_path / "space"
    with xaqueue.connect(space, create=True) as connection:
        connection.enqueue("orders", b"first")
        connection.enqueue("bills", b"first")
        connection.commit()
    said = child_says("open", space)
    for verb in ("open", "connect"):
        attempts = [fact for fact in said if fact["verb"] == verb]
        errors = [fact["error"] for fact in attempts]
        assert (set(errors), errors[0], errors[-1]) == ({"SpaceError", None}, "SpaceError", None)
        refused = [fact for fact in attempts if fact["error"]]
        assert all(re.search("Errno 24|Too many open files", str(fact["message"])) for fact in refused)
    assert [fact["number"] for fact in said if fact["verb"] == "left behind"] == [0]
    assert scan(space) == []


def test_a_write_cut_short_by_a_limit_leaves_nothing(tmp_path: Path) -> None:
    space = tmp_path / "space"
    xaqueue.connect(space, create=True).close()
    said = child_says("file-size", space)
    assert [fact.get("error") for fact in said] == ["DiskFull", None, None, None, None]
    assert "File too large" in str(said[0]["message"])
    assert said[1]["bodies"] == []
    assert said[4]["bodies"] == ["first", "second"]
    assert scan(space) == []


def test_a_killed_owner_releases_its_lock(tmp_path: Path) -> None:
    space = tmp_path / "space"
    xaqueue.connect(space, create=True).close()
    with subprocess.Popen(
        [sys.executable, str(CHILD), "hold", str(space)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        with pytest.raises(SpaceInUse, match=rf"process {owner.pid} on "):
            xaqueue.connect(space)
        assert open.is_owned(space)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert not open.is_owned(space)
        with xaqueue.connect(space) as connection:
            assert list(connection.browse("orders")) == []
    assert scan(space) == []
