"""What FORMAT says of a space that has blocks of many messages: a version that knows none of them refuses it.

It says so before the first block is written, and again after a last clean close with none left where no queue asks for
them: so who goes back to that version drains such queues with ``blocks = "one"``. A crash between the two leaves a
space that says more than it has, which takes only the way back.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import layout
from xaqueue.core.model.block import FORMAT_VERSION, Kind
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.definitions import MANY
from xaqueue.core.model.format import WITH_BLOCKS, parse
from xaqueue.core.model.message_name import parse_any
from xaqueue.core.model.record_kinds import Opening, RecordKind
from xaqueue.core.storage.fs import FileSystem, replace_file
from xaqueue.errors import RetryLater


class FormatKind(RecordKind):
    others = (f".{layout.FORMAT}.new",)

    def finish(self, opening: Opening) -> None:
        """A restore or a promotion may have brought blocks, and the line of the time before them."""
        if opening.space.read_only is None and _has_blocks(opening.space):
            says_blocks(opening.space)


class _Said:
    """Of a space that is open."""

    def __init__(self) -> None:
        self.writing = threading.Lock()
        self.blocks = False
        """That it has blocks stands in FORMAT."""


def says_blocks(space: Space) -> bool:
    """Whether FORMAT says that there may be blocks, from now on; not where there is no room for that. Raises
    ResourceFailed."""
    said = space.memory_of(_Said)
    if not said.blocks:
        with said.writing:
            try:
                with space.fencing("to say in FORMAT that there are blocks"):
                    _write(space, WITH_BLOCKS)
            except RetryLater as error:
                log.warning("[no-room-yet] each message has a file of its own: %s", error)
                return False
            said.blocks = True
    return True


def closed(space: Space) -> None:
    """After a clean close."""
    asked = any(queue.blocks == MANY for _, queue in space.definitions.listed())
    with suppress(OSError):  # the next one says it
        if not asked and not _has_blocks(space) and not _has_archived(space.fs):
            _write(space, FORMAT_VERSION)


def _write(space: Space, version: int) -> None:
    fs, path = space.fs, layout.FORMAT
    found = parse(fs.read(path).decode("utf-8", "replace")) if fs.exists(path) else None
    if found is not None and found.version != version:
        durable = space.hardening.journal or bool(space.hardening.content)
        replace_file(fs, path, f"{replace(found, version=version).line}\n".encode(), durable=durable)


def _has_blocks(space: Space) -> bool:
    with space.lock:
        if any(queue.blocks for queue in space.queues.values()):
            return True
        return any(one.kind is Kind.MESSAGES for branch in space.branches.values() for one in branch.blocks)


def _has_archived(fs: FileSystem) -> bool:
    queues = [f"{layout.ARCHIVE}/{queue}" for queue in listed(fs, layout.ARCHIVE)]
    ranges = [f"{queue}/{one}" for queue in queues for one in listed(fs, queue)]
    files = [parse_any(name) for one in ranges for name in listed(fs, one)]
    return any(named is not None and named.is_block for named in files)
