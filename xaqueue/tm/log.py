"""The decision log: a transaction is decided once its record here is hardened, and not before.

Concurrent decisions share one sync. That a transaction is done is recorded with the next decision, or when the log is
flushed: until then a crash only makes recovery look again. What dangles at a checkpoint is written once more.
The node id is the log's for life and its boot epoch counts every opening; both are durable before they name anything.

Crash safety: a torn tail was promised to nobody; it is kept beside the journal and cut off. Where records may be lost
that a participant has been told of, the log does not open: without them, what was decided would be rolled back. After
a failed write or sync nothing more is decided, because what is on disk is uncertain, and a reopen reads it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.group_commit import JournalCommit, nothing
from xaqueue.core.storage.ids import fresh_id
from xaqueue.core.storage.journal import Journal, checkpoint_entry
from xaqueue.core.storage.journal_format import Entry
from xaqueue.core.storage.journal_reader import look
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.errors import (
    DecisionLogError,
    JournalDamaged,
    ResourceFailed,
    RetryLater,
    SpaceError,
)
from xaqueue.tm import records
from xaqueue.tm.decisions import Decisions, wall_clock
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.records import NODE, DecisionTable, Heuristic, OpenDecision, damaged, read_node, write_node

JOURNAL = "journal"
SEGMENT_BYTES = 4 * 1024 * 1024

log = logging.getLogger("xaqueue")


@dataclass(frozen=True, slots=True)
class LogContent:
    """What a log's directory holds. node, epoch: "" and 0 where there was never one."""

    node: str
    epoch: int
    table: DecisionTable = field(repr=False)


def read(fs: FileSystem) -> LogContent:
    """Looks and changes nothing. Raises DecisionLogDamaged, DecisionLogError, OSError."""
    node, epoch = read_node(fs)
    try:
        found = look(fs, JOURNAL, lambda _: True, used=bool(node))
    except JournalDamaged as damage:
        damaged(str(damage).partition(". ")[0])
    except SpaceError as error:
        raise DecisionLogError(str(error)) from error
    if found.records and not node:
        damaged(f"{NODE} is missing, and there are decisions")
    return LogContent(node, epoch, records.replay(found.records))


class DecisionLog(Decisions):
    """In a directory. Safe for threads."""

    def __init__(
        self,
        fs: FileSystem,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        now_us: Callable[[], int] = wall_clock,
        owner: OwnerFile | None = None,
    ) -> None:
        """Opens the log behind ``fs``, which this process owns, and makes one where there is none.

        owner: what makes it this process's; released at the end. Raises DecisionLogDamaged, DecisionLogError.
        """
        super().__init__(now_us)
        self._fs = fs
        self.owner = owner
        self.lost = owner.lost if owner is not None else str
        try:
            self.table = self._start(segment_bytes)
        except OSError as error:
            raise DecisionLogError(
                f"the decision log cannot be opened ({error}): mend that and open it again. Nothing is rolled back"
            ) from error
        for gtrid, participant in self.table.heuristics:
            self.acknowledged(gtrid, participant)  # it was noted because it had answered
        self.named = f"{Gtrid(self.node, self.epoch, 0).of_node}{self.epoch:08x}"
        self._covered = self._journal.switches - (self._journal.full_segments > 0)
        """How many segments were full at the last checkpoint."""
        self._commit = JournalCommit(
            self.lock,
            self._journal,
            self,
            relieve=self._relieve,
            name="the decision log",
        )

    def _start(self, segment_bytes: int) -> DecisionTable:
        """Takes over what is there, under the next epoch, and writes what dangles once more."""
        found = read(self._fs)
        self.node, self.epoch = found.node or fresh_id()[:8].hex(), found.epoch + 1
        used = bool(found.node)
        self._journal = Journal(self._fs, JOURNAL, segment_bytes=segment_bytes, used=used, epoch=self.epoch)
        self._journal.harden()
        dangling = records.carried(found.table)
        for note in self._journal.start(list(dangling)):  # the old one may be in memory only, or written to late
            log.warning("[journal-note] decision log: %s", note)
        write_node(self._fs, self.node, self.epoch)
        return found.table

    # Decisions

    def decide(
        self, gtrid: bytes, participants: Sequence[str], spaces: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        made = OpenDecision(gtrid, tuple(participants), self.now_us(), None, set(participants), spaces)
        self._append_with_done(lambda done: records.decision(made, done), lambda: self.table.add(made))

    def note_last(self, participant: str) -> None:
        epochs = self.epoch, self.epoch
        self._append(lambda: records.last(participant, *epochs), lambda: self.table.add_last(participant, *epochs))

    def note(self, heuristic: Heuristic) -> bool:
        key = heuristic.gtrid, heuristic.participant
        with self.lock:
            known = self.table.heuristics.get(key)
        if known is not None and (known.decision, known.outcome) == (heuristic.decision, heuristic.outcome):
            return False
        self._append(lambda: records.heuristic(heuristic), lambda: self.table.note(heuristic))
        return True

    def forget(self, gtrid: bytes) -> None:
        self.check_over(gtrid)
        self.flush()
        self._append(lambda: records.forget(gtrid), lambda: self.table.forget(gtrid))

    # Housekeeping

    def flush(self) -> None:
        if self._over:
            self._append_with_done(lambda done: records.done(done) if done else None)

    def checkpoint(self) -> None:
        """Writes what dangles once more, and releases the segments behind. Raises DecisionLogError, RetryLater."""
        self._covered = self._journal.switches
        below, dangling = 0, list[Entry]()

        def mark() -> None:
            nonlocal below
            below = self._journal.position  # between two rounds: the table has every record below it
            dangling[:] = records.carried(self.table)

        def covered() -> None:
            self._journal.checkpoint = max(self._journal.checkpoint, below)

        self._append(lambda: None, mark)
        for entry in dangling:
            self._append(lambda entry=entry: entry)  # type: ignore[misc]
        self._append(lambda: checkpoint_entry(below), covered)
        try:
            self._journal.recycle()
        except OSError as error:
            self._commit.fail(error)
            raise _failed(error) from error

    @property
    def failure(self) -> DecisionLogError | None:
        """Why nothing can be decided, once anything has failed, or after ``close``."""
        return None if self._commit.failure is None else _failed(self._commit.failure)

    def check(self) -> None:
        if self._commit.failure is not None:
            raise _failed(self._commit.failure)

    @property
    def syncs(self) -> int:
        """How often it hardened something: fewer than there were decisions where some came together."""
        return self._journal.syncs

    def close(self, is_hardened: Callable[[], bool] = lambda: True) -> None:
        """Flushes, and ends the use of the directory; a second call does nothing."""
        try:
            if self._commit.failure is None:
                try:
                    self.flush()
                except RetryLater as full:
                    log.warning("[no-room-yet] decision log: %s; recovery will look again at what is done", full)
            self._commit.end(DecisionLogError("the decision log is closed: open its transaction manager again"))
            self._commit.close()
            self._fs.close()
        finally:
            if self.owner is not None:
                self.owner.release()

    def abandon(self) -> None:
        """In a forked child: nothing here may write any more."""
        self.lock = threading.Lock()
        self._commit.abandon(DecisionLogError("the decision log belongs to the parent of this forked process"))
        self._fs.close()
        if self.owner is not None:
            self.owner.abandon()

    # Within

    def _append(self, entry: Callable[[], Entry | None], apply: Callable[[], None] = nothing) -> None:
        """Hardens a record, and applies it to the table behind that; both are called with the lock held."""
        try:
            self._commit.perform(entry, apply)
        except ResourceFailed as error:
            raise _failed(error.__cause__ or error) from error

    def _append_with_done(
        self, entry: Callable[[list[bytes]], Entry | None], apply: Callable[[], None] = lambda: None
    ) -> None:
        """With what is done, and was not recorded as such yet."""
        taken: list[bytes] = []

        def made() -> Entry | None:
            taken[:], self._over = self._over, []
            return entry(taken)

        try:
            self._append(made, apply)
        except RetryLater:
            with self.lock:
                self._over[:0] = taken
            raise

    def check_owner(self) -> None:
        """A second transaction manager of this name would decide otherwise."""
        reason = self.lost()
        if reason:
            raise DecisionLogError(
                f"this process owns the decision log no more: {reason}. Whether the last decisions stand is uncertain: "
                "find out who else has the log open and why its lock was lost. What is prepared stays so until then"
            )

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a segment is full, so that a checkpoint would release it."""
        return self._journal.switches != self._covered

    def _relieve(self, below: int) -> None:
        """In the middle of a round that has no room: where nothing dangles, old segments can go."""
        with self.lock:
            if any(records.carried(self.table)) or not self._journal.full_segments:
                return
        self._journal.write_checkpoint(below)
        self._journal.recycle()


def _failed(error: BaseException) -> DecisionLogError:
    if isinstance(error, DecisionLogError):
        return error
    return DecisionLogError(
        f"the decision log takes no more decisions ({error}): close the transaction manager, look at the disk "
        f"where it failed, and open it again. What is prepared stays so until then, and recovery finishes it"
    )
