"""An operator's decision on a branch in doubt: recorded durably before anything is done, kept until forget.

A line of operators.log says first what is to be decided, by whom and why. The record is a block of kind *branch* in
``heuristic/`` under the branch's xid: its headers say the same, and its body which messages the branch would have
added and taken. Once it is hardened the decision stands: a crash right after it is completed at the next open, and the
transaction manager hears of it (XA_HEURCOM, XA_HEURRB, XA_HEURMIX).

A line is JSON, hardened to the level of the space before what it tells of, also of who forgets a decision by hand;
lines are only ever added. A crash may leave a torn last line, which is skipped, or the line of what was not done then:
a decision that is not forgotten yet is told once more when it is. What the transaction manager forgets was told to it,
and stands in its own log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xaqueue.core.engine import commit
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, Block, Kind, Listed, decode, encode, pack_list
from xaqueue.core.model.block_files import listed, read_checked
from xaqueue.core.model.branch import HEURISTICS, Branch, Rider, State
from xaqueue.core.model.change import DROP, Change, CoreStep
from xaqueue.core.model.format import read_format
from xaqueue.core.model.layout import HEURISTIC, OPERATORS
from xaqueue.core.model.record_kinds import Looking, Opening, RecordKind
from xaqueue.core.storage import append_log
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import NO_ROOM, FileSystem
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import DamagedBlock, HeuristicOutcome, InvalidArgument, ProtocolError, RetryLater, UnknownXid
from xaqueue.message import Properties
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

OUTCOMES = {
    "commit": State.HEURISTIC_COMMIT,
    "rollback": State.HEURISTIC_ROLLBACK,
    "mixed": State.HEURISTIC_MIXED,
}
TEXT_LIMIT = 1000
"""Characters of who decided, and of why, at most."""


@dataclass(slots=True)
class Decided(Rider):
    """An operator has decided it."""

    decided: State | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator decided: "commit", "rollback", or "mixed" for a commit of what damage had left."""

    outcome: str
    by: str
    at: int
    """Int microseconds UTC."""
    reason: str = ""
    """Why, in the operator's words; empty where nothing was said, and in records before there were reasons."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A line of operators.log: a decision, and who ended its memory, if anybody did. Times are int microseconds UTC."""

    xid: str
    outcome: str
    by: str
    at: int
    reason: str
    forgotten_by: str = ""
    forgotten_at: int = 0
    forgotten_reason: str = ""


def _tell(space: Space, line: Forgotten) -> None:
    """Raises RetryLater without room, ResourceFailed."""
    space.check()
    try:
        append_log.append(space.fs, OPERATORS, line)
    except OSError as error:
        if error.errno not in NO_ROOM | NO_FILE:
            raise space.fence(error) from error
        done = "forgotten" if line.forgotten_at else "done"
        raise RetryLater(f"{OPERATORS} cannot be written ({error.strerror}): nothing was {done}") from error
    space.log.sync_contents((OPERATORS,))
    space.log.sync_names(("",))


def forgotten(path: str | os.PathLike[str]) -> list[Forgotten]:
    """The decisions that operators forgot, in their order. Raises SpaceError where the directory is no space."""
    read_format(path)
    return forgotten_in(DirectoryFileSystem(Path(path), keep_unsynced=False))


def forgotten_in(fs: FileSystem) -> list[Forgotten]:
    """As ``forgotten``, of the space behind a port."""
    return [line for line in append_log.read(fs, OPERATORS, Forgotten) if line.forgotten_at]


def check_text(name: str, text: str) -> str:
    """The text itself, as a record may hold it. Raises InvalidArgument."""
    if not isinstance(text, str) or len(text) > TEXT_LIMIT or not text.isprintable():
        raise InvalidArgument(f"{name} {str(text)[:40]!r} is refused: one line of {TEXT_LIMIT} characters at most")
    return text


def read(fs: FileSystem, path: str) -> Decision:
    """The decision recorded in a file. Raises DamagedBlock, FileNotFoundError."""
    return parse(read_checked(fs, path))


def parse(data: bytes) -> Decision:
    """The decision that a record's bytes are. Raises DamagedBlock."""
    block = decode(data)
    recorded = block.properties.headers
    outcome = recorded.get("decision", "")
    if block.kind is not Kind.BRANCH or outcome not in OUTCOMES:
        raise DamagedBlock("is no record of a decision")
    return Decision(outcome, recorded.get("by", "unknown"), block.properties.enqueued_at, recorded.get("reason", ""))


def decide(space: Space, xid: Xid, to_commit: bool, by: str, reason: str = "") -> Decision:
    """Records an operator's decision on a branch in doubt, carries it out, and returns it.

    by, reason: one line each. Where a decision was recorded before and not carried out, that one is, and returned.
    Raises UnknownXid where nothing of that name is in doubt, HeuristicOutcome where it was decided before, RetryLater
    where operators.log has no room.
    """
    check_text("operator", by)
    check_text("reason", reason)
    taken: Branch | None = None
    try:
        with space.lock:
            space.check()
            while (branch := space.branches.get(xid)) is not None and branch.busy:
                space.wait_settled()
            if branch is not None:
                for rider in branch.riders:
                    rider.check_by_hand(branch)
            if branch is None or branch.base not in (State.PREPARED, State.COMMITTING, *OUTCOMES.values()):
                raise UnknownXid(f"branch {xid} is not in doubt: list those that are with `xaqueue indoubt list`")
            if branch.base in HEURISTICS:
                raise HeuristicOutcome(
                    f"branch {xid} is {branch.base.value} already; forget ends this", HEURISTICS[branch.base]
                )
            if branch.base is State.COMMITTING and not (to_commit and branch.prepared_at):
                raise ProtocolError(f"branch {xid} is past its commit point: it can only be committed")
            taken = branch
            branch.busy = True
        outcome = "rollback" if not to_commit else "mixed" if branch.damage else "commit"
        path = f"{HEURISTIC}/{xid}"
        try:  # decided before, and there was no room to carry it out
            decision = parse(space.read_record(path))
        except FileNotFoundError:
            decision = Decision(outcome, by, space.now_us(), reason)
            _tell(space, Forgotten(str(xid), outcome, by, decision.at, reason))
            _record(space, branch, decision)
        complete(space, xid, decision)
    finally:
        if taken is not None:  # an interrupt may come once the lock is free
            with space.lock:
                space.settle_locked(taken)
            space.log.deliver_interrupt()
    return decision


def complete(space: Space, xid: Xid, decision: Decision) -> None:
    """Does what was decided, as far as it is not done yet, and remembers it as the branch's state."""
    branch = space.branches.get(xid)
    if branch is not None and branch.base in (State.PREPARED, State.COMMITTING):
        if branch.decided is None:
            with space.lock:
                branch.riders = (*branch.riders, Decided(OUTCOMES[decision.outcome]))
        if decision.outcome == "rollback":
            commit.rollback(space, branch)
        else:
            commit.commit(space, branch)
        if not branch.damage:
            return
    else:
        with space.lock:
            space.branches[xid] = Branch(xid, str(xid), base=OUTCOMES[decision.outcome])
    commit.resolve_damage(space, xid)


def forget(space: Space, branch: Branch) -> None:
    """The record goes; the xid is known as finished for a while yet. ProtocolError where the decision is not done."""
    if branch.decided is not None:
        raise ProtocolError(f"the decision on {branch.xid} is not carried out yet: decide it again")
    outcome = Outcome.ROLLED_BACK if branch.base is State.HEURISTIC_ROLLBACK else Outcome.COMMITTED
    change = Change(CoreStep.FORGET, branch.name, [(DROP, f"{HEURISTIC}/{branch.xid}")])
    space.log.perform(change, lambda: space.finish_locked(branch, outcome))


def note_forgotten(space: Space, xid: Xid, by: str, reason: str) -> None:
    """Who forgets it by hand, and why, is on disk before it is; nothing, where ``forget`` is going to say why not.

    Raises RetryLater without room.
    """
    check_text("operator", by)
    check_text("reason", reason)
    with space.lock:
        space.check()
        branch = space.branches.get(xid)
    if branch is None or branch.decided is not None:
        return
    try:
        decision = parse(space.read_record(f"{HEURISTIC}/{xid}"))
    except (FileNotFoundError, DamagedBlock):
        return
    last = decision.outcome, decision.by, decision.at, decision.reason
    _tell(space, Forgotten(str(xid), *last, by, space.now_us(), reason))


def _record(space: Space, branch: Branch, decision: Decision) -> None:
    headers = {"decision": decision.outcome, "by": decision.by}
    if decision.reason:
        headers["reason"] = decision.reason
    properties = Properties("", enqueued_at=decision.at, headers=headers)
    rows = [
        Listed(Kind.DEQUEUE if written.kind is Kind.DEQUEUE else Kind.ENQUEUE, written.queue, message_id, 0)
        for written in branch.blocks
        for message_id in written.ids
    ]
    head, *body = encode(Block(Kind.BRANCH, NO_MESSAGE, properties, pack_list(rows), space.epoch))
    space.put(CoreStep.DECISION, branch.name, f"{HEURISTIC}/{branch.xid}", head, b"".join(body))


class DecisionKind(RecordKind):
    directory = HEURISTIC

    def settle(self, opening: Opening) -> tuple[int, int]:
        """What was decided is carried out."""
        space = opening.space
        for name in listed(space.fs, HEURISTIC):
            path, xid = f"{HEURISTIC}/{name}", layout.parse_xid(name)
            try:
                decision = read(space.fs, path) if xid else None
            except DamagedBlock as damage:
                opening.set_aside(path, f"the record of a decision, damaged: {damage}")
                opening.note(f"the decision on branch {xid} was damaged: if it is in doubt, decide again")
                continue
            if xid is None or decision is None:
                opening.set_aside(path, "no record of a decision: its name is no xid")
                continue
            try:
                complete(space, xid, decision)
            except RetryLater as lack:
                opening.note(f"the decision on branch {xid} is not carried out yet: {lack}")
            space.report.heuristic += 1
        return 0, 0

    def bring(self, newer: Any) -> None:
        newer.bring_all(HEURISTIC)

    def check(self, look: Looking, name: str, path: str) -> None:
        if layout.parse_xid(name) is None:
            look.damaged(path, "is no record of a decision: its name is no xid")
            return
        try:
            decision = read(look.fs, path)
        except DamagedBlock as damage:
            look.damaged(path, f"the record of a decision: {damage}")
            return
        if look.fs.exists(layout.block_path(layout.PREPARED, name, layout.FIRST)):
            look.leftover(path, f"{decision.outcome} by {decision.by} is decided and not yet carried out")


KIND = DecisionKind()
