"""A transaction wakes no thread but those that do its work: a wake-up costs more than a small transaction."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import DURABLE

TRANSACTIONS = 200
FEW = 20
OF_TIMES = frozenset({"xaqueue-follow", "xaqueue-chores", "xaqueue-watchdog"})
"""They come by at times of their own, however many transactions there are in between."""


def wakeups(thread: threading.Thread) -> int:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("sync", ["NONE", DURABLE, "JOURNAL"])
def test_a_transaction_wakes_nobody(tmp_path: Path, sync: str) -> None:
    others = set(threading.enumerate())
    connection = xaqueue.connect(tmp_path / "s", create=True, sync=sync)
    try:
        connection.enqueue("orders", b"first")
        connection.commit()
        idle = [thread for thread in set(threading.enumerate()) - others if thread.name not in OF_TIMES]
        assert idle, "the watch of queues.toml has threads"
        before = {thread: wakeups(thread) for thread in idle}
        for number in range(TRANSACTIONS):
            connection.tpc_begin(connection.xid(1, b"%d" % number, b"b"))
            connection.enqueue("orders", b"body")
            assert connection.dequeue("orders") is not None
            connection.tpc_prepare()
            connection.tpc_commit()
        woken = {thread.name: wakeups(thread) - before[thread] for thread in idle}
        assert max(woken.values()) < FEW, woken
    finally:
        connection.close()
