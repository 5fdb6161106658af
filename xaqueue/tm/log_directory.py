"""The directory of a decision log belongs to one process at a time, by a lock that the kernel drops with the process.

    LOGDIR/
      NODE       one line: format version, node id, boot epoch
      lock       empty, and locked by whoever has it open
      owner      who that is, or was last
      journal/   the decisions

Operators may put their commands' ``participants.toml`` there, and these their ``operators.log``.

The directory is its transaction manager's identity: a copy of it in use elsewhere would be a second one of that name.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from xaqueue.errors import DecisionLogError, DecisionLogInUse
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.storage.modes import BY_UMASK, PRIVATE, Modes
from xaqueue.storage.owner_file import LOCK, NEW_OWNER, OWNER, OwnerFile
from xaqueue.tm.log import JOURNAL, DecisionLog
from xaqueue.tm.records import NEW_NODE, NODE

_OWN = {LOCK, OWNER, NEW_OWNER, JOURNAL, NODE, NEW_NODE, "participants.toml", "operators.log"}
"""With the two files of operators."""


@dataclass(slots=True)
class OwnedLog:
    """A log, and the lock that makes it this process's."""

    log: DecisionLog
    lock: OwnerFile

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
        lock = OwnerFile(root)
    except OSError as error:
        raise DecisionLogError(f"{root} cannot be a decision log ({error}): mend that, or choose another") from error
    try:
        return OwnedLog(_open(lock), lock)
    except BaseException as error:
        lock.release()
        if isinstance(error, OSError):
            raise DecisionLogError(f"{root} cannot be a decision log ({error}): mend that") from error
        raise


def _open(lock: OwnerFile) -> DecisionLog:
    """Says who the owner is before anything is changed, and again once it is known which node that is."""
    root = lock.root
    if not lock.acquire():
        raise DecisionLogInUse(f"{root} is in use by {_owner_of(lock)}: stop it, or give this one a log of its own")
    lock.read()  # which refuses a link
    fs = DirectoryFileSystem(root)
    try:
        lock.write(fs, _owner("", 0))
        log = DecisionLog(fs, lost=lock.lost)
        lock.write(fs, _owner(log.node, log.epoch))
    except BaseException:
        fs.close()
        raise
    return log


def _make(root: Path, modes: Modes = PRIVATE) -> None:
    """With all that leads to it, durably. It is private; what leads to it is as the umask has it."""
    if root.is_dir():
        return
    _make(root.parent, BY_UMASK)
    with closing(DirectoryFileSystem(root.parent, modes=modes)) as fs:
        fs.make_dir(root.name)
        fs.sync_dir("")


def _check_own(root: Path) -> None:
    names = {child.name for child in root.iterdir()}
    if NODE not in names and names - _OWN:
        raise DecisionLogError(f"{root} holds other files ({min(names - _OWN)} ...): choose an empty directory")


def _owner_of(lock: OwnerFile) -> str:
    try:
        owner = json.loads(lock.read() or b"")
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


def _owner(node: str, epoch: int) -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    fields = {"node": node, "epoch": epoch, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
    return json.dumps(fields).encode() + b"\n"
