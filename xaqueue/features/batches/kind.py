"""What opening a space does for batches: what is decided is carried out, and what a dead query left is swept.

A branch that a record lists is rolled forward, in whatever state a crash left its blocks; every other prepared branch
of that batch is rolled back. Where the record is damaged nobody knows, and all of them stay in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xaqueue.batch import is_of_a_batch, key_of
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.branch import State
from xaqueue.core.model.layout import FIRST, HEURISTIC
from xaqueue.core.model.record_kinds import Decided, Looking, Named, Opening, RecordKind
from xaqueue.core.recovery.prepared import PreparedBranch
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.features.batches import batch_steps, record
from xaqueue.features.batches.batch_steps import of_batch
from xaqueue.features.batches.record import BatchStep
from xaqueue.features.batches.sweep import sweep
from xaqueue.xid import Xid


class BatchKind(RecordKind):
    directory = record.BATCHES
    names = record.BATCH
    steps = tuple(BatchStep)

    def find(self, opening: Opening) -> None:
        """Which batches are decided. A record that was in the making is promised to nobody."""
        space = opening.space
        record.batches_of(space).found(listed(space.fs, record.BATCHES))
        if space.read_only is not None:
            return
        for name in space.fs.list(record.BATCHES):
            path = f"{record.BATCHES}/{name}"
            if name.startswith("."):
                discard(space.fs, path)
            elif record.parse_batch(name) is None:
                opening.set_aside(path, "no record of a batch: its name is not <key>.<number>")
        record.batches_of(space).found_lost(space.fs.list(layout.QUARANTINE))

    def meet(self, opening: Opening, xids: Iterable[Xid], named: Named) -> None:
        """Reads the decisions on their batches; also below the last of a query, where a crash came between the two."""
        space = opening.space
        for gtrid in sorted({xid.gtrid for xid in xids if is_of_a_batch(xid)}):
            path = record.decision_path(gtrid)
            try:
                record.batches_of(space).recovered[gtrid] = record.read_decision(space.fs, path)
            except FileNotFoundError:
                continue
            except DamagedBlock as damage:
                opening.set_aside(path, f"the record of a batch, damaged: {damage}")
                opening.note(f"the decision on batch {gtrid.decode()} was damaged: what is left of it stays in doubt")
                if record.batches_of(space).has(gtrid):
                    del record.batches_of(space).last[key_of(gtrid)]
                record.batches_of(space).found_lost(space.fs.list(layout.QUARANTINE))

    def commits(self, space: Any, found: PreparedBranch, files: Mapping[str, str]) -> bool:
        """Whether a decision commits a branch of several blocks, some of which may have moved already."""
        decision = record.batches_of(space).recovered.get(found.xid.gtrid)
        if FIRST not in files or decision is None or found.xid not in decision.xids:
            return False
        return bool(found.list_path or len(files) > 1) and not space.fs.exists(f"{HEURISTIC}/{found.xid}")

    def settle(self, opening: Opening) -> tuple[int, int]:
        """Carries the decisions out."""
        done = undone = 0
        space = opening.space
        for gtrid, decision in record.batches_of(space).recovered.items():
            left = [branch for branch in of_batch(space, gtrid) if branch.base is State.PREPARED and not branch.decided]
            committed = [branch for branch in left if branch.xid in decision.xids]
            others = [branch for branch in left if branch.xid not in decision.xids]
            for branch in committed:
                branch.become(State.COMMITTING)
                if branch.damage:
                    lost = ", ".join(branch.damage)
                    what = f"branch {branch.xid} is committed with {decision.batch} and lost {lost}"
                    opening.note(f"{what}: the rest is committed")
            try:
                batch_steps.finish(space, gtrid, committed)
                batch_steps.undo(space, gtrid, others)
            except RetryLater as lack:
                opening.note(f"{decision.batch} is decided and not carried out yet: {lack}")
            done += sum(1 for branch in committed if branch.xid not in space.branches)
            undone += sum(1 for branch in others if branch.xid not in space.branches)
        record.batches_of(space).recovered.clear()
        return done, undone + sweep(space)

    def tidy(self, space: Any) -> None:
        """A record below the last of its query is one that a crash has brought back. It goes once that is on disk, and
        its branches are finished.
        """
        for name in space.fs.list(record.BATCHES):
            key, number = record.parse_batch(name) or ("", 0)
            if number < record.batches_of(space).last.get(key, 0) and not of_batch(space, f"{key}:{number}".encode()):
                discard(space.fs, record.batch_path(key, number))

    def check(self, look: Looking, name: str, path: str) -> None:
        if record.parse_batch(name) is None:
            look.damaged(path, "is no record of a batch: its name is not <key>.<number>")
            return
        try:
            batch = record.read_decision(look.fs, path).batch
        except DamagedBlock as damage:
            look.damaged(path, f"the record of a batch: {damage}")
            return
        if record.decision_path(batch.gtrid) != path:
            look.damaged(path, f"is the record of {batch}, not of the batch that it is named after")

    def bring(self, newer: Any) -> None:
        newer.bring_all(record.BATCHES)

    def decides(self, fs: FileSystem, xid: Xid) -> Decided | None:
        commits = record.decision_lists(fs, xid)
        if commits is None:
            return None
        outcome = "committed: to be rolled forward" if commits else "decided without it: to be rolled back"
        return Decided(commits, f"its batch is {outcome}")
