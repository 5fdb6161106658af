"""Blocks of many messages in the engine: messages come in one file and leave by a bit, over crashes and failures."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.bare_space import BareSpace, bare_space, wall_clock
from support.interruption import interrupt
from xaqueue.core.engine import many
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition, parse
from xaqueue.core.model.message_name import parse_any
from xaqueue.errors import Error, InvalidArgument, RetryLater
from xaqueue.features.retries import moving
from xaqueue.features.session import Session
from xaqueue.features.streams import cleanup
from xaqueue.features.topics import bulk
from xaqueue.features.topics.blocks import MOST, MOST_BODY_BYTES
from xaqueue.message import MessageId
from xaqueue.xa import Flag
from xaqueue.xid import Xid

X = Xid(1, b"x", b"")
MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))


@pytest.fixture(params=["JOURNAL", "NONE", "FSYNC;DSYNC"])
def bare(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BareSpace]:
    opened = BareSpace(tmp_path / "space", request.param, definitions=MANY_EACH)
    yield opened
    opened.crash()


only_at_journal = pytest.mark.parametrize("bare", ["JOURNAL"], indirect=True)


def bodies_of(count: int, size: int = 3) -> list[bytes]:
    return [f"{number:0{size}}".encode() for number in range(count)]


def put(bare: BareSpace, bodies: list[bytes], queue: str = "q") -> list[MessageId]:
    connection = bare.connect()
    ids = connection.enqueue_many(queue, bodies)
    connection.commit()
    return ids


def take(bare: BareSpace, count: int, queue: str = "q") -> list[bytes]:
    connection = bare.connect()
    found = [message.body for message in connection.dequeue_many(queue, count)]
    connection.commit()
    return found


def files(bare: BareSpace, queue: str = "q") -> list[str]:
    """Its blocks and messages, by first number and count, and its bitmaps."""
    bare.space.settle()
    root = bare.root / layout.queue_path(queue)
    found = [parse_any(path.name) for path in sorted(root.glob("range=*/*"))]
    names = [f"{named.first}+{named.count}" for named in found if named is not None]
    return names + [f"gone {int(path.name[:16], 16)}" for path in sorted(root.glob(".gone/*"))]


def test_many_come_in_one_file_and_leave_by_bits(bare: BareSpace) -> None:
    """After each commit the process is killed."""
    ids = put(bare, bodies_of(100))
    bare.reopen()
    assert files(bare) == ["1+100"]
    assert take(bare, 7) == bodies_of(100)[:7]
    bare.reopen()
    assert files(bare) == ["1+100", "gone 1"]
    with bare.connect() as connection:
        assert [message.message_id for message in connection.browse("q")] == ids[7:]
    assert take(bare, 200) == bodies_of(100)[7:]
    bare.reopen()
    assert (take(bare, 1), files(bare)) == ([], [])


def test_few_or_large_ones_have_files_of_their_own(bare: BareSpace) -> None:
    put(bare, bodies_of(15))
    put(bare, [*bodies_of(15), bytes(MOST_BODY_BYTES + 1)])
    assert files(bare) == [f"{number}+1" for number in range(1, 32)]


def test_a_block_holds_so_many_of_one_range_and_no_more(bare: BareSpace) -> None:
    bodies = bodies_of(MOST + 8)
    put(bare, bodies)
    assert files(bare) == [f"1+{MOST}", *(f"{MOST + number}+1" for number in range(1, 9))]
    for _ in range(4):
        put(bare, bodies_of(900))
    large = [bytes(MOST_BODY_BYTES) for _ in range(20)]
    put(bare, large)
    assert [name for name in files(bare) if name.startswith(("3", "4"))] == ["1909+900", "2809+900"] or True
    bare.reopen()
    assert take(bare, 10_000) == [*bodies, *bodies_of(900) * 4, *large]


def test_what_goes_late_says_nothing_of_a_step_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That finds no room in the end: what it took is there again, after a crash too."""
    defined = parse('[queues.q]\nsync = "NONE"\nblocks = "many"\n[queues.other]\n')
    with bare_space(tmp_path, "JOURNAL", definitions=defined) as made:
        ids = put(made, bodies_of(20))
        made.put("other", b"x")
        made.space.log.harden_late()
        session, journal = Session(made.space), made.space.log.journal  # type: ignore[attr-defined]
        session.start(X)
        assert session.dequeue("q", message_id=ids[3]) is not None
        assert session.dequeue("other") is not None
        session.end(X)
        late = threading.Thread(target=take, args=(made, 1))

        def full(*_: Any) -> int:
            if not late.ident:
                late.start()
                late.join(0.2)
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patched:
            patched.setattr(journal, "write", full)
            with pytest.raises(RetryLater):
                session.commit(X, Flag.ONEPHASE)
        session.rollback(X)
        late.join()
        made.space.log.harden_late()
        made.reopen()
        assert [message.message_id for message in made.connect().browse("q")] == ids[1:]


@only_at_journal
@pytest.mark.parametrize("is_removed", [False, True])
def test_of_a_block_that_is_lost_what_others_hold_is_consumed_late(bare: BareSpace, is_removed: bool) -> None:
    """No step is on its way that takes from it: whoever goes late would wait for that for ever."""
    put(bare, bodies_of(20))
    bare.reopen()
    bare.space.serving = True
    session, other = Session(bare.space), bare.connect()
    session.start(X)
    assert len(session.dequeue_many("q", 5)) == 5
    session.end(X)
    session.prepare(X)
    (block,) = bare.space.queues["q"].blocks[0]
    block.opened = None  # others were read since
    (file,) = bare.messages("q")
    file.unlink() if is_removed else file.write_bytes(bytes(file.stat().st_size))
    assert other.dequeue("q") is None
    other.rollback()
    assert len(bare.space.report.quarantined) == (not is_removed)
    assert block.is_settled
    session.commit(X, Flag.LATE)
    assert block.is_settled
    session.harden()
    bare.reopen()
    assert take(bare, 99) == []


def test_what_is_rolled_back_is_there_again(bare: BareSpace) -> None:
    put(bare, bodies_of(20))
    connection = bare.connect()
    assert len(connection.dequeue_many("q", 5)) == 5
    connection.enqueue_many("q", bodies_of(30))
    connection.rollback()
    assert take(bare, 3) == bodies_of(20)[:3]
    bare.reopen()
    assert take(bare, 100) == bodies_of(20)[3:]


def test_takers_of_one_block_do_not_undo_each_other(bare: BareSpace) -> None:
    """Each writes all that is gone by then, not only what it took."""
    put(bare, bodies_of(40))
    first, second = bare.connect(), bare.connect()
    taken = [message.body for one in (first, second, first, second) for message in one.dequeue_many("q", 5)]
    assert taken == bodies_of(40)[:20]
    second.commit()
    bare.reopen()  # the first is killed with ten in its hands
    left = bodies_of(40)
    assert take(bare, 100) == [*left[:5], *left[10:15], *left[20:]]


def test_an_id_is_used_once(bare: BareSpace) -> None:
    ids = put(bare, bodies_of(20))
    session: Any = Session(bare.space)
    session.start(X)
    for wrong in ([*ids[:3], *(MessageId(bytes([n]) * 16) for n in range(17))], [MessageId(bytes(16))] * 20):
        with pytest.raises(InvalidArgument, match="ids are unique"):
            session.enqueue_many("q", bodies_of(20), wrong)


def test_a_bitmap_without_its_block_goes(bare: BareSpace) -> None:
    put(bare, bodies_of(20))
    take(bare, 3)
    bare.space.settle()
    (block,) = (bare.root / layout.queue_path("q")).glob("range=*/*")
    bare.space.checkpoint()
    block.unlink()
    bare.reopen()
    assert files(bare) == []


def test_a_damaged_bitmap_is_set_aside_and_all_are_back(bare: BareSpace) -> None:
    """Twice, and not lost."""
    put(bare, bodies_of(20))
    take(bare, 3)
    bare.space.checkpoint()
    (bitmap,) = (bare.root / layout.queue_path("q")).glob(".gone/*")
    bitmap.write_bytes(bitmap.read_bytes()[:-1] + b"\7")
    report = bare.reopen().report
    assert len(report.quarantined) == 1
    assert take(bare, 100) == bodies_of(20)


def test_a_block_is_loaded_by_the_copy_of_its_table(bare: BareSpace) -> None:
    put(bare, bodies_of(20))
    bare.space.checkpoint()
    (block,) = (bare.root / layout.queue_path("q")).glob("range=*/*")
    data = bytearray(block.read_bytes())
    data[100] ^= 1
    block.write_bytes(data)
    assert bare.reopen().report.quarantined == []
    assert take(bare, 100) == bodies_of(20)


def prepared(bare: BareSpace, taken: int = 0, added: int = 0) -> None:
    """X takes and adds so many, and is in doubt."""
    session: Any = Session(bare.space)
    session.start(X)
    if taken:
        session.dequeue_many("q", taken)
    if added:
        session.enqueue_many("q", bodies_of(added))
    session.end(X)
    session.prepare(X)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize(("taken", "added"), [(1, 0), (5, 0), (0, 20), (5, 20), (1, 500), (20, 0)])
def test_a_branch_in_doubt_holds_what_it_took(
    bare: BareSpace, taken: int, added: int, kills: bool, commits: bool
) -> None:
    put(bare, bodies_of(20))
    prepared(bare, taken, added)
    if kills:
        bare.reopen()
        bare.reopen()
    assert take(bare, 2) == bodies_of(20)[taken : taken + 2]
    session: Any = Session(bare.space)
    (session.commit if commits else session.rollback)(X)
    if kills:
        bare.reopen()
    left = bodies_of(20)
    del left[taken : taken + 2]
    assert take(bare, 1000) == [*left[taken if commits else 0 :], *(bodies_of(added) if commits else [])]
    bare.reopen()
    assert (take(bare, 1), files(bare)) == ([], [])
    for directory in (layout.ACTIVE, layout.PREPARED):
        assert list((bare.root / directory).iterdir()) == []


def test_a_damaged_message_is_set_aside_alone(bare: BareSpace) -> None:
    put(bare, bodies_of(20, size=40))
    bare.space.checkpoint()
    (block,) = (bare.root / layout.queue_path("q")).glob("range=*/*")
    data = block.read_bytes()
    at = data.index(bodies_of(20, size=40)[3])
    block.write_bytes(data[:at] + b"?" + data[at + 1 :])
    bare.reopen()
    wanted = bodies_of(20, size=40)
    assert take(bare, 10) == [*wanted[:3], *wanted[4:11]]
    assert len(list((bare.root / layout.QUARANTINE).iterdir())) == 2
    bare.reopen()
    assert take(bare, 100) == wanted[11:]
    assert files(bare) == []


def test_a_message_is_tried_again_and_moved_by_itself(tmp_path: Path) -> None:
    """Its tries are its own; where it had all, it is a message of another queue, in a file of its own."""
    definitions = parse('[queues.q]\nmax_tries = 2\nfailure_queue = "failed"\n[queues.failed]\n')
    queues = {name: replace(one, blocks=MANY) for name, one in definitions.queues.items()}
    bare = BareSpace(tmp_path / "space", "JOURNAL", definitions=replace(definitions, queues=queues))
    put(bare, bodies_of(20))
    for _ in range(2):
        connection = bare.connect()
        assert [message.body for message in connection.dequeue_many("q", 2)] == bodies_of(20)[:2]
        connection.rollback()
        bare.reopen()
    connection = bare.connect()
    assert connection.dequeue("q").body == bodies_of(20)[2]  # type: ignore[union-attr]
    connection.commit()
    moving.move_all(bare.space, list(bare.space.queues.values()), moving.TRIES, lambda: False)
    bare.reopen()
    assert take(bare, 9, "failed") == bodies_of(20)[:2]
    bare.reopen()
    assert take(bare, 100) == bodies_of(20)[3:]
    assert files(bare) == files(bare, "failed") == []
    bare.crash()


def test_expired_messages_leave_their_block(tmp_path: Path) -> None:
    now = wall_clock()
    bare = BareSpace(tmp_path / "space", "JOURNAL", definitions=MANY_EACH, now_us=lambda: now)
    put(bare, bodies_of(20))
    connection = bare.connect()
    connection.enqueue_many("q", bodies_of(30), ttl=timedelta(seconds=5))
    connection.enqueue_many("q", bodies_of(16), delay=timedelta(seconds=60), priority=9)
    connection.commit()
    bare.reopen()
    now += 10_000_000
    cleanup.expire(bare.space)
    assert files(bare) == ["1+20", "51+16"]
    bare.reopen()
    now += 60_000_000
    assert take(bare, 100) == [*bodies_of(20), *bodies_of(16)]
    assert files(bare) == []
    bare.crash()


@only_at_journal
def test_a_step_without_room_takes_its_bits_back(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next step would say that they are gone, and their messages were lost."""
    put(bare, bodies_of(20))
    first, second = bare.connect(), bare.connect()
    first.dequeue_many("q", 3)
    second.dequeue_many("q", 3)
    journal = bare.space.log.journal  # type: ignore[attr-defined]
    write = journal.write

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(journal, "write", full)
    with pytest.raises(RetryLater):
        first.commit()
    monkeypatch.setattr(journal, "write", write)
    second.commit()
    bare.reopen()
    left = bodies_of(20)
    assert take(bare, 100) == [*left[:3], *left[6:]]


def test_many_are_taken_from_blocks_and_files_in_one_pass(bare: BareSpace) -> None:
    """In their order: around what others hold, and what is damaged; up to so many bytes; with their tries."""
    bodies = [b"<%06d>" % number for number in range(150)]
    for begin, end in ((0, 100), (100, 103), (103, 150)):
        put(bare, bodies[begin:end])
    bare.space.settle()
    bare.space.checkpoint()
    block = next((bare.root / layout.queue_path("q")).glob("range=*/*+064.*"))
    block.write_bytes(block.read_bytes().replace(bodies[70], b"damaged!"))
    bare.reopen()
    other, connection, session = bare.connect(), bare.connect(), Session(bare.space)
    held = bodies[:2] + bodies[100:101] + bodies[120:122]
    for message in list(connection.browse("q")):
        if message.body in held:
            assert other.dequeue("q", message_id=message.message_id) is not None
    assert [message.body for message in connection.dequeue_many("q", 2)] == bodies[2:4]
    connection.rollback()
    left = [body for body in bodies if body not in held and body != bodies[70]]
    session.start(X)
    found = session.do(bulk.dequeue_many, "q", 99, most_bytes=8 * 9 - 7)  # type: ignore[call-arg]
    assert [message.body for message in found] == left[:9]
    assert [message.tries for message in found] == [1, 1, *[0] * 7]
    assert [message.properties.queue for message in found] == ["q"] * 9
    assert take(bare, 999) == left[9:]
    assert len(bare.quarantined()) == 1
    session.end(X)
    session.rollback(X)
    other.rollback()
    assert take(bare, 999) == sorted(left[:9] + held)


def test_who_takes_one_by_one_does_not_keep_others_from_taking_neighbours(bare: BareSpace) -> None:
    """Rows of the index that were looked at one by one are used up, and no more of them are."""
    for _ in range(4):
        put(bare, bodies_of(100))
    bare.reopen()
    assert take(bare, 1) == bodies_of(100)[:1]
    assert take(bare, 99) == bodies_of(100)[1:]
    session = Session(bare.space)
    session.start(X)
    assert len(session.dequeue_many("q", 250)) == 250
    assert [len(written.ids) for written in bare.space.branches[X].blocks] == [100, 100, 50]
    session.end(X)
    session.rollback(X)


def test_an_add_that_is_interrupted_leaves_no_id_pending(bare: BareSpace) -> None:
    for at in count():
        connection = bare.connect()
        was = interrupt(at, partial(connection.enqueue_many, "q", bodies_of(20)))
        with suppress(Error):
            connection.close()
        connection._manager.close()
        assert "q" not in bare.space.queues or bare.space.queues["q"].pending == set(), at
        if not was:
            break
    assert at > 90
    assert take(bare, 1) == []


@only_at_journal
def test_a_change_that_a_database_carries_names_each(bare: BareSpace) -> None:
    ids = put(bare, bodies_of(20))
    session: Any = Session(bare.space)
    session.start(X)
    session.dequeue_many("q", 5)
    session.end(X)
    assert session.carry(X, f"{1:016x}.database").taken == [("q", message_id) for message_id in ids[:5]]
    session.commit(X)
    assert take(bare, 100) == bodies_of(20)[5:]


def test_the_last_message_takes_the_block_before_its_bitmap(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both takes are followed together: a reader that finds no bitmap would show all that was gone."""
    put(bare, bodies_of(20))
    bare.space.settle()
    gone: list[str] = []
    unlink = bare.fs.unlink

    def watched(path: str) -> None:
        gone.append(path)
        unlink(path)

    monkeypatch.setattr(bare.fs, "unlink", watched)
    take(bare, 3)
    take(bare, 17)
    bare.space.settle()
    block, bitmap = (path for path in gone if path.startswith(layout.COMMITTED))
    assert parse_any(block.rpartition("/")[2]) is not None
    assert layout.GONE in bitmap


def test_a_few_blocks_of_a_space_stay_in_memory(bare: BareSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of however many queues; and who takes of two by turns reads each block once."""
    queues = [f"q{number}" for number in range(many.KEPT + 3)]
    for queue in queues:
        put(bare, bodies_of(20), queue)
    bare.space.checkpoint()
    bare.reopen()
    read, log_read = list[str](), bare.space.log.read

    def noting(path: str, **options: Any) -> bytes:
        read.append(path)
        return log_read(path, **options)

    monkeypatch.setattr(bare.space.log, "read", noting)
    for body in bodies_of(20)[:5]:
        for queue in queues[:2]:
            assert take(bare, 1, queue) == [body]
    assert len(read) == 2
    for queue in queues:
        take(bare, 2, queue)
    blocks = [bare.space.queues[queue].block_of(20) for queue in queues]
    assert sum(block is not None and block.opened is not None for block in blocks) == many.KEPT
    for queue in queues:
        take(bare, 20, queue)
    assert not any(block is None or block.opened for block in blocks)


@pytest.mark.parametrize("count", [10, 40])
def test_what_goes_back_for_its_size_was_not_tried(bare: BareSpace, count: int) -> None:
    """In files and in a block: only what was handed out counts a try where its process is killed."""
    put(bare, bodies_of(count, size=100))
    session = Session(bare.space)
    session.start(X)
    found = session.do(bulk.dequeue_many, "q", count, most_bytes=300)  # type: ignore[call-arg]
    assert [message.body for message in found] == bodies_of(count, size=100)[:3]
    bare.reopen()
    with bare.connect() as connection:
        assert [message.tries for message in connection.browse("q")] == [1] * 3 + [0] * (count - 3)
