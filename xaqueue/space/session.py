"""One session with a space: the XA verbs over its branches, and the work between them.

Every verb asks the table in ``xaqueue.branch`` first, then performs a step of ``xaqueue.space.steps``. While a step is
on its way its branch is busy, and another call on it waits; the space's lock is never held across a sync.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import Unpack

from xaqueue import branch as states
from xaqueue.branch import Branch, State, Written, call_of, check_flags
from xaqueue.command import Block, Kind, decode, decode_message, encode_with_checksum, properties_in
from xaqueue.errors import (
    DamagedBlock,
    Error,
    InterfaceError,
    InvalidArgument,
    OutsideTransaction,
    ProtocolError,
    RetryLater,
    RolledBack,
)
from xaqueue.index import Entry
from xaqueue.message import EnqueueOptions, Message, MessageId, check_message_id, properties_of
from xaqueue.space import heuristic, layout, quarantine, steps
from xaqueue.space.layout import numbered
from xaqueue.space.load import check_message
from xaqueue.space.queue import Queue
from xaqueue.space.space import Space, log
from xaqueue.storage.fs import NO_ROOM
from xaqueue.xa import Code, Flag, Outcome, Vote
from xaqueue.xid import Xid


class _Busy:
    """A branch while a step of it is on its way. Written out, because every transaction enters it several times."""

    __slots__ = ("_branch", "_space")

    def __init__(self, space: Space, branch: Branch) -> None:
        self._space = space
        self._branch = branch

    def __enter__(self) -> Branch:
        return self._branch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        failed = None
        if error is not None and not isinstance(error, Error):  # or interrupted: those who wait for the step are told
            failed = self._space.fence(error)
        with self._space.lock:
            self._branch.busy = False
            self._space.settled.notify_all()
        if failed is not None and isinstance(error, OSError):
            raise failed from error


class Session:
    """A ResourceManager. Used by one thread at a time; any number of sessions share a space."""

    def __init__(self, space: Space, on_close: Callable[[], None] = lambda: None) -> None:
        self.space = space
        self.number = space.next_session()
        self._on_close = on_close
        self._current: Branch | None = None
        self._scan: list[Xid] | None = None
        self._closed = False

    # The verbs of a branch's life

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        call = call_of("start", flags)
        self._check_open()
        current = self._current
        with self.space.lock:
            self.space.barrier.check()
            branch = self._settled_locked(xid)
            if current is not None and current is not branch:
                if current.xid.is_local:
                    raise OutsideTransaction("a local transaction is open: commit it or roll it back first")
                raise ProtocolError(f"the session is in branch {current.xid}: end it before it starts {xid}")
            if branch is not None:
                self._expire(branch)
                if branch.committing:
                    raise ProtocolError(f"branch {xid} is past its commit point: commit it again to complete it")
            state = branch.state_for(self.number) if branch is not None else State.UNKNOWN
            try:
                states.step(state, call, xid)
            except RolledBack as told:
                assert branch is not None
                branch.become(State.ROLLBACK_ONLY)
                raise branch.doom or told from None
            if branch is None:
                branch = self.space.branches[xid] = Branch(xid)
                if timeout_s is not None:
                    branch.deadline = time.monotonic() + timeout_s
            branch.enter(self.number)
        self._current = branch

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        call = call_of("end", flags)
        self._check_open()
        with self.space.lock:
            branch = self._settled_locked(xid)
            state = branch.state_for(self.number) if branch is not None else State.UNKNOWN
            after = states.step(state, call, xid)
            assert branch is not None
            if self._current is branch:
                self._current = None
            if after is State.SUSPENDED:
                branch.suspend(self.number, migrates=bool(flags & Flag.MIGRATE))
                return
            if state is State.SUSPENDED and branch.migrates:
                branch.suspended.clear()
            branch.leave(self.number)
            self._expire(branch)
            if branch.doom is not None or after is State.ROLLBACK_ONLY:
                branch.become(State.ROLLBACK_ONLY)
            if branch.doom is not None and after is not State.ROLLBACK_ONLY:
                raise branch.doom

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        with self._step(xid, call_of("prepare", flags)) as branch:
            if not branch.blocks:
                with self.space.lock:
                    del self.space.branches[xid]
                return Vote.RDONLY
            try:
                steps.prepare(self.space, branch)
            except RolledBack:
                steps.rollback(self.space, branch)
                raise
            branch.become(State.PREPARED)
            return Vote.OK

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        call = call_of("commit", flags)
        with self._step(xid, call) as branch:
            if branch.damage:
                raise RetryLater(
                    f"branch {xid} lost {', '.join(branch.damage)}: it cannot be committed as a whole; "
                    f"an operator decides with `xaqueue indoubt show {xid}`"
                )
            if call is states.Call.COMMIT:
                steps.commit(self.space, branch)
            elif not branch.blocks:
                self.space.finish(branch, Outcome.COMMITTED)
            else:
                try:
                    steps.commit_one_phase(self.space, branch)
                except RolledBack:
                    steps.rollback(self.space, branch)
                    raise

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        with self._step(xid, call_of("rollback", flags)) as branch:
            if branch.committing:
                raise ProtocolError(f"branch {xid} is past its commit point: commit it again to complete it")
            steps.rollback(self.space, branch)

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        with self._step(xid, call_of("forget", flags)) as branch:
            heuristic.forget(self.space, branch)

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        check_flags("recover", flags)
        self._check_open()
        if count < 0:
            raise InvalidArgument(f"recover of {count} xids: a count from 0 is wanted")
        if flags & Flag.STARTRSCAN:
            with self.space.lock:
                self.space.barrier.check()
                listed = (State.PREPARED, *states.HEURISTICS)
                self._scan = [xid for xid, branch in self.space.branches.items() if branch.base in listed]
        if self._scan is None:
            raise InvalidArgument("recover without an open scan: begin with STARTRSCAN")
        page, self._scan = self._scan[:count], self._scan[count:]
        if flags & Flag.ENDRSCAN:
            self._scan = None
        return page

    def outcome(self, xid: Xid) -> Outcome:
        self._check_open()
        return self.space.outcome(xid)

    # The work

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        branch = self._working()
        space = self.space
        space.definitions.find(queue)
        if not isinstance(body, bytes):
            raise InvalidArgument(f"body is a {type(body).__name__}: bytes are wanted")
        properties = properties_of(queue, space.now_us(), options)
        given = options.get("message_id")
        message_id = MessageId(os.urandom(16)) if given is None else check_message_id(given)
        block = Block(Kind.ENQUEUE, message_id, properties, body, space.epoch)
        head, checksum = encode_with_checksum(block, body_limit_bytes=space.definitions.max_body_bytes)
        with space.lock:
            target = space.queue(queue)
            if message_id in target.pending or message_id in target.index:
                raise InvalidArgument(f"message {message_id.hex()} is in queue {queue} already: ids are unique")
            target.pending.add(message_id)
            branch.numbers += 1
            number = branch.numbers
        try:
            steps.write(space, branch, [head, body] if body else [head], numbered(number))
        except BaseException:
            with space.lock:
                target.pending.discard(message_id)
            raise
        entry = Entry(0, message_id, properties, len(head) + len(body))
        branch.blocks.append(Written(number, Kind.ENQUEUE, queue, message_id, checksum, entry, suffix=numbered(number)))
        return message_id

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        branch = self._working()
        self.space.definitions.find(queue)
        if isinstance(correlation_id, str):
            correlation_id = correlation_id.encode()
        if message_id is not None:
            check_message_id(message_id)
        deadline = time.monotonic() + wait_s if wait_s else None
        while (taken := self._take(branch, queue, deadline, message_id, correlation_id)) is not None:
            source, entry, written = taken
            message = self._fetch(source, entry)
            if message is None:
                continue
            try:
                written.checksum = steps.write_block(
                    self.space, branch, steps.dequeue_block(self.space, written), written.suffix
                )
            except RolledBack as full:
                if len(branch.blocks) > 1 or full.code is not Code.XA_RBOTHER:
                    raise
                branch.doom = None
                written.on_disk = False
            return message
        return None

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        self._check_open()
        space = self.space
        space.definitions.find(queue)
        with space.lock:
            space.barrier.check()
            source = space.queue(queue)
            entries = list(source.index.entries(space.now_us()))
        shown = 0
        for entry in entries:
            if limit is not None and shown >= limit:
                return
            path = layout.message_path(queue, entry.seq, entry.message_id)
            try:
                message = message_of(queue, entry.seq, entry.message_id, space.fs.read(path))
            except (FileNotFoundError, DamagedBlock):
                continue  # consumed meanwhile, or for the next dequeue to set aside
            except OSError as error:
                if error.errno in quarantine.DAMAGE:
                    continue
                raise self._unread(path, error) from error
            shown += 1
            yield message

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        space = self.space
        with space.lock:
            mine = [
                branch
                for branch in space.branches.values()
                if self.number in branch.active or (self.number in branch.suspended and not branch.migrates)
            ]
            alone = []
            for branch in mine:
                branch.leave(self.number)
                if branch.active or branch.suspended:
                    branch.doom = RolledBack(f"branch {branch.xid}: a session in it was lost", Code.XA_RBCOMMFAIL)
                else:
                    branch.busy = True
                    alone.append(branch)
            failed = space.barrier.failure is not None
        try:
            for branch in alone:
                if not failed:
                    steps.rollback(space, branch)
        finally:
            with space.lock:
                space.settled.notify_all()
            self._on_close()

    # Within

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the session is closed")

    def _settled_locked(self, xid: Xid) -> Branch | None:
        while (branch := self.space.branches.get(xid)) is not None and branch.busy:
            self.space.settled.wait()
            self.space.barrier.check()
        return branch

    def _step(self, xid: Xid, call: states.Call) -> _Busy:
        """The branch, busy, after the table allowed the call; a doomed one is rolled back and says why."""
        self._check_open()
        space = self.space
        with space.lock:
            space.barrier.check()
            branch = self._settled_locked(xid)
            if branch is not None:
                self._expire(branch)
            state = branch.state_for(self.number) if branch is not None else State.UNKNOWN
            doomed = states.dooms(state, call)
            if not doomed:
                states.step(state, call, xid)
            assert branch is not None
            branch.busy = True
        if doomed:
            with _Busy(space, branch):
                self._reject(branch)
        return _Busy(space, branch)

    def _reject(self, branch: Branch) -> None:
        """Rolls a doomed branch back and says why."""
        steps.rollback(self.space, branch)
        raise branch.doom or RolledBack(f"branch {branch.xid} was rolled back")

    def _working(self) -> Branch:
        """The branch that work belongs to."""
        self._check_open()
        self.space.barrier.check()
        branch = self._current
        if branch is None:
            raise ProtocolError("no branch is started in this session: start one first")
        self._expire(branch)
        if branch.doom is not None:
            raise branch.doom
        if branch.base is not State.ACTIVE:
            raise ProtocolError(f"branch {branch.xid} is {branch.base.value}: it takes no more work")
        return branch

    @staticmethod
    def _expire(branch: Branch) -> None:
        if branch.deadline is None or branch.doom is not None or branch.base is not State.ACTIVE:
            return
        if time.monotonic() > branch.deadline:
            branch.doom = RolledBack(f"branch {branch.xid} took longer than its timeout", Code.XA_RBTIMEOUT)

    def _take(
        self,
        branch: Branch,
        name: str,
        deadline: float | None,
        message_id: bytes | None,
        correlation_id: bytes | None,
    ) -> tuple[Queue, Entry, Written] | None:
        """Locks the next message for the branch, waiting for one until the deadline; None without one."""
        space = self.space
        with space.lock:
            queue = space.queue(name)
            while True:
                space.barrier.check()
                now = space.now_us()
                entry = queue.index.take(now, message_id=message_id, correlation_id=correlation_id)
                if queue.index.expired:
                    _drop_expired(space, queue)
                if entry is not None:
                    branch.numbers += 1
                    written = Written(
                        branch.numbers, Kind.DEQUEUE, name, entry.message_id, 0, entry, suffix=numbered(branch.numbers)
                    )
                    branch.blocks.append(written)
                    return queue, entry, written
                left = deadline - time.monotonic() if deadline is not None else 0.0
                if left <= 0:
                    return None
                due = queue.index.next_due(message_id=message_id, correlation_id=correlation_id)
                if due is not None:
                    left = min(left, max(due - now, 0) / 1e6 + 0.001)
                queue.arrived.wait(left)

    def _fetch(self, queue: Queue, entry: Entry) -> Message | None:
        """Reads a locked message; None when it is damaged or gone, and then it has left the queue."""
        space = self.space
        path = layout.message_path(queue.name, entry.seq, entry.message_id)
        try:
            data = space.fs.read(path)
            return message_of(queue.name, entry.seq, entry.message_id, data)
        except DamagedBlock as damage:
            self._set_aside(path, str(damage))
        except OSError as error:
            if quarantine.is_damage(space.fs, path, error):
                self._set_aside(path, f"cannot be read: {error.strerror}")
            elif error.errno == errno.ENOENT:
                log.error("message file %s is gone: something else removed it", path)
            else:
                self._give_back(queue, entry)
                raise self._unread(path, error) from error
        self._give_back(queue, entry, gone=True)
        return None

    def _unread(self, path: str, error: OSError) -> Exception:
        """What a read that failed for no fault of its file means: not now, or the end."""
        if error.errno in NO_ROOM:
            return RetryLater(f"{path} cannot be read now ({error.strerror}): try again")
        return self.space.fence(error)

    def _give_back(self, queue: Queue, entry: Entry, *, gone: bool = False) -> None:
        """The dequeue of this entry did not happen."""
        with self.space.lock:
            assert self._current is not None
            self._current.blocks = [written for written in self._current.blocks if written.entry is not entry]
            if gone:
                queue.consumed(self.space.fs, entry)
            else:
                queue.index.release(entry)

    def _set_aside(self, path: str, reason: str) -> None:
        space = self.space
        with space.step():
            target = quarantine.move(space.fs, path, reason, space.now_us())
            space.report.quarantined.append(f"{path}: {reason}")
            ticket = space.barrier.submit(targets=(layout.QUARANTINE,), sources=(path.rpartition("/")[0],))
        space.barrier.wait(ticket)
        log.error("quarantined %s as %s: %s", path, target, reason)


def message_of(queue: str, seq: int, message_id: MessageId, data: bytes) -> Message:
    """The message that a file's bytes are. Raises DamagedBlock."""
    found, stored, body = decode_message(data)
    if found != message_id or stored.get("queue") != queue:
        check_message(decode(data), queue, message_id)
    return Message(message_id, queue, seq, body, properties_in(stored))


def _drop_expired(space: Space, queue: Queue) -> None:
    """Removes messages that nobody took in time. If a crash brings one back it is expired still. Lock held."""
    for entry in queue.index.expired:
        try:
            space.fs.unlink(layout.message_path(queue.name, entry.seq, entry.message_id))
        except FileNotFoundError:
            log.warning("expired message %s was gone already", entry.message_id.hex())
        except OSError as error:
            raise space.fence(error) from error
        queue.consumed(space.fs, entry)
    log.info("%d expired messages left queue %s", len(queue.index.expired), queue.name)
    queue.index.expired.clear()
