"""What a directory gives to a space: latencies of syncs, rates of names, locks, and whether to believe it all.

One thread, one call after the other, in a directory of its own below the one that is asked about; that is removed
afterwards, also after Ctrl-C. What it means is said by ``xaqueue.tools.verdict``.
"""

# It speaks in system calls, as the file port does.
# ruff: noqa: PTH104

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.storage.fs import NO_ROOM, DirectoryFileSystem
from xaqueue.storage.lock import FileLock
from xaqueue.tools import environment, verdict
from xaqueue.tools.bare import Preallocated
from xaqueue.tools.rates import aligned, percentile
from xaqueue.tools.verdict import Device, DeviceKind, Facts, Fitness, Timing

RECORD = os.urandom(1024)
MOST = 20_000
"""Of one kind of call; as many files are left to remove."""
REPLACED_BYTES = 64 * 1024
LOCK_SCRIPT = """\
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError as error:
    print("refused", error.errno)
else:
    print("acquired")
"""
HEADINGS = ("call", "per second", "p50 us", "p90 us", "p99 us", "p99.9 us", "most us")

VIRTUAL = ("vd", "xvd", "loop", "nbd", "dm-", "md", "rbd", "drbd")
MEMORY = ("ram", "zram")

Report = Callable[[str], None]
Calls = Generator[float, None, None]
"""One call after the other, and how long each took, in seconds; closed when it is enough."""
Probe = Callable[[Path], Calls]


def run(directory: Path, seconds: float, report: Report = lambda _: None) -> tuple[Facts, Fitness]:
    """Tries the directory, each kind of call for so many ``seconds``. Raises InvalidArgument, OSError."""
    if not directory.is_dir():
        raise InvalidArgument(f"{directory} is no directory")
    place = environment.look(directory)
    timings: dict[str, Timing] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix=".xaqueue-iotest-", dir=directory) as scratch:
        locks = lock_trouble(Path(scratch) / "lock")
        atomic = replaces_atomically(Path(scratch), min(seconds, 0.5))
        for name, probe in PROBES.items():
            report(name)
            with tempfile.TemporaryDirectory(dir=scratch) as root:
                try:
                    timings[name] = _timing(probe, Path(root), seconds)
                except OSError as error:
                    if error.errno in NO_ROOM:
                        raise
                    failures[name] = str(error)
    state = os.statvfs(directory)
    facts = Facts(
        environment=place,
        device=device_of(place),
        free_bytes=state.f_bavail * state.f_frsize,
        free_inodes=state.f_favail if state.f_files else None,
        locks=locks,
        replaces_atomically=atomic,
        timings=timings,
        failures=failures,
    )
    return facts, verdict.judge(facts)


def lines(facts: Facts, judged: Fitness) -> list[str]:
    """The result for people."""
    rows = [(name, *(f"{value:,.0f}" for value in asdict(timing).values())) for name, timing in facts.timings.items()]
    where, machine, *_ = facts.environment.lines()
    width = max(len(finding.about) for finding in judged.findings)
    return [
        where,
        machine,
        *aligned(HEADINGS, rows),
        *(f"{found.level.upper():<8}{found.about.ljust(width)}  {found.text}" for found in judged.findings),
        f"recommended: --sync {shlex.quote(judged.flags)}: {judged.why}" if judged.flags else f"UNSAFE: {judged.why}",
    ]


def as_dict(facts: Facts, judged: Fitness) -> dict[str, Any]:
    """The result for programs."""
    return {
        **asdict(facts),
        "environment": facts.environment.as_dict(),
        "safe": judged.safe,
        "findings": [asdict(finding) for finding in judged.findings],
        "recommended": judged.flags,
        "why": judged.why,
    }


def lock_trouble(path: Path) -> str:
    """Why a lock of this process does not keep another one out; empty where it does, until it is released."""
    lock = FileLock(path)
    try:
        if not lock.acquire():
            return "a file that nobody else has is locked already"
        held = _lock_from_another_process(path)
    except SpaceError as error:
        return str(error)
    finally:
        lock.release()
    released = _lock_from_another_process(path)
    if held.startswith("refused") and released == "acquired":
        return ""
    return f"another process was told {held!r} while the lock was held, and {released!r} after it"


def replaces_atomically(root: Path, seconds: float) -> bool:
    """Whether somebody who reads a file that is replaced over and over sees one of the two contents, always."""
    contents = [letter * REPLACED_BYTES for letter in (b"a", b"b")]
    target = root / "target"
    target.write_bytes(contents[0])
    done = threading.Event()
    strange: list[str] = []

    def read() -> None:
        while not done.is_set():
            try:
                if target.read_bytes() not in contents:
                    strange.append("torn")
            except FileNotFoundError:
                strange.append("missing")

    reader = threading.Thread(target=read, name="xaqueue-iotest")
    reader.start()
    try:
        until = time.perf_counter() + seconds
        for number in count():
            new = root / "new"
            new.write_bytes(contents[number % 2])
            os.rename(new, target)
            if time.perf_counter() > until:
                break
    finally:
        done.set()
        reader.join()
    return not strange


def _append(root: Path) -> Calls:
    with _opened(root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd:
        while True:
            began = time.perf_counter()
            os.write(fd, RECORD)
            os.fdatasync(fd)
            yield time.perf_counter() - began


def _overwrite(root: Path) -> Calls:
    log = Preallocated(root / "log", len(RECORD))
    try:
        while True:
            began = time.perf_counter()
            log.write(RECORD)
            yield time.perf_counter() - began
    finally:
        os.close(log.fd)


def _create(root: Path, sync: Callable[[int], None] = lambda _: None) -> Calls:
    for number in range(MOST):
        began = time.perf_counter()
        fd = os.open(root / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, RECORD)
        sync(fd)
        os.close(fd)
        yield time.perf_counter() - began


def _create_sync(root: Path) -> Calls:
    yield from _create(root, os.fsync)


def _rename(root: Path) -> Calls:
    here, there = root / "here", root / "there"
    here.write_bytes(RECORD)
    while True:
        began = time.perf_counter()
        os.rename(here, there)
        yield time.perf_counter() - began
        here, there = there, here


def _sync_directory(root: Path) -> Calls:
    """A name was made in it just before; that is not timed."""
    with _opened(root, os.O_RDONLY | os.O_DIRECTORY) as fd:
        for number in range(MOST):
            (root / str(number)).touch()
            began = time.perf_counter()
            os.fsync(fd)
            yield time.perf_counter() - began


def _sync_all(root: Path) -> Calls:
    """A file was written just before, and whatever else there was to write goes with it."""
    fs = DirectoryFileSystem(root, keep_unsynced=False)
    try:
        for number in range(MOST):
            fs.create(str(number), [RECORD])
            began = time.perf_counter()
            fs.sync_all()
            yield time.perf_counter() - began
    finally:
        fs.close()


PROBES: dict[str, Probe] = {
    verdict.APPEND: _append,
    verdict.OVERWRITE: _overwrite,
    verdict.CREATE_SYNC: _create_sync,
    verdict.SYNC_DIRECTORY: _sync_directory,
    verdict.SYNC_ALL: _sync_all,
    verdict.CREATE: _create,
    verdict.RENAME: _rename,
}


def _timing(probe: Probe, root: Path, seconds: float) -> Timing:
    taken = array("d")
    calls = probe(root)
    until = time.perf_counter() + seconds
    try:
        for took_s in calls:
            taken.append(took_s)
            if time.perf_counter() > until:
                break
    finally:
        calls.close()
    ordered = sorted(taken)
    percentiles = [percentile(ordered, percent) * 1e6 for percent in (50, 90, 99, 99.9, 100)]
    return Timing(len(taken) / sum(taken), *percentiles)


def _lock_from_another_process(path: Path) -> str:
    command = [sys.executable, "-I", "-c", LOCK_SCRIPT, os.fspath(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def device_of(place: environment.Environment, root: str | os.PathLike[str] = "/") -> Device:
    """The device below a directory. ``root``: where ``proc`` and ``sys`` are, for tests."""
    if place.file_system in environment.IN_MEMORY:
        return Device(place.file_system, DeviceKind.MEMORY)
    queue = _queue(place, Path(root))
    name = Path(place.device).name if queue is None else queue.parent.name
    if name.startswith(MEMORY):
        return Device(name, DeviceKind.MEMORY)
    if queue is None:
        return Device(name, DeviceKind.UNKNOWN)
    cache = _word(queue / "write_cache")
    volatile = None if not cache else cache == "write back"
    if name.startswith(VIRTUAL):
        return Device(name, DeviceKind.VIRTUAL, volatile)
    rotating = _word(queue / "rotational") == "1"
    return Device(name, DeviceKind.ROTATING if rotating else DeviceKind.FLASH, volatile)


def _queue(place: environment.Environment, root: Path) -> Path | None:
    """The directory of the device's queue, which of a partition is the whole device's."""
    mount = environment.mount_of(place.directory, (root / "proc/self/mountinfo").read_text("utf-8", "surrogateescape"))
    named = (root / "sys/class/block" / Path(place.device).name).resolve()
    for device in ((root / "sys/dev/block" / mount.device).resolve(), named):
        for whole in (device, device.parent):
            if (whole / "queue").is_dir():
                return whole / "queue"
    return None


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
