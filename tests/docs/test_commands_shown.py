"""README's blocks, and the commands that a page of the guide shows indented, are run as they stand.

Whoever adds a block or a command is told where it is to be run: here, in a scene of its page, or elsewhere by name.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

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
FASTAPI = (
    "uvicorn fastapi_service:app",
    "python fastapi_worker.py",
    "curl -s --retry 9 ",
    "xaqueue serve --space queue &",
)
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


def test_a_message_and_a_row_and_the_worker_behind(place: Path) -> None:
    """In an empty directory, one block behind the other, with nothing made before."""
    for block in (block_of("import sqlite3"), block_of("import json, sqlite3")):
        exec(block, {})
        with closing(sqlite3.connect("shop.db")) as connection:
            ((number, state),) = connection.execute("select id, state from orders")
        with xaqueue.connect("data/orders-space") as left:
            bodies = [message.body for message in left.browse("orders")]
        assert (number, state, bodies) in ((42, "new", [b'{"id": 42}']), (42, "packed", []))
    assert state == "packed"


def test_an_operator(place: Path) -> None:
    lines = lines_of(block_of("xaqueue init queue"))
    at = next(number for number, line in enumerate(lines) if line.startswith("xaqueue serve"))
    words = shlex.split(lines[at], comments=True)
    assert words == ["xaqueue", "serve", "--http", "127.0.0.1:8000", "&"]
    for line in lines[:at]:
        type_in(line)
    server = ServerThread(place / "queue", place / "queue/socket")
    try:
        printed = {line.partition("#")[0].strip(): type_in(line) for line in lines[at + 1 :]}
    finally:
        server.stop()
    assert printed["xaqueue health --wait 10"] == "ready\n"


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_in_spark(place: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first block, which has made the queue, with the session of the tests."""
    exec(block_of("import sqlite3"), {})
    block = block_of("from xaqueue.spark import session").replace('"data/', f'"{place}/data/')
    try:
        with monkeypatch.context() as patched:
            patched.setattr("xaqueue.spark.session", lambda: spark)
            exec(block, {})
        assert first_id("audit")
    finally:
        for owner in place.glob("data/**/owner"):
            end_server(owner.parent)


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
            elsewhere = line.startswith((*BY_HAND, *FASTAPI)) or (page.stem, line) in WEB
            assert page.stem in SCENES or elsewhere or (example and example[1] in examples), (
                f"{page.name}: nobody runs {line!r}: make a session (```console) of it, or give its page a scene here"
            )


WEB = ("web", "xaqueue init queue --default fifo"), ("web", "xaqueue health --wait 10 --space queue")


def test_behind_a_server_in_the_background_its_space_is_waited_for() -> None:
    """Who pastes the lines as one would open the space before it, and the server would be refused."""
    shown = [ROOT / "README.md", *GUIDE.glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    behind = re.compile(r"^(?:\$ | {4})?xaqueue serve .*&.*\n((?:.*\n){2})", re.MULTILINE)
    found = [after for path in shown for after in behind.findall(path.read_text())]
    assert len(found) == 9
    assert [after for after in found if "xaqueue health --wait 10" not in after] == []


def end_server(space: Path) -> None:
    """The one that a stream has started beside itself, and that waits for the next."""
    owner = read_owner(space)
    if owner is not None and is_owned(space) and owner.pid != os.getpid():
        os.kill(owner.pid, signal.SIGTERM)
