"""A process owns a space's directory once, however many connections it opens, and no second process owns it with it.

Opening checks FORMAT before anything is written, takes the lock, counts the epoch up durably, and then recovers. A
child of a fork does not inherit the space: its copy is fenced before it can touch a file.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakValueDictionary

from xaqueue.errors import InvalidArgument, ResourceFailed, RetryLater, SpaceError, SpaceInUse
from xaqueue.space.engine.cleanup import Clearer
from xaqueue.space.engine.disk_space import RoomLimit
from xaqueue.space.engine.follower import Follower
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space, wall_clock
from xaqueue.space.model import definitions as definitions_of
from xaqueue.space.model import layout
from xaqueue.space.model.block import FORMAT_VERSION
from xaqueue.space.model.definitions import Definitions
from xaqueue.space.model.format import Format, check_new, checked_name, read_format
from xaqueue.space.model.group import find_group, open_to
from xaqueue.space.owner.checkpointer import Checkpointer
from xaqueue.space.owner.io_watchdog import Watchdog
from xaqueue.space.recovery.load import Progress
from xaqueue.space.recovery.recover import open_space
from xaqueue.storage.fs import NO_ROOM, DirectoryFileSystem
from xaqueue.storage.hardening import DEFAULT, Hardening
from xaqueue.storage.journal_reader import check_version
from xaqueue.storage.layers import OwnerFileSystem
from xaqueue.storage.modes import PRIVATE
from xaqueue.storage.owner_file import OwnerFile, boot_id, boot_to_close, read_owner_file
from xaqueue.storage.owner_file import is_owned as is_owned
from xaqueue.storage.reserve import Reserve
from xaqueue.storage.scheduling import THREADS, Threads

if TYPE_CHECKING:
    from xaqueue.space.owner.reload import DefinitionsWatch

FLAGS_VARIABLE = "XAQUEUE_FLAGS"
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
Background = Clearer | Follower | Checkpointer


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
    space: str = ""
    """The line of FORMAT, should that get lost."""
    unclosed: str = ""
    """The boot in which it was opened, until it is closed well; see ``boot_to_close``."""

    @classmethod
    def of(cls, given: Any) -> Owner:
        """From its fields; others, of a later version, are passed over. Raises TypeError, ValueError."""
        owner = cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})
        if any(type(getattr(owner, name)) is not int for name in ("epoch", "pid")):
            raise ValueError("epoch and pid are numbers")
        return owner


@dataclass(slots=True)
class _Attached:
    space: Space
    files: OwnerFileSystem
    lock: OwnerFile
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
        root.mkdir(PRIVATE.directory, parents=True, exist_ok=True)
        if os.path.lexists(root / layout.FORMAT):
            return read_format(root)
        check_new(root)
        foreign = [child.name for child in root.iterdir() if child.name not in layout.OWN_NAMES]
        if foreign:
            raise SpaceError(f"{root} holds other files ({foreign[0]} ...): choose an empty directory for a space")
        written = Format(FORMAT_VERSION, checked_name(name or root.resolve().name), str(uuid.uuid4()))
        files = DirectoryFileSystem(root)
        for directory in layout.DIRECTORIES:
            if not files.is_dir(directory):
                files.make_dir(directory)
        _define(root, sync, any_queue)
        _write_durably(root, layout.FORMAT, f"{written.line}\n")
    except OSError as error:
        raise SpaceError(f"{root} cannot be made a queue space: {error.strerror}") from error
    return written


def _define(root: Path, sync: str | None, any_queue: bool) -> None:
    """Its first queues.toml; one that is there stays."""
    wanted = Hardening.parse(sync) if sync is not None else None
    if os.path.lexists(root / layout.QUEUES):
        if wanted is not None and read_definitions(root).sync != wanted:
            raise SpaceError(
                f'{root / layout.QUEUES} is there already and says nothing of sync = "{wanted}": write it into its '
                "[space] table, or leave the flags out"
            )
        return
    text = NEW_QUEUES + (ANY_QUEUE if any_queue else "")
    if wanted is not None:
        text += f'\n[space]\nsync = "{wanted}"\n'
    _write_durably(root, layout.QUEUES, text)


def read_owner(path: str | os.PathLike[str]) -> Owner | None:
    """The space's present or last owner; None where that cannot be told."""
    try:
        return _parse_owner(read_owner_file(path))
    except OSError:
        return None


def read_definitions(path: str | os.PathLike[str]) -> Definitions:
    """The definitions in the directory's queues.toml. Raises InvalidArgument; a missing file defines nothing."""
    try:
        return definitions_of.parse(definitions_of.read(path))
    except FileNotFoundError:
        return Definitions()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"queues.toml cannot be read: {error}") from error


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
        if attached is not None and attached.space.failure is not None and not attached.users:
            del _attached[root]
            attached = None
        if attached is None:
            attached = _attached[root] = _open(root, found, sync, environment, watch, progress, waiting, on_branches)
        elif sync is not None and Hardening.parse(sync) != attached.space.hardening:
            raise InvalidArgument(f"the space is open with {attached.space.hardening} in this process, not {sync}")
        attached.users += 1
    return Session(attached.space, on_close=lambda: _detach(root, attached))


def _open(
    root: Path,
    found: Format,
    sync: str | None,
    environment: Mapping[str, str],
    watch: bool,
    progress: Progress | None,
    waiting: Threads,
    on_branches: Callable[[Space], object],
) -> _Attached:
    definitions = read_definitions(root)
    group = find_group(definitions.group)
    asked = sync if sync is not None else environment.get(FLAGS_VARIABLE)
    hardening = Hardening.parse(asked) if asked is not None else definitions.sync or DEFAULT
    try:
        lock = OwnerFile(root)
    except OSError as error:
        raise SpaceError(f"{root} cannot be opened for writing: {_reason(error)}") from error
    fs: DirectoryFileSystem | None = None
    try:
        if not lock.acquire():
            raise _in_use(root, read_owner(root))  # noqa: TRY301
        modes = open_to(root, group)
        fs = DirectoryFileSystem(root, keep_unsynced=bool(hardening.content) and not hardening.journal, modes=modes)
        check_version(fs, layout.JOURNAL)
        content, has_journal = lock.read(), fs.is_dir(layout.JOURNAL)
        owner, suspect = _next_owner(content, found, hardening, has_journal), _is_suspect(content, has_journal)
        behind, epoch = owner.boot, owner.epoch
        boot = boot_id() if hardening.journal else ""
        reserve = Reserve(DirectoryFileSystem(root, keep_unsynced=False, modes=modes), layout.RESERVE)
        files = OwnerFileSystem(fs, reserve)
        room = RoomLimit(files, reserve, files.unreserved())
        lock.write(files, _format_owner(replace(owner, boot=behind or boot)))
        space = open_space(
            files,
            definitions,
            hardening=hardening,
            epoch=epoch,
            progress=progress,
            journalled=owner.journalled,
            suspect=suspect,
            room=room,
            waiting=waiting,
            on_branches=on_branches,
            lost=lock.lost,
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
        _write_owner(files, lock, owner)
        watching = _watch(root, space) if watch else None
        background = start_background(space)
        if space.read_only is None:
            watchdog = Watchdog(space, files, lambda told: _tell_trouble(files, lock, owner, told))
    except BaseException as error:
        if fs is not None:
            fs.close()
        lock.release()
        if isinstance(error, OSError | ResourceFailed | RetryLater):
            reason = (
                _reason(error) if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.EACCES) else error
            )
            raise SpaceError(f"{root} cannot be opened as a queue space: {reason}") from error
        raise
    if space.read_only is None:
        log.info("space %s is open, epoch %d, sync %s: a commit %s", root, epoch, hardening, hardening.promise)
    return _Attached(space, files, lock, watching, background, watchdog, owner)


def start_background(space: Space) -> list[Background]:
    """The threads by which the directories follow: the journal, and what streams have consumed."""
    if space.read_only is not None:
        return []
    log = space.journal_log
    if log is None:
        return [Clearer(space)]
    return [Clearer(space), Follower(log, space.fence), Checkpointer(space, log)]


def _watch(root: Path, space: Space) -> DefinitionsWatch:
    """Its import costs as much as all others: it is for those who watch."""
    from xaqueue.space.owner.reload import DefinitionsWatch

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
            if attached.space.close():
                closed = replace(attached.owner, boot="", journalled=False, unclosed="")
                _write_owner(attached.files, attached.lock, closed)
        finally:
            attached.files.close()
            if attached.watchdog is not None:
                attached.watchdog.stop()
            attached.lock.release()


def announce(root: Path, endpoint: str) -> None:
    """Where the space, which this process has open, is served: commands that find it in use go there."""
    root = root.resolve()
    with _guard_of(root):
        attached = _attached[root]
        attached.owner = replace(attached.owner, endpoint=endpoint)
        _write_owner(attached.files, attached.lock, attached.owner)


def _tell_trouble(files: OwnerFileSystem, lock: OwnerFile, owner: Owner, told: str) -> None:
    """Not durably: the disk may hang. One that a power loss leaves empty is taken for the worst."""
    with suppress(OSError, ResourceFailed):
        _write_owner(files, lock, replace(owner, trouble=told), durable=False)


def _write_owner(files: OwnerFileSystem, lock: OwnerFile, owner: Owner, *, durable: bool = True) -> None:
    """All but the first, which makes it this process's. Without any room it says what it said. Raises OSError."""

    def write() -> None:
        lock.write(files, _format_owner(owner), durable=durable)

    try:
        try:
            write()
        except OSError as error:
            if files.reserve is None:
                raise
            files.reserve.again(error, write)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        log.warning("no room to write %s: %s", layout.OWNER, error.strerror)


def _next_owner(content: bytes | None, found: Format, hardening: Hardening, has_journal: bool) -> Owner:
    """Who opens the space, after whoever ``content`` names. ``boot``: why the directories may be behind.

    Where that cannot be read, the epoch is above any that can have been used, and the journal is believed to count.
    """
    before = _parse_owner(content or b"")
    if before is not None:
        epoch, boot, journalled = before.epoch + 1, before.boot, before.journalled
    elif content is not None or has_journal:
        epoch, boot, journalled = wall_clock() // 1_000_000, "unknown" if has_journal else "", has_journal
    else:
        epoch, boot, journalled = 1, "", False
    return Owner(
        epoch,
        socket.gethostname(),
        os.getpid(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        str(hardening),
        boot=boot,
        state=RECOVERING,
        journalled=journalled,
        space=found.line,
        unclosed=boot_to_close(),
    )


def _is_suspect(content: bytes | None, has_journal: bool) -> bool:
    """Whether what is read of the space may be in memory only; where nobody tells, it may."""
    before = _parse_owner(content or b"")
    if before is None:
        return content is not None or has_journal
    return before.unclosed == boot_to_close()


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return f"{error.filename} is a symbolic link: put a file in its place"
    if error.errno == errno.EACCES:
        return f"{error.filename} {error.strerror}: run this as the user that the space belongs to"
    return f"{error.filename} {error.strerror}" if error.errno == errno.EINVAL else error.strerror or str(error)


def is_attached(path: str | os.PathLike[str]) -> bool:
    """Whether this process has the space open."""
    return Path(path).resolve() in _attached


def _in_use(root: Path, owner: Owner | None) -> SpaceInUse:
    who = f"process {owner.pid} on {owner.host} since {owner.since}" if owner else "another process"
    if owner is not None and owner.endpoint:
        return SpaceInUse(f"{root} is in use by {who}, which serves it: connect to {owner.endpoint}")
    url = f"xaq+unix://{quote(str(root / layout.SOCKET))}"
    return SpaceInUse(
        f"{root} is in use by {who}: stop it, or let all share a server, `xaqueue serve --space {root}`, and connect "
        f"to {url}"
    )


def _parse_owner(content: bytes) -> Owner | None:
    try:
        return Owner.of(json.loads(content))
    except (ValueError, TypeError):
        return None


def _format_owner(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode() + b"\n"


def _write_durably(root: Path, name: str, text: str) -> None:
    """What is replaced hands on whose it is and who may read it."""
    fs = DirectoryFileSystem(root)
    temporary = f".{name}.new"
    if fs.exists(temporary):
        fs.unlink(temporary)
    try:
        fs.create(temporary, [text.encode()])
        with suppress(FileNotFoundError):
            before = (root / name).stat()
            with suppress(PermissionError):
                os.chown(root / temporary, before.st_uid, before.st_gid)
            (root / temporary).chmod(stat.S_IMODE(before.st_mode))
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
