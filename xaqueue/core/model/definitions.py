"""What a space's queues.toml says: limits, sync flags, queues; parsed whole or refused whole.

[space]
max_body_bytes = 67108864          # largest body, bytes
sync = "FDATASYNC;DSYNC"           # default flags of this space

[default]                          # template for queues that are not listed; without it they are refused
order = "fifo"

[queues.orders]
order = "priority"                 # fifo, lifo or priority
description = "what the shop sends"
sync = "NONE"                      # in a space with JOURNAL: no transaction waits for a sync on its account
persistent = false                 # nor here, and the next owner of the space removes what it has

[access]
group = "readers"                  # who may read the files, besides their owner

[access.roles.shop]                # who may do what through a server; without [access] see xaqueue(5)
members = ["user:www", "cert:shop.example"]
produce = ["orders", "orders.*"]
transact = true

What features take besides is in the ``options.py`` of each; ``options.everything`` has all of it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xaqueue.access import AS_A_WHOLE, NO_TABLE, ON_QUEUES, Policy, Role
from xaqueue.core.model import options
from xaqueue.core.model.block import BODY_LIMIT_BYTES
from xaqueue.core.model.layout import QUEUES
from xaqueue.core.model.options import Key, Table, choice, number, only, suggestion, switch, table_of, text, values
from xaqueue.core.model.order import Order
from xaqueue.core.storage.hardening import NOTHING, Hardening
from xaqueue.core.storage.journal import SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES
from xaqueue.core.storage.regular import FOLLOW, read_at_most
from xaqueue.errors import InvalidArgument, UnknownQueue
from xaqueue.message import check_queue_name

TEXT_LIMIT_BYTES = 4 * 1024 * 1024

ONE, MANY = "one", "many"
BLOCKS = MANY
"""Of a queue that does not say."""


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """How one queue behaves."""

    order: Order = Order.FIFO
    description: str = ""
    blocks: str = field(default_factory=lambda: BLOCKS)
    """MANY: messages of one branch come in one file, where they are enough."""
    sync: Hardening | None = None
    """NONE in a space with JOURNAL: who commits waits for no sync. None: as the space."""
    persistent: bool = True
    """Else its messages need not outlive the owner of the space."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What it says to features, by key; see ``Key.of``."""

    @property
    def waits(self) -> bool:
        """Whether who commits to it waits for a sync, where the space has such."""
        return self.persistent and self.sync != NOTHING


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
    branch_idle_s: int = 0
    """A branch in which nothing was done for so long is rolled back where no server is to do it; 0: never."""
    served_only: bool = False
    """Programs go to its server, and never open the directory."""
    access: Policy = NO_TABLE
    readers: str = ""
    """By name or number: the group of this host that may read the files of the space, besides their owner."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What [space] says to features, by key."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """What stands in tables of features, by name; a table that is not there is missing here."""
    known: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names that were found before."""

    has_unsynced: bool = field(default=False, init=False, compare=False, repr=False)
    """Some queue says that nobody waits for a sync."""

    def __post_init__(self) -> None:
        queues = (*self.queues.values(), *([self.default] if self.default is not None else []))
        object.__setattr__(self, "has_unsynced", not all(queue.waits for queue in queues))

    def listed(self) -> list[tuple[str, QueueDefinition]]:
        """All that define a queue, and the template, each with the table in which it stands."""
        found = [(f"[queues.{name}]", queue) for name, queue in self.queues.items()]
        return found if self.default is None else [*found, ("[default]", self.default)]

    def check_sync(self, hardening: Hardening) -> Definitions:
        """Itself. Raises InvalidArgument where a queue wants what a space of this level does not have."""
        levels = {None, hardening, NOTHING if hardening.journal else hardening}
        for where, queue in self.listed():
            if queue.sync not in levels:
                raise InvalidArgument(
                    f"queues.toml: {where} sync = '{queue.sync}': in a space with {hardening} "
                    + ("JOURNAL or NONE is wanted" if hardening.journal else "queues have no level of their own")
                )
        return self

    def of(self, name: str) -> QueueDefinition | None:
        """The definition that holds for a queue; None without one."""
        return self.queues.get(name) or self.default

    def find(self, name: str) -> QueueDefinition:
        """The definition that holds for a queue. Raises UnknownQueue with a suggestion, InvalidArgument for no name."""
        definition = self.queues.get(name)
        if definition is None:
            check_queue_name(name)
            definition = self.default
        if definition is None:
            raise UnknownQueue(
                f"queue {name!r} is not defined{suggestion(name, self.queues) or '.'} "
                f"Define it with `xaqueue define {name}`, or give queues.toml a [default] table"
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
    known = options.everything()
    tables = {table.name: table for table in known.tables}
    only(document, "the top level", ("space", "default", "queues", *tables))
    space = values(table_of(document, "space"), "[space]", known.space)
    queues = {
        check_queue_name(name): _definition(f"[queues.{name}]", table, known.queue)
        for name, table in table_of(document, "queues").items()
    }
    default = _definition("[default]", document["default"], known.queue) if "default" in document else None
    said = {name: table.read(table_of(document, name)) for name, table in tables.items() if name in document}
    own = {key.name: space.pop(key.name) for key in OF_SPACE if key.name in space}
    access, readers = said.pop(ACCESS.name, (NO_TABLE, ""))
    found = Definitions(queues, default, **own, access=access, readers=readers, options=space, tables=said)
    for check in (_check_targets, *known.checks):
        check(found)
    return found


def _sync(where: str, value: Any) -> Hardening:
    if not isinstance(value, str):
        raise InvalidArgument(f"queues.toml: {where} sync = {value!r}: a string like 'JOURNAL' is wanted")
    try:
        return Hardening.parse(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"queues.toml: {where} {error}") from None


SYNC: Key[Hardening | None] = Key("sync", None, _sync)
OF_SPACE: tuple[Key[Any], ...] = (
    number("max_body_bytes", None, "a number of bytes", 1),
    number("journal_segment_bytes", None, "a number of bytes", SMALLEST_SEGMENT_BYTES),
    number("checkpoint_s", None, "a number of seconds", 1),
    number("cache_bytes", None, "a number of bytes", 0),
    number("min_free_bytes", None, "a number of bytes", 0),
    number("min_free_inodes", None, "a number of inodes", 0),
    number("io_deadline_s", None, "a number of seconds", 1),
    number("branch_idle_s", None, "a number of seconds", 0),
    SYNC,
    switch("served_only"),
)
"""Keys of [space] that the core, or whoever is around it, acts on: each a field of ``Definitions``."""
OF_QUEUE: tuple[Key[Any], ...] = (
    choice("order", *(order.value for order in Order)),
    text("description"),
    SYNC,
    switch("persistent", default=True),
    choice("blocks", ONE, MANY),
)
"""Likewise of a queue: fields of ``QueueDefinition``."""


def _definition(where: str, table: Any, keys: Iterable[Key[Any]]) -> QueueDefinition:
    found = values(table, where, keys)
    own = {key.name: found.pop(key.name) for key in OF_QUEUE if key.name in found}
    if "order" in own:
        own["order"] = Order(own["order"])
    return QueueDefinition(**own, options=found)


def _check_targets(found: Definitions) -> None:
    """Without a [default], messages can only be moved to a queue that is defined."""
    for name, queue in found.queues.items() if found.default is None else ():
        for key in targets():
            target = key.of(queue)
            if target and target not in found.queues:
                raise InvalidArgument(
                    f"queues.toml: [queues.{name}] {key.name} = {target!r} is not defined"
                    f"{suggestion(target, found.queues)}: define it first, `xaqueue define {target}`"
                )


def targets() -> list[Key[str]]:
    """Keys of a queue that name another one."""
    return [key for key in options.everything().queue if key.is_target]


def _access(access: Mapping[str, Any]) -> tuple[Policy, str]:
    only(access, "[access]", ("group", "roles"))
    readers = access.get("group", "")
    if not isinstance(readers, str) or (not readers and "group" in access):
        raise InvalidArgument(f"queues.toml: [access] group = {readers!r}: the name of a group of this host is wanted")
    if tuple(access) == ("group",):  # which says nothing of a server
        return NO_TABLE, readers
    roles = table_of(access, "roles", "[access.roles]")
    return Policy(tuple(_role(name, table) for name, table in roles.items())), readers


ACCESS = Table("access", _access)
_LISTS = ("members", *(right.value for right in ON_QUEUES))
_SWITCHES = tuple(right.value for right in AS_A_WHOLE)


def _role(name: str, table: Any) -> Role:
    """What is wrong with a list is said without what is in it: somebody may have put a token there."""
    where = f"[access.roles.{name}]"
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"queues.toml: {where} is no table: members and what they may do are wanted")
    only(table, where, (*_LISTS, *_SWITCHES))
    for key in _LISTS:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidArgument(f"queues.toml: {where} {key} is no list of strings")
    for key in _SWITCHES:
        if key in table:
            switch(key).read(where, table[key])
    given: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in table.items()}
    try:
        return Role(name, **given)
    except InvalidArgument as error:
        raise InvalidArgument(f"queues.toml: {error}") from None
