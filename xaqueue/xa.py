"""The XA vocabulary: flags and codes as in ``xa.h``.

Source: X/Open C193 (Distributed TP: The XA Specification), chapters 3 and 4. Flags have no ``TM`` prefix here.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class Flag(IntFlag):
    """Flags of the verbs, as unsigned 32-bit numbers."""

    NOFLAGS = 0
    ASYNC = 0x80000000
    ONEPHASE = 0x40000000
    FAIL = 0x20000000
    NOWAIT = 0x10000000
    RESUME = 0x08000000
    SUCCESS = 0x04000000
    SUSPEND = 0x02000000
    STARTRSCAN = 0x01000000
    ENDRSCAN = 0x00800000
    MULTIPLE = 0x00400000
    JOIN = 0x00200000
    MIGRATE = 0x00100000
    LATE = 0x00000001
    """Not XA's: see ``ResourceManager.commit``."""


class Code(IntEnum):
    """What a verb answers: zero and up are outcomes, below zero are errors."""

    XA_OK = 0
    XA_RDONLY = 3
    XA_RETRY = 4
    XA_HEURMIX = 5
    XA_HEURRB = 6
    XA_HEURCOM = 7
    XA_HEURHAZ = 8
    XA_NOMIGRATE = 9
    XA_RBROLLBACK = 100
    XA_RBCOMMFAIL = 101
    XA_RBDEADLOCK = 102
    XA_RBINTEGRITY = 103
    XA_RBOTHER = 104
    XA_RBPROTO = 105
    XA_RBTIMEOUT = 106
    XA_RBTRANSIENT = 107
    XAER_ASYNC = -2
    XAER_RMERR = -3
    XAER_NOTA = -4
    XAER_INVAL = -5
    XAER_PROTO = -6
    XAER_RMFAIL = -7
    XAER_DUPID = -8
    XAER_OUTSIDE = -9


class Vote(Enum):
    """The answer to ``prepare`` where nothing went wrong."""

    OK = "ok"
    RDONLY = "rdonly"


class TableKey(Enum):
    """An Enum that is looked up in a table of transitions at every call: hashed by identity, as C does it."""

    __hash__ = object.__hash__


class Outcome(TableKey):
    """What became of a branch, as far as this resource manager knows."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    IN_DOUBT = "in doubt"
    UNKNOWN = "unknown"
