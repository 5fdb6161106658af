"""The sample unit says what the server does, and systemd takes it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support import ROOT
from xaqueue.cli.main import app
from xaqueue.cli.serve import HANG_S as LEAVE_S
from xaqueue.endpoint import Scheme, parse
from xaqueue.rpc.server.peer import Limits
from xaqueue.rpc.server.server import HANG_S

UNIT = ROOT / "examples" / "xaqueue@.service"
COMMAND = "/opt/xaqueue/bin/xaqueue"


@pytest.fixture(scope="module")
def unit() -> dict[str, str]:
    lines = [line for line in UNIT.read_text("utf-8").splitlines() if line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


def test_its_command_is_one_of_ours(unit: dict[str, str]) -> None:
    command = shlex.split(unit["ExecStart"])
    assert command[:2] == [COMMAND, "serve"]
    told = re.sub(r"\x1b\[[0-9;]*m", "", CliRunner().invoke(app, ["serve", "--help"], terminal_width=200).stdout)
    for word in command:
        if word.startswith("--"):
            assert word in told


def test_its_command_is_where_the_guide_installs_it() -> None:
    prefix = COMMAND.removesuffix("/bin/xaqueue")
    installed = [f"python3 -m venv {prefix}", f"{prefix}/bin/pip install 'xaqueue[server]'"]
    guide = (ROOT / "man" / "guide" / "operating.md").read_text("utf-8")
    assert all(words in text for words in installed for text in (guide, UNIT.read_text("utf-8")))


def test_it_waits_until_the_server_is_ready_and_watches_it(unit: dict[str, str]) -> None:
    assert unit["Type"] == "notify"
    assert "--notify" in unit["ExecStart"].split()
    assert unit["TimeoutStartSec"] == "infinity"
    assert int(unit["WatchdogSec"]) > 0


def test_a_server_that_stops_has_the_time_that_it_takes_at_most(unit: dict[str, str]) -> None:
    """Killed before that it would not say why."""
    assert int(unit["TimeoutStopSec"]) > Limits().stop_s + HANG_S + Limits().close_s + LEAVE_S


def test_the_socket_that_it_tells_is_the_one_that_is_served(unit: dict[str, str]) -> None:
    (url,) = re.findall(r"xaq\+unix:\S+(?=\.$)", UNIT.read_text("utf-8"), re.MULTILINE)
    endpoint = parse(url)
    assert endpoint.scheme is Scheme.UNIX
    command = shlex.split(unit["ExecStart"])
    assert endpoint.path == command[command.index("--unix") + 1].replace("%i", "orders")
    assert Path(endpoint.path).parent == Path("/run") / unit["RuntimeDirectory"].replace("%i", "orders")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_it(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text("utf-8").replace(COMMAND, sys.executable), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
