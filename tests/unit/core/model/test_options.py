"""A key says what it takes and what holds without it; whoever puts them together has one more by one line."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest

from xaqueue.core.model import options
from xaqueue.core.model.definitions import Definitions, QueueDefinition, parse
from xaqueue.core.model.options import Key, Table, choice, name_of_another, number, switch, text, values
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.scheduling import THREADS
from xaqueue.errors import InvalidArgument
from xaqueue.features.defining.edits import options_of, with_queue, without_queue

SIZE = number("size", 7, "a number of feet", 1, 9)
LENGTH = number("length_s", 0.5, "seconds", 0)
KEYS: tuple[Key[Any], ...] = (
    *(SIZE, LENGTH, choice("colour", "red", "green", "blue")),
    *(switch("is_on"), text("note"), name_of_another("next")),
)


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [("size", 9, 9), ("length_s", 2, 2.0), ("colour", "blue", "blue"), ("is_on", True, True), ("note", 5, "5")],
)
def test_what_a_key_takes(key: str, value: object, taken: object) -> None:
    (found,) = values({key: value}, "[t]", KEYS).items()
    assert found == (key, taken)
    assert type(found[1]) is type(taken)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("size", 10, r"queues.toml: \[queues.a\] size = 10: a number of feet from 1 to 9 is wanted"),
        ("size", 1.0, "size = 1.0"),
        ("size", True, "size = True"),
        ("length_s", float("nan"), "length_s = nan: seconds from 0 is wanted")
        if False
        else ("length_s", -1, "from 0 "),
        ("colour", "grey", "colour = 'grey': red, green or blue is wanted"),
        ("is_on", 1, "is_on = 1: true or false is wanted"),
        ("next", "a", "next is the queue itself: name another"),
        ("next", "/", r"next: queue name '/' is refused"),
        ("sise", 1, "does not take 'sise': did you mean 'size'. It takes size, length_s, colour"),
    ],
)
def test_what_a_key_does_not_take(key: str, value: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        values({key: value}, "[queues.a]", KEYS)


def test_what_holds_without_it() -> None:
    assert SIZE.of(QueueDefinition()) == 7
    assert SIZE.of(QueueDefinition(options={"size": 2})) == 2
    assert options.all_of(KEYS, {"note": "n"}) == [7, 0.5, "red", False, "n", ""]


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A feature more: a key of a queue, one of a space, a table, and what it has to say of all that."""
    known, acted = options.everything(), list[object]()

    def check(found: Definitions) -> None:
        if any(SIZE.of(queue) == 3 for _, queue in found.listed()):
            raise InvalidArgument("3 is unlucky")

    def keep(found: Definitions, name: str) -> None:
        if name in found.tables.get("plans", ()):
            raise InvalidArgument(f"{name} is planned")

    changed = known._replace(
        queue=(*known.queue, SIZE, name_of_another("next")),
        space=(*known.space, LENGTH),
        tables=(*known.tables, Table("plans", dict)),
        checks=(*known.checks, check),
        undefining=(*known.undefining, keep),
        acts=(*known.acts, acted.append),
    )
    everything: Callable[[], options.Known] = lambda: changed  # noqa: E731
    monkeypatch.setattr(options, "everything", everything)
    return acted


@pytest.mark.usefixtures("more")
def test_an_option_of_a_feature_is_read_and_kept_by_its_key() -> None:
    found = parse("[space]\nlength_s = 3\n[queues.a]\nsize = 2\n[default]\n[plans]\nb = 1\n")
    assert found == Definitions(
        {"a": QueueDefinition(options={"size": 2})},
        QueueDefinition(),
        options={"length_s": 3.0},
        tables={"plans": {"b": 1}},
    )
    assert options_of(["size=2"]) == {"size": 2}
    assert SIZE.of(parse(with_queue("", "a", {"size": 5})).queues["a"]) == 5


@pytest.mark.usefixtures("more")
def test_a_feature_refuses_what_it_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="unlucky"):
        with_queue("", "a", {"size": 3})
    with pytest.raises(InvalidArgument, match="b is planned"):
        without_queue("[queues.b]\n[plans]\nb = 1\n", "b")


@pytest.mark.usefixtures("more")
def test_another_queue_that_a_feature_names_has_to_be_there() -> None:
    with pytest.raises(InvalidArgument, match="next = 'c' is not defined"):
        parse("[queues.a]\nnext = 'c'\n")
    with pytest.raises(InvalidArgument, match=r"it is named by \[queues.a\] next"):
        without_queue("[queues.a]\nnext = 'c'\n[queues.c]\n", "c")


def test_it_says_at_the_queue_what_follows_at_once(more: list[object]) -> None:
    queue = Queue("a", QueueDefinition(), THREADS.condition(Lock()))
    assert more == [queue]
    queue.define(QueueDefinition(options={"size": 1}))
    assert more == [queue, queue]
