"""Whoever forgets a transaction's heuristics is told in the log directory's operators.log first: who, when and why.

One line of JSON for each heuristic, on disk before it is forgotten. Lines are only ever added; a crash may leave a torn
last one, or one of a heuristic that is not forgotten yet and is told again when it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from xaqueue.errors import DecisionLogError
from xaqueue.storage import append_log
from xaqueue.storage.fs import FileSystem
from xaqueue.tm.standing import Heuristic

OPERATORS = "operators.log"


@dataclass(frozen=True, slots=True)
class Forgotten:
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


def record(fs: FileSystem, heuristics: Sequence[Heuristic], by: str, at_us: int, reason: str) -> None:
    """Adds the lines, durably. fs: the log's directory, whose lock the caller has. Raises DecisionLogError."""
    try:
        for noted in heuristics:
            told = Forgotten(
                noted.gtrid.decode("ascii"),
                noted.participant,
                noted.decision.value,
                noted.party.value,
                noted.when_us,
                noted.detail,
                by,
                at_us,
                reason,
            )
            append_log.append(fs, OPERATORS, json.dumps(asdict(told)).encode())
        fs.sync_file(OPERATORS)
        fs.sync_dir("")
    except OSError as error:
        raise DecisionLogError(f"{OPERATORS} cannot be written ({error}): nothing is forgotten, try again") from error


def forgotten(fs: FileSystem) -> list[Forgotten]:
    """The heuristics that operators forgot, in their order; those that ``TransactionManager.forget`` ended are none."""
    found = []
    for line in append_log.read(fs, OPERATORS):
        try:
            found.append(Forgotten(**json.loads(line)))
        except (ValueError, TypeError):
            continue  # torn by a crash, or of a later version
    return found
