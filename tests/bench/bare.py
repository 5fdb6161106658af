"""The bare system calls that the crash rules need for a two-phase transaction: the engine beside them.

They come in their order and with the directories open, without index, codec, lock and group commit: what the engine
adds is what it lacks to this. A branch of several messages has a branch block, as the format asks. Under JOURNAL each
step is one record in a log of the thread's own, written and synced before the directories change, which are not synced.
"""

# It speaks in system calls, as the file port does.
# ruff: noqa: PTH103, PTH104, PTH108

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench.engine import OPERATIONS, BenchPlan, Figures, Key, Report, figures, fresh, ratio
from bench.rates import DECISION_BYTES, Rate, aligned, rate_of
from xaqueue.core.storage.hardening import Hardening
from xaqueue.tools.rates import Preallocated

HEADINGS = ("bare calls", "threads", "two-phase", "bare/s", "xaqueue/bare", "bare CPU us", "p50 us", "p99 us")
DEQUEUE_BLOCK_BYTES = 72
LISTED_BYTES = 32
"""A line of a branch block, about."""
WATERMARK = b"%016x %016x %08x\n" % (1, 1, 1)

ACTIVE, PREPARED, MESSAGES = "active", "prepared", "committed/range"


class BareProtocol:
    """One thread's two-phase enqueue and dequeue of branches, with the syncs that the flags ask for."""

    def __init__(self, root: Path, hardening: Hardening, size_bytes: int, messages: int = 1, thread: int = 0) -> None:
        """``root``: all threads share it; a branch has so many ``messages``. ``close`` ends the use of it."""
        self._root = os.fspath(root)
        self._thread = thread
        for name in (ACTIVE, PREPARED, MESSAGES):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._fds = {name: os.open(f"{root}/{name}", flags) for name in (ACTIVE, PREPARED, MESSAGES)}
        self._watermark = os.open(f"{root}/committed/.watermark", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        content = "" if hardening.journal else hardening.content
        self._sync: Callable[[int], None] | None = {"FSYNC": os.fsync, "FDATASYNC": os.fdatasync}.get(content)
        self._directories = hardening.directories and not hardening.journal
        self._messages = messages
        self._body = os.urandom(size_bytes)
        self._removal = os.urandom(DEQUEUE_BLOCK_BYTES)
        self._list = os.urandom(LISTED_BYTES * messages) if messages > 1 else b""
        largest_bytes = messages * max(size_bytes, DEQUEUE_BLOCK_BYTES) + len(self._list)
        self._log = Preallocated(f"{root}/log.{thread}", largest_bytes) if hardening.journal else None
        self._numbers = count()
        self._enqueued: deque[str] = deque()

    def enqueue_next(self) -> bool:
        branch = f"{self._thread}.{next(self._numbers)}"
        self.enqueue(branch)
        self._enqueued.append(branch)
        return True

    def dequeue_next(self) -> bool:
        """What it enqueued, in that order; False where nothing of it is left."""
        if self._enqueued:
            self.dequeue(self._enqueued.popleft())
            return True
        return False

    def enqueue(self, branch: str) -> None:
        names = self._names(branch)
        self._prepare(branch, dict.fromkeys(names, self._body))
        self._decide(branch)
        for name in names:
            os.utime(f"{self._root}/{PREPARED}/{name}")
            self._move(name, PREPARED, MESSAGES)
        self._harden(MESSAGES, PREPARED)
        self._finish(branch)
        if self._log is None:  # its records have it
            os.pwrite(self._watermark, WATERMARK, 0)

    def dequeue(self, branch: str) -> None:
        names = self._names(branch)
        for name in names:
            fd = os.open(f"{self._root}/{MESSAGES}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            os.read(fd, len(self._body) + 1)
            os.close(fd)
        self._prepare(branch, dict.fromkeys(names, self._removal))
        self._decide(branch)
        for name in names:
            os.unlink(f"{self._root}/{MESSAGES}/{name}")
        self._harden(MESSAGES)
        for name in names:
            os.unlink(f"{self._root}/{PREPARED}/{name}")
        self._finish(branch)

    def close(self) -> None:
        for fd in (*self._fds.values(), self._watermark, *(() if self._log is None else (self._log.fd,))):
            os.close(fd)

    def _names(self, branch: str) -> list[str]:
        return [branch] if not self._list else [f"{branch}.{number}" for number in range(1, self._messages + 1)]

    def _prepare(self, branch: str, blocks: dict[str, bytes]) -> None:
        if self._list:
            blocks[f"{branch}.000"] = self._list
        for name, block in blocks.items():
            self._write(f"{self._root}/{ACTIVE}/{name}", block)
        if self._log is not None:
            self._log.write(b"".join(blocks.values()))
        for name in blocks:
            self._move(name, ACTIVE, PREPARED)
        self._harden(PREPARED, ACTIVE)

    def _decide(self, branch: str) -> None:
        """The commit point, where it is no move of the one block."""
        if self._log is not None:
            self._log.write(bytes(DECISION_BYTES * self._messages))
        elif self._list:
            prepared = f"{self._root}/{PREPARED}/{branch}"
            os.rename(f"{prepared}.000", f"{prepared}.commit")
            self._harden(PREPARED)

    def _finish(self, branch: str) -> None:
        if self._list:
            os.unlink(f"{self._root}/{PREPARED}/{branch}.{'commit' if self._log is None else '000'}")

    def _move(self, name: str, source: str, target: str) -> None:
        os.rename(f"{self._root}/{source}/{name}", f"{self._root}/{target}/{name}")

    def _harden(self, *directories: str) -> None:
        if self._directories:
            for name in directories:
                os.fsync(self._fds[name])

    def _write(self, path: str, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, data)
        if self._sync is not None:
            self._sync(fd)
        os.close(fd)


class BareCalls:
    """The bare calls for each level, number of threads and operation; they join each round."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan = plan
        self._taken: dict[Key, list[Rate]] = {}

    def measure(self, scratch: Path, report: Report) -> None:
        for flags in self._plan.flags:
            for threads in self._plan.threads:
                with fresh(scratch) as root:
                    rates = self._rates(root, flags, threads)
                for operation, rate in zip(OPERATIONS, rates, strict=True):
                    self._taken.setdefault((flags, threads, operation), []).append(rate)
                    report(f"bare calls, {flags}, {threads} threads, {operation}: {rate.per_s:,.0f}/s")

    def _rates(self, root: Path, flags: str, threads: int) -> list[Rate]:
        """In an empty directory, each thread with its own names in the same directories."""
        plan, hardening = self._plan, Hardening.parse(flags)
        with ExitStack() as stack:
            calls = [
                BareProtocol(root, hardening, plan.size_bytes, plan.messages_per_branch, n) for n in range(threads)
            ]
            for one in calls:
                stack.callback(one.close)
            return [
                rate_of([one.enqueue_next for one in calls], plan.seconds),
                rate_of([one.dequeue_next for one in calls], plan.seconds),
            ]

    def join(self, rows: list[Figures]) -> None:
        """Their figures stand in the engine's rows."""
        for row in rows:
            rates = self._taken[row["flags"], row["threads"], row["operation"]]
            row["ratio"] = ratio(row["rounds_per_s"], [rate.per_s for rate in rates])
            row |= {f"bare_{name}": value for name, value in figures(rates).items()}


def lines_of(rows: list[Figures]) -> Iterator[str]:
    def cells(row: Figures) -> list[str]:
        whole = [f"{row[f'bare_{name}']:,.0f}" for name in ("per_s", "cpu_us", "p50_us", "p99_us")]
        return [row["flags"], str(row["threads"]), row["operation"], whole[0], f"{row['ratio']:.2f}", *whole[1:]]

    yield from ("", *aligned(HEADINGS, [cells(row) for row in rows]))
