"""What opening a space found and did."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RecoveryReport:
    """Counts of branches, of messages, and every file that was set aside."""

    messages: int = 0
    committed: int = 0
    """Finished before the crash but for their last file."""
    rolled_forward: int = 0
    """Decided before the crash and completed now."""
    rolled_back: int = 0
    in_doubt: int = 0
    heuristic: int = 0
    """Decided by an operator and not yet forgotten."""
    quarantined: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages; branches: {self.committed} committed, {self.rolled_forward} rolled forward, "
            f"{self.rolled_back} rolled back, {self.in_doubt} in doubt, {self.heuristic} heuristic; "
            f"{len(self.quarantined)} files quarantined; {self.seconds:.2f} s"
        )
