"""An operator's decision on a branch in doubt: recorded durably before anything is done, kept until forget.

The record is a block of kind *branch* in ``heuristic/`` under the branch's xid: its headers say what was decided, by
whom and why, and its body what the branch would have done. Once it is hardened the decision stands: a crash right after
it is completed at the next open, and the transaction manager hears of it (XA_HEURCOM, XA_HEURRB, XA_HEURMIX).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xaqueue.errors import DamagedBlock, HeuristicOutcome, InvalidArgument, ProtocolError, RetryLater, UnknownXid
from xaqueue.message import Properties
from xaqueue.space.engine import blocks
from xaqueue.space.engine import commit as steps
from xaqueue.space.engine import redo as redo_of
from xaqueue.space.engine.redo import Redo
from xaqueue.space.model.block import Block, Kind, decode, encode, pack_list
from xaqueue.space.model.block_files import damage_of, read_block
from xaqueue.space.model.branch import HEURISTICS, Branch, State
from xaqueue.space.model.layout import ACTIVE, FIRST, HEURISTIC, block_path
from xaqueue.storage.fs import NO_ROOM, FileSystem
from xaqueue.storage.group_commit import Touched, touched
from xaqueue.storage.journal_format import Entry
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

OUTCOMES = {
    "commit": State.HEURISTIC_COMMIT,
    "rollback": State.HEURISTIC_ROLLBACK,
    "mixed": State.HEURISTIC_MIXED,
}
TEXT_LIMIT = 1000
"""Characters of who decided, and of why, at most."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator decided: "commit", "rollback", or "mixed" for a commit of what damage had left."""

    outcome: str
    by: str
    at: int
    """Int microseconds UTC."""
    reason: str = ""
    """Why, in the operator's words; empty where nothing was said, and in records before there were reasons."""


def check_text(name: str, text: str) -> str:
    """The text itself, as a record may hold it. Raises InvalidArgument."""
    if not isinstance(text, str) or len(text) > TEXT_LIMIT or not text.isprintable():
        raise InvalidArgument(f"{name} {str(text)[:40]!r} is refused: one line of {TEXT_LIMIT} characters at most")
    return text


def read(fs: FileSystem, path: str) -> Decision:
    """The decision recorded in a file. Raises DamagedBlock."""
    try:
        block = decode(read_block(fs, path))
    except OSError as error:
        raise damage_of(fs, path, error) from error
    told = block.properties.headers
    outcome = told.get("decision", "")
    if block.kind is not Kind.BRANCH or outcome not in OUTCOMES:
        raise DamagedBlock("is no record of a decision")
    return Decision(outcome, told.get("by", "unknown"), block.properties.enqueued_at, told.get("reason", ""))


def decide(space: Space, xid: Xid, commit: bool, by: str, reason: str = "") -> Decision:
    """Records an operator's decision on a branch in doubt, carries it out, and returns it.

    by, reason: one line each. Where a decision was recorded before and not carried out, that one is, and returned.
    Raises UnknownXid where nothing of that name is in doubt, HeuristicOutcome where it was decided before.
    """
    check_text("operator", by)
    check_text("reason", reason)
    with space.lock:
        space.barrier.check()
        branch = space.branches.get(xid)
        while branch is not None and branch.busy:
            space.wait_settled()
            branch = space.branches.get(xid)
        if branch is None or branch.base not in (State.PREPARED, *OUTCOMES.values()):
            raise UnknownXid(f"branch {xid} is not in doubt: list those that are with `xaqueue indoubt list`")
        if branch.base is not State.PREPARED:
            raise HeuristicOutcome(
                f"branch {xid} is {branch.base.value} already; forget ends this", HEURISTICS[branch.base]
            )
        if branch.committing and not commit:
            raise ProtocolError(f"branch {xid} is past its commit point: it can only be committed")
        branch.busy = True
    try:
        outcome = "rollback" if not commit else "mixed" if branch.damage else "commit"
        path = f"{HEURISTIC}/{xid}"
        if space.fs.exists(path):  # decided before, and there was no room to carry it out
            decision = read(space.fs, path)
        else:
            decision = Decision(outcome, by, space.now_us(), reason)
            _record(space, branch, decision)
        complete(space, xid, decision)
    finally:
        with space.lock:
            branch.busy = False
            space.settled.notify_all()
        space.barrier.deliver_interrupt()
    return decision


def complete(space: Space, xid: Xid, decision: Decision) -> None:
    """Does what was decided, as far as it is not done yet, and remembers it as the branch's state."""
    branch = space.branches.get(xid)
    if branch is not None and branch.base is State.PREPARED:
        branch.decided = OUTCOMES[decision.outcome]
        if decision.outcome == "rollback":
            steps.rollback(space, branch)
        else:
            steps.commit(space, branch)
    else:
        with space.lock:
            space.branches[xid] = Branch(xid, base=OUTCOMES[decision.outcome])
    steps.resolve_damage(space, xid)


def forget(space: Space, branch: Branch) -> None:
    """The record goes; the xid is known as finished for a while yet."""
    outcome = Outcome.ROLLED_BACK if branch.base is State.HEURISTIC_ROLLBACK else Outcome.COMMITTED
    path = f"{HEURISTIC}/{branch.xid}"

    def entry() -> Entry:
        redo = Redo(redo_of.Kind.FORGET, branch.name)
        redo.drop(path)
        return redo.entry()

    def apply() -> Touched:
        with suppress(FileNotFoundError):
            space.fs.unlink(path)
        return touched(sources=(HEURISTIC,))

    space.barrier.perform(apply, entry=entry)
    space.finish(branch, outcome)


def _record(space: Space, branch: Branch, decision: Decision) -> None:
    headers = {"decision": decision.outcome, "by": decision.by}
    if decision.reason:
        headers["reason"] = decision.reason
    properties = Properties("", enqueued_at=decision.at, headers=headers)
    source = block_path(ACTIVE, str(branch.xid), FIRST)  # content before name, as for every block
    target = f"{HEURISTIC}/{branch.xid}"
    listed = pack_list(blocks.list_of(branch) if branch.blocks else [])
    content = encode(Block(Kind.BRANCH, blocks.NO_MESSAGE, properties, listed, space.epoch))
    try:
        space.room.create(space.fs.create, source, content)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise space.fence(error) from error
        raise RetryLater(
            f"no room to record the decision on {branch.xid} ({error.strerror}): nothing was done"
        ) from error
    if space.barrier.journal is None:
        space.barrier.harden_content([source])

    def entry() -> Entry:
        redo = Redo(redo_of.Kind.DECISION, branch.name)
        redo.put(target, content[0], b"".join(content[1:]))
        return redo.entry()

    def apply() -> Touched:
        space.fs.rename(source, target)
        return touched((HEURISTIC,))

    space.barrier.perform(apply, entry=entry)
