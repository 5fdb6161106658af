"""What is damaged leaves its queue while the space is open; what somebody has stays, and is told of."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import BareSpace, bare_space
from support.damages import DAMAGES, LARGE, Damage, damaged, flip
from support.served import ServerThread
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.owner.chores import Chores
from xaqueue.errors import UnknownQueue
from xaqueue.features.scrub import scrub
from xaqueue.features.scrub.scrub import Scrub, last_scrub, scrub_queue
from xaqueue.features.session import Session
from xaqueue.offline import inspect

PATIENCE_S = 30.0


@pytest.fixture(params=["NONE", "JOURNAL"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param) as opened:
        opened.put("q", b"first", LARGE, b"third")
        opened.put("other", b"fourth")
        opened.space.settle()
        opened.space.checkpoint()
        yield opened


def forgotten(bare: BareSpace) -> BareSpace:
    """Nothing is in memory any more but the names."""
    bare.reopen()
    return bare


@damaged
def test_a_damaged_message_is_set_aside(bare: BareSpace, damage: Damage) -> None:
    path = bare.message_file("q", LARGE)
    damage(path)
    done = Session(forgotten(bare).space).repair("q")
    assert done.messages == 3
    assert done.left == []
    (told,) = done.moved
    assert told.startswith(f"{path.relative_to(bare.root)}: ")
    assert bare.take("q") == [b"first", b"third"]
    assert len(bare.quarantined()) == 1
    assert Session(bare.space).repair("q") == scrub.Scrubbed(2, [], [])
    assert Session(bare.space).repair("other") == scrub.Scrubbed(1, [], [])


def test_what_a_branch_holds_is_left(bare: BareSpace) -> None:
    path = bare.message_file("q", b"first")
    forgotten(bare)
    xid = bare.prepare("holds", take=["q"])
    flip(path, -1)
    done = scrub_queue(bare.space, "q")
    assert done is not None
    assert (len(done.moved), len(done.left)) == (0, 1)
    Session(bare.space).rollback(xid)
    done = scrub_queue(bare.space, "q")
    assert done is not None
    assert (len(done.moved), len(done.left)) == (1, 0)


def test_what_is_whole_in_memory_stays(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("q", b"first")
        bare.space.settle()
        flip(bare.message_file("q", b"first"), -1)
        done = scrub_queue(bare.space, "q")
        assert done is not None
        assert (len(done.moved), len(done.left)) == (0, 1)
        assert bare.take("q") == [b"first"]
        assert [message.tries for message in Session(bare.space).browse("q")] == [1], "its own take is no try"


def test_an_unknown_queue(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", definitions=Definitions()) as bare, pytest.raises(UnknownQueue):
        scrub_queue(bare.space, "q")


def test_it_stops_when_asked(bare: BareSpace) -> None:
    assert not scrub.scrub(bare.space, lambda: True)
    assert last_scrub(bare.fs) is None


def test_what_was_found_is_written_down(bare: BareSpace, caplog: pytest.LogCaptureFixture) -> None:
    DAMAGES["empty"](bare.message_file("q", b"first"))
    forgotten(bare)
    with caplog.at_level(logging.WARNING, "xaqueue"):
        assert scrub.scrub(bare.space, lambda: False)
    last = last_scrub(bare.fs)
    assert last is not None
    assert last[1] == "messages read: 4; damaged and set aside: 1, left to who has them: 0"
    assert last[1] in caplog.text
    assert inspect.status(bare.root).scrubbed == last


def test_the_thread_begins_where_one_is_due(tmp_path: Path) -> None:
    with bare_space(tmp_path / "space", definitions=Definitions(options={"scrub_days": 1})) as bare:
        chore, until = Scrub(bare.space), time.monotonic() + PATIENCE_S
        scrubber = Chores(bare.space, [chore])
        while last_scrub(bare.fs) is None:
            assert time.monotonic() < until
            time.sleep(0.005)
        assert chore.wait_s() > 0, "the next one is in a day"
        scrubber.stop()
        bare.space.definitions = Definitions()
        assert chore.wait_s() > 0, "and never where it is not wanted"


@pytest.mark.parametrize("sync", ["NONE", "JOURNAL"])
def test_a_server_reads_all_before_it_is_ready(tmp_path: Path, sync: str) -> None:
    """OMS-28: every file is validated at the start, where that is asked for."""
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync=sync) as connection:
        for body in (b"first", b"second"):
            connection.enqueue("q", body)
            connection.commit()
    damaged_file = min((root / "committed").glob("queue=q/range=*/*"))
    flip(damaged_file, -1)
    for verifies in (False, True):
        served = ServerThread(root, tmp_path / "socket", sync=sync, verifies=verifies)
        found = inspect.status(root)
        served.stop()
        assert found.quarantined == verifies
    assert found.scrubbed is not None
    assert found.scrubbed[1] == "messages read: 2; damaged and set aside: 1, left to who has them: 0"
