"""A task writes its rows in branches and prepares each: what becomes of them is decided with the batch, by the driver.

A branch is begun once its rows are there, so that it is at work for moments, however slowly they come. One that was
lost with its server is written again under another xid; the first, if it was prepared after all, is in no list of
branches and is rolled back with the batch's decision. A task that fails rolls back what it prepared, as far as it can.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from xaqueue.batch import HOME_DIGITS, ONE_SPACE, SEVERAL_SPACES, Batch
from xaqueue.errors import ConnectionLost, Error, OutcomeUnknown, RolledBack
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.spark.sink.columns import Row
from xaqueue.xa import Code, Vote
from xaqueue.xid import Xid

BRANCH_ROWS = 2_000
BRANCH_BYTES = 4 * 1024 * 1024
TRIES = 3
"""To write a branch whose server was lost."""
UNREACHED = (ConnectionLost, OutcomeUnknown)
LOST = (Code.XA_RBCOMMFAIL, Code.XA_RBTRANSIENT)
"""Codes of a branch that is rolled back for no fault of its own."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One attempt at a partition of a batch."""

    batch: Batch
    partition: int = 0
    attempt: int = 0


class Branches:
    """What one task writes into one space. ``expired``: messages left out, since nobody would ever be given them: a
    copy of a queue would never get behind one.
    """

    def __init__(self, manager: RemoteManager, task: WriteTask, home: str = "") -> None:
        """home: the id of the space that decides the batch, where it goes to several."""
        self._manager = manager
        self._task = task
        self._format_id = SEVERAL_SPACES if home else ONE_SPACE
        self._home = f"@{home[:HOME_DIGITS]}" if home else ""
        self._run = secrets.token_hex(4)  # attempts are counted anew after a restart
        self._begun = 0
        self.prepared: list[Xid] = []
        self.messages = 0
        self.expired = 0
        self.queues: set[str] = set()

    def write(self, rows: Iterable[Row]) -> None:
        """All of them, or none: when it raises, what was prepared is rolled back as far as the server can be asked."""
        try:
            for part in self._parts(rows):
                xid = self._write_again(part)
                if xid is not None:
                    self.prepared.append(xid)
                self.messages += len(part)
                self.queues.update(row.queue for row in part)
        except UNREACHED:
            raise
        except BaseException:
            self._undo()
            raise

    def _parts(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        """What goes into one branch each: never nothing."""
        part: list[Row] = []
        size = 0
        for row in rows:
            expires_at = row.options.get("expires_at")
            if expires_at is not None and expires_at <= max(time.time_ns() // 1000, row.options.get("not_before", 0)):
                self.expired += 1
                continue
            if part and (len(part) >= BRANCH_ROWS or size + len(row.body) > BRANCH_BYTES):
                yield part
                part, size = [], 0
            part.append(row)
            size += len(row.body)
        if part:
            yield part

    def _undo(self) -> None:
        """Best effort: what is left is rolled back with the batch's decision, over several spaces all of it."""
        for xid in self.prepared if self._format_id == ONE_SPACE else ():
            try:
                self._manager.rollback(xid)
            except UNREACHED:
                return
            except Error:
                continue

    def _write_again(self, part: list[Row]) -> Xid | None:
        for _ in range(TRIES - 1):
            try:
                return self._write(part)
            except UNREACHED:
                continue
            except RolledBack as lost:
                if lost.code not in LOST:
                    raise
        return self._write(part)

    def _write(self, part: list[Row]) -> Xid | None:
        """None where nothing was to be prepared."""
        task, manager = self._task, self._manager
        bqual = f"p{task.partition}.{task.attempt}.{self._run}.{self._begun}{self._home}"
        self._begun += 1
        xid = Xid(self._format_id, task.batch.gtrid, bqual.encode())
        manager.start(xid)
        try:
            for queue, body, options in part:
                manager.enqueue(queue, body, **options)
            manager.end(xid)
            vote = manager.prepare(xid)
        except UNREACHED:
            raise
        except Error:
            with suppress(Error):
                manager.rollback(xid)
            raise
        return xid if vote is Vote.OK else None
