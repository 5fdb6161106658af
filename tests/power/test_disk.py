"""A small disk that fills up, a directory that cannot be written: real mounts, and what a space makes of them (rule 8).

Disk full is not a failure: the block is gone, its branch is rollback-only, everybody else goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import ANY_QUEUE, DURABLE, BareSpace
from support.disks import exhaust_inodes, fill, free, mounted, run, run_in_namespace
from support.space_scan import scan
from xaqueue.core.engine import heuristics
from xaqueue.core.owner import record
from xaqueue.errors import DiskFull, ResourceFailed, RetryLater, RolledBack, SpaceError
from xaqueue.xid import Xid

NO_LIMITS = replace(ANY_QUEUE, min_free_bytes=0, min_free_inodes=0)
Disk = Callable[..., BareSpace]


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """Makes spaces on a tmpfs of a given size, each full size hardened."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=400k,nr_inodes=200", "tmpfs") as permitted:
        if not permitted:
            run_in_namespace(request)
        opened: list[BareSpace] = []

        def make() -> BareSpace:
            opened.append(BareSpace(tmp_path / "disk" / "space", DURABLE, definitions=NO_LIMITS))
            return opened[-1]

        yield make
        for bare in opened:
            bare.crash()


fillers = pytest.mark.parametrize("take_all", [fill, exhaust_inodes], ids=["no pages", "no inodes"])


def test_a_message_that_does_not_fit_is_told_with_figures_and_leaves_nothing(disk: Disk) -> None:
    bare = disk()
    bare.put("orders", b"first")
    with closing(bare.connect()) as connection:
        connection.enqueue("orders", b"s" * 100)
        with pytest.raises(DiskFull, match=r"no room for a block of 900,\d+ bytes: .*; [\d,]+ bytes are free") as full:
            connection.enqueue("orders", b"L" * 900_000)
        assert full.value.code is xaqueue.Code.XA_RBOTHER
        assert len(list((bare.root / "active").iterdir())) == 1
        assert bare.fs.room().free_bytes > 300_000
        with pytest.raises(DiskFull):
            connection.enqueue("orders", b"it would fit")
        with pytest.raises(RolledBack):
            connection.commit()
        assert list((bare.root / "active").iterdir()) == []
        connection.enqueue("orders", b"second")
        connection.commit()
    bare.reopen()
    assert bare.take("orders") == [b"first", b"second"]


@fillers
def test_on_a_full_disk_others_go_on(disk: Disk, take_all: Callable[[Path], Path]) -> None:
    bare = disk()
    bare.put("orders", b"first", b"second", b"third")
    prepared = [bare.prepare(f"{n}", add=[("orders", b"prepared %d" % n)] * (n + 1)) for n in range(3)]
    undone = bare.prepare("undone", add=[("orders", b"never")])
    active = bare.connect()
    active.tpc_begin(Xid(1, b"active", b"b"))
    active.enqueue("orders", b"active")
    filler = take_all(bare.root)
    with pytest.raises(DiskFull), closing(bare.connect()) as doomed:
        doomed.enqueue("orders", b"no room")
    with closing(bare.connect()) as connection:
        taken = connection.dequeue("orders")
        assert taken is not None
        assert taken.body == b"first"
        connection.commit()
        connection.tpc_rollback(undone)
        for xid in prepared:
            connection.tpc_commit(xid)
    active.tpc_prepare()
    active.tpc_commit()
    active.close()
    expected = [b"second", b"third", b"prepared 0", *[b"prepared 1"] * 2, *[b"prepared 2"] * 3, b"active"]
    with closing(bare.connect()) as connection:
        assert [message.body for message in connection.browse("orders")] == expected
    free(filler)
    bare.put("orders", b"last")
    bare.reopen()
    assert bare.take("orders") == [*expected, b"last"]


@fillers
def test_consuming_frees_a_full_disk(disk: Disk, take_all: Callable[[Path], Path]) -> None:
    bare = disk()
    bare.put("orders", *(b"%d" % number for number in range(8)))
    take_all(bare.root)
    with closing(bare.connect()) as connection:
        with pytest.raises(DiskFull):
            connection.enqueue("orders", b"no room")
        connection.rollback()
        for number in range(8):
            message = connection.dequeue("orders")
            assert message is not None
            assert message.body == b"%d" % number
            connection.commit()
        connection.enqueue("orders", b"room again")
        connection.commit()
    assert bare.take("orders") == [b"room again"]


@fillers
def test_a_dequeue_that_cannot_be_prepared_is_rolled_back(disk: Disk, take_all: Callable[[Path], Path]) -> None:
    bare = disk()
    bare.put("orders", b"first")
    take_all(bare.root)
    with closing(bare.connect()) as connection:
        connection.tpc_begin(Xid(1, b"taker", b"b"))
        assert connection.dequeue("orders") is not None
        with pytest.raises(DiskFull):
            connection.tpc_prepare()
        assert bare.in_doubt() == []
        assert [message.body for message in connection.browse("orders")] == [b"first"]
    bare.reopen()
    assert bare.in_doubt() == []
    assert bare.take("orders") == [b"first"]


@fillers
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_commit_to_a_new_queue_waits_for_room(disk: Disk, take_all: Callable[[Path], Path], blocks: int) -> None:
    bare = disk()
    xid = bare.prepare("new", add=[("new-queue", b"first")] * blocks)
    filler = take_all(bare.root)
    for _ in range(2):
        with closing(bare.connect()) as connection:
            with pytest.raises(RetryLater, match="found no room"):
                connection.tpc_commit(xid)
            assert connection.tpc_recover() == [xid]
            assert list(connection.browse("new-queue")) == []
        bare.reopen()
        assert bare.space.report.quarantined == []
    free(filler)
    with closing(bare.connect()) as connection:
        connection.tpc_commit(xid)
    bare.reopen()
    assert bare.take("new-queue") == [b"first"] * blocks
    assert scan(bare.root) == []


@fillers
def test_a_full_disk_opens_and_quarantines(disk: Disk, take_all: Callable[[Path], Path]) -> None:
    bare = disk()
    bare.put("orders", b"first", b"second", b"third", b"fourth", b"fifth")
    xid = bare.prepare("in doubt", add=[("orders", b"sixth")])
    with closing(bare.connect()) as connection:
        connection.enqueue("orders", b"active")
    bare.message_file("orders", b"second").write_bytes(b"damaged")
    fourth = bare.message_file("orders", b"fourth")
    take_all(bare.root)
    bare.reopen()
    fourth.write_bytes(b"")
    assert bare.in_doubt() == [xid]
    with closing(bare.connect()) as connection:
        bodies = []
        while message := connection.dequeue("orders"):
            bodies.append(message.body)
            connection.commit()
        connection.commit()
        connection.tpc_commit(xid)
    assert bodies == [b"first", b"third", b"fifth"]
    assert len(bare.quarantined()) == 2
    bare.reopen()
    assert bare.take("orders") == [b"sixth"]


@fillers
def test_a_process_can_open_a_space_on_a_full_disk(disk: Disk, take_all: Callable[[Path], Path]) -> None:
    root = disk().root
    for _ in range(2):
        with xaqueue.connect(root) as connection:
            connection.enqueue("orders", b"first")
            connection.commit()
    filler = take_all(root)
    with xaqueue.connect(root) as connection:
        with pytest.raises(DiskFull):
            connection.enqueue("orders", b"no room")
        connection.rollback()
        assert connection.dequeue("orders") is not None
        connection.commit()
    owner = record.read_owner(root)
    assert owner is not None
    assert owner.epoch == 3
    free(filler)
    with xaqueue.connect(root) as connection:
        assert len(list(connection.browse("orders"))) == 1


@fillers
def test_a_space_that_finds_no_room_at_its_first_opening_says_so(disk: Disk, take_all: Callable[[Path], Path]) -> None:
    root = disk().root
    filler = take_all(root)
    with pytest.raises(SpaceError, match="No space left on device"):
        xaqueue.connect(root)
    with pytest.raises(SpaceError, match="No space left on device"):
        xaqueue.connect(root.with_name("other"), create=True)
    free(filler)
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"first")
        connection.commit()


@fillers
def test_an_operator_without_room_is_told_to_try_again(disk: Disk, take_all: Callable[[Path], Path]) -> None:
    bare = disk()
    xid = bare.prepare("in doubt", add=[("orders", b"first")])
    filler = take_all(bare.root)
    with pytest.raises(RetryLater, match="nothing was done"):
        heuristics.decide(bare.space, xid, True, "operator")
    assert bare.in_doubt() == [xid]
    free(filler)
    heuristics.decide(bare.space, xid, True, "operator")
    assert bare.take("orders") == [b"first"]


# A directory that cannot be written


def test_a_read_only_directory_is_a_clear_error(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    space = tmp_path / "space"
    xaqueue.connect(space, create=True).close()
    with mounted(space, "--bind", str(space)) as permitted:
        if not permitted:
            run_in_namespace(request)
        assert run("mount", "-o", "remount,ro,bind", str(space)).returncode == 0
        with pytest.raises(SpaceError, match=r"cannot be opened for writing: Read-only file system"):
            xaqueue.connect(space)
        with pytest.raises(SpaceError, match=r"cannot be made a queue space: Read-only file system"):
            xaqueue.connect(space / "inner", create=True)
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", b"writable again")
        connection.commit()


def test_a_disk_that_turns_read_only_fences(disk: Disk) -> None:
    """As ext4 does after an error."""
    bare = disk()
    bare.put("orders", b"first")
    place = str(bare.root.parent)
    assert run("mount", "-o", "remount,ro", place).returncode in (0, 32)
    if os.access(bare.root, os.W_OK):
        bare.fs.faults["create", "active/"] = errno.EROFS  # descriptors that are open for writing kept the mount busy
    with pytest.raises(ResourceFailed, match="Read-only file system"), closing(bare.connect()) as connection:
        connection.enqueue("orders", b"second")
    bare.fs.faults.clear()
    run("mount", "-o", "remount,rw", place)
    bare.reopen()
    assert bare.take("orders") == [b"first"]
