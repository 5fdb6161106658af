"""The branch that a client's session is in, or has just left: how far it has come, as far as the client knows. No I/O.

    NONE --start--> OPEN --prepare--> PREPARING --answered--> NONE
                     |   --commit---> COMMITTING --answered--> NONE
                     |
                     +-- the connection was lost, or a pipelined call refused --> LOST
                     +-- its pipelined start was refused -----------------------> NEVER_BEGAN

In LOST the server has left the branch: it is over there, or can only be rolled back. A branch stays in PREPARING or
COMMITTING where the answer got lost; nobody knows its outcome until the same call is made again, which asks for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xaqueue.errors import ConnectionLost, Error, OutcomeUnknown, ResourceFailed, RolledBack
from xaqueue.xa import Code, TableKey
from xaqueue.xid import Xid


class BranchProgress(TableKey):
    """How far the branch has come."""

    NONE = "there is none"
    OPEN = "nothing was asked of it but work"
    NEVER_BEGAN = "its start was refused"
    LOST = "the server has left it"
    PREPARING = "its prepare was asked for, and not answered"
    COMMITTING = "its commit was asked for, and not answered"


class BranchCall(TableKey):
    """What is called for the branch, beside work."""

    END = "end"
    PREPARE = "prepare"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class Action(TableKey):
    """What a call does."""

    ASK = "the server is asked, and its answer holds"
    ASK_OUTCOME = "its answer got lost: the server is asked what became of it, and what was never done is done now"
    ASK_WHERE_LEFT = "the server is asked; where it has none, or its lost session is in it still, it is rolled back"
    ASK_UNTIL_LEFT = "the server is asked until its lost session is out of it; where it has none, it is rolled back"
    REFUSE = "it is refused here"
    NOTHING = "there is nothing to be done"


P, V, A = BranchProgress, BranchCall, Action

TRANSITIONS: dict[tuple[BranchProgress, BranchCall], tuple[Action, BranchProgress]] = {
    (P.OPEN, V.END): (A.ASK, P.OPEN),
    (P.OPEN, V.PREPARE): (A.ASK, P.PREPARING),
    (P.OPEN, V.COMMIT): (A.ASK, P.COMMITTING),
    (P.OPEN, V.ROLLBACK): (A.ASK, P.OPEN),
    (P.NEVER_BEGAN, V.END): (A.REFUSE, P.NEVER_BEGAN),
    (P.NEVER_BEGAN, V.PREPARE): (A.REFUSE, P.NEVER_BEGAN),
    (P.NEVER_BEGAN, V.COMMIT): (A.REFUSE, P.NEVER_BEGAN),
    (P.NEVER_BEGAN, V.ROLLBACK): (A.NOTHING, P.NONE),
    (P.LOST, V.END): (A.REFUSE, P.LOST),
    (P.LOST, V.PREPARE): (A.REFUSE, P.LOST),
    (P.LOST, V.COMMIT): (A.REFUSE, P.LOST),
    (P.LOST, V.ROLLBACK): (A.ASK_WHERE_LEFT, P.LOST),
    (P.PREPARING, V.END): (A.ASK, P.PREPARING),
    (P.PREPARING, V.PREPARE): (A.ASK_OUTCOME, P.PREPARING),
    (P.PREPARING, V.COMMIT): (A.ASK, P.COMMITTING),
    (P.PREPARING, V.ROLLBACK): (A.ASK_UNTIL_LEFT, P.PREPARING),
    (P.COMMITTING, V.END): (A.ASK, P.COMMITTING),
    (P.COMMITTING, V.PREPARE): (A.ASK, P.PREPARING),
    (P.COMMITTING, V.COMMIT): (A.ASK_OUTCOME, P.COMMITTING),
    (P.COMMITTING, V.ROLLBACK): (A.ASK, P.COMMITTING),
}
"""What a call does, and how far the branch is until it is answered. An answered prepare, commit or rollback ends it
here; an error that was answered leaves it where it was before.
"""


class Ahead(NamedTuple):
    """A branch in which the next message of a queue is asked for; see ``xaqueue.rpc.client.ahead``."""

    xid: Xid
    queue: str


Work = tuple[Any, ...]
"""In a frame ``work``."""
WORK_BYTES = 66
"""What a work takes beside its body, about: a server takes no longer lists than 1024."""
DEFERRED_BYTES = 64 * 1024 + 2 * WORK_BYTES
"""What is deferred is pipelined where there is more of it."""


class RemoteBranch:
    """One branch, from its start to the answer that ends it."""

    xid: Xid | None = None
    progress: BranchProgress = BranchProgress.NONE
    why: Error | None = None
    """What went wrong with it, or with the connection that it was on."""
    begun_by: bytes | None = None
    """The key of the session that was to begin it; None where it was there before."""
    sends: int = -1
    """How often its connection had sent anything when it began; as long as it is so often, no server knows of it."""
    deferred: list[Any] | None = None
    """To be sent with what is asked next, as the first parameters of ``work``: its xid, whether it begins, and what it
    adds. None where there is nothing of the kind."""
    ends: bool = False
    """Its end belongs to what is deferred."""
    room_bytes: int = DEFERRED_BYTES
    """For what is deferred yet."""
    is_marked: bool = False
    """There may be a savepoint."""
    next_queue: str = ""
    """Of which the next message is asked for with its commit."""

    @classmethod
    def of(cls, xid: Xid, progress: BranchProgress = BranchProgress.OPEN) -> RemoteBranch:
        made = cls()  # of which most begin and end without a value of their own: what there is not is the class's
        made.xid, made.progress = xid, progress
        return made

    def take_deferred(self) -> tuple[list[Any], bool]:
        """What was deferred, and is not any more; and whether its end was."""
        deferred, ends = self.deferred, self.ends
        self.deferred, self.ends, self.room_bytes = None, False, DEFERRED_BYTES
        return deferred or [self.xid, False, []], ends

    def begin_again(self, begun_by: bytes | None) -> None:
        """On a connection that was made instead of a lost one."""
        self.progress, self.why, self.begun_by, self.sends = BranchProgress.OPEN, None, begun_by, -1

    def disconnect(self, lost: Error) -> None:
        if self.xid is not None:
            self.why = lost
            if self.progress is BranchProgress.OPEN:
                self.progress = BranchProgress.LOST
                self.take_deferred()

    def fail(self, why: Error, pipelined: str) -> None:
        """A pipelined call was refused."""
        self.why, self.progress = why, BranchProgress.NEVER_BEGAN if pipelined == "start" else BranchProgress.LOST

    def refusal(self) -> Error:
        """Of more work; of a branch whose prepare or commit was not answered nobody knows what became."""
        why, xid = self.why, self.xid
        assert why is not None
        if xid is not None and self.progress in (BranchProgress.PREPARING, BranchProgress.COMMITTING):
            return unknown("prepare" if self.progress is BranchProgress.PREPARING else "commit", xid, why)
        refused: Error
        if isinstance(why, ResourceFailed):  # the same work again would fail as well
            refused = ResourceFailed(str(why))
        else:
            code = Code.XA_RBCOMMFAIL if isinstance(why, ConnectionLost) else Code.XA_RBOTHER
            if why.code >= Code.XA_RBROLLBACK:
                code = why.code
            refused = RolledBack(f"branch {xid} is rolled back: {why}", code)
        refused.__cause__ = why
        return refused


def unknown(verb: str, xid: Xid, why: Error) -> OutcomeUnknown:
    """The answer to this verb got lost."""
    made = OutcomeUnknown(
        f"{why}. Whether branch {xid} was {_DONE[verb]} is unknown: ask connection.outcome(xid), or call it again", xid
    )
    made.__cause__ = why
    return made


_DONE = {"prepare": "prepared", "commit": "committed", "rollback": "rolled back"}
