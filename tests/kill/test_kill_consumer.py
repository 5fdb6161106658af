"""A message that kills whoever takes it shows how often: each SIGKILL behind a dequeue counts a try."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import xaqueue

CHILD = """
import os, signal, sys, xaqueue
from xaqueue.features.retries import register

root, sync, size_bytes, tried, held = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
register.SIZE_BYTES = size_bytes
connection = xaqueue.connect(root, sync=sync)
other = xaqueue.connect(root)
for _ in range(tried):
    assert other.dequeue("tried").body == b"tried"
    other.rollback()
for _ in range(held):
    assert connection.dequeue("poison").body == b"poison"
os.kill(os.getpid(), signal.SIGKILL)
"""
ENTRY_BYTES = 40


@pytest.mark.parametrize(
    ("sync", "size_bytes", "tried"),
    [
        ("JOURNAL", 128 * 1024, 1),
        ("JOURNAL", 10 * ENTRY_BYTES, 8),  # the register begins again while the messages are held
        ("JOURNAL", ENTRY_BYTES + 4, 1),
    ],
)
def test_a_killed_consumer_has_tried_what_it_held(tmp_path: Path, sync: str, size_bytes: int, tried: int) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync=sync) as connection:
        for queue, body in (("tried", b"tried"), *[("poison", b"poison")] * 3):
            connection.enqueue(queue, body)
        connection.commit()
    for kills in (1, 2):
        arguments = [str(root), sync, str(size_bytes), str(tried), "3"]
        child = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=False)
        assert child.returncode == -signal.SIGKILL
        with xaqueue.connect(root, sync=sync) as connection:
            assert [message.tries for message in connection.browse("poison")] == [kills] * 3
            assert [message.tries for message in connection.browse("tried")] == [kills * tried]


LESSEE = """
import os, signal, sys, xaqueue
from xaqueue.features.retries import register

root, sync, register.SIZE_BYTES = sys.argv[1], sys.argv[2], int(sys.argv[3])
connection = xaqueue.connect(root, sync=sync)
acked, handed_back, held, accepted = connection.receive("orders", 4, lease_s=600)
acked.ack()
handed_back.nack(0)
connection.accept(accepted)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("sync", "size_bytes"), [("JOURNAL", 128 * 1024), ("JOURNAL", 3 * ENTRY_BYTES), ("NONE", 0), ("FDATASYNC;DSYNC", 0)]
)
def test_a_killed_process_has_tried_what_it_held_on_lease(tmp_path: Path, sync: str, size_bytes: int) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync=sync) as connection:
        for body in (b"acked", b"handed back", b"held", b"accepted"):
            connection.enqueue("orders", body)
    child = subprocess.run([sys.executable, "-c", LESSEE, str(root), sync, str(size_bytes)], check=False)
    assert child.returncode == -signal.SIGKILL
    with xaqueue.connect(root, sync=sync) as connection:
        found = {one.body: one.tries for one in connection.browse("orders")}
    assert found == {b"handed back": 0, b"held": 1, b"accepted": 1}
