"""The keys that queues have seen, as an open and a look find them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xaqueue.core.model.branch import Branch
from xaqueue.core.model.layout import FIRST
from xaqueue.core.model.record_kinds import Looking, Named, Opening, RecordKind
from xaqueue.core.recovery.load import read_head
from xaqueue.core.recovery.prepared import PreparedBranch
from xaqueue.features.dedup import dedup
from xaqueue.xid import Xid


class KeyKind(RecordKind):
    directory = dedup.KEYS
    names = dedup.KEY

    def find(self, opening: Opening) -> None:
        space = opening.space
        for queue in space.queues.values():
            if queue.exists:
                dedup.keys_of(queue).found(dedup.read_keys(space.fs, queue.name, opening.set_aside))

    def meet(self, opening: Opening, xids: Iterable[Xid], named: Named) -> None:
        """Before a branch goes that claims a key: its message may have moved, and not the record of the key."""
        space = opening.space
        for name, ids in named.items():
            queue = space.queue(name)
            for message_id, key in ids.items() if dedup.window_s(queue) else ():
                entry = queue.index.find(message_id) if key else None
                if entry is not None:
                    path = queue.path_of(entry)
                    dedup.restore(space, queue, key, read_head(space.fs, path), space.fs.modified_ns(path) // 1000)

    def adopt(self, space: Any, branch: Branch, found: PreparedBranch) -> None:
        """Its list says which keys it claims; where that is lost, it is taken to claim all."""
        heads = dict(found.blocks)
        for written in branch.blocks:
            if written.path and not written.path.endswith(f".{FIRST}"):
                row = found.rows[written.number - 1] if found.rows else None
                key = row.key if row is not None else dedup.key_of(heads[written.path])
                dedup.recover_key(space, branch, written, key)

    def places(self, space: Any) -> Iterable[str]:
        return [path for name in space.queues if space.fs.is_dir(path := dedup.keys_path(name))]

    def check_queue(self, look: Looking, queue: str) -> None:
        dedup.read_keys(look.fs, queue, look.damaged)

    def bring(self, newer: Any) -> None:
        for queue in newer.queues:
            newer.bring_all(dedup.keys_path(queue), replaces=True)
