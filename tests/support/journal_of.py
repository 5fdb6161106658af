"""What tests look into: the log of a space, as what it is."""

from __future__ import annotations

import pytest

from xaqueue.core.engine.journal_log import JournalLog
from xaqueue.core.engine.state import Space
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.group_commit import GroupCommit
from xaqueue.core.storage.journal import Journal


def journal_log(space: Space) -> JournalLog | None:
    """None where the space has no journal."""
    return space.log if isinstance(space.log, JournalLog) else None


def journal_of(space: Space) -> JournalLog:
    assert isinstance(space.log, JournalLog)
    return space.log


def show_writes(patch: pytest.MonkeyPatch, journal: Journal) -> None:
    """Each write of a round comes by ``write_synced`` of all ports of this journal, for who patches one of them."""
    patch.setattr(DirectoryFileSystem, "held", lambda _: None)
    patch.setattr(journal, "_write", journal._fs.writer(journal._path(journal._segments[-1].name)))


def rounds_of(space: Space) -> GroupCommit:
    assert isinstance(space.log, GroupCommit)
    return space.log
