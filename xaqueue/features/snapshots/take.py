"""Taking a snapshot of an open space, while it works: a directory of the same format, as of one moment of its log.

What never changes in place gets one more name (a hard link), what does is copied. With a journal the directories are
linked while they follow it, and what the follower changes meanwhile is noted and linked again, until little is left;
that is done while nothing follows, and traffic goes on into the journal. So the snapshot is the space exactly at the
LSN to which the directories had come. Without a journal no step runs while names are linked: the snapshot is what a
kill would have left at that moment.

Crash safety: it is made under a name that starts with a dot, synced, and renamed. What a crash leaves is removed by the
next one. The space itself is only read.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from weakref import WeakSet
from zlib import crc32

from xaqueue.core.engine import redo
from xaqueue.core.engine.state import LOOK_S, Space
from xaqueue.core.model import layout, options
from xaqueue.core.storage.fs import NO_LINK, NO_ROOM, FileSystem, discard
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import NotSupportedError, OperationalError, RetryLater
from xaqueue.features.snapshots import manifest, store
from xaqueue.features.snapshots.below import Below
from xaqueue.features.snapshots.manifest import CHECKSUMS, MANIFEST, SNAPSHOTS, Manifest
from xaqueue.features.snapshots.options import policy_of
from xaqueue.features.streams.message_files import count_in
from xaqueue.features.streams.taken import TAKEN, read_taken, taken_directory
from xaqueue.snapshot import SnapshotStatus

_taking: WeakSet[Space] = WeakSet()
"""Of which one is being taken."""


def take(space: Space, *, is_held: bool = False) -> Manifest:
    """Takes one, in ``snapshots/``; is_held: see ``Manifest``.

    Raises RetryLater where there is no room, another is being taken, or the space is being closed; ResourceFailed, and
    OperationalError where the directory cannot be written.
    """
    if not space.fs.exists(layout.FORMAT):
        raise NotSupportedError("snapshots are taken of a space in a directory: this one has none")
    with space.lock:
        if space in _taking:
            raise RetryLater("a snapshot is being taken just now: try again when it is there")
        _taking.add(space)
    try:
        if space.shipping is None:
            space.wait_until_loaded()
        else:  # which may wait for the replica that begins with this snapshot
            while not space.shipping.is_whole.wait(LOOK_S):
                space.check()
        space.check()
        return _take(space, is_held)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise RetryLater(f"no room for a snapshot ({error.strerror}): free some, or remove an older one") from error
        raise OperationalError(f"no snapshot was taken: {error.filename or SNAPSHOTS}: {error.strerror}") from error
    finally:
        _taking.discard(space)


def take_and_keep(space: Space, prunes: bool = True) -> SnapshotStatus:
    """As ``take``. prunes: those go that are more than ``[snapshots] keep`` says, and what is kept of the journal for
    them; not where this one is held, and goes again itself."""
    taken = take(space, is_held=not prunes)
    store.keep(space.fs, policy_of(space.definitions).keep if prunes else 0, space.now_us())
    if prunes:
        store.prune_for(space.fs, space.definitions)
    return taken.status


def _take(space: Space, is_held: bool) -> Manifest:
    fs = space.fs
    if not fs.is_dir(SNAPSHOTS):
        fs.make_dir(SNAPSHOTS)  # on disk with all that is in it, before that has its name
    store.remove_unfinished(fs)
    number = store.next_number(fs)
    place = f"{SNAPSHOTS}/.{number}.{space.epoch}"
    links = _Links(fs, place, partial(_check, space))
    try:
        lsn = space.log.copy(links, space.settle)
        made = replace(_manifest(space, links, number, lsn), is_held=is_held)
        fs.create(f"{place}/{MANIFEST}", [manifest.encode(made)])
        space.sync_all()
        links.sync()
        space.check_owner()
        fs.rename(place, f"{SNAPSHOTS}/{number}")
        fs.sync_dir(SNAPSHOTS)
    except BaseException:
        with suppress(OSError):
            store.remove_tree(fs, place)
        raise
    return made


def _check(space: Space) -> None:
    space.check()
    if space.is_closing:
        raise RetryLater("the snapshot is given up: the space is being closed")


class _Links:
    """The names of a snapshot that is being made."""

    def __init__(self, fs: FileSystem, place: str, check: Callable[[], object]) -> None:
        """check: called now and then; raises where it is given up."""
        self.fs = fs
        self.place = place
        self.check = check
        self.copies: dict[str, int] = {}
        self._is_elsewhere = False
        """It is made on another file system, whose files are synced one by one."""
        self._made: set[str] = set()
        self._make_dir("")
        for directory in layout.directories():
            self._make_dir(directory)

    def changing(self) -> None:
        """All of every queue, but what is written in place; of its archive who took what."""
        own = {layout.GONE, *(kind.directory for kind in options.everything().kinds())}
        for name in self._names(layout.COMMITTED):
            if (queue := layout.parse_queue_directory(name)) is None:
                continue
            above = f"{layout.COMMITTED}/{name}"
            inner = [one for one in self._names(above) if one.startswith("range=") or one in own]
            for directory in (*(f"{above}/{one}" for one in inner), taken := taken_directory(queue)):
                if self.fs.is_dir(directory):
                    self.check()
                    self._make_dir(directory)
                    for file in self._names(directory):
                        if directory != taken or read_taken(self.fs, queue, f"{directory}/{file}"):
                            self._link(f"{directory}/{file}")

    def again(self, paths: Iterable[str]) -> None:
        """What stands at these is what is there now."""
        for path in paths:
            if path.startswith(layout.COMMITTED) or f"/{TAKEN}/" in path:
                discard(self.fs, f"{self.place}/{path}")
                self._make_dir(path.rpartition("/")[0])
                self._link(path)

    def sync(self) -> None:
        """What a sync of the space's file system leaves out."""
        if self._is_elsewhere:
            for path in (*self.copies, CHECKSUMS, MANIFEST):
                self.fs.sync_file(f"{self.place}/{path}")
            for directory in sorted(self._made, reverse=True):
                self.fs.sync_dir(f"{self.place}/{directory}".rstrip("/"))

    def rest(self) -> None:
        """While nothing changes."""
        for directory in layout.directories():
            for name in () if directory in (layout.ACTIVE, layout.COMMITTED) else self._names(directory):
                self._link(f"{directory}/{name}")
        for queue in self._names(layout.COMMITTED):
            if layout.parse_queue_directory(queue) is not None:
                self._make_dir(f"{layout.COMMITTED}/{queue}")
                self._copy(f"{layout.COMMITTED}/{queue}/.watermark")
        for path in manifest.copied():
            self._copy(path)

    def _names(self, directory: str) -> list[str]:
        try:
            return self.fs.list(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _make_dir(self, directory: str) -> None:
        if directory not in self._made:
            redo.make_dirs(self.fs, f"{self.place}/{directory}".rstrip("/"))
            self._made.add(directory)

    def _link(self, path: str) -> None:
        """It may be gone, and then is no part of it, as what is nothing of a space; a directory that changes may show a
        name twice."""
        if not manifest.is_copied(path):
            return
        if manifest.is_in_place(path):
            self._copy_block(path)
            return
        try:
            self.fs.link(path, f"{self.place}/{path}")
        except (FileNotFoundError, FileExistsError):
            return
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            self._is_elsewhere = self._is_elsewhere or error.errno == errno.EXDEV
            self._copy_block(path)

    def _copy_block(self, path: str) -> None:
        """Where links end, or would have what is written in place. A directory that stands where a file should is
        nothing of the space."""
        with suppress(FileNotFoundError, FileExistsError, IsADirectoryError):
            if not self.fs.is_dir(path):
                data, when_ns = self.fs.read(path), self.fs.modified_ns(path)
                self.fs.create(f"{self.place}/{path}", [data])
                self.fs.set_modified_ns(f"{self.place}/{path}", when_ns)
                if self._is_elsewhere:
                    self.fs.sync_file(f"{self.place}/{path}")

    def _copy(self, path: str) -> None:
        try:
            data = self.fs.read(path)
        except OSError as error:
            if error.errno in NO_FILE or isinstance(error, FileNotFoundError):
                return
            raise
        self.fs.create(f"{self.place}/{path}", [data])
        self.copies[path] = crc32(data)


def _manifest(space: Space, links: _Links, number: int, lsn: int) -> Manifest:
    """Of what is there now, with CHECKSUMS, which this makes."""
    fs, names = space.fs, manifest.files_below(space.fs, links.place)
    checksums = manifest.checksums_below(fs, links.place, names, links.check)
    fs.create(f"{links.place}/{CHECKSUMS}", [checksums])
    counts: dict[str, int] = {}
    highest: dict[str, int] = {}
    below = Below(fs, links.place)
    for path in names:
        found = layout.parse_path(path)
        if found is not None:
            queue, named = found
            counts[queue] = counts.get(queue, 0) + count_in(below, queue, named)
            highest[queue] = max(highest.get(queue, 0), named.last)
    queues: dict[str, tuple[int, int, int]] = {}
    for directory in fs.list(f"{links.place}/{layout.COMMITTED}"):
        name = layout.parse_queue_directory(directory)
        if name is not None:
            path = layout.watermark_path(name)
            mark = layout.parse_watermark(fs.read(f"{links.place}/{path}")) if path in links.copies else None
            published, reserved = mark or (0, 0)
            last = max(published, highest.get(name, 0))  # the watermark may be behind, or lost
            queues[name] = counts.get(name, 0), last, max(reserved, last)
    return Manifest(
        number=number,
        space=fs.read(layout.FORMAT).decode().strip(),
        taken_at=space.now_us(),
        sync=str(space.hardening),
        epoch=space.epoch,
        lsn=lsn,
        queues=queues,
        files=len(names),
        names=manifest.crc_of(names),
        copies=links.copies,
        journal=space.log.journal_epoch,
        checksums=crc32(checksums),
    )
