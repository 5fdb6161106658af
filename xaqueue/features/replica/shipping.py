"""The journal is shipped: a replica asks for what follows an LSN, and so says that it has all below it on disk.

Where [replication] acknowledge = "replica", a round publishes nothing before a replica has it: whoever leads it waits.
Without one for acknowledge_timeout_s the space is fenced, and what was being done is unknown: its records are on this
disk, so an open publishes it, once a replica has it or an operator says "local". It is never given up by itself.

A replica reads what is in the files of the journal. Where a round waits for it, that is sent before the round is synced
here, so that both disks work at once; a replica is told what is hardened here, and its directories follow that alone: a
power loss may take the rest here, which nobody was promised, and the replica lets go of it. Segments that a checkpoint
has released are read where they are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from xaqueue.core.engine.state import Space
from xaqueue.core.model.layout import JOURNAL
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.group_commit import Unacknowledged
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.journal_format import PREFIX_BYTES, SECTOR_BYTES, claimed_end
from xaqueue.core.storage.scheduling import Threads
from xaqueue.errors import ProtocolError, ResourceFailed
from xaqueue.features.replica.options import Replication
from xaqueue.features.replica.replicated import SOURCE, ReplicationStatus
from xaqueue.features.snapshots.manifest import KEPT_JOURNAL
from xaqueue.features.snapshots.segments import Place, begin_of, places

PIECE_BYTES = 1024 * 1024
"""Of one answer, unless a record is larger."""
REPORT_S = 0.05
"""A replica that lacks nothing is told what was hardened after so long."""
LOOK_S = 1.0
"""Between two looks at what queues.toml says."""
SILENT_S = 5.0
"""A replica that has asked for nothing for longer is taken for gone; while it waits, it asks more often."""
WAITS = (
    "this space waits for its replica, which is to have what was recorded before it shows anything: start "
    'the replica (`xaqueue replica`), or set [replication] acknowledge = "local" in queues.toml'
)


class Piece(NamedTuple):
    """Bytes of a segment, from an LSN on; there may be none yet."""

    epoch: int
    """Of the journal that it is of."""
    start: int
    size: int
    """Of the segment."""
    next_size: int
    """Of the segment behind it; 0 for none yet."""
    lsn: int
    data: bytes
    hardened: int
    """The LSN below which the source has all of this journal on disk."""
    end: tuple[int, int]
    """Epoch and LSN of the next record of all."""


def shipping_of(space: Space) -> Shipping | None:
    """None where its journal is not shipped."""
    shipping = space.shipping
    assert shipping is None or isinstance(shipping, Shipping)
    return shipping


class Shipping:
    """Of one space; see ``log.Ships``. Safe for threads and tasks."""

    def __init__(self, fs: FileSystem, journal: Journal, waiting: Threads, policy: Callable[[], Replication]) -> None:
        self.policy = policy
        self._fs = fs
        self._journal = journal
        self._waiting = waiting
        self._lock = threading.Lock()
        self._changed = waiting.condition(self._lock)
        self._written = 0
        self._has = (0, 0)
        """Epoch and LSN below which a replica has all."""
        self._began = time.monotonic()
        self._heard = float("-inf")
        self._stopped = False
        self.looked_at = float("-inf")
        """When a replica was last told what queues.toml says."""
        self.is_whole = threading.Event()
        self.copying = False
        self.refusal = WAITS if policy().waits else ""
        """Until it is empty nobody is told of a step, and none waits."""

    @property
    def end(self) -> tuple[int, int]:
        """Epoch and LSN of the next record; one that is on its way to disk is sent, too."""
        return self._journal.segment_epoch, max(self._journal.position, self._written)

    @property
    def status(self) -> ReplicationStatus:
        (epoch, end), (has_epoch, has) = self.end, self._has
        silent_s = time.monotonic() - max(self._heard, self._began)
        lacking = end - has if has_epoch == epoch else end
        is_heard = self._heard > self._began and silent_s <= SILENT_S
        return ReplicationStatus(SOURCE, "", self.policy().waits, is_heard, lacking, silent_s)

    def changed(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def check_shown(self) -> None:
        if self.refusal:
            raise ResourceFailed(self.refusal)

    def stop(self) -> None:
        """Nobody waits any more: what no replica has by now is unknown."""
        self._stopped = True
        self.changed()

    def close(self) -> None:
        self.refusal = "the space is being closed"

    # Whoever leads a round

    def written(self, lsn: int) -> None:
        if self.policy().waits:
            with self._lock:
                self._written = lsn
                self._changed.notify_all()
            self._waiting.let_others()

    def hardened(self, lsn: int, shows: bool) -> None:
        with self._lock:
            self._changed.notify_all()
        policy = self.policy()
        if shows and policy.waits and not self.refusal and not self._await(lsn, policy.timeout_s):
            how_long = "until it was stopped" if self._stopped else f"for {policy.timeout_s:g} s"
            raise Unacknowledged(
                f"no replica has acknowledged this {how_long}, so whether it holds is unknown: it is "
                "on this disk, and is shown once a replica has it. Start the replica again (`xaqueue replica`), or set "
                '[replication] acknowledge = "local" in queues.toml'
            )

    def await_others(self) -> None:
        if self.policy().waits and not self._await(self._journal.position, float("inf")):
            raise ResourceFailed("the space was stopped while it waited for its replica")
        self.refusal = ""

    def _await(self, lsn: int, limit_s: float) -> bool:
        wanted, deadline = (self._journal.segment_epoch, lsn), time.monotonic() + limit_s
        with self._lock:
            while self._has < wanted:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._stopped:
                    return False
                self._changed.wait(min(left_s, LOOK_S))
                if not self.policy().waits:
                    return True
        return True

    # What a replica asks

    def next(self, epoch: int, lsn: int, hardened: int, wait_s: float) -> Piece | None:
        """What follows; where there is nothing, it is waited for so long. None where it is here no more, and the
        replica is to begin anew. hardened: the LSN that it was told. Raises ProtocolError where it has more than this
        space, OSError.
        """
        with self._lock:
            if (epoch, lsn) > self.end:
                raise ProtocolError(
                    f"the replica has LSN {lsn:#x} of journal {epoch:#x}, and this space ends at {self.end[1]:#x} of "
                    f"{self.end[0]:#x}: it has lost what the replica has. Stop this server and `xaqueue promote` the "
                    "replica; or remove the replica's directory, if it is the one to lose"
                )
            self._heard = time.monotonic()
            if (epoch, lsn) > self._has:
                self._has = epoch, lsn
                self._changed.notify_all()
            began = time.monotonic()
            while (epoch, lsn) == self.end and not self._stopped:
                limit_s = min(wait_s, REPORT_S) if self._journal.position > hardened else wait_s
                left_s = began + limit_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._heard = time.monotonic()
            end = self.end
        if epoch == end[0]:
            found = self._journal.segment_at(lsn)
            if found is not None:
                segment, next_size = found
                limit = min(segment.end, end[1])
                data = self._read(Place(JOURNAL, segment), lsn, limit)
                if data is not None:
                    hardened = self._journal.position
                    return Piece(epoch, segment.start, segment.size, next_size, lsn, data, hardened, end)
        return self._waiting.run(lambda: self._found(epoch, lsn))

    def _found(self, epoch: int, lsn: int) -> Piece | None:
        """A segment may go to those that are kept, or from there, while it is looked for."""
        while True:
            with suppress(FileNotFoundError):
                return self._earlier(epoch, lsn)

    def _earlier(self, epoch: int, lsn: int) -> Piece | None:
        """Of what is not written to any more."""
        found = places(self._fs, (JOURNAL, KEPT_JOURNAL))  # the way that segments go
        later = next((place for place in found if place.segment.epoch > epoch), None)
        covered = begin_of(self._fs, later)[0] if later is not None else None
        if later is not None and covered is not None and covered <= lsn:  # less: it had more than was hardened here
            return self._earlier(later.segment.epoch, later.segment.start + SECTOR_BYTES)
        if later is not None and covered is None:
            return None
        here = [place for place in found if place.segment.epoch == epoch]
        for number, place in enumerate(here):
            segment = place.segment
            if segment.start <= lsn < segment.end:
                next_size = here[number + 1].segment.size if number + 1 < len(here) else 0
                limit = min(segment.end, covered or segment.end)
                if (epoch, limit) > self.end:
                    limit = self.end[1]
                data = self._read(place, lsn, limit)
                if data is None:
                    return None
                hardened = lsn + len(data)
                return Piece(epoch, segment.start, segment.size, next_size, lsn, data, hardened, self.end)
        return None

    def _read(self, place: Place, lsn: int, limit: int) -> bytes | None:
        """From this LSN on, at least one record; None where it is not there any more."""
        if lsn == limit:
            return b""
        offset = lsn - place.segment.start
        for directory in (place.directory, KEPT_JOURNAL):  # to which it may be on its way
            path = f"{directory}/{place.segment.name}"
            with suppress(FileNotFoundError):
                data = self._fs.read(path, min(limit - lsn, PIECE_BYTES), offset)
                claimed = claimed_end(data, lsn, 0)
                if claimed is not None and claimed - lsn + 7 > len(data):
                    data = self._fs.read(path, min(limit - lsn, claimed - lsn + 7), offset)
                return data if len(data) >= PREFIX_BYTES and claimed_end(data, lsn, 0) is not None else None
        return None
