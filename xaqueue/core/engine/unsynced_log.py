"""Level NONE: the state machine of files as in ``directory_log``, and nothing is synced."""

from __future__ import annotations

from collections.abc import Callable

from xaqueue.core.engine.directory_log import DirectoryLog
from xaqueue.core.engine.log import BLOCK_BYTES, HELD_BYTES, KEPT_BYTES, Keeping
from xaqueue.core.model.block import Kind
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.group_commit import Plan, Publish, nothing
from xaqueue.errors import Error, RetryLater

_ENQUEUE = Kind.ENQUEUE


class UnsyncedLog(DirectoryLog, Keeping):
    """No step waits for another. What a branch adds one by one is in memory until it is prepared, or committed in one
    phase; before its step it is written to active/."""

    _never_syncs = True

    def add(self, branch: Branch, written: Written, head: bytes, body: bytes, *, may_wait: bool = True) -> None:
        if written.kind is not _ENQUEUE:
            self._write(branch, written, head, body)
            return
        (kept, count), first = branch.kept, written.shared
        size = len(head) + len(body) + BLOCK_BYTES if first is None or first is written else BLOCK_BYTES
        kept += size
        if kept > HELD_BYTES:
            self._kept_left -= size
            if kept > KEPT_BYTES or len(body) > HELD_BYTES or (self._kept_left < 0 and not self._has_left(size)):
                self._write(branch, written, head, body)
                return
        branch.kept, written.content, branch.to_harden = (kept, count + 1), (head, body), True

    def write_early(self, branch: Branch) -> None:
        self._write_early(branch, list(branch.blocks))

    def harden(self, branch: Branch) -> None:
        try:
            for written in branch.blocks:
                if written.content is not None:
                    self._write(branch, written, *written.content)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self.fail(error)
                raise self._failed() from error
            why = f"there is no room for what branch {branch.xid} adds ({error.strerror})"
            raise RetryLater(f"{why}: nothing was done, free some and try again") from error
        branch.kept = 0, 0

    def harden_unprepared(self, branch: Branch, complete: Callable[[], None]) -> None:
        if branch.to_harden:
            self.harden(branch)
        if branch.needs_list:
            complete()

    def perform(self, plan: Plan, publish: Publish = nothing, of: Branch | None = None, *, late: bool = False) -> None:
        with self._lock:
            if self.failure is not None:
                raise self._failed()
            self.steps += 1
            try:
                change = plan() if callable(plan) else plan
                if change is not None:
                    self._carry_out(change, change.point or change.ops)
                    if change.point:
                        self._carry_out(change, change.ops)
                if self._lost():
                    self._check_owner()
                publish()
                if self.changed_queues or self._marks:
                    self.mark_published_locked()
            except Error:
                raise
            except BaseException as error:
                self.fail(error)
                raise self._failed() from error
        if change is not None and change.rest:
            self._tidy(change)
