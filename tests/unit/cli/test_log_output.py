"""Events as lines of text and of JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from xaqueue.cli import log_output


@pytest.fixture
def last_resort() -> Iterator[logging.Handler]:
    """As it was, whatever a test makes of it."""
    handler = logging.lastResort
    assert handler is not None
    before = handler.formatter, handler.level, logging.getLogger("xaqueue").level
    yield handler
    handler.setFormatter(before[0])
    handler.setLevel(before[1])
    logging.getLogger("xaqueue").setLevel(before[2])


def record(
    text: str, *values: object, name: str = "xaqueue.server", error: Exception | None = None
) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, text, values, None)
    if error is not None:
        made.exc_info = (type(error), error, None)
    made.created, made.msecs = 1_700_000_000.25, 250
    return made


def test_text_has_time_level_and_code_in_one_line() -> None:
    made = record("[bad-frame] %s is ended", "session\n2026 \x1b[2J\u202e")
    line = log_output.TextFormatter().format(made)
    assert line == "2023-11-14T22:13:20.250Z WARNING [bad-frame] session\\n2026 \\x1b[2J\\u202e is ended"


def test_json_has_the_code_as_a_field() -> None:
    found = json.loads(log_output.JsonFormatter().format(record("[bad-frame] %s\n%s", "a", "b", error=ValueError("c"))))
    assert found == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "code": "bad-frame",
        "logger": "xaqueue.server",
        "message": "a\nb",
        "exception": "ValueError: c",
    }
    other = json.loads(log_output.JsonFormatter().format(record("[no-code] of ours", name="asyncio")))
    assert (other["code"], other["message"]) == (None, "[no-code] of ours")


def test_the_options_of_a_verb_outweigh_what_stands_before_it(last_resort: logging.Handler) -> None:
    log_output.begin(verbose=False)
    assert (last_resort.level, logging.getLogger("xaqueue").level) == (logging.WARNING, logging.WARNING)
    assert last_resort.format(record("[a-b] c")) == "xaqueue: [a-b] c"
    log_output.begin(verbose=True)
    log_output.use_level(None)
    log_output.use_format("text")
    assert last_resort.level == logging.INFO
    assert re.match(r"2023-11-14T22:13:20.250Z WARNING \[a-b\] c", last_resort.format(record("[a-b] c")))
    log_output.use_level("error")
    assert logging.getLogger("xaqueue").level == logging.ERROR


def test_a_traceback_stands_below_its_line() -> None:
    try:
        int("why")
    except ValueError:
        made = record("[internal-error] x")
        made.exc_info = sys.exc_info()
    first, second, *_, last = log_output.TextFormatter().format(made).splitlines()
    assert first.endswith("WARNING [internal-error] x")
    assert (second, last) == (
        "Traceback (most recent call last):",
        "ValueError: invalid literal for int() with base 10: 'why'",
    )


class Untold(Exception):
    """What it is cannot be said."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("formatter", [log_output.TextFormatter, log_output.JsonFormatter])
def test_what_cannot_be_told_fails_nobody(
    last_resort: logging.Handler, capfd: pytest.CaptureFixture[str], formatter: type[logging.Formatter]
) -> None:
    last_resort.setFormatter(formatter())
    with log_output.written_aside():
        aside = logging.lastResort
        assert isinstance(aside, log_output.WrittenAside)
        aside.handle(record("[a-code] %s is lost", Untold()))
    told = capfd.readouterr().err
    assert "%s is lost (it cannot be formatted: RuntimeError)" in told
    assert told.count("\n") == 1
