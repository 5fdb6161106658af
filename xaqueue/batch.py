"""A batch is what a query writes at once: many branches, one decision, remembered so that none is written twice.

Its branches share a global transaction id that says which batch of which query they are of. So whoever finds one,
after a crash or long after the query is gone, knows what to ask for: is that batch decided, and is this branch in it?
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from xaqueue.errors import InvalidArgument
from xaqueue.xid import Xid

ONE_SPACE = 0x58415342
"""Format id ("XASB") of branches whose batch is decided in the space that they are in."""
SEVERAL_SPACES = 0x5841534D
"""Format id ("XASM") of those whose batch may be decided in another space: nobody but its query may roll them back."""
KEPT = 100
"""Decided batches of a query that a space remembers."""

QUERY_LIMIT = 200
NUMBER_LIMIT = 2**63 - 1
_KEY = re.compile(r"[0-9a-f]{32}")
_GTRID = re.compile(rb"([0-9a-f]{32}):(0|[1-9][0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch ``number`` (from 0) of a query, named by up to 200 printable characters. Raises InvalidArgument."""

    query: str
    number: int

    def __post_init__(self) -> None:
        if not isinstance(self.query, str) or not 0 < len(self.query) <= QUERY_LIMIT or not self.query.isprintable():
            raise InvalidArgument(
                f"query {str(self.query)[:60]!r} is refused: a line of 1 to {QUERY_LIMIT} characters is wanted"
            )
        if type(self.number) is not int or not 0 <= self.number <= NUMBER_LIMIT:
            raise InvalidArgument(f"batch {self.number!r} is refused: a number from 0 is wanted")

    @property
    def key(self) -> str:
        """32 hexadecimal digits that stand for the query: those of a UUID, or of a digest of any other name."""
        digits = self.query.lower().replace("-", "")
        return digits if _KEY.fullmatch(digits) else sha256(self.query.encode()).hexdigest()[:32]

    @property
    def gtrid(self) -> bytes:
        """Of all its branches: the key, a colon and the number."""
        return f"{self.key}:{self.number}".encode()

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


def parse_gtrid(gtrid: bytes) -> tuple[str, int] | None:
    """Key and number of the batch that a gtrid is of; None for one that is of none."""
    found = _GTRID.fullmatch(gtrid)
    return (found[1].decode(), int(found[2])) if found else None


def is_of_a_batch(xid: Xid) -> bool:
    """Whether the branch was written by a query, to be decided with its batch."""
    return xid.format_id in (ONE_SPACE, SEVERAL_SPACES) and parse_gtrid(xid.gtrid) is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a space remembers of a batch that was committed. A batch without one was not."""

    batch: Batch
    xids: tuple[Xid, ...]
    """Its branches in this space."""
    others: tuple[tuple[str, Xid], ...] = ()
    """Its branches in other spaces, with the ids of those."""
    messages: int = 0
    """In this space."""
    decided_at: int = 0
    """Int microseconds UTC."""
