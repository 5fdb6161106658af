"""What a decision log says, for whoever does not own it: nothing is changed, and its owner may be at work meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from xaqueue.errors import DecisionLogDamaged, DecisionLogError, UnknownXid
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.tm.coordinator import standing
from xaqueue.tm.directory import is_owned, open_log
from xaqueue.tm.log import read
from xaqueue.tm.records import Table
from xaqueue.tm.standing import Heuristic, InDoubt
from xaqueue.xa import Outcome

LOOKS = 10
"""So often it looks again where the owner was in the middle of something."""


@dataclass(frozen=True, slots=True)
class LogView:
    """At one moment. Live transactions are not distinguished from those that wait for recovery."""

    node: str
    epoch: int
    in_use: bool
    """Whether a process has it open."""
    open: list[InDoubt]
    """Oldest first."""
    table: Table = field(repr=False)

    def decision(self, gtrid: bytes) -> Outcome | None:
        """COMMITTED; IN_DOUBT where it stands in the last resource; None where the log has no decision.

        None means rollback for a branch that is still prepared somewhere, unless its transaction is live.
        """
        return self.table.decision_on(gtrid)


def look(log_dir: str | os.PathLike[str]) -> LogView:
    """Raises DecisionLogError where there is no log, DecisionLogDamaged."""
    root = Path(log_dir)
    for left in reversed(range(LOOKS)):
        in_use = is_owned(root)
        fs = DirectoryFileSystem(root)
        try:
            found = read(fs)
        except (OSError, DecisionLogDamaged) as error:
            if left and (in_use or isinstance(error, FileNotFoundError)) and root.is_dir():
                time.sleep(0.02)
                continue
            if isinstance(error, DecisionLogDamaged):
                raise
            raise DecisionLogError(f"{root} cannot be read ({error}): name the directory of a decision log") from error
        finally:
            fs.close()
        if not found.node:
            raise DecisionLogError(f"{root} is no decision log: name the log_dir of a TransactionManager")
        shown = standing(found.table.open.values(), found.table.heuristics.values())
        return LogView(found.node, found.epoch, in_use, shown, found.table)
    raise AssertionError("unreachable")


def forget(log_dir: str | os.PathLike[str], gtrid: bytes) -> list[Heuristic]:
    """Ends the memory of a transaction's heuristics in a log that nobody has open; its participants are not told.

    Raises DecisionLogInUse (then TransactionManager.forget is the way), UnknownXid, DecisionLogError.
    """
    owned = open_log(log_dir)
    try:
        forgotten = [noted for (other, _), noted in owned.log.table.heuristics.items() if other == gtrid]
        if not forgotten:
            raise UnknownXid(f"transaction {gtrid.decode()} has no heuristics in {log_dir}")
        owned.log.forget(gtrid)
    finally:
        owned.close()
    return forgotten
