"""Small disks, real ones, that are filled to their limit and beyond: what is under way comes to its end (rule 8).

Enqueues are refused while there is room yet. Then somebody else takes what is left, bytes or inodes, and still every
branch is prepared, committed or rolled back, and every message is consumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import DURABLE
from support.disks import exhaust_inodes, fill, free, mounted, mounted_image, run_in_namespace
from support.space_scan import scan
from xaqueue.core.model import layout
from xaqueue.errors import DiskLow
from xaqueue.offline import inspect
from xaqueue.xid import Xid

MiB = 1024 * 1024
LEVELS = [DURABLE, "JOURNAL"]


@pytest.fixture(params=["tmpfs", "ext4"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where a space may be made, on a disk of its own."""
    place = tmp_path / "disk"
    with ExitStack() as stack:
        if request.param == "ext4":
            stack.enter_context(mounted_image(place, 16 * MiB, "mkfs.ext4", "-q", "-N", "1000"))
        elif not stack.enter_context(mounted(place, "-t", "tmpfs", "-o", "size=8m,nr_inodes=1000", "tmpfs")):
            run_in_namespace(request)
        yield place / "space"


class Story:
    """Branches of every kind, begun while there was room."""

    def __init__(self, root: Path, level: str, body: bytes) -> None:
        self.root = root
        self.body = body
        self.own = xaqueue.connect(root, create=True, sync=level)
        self.connections = [self.own]
        self.expected: Counter[str] = Counter()
        self.active: list[xaqueue.Connection] = []
        self.prepared: list[xaqueue.Connection] = []

    def close(self) -> None:
        for connection in reversed(self.connections):
            connection.close()

    def begin(self) -> None:
        for _ in range(20):
            self.own.enqueue("orders", self.body)
            self.own.commit()
        self.expected["orders"] += 20
        for number in range(18):
            connection = xaqueue.connect(self.root)
            self.connections.append(connection)
            connection.tpc_begin(Xid(1, b"%d" % number, b"b"))
            for _ in range(number % 3 + 1):
                connection.enqueue(self.queue_of(number), self.body)
            if number % 2:
                assert connection.dequeue("orders") is not None
            if number < 6:
                connection.tpc_prepare()
                self.prepared.append(connection)
            else:
                self.active.append(connection)

    @staticmethod
    def queue_of(number: int) -> str:
        """Some of them are new, and need directories."""
        return f"new-{number}" if number % 4 == 1 else "orders"

    def enqueue_all_that_fits(self) -> str:
        """In one branch, which stays open; returns why no more."""
        number = 0
        try:
            while True:
                self.own.enqueue("orders", self.body)
                number += 1
        except DiskLow as low:
            assert number > 50
            self.expected["orders"] += number
            return str(low)

    def finish(self) -> None:
        """Every verb, for one branch after the other. None of them may fail."""
        self.own.commit()
        for number, connection in enumerate(self.prepared):
            if number % 3:
                connection.tpc_commit()
            else:
                connection.tpc_rollback()
            self._count(number, number % 3 != 0)
        for number, connection in enumerate(self.active, len(self.prepared)):
            if number % 4 != 2:
                assert connection.tpc_prepare()
            if number % 4 == 3:
                connection.tpc_rollback()
            else:
                connection.tpc_commit()
            self._count(number, number % 4 != 3)

    def _count(self, number: int, committed: bool) -> None:
        if committed:
            self.expected[self.queue_of(number)] += number % 3 + 1
            self.expected["orders"] -= number % 2

    def consume_all(self) -> Counter[str]:
        """Ten messages a branch, in one phase and in two by turns."""
        found: Counter[str] = Counter()
        with xaqueue.connect(self.root) as connection:
            for queue in self.expected:
                two_phase = False
                while True:
                    two_phase = not two_phase
                    if two_phase:
                        connection.tpc_begin(Xid(2, queue.encode(), b"%d" % found[queue]))
                    taken = sum(1 for _ in range(10) if connection.dequeue(queue) is not None)
                    if two_phase and taken:
                        assert connection.tpc_prepare()
                    if two_phase:
                        connection.tpc_commit()
                    else:
                        connection.commit()
                    found[queue] += taken
                    if not taken:
                        break
        return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stranger", [None, fill, exhaust_inodes], ids=["limit", "no bytes", "no inodes"])
@pytest.mark.parametrize(("size", "limit"), [(20_000, "min_free_bytes"), (10, "min_free_inodes")])
def test_what_is_under_way_needs_no_room(
    root: Path, level: str, stranger: Callable[[Path], Path] | None, size: int, limit: str
) -> None:
    story = Story(root, level, bytes(size))
    try:
        story.begin()
        assert limit in story.enqueue_all_that_fits()
        filler = stranger(root) if stranger is not None else None
        if filler is not None:
            assert re.match(r"[\d,]+ (bytes|inodes) of the disk are free, ", inspect.status(root).low)
        with xaqueue.connect(root) as other, pytest.raises(DiskLow, match="min_free_"):
            other.enqueue("orders", story.body)
        story.finish()
        found = story.consume_all()
        assert found == +story.expected
        if filler is not None:
            free(filler)
        story.own.enqueue("orders", b"room again")
        story.own.commit()
    finally:
        story.close()
    with xaqueue.connect(root) as connection:
        assert [message.body for message in connection.browse("orders")] == [b"room again"]
    assert scan(root) == []
    assert len(list((root / layout.RESERVE).iterdir())) == 16


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("take_all", [fill, exhaust_inodes], ids=["no bytes", "no inodes"])
def test_a_full_disk_is_opened_and_drained(root: Path, level: str, take_all: Callable[[Path], Path]) -> None:
    """What is lacking of the reserve is not made then, and enqueues are refused until it is."""
    with xaqueue.connect(root, create=True, sync=level) as connection:
        for number in range(10):
            connection.enqueue("orders", b"%d" % number)
            connection.commit()
        xid = connection.xid(1, "in doubt", "b")
        connection.tpc_begin(xid)
        connection.enqueue("new", b"doubtful")
        connection.tpc_prepare()
    next((root / layout.RESERVE).iterdir()).unlink()
    filler = take_all(root)
    with xaqueue.connect(root) as connection:
        with pytest.raises(DiskLow, match="reserve is used up"):
            connection.enqueue("orders", b"no room")
        connection.rollback()
        assert connection.tpc_recover() == [xid]
        connection.tpc_commit(xid)
        for number in range(10):
            message = connection.dequeue("orders")
            assert message is not None
            assert message.body == b"%d" % number
            connection.commit()
        free(filler)
        connection.enqueue("orders", b"room again")
        connection.commit()
        assert len(list((root / layout.RESERVE).iterdir())) == 16
    with xaqueue.connect(root) as connection:
        bodies = [message.body for queue in ("new", "orders") for message in connection.browse(queue)]
        assert bodies == [b"doubtful", b"room again"]
