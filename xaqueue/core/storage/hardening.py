"""How durable an acknowledged step is: the flag strings, parsed once, refused with their grammar.

Source of the grammar: Enduro/X's ``NDRX_XA_FLAGS`` for its disk queue, extended by NONE.
"""

from __future__ import annotations

from dataclasses import dataclass

from xaqueue.errors import InvalidArgument

GRAMMAR = "JOURNAL, [FSYNC|FDATASYNC][;DSYNC] or NONE"


@dataclass(frozen=True, slots=True)
class Hardening:
    """``content``: how the content of a file is synced ("FSYNC", "FDATASYNC" or ""). ``directories``: DSYNC.

    ``journal``: steps are hardened as records; what has no record is hardened by the other two.
    """

    content: str = "FDATASYNC"
    directories: bool = True
    journal: bool = False

    def __str__(self) -> str:
        if self.journal:
            return "JOURNAL"
        words = [self.content] if self.content else []
        if self.directories:
            words.append("DSYNC")
        return ";".join(words) or "NONE"

    @property
    def promise(self) -> str:
        """What a returned prepare or commit means, in words, for people who start a space."""
        if self.content and self.directories:
            return "survives power loss"
        if self.content:
            return "survives a killed process; after power loss the content is there, its name perhaps not"
        if self.directories:
            return "survives a killed process; after power loss names are there, their content perhaps not"
        return "survives a killed process; after power loss the last seconds may be gone"

    @classmethod
    def parse(cls, text: str) -> Hardening:
        """The level that a flag string names. Raises InvalidArgument that shows the grammar."""
        words = [word.strip().upper() for word in text.split(";")] if text.strip() else ["NONE"]
        if words == ["NONE"]:
            return NOTHING
        if words == ["JOURNAL"]:
            return JOURNAL
        contents = [word for word in words if word in ("FSYNC", "FDATASYNC")]
        directories = words.count("DSYNC")
        if len(contents) > 1 or directories > 1 or len(contents) + directories != len(words):
            raise InvalidArgument(f"sync flags {text!r} are refused: {GRAMMAR}")
        return cls(contents[0] if contents else "", bool(directories))


NOTHING = Hardening("", False)
"""Nobody waits for a sync."""
JOURNAL = Hardening(journal=True)
DEFAULT = JOURNAL
