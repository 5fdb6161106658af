"""What several test modules share, above all one Spark session a run: its start takes longer than most tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing

from xaqueue.errors import OperationalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from xaqueue.tools.demo.postgres import PostgresServer

TESTS = Path(__file__).parent

pytest.register_assert_rewrite("support")
# Typer makes all commands anew for each line that it is given: ten times the work of most of them.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]
# The programs of child processes find what they share with the tests.
os.environ["PYTHONPATH"] = os.pathsep.join((str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, and whatever it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A ring is a folder, and its marker."""
    item.add_marker(item.path.relative_to(TESTS).parts[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups first: their tests run one behind the other, and mostly wait, while others compute."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_collection_finish() -> None:
    """The collector of garbage looks no more at what all the tests are made of, which stays until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def quiet() -> Iterator[None]:
    """No logging: a fenced space says so at the top of its voice, and crash tests fence a thousand a second."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory, where there is one: for many openings of spaces that no power loss meets."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose tasks are tried three times; skips where PySpark or Java is missing."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from xaqueue.spark import session
    from xaqueue.spark.java import java_home

    try:
        java_home()
    except OperationalError as missing:
        pytest.skip(str(missing))
    scratch = tmp_path_factory.mktemp("spark")
    places = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch / "local")}
    started = session("xaqueue tests", cores=2, **{"spark.master": "local[2,3]", **places})
    yield started
    started.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests of this process; skips where there is none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    from support.postgres import started

    with started() as server:
        yield server


@pytest.fixture
def dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A new database in it."""
    from support.postgres import database

    with database(postgres_server) as name:
        yield name
