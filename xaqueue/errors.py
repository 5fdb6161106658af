"""Every error of xaqueue is in this tree, and each one knows its XA code.

The upper classes are PEP 249's, so that a caller who treats databases alike treats a queue alike. Nothing here is
raised for a normal outcome: a read-only vote and an empty queue are return values.

    Error
    |- InterfaceError                 the session is closed, or used where it cannot be
    `- DatabaseError
       |- ProgrammingError            the caller's mistake; nothing has changed
       |  |- ProtocolError            XAER_PROTO    the call does not fit the branch's state
       |  |- UnknownXid               XAER_NOTA     no such branch (any more)
       |  |- DuplicateXid             XAER_DUPID    the branch exists already
       |  |- OutsideTransaction       XAER_OUTSIDE  a local transaction is open
       |  |- InvalidArgument          XAER_INVAL    a value that no state makes right
       |  |- AsyncNotSupported        XAER_ASYNC    the ASYNC flag
       |  |- AccessDenied             XAER_PROTO    the session lacks the right, or a way in; nothing was done
       |  |- QueueReserved            XAER_PROTO    a stream consumes this queue, or a branch stands in its way
       |  `- UnknownQueue             XAER_INVAL    no definition for this queue
       |- DataError                   XAER_INVAL    a message over a limit
       |  |- MessageTooLarge
       |  `- DamagedBlock             XAER_RMERR    bytes that are no command block
       |- OperationalError            the world's fault
       |  |- RolledBack               XA_RB*        the branch is, or will be, rolled back
       |  |  `- DiskFull              XA_RBOTHER    no room for the block; the branch is rollback-only
       |  |     `- DiskLow            XA_RETRY      room has to stay free; the branch is as it was
       |  |- QueueFull                XA_RETRY      the queue holds all that it may; the branch is as it was
       |  |- QueueWaiting             XA_RETRY      a database is to be asked before this queue hands anything out
       |  |- LeaseExpired             XAER_NOTA     the delivery was given back, or is settled; nothing was done
       |  |- RetryLater               XA_RETRY      nothing lost, the same call may complete it later
       |  |- NoReply                  XA_RETRY      to a request, in its time; a late one stays in the reply queue
       |  |- ResourceError            XAER_RMERR    the branch can never be committed
       |  |- ResourceFailed           XAER_RMFAIL   the space is fenced: reopen it
       |  |- ConnectionLost           XAER_RMFAIL   the server is gone, and what was active with it
       |  |  `- OutcomeUnknown        XAER_RMFAIL   and nobody knows how far a commit, prepare or rollback came
       |  |- DecisionLogError         XAER_RMFAIL   a transaction manager's log cannot be opened, or failed
       |  |  |- DecisionLogInUse      XAER_RMFAIL   another process owns it
       |  |  `- DecisionLogDamaged    XAER_RMFAIL   it lost records, or may have
       |  |- SpaceInUse               XAER_RMFAIL   another process owns the space
       |  `- SpaceError               XAER_RMFAIL   the directory cannot be opened as a space
       |     `- JournalDamaged        XAER_RMFAIL   its journal lost records: it is open for reading only
       |- IntegrityError
       |  `- HeuristicOutcome         XA_HEUR*      an operator decided this branch
       |     |- HeuristicMixed        XA_HEURMIX    one participant committed and another one did not
       |     `- HeuristicHazard       XA_HEURHAZ    nobody can tell what a participant did
       `- NotSupportedError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xaqueue.xa import Code


class Error(Exception):
    """Base of all errors. ``code`` is the XA code that the same failure has in ``xa.h``."""

    code: Code = Code.XAER_RMERR


class InterfaceError(Error):
    """The session is closed, or belongs to another process or thread."""

    code = Code.XAER_PROTO


class DatabaseError(Error):
    """Anything that concerns the space and not the interface."""


class ProgrammingError(DatabaseError):
    """A mistake of the caller. Nothing has changed."""

    code = Code.XAER_PROTO


class ProtocolError(ProgrammingError):
    """The call does not fit the state of the branch or session (``XAER_PROTO``)."""


class UnknownXid(ProgrammingError):
    """No branch of this name: never started, or finished and forgotten (``XAER_NOTA``)."""

    code = Code.XAER_NOTA


class DuplicateXid(ProgrammingError):
    """A branch of this name exists (``XAER_DUPID``)."""

    code = Code.XAER_DUPID


class OutsideTransaction(ProgrammingError):
    """The session has a local transaction open (``XAER_OUTSIDE``)."""

    code = Code.XAER_OUTSIDE


class InvalidArgument(ProgrammingError, ValueError):
    """A value that is wrong whatever the state (``XAER_INVAL``)."""

    code = Code.XAER_INVAL


class AsyncNotSupported(ProgrammingError):
    """The ``ASYNC`` flag was given; this resource manager answers at once (``XAER_ASYNC``)."""

    code = Code.XAER_ASYNC


class AccessDenied(ProgrammingError):
    """The session's roles do not give it the right, or it has none at all. Nothing was done (``XAER_PROTO``).

    To a transaction manager it is no vote: the branch is as it was, and the call can be made again with the right.
    """


class QueueReserved(ProgrammingError):
    """A stream consumes this queue and nobody else may, or it cannot begin to; the message says who has what."""

    code = Code.XAER_PROTO


class UnknownQueue(ProgrammingError):
    """No queue of this name is defined and there is no ``[default]`` template."""

    code = Code.XAER_INVAL


class DataError(DatabaseError):
    """The message itself cannot be taken."""

    code = Code.XAER_INVAL


class MessageTooLarge(DataError):
    """Body or properties are over the limit of the space."""


class DamagedBlock(DataError):
    """Bytes that should be a command block and are not. ``reason`` says what is wrong with them."""

    code = Code.XAER_RMERR


class OperationalError(DatabaseError):
    """Not the caller's mistake: disk, lock, time."""

    code = Code.XAER_RMFAIL


class RolledBack(OperationalError):
    """The branch was rolled back, or is marked so (``XA_RB*``)."""

    code = Code.XA_RBROLLBACK

    def __init__(self, message: str, code: Code | None = None) -> None:
        """code: another one than that of the class."""
        super().__init__(message)
        if code is not None:
            self.code = code


class DiskFull(RolledBack):
    """No room for the block. It was removed again, and its branch is rollback-only."""

    code = Code.XA_RBOTHER


class DiskLow(DiskFull):
    """The enqueue would leave less room than has to stay free. Nothing was written.

    Unlike every other RolledBack its branch is as it was (``XA_RETRY``): it can go on, dequeue, commit, and enqueue
    once there is room. Rolling it back is right, too.
    """

    code = Code.XA_RETRY


class LeaseExpired(OperationalError):
    """The lease of this delivery has ended, or it was settled already (``XAER_NOTA``). Nothing was done: what was not
    settled in time is in its queue again, with one more try, or with somebody else.
    """

    code = Code.XAER_NOTA


class RetryLater(OperationalError):
    """It could not be completed now; nothing is lost, and the same call may complete it later (``XA_RETRY``)."""

    code = Code.XA_RETRY


class QueueFull(OperationalError):
    """The enqueue would pass ``max_messages`` or ``max_bytes`` of its queue. Nothing was added, and the branch is as it
    was: it can go on, commit, and enqueue again once others have taken some.
    """

    code = Code.XA_RETRY


class QueueWaiting(OperationalError):
    """A crash left changes of this queue in a database that was not asked yet; the message says which one. The branch
    is as it was.
    """

    code = Code.XA_RETRY


class NoReply(OperationalError, TimeoutError):
    """A request had no reply in its time (``XA_RETRY``). One that comes late stays in the reply queue until it
    expires: ``dequeue(reply_queue, correlation_id=error.correlation_id)``.
    """

    code = Code.XA_RETRY

    def __init__(self, message: str, correlation_id: bytes | str = b"") -> None:
        super().__init__(message)
        self.correlation_id = correlation_id


class ResourceError(OperationalError):
    """The branch can never be committed (``XAER_RMERR``)."""

    code = Code.XAER_RMERR


class ResourceFailed(OperationalError):
    """The space is fenced after a failed write, sync or rename (``XAER_RMFAIL``). Close it and open it again."""


class ConnectionLost(OperationalError):
    """The server does not answer, or hung up. What was active in the session is rolled back."""


class OutcomeUnknown(ConnectionLost):
    """The answer to a commit, a prepare or a rollback was lost: it may or may not have been carried out.

    ``xid``, an Xid or None, names the branch: ``connection.outcome(xid)`` tells once the server is there again.
    """

    def __init__(self, message: str, xid: tuple[int, bytes, bytes] | None = None) -> None:
        super().__init__(message)
        self.xid: Any = xid


class DecisionLogError(OperationalError):
    """The decision log of a transaction manager cannot be opened, or was failed by its disk. Nothing is guessed."""


class DecisionLogInUse(DecisionLogError):
    """Another process owns the log; the message names host, pid and since when."""


class DecisionLogDamaged(DecisionLogError):
    """The log lost decisions, or may have. Nothing was changed and nothing is rolled back."""


class SpaceInUse(OperationalError):
    """Another process owns the space; the message names host, pid and since when."""


class SpaceError(OperationalError):
    """The directory cannot be opened as a queue space."""


class JournalDamaged(SpaceError):
    """The journal lost records that were acknowledged, or files that it had moved are gone. Nothing was changed; the
    space can be read and not written.
    """

    lost_from: int | None = None
    """Where it was cut short, the LSN from which on nothing is left."""
    lost_files: tuple[str, ...] = ()
    """Of each file that is gone, what was known of it."""


class IntegrityError(DatabaseError):
    """PEP 249's class for broken relations."""


class HeuristicOutcome(IntegrityError):
    """An operator finished this branch without its transaction manager (``XA_HEUR*``). ``forget`` ends the answer."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


class HeuristicMixed(HeuristicOutcome):
    """A global transaction was committed by one participant and not by another. ``parties``: who did what, by name."""

    code = Code.XA_HEURMIX

    def __init__(self, message: str, parties: Mapping[str, str] | None = None) -> None:
        super().__init__(message, Code.XA_HEURMIX)
        self.parties = dict(parties or {})


class HeuristicHazard(HeuristicOutcome):
    """A prepared branch was gone when it was to be committed. ``parties``: who did what, by name."""

    code = Code.XA_HEURHAZ

    def __init__(self, message: str, parties: Mapping[str, str] | None = None) -> None:
        super().__init__(message, Code.XA_HEURHAZ)
        self.parties = dict(parties or {})


class NotSupportedError(DatabaseError):
    """PEP 249's class for what a driver does not have."""
