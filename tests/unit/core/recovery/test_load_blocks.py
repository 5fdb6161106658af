"""What an open finds wrong with a block of many messages takes none along that is good, and none comes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.bare_space import BareSpace
from support.block_space import body_of, id_of, put_block, put_message
from xaqueue.core.engine import many
from xaqueue.core.model import layout
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import RetryLater
from xaqueue.features.opening import create
from xaqueue.features.session import attach
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.reconstruct import reconstruct

FIRST, COUNT = 10, 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    create(root, sync="JOURNAL")
    (root / layout.QUEUES).write_text("[queues.orders]\n")
    return root


def shown(root: Path) -> list[tuple[int, bytes]]:
    with xaqueue.connect(root) as connection:
        return [(message.seq, message.body) for message in connection.browse("orders")]


def taken(root: Path, count: int = 100) -> list[bytes]:
    with xaqueue.connect(root) as connection:
        return [message.body for message in connection.dequeue_many("orders", count)]


def aside(root: Path) -> list[str]:
    return sorted(path.name for path in (root / layout.QUARANTINE).iterdir() if path.suffix != ".reason")


def is_clean(root: Path) -> bool:
    return all(finding.severity is Severity.NOTE for finding in check(root))


def test_single_messages_among_the_numbers_of_one_that_cannot_be_read(root: Path) -> None:
    made = put_block(root, FIRST, COUNT)
    made.harm_table()
    made.harm_copy()
    put_message(root, FIRST + 3)
    put_block(root, FIRST + 5, 3)
    assert shown(root) == [(seq, body_of(seq)) for seq in (FIRST + 3, FIRST + 5, FIRST + 6, FIRST + 7)]
    assert len(aside(root)) == 1


def test_among_the_numbers_of_one_that_can_be_read_there_are_none(root: Path) -> None:
    put_block(root, FIRST, COUNT)
    put_message(root, FIRST + 3)
    assert shown(root) == [(seq, body_of(seq)) for seq in range(FIRST, FIRST + COUNT)]
    assert len(aside(root)) == 1


@pytest.mark.parametrize("gone", [0, 0b1001])
def test_of_one_id_that_is_there_twice_one_message_goes(root: Path, gone: int) -> None:
    """In one block, in two, and of which nothing else is left. What is gone counts for none."""
    ids = [id_of(seq) for seq in range(FIRST, FIRST + COUNT)]
    put_block(root, FIRST, COUNT, ids=[*ids[:-1], ids[1]], gone=gone)
    put_block(root, 100, 16, ids=[*(id_of(seq) for seq in range(100, 115)), ids[2]])
    put_block(root, 200, 16, ids=[ids[4], *(id_of(seq) for seq in range(201, 216))], gone=0xFFFE)
    left = [seq for seq in range(FIRST, FIRST + COUNT - 1) if not gone >> seq - FIRST & 1] + [*range(100, 115)]
    assert shown(root) == [(seq, body_of(seq)) for seq in left]
    assert aside(root) == sorted(
        layout.message_path("orders", seq, message_id).removeprefix("committed/queue=").replace("/", ".")
        for seq, message_id in ((FIRST + COUNT - 1, ids[1]), (115, ids[2]), (200, ids[4]))
    )
    assert is_clean(root)
    assert not list(root.glob(f"{layout.queue_path('orders')}/range=*/{200:016x}*"))
    assert shown(root) == [(seq, body_of(seq)) for seq in left]
    assert len(aside(root)) == 3
    assert taken(root) == [body_of(seq) for seq in left]


@pytest.mark.parametrize("sync", ["JOURNAL", "NONE", "FDATASYNC;DSYNC"])
@pytest.mark.parametrize("is_planned", [False, True])
def test_one_that_is_there_twice_stays_until_there_is_room(
    root: Path, monkeypatch: pytest.MonkeyPatch, sync: str, is_planned: bool
) -> None:
    """Who takes others from its block meanwhile does not take it along, and waits for nobody."""
    put_block(root, FIRST, COUNT)
    put_block(root, 100, COUNT, ids=[*(id_of(seq) for seq in range(100, 119)), id_of(FIRST)])
    left = [body_of(seq) for seq in (*range(FIRST, FIRST + COUNT), *range(100, 119))]
    removal = many.removal

    def full(*arguments: Any) -> Any:
        if is_planned:
            removal(*arguments).take_back()
        raise RetryLater("no room")

    with monkeypatch.context() as patch:
        patch.setattr(many, "removal", full)
        made = BareSpace(root, sync)
    (first, second) = made.space.queues["orders"].blocks[0]
    assert (first.is_settled, second.is_settled) == (True, True)
    with made.connect() as connection:
        taken = connection.dequeue_many("orders", COUNT + 10)
    assert [message.body for message in taken] == left[: COUNT + 10]
    assert second.is_settled
    made.reopen()
    with made.connect() as connection:
        rest = [message.body for message in connection.dequeue_many("orders", 99)]
    assert rest == [*left[COUNT + 10 :], body_of(119)]
    made.crash()


def test_one_that_is_set_aside_takes_along_what_is_gone_of_it(root: Path) -> None:
    """Damaged in both tables, and mended by who had a copy: what was taken does not come back."""
    made = put_block(root, FIRST, COUNT, gone=0b1011)
    whole = made.file.read_bytes()
    made.harm_table()
    made.harm_copy()
    assert shown(root) == []
    assert len(aside(root)) == 2
    assert not made.gone_file.exists()
    (block,) = (name for name in aside(root) if "+" in name)
    (root / layout.QUARANTINE / block).write_bytes(whole)
    done = reconstruct(root)
    assert done.back == {"orders": COUNT - 3}
    assert sorted(taken(root)) == sorted(
        body_of(seq) for seq in range(FIRST, FIRST + COUNT) if seq - FIRST not in (0, 1, 3)
    )


def test_what_is_gone_of_one_that_is_gone_goes(root: Path) -> None:
    made = put_block(root, FIRST, COUNT, gone=0b1011)
    made.file.unlink()
    assert shown(root) == []
    assert aside(root) == []
    assert not made.gone_file.exists()


def test_each_is_read_once_and_a_bitmap_where_there_is_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a million messages are opened in a second."""
    read: list[str] = []
    real = DirectoryFileSystem.read

    def note(self: DirectoryFileSystem, path: str, size: int | None = None, offset: int = 0) -> bytes:
        read.append(path)
        return real(self, path, size, offset)

    made = [put_block(root, FIRST + at * COUNT, COUNT, gone=0b1 if at == 1 else 0) for at in range(3)]
    monkeypatch.setattr(DirectoryFileSystem, "read", note)
    session = attach(root)
    found = [path for path in read if "/range=" in path or layout.GONE in path]
    assert sorted(found) == sorted([*(one.path for one in made), made[1].gone_path])
    session.close()
