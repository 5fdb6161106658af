"""Enqueues are refused while there is room yet, so that what is under way finds what it needs.

Two limits, of bytes and of inodes, stay free on the disk; beyond them there is the reserve, which is given up where
the disk becomes full all the same. An enqueue that is refused has changed nothing. Its branch, and everybody's
dequeue, prepare, commit and rollback, go on; with room on the disk so do enqueues, by themselves.

The disk is not asked for each message: a part of what is free may be used up first, or a second may pass.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from xaqueue.core.engine.log import Log
from xaqueue.core.model.branch import Branch
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.storage.fs import FileSystem, Room, suppress_room
from xaqueue.core.storage.reserve import FULL, Reserve
from xaqueue.errors import DiskLow

SHARE = 20
"""Where nothing is defined, this part of the disk stays free."""
LARGEST_BYTES = 64 * 1024 * 1024
LARGEST_INODES = 1000
"""Where nothing is defined, no more than these."""
FILE_BYTES = 4096
"""What a file takes beside its content, at most."""
LOOK_BYTES = 1024 * 1024
LOOK_S = 1.0
"""The disk is looked at whenever one of these was used up; so no more than 256 files come between."""


def limits(definitions: Definitions, room: Room) -> tuple[int, int]:
    """How many bytes and how many inodes are to stay free; 0 where there is no limit."""
    size, count = definitions.min_free_bytes, definitions.min_free_inodes
    if size is None:
        size = min(room.total_bytes // SHARE, LARGEST_BYTES)
    if count is None:
        count = min(room.total_inodes // SHARE, LARGEST_INODES)
    return size, count if room.total_inodes else 0


def segment_bytes(definitions: Definitions, room: Room) -> int:
    """The size of a journal's segments: on a small disk several of them have to leave room for messages."""
    return min(definitions.journal_segment_bytes, room.total_bytes // SHARE)


def refusal(definitions: Definitions, room: Room, size_bytes: int = FILE_BYTES) -> str:
    """Why a message of this size is refused, with the figures; empty where it is not."""
    least_bytes, least_inodes = limits(definitions, room)
    if least_bytes and room.free_bytes - size_bytes < least_bytes:
        return (
            f"{room.free_bytes:,} bytes of the disk are free, {size_bytes:,} are wanted, and {least_bytes:,} have to "
            "stay free ([space] min_free_bytes)"
        )
    if least_inodes and room.free_inodes - 1 < least_inodes:
        return (
            f"{room.free_inodes:,} inodes of the disk are free, and {least_inodes:,} have to stay free "
            "([space] min_free_inodes)"
        )
    return ""


class RoomLimit:
    """Watches the room on the disk of a space, and holds its reserve, where there is one."""

    def __init__(self, fs: FileSystem, reserve: Reserve | None = None, unreserved: FileSystem | None = None) -> None:
        """reserve: what is missing of it is to be restored. unreserved: the same port without it."""
        self._fs = fs
        self.unreserved = unreserved or fs
        """For what may be left undone without room."""
        self.kept: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Bytes and files that branches keep in memory which are not prepared: they are going to need room."""
        self._reserve = reserve
        self._left_bytes = -1
        """What may be used up before the next look; each file counts as FILE_BYTES at least."""
        self._due = 0.0
        if reserve is not None:
            reserve.used = self._look_soon

    def has(self, size_bytes: int) -> bool:
        """Counts a message with a body of this size. False: ``check`` has to look."""
        self._left_bytes = left_bytes = self._left_bytes - size_bytes - FILE_BYTES
        return left_bytes >= 0 and monotonic() < self._due

    def check(self, definitions: Definitions, log: Log, branch: Branch, size_bytes: int) -> None:
        """Looks before a message with a body of this size is written. Raises DiskLow, OSError, ResourceFailed."""
        lack = self._look(definitions, log, size_bytes + FILE_BYTES)
        if lack:
            self._look_soon()
            raise DiskLow(
                f"low on disk: {lack}. Nothing was written, and branch {branch.xid} is as it was: go on with it, and "
                "enqueue again when there is room: take messages out, or `xaqueue clean --older-than 7d` removes what "
                "was set aside"
            )

    def _look_soon(self) -> None:
        self._left_bytes = -1

    def retry(self, error: OSError, call: Callable[[], object]) -> None:
        """Does a call that failed with this error again, with room from the reserve. Raises its last error."""
        if self._reserve is None:
            raise error
        self._reserve.again(error, call)

    def restore(self, definitions: Definitions) -> str:
        """Makes the reserve again, where something of it is missing and there is room; returns why not, or nothing.

        Raises OSError.
        """
        reserve = self._reserve
        if reserve is None or not reserve.missing:
            return ""
        room, wanted = self._fs.room(), reserve.missing * (reserve.piece_bytes + FILE_BYTES)
        lack = refusal(definitions, room._replace(free_inodes=room.free_inodes - reserve.missing), wanted)
        try:
            if not lack:
                reserve.make()
        except OSError as error:
            if error.errno not in FULL:
                raise
            lack = f"{room.free_bytes:,} bytes and {room.free_inodes:,} inodes of the disk are free"
        return f"the reserve is used up: {lack}" if lack else ""

    def _look(self, definitions: Definitions, log: Log, size_bytes: int) -> str:
        """Why this message is refused, or nothing; then, how much may be used until the next look."""
        lack, room = self._refused(definitions, log, size_bytes)
        if lack and log.pending:
            with suppress_room():  # what goes leaves its room, and what comes is counted by the disk
                log.settle()
            lack, room = self._refused(definitions, log, size_bytes)
        if not lack:
            least_bytes, least_inodes = limits(definitions, room)
            self._left_bytes = min((room.free_bytes - size_bytes - least_bytes) // 4, LOOK_BYTES)
            if room.total_inodes:
                self._left_bytes = min((room.free_inodes - 1 - least_inodes) // 4 * FILE_BYTES, self._left_bytes)
            self._due = monotonic() + LOOK_S
        return lack

    def _refused(self, definitions: Definitions, log: Log, size_bytes: int) -> tuple[str, Room]:
        """Why this message is refused now, or nothing, and the room that it finds; the reserve comes before it."""
        lack = self.restore(definitions)
        room, (size, files), (kept_bytes, kept_files) = self._fs.room(), log.waiting_room, self.kept()
        size, files = size + kept_bytes, files + kept_files
        room = room._replace(
            free_bytes=room.free_bytes - size - files * FILE_BYTES, free_inodes=room.free_inodes - files
        )
        return lack or refusal(definitions, room, size_bytes), room
