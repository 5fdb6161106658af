"""A process is killed, again and again, that takes of a queue with an archive: what it was answered to have taken is in
the archive, nothing is there and in the queue, and nothing is in neither. ``XAQUEUE_CRASH_FULL=1``: 100 times a level.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import kept_child
from support.archived import archived, live
from support.kept_child import QUEUE
from xaqueue import connect
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.features.opening import create

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
KILLS = 100 if FULL else 3


@pytest.mark.parametrize("level", ["JOURNAL", "NONE", "FDATASYNC", "FDATASYNC;DSYNC", "FSYNC;DSYNC"])
def test_what_was_taken_is_kept_by_a_process_that_is_killed(tmp_path: Path, level: str) -> None:
    space, said = tmp_path / "space", tmp_path / "said"
    create(space)
    (space / "queues.toml").write_text(f'[queues.{QUEUE}]\narchive = "parquet"\n')
    dice = random.Random(level)
    for life in range(KILLS):
        command = [sys.executable, kept_child.__file__, str(space), level, str(said), f"{life}"]
        before = said.stat().st_size if said.exists() else 0
        child = subprocess.Popen(command, stderr=subprocess.PIPE)
        while child.poll() is None and not (said.exists() and b"\ntaken" in said.read_bytes()[before:]):
            time.sleep(0.01)
        time.sleep(dice.random() * 0.3)
        child.send_signal(signal.SIGKILL)
        _, errors = child.communicate()
        assert child.returncode == -signal.SIGKILL, errors.decode()
    with connect(space, sync=level) as connection:
        for xid in connection.tpc_recover():
            connection.tpc_commit(xid)
        there = {message.body.decode() for message in connection.browse(QUEUE)}
    fs = DirectoryFileSystem(space)
    found = archived(fs, QUEUE)
    assert not found.keys() & live(fs, QUEUE)
    kept = [left.body.decode() for left in found.values()]
    assert len(set(kept)) == len(kept), "a message is there twice"
    words: dict[str, dict[str, str]] = {"maybe-put": {}, "put": {}, "maybe": {}, "taken": {}}
    for line in said.read_text().splitlines():
        word, body, who = line.split(" ")
        words[word][body] = who
    assert words["taken"].keys() <= {*kept}
    assert not there & {*kept}
    assert {*kept} <= words["maybe"].keys()
    assert words["put"].keys() <= there | {*kept} <= words["maybe-put"].keys()
    by = {left.body.decode(): left.by.by for left in found.values() if left.by is not None}
    for body, who in words["taken"].items():
        assert by[body] == who if who != "-" else by[body], "it is told who took it"
    fs.close()
