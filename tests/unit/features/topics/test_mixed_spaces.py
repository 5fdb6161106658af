"""A space that has messages in files of their own gets blocks beside them, and is used on where it is to have none."""

from __future__ import annotations

from pathlib import Path

import pytest

import xaqueue
from xaqueue.core.model import layout
from xaqueue.core.model.message_name import parse_any
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity

BODIES = [b"%d" % number for number in range(20)]


def says(root: Path, blocks: str) -> None:
    (root / layout.QUEUES).write_text(f'[default]\nblocks = "{blocks}"\n')


def put(root: Path, *bodies: bytes) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue_many("q", list(bodies))
        connection.commit()


def take(root: Path, count: int) -> list[bytes]:
    with xaqueue.connect(root) as connection:
        found = [message.body for message in connection.dequeue_many("q", count)]
        connection.commit()
    return found


def blocks_in(root: Path) -> int:
    names = [parse_any(path.name) for path in (root / layout.queue_path("q")).glob("range=*/*")]
    return sum(named is not None and named.is_block for named in names)


def is_sound(root: Path) -> bool:
    return all(finding.severity is Severity.NOTE for finding in check(root))


def left(root: Path) -> list[bytes]:
    with xaqueue.connect(root) as connection:
        return [message.body for message in connection.browse("q")]


@pytest.mark.parametrize("sync", ["JOURNAL", "FDATASYNC;DSYNC", "NONE"])
def test_files_then_blocks_then_files(tmp_path: Path, sync: str) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True, sync=sync).close()
    said = list[bytes]()
    for number, blocks in enumerate(("one", "many", "one", "many")):
        says(root, blocks)
        more = [b"%d %d" % (number, one) for one in range(20)]
        put(root, *more)
        said += more
        assert blocks_in(root) == number // 2 + number % 2
        assert take(root, 3) == said[:3]
        said = said[3:]
        assert left(root) == said
        assert is_sound(root)
    says(root, "one")
    assert take(root, 100) == said
    assert is_sound(root)
    assert blocks_in(root) == 0
    assert not [path for path in (root / layout.queue_path("q")).rglob("*") if path.is_file() and path.name[0] != "."]


def test_a_branch_over_both_is_decided_under_the_other(tmp_path: Path) -> None:
    """What it takes lies in files and in a block; who opens next makes no blocks any more."""
    root, xid = tmp_path / "space", xaqueue.Xid(1, b"x", b"")
    xaqueue.connect(root, create=True).close()
    says(root, "one")
    put(root, *BODIES[:5])
    says(root, "many")
    put(root, *BODIES)
    for verb in ("rollback", "commit"):
        with xaqueue.connect(root) as connection:
            connection.tpc_begin(xid)
            assert [one.body for one in connection.dequeue_many("q", 9)] == [*BODIES[:5], *BODIES[:4]]
            connection.enqueue_many("q", BODIES)
            connection.tpc_prepare()
        says(root, "one")
        assert left(root) == [*BODIES[:5], *BODIES], "what is held is there still"
        assert is_sound(root)
        with xaqueue.connect(root) as connection:
            getattr(connection, f"tpc_{verb}")(xid)
        says(root, "many")
        assert left(root) == ([*BODIES[:5], *BODIES] if verb == "rollback" else [*BODIES[4:], *BODIES])
        assert is_sound(root)
