"""What many open branches take of memory: a process of its own that adds three times as much as a space may keep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from xaqueue.core.engine.log import ALL_KEPT_BYTES, HELD_BYTES

BRANCHES = 64
MiB = 1 << 20
REST_BYTES = 32 * MiB
"""Sessions, names, what the allocator has in hand, one call's messages."""
ADDS = """
import os, re, sys
from pathlib import Path
import xaqueue

def most_bytes():  # not by getrusage, which begins with what the parent has
    return int(re.search("VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def begun(number, size_bytes):
    connection = xaqueue.connect(sys.argv[1], create=True)
    connection.tpc_begin(connection.xid(1, str(number), "b"))
    while size_bytes > 0:
        connection.enqueue_many("q", [os.urandom(16384) for _ in range(16)])
        size_bytes -= 16 * 16384
    return connection

branches, size_bytes = int(sys.argv[2]), int(sys.argv[3])
kept = [begun("first", 1)]
before = most_bytes()
kept += [begun(number, size_bytes // branches) for number in range(branches)]
print(most_bytes() - before, flush=True)
os._exit(0)
"""


def test_what_branches_keep_in_memory_is_bounded_over_all_of_them(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "space"), str(BRANCHES), str(3 * ALL_KEPT_BYTES)]
    found = subprocess.run([sys.executable, "-c", ADDS, *arguments], capture_output=True, text=True, check=True)
    grown_bytes = int(found.stdout)
    assert ALL_KEPT_BYTES / 2 < grown_bytes < ALL_KEPT_BYTES + BRANCHES * HELD_BYTES + REST_BYTES
