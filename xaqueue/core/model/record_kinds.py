"""What a space keeps beside its messages and branches, by kinds: a kind is a directory or a file of the space.

The core has some of its own; every other one comes from the folder of a feature, and whoever opens a space, or looks
into it, hands them all over. A kind does what it has to do at the points below, and leaves the others as they are here.

An open, after the queues were found and before any message is loaded, comes to these in turn:

    replayed    before all that: what a journal is to make of the directories
    find        what stands there
    meet        which branches have files; they are not judged yet
    commits     whether a branch that is prepared is committed all the same
    adopt       a branch of which something is left to do; then ``doubt`` where that is not decided
    undone      a branch is rolled back: it never was prepared
    settle      every branch is what its own files say
    hardened    which files are believed, so that their content must be on disk, and ``places`` whose names must be
    tidy        all of that is on disk
    finish      every message is loaded

Who looks at a space that is open or not asks ``check`` what is wrong, and ``view`` what is to be shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from xaqueue.core.model.block import Head
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.change import Final
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal import Journal
from xaqueue.message import MessageId
from xaqueue.xid import Xid

Named = Mapping[str, Mapping[MessageId, bytes]]
"""By queue the messages that blocks of branches name, each with the key that is claimed with it."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Of a space that is being opened; for reading only where ``space.read_only`` says why."""

    space: Any
    set_aside: Callable[[str, str], object]
    """What stands at a path is damaged or foreign, for a reason: quarantined, where anything may be changed."""
    note: Callable[[str], object]
    """What an operator is to know."""
    journal: Journal | None = None
    """Where steps are recorded, at the level that has one."""
    reread: Callable[[], Definitions] | None = None
    """What is defined by now, while nobody watches that yet. Raises InvalidArgument, OSError."""


class Advice(NamedTuple):
    """What a feature says to an operator whose directory cannot be opened as it is; empty for nothing."""

    unfinished: str = ""
    """A sentence: what was cut off, and what finishes it."""
    copy: str = ""
    """Which command has a copy of the space in its place."""
    behind: str = ""
    """What brings in what the journal has ahead of the directories, where an open does not."""


class Decided(NamedTuple):
    """What a record says of a branch that is prepared, and how that is said."""

    commits: bool
    why: str


Finds = Callable[[str, str], object]
"""Of a path, with what is to be said of it."""


@dataclass(frozen=True, slots=True)
class Looking:
    """Of who checks the files of a space, which an owner may be changing. ``fs`` has what the next open makes of them.

    live: an owner is at work. epoch: of the last one. holds: whether a queue has a message.
    """

    fs: FileSystem
    live: bool
    epoch: int
    holds: Callable[[str, MessageId], bool]
    damaged: Finds
    """The file itself is bad, and can be set aside."""
    broken: Finds
    """Something is bad that moving this file would not mend."""
    leftover: Finds
    """A crash has left it for the next open to finish."""
    note: Finds
    """Nothing is wrong."""


class RecordKind:
    """Every method may raise OSError and what a step of the engine raises."""

    directory = ""
    """Where its files are; empty where it has none of its own. One that starts with a dot is in each queue's."""
    names: re.Pattern[str] | None = None
    """Of its files there, which steps make."""
    others: tuple[str, ...] = ()
    """What else it has at the top of the space."""
    signs: tuple[str, ...] = ()
    """Of these what only an owner makes."""
    copied: tuple[str, ...] = ()
    """Of these what a snapshot copies."""
    steps: tuple[IntEnum, ...] = ()
    """Those of a journal that only it makes, each with a number of its own."""

    def made(self, fs: FileSystem, now_us: int) -> None:
        """A space is being made: what it has from the beginning."""

    def begin(self, opening: Opening) -> None:
        """Before the queues are looked for: what is known of one whose directory may be gone."""

    def find(self, opening: Opening) -> None:
        """No file may be changed where the space is open for reading only."""

    def meet(self, opening: Opening, xids: Iterable[Xid], named: Named) -> None:
        """xids: of branches that have files in ``prepared/``, or lost them."""

    def commits(self, space: Any, found: Any, files: Mapping[str, str]) -> bool:
        """found: what ``prepared.survey`` says of it. files: its paths by suffix."""
        return False

    def adopt(self, space: Any, branch: Branch, found: Any) -> None:
        """Its blocks were added."""

    def doubt(self, space: Any, branch: Branch) -> None:
        pass

    def undone(self, space: Any, xid: Xid, heads: Sequence[Head]) -> None:
        """heads: of its blocks, as far as they can be read."""

    def settle(self, opening: Opening) -> tuple[int, int]:
        """How many branches it has committed, and how many rolled back."""
        return 0, 0

    def replayed(self, fs: FileSystem, wanted: Final) -> None:
        """A replay of the journal is about to make the directories so: what is not to be made again is taken out."""

    def hardened(self, space: Any) -> Iterable[str]:
        return ()

    def places(self, space: Any) -> Iterable[str]:
        """Directories; where a file moves from one to another, that comes first."""
        return [self.directory] if self.directory and not self.directory.startswith(".") else []

    def tidy(self, space: Any) -> None:
        pass

    def finish(self, opening: Opening) -> None:
        pass

    def decides(self, fs: FileSystem, xid: Xid) -> Decided | None:
        """For who looks without opening."""
        return None

    def check(self, look: Looking, name: str, path: str) -> None:
        """Of a file in its directory."""

    def check_queue(self, look: Looking, queue: str) -> None:
        """Of what it has in the directory of a queue."""

    def check_space(self, look: Looking) -> None:
        """Of the rest."""

    def advice(self, root: Path) -> Advice:
        return Advice()

    def bring(self, newer: Any) -> None:
        """A snapshot takes the place of the space: what came after it is linked beside it, with ``newer.Newer``."""

    def view(self, fs: FileSystem) -> dict[str, Any]:
        """By name the fields that it has in the status of a space, which only the directory tells."""
        return {}

    def view_queue(self, fs: FileSystem, queue: str) -> dict[str, Any]:
        """Likewise, of one queue."""
        return {}

    def queues(self, fs: FileSystem) -> Iterable[str]:
        """Those of which it has something, whether they have a directory or not."""
        return ()


RecordKinds = Sequence[RecordKind]
