"""Lists all committed messages into the queues' indexes: their names say all that decides their turn.

No message is read, but for those that branches in doubt name, which are to be whole. What the files of all others hold
is checked when they are dequeued; a name that is none of a message is quarantined here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from xaqueue.core.engine import many, quarantine
from xaqueue.core.engine.quarantine import TWICE
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout, records
from xaqueue.core.model.block import (
    HEAD_READ_BYTES,
    Head,
    Listed,
    check_message,
    decode,
    decode_head,
    unpack_list,
    verify,
)
from xaqueue.core.model.block_files import damage_of, listed, read_checked, read_gone, read_table
from xaqueue.core.model.entry import Entry, Retry
from xaqueue.core.model.layout import COMMITTED, RANGE_BITS, Watermark
from xaqueue.core.model.message_block import Table
from xaqueue.core.model.message_name import BLOCK_ID_DIGITS, ID_DIGITS, PLAIN_NAME, Named, parse, parse_any, parse_plain
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import FileSystem, discard, is_damage
from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.message import MessageId

SetAside = Callable[[str, str], object]
"""Quarantines a path for a reason."""
Harden = Callable[[Sequence[str]], None]
Progress = Callable[[int, int], None]
"""Called with messages found and, about, messages there, now and then."""


def read_head(fs: FileSystem, path: str) -> Head:
    """The head of a block whose file is as long as it must be. Raises DamagedBlock also for a file nobody can read."""
    try:
        data = fs.read(path, HEAD_READ_BYTES)
        head = decode_head(data)
        if len(data) < HEAD_READ_BYTES:
            verify(head, data)
        elif fs.size(path) != head.size_bytes:
            raise DamagedBlock(f"{fs.size(path):,} bytes instead of {head.size_bytes:,}: truncated or overwritten")
    except OSError as error:
        raise damage_of(fs, path, error) from error
    return head


def read_list(fs: FileSystem, path: str) -> list[Listed]:
    """What a branch block lists. Raises DamagedBlock as ``read_head`` does."""
    return unpack_list(decode(read_checked(fs, path)).body)


class Load:
    """The messages of all queues. First those that branches name are placed, and then all others are loaded.

    Between the two, and while the others are loaded, branches in doubt may be committed and rolled back: they touch
    only messages that were placed, and give out numbers above all that are found.
    """

    def __init__(
        self, space: Space, set_aside: SetAside, note: Callable[[str], object], harden: Harden = lambda _: None
    ) -> None:
        """Finds the queues, their ranges and their numbers; of the messages it reads none. harden: what these files
        hold is on disk, and their names."""
        self._space = space
        self._set_aside = set_aside
        self._harden = harden
        self._bitmaps: list[str] = []
        """Those that were read, and may be in memory only."""
        queues = _queues(space, set_aside)
        self._found = [(queue, _ranges(space.fs, queue.name, set_aside)) for queue in queues]
        self._begun: dict[str, _Loading] = {}
        self._retries: dict[str, dict[records.Place, Retry]] = {}
        """By queue, of the messages that are not loaded yet."""
        self.highest: dict[str, int] = {}
        """The highest number in each queue, before others used what was placed."""
        for queue, ranges in self._found:
            last, when_us = _newest(space.fs, queue.name, ranges)
            space.last_commit_us = max(space.last_commit_us, when_us)
            used = bool(ranges) or queue.enqueued > 0
            queue.found(ranges, last, _watermark(space, queue, used, set_aside, note))
            self._retries[queue.name] = records.read_retries(space.fs, queue.name, set_aside)

    def place(self, wanted: Mapping[str, Collection[MessageId]]) -> None:
        """Loads these messages, by queue, as far as they are there."""
        for queue, ranges in self._found:
            if queue.name in wanted:
                loading = self._begun[queue.name] = self._load(queue)
                loading.place(ranges, {message_id.hex() for message_id in wanted[queue.name]})

    def is_placed(self) -> None:
        """From here on others may use what was placed."""
        for queue in self._space.queues.values():
            self.highest[queue.name] = queue.last
            if queue.name in self._begun:
                self._begun[queue.name].go_on()

    def rest(self, progress: Progress | None) -> None:
        """Loads all others. In memory are the names of one range directory at a time; so how many there are to be is
        an estimate.
        """
        left = sum(len(ranges) for _, ranges in self._found)
        read = done = 0
        doubled: list[tuple[Queue, Entry]] = []
        for queue, ranges in self._found:
            loading = self._begun.pop(queue.name, None) or self._load(queue)
            for number in ranges:
                done += loading.load_range(number)
                read, left = read + 1, left - 1
                if progress is not None:
                    progress(done, done + left * done // read)
            doubled += [(queue, entry) for entry in loading.doubled]
        if self._space.read_only is None:
            self.harden_bitmaps()
            self._set_aside_doubled(doubled)
            for queue, _ in self._found:
                for seq, message_id in self._retries[queue.name]:  # of messages that are gone
                    discard(self._space.fs, layout.retry_path(queue.name, seq, message_id))
                self._clear_gone(queue)

    def harden_bitmaps(self) -> None:
        """What was found to be gone of blocks is so for good, before anybody relies on it: where that is overwritten in
        place, a kill leaves it in memory only."""
        if self._bitmaps and not self._space.log.is_atomic:
            self._harden(self._bitmaps)
        self._bitmaps.clear()

    def _set_aside_doubled(self, doubled: Sequence[tuple[Queue, Entry]]) -> None:
        """Each leaves its block, which stays; without room the next open does it. Not where a stream has consumed some
        of that: its bitmap would say so, and what is consumed may be kept."""
        for queue, entry in doubled:
            block = queue.block_of(entry.seq)
            if block is None or (queue.keeper is not None and block.named.first <= queue.consumed_through):
                continue
            why = f"message {entry.message_id.hex()} {TWICE}; the earlier one is kept"
            with suppress(RetryLater):
                if many.set_aside(self._space, queue, entry, why, is_whole=True):
                    with self._space.lock:
                        block.left -= 1
                        if not block.left:
                            queue.forget_block(block)

    def _clear_gone(self, queue: Queue) -> None:
        """Bitmaps of blocks that are gone go; of what a stream has consumed they are cleared with the blocks. That of a
        block in quarantine goes there: what was gone is not to come back with it."""
        directory = f"{layout.queue_path(queue.name)}/{layout.GONE}"
        for name in listed(self._space.fs, directory):
            place = layout.parse_message(name)
            if place is None:
                self._set_aside(f"{directory}/{name}", "no bitmap of a block: its name is not <seq>.<message id>")
            elif place[0] > queue.consumed_through and queue.block_of(place[0]) is None:
                if quarantine.has_message(self._space.fs, queue.name, place[1], place[0]):
                    self._set_aside(f"{directory}/{name}", "what is gone of a block that was set aside")
                else:
                    discard(self._space.fs, f"{directory}/{name}")

    def _load(self, queue: Queue) -> _Loading:
        return _Loading(self._space, queue, self._retries[queue.name], self._set_aside, self._bitmaps)


class _Loading:
    """One queue's messages, by their names."""

    def __init__(
        self,
        space: Space,
        queue: Queue,
        retries: dict[records.Place, Retry],
        set_aside: SetAside,
        bitmaps: list[str],
    ) -> None:
        """bitmaps: gets those that say something."""
        self._fs = space.fs
        self._lock = space.lock
        self._queue = queue
        self._retries = retries
        self._set_aside = set_aside
        self._bitmaps = bitmaps
        self._last = -1
        """The number of the message that was added last."""
        self._placed: dict[MessageId, int] = {}
        """The numbers of those that were in the index before all others are loaded."""
        self._taken: frozenset[int] = frozenset()
        """The same numbers."""
        self._shared: frozenset[int] = frozenset()
        """Their ranges."""
        self._tried = {f"{seq:016x}.{message_id.hex()}" for seq, message_id in retries}
        self._begin = (queue.consumed_through + 1) >> RANGE_BITS
        """The first range that a stream has not consumed wholly."""
        self._highest = ""
        """Numbers above that of this name are of messages that are committed while the others are loaded."""
        self._marked: frozenset[str] | None = None
        """The names of bitmaps, once a block was found: what others take since is of blocks that are here."""
        self.doubled: list[Entry] = []
        """Messages in a block whose ids earlier ones of the queue have: nobody gets them, and they are set aside once
        all is loaded. Until then they are there, and no bitmap says otherwise."""

    def place(self, ranges: Sequence[int], wanted: Collection[str]) -> None:
        """Adds the messages of these ids, in hex, as far as they are whole."""
        for number in ranges:
            directory = layout.range_path(self._queue.name, number << RANGE_BITS)
            names = self._names(directory)
            self._add_blocks(number, directory, [name for name in names if name[BLOCK_ID_DIGITS] in wanted])
            named = [name for name in names if name[ID_DIGITS] in wanted]
            self._add_each(number, directory, [name for name in named if self._is_whole(f"{directory}/{name}")])

    def _is_whole(self, path: str) -> bool:
        """Whether its head can be read, and is that of the message. What is not is set aside; other names pass."""
        parsed = layout.parse_message(path.rpartition("/")[2])
        if parsed is None:
            return True
        try:
            check_message(read_head(self._fs, path), self._queue.name, parsed[1])
        except DamagedBlock as damage:
            self._set_aside(path, str(damage))
            return False
        except FileNotFoundError:
            return False
        return True

    def go_on(self) -> None:
        """All that is loaded from here on is beside what was placed, which others use."""
        self._placed = {entry.message_id: entry.seq for entry in self._queue.index.entries(0)}
        self._taken = frozenset(self._placed.values())
        self._shared = frozenset(seq >> RANGE_BITS for seq in self._taken)
        self._highest, self._last = f"{self._queue.last:016x}.~", -1

    def load_range(self, number: int) -> int:
        """Adds the messages of a range directory; returns how many names it has."""
        directory = layout.range_path(self._queue.name, number << RANGE_BITS)
        try:
            names = self._names(directory) if number >= self._begin else []
        except FileNotFoundError:
            return 0  # a branch in doubt took the last one
        singles = self._add_blocks(number, directory, names) if any("+" in name for name in names) else names
        others = self._add_plain(number, singles) if singles else []
        self._add_each(number, directory, others)
        return len(names)

    def _add_blocks(self, number: int, directory: str, names: Sequence[str]) -> list[str]:
        """Adds the messages of the blocks among these; returns all other names."""
        others, above = [], -1
        for name in names:
            named = parse_any(name)
            if named is None or named.first >> RANGE_BITS != number:
                others.append(name)
            elif named.first <= above:
                self._set_aside(f"{directory}/{name}", "its numbers are those of another block, which is kept")
            elif named.is_block:
                is_new = name <= (self._highest or name) and self._queue.block_of(named.first) is None
                if not is_new or self._add_block(f"{directory}/{name}", named):
                    above = named.last
            else:
                others.append(name)
        return others

    def _add_block(self, path: str, named: Named) -> bool:
        """What is gone of it is read first: it goes after that. Whether it can be read."""
        queue, consumed = self._queue, self._queue.consumed_through
        gone, bitmap = 0, layout.gone_path(queue.name, named)
        if self._marked is None:
            self._marked = frozenset(listed(self._fs, bitmap[: -PLAIN_NAME - 1]))
        try:
            if bitmap[-PLAIN_NAME:] in self._marked:
                gone = read_gone(self._fs, queue.name, named)
        except DamagedBlock as damage:
            why = f"what is gone of a block: {damage}; all of that is back"
            self._set_aside(bitmap, why)
        try:
            table = read_table(self._fs, queue.name, named)
        except FileNotFoundError:
            return False
        except DamagedBlock as damage:
            self._set_aside(path, str(damage))
            return False
        ids, left = table.message_ids(), table.left(gone, max(consumed + 1 - named.first, 0))
        there = ids if len(left) == len(ids) else [ids[index] for index in left]
        known = 0 if there is ids else (1 << named.count) - 1 - sum(1 << index for index in left)
        if len(set(there)) < len(there) or queue.index.has_any(there):
            left = self._without_doubled(table, named, left)
        if gone:
            self._bitmaps.append(bitmap)
        with self._lock:
            block, whole = queue.block(named, known), len(left) == named.count
            block.held, block.has_bitmap = table.held, bool(gone)
            queue.add_block(block)
            queue.holds(named.first >> RANGE_BITS, len(left))
            if whole and table.is_plain and not self._tried:
                queue.index.add_plain(range(named.first, named.last + 1), ids)
                return True
            for index in left:
                seq = named.first + index
                retry = self._retries.pop((seq, ids[index]), None)
                queue.index.add(Entry(seq, ids[index], table.tags_of(index), retry))
        return True

    def _without_doubled(self, table: Table, named: Named, left: Sequence[int]) -> list[int]:
        """Those of which no earlier message of the queue, or of the block, has the id; notes the others."""
        seen, kept = set[MessageId](), list[int]()
        for index in left:
            message_id = table.message_id(index)
            if message_id in seen or message_id in self._queue.index:
                self.doubled.append(Entry(named.first + index, message_id, table.tags_of(index)))
            else:
                seen.add(message_id)
                kept.append(index)
        return kept

    def _names(self, directory: str) -> list[str]:
        """Sorted; without those that a stream has consumed, whose files are going to be removed."""
        names = sorted(self._fs.list(directory))
        del names[bisect_left(names, ".") : bisect_left(names, "/")]  # those that start with a dot
        consumed = self._queue.consumed_through
        return [name for name in names if not layout.is_consumed(name, consumed)] if consumed else names

    def _add_plain(self, number: int, names: list[str]) -> list[str]:
        """Adds the plain messages at once, where all is as it should be; returns the names of all others."""
        plain = [name for name in names if len(name) == PLAIN_NAME and name not in self._tried]
        found = parse_plain(plain) if plain and self._is_simple(number, names, plain) else None
        if found is None:
            return names
        seqs, ids = found
        if not seqs[0] >> RANGE_BITS == number == seqs[-1] >> RANGE_BITS:
            return names
        if len(set(seqs)) < len(seqs) or len(set(ids)) < len(ids) or self._queue.index.has_any(ids):
            return names
        with self._lock:
            self._queue.index.add_plain(seqs, ids)
            self._queue.holds(number, len(seqs))
        return [] if len(plain) == len(names) else sorted(set(names).difference(plain))

    def _is_simple(self, number: int, names: Sequence[str], plain: Sequence[str]) -> bool:
        """Whether no branch uses the range, and no number or id of a plain message stands in another name, too."""
        if number in self._shared or (self._highest and names[-1] > self._highest):
            return False
        if len(plain) == len(names):
            return True
        return len({name[:16] for name in names}) == len({name[ID_DIGITS] for name in names}) == len(names)

    def _add_each(self, number: int, directory: str, names: Sequence[str]) -> None:
        for name in names:
            parsed = parse(name)
            if parsed is None or parsed[0] >> RANGE_BITS != number:
                wrong = "no message of this range: its name is not <seq>.<message id>[.<tag>...]"
            elif (self._highest and name > self._highest) or self._placed.get(parsed[1]) == parsed[0]:
                continue
            else:
                wrong = self._add(number, *parsed)
            if wrong:
                self._set_aside(f"{directory}/{name}", wrong)

    def _add(self, number: int, seq: int, message_id: MessageId, tags: str) -> str:
        """Returns what is wrong with it."""
        if message_id in self._placed or message_id in self._queue.index:
            return f"message {message_id.hex()} {TWICE}; the earlier one is kept"
        if seq == self._last or seq in self._taken:
            return f"another message of its queue has its number, {seq:,}, and is kept"
        entry = Entry(seq, message_id, tags, self._retries.pop((seq, message_id), None))
        with self._lock:
            self._queue.index.add(entry)
            self._queue.holds(number, 1)
        self._last = seq
        return ""


def _queues(space: Space, set_aside: SetAside) -> list[Queue]:
    found = []
    if space.read_only is None:
        _make_again(space)
    for name in sorted(space.fs.list(COMMITTED)):
        queue_name = layout.parse_queue_directory(name)
        if queue_name is not None and space.fs.is_dir(layout.queue_path(queue_name)):
            found.append(space.queue(queue_name))
        elif not name.startswith("."):
            why = "its name is not queue=<name>" if queue_name is None else "a file where a queue's directory should be"
            set_aside(f"{COMMITTED}/{name}", f"no queue directory: {why}")
    return found


def _make_again(space: Space) -> None:
    """The directories of queues that have had messages, where somebody has removed them: their numbers go on."""
    for queue in space.queues.values():
        path = layout.queue_path(queue.name)
        if queue.enqueued and not space.fs.exists(path):
            space.fs.make_dir(path)


def _ranges(fs: FileSystem, queue: str, set_aside: SetAside) -> list[int]:
    directory = layout.queue_path(queue)
    found = []
    for name in sorted(fs.list(directory)):
        number = layout.parse_range(name)
        path = f"{directory}/{name}"
        if number is not None and fs.is_dir(path):
            found.append(number)
        elif not name.startswith("."):
            set_aside(path, "no range directory")
    return found


def _newest(fs: FileSystem, queue: str, ranges: Sequence[int]) -> tuple[int, int]:
    """The highest number in the queue's directory, and when it was committed; 0 for what is not known."""
    for number in reversed(ranges):
        directory = layout.range_path(queue, number << RANGE_BITS)
        places = [(parse_any(name), name) for name in fs.list(directory)]
        found = [(place.last, name) for place, name in places if place and place.first >> RANGE_BITS == number]
        if found:
            seq, name = max(found)
            return seq, _modified_us(fs, f"{directory}/{name}")
    return 0, 0


def _modified_us(fs: FileSystem, path: str) -> int:
    try:
        return fs.modified_ns(path) // 1000
    except OSError as error:
        if not is_damage(fs, path, error):
            raise
        return 0


def _watermark(
    space: Space, queue: Queue, used: bool, set_aside: SetAside, note: Callable[[str], object]
) -> Watermark | None:
    """The queue's watermark. Where it is lost, one that is above every number that can have been used before."""
    path = layout.watermark_path(queue.name)
    data: bytes | None
    try:
        data = space.fs.read(path, 4096)
    except OSError as error:
        missing = not space.fs.exists(path)
        if not missing and not is_damage(space.fs, path, error):
            raise
        data = b"" if missing else None
    watermark = layout.parse_watermark(data) if data else None
    if watermark is not None:
        return watermark
    if data == b"":  # a crash leaves it missing or empty while the queue's first message is on its way
        if not used:
            return None
        reason = "is missing or empty"
    else:
        set_aside(path, "no watermark: damaged or foreign")
        reason = "was damaged"
    above = max(space.now_us(), 1)
    note(f"the watermark of queue {queue.name} {reason}: its numbers go on at {above:,}, so that none is used twice")
    return Watermark(above, above)
