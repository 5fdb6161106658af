"""A batch is what a query writes at once: many branches, one decision, remembered so that none is written twice.

Its branches share a global transaction id that says which batch of which query they are of. So whoever finds one,
after a crash or long after the query is gone, knows what to ask for: is that batch decided, and is this branch in it?
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256

from xaqueue.errors import InvalidArgument
from xaqueue.xid import Xid

ONE_SPACE = 0x58415342
"""Format id ("XASB") of branches whose batch is decided in the space that they are in."""
MANY_SPACES = 0x5841534D
"""Format id ("XASM") of those whose batch may be decided in another space: nobody but its query may roll them back."""
HOME_DIGITS = 12
"""Of the id of the space that decides, at the end of the bqual of a branch over several spaces."""
OFFSETS_LIMIT = 64 * 1024
"""Characters of a plan's offsets. A longer text is left out: the digest alone tells it from another."""
MAX_CHARACTERS = 1000
"""Of these, in an error."""

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch is made from and where it goes: another one of the same number differs in this."""

    digest: str = ""
    """Of what was written down before the batch was run; empty where that cannot be seen."""
    offsets: str = ""
    """The same for people, as far as it is known."""
    spaces: tuple[str, ...] = ()
    """The ids of all spaces of the sink, the one that decides first; empty where nobody said."""
    once: bool = False
    """The query has this one batch and never comes again, so nobody will ask for it."""

    def __str__(self) -> str:
        if self.offsets:
            cut = " ..." if len(self.offsets) > MAX_CHARACTERS else ""
            return f"made from {self.offsets[:MAX_CHARACTERS]}{cut}"
        return f"made from offsets of digest {self.digest[:12]}" if self.digest else "made from offsets unknown here"


def key_of(gtrid: bytes) -> str:
    """Of the query of a batch's gtrid."""
    return gtrid.partition(b":")[0].decode()


def home_of(xid: Xid) -> str:
    """The beginning of the id of the space that decides the branch's batch; empty where the branch does not say."""
    home = xid.bqual.rpartition(b"@")[2] if b"@" in xid.bqual else b""
    return home.decode("ascii", "replace") if xid.format_id == MANY_SPACES else ""


BATCH_FORMAT_IDS = (ONE_SPACE, MANY_SPACES)


def is_of_a_batch(xid: Xid) -> bool:
    """Whether the branch was written by a query, to be decided with its batch."""
    return xid.format_id in BATCH_FORMAT_IDS and parse_gtrid(xid.gtrid) is not None


_AGAIN = (
    "An older checkpoint was put back, or one name is used for two queries: bring back the checkpoint of what was "
    "written last, or start another one that begins behind it"
)


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """What a space remembers of the last batch of a query that was committed."""

    batch: Batch
    xids: tuple[Xid, ...]
    """Its branches in this space."""
    others: tuple[tuple[str, Xid], ...] = ()
    """Its branches in other spaces, with the ids of those."""
    messages: int = 0
    """In this space."""
    decided_at: int = 0
    """Int microseconds UTC."""
    plan: Plan = field(default_factory=Plan)

    def why_not(self, batch: Batch, plan: Plan) -> str:
        """Why a batch of the same query is not written, or taken for this one; empty where it is this one."""
        last, made = self.batch, self.plan
        if batch.number < last.number:
            return (
                f"{batch} is refused and nothing is written: it is {plan}, and the query has written up to batch "
                f"{last.number} already, {made}. {_AGAIN}"
            )
        if made.digest and plan.digest and made.digest != plan.digest:
            return (
                f"{batch} is refused and nothing is written: it is {plan}, and this batch was written before, "
                f"{made} (digest {made.digest[:12]}, not {plan.digest[:12]}). {_AGAIN}"
            )
        if made.spaces and plan.spaces and set(made.spaces) != set(plan.spaces):
            return (
                f"{batch} is refused and nothing is written: it went to the spaces of id {', '.join(made.spaces)} and "
                f"is now to go to {', '.join(plan.spaces)}; name those again, until the query has gone on"
            )
        return ""
