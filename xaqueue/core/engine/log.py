"""What makes a step durable: the contract of a space's log, of which there are two.

``DirectoryLog`` carries a change out in the directories at once; the files of a branch are its record. ``JournalLog``
appends one redo record, and a follower brings the directories behind it. Nothing else knows which of them it has.

    add       a block of a branch that is active: it may be lost with this process
    take      a message is dequeued: if this process is killed, that counts as a try
    harden    content before name: what the blocks of a branch hold is on disk, where no record is going to hold it
    perform   one step: plan (lock held) -> durable -> publish (lock held, in the order of the log)
    read      a block's bytes, as of all that was published
    settle    returns once the directories hold all that was published
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from xaqueue.core.engine.memory import Features
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.change import Change
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.layout import Watermark
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage import group_commit
from xaqueue.core.storage.group_commit import Plan, Publish, Step
from xaqueue.errors import RetryLater

STEP_FILES = 256
"""Files that a prepare moves with the space's lock held: those before them it may move ahead of its step, since a crash
finds blocks that were promised to nobody."""
HELD_BYTES = 64 * 1024
"""What a prepared branch may hold of its blocks in memory; there may be many, and for long."""


class CommitPending(RetryLater):
    """The commit point is on disk, and there was no room for what follows it: the same commit again completes it."""


class Register(Protocol):
    """What is taken, and may be in somebody's hands where this process is killed. Raises OSError."""

    def add(self, queue: str, entry: Entry, *, handed_back: bool = False) -> None:
        """A message of the queue was taken, or is handed back."""

    def make(self) -> None:
        """Makes its file where it is missing and there is room."""


class Owner(group_commit.Owner, Protocol):
    """Whose log it is: the space. What ends in ``_locked`` is called with its lock held."""

    definitions: Definitions
    features: Features
    queues: dict[str, Queue]
    """The memory of each, by its name."""
    serving: bool
    """Recovery is done: nothing is performed late before."""

    def published_locked(self, marks: dict[str, Watermark]) -> None:
        """Behind each round: who waits looks again. Adds the queues that have changed, and how far they are."""

    def arrived_locked(self) -> None:
        """Behind a step that is hardened late: what was added is to be seen."""

    def retry(self, error: OSError, call: Callable[[], object]) -> None:
        """Does again what found no room, with what is kept for that, or raises the error."""


class Log(Protocol):
    """Raises ResourceFailed once anything has failed. ``Change`` is in ``xaqueue.core.model.change``."""

    is_atomic: bool
    """Whether a step of several operations is one record, so that it needs no commit point of its own."""

    changed_queues: dict[str, Queue]
    """Queues to which a step has published since ``published`` was called last."""

    @property
    def riding(self) -> Sequence[Step]:
        """Steps that were shown, and are not durable yet."""

    @property
    def pending(self) -> bool:
        """Whether the directories are behind."""

    @property
    def waiting_room(self) -> tuple[int, int]:
        """Bytes and files, about, that wait for room on the disk."""

    def add(self, branch: Branch, written: Written, head: bytes, body: bytes) -> None:
        """Keeps the block, or writes it to active/. Raises OSError; where it is one of NO_ROOM nothing is left."""

    def take(self, branch: Branch, written: Written, block: Callable[[], bytes]) -> None:
        """block: makes the block of the dequeue. Raises OSError; where it is one of NO_ROOM nothing is left."""

    def hand_back(self, written: Written) -> None:
        """If this process is killed from here on, this dequeue is no try. Raises ResourceFailed."""

    def ahead(self, branch: Branch, change: Change) -> Change:
        """Does what of a prepare may be done before its step, and returns what is left. Raises as ``perform``."""

    def spill(self, branch: Branch) -> None:
        """Writes to active/ what it keeps of the branch in memory, as far as there is room. Raises OSError."""

    def stage(self, path: str, head: bytes, body: bytes) -> None:
        """Writes, durably, what a step is going to PUT there. Raises OSError; where it is one of NO_ROOM nothing is
        left."""

    def harden(self, branch: Branch) -> None:
        """Raises RetryLater where there is no room, and nothing has failed."""

    def discard(self, paths: Iterable[str]) -> None:
        """Removes blocks in active/, which nobody was promised."""

    def harden_unprepared(self, branch: Branch, complete: Callable[[], None]) -> None:
        """As ``harden``, before a commit in one phase. complete: adds the blocks by which recovery finds all of it,
        where the step needs a commit point of its own."""

    def perform(
        self, plan: Plan, publish: Publish = ..., branch: Branch | None = None, *, late: bool = False
    ) -> object:
        """One step, of this branch. It is as ``perform_late`` where that may be late, or where all queues of the
        branch say so.

        Raises what plan raises of Error, RetryLater where there is no room and nothing was done, CommitPending.
        """

    def perform_late(self, plan: Plan, publish: Publish = ..., *, is_limited: bool = True) -> object:
        """As ``perform``; where the level allows it, it is shown first and durable a moment later, before whatever
        follows from it. Then there is no RetryLater. is_limited: not where too many wait already."""

    def unhardened(self) -> dict[str, int]:
        """By queue the lowest number of a message that is shown and not durable yet. Called with the lock held."""

    def harden_late(self) -> None:
        """Returns once all is durable that was performed late. Raises RetryLater where there is no room."""

    def perform_unrecorded(self, plan: Callable[[], Change]) -> None:
        """As ``perform``, of what the next open does again: a journal has no record of it. Raises OSError, too."""

    def read(self, path: str) -> bytes:
        """Raises OSError."""

    def settle(self) -> None:
        """Raises OSError, where it is one of NO_ROOM what waits goes on waiting."""

    def exclusively(self, call: Callable[[], None]) -> None:
        """Settles, and calls this while nobody but the steps changes the directories. Raises what either raises."""

    def sync_contents(self, paths: Sequence[str]) -> None:
        """What these files hold is on disk, as far as the level asks for it."""

    def sync_names(self, directories: Sequence[str]) -> None:
        """The names in these directories are on disk, in this order, as far as the level asks for it."""
