"""What the disk gives without an engine: raw syncs, and the bare system calls of the two-phase protocol.

``BareProtocol`` makes the calls that the crash rules need for one message, in their order and with the directories
open, and nothing else: no index, no codec, no lock, no group commit. What an engine adds is what it lacks to this.
``rate_of`` times either of them, so that both are timed alike.
"""

# It speaks in system calls, as the file port does.
# ruff: noqa: PTH102, PTH104, PTH108

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from xaqueue.storage.flags import Hardening

Step = Callable[[], bool]
"""One operation; False when there is nothing left to do."""

DEQUEUE_BLOCK_BYTES = 72
WATERMARK = b"%016x %016x %08x\n" % (1, 1, 1)


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured: operations of all threads, wall time from the common start to the last end, CPU time."""

    operations: int
    seconds: float
    cpu_seconds: float

    @property
    def per_s(self) -> float:
        return self.operations / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_us(self) -> float:
        """Microseconds of this process, user and system, for one operation."""
        return self.cpu_seconds * 1e6 / self.operations if self.operations else 0.0


class _Crew:
    """Threads that start together and stop at one deadline, or at the first failure of any."""

    def __init__(self, hands: int, seconds: float) -> None:
        self._seconds = seconds
        self._start = threading.Barrier(hands, self._begin)
        self._deadline = self._begun = self._ended = self._cpu = 0.0
        self._operations = 0
        self._guard = threading.Lock()
        self.failure: BaseException | None = None

    def _begin(self) -> None:
        self._cpu = time.process_time()
        self._begun = time.perf_counter()
        self._deadline = self._begun + self._seconds

    def work(self, step: Step) -> None:
        operations = 0
        clock = time.perf_counter
        try:
            self._start.wait()
            while clock() < self._deadline and step():
                operations += 1
        except BaseException as error:
            with self._guard:
                self.failure = self.failure or error
            self.stop()
        with self._guard:
            self._operations += operations
            self._ended = max(self._ended, clock())

    def stop(self) -> None:
        self._deadline = 0.0
        self._start.abort()

    def rate(self) -> Rate:
        return Rate(self._operations, self._ended - self._begun, time.process_time() - self._cpu)


def rate_of(steps: Sequence[Step], seconds: float) -> Rate:
    """Runs each step over and over in a thread of its own. Raises what a step raised; threads end before it returns."""
    crew = _Crew(len(steps), seconds)
    threads = [threading.Thread(target=crew.work, args=(step,), name="xaqueue-bench") for step in steps]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # interrupted: the threads must not outlive the directory that they work in
        crew.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if crew.failure is not None:
        raise crew.failure
    return crew.rate()


RAW: dict[str, Callable[[Path, int, bytes], tuple[Step, int]]] = {}
"""Raw limits by name; each makes the step of one thread, and a descriptor to close after it."""


def _append(sync: Callable[[int], None]) -> Callable[[Path, int, bytes], tuple[Step, int]]:
    def make(root: Path, thread: int, body: bytes) -> tuple[Step, int]:
        fd = os.open(root / f"log.{thread}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

        def step() -> bool:
            os.write(fd, body)
            sync(fd)
            return True

        return step, fd

    return make


def _create(root: Path, thread: int, body: bytes) -> tuple[Step, int]:
    numbers = count()

    def step() -> bool:
        fd = os.open(f"{root}/{thread}.{next(numbers)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, body)
        os.fsync(fd)
        os.close(fd)
        return True

    return step, os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


RAW["append + fsync"] = _append(os.fsync)
RAW["append + fdatasync"] = _append(os.fdatasync)
RAW["create + write + fsync"] = _create


def raw_rate(name: str, root: Path, threads: int, size_bytes: int, seconds: float) -> Rate:
    """One of ``RAW`` in an empty directory, each thread with files of its own."""
    body = os.urandom(size_bytes)
    with ExitStack() as stack:
        steps = []
        for thread in range(threads):
            step, fd = RAW[name](root, thread, body)
            stack.callback(os.close, fd)
            steps.append(step)
        return rate_of(steps, seconds)


class BareProtocol:
    """The system calls of two-phase enqueue and dequeue, with the syncs that the flags ask for."""

    def __init__(self, root: Path, hardening: Hardening, size_bytes: int) -> None:
        """``root`` is an empty directory. ``close`` ends the use of it."""
        self._paths = [f"{root}/{name}" for name in ("active", "prepared", "committed", "committed/range")]
        for path in self._paths:
            os.mkdir(path)
        self._fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in self._paths]
        self._watermark = os.open(f"{root}/committed/.watermark", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._sync = {"FSYNC": os.fsync, "FDATASYNC": os.fdatasync}.get(hardening.content)
        self._sync_directory: Callable[[int], None] = os.fsync if hardening.directories else _nothing
        self._body = os.urandom(size_bytes)
        self._block = os.urandom(DEQUEUE_BLOCK_BYTES)

    def enqueue(self, name: str) -> None:
        active, prepared, _, messages = self._paths
        active_fd, prepared_fd, _, messages_fd = self._fds
        self._write(f"{active}/{name}", self._body)
        os.rename(f"{active}/{name}", f"{prepared}/{name}")
        self._sync_directory(prepared_fd)
        self._sync_directory(active_fd)
        os.utime(f"{prepared}/{name}")
        os.rename(f"{prepared}/{name}", f"{messages}/{name}")
        self._sync_directory(messages_fd)
        self._sync_directory(prepared_fd)
        os.pwrite(self._watermark, WATERMARK, 0)

    def dequeue(self, name: str) -> None:
        active, prepared, _, messages = self._paths
        active_fd, prepared_fd, _, messages_fd = self._fds
        fd = os.open(f"{messages}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        os.read(fd, len(self._body) + 1)
        os.close(fd)
        self._write(f"{active}/{name}", self._block)
        os.rename(f"{active}/{name}", f"{prepared}/{name}")
        self._sync_directory(prepared_fd)
        self._sync_directory(active_fd)
        os.unlink(f"{messages}/{name}")
        self._sync_directory(messages_fd)
        os.unlink(f"{prepared}/{name}")

    def enqueuer(self, thread: int, names: list[str]) -> Step:
        """The step of one thread; what it enqueued is noted in ``names``."""
        numbers = count()

        def step() -> bool:
            name = f"{thread}.{next(numbers)}"
            self.enqueue(name)
            names.append(name)
            return True

        return step

    def dequeuer(self, names: list[str]) -> Step:
        """The step of one thread that takes what it had enqueued, in that order."""
        left = iter(names)

        def step() -> bool:
            name = next(left, None)
            if name is not None:
                self.dequeue(name)
            return name is not None

        return step

    def close(self) -> None:
        for fd in (*self._fds, self._watermark):
            os.close(fd)

    def _write(self, path: str, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, data)
        if self._sync is not None:
            self._sync(fd)
        os.close(fd)


@contextmanager
def bare_protocol(root: Path, hardening: Hardening, size_bytes: int) -> Iterator[BareProtocol]:
    protocol = BareProtocol(root, hardening, size_bytes)
    try:
        yield protocol
    finally:
        protocol.close()


def _nothing(_: int) -> None:
    """Without DSYNC directories are not synced."""
