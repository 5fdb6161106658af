"""Queues and sessions at a glance, and the screen of top: by a server, by its directory, and by files alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import xaqueue
from support.doubtful import fails, run
from support.patience import eventually
from support.served import ServerThread
from xaqueue.cli import glance, output, top
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.location import Location, remote
from xaqueue.cli.main import app
from xaqueue.core.owner.definitions_file import write_definitions
from xaqueue.errors import AccessDenied
from xaqueue.features.counters.values import Counters
from xaqueue.features.opening import create
from xaqueue.offline.inspect import QueueStatus
from xaqueue.rpc.methods.sessions import SessionStatus
from xaqueue.xid import Xid

PATIENCE_S = 60.0
XID = Xid(7, b"held", b"b")
QUEUES = '[queues.orders]\ndescription = "from the shop"\n[queues.replies]\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create(tmp_path / "space", sync="NONE")
    write_definitions(tmp_path / "space", QUEUES)
    return tmp_path / "space"


@pytest.fixture
def server(root: Path) -> Iterator[ServerThread]:
    """Four messages of orders: one in doubt, one locked, one delayed; and somebody waits for one of replies."""
    short = Path(tempfile.mkdtemp(prefix="xaq-"))
    thread = ServerThread(root, short / "socket", sync="NONE")
    with (
        xaqueue.connect(thread.url) as doubtful,
        xaqueue.connect(thread.url) as working,
        xaqueue.connect(thread.url) as waiting,
    ):
        for _ in range(3):
            working.enqueue("orders", b"x")
        working.enqueue("orders", b"later", delay=3600)
        working.commit()
        doubtful.tpc_begin(XID)
        assert doubtful.dequeue("orders") is not None
        doubtful.tpc_prepare()
        assert working.dequeue("orders") is not None
        taking = threading.Thread(target=lambda: waiting.dequeue("replies", wait_s=PATIENCE_S))
        taking.start()
        while not any(queue["consumers"] for queue in told(thread.url)):
            pass
        try:
            yield thread
        finally:
            with xaqueue.connect(thread.url) as connection:
                connection.enqueue("replies", b"wake up")
                connection.commit()
            taking.join(PATIENCE_S)
            working.rollback()
    thread.stop()
    shutil.rmtree(short)


def told(space: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run("queues", "--json", "--space", space))
    return found


NUMBERS = ("depth", "ready", "delayed", "held", "locked", "in_doubt", "exhausted", "consumers")


def test_by_the_directory_the_server_is_asked(server: ServerThread) -> None:
    orders, replies = told(server.root)
    assert [orders, replies] == told(server.url)
    assert [orders[name] for name in NUMBERS] == [4, 1, 1, 2, 1, 1, 0, 0]
    assert [replies[name] for name in NUMBERS] == [0, 0, 0, 0, 0, 0, 0, 1]
    row = next(line.split() for line in run("queues", "--space", server.root).splitlines() if "orders" in line)
    assert row[:6] == ["orders", "4", "1", "1", "1", "1"]
    status = json.loads(run("status", "--json", "--space", server.root))
    assert (status["queues"], status["sessions"]) == ([orders, replies], 4)


def test_what_files_do_not_tell_is_a_dash(root: Path) -> None:
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
        assert connection.dequeue("orders") is not None
        heading, orders, _ = (line.split() for line in run("queues", "--space", root).splitlines())
        orders_json, _ = told(root)
    assert (orders_json["ready"], orders_json["locked"], orders_json["consumers"]) == (1, None, None)
    assert heading[:6] == ["queue", "messages", "ready", "delayed", "locked", "in"]
    assert orders[:6] == ["orders", "1", "1", "0", "-", "0"]
    assert told(root)[0]["locked"] == told(root)[0]["consumers"] == 0, "nobody has it open any more"


def test_a_server_that_does_not_answer_is_told_and_the_files_are_read(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glance, "ANSWER_S", 0.2)
    goes_on = threading.Event()
    server.server.loop.call_soon_threadsafe(lambda: goes_on.wait(PATIENCE_S) and None)
    try:
        for verb in ("queues", "status"):
            with pytest.MonkeyPatch.context() as patch:
                said: list[str] = []
                patch.setattr(glance, "complain", said.append)
                shown = run(verb, "--space", server.root)
            assert "this is what the files tell" in said[0]
            row = next(line.split() for line in shown.splitlines() if line.startswith("orders "))
            assert row[:6] == ["orders", "4", "2", "1", "-", "1"]
    finally:
        goes_on.set()


@pytest.mark.parametrize("by", ["url", "root"])
def test_sessions(server: ServerThread, by: str) -> None:
    space = ("--space", getattr(server, by))
    shown = run("sessions", *space)
    first, _, second = shown.partition("\n\n")
    heading, *rows = first.splitlines()
    assert heading.split() == ["session", "who", "from", "connected", "idle", "waits", "for", "branches"]
    assert len(rows) == 3, "the one that asks is left out"
    assert sum("replies, " in row for row in rows) == 1
    assert all(f"pid {os.getpid()}" in row for row in rows)
    assert any(line.split()[1:4] == [str(XID), "in", "doubt"] for line in second.splitlines())
    found = json.loads(run("sessions", "--json", *space))
    assert [one["asks"] for one in found] == [False, False, False, True]
    assert str(XID) in [branch["xid"] for one in found for branch in one["branches"]]


def test_sessions_of_a_space_that_nobody_serves(root: Path) -> None:
    assert "nobody serves" in fails("sessions", "--space", root, code=ExitCode.SPACE)
    with xaqueue.connect(root):
        said = fails("sessions", "--space", root, code=ExitCode.SPACE)
    assert f"process {os.getpid()} on " in said
    assert "serves it to nobody" in said


def test_nobody_else_is_connected(root: Path, tmp_path: Path) -> None:
    thread = ServerThread(root, tmp_path / "s", sync="NONE")
    assert run("sessions", "--space", root) == "nobody else is connected\n"
    thread.stop()


HEADINGS = ("queue", "ready", "locked", "watermark", "description")


@pytest.mark.parametrize(
    ("width", "kept"), [(100, HEADINGS), (46, HEADINGS), (40, HEADINGS[:4]), (30, HEADINGS[:3]), (5, HEADINGS[:3])]
)
def test_a_narrow_terminal_lacks_columns(width: int, kept: tuple[str, ...]) -> None:
    rows = [("orders", 1, 2, "12", "of the shop")]
    drawn, _ = output.grid(HEADINGS, rows, spare=("description", "watermark"), width=width)
    assert tuple(column.header for column in drawn.columns) == kept
    piped, _ = output.grid(HEADINGS, rows, spare=("description", "watermark"))
    assert len(piped.columns) == len(HEADINGS)


def test_how_many_messages_a_queue_has_is_seen_at_80_columns(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_definitions(root, "[queues.orders-of-the-shop]\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    glance.queues(space=str(root))
    headings = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()[0]
    assert re.sub(r"  +", ",", headings.strip()) == "queue,messages,ready,delayed,locked,in doubt,oldest"


# top


def screen(
    look: top.Look, before: top.Look | None = None, problem: str = "", width: int = 100, height: int = 30
) -> str:
    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(top.drawn(look, before, problem, width, height))
    return captured.get()


def test_the_screen_has_queues_and_sessions(server: ServerThread) -> None:
    looking = top.looks(Location(url=server.url))
    before, look = next(looking), next(looking)
    looking.close()
    look = look._replace(at=before.at + 2)
    lines = [line.split() for line in screen(look, before).splitlines()]
    assert lines[0][:2] == ["space", server.url]
    assert ["●", "1", "branch", "in", "doubt"] in lines
    assert ["queues:", "2"] in lines
    assert ["sessions:", "3"] in lines
    assert next(line for line in lines if line[0] == "replies")[:3] == ["replies", "0.0", "0.0"]
    assert any("replies," in line for line in lines), "who waits for it"
    other = before._replace(found=replace(before.found, owner=None))
    lines = [line.split() for line in screen(look, other).splitlines()]
    assert next(line for line in lines if line[0] == "replies")[:3] == ["replies", "-", "-"], "it counts anew"


def test_what_is_refused_is_not_asked_again(server: ServerThread) -> None:
    """Each refusal is a line in the server's log."""
    asked: list[str] = []

    class Guest:
        def call(self, method: str) -> object:
            asked.append(method)
            raise AccessDenied("no")

        def status(self) -> dict[str, object]:
            with remote(server.url) as manager:
                return manager.status()

    refused = set[str]()
    for _ in range(2):
        look = top.by_server(server.url, Guest(), refused)  # type: ignore[arg-type]
        assert (look.found.in_doubt, look.sessions) == (1, [])
    assert asked == ["sessions"]


def test_one_look_without_a_terminal(server: ServerThread) -> None:
    for space in (server.url, server.root):
        lines = [line.split() for line in run("top", "--space", space).splitlines()]
        assert next(line for line in lines if line[:1] == ["orders"])[:7] == ["orders", "-", "-", "1", "1", "1", "1"]


def test_of_a_directory_only_files_are_read(root: Path) -> None:
    assert "● unowned: nobody has the space open" in run("top", "--space", root)
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"x")
        connection.commit()
        shown = run("top", "--space", root)
    assert "● all is well" in shown
    assert next(line.split() for line in shown.splitlines() if line.startswith("orders"))[:6] == [
        *("orders", "-", "-", "1", "0", "-"),
    ]


def test_a_space_that_is_none(tmp_path: Path) -> None:
    assert "no queue space" in fails("top", "--space", tmp_path, code=ExitCode.SPACE)
    assert "no server answers" in fails("top", "--space", "xaq+unix:///nowhere/socket", code=ExitCode.SPACE)


@pytest.fixture
def plain(root: Path) -> top.Look:
    return next(top.looks(Location(str(root))))


def queue(name: str, enqueued: int = 0, dequeued: int = 0, **fields: int) -> QueueStatus:
    counters = Counters(enqueued=enqueued, dequeued=dequeued)
    return QueueStatus(name, "fifo", "", 0, 0, counters=counters, **fields)  # type: ignore[arg-type]


def test_rates_by_two_looks(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [10.0, 14.0] * 3

    def busy(seconds: float) -> None:
        assert seconds == 4
        with xaqueue.connect(server.url) as connection:
            connection.enqueue("orders", b"x")
            connection.enqueue("orders", b"x")

    monkeypatch.setattr(glance, "time", SimpleNamespace(sleep=busy, monotonic=lambda: moments.pop(0)))
    heading, orders, _ = (
        line.split() for line in run("queues", "--interval", 4, "--space", server.url).splitlines()[:3]
    )
    assert (heading[:4], orders[:4]) == (["queue", "in/s", "out/s", "messages"], ["orders", "0.5", "0.0", "6"])
    found = json.loads(run("queues", "--interval", 4, "--json", "--space", server.root))
    assert [(one["in_per_s"], one["out_per_s"]) for one in found] == [(0.5, 0.0), (0.0, 0.0)]
    monkeypatch.setattr(glance, "served_status", lambda _: None)
    found = json.loads(run("queues", "--interval", 4, "--json", "--space", server.root))
    assert [(one["in_per_s"], one["out_per_s"]) for one in found] == [(None, None)] * 2


def test_rates() -> None:
    assert glance.rates(queue("q", 30, 12), queue("q", 10, 10), 2.0) == (10.0, 1.0)
    assert glance.rates(queue("q", 30, 12), None, 2.0) is None
    assert glance.rates(queue("q", 5, 12), queue("q", 10, 10), 2.0) is None, "it was counted anew"


def test_the_busiest_come_first_and_very_many_are_cut(plain: top.Look) -> None:
    many = [queue(f"q{number}", enqueued=number) for number in range(2000)]
    before = plain._replace(found=replace(plain.found, queues=[replace(one, counters=Counters()) for one in many]))
    before = before._replace(url="xaq://x")
    look = before._replace(found=replace(plain.found, queues=many), at=plain.at + 1)
    lines = screen(look, before, height=24).splitlines()
    assert len(lines) == 24
    shown = [line.split()[:2] for line in lines if line.startswith("q") and not line.startswith("queue")]
    assert shown[0] == ["q1999", "1,999.0"]
    assert f"queues: 2,000, the first {len(shown)}" in lines


def test_the_screen_is_no_larger_than_the_terminal(server: ServerThread) -> None:
    with remote(server.url) as manager:
        look = top.by_server(server.url, manager, set())
    assert look.found.owner is not None
    sessions = [SessionStatus(f"user:{number}" * 9, "", "unix", 1, 1, 1, number=number) for number in range(99)]
    queues, fenced = [queue("x" * number) for number in range(1, 99)], replace(look.found.owner, trouble="y" * 300)
    found = replace(look.found, queues=queues, low="no room", owner=fenced)
    full = look._replace(sessions=sessions, found=found)
    assert top.findings(full)[0][1][:20] == "fenced: the owner is"
    for width, height in product((40, 60, 80, 100, 250), (8, 16, 24, 80)):
        lines = screen(full, problem="it does not answer", width=width, height=height).splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_names_are_text(plain: top.Look) -> None:
    look = plain._replace(
        found=replace(plain.found, queues=[queue("[red]q[/red]\x1b[2J")]),
        sessions=[SessionStatus("[bold]me\n\x07", "", "tls", 1, 1, 1, waits_for="[link=x]")],
    )
    shown = screen(look, problem="[blink]\x1b]0;title")
    assert "[red]q[/red]\\x1b[2J" in shown
    assert "[bold]me\\n\\x07" in shown
    assert "[link=x]" in shown
    assert "[blink]\\x1b]0;title" in shown


def test_what_is_wrong_is_told(plain: top.Look) -> None:
    assert plain.found.owner is None
    found = replace(
        plain.found, state="read-only", owned=True, low="under 1 GiB", complaint="line 3", in_doubt=2, damaged=1
    )
    found = replace(found, queues=[replace(queue("orders"), full="max_messages = 1"), replace(queue("a"), stuck="no")])
    told = top.findings(plain._replace(found=found, draining=True))
    assert [colour for colour, _ in told] == ["red"] + ["yellow"] * 7
    for (_, text), begins in zip(
        told,
        [
            "read-only: it is for reading only",
            "damaged: branches in doubt that have lost something: 1",
            "low disk: enqueues are refused: under 1 GiB",
            "draining: no new branches are taken",
            "note: queues.toml is not in force: line 3",
            "note: queue orders is full: max_messages = 1",
            "note: messages of queue a cannot be moved: no",
            "2 branches in doubt",
        ],
        strict=True,
    ):
        assert text.startswith(begins)


@pytest.mark.parametrize("served", [False, True])
def test_queues_tells_of_definitions_that_are_refused(root: Path, served: bool) -> None:
    """On stderr, for the document is of queues alone, and by the exit code; a server keeps what was in force."""
    with xaqueue.connect(root) as connection:
        connection.enqueue("orders", b"x")
    with ExitStack() as stack:
        if served:
            short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xaq-")))
            thread = ServerThread(root, short / "socket", sync="NONE")
            stack.callback(thread.stop)
            stack.enter_context(xaqueue.connect(thread.url))
        (root / "queues.toml").write_text(f"{QUEUES}max_tires = 3\n")
        places = [str(root), thread.url] if served else [str(root)]
        eventually(lambda: all(told_of([], place)[0] == ExitCode.USAGE for place in places))
        for words, place in product(([], ["--json"], ["--counters"], ["--interval", "0.1"]), places):
            code, out, err = told_of(words, place)
            assert code == ExitCode.USAGE
            assert "orders" in out
            assert err.startswith("xaqueue: queues.toml is refused, and what it says is not in force: ")
            assert "max_tires" in err
        (root / "queues.toml").write_text(QUEUES)
        eventually(lambda: all(told_of([], place)[0] == 0 for place in places))


def told_of(words: list[str], place: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["queues", *words, "--space", place])
    return done.exit_code, done.stdout, done.stderr
