"""A dequeue that was rolled back is counted beside its message, so that a poisoned message shows after a restart.

Of those that a killed process had begun tell their blocks in active/, and with a journal ``register``.
With a journal the record of the rollback has the count as well. Without, it is a file that is hardened and renamed
over the last one: any crash leaves the old count or the new one. A try that is not counted for want of room is only a
try not counted, and one whose block a power loss brings back is counted twice; the message is safe either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from xaqueue.errors import RetryLater
from xaqueue.space.model import layout, retries
from xaqueue.space.model.block import Kind
from xaqueue.space.model.branch import Branch
from xaqueue.space.model.index import Entry
from xaqueue.space.model.layout import ACTIVE, block_path, numbered
from xaqueue.storage.fs import NO_ROOM, discard
from xaqueue.storage.regular import NO_DIRECTORY

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

Held = tuple[str, Entry]
"""Queue and entry of a message that a branch dequeued."""


def held_by(branch: Branch) -> list[Held]:
    return [(w.queue, w.entry) for w in branch.blocks if w.kind is Kind.DEQUEUE and w.entry is not None]


def one_more(space: Space, held: Sequence[Held]) -> list[tuple[str, bytes]]:
    """Path and content of the record of each message's next try, as far as a journal takes all of them into a step."""
    journal = space.barrier.journal
    if journal is None or not journal.fits(len(held) * retries.RECORD_BYTES):
        return []
    return [_record(space, queue, entry, entry.tries + 1) for queue, entry in held]


def count(space: Space, branch: Branch, held: Sequence[Held], *, recorded: bool = False) -> None:
    """One more try of each locked message, in memory and beside it. recorded: the journal has it already.

    Raises ResourceFailed.
    """
    if not held:
        return
    try:
        anew = [pair for queue, entry in held if (pair := _write_anew(space, branch, queue, entry))]
        try:
            if not recorded:
                space.barrier.harden_content([source for source, _ in anew])
        except RetryLater:
            for source, _ in anew:
                space.fs.unlink(source)
            return
        for source, path in anew:
            if recorded and space.fs.exists(path):
                discard(space.fs, path)  # what lags replaces nothing; a crash in between leaves it to the journal
            _put(space, source, path)
    except OSError as error:
        raise space.fence(error) from error


def _record(space: Space, queue: str, entry: Entry, tries: int) -> tuple[str, bytes]:
    path = layout.retry_path(queue, entry.seq, entry.message_id)
    return path, retries.encode_record(queue, entry.message_id, tries, space.epoch)


def _write_anew(space: Space, branch: Branch, queue: str, entry: Entry) -> tuple[str, str] | None:
    entry.tries += 1
    path, content = _record(space, queue, entry, entry.tries)
    directory, source = layout.retries_path(queue), _free_path(space, branch)
    try:
        if not space.fs.is_dir(directory):
            with suppress(FileExistsError):
                space.fs.make_dir(directory)
        space.fs.create(source, [content])
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return None
    return source, path


def _put(space: Space, source: str, path: str) -> None:
    try:
        space.fs.rename(source, path)
    except OSError as error:
        if error.errno not in NO_ROOM | NO_DIRECTORY:
            raise
        space.fs.unlink(source)


def _free_path(space: Space, branch: Branch) -> str:
    """A name in active/ that no block has: of a branch found in doubt, a power loss may have brought one back."""
    while True:
        branch.numbers += 1
        path = block_path(ACTIVE, branch.name, numbered(branch.numbers))
        if not space.fs.exists(path):
            return path
