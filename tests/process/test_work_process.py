"""Workers and forwarders as programs: signals, kills, and what their command lines refuse."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.contract_connection import PATIENCE_S, bodies, put
from support.doubtful import RUN, fails, run
from support.patience import eventually
from support.served import ServerThread
from xaqueue.cli import location
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.message import EnqueueOptions

FULL = os.environ.get("XAQUEUE_CRASH_FULL") == "1"
KILLS = 200 if FULL else int(os.environ.get("XAQUEUE_KILLS", "3"))
MODULE = """
import time
from pathlib import Path

GO, MARK = Path("go"), Path("mark")

def pack(message, tx):
    if message.body == b"poison":
        raise ValueError("no such product")
    tx.enqueue("parcels", message.body)

def slow(message, tx):
    pack(message, tx)
    MARK.touch()
    while not GO.exists():
        time.sleep(0.01)

def copy(message, tx):
    tx["away"].enqueue("parcels", message.body)

class Shop:
    @staticmethod
    def pack(message, tx):
        pack(message, tx)

async def later(message, tx):
    pass

def alone(message):
    pass
"""


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its directory is the current one."""
    (tmp_path / "handlers.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True) as connection:
        connection.define("failed")
        connection.define("orders", max_tries=3, failure_queue="failed")
    return root


@pytest.fixture
def server(space: Path, tmp_path: Path) -> Iterator[ServerThread]:
    server = ServerThread(space, tmp_path / "socket")
    yield server
    server.stop()


def started(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*RUN, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(place: Path | str, queue: str = "orders") -> list[bytes]:
    with xaqueue.connect(place) as connection:
        return bodies(connection, queue)


def fill(place: Path | str, *sent: bytes) -> None:
    with xaqueue.connect(place) as connection:
        put(connection, *sent)


def test_until_empty(space: Path) -> None:
    fill(space, b"1", b"2")
    words = ("work", "orders", "handlers:pack", "--until-empty", "--threads", "2", "--space", space)
    assert run(*words).splitlines() == [
        f"handlers:pack works on queue orders of {space}",
        "2 messages handled",
    ]
    assert sorted(left(space, "parcels")) == [b"1", b"2"]
    fill(space, b"poison", b"3")
    static = ("work", "orders", "handlers:Shop.pack", "--until-empty", "--space", space)
    assert "2 deliveries failed" in run(*static, code=ExitCode.NOTHING)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_lets_what_runs_finish_and_a_second_one_does_not(server: ServerThread, signals: int) -> None:
    fill(server.url, b"1", b"2")
    with started("work", "orders", "handlers:slow", "--space", server.url) as worker:
        eventually(Path("mark").exists)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        assert "what runs is finished" in worker.stderr.readline()
        if signals == 2:
            worker.send_signal(signal.SIGINT)
            assert worker.wait(PATIENCE_S) == -signal.SIGINT
            assert worker.stdout is not None
            assert worker.stdout.read().endswith("\n0 messages handled\n")
            eventually(lambda: tries(server.url) == [1, 0])
            assert left(server.url, "parcels") == []
            return
        Path("go").touch()
        assert worker.wait(PATIENCE_S) == 0
        assert worker.stdout is not None
        assert worker.stdout.read().endswith("\n1 message handled\n")
    assert (left(server.url), left(server.url, "parcels")) == ([b"2"], [b"1"])


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.01, 0.1])
def test_two_quick_signals_take_no_line_away(server: ServerThread, pause_s: float) -> None:
    """Of a worker that waits, which ends by itself just then."""
    with started("work", "orders", "handlers:pack", "--space", server.url) as worker:
        assert worker.stdout is not None
        said = worker.stdout.readline()
        time.sleep(0.2)
        for _ in range(2):
            worker.send_signal(signal.SIGTERM)
            time.sleep(pause_s)
        assert worker.wait(PATIENCE_S) in (0, -signal.SIGTERM), said
        assert worker.stdout.read() == "0 messages handled\n"


def tries(place: Path | str) -> list[int]:
    with xaqueue.connect(place) as connection:
        return [message.tries for message in connection.browse("orders")]


@pytest.mark.parametrize("way", ["embedded", "served"])
def test_a_killed_worker_has_tried(space: Path, tmp_path: Path, way: str) -> None:
    server = ServerThread(space, tmp_path / "socket") if way == "served" else None
    try:
        fill(space, b"1")
        with started("work", "orders", "handlers:slow", "--space", space) as worker:
            eventually(Path("mark").exists)
            worker.kill()
        eventually(lambda: tries(space) == [1])
        assert left(space, "parcels") == []
        Path("go").touch()
        run("work", "orders", "handlers:slow", "--until-empty", "--space", space)
        assert (left(space), left(space, "parcels")) == ([], [b"1"])
    finally:
        if server is not None:
            server.stop()


def test_a_worker_of_a_transaction_manager(space: Path, tmp_path: Path) -> None:
    with xaqueue.connect(tmp_path / "other", create=True):
        fill(space, b"1")
    table = '[participants.{}]\nkind = "xaqueue"\nspace = "{}"\n'
    config = tmp_path / "tm.toml"
    config.write_text('log_dir = "log"\n' + table.format("queue", "space"))
    words = ("work", "orders", "handlers:copy", "--tm", config, "--until-empty")
    assert "2 deliveries failed" in run(*words, code=ExitCode.NOTHING), "there is nobody away"
    fill(space, b"2")
    config.write_text(config.read_text() + table.format("away", "other"))
    assert "queue, away" in fails(*words, code=ExitCode.USAGE)
    assert "leave --space away" in fails(*words, "--space", space, code=ExitCode.USAGE)
    assert "participant queue\n2 messages handled" in run(*words, "--participant", "queue")
    assert left(tmp_path / "other", "parcels") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("handlers", "write MODULE:FUNCTION"),
        ("handlers:nothing", "has no attribute 'nothing'"),
        ("nowhere:pack", "run in the module's directory or set PYTHONPATH"),
        ("broken:pack", "nothing_of_this_name"),
        ("handlers:GO", "a function of (message, tx) is wanted"),
        ("handlers:later", "async function"),
        ("handlers:alone", "is not called with (message, tx)"),
    ],
)
def test_a_wrong_function_is_refused_before_a_message_is_taken(space: Path, function: str, told: str) -> None:
    fill(space, b"1")
    assert told in fails("work", "orders", function, "--space", space, code=ExitCode.USAGE)
    assert tries(space) == [0]


def test_a_fenced_space_has_the_exit_code_of_a_server(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = OSError(5, "Input/output error")

    def broken(message: xaqueue.Message, tx: xaqueue.Connection) -> None:
        tx._manager.space.fence(fence)  # type: ignore[attr-defined]

    fill(space, b"1")
    monkeypatch.setattr("xaqueue.cli.work._function", lambda _: broken)
    result = CliRunner().invoke(app, ["work", "orders", "any:thing", "--space", str(space)])
    assert result.exit_code == ExitCode.FENCED, result.output
    assert "the space is fenced" in result.stderr


# Forwarding


def test_a_forwarder_goes_on_until_a_signal(space: Path, server: ServerThread) -> None:
    with started("forward", "orders", "--to", "archive", "--space", server.url) as program:
        for number in range(3):
            fill(server.url, b"%d" % number)
            eventually(lambda: len(left(server.url, "archive")) == number + 1)  # noqa: B023
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE_S) == 0
        assert program.stdout is not None
        assert program.stdout.read().endswith("\n3 messages forwarded\n")


def sent_with_everything(place: Path | str) -> bytes:
    properties: EnqueueOptions = {
        "correlation_id": b"c",
        "group": "g",
        "priority": 7,
        "content_type": "text/plain",
        "headers": {"k": "v"},
        "reply_queue": "answers",
        "ttl": 600,
        "traceparent": "00-1",
    }
    with xaqueue.connect(place) as connection:
        return connection.enqueue("orders", b"x", **properties)


@pytest.mark.parametrize("way", ["directory", "URL"])
def test_a_message_goes_to_another_space_with_all_it_has(space: Path, tmp_path: Path, way: str) -> None:
    other = tmp_path / "other"
    with xaqueue.connect(other, create=True):
        message_id = sent_with_everything(space)
        fill(space, *(b"%d" % number for number in range(250)))
    target = ServerThread(other, tmp_path / "socket") if way == "URL" else None
    try:
        to = target.url if target is not None else "./other"
        words = ("forward", "orders", "--to", to, "--queue", "copies", "--until-empty", "--space", space)
        assert run(*words).endswith("251 messages forwarded\n")
        assert run(*words).endswith("0 messages forwarded\n")
        with xaqueue.connect(other) as connection:
            found = list(connection.browse("copies"))
    finally:
        if target is not None:
            target.stop()
    assert [one.body for one in found] == [b"x", *(b"%d" % number for number in range(250))]
    first, properties = found[0], found[0].properties
    assert (first.message_id, first.headers, first.priority, first.tries) == (message_id, {"k": "v"}, 7, 0)
    assert (properties.correlation_id, properties.group, properties.reply_queue) == (b"c", "g", "answers")
    assert (properties.content_type, properties.traceparent, properties.origin) == ("text/plain", "00-1", None)
    assert properties.expires_at is not None
    assert left(space) == []
    log = tmp_path / "space.forward-orders"
    assert "source" in run("tm", "status", log, code=ExitCode.NOTHING if way == "URL" else 0)
    told = fails("forward", "orders", "--to", "./third", "--space", space, code=ExitCode.SPACE)
    assert "third" in told
    with xaqueue.connect(tmp_path / "third", create=True):
        pass
    told = fails("forward", "orders", "--to", "./third", "--space", space, code=ExitCode.USAGE)
    assert "name another one with --log" in told


@pytest.mark.parametrize("to", [("failed",), ("./space", "--queue", "failed")])
def test_within_a_space_it_says_where_it_was(space: Path, to: tuple[str, ...]) -> None:
    message_id = sent_with_everything(space)
    assert run("forward", "orders", "--to", *to, "--until-empty", "--space", space).endswith("\n1 message forwarded\n")
    with xaqueue.connect(space) as connection:
        (found,) = connection.browse("failed")
        assert (found.message_id, found.headers) == (message_id, {"k": "v"})
        assert found.origin is not None
        assert (found.origin.queue, found.origin.reason) == ("orders", "moved")
        connection.requeue("failed", message_id)
        connection.commit()
        (back,) = connection.browse("orders")
        assert (back.message_id, back.properties.expires_at) == (message_id, found.properties.expires_at)
    assert not list(space.parent.glob("*forward*"))


@pytest.mark.parametrize("to", [("quick",), ("./other", "--queue", "quick")])
def test_what_would_go_with_the_command_stays_where_the_server_goes_meanwhile(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: tuple[str, ...]
) -> None:
    """EMS-21. The command opens the directory itself then."""
    for place in (space, tmp_path / "other"):
        xaqueue.connect(place, create=True).close()
        run("define", "quick", "persistent=false", "--space", place)
    fill(space, b"kept")
    urls = iter(["xaqs://goes.just.then"])
    monkeypatch.setattr(location, "served_at", lambda _: next(urls, ""))
    told = fails("forward", "orders", "--to", *to, "--until-empty", "--space", space, code=ExitCode.USAGE)
    assert "queue quick is not persistent, and no server has" in told
    assert next(urls, "") == "", "it was there as the command began"
    assert left(space) == [b"kept"]


def test_a_message_that_is_there_already_is_told_and_holds_up_no_other(space: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with xaqueue.connect(other, create=True) as away, xaqueue.connect(space) as connection:
        ids = connection.enqueue_many("orders", [b"1", b"2", b"3"])
        connection.commit()
        away.enqueue("orders", b"2", message_id=ids[1])
        away.commit()
    done = subprocess.run(
        [*RUN, "forward", "orders", "--to", "./other", "--until-empty", "--space", str(space)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.NOTHING, done.stderr
    assert f"message {ids[1].hex()} of queue orders cannot be forwarded to queue orders" in done.stderr
    assert f"message {ids[1].hex()} is in queue orders already: ids are unique" in done.stderr
    assert sorted(left(other)) == [b"1", b"2", b"3"]
    assert [*left(space), *left(space, "failed")] == [b"2"]


def test_what_a_forward_refuses(space: Path) -> None:
    for words, told, code in (
        (("--to", "orders"), "name another, or another space", ExitCode.USAGE),
        (("--to", "failed", "--queue", "x"), "--queue is too much", ExitCode.USAGE),
        (("--to", "./nowhere"), "nowhere", ExitCode.SPACE),
        (("--to", "xaq://localhost:1", "--log", "space"), "holds other files", ExitCode.ERROR),
    ):
        assert told in fails("forward", "orders", *words, "--space", space, code=code), words
    url = f"xaq+unix://{space}/socket"
    assert "--log is missing" in fails("forward", "orders", "--to", "./space", "--space", url, code=ExitCode.USAGE)


@pytest.mark.crash
def test_each_message_once_although_the_forwarder_is_killed(space: Path, tmp_path: Path) -> None:
    """At random moments, in batches, with a server at one end and the forwarder's own space at the other."""
    seed = os.environ.get("XAQUEUE_KILL_SEED") or str(random.SystemRandom().randrange(10**9))
    sys.stdout.write(f"seed: XAQUEUE_KILL_SEED={seed}\n")
    rng = random.Random(seed)
    other = tmp_path / "other"
    with xaqueue.connect(other, create=True), xaqueue.connect(space) as connection:
        connection.define("many")
    source = ServerThread(space, tmp_path / "socket")
    sent: list[bytes] = []
    words = ("forward", "many", "--to", "./other", "--log", "log", "--space", source.url)
    try:
        with xaqueue.connect(source.url) as connection:
            for life in range(KILLS):
                sent += connection.enqueue_many("many", [b"x"] * 300)
                connection.commit()
                with started(*words) as program:
                    assert program.stdout is not None
                    assert program.stdout.readline()
                    enough = len(bodies(connection, "many")) - rng.randrange(300)
                    eventually(lambda: len(bodies(connection, "many")) <= enough)  # noqa: B023
                    time.sleep(rng.uniform(0, 0.03))
                    program.kill()
                depth, doubt = len(bodies(connection, "many")), len(connection.tpc_recover())
                sys.stdout.write(f"life {life}: {depth} are left, {doubt} branches in doubt\n")
        run(*words, "--until-empty")
        with xaqueue.connect(other) as connection:
            found = [message.message_id for message in connection.browse("many")]
            assert connection.tpc_recover() == []
        assert len(found) == len(set(found))
        assert set(found) == set(sent)
        assert left(space, "many") == []
    finally:
        source.stop()
