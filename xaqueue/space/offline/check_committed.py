"""The messages of a space are checked one by one: names, bytes, ids, and the numbers of their queues' watermarks.

Memory holds one id and one number a message, and no body.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId
from xaqueue.space.model import layout, stream_records
from xaqueue.space.model.layout import COMMITTED, RANGE_BITS, RANGE_SIZE, Watermark
from xaqueue.space.offline.findings import Finding, Looks, broken, damaged, leftover, note
from xaqueue.space.recovery import prepared
from xaqueue.space.recovery.load import Progress, check_message
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.regular import DAMAGE

_SEQ_BITS = 63


class CommittedCheck:
    """Checks ``committed/``, and knows from then on which messages are there."""

    def __init__(self, fs: FileSystem, looks: Looks, progress: Progress | None) -> None:
        self.fs = fs
        self.looks = looks
        self.progress = progress
        self.queues: list[str] = []
        self.ids: dict[bytes, int] = {}
        """Where each message stands: the number of its queue above, its sequence number below ``_SEQ_BITS``."""
        self.highest: dict[str, int] = {}

    def holds(self, queue: str, message_id: MessageId) -> bool:
        """Whether the queue has this message."""
        place = self.ids.get(message_id)
        if self.looks.again or (place is not None and self.queues[place >> _SEQ_BITS] != queue):
            return message_id.hex() in prepared.ids_in(self.fs, queue)
        return place is not None

    def run(self) -> Iterator[Finding]:
        yield from self.find_queues()
        ranges = [(queue, name) for queue in self.queues for name in self.ranges(queue)]
        for done, (queue, name) in enumerate(ranges, 1):
            yield from self.range(queue, name)
            if self.progress is not None:
                self.progress(done, len(ranges))
        used = {queue for queue, _ in ranges}
        for queue in self.queues:
            yield from self.watermark(queue, queue in used)

    def find_queues(self) -> Iterator[Finding]:
        """Fills ``queues``."""
        for name in prepared.listed(self.fs, COMMITTED):
            queue = layout.parse_queue_directory(name)
            path = f"{COMMITTED}/{name}"
            if queue is None or not self.fs.is_dir(path):
                yield damaged(path, "is no queue directory")
            else:
                self.queues.append(queue)

    def ranges(self, queue: str) -> list[str]:
        """The names in a queue's directory that should be range directories."""
        return prepared.listed(self.fs, layout.queue_path(queue))

    def range(self, queue: str, name: str) -> list[Finding]:
        """Of one range directory and its messages."""
        return self.looks.at(partial(self._range, queue, name))

    def watermark(self, queue: str, used: bool) -> list[Finding]:
        """Of a queue's numbers, after all of its ranges. used: whether it has any."""
        return self.looks.at(partial(self._watermark, queue, used))

    def _range(self, queue: str, name: str) -> Iterator[Finding]:
        number = layout.parse_range(name)
        path = f"{layout.queue_path(queue)}/{name}"
        if number is None or not self.fs.is_dir(path):
            if self.fs.exists(path):
                yield damaged(path, "is no range directory")
            return
        names = prepared.listed(self.fs, path)
        consumed = stream_records.consumed_in(self.fs, queue)
        left = [message for message in names if not layout.is_consumed(message, consumed)]
        if len(left) < len(names) and not self.looks.live:
            gone = len(names) - len(left)
            yield leftover(path, f"{gone:,} files of messages that a stream has consumed: cleared by the next open")
        if not names and not self.looks.live and not self._takes_more(queue, number):
            yield leftover(path, "is empty and takes no more messages: removed by the next open")
        for message in left:
            try:
                yield from self._message(queue, number, message)
            except FileNotFoundError:
                continue  # consumed since it was listed

    def _message(self, queue: str, number: int, name: str) -> Iterator[Finding]:
        path = f"{layout.range_path(queue, number << RANGE_BITS)}/{name}"
        parsed = layout.parse_message(name)
        if parsed is None or parsed[0] >> RANGE_BITS != number:
            yield damaged(path, "is no message of this range: its name is not <seq>.<message id>")
            return
        seq, message_id = parsed
        try:
            check_message(prepared.read_whole(self.fs, path), queue, message_id)
        except DamagedBlock as damage:
            yield damaged(path, str(damage))
            return
        self.highest[queue] = max(self.highest.get(queue, 0), seq)
        place = self.queues.index(queue) << _SEQ_BITS | seq
        earlier = self.ids.setdefault(message_id, place)
        if earlier != place:
            yield from self._duplicate(path, queue, message_id, earlier)

    def _duplicate(self, path: str, queue: str, message_id: MessageId, earlier: int) -> Iterator[Finding]:
        other = self.queues[earlier >> _SEQ_BITS]
        first = layout.message_path(other, earlier & ((1 << _SEQ_BITS) - 1), message_id)
        if not self.fs.exists(first):
            return
        if other == queue:
            yield damaged(path, f"message {message_id.hex()} stands in its queue twice: first as {first}")
        else:
            yield note(path, f"has the message id of {first}: ids are meant to be unique")

    def _takes_more(self, queue: str, number: int) -> bool:
        """Whether the queue's next message goes into this range, which is why it may be empty."""
        watermark = self._read_watermark(queue)
        if watermark is None:
            return True
        return number in ((watermark.published + 1) >> RANGE_BITS, (watermark.reserved + 1) >> RANGE_BITS)

    def _read_watermark(self, queue: str) -> Watermark | None:
        return layout.parse_watermark(self._watermark_bytes(queue) or b"")

    def _watermark_bytes(self, queue: str) -> bytes | None:
        """Empty where it is missing, too; None where it cannot be read."""
        path = layout.watermark_path(queue)
        try:
            return self.fs.read(path, 4096)
        except FileNotFoundError:
            return None if self.fs.exists(path) else b""
        except OSError as error:
            if error.errno not in DAMAGE:
                raise
            return None

    def _watermark(self, queue: str, used: bool) -> Iterator[Finding]:
        path = layout.watermark_path(queue)
        watermark = self._read_watermark(queue)
        highest = self.highest.get(queue, 0)
        if watermark is None:
            first = highest < RANGE_SIZE  # a crash in a queue's first commits may leave none, or an empty one
            if self._watermark_bytes(queue) != b"":
                yield damaged(path, "is no watermark: damaged or foreign")
            elif used and not first:
                yield broken(path, "is missing or empty, and the queue was used: its numbers go on higher")
            elif self.looks.live:
                return  # its owner is at the queue's first commit
            elif used:
                yield leftover(path, "is missing or empty: the queue's first commit was on its way; made anew")
            else:
                yield note(path, "is missing or empty: the queue's first message never came; its next one makes it")
            return
        if watermark.published > watermark.reserved:
            yield broken(path, f"published {watermark.published} is above reserved {watermark.reserved}")
        if highest > watermark.reserved and self.looks.live:
            yield broken(path, f"message {highest} is above reserved {watermark.reserved}: its number may come twice")
        elif highest > watermark.reserved:
            yield leftover(path, f"message {highest} is above reserved {watermark.reserved}: the next open reserves it")
        elif highest > watermark.published and not self.looks.live:
            yield leftover(path, f"message {highest} is above published {watermark.published}: the next open shows it")
