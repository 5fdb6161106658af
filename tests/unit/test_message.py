"""Names, ids and options of messages are checked at the door, and a refusal says what is wanted."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest

from xaqueue.errors import InvalidArgument
from xaqueue.message import (
    DEFAULT_PRIORITY,
    PLAIN_OPTIONS,
    EnqueueOptions,
    Message,
    MessageId,
    Origin,
    Properties,
    check_message_id,
    check_queue_name,
    properties_of,
    stored_message,
    stored_of,
)

GOOD_NAMES = ["a", "0", "orders", "Orders.eu-west_1", "a" * 127]
BAD_NAMES: list[Any] = [
    "",
    "a" * 128,
    ".hidden",
    "-a",
    "_a",
    "a/b",
    "..",
    "a b",
    "a\n",
    "ä",
    "a\x00",
    "queue=a",
    None,
    7,
    b"orders",
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_queue_names_that_are_taken(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_queue_names_that_are_refused(name: Any) -> None:
    """Black-box behaviour 38: an over-long queue name is rejected, and so is every other that a file cannot have."""
    with pytest.raises(InvalidArgument, match="1 to 127"):
        check_queue_name(name)


@pytest.mark.parametrize("value", [b"", b"x" * 15, b"x" * 17, "x" * 16, None, bytearray(16)])
def test_message_ids_have_16_bytes(value: Any) -> None:
    assert check_message_id(b"x" * 16) == b"x" * 16
    with pytest.raises(InvalidArgument, match="16 bytes"):
        check_message_id(value)


def test_no_options_make_default_properties() -> None:
    made = properties_of("orders", 17, {})
    assert made == Properties("orders", enqueued_at=17)
    assert (made.priority, made.tries, made.headers, made.unknown) == (DEFAULT_PRIORITY, 0, {}, {})


def test_every_option_becomes_its_property() -> None:
    options: EnqueueOptions = {
        "correlation_id": "kä",
        "reply_queue": "replies",
        "failure_queue": "failures",
        "priority": 9,
        "not_before": 1_700_000_000_000_001,
        "expires_at": 1_700_000_000_000_002,
        "group": "g",
        "dedup_key": b"d",
        "content_type": "text/plain",
        "headers": {"a": "ü"},
        "traceparent": "00-1-1-01",
        "origin": "{}",
        "persistent": False,
        "message_id": b"x" * 16,
    }
    assert set(options) == set(PLAIN_OPTIONS)
    made = properties_of("orders", 17, options)
    assert made.correlation_id == "kä".encode()
    assert made.dedup_key == b"d"
    for name, value in options.items():
        if name not in ("correlation_id", "dedup_key", "message_id"):
            assert getattr(made, name) == value


def test_none_means_absent() -> None:
    options = dict.fromkeys(PLAIN_OPTIONS)
    assert properties_of("orders", 17, options) == Properties("orders", enqueued_at=17)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("correlation_id", 7, "bytes or str"),
        ("dedup_key", 7, "bytes or str"),
        ("reply_queue", "a/b", "queue name"),
        ("failure_queue", ".a", "queue name"),
        ("priority", -1, "0 to 9"),
        ("priority", 10, "0 to 9"),
        ("priority", "high", "0 to 9"),
        ("not_before", -1, "microseconds"),
        ("not_before", 1.5, "microseconds"),
        ("expires_at", 2**63, "microseconds"),
        ("group", b"g", "str is wanted"),
        ("group", "\udcff", "str is wanted"),
        ("dedup_key", "\udcff", "bytes or str"),
        ("headers", {"a": "\udcff"}, "str to str"),
        ("content_type", 7, "str is wanted"),
        ("traceparent", b"", "str is wanted"),
        ("headers", {"a": 1}, "str to str"),
        ("headers", {b"a": "b"}, "str to str"),
        ("headers", [("a", "b")], "str to str"),
        ("prioritty", 4, "not an option"),
        ("queue", "other", "not an option"),
        ("tries", 3, "not an option"),
    ],
)
def test_a_wrong_option_is_refused_by_name(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        properties_of("orders", 17, {name: value})
    assert name in str(refused.value) or "queue name" in str(refused.value)
    assert wanted in str(refused.value)


def test_a_message_shows_its_properties() -> None:
    properties = Properties("orders", b"c", priority=7, enqueued_at=5, tries=2, content_type="t", headers={"a": "b"})
    message = Message(MessageId(b"x" * 16), "orders", 3, b"body", properties)
    assert (message.correlation_id, message.priority, message.enqueued_at) == (b"c", 7, 5)
    assert (message.tries, message.content_type, message.headers) == (2, "t", {"a": "b"})


STORED = {"queue": "orders", "enqueued_at": 5, "correlation_id": b"c", "headers": {"a": "b"}, "later": 1}


@pytest.mark.parametrize("stored", [STORED, {"queue": "orders"}, {"queue": "orders", "unknown": 3, b"odd": 4}])
def test_a_stored_message_is_as_one_that_was_made(stored: dict[str, Any]) -> None:
    def message() -> Message:
        return stored_message(MessageId(b"x" * 16), "orders", 3, b"body", dict(stored))

    unknown = {name: value for name, value in stored.items() if name not in STORED or name == "later"}
    known = {name: value for name, value in stored.items() if name not in unknown}
    made = Message(MessageId(b"x" * 16), "orders", 3, b"body", Properties(**known, unknown=unknown))
    assert type(message()) is Message
    assert message() == made
    assert made == message()
    assert repr(message()) == repr(made)
    assert asdict(message()) == asdict(made)
    assert replace(message(), seq=4) == replace(made, seq=4)
    for again in (pickle.loads(pickle.dumps(message())), copy(message()), deepcopy(message())):
        assert again == made
        assert vars(again.properties) == vars(message().properties)
    assert message().headers == made.headers
    assert (message().enqueued_at, message().correlation_id) == (made.enqueued_at, made.correlation_id)


def test_messages_that_are_stored_with_one_map_share_nothing_of_it() -> None:
    stored = {"queue": "q", "headers": {"a": "b"}, "later": {"inner": [1]}}
    one, other = (stored_message(MessageId(bytes(16)), "q", seq, b"", stored) for seq in (1, 2))
    for made in (one.properties.headers, one.properties.unknown["later"], one.properties.unknown):
        made["c"] = "d"  # type: ignore[index]
    one.properties.unknown["later"]["inner"].append(2)
    assert (other.headers, other.properties.unknown) == ({"a": "b"}, {"later": {"inner": [1]}})


def test_the_properties_of_a_stored_message_are_made_once() -> None:
    message, other = (stored_message(MessageId(bytes(16)), "q", 1, b"", {"queue": "q"}) for _ in range(2))
    assert stored_of(message) == {"queue": "q"}
    message.properties.possible_duplicate = True
    assert message.possible_duplicate
    assert message.properties is message.properties
    assert stored_of(message) is None
    assert message != other
    for name in ("properties", "seq"):
        with pytest.raises(FrozenInstanceError):
            setattr(message, name, 1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(other)


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (None, None),
        ("", None),
        (
            Origin("q", "tries", 3, 1, 2, "rolled back", 5, "00").text,
            Origin("q", "tries", 3, 1, 2, "rolled back", 5, "00"),
        ),
        (Origin("q", "expired").text, Origin("q", "expired")),
        ('{"queue": "q", "reason": "later", "color": 1}', Origin("q", "later")),
        ("another's words", Origin("", "another's words")),
        ("[1]", Origin("", "[1]")),
    ],
)
def test_where_a_message_was(text: str | None, origin: Origin | None) -> None:
    message = Message(MessageId(bytes(16)), "q", 1, b"", Properties("q", origin=text))
    assert message.origin == origin
