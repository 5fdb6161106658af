"""What features have to say when an owner opens a space and closes it, beside what they have in its steps: handed in by
whoever opens it (``xaqueue.features.opening``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from xaqueue.core.engine.memory import Features
from xaqueue.core.engine.state import Space
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.owner.chores import Chore
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.modes import Modes
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.core.storage.scheduling import Threads


class Guard(Protocol):
    """What stands between one owner and its directory, which others may take over while it lives, where it beats."""

    beats: bool

    def port(self, fs: FileSystem) -> FileSystem:
        """To the directory, into which former owners rename nothing from now on. Raises OSError, ResourceFailed."""

    def begin(self, epoch: int, modes: Modes) -> None:
        """The file ``owner`` is this process's."""

    def recovered(self, space: Space) -> None:
        """From now on there is one that is fenced."""

    def stop(self) -> None:
        """The owner has written its last word."""


class OwnerFeatures(Features):
    """Asked in this order."""

    def check(self, root: Path, definitions: Definitions, hardening: Hardening, waiting: Threads) -> None:
        """Whether it may be opened so; nothing is locked yet. Raises InvalidArgument, SpaceError."""

    def guard(self, root: Path, lock: OwnerFile, hardening: Hardening, *, is_taken: bool) -> Guard:
        """is_taken: the lock is that of a standby. Raises InvalidArgument."""
        raise NotImplementedError

    def begin(self, port: FileSystem) -> int:
        """It is locked, and nothing is read yet. Returns the epoch above which the owner's is to be. Raises OSError."""
        return 0

    def chores(self, space: Space, lasting: bool) -> Iterable[Chore]:
        """What is to be done now and then beside the core's own. lasting: it is to be open for long."""
        return ()

    def close(self, space: Space) -> None:
        """Before the last checkpoint. Raises ResourceFailed."""

    def closed(self, space: Space) -> None:
        """Behind it, where the directories hold everything."""
