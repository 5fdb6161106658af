"""A participant is given as a function, or as what tells by itself how it is opened; all else is refused at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.served import ServerThread
from xaqueue import InvalidArgument, Participant, TransactionManager
from xaqueue.testing.memory import MemorySpace as Space


class Open:
    """A connection that can be called, as that of sqlite3."""

    def __call__(self, statement: str) -> None: ...
    def commit(self) -> None: ...


@pytest.mark.parametrize("wrap", [lambda given: given, Participant], ids=["plain", "Participant"])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sqlite3.connect(":memory:"), "is an open connection of sqlite3, .* give a function that opens one"),
        (Open, "is an open connection of .*: give a function that opens one, as lambda: sqlite3.connect"),
        (lambda: Space().connect(), "is an open connection of xaqueue"),
        (lambda: 7, "is 7: give a function"),
        (lambda: "", "is '': give a function"),
        (lambda: "postgresql://me:secret@db/shop", "xaq://.*; of a database, give a function"),
        (lambda: "xaq://host", "host:port; of a database"),
    ],
)
def test_refused_before_anything_is_opened(
    tmp_path: Path, wrap: Callable[[Any], Any], make: Callable[[], Any], says: str
) -> None:
    given = make()
    with pytest.raises(InvalidArgument, match=f"participant 'db'.*{says}") as refused:
        TransactionManager(tmp_path / "log", {"db": wrap(given)})
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "log").exists()
    if hasattr(given, "close"):
        given.close()


def check(place: Path, queue: Any) -> None:
    """A row and a message commit together."""
    with closing(sqlite3.connect(place / "db")) as db:
        db.execute("create table t (n integer)")
    with TransactionManager(place / "log", {"db": partial(sqlite3.connect, place / "db"), "queue": queue}) as tm:
        with tm.transaction() as tx:
            tx["db"].execute("insert into t values (1)")
            tx["queue"].enqueue("orders", b"1")
        assert tm.recover(30).complete


@pytest.mark.parametrize("given", [str, Path, lambda path: Participant(path, sort_key="a"), lambda p: f'datadir="{p}"'])
def test_the_path_of_a_space(tmp_path: Path, given: Callable[[Path], Any]) -> None:
    xaqueue.connect(tmp_path / "queue", create=True).close()
    check(tmp_path, given(tmp_path / "queue"))
    with xaqueue.connect(tmp_path / "queue") as connection:
        assert [message.body for message in connection.browse("orders")] == [b"1"]


def test_the_url_of_a_server(tmp_path: Path) -> None:
    xaqueue.connect(tmp_path / "queue", create=True).close()
    server = ServerThread(tmp_path / "queue", tmp_path / "socket")
    try:
        check(tmp_path, server.url)
        with xaqueue.connect(server.url) as connection:
            assert [message.body for message in connection.browse("orders")] == [b"1"]
    finally:
        server.stop()


def test_a_space_in_memory(tmp_path: Path) -> None:
    with Space() as space:
        check(tmp_path, space)
        assert len(space.messages("orders")) == 1
