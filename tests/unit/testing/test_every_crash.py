"""The power goes at every call: what users see of it, and that a wrong program is found out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue.errors import Error, InvalidArgument, ResourceFailed
from xaqueue.testing import Crashed, MemorySpace, every_crash

QUEUES = ["orders", "parcels"]


@pytest.fixture(autouse=True)
def _quiet(quiet: None) -> None:
    """A space without power says so."""


def put(space: MemorySpace, queue: str, body: bytes) -> None:
    with space.connect() as connection:
        connection.enqueue(queue, body)


def counts(space: MemorySpace) -> tuple[int, int]:
    return len(space.messages("orders")), len(space.messages("parcels"))


def move(space: MemorySpace) -> None:
    """As it should be."""
    with space.connect() as connection:
        message = connection.dequeue("orders")
        assert message is not None
        connection.enqueue("parcels", message.body)


def take_first(space: MemorySpace) -> None:
    """Loses the message where the power goes in between."""
    with space.connect() as connection:
        message = connection.dequeue("orders")
        assert message is not None
        connection.commit()
        connection.enqueue("parcels", message.body)


def add_first(space: MemorySpace) -> None:
    """Has it twice."""
    with space.connect() as connection:
        connection.enqueue("parcels", b"1")
        connection.commit()
        connection.dequeue("orders")


def left_by(story: Callable[[MemorySpace], None], sync: str) -> set[tuple[int, int]]:
    found = set()
    for crash in every_crash(QUEUES, sync=sync):
        put(crash.space, "orders", b"1")
        with crash:
            story(crash.space)
        found.add(counts(crash.space))
        if crash.is_finished:
            assert counts(crash.space) == (0, 1)
    return found


@pytest.mark.parametrize("sync", ["JOURNAL", "FDATASYNC;DSYNC"])
@pytest.mark.parametrize(
    ("story", "left"),
    [(move, {(1, 0), (0, 1)}), (take_first, {(1, 0), (0, 0), (0, 1)}), (add_first, {(1, 0), (1, 1), (0, 1)})],
)
def test_what_is_left_at_some_moment(
    story: Callable[[MemorySpace], None], left: set[tuple[int, int]], sync: str
) -> None:
    assert left_by(story, sync) == left


def test_without_syncs_there_may_be_nothing() -> None:
    for crash in every_crash(QUEUES, sync="NONE"):
        put(crash.space, "orders", b"1")
        with crash:
            pass
        assert counts(crash.space)[0] == {"nothing": 0, "everything": 1}.get(crash.kept, counts(crash.space)[0])


def test_branches_in_doubt_are_among_it() -> None:
    found = set()
    for crash in every_crash(QUEUES):
        with crash, crash.space.connect() as connection:
            connection.tpc_begin(connection.xid(1, "g", "b"))
            connection.enqueue("orders", b"1")
            connection.tpc_prepare()
            connection.tpc_commit()
        with crash.space.connect() as connection:
            found.add((len(connection.tpc_recover()), len(crash.space.messages("orders"))))
    assert found == {(0, 0), (1, 0), (0, 1)}


def test_a_row_and_a_message_are_both_there_or_neither(tmp_path: Path) -> None:
    """The decision log and the database go on, as those of another machine would."""
    found = set()
    for crash in every_crash(QUEUES):
        home = tmp_path / f"{crash.call}-{crash.kept}"
        home.mkdir()
        rows = partial(sqlite3.connect, home / "rows")
        participants: dict[str, Callable[[], Any]] = {"db": rows, "queue": crash.space.connect}
        with closing(rows()) as database:
            database.execute("create table orders (id)")
            with crash, xaqueue.TransactionManager(home / "log", participants) as manager, manager.transaction() as tx:
                tx["db"].execute("insert into orders values (1)")
                tx["queue"].enqueue("orders", b"1")
            with xaqueue.TransactionManager(home / "log", participants) as manager:
                assert manager.recover(timeout_s=60.0).complete
            found.add((len(database.execute("select * from orders").fetchall()), counts(crash.space)[0]))
    assert found == {(0, 0), (1, 1)}


def test_no_except_absorbs_it() -> None:
    with MemorySpace(QUEUES) as space:
        connection = space.connect()
        put(space, "orders", b"1")
        space.crash_after(0)
        with pytest.raises(Crashed), suppress(Exception):
            connection.dequeue("orders")
        with pytest.raises(ResourceFailed):
            connection.dequeue("orders")
        with pytest.raises(ResourceFailed, match=r"reopen\(\)"):
            space.connect()
        assert space.is_crashed
        connection.close()
        assert counts(space.reopen()) == (1, 0)
        assert not space.is_crashed


def test_a_worker_dies_with_it() -> None:
    for crash in every_crash(QUEUES):
        put(crash.space, "orders", b"1")
        with (
            crash,
            xaqueue.Worker(
                crash.space, "orders", lambda message, tx: tx.enqueue("parcels", message.body), until_empty=True
            ) as worker,
        ):
            worker.join()
        assert sum(counts(crash.space)) == 1


def test_errors_of_a_program_that_lives_are_its_own() -> None:
    crashes = every_crash(QUEUES)
    with pytest.raises(ZeroDivisionError), next(crashes):
        raise ZeroDivisionError
    for crash in every_crash(QUEUES):
        with crash:
            try:
                put(crash.space, "orders", b"1")
            except Crashed:
                raise Error("what it makes of it") from None


def test_a_loop_without_a_block_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="with crash:"):
        list(every_crash(QUEUES))


@pytest.mark.parametrize("calls", [-1, 1.5, True, "1"])
def test_calls_are_a_number(calls: int) -> None:
    with MemorySpace(QUEUES) as space, pytest.raises(InvalidArgument, match="from 0"):
        space.crash_after(calls)


def test_what_is_kept_is_one_of_three() -> None:
    with MemorySpace(QUEUES) as space, pytest.raises(InvalidArgument, match="nothing, part, everything"):
        space.reopen("all")  # type: ignore[arg-type]
