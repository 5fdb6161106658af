"""What leaves a queue with an archive is kept by the very step, and a record says who took it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from support.archived import archived, live
from support.bare_space import BareSpace
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.layout import LAST_SEQ
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.taken import (
    Taken,
    decode_taken,
    encode_taken,
    parse_taken,
    read_all,
    spans_of,
    taken_directory,
    taken_path,
)
from xaqueue.features.topics.hollow import hollow, sparse

KEPT = QueueDefinition(blocks=MANY, options={"archive": "parquet"})
DEFINED = Definitions({"q": KEPT, "other": QueueDefinition()})
LEVELS = ("JOURNAL", "NONE", "FSYNC", "FDATASYNC;DSYNC", "FSYNC;DSYNC")
BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture(params=LEVELS)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", request.param, definitions=DEFINED)
    yield opened
    opened.crash()


def kept(bare: BareSpace) -> dict[bytes, str]:
    """By body who took it; all of it, and what is there, are numbers of their own."""
    bare.space.log.settle()
    found = archived(bare.fs, "q")
    assert not found.keys() & live(bare.fs, "q")
    return {one.body: f"{one.by.how} {one.by.by}".strip() if one.by else "" for one in found.values()}


def test_a_record_is_read_as_it_was_written() -> None:
    taken = Taken(1_700_000_000_000_000, "1.eA.", "taken", [(3, 3), (5, 9)], [(4, 4)])
    data = b"".join(encode_taken("q", taken, 7))
    assert decode_taken(data, "q") == taken
    assert taken.ends == (3, 9)
    assert parse_taken(taken_path("q", taken).rpartition("/")[2]) == (3, 9)
    assert layout.is_recorded(taken_path("q", taken))
    assert not layout.is_recorded(f"{taken_directory('q')}/other")
    consumed = taken._replace(how="consumed")
    assert taken_path("q", consumed) != taken_path("q", taken), "a stream consumes what is between these two, too"
    assert parse_taken(taken_path("q", consumed).rpartition("/")[2]) == (3, 9)
    assert layout.is_recorded(taken_path("q", consumed))
    with pytest.raises(DamagedBlock, match="is no record of what was taken of queue p"):
        decode_taken(data, "p")


@pytest.mark.parametrize(
    ("numbers", "spans"), [((), []), ((4,), [(4, 4)]), ((9, 3, 2, 5, 1), [(1, 3), (5, 5), (9, 9)])]
)
def test_spans_are_of_numbers_in_any_order(numbers: tuple[int, ...], spans: list[tuple[int, int]]) -> None:
    assert spans_of(numbers) == spans


def test_a_commit_keeps_what_it_takes(bare: BareSpace) -> None:
    """A single file moves at once, a block with its last message; until then its bitmap and the record tell."""
    bare.put("q", b"one")
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    taken = dict[bytes, str]()
    for count in (1, 7, 13):
        xid = connection.xid(1, b"%d" % count, b"")
        connection.tpc_begin(xid)
        for _ in range(count):
            message = connection.dequeue("q")
            assert message is not None
            taken[message.body] = f"taken {xid}"
        connection.tpc_commit()
        assert kept(bare) == taken
    bare.reopen()
    assert kept(bare) == taken
    assert len(taken) == 21
    assert live(bare.fs, "q") == set()
    assert len(bare.fs.list("archive/queue=q/range=0000000000000")) == 2


def test_nothing_is_missing_while_it_is_taken(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no call, of two steps that the directories follow together: a bitmap is behind the record that explains it."""
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    bare.space.log.settle()
    there, looks = live(bare.fs, "q"), list[str]()

    def look(call: str, path: str) -> None:
        with monkeypatch.context() as unseen:
            unseen.setattr(bare.fs, "strike", lambda *_: None)
            looks.append(call)
            said = {number for number, one in archived(bare.fs, "q").items() if one.by}
            assert live(bare.fs, "q") | said == there, f"{call} {path}"

    monkeypatch.setattr(bare.fs, "strike", look)
    for counts in ((3, 4), (6, 7)):
        for count in counts:
            connection.dequeue_many("q", count)
            connection.commit()
        bare.space.log.settle()
    assert looks
    assert not live(bare.fs, "q")


def test_an_xid_that_is_used_again_leaves_what_is_kept_alone(bare: BareSpace) -> None:
    """The directories have followed its first life's prepare, and what comes then in one turn."""
    connection = bare.connect()
    xid = connection.xid(1, b"again", b"")
    for body in (b"one", b"two"):
        connection.tpc_begin(xid)
        connection.enqueue("q", body, ttl=timedelta(microseconds=1))
        connection.tpc_prepare()
        if body == b"one":
            bare.space.log.settle()
            connection.tpc_commit()
    cleanup.expire(bare.space)
    assert kept(bare) == {b"one": "expired"}
    bare.reopen()
    assert bare.in_doubt() == [xid]
    bare.connect().tpc_commit(xid)
    bare.space.log.settle()
    assert live(bare.fs, "q")


def test_a_rollback_keeps_nothing(bare: BareSpace) -> None:
    bare.put("q", b"one")
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    connection.dequeue_many("q", 5)
    connection.rollback()
    assert kept(bare) == {}
    assert len(live(bare.fs, "q")) == 21


def test_what_moves_is_not_kept(bare: BareSpace) -> None:
    """A file of its own goes; of a block the record says so."""
    bare.put("q", b"one")
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    ids = [message.message_id for message in connection.browse("q")]
    for one in (ids[0], ids[3]):
        assert connection.move("q", one, to="other")
        connection.commit()
    while connection.dequeue("q"):
        pass
    connection.commit()
    bare.space.log.settle()
    assert kept(bare).keys() == {*BODIES} - {b"2"}
    assert sum(len(one.moved) for one in read_all(bare.fs, "q")) == 1


def test_a_block_whose_last_message_moves_is_kept(bare: BareSpace) -> None:
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    ids = [message.message_id for message in connection.browse("q")]
    connection.dequeue_many("q", 19)
    connection.commit()
    assert connection.move("q", ids[-1], to="other")
    connection.commit()
    assert kept(bare).keys() == {*BODIES[:-1]}
    assert bare.fs.list("archive/queue=q/range=0000000000000")


@pytest.mark.parametrize("is_reopened", [False, True])
def test_what_was_kept_of_a_block_is_kept_whatever_becomes_of_the_key(bare: BareSpace, *, is_reopened: bool) -> None:
    """It is in the block until that goes to the archive."""
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    connection.dequeue_many("q", 2)
    connection.commit()
    without = Definitions({"q": QueueDefinition(blocks=MANY), "other": QueueDefinition()})
    if is_reopened:
        bare.definitions = without
        bare.reopen()
    else:
        bare.space.queue("q").define(without.find("q"))
    connection = bare.connect()
    while connection.dequeue_many("q", 5):
        connection.commit()
    assert kept(bare).keys() >= {*BODIES[:2]}
    bare.reopen()
    assert kept(bare).keys() >= {*BODIES[:2]}
    bare.space.queue("q").define(without.find("q"))
    bare.put("q", b"later")
    assert bare.take("q") == [b"later"]
    assert b"later" not in kept(bare)


def test_what_expires_is_kept(bare: BareSpace) -> None:
    connection = bare.connect()
    connection.enqueue("q", b"single", ttl=timedelta(microseconds=1))
    connection.commit()
    connection.enqueue_many("q", [(body, {"ttl": timedelta(microseconds=1)}) for body in BODIES])
    connection.commit()
    assert connection.dequeue("q") is None
    cleanup.expire(bare.space)
    assert kept(bare) == dict.fromkeys([b"single", *BODIES], "expired")
    assert live(bare.fs, "q") == set()


def test_what_is_in_doubt_is_kept_once_it_is_committed(bare: BareSpace) -> None:
    bare.put("q", b"one", b"two")
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    xid = connection.xid(1, b"doubt", b"")
    connection.tpc_begin(xid)
    connection.dequeue_many("q", 10)
    connection.tpc_prepare()
    bare.reopen()
    assert kept(bare) == {}
    bare.connect().tpc_commit(xid)
    assert kept(bare) == dict.fromkeys([b"one", b"two", *BODIES[:8]], f"taken {xid}")


def test_the_time_of_a_commit_stays(bare: BareSpace) -> None:
    """Also where the directories first hear of a message when it is gone."""
    connection = bare.connect()
    before = bare.space.now_us()
    connection.enqueue("q", b"one")
    connection.commit()
    committed_at = bare.space.last_commit_us
    connection.dequeue("q")
    connection.commit()
    bare.space.log.settle()
    (name,) = bare.fs.list("archive/queue=q/range=0000000000000")
    assert before <= bare.fs.modified_ns(f"archive/queue=q/range=0000000000000/{name}") // 1000 == committed_at
    (taken,) = read_all(bare.fs, "q")
    assert taken.at_us >= committed_at


def test_no_body_is_given_up_before_its_block_is_kept(bare: BareSpace) -> None:
    connection = bare.connect()
    connection.enqueue_many("q", BODIES)
    connection.commit()
    connection.dequeue_many("q", 19)
    connection.commit()
    now_us = bare.now_us
    bare.now_us = lambda: now_us() + 10**9
    for queue, block in sparse(bare.space):
        hollow(bare.space, queue, block)
    assert kept(bare).keys() == {*BODIES[:-1]}


def test_what_another_one_writes_is_passed_over(bare: BareSpace) -> None:
    """A record may be half written, or torn by a crash."""
    bare.put("q", b"one")
    connection = bare.connect()
    connection.dequeue("q")
    connection.commit()
    bare.space.log.settle()
    said = Taken(1, "x", "taken", [(7, 7)])
    bare.fs.create(taken_path("q", said), [b"".join(encode_taken("q", said, 1))[:-3]])
    assert [one.spans for one in read_all(bare.fs, "q")] == [[(1, 1)]]
    assert read_all(bare.fs, "q", after=1) == []
    assert [one.spans for one in read_all(bare.fs, "q", 0, LAST_SEQ)] == [[(1, 1)]]


@pytest.mark.parametrize("place", ["archive", "archive/queue=q", "archive/queue=q/.taken"])
def test_what_is_in_the_way_is_set_aside(bare: BareSpace, place: str) -> None:
    bare.put("q", b"one")
    bare.space.log.settle()
    above = Path(place).parent
    (bare.root / above).mkdir(exist_ok=True, parents=True)
    bare.fs.create(place, [b"foreign"])
    connection = bare.connect()
    connection.dequeue("q")
    connection.commit()
    assert list(kept(bare)) == [b"one"]
    assert any(bare.fs.list("quarantine"))


def test_what_a_crash_undid_is_said_no_more(bare: BareSpace) -> None:
    """Where files are the record, a step says that it takes a message before that leaves."""
    bare.put("q", b"one", b"two")
    bare.space.log.settle()
    connection = bare.connect()
    connection.dequeue("q")
    connection.commit()
    bare.space.log.settle()
    said = Taken(2**60, "nobody", "taken", [(2, 2)])
    bare.fs.create(taken_path("q", said), encode_taken("q", said, 1))
    bare.reopen()
    assert [one.spans for one in read_all(bare.fs, "q")] == [[(1, 1)]]
    assert live(bare.fs, "q") == {2}


def test_what_is_in_both_places_is_taken(bare: BareSpace) -> None:
    """A power loss may leave it so, between two syncs of a step that nobody was answered."""
    bare.put("q", b"one")
    bare.space.log.settle()
    (name,) = bare.fs.list("committed/queue=q/range=0000000000000")
    connection = bare.connect()
    connection.dequeue("q")
    connection.commit()
    bare.space.log.settle()
    bare.space.checkpoint()
    bare.fs.link(f"archive/queue=q/range=0000000000000/{name}", f"committed/queue=q/range=0000000000000/{name}")
    bare.reopen()
    assert live(bare.fs, "q") == set()
    assert list(kept(bare)) == [b"one"]


def test_a_delivery_that_is_acknowledged_is_kept(bare: BareSpace) -> None:
    bare.put("q", b"one", b"two")
    one, two = bare.connect().receive("q", 2)
    one.ack()
    two.nack()
    assert list(kept(bare)) == [b"one"]
