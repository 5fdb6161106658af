"""What makes a step durable: the contract of a space's log, of which there are two.

``DirectoryLog`` carries a change out in the directories at once; the files of a branch are its record. ``JournalLog``
appends one redo record, and a follower brings the directories behind it. Nothing else knows which of them it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from xaqueue.core.engine.features import Features
from xaqueue.core.engine.memory import Wakes
from xaqueue.core.model.block import HEAD_READ_BYTES, size_in_head
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.change import Change
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage import group_commit
from xaqueue.core.storage.fs import FileSystem, remove_all, suppress_room
from xaqueue.core.storage.group_commit import GroupCommit, Shipping
from xaqueue.errors import RetryLater

STEP_FILES = 256
"""Files that a prepare moves with the space's lock held: those before them it may move ahead of its step, since a crash
finds blocks that were promised to nobody."""
BLOCK_BYTES = 1024
"""More than a record holds of a block beside its message."""
HELD_BYTES = 64 * 1024
"""What a prepared branch may hold of its blocks in memory; there may be many, and for long."""
KEPT_BYTES = 8 * 1024 * 1024
"""How much of its blocks a branch keeps in memory, at most; the rest is written to active/."""
ALL_KEPT_BYTES = 64 * 1024 * 1024
"""The same of all branches that are not prepared. HELD_BYTES of each it may have in any case."""
NEVER = float("inf")


class CommitPending(RetryLater):
    """The commit point is on disk, and there was no room for what follows it: the same commit again completes it."""


def no_room_error(change: Change, error: OSError, *, is_decided: bool) -> RetryLater:
    step = change.kind.name.lower().replace("_", " ")
    again = "commit" if change.commits else "try"
    what, kind = ("", CommitPending) if is_decided else ("nothing was done, ", RetryLater)
    return kind(f"{step} of {change.name} found no room ({error.strerror}): {what}free some and {again} again")


class Owner(group_commit.Owner, Protocol):
    """Whose log it is: the space. What ends in ``_locked`` is called with its lock held."""

    definitions: Definitions
    epoch: int
    features: Features
    queues: dict[str, Queue]
    """The memory of each, by its name."""
    serving: bool
    """Recovery is done: nothing is performed late before."""
    wakes: Wakes

    def kept(self) -> tuple[int, int]:
        """Bytes and number of the blocks that memory has of branches that are not prepared. Takes the lock."""

    def published_locked(self, marks: dict[str, Queue]) -> None:
        """Behind each round: who waits looks again. Adds the queues whose watermark is another one now."""

    def arrived_locked(self) -> None:
        """Behind a step that is hardened late: what was added is to be seen."""

    def retry(self, error: OSError, call: Callable[[], object]) -> None:
        """Does again what found no room, with what is kept for that, or raises the error."""


class Register(Protocol):
    """What is remembered of dequeues should this process be killed. Its calls raise OSError."""

    def add(self, taken: Iterable[Written], *, returned: bool = False) -> None:
        """These were taken, as a try, or are handed back, which is none."""

    def make(self) -> None:
        """Makes its file where it is missing and there is room."""


class Ships(Shipping, Protocol):
    """Somebody else follows the journal of a space, and what is not there yet may be published nowhere."""

    refusal: str
    """Why nothing is published now; empty as long as it is."""
    is_whole: threading.Event
    """All messages of the space are in their places; it may wait for others yet."""

    copying: bool
    """Somebody makes a copy: nothing is removed of what is kept of the journal."""

    def changed(self) -> None:
        """The definitions: who waits looks again."""

    def check_shown(self) -> None:
        """ResourceFailed where nothing is published yet."""

    def await_others(self) -> None:
        """Returns once they have all that was recorded before this open, where they are waited for. Raises
        ResourceFailed where it is stopped before that."""

    def stop(self) -> None:
        """Nobody waits any more."""

    def close(self) -> None:
        """Of what is recorded from here on nobody is told."""


class Copying(Protocol):
    """Makes a copy of the directories."""

    def changing(self) -> None:
        """Copies what may change meanwhile, as it is found."""

    def again(self, paths: Iterable[str]) -> None:
        """Copies what is at these by now, or nothing any more."""

    def rest(self) -> None:
        """Copies all else; nothing changes meanwhile."""


class Keeping:
    """What memory keeps of the blocks of branches that are not prepared, which a crash may take: of either log."""

    _owner: Owner
    _kept_left = 0
    """What all may keep before it is counted again."""
    _writing_early: threading.Lock
    """Held while a block goes to active/: two sessions may find at once that it has to."""

    def _has_left(self, size: int) -> bool:
        """Whether so much more may be kept, by what branches keep now: nobody needs to say what he lets go."""
        self._kept_left = ALL_KEPT_BYTES - self._owner.kept()[0] - size
        return self._kept_left >= 0

    def _write_early(self, branch: Branch, blocks: Sequence[Written]) -> None:
        with suppress_room():
            for written in blocks:
                with self._writing_early:
                    if written.content is not None and not written.path:
                        head, body = written.content
                        self._write(branch, written, head, body)
                        size, count = branch.kept
                        size -= BLOCK_BYTES if written.original is not None else len(head) + len(body) + BLOCK_BYTES
                        branch.kept = size, count - 1

    def _write(self, branch: Branch, written: Written, head: bytes, body: bytes) -> None:
        """Makes the block's file in active/. Raises OSError."""
        raise NotImplementedError


class Log(GroupCommit):
    """The log of a space: all changes of its directories go through it, and it says when they are durable.

    A branch adds blocks (``add``, ``take``) that a crash may take. Each of its steps is a change, which ``perform``
    plans with the space's lock held, makes durable with no lock held, and publishes with the lock held again, in the
    order of the log; it returns behind that. Steps of several threads share a round of syncs. The first failure fences
    it: from then on every call raises ResourceFailed, and only another open finds out what became of the last round.

    A step is late, see ``perform_late``, where its caller says that it may be, or all queues of its branch do; where
    the level has none of that it waits as any other. Beside what ``GroupCommit.perform`` raises, it raises
    CommitPending.

    The directories are what a step says: at once, as it stands here, or (``follows``) once somebody has called
    ``follow``; then they hold less than memory for a moment, and ``read``, ``settle`` and ``exclusively`` are for
    whoever must not see that. A ``checkpoint`` ends what the next open would have to do again. ``Change`` is in
    ``xaqueue.core.model.change``.
    """

    fs: FileSystem
    is_atomic = False
    """Whether a step of several operations is one record, so that it needs no commit point of its own."""
    hardens_names: bool
    """Whether its steps sync the directories of what they move: the names in them are the record, and are to last."""
    follows = False
    """Whether the directories come behind it, when ``follow`` is called."""
    changed_queues: dict[str, Queue]
    """Queues to which a step has published since ``published_locked`` was called last."""
    checkpoints = 0
    """How many there were."""

    # Blocks of a branch that is active

    @property
    def adds_late(self) -> bool:
        """Whether who adds a message waits for the directories first."""
        return False

    def add(self, branch: Branch, written: Written, head: bytes, body: bytes, *, may_wait: bool = True) -> None:
        """Keeps the block, or writes it to active/. may_wait: for the directories, where it is a message and they are
        far behind. Raises OSError; where it is one of NO_ROOM nothing is left."""
        raise NotImplementedError

    def take(self, branch: Branch, taken: Sequence[Written], epoch: int) -> None:
        """Messages are dequeued: if this process is killed, that counts as a try of each. epoch: of their blocks. One
        without room for a block has it added later, or not at all: what ends the branch may need none. Raises
        ResourceFailed."""
        raise NotImplementedError

    def return_untried(self, *taken: Written) -> None:
        """If this process is killed from here on, these dequeues are no tries; a block says so of itself. Raises
        ResourceFailed."""

    def remember_takes(self, begin: Callable[[], Register]) -> None:
        """From here on takes are remembered there, where no block says so. Raises what begin raises."""

    def write_early(self, branch: Branch) -> None:
        """Writes to active/ what it keeps of the branch in memory, as far as there is room. Raises OSError."""

    def discard(self, paths: Iterable[str]) -> None:
        """Removes blocks in active/, which nobody was promised."""
        remove_all(self.fs, paths)

    # Content before name: it is on disk before a step gives it one, where no record is going to hold it

    def harden(self, branch: Branch) -> None:
        """What the blocks of a branch hold. Raises RetryLater where there is no room, and nothing has failed."""

    def harden_unprepared(self, branch: Branch, complete: Callable[[], None]) -> None:
        """As ``harden``, before a commit in one phase. complete: adds the blocks by which recovery finds all of it,
        where the step needs a commit point of its own."""

    def stage(self, path: str, head: bytes, body: bytes) -> None:
        """What a step is going to PUT there, where no record has it. Raises OSError; where it is one of NO_ROOM nothing
        is left."""

    def sync_contents(self, paths: Sequence[str]) -> None:
        """What these files hold is on disk, as far as the level asks for it."""

    def sync_names(self, directories: Sequence[str]) -> None:
        """The names in these directories are on disk, in this order, as far as the level asks for it."""

    # Steps

    def ahead(self, branch: Branch, change: Change) -> Change:
        """Does what of a prepare may be done before its step, and returns what is left. Raises as ``perform``."""
        return change

    def perform_unrecorded(self, plan: Callable[[], Change]) -> None:
        """As ``perform``, of what the next open does again: a journal has no record of it. Raises OSError, too."""
        self.perform(plan)

    def unhardened(self) -> dict[str, int]:
        """By queue the lowest number of a message that is published and not durable yet. Called with the lock held."""
        return {}

    def harden_late(self) -> None:
        """Returns once all is durable that was performed late. Raises RetryLater where there is no room."""
        self.check()

    def mark_published_locked(self) -> None:
        """What was kept back until now counts as published. Called with the lock held."""

    def ship(self, shipping: Shipping) -> None:
        """Each round is told there from here on, where it is recorded."""

    # The directories

    @property
    def pending(self) -> bool:
        """Whether the directories are behind."""
        return False

    @property
    def waiting_room(self) -> tuple[int, int]:
        """Bytes and files, about, that wait for room on the disk."""
        return 0, 0

    def read(self, path: str, *, may_wait: bool = True, at_once: int = HEAD_READ_BYTES) -> bytes:
        """A block's bytes, as of all that was published. may_wait: for the directories, where it is not in its place
        yet; at_once: of a larger file its head is read first. Raises OSError."""
        data = self.fs.read(path, at_once)  # as ``read_block``, which each dequeue would call
        return data if len(data) < at_once else self.fs.read(path, size_in_head(data) + 1)

    def modified_us(self, path: str) -> int:
        """When the message of this file was committed, int microseconds UTC, as of all that was published. Called with
        the lock held. Raises OSError."""
        return self.fs.modified_ns(path) // 1000

    def follow(self) -> None:
        """The directories come to all that was published before. Raises OSError, ResourceFailed; where it is one of
        NO_ROOM what waits goes on waiting."""

    def settle(self) -> None:
        """Returns once the directories hold all that was published. Raises as ``follow``."""

    def exclusively(self, call: Callable[[], None]) -> None:
        """Settles, and calls this while nobody but the steps changes the directories. Raises what either raises."""
        call()

    def copy(self, copying: Copying, settle: Callable[[], None]) -> int:
        """Has all of them copied as of one moment; steps go on meanwhile as far as they can. settle: as that one, and
        fences. Returns the LSN of that moment, 0 where there is no journal. Raises what either raises."""
        raise NotImplementedError

    def checkpoint(self) -> None:
        """What is in the directories is on disk, so that the next open need not do it again. Raises ResourceFailed,
        OSError, and RetryLater without room."""

    def checkpoint_in(self, every_s: float) -> float:
        """In how many seconds one is due, or is to be asked for again; so often one is made while there is work. NEVER
        where it needs none."""
        return NEVER

    @property
    def is_covered(self) -> bool:
        """Whether the last checkpoint has everything."""
        return True

    # What is told of it

    @property
    def journal_epoch(self) -> int:
        """In the names of its segments; 0 where there is no journal."""
        return 0

    @property
    def reads_of_memory(self) -> tuple[int, int] | None:
        """How many reads found their block in memory, and how many did not; None where it keeps none."""
        return None

    def figures(self) -> dict[str, int]:
        """What it counts, by the names in ``xaqueue.metrics``."""
        return {"rounds": self.rounds, "steps": self.steps}
