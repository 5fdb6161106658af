"""The follower finds no room at any of its calls: what was acknowledged is served, stays, and is there once."""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest

from support.bare_space import BareSpace
from support.journal_of import journal_log
from support.narrow_disk import LARGE_BYTES, NarrowFileSystem, narrow_space
from support.space_scan import scan
from xaqueue.xid import Xid

LARGE, LARGER, LARGEST = (bytes([letter]) * LARGE_BYTES for letter in b"LMN")
AGAIN, MOVES, SEVERAL = (Xid(1, name, b"b") for name in (b"again", b"moves", b"several"))


def stand(bare: BareSpace) -> tuple[Xid, Xid, Xid]:
    """What the directories hold, and a checkpoint covers, before the turn."""
    bare.put("q", b"zero")
    bare.put("r", b"one")
    branches = (
        bare.prepare(AGAIN, add=[("q", b"first")]),
        bare.prepare("large", add=[("q", LARGE)]),
        bare.prepare("gone", add=[("q", b"never"), ("r", b"never")]),
    )
    bare.space.checkpoint()
    return branches


def change(bare: BareSpace, again: Xid, large: Xid, gone: Xid) -> None:
    """A turn of each kind: a name that is used again, files that move once and twice, what comes and what goes."""
    with closing(bare.connect()) as connection:
        connection.tpc_commit(again)
        bare.prepare(again, add=[("q", b"second")])
        connection.tpc_commit(large)
        connection.tpc_rollback(gone)
        bare.prepare(MOVES, add=[("q", LARGER)])
        bare.prepare(SEVERAL, add=[("q", b"several"), ("new", b"n")], take=["q"])
        bare.put("new", LARGEST)
        assert connection.dequeue("r") is not None
        connection.commit()


def go_on(bare: BareSpace) -> None:
    """What had no room is committed, taken and added to."""
    with closing(bare.connect()) as connection:
        connection.tpc_commit(MOVES)
        connection.tpc_commit(SEVERAL)
        message = connection.dequeue("new")
        assert message is not None
        assert message.body == LARGEST
        connection.commit()
    bare.put("r", b"late")


def check(bare: BareSpace) -> None:
    assert bare.take("q") == [b"first", LARGE, LARGER, b"several"]
    assert (bare.take("r"), bare.take("new")) == ([b"late"], [b"n"])
    assert bare.in_doubt() == [AGAIN]


def follow(bare: BareSpace) -> None:
    with suppress(OSError):
        bare.space.log.settle()
    bare.space.check()


@pytest.mark.parametrize("spreads", [False, True], ids=["that call", "all from there on"])
@pytest.mark.parametrize("when", ["at once", "later", "once closed", "after a kill", "after a kill, covered"])
def test_no_room_at_any_call_of_a_turn(tmp_path: Path, when: str, spreads: bool) -> None:
    """Then there is, at once or once the next turn found none either; or the next owner has it."""
    for at in count():
        with narrow_space(tmp_path / f"{at}", "JOURNAL") as (bare, fs):
            change(bare, *stand(bare))
            fs.fill(at, spreads=spreads)
            follow(bare)
            if not fs.struck:
                break
            lack(bare, fs, when)
            check(bare)
            with closing(bare.connect()) as connection:
                connection.tpc_commit(AGAIN)
            assert bare.take("q") == [b"first", LARGE, LARGER, b"several", b"second"]
            bare.space.checkpoint()
            assert not bare.space.log.pending
            bare.crash()
            assert scan(bare.root) == [], f"after {fs.struck[0]}"
    assert at > 15


def lack(bare: BareSpace, fs: NarrowFileSystem, when: str) -> None:
    if when == "at once":
        fs.free()
        follow(bare)
        go_on(bare)
        return
    go_on(bare)
    follow(bare)
    check(bare)
    if when == "after a kill, covered":
        journal = journal_log(bare.space)
        assert journal is not None
        journal.checkpoint()
    if when == "once closed":
        assert bare.space.close() is not bare.space.log.pending, "the next open must read the journal"
    fs.free()
    if when != "later":
        bare.reopen()
