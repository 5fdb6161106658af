"""The methods that a replica calls: a copy of a snapshot, and then what follows in the journal.

Their forms are in ``man/xaqueue.5``. Who asks for what follows an LSN has everything below it on disk: that is the
acknowledgement. ``replaced`` is called by a replica that was promoted: this space is fenced for good, and what it has
beyond that LSN is listed beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from xaqueue.access import ADMIN
from xaqueue.core.engine.state import Space
from xaqueue.core.model.layout import GOOD_QUEUES
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import Error, InvalidArgument, ResourceFailed, RetryLater
from xaqueue.features.replica import replicated
from xaqueue.features.replica.replicas import list_unshipped
from xaqueue.features.replica.replicated import Replicated
from xaqueue.features.replica.shipping import LOOK_S, Shipping, shipping_of
from xaqueue.features.snapshots import manifest, store
from xaqueue.features.snapshots.manifest import SNAPSHOTS
from xaqueue.features.snapshots.restored import RESTORED
from xaqueue.features.snapshots.take import take_and_keep
from xaqueue.rpc.verb import methods

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

PAGE_BYTES = 1024 * 1024
PAGE_FILES = 1000
LONGEST_WAIT_S = 60.0

Page = list[list[Any]]


def replicate(
    caller: Caller, epoch: Any, lsn: Any, hardened: Any = 0, wait_s: Any = 0, definitions: Any = 0
) -> list[Any] | None:
    """The piece that follows, for which it waits so long; nil where the replica is to begin anew."""
    for number in (epoch, lsn, hardened, wait_s, definitions):
        if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number < 2**63:
            raise InvalidArgument(f"replicate takes an epoch, two LSNs, seconds and a CRC-32, not {number!r}")
    space, shipping = _shipping_of(caller)
    piece = shipping.next(int(epoch), int(lsn), int(hardened), min(float(wait_s), LONGEST_WAIT_S))
    if piece is None:
        return None
    space.check_readable()
    return [*piece, space.now_us(), _definitions(space, shipping, definitions)]


def _definitions(space: Space, shipping: Shipping, known: Any) -> bytes | None:
    """Looked at once a second; None where they are known."""
    now = time.monotonic()
    if now - shipping.looked_at < LOOK_S:
        return None
    shipping.looked_at = now
    try:
        text = space.fs.read(GOOD_QUEUES)
    except OSError:
        return None
    return None if crc32(text) == known else text


def replica_begin(caller: Caller) -> dict[str, Any]:
    """Takes a snapshot, of which ``replica_next`` has the files."""
    space, shipping = _shipping_of(caller)
    shipping.copying = True
    try:
        return space.waiting.run(partial(_begin, caller, space))
    except BaseException:
        shipping.copying = False
        raise


def _begin(caller: Caller, space: Space) -> dict[str, Any]:
    number = take_and_keep(space, prunes=False).number
    made = store.find(space.fs, number)
    caller.copying, caller.copied = _pages(space.fs, number), number
    restored = space.fs.read(RESTORED) if space.fs.exists(RESTORED) else None
    fields = {"number": number, "journal": made.journal, "lsn": made.lsn, "space": made.space, "epoch": made.epoch}
    return {**fields, "restored": restored}


def replica_next(caller: Caller) -> Page | None:
    """The next page of the snapshot that this session began; nil behind the last one."""
    space, _ = _shipping_of(caller)
    pages = caller.copying
    if pages is None:
        raise InvalidArgument("no copy is under way in this session: begin one")
    try:
        page = space.waiting.run(lambda: next(pages, None))
    except OSError as error:
        raise RetryLater(f"the snapshot cannot be read ({error.strerror}): begin the copy again") from error
    if page is None:
        caller.copying = None
    return page


def replica_end(caller: Caller, number: Any) -> None:
    """The replica has the snapshot, or does not want it any more: it goes."""
    space, shipping = _shipping_of(caller)
    if not isinstance(number, int):
        raise InvalidArgument(f"snapshot {number!r} is refused: its number is wanted")
    caller.copying = caller.copied = None
    shipping.copying = False
    space.waiting.run(partial(store.remove, space.fs, [number]))


def give_up_copy(caller: Caller) -> None:
    """Its session is over, and who copied begins again, if at all."""
    space, number = caller.session.space, caller.copied
    if number is not None and (shipping := shipping_of(space)) is not None:
        shipping.copying = False
        with suppress(Error, OSError):  # it stays, and is seen by who lists snapshots
            space.waiting.run(partial(store.remove, space.fs, [number]))


def replaced(caller: Caller, space_id: Any, epoch: Any, journal: Any, lsn: Any, url: Any = "") -> None:
    """A replica of this space, of this epoch now, was promoted at that LSN of a journal, and is the space."""
    space = caller.session.space
    if space_id != space.id or not isinstance(epoch, int) or epoch <= space.epoch:
        raise InvalidArgument(f"this is space {space.id}, epoch {space.epoch}: no replica has replaced it")
    if not isinstance(journal, int) or not isinstance(lsn, int) or not isinstance(url, str):
        raise InvalidArgument("replaced takes a space, its epoch, a journal, an LSN and a URL")
    made = Replicated(replicated.REPLACED, url, space_id, epoch, journal, lsn, time.time_ns() // 1000)
    space.log.fail(ResourceFailed("the space is fenced: its replica was promoted, and is the space now"))
    try:
        list_unshipped(space.fs, made)  # here, since the server ends as soon as the loop goes on
    finally:  # without room for the list, too
        replicated.write(space.fs, made)


REPLICATION_METHODS = methods(ADMIN, replicate, replica_begin, replica_next, replica_end, replaced)


def _shipping_of(caller: Caller) -> tuple[Space, Shipping]:
    space = caller.session.space
    space.check()
    shipping = shipping_of(space)
    if shipping is None:
        raise InvalidArgument(
            "this space ships no journal: give its queues.toml a [replication] table, at level JOURNAL, and start the "
            "server again"
        )
    return space, shipping


def _pages(fs: FileSystem, number: int) -> Iterator[Page]:
    """Of the files of a snapshot, its manifest left out."""
    directory = f"{SNAPSHOTS}/{number}"
    page: Page = []
    size = 0
    for path in manifest.files_below(fs, directory):
        source, offset = f"{directory}/{path}", 0
        length, when_ns = fs.size(source), fs.modified_ns(source)
        while True:
            data = fs.read(source, PAGE_BYTES, offset)
            is_last = offset + len(data) >= length or not data
            page.append([path, when_ns if is_last else 0, offset, data])
            offset, size = offset + len(data), size + len(data)
            if size >= PAGE_BYTES or len(page) == PAGE_FILES:
                yield page
                page, size = [], 0
            if is_last:
                break
    if page:
        yield page
