"""An Xid is refused or right, and its text form is its exact inverse and fits in a file name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xaqueue.core.model.layout import block_path
from xaqueue.errors import InvalidArgument
from xaqueue.xid import FORMAT_ID_LIMIT, LOCAL_FORMAT_ID, Xid

NAME_MAX = 255
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
xids = st.builds(
    Xid, st.integers(0, FORMAT_ID_LIMIT), st.binary(min_size=0, max_size=64), st.binary(min_size=0, max_size=64)
)


@unhurried
@given(xids)
def test_text_form_round_trips_and_fits_in_a_file_name(xid: Xid) -> None:
    assert Xid.parse(str(xid)) == xid
    name = block_path("", str(xid), "9999999")[1:]
    assert len(name) <= NAME_MAX
    assert "/" not in name


@unhurried
@given(xids, xids)
def test_branch_identity_is_the_whole_triple(one: Xid, other: Xid) -> None:
    assert (one == other) == (tuple(one) == tuple(other)) == (str(one) == str(other))
    assert one != other or hash(one) == hash(other)


def test_known_text_form() -> None:
    assert str(Xid(42, b"gtrid", b"bqual")) == "42.Z3RyaWQ.YnF1YWw"
    assert str(Xid(0, b"", b"")) == "0.."
    assert str(Xid(1, b"\xff\xff\xff", b"\xfb")) == "1.____.-w"


def test_it_is_the_sequence_of_three_of_pep_249() -> None:
    xid = Xid(42, b"gtrid", b"bqual")
    assert len(xid) == 3
    format_id, gtrid, bqual = xid
    assert (format_id, gtrid, bqual) == (42, b"gtrid", b"bqual")
    assert [xid[0], xid[1], xid[2], xid[-1]] == [42, b"gtrid", b"bqual", b"bqual"]
    parts: Sequence[int | bytes] = xid
    with pytest.raises(IndexError):
        parts[3]


def test_str_parts_are_utf_8() -> None:
    made: Any = Xid
    assert made(1, "gä", "b") == Xid(1, "gä".encode(), b"b")
    with pytest.raises(InvalidArgument, match="gtrid"):
        made(1, "ä" * 33, "")


def test_local_format_id_marks_local_branches() -> None:
    assert Xid(LOCAL_FORMAT_ID, b"x", b"").is_local
    assert not Xid(1, b"x", b"").is_local


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual", "wrong"),
    [
        (-1, b"", b"", "format id"),  # the NULL XID
        (-2, b"", b"", "format id"),
        (FORMAT_ID_LIMIT + 1, b"", b"", "format id"),
        ("1", b"", b"", "format id"),
        (1.0, b"", b"", "format id"),
        (True, b"", b"", "format id"),
        (None, b"", b"", "format id"),
        (1, b"x" * 65, b"", "gtrid"),
        (1, b"", b"x" * 65, "bqual"),
        (1, None, b"", "gtrid"),
        (1, b"", 7, "bqual"),
        (1, bytearray(b"x"), b"", "gtrid"),
    ],
)
def test_anything_else_is_refused(format_id: Any, gtrid: Any, bqual: Any, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=wrong):
        Xid(format_id, gtrid, bqual)


def test_both_parts_may_have_64_bytes() -> None:
    xid = Xid(FORMAT_ID_LIMIT, b"g" * 64, b"b" * 64)
    assert Xid.parse(str(xid)) == xid


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.",
        "1...",
        "a..",
        "-1..",
        "+1..",
        " 1..",
        "01..",
        "1_0..",
        "\u0661..",
        "2147483648..",
        "1.Z3RyaWQ=.",
        "1.Z3RyaWR.",  # unused bits set
        "1.Z.",
        "1.Z3 RyaWQ.",
        "1.Z3/yaWQ.",
        "1.Z3+yaWQ.",
        "1.ä.",
        "1.Z3RyaWQ.\n",
    ],
)
def test_text_that_no_xid_has_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no xid"):
        Xid.parse(text)


@unhurried
@given(st.text(max_size=20))
def test_whatever_parses_was_written_by_str(text: str) -> None:
    try:
        xid = Xid.parse(text)
    except InvalidArgument:
        return
    assert str(xid) == text
