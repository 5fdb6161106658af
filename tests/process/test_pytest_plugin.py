"""The plugin of pytest, in runs of its own: found by its entry point, with fixtures, markers and what the user sets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import xaqueue
from support import ROOT
from xaqueue.errors import ConnectionLost, InvalidArgument, OperationalError, ResourceFailed
from xaqueue.testing import MemorySpace, served

USER_TESTS = """
import sys

LOADED_BEFORE = "xaqueue.core.engine.state" in sys.modules

import pytest
import xaqueue
from xaqueue.testing import Crashed

def test_it_is_light():
    assert "xaqueue.testing.plugin" in sys.modules and not LOADED_BEFORE

def test_space(queue_space):
    with queue_space.connect() as conn:
        conn.enqueue("orders", b"1")
        with pytest.raises(xaqueue.UnknownQueue):
            conn.enqueue("other", b"1")
    assert len(queue_space.messages("orders")) == 1

def test_space_is_new(queue_space):
    assert queue_space.messages("orders") == []

@pytest.mark.xaqueue({"mine": {"order": "lifo"}}, sync="NONE")
def test_marker(queue_space):
    assert queue_space.messages("mine") == []

@pytest.mark.xaqueue(sync="FSYNC")
def test_marker_beside_ini(queue_space):
    assert queue_space.messages("orders") == []

def test_crash(queue_space, crash_after):
    with queue_space.connect() as conn:
        conn.enqueue("orders", b"1")
    conn = queue_space.connect()
    crash_after(0)
    with pytest.raises(Crashed):
        conn.dequeue("orders")
    assert len(queue_space.reopen("nothing").messages("orders")) == 1

def test_server(queue_server, pytestconfig):
    with xaqueue.connect(queue_server) as conn:
        assert not conn.is_embedded
        conn.enqueue("orders", b"1")
        with pytest.raises(xaqueue.UnknownQueue):
            conn.enqueue("other", b"1")
            conn.flush()
    (pytestconfig.rootpath / "url").write_text(queue_server)
"""


def run(home: Path, *options: str) -> str:
    """Pytest on tests in this directory, where the plugin is installed as pyproject.toml says."""
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = home / "site" / "xaqueue_plugin-1.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: xaqueue-plugin\nVersion: 1\n")
    lines = [f"{name} = {module}" for name, module in entry_points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "--strict-markers", "--rootdir", str(home), *options],
        cwd=home,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(installed.parent), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "test_mine.py").write_text(USER_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nxaqueue_queues = orders parcels\nfilterwarnings = error\n")
    return tmp_path


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "with xdist"])
def test_fixtures(home: Path, workers: tuple[str, ...]) -> None:
    said = run(home, *workers)
    assert re.search(r"^7 passed", said, re.MULTILINE), said
    with pytest.raises(ConnectionLost):
        xaqueue.connect((home / "url").read_text())


def test_queues_of_a_file(home: Path) -> None:
    (home / "conf").mkdir()
    (home / "conf" / "queues.toml").write_text('[queues.orders]\norder = "lifo"\n')
    (home / "pytest.ini").write_text("[pytest]\nxaqueue_queues = conf/queues.toml\n")
    said = run(home, "-k", "test_space or test_server")
    assert re.search(r"^3 passed", said, re.MULTILINE), said


def test_the_example(home: Path) -> None:
    (home / "test_mine.py").unlink()
    said = run(home, str(ROOT / "examples" / "test_orders.py"), "-p", "no:cacheprovider")
    assert re.search(r"^7 passed", said, re.MULTILINE), said


def test_without_it(home: Path) -> None:
    (home / "pytest.ini").write_text("[pytest]\n")
    (home / "test_mine.py").write_text("def test_space(queue_space):\n    pass\n\ndef test_other():\n    pass\n")
    said = run(home, "-p", "no:xaqueue")
    assert "fixture 'queue_space' not found" in said
    assert "1 passed, 1 error" in said


def test_it_tells_what_it_has(home: Path) -> None:
    assert "xaqueue(queues, sync)" in run(home, "--markers")
    assert "queue_server" in run(home, "--fixtures")
    assert "xaqueue_queues" in run(home, "--help")


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(OperationalError, match="flags"), served(sync="SOMETIMES"):
        pytest.fail("it started")
    with pytest.raises(InvalidArgument), served({"a": {"colour": "red"}}):
        pytest.fail("it started")


def test_a_forked_child_has_no_space_in_memory() -> None:
    with MemorySpace(["orders"]) as space, space.connect() as connection:
        child = os.fork()
        if not child:
            refused = 0
            for call in (
                space.connect,
                space.reopen,
                lambda: xaqueue.connect(space),
                lambda: connection.enqueue("orders", b""),
            ):
                try:
                    call()
                except ResourceFailed as error:
                    refused += "forked" in str(error)
            space.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        connection.enqueue("orders", b"1")
        connection.commit()
        assert len(space.messages("orders")) == 1
