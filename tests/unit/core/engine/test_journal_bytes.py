"""The bytes of the journal are those that they always were: a fixed story, by its digest.

Whoever changes the format on purpose writes the new digest here, and what reads the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import BareSpace, bare_space
from xaqueue.connection import Connection
from xaqueue.core.engine import messages
from xaqueue.core.model import layout
from xaqueue.features.session import Session
from xaqueue.xid import Xid

DIGEST = "f67a8d0ea3a6065ba547e6ac47495112e34cfb87627bb56a0c92b0d48a4540df"
ALL_BYTES = 79_425


@pytest.fixture(params=[None, False], ids=["synced as it is written", "written and synced"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", "JOURNAL", lambda: 1_700_000_000_000_000) as opened:
        opened.fs._dsync = request.param
        yield opened


def xid(number: int) -> Xid:
    return Xid(1, b"global %d" % number, b"branch")


def story(connection: Connection, bare: BareSpace) -> None:
    """Every kind of step, of one block and of several, with bodies of all sizes that are padded in another way."""
    for number in range(9):
        connection.tpc_begin(xid(number))
        connection.enqueue("orders", b"x" * number, headers={"n": str(number)})
        connection.tpc_prepare()
        connection.tpc_commit() if number % 3 else connection.tpc_rollback()
    for number, queue in enumerate(("orders", "bills", "orders")):
        connection.enqueue(queue, b"y" * 1000 * number, priority=number)
    connection.commit()
    bare.space.checkpoint()
    connection.tpc_begin(xid(10))
    assert connection.dequeue("orders") is not None
    connection.enqueue("bills", b"z" * 70_000)
    connection.tpc_prepare()
    connection.tpc_commit()
    assert connection.dequeue("bills") is not None
    connection.commit()
    assert connection.dequeue("orders") is not None
    connection.rollback()


def test_the_journal_of_a_fixed_story_has_the_same_bytes(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = (number.to_bytes(16, "big") for number in count(1))
    monkeypatch.setattr(messages, "fresh_id", lambda: next(ids))
    with Connection(Session(bare.space), lambda: next(ids)) as connection:
        story(connection, bare)
        digest, size = sha256(), 0
        for path in sorted((bare.root / layout.JOURNAL).iterdir()):
            data = path.read_bytes().rstrip(b"\0")
            digest.update(path.name.encode() + data)
            size += len(data)
    assert (size, digest.hexdigest()) == (ALL_BYTES, DIGEST)
