"""A query reads a space by its server: the same rows as from its files, by who has no directory at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import xaqueue
from support.patience import eventually
from support.served import ServerThread, serving
from xaqueue.core.owner import definitions_file
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.features.opening import create
from xaqueue.offline.reader import QueueReader
from xaqueue.rpc.wire import Packed, plain

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from support.spark_reading import ALL, Query, rows, stream
from xaqueue.rpc.server import page_maker
from xaqueue.spark.source.options import parse
from xaqueue.spark.source.source import QueueSource

QUEUES = '[queues.orders]\n[queues.other]\nblocks = "one"\n'
COUNT = 250


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    create(root)
    definitions_file.write_definitions(root, QUEUES)
    return root


@pytest.fixture
def url(root: Path) -> Iterator[str]:
    with serving(root) as server:
        yield server.url


def fill(root: Path, url: str, queue: str = "orders", count: int = COUNT) -> None:
    """Blocks of many, and single messages behind them; returns once they are published."""
    reader = QueueReader(root, queue)
    upto = reader.watermark() + count
    with xaqueue.connect(url) as queues:
        queues.enqueue_many(queue, [b"body %d" % number for number in range(count - 2)])
        queues.commit()
        queues.enqueue(queue, b"one", headers={"kind": "single"}, priority=7)
        queues.commit()
        queues.enqueue(queue, b"two", correlation_id=b"c")
        queues.commit()
    eventually(lambda: reader.watermark() == upto)


def batch(path: object, queue: str = "*", **options: object) -> list[dict[str, Any]]:
    given = {"path": str(path), "queue": queue} | {name: str(value) for name, value in options.items()}
    source = QueueSource(given)
    reader = source.reader(source.schema())
    return rows(reader, list(reader.partitions()))


def without_place(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "space"} for row in found]


def test_it_gives_the_rows_that_the_files_give(root: Path, url: str) -> None:
    fill(root, url)
    fill(root, url, "other", 30)
    with xaqueue.connect(url) as queues:
        for _ in range(5):
            queues.dequeue("orders")
        queues.commit()
    eventually(lambda: len(batch(root)) == COUNT + 30 - 5)
    by_files, by_server = batch(root), batch(url)
    assert without_place(by_server) == without_place(by_files)
    assert {row["space"] for row in by_server} == {url}


@pytest.mark.parametrize("page_bytes", [1, 700, 1 << 20])
def test_pages_follow_one_another(root: Path, url: str, page_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_maker, "PAGE_BYTES", page_bytes)
    monkeypatch.setattr(page_maker, "SIZES", 7)
    made = page_maker.Pages(str(root))

    def here(_: page_maker.PageMaker, request: bytes) -> Packed:
        method, params = msgpack.unpackb(request[page_maker.REQUEST.size :])
        return Packed(msgpack.packb(made.calls[method](*params), default=plain))

    monkeypatch.setattr(page_maker.PageMaker, "_exchange", here)
    for _ in range(3):
        fill(root, url, count=20)
    assert [row["seq"] for row in batch(url, "orders")] == list(range(1, 61))
    found = batch(url, "orders", startingOffsets=5, endingOffsets=47, minPartitions=4)
    assert [row["seq"] for row in found] == list(range(6, 48))
    limited = Query(stream(url, maxBytesPerTrigger=500)).all()
    assert len(limited) > 3
    assert [row["seq"] for one in limited for row in one] == list(range(1, 61))


def test_a_stream_consumes_what_it_reads_there(root: Path, url: str) -> None:
    fill(root, url)
    query = Query(stream(url, consume="delete", maxMessagesPerTrigger=100))
    assert [row["seq"] for found in query.all() for row in found] == list(range(1, COUNT + 1))
    assert batch(root) == []
    record = QueueReader(root, "orders").record()
    assert record is not None
    assert record.consumed == COUNT
    assert query.batch() is None
    for session in query.reader._consumer._sessions.values():
        session.close()


def test_a_stream_by_files_goes_on_by_the_server(root: Path, url: str) -> None:
    fill(root, url)
    query = Query(stream(root, maxMessagesPerTrigger=100))
    first = query.batch() or []
    again = Query(stream(root, readFrom="server", server=url), query.offset)
    rest = [row for found in again.all(ALL) for row in found]
    assert [row["seq"] for row in (*first, *rest)] == list(range(1, COUNT + 1))
    assert {row["space"] for row in rest} == {str(root)}


def test_a_moment_to_begin_at_is_found_there(root: Path, url: str) -> None:
    fill(root, url)
    (one,) = [row for row in batch(url, "orders") if row["body"] == b"one"]
    since = int(one["committed_at"].timestamp() * 1000)
    assert one["seq"] in [row["seq"] for row in batch(url, "orders", startingTimestamp=since)]
    assert batch(url, "orders", startingTimestamp=since + 3_600_000) == []


def test_what_is_damaged_is_told_and_not_given(root: Path, url: str) -> None:
    fill(root, url)
    (path,) = [path for path in root.glob("committed/queue=orders/*/*") if "+" in path.name and path.is_file()]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(xaqueue.Error, match="orders"):
        batch(url, "orders")


def test_another_space_at_the_address_gives_nothing(root: Path, tmp_path: Path) -> None:
    with serving(root) as server:
        fill(root, server.url)
        source = QueueSource({"path": server.url, "queue": "orders"})
        reader = source.reader(source.schema())
        parts = list(reader.partitions())
        socket = server.url.removeprefix("xaq+unix://")
        server.stop()
        other = tmp_path / "other"
        create(other)
        thread = ServerThread(other, Path(socket))
        try:
            with pytest.raises(SpaceError, match="another space"):
                rows(reader, parts)
        finally:
            thread.stop()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"path": "xaq://host:1", "readFrom": "files"}, "name the directory"),
        ({"path": "/data/space", "readFrom": "server"}, "give its URL"),
        ({"path": "xaq://user@host:1"}, "token_file"),
        ({"path": "/data/space", "readFrom": "disk"}, "auto, files, server"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, str], why: str) -> None:
    source = QueueSource({"queue": "orders", **options})
    with pytest.raises(InvalidArgument, match=why):
        source.reader(source.schema())


def test_options_of_a_url_are_no_part_of_its_name_and_commas_are_within_it() -> None:
    found = parse({"path": "xaqs://a:1,b:2?token_file=/t, /data/one,xaq://[::1]:3", "queue": "q"})
    assert found.paths == ("xaqs://a:1,b:2", "/data/one", "xaq://[::1]:3")
    assert found.url_of("xaqs://a:1,b:2") == "xaqs://a:1,b:2?token_file=/t"
    assert found.url_of("/data/one") == ""
