"""What left a queue that keeps it becomes Parquet, and the queue is one table with it, each message once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq

from support.archive_space import Space, check, in_parquet, rows, spread
from xaqueue import lake
from xaqueue.errors import DamagedBlock, UnknownQueue
from xaqueue.features.streams import cleanup
from xaqueue.features.streams.message_files import gone_of
from xaqueue.lake.archive import archive
from xaqueue.lake.archive_check import check_archive
from xaqueue.offline import aside

LEVELS = ["JOURNAL", "FDATASYNC;DSYNC", "NONE"]


@pytest.fixture(params=LEVELS)
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    made = Space(tmp_path / "space", request.param)
    yield made
    made.stop()


def test_what_was_taken_is_parquet_and_the_queue_one_table(space: Space) -> None:
    space.put(b"a", b"b", b"c")
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.take(2)
    space.settle()
    check(space)
    assert archive(space.root).messages == 2
    check(space)
    space.take(9)
    space.settle()
    check(space)
    assert archive(space.root).messages == 1, "a block stays until all of it was taken"
    check(space)
    space.take(12)
    space.settle()
    check(space)
    assert archive(space.root).messages == 20
    check(space)
    assert in_parquet(space.root) == list(space.bodies)
    assert [path.name for path in (space.root / "archive/queue=q/.taken").iterdir()] == []
    assert archive(space.root).messages == 0


def test_the_rest_of_a_block_leaves_while_it_is_looked_at(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bitmap goes with it."""
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.take(9)
    space.settle()

    def late(*given: Any) -> int:
        monkeypatch.undo()
        space.take(11)
        space.settle()
        return gone_of(*given)

    monkeypatch.setattr("xaqueue.lake.archive_files.gone_of", late)
    assert [row["seq"] for row in rows(space)] == list(space.bodies)
    check(space)


def test_what_a_stream_consumes_is_kept_and_told(space: Space) -> None:
    """It ends within a block of which somebody else had taken two before; another one goes on."""
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.put(b"a", b"b", b"c")
    space.take(2)
    for upto in (3, 8, 12):
        space.consume(upto)
        space.settle()
        check(space)
    archive(space.root)
    check(space)
    space.session.release("q")
    check(space)
    assert archive(space.root).messages == 10, "each has a file of its own"
    check(space)
    space.take(2)
    space.consume(21, stream="query#2")
    assert cleanup.clear(space.session.space)
    space.settle()
    check(space)
    archive(space.root)
    check(space)
    assert in_parquet(space.root) == list(range(1, 22))


def test_what_a_stream_alone_keeps_is_parquet_too(space: Space) -> None:
    """The queue has no archive of its own."""
    space.connection.enqueue_many("other", [b"%d" % at for at in range(20)])
    space.connection.commit()
    space.session.reserve("other", "query#1", 0, 0)
    space.session.consume("other", "query#1", 20, True)
    assert cleanup.clear(space.session.space)
    space.settle()
    assert archive(space.root).messages == 20
    found = lake.scan(space.root, "other", ["seq", "taken_by"], archived=True).read_all().to_pylist()
    assert found == [{"seq": seq, "taken_by": "query#1"} for seq in range(1, 21)]


def _in_body(path: Path) -> int:
    """A byte of the column of bodies."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(3)
    assert column.path_in_schema == "body"
    begin = column.dictionary_page_offset or column.data_page_offset
    return int(begin + column.total_compressed_size - 2)


def test_verify_reads_all_of_it(space: Space) -> None:
    space.put(b"a" * 99, b"b" * 99, b"c")
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.take(2)
    space.settle()
    archive(space.root)
    space.take(21)
    space.settle()
    assert list(check_archive(str(space.root))) == []
    places = [*space.root.glob("archive/parquet/queue=q/day=*/*"), *space.root.glob("archive/queue=q/range=*/*")]
    assert len(places) == 3
    for path in places:
        whole = path.read_bytes()
        middle = _in_body(path) if path.suffix == ".parquet" else len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        (found,) = check_archive(str(space.root))
        assert str(space.root / found.path) == str(path)
        path.write_bytes(whole)
    wrong = places[0].rename(places[0].with_name(places[0].name.replace("0000-", "0001-")))
    (found,) = check_archive(str(space.root))
    assert "comes behind" in found.problem
    wrong.rename(places[0])
    assert list(check_archive(str(space.root))) == []


def test_what_is_damaged_stays_and_is_told(space: Space) -> None:
    space.put(b"a", b"b", b"c")
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.take(23)
    space.settle()
    files = sorted(space.root.glob("archive/queue=q/range=*/*"))
    for path in (files[1], files[3]):  # a message, and the body of one in a block
        whole = path.read_bytes()
        at = len(whole) - 1 if path is files[1] else whole.rfind(b"1718")
        path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    for messages in (21, 0):
        done = archive(space.root)
        assert (done.messages, len(done.wrong)) == (messages, 2)
        assert sorted(space.root.glob("archive/queue=q/range=*/*")) == [files[1], files[3]]
        assert in_parquet(space.root) == [seq for seq in range(1, 24) if seq not in (2, 21)]


def test_another_message_under_a_number_stays_and_is_told(space: Space) -> None:
    """The space was put back from a copy without its archive, or the archive is another one's."""
    space.put(b"a", b"b")
    space.put(*(b"%d" % at for at in range(20)), many=True)
    space.take(22)
    space.settle()
    (space.root / "archive/parquet/queue=q").mkdir(parents=True)
    other = Space(space.root.parent / "other", "NONE")
    other.put(b"x")
    other.put(*(b"%d" % at for at in range(30)), many=True)
    other.take(31)
    other.settle()
    archive(other.root)
    other.stop()
    shutil.copytree(other.root / "archive/parquet", space.root / "archive/parquet", dirs_exist_ok=True)
    before = sorted(space.root.glob("archive/queue=q/range=*/*"))
    done = archive(space.root)
    assert (done.messages, len(done.wrong)) == (0, 3)
    assert "number 1 is another message in" in done.wrong[0]
    assert sorted(space.root.glob("archive/queue=q/range=*/*")) == before


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"half"])
def test_a_damaged_table_is_told_by_its_path(space: Space, damage: bytes) -> None:
    """And other queues are gone on with."""
    space.put(b"a", b"b")
    space.take(1)
    space.settle()
    archive(space.root)
    (path,) = space.root.glob("archive/parquet/queue=q/day=*/*")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == b"half" else damage)
    space.take(1)
    space.settle()
    (wrong,) = archive(space.root).wrong
    assert str(path) in wrong
    with pytest.raises(DamagedBlock, match=path.name):
        rows(space)
    path.write_bytes(whole)
    assert archive(space.root).messages == 1


def test_a_queue_that_is_none(space: Space) -> None:
    with pytest.raises(UnknownQueue, match="nosuch"):
        archive(space.root, ["nosuch"])


def test_days_that_ended_long_ago_can_be_removed(space: Space) -> None:
    space.put(b"a", b"b", b"c")
    space.take(3)
    space.settle()
    spread(space.root)
    archive(space.root)
    before = sorted(path.name for path in space.root.glob("archive/parquet/queue=q/*"))
    ended = datetime(2026, 11, 3, tzinfo=UTC)
    age_s = (datetime.now(UTC) - ended).total_seconds()
    given_up, kept = aside.look(space.root, age_s + 3600, archived=True)
    assert ([one.path[-14:] for one in given_up], kept) == (before[:1], [])
    given_up, _ = aside.clean(space.root, age_s - 3600, archived=True)
    assert [one.path[-14:] for one in given_up] == before[:2]
    assert in_parquet(space.root) == [3]
    assert [row["seq"] for row in rows(space)] == [3]
