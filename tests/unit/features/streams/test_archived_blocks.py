"""A block of many messages is kept in the archive with what is gone of it, whatever cuts that off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import DURABLE, BareSpace
from support.block_space import body_of, id_of, put_block
from xaqueue.core.engine import many
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode_message
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.message_block import decode_gone, decode_table
from xaqueue.core.model.message_name import parse_any
from xaqueue.errors import RetryLater
from xaqueue.features.opening import create
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.record import archived_path

MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
BODIES = [b"%d" % number for number in range(20)]
STREAM = "query#1"


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", "JOURNAL", definitions=MANY_EACH)
    yield opened
    opened.crash()


def put_and_take(bare: BareSpace, *taken: int) -> None:
    connection = bare.connect()
    ids = connection.enqueue_many("q", BODIES)
    connection.commit()
    for one in taken:
        assert connection.dequeue("q", message_id=ids[one])
    connection.commit()


def consume(bare: BareSpace, *through: tuple[int, bool]) -> None:
    session = Session(bare.space)
    session.reserve("q", STREAM, 0, 20)
    for upto, archives in through:
        session.consume("q", STREAM, upto, archives)


def kept(root: Path) -> list[bytes]:
    """The bodies in the archive; the bitmap of a block is read before it."""
    found: list[bytes] = []
    for directory in sorted(root.glob("archive/queue=q/range=*")):
        for path in sorted(directory.iterdir()):
            named = parse_any(path.name)
            assert named is not None
            if not named.is_block:
                found.append(decode_message(path.read_bytes())[2])
                continue
            bitmap = root / archived_path(layout.gone_path("q", named))
            gone = decode_gone(bitmap.read_bytes(), "q", named) if bitmap.exists() else 0
            data = path.read_bytes()
            table = decode_table(data)
            found += [table.body(data, index) for index in table.left(gone)]
    return found


def nothing_left(root: Path) -> bool:
    return not [path for path in root.glob("committed/queue=q/*/*") if path.is_file()]


@pytest.mark.parametrize("followed", [False, True])
def test_what_others_took_is_not_kept(bare: BareSpace, followed: bool) -> None:
    put_and_take(bare, 0, 7, 19)
    if followed:
        bare.space.settle()
    consume(bare, (20, True))
    cleanup.clear(bare.space)
    assert kept(bare.root) == [body for number, body in enumerate(BODIES) if number not in (0, 7, 19)]
    assert nothing_left(bare.root)


def test_what_was_consumed_before_is_not_kept(bare: BareSpace) -> None:
    put_and_take(bare, 7)
    consume(bare, (3, False), (20, True))
    cleanup.clear(bare.space)
    assert kept(bare.root) == [body for number, body in enumerate(BODIES) if number > 2 and number != 7]


@pytest.mark.parametrize("sync", ["JOURNAL", "NONE"])
def test_what_was_consumed_of_one_with_an_id_twice_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """No bitmap says that it is gone while the stream has the rest to consume."""
    create(root := tmp_path / "space", sync=sync, any_queue=True)
    ids = [id_of(seq) for seq in range(1, 21)]
    put_block(root, 1, 20, queue="q", ids=[*ids[:10], ids[8], *ids[11:]])

    def full(*_: Any) -> Any:
        raise RetryLater("no room")

    with monkeypatch.context() as patch:
        patch.setattr(many, "removal", full)
        bare = BareSpace(root, sync, definitions=MANY_EACH)
    consume(bare, (5, True))
    bare.reopen()
    consume(bare, (20, True))
    cleanup.clear(bare.space)
    assert kept(root) == [body_of(seq) for seq in range(1, 21)]
    assert nothing_left(root)
    bare.crash()


BLOCK, SECOND = "0000000000000001+014.", "0000000000000002."
IN_THE_WAY = {
    **dict.fromkeys([".gone", ".gone/.new", f".gone/{BLOCK[:16]}.{id_of(1).hex()}"], 20),
    f"range=0000000000000/{BLOCK}{id_of(1).hex()}": 20,
    **dict.fromkeys([f"range=0000000000000/{dot}{SECOND}{id_of(2).hex()}" for dot in (".", "")], 5),
}
"""What may stand in the archive where something is to be kept, and through which number a stream consumes then."""


@pytest.mark.parametrize("what", ["file", "directory", "full directory"])
@pytest.mark.parametrize("place", IN_THE_WAY)
@pytest.mark.parametrize("sync", ["JOURNAL", DURABLE])
def test_whatever_is_in_the_way_is_no_message(tmp_path: Path, sync: str, place: str, what: str) -> None:
    """It neither ends the space nor keeps a message out of the archive."""
    create(root := tmp_path / "space", sync=sync, any_queue=True)
    put_block(root, 1, 20, queue="q", gone=0b1)
    path = root / "archive/queue=q" / place
    path.parent.mkdir(parents=True)
    if what == "file":
        path.write_bytes(b"content")
    else:
        path.mkdir()
    if what == "full directory":
        (path / "file").write_bytes(b"content")
    bare = BareSpace(root, sync, definitions=MANY_EACH)
    consume(bare, (upto := IN_THE_WAY[place], True))
    cleanup.clear(bare.space)
    Session(bare.space).release("q")
    assert kept(root) == [body_of(seq) for seq in range(2, upto + 1)]
    bare.space.close()


def test_all_of_a_whole_one_is_kept(bare: BareSpace) -> None:
    put_and_take(bare)
    consume(bare, (20, True))
    cleanup.clear(bare.space)
    assert kept(bare.root) == BODIES
    assert not (bare.root / "archive/queue=q/.gone").exists()


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("followed", [False, True])
def test_a_replay_keeps_the_same(bare: BareSpace, followed: bool, cleared: bool) -> None:
    put_and_take(bare, 0, 7)
    if followed:
        bare.space.settle()
    consume(bare, (20, True))
    if cleared:
        cleanup.clear(bare.space)
    bare.crash()
    again = BareSpace(bare.root, "JOURNAL", definitions=MANY_EACH)
    cleanup.clear(again.space)
    again.crash()
    assert kept(bare.root) == [body for number, body in enumerate(BODIES) if number not in (0, 7)]
    assert nothing_left(bare.root)
