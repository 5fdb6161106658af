"""A child process with a Spark of its own copies a queue into other spaces, and may be killed anywhere.

What the scene checks is the same wherever it died: nothing is lost in between, and all is there once in the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue.core.model import layout
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.errors import OperationalError
from xaqueue.features.opening import create
from xaqueue.offline.reader import QueueReader
from xaqueue.xa import Flag

FULL = bool(os.environ.get("XAQUEUE_CRASH_FULL"))
SERVER_DIES = ("decided", "half")
HERE = Path(__file__).parent
WITHIN_S = 1_200 if FULL else 600
PATIENCE_S = 60.0


class Scene:
    """A space full of orders, and spaces for copies of them."""

    def __init__(self, root: Path, sinks: int, messages: int, most: int) -> None:
        """most: messages of a batch."""
        self.messages = messages
        self.most = most
        self.source = root / "source"
        self.sinks = [root / f"sink{number}" for number in range(sinks)]
        self.checkpoint = root / "checkpoint"
        for space in (self.source, *self.sinks):
            create(space, any_queue=True)
        with xaqueue.connect(self.source, sync="NONE") as connection:
            for number in range(self.messages):
                connection.enqueue("orders", b"%d" % number)
            connection.commit()

    def run(self, point: str = "", batch: int = 0, master: str = "local[2,3]") -> subprocess.CompletedProcess[str]:
        """Until it dies, fails, or has copied all there is."""
        if point in SERVER_DIES:
            self.stop_servers()  # those that Spark starts then are to die as well
        paths = os.pathsep.join((str(HERE / "dying"), *filter(None, [os.environ.get("PYTHONPATH")])))
        death = {"XAQUEUE_TEST_DEATH": f"{point}:{batch}"} if point else {}
        sinks = ",".join(map(str, self.sinks))
        words = [
            str(HERE / "spark_copy_child.py"),
            str(self.source),
            sinks,
            str(self.checkpoint),
            str(self.most),
            master,
        ]
        log = self.checkpoint.with_suffix(".log")
        with log.open("w") as said:
            child = subprocess.Popen(
                [sys.executable, *words],
                env={**os.environ, **death, "PYTHONPATH": paths},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                child.wait(WITHIN_S)
            finally:
                end_session(child.pid)
                child.wait()
        return subprocess.CompletedProcess(words, child.returncode, log.read_text("utf-8"))

    def stop_servers(self) -> None:
        for space in (self.source, *self.sinks):
            owner = read_owner(space)
            if owner is not None and is_owned(space):
                with suppress(ProcessLookupError):
                    os.kill(owner.pid, signal.SIGTERM)
            deadline = time.monotonic() + PATIENCE_S
            while is_owned(space):
                assert time.monotonic() < deadline, f"the server of {space} does not end"
                time.sleep(0.02)

    def planned(self) -> int:
        """The last batch that Spark has begun."""
        return max(int(path.name) for path in (self.checkpoint / "offsets").glob("[0-9]*"))

    def spark_committed(self) -> int:
        """The number through which Spark has written down that a batch is done."""
        done = [int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*")]
        if not done:
            return 0
        offsets = (self.checkpoint / "offsets" / str(max(done))).read_text("utf-8").splitlines()[-1]
        found: Any = json.loads(offsets)
        return int(found["spaces"][str(self.source)]["orders"])

    def check_nothing_is_lost(self) -> None:
        """In between: what Spark has not committed is in the source still."""
        reader = QueueReader(self.source, "orders")
        seqs = {seq for seq, *_ in reader.read(0, reader.watermark())}
        assert seqs >= set(range(self.spark_committed() + 1, self.messages + 1))

    def check_whole(self) -> None:
        from xaqueue.rpc.client.server_launcher import reach

        found: Counter[bytes] = Counter()
        for sink in self.sinks:
            with closing(reach(sink)) as manager:
                found.update(message.body for message in manager.browse("copies"))
                assert manager.recover(1000, Flag.STARTRSCAN | Flag.ENDRSCAN) == []
        assert found == Counter(b"%d" % number for number in range(self.messages))
        with closing(reach(self.source)) as manager:
            (kept,) = manager.reservations()
        assert kept.consumed == self.spark_committed() == self.messages
        self.stop_servers()
        for space in (self.source, *self.sinks):
            assert list((space / layout.PREPARED).iterdir()) == []
        assert list(QueueReader(self.source, "orders").read(0, self.messages)) == []


def end_session(leader: int) -> None:
    """Whoever is left of a dead driver's session: Spark's workers have a group of their own."""
    for found in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            pid = int(found.name)
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


@contextmanager
def scene(root: Path, sinks: int, messages: int, most: int) -> Iterator[Scene]:
    """Skips where Java is missing."""
    from xaqueue.spark.java import java_home

    try:
        java_home()
    except OperationalError as missing:
        pytest.skip(str(missing))
    made = Scene(root, sinks, messages, most)
    yield made
    made.stop_servers()
