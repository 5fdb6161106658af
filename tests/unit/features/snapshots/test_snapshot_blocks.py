"""A snapshot has blocks of many messages, by a link, and what is gone of them, by a copy; a restore puts back both."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import xaqueue
from support.bare_space import BareSpace
from support.block_space import MadeBlock, body_of, id_of, put_block, put_message
from xaqueue.core.model import layout
from xaqueue.core.model.definitions import MANY, Definitions, QueueDefinition
from xaqueue.core.model.format import read_format
from xaqueue.core.model.message_block import decode_gone
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.features.kinds import KINDS
from xaqueue.features.snapshots import restoring, store
from xaqueue.features.snapshots.restore import Done, Wanted, restore
from xaqueue.features.snapshots.take import take
from xaqueue.message import Message
from xaqueue.offline.check import check
from xaqueue.offline.findings import Severity
from xaqueue.offline.inspect import browse
from xaqueue.offline.plan import Site

FIRST, COUNT = 10, 20
MANY_EACH = Definitions(default=QueueDefinition(blocks=MANY))
GONE = 0b101


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "space"


def taken(root: Path, make: Callable[[Path], MadeBlock], sync: str = "NONE") -> MadeBlock:
    """A snapshot of what is made in an open space."""
    with xaqueue.connect(root, create=True, sync=sync) as connection:
        made = make(root)
        connection.snapshot()
    return made


def block(root: Path) -> MadeBlock:
    put_message(root, 1)
    return put_block(root, FIRST, COUNT, gone=GONE)


def there(root: Path, queue: str = "orders") -> list[Message]:
    found = list(browse(root, queue, lambda seq, why: pytest.fail(why)))
    assert all(message.body == body_of(message.seq) for message in found)
    return found


def numbers(root: Path, queue: str = "orders") -> list[int]:
    return [message.seq for message in there(root, queue)]


def restored(root: Path, *, exact: bool = False) -> Done:
    done = put_back(root, exact=exact)
    assert [found for found in check(root) if found.severity is Severity.DAMAGE] == []
    return done


def put_back(root: Path, *, exact: bool = False) -> Done:
    """Nobody opens it before."""
    wanted = Wanted(None, 0, exact, False, layout.QUEUES, True, read_format(root).id)
    with Site(root).held() as fs:
        return restore(fs, wanted, time.time_ns() // 1000, kinds=KINDS, close=lambda: None)


LEFT = [1, *(FIRST + index for index in range(COUNT) if not GONE >> index & 1)]


@pytest.mark.parametrize("sync", ["NONE", "JOURNAL", "FSYNC;DSYNC"])
def test_a_block_is_linked_and_its_bitmap_copied(root: Path, sync: str) -> None:
    made = taken(root, block, sync)
    snapshot = root / "snapshots/1"
    assert (snapshot / made.path).samefile(made.file)
    assert not (snapshot / made.gone_path).samefile(made.gone_file)
    assert (snapshot / made.gone_path).read_bytes() == made.gone_file.read_bytes()
    with closing(DirectoryFileSystem(root, keep_unsynced=False)) as fs:
        (status,) = store.statuses(fs)
        assert (status.messages, status.problem) == (len(LEFT), "")
        assert list(store.damage(fs, "snapshots/1")) == []
        (snapshot / made.gone_path).write_bytes(b"garbled")
        assert len(list(store.damage(fs, "snapshots/1"))) == 1


def test_what_is_taken_later_changes_no_snapshot(root: Path) -> None:
    made = taken(root, block)
    made.take(GONE | 0b1000)
    assert decode_gone((root / "snapshots/1" / made.gone_path).read_bytes(), "orders", made.named) == GONE


def test_a_restore_puts_back_both_and_shares_no_bitmap(root: Path) -> None:
    made = taken(root, block)
    shutil.rmtree(root / "committed")
    done = restored(root)
    assert (done.messages, numbers(root)) == (len(LEFT), LEFT)
    assert made.file.samefile(root / "snapshots/1" / made.path)
    assert not made.gone_file.samefile(root / "snapshots/1" / made.gone_path)


def test_what_was_taken_since_comes_back(root: Path) -> None:
    made = taken(root, block)
    made.take(GONE | 0b11110000)
    restored(root)
    assert numbers(root) == LEFT


def test_a_newer_block_comes_over_as_it_is(root: Path) -> None:
    taken(root, block)
    newer = put_block(root, 40, COUNT, gone=0b111)
    done = restored(root)
    assert (done.newer, done.lost) == (COUNT - 3, 0)
    assert numbers(root) == [*LEFT, *range(43, 60)]
    assert newer.gone_file.stat().st_nlink == 1


def test_of_a_newer_block_each_message_comes_over_by_itself(root: Path) -> None:
    taken(root, block)
    put_block(root, 40, COUNT).harm_body(0)
    done = put_back(root)
    assert (done.newer, done.lost) == (COUNT, 0)
    lost: list[int] = []
    found = [message.seq for message in browse(root, "orders", lambda seq, why: lost.append(seq))]
    assert (found, lost) == ([*LEFT, *range(41, 60)], [40])


def test_a_newer_block_that_cannot_be_read_is_lost(root: Path) -> None:
    taken(root, block)
    made = put_block(root, 40, COUNT, gone=0b1)
    made.harm_table()
    made.harm_copy()
    done = restored(root)
    assert (done.newer, done.lost, numbers(root)) == (0, COUNT - 1, LEFT)


def test_without_what_came_since(root: Path) -> None:
    taken(root, block)
    put_block(root, 40, COUNT)
    restored(root, exact=True)
    assert numbers(root) == LEFT


def test_a_message_that_was_moved_out_of_a_block_is_there_once(root: Path) -> None:
    """By number 11, which stands in another queue now under its id; 12 was gone of the block before."""
    made = taken(root, block)
    made.take(GONE | 0b10)
    put_block(root, 7, 2, queue="failed", ids=[id_of(11), id_of(12)])
    restored(root)
    assert 11 not in numbers(root)
    assert numbers(root) == [seq for seq in LEFT if seq != 11]
    assert [message.message_id for message in there(root, "failed")] == [id_of(11), id_of(12)]


def test_a_block_of_which_all_was_moved_is_gone(root: Path) -> None:
    made = taken(root, lambda root: put_block(root, FIRST, 2, gone=0b1))
    made.file.unlink()
    made.gone_file.unlink()
    put_block(root, 7, 2, queue="failed", ids=[id_of(11), id_of(12)])
    restored(root)
    assert not made.file.exists()
    assert not made.gone_file.exists()


def test_a_message_that_was_moved_into_a_block_is_there_once(root: Path) -> None:
    taken(root, block)
    next((root / "committed/queue=orders").glob("range=*/*01.*01")).unlink()
    put_block(root, 7, 2, queue="failed", ids=[id_of(1), id_of(3)])
    restored(root)
    assert numbers(root) == LEFT[1:]


def test_where_links_end_all_is_copied(root: Path) -> None:
    made = taken(root, block)
    for path in (root / "snapshots/1" / made.path, root / "snapshots/1" / made.gone_path):
        shutil.copy2(path, beside := path.with_name("x"))
        beside.rename(path)
    shutil.rmtree(root / "committed")
    restored(root)
    assert numbers(root) == LEFT


def test_of_a_space_at_work_each_message_is_as_it_was_then(tmp_path: Path) -> None:
    """Amid takes; what was taken since comes back as well, and what came since stays."""
    bare = BareSpace(tmp_path / "space", "JOURNAL", definitions=MANY_EACH)
    put_in = []
    for batch in range(3):
        connection = bare.connect()
        put_in += connection.enqueue_many("q", [b"%d" % (100 * batch + number) for number in range(30)])
        connection.commit()
    takers = [bare.connect() for _ in range(2)]
    gone = {message.message_id for message in takers[0].dequeue_many("q", 7)}
    takers[0].commit()
    held = {message.message_id for message in takers[1].dequeue_many("q", 40)}
    take(bare.space)
    takers[1].commit()
    connection = bare.connect()
    later = connection.enqueue_many("q", [b"later %d" % number for number in range(20)])
    connection.commit()
    bare.crash()
    done = restoring.restore(tmp_path / "space")
    found = {message.message_id: message.body for message in browse(tmp_path / "space", "q", lambda seq, why: None)}
    assert found.keys() == (set(put_in) - gone) | set(later)
    assert held < found.keys()
    assert all(found[one] == b"%d" % (100 * (at // 30) + at % 30) for at, one in enumerate(put_in) if one in found)
    assert (done.messages, done.newer) == (83, 20)
    assert [one for one in check(tmp_path / "space") if one.severity is Severity.DAMAGE] == []
