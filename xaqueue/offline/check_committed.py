"""The messages of a space are checked one by one: names, bytes, ids, and the numbers of their queues' watermarks.

Memory holds one id and one number a message, and no body.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial

from xaqueue.core.engine.quarantine import TWICE
from xaqueue.core.model import layout, message_name
from xaqueue.core.model.block import check_message, decode
from xaqueue.core.model.block_files import listed, read_gone, read_messages
from xaqueue.core.model.layout import COMMITTED, RANGE_BITS, RANGE_SIZE, Watermark
from xaqueue.core.model.message_name import Named
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.load import Progress, read_head
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.regular import DAMAGE
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.message_files import Block, blocks_of, ids_in, is_block, read_names
from xaqueue.features.streams.record import consumed_in
from xaqueue.message import MessageId
from xaqueue.offline.findings import Finding, Prober, Severity, broken, damaged, leftover, note

_SEQ_BITS = 63
_SEQ_MASK = (1 << _SEQ_BITS) - 1


class CommittedCheck:
    """Checks ``committed/``, and knows from then on which messages are there."""

    def __init__(self, fs: FileSystem, prober: Prober, *, messages: bool = True) -> None:
        """messages: whether ``run`` checks them; else only directories, and what is there is looked up where asked."""
        self.fs = fs
        self.prober = prober
        self.only = ""
        """The queue that is checked; all where it is empty."""
        self.queues: list[str] = []
        self.highest: dict[str, int] = {}
        self._messages = messages
        self._places: dict[bytes, int] = {}
        """Where each message stands: the number of its queue above, its sequence number below ``_SEQ_BITS``."""
        self._listed: dict[str, frozenset[str]] = {}

    def holds(self, queue: str, message_id: MessageId) -> bool:
        """Whether the queue has this message."""
        place = self._places.get(message_id)
        if self._messages and not self.prober.again:
            if place is None or self.queues[place >> _SEQ_BITS] == queue:
                return place is not None
        elif not self.prober.live and queue in self._listed:
            return message_id.hex() in self._listed[queue]
        self._listed[queue] = ids_in(self.fs, queue)
        return message_id.hex() in self._listed[queue]

    def messages(self) -> dict[str, list[tuple[int, bytes]]]:
        """The whole messages of each queue that was checked, by number and id."""
        found: dict[str, list[tuple[int, bytes]]] = {}
        for message_id, place in self._places.items():
            found.setdefault(self.queues[place >> _SEQ_BITS], []).append((place & _SEQ_MASK, bytes(message_id)))
        return found

    def run(self, progress: Progress | None = None) -> Iterator[Finding]:
        yield from self.find_queues()
        if not self._messages:
            return
        ranges = [(queue, name) for queue in self.queues for name in self.ranges(queue)]
        for done, (queue, name) in enumerate(ranges, 1):
            yield from self.range(queue, name)
            if progress is not None:
                progress(done, len(ranges))
        for queue in self.queues:
            yield from self.rest(queue)

    def find_queues(self) -> Iterator[Finding]:
        """Fills ``queues``."""
        for name in listed(self.fs, COMMITTED):
            queue = layout.parse_queue_directory(name)
            path = f"{COMMITTED}/{name}"
            if self.only not in ("", queue):
                continue
            if queue is None or not self.fs.is_dir(path):
                yield damaged(path, "is no queue directory")
            else:
                self.queues.append(queue)

    def ranges(self, queue: str) -> list[str]:
        """The names in a queue's directory that should be range directories."""
        return listed(self.fs, layout.queue_path(queue))

    def range(self, queue: str, name: str) -> list[Finding]:
        """Of one range directory and its messages."""
        return self.prober.at(partial(self._range, queue, name))

    def rest(self, queue: str) -> list[Finding]:
        """Of a queue's numbers, and of what is gone of blocks that are not there, after all of its ranges."""
        return self.prober.at(partial(self._watermark, queue)) + self.prober.at(partial(self._bitmaps, queue))

    def _range(self, queue: str, name: str) -> Iterator[Finding]:
        number = layout.parse_range(name)
        path = f"{layout.queue_path(queue)}/{name}"
        if number is None or not self.fs.is_dir(path):
            if self.fs.exists(path):
                yield damaged(path, "is no range directory")
            return
        names = listed(self.fs, path)
        consumed = consumed_in(self.fs, queue)
        left = [message for message in names if not layout.is_consumed(message, consumed)]
        if len(left) < len(names) and not self.prober.live:
            gone = len(names) - len(left)
            yield leftover(path, f"{gone:,} files of messages that a stream has consumed: cleared by the next open")
        if not names and not self.prober.live and not self._takes_more(queue, number):
            yield leftover(path, "is empty and takes no more messages: removed by the next open")
        above = -1
        for message in left:
            found = message_name.parse_any(message)
            if found is None or found.first >> RANGE_BITS != number:
                what = "is no message of this range: its name is not <seq>.<message id>[.<tag>...]"
                yield damaged(f"{path}/{message}", what)
                continue
            if found.first <= above:
                yield damaged(f"{path}/{message}", "its numbers are those of another block, which is kept")
                continue
            try:
                if not found.is_block:
                    yield from self._message(queue, found)
                elif (yield from self._block(queue, found, consumed)):
                    above = found.last
            except FileNotFoundError:
                continue  # consumed since it was listed

    def _message(self, queue: str, named: Named) -> Iterator[Finding]:
        path = layout.messages_path(queue, named)
        try:
            head = prepared.read_whole(self.fs, path)
            check_message(head, queue, named.message_id)
            wanted = message_name.tags_of(head.properties)
        except DamagedBlock as damage:
            yield damaged(path, str(damage))
            return
        if not says(named.tags, wanted):
            right = path.rpartition("/")[2][: message_name.PLAIN_NAME] + wanted
            yield broken(path, f"its name does not say what its head says: rename it to {right} while nobody uses it")
        yield from self._place(queue, named.first, named.message_id, path, is_shared=not head.properties.queue)

    def _block(self, queue: str, named: Named, consumed: int) -> Generator[Finding, None, bool]:
        """Returns whether it can be read. What is gone of it is read first, for it goes after that."""
        path = layout.messages_path(queue, named)
        try:
            gone = read_gone(self.fs, queue, named)
        except DamagedBlock as damage:
            gone = 0
            yield damaged(layout.gone_path(queue, named), f"what is gone of a block: {damage}; all of that is back")
        try:
            block = Block(named, *read_messages(self.fs, queue, named), gone)
        except DamagedBlock as damage:
            yield damaged(path, str(damage))
            return False
        table = block.table
        if block.mended() != block.data:
            yield Finding(Severity.DAMAGE, path, "damaged outside of its bodies: one of its tables holds", block=path)
        for index in block.left(consumed):
            own = f"{path.rpartition('/')[0]}/{block.name(index)}"
            try:
                properties = decode(block.file(index)).properties
                wanted = message_name.tags_of(properties)
            except DamagedBlock as damage:
                yield damaged(own, f"{damage}: in {path}", path)
                continue
            if not says(table.tags_of(index), wanted):
                yield broken(own, f"its tags in the table of {path} do not say what its properties say: {wanted}")
            message_id, is_shared = table.message_id(index), table.is_shared
            yield from self._place(queue, named.first + index, message_id, own, is_shared=is_shared, block=path)
        return True

    def _place(
        self, queue: str, seq: int, message_id: MessageId, path: str, *, is_shared: bool = False, block: str = ""
    ) -> Iterator[Finding]:
        """A whole message. is_shared: several queues have it."""
        self.highest[queue] = max(self.highest.get(queue, 0), seq)
        place = self.queues.index(queue) << _SEQ_BITS | seq
        earlier = self._places.setdefault(message_id, place)
        if earlier == place or (is_shared and self.queues[earlier >> _SEQ_BITS] != queue):
            return  # that of several queues is in each of them
        other = self.queues[earlier >> _SEQ_BITS]
        first = find_message(self.fs, other, earlier & _SEQ_MASK, message_id)
        if first is None:
            return
        if other == queue:
            yield damaged(path, f"message {message_id.hex()} {TWICE}: first as {first}", block)
        else:
            yield note(path, f"has the message id of {first}: ids are meant to be unique")

    def _takes_more(self, queue: str, number: int) -> bool:
        """Whether the queue's next message goes into this range, which is why it may be empty."""
        watermark, _ = self._read_watermark(queue)
        if watermark is None:
            return True
        return number in ((watermark.published + 1) >> RANGE_BITS, (watermark.reserved + 1) >> RANGE_BITS)

    def _read_watermark(self, queue: str) -> tuple[Watermark | None, bool]:
        """It, where it is one; and whether there is nothing, not even a damaged one."""
        path = layout.watermark_path(queue)
        try:
            content = self.fs.read(path, 4096)
        except FileNotFoundError:
            return None, not self.fs.exists(path)
        except OSError as error:
            if error.errno not in DAMAGE:
                raise
            return None, False
        return layout.parse_watermark(content), not content

    def _watermark(self, queue: str) -> Iterator[Finding]:
        path = layout.watermark_path(queue)
        watermark, is_missing = self._read_watermark(queue)
        highest = self.highest.get(queue, 0)
        if watermark is None:
            yield from (
                self._without_watermark(queue, path, highest)
                if is_missing
                else [damaged(path, "is no watermark: damaged or foreign")]
            )
            return
        if watermark.published > watermark.reserved:
            yield broken(path, f"published {watermark.published} is above reserved {watermark.reserved}")
        if highest > watermark.reserved and self.prober.live:
            yield broken(path, f"message {highest} is above reserved {watermark.reserved}: its number may come twice")
        elif highest > watermark.reserved:
            yield leftover(path, f"message {highest} is above reserved {watermark.reserved}: the next open reserves it")
        elif highest > watermark.published and not self.prober.live:
            yield leftover(path, f"message {highest} is above published {watermark.published}: the next open shows it")

    def _bitmaps(self, queue: str) -> Iterator[Finding]:
        directory = f"{layout.queue_path(queue)}/{layout.GONE}"
        blocks: set[str] | None = None
        for name in listed(self.fs, directory):
            if layout.parse_message(name) is None or len(name) != message_name.PLAIN_NAME:
                yield damaged(f"{directory}/{name}", "is no bitmap of a block: its name is not <seq>.<message id>")
                continue
            if blocks is None:
                blocks = {layout.gone_path(queue, one) for one in blocks_of(self.fs, queue)}
            if f"{directory}/{name}" not in blocks and not self.prober.live:
                yield leftover(f"{directory}/{name}", "its block is gone: removed by the next open")

    def _without_watermark(self, queue: str, path: str, highest: int) -> Iterator[Finding]:
        """A crash in a queue's first commits may leave none, or an empty one."""
        used = bool(self.ranges(queue))
        if used and highest >= RANGE_SIZE:
            yield broken(path, "is missing or empty, and the queue was used: its numbers go on higher")
        elif self.prober.live:
            return  # its owner is at the queue's first commit
        elif used:
            yield leftover(path, "is missing or empty: the queue's first commit was on its way; made again")
        else:
            yield note(path, "is missing or empty: the queue's first message never came; its next one makes it")


def says(tags: str, wanted: str) -> bool:
    """Whether those of these tags that this version knows do. An earlier one, which knew no v, has moved a message
    without it: nobody removes that."""
    known = "".join(f".{tag}" for tag in tags.split(".") if tag[:1] in message_name.TAGS)
    return known in (wanted, wanted.removesuffix(message_name.VOLATILE))


def is_of_several(fs: FileSystem, queue: str, seq: int, path: str) -> bool:
    """Whether several queues have the message with this number, which ``find_message`` has found there. Raises
    DamagedBlock, OSError."""
    directory = path.rpartition("/")[0]
    for named in map(message_name.parse_any, filter(is_block, listed(fs, directory))):
        if named is not None and named.first <= seq <= named.last:
            return read_names(fs, queue, named).table.is_shared
    return not read_head(fs, path).properties.queue


def find_message(fs: FileSystem, queue: str, seq: int, message_id: bytes) -> str | None:
    """The path of a message of which only number and id are known; None where it is gone."""
    path = layout.message_path(queue, seq, message_id)
    if fs.exists(path):
        return path
    directory, _, start = path.rpartition("/")
    for name in listed(fs, directory):
        if name.startswith(f"{start}."):
            return f"{directory}/{name}"
        named = message_name.parse_any(name) if is_block(name) else None
        if named is not None and named.first <= seq <= named.last:
            with suppress(FileNotFoundError, DamagedBlock):
                block = read_names(fs, queue, named)
                own = [block.name(index) for index in block.left(seq - 1, seq)]
                return next((f"{directory}/{one}" for one in own if one.startswith(start)), None)
    return None
