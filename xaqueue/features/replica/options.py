"""What queues.toml says of replicas.

[replication]
acknowledge = "replica"            # a commit returns once a replica has it on disk; or "local", as without it
acknowledge_timeout_s = 10         # without a replica it fails after so many seconds: its outcome is unknown
keep_mib = 1024                    # so much of the journal is kept for a replica that was away
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.options import Table, all_of, choice, number, values
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Replication:
    """Whether the journal is made ready for replicas, and whether steps wait for one."""

    is_on: bool = False
    waits: bool = False
    timeout_s: float = 10.0
    keep_bytes: int = 0
    """Of the journal, for a replica that was away."""


NO_REPLICATION = Replication()
KEYS = (
    choice("acknowledge", "local", "replica"),
    number("acknowledge_timeout_s", 10.0, "a number", 0.1, 3600),
    number("keep_mib", 1_024.0, "a number", 0, 1_048_576),
)


def _replication(table: Mapping[str, Any]) -> Replication:
    said = values(table, "[replication]", KEYS)
    acknowledge, timeout_s, keep_mib = all_of(KEYS, said)
    return Replication(True, acknowledge == "replica", timeout_s, int(keep_mib * 1024 * 1024))


TABLE = Table("replication", _replication)


def policy_of(definitions: Definitions) -> Replication:
    found: Replication = definitions.tables.get(TABLE.name, NO_REPLICATION)
    return found


def check_reloading(space: Any, definitions: Definitions) -> None:
    """InvalidArgument where steps were to wait for a replica that nobody can follow here."""
    if policy_of(definitions).waits and (space.shipping is None or space.waiting is THREADS):
        raise InvalidArgument(
            'queues.toml: [replication] acknowledge = "replica" holds from the next start of `xaqueue serve` on, '
            "and no step waits for a replica before that: stop who has the space open, and start the server"
        )
