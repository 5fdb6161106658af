"""The states of a transaction branch, and what each XA verb does in each: a table, and a branch that obeys it.

The table is X/Open C193's tables 6-2 and 6-4 folded into one, seen from the session that calls. A missing row is the
protocol error. Where the specification allows two answers, ``man/xaqueue.5`` says which one is pinned and why.
No I/O and no locks: whoever owns a branch serialises its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from xaqueue.core.model.block import Kind
from xaqueue.core.model.entry import Entry, Run
from xaqueue.errors import (
    AsyncNotSupported,
    DuplicateXid,
    HeuristicOutcome,
    InvalidArgument,
    ProtocolError,
    RetryLater,
    RolledBack,
    UnknownXid,
)
from xaqueue.message import MessageId, Properties
from xaqueue.xa import Code, Flag, Outcome, TableKey
from xaqueue.xid import Xid


class State(TableKey):
    """A branch as one session sees it."""

    UNKNOWN = "unknown"
    ACTIVE = "active"
    ACTIVE_ELSEWHERE = "active in another session"
    SUSPENDED = "suspended"
    IDLE = "idle"
    DOOMED = "doomed"
    """Idle, and rolled back already by this side; the transaction manager has not been told."""
    PREPARED = "prepared"
    DELEGATED = "carried by a database"
    """Its vote stands in memory only: it is recorded elsewhere what commits it, by whoever asked for the vote."""
    COMMITTING = "past its commit point"
    """There was no room for what follows it: it can only go forward."""
    ROLLBACK_ONLY = "rollback-only"
    UNDONE = "rolled back by this side"
    """It is kept until its transaction manager has been told; sessions in it see it as active until they leave it."""
    HEURISTIC_COMMIT = "heuristically committed"
    HEURISTIC_ROLLBACK = "heuristically rolled back"
    HEURISTIC_MIXED = "heuristically mixed"
    HEURISTIC_HAZARD = "heuristic hazard"


class Call(TableKey):
    """The verbs, those whose flags change their meaning once for each."""

    START = "start()"
    JOIN = "start(JOIN)"
    RESUME = "start(RESUME)"
    END_SUCCESS = "end(SUCCESS)"
    END_FAIL = "end(FAIL)"
    END_SUSPEND = "end(SUSPEND)"
    PREPARE = "prepare()"
    COMMIT = "commit()"
    COMMIT_ONEPHASE = "commit(ONEPHASE)"
    ROLLBACK = "rollback()"
    FORGET = "forget()"


_OK = Code.XA_OK
_RB = Code.XA_RBROLLBACK
S, C = State, Call

TRANSITIONS: dict[tuple[Call, State], tuple[Code, State]] = {
    (C.START, S.UNKNOWN): (_OK, S.ACTIVE),
    (C.JOIN, S.ACTIVE_ELSEWHERE): (_OK, S.ACTIVE),
    (C.JOIN, S.IDLE): (_OK, S.ACTIVE),
    (C.JOIN, S.DOOMED): (_RB, S.ROLLBACK_ONLY),
    (C.RESUME, S.SUSPENDED): (_OK, S.ACTIVE),
    (C.END_SUCCESS, S.ACTIVE): (_OK, S.IDLE),
    (C.END_SUCCESS, S.SUSPENDED): (_OK, S.IDLE),
    (C.END_FAIL, S.ACTIVE): (_OK, S.ROLLBACK_ONLY),
    (C.END_FAIL, S.SUSPENDED): (_OK, S.ROLLBACK_ONLY),
    (C.END_SUSPEND, S.ACTIVE): (_OK, S.SUSPENDED),
    (C.PREPARE, S.IDLE): (_OK, S.PREPARED),
    (C.PREPARE, S.DOOMED): (_RB, S.UNKNOWN),
    (C.COMMIT, S.PREPARED): (_OK, S.UNKNOWN),
    (C.COMMIT, S.DELEGATED): (_OK, S.UNKNOWN),
    (C.COMMIT, S.COMMITTING): (_OK, S.UNKNOWN),
    (C.COMMIT_ONEPHASE, S.COMMITTING): (_OK, S.UNKNOWN),
    (C.COMMIT_ONEPHASE, S.IDLE): (_OK, S.UNKNOWN),
    (C.COMMIT_ONEPHASE, S.DOOMED): (_RB, S.UNKNOWN),
    (C.ROLLBACK, S.IDLE): (_OK, S.UNKNOWN),
    (C.ROLLBACK, S.DOOMED): (_OK, S.UNKNOWN),
    (C.ROLLBACK, S.ROLLBACK_ONLY): (_OK, S.UNKNOWN),
    (C.ROLLBACK, S.PREPARED): (_OK, S.UNKNOWN),
    (C.ROLLBACK, S.DELEGATED): (_OK, S.UNKNOWN),
}
for _state in State:
    if _state not in (S.UNKNOWN, S.COMMITTING):
        TRANSITIONS[C.START, _state] = (Code.XAER_DUPID, _state)
        TRANSITIONS[C.FORGET, _state] = (Code.XAER_NOTA, _state)
for _call in Call:
    if _call is not C.START:
        TRANSITIONS[_call, S.UNKNOWN] = (Code.XAER_NOTA, S.UNKNOWN)

HEURISTICS: dict[State, Code] = {
    S.HEURISTIC_COMMIT: Code.XA_HEURCOM,
    S.HEURISTIC_ROLLBACK: Code.XA_HEURRB,
    S.HEURISTIC_MIXED: Code.XA_HEURMIX,
    S.HEURISTIC_HAZARD: Code.XA_HEURHAZ,
}
for _state, _code in HEURISTICS.items():
    TRANSITIONS[C.COMMIT, _state] = (_code, _state)
    TRANSITIONS[C.ROLLBACK, _state] = (_code, _state)
    TRANSITIONS[C.FORGET, _state] = (_OK, S.UNKNOWN)


_OPEN = frozenset((S.ACTIVE, S.IDLE, S.UNDONE))
"""What a session sees then depends on who is in it."""
_ALLOWED = {key for key, (code, _) in TRANSITIONS.items() if code is _OK}
ALLOWED_ALONE = {(call, base) for call in C for base in S if (call, S.IDLE if base in _OPEN else base) in _ALLOWED}
"""By ``Branch.base``, of a branch in which nobody is and of which there is nothing else to ask."""


def step(state: State, call: Call, xid: Xid) -> State:
    """The state after the call, or the error that the call has in this state."""
    try:
        code, after = TRANSITIONS[call, state]
    except KeyError:
        raise out_of_order(state, call, xid) from None
    if code is _OK:
        return after
    raise _error(code, state, call, xid)


def is_allowed(state: State, call: Call, xid: Xid) -> bool:
    """Whether the call may go on; False where it is answered by a rollback of the branch. Raises as ``step`` does."""
    if TRANSITIONS.get((call, state)) == (_RB, S.UNKNOWN):
        return False
    step(state, call, xid)
    return True


def out_of_order(state: State, call: Call, xid: Xid) -> ProtocolError:
    """What a call is answered that has no row."""
    if state is S.COMMITTING:
        return ProtocolError(f"branch {xid} is past its commit point: commit it again to complete it")
    return ProtocolError(f"{call.value} of branch {xid} is out of order: it is {state.value}")


def _error(code: Code, state: State, call: Call, xid: Xid) -> Exception:
    if code is Code.XAER_NOTA:
        why = "it is not heuristically finished" if state is not S.UNKNOWN else "it was never started, or is finished"
        return UnknownXid(f"{call.value}: branch {xid} is unknown: {why}")
    if code is Code.XAER_DUPID:
        return DuplicateXid(f"branch {xid} exists and is {state.value}")
    if code is _RB:
        return RolledBack(f"branch {xid} was rolled back")
    return HeuristicOutcome(f"branch {xid} is {state.value} by an operator's decision; forget ends this answer", code)


_LEGAL: dict[str, Flag] = {
    "start": Flag.JOIN | Flag.RESUME | Flag.NOWAIT,
    "end": Flag.SUCCESS | Flag.FAIL | Flag.SUSPEND | Flag.MIGRATE,
    "prepare": Flag.NOFLAGS,
    "commit": Flag.ONEPHASE | Flag.NOWAIT | Flag.LATE,
    "rollback": Flag.NOFLAGS,
    "forget": Flag.NOFLAGS,
    "recover": Flag.STARTRSCAN | Flag.ENDRSCAN,
}
_CALLS: dict[tuple[str, Flag], Call] = {
    ("start", Flag.NOFLAGS): C.START,
    ("start", Flag.JOIN): C.JOIN,
    ("start", Flag.RESUME): C.RESUME,
    ("end", Flag.SUCCESS): C.END_SUCCESS,
    ("end", Flag.FAIL): C.END_FAIL,
    ("end", Flag.SUSPEND): C.END_SUSPEND,
    ("end", Flag.SUSPEND | Flag.MIGRATE): C.END_SUSPEND,
    ("prepare", Flag.NOFLAGS): C.PREPARE,
    ("commit", Flag.NOFLAGS): C.COMMIT,
    ("commit", Flag.LATE): C.COMMIT,
    ("commit", Flag.ONEPHASE): C.COMMIT_ONEPHASE,
    ("rollback", Flag.NOFLAGS): C.ROLLBACK,
    ("forget", Flag.NOFLAGS): C.FORGET,
}


def check_flags(verb: str, flags: Flag) -> None:
    """InvalidArgument for flags that the verb does not take, AsyncNotSupported for ASYNC."""
    if flags & Flag.ASYNC:
        raise AsyncNotSupported(f"{verb} with ASYNC: this resource manager answers every call at once")
    if flags & ~_LEGAL[verb]:
        raise InvalidArgument(f"{verb} does not take {flags & ~_LEGAL[verb]!r}; it takes {_LEGAL[verb]!r}")


def call_of(verb: str, flags: Flag) -> Call:
    """The row of the table that a verb with these flags stands for. Raises as ``check_flags`` does."""
    call = _CALLS.get((verb, flags))
    if call is None:
        check_flags(verb, flags)
        call = _CALLS.get((verb, flags & ~Flag.NOWAIT))
    if call is None:
        raise InvalidArgument(f"{verb} with {flags!r} has no meaning: see the flags of {verb} in xaqueue(5)")
    return call


class Written:
    """A command block of a branch: what it does, where its file stands, and where memory holds its message."""

    number: int
    kind: Kind
    queue: str
    message_id: MessageId
    checksum: int
    """Of the whole block of an enqueue."""
    entry: Entry | None
    """The locked message of a dequeue, or the future entry of an enqueue."""
    path: str = ""
    """Where its file stands; empty as long as it has none."""
    content: tuple[bytes, bytes] | None = None
    """Head and body, as long as memory holds them."""
    shared: Written | None = None
    """Others of its branch have the same content, which names no queue: the list of the branch says whose it is. The
    block whose file has it, of which that of this one is another name; or this one."""
    is_try: bool = True
    """Of a dequeue: where it comes to nothing, a delivery has failed. Not so where somebody moves or removes it."""

    def __init__(
        self, number: int, kind: Kind, queue: str, message_id: MessageId, checksum: int, entry: Entry | None = None
    ) -> None:
        self.number = number
        self.kind = kind
        self.queue = queue
        self.message_id = message_id
        self.checksum = checksum
        self.entry = entry

    @property
    def ids(self) -> Sequence[MessageId]:
        """Of its messages."""
        return self.entry.ids if isinstance(self.entry, Run) else (self.message_id,)

    @property
    def original(self) -> Written | None:
        """The other block whose file this one's is only another name of."""
        return self.shared if self.shared is not self else None


class Begun(NamedTuple):
    """When a branch was begun, and by whom: not known where that was another owner."""

    at: float = 0.0
    """Of the monotonic clock."""
    by: bytes | None = None
    """The key of the session, where it has one."""


class Branch:
    """One branch: its blocks, which sessions are in it, and how far it is. Most have what ``__init__`` sets alone."""

    xid: Xid
    name: str
    """Of its files: the text form of the xid."""
    blocks: list[Written]
    branch_block: Written | None = None
    """Lists the others, where there are several, once they are prepared."""
    to_harden: bool = False
    """Some of its blocks are files, or are to be, whose content is to be on disk before they get another name."""
    numbers: int = 0
    """The highest block number given out."""
    base: State = State.ACTIVE
    """ACTIVE and IDLE stand for each other here: ``state_for`` tells them apart by the sessions."""
    active: set[int]
    suspended: set[int]
    migrates: bool = False
    """Suspended with MIGRATE: any session may resume it."""
    rollback_reason: RolledBack | None = None
    """Why it can only be rolled back."""
    deadline: float | None = None
    """Of the monotonic clock, as ``progress`` is."""
    begun: Begun = Begun()
    progress: float = 0.0
    """When something was last done in it or to it."""
    working: set[int]
    """Sessions that are enqueueing or dequeueing in it now. Each is here before it looks for a reason to roll back."""
    busy: bool = False
    """A step is on its way to disk; the next call waits for it."""
    prepared_at: int = 0
    """Int microseconds UTC."""
    kept: tuple[int, int] = (0, 0)
    """Bytes of its blocks' contents that are held in memory, about, and of how many blocks."""
    riders: tuple[Rider, ...] = ()
    """Who else has a say in its steps. Changed with the space's lock held."""

    def __init__(
        self,
        xid: Xid,
        name: str,
        blocks: list[Written] | None = None,
        *,
        base: State = State.ACTIVE,
        riders: tuple[Rider, ...] = (),
        prepared_at: int = 0,
    ) -> None:
        self.xid = xid
        self.name = name
        self.blocks = blocks if blocks is not None else []
        self.active, self.suspended, self.working = set(), set(), set()
        if base is not State.ACTIVE or riders:
            self.base, self.riders, self.prepared_at = base, riders, prepared_at

    @property
    def all_blocks(self) -> list[Written]:
        """Its blocks, the one that lists them last."""
        return self.blocks if self.branch_block is None else [*self.blocks, self.branch_block]

    @property
    def needs_list(self) -> bool:
        """Whether its blocks alone do not say what it does."""
        if len(self.blocks) > 1 or self.blocks[0].shared is not None:
            return True
        return bool(self.riders) and any(one.listed() for one in self.riders)

    @property
    def is_for_operator(self) -> bool:
        return any(rider.is_for_operator for rider in self.riders)

    @property
    def decided(self) -> State | None:
        """An operator's recorded decision, on its way: what the verbs answer from now on."""
        for rider in self.riders:
            if rider.decided is not None:
                return rider.decided
        return None

    @property
    def damage(self) -> Sequence[str]:
        """What was lost of a prepared branch; it can be rolled back, and committed only by an operator."""
        return next((rider.damage for rider in self.riders if rider.damage), [])

    @property
    def holder(self) -> bytes | int | None:
        """For whom it waits though no session is in it; see ``Rider``."""
        for rider in self.riders:
            if rider.holder is not None:
                return rider.holder
        return None

    @property
    def contents(self) -> list[str]:
        """Its files, each under one name."""
        return [one.path for one in self.all_blocks if one.shared is None or one.shared is one or not one.shared.path]

    def state_for(self, session: int) -> State:
        """The branch's state as this session sees it."""
        if self.riders and (decided := self.decided) is not None:
            return decided
        if self.base not in _OPEN:
            return self.base
        if session in self.active:
            return State.ACTIVE
        if session in self.suspended or (self.migrates and self.suspended):
            return State.SUSPENDED
        if self.active or self.suspended:
            return State.ACTIVE_ELSEWHERE
        return State.DOOMED if self.rollback_reason is not None else State.IDLE

    def enter(self, session: int) -> None:
        self.resume(session)
        self.active.add(session)

    def resume(self, session: int) -> None:
        """It is suspended for this one no more; with MIGRATE, for nobody."""
        if self.migrates:
            self.suspended.clear()
            self.migrates = False
        self.suspended.discard(session)

    def leave(self, session: int) -> None:
        self.active.discard(session)
        self.suspended.discard(session)

    def suspend(self, session: int, *, migrates: bool) -> None:
        self.active.discard(session)
        self.suspended.add(session)
        self.migrates = migrates

    def doom(self, why: str, code: Code | None = None) -> RolledBack:
        """It can only be rolled back, for this reason, or for the one that there was before. Returns that."""
        if self.rollback_reason is None:
            self.rollback_reason = RolledBack(f"branch {self.xid} {why}", code)
        return self.rollback_reason

    def become(self, base: State) -> None:
        """Leaves the active life: no session is associated any more."""
        self.base = base
        if self.active or self.suspended:
            self.active.clear()
            self.suspended.clear()
        self.migrates = False


class Rider:
    """What rides on a branch beside its messages: a feature that has a say in its steps, which these do not name.

    It joins a branch with the first work that concerns it; most branches have none, and their steps ask nobody. This
    one asks for nothing. ``space`` is that of the engine, which this room does not know.
    """

    acts = True
    """False: it says something of the branch, or refuses; a commit calls none of ``stage`` to ``committed`` of it."""
    is_for_operator = False
    """The branch is decided by hand only: nobody is told of it who would decide it by himself."""
    decided: State | None = None
    """An operator's recorded decision, on its way."""
    damage: Sequence[str] = ()
    """What was lost of it."""
    holder: bytes | int | None = None
    """The key or number of a session that comes back to it without being in it. It ends with that session, or at its
    deadline, of which that is told when it asks; until then it is not idle."""
    overdue = ""
    """What the branch is past its deadline, where it did not just take long."""

    def added_locked(self, space: Any, branch: Branch, written: Written, wanted: Properties | None) -> None:
        """The branch has one block more, of a message that it adds. wanted: its properties, where it is a new one that
        has some of its own. Called with the lock held."""

    def cut_locked(self, space: Any, branch: Branch) -> None:
        """Some of its blocks came to nothing, and it goes on without them. Called with the lock held."""

    def listed(self) -> Mapping[int, bytes]:
        """By the number of a block what the branch block says of it: where there is something, the branch has one even
        if it has no other block."""
        return {}

    def decide(self, space: Any, branch: Branch, call: Call) -> None:
        """Before a prepare, a vote, a commit or a rollback: it may refuse, or leave blocks out. The branch is busy.

        Raises RolledBack, which ends the branch, or another Error, which does not.
        """

    def stage(self, space: Any, branch: Branch, together: dict[Any, Any]) -> None:
        """Before the step that commits: content that this step PUTs is written. together: a note of those that are
        committed in one step. Raises RetryLater, ResourceFailed."""

    def ops(self, space: Any, branch: Branch) -> Sequence[Any]:
        """In the plan of that step: what is done together with the messages (``change.Op``). Called with the lock held,
        as what follows."""
        return ()

    def performs(self, space: Any, branch: Branch, plan: Callable[[], Any], publish: Callable[[], None]) -> bool:
        """The step that commits is this one's to give to the log. Raises as ``Log.perform``."""
        return False

    def publish_locked(self, space: Any, branch: Branch) -> None:
        """Behind it, in the order of the log."""

    def release_locked(self, space: Any, branch: Branch) -> None:
        """The branch is over, committed or not."""

    def committed(self, space: Any, *, late: bool) -> None:
        """It is over, and its files are gone. late: it may be hardened later. Raises RetryLater, ResourceFailed."""

    def check_by_hand(self, branch: Branch) -> None:
        """ProtocolError where no operator can decide it."""


@dataclass(slots=True)
class Damaged(Rider):
    """Something of a prepared branch was lost."""

    damage: Sequence[str]

    def decide(self, space: Any, branch: Branch, call: Call) -> None:
        if call is Call.COMMIT:
            raise RetryLater(
                f"branch {branch.xid} lost {', '.join(self.damage)}: it cannot be committed as a whole; "
                f"an operator decides with `xaqueue indoubt show {branch.xid}`"
            )


@dataclass(slots=True)
class Explained(Rider):
    """Who works in it has said why it is going to be rolled back."""

    reason: str


class Rule:
    """What holds for the branches whose xids have a format id that is a feature's. This one asks for nothing."""

    def check(self, space: Any, branch: Branch, call: Call) -> None:
        """What such a branch may do alone: before a start, with the lock held, and as ``Rider.decide``."""

    def outcome(self, space: Any, xid: Xid) -> Outcome:
        """What became of a branch of which memory knows nothing."""
        return Outcome.UNKNOWN
