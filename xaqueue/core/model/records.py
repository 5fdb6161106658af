"""What a space records beside its messages: each record is a command block, in a file of its own.

Retries: a message's file stays as it was committed. How often a delivery of it has failed stands beside it, under the
same number and id in ``.retries/`` of its queue: a block of kind *update*, whose property ``tries`` counts. Until
``not_before`` it is put off, ``enqueued_at`` is when a delivery failed first, and the headers say when (``last``) and
why (``reason``) one failed last. It comes with the first failure and goes with the message; one whose message is gone
is removed by the next open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.core.model.block_files import read_checked
from xaqueue.core.model.entry import Retry
from xaqueue.core.model.message_name import PLAIN_NAME
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.regular import NO_DIRECTORY
from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId, Properties

Place = tuple[int, MessageId]
"""Number and id of a message."""


def decode_retry(data: bytes, queue: str, message_id: MessageId) -> Retry:
    """What the record tells. Raises DamagedBlock, also for the record of another message."""
    block = decode(data)
    properties = block.properties
    if (block.kind, block.message_id, properties.queue) != (Kind.UPDATE, message_id, queue):
        raise DamagedBlock("is not the record of tries of the message that it is named after")
    last = properties.headers.get("last", "")
    return Retry(
        properties.tries,
        properties.not_before,
        properties.enqueued_at,
        int(last) if last.isdecimal() else 0,
        sys.intern(properties.headers.get("reason", "")),  # many have failed for the same one
    )


def read_retries(
    fs: FileSystem, queue: str, damaged: Callable[[str, str], object] = lambda path, reason: None
) -> dict[Place, Retry]:
    """Of all messages of which a delivery has failed. ``damaged``: called with paths that are no records, and why."""
    directory = layout.retries_path(queue)
    found = {}
    for name in names_in(fs, directory, "tries", damaged):
        path, place = f"{directory}/{name}", layout.parse_message(name[:PLAIN_NAME])
        if place is None or len(name) != PLAIN_NAME:
            damaged(path, "no record of tries: its name is not <seq>.<message id>")
            continue
        try:
            found[place] = decode_retry(read_checked(fs, path), queue, place[1])
        except FileNotFoundError:
            continue  # it went with its message
        except DamagedBlock as damage:
            damaged(path, f"the record of tries: {damage}")
    return found


def names_in(fs: FileSystem, directory: str, what: str, damaged: Callable[[str, str], object]) -> list[str]:
    try:
        return sorted(name for name in fs.list(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        damaged(directory, f"a file where the directory of {what} should be")
        return []


def encode_record(properties: Properties, body: bytes, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of a record of kind *branch*, whose size was checked when what it tells of came in."""
    head, _ = encode_with_checksum(Block(Kind.BRANCH, NO_MESSAGE, properties, body, epoch), body_limit_bytes=UNLIMITED)
    return head, body
