"""The process that test_kill_space kills: the work of xaqueue.tools.torture over a port that dies at a chosen call.

Arguments: space, flags, life, seed, number of threads, fault ("" or call:number:before|after).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from support.space_scan import scan
from xaqueue.core.owner import open as attaching
from xaqueue.core.storage.directory_fs import DirectoryFileSystem, has_dsync
from xaqueue.core.storage.fs import Syncing, write_then_sync
from xaqueue.tools.torture.work import live, problems

CALLS = ("create", "rename", "unlink", "prepared", "committed", "decide", "consume", "finish", "write_at")
SYNC_CALLS = ("sync_data", "sync_dir", "sync_all")


class Doom:
    """Counts file-system calls and ends the process at the one that the parent chose."""

    def __init__(self, fault: str) -> None:
        name, number, when = fault.split(":") if fault else ("", "0", "")
        self.name, self.left, self.when = name, int(number), when
        self.mutex = threading.Lock()

    def strike(self, names: Sequence[str], when: str) -> None:
        if self.name not in names or self.when != when:
            return
        with self.mutex:
            self.left -= 1
            if self.left == 0:
                self.end()

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


rollback_reason = Doom("")


class MortalFileSystem(DirectoryFileSystem):
    """Dies before or after the n-th call of one kind; a rename is also named after where it leads."""

    @cached_property
    def in_one(self) -> bool:
        return has_dsync(self.root)

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        rollback_reason.strike(["create"], "before")
        super().create(path, chunks, modified_ns)
        rollback_reason.strike(["create"], "after")

    def rename(self, source: str, target: str) -> None:
        names = ["rename", "decide" if target.endswith(".commit") else target.partition("/")[0]]
        rollback_reason.strike(names, "before")
        super().rename(source, target)
        rollback_reason.strike(names, "after")

    def unlink(self, path: str) -> None:
        names = ["unlink", "consume" if path.startswith("committed/") else "finish"]
        rollback_reason.strike(names, "before")
        super().unlink(path)
        rollback_reason.strike(names, "after")

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        rollback_reason.strike(["write_at"], "before")
        super().write_at(path, offset, chunks)
        rollback_reason.strike(["write_at"], "after")

    def write_synced(self, path: str, offset: int, chunks: Sequence[bytes], syncing: Syncing = None) -> None:
        if syncing is not None or not self.in_one:  # in two calls, each of which strikes
            write_then_sync(self, path, offset, chunks, syncing)
            return
        rollback_reason.strike(["write_at", "sync_data", "sync"], "before")
        super().write_synced(path, offset, chunks, syncing)
        rollback_reason.strike(["write_at", "sync_data", "sync"], "after")

    def sync_data(self, path: str) -> None:
        rollback_reason.strike(["sync_data", "sync"], "before")
        super().sync_data(path)
        rollback_reason.strike(["sync_data", "sync"], "after")

    def sync_file(self, path: str) -> None:
        rollback_reason.strike(["sync_file", "sync"], "before")
        super().sync_file(path)
        rollback_reason.strike(["sync_file", "sync"], "after")

    def sync_dir(self, path: str) -> None:
        rollback_reason.strike(["sync_dir", "sync"], "before")
        super().sync_dir(path)
        rollback_reason.strike(["sync_dir", "sync"], "after")

    def sync_all(self) -> None:
        rollback_reason.strike(["sync_all", "sync"], "before")
        super().sync_all()
        rollback_reason.strike(["sync_all", "sync"], "after")


def fault_of(rng: random.Random, sync: str) -> str:
    """A file-system call to die at, or nothing: then a timer kills."""
    if rng.random() < 0.35:
        return ""
    calls = CALLS if sync == "NONE" else CALLS + SYNC_CALLS
    soon = rng.choice((3, 30, 150))  # the first few calls are those of the recovery
    return f"{rng.choice(calls)}:{rng.randint(1, soon)}:{rng.choice(('before', 'after'))}"


def settled(space: Path, *, times: bool = True) -> list[str]:
    """What is wrong with a space whose branches are all resolved: two readings of it that share little code."""
    return [*scan(space, times=times), *problems(space)]


def main(arguments: Sequence[str], *, times: bool = True) -> None:
    attaching.DirectoryFileSystem = MortalFileSystem  # type: ignore[attr-defined]
    space, flags, life, seed, threads = arguments
    live(Path(space), flags, life, seed, int(threads), lambda space: settled(space, times=times))


if __name__ == "__main__":
    rollback_reason = Doom(sys.argv[6])
    main(sys.argv[1:6])
