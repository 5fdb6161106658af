"""Why a delivery has failed, as one line that a record, a terminal and a log take, whatever was raised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xaqueue.core.model import records
from xaqueue.core.model.entry import Retry
from xaqueue.errors import InvalidArgument, RolledBack
from xaqueue.features.retries.tries import encode_retry
from xaqueue.message import REASON_LIMIT, MessageId, checked_reason, reason_of

IDENTITY = MessageId(bytes(16))


class Unsayable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("550"), "RuntimeError: 550"),
        (RolledBack("late"), "xaqueue.errors.RolledBack: late"),
        (json.JSONDecodeError("Expecting value", "x", 0), "json.decoder.JSONDecodeError: Expecting value: line 1 ..."),
        (ValueError(), "ValueError"),
        (ValueError(" \n"), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Unsayable(), "test_reasons.Unsayable: (its text raises ValueError)"),
        ("in\ttwo\nlines \x1b[31m", "in two lines [31m"),
    ],
)
def test_the_type_and_the_text_in_one_line(error: str | BaseException, told: str) -> None:
    found = reason_of(error)
    assert found.removeprefix("unit.") == told or (told.endswith("...") and found.startswith(told[:-3]))


@given(st.text(max_size=3 * REASON_LIMIT))
def test_any_text_goes_through_a_record(text: str) -> None:
    for reason in (reason_of(text), reason_of(ValueError(text)), checked_reason(ValueError(text))):
        assert len(reason) <= REASON_LIMIT
        assert reason.isprintable()
        retry = Retry(3, None, 1, 2, reason)
        assert records.decode_retry(encode_retry("q", IDENTITY, retry, 1), "q", IDENTITY) == retry


@pytest.mark.parametrize("reason", ["", "x" * (REASON_LIMIT + 1), None, 7])
def test_what_is_no_reason_is_refused(reason: object) -> None:
    with pytest.raises(InvalidArgument, match="reason"):
        checked_reason(reason)
