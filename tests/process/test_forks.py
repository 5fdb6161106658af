"""What a forked child has of its own, what it has no part in, and what another process makes of the same values."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from xaqueue.core.storage.ids import fresh_id
from xaqueue.xid import Xid


def test_a_forked_child_has_its_own() -> None:
    fresh_id()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"".join(fresh_id() for _ in range(100)))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    data = os.read(read, 1 << 16)
    os.close(read)
    theirs = {data[at : at + 16] for at in range(0, len(data), 16)}
    assert len(theirs) == 100
    assert not theirs & {fresh_id() for _ in range(1000)}


def test_an_xid_from_another_process_is_found_in_a_dict() -> None:
    """Processes hash byte strings differently, and Spark sends xids between them."""
    made = "import sys, pickle; from xaqueue.xid import Xid; sys.stdout.buffer.write(pickle.dumps(Xid(1, b'g', b'b')))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        sent = subprocess.run([sys.executable, "-c", made], env=environment, capture_output=True, check=True).stdout
        assert {Xid(1, b"g", b"b"): "found"}[pickle.loads(sent)] == "found"
