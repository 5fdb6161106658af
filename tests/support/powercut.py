"""Disks whose power can be cut: file systems on images, with the work of a child process on them.

ext4 and xfs are shut down without flushing their journal; of btrfs, which cannot be, the image is copied while the
child stands still, and the copy takes its place. Either way the kernel's own recovery runs at the next mount. This
needs root and loop devices.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import xaqueue
from support.kill_child import settled
from support.late_ledger import LateLedger
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.tools.torture.run import Child, ChildRun
from xaqueue.tools.torture.work import reopened

KINDS = ("ext4", "xfs", "btrfs")
IMAGE_BYTES = 512 * 1024 * 1024
MAKE = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f"), "btrfs": ("mkfs.btrfs", "-q", "-f")}
OPTIONS = {"ext4": "loop", "xfs": "loop", "btrfs": "loop,commit=300"}
GOING_DOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, which xfs calls XFS_IOC_GOINGDOWN."""
NO_LOG_FLUSH = struct.pack("I", 2)
STANDSTILL_S = 20.0


class Disk:
    """A mounted image."""

    def __init__(self, kind: str, image: Path, place: Path) -> None:
        self.kind = kind
        self.image = image
        self.place = place

    @property
    def races(self) -> bool:
        """Whether a sync may still return while the power goes: in the middle of a shutdown some do, and lie."""
        return self.kind != "btrfs"

    def cut(self, child: Child | None = None, end: Callable[[], object] = lambda: None) -> None:
        """The power goes, and the child with it, and what ``end`` ends; then the disk is mounted again."""
        if self.kind == "btrfs":
            self._cut_by_copy(child)
        else:
            self._shut_down()
            end()
            if child is not None:
                child.kill()
                child.wait()
            self.unmount()
        self.mount()

    def _shut_down(self) -> None:
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def _cut_by_copy(self, child: Child | None) -> None:
        after = self.image.with_suffix(".after")
        if child is not None:
            child.send_signal(signal.SIGSTOP)
            await_standstill(child.pid)
        run("cp", "--sparse=always", str(self.image), str(after))
        if child is not None:
            child.kill()
            child.wait()
        self.unmount()
        after.replace(self.image)

    def mount(self) -> None:
        run("mount", "-t", self.kind, "-o", OPTIONS[self.kind], str(self.image), str(self.place))

    def unmount(self) -> None:
        run("umount", str(self.place))


@contextmanager
def disk(kind: str, directory: Path) -> Iterator[Disk]:
    """A new disk. Skips where none can be mounted."""
    missing = [tool for tool in ("mount", "umount", MAKE[kind][0]) if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"mount of {kind} on a loop device: needs root" + "".join(f", and {tool}" for tool in missing))
    made = Disk(kind, directory / f"{kind}.img", directory / kind)
    made.place.mkdir()
    with made.image.open("wb") as image:
        image.truncate(IMAGE_BYTES)
    run(*MAKE[kind], str(made.image))
    try:
        made.mount()
    except subprocess.CalledProcessError as refused:
        pytest.skip(f"mount of {kind} on a loop device: {refused.stderr.strip()}")
    try:
        yield made
    finally:
        subprocess.run(["umount", "-l", str(made.place)], capture_output=True, check=False)
        made.image.unlink()


def run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)


def await_standstill(pid: int) -> None:
    """Until every thread has stopped; what it was doing in the kernel is done then."""
    deadline = time.monotonic() + STANDSTILL_S
    while True:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
        if all(state in "TZX" for state in states):
            return
        assert time.monotonic() < deadline, states
        time.sleep(0.002)


CHILD = Path(__file__).with_name("powercut_child.py")
DURABLE = ("FSYNC;DSYNC", "FDATASYNC;DSYNC", "JOURNAL")
MIXED = "mixed"
THREADS = 4
SMALL_JOURNAL = "\n[space]\njournal_segment_bytes = 262144\ncheckpoint_s = 1\n"


class Lives:
    """A space on a disk, and all that its lives said."""

    child = CHILD

    def __init__(
        self, drive: Disk, seed: str, sync: str, *, small_journal: bool, ledger: LateLedger | None = None
    ) -> None:
        self.drive = drive
        self.sync = sync
        self.times = drive.kind != "btrfs" or sync == "JOURNAL"
        """Whether commit times outlive a power cut: btrfs hardens a directory without the times of its files."""
        self.seed = seed
        self.space = drive.place / "space"
        self.ledger = LateLedger() if ledger is None else ledger
        self.count = 0
        xaqueue.connect(self.space, create=True).close()
        if small_journal:
            with (self.space / "queues.toml").open("a") as definitions:
                definitions.write(SMALL_JOURNAL)
                definitions.flush()
                os.fsync(definitions.fileno())

    def live(self, fault: str, work_s: float, threads: int = THREADS) -> bool:
        """One life until its power is cut: at the fault, or ``work_s`` after it recovered. Whether it met its fault."""
        sync = DURABLE[self.count % len(DURABLE)] if self.sync == MIXED else self.sync
        arguments = [str(self.space), sync, str(self.count), self.seed, str(threads), fault, str(self.times)]
        sys.stdout.write(f"life {self.count}: {sync}, {threads} threads, cut at {fault or f'{work_s:.3f} s'}\n")
        self.count += 1
        command = [sys.executable, str(self.child), *arguments]
        before = self.ledger.heard["stopped"]
        with self.ledger.late(self.drive.cut) as cut_late:
            ChildRun(command, cut_late if self.drive.races else self.drive.cut, work_s).run(self.ledger)
        damage = [str(finding) for finding in check(self.space) if finding.severity is Severity.DAMAGE]
        assert damage == [], "a power cut leaves work to finish, and no damage"
        assert self.ledger.faults == []
        return self.ledger.heard["stopped"] > before

    def judge(self) -> None:
        """After the last cut: everything that was promised is there, once and whole."""
        flags = DURABLE[0] if self.sync == MIXED else self.sync
        found = reopened(self.space, flags, self.ledger.decided(), partial(settled, times=self.times))
        assert self.ledger.judge(found) == []
        sys.stdout.write(f"{dict(self.ledger.heard)}; drained {found.messages.total()}\n")


def seeded() -> str:
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    return seed
