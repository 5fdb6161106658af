"""The state table of the XA specification as cases, and how a session is brought to each state.

``xa_cases.json`` is the state table of X/Open C193 (tables 6-2 and 6-4) as seen from the session that calls:

    B0 unknown    B1 active, by the caller   B1o active, by another session   B1s suspended by the caller
    B2 idle       B2r idle, and doomed by this side (timeout)   B3 prepared   B4 rollback-only, and that was told
    B5c, B5r heuristically committed, rolled back

Where it allows two answers, PINNED says which one is given here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from xaqueue.core.engine import heuristics
from xaqueue.core.model.branch import State
from xaqueue.errors import Error, RolledBack
from xaqueue.features.session import Session
from xaqueue.xa import Code, Flag, Vote
from xaqueue.xid import Xid

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "xa_cases.json").read_text())
STATES = {
    State.UNKNOWN: "B0",
    State.ACTIVE: "B1",
    State.ACTIVE_ELSEWHERE: "B1o",
    State.SUSPENDED: "B1s",
    State.IDLE: "B2",
    State.DOOMED: "B2r",
    State.PREPARED: "B3",
    State.ROLLBACK_ONLY: "B4",
    State.HEURISTIC_COMMIT: "B5c",
    State.HEURISTIC_ROLLBACK: "B5r",
}
X = Xid(1, b"gtrid", b"bqual")
Y = Xid(1, b"gtrid", b"other")


class Stage(NamedTuple):
    """Two sessions of one space, whose queue holds one message; ``caller`` makes the call under test."""

    caller: Session
    other: Session
    root: Path

    def work(self, session: Session | None = None) -> None:
        """One message in and one out, in whatever branch the session is."""
        chosen = session or self.caller
        chosen.enqueue("orders", b"in")
        assert chosen.dequeue("orders") is not None

    def start(self, xid: Xid = X, session: Session | None = None, timeout_s: float | None = None) -> None:
        (session or self.caller).start(xid, timeout_s=timeout_s)

    def idle(self, xid: Xid = X) -> None:
        self.caller.start(xid)
        self.work()
        self.caller.end(xid)

    def prepared(self, xid: Xid = X) -> None:
        self.idle(xid)
        assert self.caller.prepare(xid) is Vote.OK

    def expire(self, xid: Xid = X) -> None:
        """The branch's timeout passes."""
        self.caller.space.branches[xid].deadline = 0.0

    def decide(self, commit: bool, xid: Xid = X) -> None:
        heuristics.decide(self.caller.space, xid, commit, "test")

    def state(self, xid: Xid = X) -> str:
        branch = self.caller.space.branches.get(xid)
        return STATES[branch.state_for(self.caller.number) if branch is not None else State.UNKNOWN]

    def listed(self) -> list[Xid]:
        return self.caller.recover(99, Flag.STARTRSCAN | Flag.ENDRSCAN)

    def files(self) -> dict[str, int]:
        """Every file of the space with its time of change, but for the owner's lock."""
        return {str(file): file.stat().st_mtime_ns for file in self.root.rglob("*") if file.name != "owner"}


def code_of(call: Callable[[], object]) -> Code:
    """The XA code of a call: an outcome, or the error's."""
    try:
        answer = call()
    except Error as error:
        return error.code
    return Code.XA_RDONLY if answer is Vote.RDONLY else Code.XA_OK


def bring_to(stage: Stage, state: str) -> None:
    if state in ("B1", "B1s"):
        stage.start()
        stage.work()
        if state == "B1s":
            stage.caller.end(X, Flag.SUSPEND)
    elif state == "B1o":
        stage.start(session=stage.other)
        stage.work(stage.other)
    elif state in ("B2", "B2r"):
        stage.idle()
        if state == "B2r":
            stage.expire()
            stage.caller.space.branches[X].rollback_reason = RolledBack("timed out", Code.XA_RBTIMEOUT)
    elif state == "B4":
        stage.start()
        stage.work()
        stage.caller.end(X, Flag.FAIL)
    elif state != "B0":
        stage.prepared()
        if state != "B3":
            stage.decide(state == "B5c")
    assert stage.state() == state


def call_on(session: Session, text: str, xid: Xid = X) -> Callable[[], object]:
    """The call that is written ``verb(FLAG+FLAG)``."""
    verb, _, flags = text.rstrip(")").partition("(")
    given = Flag.NOFLAGS
    for name in filter(None, flags.split("+")):
        given |= Flag[name]
    return lambda: getattr(session, verb)(xid, given)


def answer_of(case: dict[str, Any]) -> dict[str, Any]:
    """The one answer that is right here."""
    pinned = PINNED.get((case["call"], case["state"]))
    answers: list[dict[str, Any]] = [expect for expect in case["expect"] if pinned in (None, expect["rc"])]
    assert len(answers) == 1, case
    return answers[0]


PINNED = {
    ("start()", "B1"): "DUPID",  # the branch exists, whoever is in it
    ("start(JOIN)", "B4"): "PROTO",  # it was told already; joining again is out of order
    ("end(FAIL)", "B1"): "OK",  # the caller asked for exactly this: no error
    ("end(FAIL)", "B1s"): "OK",
    ("prepare()", "B4"): "PROTO",
    ("commit(ONEPHASE)", "B4"): "PROTO",
    ("commit(ONEPHASE)", "B5c"): "PROTO",
    ("commit(ONEPHASE)", "B5r"): "PROTO",
    ("rollback()", "B2r"): "OK",  # an exception for the very result that was asked for would be wrong
    ("rollback()", "B4"): "OK",
    **{("forget()", state): "NOTA" for state in ("B1", "B1o", "B1s", "B2", "B2r", "B3", "B4")},
}
"""For each case with two answers, the one given here. ``forget``: NOTA is "not known as heuristically completed"."""
