"""A process owns a space's directory once, however many connections it opens, and no second process owns it with it.

Opening checks FORMAT before anything is written, takes the lock, counts the epoch up durably, and then recovers. A
child of a fork does not inherit the space: its copy is fenced before it can touch a file.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from xaqueue.core.engine.disk_space import RoomLimit
from xaqueue.core.engine.features import Features, Guard
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import layout
from xaqueue.core.model.block import FORMAT_VERSION
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.format import Format, check_committed, check_new, checked_name, read_format
from xaqueue.core.model.record_kinds import RecordKinds
from xaqueue.core.owner.chores import Chores, begin
from xaqueue.core.owner.definitions_file import hardening_of, keep_good, usable_definitions, write_durably
from xaqueue.core.owner.definitions_file import read_definitions as read_definitions
from xaqueue.core.owner.record import (
    READ_ONLY,
    READY,
    Owner,
    find_group,
    format_owner,
    in_use,
    is_suspect,
    next_owner,
    open_to,
    read_owner,
    write_owner,
)
from xaqueue.core.owner.threads import Checkpoints, Follower, TimeLimits, Watchdog
from xaqueue.core.recovery.load import Progress
from xaqueue.core.recovery.recover import open_space
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import NOTHING, Hardening
from xaqueue.core.storage.journal_files import headers
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.core.storage.modes import PRIVATE, Modes
from xaqueue.core.storage.mounts import trouble_of
from xaqueue.core.storage.owner_file import OwnerFile, boot_id
from xaqueue.core.storage.owner_file import is_owned as is_owned
from xaqueue.core.storage.reserve import Reserve
from xaqueue.core.storage.scheduling import THREADS, Threads
from xaqueue.errors import Error, InvalidArgument, ResourceFailed, RetryLater, SpaceError

if TYPE_CHECKING:
    from xaqueue.core.owner.watches import DefinitionsWatch

NEW_QUEUES = """\
# The queues of this space. xaqueue(5) describes every key; changes take effect at once.
"""
ANY_QUEUE = """
[default]            # for queues that are not defined here; without this table they are refused
order = "fifo"       # fifo, lifo or priority
"""

Background = Chores | Follower


@dataclass(slots=True)
class Held:
    """A directory that this process has: the port to it, its lock, what is kept for want of room. And once it is
    recovered, which is done once, the space in it.
    """

    port: FileSystem
    lock: OwnerFile
    reserve: Reserve
    guard: Guard = field(default_factory=Guard)
    modes: Modes = PRIVATE
    is_memory: bool = False
    """What is written there goes with this process, and nothing is written anew to be sure of it."""
    files: OwnerFileSystem = field(init=False)
    owner: Owner = field(init=False)
    space: Space = field(init=False)

    def recover(
        self, found: Format, definitions: Definitions, hardening: Hardening, features: Features, **options: Any
    ) -> None:
        """Makes the file owner this process's, and opens the space. options, and what it raises: ``open_space``."""
        below = features.begin(self.port)
        content, has_journal = self.lock.read(), self.port.is_dir(layout.JOURNAL)
        owner = next_owner(content, found, hardening, has_journal, beats=self.guard.beats)
        self.owner = owner = replace(owner, epoch=max(owner.epoch, below + 1))  # also without the file owner
        boot = boot_id() if hardening.journal else ""
        self.files = OwnerFileSystem(self.port, self.reserve)
        room = RoomLimit(self.files, self.reserve, self.files.unreserved())
        self.lock.write(self.files, format_owner(replace(owner, boot=owner.boot or boot)))
        self.guard.begin(owner.epoch, self.modes)
        self.space = space = open_space(
            self.files,
            definitions,
            hardening=hardening,
            epoch=owner.epoch,
            journalled=owner.journalled,
            suspect=is_suspect(content, has_journal) and not self.is_memory,
            is_shared=self.guard.beats,
            room=room,
            lost=self.lock.lost,
            space_id=found.id,
            features=features,
            **options,
        )
        self.files.recovered()
        self.guard.recovered(space)
        report = str(space.report)
        if space.read_only is None:
            if lacking := room.restore(definitions):
                log.warning("[reserve-short] %s", lacking)
            self.say(state=READY, boot=boot, journalled=hardening.journal, awaited=False, recovery=report)
        else:
            self.say(state=READ_ONLY, awaited=False, recovery=report)
        space.report.fenced_at = owner.fenced_at

    def say(self, *, durable: bool = True, **changes: Any) -> None:
        """In the file owner."""
        self.owner = replace(self.owner, **changes)
        write_owner(self.files, self.lock, self.owner, durable=durable)

    def say_trouble(self, reason: str) -> None:
        """Not durably: the disk may hang. One that a power loss leaves empty is taken for the worst."""
        with suppress(OSError, ResourceFailed):
            self.say(durable=False, trouble=reason, fenced_at=time.time_ns() // 1000)

    def close(self) -> None:
        if self.space.close():
            self.space.features.closed(self.space)
            self.say(boot="", journalled=False, unclosed="")


@dataclass(slots=True)
class _Attached:
    held: Held
    watch: DefinitionsWatch | None
    background: list[Background]
    watchdog: Watchdog | None
    users: int = 0

    @property
    def space(self) -> Space:
        return self.held.space


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
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    sync: str | None = None,
    any_queue: bool = False,
    kinds: RecordKinds = (),
) -> Format:
    """Makes a directory a queue space; one that is a space already is left as it is. Raises SpaceError,
    and InvalidArgument before anything is made.

    any_queue: whether its queues.toml gets a [default] template, so that undefined queues are taken too. kinds: of what
    its features keep in it.
    """
    root, wanted = Path(path), Hardening.parse(sync) if sync is not None else None
    try:
        root.mkdir(PRIVATE.directory, parents=True, exist_ok=True)
        if os.path.lexists(root / layout.FORMAT):
            return read_format(root)
        check_new(root)
        foreign = [child.name for child in root.iterdir() if child.name not in layout.own_names()]
        if foreign:
            raise SpaceError(f"{root} holds other files ({foreign[0]} ...): choose an empty directory for a space")
        written = Format(FORMAT_VERSION, checked_name(name or root.resolve().name), str(uuid.uuid4()))
        with closing(DirectoryFileSystem(root)) as files:
            for directory in layout.directories():
                if not files.is_dir(directory):
                    files.make_dir(directory)
            _define(root, wanted, any_queue)
            for kind in kinds:
                kind.made(files, time.time_ns() // 1000)
        write_durably(root, layout.FORMAT, f"{written.line}\n")
    except (FileExistsError, NotADirectoryError) as error:
        raise SpaceError(f"{root} cannot be made a queue space: {error.filename} is a file, and no directory") from None
    except OSError as error:
        raise SpaceError(f"{root} cannot be made a queue space: {error.strerror}") from error
    return written


def _define(root: Path, wanted: Hardening | None, any_queue: bool) -> None:
    """Its first queues.toml; one that is there stays."""
    if os.path.lexists(root / layout.QUEUES):
        if wanted is not None and read_definitions(root).sync != wanted:
            raise SpaceError(
                f'{root / layout.QUEUES} is there already and says nothing of sync = "{wanted}": write it into its '
                "[space] table, or leave the flags out"
            )
        return
    level = f'\n[space]\nsync = "{wanted}"\n' if wanted is not None else ""
    write_durably(root, layout.QUEUES, NEW_QUEUES + (ANY_QUEUE if any_queue else "") + level)


def attach(
    path: str | os.PathLike[str],
    *,
    features: Features,
    create_missing: bool = False,
    sync: str | None = None,
    name: str | None = None,
    watch: bool = True,
    progress: Progress | None = None,
    waiting: Threads = THREADS,
    on_branches: Callable[[Space], object] = lambda _: None,
    lock: OwnerFile | None = None,
) -> Session:
    """A session with the space in this directory, which this process opens if it has not yet.

    features: what is attached to it. sync: flags; see ``hardening_of``. name: must be the space's, where given. watch:
    whether queues.toml is reloaded when it changes. waiting, on_branches: see ``Space``; where it is opened now. lock:
    that ``standby.wait`` has taken: other standbys may take over from this owner. Closing the last session closes it.
    Raises SpaceInUse, SpaceError, InvalidArgument; with ``lock`` ResourceFailed once another one has taken over.
    """
    root = Path(os.path.realpath(path))  # which raises nothing, whatever stands there
    guard = _guard_of(root)
    if create_missing:
        with guard:  # several threads may open it for the first time
            create(path, name=name, sync=sync, any_queue=True, kinds=features.kinds)
    found = read_format(path)
    if name is not None and name != found.name:
        raise SpaceError(f"{os.fspath(path)} is queue space {found.name!r}, not {name!r}")
    with guard:
        attached = _attached.get(root)
        if attached is not None and attached.space.failure is not None and not attached.users:
            del _attached[root]
            attached = None
        if attached is None:
            attached = _attached[root] = _open(root, found, features, sync, watch, progress, waiting, on_branches, lock)
        elif sync is not None and Hardening.parse(sync) != attached.space.hardening:
            raise InvalidArgument(f"the space is open with {attached.space.hardening} in this process, not {sync}")
        attached.users += 1
    return Session(attached.space, on_close=lambda: _detach(root, attached))


def _open(
    root: Path,
    found: Format,
    features: Features,
    sync: str | None,
    watch: bool,
    progress: Progress | None,
    waiting: Threads,
    on_branches: Callable[[Space], object],
    taken: OwnerFile | None = None,
) -> _Attached:
    def check(asked: Definitions) -> None:
        find_group(asked.readers)
        hardening = hardening_of(sync, asked)
        features.check(root, asked.check_sync(hardening), hardening, waiting)

    definitions, wrong = usable_definitions(root, check)
    hardening = hardening_of(sync, definitions)
    try:
        lock = taken or OwnerFile(root)
    except OSError as error:
        raise SpaceError(f"{root} cannot be opened for writing: {reason_of(error)}") from error
    fs: DirectoryFileSystem | None = None
    try:
        guard = features.guard(root, lock, hardening, is_taken=taken is not None)
        if taken is None and not lock.acquire():
            raise in_use(root, read_owner(root))  # noqa: TRY301
        found = read_format(root)  # again: a restore may have been at it until now
        modes = open_to(root, find_group(definitions.readers))
        fs = DirectoryFileSystem(root, keep_unsynced=bool(hardening.content) and not hardening.journal, modes=modes)
        check_committed(root, was_in_use=read_owner(root) is not None)
        headers(fs, layout.JOURNAL)  # which refuses those of a newer xaqueue
        port = guard.port(fs)  # before anything else is read
        reserve = Reserve(DirectoryFileSystem(root, keep_unsynced=False, modes=modes), layout.RESERVE)
        held = Held(port, lock, reserve, guard, modes)
        held.recover(
            found,
            definitions,
            hardening,
            features,
            progress=progress,
            waiting=waiting,
            on_branches=on_branches,
            reread=lambda: usable_definitions(root, check)[0],
        )
        space, watchdog = held.space, None
        space.definer = features.definer(root, space)
        watching = _watch(root, space) if watch else None
        background = start_background(space, lasting=watch)
        if space.read_only is None:
            keep_good(root, wrong)
            watchdog = Watchdog(space, held.files, held.say_trouble)
    except BaseException as error:
        refused = refusal(root, error, taken)
        if fs is not None:
            guard.stop()
            fs.close()
        lock.release()
        if refused is not None:
            raise refused from error
        raise
    if space.read_only is None:
        if trouble := trouble_of(str(root), is_durable=hardening != NOTHING):
            log.warning("[mount-unsafe] %s", trouble)
        promise = hardening.promise
        log.info("[space-open] space %s is open, epoch %d, sync %s: a commit %s", root, space.epoch, hardening, promise)
    return _Attached(held, watching, background, watchdog)


def refusal(root: Path, error: BaseException, taken: OwnerFile | None = None) -> Error | None:
    """What the open ends with in the place of this; taken: a standby's lock, which another one may have taken over."""
    if taken is not None and isinstance(error, Error | OSError) and (lost := taken.lost()):
        return ResourceFailed(f"{root} was taken over while it was opened: {lost}")
    if not isinstance(error, OSError | ResourceFailed | RetryLater):
        return None
    is_known = isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.EACCES, errno.EINVAL)
    reason = reason_of(error) if is_known and isinstance(error, OSError) else error
    return SpaceError(f"{root} cannot be opened as a queue space: {reason}")


def start_background(space: Space, *, lasting: bool = False) -> list[Background]:
    """What is done beside the sessions: the directories follow the journal, late branches end where no server sees to
    it, and the features' chores. lasting: it is to be open for long."""
    if space.read_only is not None:
        return []
    own = [Checkpoints(space)] if space.waiting.is_served else [Checkpoints(space), TimeLimits(space)]
    found = list[Background](begin(space, [*own, *space.features.chores(space, lasting)]))
    if space.log.follows:
        space.wakes.pending = follower = Follower(space.log, space.fence)
        follower.wake()  # for what came meanwhile
        found.append(follower)
    return found


def _watch(root: Path, space: Space) -> DefinitionsWatch:
    """Its import costs as much as all others: it is for those who watch."""
    from xaqueue.core.owner.watches import DefinitionsWatch

    return DefinitionsWatch(root, space)


def _detach(root: Path, attached: _Attached) -> None:
    with _guard_of(root):
        attached.users -= 1
        if attached.users:
            return
        if _attached.get(root) is attached:
            del _attached[root]
        try:
            if attached.watch is not None:
                attached.watch.stop()
            space = attached.space
            space.is_closing = True
            for thread in attached.background:
                thread.stop()
            attached.held.close()
        finally:
            attached.space.log.end(ResourceFailed("the space is closed"))  # a thread may be at work, if interrupted
            attached.held.files.close()
            attached.held.guard.stop()
            if attached.watchdog is not None:
                attached.watchdog.stop()
            attached.held.lock.release()


def announce(root: Path, endpoint: str, *, awaited: bool = False) -> None:
    """Where the space, which this process has open, is served. awaited: who finds it gone waits for it."""
    root = root.resolve()
    with _guard_of(root):
        _attached[root].held.say(endpoint=endpoint, awaited=awaited)


def reason_of(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return f"{error.filename} is a symbolic link: put a file in its place"
    if error.errno == errno.EACCES:
        return f"{error.filename} {error.strerror}: run this as the user that the space belongs to"
    if error.errno in (errno.EINVAL, errno.EISDIR):
        return f"{error.filename} {error.strerror}. Move what stands there away, or put the file back"
    return error.strerror or str(error)


def is_attached(path: str | os.PathLike[str]) -> bool:
    """Whether this process has the space open."""
    return Path(path).resolve() in _attached


def _after_fork() -> None:
    """The child's copies of the parent's spaces are dead: their locks and files belong to the parent."""
    global _guards_guard
    _guards_guard = threading.Lock()
    _guards.clear()
    for attached in _attached.values():
        attached.space.abandon()
        attached.held.lock.abandon()
    _attached.clear()


os.register_at_fork(after_in_child=_after_fork)
