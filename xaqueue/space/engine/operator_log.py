"""What operators decided outlives its record: who forgets a decision by hand is told in operators.log first.

One line of JSON each, hardened to the level of the space before the record goes; lines are only ever added. A crash may
leave a torn last line, which is skipped, or a line whose decision is not forgotten yet: then it is told once more when
it is. What the transaction manager forgets was told to it, and stands in its own log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.space.engine import heuristics
from xaqueue.space.engine.heuristics import Decision, check_text
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.space.model.format import read_format
from xaqueue.space.model.layout import HEURISTIC, OPERATORS
from xaqueue.storage import append_log
from xaqueue.storage.directory_fs import DirectoryFileSystem
from xaqueue.storage.fs import NO_ROOM, FileSystem
from xaqueue.storage.regular import NO_FILE
from xaqueue.xid import Xid


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A line of operators.log: a decision, and who ended its memory. Times are int microseconds UTC."""

    xid: str
    outcome: str
    by: str
    at: int
    reason: str
    forgotten_by: str
    forgotten_at: int
    forgotten_reason: str


def forget(session: Session, xid: Xid, by: str, reason: str = "") -> None:
    """Forgets the decision on a branch, by hand: recorded first.

    Raises UnknownXid where there is none, ProtocolError where it is not carried out yet, RetryLater without room.
    """
    check_text("operator", by)
    check_text("reason", reason)
    space = session.space
    decision = _decision(space, xid)
    if decision is not None:
        entry = Forgotten(
            str(xid), decision.outcome, decision.by, decision.at, decision.reason, by, space.now_us(), reason
        )
        _append(space, entry)
    session.forget(xid)


def forgotten(path: str | os.PathLike[str]) -> list[Forgotten]:
    """The decisions that operators forgot, in their order. Raises SpaceError where the directory is no space."""
    read_format(path)
    return forgotten_in(DirectoryFileSystem(Path(path), keep_unsynced=False))


def forgotten_in(fs: FileSystem) -> list[Forgotten]:
    """As ``forgotten``, of the space behind a port."""
    return append_log.read(fs, OPERATORS, Forgotten)


def _decision(space: Space, xid: Xid) -> Decision | None:
    """The decision that can be forgotten now; None where ``forget`` will say why not."""
    with space.lock:
        space.check()
        branch = space.branches.get(xid)
        if branch is None or branch.decided is not None:
            return None
    try:
        return heuristics.parse(space.read_record(f"{HEURISTIC}/{xid}"))
    except (FileNotFoundError, DamagedBlock):
        return None


def _append(space: Space, entry: Forgotten) -> None:
    space.check()
    try:
        append_log.append(space.fs, OPERATORS, entry)
    except OSError as error:
        if error.errno not in NO_ROOM | NO_FILE:
            raise space.fence(error) from error
        raise RetryLater(f"{OPERATORS} cannot be written ({error.strerror}): nothing was forgotten") from error
    space.log.sync_contents((OPERATORS,))
    space.log.sync_names(("",))
