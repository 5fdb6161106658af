"""What operators decided outlives its record: who forgets a decision by hand is told in operators.log first.

A crash between the two leaves a line whose decision is not forgotten yet: then it is told once more when it is. What
the transaction manager forgets was told to it, and stands in its own log.
"""

from __future__ import annotations

import os
from pathlib import Path

from xaqueue.errors import DamagedBlock
from xaqueue.space.engine import heuristics
from xaqueue.space.engine.heuristics import Decision, check_text
from xaqueue.space.engine.operator_lines import Forgotten, append
from xaqueue.space.engine.session import Session
from xaqueue.space.engine.state import Space
from xaqueue.space.model.format import read_format
from xaqueue.space.model.layout import HEURISTIC, OPERATORS
from xaqueue.storage import append_log
from xaqueue.storage.directory_fs import DirectoryFileSystem
from xaqueue.storage.fs import FileSystem
from xaqueue.xid import Xid


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
        append(space, entry)
    session.forget(xid)


def forgotten(path: str | os.PathLike[str]) -> list[Forgotten]:
    """The decisions that operators forgot, in their order. Raises SpaceError where the directory is no space."""
    read_format(path)
    return forgotten_in(DirectoryFileSystem(Path(path), keep_unsynced=False))


def forgotten_in(fs: FileSystem) -> list[Forgotten]:
    """As ``forgotten``, of the space behind a port."""
    return [line for line in append_log.read(fs, OPERATORS, Forgotten) if line.forgotten_at]


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
