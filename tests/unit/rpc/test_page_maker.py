"""The process that reads pages for a server: it may die, answers one after the other, and makes way for commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from support.spark_space import FabricatedSpace
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.offline.reader import QueueReader
from xaqueue.rpc.server import page_maker
from xaqueue.rpc.server.page_maker import PageMaker, Pages
from xaqueue.rpc.wire import Packed


class Commits:
    made = 0

    def __call__(self) -> int:
        return self.made


@pytest.fixture
def space(tmp_path: Path) -> FabricatedSpace:
    made = FabricatedSpace(tmp_path / "space")
    made.fill("orders", range(1, 11))
    return made


@pytest.fixture
def commits() -> Commits:
    return Commits()


@pytest.fixture
def pages(space: FabricatedSpace, commits: Commits) -> Iterator[PageMaker]:
    made = PageMaker(space.root, THREADS, commits)
    yield made
    made.stop()


def numbers(pages: PageMaker) -> list[int]:
    _, files = msgpack.unpackb(pages.ask("span", "orders", 0, 10))
    return [file[0] for file in files]


def test_it_is_started_anew_where_it_was_killed(pages: PageMaker) -> None:
    assert numbers(pages) == list(range(1, 11))
    first = pages._process
    assert first is not None
    first.kill()
    first.wait()
    assert numbers(pages) == list(range(1, 11))
    assert pages._process is not first


def test_where_it_does_not_start_the_client_is_told_to_ask_again(
    pages: PageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/true")
    with pytest.raises(RetryLater, match="ask again"):
        numbers(pages)
    monkeypatch.undo()
    assert numbers(pages) == list(range(1, 11))


def test_what_it_fails_with_is_the_clients_and_it_goes_on(pages: PageMaker, space: FabricatedSpace) -> None:
    stream = space.root / "streams" / "queue=orders"
    stream.parent.mkdir(exist_ok=True)
    stream.write_bytes(b"no record")
    with pytest.raises(DamagedBlock, match="xaqueue release orders"):
        pages.ask("positions", ["orders"])
    process = pages._process
    stream.unlink()
    assert numbers(pages) == list(range(1, 11))
    assert pages._process is process


def test_many_ask_and_each_has_its_own_answer(pages: PageMaker) -> None:
    found: dict[int, list[int]] = {}

    def ask(upto: int) -> None:
        _, files = msgpack.unpackb(pages.ask("span", "orders", 0, upto))
        found[upto] = [file[0] for file in files]

    threads = [threading.Thread(target=ask, args=(upto,)) for upto in range(1, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {upto: list(range(1, upto + 1)) for upto in range(1, 11)}


def test_the_next_page_waits_where_others_commit(
    pages: PageMaker, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_maker, "BESIDE_COMMITS", len(pages.ask("span", "orders", 0, 10)) * 5)
    exchange = pages._exchange

    def beside_a_commit(request: bytes) -> Packed:
        commits.made = 1
        return exchange(request)

    monkeypatch.setattr(pages, "_exchange", beside_a_commit)
    begun = time.monotonic()
    numbers(pages)
    assert pages._rests_until_s > begun
    numbers(pages)
    assert time.monotonic() - begun >= 0.2
    assert pages._rests_until_s < time.monotonic(), "nobody has committed meanwhile"


def test_pages_of_a_span_list_a_directory_once(space: FabricatedSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_maker, "PAGE", 3)
    names, listed = QueueReader.names, []

    def counted(reader: QueueReader, after: int, upto: int) -> Any:
        listed.append(after)
        return names(reader, after, upto)

    monkeypatch.setattr(QueueReader, "names", counted)
    pages = Pages(str(space.root))

    def page(after: int, upto: int) -> list[int]:
        last, found = pages.span("orders", after, upto)
        assert last == (found[-1][0] if len(found) == 3 else upto)
        return [one[0] for one in found]

    assert [page(0, 10), page(3, 10), page(6, 10), page(9, 10)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]
    assert listed == [0]
    assert (page(0, 10), page(0, 10), page(3, 10)) == ([1, 2, 3], [1, 2, 3], [4, 5, 6]), "an answer was lost"
    assert page(0, 13) == [1, 2, 3]
    space.fill("orders", range(11, 14))
    assert [page(3, 13), page(6, 13), page(9, 13), page(12, 13)] == [[4, 5, 6], [7, 8, 9], [10, 11, 12], [13]]


def test_it_ends_with_the_server(pages: PageMaker) -> None:
    numbers(pages)
    process = pages._process
    assert process is not None
    pages.stop()
    assert process.returncode is not None
