"""The demo and the benchmarks by their verbs, where a process is needed to tell."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xaqueue.cli.exit_codes import ExitCode


@pytest.mark.parametrize("package", ["matplotlib", "pyspark"])
def test_a_missing_extra_is_named(package: str) -> None:
    script = f"import sys; sys.modules['{package}'] = None\nfrom xaqueue.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.ERROR
    assert done.stderr == f"xaqueue: {package} is not installed: pip install 'xaqueue[demo]'\n"
