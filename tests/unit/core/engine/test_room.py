"""Enqueues are refused while there is room yet, with figures, and change nothing; the disk is seldom asked."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import ANY_QUEUE, DURABLE, BareSpace, bare_space
from support.journal_of import journal_log
from xaqueue.core.engine import disk_space as room
from xaqueue.core.engine import heuristics
from xaqueue.core.engine.disk_space import (
    FILE_BYTES,
    LOOK_BYTES,
    LOOK_S,
    RoomLimit,
    limits,
    refusal,
    segment_bytes,
)
from xaqueue.core.engine.log import KEPT_BYTES
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.owner import record
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import Room
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.core.storage.reserve import Reserve
from xaqueue.errors import DiskFull, DiskLow, ResourceFailed, RetryLater, RolledBack
from xaqueue.features.opening import open_space
from xaqueue.features.retries.register import TRIES
from xaqueue.offline import inspect
from xaqueue.xa import Code
from xaqueue.xid import Xid

GiB = 1024**3
MiB = 1024**2
LARGE = Room(50 * GiB, 100 * GiB, 5_000_000, 6_000_000)
LEVELS = [DURABLE, "JOURNAL"]
LARGE_BODY = bytes(KEPT_BYTES)
"""With a journal a smaller one is kept in memory, and its record has it."""


# The limits


@pytest.mark.parametrize(
    ("total_bytes", "total_inodes", "expected"),
    [
        (100 * GiB, 6_000_000, (64 * MiB, 1000)),
        (1280 * MiB, 20_000, (64 * MiB, 1000)),
        (100 * MiB, 10_000, (5 * MiB, 500)),
        (100 * MiB, 0, (5 * MiB, 0)),
    ],
)
def test_what_stays_free_where_nothing_is_defined(
    total_bytes: int, total_inodes: int, expected: tuple[int, int]
) -> None:
    assert limits(Definitions(), Room(0, total_bytes, 0, total_inodes)) == expected


def test_what_is_defined_holds() -> None:
    defined = Definitions(min_free_bytes=7, min_free_inodes=3)
    assert limits(defined, LARGE) == (7, 3)
    assert limits(defined, LARGE._replace(total_inodes=0)) == (7, 0)


@pytest.mark.parametrize(
    ("free_bytes", "free_inodes", "told"),
    [
        (1_100, 11, ""),
        (1_099, 11, "1,099 bytes of the disk are free, 100 are wanted, and 1,000 have to stay free"),
        (1_100, 10, "10 inodes of the disk are free, and 10 have to stay free"),
    ],
)
def test_the_limit_is_exact(free_bytes: int, free_inodes: int, told: str) -> None:
    defined = Definitions(min_free_bytes=1000, min_free_inodes=10)
    found = refusal(defined, Room(free_bytes, 10_000, free_inodes, 100), 100)
    assert found.startswith(told)
    assert bool(found) == bool(told)


def test_a_limit_of_zero_is_none() -> None:
    none = Definitions(min_free_bytes=0, min_free_inodes=0)
    assert refusal(none, Room(0, 10_000, 0, 100), 100) == ""


def test_a_journal_leaves_room_on_a_small_disk() -> None:
    assert segment_bytes(Definitions(), LARGE) == 64 * MiB
    assert segment_bytes(Definitions(), Room(0, 100 * MiB, 0, 0)) == 5 * MiB
    assert segment_bytes(Definitions(journal_segment_bytes=MiB), Room(0, 100 * MiB, 0, 0)) == MiB


# A space that refuses


class Disk:
    """What a file system says of its room, and how often it was asked."""

    def __init__(self, bare: BareSpace) -> None:
        self.left = LARGE
        self.asked = 0
        bare.fs.room = self.room  # type: ignore[method-assign]

    def room(self) -> Room:
        self.asked += 1
        return self.left

    def leave(self, free_bytes: int = LARGE.free_bytes, free_inodes: int = LARGE.free_inodes) -> None:
        self.left = LARGE._replace(free_bytes=free_bytes, free_inodes=free_inodes)


@pytest.fixture(params=LEVELS)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareSpace]:
    with bare_space(tmp_path / "space", request.param) as opened:
        yield opened


@pytest.fixture
def disk(bare: BareSpace) -> Disk:
    return Disk(bare)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on when it is told to."""
    now_s = [1000.0]
    monkeypatch.setattr(room, "monotonic", lambda: now_s[0])

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    return sleep


LITTLE = [
    ({"free_bytes": 10 * MiB}, r"10,485,760 bytes of the disk are free, .* and 67,108,864 have to stay free"),
    ({"free_inodes": 1000}, r"1,000 inodes of the disk are free, and 1,000 have to stay free"),
]
low = pytest.mark.parametrize(("left", "told"), LITTLE, ids=["bytes", "inodes"])


@low
def test_an_enqueue_is_refused_with_figures_and_its_branch_is_as_it_was(
    bare: BareSpace, disk: Disk, left: dict[str, int], told: str
) -> None:
    bare.put("orders", b"first", b"second")
    given = bytes(range(16))
    with closing(bare.connect()) as connection:
        connection.enqueue("orders", b"before")
        before = sorted((bare.root / layout.ACTIVE).iterdir())
        disk.leave(**left)
        bare.space.room = RoomLimit(bare.fs)
        for _ in range(2):
            with pytest.raises(DiskLow, match=told) as refused:
                connection.enqueue("orders", b"refused", message_id=given)
        assert refused.value.code is Code.XA_RETRY
        assert "`xaqueue clean --older-than 7d`" in str(refused.value)
        assert isinstance(refused.value, DiskFull)
        if bare.sync == DURABLE:
            assert sorted((bare.root / layout.ACTIVE).iterdir()) == before
        message = connection.dequeue("orders")
        assert message is not None
        assert message.body == b"first"
        disk.leave()
        assert connection.enqueue("orders", b"after", message_id=given) == given
        connection.commit()
    assert bare.take("orders") == [b"second", b"before", b"after"]


@low
def test_everything_else_goes_on(bare: BareSpace, disk: Disk, left: dict[str, int], told: str) -> None:
    bare.put("orders", *(b"%d" % number for number in range(4)))
    commits, undone = (bare.prepare(name, add=[("orders", name.encode())]) for name in ("commits", "undone"))
    with closing(bare.connect()) as connection, closing(bare.connect()) as other:
        connection.enqueue("orders", b"one phase")
        other.tpc_begin(Xid(1, b"two", b"b"))
        other.enqueue("new", b"two phases")
        disk.leave(**left)
        bare.space.room = RoomLimit(bare.fs)
        with pytest.raises(DiskLow, match=told):
            connection.enqueue("orders", b"refused")
        connection.commit()
        assert other.dequeue("orders") is not None
        other.tpc_prepare()
        other.tpc_commit()
        other.tpc_commit(commits)
        other.tpc_rollback(undone)
        assert other.dequeue("orders") is not None
        other.rollback()
    assert bare.take("orders") == [b"1", b"2", b"3", b"one phase", b"commits"]
    assert bare.take("new") == [b"two phases"]
    bare.reopen()
    assert bare.take("orders") == [b"1", b"2", b"3", b"one phase", b"commits"]


def test_rolling_back_is_right_as_well(bare: BareSpace, disk: Disk) -> None:
    """As those do it who treat every RolledBack alike."""
    with closing(bare.connect()) as connection:
        connection.enqueue("orders", b"never")
        disk.leave(free_bytes=0)
        bare.space.room = RoomLimit(bare.fs)
        try:
            connection.enqueue("orders", b"refused")
        except RolledBack:
            connection.rollback()
        disk.leave()
        connection.enqueue("orders", b"next")
        connection.commit()
    assert bare.take("orders") == [b"next"]


def test_a_refused_enqueue_waits_for_no_clock(bare: BareSpace, disk: Disk, still: Callable[[float], None]) -> None:
    with closing(bare.connect()) as connection:
        for _ in range(3):
            disk.leave(free_bytes=0)
            bare.space.room = RoomLimit(bare.fs)
            with pytest.raises(DiskLow):
                connection.enqueue("orders", b"refused")
            disk.leave()
            connection.enqueue("orders", b"room")
        connection.commit()
    assert bare.take("orders") == [b"room"] * 3


def test_new_definitions_hold_at_the_next_look(bare: BareSpace, disk: Disk, still: Callable[[float], None]) -> None:
    with closing(bare.connect()) as connection:
        connection.enqueue("orders", b"first")
        bare.space.redefine(replace(ANY_QUEUE, min_free_bytes=60 * GiB))
        still(room.LOOK_S)
        with pytest.raises(DiskLow, match=f"{60 * GiB:,} have to stay free"):
            connection.enqueue("orders", b"refused")
        bare.space.redefine(ANY_QUEUE)
        connection.enqueue("orders", b"second")
        connection.commit()


def test_a_file_system_without_inodes_has_no_such_limit(bare: BareSpace, disk: Disk) -> None:
    disk.left = LARGE._replace(free_inodes=0, total_inodes=0)
    bare.put("orders", b"first")
    assert bare.take("orders") == [b"first"]
    assert refusal(replace(ANY_QUEUE, min_free_inodes=5), disk.left) == ""


def test_a_disk_that_does_not_answer_fences(bare: BareSpace) -> None:
    def fails() -> Room:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    bare.fs.room = fails  # type: ignore[method-assign]
    with closing(bare.connect()) as connection:
        with pytest.raises(ResourceFailed, match="Input/output error"):
            connection.enqueue("orders", b"first")
        with pytest.raises(ResourceFailed):
            connection.dequeue("orders")


# How often it looks


def test_the_disk_is_asked_seldom(bare: BareSpace, disk: Disk, still: Callable[[float], None]) -> None:
    with closing(bare.connect()) as connection:
        connection.enqueue("orders", b"")
        assert disk.asked == 1
        for _ in range(3 * (LOOK_BYTES // FILE_BYTES + 1)):
            connection.enqueue("orders", b"")
        assert disk.asked == 4
        still(room.LOOK_S)
        connection.enqueue("orders", b"")
        assert disk.asked == 5
        for _ in range(20):
            connection.enqueue("orders", bytes(MiB // 2))
        assert 10 <= disk.asked - 5 <= 20


ABOVE = LARGE._replace(free_bytes=64 * MiB + 5 * MiB), LARGE._replace(free_inodes=1000 + 300)


@pytest.mark.parametrize(
    ("start", "size"), [(ABOVE[0], 0), (ABOVE[0], 5000), (ABOVE[0], 70_000), (ABOVE[0], MiB), (ABOVE[1], 5000)]
)
@pytest.mark.parametrize("level", ["NONE", "JOURNAL"])
def test_the_limit_is_never_passed(
    tmp_path: Path, still: Callable[[float], None], level: str, start: Room, size: int
) -> None:
    """However seldom it looks, and whatever size the messages have."""
    with bare_space(tmp_path / "space", level) as bare:
        disk = Disk(bare)
        stored = 0
        with closing(bare.connect()) as connection:
            while True:
                left = start._replace(
                    free_bytes=start.free_bytes - stored * (size + FILE_BYTES), free_inodes=start.free_inodes - stored
                )
                disk.left = left
                try:
                    connection.enqueue("orders", bytes(size))
                except DiskLow:
                    break
                stored += 1
                bare.space.log.settle()
            connection.rollback()
    assert left.free_bytes >= 64 * MiB
    assert left.free_inodes >= 1000
    assert left.free_bytes - size - FILE_BYTES < 64 * MiB or left.free_inodes - 1 < 1000
    assert stored > 2


def enqueue_all_that_fits(connection: xaqueue.Connection) -> int:
    written = 0
    while True:
        try:
            connection.enqueue("orders", b"")
        except DiskLow:
            return written
        connection.commit()
        written += 1


def test_what_waits_for_the_disk_counts_as_written(tmp_path: Path, still: Callable[[float], None]) -> None:
    """With a journal, messages wait in memory for a moment; a refusal does not come before the disk has them."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        disk = Disk(bare)
        log = journal_log(bare.space)
        assert log is not None
        start = LARGE._replace(free_bytes=64 * MiB + 4 * MiB)
        disk.left = start
        follow = log._follow

        def followed() -> None:
            follow()
            disk.left = start._replace(free_bytes=start.free_bytes - len(bare.messages("orders")) * FILE_BYTES)

        log._follow = followed  # type: ignore[method-assign]
        with closing(bare.connect()) as connection:
            written = enqueue_all_that_fits(connection)
            assert log.waiting_room == (0, 0)
            assert len(bare.messages("orders")) == written == 4 * MiB // FILE_BYTES


def test_what_branches_keep_in_memory_counts_as_written(tmp_path: Path) -> None:
    """Else all of them would be begun, and then lack the room to be prepared."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare, ExitStack() as stack:
        start, size = 64 * MiB + 4 * MiB, 64 * 1024

        def left() -> Room:
            files = [path.stat().st_size + FILE_BYTES for path in (bare.root / layout.ACTIVE).iterdir()]
            return LARGE._replace(free_bytes=start - sum(files))

        bare.fs.room = left  # type: ignore[method-assign]
        fit = (4 * MiB - 1) // (size + FILE_BYTES)
        for _ in range(fit):
            stack.enter_context(closing(bare.connect())).enqueue("orders", bytes(size))
        with pytest.raises(DiskLow):
            stack.enter_context(closing(bare.connect())).enqueue("orders", bytes(size))


def test_who_is_refused_has_what_is_under_way_written_while_there_is_room(
    tmp_path: Path, still: Callable[[float], None]
) -> None:
    with bare_space(tmp_path / "space", "JOURNAL") as bare, ExitStack() as stack:
        disk = Disk(bare)
        begun = [stack.enter_context(closing(bare.connect())) for _ in range(4)]
        for number, connection in enumerate(begun):
            connection.tpc_begin(Xid(1, b"%d" % number, b"b"))
            connection.enqueue("orders", b"%d" % number)
        begun[0].tpc_prepare()
        bare.space.log.settle()
        disk.leave(64 * MiB)
        still(LOOK_S)
        with pytest.raises(DiskLow):
            begun[1].enqueue("orders", b"no room")
        assert bare.space.kept() == (0, 0)
        assert len(list((bare.root / layout.ACTIVE).iterdir())) == 3
        bare.fs.faults = {("create", ""): errno.ENOSPC}
        for connection in begun[1:]:
            connection.tpc_prepare()
        for connection in begun[:3]:
            connection.tpc_commit()
        begun[3].tpc_rollback()
        bare.space.log.settle()
        assert bare.take("orders") == [b"0", b"1", b"2"]


def test_what_finds_no_room_for_that_stays_in_memory(tmp_path: Path, still: Callable[[float], None]) -> None:
    with bare_space(tmp_path / "space", "JOURNAL") as bare, closing(bare.connect()) as connection:
        disk = Disk(bare)
        connection.enqueue("orders", b"kept")
        disk.leave(64 * MiB)
        still(LOOK_S)
        bare.fs.faults = {("create", layout.ACTIVE): errno.ENOSPC}
        with pytest.raises(DiskLow):
            connection.enqueue("orders", b"no room")
        assert bare.space.kept()[1] == 1
        connection.commit()
        assert bare.take("orders") == [b"kept"]


# The reserve of a space


class ReservedSpace(BareSpace):
    """With a reserve, as a process that owns the directory has it."""

    def _open(self) -> Space:
        reserve = Reserve(DirectoryFileSystem(self.root, keep_unsynced=False), layout.RESERVE)
        files = OwnerFileSystem(self.fs, reserve)
        limit = RoomLimit(files, reserve, files.unreserved())
        space = open_space(files, self.definitions, hardening=Hardening.parse(self.sync), room=limit)
        limit.restore(self.definitions)
        files.recovered()
        return space

    @property
    def pieces(self) -> int:
        return len(list((self.root / layout.RESERVE).iterdir()))


@pytest.fixture(params=LEVELS)
def reserved(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReservedSpace]:
    opened = ReservedSpace(tmp_path / "space", request.param)
    yield opened
    opened.crash()


def full_until_given_up(reserved: ReservedSpace, call: str, path: str, pieces: int) -> None:
    """Such a call finds no room before so many pieces were given up."""
    real = getattr(reserved.fs, call)
    wanted = reserved.pieces - pieces

    def limited(first: str, *others: object) -> None:
        target = str(others[0]) if call == "rename" else first
        if target.startswith(path) and reserved.pieces > wanted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        real(first, *others)

    setattr(reserved.fs, call, limited)
    assert isinstance(reserved.space.fs, OwnerFileSystem)
    reserved.space.fs.recovered()  # it makes files by that one


def test_an_enqueue_uses_nothing_of_the_reserve(reserved: ReservedSpace) -> None:
    full_until_given_up(reserved, "create", "active/", 1)
    with closing(reserved.connect()) as connection:
        with pytest.raises(DiskFull, match="no room for a block"):
            connection.enqueue("orders", LARGE_BODY)
        connection.rollback()
    assert reserved.pieces == 16


@pytest.mark.parametrize(
    ("call", "path"),
    [("make_dir", "committed/queue=new"), ("make_dir", "committed/queue=new/range="), ("rename", "")],
)
@pytest.mark.parametrize("pieces", [1, 3])
def test_steps_use_it_and_the_next_enqueue_makes_it_again(
    reserved: ReservedSpace, call: str, path: str, pieces: int
) -> None:
    with closing(reserved.connect()) as connection:
        connection.tpc_begin(Xid(1, b"new", b"b"))
        connection.enqueue("new", LARGE_BODY)
        full_until_given_up(reserved, call, path, pieces)
        connection.tpc_prepare()
        connection.tpc_commit()
        reserved.space.log.settle()
        assert reserved.pieces == 16 - pieces
        connection.enqueue("new", b"second")
        assert reserved.pieces == 16
        connection.commit()
    assert reserved.take("new") == [LARGE_BODY, b"second"]


def test_a_dequeue_is_prepared_with_room_from_the_reserve(reserved: ReservedSpace) -> None:
    reserved.put("orders", b"first", b"second", b"third")
    full_until_given_up(reserved, "create", "active/", 3)
    with closing(reserved.connect()) as connection:
        connection.tpc_begin(Xid(1, b"taker", b"b"))
        for _ in range(2):
            assert connection.dequeue("orders") is not None
        assert reserved.pieces == 16
        connection.tpc_prepare()
        assert reserved.pieces == (13 if journal_log(reserved.space) is None else 16), "a record needs no files"
        connection.tpc_commit()
    assert reserved.take("orders") == [b"third"]


def test_what_remembers_a_dequeue_uses_nothing_of_it(reserved: ReservedSpace) -> None:
    reserved.put("orders", b"first")
    full_until_given_up(reserved, "write_at", TRIES, 1)
    assert reserved.take("orders") == [b"first"]
    assert reserved.pieces == 16


def test_an_operator_decides_with_room_from_the_reserve(reserved: ReservedSpace) -> None:
    xid = reserved.prepare("in doubt", add=[("orders", bytes(100_000))])
    full_until_given_up(reserved, "create", "active/", 2)
    heuristics.decide(reserved.space, xid, True, "operator")
    assert reserved.in_doubt() == [xid]
    assert len(reserved.take("orders")) == 1


def test_without_the_reserve_enqueues_are_refused_until_there_is_room_for_it(reserved: ReservedSpace) -> None:
    reserve = reserved.root / layout.RESERVE
    limit = reserved.space.room
    assert limit._reserve is not None
    while limit._reserve.give_up():
        pass
    assert list(reserve.iterdir()) == []
    disk = Disk(reserved)
    disk.leave(free_bytes=64 * MiB + MiB)
    limit._fs = reserved.fs
    with closing(reserved.connect()) as connection:
        with pytest.raises(DiskLow, match=r"the reserve is used up: 68,157,440 bytes .* 1,114,112 are wanted"):
            connection.enqueue("orders", b"refused")
        assert list(reserve.iterdir()) == []
        disk.leave(free_bytes=64 * MiB + 2 * MiB)
        connection.enqueue("orders", b"first")
        assert reserved.pieces == 16
        connection.commit()


def test_what_is_removed_in_a_moment_makes_room_for_the_reserve(tmp_path: Path) -> None:
    """With a journal, files of messages that were consumed stand for a moment more; nobody is refused for them."""
    reserved = ReservedSpace(tmp_path / "space", "JOURNAL")
    log, limit = reserved.space.log, reserved.space.room
    assert limit._reserve is not None
    reserved.put("orders", *(b"%d" % number for number in range(20)))
    log.settle()
    full = len(list(reserved.root.rglob("*")))

    def room() -> Room:
        return LARGE._replace(free_inodes=1000 + full - len(list(reserved.root.rglob("*"))))

    reserved.fs.room = room  # type: ignore[method-assign]
    limit._fs = reserved.fs
    while limit._reserve.give_up():
        pass
    with closing(reserved.connect()) as connection:
        for _ in range(20):
            assert connection.dequeue("orders") is not None
        connection.commit()
        assert log.pending
        connection.enqueue("orders", b"room again")
        connection.commit()
    assert reserved.pieces == 16
    reserved.crash()


def test_a_checkpoint_makes_it_again(tmp_path: Path) -> None:
    reserved = ReservedSpace(tmp_path / "space", "JOURNAL")
    reserve = reserved.space.room._reserve
    assert reserve is not None
    assert reserve.give_up()
    assert reserved.pieces == 15
    reserved.space.checkpoint()
    assert reserved.pieces == 16
    reserved.crash()


def test_what_an_earlier_owner_left_helps_a_recovery(tmp_path: Path) -> None:
    """What a journal has and the directories lack is made with room from the reserve."""
    reserved = ReservedSpace(tmp_path / "space", "JOURNAL")
    for number in range(3):
        reserved.put("orders", b"%d" % number)
    assert reserved.messages("orders") == []
    reserved.fs.close()

    class Full(type(reserved.fs)):  # type: ignore[misc]
        def create(self, path: str, chunks: list[bytes], modified_ns: int = 0) -> None:
            if not path.startswith("reserve/") and reserved.pieces > 14:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            super().create(path, chunks, modified_ns)

    reserved.fs = Full(reserved.root)
    reserved.space = reserved._open()
    assert reserved.take("orders") == [b"0", b"1", b"2"]
    assert len(reserved.messages("orders")) == 3
    reserved.crash()


# Through the process that owns a space


def test_a_process_keeps_a_reserve_and_tells_of_room(tmp_path: Path) -> None:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        connection.enqueue("orders", b"first")
        connection.commit()
        assert sum(path.stat().st_blocks * 512 for path in (root / layout.RESERVE).iterdir()) >= MiB
        status = inspect.status(root)
        assert status.low == ""
        assert status.free_bytes > 0
        (root / layout.QUEUES).write_text(f"[default]\n[space]\nmin_free_bytes = {1 << 60}\n")
        assert "have to stay free" in inspect.status(root).low
    with xaqueue.connect(root) as connection:
        with pytest.raises(DiskLow):
            connection.enqueue("orders", b"refused")
        assert connection.dequeue("orders") is not None
        connection.commit()
    assert record.read_owner(root) is not None


def test_a_reserve_that_cannot_be_made_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "space"
    xaqueue.connect(root, create=True).close()
    for piece in (root / layout.RESERVE).iterdir():
        piece.unlink()
    (root / layout.QUEUES).write_text(f"[default]\n[space]\nmin_free_bytes = {1 << 60}\n")
    xaqueue.connect(root).close()
    assert "the reserve is used up" in caplog.text


def test_a_try_is_counted_in_the_journal_though_the_directories_have_no_room(tmp_path: Path) -> None:
    """With a journal: a message that waits for the disk is given back all the same."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("orders", b"first")
        with closing(bare.connect()) as connection:
            assert connection.dequeue("orders") is not None
            bare.fs.faults["create", ""] = errno.ENOSPC
            connection.rollback()
            with pytest.raises(RetryLater, match="no room for what the directories lack"):
                bare.space.sync_all()
            assert connection.dequeue("orders") is not None
            connection.rollback()
            bare.fs.faults.clear()
            message = connection.dequeue("orders")
            assert message is not None
            assert message.properties.tries == 2
            connection.rollback()
        assert bare.take("orders") == [b"first"]


@pytest.mark.parametrize("two_phase", [True, False])
def test_a_large_branch_waits_for_the_disk_as_a_small_one_does(tmp_path: Path, two_phase: bool) -> None:
    """Its record holds some of its blocks, and says of others that they move."""
    small = replace(ANY_QUEUE, journal_segment_bytes=SMALLEST_SEGMENT_BYTES)
    with bare_space(tmp_path / "space", "JOURNAL", definitions=small) as bare:
        with closing(bare.connect()) as connection:
            if two_phase:
                connection.tpc_begin(Xid(1, b"large", b"b"))
            for _ in range(3):
                connection.enqueue("orders", bytes(10_000))
            assert len(list((bare.root / layout.ACTIVE).iterdir())) == 2
            bare.fs.faults = {(call, "committed/"): errno.ENOSPC for call in ("create", "rename")}
            if two_phase:
                connection.tpc_prepare()
                connection.tpc_commit()
            else:
                connection.commit()
            with pytest.raises(RetryLater, match="no room for what the directories lack"):
                bare.space.sync_all()
            assert bare.take("orders") == [bytes(10_000)] * 3
            bare.fs.faults.clear()
        bare.reopen()
        assert bare.take("orders") == [bytes(10_000)] * 3
