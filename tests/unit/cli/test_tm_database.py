"""Commands on transaction managers without a directory: what is printed, refused and finished, over SQLite."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import xaqueue
from support.doubtful import fails, listed, run
from xaqueue.cli import exit_codes, output
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.errors import DecisionLogError
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.node import DatabaseNode
from xaqueue.tm.node_schema import statements
from xaqueue.tm.node_tables import NodeTables

MINUTES_US = 660 * 1_000_000
QUEUES = "[queues.q]\n"


class Killed(BaseException):
    """What comes instead of the end of a process."""


class Shop:
    """A database and a space, and what a process has left that died at a step of its transaction."""

    def __init__(self, place: Path) -> None:
        self.path, self.space = place / "shop.db", place / "space"
        self.dsn = f"sqlite:///{self.path}"
        xaqueue.connect(self.space, create=True).close()
        (self.space / "queues.toml").write_text(QUEUES)
        self.execute("create table orders (n int)")
        self.node = ""

    def execute(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as own, own:
            return own.execute(statement).fetchall()

    def die_at(self, step: str) -> None:
        def die(at: str, *_: object) -> None:
            if at == step:
                raise Killed

        manager = xaqueue.TransactionManager(
            {"db": lambda: sqlite3.connect(self.path), "queue": str(self.space)}, on_step=die
        )
        tx = manager.transaction()
        tx["queue"].enqueue("q", b"1")
        tx["db"].execute("insert into orders values (1)")
        self.node = manager.node
        node = manager._log
        assert isinstance(node, DatabaseNode)
        node._closed.set()
        for recovery in manager._recoveries.values():
            recovery.stop(5)
        with suppress(Killed):
            tx.commit()
        for branch in tx.branches.values():
            branch.discard()
        manager.close()

    def be_silent(self) -> None:
        self.execute(f"update xaqueue_signs set at = at - {MINUTES_US}")

    def status(self, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("tm", "status", self.dsn, "--json", code=code))
        return found

    @property
    def messages(self) -> int:
        with xaqueue.connect(self.space) as connection:
            return len(list(connection.browse("q")))

    @property
    def in_doubt(self) -> int:
        with xaqueue.connect(self.space) as connection:
            return len(connection.tpc_recover())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize(("step", "comes"), [("prepared", 0), ("commit-last", 0), ("committed-last", 1), ("commit", 1)])
def test_what_a_dead_node_has_left_is_finished(shop: Shop, step: str, comes: int) -> None:
    shop.die_at(step)
    before = shop.status()
    assert [(one["node"], one["is_silent"], one["ended_us"]) for one in before["nodes"]] == [(shop.node, False, 0)]
    assert [one["node"] for one in before["decisions"]] == [shop.node] * comes
    early = run("tm", "recover", shop.dsn, shop.space)
    assert "0 transactions left" in early, "it may live, and what is decided may be carried out by anybody"
    assert shop.in_doubt == 1 - comes
    assert ("its node is not ended" in early) != bool(comes)
    shop.be_silent()
    found = shop.status()
    assert (found["nodes"][0]["is_silent"], found["sessions"]) == (True, [])
    assert "nobody else writes" in found["notes"][0]
    told = run("tm", "recover", shop.dsn, shop.space)
    assert f"node {shop.node}: ended, it gave no sign for 10 minutes" in told
    assert f"{shop.space}: 0 committed, {1 - comes} rolled back" in told
    assert "0 transactions left" in told
    assert (shop.messages, shop.in_doubt) == (len(shop.execute("select 1 from orders")), 0) == (comes, 0)
    after = shop.status()
    assert ([one["ended_us"] > 0 for one in after["nodes"]], after["decisions"]) == ([True], [])
    assert shop.execute("select count(*) from xaqueue_nodes") == [(0,)], "it was no node itself"
    assert shop.execute("select count(*) from xaqueue_signs") == [(1,)]


def says(shop: Shop, *managers: object) -> str:
    asked = [word for one in managers for word in ("--ask", one)]
    found = json.loads(run("indoubt", "list", *asked, "--json", "--space", shop.space))
    said: str = "".join({branch["says"] for branch in found})
    assert said in run("indoubt", "list", *asked, "--space", shop.space)
    return said


def advised(shop: Shop, code: int = 0) -> dict[str, Any]:
    """By a configuration, as by the DSN, which names no queue."""
    place = f'decides = "db"\n[participants.db]\nkind = "sqlite"\npath = "{shop.path}"\n'
    config = shop.path.with_name("service.toml")
    config.write_text(f'{place}[participants.queue]\nkind = "xaqueue"\nspace = "{shop.space}"\n')
    words = ("indoubt", "advise", gtrid_of(shop), "--json")
    found: dict[str, Any] = json.loads(run(*words, "--tm", config, code=code))
    assert json.loads(run(*words, "--tm", shop.dsn, "--space", shop.space, code=code))["log"] == found["log"]
    return found


def test_a_branch_is_told_of_whose_node_is_gone(shop: Shop, tmp_path: Path) -> None:
    """XAT-30."""
    other = Shop(tmp_path / "other")
    other.die_at("prepared")
    shop.die_at("prepared")
    assert "it may be about to decide" in says(shop, other.dsn, shop.dsn)
    assert advised(shop, ExitCode.NOTHING)["log"]["says"] == "live"
    shop.be_silent()
    assert "its node is silent" in says(shop, shop.dsn)
    assert "`xaqueue tm recover`" in advised(shop, ExitCode.NOTHING)["why"]
    with closing(sqlite3.connect(shop.path)) as connection:
        tables = NodeTables.find(connection)
        assert tables is not None
        tables.end(connection, shop.node)
    assert "presumed rollback" in says(shop, shop.dsn)
    assert (advised(shop)["answer"], advised(shop)["in_doubt"]) == ("rollback", ["queue"])
    assert says(shop, other.dsn) == "none of those that were named has begun it"
    shop.execute("delete from xaqueue_ended")
    assert "does not know of it" in says(shop, shop.dsn)
    assert advised(shop, ExitCode.NOTHING)["log"]["says"] == "lost"
    shop.path.rename(tmp_path / "away.db")
    config = shop.path.with_name("service.toml")
    told = json.loads(run("indoubt", "advise", gtrid_of(shop), "--tm", config, "--json", code=ExitCode.NOTHING))
    assert (told["log"]["says"], told["in_doubt"]) == ("unread", ["queue"])
    told = fails("indoubt", "list", "--ask", tmp_path / "none", "--space", shop.space, code=ExitCode.USAGE)
    assert "cannot be read" in told


def test_a_branch_is_told_of_whose_decision_stands(shop: Shop) -> None:
    shop.die_at("committed-last")
    assert says(shop, shop.dsn).startswith("commit is decided; ")
    told = advised(shop)
    assert (told["answer"], told["in_doubt"], told["log"]["says"]) == ("commit", ["queue"], "commit")


def test_a_branch_is_told_of_whose_log_nobody_has_open(shop: Shop, tmp_path: Path) -> None:
    log = tmp_path / "log"
    manager = xaqueue.TransactionManager(log, {"queue": str(shop.space)})
    with xaqueue.connect(shop.space) as connection:
        connection.tpc_begin(connection.xid(FORMAT_ID, str(Gtrid(manager.node, 1, 5)), "queue"))
        connection.enqueue("q", b"1")
        connection.tpc_prepare()
    assert "it may be about to decide" in says(shop, log)
    (log / "participants.toml").write_text(f'[participants.queue]\nkind = "xaqueue"\nspace = "{shop.space}"\n')
    copy = shutil.copytree(log, tmp_path / "copy")
    assert "this is a copy of the log" in says(shop, copy)
    manager.close()
    assert "presumed rollback; " in says(shop, log)
    assert says(shop, log).endswith(", not in use")
    assert "presumed" not in says(shop, copy)
    for command in (
        ["tm", "recover", copy],
        ["tm", "release", copy, "a" * 32, "--yes"],
    ):
        fails(*command, code=ExitCode.ERROR)
    assert "`xaqueue tm recover --moved" in fails("tm", "recover", copy, code=ExitCode.ERROR)
    with pytest.raises(DecisionLogError, match="`xaqueue tm recover --moved"):
        xaqueue.TransactionManager(copy, {"queue": str(shop.space)})
    assert says(shop, log).startswith("no decision"), "its branch is there"
    owner = json.loads((copy / "owner").read_text())
    (copy / "owner").write_text(json.dumps({key: owner[key] for key in ("node", "epoch", "pid", "host", "since")}))
    assert says(shop, copy).endswith("so ask where it belongs if this is a copy"), "an earlier version's"
    (copy / "owner").write_text(json.dumps(owner))
    assert "0 transactions left" in run("tm", "recover", "--moved", copy)
    assert "0 transactions left" in run("tm", "recover", copy), "it is where it was opened last"
    other = shutil.copytree(log, tmp_path / "other", ignore=shutil.ignore_patterns("participants.toml"))
    assert "other belongs here now" in run("tm", "recover", "--moved", other), "of its participants it knows nothing"
    xaqueue.TransactionManager(other, {"queue": str(shop.space)}).close()


def test_a_decision_waits_for_a_queue_that_is_not_named(shop: Shop, tmp_path: Path) -> None:
    shop.die_at("committed-last")
    shop.be_silent()
    xaqueue.connect(tmp_path / "other", create=True).close()
    told = run("tm", "recover", shop.dsn, tmp_path / "other", code=ExitCode.NOTHING)
    with xaqueue.connect(shop.space) as connection:
        waits = f"decided, and waits for queue (space {connection.space_id})"
    assert waits in told
    assert "1 transaction left" in told
    shop.execute(f"update xaqueue_ended set at = at - {MINUTES_US}")
    shown = run("tm", "status", shop.dsn)
    assert "decisions  1 waits, one of them for 11 min at least" in shown
    assert "`xaqueue tm recover DSN QUEUE...` finishes" in shown
    (tmp_path / "both.toml").write_text('[participants.queue]\nkind = "xaqueue"\nspace = "space"\n')
    assert "0 transactions left" in run("tm", "recover", shop.dsn, tmp_path / "both.toml")
    assert shop.messages == 1


@pytest.mark.parametrize("named", ["dsn", "configuration"])
def test_a_queue_s_directory_may_have_the_name_of_a_participant(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    shop.die_at("committed-last")
    shop.be_silent()
    shop.space.rename(tmp_path / "db")
    shop.space = tmp_path / "db"
    config = tmp_path / "tm.toml"
    config.write_text(f'decides = "db"\n[participants.db]\nkind = "sqlite"\npath = "{shop.path}"\n')
    monkeypatch.chdir(tmp_path)
    assert "0 transactions left" in run("tm", "recover", shop.dsn if named == "dsn" else config, "db")
    assert shop.messages == 1


def test_a_queue_that_is_not_reached(shop: Shop, tmp_path: Path) -> None:
    shop.die_at("committed-last")
    told = run("tm", "recover", shop.dsn, shop.space, tmp_path / "none", code=ExitCode.NOTHING)
    assert f"{tmp_path / 'none'}: SpaceError: " in told
    assert f"{shop.space}: 1 committed" in told


def test_a_branch_whose_node_is_not_known_is_left(shop: Shop) -> None:
    shop.die_at("prepared")
    shop.execute("delete from xaqueue_nodes")
    shop.execute("delete from xaqueue_signs")
    told = run("tm", "recover", shop.dsn, shop.space, code=ExitCode.NOTHING)
    assert "is left: the database that decides does not know of it" in told
    assert "xaqueue indoubt list --space" in told
    assert shop.in_doubt == 1


def test_nothing_is_done_in_a_copy(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.die_at("prepared")
    shop.be_silent()
    place = ["1/2"]
    for room in ("node_schema", "node_tables"):
        monkeypatch.setattr(f"xaqueue.tm.{room}.place_of", lambda *_: place[0])
    run("tm", "claim", shop.dsn, "--yes")
    place[0] = "1/3"
    assert "it is a copy" in fails("tm", "recover", shop.dsn, shop.space, code=ExitCode.ERROR)
    assert "it is a copy" in fails(
        "tm", "recover", shop.dsn, shop.space, "--end-node", shop.node, "--yes", code=ExitCode.ERROR
    )
    assert "another one, or a copy" in says(shop, shop.dsn), "nothing is presumed"
    assert "it is a copy" in shop.status(code=ExitCode.NOTHING)["trouble"]
    assert "trouble " in run("tm", "status", shop.dsn, code=ExitCode.NOTHING)
    assert shop.status(code=ExitCode.NOTHING)["nodes"][0]["is_silent"]
    before = shop.status(code=ExitCode.NOTHING)["database"]
    assert "--yes" in fails("tm", "claim", shop.dsn, code=ExitCode.NOTHING)
    assert f"database {before}: claimed" in run("tm", "claim", shop.dsn, "--yes")
    assert shop.status()["database"] == before
    assert "1 rolled back" in run("tm", "recover", shop.dsn, shop.space)


def noted(shop: Shop) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shop.status()["heuristics"]
    return found


def test_what_a_queue_did_by_itself_is_kept_until_it_is_forgotten(shop: Shop) -> None:
    shop.die_at("committed-last")
    (branch,) = listed("--space", shop.space)
    run("indoubt", "rollback", branch["xid"], "--space", shop.space, "--reason", "a test")
    shop.be_silent()
    for _ in range(2):
        told = run("tm", "recover", shop.dsn, shop.space, code=ExitCode.NOTHING)
    assert "was rolled back by itself: decided there by itself" in told
    assert "`xaqueue tm forget` once it is set right" in told
    (one,) = noted(shop)
    gtrid = branch["coordinator"]["gtrid"]
    assert (one["gtrid"], one["participant"], one["decision"], one["party"]) == (
        *(gtrid, "queue", "committed", "rolled back by itself"),
    )
    shown = run("tm", "status", shop.dsn)
    assert "heuristic  1" in shown
    assert "rolled back by itself" in shown
    assert "has no heuristics" in fails("tm", "forget", shop.dsn, f"{gtrid[:-1]}f", code=ExitCode.ERROR)
    assert "only the beginning" in fails("tm", "forget", shop.dsn, gtrid[:-1], code=ExitCode.USAGE)
    assert "queue was not told" in run("tm", "forget", shop.dsn, gtrid)
    assert noted(shop) == []
    run("tm", "recover", shop.dsn, shop.space, code=ExitCode.NOTHING)
    assert noted(shop) == [one | {"when": noted(shop)[0]["when"]}], "the queue goes on to tell of it"
    assert "are forgotten" in run("tm", "forget", shop.dsn, gtrid, shop.space)
    assert listed("--space", shop.space) == []
    run("tm", "recover", shop.dsn, shop.space)
    assert noted(shop) == []
    assert shop.status()["decisions"] == []


def test_tables_of_an_earlier_version_get_what_they_lack(shop: Shop) -> None:
    shop.die_at("committed-last")
    shop.execute("drop table xaqueue_heuristics")
    assert noted(shop) == [], "who looks makes nothing"
    run("indoubt", "rollback", listed("--space", shop.space)[0]["xid"], "--space", shop.space, "--reason", "a test")
    run("tm", "recover", shop.dsn, shop.space)
    assert len(noted(shop)) == 1, "of a node that lives"


def gtrid_of(shop: Shop) -> str:
    (branch,) = listed("--space", shop.space)
    found: str = branch["coordinator"]["gtrid"]
    return found


def end(shop: Shop) -> list[str]:
    return ["tm", "recover", shop.dsn, str(shop.space), "--end-node", shop.node]


@pytest.mark.parametrize("step", ["prepared", "committed-last"])
def test_a_node_that_is_named_is_ended_at_once(shop: Shop, step: str) -> None:
    shop.die_at(step)
    commits = step == "committed-last"
    told = run(*end(shop))
    assert f"node {shop.node}: ended" in told
    assert ("1 committed" if commits else "1 rolled back") in told
    assert (shop.messages, shop.in_doubt) == (commits, 0)
    assert len(shop.execute("select 1 from orders")) == commits
    assert "is none that may decide here" in fails(*end(shop), code=ExitCode.USAGE)


def test_a_person_is_asked_before_a_node_is_ended(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (output, exit_codes):
        monkeypatch.setattr(room, "may_ask", lambda: True)
    shop.die_at("prepared")
    refused = CliRunner().invoke(app, end(shop), input="n\n")
    assert f"node {shop.node} gave its last sign of life" in refused.output
    assert "and with it all that it has not decided? [y/N]" in refused.output
    assert (refused.exit_code, shop.in_doubt) == (ExitCode.NOTHING, 1)
    assert CliRunner().invoke(app, end(shop), input="y\n").exit_code == 0
    assert shop.in_doubt == 0


@pytest.mark.parametrize("way", ["new id", "older copy"])
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_what_the_database_does_not_know_is_decided_by_hand(shop: Shop, way: str, verb: str) -> None:
    """And left by whoever recovers, also once its node is ended."""
    shop.die_at("prepared")
    if way == "new id":
        shop.be_silent()
        run("tm", "claim", "--new-id", shop.dsn, "--yes")
        told = run("tm", "recover", shop.dsn, shop.space)
    else:
        shop.execute("update xaqueue_signs set n = 0")
        told = run(*end(shop), code=ExitCode.NOTHING)
        assert "does not know of it" in told
        assert "then `commit` or `rollback`" in told
    assert shop.in_doubt == 1
    (branch,) = listed("--space", shop.space)
    decide = ("indoubt", verb, branch["xid"], "--space", shop.space)
    assert "--reason TEXT" in fails(*decide, code=ExitCode.USAGE)
    assert "recorded as a decision by" in run(*decide, "--reason", "a test")
    assert shop.messages == (verb == "commit")
    assert listed("--space", shop.space)[0]["decision"]["reason"] == "a test"


def test_a_new_id_leaves_what_the_other_one_has(shop: Shop) -> None:
    shop.die_at("prepared")
    before = shop.status()["database"]
    assert f"node {shop.node} gave a sign of life" in fails(
        "tm", "claim", "--new-id", shop.dsn, "--yes", code=ExitCode.ERROR
    )
    shop.be_silent()
    assert "--yes" in fails("tm", "claim", "--new-id", shop.dsn, code=ExitCode.NOTHING)
    assert shop.status()["database"] == before
    assert f", which was {before}" in run("tm", "claim", "--new-id", shop.dsn, "--yes")
    assert shop.status()["database"] != before
    run("tm", "recover", shop.dsn, shop.space)
    assert shop.in_doubt == 1


def test_looking_makes_no_tables_and_no_files(tmp_path: Path) -> None:
    path = tmp_path / "a shop.db"
    with closing(sqlite3.connect(path)) as own:
        own.execute("pragma journal_mode = wal")
        own.execute("create table orders (n int)")
    for words in (["status"], ["claim", "--yes"], ["recover"]):
        queues = [str(tmp_path)] * (words == ["recover"])
        dsn = f"sqlite:///{tmp_path}/a%20shop.db"
        assert "there are no tables of nodes" in fails("tm", *words, dsn, *queues, code=ExitCode.ERROR)
    with closing(sqlite3.connect(path)) as own:
        run_script(own, run("tm", "sql", "sqlite"))
        assert NodeTables.find(own) is not None
    before = sorted(tmp_path.iterdir())
    assert "nodes      0 alive, 0 silent, 0 ended" in run("tm", "status", f"sqlite:///{path}")
    assert sorted(tmp_path.iterdir()) == before


def run_script(own: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";\n"):
        own.execute(statement)
    own.commit()


def test_the_tables_of_each_database() -> None:
    for dialect in (Dialect.POSTGRESQL, Dialect.MYSQL, Dialect.SQLITE):
        printed = run("tm", "sql", dialect.value)
        assert all(f"{statement};\n" in printed for statement in statements(dialect))
        assert printed.count("\n-- GRANT ") == (0 if dialect is Dialect.SQLITE else 6)
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON xaqueue_nodes TO app;\n" in run("tm", "sql", "--role", "app")
    assert "none of PostgreSQL" in fails("tm", "sql", "other", code=ExitCode.USAGE)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("status", "oracle://shop"), "oracle:// is no database"),
        (("status", "sqlite://shop.db"), "named sqlite:///PATH"),
        (("status", "sqlite:///"), "named sqlite:///PATH"),
        (("status", "mysql://:secret@127.0.0.1:1/shop?nothing=1"), "the DSN is refused"),
        (("status", "mysql://127.0.0.1:port/shop"), "the DSN is refused"),
        (("claim", "shop"), "shop cannot be read"),
        (("recover", "sqlite:///shop.db"), "the queues are not known"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], why: str) -> None:
    said = fails("tm", *words, code=ExitCode.USAGE)
    assert why in said
    assert "secret" not in said


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    assert "has a log" in fails("tm", "claim", tmp_path, code=ExitCode.USAGE)
    for words in (["recover", tmp_path], ["forget", tmp_path, "XAQ1"]):
        assert "queues are named behind a DSN" in fails("tm", *words, "space", code=ExitCode.USAGE)


def test_a_database_that_is_not_reached(tmp_path: Path) -> None:
    for dsn in ("postgresql://127.0.0.1:1/shop", "mariadb://127.0.0.1:1/shop", f"sqlite:///{tmp_path}/none.db"):
        assert "the database: " in fails("tm", "status", dsn, code=ExitCode.ERROR)


@pytest.mark.parametrize(("scheme", "package"), [("postgresql", "psycopg"), ("mariadb", "pymysql")])
def test_a_driver_that_is_missing(scheme: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install" in fails("tm", "status", f"{scheme}://shop", code=ExitCode.USAGE)


def test_help() -> None:
    assert {"claim", "forget", "recover", "release", "sql", "status"} <= set(run("tm", "--help").split())
    assert "DSN" in run("tm", "recover", "--help")


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (("tm", "resolve", "x"), "Did you mean 'recover'?"),
        (("tm", "new-id", "x"), "Did you mean 'claim --new-id'?"),
        (("indoubt", "list", "--tm", "x"), "See `xaqueue tm`"),
    ],
)
def test_another_name_leads_to_the_verb(words: tuple[str, ...], way: str) -> None:
    assert way in fails(*words, code=ExitCode.USAGE)
