"""A server that never answers holds up no shell: the process that completes names ends by itself, and says nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest


@pytest.mark.parametrize("scheme", ["xaq", "xaqs"])
def test_a_server_that_is_silent_completes_nothing(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = os.environ | {
            "XAQUEUE_SPACE": f"{scheme}://127.0.0.1:{silent.getsockname()[1]}?timeout_s=3600",
            "_XAQUEUE_COMPLETE": "complete_bash",
            "COMP_WORDS": "xaqueue get ",
            "COMP_CWORD": "2",
        }
        command = [sys.executable, "-m", "xaqueue"]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
