"""Tries that ended with a process, and messages on their way to another queue, as an open and a look find them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from xaqueue.core.model import layout, records
from xaqueue.core.model.block import ADDS, NO_TRY, Head, Kind
from xaqueue.core.model.block_files import ids_taken
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.entry import Entry
from xaqueue.core.model.record_kinds import Looking, Opening, RecordKind
from xaqueue.core.recovery.prepared import PreparedBranch
from xaqueue.features.retries import moving, tries
from xaqueue.features.retries.register import TRIES, Register
from xaqueue.xid import Xid


class TriesKind(RecordKind):
    directory = ".retries"
    others = signs = (TRIES,)
    names = re.compile(r"[0-7][0-9a-f]{15}\.[0-9a-f]{32}")

    def adopt(self, space: Any, branch: Branch, found: PreparedBranch) -> None:
        """What a branch takes from one queue and adds to another was moved, as far as its blocks tell."""
        added = {row.message_id for row in found.rows if row.kind in ADDS}
        added.update(one for written in branch.blocks if written.kind in ADDS for one in written.ids)
        for written in branch.blocks:
            if written.kind is Kind.DEQUEUE and written.message_id in added:
                moving.leaves(branch, written, moving.MOVED)

    def undone(self, space: Any, xid: Xid, heads: Sequence[Head]) -> None:
        """What it held was tried: once, though a loss of power may bring back a block of a dequeue that was undone."""
        held = dict[Entry, str]()
        for head in heads if not moving.is_own(xid) else ():
            is_try = head.kind is Kind.DEQUEUE and NO_TRY not in head.properties.unknown
            for message_id in ids_taken(space.fs, head) if is_try else ():
                entry = space.queue(head.properties.queue).index.find(message_id)
                if entry is not None and not entry.locked and entry.tries <= head.properties.tries:
                    entry.tries = head.properties.tries
                    held[entry] = head.properties.queue
        tries.count(space, str(xid), [(queue, entry) for entry, queue in held.items()])

    def finish(self, opening: Opening) -> None:
        space = opening.space
        tries.count_killed(space, opening.set_aside)
        space.log.remember_takes(lambda: Register(space.room.unreserved, space.held))

    def check_queue(self, look: Looking, queue: str) -> None:
        known = records.read_retries(look.fs, queue, look.damaged)
        for seq, message_id in () if look.live else known:
            if not look.holds(queue, message_id):
                path = layout.retry_path(queue, seq, message_id)
                look.leftover(path, "the tries of a message that is gone: removed by the next open")

    def bring(self, newer: Any) -> None:
        for queue in newer.queues:
            newer.bring_all(layout.retries_path(queue), replaces=True)
