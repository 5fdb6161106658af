"""``xaqueue serve --http`` as a process: it says where its console is, and whoever looks at that does not keep it."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

from support.doubtful import fails
from support.served import PATIENCE_S, RUN
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.features.opening import create


def test_a_server_tells_where_its_console_is_and_ends_though_somebody_looks(tmp_path: Path) -> None:
    create(tmp_path / "space")
    words = ["serve", "--space", str(tmp_path / "space"), "--http", "127.0.0.1:0", "--idle-exit", "0.5"]
    with subprocess.Popen([*RUN, *words], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert "serving" in server.stdout.readline()
        told = re.fullmatch(r"its console is at (http://127\.0\.0\.1:\d+/)\n", server.stdout.readline())
        assert told
        until, seen = time.monotonic() + PATIENCE_S, 0
        while server.poll() is None and time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"{told[1]}api/overview", timeout=PATIENCE_S) as answer:
                    seen += json.load(answer)["status"]["state"] == "ready"
            except (URLError, ConnectionError):
                time.sleep(0.01)  # it ends
        assert seen
        assert server.wait(PATIENCE_S) == 0


def test_what_cannot_be_served_is_told_before_the_space_is_opened(tmp_path: Path) -> None:
    create(tmp_path / "space")
    for words, told in (
        (["--http", "here"], "write host:port"),
        (["--http", "10.0.0.1:80"], "in the clear"),
        (["--tm", "x"], "say --http as well"),
        (["--http", "127.0.0.1:0", "--tm", str(tmp_path / "none")], "cannot be read"),
    ):
        assert told in fails("serve", "--space", tmp_path / "space", *words, code=ExitCode.USAGE)
    assert not (tmp_path / "space" / "owner").exists()
