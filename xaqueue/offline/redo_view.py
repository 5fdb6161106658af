"""The directories as the journal says that they are to be, for those who look without owning: nothing is changed.

A step is durable, and its caller told, once its record is in the journal; the directories follow up to 100 ms behind,
or after a kill with the next open. So whoever looks reads the journal first and the directories after it, and puts
above these what the records say: what a replay would make of every path that they name.

Beside an owner at work that is true of the moment when the journal was read: what came into the directories since is
seen, too, and a file that has moved on since is looked for in the places that it moves through, or is gone.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xaqueue.core.engine import redo
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode_head
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.change import Content, Moved, final_states, highest_numbers, is_valid, ops_of
from xaqueue.core.model.format import read_format
from xaqueue.core.model.layout import JOURNAL, Watermark
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import Owner, read_owner
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_format import Record, parse_name
from xaqueue.core.storage.journal_reader import Found, look
from xaqueue.core.storage.layers import ReadOnlyFileSystem
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import JournalDamaged, SpaceError
from xaqueue.offline.journal_remains import read_readable
from xaqueue.offline.reader import watermark_in

TRIES = 40
PAUSE_S = 0.005
"""A segment that is being written, or renamed, may look damaged: what is so stays so, and an owner at work goes on."""

WRITING_S = 0.02
"""How long an owner may take to write a small file that is seen to be short."""

FOLLOW_S = {True: 10.0, False: 1.0}
"""For how long directories may be behind the journal that an owner is at work on, by its lock, which another machine
may not see; else it hangs, or there is none."""

log = logging.getLogger("xaqueue")


@dataclass(frozen=True, slots=True)
class JournalRead:
    """What a look at a journal found: all that a replay needs, or what is wrong and the records that can be read."""

    found: Found | None
    records: Sequence[Record] = ()
    damage: str = ""


def read_journal(fs: FileSystem, owner: Owner | None, owned: bool) -> JournalRead:
    """Reads the journal, also while its owner writes, uses segments again and makes checkpoints.

    Raises SpaceError for a newer format, and where it never stands still enough to be read.
    """
    used = owner is not None and owner.journalled
    if not used and not fs.is_dir(JOURNAL):
        return JournalRead(None)
    before = ""
    for _ in range(TRIES):
        try:
            found = look(fs, JOURNAL, is_valid, used=used)
            return JournalRead(found, found.records)
        except JournalDamaged as damage:
            if not owned or str(damage) == before:
                return JournalRead(None, read_readable(fs, JOURNAL, is_valid).records, str(damage))
            before = str(damage)
        except FileNotFoundError:
            before = ""
        time.sleep(PAUSE_S)
    raise SpaceError(f"{JOURNAL}/ changes faster than it can be read: try again")


class RedoView(ReadOnlyFileSystem):
    """The port over a space's directories, with the records of its journal above them."""

    def __init__(self, fs: FileSystem, records: Sequence[Record], *, files_first: bool = False) -> None:
        """files_first: a file that is there is read as it is, for who wants to know whether it is sound."""
        super().__init__(fs)
        self._files_first = files_first
        self.show(records)
        self.read = self._read
        self.size = self._size
        self.modified_ns = self._modified_ns
        self.list = self._list
        self.is_dir = self._is_dir
        self.exists = self._exists

    def show(self, records: Sequence[Record]) -> None:
        """Takes these records instead."""
        self._last = final_states(ops_of(record) for record in records)
        self._marked = {layout.watermark_path(queue): seq for queue, seq in highest_numbers(records).items()}
        self._children: dict[str, dict[str, str]] = {}
        """By directory and name, the paths that the records name or imply in it."""
        for path in (*self._last, *self._marked):
            if self._last.get(path, path) is not None:
                self._add(path)

    def _add(self, path: str) -> None:
        while path:
            directory, _, name = path.rpartition("/")
            children = self._children.setdefault(directory, {})
            if name in children:
                return
            children[name] = path
            path = directory

    def _read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        if path in self._marked:
            return self._watermark(path, self._marked[path])[offset:][:size]
        if path not in self._last:
            return self._fs.read(path, size, offset)
        last = self._last[path]
        if isinstance(last, Content) and not self._files_first:
            return b"".join(last.chunks)[offset:][:size]
        for place in self._places(path, last):
            try:
                return self._fs.read(place, size, offset)
            except FileNotFoundError:
                continue
        if isinstance(last, Content):
            return b"".join(last.chunks)[:size]
        raise FileNotFoundError(path)

    def _places(self, path: str, last: Content | Moved | None) -> tuple[str, ...]:
        """Where it may stand, in the end and on its way there: twice in the end, where it may come meanwhile.

        Another branch of its name may have a file in prepared/: the way there comes first, and a message's own file.
        """
        if last is None:
            return ()
        before = last.places if isinstance(last, Moved) else ()
        if path.startswith(layout.PREPARED):
            return (*before, path)
        if isinstance(last, Moved) and not self._fs.exists(path) and (place := redo.place_of(self._fs, path, last)):
            before = (place, *before)
        return (path, *before, path)

    def _place(self, path: str) -> str | None:
        """Where the file stands; None where it is gone, or in the journal only."""
        if path not in self._last:
            return path
        return next((place for place in self._places(path, self._last[path]) if self._fs.exists(place)), None)

    def _content(self, path: str) -> Sequence[bytes | memoryview] | None:
        last = self._last.get(path)
        return last.chunks if isinstance(last, Content) else None

    def _size(self, path: str) -> int:
        content = self._content(path)
        if path in self._marked or (content is not None and not self._files_first):
            return len(self._read(path))
        place = self._place(path)
        if place is not None:
            return self._fs.size(place)
        return len(self._read(path))

    def _modified_ns(self, path: str) -> int:
        last = self._last.get(path)
        if last is not None and last.when_us:
            return last.when_us * 1000
        place = self._place(path)
        if place is not None and place not in self._marked:
            try:
                return self._fs.modified_ns(place)
            except OSError as error:
                if last is None or error.errno not in NO_FILE | {errno.ENOENT}:
                    raise
        if not isinstance(last, Content):
            raise FileNotFoundError(path)
        written_us = decode_head(last.head).properties.enqueued_at
        return written_us * 1000 if written_us else self._journal_ns()

    def _journal_ns(self) -> int:
        """When the journal was last written to: about the time of what is in no directory yet."""
        return max(of_those_there(self._fs.modified_ns, segments_in(self._fs)), default=time.time_ns())

    def _list(self, path: str) -> list[str]:
        children = self._children.get(path, {})
        try:
            names = self._fs.list(path)
        except FileNotFoundError:
            if not children:
                raise
            names = []
        start = f"{path}/" if path else ""
        there = [name for name in names if name not in children and self._last.get(start + name, True) is not None]
        return there + [name for name, child in children.items() if self._exists(child)]

    def _is_dir(self, path: str) -> bool:
        return path in self._children or self._fs.is_dir(path)

    def _exists(self, path: str) -> bool:
        if path in self._children or path in self._marked or self._content(path) is not None:
            return True
        place = self._place(path)
        return place is not None and self._fs.exists(place)

    def _watermark(self, path: str, seq: int) -> bytes:
        """As a replay and what follows it would leave it: nothing that the journal has seen is above it."""
        try:
            data = self._fs.read(path, layout.WATERMARK_BYTES + 1)
        except FileNotFoundError:
            data = b""
        watermark = layout.parse_watermark(data)
        if watermark is None and data.strip(b"\0"):
            return data
        published, reserved = watermark or (0, 0)
        return layout.format_watermark(Watermark(max(published, seq), max(reserved, seq)))


def of_those_there(ask: Callable[[str], int], paths: Iterable[str | None]) -> Iterator[int]:
    """What is asked of each of these files; others have moved on, or are foreign."""
    for path in filter(None, paths):
        try:
            yield ask(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, *NO_FILE):
                raise


def segments_in(fs: FileSystem) -> list[str]:
    """The paths of all segments."""
    return [f"{JOURNAL}/{name}" for name in listed(fs, JOURNAL) if parse_name(name) is not None]


@dataclass(frozen=True, slots=True)
class SpaceView:
    """A space as whoever does not own it sees it: its directories, with what the journal is ahead of them."""

    path: str
    fs: FileSystem
    owner: Owner | None
    owned: bool
    journal: JournalRead

    def again(self) -> FileSystem:
        """The same at a later moment, for what looks wrong and may only have been on its way."""
        if self.owned:
            time.sleep(WRITING_S)
        return _look_into(self.path).fs


def wait_followed(path: str | os.PathLike[str], is_wanted: Callable[[str], bool]) -> dict[str, SpaceError]:
    """Returns once the directories have each message of these queues that the journal has now: whoever committed it was
    told so. What is wrong with those that do not get it, by queue. Raises SpaceError where it is no space.
    """
    there = highest_numbers(_look_into(path).journal.records)
    numbers = {queue: number for queue, number in there.items() if is_wanted(queue)}
    fs, begun = DirectoryFileSystem(Path(path), keep_unsynced=False), time.monotonic()
    while True:
        owned = is_owned(path)
        late = [queue for queue, number in numbers.items() if (watermark_in(fs, queue) or 0) < number]
        if not late or time.monotonic() - begun > FOLLOW_S[owned]:
            why = "its owner does not follow: see its log" if owned else "nobody has it open: open it once"
            text = f"of {path} has messages in the journal alone, and {why}"
            return {queue: SpaceError(f"queue {queue} {text}") for queue in late}
        time.sleep(PAUSE_S)


def look_into(path: str | os.PathLike[str]) -> SpaceView:
    """Reads the journal of a space, and nothing of its directories yet.

    A damaged journal is complained of, and what can be read of it is taken. Raises SpaceError where it is no space.
    """
    looked = _look_into(path)
    if looked.journal.damage:
        log.warning(
            "[journal-damaged] %s. What is shown may lack what was prepared or committed", looked.journal.damage
        )
    return looked


def _look_into(path: str | os.PathLike[str]) -> SpaceView:
    read_format(path)
    owner, owned = read_owner(path), is_owned(path)
    fs = DirectoryFileSystem(Path(path), keep_unsynced=False)
    seen = read_journal(fs, owner, owned)
    return SpaceView(os.fspath(path), RedoView(fs, seen.records) if seen.records else fs, owner, owned, seen)
