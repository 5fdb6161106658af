"""What is refused in a block is never committed, wherever its end is interrupted; and a savepoint that is set by hand,
whatever its name, is one of the queue's, too."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from sqlalchemy import create_engine, text

import xaqueue
from support.interruption import interrupt
from xaqueue.contrib.sqlalchemy import participant
from xaqueue.errors import Error, ProtocolError, RolledBack

TABLE = "create table orders (id integer primary key)"
KINDS = ("sqlite3", "sqlite3 nested", "psycopg", "psycopg's block", "Engine", "Engine's block")


class RefusedError(Exception):
    """Of the work in a block."""


def refuse() -> None:
    raise RefusedError


@pytest.fixture
def space(tmp_path: Path) -> Path:
    xaqueue.connect(tmp_path / "space", create=True).close()
    return tmp_path / "space"


def url_of(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """Of a database with the table."""
    if kind == "sqlite":
        with sqlite3.connect(tmp_path / "db") as own:
            own.execute(TABLE)
        return f"sqlite:///{tmp_path}/db"
    dsn = request.getfixturevalue("dsn")
    with psycopg.connect(dsn) as server:
        server.execute(TABLE)
        info = server.info
        return f"postgresql+psycopg://{info.user}@/{info.dbname}?host={info.host}&port={info.port}"


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path, space: Path) -> Iterator[xaqueue.TransactionManager]:
    """A transaction manager over a database and a queue."""
    kind = "sqlite" if request.param.startswith("sqlite") else "postgresql"
    url = url_of(request, kind, tmp_path)
    engine = create_engine(url)
    plain = dict.fromkeys(("sqlite3", "sqlite3 nested"), lambda: sqlite3.connect(tmp_path / "db"))
    if request.param.startswith("psycopg"):
        plain[request.param] = lambda: psycopg.connect(request.getfixturevalue("dsn"))  # type: ignore[assignment,return-value]
    parties: dict[str, Any] = {"db": plain.get(request.param, participant(engine)), "queue": space}
    with xaqueue.TransactionManager(tmp_path / "log", parties) as tm:
        yield tm
    engine.dispose()


def add(tx: Any, number: int) -> None:
    statement = f"insert into orders values ({number})"
    tx["queue"].enqueue("orders", b"%d" % number)
    tx["db"].execute(statement if hasattr(tx["db"], "cursor") else text(statement))


def books(tm: Any, behind: int = 0) -> tuple[list[int], list[int]]:
    with tm.transaction() as tx:
        db = tx["db"]
        statement = f"select id from orders where id > {behind} order by id"
        rows = [row[0] for row in db.execute(statement if hasattr(db, "cursor") else text(statement))]
        return rows, sorted(n for message in tx["queue"].browse("orders") if (n := int(message.body)) > behind)


@pytest.mark.filterwarnings("ignore:.*Guard._authorize:pytest.PytestUnraisableExceptionWarning")  # sqlite3 swallows it
@pytest.mark.parametrize("pair", KINDS, indirect=True)
def test_no_interrupt_tears_a_block(request: pytest.FixtureRequest, pair: Any) -> None:
    """A row and a message are one, whatever is committed behind it by who goes on."""
    kind = request.node.callspec.params["pair"]
    for number in count(10, 10):
        tx = pair.transaction()
        with tx:
            add(tx, number)
            block: Callable[[], Any] = pair.transaction if "nested" in kind else tx.savepoint
            if "block" in kind:
                block = tx["db"].transaction if kind.startswith("psycopg") else tx["db"].begin_nested

            def refused() -> None:
                with suppress(RefusedError, sqlite3.DatabaseError), block():  # noqa: B023
                    add(tx, number + 1)  # noqa: B023
                    refuse()

            was_interrupted = interrupt((number - 10) // 10 * 2, refused)
            with suppress(Error):
                tx.commit()
        rows, messages = books(pair, number - 1)
        assert rows == messages
        assert rows in ([], [number])
        if not was_interrupted and rows:  # sqlite3 makes an error of what comes in its authorizer
            return


def test_no_interrupt_of_a_block_commits_what_it_was_to_undo(space: Path) -> None:
    with xaqueue.connect(space) as own:
        own.enqueue("taken", b"")
        own.commit()
        for at in count():

            def refused() -> None:
                with suppress(RefusedError), own.savepoint():
                    own.enqueue("q", b"")
                    own.dequeue("taken")
                    refuse()

            was_interrupted = interrupt(at, refused)
            try:
                own.commit()
            except RolledBack:
                assert not own.in_transaction
            assert (len(list(own.browse("q"))), len(list(own.browse("taken")))) == (0, 1)
            if not was_interrupted:
                return


def test_a_block_that_is_not_left_is_not_committed(space: Path) -> None:
    for two_phases in (False, True):
        with xaqueue.connect(space) as own:
            if two_phases:
                own.tpc_begin(own.xid(1, "x", ""))
            own.savepoint().__enter__()
            own.enqueue("q", b"")
            with pytest.raises(RolledBack, match="savepoint"):
                own.tpc_prepare() if two_phases else own.commit()
            own.savepoint()  # no block
            own.enqueue("q", b"")
            own.commit()
            assert len(list(own.browse("q"))) == 1 + two_phases


@pytest.mark.parametrize("pair", ["sqlite3", "psycopg"], indirect=True)
def test_no_savepoint_by_hand_is_named_as_the_next_of_all(pair: Any) -> None:
    with pair.transaction() as tx:
        add(tx, 1)
        with suppress(RefusedError), tx.savepoint():
            for number in range(2, 9):
                tx["db"].execute(f"SAVEPOINT xaqueue_{number - 1}")
                add(tx, number)
            refuse()
    assert books(pair) == ([1], [1])


STATEMENTS: dict[str, list[str | int]] = {
    "quoted": [1, 'SAVEPOINT "a"', 2, 'SAVEPOINT "A b;c"', 3, 'ROLLBACK TO SAVEPOINT "A b;c"'],
    "spaces": [1, 'SAVEPOINT "x s"', 2, 'SAVEPOINT "y s"', 3, 'ROLLBACK TO SAVEPOINT "x s"'],
    "comment behind": [1, "SAVEPOINT a /*traceparent='00-01'*/", 2, "ROLLBACK TO SAVEPOINT a /*traceparent='00-02'*/"],
    "comment before": [1, "/* c */ SAVEPOINT a", 2, "-- c\nROLLBACK TO a;"],
    "one name, the inner one is released": [1, "SAVEPOINT a", 2, "SAVEPOINT a", 3, "RELEASE a", "ROLLBACK TO a"],
    "one name, the inner one is over": [
        1,
        "SAVEPOINT a",
        2,
        "SAVEPOINT b",
        "SAVEPOINT a",
        4,
        "ROLLBACK TO b",
        "ROLLBACK TO a",
    ],
    "quoted or not": [1, "SAVEPOINT a", 2, 'ROLLBACK TRANSACTION TO SAVEPOINT "a"'],
    "twice": [1, "savepoint Aa", 2, "rollback to savepoint aA", 3, "ROLLBACK TO AA"],
    "a word of the language": [1, "SAVEPOINT work", 2, "ROLLBACK TO work", "RELEASE work"],
    "named as those of SQLAlchemy": [1, "SAVEPOINT sa_savepoint_9", 2, *["ROLLBACK TO sa_savepoint_9"] * 2],
    "two statements": [1, "SAVEPOINT a", 2, "SELECT 1; ROLLBACK TO SAVEPOINT a"],
    "a commit behind a comment": [1, "/* c */ COMMIT"],
    "no statement": [1, "select 'x; ROLLBACK TO a', case when 1 = 1 then 2 end -- SAVEPOINT b"],
}
"""Work is a number."""
NOTHING = ("named as those of SQLAlchemy", "two statements", "a commit behind a comment")


@pytest.mark.parametrize("pair", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("what", STATEMENTS)
def test_a_savepoint_by_hand_is_one_of_the_queue(pair: Any, what: str) -> None:
    with suppress(ProtocolError, RolledBack), pair.transaction() as tx:
        for step in STATEMENTS[what]:
            add(tx, step) if isinstance(step, int) else tx["db"].execute(text(step.replace(":", "\\:")))
    rows, messages = books(pair)
    assert rows == messages
    assert rows == ([] if what in NOTHING else [1, 2] if what == "quoted" else [1])


@pytest.mark.parametrize(
    ("pair", "statement"),
    [
        ("sqlite", "create trigger t after insert on orders begin select 1; select 2; end"),
        ("Engine", "do $$ begin insert into orders values (90); end; $$"),
        (
            "Engine",
            "create function f() returns text as $f$ begin return $$;$$; commit; end; $f$ language plpgsql",
        ),
        ("Engine", "select 'commit; rollback; savepoint s', 1 as \"end\" /* ; commit */"),
    ],
    indirect=["pair"],
)
def test_what_only_looks_like_an_end_is_none(pair: Any, statement: str) -> None:
    with pair.transaction() as tx:
        add(tx, 1)
        tx["db"].execute(text(statement))
    assert books(pair)[1] == [1]
