"""A change: what one step does to the files of a space, as data, and the redo record that says so.

    (PUT, path, head, body, time)     a file with this content; time: int microseconds UTC of its last change, 0 for now
    (MOVE, source, target, time)      a file takes another name
    (DROP, path)                      a file goes

A log carries a change out, see ``xaqueue.core.engine.log``: its ``point`` first, where it has one, then its ``ops``,
then its ``rest``. Where the files themselves are the record, the point is on disk before anything else is done: that
decides the step, and what follows can be completed after a crash. The rest only tidies up: a crash may bring it back.
A redo record is atomic, and holds them all.

    meta  MessagePack [name, operations]
          [1, path, head, size of body, time]   the block's head stands here, its body in the record's body
          [2, source, target, time]
          [3, path]
          [4, path, other, time]                a file with the content of an earlier one of the record
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from xaqueue.core.model import layout, options
from xaqueue.core.model.block import decode_head, has_valid_checksum
from xaqueue.core.model.entry import MessageBlock
from xaqueue.core.storage.journal_format import Entry, Record

LAST_US = 2**63 // 1000 - 1
"""The last time that a file can have."""
PUT, MOVE, DROP = 1, 2, 3
SAME = 4
"""Of a record only: what is put twice is in it once."""

Op = tuple[Any, ...]
"""One operation, as above."""
_pack: Callable[[object], bytes] = msgpack.Packer().pack
"""A new one for each record takes twice as long."""
_entry = tuple.__new__
"""As ``Entry`` itself, without a frame."""


class CoreStep(IntEnum):
    """Which step of the core a record is of; for those who look at a journal, since a replay reads the operations.
    Features have more; see ``RecordKind.steps``."""

    PREPARE = 1
    COMMIT = 2
    ROLLBACK = 3
    ONE_PHASE = 4
    DECISION = 5
    FORGET = 6
    EXPIRY = 9
    HOLLOW = 11


class Change(NamedTuple):
    """A step of the branch or record of this name: its operations, and the numbers that it gives to messages."""

    kind: IntEnum
    name: str
    ops: Sequence[Op]
    point: Sequence[Op] = ()
    rest: Sequence[Op] = ()
    arrivals: Sequence[tuple[str, int]] = ()
    """Queue and sequence number of each message that enters ``committed/``."""
    commits: bool = False
    """It is what a branch was committed for: where there is no room for it, that is to be done again."""
    taken: Mapping[MessageBlock, int] = {}
    """Bits that it has set of blocks of many messages."""
    beside: Sequence[Sequence[Any]] = ()
    """Paths and contents of what is said with its first half, in place, and before it; of a path alone only the
    directory has to be there. Where the files are the record, else its operations have that."""

    def take_back(self) -> None:
        """It has failed, and these bits are not set. Called before another change is planned."""
        for block, bits in self.taken.items():
            block.gone &= ~bits


def step_name(kind: int) -> str:
    """What the step of a record of this kind is called."""
    known = chain(CoreStep, *(one.steps for one in options.everything().kinds()))
    return next((one.name.lower() for one in known if one == kind), str(kind))


def entry_of(change: Change | Entry) -> Entry:
    """Its redo record; a record of the journal's own stays one."""
    if isinstance(change, Entry):
        return change
    kind, name, ops, point, rest, *_ = change
    bodies = []
    packed: list[Op] = []
    put: dict[bytes, str] = {}
    for op in chain(point, ops, rest) if point or rest else ops:
        if op[0] == PUT:
            _, path, head, body, when_us = op
            if body:
                first = put.setdefault(head, path)  # a head has the id, and the checksum of all
                if first is not path:
                    packed.append((SAME, path, first, when_us))
                    continue
                bodies.append(body)
            packed.append((PUT, path, head, len(body), when_us))
        else:
            packed.append(op)
    return _entry(Entry, (kind, _pack((name, packed)), bodies))


def operations_of(record: Record) -> list[list[Any]]:
    """What a record says, the body of a PUT as its size. Raises what msgpack does."""
    _, operations = msgpack.unpackb(record.meta)
    return list(operations)


def ops_of(record: Record) -> list[Op]:
    """The operations of a record, each PUT with its body."""
    found: list[Op] = []
    contents: dict[str, tuple[Any, Any]] = {}
    offset = 0
    for operation in operations_of(record):
        if operation[0] == PUT:
            _, path, head, size, when_us = operation
            contents[path] = head, record.body[offset : offset + size]
            found.append((PUT, path, *contents[path], when_us))
            offset += size
        elif operation[0] == SAME:
            _, path, first, when_us = operation
            found.append((PUT, path, *contents[first], when_us))
        else:
            found.append(tuple(operation))
    return found


def name_of(record: Record) -> str:
    """The name of the branch that it is a step of."""
    name, _ = msgpack.unpackb(record.meta)
    return str(name)


def paths_of(record: Record) -> list[str]:
    """Every path that it names."""
    return [path for operation in operations_of(record) for path in operation[1 : 3 if operation[0] == MOVE else 2]]


def targets_of(record: Record) -> list[str]:
    """Every path at which it puts something."""
    return [operation[2 if operation[0] == MOVE else 1] for operation in operations_of(record) if operation[0] != DROP]


def queues_of(record: Record) -> list[str]:
    """The queues that it adds to or takes from."""
    messages = [layout.parse_message_path(path) for path in paths_of(record)]
    puts = [decode_head(operation[2]) for operation in operations_of(record) if operation[0] == PUT]
    return sorted({place[0] for place in messages if place} | {head.properties.queue for head in puts} - {""})


def is_valid(record: Record) -> bool:
    """Whether it can be read, each body is the one that its head has the checksum of, and each path is one that a
    record may name: it may have come from elsewhere."""
    try:
        name, operations = msgpack.unpackb(record.meta)
        return isinstance(name, str) and _are_valid(operations, record.body)
    except (ValueError, TypeError, LookupError, OverflowError, msgpack.UnpackException):
        return False


def _are_valid(operations: list[list[Any]], body: memoryview | bytes) -> bool:
    offset, put, when_us = 0, set(), 0
    for code, path, *rest in operations:
        if code == PUT:
            head, size, when_us = rest
            if size < 0 or not has_valid_checksum(head, body[offset : offset + size]):
                return False
            offset += size
            put.add(path)
        elif code == SAME:
            first, when_us = rest
            if first not in put:
                return False
        elif code == MOVE:
            path, when_us = rest if layout.is_recorded(path) else ("", 0)
        elif code != DROP or rest:
            return False
        if not layout.is_recorded(path) or not 0 <= operator.index(when_us) <= LAST_US:
            return False
    return offset == len(body)


@dataclass(slots=True)
class Content:
    """What a file holds in the end."""

    head: bytes
    body: bytes | memoryview
    when_us: int

    @property
    def chunks(self) -> list[bytes | memoryview]:
        return [self.head, self.body] if self.body else [self.head]


@dataclass(slots=True)
class Moved:
    """A file that has another name in the end; its content is not in the changes."""

    places: tuple[str, ...]
    """Where it was, the last place first: a crash may have left it in any of them."""
    when_us: int


Final = dict[str, Content | Moved | None]
"""By path what it is in the end, None for gone."""


def final_states(changes: Iterable[Sequence[Op]], put: set[str] | None = None) -> Final:
    """What each path that these operations name is once all of them are done, in the order in which that may be done:
    a record before the bitmap that it explains, and what moves before another file that takes its place. put: gets
    those where the first thing that they do is to put a file; to move there what they have put is to put it, too."""
    wanted: Final = {}
    put = set() if put is None else put
    for ops in changes:
        for op in ops:
            code = op[0]
            if code == DROP:
                if op[1] in wanted:
                    del wanted[op[1]]  # it goes behind what was dropped before: a block before its bitmap
                wanted[op[1]] = None
            elif code == PUT:
                _, path, head, body, when_us = op
                if path in wanted:
                    del wanted[path]  # likewise
                else:
                    put.add(path)
                wanted[path] = Content(head, body, when_us)
            else:
                _, source, target, when_us = op
                want = wanted.get(source)
                when_us = when_us or (want.when_us if want is not None else 0)  # a name says nothing of the time
                if source in put and target not in wanted:
                    put.add(target)
                if isinstance(want, Content):
                    want.when_us = when_us  # only this path had it
                    wanted[target] = want
                else:
                    places = (source, *(want.places if want is not None else ()))
                    wanted[target] = Moved(places, when_us)
                    wanted[places[-1]] = wanted.pop(places[-1], None)  # where another file may stand by then
                wanted[source] = None
    return wanted


def highest_numbers(records: Iterable[Record]) -> dict[str, int]:
    """By queue the highest sequence number that these give to a message. What they remove says nothing of others."""
    highest: dict[str, int] = {}
    for record in records:
        for path in targets_of(record) if record.kind != CoreStep.HOLLOW else ():
            place = layout.parse_message_path(path)
            if place is not None:
                highest[place[0]] = max(highest.get(place[0], 0), place[1])
    return highest
