"""Whether many messages come in one file is said by queue, and may change while they are there."""

from __future__ import annotations

from pathlib import Path

import pytest

import xaqueue
from xaqueue.core.model import layout

COUNT = 20


def files(root: Path, queue: str) -> int:
    return len(list((root / layout.queue_path(queue)).glob("range=*/*")))


@pytest.mark.parametrize(("first", "then", "in_files"), [("many", "one", 1 + COUNT), ("one", "many", COUNT + 1)])
def test_a_change_holds_for_what_comes(tmp_path: Path, first: str, then: str, in_files: int) -> None:
    """What is there stays as it is, and is taken in its turn as before."""
    root, bodies = tmp_path / "space", [b"%d" % number for number in range(COUNT)]
    with xaqueue.connect(root, create=True) as connection:
        connection.define("orders", blocks=first)
        connection.enqueue_many("orders", bodies)
        connection.commit()
        connection.define("orders", blocks=then)
        connection.enqueue_many("orders", bodies)
    assert files(root, "orders") == in_files
    with xaqueue.connect(root) as connection:
        taken = connection.dequeue_many("orders", 2 * COUNT - 1)
        assert [one.body for one in taken] == (bodies + bodies)[:-1]
    with xaqueue.connect(root) as connection:
        assert [one.body for one in connection.browse("orders")] == bodies[-1:]
