"""A range that is full leaves an image beside it while the space works, so that an open after a kill reads few heads.

It is in the bytes of ``image``, with one range, and is written with a journal only, behind a checkpoint,
of what that checkpoint hardened. As for the image that a clean close leaves, names decide what is there, and losing it
costs time and never content. What it says of a name stays true as long as the space works: a number is never used
twice, and the file of a message changes only where a try is counted, which first removes the image, durably. At levels
without a journal nobody would do so durably: an open removes them all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from xaqueue.errors import RetryLater
from xaqueue.space.engine import image
from xaqueue.space.model import layout
from xaqueue.space.model.layout import RANGE_BITS, RANGE_SIZE
from xaqueue.storage.fs import NO_ROOM, FileSystem, discard

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space
    from xaqueue.space.model.index import Entry
    from xaqueue.space.model.queue import Queue

WORTH = RANGE_SIZE // 4
"""Messages of a range below which it gets none: they are going to be gone soon, or opened as fast without."""
PAUSE_S = 0.02
"""Between two images, so that nobody who works meanwhile waits for more than one."""

Full = tuple["Queue", int]
"""A queue, and the number of one of its ranges."""

log = logging.getLogger("xaqueue")


class RangeImages:
    """Those of one space. ``queue.images`` has the ranges beside which one stands, as far as is known."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        """Held while an image is made, or removed because it is no longer true."""
        self._due: set[tuple[str, int]] = set()

    def find(self, space: Space, queue: Queue, ranges: Iterable[int]) -> None:
        """Notes which images stand beside a queue's ranges; those of no range go. Raises OSError."""
        names = space.fs.list(layout.queue_path(queue.name))
        queue.images = {number for name in names if (number := layout.parse_range_image(name)) is not None}
        if space.read_only is None:
            wanted = set(ranges) if space.hardening.journal else set()
            gone = queue.images - wanted
            for number in gone:
                discard(space.fs, layout.range_image_path(queue.name, number))
            if gone and not space.hardening.journal:
                space.fs.sync_dir(layout.queue_path(queue.name))
            queue.images &= wanted

    def due(self, space: Space) -> Sequence[Full]:
        """Ranges that are full and have none. What is in them is for the next checkpoint to harden."""
        with space.lock:
            found = [(queue, number) for queue in space.queues.values() for number in queue.full_ranges(WORTH)]
            self._due = {(queue.name, number) for queue, number in found}
        return found

    def leave(self, space: Space, due: Iterable[Full], stopped: Callable[[], bool]) -> None:
        """Writes the images of these, behind that checkpoint. One that cannot be written is left out."""
        fs = _port(space)
        for queue, number in due:
            if stopped():
                return
            try:
                with self._guard:
                    if (queue.name, number) in self._due:
                        _write(space, fs, queue, number)
            except OSError as error:  # nobody was promised an image
                log.warning("range %d of queue %s gets no image (%s)", number, queue.name, error)
                with suppress(OSError):
                    fs.unlink(layout.range_image_path(queue.name, number))
                return
            time.sleep(PAUSE_S)

    def void(self, space: Space, held: Iterable[tuple[str, Entry]]) -> None:
        """Before files of these messages are replaced. Raises OSError, and RetryLater without room."""
        for name, number in {(name, entry.seq >> RANGE_BITS) for name, entry in held}:
            self.remove(space, space.queues[name], number)

    def remove(self, space: Space, queue: Queue, number: int) -> None:
        """The image of this range is gone, durably. Raises as ``void`` does."""
        fs = _port(space)
        with self._guard:
            self._due.discard((queue.name, number))
            if number not in queue.images:
                return
            try:
                fs.hold_dir(layout.queue_path(queue.name))
                discard(fs, layout.range_image_path(queue.name, number))
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise RetryLater(f"no room to remove an image of queue {queue.name} ({error.strerror})") from error
            fs.sync_dir(layout.queue_path(queue.name))
            queue.images.discard(number)


def checkpoint(space: Space, stopped: Callable[[], bool] = lambda: False) -> None:
    """A checkpoint, and images of what it hardened. Raises ResourceFailed."""
    journal = space.barrier.journal
    if journal is None:
        return
    images = space.range_images
    due = images.due(space)
    position = journal.position
    space.checkpoint()
    if journal.checkpoint >= position:  # it may have found no room
        images.leave(space, due, stopped)


def read(space: Space, queue: Queue, number: int) -> image.Section | None:
    """What the image of a range says; None where there is none that can be believed. Raises OSError.

    One that cannot be read now may be read later, when it is no longer true: it goes.
    """
    if number not in queue.images:
        return None
    found = image.read_path(space.fs, layout.range_image_path(queue.name, number), queue.name)
    if found is not None and number in found.sections:
        return found.sections[number]
    if space.read_only is None:
        with suppress(RetryLater):  # then it is there, and known to be
            space.range_images.remove(space, queue, number)
    return None


def _write(space: Space, fs: FileSystem, queue: Queue, number: int) -> None:
    path = layout.range_image_path(queue.name, number)
    with space.lock:
        if number not in queue.ranges:
            return
        rows, special = image.range_of(queue.index, number)
        queue.images.add(number)
    with suppress(FileNotFoundError):
        fs.unlink(path)  # a damaged one
    if rows:
        fs.create(path, image.encode_range(queue.name, rows, special, space.epoch))


def _port(space: Space) -> FileSystem:
    """Images do not wait in memory: one that fails there would fail what others wait for."""
    return space.lag.fs if space.lag is not None else space.fs
