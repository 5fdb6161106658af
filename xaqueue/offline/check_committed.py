"""The messages of a space are checked one by one: names, bytes, ids, and the numbers of their queues' watermarks.

Memory holds one id and one number a message, and no body.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from xaqueue.core.engine.quarantine import TWICE
from xaqueue.core.model import layout, message_name
from xaqueue.core.model.block import check_message
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.layout import COMMITTED, RANGE_BITS, RANGE_SIZE, Watermark
from xaqueue.core.recovery import prepared
from xaqueue.core.recovery.load import Progress
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.regular import DAMAGE
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.message_files import ids_in
from xaqueue.features.streams.record import consumed_in
from xaqueue.message import MessageId
from xaqueue.offline.findings import Finding, Prober, broken, damaged, leftover, note

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
            yield from self.watermark(queue)

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

    def watermark(self, queue: str) -> list[Finding]:
        """Of a queue's numbers, after all of its ranges."""
        return self.prober.at(partial(self._watermark, queue))

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
        for message in left:
            try:
                yield from self._message(queue, number, message)
            except FileNotFoundError:
                continue  # consumed since it was listed

    def _message(self, queue: str, number: int, name: str) -> Iterator[Finding]:
        path = f"{layout.range_path(queue, number << RANGE_BITS)}/{name}"
        parsed = message_name.parse(name)
        if parsed is None or parsed[0] >> RANGE_BITS != number:
            yield damaged(path, "is no message of this range: its name is not <seq>.<message id>[.<tag>...]")
            return
        seq, message_id, tags = parsed
        try:
            head = prepared.read_whole(self.fs, path)
            check_message(head, queue, message_id)
            wanted = message_name.tags_of(head.properties)
        except DamagedBlock as damage:
            yield damaged(path, str(damage))
            return
        if known_tags(tags) != wanted:
            right = f"{name[: message_name.PLAIN_NAME]}{wanted}"
            yield broken(path, f"its name does not say what its head says: rename it to {right} while nobody uses it")
        self.highest[queue] = max(self.highest.get(queue, 0), seq)
        place = self.queues.index(queue) << _SEQ_BITS | seq
        earlier = self._places.setdefault(message_id, place)
        if earlier == place or (not head.properties.queue and self.queues[earlier >> _SEQ_BITS] != queue):
            return  # that of several queues is in each of them
        other = self.queues[earlier >> _SEQ_BITS]
        first = find_message(self.fs, other, earlier & _SEQ_MASK, message_id)
        if first is None:
            return
        if other == queue:
            yield damaged(path, f"message {message_id.hex()} {TWICE}: first as {first}")
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

    def _without_watermark(self, queue: str, path: str, highest: int) -> Iterator[Finding]:
        """A crash in a queue's first commits may leave none, or an empty one."""
        used = bool(self.ranges(queue))
        if used and highest >= RANGE_SIZE:
            yield broken(path, "is missing or empty, and the queue was used: its numbers go on higher")
        elif self.prober.live:
            return  # its owner is at the queue's first commit
        elif used:
            yield leftover(path, "is missing or empty: the queue's first commit was on its way; made anew")
        else:
            yield note(path, "is missing or empty: the queue's first message never came; its next one makes it")


def known_tags(tags: str) -> str:
    """Of the tags in the name of a message those that this version knows."""
    return "".join(f".{tag}" for tag in tags.split(".") if tag[:1] in message_name.TAGS)


def find_message(fs: FileSystem, queue: str, seq: int, message_id: bytes) -> str | None:
    """The path of a message of which only number and id are known; None where it is gone."""
    path = layout.message_path(queue, seq, message_id)
    if fs.exists(path):
        return path
    directory, _, start = path.rpartition("/")
    return next((f"{directory}/{name}" for name in listed(fs, directory) if name.startswith(f"{start}.")), None)
