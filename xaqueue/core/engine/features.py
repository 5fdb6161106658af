"""What is attached to a space by whoever opens it: what features have to say, in one hand-over. The core names none.

A space of the core alone has the classes here, which do nothing, and is whole; ``xaqueue.features.opening`` hands in
all features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch, Rule
from xaqueue.core.model.change import Op
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.record_kinds import RecordKinds
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.modes import Modes
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.core.storage.scheduling import Threads
from xaqueue.errors import Error, NotSupportedError
from xaqueue.message import Message, MessageId, Properties


class Returns:
    """What becomes of the messages that a branch has taken where it comes to nothing. Here they are as they were."""

    def of(self, space: Any, branch: Branch) -> list[Any]:
        """What comes back when this branch is rolled back."""
        taken = [one for one in branch.blocks if one.kind is Kind.DEQUEUE]
        return [(one.queue, one.entry) for one in taken if one.entry is not None]

    def records(self, space: Any, back: Sequence[Any]) -> list[Op]:
        """What the rollback records of these, as far as there is room. Raises ResourceFailed."""
        return []

    def publish_locked(self, space: Any, back: Sequence[Any]) -> None:
        for name, entry in back:
            queue = space.queue(name)
            queue.index.release(entry)
            queue.arrived.notify_all()


class Gate:
    """What has a say in what queues hand out, for as long as there is reason. This one lets everything through."""

    def shuts(self, queue: str) -> Error | None:
        """Why this queue hands nothing out now. Called with the lock held."""
        return None

    def hides(self, queue: str) -> str:
        """Who may hold messages for this queue of which the space knows nothing yet. Called with the lock held."""
        return ""

    def passes(self, message: Message) -> None:
        """It is handed out, or shown."""


class Definer:
    """Changes what is defined, durably. Here nothing is."""

    def define(self, name: str, settings: Mapping[str, Any], table: str) -> None:
        """Changes the definition of a queue, or of what that table has."""
        raise NotSupportedError(f"{table.removesuffix('s')} {name} is not defined here: the space has no queues.toml")

    def undefine(self, queue: str) -> None:
        """Takes the definition of a queue that has no message away."""
        self.define(queue, {}, "queues")


class Guard:
    """What stands between one owner and its directory. Here nobody takes that over while the owner lives."""

    beats = False
    """Others may take it over: the owner says now and then that it lives."""

    def port(self, fs: FileSystem) -> FileSystem:
        """To the directory, into which former owners rename nothing from now on. Raises OSError, ResourceFailed."""
        return fs

    def begin(self, epoch: int, modes: Modes) -> None:
        """The file ``owner`` is this process's."""

    def recovered(self, space: Any) -> None:
        """From now on there is one that is fenced."""

    def stop(self) -> None:
        """The owner has written its last word."""


class Keeping(NamedTuple):
    """What is to be done with a journal, beside recording steps in it."""

    is_shared: bool = False
    """Somebody else may have its records before they are published here; see ``Journal.start``."""
    kept_in: str = ""
    """The directory, in one at the top, for segments that a checkpoint covers; empty: they are used again."""
    is_timed: bool = False
    """With the times of its rounds."""


Admit = Callable[[Any, Branch, str, MessageId, Properties], MessageId | None]
"""Which message of the queue one with these properties comes to, where it is none of its own."""


class Features:
    rules: Mapping[int, Rule] = MappingProxyType({})
    """By the format id of an xid."""
    admits: Sequence[Admit] = ()
    returns = Returns()
    kinds: RecordKinds = ()
    """Of what they keep in the space's directory."""
    checkpoints: Sequence[Callable[[Any], Callable[[], object] | None]] = ()
    """Called with the space before a checkpoint; returns what is to be done behind it: what was true before is durable
    then. That may raise OSError, ResourceFailed."""

    def admit(self, space: Any, branch: Branch, queue: str, new: MessageId, wanted: Properties) -> MessageId | None:
        """Before a message with properties of its own is added, and before there is a block of it: as ``Admit``."""
        return next((one for ask in self.admits if (one := ask(space, branch, queue, new, wanted)) is not None), None)

    def merge(self, space: Any, branch: Branch) -> None:
        """Before a branch of ``commit.MANY`` blocks or more is prepared, or committed: as long as it is active, what it
        adds may be in fewer of them. It is busy."""

    def keep(self, space: Any, branch: Branch, ops: list[Op], removals: list[Op]) -> Sequence[Sequence[Any]]:
        """In the plan of a commit that takes of a queue whose messages are kept: makes moves of removals, and adds to
        ops, or returns it as of ``Change.beside``, what it says of them."""
        return ()

    # While a space is opened and closed, in this order

    def check(self, root: Path, definitions: Definitions, hardening: Hardening, waiting: Threads) -> None:
        """Whether it may be opened so; nothing is locked yet. Raises InvalidArgument, SpaceError."""

    def guard(self, root: Path, lock: OwnerFile, hardening: Hardening, *, is_taken: bool) -> Guard:
        """is_taken: the lock is that of a standby. Raises InvalidArgument."""
        return Guard()

    def begin(self, port: FileSystem) -> int:
        """It is locked, and nothing is read yet. Returns the epoch above which the owner's is to be. Raises OSError."""
        return 0

    def keeping(self, definitions: Definitions) -> Keeping:
        """Of the journal, where the space has one."""
        return Keeping()

    def definer(self, root: Path, space: Any) -> Definer:
        """Of what the directory's queues.toml says."""
        return Definer()

    def chores(self, space: Any, lasting: bool) -> Iterable[Any]:
        """Each a ``Chore`` beside the core's own. lasting: it is to be open for long."""
        return ()

    def close(self, space: Any) -> None:
        """Before the last checkpoint. Raises ResourceFailed."""

    def closed(self, space: Any) -> None:
        """Behind it, where the directories hold everything."""
