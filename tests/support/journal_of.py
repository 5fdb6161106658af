"""What tests look into: the log of a space, as what it is."""

from __future__ import annotations

from xaqueue.core.engine.journal_log import JournalLog
from xaqueue.core.engine.state import Space
from xaqueue.core.storage.group_commit import GroupCommit


def journal_log(space: Space) -> JournalLog | None:
    """None where the space has no journal."""
    return space.log if isinstance(space.log, JournalLog) else None


def journal_of(space: Space) -> JournalLog:
    assert isinstance(space.log, JournalLog)
    return space.log


def rounds_of(space: Space) -> GroupCommit:
    assert isinstance(space.log, GroupCommit)
    return space.log
