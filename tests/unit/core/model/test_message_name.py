"""The name of a message's file tells its number, its id and all that decides its turn, in one canonical form."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xaqueue.core.model import layout
from xaqueue.core.model.message_name import (
    VOLATILE,
    Tags,
    correlation_hash,
    hash_of,
    parse,
    parse_plain,
    parse_seq,
    read_tags,
    tags_of,
)
from xaqueue.errors import DamagedBlock
from xaqueue.message import DEFAULT_PRIORITY, MOST_TRIES, MessageId, Properties
from xaqueue.offline.check_committed import says

SEQ, ID = "0000000000000abc", "00112233445566778899aabbccddeeff"
PLAIN = f"{SEQ}.{ID}"
HASH = "2e7d2c03a9507ae2"
"""Of b"c": the first digits of its SHA-256."""

seqs = st.integers(0, layout.LAST_SEQ)
ids = st.binary(min_size=16, max_size=16).map(MessageId)
times = st.none() | st.integers(0, 2**63 - 1)
told = st.builds(
    Properties,
    st.just("q"),
    correlation_id=st.none() | st.binary(max_size=40),
    priority=st.integers(0, 9),
    not_before=times,
    expires_at=times,
    tries=st.sampled_from([0, 0, 1, 10, MOST_TRIES]),
    persistent=st.booleans(),
)
values = st.text(string.digits + string.ascii_lowercase, min_size=1, max_size=20)
later = st.dictionaries(st.sampled_from("abdfhijklmoqrsuwxyz"), values, max_size=3)


@given(seqs, ids, told, later)
def test_a_name_is_read_as_it_was_made(
    seq: int, message_id: MessageId, properties: Properties, more: dict[str, str]
) -> None:
    """With the tags of a later version among them, too."""
    known = tags_of(properties)
    tags = "".join(f".{tag}" for tag in sorted([*known.split(".")[1:], *map("".join, more.items())]))
    path = layout.message_path("q", seq, message_id, tags)
    name = path.rpartition("/")[2]
    assert parse(name) == (seq, message_id, tags)
    assert parse_seq(name) == seq
    assert layout.parse_message_path(path) == ("q", seq)
    assert layout.parse_message(name) == (seq, message_id)
    assert says(tags, known)
    assert says(tags.replace(VOLATILE, ""), known), "as an earlier version moves it"
    assert not says(tags, f"{known}.p7")
    correlation = None if properties.correlation_id is None else correlation_hash(properties.correlation_id)
    rest = properties.not_before, properties.priority, properties.tries
    wanted = Tags(correlation, properties.expires_at, *rest)
    assert read_tags(tags) == read_tags(known) == wanted
    group = "" if properties.group is None else f".g{hash_of(properties.group)}"
    assert re.sub(r"\.[^g][^.]*", "", known) == group
    assert len(name) < 255 - len(".reason") or more


def test_a_name_with_all_that_it_may_tell() -> None:
    properties = Properties(
        "q", correlation_id=b"c", priority=7, not_before=0x10, expires_at=0x6000000000000, group="c", tries=26
    )
    assert tags_of(properties) == f".c{HASH}.e6000000000000.g{HASH}.n10.p7.t1a"
    assert tags_of(Properties("q", headers={"k": "v"}, tries=0)) == ""


@pytest.mark.parametrize(
    "tags", ["", f".c{HASH}", ".e0", ".n0.p9", ".p0", ".tff", f".g{HASH}", ".a1.p3.zz", ".e7fffffffffffffff"]
)
def test_what_is_a_name(tags: str) -> None:
    assert parse(PLAIN + tags) == (0xABC, bytes.fromhex(ID), tags)


WRONG = [
    *("", "x", SEQ, f"{SEQ}.", f".{PLAIN}", f"{PLAIN}.", f"{PLAIN}\n", PLAIN.upper(), PLAIN[1:], PLAIN[:-1]),
    *(f"{PLAIN}0", f"{SEQ}-{ID}", f"{PLAIN}.p7.", f"{PLAIN}..p7", f"{PLAIN}.P7", f"{PLAIN}.7", f"{PLAIN}.p"),
    *(f"{PLAIN}.p4", f"{PLAIN}.p10", f"{PLAIN}.px", f"{PLAIN}.p7.p7", f"{PLAIN}.p7.p8", f"{PLAIN}.p7.n1"),
    *(f"{PLAIN}.n01", f"{PLAIN}.n00", f"{PLAIN}.nA", f"{PLAIN}.ng", f"{PLAIN}.n8000000000000000", f"{PLAIN}.e01"),
    *(f"{PLAIN}.t0", f"{PLAIN}.t01", f"{PLAIN}.t10000000", f"{PLAIN}.t1.p7"),
    *(f"{PLAIN}.g{HASH[1:]}", f"{PLAIN}.g", f"{PLAIN}.g{HASH}.e1"),
    *(f"{PLAIN}.c{HASH[1:]}", f"{PLAIN}.c{HASH}0", f"{PLAIN}.c", f"{PLAIN}.z1.a1", f"{PLAIN}.a1.a2", f"{PLAIN}.é1"),
    *(f"{PLAIN}.a_", f"{PLAIN}~2", f"{PLAIN}.reason ", f"{PLAIN}.p٣"),
]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_name(name: str) -> None:
    assert (parse(name), parse_seq(name), layout.parse_message(name)) == (None, None, None)
    assert not layout.is_consumed(name, layout.LAST_SEQ)


@pytest.mark.parametrize(
    "properties",
    [
        Properties("q", priority=10),
        Properties("q", priority=-1),
        Properties("q", priority="x"),  # type: ignore[arg-type]
        Properties("q", not_before=-1),
        Properties("q", tries=-1),
        Properties("q", tries=MOST_TRIES + 1),
        Properties("q", expires_at=2**63),
        Properties("q", expires_at=1.5),  # type: ignore[arg-type]
        Properties("q", correlation_id="c"),  # type: ignore[arg-type]
    ],
)
def test_what_no_message_has_gets_no_name(properties: Properties) -> None:
    with pytest.raises(DamagedBlock, match="a property is not what it can be"):
        tags_of(properties)


@given(st.lists(st.tuples(seqs, ids), min_size=1, max_size=20))
def test_many_plain_names_are_read_at_once(places: list[tuple[int, MessageId]]) -> None:
    names = [f"{seq:016x}.{message_id.hex()}" for seq, message_id in places]
    found = parse_plain(names)
    assert found is not None
    assert list(zip(*found, strict=True)) == places


@pytest.mark.parametrize("wrong", [*WRONG, f"{PLAIN}.p7", PLAIN.replace(".", " "), f"{SEQ} {ID[1:]}."])
def test_one_other_name_among_plain_ones_shows(wrong: str) -> None:
    for names in ([wrong], [PLAIN, wrong], [wrong, PLAIN, PLAIN]):
        assert parse_plain(names) is None


def test_the_default_priority_is_the_one_that_names_leave_out() -> None:
    assert DEFAULT_PRIORITY == 4, "names that were written say the others"
    assert read_tags("") == Tags()


def test_names_sort_by_their_numbers_and_consumed_ones_are_known() -> None:
    names = [f"{5:016x}.{ID}", f"{5:016x}.{ID}.p7", f"{6:016x}.{ID}"]
    assert sorted(names) == names
    assert [layout.is_consumed(name, 5) for name in names] == [True, True, False]
