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
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.tools import environment, verdict
from xaqueue.tools.peer import meet
from xaqueue.tools.rates import Preallocated, percentile
from xaqueue.tools.verdict import Facts, Fitness, Timing

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

Report = Callable[[str], None]
Call = Callable[[int], object]
"""Takes its own number."""


def run(
    directory: Path, seconds: float, report: Report = lambda _: None, *, peer: bool = False
) -> tuple[Facts, Fitness]:
    """Tries the directory, each kind of call for so many ``seconds``. Raises InvalidArgument, OSError.

    peer: together with another machine first; see ``xaqueue.tools.peer``.
    """
    if not directory.is_dir():
        raise InvalidArgument(f"{directory} is no directory")
    met = meet(directory, report) if peer else None
    place = environment.look(directory)
    timings: dict[str, Timing] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix=".xaqueue-iotest-", dir=directory) as scratch:
        locks = lock_trouble(Path(scratch) / "lock")
        atomic = replaces_atomically(Path(scratch), min(seconds, 0.5))
        for name, probe in PROBES.items():
            report(f"measuring {name}")
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
        device=environment.device_of(place),
        free_bytes=state.f_bavail * state.f_frsize,
        free_inodes=state.f_favail if state.f_files else None,
        locks=locks,
        replaces_atomically=atomic,
        timings=timings,
        failures=failures,
        peer=met,
    )
    return facts, verdict.judge(facts)


def rows(facts: Facts) -> list[tuple[object, ...]]:
    """Below ``HEADINGS``."""
    return [(name, *map(round, asdict(timing).values())) for name, timing in facts.timings.items()]


def lines(judged: Fitness) -> list[str]:
    """The result for people."""
    width = max(len(finding.about) for finding in judged.findings)
    return [
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
    unexpected: list[str] = []

    def read() -> None:
        while not done.is_set():
            try:
                if target.read_bytes() not in contents:
                    unexpected.append("torn")
            except FileNotFoundError:
                unexpected.append("missing")

    reader = threading.Thread(target=read, name="xaqueue-iotest")
    reader.start()
    try:
        until = time.perf_counter() + seconds
        for content in cycle(contents):
            new = root / "new"
            new.write_bytes(content)
            os.rename(new, target)
            if time.perf_counter() > until:
                break
    finally:
        done.set()
        reader.join()
    return not unexpected


def _append(root: Path, stack: ExitStack) -> Call:
    fd = _opened(root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, stack)

    def append(_: int) -> None:
        os.write(fd, RECORD)
        os.fdatasync(fd)

    return append


def _overwrite(root: Path, stack: ExitStack) -> Call:
    log = Preallocated(root / "log", len(RECORD))
    stack.callback(os.close, log.fd)
    return lambda _: log.write(RECORD)


def _create(root: Path, sync: Callable[[int], None] = lambda _: None) -> Call:
    def create(number: int) -> None:
        fd = os.open(root / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, RECORD)
        sync(fd)
        os.close(fd)

    return create


def _rename(root: Path) -> Call:
    (root / "0").write_bytes(RECORD)
    return lambda number: os.rename(root / f"{number}", root / f"{number + 1}")


def _sync_directory(root: Path, stack: ExitStack) -> Call:
    fd = _opened(root, os.O_RDONLY | os.O_DIRECTORY, stack)
    return lambda _: os.fsync(fd)


def _sync_all(root: Path, stack: ExitStack) -> Call:
    fs = stack.enter_context(closing(DirectoryFileSystem(root, keep_unsynced=False)))
    return lambda _: fs.sync_all()


class Probe(NamedTuple):
    """``begin``: makes of an empty directory the call that is timed over and over. The stack closes what it opened."""

    begin: Callable[[Path, ExitStack], Call]
    makes_files: bool = False
    before: bytes | None = None
    """What a new file gets just before each call, which is not timed."""


PROBES = {
    verdict.APPEND: Probe(_append),
    verdict.OVERWRITE: Probe(_overwrite),
    verdict.CREATE_SYNC: Probe(lambda root, _: _create(root, os.fsync), makes_files=True),
    verdict.SYNC_DIRECTORY: Probe(_sync_directory, makes_files=True, before=b""),
    verdict.SYNC_ALL: Probe(_sync_all, makes_files=True, before=RECORD),
    verdict.CREATE: Probe(lambda root, _: _create(root), makes_files=True),
    verdict.RENAME: Probe(lambda root, _: _rename(root)),
}


def _timing(probe: Probe, root: Path, seconds: float) -> Timing:
    taken, clock = array("d"), time.perf_counter
    with ExitStack() as stack:
        call = probe.begin(root, stack)
        until = clock() + seconds
        for number in range(MOST) if probe.makes_files else count():
            if probe.before is not None:
                (root / f"{number}").write_bytes(probe.before)
            began = clock()
            call(number)
            ended = clock()
            taken.append(ended - began)
            if ended > until:
                break
    ordered = sorted(taken)
    return Timing(len(taken) / sum(taken), *(percentile(ordered, share) * 1e6 for share in (50, 90, 99, 99.9, 100)))


def _lock_from_another_process(path: Path) -> str:
    command = [sys.executable, "-I", "-c", LOCK_SCRIPT, os.fspath(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _opened(path: Path, flags: int, stack: ExitStack) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    stack.callback(os.close, fd)
    return fd
