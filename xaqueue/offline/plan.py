"""What is mended in a space is a plan: what is wrong, what is done about it, and what is lost by that.

`check --repair`, `reconstruct`, `salvage-journal`, `restore` and `clean` each work on a ``Site``, which is a space and
nobody else's meanwhile. On a ``Rehearsal`` the same functions run with every change kept in memory: what they say
there is what they would do, and nothing of the space is changed, its lock neither.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple

from xaqueue.core.engine import quarantine
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.definitions import parse as parse_definitions
from xaqueue.core.model.format import VERSIONS, check_committed, parse, read_format
from xaqueue.core.owner.chores import NEVER, Chore
from xaqueue.core.owner.definitions_file import hardening_of, usable_definitions
from xaqueue.core.owner.open import Held, attach, is_owned, reason_of, refusal
from xaqueue.core.owner.record import (
    Owner,
    find_group,
    format_owner,
    in_use,
    open_to,
    parse_owner,
    read_owner,
)
from xaqueue.core.recovery.load import Progress
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.owner_file import LOCK, OWNER, OWNER_BYTES, OwnerFile, read_owner_file
from xaqueue.core.storage.reserve import Reserve
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.errors import InvalidArgument, ResourceFailed, SpaceError
from xaqueue.features.opening import Whole
from xaqueue.features.streams.cleanup import Clear
from xaqueue.offline.overlay import Overlay

MADE_AGAIN = "made again"
SET_ASIDE = "set aside"
BROUGHT_BACK = "brought back"
LEFT = "left"
GIVEN_UP = "given up"
KEPT = "kept"
REPLACED = "replaced"
REMOVED = "removed"

log = logging.getLogger("xaqueue")


class Item(NamedTuple):
    """``path`` is relative to the space. ``action``: what is done, or was, and ``how``. ``lost``: by that, in words."""

    path: str
    wrong: str
    action: str
    how: str = ""
    lost: str = ""

    def __str__(self) -> str:
        said = "; ".join(dict.fromkeys(filter(None, (self.how, self.wrong))))
        text = ": ".join(filter(None, (self.action, self.path, said)))
        return f"{text} (lost: {self.lost})" if self.lost else text


@dataclass(slots=True)
class Plan:
    """In the order in which it is done."""

    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else is to be said of it."""
    opened: str = ""
    """What the recovery reported that came with it, if one did."""
    back: dict[str, int] = field(default_factory=dict)
    """By queue, how many messages came back."""

    def set_aside(self, texts: Iterable[str]) -> None:
        """texts: paths with what is wrong, as a recovery has them."""
        for path, _, wrong in (text.partition(": ") for text in texts):
            lost = _lost_with(path, is_twice=quarantine.TWICE in wrong)
            self.items.append(Item(path, wrong, SET_ASIDE, lost=lost))

    def texts(self, action: str) -> list[str]:
        """Likewise, of what this is done to; or with how it is done."""
        return [f"{item.path}: {item.how or item.wrong}" for item in self.items if item.action == action]

    @property
    def repaired(self) -> dict[str, Any] | None:
        """For programs, what an open and a check came to."""
        if not self.opened:
            return None
        return {"recovery": self.opened, "moved": self.texts(SET_ASIDE), "notes": self.notes}

    def lines(self, *, is_dry: bool = False) -> Iterator[str]:
        """For people."""
        if is_dry:
            yield "nothing is changed; without --dry-run this is done:"
        yield from map(str, self.items)
        if self.opened:
            yield f"opened: {self.opened}"
        yield from self.notes
        for name, many in self.back.items():
            yield f"queue {name}: {counted(many, 'message')} back"

    def document(self, *, is_dry: bool = False) -> dict[str, Any]:
        """For programs."""
        return {"plan": [item._asdict() for item in self.items], "dry_run": is_dry}


def counted(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def when(time_us: int | None) -> str:
    """In UTC."""
    return datetime.fromtimestamp((time_us or 0) / 1e6, UTC).isoformat(timespec="seconds")


def _lost_with(path: str, *, is_twice: bool = False) -> str:
    """What a file takes with it that is read no more. is_twice: a message of it is there under another name."""
    found = layout.parse_path(path)
    if found is not None:
        return (
            f"up to {counted(found[1].count - is_twice, 'message')}"
            if found[1].is_block
            else ""
            if is_twice
            else "a message"
        )
    directory, _, name = path.rpartition("/")
    block = layout.parse_block(name) if directory == layout.PREPARED else None
    return f"a block of branch {block[0]}" if block else ""


class _AtTheEnd(Clear):
    """What was consumed or has expired stays: what is wrong in it is found, whenever it would have been cleared."""

    def left_s(self) -> float:
        return NEVER


class _Mended(Whole):
    def chores(self, space: Space, lasting: bool) -> Iterator[Chore]:
        yield _AtTheEnd(space)


MENDED = _Mended()


class Site:
    """The directory of a space, for who mends it. Every method raises SpaceInUse, SpaceError, InvalidArgument."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.root = Path(path)
        self._lock: OwnerFile | None = None

    def __fspath__(self) -> str:
        return os.fspath(self.root)

    def files(self) -> FileSystem:
        """To look at, and to change with the lock held. The caller closes it."""
        return DirectoryFileSystem(self.root, keep_unsynced=False)

    def owner(self) -> Owner | None:
        """The last one, or the present one."""
        return read_owner(self.root)

    @contextmanager
    def opened(self, progress: Progress | None = None) -> Iterator[Session]:
        with closing(attach(self.root, features=MENDED, watch=False, progress=progress)) as session:
            yield session

    @contextmanager
    def held(self, *, keep_unsynced: bool = False) -> Iterator[FileSystem]:
        """Its files, with the lock, while it is not opened. keep_unsynced: as of ``DirectoryFileSystem``."""
        self._lock = lock = OwnerFile(self.root)
        try:
            if not lock.hold():
                raise in_use(self.root, read_owner(self.root), alone=True)
            group = None
            with suppress(InvalidArgument):
                group = find_group(usable_definitions(self.root)[0].readers)
            modes = open_to(self.root, group)
            with closing(DirectoryFileSystem(self.root, keep_unsynced=keep_unsynced, modes=modes)) as fs:
                yield fs
        finally:
            lock.release()

    def write_owner(self, fs: FileSystem, owner: Owner) -> None:
        """What the next one believes, while it is held."""
        assert self._lock is not None
        self._lock.write(fs, format_owner(owner))


class Rehearsal(Site):
    """The same, with every change kept in memory. Its thread logs nothing meanwhile."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        below = DirectoryFileSystem(self.root, keep_unsynced=False)
        self._fs = Overlay(below, self._may_change, f"{self.root}/")

    def files(self) -> FileSystem:
        return self._fs

    def owner(self) -> Owner | None:
        with suppress(OSError):
            return parse_owner(self._fs.read(OWNER, OWNER_BYTES))
        return None

    @contextmanager
    def opened(self, progress: Progress | None = None) -> Iterator[Session]:
        """As by ``open.attach``."""
        try:
            _check_lock(self.root)
        except OSError as error:
            raise SpaceError(f"{self.root} cannot be opened for writing: {reason_of(error)}") from error
        with self._unchanged():
            if not self._may_change(""):
                raise SpaceError(f"{self.root} cannot be opened as a queue space: its directory cannot be written to")
            try:
                held = self._recovered(progress)
            except OSError as error:
                raise (refusal(self.root, error) or error) from error
            space = held.space
            try:
                yield Session(space)
                for chore in MENDED.chores(space, lasting=False):
                    chore.finish()
                held.close()
            finally:
                space.log.end(ResourceFailed("the rehearsal is over"))

    def _may_change(self, path: str) -> bool:
        mode = os.W_OK | os.X_OK if (self.root / path).is_dir() else os.W_OK
        return os.access(self.root / path, mode, effective_ids=True)

    def _recovered(self, progress: Progress | None) -> Held:
        root, fs, found = self.root, self._fs, None
        with suppress(OSError):  # it may have been made here
            found = parse(fs.read(layout.FORMAT).decode("utf-8", "replace"))
        if found is None or found.version not in VERSIONS:
            found = read_format(root)
        definitions = self._definitions()
        hardening = hardening_of(None, definitions)
        definitions.check_sync(hardening)
        MENDED.check(root, definitions, hardening, THREADS)
        if not fs.is_dir(layout.COMMITTED):
            check_committed(root, was_in_use=self.owner() is not None)
        held = Held(fs, _NoLock(root, fs), Reserve(fs, layout.RESERVE), is_memory=True)
        small = replace(definitions, journal_segment_bytes=SMALLEST_SEGMENT_BYTES)  # they are in memory
        held.recover(found, small, hardening, MENDED, progress=progress)
        return held

    def _definitions(self) -> Definitions:
        with suppress(OSError, UnicodeDecodeError, InvalidArgument):
            found = parse_definitions(self._fs.read(layout.QUEUES).decode())
            find_group(found.readers)
            return found
        return usable_definitions(self.root, lambda asked: find_group(asked.readers))[0]

    @contextmanager
    def held(self, *, keep_unsynced: bool = False) -> Iterator[FileSystem]:
        _check_lock(self.root)
        self._lock = _NoLock(self.root, self._fs)
        with self._unchanged():
            yield self._fs

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Whoever opens it meanwhile changes what is looked at: then nothing is foretold."""
        before = read_owner(self.root)
        for is_begun in (False, True):
            if is_owned(self.root) or read_owner(self.root) != before:
                raise in_use(self.root, read_owner(self.root), alone=True)
            if not is_begun:
                with _quiet():
                    yield


class _NoLock(OwnerFile):
    """Keeps nobody away, and what is written to the file owner stays in memory."""

    def __init__(self, root: Path, fs: FileSystem) -> None:
        self.root = root
        self._fs = fs

    def read(self) -> bytes | None:
        with suppress(FileNotFoundError):
            read_owner_file(self.root)  # which says what else stands there
            return self._fs.read(OWNER, OWNER_BYTES)
        return None

    def write(self, fs: FileSystem, content: bytes, *, durable: bool = True) -> None:
        replace_file(fs, OWNER, content, durable=durable)

    def lost(self) -> str:
        return ""


def site_of(place: Site | str | os.PathLike[str], *, is_dry: bool = False) -> Site:
    if isinstance(place, Site):
        return place
    return Rehearsal(place) if is_dry else Site(place)


@contextmanager
def _quiet() -> Iterator[None]:
    """What this thread logs is not so."""
    me = get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != me

    log.addFilter(is_of_another)
    try:
        yield
    finally:
        log.removeFilter(is_of_another)


def _check_lock(root: Path) -> None:
    """Raises OSError where nobody could have the directory, as ``FileLock`` does, and makes nothing."""
    path = root / LOCK
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return
    if not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(root))
