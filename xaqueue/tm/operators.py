"""What an operator sees and does of a decision log: what it says, while its owner is at work, and what is forgotten.

Whoever forgets a transaction's heuristics is noted in the log directory's operators.log first: who, when and why. One
line of JSON for each heuristic, on disk before it is forgotten. Lines are only ever added; a crash may leave a torn
last one, or one of a heuristic that is not forgotten yet and is noted again when it is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from xaqueue.errors import DecisionLogDamaged, DecisionLogError
from xaqueue.storage import append_log
from xaqueue.storage.fs import DirectoryFileSystem, FileSystem
from xaqueue.storage.owner_file import is_owned
from xaqueue.tm.log import LogContent, read
from xaqueue.tm.status import Heuristic, InDoubtTransaction, in_doubt_transactions
from xaqueue.xa import Outcome

OPERATOR_LOG = "operators.log"
READS = 10
"""So often it reads again where the owner was in the middle of something."""


@dataclass(frozen=True, slots=True)
class LogView(LogContent):
    """At one moment. Live transactions are not distinguished from those that wait for recovery."""

    in_use: bool
    """Whether a process has it open."""
    open: list[InDoubtTransaction]
    """Oldest first."""

    def decision(self, gtrid: bytes) -> Outcome | None:
        """COMMITTED; IN_DOUBT where it stands in the last resource; None where the log has no decision.

        None means rollback for a branch that is still prepared somewhere, unless its transaction is live.
        """
        return self.table.decision_on(gtrid)


def view_log(log_dir: str | os.PathLike[str]) -> LogView:
    """Changes nothing. Raises DecisionLogError where there is no log, DecisionLogDamaged."""
    root = Path(log_dir)
    for left in reversed(range(READS)):
        in_use = is_owned(root)
        try:
            with closing(DirectoryFileSystem(root)) as fs:
                content = read(fs)
            break
        except (OSError, DecisionLogDamaged) as error:
            if left and (in_use or isinstance(error, FileNotFoundError)) and root.is_dir():
                time.sleep(0.02)
            elif isinstance(error, DecisionLogDamaged):
                raise
            else:
                raise DecisionLogError(
                    f"{root} cannot be read ({error}): name the directory of a decision log"
                ) from error
    if not content.node:
        raise DecisionLogError(f"{root} is no decision log: name the log_dir of a TransactionManager")
    table = content.table
    in_doubt = in_doubt_transactions(table.open.values(), table.heuristics.values())
    return LogView(content.node, content.epoch, table, in_use, in_doubt)


@dataclass(frozen=True, slots=True)
class ForgottenHeuristic:
    """A line of operators.log: what a participant did by itself, and who ended its memory. Times are int us UTC."""

    gtrid: str
    participant: str
    decision: str
    party: str
    noticed_at: int
    detail: str
    forgotten_by: str
    forgotten_at: int
    forgotten_reason: str


def record_forgotten(fs: FileSystem, heuristics: Sequence[Heuristic], by: str, at_us: int, reason: str) -> None:
    """Adds the lines, durably. fs: the log's directory, whose lock the caller has. Raises DecisionLogError."""
    try:
        for noted in heuristics:
            did = noted.participant, noted.decision.value, noted.outcome.value, noted.when_us, noted.detail
            line = ForgottenHeuristic(noted.gtrid.decode("ascii"), *did, by, at_us, reason)
            append_log.append(fs, OPERATOR_LOG, json.dumps(asdict(line)).encode())
        fs.sync_file(OPERATOR_LOG)
        fs.sync_dir("")
    except OSError as error:
        raise DecisionLogError(
            f"{OPERATOR_LOG} cannot be written ({error}): nothing is forgotten, try again"
        ) from error


def read_forgotten(fs: FileSystem) -> list[ForgottenHeuristic]:
    """The heuristics that operators forgot, in their order; those that ``TransactionManager.forget`` ended are none."""
    found = []
    for line in append_log.read(fs, OPERATOR_LOG):
        try:
            found.append(ForgottenHeuristic(**json.loads(line)))
        except (ValueError, TypeError):
            continue  # torn by a crash, or of a later version
    return found
