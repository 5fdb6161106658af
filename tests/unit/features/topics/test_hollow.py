"""Blocks of which little is left are made smaller: what an open makes of one, and what becomes of the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.block_space import body_of, id_of, put_block
from xaqueue.features import opening
from xaqueue.features.session import attach


@pytest.mark.parametrize("sync", ["NONE", "JOURNAL"])
def test_a_hollow_block_is_opened(tmp_path: Path, sync: str) -> None:
    """Of what is gone nothing is known any more but that it is."""
    opening.create(root := tmp_path / "space", sync=sync, any_queue=True)
    made = put_block(root, 1, 20)
    made.take(gone := (1 << 20) - 1 - (1 << 4) - (1 << 17))
    made.hollow(gone)
    session = attach(root)
    assert [one.message_id for one in session.browse("orders")] == [id_of(5), id_of(18)]
    (block,) = session.space.queue("orders").blocks[0]
    assert (block.left, block.held) == (2, 2)
    session.close()
    session = attach(root)
    found = [session.space.report.quarantined, [one.body for one in session.browse("orders")]]
    session.close()
    assert found == [[], [body_of(5), body_of(18)]]
