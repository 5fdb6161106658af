"""The phases of a connection, and which of its methods have their place in which: as a table."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """As its connection sees it; what the branch is to the space, ``xaqueue.space.model.branch`` says."""

    NONE = "outside a transaction"
    LOCAL = "in a local transaction"
    LOCAL_ENDED = "in a local transaction that was ended"
    ACTIVE = "in a two-phase transaction"
    ENDED = "in a two-phase transaction that was ended"
    PREPARING = "in a two-phase transaction whose prepare got no answer"
    PREPARED = "in a prepared transaction"
    READ_ONLY = "in a transaction that voted read-only"
    UNANSWERED = "after a commit that got no answer"
    CLOSED = "closed"


_OUTSIDE = (Phase.NONE, Phase.UNANSWERED)
_ONE_PHASE = (*_OUTSIDE, Phase.LOCAL, Phase.LOCAL_ENDED)
_UNPREPARED = (Phase.ACTIVE, Phase.ENDED, Phase.PREPARING)
_TWO_PHASE = (*_UNPREPARED, Phase.PREPARED, Phase.READ_ONLY)

ALLOWED: dict[str, tuple[tuple[Phase, ...], str]] = {
    "work": ((*_OUTSIDE, Phase.LOCAL, Phase.ACTIVE), "finish it first"),
    "transaction": (_OUTSIDE, "commit it or roll it back first"),
    "commit": (_ONE_PHASE, "use tpc_commit"),
    "rollback": (_ONE_PHASE, "use tpc_rollback"),
    "tpc_begin": ((*_OUTSIDE, Phase.READ_ONLY), "commit it or roll it back first"),
    "tpc_end": ((Phase.ACTIVE,), ""),
    "tpc_prepare": (_UNPREPARED, ""),
    "tpc_commit": ((*_TWO_PHASE, Phase.UNANSWERED), ""),
    "tpc_rollback": (_TWO_PHASE, ""),
    "the call with an xid": (_OUTSIDE, "finish that first"),
}
"""By method: the phases in which it has its place, and what to do in others."""
BEGIN = "begin one with tpc_begin"
"""What to do where there is no transaction."""
UNDONE = (Phase.LOCAL, Phase.LOCAL_ENDED, Phase.ACTIVE, Phase.ENDED)
"""Where the end of the session is the end of the work."""
