"""A whole transaction in one call: it is begun, adds or takes its messages, and is prepared, or committed in one phase.

Most are *plain*: in a space with a journal, where nobody but their queues has a say, they add some small messages
without properties of their own, or take one that was never tried. Those wait for nothing but their round: ``try_work``
does all that comes before it, ``try_commit`` the same for the second phase, and what they return is a step, which the
caller gives to the log (``GroupCommit.gather``). Its plan and its publication are those that ``commit`` makes for
everybody, so that a crash finds what it always finds. Where something is not plain they have done nothing, and return
None: then it is done by the verbs, which may wait.

Nothing of a message is decoded on its way: its properties are handed out as they are stored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from xaqueue.core.engine import commit, messages, taking
from xaqueue.core.engine.log import BLOCK_BYTES, HELD_BYTES
from xaqueue.core.engine.session import Session
from xaqueue.core.engine.state import Space, leave
from xaqueue.core.model.block import Kind, before_time, head_of, names, pack
from xaqueue.core.model.branch import Branch, State, Written
from xaqueue.core.model.change import CoreStep
from xaqueue.core.model.entry import Entry
from xaqueue.core.storage.group_commit import Step
from xaqueue.errors import DamagedBlock, Error, RetryLater
from xaqueue.message import MessageId
from xaqueue.xa import Flag, Vote
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

_ENQUEUE = Kind.ENQUEUE


class Put(NamedTuple):
    """A message that has nothing but its id."""

    queue: str
    body: bytes
    message_id: MessageId


class Take(NamedTuple):
    """The next message of this queue, where there is one."""

    queue: str


Work = Put | Take


class Ending(Enum):
    OPEN = "open"
    """The session stays in the branch."""
    PREPARE = "prepare"
    ONE_PHASE = "one phase"


_OPEN, _PREPARE = Ending.OPEN, Ending.PREPARE


class Taken(NamedTuple):
    message_id: MessageId
    queue: str
    seq: int
    packed: bytes
    """Its properties, as they are stored: a map of MessagePack."""
    body: bytes


def _taken(message_id: MessageId, queue: str, seq: int, packed: bytes, body: bytes) -> Taken:
    if not names(packed, queue):
        raise DamagedBlock(f"its properties do not begin with queue {queue}, as those of one that is in several")
    return Taken(message_id, queue, seq, packed, body)


Answer = MessageId | Taken | None
"""Of a Put its id; of a Take the message, or None without one."""


class Whole(Step):
    """A transaction before its round, or one that needs none: then it is ``done``. ``once_more`` does a failed one."""

    def __init__(self, branch: Branch, ending: Ending | None) -> None:
        """ending: None for the second phase."""
        self.branch, self.ending = branch, ending
        self.answers: list[Answer] = []

    def plan_commit(self, space: Space, step: CoreStep) -> None:
        if len(self.branch.blocks) >= commit.MANY:
            space.features.merge(space, self.branch)
        self.plan = partial(commit.commit_change, space, self.branch, step)
        self.publish = partial(commit.publish_commit, space, self.branch, ends=True)


class WholeSession(Session):
    """A session that takes whole transactions. xid: of a new branch, or of the one that it is in."""

    def try_work(self, xid: Xid, works: Sequence[Work], ending: Ending) -> Whole | None:
        """A whole transaction, up to its round, for which it does not wait. Raises as the verbs; where work is refused,
        the branch can only be rolled back."""
        space, before = self.space, self._current
        branch: Branch | None = None
        try:
            with space.lock:
                branch = self._plain_branch_locked(xid, works)
                if branch is None:
                    return None
                whole, take = Whole(branch, ending), None
                for work in works:
                    if type(work) is Put:
                        self._put_locked(whole, work)
                    else:
                        take = work.queue
            if take is not None:
                whole.answers.append(taking.take_plain(space, branch, take, _taken))
            is_plain = bool(branch.blocks) if take is None else whole.answers[0] is not None
            if is_plain and ending is _PREPARE:
                whole.plan, whole.publish = commit.prepare(space, branch, performs=False)
            elif is_plain and ending is not _OPEN:
                whole.plan_commit(space, CoreStep.ONE_PHASE)
        except BaseException as error:
            if branch is not None:
                leave(space, branch, error)
                self._enter(branch)
                if isinstance(error, Error):
                    self.fail(error)
            raise
        if not is_plain and branch is not before:
            with space.lock:
                del space.branches[xid]
                del self._begun[-1:]  # the verbs begin it again, and it counts once
                space.settle_locked(branch)
        elif not is_plain or ending is _OPEN:
            self._enter(branch)
            whole.done = True
        return whole if is_plain else None

    def _put_locked(self, whole: Whole, work: Put) -> None:
        """It is kept in memory, as ``JournalLog.add`` keeps HELD_BYTES of each branch, whatever others have."""
        name, body, message_id = work
        space, branch = self.space, whole.branch
        queue = space.queues[name]
        if message_id in queue.pending or message_id in queue.index:
            raise messages.there_is(queue, message_id)
        packed = before_time(name) + pack(space.now_ns() // 1000)
        head, checksum = head_of(_ENQUEUE, message_id, packed, body, space.epoch)
        branch.numbers = number = branch.numbers + 1
        written = Written(number, _ENQUEUE, name, message_id, checksum, Entry(0, message_id))
        written.content = head, body
        kept, count = branch.kept
        branch.kept = kept + len(head) + len(body) + BLOCK_BYTES, count + 1
        branch.blocks.append(written)
        queue.pending.add(message_id)
        whole.answers.append(message_id)

    def try_commit(self, xid: Xid) -> Whole | None:
        """As ``commit`` of a prepared branch, up to its round, for which it does not wait."""
        space, log = self.space, self.space.log
        with space.lock:
            branch = space.branches.get(xid)
            if branch is None or branch.busy or branch.base is not State.PREPARED or branch.riders:
                return None
            if xid[0] in space.features.rules or self._closed or not log.is_atomic or log.failure is not None:
                return None
            branch.busy = True
        whole = Whole(branch, None)
        whole.plan_commit(space, CoreStep.COMMIT)
        return whole

    def once_more(self, whole: Whole) -> Vote | None:
        """Of one whose round has failed: the verbs do it, which may wait, and say why."""
        space, branch = self.space, whole.branch
        if whole.ending is not _PREPARE and space.failure is None:
            commit.forget_numbers(space, branch)
        leave(space, branch)
        if whole.error is not None and not isinstance(whole.error, RetryLater):
            raise whole.error
        if whole.ending is _PREPARE:
            return self.prepare(branch.xid)
        self.commit(branch.xid, Flag.NOFLAGS if whole.ending is None else Flag.ONEPHASE)
        return None

    # What is plain

    def _are_plain_locked(self, works: Sequence[Work]) -> bool:
        """Whether the space, and this work in it, is as most are, and nothing is to be waited for."""
        space, log, definitions = self.space, self.space.log, self.space.definitions
        if self._closed or not log.is_atomic or log.failure is not None or log.adds_late:
            return False
        if space.draining or not (space.serving and space.loaded) or space.gates or definitions.has_unsynced:
            return False
        size = self._current.kept[0] if self._current is not None and works else 0
        for work in works:
            queue = space.queues.get(work.queue)
            if queue is None or queue.room is not None or work.queue not in definitions.known:
                return False
            if type(work) is Put:
                size += len(work.body) + BLOCK_BYTES
                if not space.room.has(len(work.body)):  # who looks at the disk may have to wait
                    return False
            elif len(works) > 1:
                return False
        return size <= HELD_BYTES and size <= definitions.max_body_bytes  # all in memory: files are made by who waits

    def _plain_branch_locked(self, xid: Xid, works: Sequence[Work]) -> Branch | None:
        """A new branch, or that in which the session is alone; a step of it is on its way from here on."""
        space, branch = self.space, self._current
        if xid[0] in space.features.rules or not self._are_plain_locked(works):
            return None
        if branch is None:
            if xid in space.branches or (self.branch_limit is not None and len(self._begun) >= self.branch_limit):
                return None
            branch = self._begin_locked(xid, None)
            self._last = xid
            if xid[0] == LOCAL_FORMAT_ID:
                self._local = branch
        else:
            if branch.xid != xid or branch.base is not State.ACTIVE or branch.active != {self.number} or branch.busy:
                return None
            if branch.riders or branch.rollback_reason or branch.deadline or branch.suspended or branch.to_harden:
                return None  # files of it would be synced while everybody waits
            self._current = None
            branch.active.discard(self.number)
        branch.busy = True
        return branch

    def _enter(self, branch: Branch) -> None:
        """It goes on in it."""
        with self.space.lock:
            self._current = branch
            branch.active.add(self.number)
            branch.progress = time.monotonic()
            self.space.settle_locked(branch)
