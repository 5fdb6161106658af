"""A global transaction's name says who coordinates it: node id, boot epoch and a counter, in printable ASCII.

    XAQ1 <node id, 16 hex digits> <boot epoch, 8> <counter, 16>          44 characters, without the spaces
    XAQ2 <database's id, 16> <node id, 16> <sign, 8> <counter, 16>       60

The node id is the decision log's for life; the epoch counts its openings. So recovery knows its own branches among
those of others, and those of an earlier boot, which nobody can be working on, among its own. Where a database keeps
the decisions of many processes, each has a node id of its own there, and the number of its last sign of life stands in
the place of the epoch. The second part of each branch's xid, bqual, is the name of its participant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xaqueue.errors import InvalidArgument

FORMAT_ID = 0x58415154
"""Format id ("XAQT") of the branches of a transaction manager."""
TEXT = re.compile(r"XAQ(?:1|2([0-9a-f]{16}))([0-9a-f]{16})([0-9a-f]{8})([0-9a-f]{16})")
"""Of a gtrid: nothing in it means anything to a database."""
COUNTED = 24
"""The characters behind the node id, of the epoch and the counter."""
_NODE = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[!-~]{1,64}")


@dataclass(frozen=True, slots=True)
class Gtrid:
    """node: 16 hex digits. epoch: 1 to 2**32-1. counter: 0 to 2**64-1. database: 16 hex digits of the one that has its
    node, or "". Raises InvalidArgument for anything else."""

    node: str
    epoch: int
    counter: int
    database: str = ""

    def __post_init__(self) -> None:
        are_ids = _NODE.fullmatch(self.node) and _NODE.fullmatch(self.database or self.node)
        if not are_ids or not 0 < self.epoch < 2**32 or not 0 <= self.counter < 2**64:
            raise InvalidArgument(f"node {self.node!r}, epoch {self.epoch}, counter {self.counter} make no gtrid")

    def __str__(self) -> str:
        return f"{self.of_node}{self.epoch:08x}{self.counter:016x}"

    @property
    def of_node(self) -> str:
        """What all names of its node begin with."""
        return f"XAQ2{self.database}{self.node}" if self.database else f"XAQ1{self.node}"

    def __bytes__(self) -> bytes:
        return str(self).encode("ascii")

    @classmethod
    def parse(cls, gtrid: bytes | str) -> Gtrid | None:
        """What ``str`` or ``bytes`` made of one; None for the gtrid of anyone else."""
        text = gtrid if isinstance(gtrid, str) else gtrid.decode("latin-1")
        match = TEXT.fullmatch(text)
        if match is None or int(match[3], 16) == 0:
            return None
        return cls(match[2], int(match[3], 16), int(match[4], 16), match[1] or "")


@dataclass(frozen=True, slots=True)
class ListedBranch:
    """A branch that a participant's recovery listed, and that some xaqueue.tm has named."""

    gtrid: Gtrid
    participant: str
    xid: Any
    """As the driver made it, to be handed back to it."""


def parse_listed(xid: Sequence[Any]) -> ListedBranch | None:
    """Whose branch this is; None where no transaction manager of this kind has named it.

    xid: any sequence of three; its parts may be str or bytes, or None where the driver could not read them.
    """
    format_id, gtrid, bqual = xid[0], xid[1], xid[2]
    if format_id != FORMAT_ID or not isinstance(gtrid, (bytes, str)) or not isinstance(bqual, (bytes, str)):
        return None
    parsed = Gtrid.parse(gtrid)
    name = bqual if isinstance(bqual, str) else bqual.decode("latin-1")
    return ListedBranch(parsed, name, xid) if parsed is not None else None


def checked_name(name: str) -> str:
    """A participant's name, which is its branches' bqual. Raises InvalidArgument."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"participant name {name!r} is refused: 1 to 64 printable ASCII characters, no space")
    return name
