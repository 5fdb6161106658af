"""What came after a snapshot, in the space that it replaces: brought over into what is built, since newer data wins.

A message that stands in the space and not in the snapshot is newer, whatever its number: it comes over, and what the
snapshot has of it elsewhere goes, since it was moved from there. So it is with branches that are in doubt, decisions of
operators, keys, records of tries and of batches. What the snapshot has and the space has no more stays: it was
consumed since, or lost, and comes back. Nothing of the space is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from xaqueue.core.engine import heuristics, quarantine, redo
from xaqueue.core.model import layout
from xaqueue.core.model.block import ADDS, Kind, decode
from xaqueue.core.model.block_files import listed, ranges_in
from xaqueue.core.model.message_block import decode_table, encode_gone
from xaqueue.core.model.message_name import Named, parse_any
from xaqueue.core.model.record_kinds import RecordKinds
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.load import read_head
from xaqueue.core.storage.fs import NO_LINK, FileSystem, discard
from xaqueue.errors import DamagedBlock
from xaqueue.features.snapshots.below import Below
from xaqueue.features.snapshots.manifest import is_in_place
from xaqueue.features.streams.message_files import count_in, read_names
from xaqueue.message import Message, MessageId, properties_in
from xaqueue.xid import Xid


class Newer:
    """``place``: where it is built; the snapshot is there already."""

    def __init__(self, fs: FileSystem, place: str, kinds: RecordKinds, *, is_whole: bool) -> None:
        """is_whole: nothing of the space is missing, so that what is not there is over."""
        self.fs = fs
        self.place = place
        self.is_whole = is_whole
        self._kinds = kinds
        found = (layout.parse_queue_directory(name) for name in listed(fs, layout.COMMITTED))
        self.queues = [queue for queue in found if queue is not None]
        self.messages = self.lost = 0
        """Brought over; and those that cannot be read, which stay where they are."""
        self._origins: dict[MessageId, set[str]] = {}
        """Of each that was brought over the queues from which it may have come; empty for any."""

    def bring(self, paths: Collection[str]) -> None:
        """All but what only a branch can tell. paths: what the snapshot has, relative to it. Raises OSError."""
        for queue in self.queues:
            for number in ranges_in(self.fs, queue):
                self._bring_messages(queue, layout.range_path(queue, number << layout.RANGE_BITS))
        for kind in (heuristics.KIND, *self._kinds):
            kind.bring(self)
        for path in paths if self._origins else ():
            self._drop_moved(path)

    def bring_branches(self) -> set[Xid]:
        """Those that are in doubt now, and not those that were and are no more; of one that has lost a block what the
        snapshot has. Returns the snapshot's of which nobody can tell.
        """
        present, lost = branches_in(self.fs, layout.PREPARED), quarantine.lost_blocks(self.fs)
        then = branches_in(self.fs, f"{self.place}/{layout.PREPARED}")
        for xid, paths in present.items():
            if xid in then and any(map(self._is_another, paths)):
                for path in then.pop(xid):
                    discard(self.fs, path)
            for path in paths if xid not in then else ():
                self.link(path)
        for xid in lost.keys() - then.keys():
            for path in (f"{layout.QUARANTINE}/{name}{end}" for name in lost[xid] for end in ("", ".reason")):
                if self.fs.exists(path) and not self.fs.exists(f"{self.place}/{path}"):
                    self.link(path)
        unknown = set()
        for xid, paths in then.items():
            if xid in present or xid in lost:
                continue
            is_decided = self.fs.is_dir(layout.PREPARED) and self.fs.exists(f"{layout.HEURISTIC}/{xid}")
            if self.is_whole or is_decided or any(self._has_come(path) for path in paths):
                for path in paths:
                    discard(self.fs, path)
            else:
                unknown.add(xid)
        return unknown

    def _bring_messages(self, queue: str, directory: str) -> None:
        for name in listed(self.fs, directory):
            path, named = f"{directory}/{name}", parse_any(name)
            if named is None or self.fs.exists(f"{self.place}/{path}"):
                continue
            found: list[Message] = []
            try:
                if named.is_block:
                    found = self._in_block(queue, named)
                    if self.fs.exists(gone := layout.gone_path(queue, named)):
                        self.link(gone)
                else:
                    properties = decode(self.fs.read(path)).properties
                    found = [Message(named.message_id, queue, named.first, b"", properties)]
            except (OSError, DamagedBlock):
                self.lost += count_in(self.fs, queue, named)
                continue
            self.link(path)
            self.messages += len(found)
            for message in found:
                self._note_origin(message)

    def _in_block(self, queue: str, named: Named) -> list[Message]:
        """Those of a block that are there; a damaged one is among them as well. Raises DamagedBlock, OSError."""
        block = read_names(self.fs, queue, named)
        table = block.table
        return [
            Message(table.message_id(index), queue, named.first + index, b"", properties_in(table.stored(index)))
            for index in block.left(0)
        ]

    def _note_origin(self, message: Message) -> None:
        origin, queue = message.origin, message.queue
        origins = self._origins.setdefault(message.message_id, set())
        if origin is not None and origin.queue:
            origins |= {origin.queue, queue}
            if origin.message_id:
                self._origins.setdefault(MessageId(bytes.fromhex(origin.message_id)), set()).update(origins)

    def _drop_moved(self, path: str) -> None:
        """What stands elsewhere by now, in the queue to which it was moved or under a later number."""
        found = layout.parse_path(path)
        if found is None:
            return
        queue, named = found
        if named.is_block:
            self._drop_of_block(queue, named)
        elif not self.fs.exists(path) and self._has_moved(queue, named.message_id):
            discard(self.fs, f"{self.place}/{path}")

    def _drop_of_block(self, queue: str, named: Named) -> None:
        """It is gone of the block, with what was gone then."""
        try:
            then = read_names(Below(self.fs, self.place), queue, named)
        except (DamagedBlock, OSError):
            return
        left: Sequence[int] = ()
        with suppress(DamagedBlock, OSError):
            left = read_names(self.fs, queue, named).left(0)
        before, path = then.left(0), f"{self.place}/{layout.gone_path(queue, named)}"
        moved = [one for one in before if one not in left and self._has_moved(queue, then.table.message_id(one))]
        if moved:
            discard(self.fs, path)
        if len(moved) == len(before):
            discard(self.fs, f"{self.place}/{layout.messages_path(queue, named)}")
        elif moved:
            redo.make_dirs(self.fs, path.rpartition("/")[0])
            gone = then.gone | sum(1 << index for index in moved)
            self.fs.create(path, encode_gone(queue, named, gone, then.table.epoch))

    def _has_moved(self, queue: str, message_id: MessageId) -> bool:
        origins = self._origins.get(message_id)
        return origins is not None and (not origins or queue in origins)

    def _is_another(self, path: str) -> bool:
        """Whether a whole block is not the one that the snapshot has: its branch is decided, or a later one."""
        try:
            decode(data := self.fs.read(path))
            return self.fs.read(f"{self.place}/{path}") != data
        except FileNotFoundError:
            return True
        except (DamagedBlock, OSError):
            return False

    def _has_come(self, path: str) -> bool:
        """Whether a block of a branch added a message that is there."""
        try:
            head = read_head(self.fs, path)
            many = decode_table(self.fs.read(path)).message_ids() if head.kind is Kind.MESSAGES else ()
        except (DamagedBlock, FileNotFoundError):
            return False
        added = many or (head.message_id,) if head.kind in ADDS else ()
        return any(message_id in self._origins for message_id in added)

    def bring_all(self, directory: str, *, replaces: bool = False) -> None:
        for name in listed(self.fs, directory):
            if replaces:
                discard(self.fs, f"{self.place}/{directory}/{name}")
            if not self.fs.exists(f"{self.place}/{directory}/{name}"):
                self.link(f"{directory}/{name}")

    def link(self, path: str) -> None:
        link_into(self.fs, path, f"{self.place}/{path}")


def link_into(fs: FileSystem, source: str, target: str) -> None:
    """One more name, or a copy where it cannot have that; with the directories above it. Raises OSError."""
    try:
        link_or_copy(fs, source, target)
    except FileNotFoundError:  # the first of its directory
        redo.make_dirs(fs, target.rpartition("/")[0])
        link_or_copy(fs, source, target)


def link_or_copy(fs: FileSystem, source: str, target: str) -> None:
    if not is_in_place(source):
        try:
            fs.link(source, target)
            return  # noqa: TRY300
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
    fs.create(target, [fs.read(source)])
    fs.set_modified_ns(target, fs.modified_ns(source))


def branches_in(fs: FileSystem, directory: str) -> dict[Xid, list[str]]:
    """The paths of the blocks there, by branch. Raises OSError."""
    return {xid: [*files.values()] for xid, files in prepared.branches(fs, directory)[0].items()}
