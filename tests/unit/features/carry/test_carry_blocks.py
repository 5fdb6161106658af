"""A change that a database carries, of messages that lie in a block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.bare_space import bare_space
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.features.session import Session
from xaqueue.xa import Flag
from xaqueue.xid import Xid

IN_BLOCKS = Definitions(default=QueueDefinition(blocks=MANY))
FIRST, SECOND = Xid(1, b"first", b""), Xid(1, b"second", b"")


def test_a_message_amid_a_block_whose_commit_is_late_is_not_carried(tmp_path: Path) -> None:
    """After a crash the branch that added it is in doubt, and no database knows of that."""
    with bare_space(tmp_path, "JOURNAL", definitions=IN_BLOCKS) as bare:
        adds: Any = Session(bare.space)
        adds.start(FIRST)
        ids = adds.enqueue_many("q", [b"body"] * 20)
        adds.end(FIRST)
        adds.prepare(FIRST)
        adds.commit(FIRST, Flag.LATE)
        takes: Any = Session(bare.space)
        takes.start(SECOND)
        assert takes.dequeue("q", message_id=ids[7]) is not None
        takes.end(SECOND)
        assert bare.space.log.deferred
        assert takes.carry(SECOND, f"{1:016x}.database") is None
        takes.rollback(SECOND)
        bare.space.settle()
        takes.start(SECOND)
        assert takes.dequeue("q", message_id=ids[7]) is not None
        takes.end(SECOND)
        assert takes.carry(SECOND, f"{1:016x}.database") is not None
        takes.commit(SECOND)
