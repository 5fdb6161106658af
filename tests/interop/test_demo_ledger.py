"""The ledger by itself: its books find every disagreement, its parties are started again, and a small run agrees."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")

import xaqueue
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.tools.demo import ledger, postgres
from xaqueue.tools.demo.ledger import Books, QueueServer, ServiceLog
from xaqueue.tools.demo.stage import Deadline, Program

SAID = ServiceLog(taken=Counter("123"), sent=Counter("3"), refused=Counter("4"))
BOOKS = Books(Counter(["1", "2"]), Counter(["3"]), Counter(["1", "2"]), 0, 0, 0)


def wrong(said: ServiceLog, books: Books) -> list[str]:
    return [claim.text for claim in books.check(said) if not claim.holds]


def test_books_that_agree_are_agreed_to() -> None:
    assert wrong(SAID, BOOKS) == []


@pytest.mark.parametrize(
    ("books", "claim"),
    [
        (replace(BOOKS, messages=Counter(["1"])), "2 rows wait and 1 messages do: the same orders"),
        (replace(BOOKS, messages=Counter(["1", "2", "2"])), "2 rows wait and 3 messages do: the same orders"),
        (replace(BOOKS, messages=Counter(["1", "5"])), "2 rows wait and 2 messages do: the same orders"),
        (replace(BOOKS, prepared=1), "PostgreSQL has 1 prepared transactions"),
        (replace(BOOKS, branches=1), "the queue has 1 branches in doubt"),
        (replace(BOOKS, unfinished=1), "the decision log has 1 transactions open"),
    ],
)
def test_a_disagreement_is_found(books: Books, claim: str) -> None:
    assert wrong(SAID, books) == [claim]


@pytest.mark.parametrize(
    ("said", "claim"),
    [
        ("taken 9", "4 orders were confirmed, and each is there"),
        ("refused 1", "2 orders were refused, and none is there"),
        ("sent 1", "1 orders were sent, each once"),
        ("sent 3", "1 orders were sent, each once"),
        ("unknown 9", "nobody was left without an answer (1)"),
    ],
)
def test_what_was_said_and_is_not_so_is_found(said: str, claim: str) -> None:
    heard = ServiceLog(Counter(SAID.taken), Counter(SAID.sent), Counter(SAID.refused))
    heard.hear([said.split()])
    assert wrong(heard, BOOKS) == [claim]


def test_only_what_is_about_orders_is_heard() -> None:
    heard = ServiceLog()
    heard.hear([["ready", "01"], ["refused", "-"], ["hear", "x"], ["a", "line", "more"], ["taken", "1"]])
    assert heard == ServiceLog(taken=Counter("1"))


# The parties


def test_what_a_program_says_is_read_line_by_line(tmp_path: Path) -> None:
    output = tmp_path / "program.out"
    output.write_text("taken before\n")
    script = "import time; print('ready 1', flush=True); print('taken', end='', flush=True); time.sleep(60)"
    with Program([sys.executable, "-c", script], output) as program:
        program.wait_for("ready")
        assert program.lines() == [["ready", "1"]]
        assert program.ended() is None
    assert program.ended() == -signal.SIGTERM


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        Program([sys.executable, "-c", "raise SystemExit('no room')"], tmp_path / "program.out") as program,
        pytest.raises(OperationalError, match="program ended with code 1:\nno room"),
    ):
        program.wait_for("ready")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QueueServer]:
    xaqueue.connect(tmp_path / "space", create=True).close()
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as short:
        started = QueueServer(tmp_path / "space", Path(short) / "socket", tmp_path / "server.out")
        yield started
        started.stop()


def test_a_killed_queue_server_is_started_again(server: QueueServer) -> None:
    before = server.pid
    assert not server.revive()
    server.kill()
    deadline = Deadline("it is not started again")
    while not server.revive():
        deadline.look()
    assert server.pid != before
    xaqueue.connect(server.url).close()


def test_a_queue_server_that_fails_is_not(server: QueueServer) -> None:
    os.kill(server.pid, signal.SIGQUIT)
    server._process.wait(60)
    with pytest.raises(OperationalError, match="the queue server ended with code -3"):
        server.revive()


# The whole of it


def test_a_small_run_agrees(tmp_path: Path) -> None:
    if not any(postgres.directories()):
        pytest.skip(postgres.MISSING)
    lines: list[str] = []
    passed = ledger.run(150, None, lines.append)
    assert passed, lines
    assert lines[-1] == "PASSED"
    assert [line.split(":")[0] for line in lines if line.startswith("  kill ")] == [
        f"  kill {number}" for number in range(1, len(ledger.KILLS) + 1)
    ]
    assert any(line.split() == ["left", "in", "doubt", "0"] for line in lines)


def test_too_few_orders_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="49 orders are too few"):
        ledger.run(49, None, print)


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(InvalidArgument, match="is not empty"):
        ledger.run(None, tmp_path, print)


def test_a_directory_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="too long for a socket"):
        ledger.run(None, tmp_path / ("d" * 80), print)
