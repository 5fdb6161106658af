"""A stream that ends inside a block of many messages cuts it by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import DURABLE, BareSpace
from support.block_space import body_of, put_block
from xaqueue.core.model import layout
from xaqueue.core.model.block import decode_message
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.message_block import decode_gone, decode_table
from xaqueue.core.model.message_name import parse_any
from xaqueue.features.opening import create
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.record import archived_path
from xaqueue.offline.check import repair

MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
BODIES = [b"%02d" % number for number in range(20)]
STREAM = "query#1"


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", "JOURNAL", definitions=MANY_EACH)
    yield opened
    opened.crash()


def files(bare: BareSpace, kept: str = "committed") -> list[Path]:
    return [path for path in bare.root.glob(f"{kept}/queue=q/[.r]*/*") if path.is_file()]


def in_archive(bare: BareSpace) -> list[bytes]:
    """Of both kinds of files, the bitmap of a block before it."""
    found: list[bytes] = []
    for path in files(bare, "archive"):
        named = parse_any(path.name)
        if named is None or path.parent.name.startswith("."):
            continue
        data = path.read_bytes()
        if named.is_block:
            bitmap = bare.root / archived_path(layout.gone_path("q", named))
            table = decode_table(data)
            gone = decode_gone(bitmap.read_bytes(), "q", named) if bitmap.exists() else 0
            found += [table.body(data, index) for index in table.left(gone)]
        else:
            found.append(decode_message(data)[2])
    return sorted(found)


@pytest.mark.parametrize("archives", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_the_rest_is_there_for_everybody(bare: BareSpace, reopened: bool, archives: bool) -> None:
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    session = Session(bare.space)
    session.reserve("q", STREAM, 0, 20)
    session.consume("q", STREAM, 8, archives)
    session.release("q")
    if reopened:
        bare.reopen()
    connection = bare.connect()
    taken = [message.body for message in connection.dequeue_many("q", 5)]
    connection.commit()
    assert taken == BODIES[8:13]
    if reopened:
        bare.reopen()
    connection = bare.connect()
    assert [message.body for message in connection.dequeue_many("q", 50)] == BODIES[13:]
    connection.commit()
    bare.space.settle()
    cleanup.clear(bare.space)
    assert files(bare) == []
    assert in_archive(bare) == (BODIES[:8] if archives else [])


def test_what_others_took_of_it_is_not_kept(bare: BareSpace) -> None:
    connection = bare.connect()
    ids = connection.enqueue_many("q", BODIES)
    connection.commit()
    connection.dequeue("q", message_id=ids[3])
    connection.commit()
    session = Session(bare.space)
    session.reserve("q", STREAM, 0, 20)
    session.consume("q", STREAM, 2)
    session.consume("q", STREAM, 8, True)
    session.release("q")
    assert in_archive(bare) == [BODIES[2], *BODIES[4:8]]


@pytest.mark.parametrize("calls", range(12))
def test_each_is_in_the_archive_once(bare: BareSpace, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """A release may be cut off anywhere, and then the stream goes on: or it ends, and another one does."""
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    session = Session(bare.space)
    session.reserve("q", STREAM, 0, 20)
    session.consume("q", STREAM, 4, True)
    left = iter(range(calls))

    def cut_off(path: str, *_: object) -> None:
        if path.startswith("archive/") and next(left, None) is None:
            raise ValueError("killed here")

    stream = STREAM
    with monkeypatch.context() as patch, suppress(ValueError):
        for name in ("create", "rename", "make_dir"):
            before(patch, bare, name, cut_off)
        session.release("q")
        stream = "query#2"
    bare.reopen()
    session = Session(bare.space)
    session.reserve("q", stream, 4, 20)
    session.consume("q", stream, 20, True)
    cleanup.clear(bare.space)
    assert in_archive(bare) == BODIES
    assert files(bare) == []
    assert stream == (STREAM if calls < 9 else "query#2")


@pytest.mark.parametrize(("through", "damaged"), [(5, 12), (19, 19)], ids=["one of the rest", "all of the rest"])
@pytest.mark.parametrize("sync", ["JOURNAL", "NONE", DURABLE])
def test_a_damaged_one_that_is_set_aside_takes_nothing_out_of_the_archive(
    tmp_path: Path, sync: str, through: int, damaged: int
) -> None:
    """Its bit, or the end of its block, says nothing of those that the stream has consumed before."""
    create(root := tmp_path / "space", sync=sync, any_queue=True)
    made = put_block(root, 1, 20, queue="q")
    made.harm_body(damaged)
    for upto in (through, 20):
        bare = BareSpace(root, sync, definitions=MANY_EACH)
        session = Session(bare.space)
        session.reserve("q", STREAM, 0, 20)
        session.consume("q", STREAM, upto, True)
        if upto == 20:
            cleanup.clear(bare.space)
        bare.space.close()
        repair(root)
    assert in_archive(bare) == sorted(body_of(seq) for seq in range(1, 21) if seq != damaged + 1)
    assert files(bare) == []


def before(patch: pytest.MonkeyPatch, bare: BareSpace, name: str, call: Callable[..., None]) -> None:
    real = getattr(bare.space.fs, name)

    def called(*given: Any, **options: Any) -> Any:
        call(*given)
        return real(*given, **options)

    patch.setattr(bare.space.fs, name, called)
