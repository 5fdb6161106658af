"""What memory holds of a committed message: everything that decides its turn, and nothing of its body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from xaqueue.core.model.message_block import Table
from xaqueue.core.model.message_name import VOLATILE, Named, Tags, read_tags
from xaqueue.message import MessageId


@dataclass(frozen=True, slots=True)
class Retry:
    """What is remembered of a message whose delivery has failed. Times are int microseconds UTC, 0 if not known."""

    tries: int
    not_before: int | None = None
    """Until then it is put off."""
    first: int = 0
    """When a delivery failed first, and last."""
    last: int = 0
    reason: str = ""
    """Of the last failure."""


class Entry:
    """Of one message. ``locked``: a branch has it, or it is about to leave. Most have nothing but a number and an id:
    what else there is stands in the class as long as nobody says otherwise."""

    correlation, expires_at, not_before, priority, tries = Tags()
    tags = ""
    is_plain = True
    """Nothing but its number decides its turn."""
    line: Line | None = None
    """In which it stands, once it is in an index that has lines."""
    retry: Retry | None = None
    locked = False
    queued = False
    path = ""
    """Of its file, once somebody has read that."""
    block: MessageBlock | None = None
    """In which it lies, once somebody has read that, or will lie."""

    def __init__(self, seq: int, message_id: MessageId, tags: str = "", retry: Retry | None = None) -> None:
        """tags: of its file's name; see ``message_name``. retry: where a delivery of it has failed."""
        self.seq = seq
        self.message_id = message_id
        if tags:
            self.tags, self.is_plain = tags, False
            self.correlation, self.expires_at, self.not_before, self.priority, self.tries = read_tags(tags)
        if retry is not None:
            self.fail(retry)

    def fail(self, retry: Retry) -> None:
        """A delivery of it has failed."""
        self.retry, self.tries, self.is_plain = retry, retry.tries, False
        if retry.not_before is not None:
            self.not_before = max(retry.not_before, self.not_before or 0)


class Run(Entry):
    """Of many messages of one block that a branch adds, or takes: their numbers follow one another. What else it says
    is of the first."""

    def __init__(self, ids: Sequence[MessageId], seq: int = 0, entries: Sequence[Entry] = ()) -> None:
        super().__init__(seq, ids[0])
        self.ids = ids
        self.entries = entries
        """Of those that are added, where some have tags; of those that are taken, once somebody has asked for one."""


def is_volatile(entry: Entry | None, of: Callable[[Iterable[bool]], bool] = all) -> bool:
    """Whether it, or each of a run, says that it need not outlive the owner of the space; of: any, or one of a run."""
    if type(entry) is Run:
        return bool(entry.entries) and of(VOLATILE in one.tags for one in entry.entries)
    return entry is not None and VOLATILE in entry.tags


class MessageBlock:
    """Of a block of many messages in ``committed/``: where they lie. All else of each is its own."""

    __slots__ = ("count", "gone", "gone_path", "has_bitmap", "held", "left", "named", "opened", "path", "queue")

    def __init__(self, queue: str, named: Named, path: str, gone_path: str, gone: int = 0) -> None:
        self.queue = queue
        self.named = named
        self.count = count = named.count
        self.path = path
        self.gone_path = gone_path
        self.opened: tuple[Table, bytes] | None = None
        """All of it, where somebody has just read that."""
        self.gone = gone
        """A bit for each that is gone, by the plans that were made: taken back where a step has failed. Where the files
        are the record: by what was carried out."""
        self.has_bitmap = False
        """Where the files are the record: its name is on disk, or will be with the round."""
        self.left = count - gone.bit_count()
        """How many are there."""
        self.held = count
        """How many it has a body of."""

    @property
    def is_settled(self) -> bool:
        """No step takes from it that is planned, and not published yet: such a one may come to nothing."""
        return self.gone.bit_count() == self.count - self.left

    def bits(self, entry: Entry) -> int:
        """Of this message, or of these."""
        return ((1 << len(entry.ids)) - 1 if type(entry) is Run else 1) << entry.seq - self.named.first

    def take_through(self, seq: int) -> None:
        """What is there with this number or one below is gone."""
        gone = self.gone | (1 << seq + 1 - self.named.first) - 1
        self.left -= (gone ^ self.gone).bit_count()
        self.gone = gone


class Line(Protocol):
    """Some messages of a queue, of which one after the other is delivered: to whoever holds those before, or to nobody
    meanwhile. It tells its index (``QueueIndex.queue``) which one may be taken now."""

    @property
    def next(self) -> int | None:
        """The first that is free."""

    def hold(self, seq: int, holder: object) -> None:
        """This one is locked, or passed on to somebody else, who may have the next, too; None: nobody may."""

    def let_go(self, seq: int) -> None:
        """It is not locked any more, or leaves and holds nothing up."""

    def come_back(self, seq: int) -> None:
        """One that was locked is free again."""

    def leave(self, seq: int) -> bool:
        """It is gone. Whether anybody may take the next now."""

    def lets(self, seq: int, now: int, holder: object) -> bool:
        """Whether this holder may have this one now."""

    def keeps(self, key: int) -> bool:
        """Whether this, by which the queue sorts the next one, comes up for its holder only, or for nobody."""


class Lines:
    """Of one queue; of one that has none as it stands here."""

    by_name: Mapping[str, Line] = {}

    def enter(self, entry: Entry) -> Line | None:
        """A message comes: in which it stands, by its tags."""
        return None

    def hand_of(self, holder: object) -> list[int]:
        """The keys of what only this holder may have: a heap."""
        return []

    def begin_again(self) -> None:
        """The queue sorts otherwise now: all keys come again."""


NO_LINES = Lines()
