"""What changes of a message while it stands in its queue: how often a dequeue of it was rolled back.

The message's file stays as it was committed. Beside it, under the same number and id in ``.retries/`` of its queue,
stands a record: a command block of kind update, whose property ``tries`` counts. It comes with the first try and goes
with the message; one whose message is gone is removed by the next open. Most messages have none.
"""

from __future__ import annotations

from collections.abc import Callable

from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId, Properties
from xaqueue.space.model import layout
from xaqueue.space.model.block import Block, Kind, decode, encode_with_checksum
from xaqueue.space.model.block_files import read_block
from xaqueue.space.model.index import Entry
from xaqueue.space.model.message_name import PLAIN_NAME
from xaqueue.storage.fs import FileSystem, is_damage
from xaqueue.storage.regular import NO_DIRECTORY

RECORD_BYTES = 512
"""More than a record and its path have."""

Place = tuple[int, MessageId]
"""Number and id of a message."""


def encode_record(queue: str, message_id: MessageId, tries: int, epoch: int) -> bytes:
    """The record of a message that has had so many tries."""
    head, _ = encode_with_checksum(Block(Kind.UPDATE, message_id, Properties(queue, tries=tries), epoch=epoch))
    return head


def decode_record(data: bytes, queue: str, message_id: MessageId) -> int:
    """How many tries the record tells of. Raises DamagedBlock, also for the record of another message."""
    block = decode(data)
    if (block.kind, block.message_id, block.properties.queue) != (Kind.UPDATE, message_id, queue):
        raise DamagedBlock("is not the record of tries of the message that it is named after")
    return block.properties.tries


def read_all(
    fs: FileSystem, queue: str, damaged: Callable[[str, str], object] = lambda path, reason: None
) -> dict[Place, int]:
    """The tries of all messages that had any. ``damaged``: told of paths that are no records, and why."""
    directory = layout.retries_path(queue)
    found = {}
    try:
        names = sorted(name for name in fs.list(directory) if not name.startswith("."))
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        damaged(directory, "a file where the directory of tries should be")
        return {}
    for name in names:
        path, place = f"{directory}/{name}", layout.parse_message(name[:PLAIN_NAME])
        if place is None or len(name) != PLAIN_NAME:
            damaged(path, "no record of tries: its name is not <seq>.<message id>")
            continue
        try:
            found[place] = decode_record(read_block(fs, path), queue, place[1])
        except FileNotFoundError:
            continue  # it went with its message
        except DamagedBlock as damage:
            damaged(path, f"the record of tries: {damage}")
        except OSError as error:
            if not is_damage(fs, path, error):
                raise
            damaged(path, f"the record of tries cannot be read: {error.strerror}")
    return found


def files_of(queue: str, entry: Entry) -> list[str]:
    """All that goes with a message: its file, and the record of its tries where it had any."""
    path = layout.message_path(queue, entry.seq, entry.message_id, entry.tags)
    return [path, layout.retry_path(queue, entry.seq, entry.message_id)] if entry.tries else [path]
