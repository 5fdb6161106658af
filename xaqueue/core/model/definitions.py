"""What a space's queues.toml says: limits, sync flags, queues; parsed whole or refused whole.

[space]
max_body_bytes = 67108864          # largest body, bytes
sync = "FDATASYNC;DSYNC"           # default flags of this space

[default]                          # template for queues that are not listed; without it they are refused
order = "fifo"

[queues.orders]
order = "priority"                 # fifo, lifo or priority
description = "what the shop sends"
max_tries = 5                      # then a message moves to the failure queue; without it, it is tried for ever
retry_delay_s = 1                  # a delivery that has failed is put off; 0 without it
retry_multiplier = 2               # each time so many times as long
retry_max_s = 3600                 # and not longer
retry_jitter = 0.1                 # by up to this share longer or shorter
failure_queue = "orders.failed"
expiry_queue = "orders.expired"    # where messages go that expire; without it they go away
max_messages = 100000              # it holds so many at most, and so many bytes; without them it has no limit
max_bytes = 1000000000
when_full = "wait"                 # an enqueue waits for room; or "refuse", as without it
full_wait_s = 30                   # it is refused after so many seconds
sync = "NONE"                      # in a space with JOURNAL: no transaction waits for a sync on its account
dedup_window_s = 3600              # so long a second message of one dedup_key comes to nothing; 0 without it

[topics.events]                    # what is published there goes to all queues that subscribe to it
description = "what happens"

[queues.audit]
topic = "events"                   # it subscribes
match = {kind = "paid", region = "eu*"}    # to messages with these headers; * stands for any rest

[access]
group = "readers"                  # who may read the files, besides their owner

[access.roles.shop]                # who may do what through a server; without [access] see xaqueue(5)
members = ["user:www", "cert:shop.example"]
produce = ["orders", "orders.*"]
transact = true
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xaqueue.access import AS_A_WHOLE, NO_TABLE, ON_QUEUES, Policy, Role
from xaqueue.core.model.block import BODY_LIMIT_BYTES
from xaqueue.core.model.index import Order
from xaqueue.core.model.layout import QUEUES
from xaqueue.core.model.retry import AT_ONCE, RetryPolicy
from xaqueue.core.model.tables import Number, choice, numbers, only, suggestion, switch, table_of
from xaqueue.core.storage.hardening import NOTHING, Hardening
from xaqueue.core.storage.journal import SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.regular import FOLLOW, read_at_most
from xaqueue.errors import InvalidArgument, UnknownQueue
from xaqueue.features.limits.limits import Limits
from xaqueue.features.replica.copying import (
    NO_REPLICATION,
    NO_SNAPSHOTS,
    Replication,
    Snapshots,
    replication_of,
    snapshots_of,
)
from xaqueue.message import check_queue_name

LONGEST_S = 366 * 24 * 3600
TEXT_LIMIT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """How one queue behaves."""

    order: Order = Order.FIFO
    description: str = ""
    retry: RetryPolicy = AT_ONCE
    failure_queue: str = ""
    """Where messages go that had all their tries."""
    expiry_queue: str = ""
    """Where messages go that expire; without one they go away."""
    dedup_window_s: float = 0.0
    """From the commit of a message on, a second one of its dedup_key comes to nothing for so long."""
    limits: Limits | None = None
    sync: Hardening | None = None
    """NONE in a space with JOURNAL: who commits waits for no sync. None: as the space."""
    topic: str = ""
    """It gets what is published there."""
    match: Mapping[str, str] = field(default_factory=dict)
    """By header, which value a message has to have to be wanted, or how it has to begin: ``eu*``."""

    def wants(self, headers: Mapping[str, str]) -> bool:
        """Whether it gets a message with these headers that is published to its topic."""
        return all(_fits(headers.get(name), value) for name, value in self.match.items())


def _fits(found: str | None, wanted: str) -> bool:
    if found is None:
        return False
    return found.startswith(wanted[:-1]) if wanted.endswith("*") else found == wanted


UNDEFINED = QueueDefinition(description="has messages, and no definition")


@dataclass(frozen=True, slots=True)
class Definitions:
    """Everything that people define for a space."""

    queues: Mapping[str, QueueDefinition] = field(default_factory=dict)
    default: QueueDefinition | None = None
    max_body_bytes: int = BODY_LIMIT_BYTES
    sync: Hardening | None = None
    journal_segment_bytes: int = SEGMENT_BYTES
    checkpoint_s: int = 60
    """The directories are synced this often at least, where a journal is ahead of them."""
    cache_bytes: int = 16 * 1024 * 1024
    """For the bodies of messages just committed."""
    min_free_bytes: int | None = None
    """Enqueues are refused where less of the disk is free; None: a twentieth of it, 64 MiB at most."""
    min_free_inodes: int | None = None
    """The same for inodes; None: a twentieth of them, 1,000 at most."""
    io_deadline_s: float = 120
    """A sync or rename that takes longer fences the space."""
    sweep_after_s: int = 7 * 24 * 3600
    """Branches of a batch that was never decided are rolled back when they were prepared so long ago."""
    forget_after_s: int = 30 * 24 * 3600
    """What a query has decided is forgotten when it has decided nothing for so long."""
    cleanup_interval_s: int = 1800
    """What has expired is looked for so often."""
    scrub_days: int = 0
    """Every message is read once in so many days while the space is open, and what is damaged set aside; 0: never."""
    branch_idle_s: int = 0
    """A branch in which nothing was done for so long is rolled back where no server is to do it; 0: never."""
    served_only: bool = False
    """Programs go to its server, and never open the directory."""
    access: Policy = NO_TABLE
    group: str = ""
    """By name or number: who may read the files of the space, besides their owner."""

    snapshots: Snapshots = NO_SNAPSHOTS
    replication: Replication = NO_REPLICATION
    topics: Mapping[str, str] = field(default_factory=dict)
    """By name, what each is for."""
    known: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names that were found before."""

    has_unsynced: bool = field(default=False, init=False, compare=False, repr=False)
    """Some queue says that nobody waits for a sync."""

    def __post_init__(self) -> None:
        queues = (*self.queues.values(), *([self.default] if self.default is not None else []))
        object.__setattr__(self, "has_unsynced", any(queue.sync == NOTHING for queue in queues))

    def check_sync(self, hardening: Hardening) -> Definitions:
        """Itself. Raises InvalidArgument where a queue wants what a space of this level does not have."""
        levels = {None, hardening, NOTHING if hardening.journal else hardening}
        for name, queue in (*self.queues.items(), ("", self.default)):
            if queue is not None and queue.sync not in levels:
                where = f"[queues.{name}]" if name else "[default]"
                raise InvalidArgument(
                    f"queues.toml: {where} sync = '{queue.sync}': in a space with {hardening} "
                    + ("JOURNAL or NONE is wanted" if hardening.journal else "queues have no level of their own")
                )
        return self

    def of(self, name: str) -> QueueDefinition | None:
        """The definition that holds for a queue; None without one."""
        return self.queues.get(name) or self.default

    def subscribers(self, topic: str, headers: Mapping[str, str]) -> list[str]:
        """The queues that get a message with these headers which is published there, sorted. Raises UnknownQueue."""
        if topic not in self.topics:
            raise UnknownQueue(
                f"topic {topic!r} is not defined{suggestion(topic, self.topics)}; "
                f"define it with `xaqueue define --topic {topic}`"
            )
        return sorted(name for name, queue in self.queues.items() if queue.topic == topic and queue.wants(headers))

    def find(self, name: str) -> QueueDefinition:
        """The definition that holds for a queue. Raises UnknownQueue with a suggestion, InvalidArgument for no name."""
        definition = self.queues.get(name)
        if definition is None:
            check_queue_name(name)
            definition = self.default
        if definition is None:
            raise UnknownQueue(
                f"queue {name!r} is not defined{suggestion(name, self.queues)}; "
                f"define it with `xaqueue define {name}`, or give queues.toml a [default] table"
            )
        self.known.add(name)
        return definition


def read(space: str | os.PathLike[str]) -> str:
    """The text of a space's queues.toml, which may be a link to one. Raises OSError, UnicodeDecodeError."""
    return read_at_most(os.path.join(space, QUEUES), TEXT_LIMIT_BYTES, FOLLOW).decode()  # noqa: PTH118


def parse(text: str) -> Definitions:
    """The definitions in a queues.toml. Raises InvalidArgument that names the table, the key and what it takes."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"queues.toml is no TOML: {error}") from None
    only(document, "queues.toml", ("space", "default", "queues", "topics", "access", "snapshots", "replication"))
    space = table_of(document, "space")
    only(space, "[space]", (*_NUMBERS, "sync", "served_only"))
    queues = {}
    for name, table in table_of(document, "queues").items():
        check_queue_name(name)
        queues[name] = _definition(f"[queues.{name}]", table)
    default = _definition("[default]", document["default"]) if "default" in document else None
    if default is not None and default.topic:
        raise InvalidArgument("queues.toml: [default] does not take 'topic': only a queue that is listed subscribes")
    topics = {name: _topic(name, table, queues) for name, table in table_of(document, "topics").items()}
    _check_topics(queues, topics)
    if default is None:
        _check_targets(queues)
    return Definitions(
        queues,
        default,
        sync=_sync("[space]", space),
        served_only=switch(space, "[space]", "served_only"),
        access=_access(document),
        group=_group(document),
        topics=topics,
        snapshots=snapshots_of(document),
        replication=replication_of(document),
        known=set(),
        **numbers(space, "[space]", _NUMBERS),
    )


_LEAST = {
    "max_body_bytes": (1, "bytes"),
    "journal_segment_bytes": (SMALLEST_SEGMENT_BYTES, "bytes"),
    "checkpoint_s": (1, "seconds"),
    "cache_bytes": (0, "bytes"),
    "min_free_bytes": (0, "bytes"),
    "min_free_inodes": (0, "inodes"),
    "io_deadline_s": (1, "seconds"),
    "sweep_after_s": (1, "seconds"),
    "forget_after_s": (1, "seconds"),
    "cleanup_interval_s": (1, "seconds"),
    "branch_idle_s": (0, "seconds"),
    "scrub_days": (0, "days"),
}
_NUMBERS = {key: Number(key, int, least, None, f"a number of {unit}") for key, (least, unit) in _LEAST.items()}
"""Keys of [space] that take a number."""


def _topic(name: str, table: Any, queues: Mapping[str, QueueDefinition]) -> str:
    check_queue_name(name)
    only(table, f"[topics.{name}]", TOPIC_KEYS)
    if name in queues:
        raise InvalidArgument(f"queues.toml: [topics.{name}] is a queue as well: give one of them another name")
    return str(table.get("description", ""))


def _check_topics(queues: Mapping[str, QueueDefinition], topics: Mapping[str, str]) -> None:
    for name, queue in queues.items():
        if queue.topic and queue.topic not in topics:
            raise InvalidArgument(
                f"queues.toml: [queues.{name}] topic = {queue.topic!r} is not defined"
                f"{suggestion(queue.topic, topics)}: define it first, `xaqueue define --topic {queue.topic}`"
            )


def _check_targets(queues: Mapping[str, QueueDefinition]) -> None:
    """Without a [default], messages can only be moved to a queue that is defined."""
    for name, queue in queues.items():
        for key in TARGETS:
            target = getattr(queue, key)
            if target and target not in queues:
                raise InvalidArgument(
                    f"queues.toml: [queues.{name}] {key} = {target!r} is not defined{suggestion(target, queues)}: "
                    f"define it first, `xaqueue define {target}`"
                )


def options_of(words: Iterable[str]) -> dict[str, object]:
    """What KEY=VALUE words say, a value as in TOML or plain text; None takes a key away. Raises InvalidArgument."""
    found: dict[str, object] = {}
    for word in words:
        key, is_given, value = word.partition("=")
        if not is_given or key not in QUEUE_KEYS:
            raise InvalidArgument(
                f"{word!r}: KEY=VALUE is wanted, and KEY is one of {', '.join(QUEUE_KEYS)}{suggestion(key, QUEUE_KEYS)}"
            )
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"] if value else None
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _definition(where: str, table: Any) -> QueueDefinition:
    only(table, where, QUEUE_KEYS)
    others = numbers(table, where, _WINDOW)
    others |= {key: _target(where, key, table[key]) for key in TARGETS if key in table}
    if "max_tries" in table and "failure_queue" not in table:
        raise InvalidArgument(
            f"queues.toml: {where} max_tries needs failure_queue, where a message goes that had so many tries"
        )
    return QueueDefinition(
        Order(choice(table, where, "order", tuple(order.value for order in Order))),
        str(table.get("description", "")),
        RetryPolicy(**numbers(table, where, _POLICY)),
        topic=_target(where, "topic", table["topic"]) if "topic" in table else "",
        match=_match(where, table),
        limits=_limits(where, table),
        sync=_sync(where, table),
        **others,
    )


def _match(where: str, table: Mapping[str, Any]) -> Mapping[str, str]:
    match = table.get("match", {})
    if not isinstance(match, Mapping) or not all(isinstance(value, str) for value in match.values()):
        raise InvalidArgument(
            f'queues.toml: {where} match = {match!r}: headers and their values are wanted, {{kind = "paid*"}}'
        )
    if match and "topic" not in table:
        raise InvalidArgument(f"queues.toml: {where} match needs topic, to which the queue subscribes")
    return dict(match)


def _sync(where: str, table: Mapping[str, Any]) -> Hardening | None:
    if "sync" not in table:
        return None
    if not isinstance(table["sync"], str):
        raise InvalidArgument(f"queues.toml: {where} sync = {table['sync']!r}: a string like 'JOURNAL' is wanted")
    try:
        return Hardening.parse(table["sync"])
    except InvalidArgument as error:
        raise InvalidArgument(f"queues.toml: {where} {error}") from None


def _limits(where: str, table: Mapping[str, Any]) -> Limits | None:
    found = numbers(table, where, _LIMITS)
    waits = choice(table, where, "when_full", ("refuse", "wait")) == "wait"
    if "max_messages" in table or "max_bytes" in table:
        return Limits(waits=waits, **found)
    for key in ("when_full", "full_wait_s"):
        if key in table:
            raise InvalidArgument(f"queues.toml: {where} {key} needs max_messages or max_bytes: else it is never full")
    return None


_POLICY = {
    "max_tries": Number("max_tries", int, 1, 1_000_000, "a number of tries"),
    "retry_delay_s": Number("delay_s", float, 0, LONGEST_S, "seconds"),
    "retry_multiplier": Number("multiplier", float, 1, 100, "a number"),
    "retry_max_s": Number("max_s", float, 0, LONGEST_S, "seconds"),
    "retry_jitter": Number("jitter", float, 0, 1, "a share"),
}
"""Keys of a queue that say how often and when it is tried again."""
_LIMITS = {
    "max_messages": Number("max_messages", int, 1, 10**12, "a number of messages"),
    "max_bytes": Number("max_bytes", int, 1, 10**18, "a number of bytes"),
    "full_wait_s": Number("wait_s", float, 0, LONGEST_S, "seconds"),
}
"""Keys of a queue that say how much it holds."""
_WINDOW = {"dedup_window_s": Number("dedup_window_s", float, 0, LONGEST_S, "seconds")}
TARGETS = ("failure_queue", "expiry_queue")
QUEUE_KEYS = (
    *("order", "description", *_POLICY, *TARGETS, *_LIMITS, "when_full", "sync", "topic", "match"),
    *_WINDOW,
)
"""What the definition of a queue may say."""
TOPIC_KEYS = ("description",)


def _target(where: str, key: str, value: Any) -> str:
    try:
        target = check_queue_name(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"queues.toml: {where} {key}: {error}") from None
    if where == f"[queues.{target}]":
        raise InvalidArgument(f"queues.toml: {where} {key} is the queue itself: name another")
    return target


def _access(document: Mapping[str, Any]) -> Policy:
    if "access" not in document:
        return NO_TABLE
    access = table_of(document, "access")
    only(access, "[access]", ("group", "roles"))
    if tuple(access) == ("group",):  # which says nothing of a server
        return NO_TABLE
    return Policy(tuple(_role(name, table) for name, table in table_of(access, "roles", "[access.roles]").items()))


def _group(document: Mapping[str, Any]) -> str:
    group = table_of(document, "access").get("group", "")
    if not isinstance(group, str) or (not group and "group" in document.get("access", {})):
        raise InvalidArgument(f"queues.toml: [access] group = {group!r}: the name of a group of this host is wanted")
    return group


_LISTS = ("members", *(right.value for right in ON_QUEUES))
_SWITCHES = tuple(right.value for right in AS_A_WHOLE)


def _role(name: str, table: Any) -> Role:
    """What is wrong with a list is told without what is in it: somebody may have put a token there."""
    where = f"[access.roles.{name}]"
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"queues.toml: {where} is no table: members and what they may do are wanted")
    only(table, where, (*_LISTS, *_SWITCHES))
    for key in _LISTS:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidArgument(f"queues.toml: {where} {key} is no list of strings")
    for key in _SWITCHES:
        switch(table, where, key)
    given: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in table.items()}
    try:
        return Role(name, **given)
    except InvalidArgument as error:
        raise InvalidArgument(f"queues.toml: {error}") from None
