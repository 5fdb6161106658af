"""What a branch of a batch may do on its own: less than others, since its batch is decided as a whole."""

from __future__ import annotations

from xaqueue.batch import MANY_SPACES, is_of_a_batch, key_of
from xaqueue.core.engine.state import Space
from xaqueue.core.model.branch import Branch, Call, Rule, State
from xaqueue.errors import DamagedBlock, ProtocolError, RolledBack
from xaqueue.features.batches import batch_steps, record
from xaqueue.xa import Outcome
from xaqueue.xid import Xid


class BatchRule(Rule):
    """For xids with one of ``BATCH_FORMAT_IDS``, as far as the rest of them says that they are of a batch."""

    def check(self, space: Space, branch: Branch, call: Call) -> None:
        if not is_of_a_batch(branch.xid):
            return
        if call is Call.START:
            late = batch_steps.refusal(space, branch.xid)
            if late:
                raise RolledBack(late)
        elif call is Call.PREPARE and branch.blocks:
            _check_prepare(space, branch)
        elif call is Call.COMMIT:
            _check_commit(branch)
        elif call is Call.ROLLBACK:
            _check_rollback(branch)

    def outcome(self, space: Space, xid: Xid) -> Outcome:
        return _outcome(space, xid) if is_of_a_batch(xid) else Outcome.UNKNOWN


def _check_prepare(space: Space, branch: Branch) -> None:
    """RolledBack for a branch that comes after its batch was decided. Its caller holds it busy."""
    with space.lock:
        while key_of(branch.xid.gtrid) in record.batches_of(space).claimed:
            space.wait_settled()
        late = batch_steps.refusal(space, branch.xid)
    if late:
        raise branch.rollback_reason or RolledBack(late)


def _check_commit(branch: Branch) -> None:
    """ProtocolError for a branch that is committed with its batch or not at all. Its caller holds it busy."""
    if branch.base is not State.COMMITTING:
        raise ProtocolError(
            f"branch {branch.xid} is of a batch, and would be written again if it were committed alone: commit_all "
            f"decides the whole batch, and an operator can with `xaqueue indoubt commit {branch.xid}`"
        )


def _check_rollback(branch: Branch) -> None:
    """ProtocolError for a branch that another space may have committed already. Its caller holds it busy."""
    xid = branch.xid
    if xid.format_id == MANY_SPACES and branch.base is State.PREPARED:
        raise ProtocolError(
            f"branch {xid} is of a batch over several spaces, another of which may have committed it: the query rolls "
            f"it back with its batch, and an operator who has looked there can with `xaqueue indoubt rollback {xid}`"
        )


def _outcome(space: Space, xid: Xid) -> Outcome:
    """As the decision on its batch says."""
    with space.lock:
        if not record.batches_of(space).has(xid.gtrid):
            return Outcome.UNKNOWN
    try:
        decided = record.decode_decision(space.read_record(record.decision_path(xid.gtrid)))
    except (FileNotFoundError, DamagedBlock):
        return Outcome.UNKNOWN
    return Outcome.COMMITTED if xid in decided.xids else Outcome.ROLLED_BACK
