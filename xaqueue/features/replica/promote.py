"""A replica becomes the space: a new epoch, numbers that the former one cannot have used, and a word to that one.

    the directories follow all of the journal, on disk -> watermarks -> ``restored``, where the former one acknowledged
    what this one may lack -> the epoch, in ``owner`` -> ``replication`` says that it is promoted: from here on it opens

Crash safety: before the last step it is a replica as before, and the same command begins again.

Where steps waited for the replica, nothing that was acknowledged is missing. Else what was not shipped is: messages may
come twice, and whether a prepared branch was decided since only an operator can tell, as behind a restore.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from xaqueue.core.engine import redo
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed, ranges_in
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.format import read_format
from xaqueue.core.model.layout import LAST_SEQ, Watermark
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.core.owner.record import Owner, format_owner, read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, discard, replace_file
from xaqueue.core.storage.owner_file import is_owned
from xaqueue.endpoint import parse
from xaqueue.errors import Error, InvalidArgument, SpaceError
from xaqueue.features.replica import replicated
from xaqueue.features.replica.follower import owned
from xaqueue.features.replica.journal_copy import INCOMING, JournalCopy
from xaqueue.features.replica.options import policy_of
from xaqueue.features.replica.replicated import LAG, PROMOTED, REPLICA, Replicated
from xaqueue.features.snapshots import restore, restored
from xaqueue.features.snapshots.newer import branches_in
from xaqueue.features.snapshots.restore import JUMP
from xaqueue.features.snapshots.restored import RESTORED, Restored
from xaqueue.rpc.client.manager import RemoteManager, dialer, hello_of

EPOCHS = 1 << 16
"""So many epochs are passed over: more than the former one is opened before it hears of it. And some by chance, so that
two replicas of it that are both promoted never pass for one."""
STOP_S = 5.0
"""A replica that still follows is stopped, and killed where it has not ended by then."""
FRESH_US = 30_000_000
"""What a replica said of itself longer ago may be of a process that is no more."""
TELL_S = 1.0
"""Between two tries to reach the former one."""

log = logging.getLogger("xaqueue")


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a promotion did."""

    epoch: int
    lsn: int
    complete: bool
    """Whether all that the former one acknowledged is there, as long as it waited for this replica: who said "local"
    there while this one was away, or had another one acknowledge, knows of that alone."""
    branches: list[str]
    """In doubt, which an operator decides."""
    url: str
    """Of the former one, which is not to be served any more."""


def promote(root: Path, now_us: int) -> Promoted:
    """Raises SpaceError where the directory is no replica, SpaceInUse where another process has it, OSError."""
    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        if not restore.is_cut_off(fs):
            _check(root, fs)
        _stop(root, fs)
    with owned(root) as (fs, lock):
        if restore.is_cut_off(fs):  # a copy was being put in its place
            restore.finish(fs)
        found, before = _check(root, fs), read_owner(root)
        epoch = max(found.epoch, before.epoch if before is not None else 0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        here = Owner(epoch, socket.gethostname(), os.getpid(), since, "JOURNAL", space=read_format(root).line)
        return take_place(fs, here, now_us, usable_definitions(root)[0], partial(lock.write, fs))


def take_place(
    fs: FileSystem, here: Owner, now_us: int, defined: Definitions, write_owner: Callable[[bytes], object]
) -> Promoted:
    """Makes the replica of a port the space, which ``here`` had last. Raises SpaceError, OSError.

    Its epoch is beyond that of ``here`` and of the journal: a replica may have gone on with another source than it was
    copied from.
    """
    found = replicated.read(fs)
    assert found is not None
    copy = JournalCopy(fs, found.journal, found.lsn)
    copy.follow(everything=True)
    here = replace(here, epoch=max(here.epoch, copy.epoch) + EPOCHS + secrets.randbelow(16 * EPOCHS))
    is_complete = policy_of(defined).waits
    through, branches = _jump(fs, defined.queues), list[str]()
    if not is_complete:
        branches = sorted(map(str, branches_in(fs, layout.PREPARED)))
        before = restored.read(fs)
        names = sorted({*branches, *map(str, before.xids())})
        lives = before.lives if before.snapshot else here.space.split()[-1:]
        replace_file(fs, RESTORED, restored.encode(Restored(1, now_us, now_us, through, names, lives)))
    write_owner(format_owner(replace(here, journalled=copy.is_begun)))
    fs.sync_all()
    discard(fs, INCOMING)
    made = Replicated(PROMOTED, found.url, found.space, here.epoch + 1, copy.epoch, copy.lsn, now_us)
    replicated.write(fs, made)
    discard(fs, LAG)
    return Promoted(made.epoch, copy.lsn, is_complete, branches, found.url)


def _check(root: Path, fs: FileSystem) -> Replicated:
    found = replicated.read(fs)
    if found is None or found.role != REPLICA:
        what = "a space already" if (root / layout.FORMAT).exists() else "no space at all"
        if found is not None and found.role != PROMOTED:
            what = "a space that was replaced"
        raise SpaceError(f"{root} is no replica, it is {what}: only what `xaqueue replica` has copied is promoted")
    return found


def _stop(root: Path, fs: FileSystem) -> None:
    """Who follows there ends first, where it is on this host."""
    with suppress(OSError, ValueError, KeyError):
        said = json.loads(fs.read(LAG))
        is_here = said["host"] == socket.gethostname() and time.time_ns() // 1000 - said["at"] < FRESH_US
        for number in (signal.SIGTERM, signal.SIGKILL) if is_here else ():
            deadline = time.monotonic() + STOP_S
            if is_owned(root):
                os.kill(said["pid"], number)
            while is_owned(root) and time.monotonic() < deadline:
                time.sleep(0.02)


def _jump(fs: FileSystem, defined: Iterable[str]) -> dict[str, int]:
    """No number is given out here that the former one can have used, in queues of which nothing has come yet either;
    returns how far each queue goes."""
    through: dict[str, int] = {}
    there = {queue for name in listed(fs, layout.COMMITTED) if (queue := layout.parse_queue_directory(name))}
    for queue in sorted(there.union(defined)):
        path = layout.watermark_path(queue)
        redo.make_dirs(fs, path.rpartition("/")[0])
        data = fs.read(path, layout.WATERMARK_BYTES) if fs.exists(path) else b""
        published, reserved = layout.parse_watermark(data) or (0, 0)
        last = max([published, reserved, *(((number + 1) << layout.RANGE_BITS) for number in ranges_in(fs, queue))])
        mark = layout.format_watermark(Watermark(published, min(last + JUMP, LAST_SEQ - JUMP)))
        fs.write_at(path, 0, [mark])
        through[queue] = published
    return through


# The former one


def tell_former(root: Path, url: str, stopped: threading.Event) -> None:
    """Has the space that this one has replaced fenced, as soon as it answers. Runs in a thread of its own.

    url: where this one is served.
    """
    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        found = replicated.read(fs)
        if found is None or found.role != PROMOTED or found.is_done:
            return
        wait_s = 0.0
        while not stopped.wait(wait_s):
            wait_s = TELL_S
            if _tell(found, url):
                replicated.write(fs, replace(found, is_done=True))
                return


def _tell(found: Replicated, url: str) -> bool:
    """Whether it need not be told any more."""
    endpoint = parse(found.url)
    try:
        former = RemoteManager(dialer(endpoint), connect_s=0.0, hello=lambda: {**hello_of(endpoint), "replica": True})
        try:
            former.call("replaced", found.space, found.epoch, found.journal, found.lsn, url)
        finally:
            former.drop()
    except InvalidArgument as error:
        log.warning(
            "[former-unknown] who answers at %s is not the space that this one has replaced: %s", found.url, error
        )
        return True
    except Error as error:
        log.debug("[former-silent] the former space does not answer yet: %s", error)
        return False
    log.warning("[former-fenced] the space at %s is fenced: this one has replaced it", found.url)
    return True
