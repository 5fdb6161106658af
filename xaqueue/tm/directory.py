"""The directory of a decision log belongs to one process at a time, by a lock that the kernel drops with the process.

    LOGDIR/
      NODE       one line: format version, node id, boot epoch
      owner      lock file: who has it open, or had it last
      journal/   the decisions

Operators may put their commands' ``participants.toml`` there, and these their ``operators.log``.

The directory is its transaction manager's identity: a copy of it in use elsewhere would be a second one of that name.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from xaqueue.errors import DecisionLogError, DecisionLogInUse
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.storage.lock import FileLock
from xaqueue.tm.log import JOURNAL, DecisionLog
from xaqueue.tm.node import NODE

OWNER = "owner"
LOCK_TRIES = 5
_OWN = {OWNER, JOURNAL, NODE, f".{NODE}.new", "participants.toml", "operators.log"}
"""With the two files of operators."""


@dataclass(slots=True)
class OwnedLog:
    """A log, and the lock that makes it this process's."""

    log: DecisionLog
    lock: FileLock

    def close(self) -> None:
        try:
            self.log.close()
        finally:
            self.lock.release()

    def abandon(self) -> None:
        self.log.abandon()
        self.lock.abandon()


def open_log(path: str | os.PathLike[str]) -> OwnedLog:
    """Makes the directory where it is missing, takes its lock, and opens the log.

    Raises DecisionLogInUse, DecisionLogDamaged, DecisionLogError.
    """
    root = Path(path)
    try:
        _make(root)
        _check_own(root)
        lock = FileLock(root / OWNER)
    except OSError as error:
        raise DecisionLogError(f"{root} cannot be a decision log ({error}): mend that, or choose another") from error
    fs = DirectoryFileSystem(root)
    try:
        _acquire(lock, root)
        log = DecisionLog(fs)
        lock.write(_owner(log))
    except BaseException:
        fs.close()
        lock.release()
        raise
    return OwnedLog(log, lock)


def is_owned(path: str | os.PathLike[str]) -> bool:
    """Whether some process has the log open now."""
    try:
        lock = FileLock(Path(path) / OWNER, create=False)
    except OSError:
        return False
    try:
        return not lock.acquire()
    finally:
        lock.release()


def _make(root: Path) -> None:
    """With all that leads to it, durably."""
    if root.is_dir():
        return
    _make(root.parent)
    fs = DirectoryFileSystem(root.parent)
    try:
        fs.make_dir(root.name)
        fs.sync_dir("")
    finally:
        fs.close()


def _check_own(root: Path) -> None:
    names = {child.name for child in root.iterdir()}
    if NODE not in names and names - _OWN:
        raise DecisionLogError(f"{root} holds other files ({min(names - _OWN)} ...): choose an empty directory")


def _acquire(lock: FileLock, root: Path) -> None:
    """Tries for a moment: a look at whether it is owned holds the lock for an instant."""
    for _ in range(LOCK_TRIES):
        if lock.acquire():
            return
        time.sleep(0.02)
    raise DecisionLogInUse(f"{root} is in use by {_describe(lock)}: stop it, or give this one a log of its own")


def _describe(lock: FileLock) -> str:
    try:
        told = json.loads(lock.read())
        return f"process {told['pid']} on {told['host']} since {told['since']}"
    except (ValueError, TypeError, KeyError):
        return "another process"


def _owner(log: DecisionLog) -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    told = {"node": log.node, "epoch": log.epoch, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
    return json.dumps(told).encode() + b"\n"
