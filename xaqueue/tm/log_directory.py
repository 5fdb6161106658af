"""The directory of a decision log belongs to one process at a time, by a lock that the kernel drops with the process.

    LOGDIR/
      NODE       one line: format version, node id, boot epoch
      lock       empty, and locked by whoever has it open
      owner      who that is, or was last, and where: the host and its boot, and which file ``lock`` is there
      journal/   the decisions
      slots/     more such directories, of other processes: see ``slots``

The directory is its transaction manager's identity: a copy of it in use elsewhere would be a second one of that name,
and would roll back what that one commits. So a log whose ``lock`` is another file than ``owner`` says is not opened,
until ``take_over`` has it belong here.

Operators may put their commands' ``participants.toml`` there, and these their ``operators.log``. In that it is noted
first when a transaction's heuristics are forgotten: who, when and why. One line of JSON for each heuristic, on disk
before it is forgotten. Lines are only ever added; a crash may leave a torn last one, or one of a heuristic that is not
forgotten yet and is noted again when it is.
"""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from xaqueue.core.storage import append_log
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.modes import BY_UMASK, PRIVATE, Modes
from xaqueue.core.storage.owner_file import LOCK, NEW_OWNER, OWNER, OwnerFile, boot_id, is_owned, read_owner_file
from xaqueue.endpoint import is_url
from xaqueue.errors import DecisionLogDamaged, DecisionLogError, DecisionLogInUse, InvalidArgument
from xaqueue.tm.advice import LogStatus
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log import JOURNAL, DecisionLog, LogContent, read
from xaqueue.tm.records import NEW_NODE, NODE, Heuristic, InDoubtTransaction, in_doubt_transactions
from xaqueue.xa import Outcome

PARTICIPANTS = "participants.toml"
OPERATOR_LOG = "operators.log"
SLOTS = "slots"
READS = 10
"""So often it reads again where the owner was in the middle of something."""
_OWN = {LOCK, OWNER, NEW_OWNER, JOURNAL, NODE, NEW_NODE, PARTICIPANTS, f".{PARTICIPANTS}.new", OPERATOR_LOG, SLOTS}

_locks: weakref.WeakSet[OwnerFile] = weakref.WeakSet()
"""Of this process: a forked child keeps none of them from being free once it ends."""


def log_of_slot(path: str | os.PathLike[str], number: int) -> Path:
    """The directory of one process's log, of those that share a directory; there or not."""
    return Path(path, SLOTS, str(number)) if number else Path(path)


def is_slot(path: str | os.PathLike[str]) -> bool:
    """Whether it is named as one of those, and shares no directory itself."""
    root = Path(path).absolute()
    return root.parent.name == SLOTS and root.name.isdecimal() and (root.parent.parent / NODE).exists()


def every_log(path: str | os.PathLike[str]) -> list[Path]:
    """The directories of all logs that share this one, of which the first is itself. Raises OSError."""
    numbers = [0]
    with suppress(FileNotFoundError):
        numbers += sorted(int(name) for name in os.listdir(Path(path, SLOTS)) if name.isdecimal())  # noqa: PTH208
    return [log_of_slot(path, number) for number in numbers]


def open_log(path: str | os.PathLike[str]) -> DecisionLog:
    """Makes the directory where it is missing, takes its lock, and opens the log.

    Raises DecisionLogInUse, DecisionLogDamaged, DecisionLogError, InvalidArgument.
    """
    root, lock = Path(path), None
    try:
        _make(root)
        _check_own(root)
        lock = OwnerFile(root)
        _locks.add(lock)
        return _open(lock)
    except BaseException as error:
        if lock is not None:
            lock.release()
        if isinstance(error, OSError):
            raise DecisionLogError(
                f"{root} cannot be a decision log ({error}): mend that, or choose another"
            ) from error
        if isinstance(error, DecisionLogDamaged):
            raise DecisionLogDamaged(f"{root}: {error}") from error
        raise


def keep_participants(path: Path, document: str) -> None:
    """Writes ``participants.toml`` into the directory of a log that is to be made, durably, and before it.

    Raises DecisionLogError where it is another's directory, or cannot be written.
    """
    try:
        _make(path)
        _check_own(path)
        if (path / NODE).exists():
            raise DecisionLogError(f"{path} is the log of another transaction manager: choose another directory")
        with closing(DirectoryFileSystem(path)) as fs:
            replace_file(fs, PARTICIPANTS, document.encode())
    except OSError as error:
        raise DecisionLogError(f"{path} cannot be a decision log ({error}): choose another directory") from error


def _open(lock: OwnerFile) -> DecisionLog:
    """Says who the owner is before anything is changed, and again once it is known which node that is."""
    root = lock.root
    if not lock.acquire():
        raise DecisionLogInUse(f"{root} is in use by {_owner_of(lock)}: stop it, or give this one a log of its own")
    lock.read()  # which refuses a link
    if _is_copy(_last_opened(root), root):
        raise opened_elsewhere(root)
    fs = DirectoryFileSystem(root)
    try:
        lock.write(fs, _owner(lock, "", 0))
        log = DecisionLog(fs, owner=lock)
        lock.write(fs, _owner(lock, log.node, log.epoch))
    except BaseException:
        fs.close()
        raise
    return log


def _make(root: Path, modes: Modes = PRIVATE) -> None:
    """With all that leads to it, durably. It is private; what leads to it is as the umask has it."""
    if root.is_dir() and (modes is not PRIVATE or (root / NODE).exists()):
        return
    if is_url(str(root)):
        raise InvalidArgument(f"{root} is a URL, and a decision log is a directory of this machine: give its path")
    is_there, is_within = root.is_dir(), SLOTS in (root.name, root.parent.name)
    _make(root.parent, PRIVATE if is_within else BY_UMASK)
    with closing(DirectoryFileSystem(root.parent, modes=modes)) as fs:
        if not is_there:
            with suppress(FileExistsError):  # another process was faster
                fs.make_dir(root.name)
        with suppress(PermissionError) if is_there else nullcontext():
            fs.sync_dir("")  # also for who has made it, and may have been killed before this


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


def _owner(lock: OwnerFile, node: str, epoch: int) -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    fields = {"node": node, "epoch": epoch, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
    fields |= {"machine": _machine_id(), "boot": boot_id(), "lock": lock.locked}
    return json.dumps(fields).encode() + b"\n"


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def is_elsewhere(root: Path) -> bool | None:
    """Whether another host opened it last, or this is a copy of what was opened; None where it does not say.

    A device may have another number behind a boot, before which nobody of the same host has it open.
    """
    last = _last_opened(root)
    if last is None:
        return None
    if _is_copy(last, root):
        return True
    if last.boot and last.boot == boot_id():
        return bool(last.lock[0] != os.lstat(root / LOCK).st_dev)
    return not last.host[1] or last.host != (socket.gethostname(), _machine_id())


def take_over(path: str | os.PathLike[str]) -> None:
    """Has the logs of a directory belong here from now on, but those that somebody has open. For a person to call, who
    knows that nobody uses them where they were. Raises DecisionLogError."""
    for root in filter(is_elsewhere, every_log(path)):
        try:
            lock = OwnerFile(root)
            try:
                if lock.acquire():
                    was = json.loads(lock.read() or b"")
                    with closing(DirectoryFileSystem(root)) as fs:
                        lock.write(fs, _owner(lock, was["node"], was["epoch"]))
            finally:
                lock.release()
        except (OSError, ValueError, KeyError) as error:
            raise DecisionLogError(f"{root} cannot be taken over ({error}): mend that") from error


def opened_elsewhere(root: Path) -> DecisionLogError:
    """What is raised where its transaction manager may be at work elsewhere."""
    shared = root.parent.parent if is_slot(root) else root
    return DecisionLogError(
        f"{root} is a copy of a log, or another host had it open last: its transaction manager may be at work there, "
        "and commit what would be rolled back here. Use the one that is there; where that is gone for good, "
        f"`xaqueue tm recover --moved {shared}` takes this one over"
    )


class _LastOpened(NamedTuple):
    host: tuple[str, str]
    boot: str
    lock: tuple[int, int]


def _last_opened(root: Path) -> _LastOpened | None:
    """As ``owner`` says; None where it does not."""
    try:
        owner = json.loads(read_owner_file(root))
        device, inode = owner["lock"]
        return _LastOpened((owner["host"], owner["machine"]), owner["boot"], (device, inode))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_copy(last: _LastOpened | None, root: Path) -> bool:
    """Whether the lock is another file than then. It is the same one behind a boot and a rename, and on a volume or an
    NFS that another machine has now, where the lock itself keeps others out."""
    with suppress(OSError):
        return last is not None and last.lock[1] != os.lstat(root / LOCK).st_ino
    return True


# What an operator sees of it, while its owner is at work, and what operators forgot


@dataclass(frozen=True, slots=True)
class LogView(LogContent):
    """At one moment. Live transactions are not distinguished from those that wait for recovery."""

    root: Path
    in_use: bool
    """Whether a process has it open."""
    open: list[InDoubtTransaction]
    """Oldest first."""
    is_elsewhere: bool | None
    """Whether another host, or another directory of which this is a copy, may be in use; None where it cannot tell."""

    @property
    def use(self) -> str:
        """In words."""
        if self.in_use:
            return "in use"
        if self.is_elsewhere is None:
            return "not in use here; it does not say where it was opened, so ask where it belongs if this is a copy"
        return "opened elsewhere" if self.is_elsewhere else "not in use"

    def status(self, gtrid: Gtrid) -> LogStatus:
        """What it says of this transaction. Whether it was in use was asked before it was read: so where it was not,
        nobody who was at work then can decide any more."""
        if gtrid.node != self.node:
            return LogStatus.FOREIGN
        decision = self.table.decision_on(bytes(gtrid))
        if decision is not None:
            return LogStatus.COMMIT if decision is Outcome.COMMITTED else LogStatus.ROLLBACK
        if gtrid.epoch > self.epoch:
            return LogStatus.OLDER
        if self.table.lasts_of(bytes(gtrid)):
            return LogStatus.LAST
        if gtrid.epoch < self.epoch:
            return LogStatus.NONE
        if self.in_use:
            return LogStatus.LIVE
        return LogStatus.ELSEWHERE if self.is_elsewhere else LogStatus.NONE


def view_log(log_dir: str | os.PathLike[str]) -> LogView:
    """Changes nothing. Raises DecisionLogError where there is no log, DecisionLogDamaged."""
    root = Path(log_dir)
    for left in reversed(range(READS)):
        in_use, elsewhere = is_owned(root), is_elsewhere(root)
        try:
            with closing(DirectoryFileSystem(root)) as fs:
                content = read(fs)
            break
        except (OSError, DecisionLogDamaged) as error:
            if left and (in_use or is_owned(root) or isinstance(error, FileNotFoundError)) and root.is_dir():
                time.sleep(0.02)
            elif isinstance(error, DecisionLogDamaged):
                raise DecisionLogDamaged(f"{root}: {error}") from error
            else:
                raise DecisionLogError(
                    f"{root} cannot be read ({error}): name the directory of a decision log"
                ) from error
    if not content.node:
        raise DecisionLogError(f"{root} is no decision log: name the log_dir of a TransactionManager")
    table = content.table
    in_doubt = in_doubt_transactions(table.open.values(), table.heuristics.values())
    return LogView(content.node, content.epoch, table, root, in_use, in_doubt, elsewhere)


def view_logs(path: str | os.PathLike[str]) -> list[LogView]:
    """Of all that share a directory, with ``path`` first; without those in which nothing was made yet.

    Raises as ``view_log``, of the first that cannot be read.
    """
    return [view_log(root) for root in every_log(path) if root == Path(path) or (root / NODE).exists()]


@dataclass(frozen=True, slots=True)
class ForgottenHeuristic:
    """A line of operators.log: what a participant did by itself, and who ended its memory. Times are int us UTC."""

    gtrid: str
    participant: str
    decision: str
    party: str
    noticed_at: int
    detail: str
    forgotten_by: str
    forgotten_at: int
    forgotten_reason: str


def record_forgotten(fs: FileSystem, heuristics: Sequence[Heuristic], by: str, at_us: int, reason: str) -> None:
    """Adds the lines, durably. fs: the log's directory, whose lock the caller has. Raises DecisionLogError."""
    try:
        for noted in heuristics:
            did = noted.participant, noted.decision.value, noted.outcome.value, noted.when_us, noted.detail
            line = ForgottenHeuristic(noted.gtrid.decode("ascii"), *did, by, at_us, reason)
            append_log.append(fs, OPERATOR_LOG, line)
        fs.sync_file(OPERATOR_LOG)
        fs.sync_dir("")
    except OSError as error:
        raise DecisionLogError(
            f"{OPERATOR_LOG} cannot be written ({error}): nothing is forgotten, try again"
        ) from error


def read_forgotten(fs: FileSystem) -> list[ForgottenHeuristic]:
    """The heuristics that operators forgot, in their order; those that ``TransactionManager.forget`` ended are none."""
    return append_log.read(fs, OPERATOR_LOG, ForgottenHeuristic)


def _after_fork() -> None:
    for lock in list(_locks):
        lock.abandon()


os.register_at_fork(after_in_child=_after_fork)
