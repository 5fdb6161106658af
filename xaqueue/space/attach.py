"""A process owns a space's directory once, however many connections it opens, and no second process owns it with it.

Opening checks FORMAT before anything is written, takes the lock, counts the epoch up durably, and then recovers. A
child of a fork does not inherit the space: its copy is fenced before it can touch a file.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from xaqueue.command import FORMAT_VERSION
from xaqueue.errors import InvalidArgument, ResourceFailed, RetryLater, SpaceError, SpaceInUse
from xaqueue.space import definitions as definitions_of
from xaqueue.space import layout
from xaqueue.space.checkpointer import Checkpointer
from xaqueue.space.clearing import Clearer
from xaqueue.space.definitions import Definitions
from xaqueue.space.format import Format, boot_id, checked_name, read_format
from xaqueue.space.load import Progress
from xaqueue.space.room import with_reserve
from xaqueue.space.session import Session
from xaqueue.space.space import Space, wall_clock
from xaqueue.space.watchdog import Watchdog
from xaqueue.storage.flags import DEFAULT, Hardening
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.storage.lock import FileLock
from xaqueue.storage.scan import check_version
from xaqueue.storage.waiting import THREADS, Threads
from xaqueue.storage.watched import WatchedFileSystem
from xaqueue.storage.write_behind import Flusher

if TYPE_CHECKING:
    from xaqueue.space.watch import DefinitionsWatch

FLAGS_VARIABLE = "XAQUEUE_FLAGS"
LOCK_TRIES = 5
RECOVERING, READY, READ_ONLY = "recovering", "ready", "read-only"
"""States of an owner."""
NEW_QUEUES = """\
# The queues of this space. xaqueue(5) describes every key; changes take effect at once.
"""
ANY_QUEUE = """
[default]            # for queues that are not defined here; without this table they are refused
order = "fifo"       # fifo, lifo or priority
"""

log = logging.getLogger("xaqueue")
Background = Clearer | Flusher | Checkpointer


@dataclass(frozen=True, slots=True)
class Owner:
    """The content of the owner file: who has the space open, or had it last."""

    epoch: int
    host: str
    pid: int
    since: str
    sync: str
    recovery: str = ""
    endpoint: str = ""
    boot: str = ""
    """The boot of the host since which the directories are true, where only a journal makes them so after a crash."""
    state: str = ""
    """How far it is, as long as it holds the lock: "recovering", "ready", or "read-only"."""
    journalled: bool = False
    """Whether there is a journal since the last clean close, without which the directories are not to be trusted."""
    trouble: str = ""
    """Why it is fenced."""


@dataclass(slots=True)
class _Attached:
    space: Space
    lock: FileLock
    watch: DefinitionsWatch | None
    background: list[Background]
    watchdog: Watchdog | None
    owner: Owner
    users: int = 0


_attached: dict[Path, _Attached] = {}
_guards: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
_guards_guard = threading.Lock()


def _guard_of(root: Path) -> threading.Lock:
    """Held while this one space is opened or closed, which takes as long as its messages are many; others go on."""
    with _guards_guard:
        guard = _guards.get(root)
        if guard is None:
            guard = _guards[root] = threading.Lock()
        return guard


def create(
    path: str | os.PathLike[str], *, name: str | None = None, sync: str | None = None, any_queue: bool = False
) -> Format:
    """Makes a directory a queue space; one that is a space already is left as it is. Raises SpaceError.

    any_queue: whether its queues.toml gets a [default] template, so that undefined queues are taken too.
    """
    root = Path(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if (root / layout.FORMAT).exists():
            return read_format(root)
        foreign = [child.name for child in root.iterdir() if child.name not in layout.OWN_NAMES]
        if foreign:
            raise SpaceError(f"{root} holds other files ({foreign[0]} ...): choose an empty directory for a space")
        written = Format(FORMAT_VERSION, checked_name(name or root.resolve().name), str(uuid.uuid4()))
        for directory in layout.DIRECTORIES:
            (root / directory).mkdir(exist_ok=True)
        text = NEW_QUEUES + (ANY_QUEUE if any_queue else "")
        if sync is not None:
            text += f'\n[space]\nsync = "{Hardening.parse(sync)}"\n'
        _write_durably(root, layout.QUEUES, text)
        _write_durably(root, layout.FORMAT, f"xaqueue {written.version} {written.name} {written.id}\n")
    except OSError as error:
        raise SpaceError(f"{root} cannot be made a queue space: {error.strerror}") from error
    return written


def read_owner(path: str | os.PathLike[str]) -> Owner | None:
    """The space's present or last owner; None where that cannot be told."""
    try:
        return _parse_owner((Path(path) / layout.OWNER).read_bytes())
    except OSError:
        return None


def read_definitions(path: str | os.PathLike[str]) -> Definitions:
    """The definitions in the directory's queues.toml. Raises InvalidArgument; a missing file defines nothing."""
    try:
        return definitions_of.parse((Path(path) / layout.QUEUES).read_text("utf-8"))
    except FileNotFoundError:
        return Definitions()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"queues.toml cannot be read: {error}") from error


def is_owned(path: str | os.PathLike[str]) -> bool:
    """Whether some process has the space open now."""
    try:
        lock = FileLock(Path(path) / layout.OWNER, create=False)
    except OSError:
        return False
    try:
        return not lock.acquire(shared=True)  # two that look at once do not take each other for an owner
    finally:
        lock.release()


def attach(
    path: str | os.PathLike[str],
    *,
    create_missing: bool = False,
    sync: str | None = None,
    name: str | None = None,
    watch: bool = True,
    progress: Progress | None = None,
    environment: Mapping[str, str] = os.environ,
    waiting: Threads = THREADS,
    on_branches: Callable[[Space], object] = lambda _: None,
) -> Session:
    """A session with the space in this directory, which this process opens if it has not yet.

    sync: flags; without them XAQUEUE_FLAGS, then queues.toml, then the default hold. name: must be the space's, where
    given. watch: whether queues.toml is reloaded when it changes. waiting, on_branches: see ``Space``; where it is
    opened now. Closing the last session closes the space.
    Raises SpaceInUse, SpaceError, InvalidArgument.
    """
    root = Path(os.path.realpath(path))  # which raises nothing, whatever stands there
    guard = _guard_of(root)
    if create_missing:
        with guard:  # several threads may open it for the first time
            create(path, name=name, sync=sync, any_queue=True)
    found = read_format(path)
    if name is not None and name != found.name:
        raise SpaceError(f"{os.fspath(path)} is queue space {found.name!r}, not {name!r}")
    with guard:
        attached = _attached.get(root)
        if attached is not None and attached.space.barrier.failure is not None and not attached.users:
            del _attached[root]
            attached = None
        if attached is None:
            attached = _attached[root] = _open(root, sync, environment, watch, progress, waiting, on_branches)
        elif sync is not None and Hardening.parse(sync) != attached.space.hardening:
            raise InvalidArgument(f"the space is open with {attached.space.hardening} in this process, not {sync}")
        attached.users += 1
    return Session(attached.space, on_close=lambda: _detach(root, attached))


def _open(
    root: Path,
    sync: str | None,
    environment: Mapping[str, str],
    watch: bool,
    progress: Progress | None,
    waiting: Threads,
    on_branches: Callable[[Space], object],
) -> _Attached:
    definitions = read_definitions(root)
    asked = sync if sync is not None else environment.get(FLAGS_VARIABLE)
    hardening = Hardening.parse(asked) if asked is not None else definitions.sync or DEFAULT
    try:
        lock = FileLock(root / layout.OWNER)
    except OSError as error:
        raise SpaceError(f"{root} cannot be opened for writing: {error.strerror}") from error
    fs: DirectoryFileSystem | None = None
    try:
        before = _parse_owner(lock.read())
        if not _acquire(lock):
            raise _in_use(root, before)  # noqa: TRY301
        before = _parse_owner(lock.read())
        since = datetime.now(UTC).isoformat(timespec="seconds")
        epoch = before.epoch + 1 if before is not None else max(1, wall_clock() // 1_000_000 if lock.read() else 1)
        fs = DirectoryFileSystem(root, keep_unsynced=bool(hardening.content) and not hardening.journal)
        check_version(fs, layout.JOURNAL)
        behind = before.boot if before is not None else ""
        journalled = before is not None and before.journalled
        owner = Owner(epoch, socket.gethostname(), os.getpid(), since, str(hardening), journalled=journalled)
        boot = boot_id() if hardening.journal else ""
        lock.write(_format_owner(replace(owner, state=RECOVERING, boot=behind or boot)))
        watched = WatchedFileSystem(fs)
        files, room = with_reserve(watched, DirectoryFileSystem(root, keep_unsynced=False))
        space = Space(
            files,
            definitions,
            hardening=hardening,
            epoch=epoch,
            progress=progress,
            journalled=journalled,
            room=room,
            waiting=waiting,
            on_branches=on_branches,
        )
        files.recovering = False
        watchdog = None
        if space.read_only is None:
            lacking = room.restore(definitions)
            if lacking:
                log.warning("%s", lacking)
            owner = replace(owner, state=READY, boot=boot, journalled=hardening.journal)
        else:
            owner = replace(owner, state=READ_ONLY, boot=behind)
        owner = replace(owner, recovery=str(space.report))
        lock.write(_format_owner(owner))
        watching = _watch(root, space) if watch else None
        background = start_background(space)
        if space.read_only is None:
            watchdog = Watchdog(space, watched, lambda told: _tell_trouble(lock, owner, told))
    except BaseException as error:
        if fs is not None:
            fs.close()
        lock.release()
        if isinstance(error, OSError | ResourceFailed | RetryLater):
            raise SpaceError(f"{root} cannot be opened as a queue space: {error}") from error
        raise
    if space.read_only is None:
        log.info("space %s is open, epoch %d, sync %s: a commit %s", root, epoch, hardening, hardening.promise)
    return _Attached(space, lock, watching, background, watchdog, owner)


def start_background(space: Space) -> list[Background]:
    """The threads by which the directories follow: the journal, and what streams have consumed."""
    if space.read_only is not None:
        return []
    clearer = Clearer(space)
    if space.lag is None:
        return [clearer]
    checkpointer = Checkpointer(space)
    checkpointer.start()
    return [clearer, Flusher(space.lag, space.fence), checkpointer]


def _watch(root: Path, space: Space) -> DefinitionsWatch:
    """Its import costs as much as all others: it is for those who watch."""
    from xaqueue.space.watch import DefinitionsWatch

    return DefinitionsWatch(root, space)


def _detach(root: Path, attached: _Attached) -> None:
    with _guard_of(root):
        attached.users -= 1
        if attached.users:
            return
        if _attached.get(root) is attached:
            del _attached[root]
        if attached.watch is not None:
            attached.watch.stop()
        for thread in attached.background:
            thread.stop()
        try:
            if attached.space.close() and attached.owner.boot:
                attached.lock.write(_format_owner(replace(attached.owner, boot="", journalled=False)))
        finally:
            if attached.watchdog is not None:
                attached.watchdog.stop()
            attached.lock.release()


def announce(root: Path, endpoint: str) -> None:
    """Where the space, which this process has open, is served: commands that find it in use go there."""
    root = root.resolve()
    with _guard_of(root):
        attached = _attached[root]
        attached.owner = replace(attached.owner, endpoint=endpoint)
        attached.lock.write(_format_owner(attached.owner))


def _tell_trouble(lock: FileLock, owner: Owner, told: str) -> None:
    """Not durably: the disk may hang."""
    with suppress(OSError):
        lock.write(_format_owner(replace(owner, trouble=told)), durable=False)


def _acquire(lock: FileLock) -> bool:
    """Tries for a moment: a look at whether the space is owned holds the lock for an instant."""
    for _ in range(LOCK_TRIES):
        if lock.acquire():
            return True
        time.sleep(0.02)
    return False


def _in_use(root: Path, owner: Owner | None) -> SpaceInUse:
    who = f"process {owner.pid} on {owner.host} since {owner.since}" if owner else "another process"
    return SpaceInUse(f"{root} is in use by {who}: stop it, or send the work to it")


def _parse_owner(content: bytes) -> Owner | None:
    try:
        return Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _format_owner(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode() + b"\n"


def _write_durably(root: Path, name: str, text: str) -> None:
    fs = DirectoryFileSystem(root)
    temporary = f".{name}.new"
    if fs.exists(temporary):
        fs.unlink(temporary)
    try:
        fs.create(temporary, [text.encode()])
        fs.sync_file(temporary)
        fs.rename(temporary, name)
        fs.sync_dir("")
    finally:
        fs.close()


def write_definitions(path: str | os.PathLike[str], text: str) -> None:
    """Replaces queues.toml as a whole, durably. The caller has parsed ``text``."""
    _write_durably(Path(path), layout.QUEUES, text)


def _after_fork() -> None:
    """The child's copies of the parent's spaces are dead: their locks and files belong to the parent."""
    global _guards_guard
    _guards_guard = threading.Lock()
    _guards.clear()
    for attached in _attached.values():
        attached.space.abandon()
        attached.lock.abandon()
    _attached.clear()


os.register_at_fork(after_in_child=_after_fork)
