"""The named steps of a global transaction, at each of which a test may kill and an operator's trace may look.

``TransactionManager(on_step=...)`` calls with the step, the gtrid and the participant's name ("" where it is about all
of them). What is raised there is raised out of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """In the order of a transaction. Each but DECIDED, DONE and those in the past tense comes before what it names."""

    BEGIN = "begin"
    PREPARE = "prepare"
    PREPARED = "prepared"
    DECIDE = "decide"
    DECIDED = "decided"
    COMMIT_LAST = "commit-last"
    COMMITTED_LAST = "committed-last"
    COMMIT = "commit"
    COMMITTED = "committed"
    ROLLBACK = "rollback"
    ROLLED_BACK = "rolled-back"
    DONE = "done"


OnStep = Callable[[Step, bytes, str], None]


def unwatched(step: Step, gtrid: bytes, participant: str) -> None:
    """Nobody looks."""
