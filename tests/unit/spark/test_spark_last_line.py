"""What xaqueue says of a query that fails is the last line; of what is none of its own nothing is said."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pathlib import Path
from types import SimpleNamespace

from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from support.spark_space import FabricatedSpace
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.spark import last_line
from xaqueue.spark.source.source import Refused, SparksSource, StreamReader

OF_SPARK = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "xaqueue/spark/source/source.py", line 1, in latestOffset
xaqueue.errors.SpaceError: first

The above exception was the direct cause of the following exception:

xaqueue.errors.SpaceError: /data/shop is gone: bring it back
 SQLSTATE: 38000
=== Streaming Query ===
Current State: ACTIVE"""


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    last_line.say_last.cache_clear()
    last_line.say_last()
    last_line.say_last()
    yield
    last_line.say_last.cache_clear()


def test_what_was_refused_comes_last_and_once(hooked: None, capsys: pytest.CaptureFixture[str]) -> None:
    error = PySparkException(OF_SPARK)
    sys.excepthook(type(error), error, None)
    *before, last = capsys.readouterr().err.splitlines()
    assert last == "xaqueue: /data/shop is gone: bring it back"
    assert before[-2:] == ["Current State: ACTIVE", ""]


@pytest.mark.parametrize("shown", [(), (OSError,)])
def test_in_a_notebook_it_comes_last_unless_that_shows_errors_itself(
    shown: tuple[type[Exception], ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As IPython has it."""
    shell = SimpleNamespace(custom_exceptions=shown, showtraceback=lambda told, tb_offset: sys.stderr.write("shown"))
    shell.set_custom_exc = lambda kinds, handler: setattr(shell, "handler", partial(handler, shell))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    last_line.say_last.cache_clear()
    last_line.say_last()
    last_line.say_last.cache_clear()
    assert hasattr(shell, "handler") is not bool(shown)
    if not shown:
        shell.handler(PySparkException, PySparkException(OF_SPARK), None, tb_offset=1)
        assert capsys.readouterr().err == "shown\nxaqueue: /data/shop is gone: bring it back\n"


@pytest.mark.parametrize("error", [PySparkException("[TABLE_NOT_FOUND] orders"), ValueError(OF_SPARK)], ids=type)
def test_of_others_errors_nothing_is_said(hooked: None, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    sys.excepthook(type(error), error, None)
    assert "\nxaqueue: " not in capsys.readouterr().err


def test_a_stream_that_is_refused_says_so_whatever_spark_asks_first(tmp_path: Path) -> None:
    """Spark asks for other things first in a new query, in one that goes on, and with each trigger."""
    space = FabricatedSpace(tmp_path / "space")
    space.fill("orders", [1])
    given = {"path": str(space.root), "queue": "orders"}
    source = SparksSource(given)
    assert type(source.streamReader(source.schema())) is StreamReader
    wrong = SparksSource({**given, "endingOffsets": "4"}).streamReader(source.schema())
    assert isinstance(wrong, Refused)
    asked: tuple[Callable[[], object], ...] = (
        wrong.initialOffset,
        partial(wrong.latestOffset, {}, ReadAllAvailable()),
        partial(wrong.partitions, {}, {}),
        wrong.prepareForTriggerAvailableNow,
        wrong.getDefaultReadLimit,
        wrong.reportLatestOffset,
    )
    for call in asked:
        with pytest.raises(InvalidArgument, match='"endingOffsets" is for'):
            call()


def test_the_directory_of_spaces_is_told_with_the_pattern(tmp_path: Path) -> None:
    FabricatedSpace(tmp_path / "spaces" / "one")
    source = SparksSource({"path": f"{tmp_path}/spaces", "queue": "orders"})
    with pytest.raises(SpaceError, match=r"did you mean .*/spaces/\*\?"):
        source.reader(source.schema())
