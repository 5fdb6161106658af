"""A message id that is given twice: what its earlier life left is gone for good before it is used again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.bare_space import BareSpace
from support.crash_level import STRICT, open_space
from support.crash_story import EMPTY, message_id
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import before_time, pack, pack_properties
from xaqueue.features.session import Session
from xaqueue.features.topics import bulk
from xaqueue.features.topics.blocks import FEWEST, MOST
from xaqueue.message import MessageId, properties_of
from xaqueue.xa import Flag
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")


def put(session: Session, queue: str, body: bytes, given: MessageId | None = None) -> None:
    session.start(X)
    if given is None:
        session.enqueue(queue, body)
    else:
        session.enqueue(queue, body, message_id=given)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)


def take_and_answer(session: Session) -> None:
    """A branch of several blocks consumes the message."""
    session.start(X)
    assert session.dequeue("in") is not None
    session.enqueue("log", b"answer")
    session.end(X)
    session.prepare(X)
    session.commit(X)


def test_a_given_id_used_again_syncs_the_end_of_its_earlier_life(
    strict: BareSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(strict.space)
    put(session, "in", b"first", message_id(1))
    take_and_answer(session)
    synced: list[str] = []
    real = strict.fs.sync_dir

    def sync_dir(path: str) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(strict.fs, "sync_dir", sync_dir)
    put(session, "in", b"own id")
    assert layout.PREPARED not in synced
    put(session, "in", b"again", message_id(1))
    assert layout.PREPARED in synced


def test_many_of_given_ids_sync_it_as_well(strict: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one block or in several, as in a file each."""
    session = Session(strict.space)
    for count, files in ((FEWEST - 1, FEWEST - 1), (FEWEST, 1), (2 * MOST, 2)):
        synced: list[str] = []
        real = strict.fs.sync_dir

        def sync_dir(path: str, synced: list[str] = synced, real: Callable[[str], None] = real) -> None:
            synced.append(path)
            real(path)

        session.start(X)
        bulk._add_many(session, f"of {count}".replace(" ", "_"), [b"x"] * count, [*map(message_id, range(count))])
        session.end(X)
        with monkeypatch.context() as patch:
            patch.setattr(strict.fs, "sync_dir", sync_dir)
            session.commit(X, Flag.ONEPHASE)
        assert len(strict.messages(f"of_{count}")) == files
        assert layout.PREPARED in synced


def test_no_crash_loses_a_message_whose_given_id_was_used_before() -> None:
    fs = EMPTY.open()
    space = open_space(fs, STRICT)
    session = Session(space)
    put(session, "in", b"first", message_id(1))
    take_and_answer(session)
    put(session, "in", b"again", message_id(1))
    trees = 0
    for tree in fs.trees_after_crash():
        trees += 1
        assert bodies(open_space(tree.open(), STRICT), "in") == [b"again"]
    assert trees > 1


def bodies(space: Space, queue: str) -> list[bytes]:
    return [message.body for message in Session(space).browse(queue)]


@pytest.mark.parametrize("given", [None, MessageId(bytes(16))])
def test_a_message_with_no_option_but_its_id_has_the_properties_of_a_plain_one(
    strict: BareSpace, given: MessageId | None
) -> None:
    """A client always gives the id: that is the way of every message through a server."""
    session = Session(strict.space)
    session.start(X)
    made = session.enqueue("in", b"body") if given is None else session.enqueue("in", b"body", message_id=given)
    session.end(X)
    session.commit(X, Flag.ONEPHASE)
    found = next(iter(session.browse("in")))
    assert (found.message_id, found.body, found.queue) == (made, b"body", "in")
    assert found.properties == properties_of("in", found.enqueued_at, {})
    assert pack_properties(found.properties) == before_time("in") + pack(found.enqueued_at)
