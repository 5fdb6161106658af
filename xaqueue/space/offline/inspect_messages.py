"""The messages of a queue, seen without owning the space, in the order in which they would be delivered."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.message import Message, MessageId
from xaqueue.space.engine.messages import message_of
from xaqueue.space.model import layout, message_name, retries
from xaqueue.space.model.block_files import damage_of, read_block
from xaqueue.space.model.index import Order
from xaqueue.space.offline.inspect import watermark_in
from xaqueue.space.offline.redo_view import look_into
from xaqueue.space.owner.open import read_definitions
from xaqueue.space.recovery import prepared
from xaqueue.storage.fs import FileSystem

Place = tuple[int, MessageId, str]
"""Number, id and tags of a message."""


def browse(path: str | os.PathLike[str], queue: str, damaged: Callable[[int, str], None]) -> Iterator[Message]:
    """What is committed, in the order of the queue; also what is locked or not due yet, and nothing that has expired.

    damaged: told of the number of a message that cannot be read, and why. Raises SpaceError.
    """
    looked = look_into(path)
    fs = looked.fs
    names = sorted(prepared.message_names(fs, queue))
    places = [place for name in names if (place := message_name.parse(name)) is not None]
    upto = watermark_in(fs, queue) if looked.owned else None  # what is above is not acknowledged, or the next open's
    if upto is not None:
        places = [place for place in places if place[0] <= upto]
    tries = retries.read_all(fs, queue)
    for seq, message_id, tags in _ordered(places, _order(path, queue)):
        where = layout.message_path(queue, seq, message_id, tags)
        try:
            message = message_of(queue, seq, message_id, _read(fs, where), tries.get((seq, message_id), 0))
        except FileNotFoundError:
            continue  # consumed meanwhile
        except DamagedBlock as damage:
            damaged(seq, str(damage))
            continue
        if message.properties.expires_at is None or message.properties.expires_at > time.time_ns() // 1000:
            yield message


def _order(path: str | os.PathLike[str], queue: str) -> Order:
    try:
        definitions = read_definitions(path)
    except InvalidArgument:
        return Order.FIFO  # what is wrong with them is told by status
    definition = definitions.queues.get(queue) or definitions.default
    return definition.order if definition is not None else Order.FIFO


def _ordered(places: list[Place], order: Order) -> list[Place]:
    if order is Order.LIFO:
        return places[::-1]
    if order is Order.PRIORITY:
        return sorted(places, key=lambda place: -message_name.read_tags(place[2]).priority)
    return places


def _read(fs: FileSystem, path: str) -> bytes:
    try:
        return read_block(fs, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise damage_of(fs, path, error) from error
