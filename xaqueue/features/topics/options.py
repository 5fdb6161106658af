"""What queues.toml says of topics.

[topics.events]                    # what is published there goes to all queues that subscribe to it
description = "what happens"

[queues.audit]
topic = "events"                   # it subscribes
match = {kind = "paid", region = "eu*"}    # to messages with these headers; * stands for any rest
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.options import Key, Table, name_of_another, suggestion, text, values
from xaqueue.errors import InvalidArgument, UnknownQueue
from xaqueue.message import check_queue_name


def _match(where: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
        raise InvalidArgument(
            f'queues.toml: {where} match = {value!r}: headers and their values are wanted, {{kind = "paid*"}}'
        )
    return dict(value)


TOPIC = name_of_another("topic", is_target=False)
MATCH: Key[Mapping[str, str]] = Key("match", {}, _match)
"""By header, which value a message has to have to be wanted, or how it has to begin: ``eu*``."""
DESCRIPTION = text("description")


def _topics(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {check_queue_name(name): values(said, f"[topics.{name}]", [DESCRIPTION]) for name, said in table.items()}


TOPICS = Table("topics", _topics)


def topics_of(definitions: Definitions) -> Mapping[str, Mapping[str, Any]]:
    """By name, what is said of each."""
    found: Mapping[str, Mapping[str, Any]] = definitions.tables.get(TOPICS.name, {})
    return found


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic, and who gets what is published there."""

    name: str
    description: str
    subscribers: dict[str, dict[str, str]]
    """By queue what it says to ``match``."""


def topic_list(definitions: Definitions) -> list[TopicStatus]:
    """All of them, sorted."""
    return [
        TopicStatus(
            name,
            said.get(DESCRIPTION.name, ""),
            {queue: dict(MATCH.of(one)) for queue, one in sorted(definitions.queues.items()) if TOPIC.of(one) == name},
        )
        for name, said in sorted(topics_of(definitions).items())
    ]


def subscribers(definitions: Definitions, topic: str, headers: Mapping[str, str]) -> list[str]:
    """The queues that get a message with these headers which is published there, sorted. Raises UnknownQueue."""
    topics = topics_of(definitions)
    if topic not in topics:
        if topic in definitions.queues:
            raise UnknownQueue(f"{topic!r} is a queue, and no topic: enqueue into it (`xaqueue put` without --topic)")
        raise UnknownQueue(
            f"topic {topic!r} is not defined{suggestion(topic, topics) or '.'} "
            f"Define it with `xaqueue define --topic {topic}`"
        )
    return sorted(
        name
        for name, queue in definitions.queues.items()
        if TOPIC.of(queue) == topic and (not (wanted := MATCH.of(queue)) or _has(headers, wanted))
    )


def _has(headers: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(_fits(headers.get(name), value) for name, value in wanted.items())


def _fits(found: str | None, wanted: str) -> bool:
    if found is None:
        return False
    return found.startswith(wanted[:-1]) if wanted.endswith("*") else found == wanted


def check(definitions: Definitions) -> None:
    """InvalidArgument where a topic is a queue as well, or is none, or nobody could subscribe so."""
    topics = topics_of(definitions)
    for name in topics:
        if name in definitions.queues:
            raise InvalidArgument(f"queues.toml: [topics.{name}] is a queue as well: give one of them another name")
    for where, queue in definitions.listed():
        topic = TOPIC.of(queue)
        if MATCH.of(queue) and not topic:
            raise InvalidArgument(f"queues.toml: {where} match needs topic, to which the queue subscribes")
        if topic and queue is definitions.default:
            raise InvalidArgument(
                "queues.toml: [default] does not take 'topic': only a queue that is listed subscribes"
            )
        if topic and topic not in topics:
            raise InvalidArgument(
                f"queues.toml: {where} topic = {topic!r} is not defined{suggestion(topic, topics)}: "
                f"define it first, `xaqueue define --topic {topic}`"
            )


def check_undefining(definitions: Definitions, name: str) -> None:
    """InvalidArgument where that is none of the queues."""
    if name in topics_of(definitions):
        raise InvalidArgument(
            f"{name} is a topic: take [topics.{name}] out of queues.toml, once no queue subscribes to it"
        )
