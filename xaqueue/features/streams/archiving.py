"""What has left queues becomes Parquet by itself: a process of its own is started for it now and then, and this one
knows nothing of Parquet. Whatever ends that process, the next one goes on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from xaqueue.core.engine.state import Space, log
from xaqueue.core.model.block_files import listed
from xaqueue.core.owner.chores import Chore, Chores
from xaqueue.features.streams.taken import taken_directory

LOOK_S = 10.0
AGE_S, ENOUGH = 60.0, 2_000
"""It is started so long after the last time, or when so many steps have taken something."""
COMMAND = (sys.executable, "-P", "-m", "xaqueue.lake.archive")


class Archive(Chore):
    def __init__(self, space: Space, root: Path) -> None:
        super().__init__(space)
        self._root = root
        self._looked_at = self._started_at = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[str] = set()
        """The records of steps by which something left a queue, as they were when the last process was started."""
        self._moved: dict[str, int] = {}
        """Directories of messages that are kept, and when one came or went, of that time."""

    def left_s(self) -> float:
        return self._looked_at + LOOK_S - time.monotonic()

    def run(self, turn: Chores) -> float:
        self._looked_at = time.monotonic()
        if self._process is not None:
            if (code := self._process.poll()) is None:
                return 0.0
            self._process = None
            if code:
                self._tell("`xaqueue archive` says why")
        with self.space.lock:
            queues = [queue.name for queue in self.space.queues.values() if queue.kept_in]
        told = {f"{queue}/{name}" for queue in queues for name in listed(self.space.fs, taken_directory(queue))}
        new, is_time = told - self._seen, self._looked_at >= self._started_at + AGE_S
        if not new or not (is_time or len(new) >= ENOUGH):
            return 0.0
        self._started_at, moved = self._looked_at, dict(self._directories(queues))
        if moved == self._moved:  # there is more of blocks of which some is left
            return 0.0
        self._seen, self._moved = told, moved
        if find_spec("pyarrow") is None:
            self._tell("pip install 'xaqueue[lake]' brings what is needed")
            return 0.0
        quiet = subprocess.DEVNULL
        try:
            command = (*COMMAND, str(self._root))
            self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        except OSError as error:
            self._tell(str(error))
        return 0.0

    def finish(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _directories(self, queues: list[str]) -> Iterator[tuple[str, int]]:
        for queue in queues:
            above = taken_directory(queue).rpartition("/")[0]
            for path in (f"{above}/{name}" for name in listed(self.space.fs, above)):
                with suppress(FileNotFoundError):
                    yield path, (self._root / path).stat().st_mtime_ns

    def _tell(self, why: str) -> None:
        log.warning("[archive-stuck] what left the queues of %s stays as it is: %s", self._root, why)
