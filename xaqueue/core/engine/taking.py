"""The messages that a branch takes, and those that anybody may look at.

A dequeue locks its message in memory under the space's lock, reads it outside, and writes its block. A message that
turns out to be damaged is set aside and the next one is delivered.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from xaqueue.core.engine import many, quarantine
from xaqueue.core.engine.state import Space, log
from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, Kind, check_message, decode, split_message, stored_in
from xaqueue.core.model.branch import Branch, Written
from xaqueue.core.model.entry import Entry, Run
from xaqueue.core.model.message_name import VOLATILE, correlation_hash
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import discard, is_damage
from xaqueue.core.storage.regular import DAMAGE
from xaqueue.errors import DamagedBlock, RetryLater
from xaqueue.message import Message, MessageId, check_message_id, correlation_id_of, stored_message
from xaqueue.xa import Code

T = TypeVar("T")
LOOK_S = 0.5
"""How long a waiting dequeue sleeps at most before it looks again: a fence or a stepped clock wakes nobody."""
BREATH_S = 0.001
"""Who passes over many messages lets others go before so often."""


def dequeue(
    space: Space,
    branch: Branch,
    name: str,
    wait_s: float,
    message_id: bytes | None,
    correlation_id: bytes | str | None,
    *,
    even_early: bool = False,
    together: list[Written] | None = None,
) -> Message | None:
    """Locks and reads the next message and writes the block that names it; see ``ResourceManager.dequeue``.

    even_early: the one of this id, whatever it waits for. together: gets it instead, of a caller who hands nothing out
    before ``Log.take`` of all of them.
    """
    if name not in space.definitions.known:
        space.definitions.find(name)
    if message_id is None and correlation_id is None and together is None:
        message = take_plain(space, branch, name, _message)
        if message is not None:
            return message
    correlation_id = correlation_id_of(correlation_id)
    if message_id is not None:
        check_message_id(message_id)
    deadline = time.monotonic() + wait_s if wait_s else None
    correlation = correlation_hash(correlation_id) if correlation_id is not None else None
    passed: set[int] = set()
    written = Written(0, Kind.DEQUEUE, name, NO_MESSAGE, 0)
    written.is_try = not even_early
    try:
        while _take(space, branch, written, deadline, message_id, correlation, passed):
            message = fetch(space, branch, written)
            if message is None:
                continue
            if correlation_id is not None and message.correlation_id != correlation_id:
                passed.add(message.seq)
                return_entry(space, branch, written)
                continue
            if together is None:
                space.log.take(branch, (written,), space.epoch)
            else:
                together.append(written)
            assert written.entry is not None
            if written.entry.tries and not even_early:
                with space.lock:
                    space.queue(name).redelivered += 1
            return message
    except BaseException:  # or interrupted: a commit of what was done before is not to consume what nobody got
        try:
            return_taken(space, branch, written)
        except BaseException as error:  # or interrupted once more
            keeps(branch, error)
            raise
        raise
    return None


def take_plain(
    space: Space, branch: Branch, name: str, made: Callable[[MessageId, str, int, bytes, bytes], T]
) -> T | None:
    """Takes the next message: what is made of its id, queue, number, packed properties and body. None where there is
    none, or something else is to be asked or done first, or made raises DamagedBlock; then it has taken nothing."""
    written = Written(0, Kind.DEQUEUE, name, NO_MESSAGE, 0)
    try:
        with space.lock:
            queue = space.queues.get(name) or space.queue(name)
            index = queue.index
            if queue.record is not None or index.clock is not None or space.gates or branch.rollback_reason is not None:
                return None
            written.entry = entry = index.take(space.now_ns() // 1000, holder=branch)
            if index.expired or index.exhausted:
                space.wakes.consumed.wake()  # a dequeue only passes them over
            if entry is None:
                return None
            written.message_id = message_id = entry.message_id
            branch.numbers = written.number = branch.numbers + 1
            branch.blocks.append(written)
        if not (entry.tries or VOLATILE in entry.tags):
            packed, body = many.content(space, queue, entry, may_wait=False)
            answer = made(message_id, name, entry.seq, packed, body)
            space.log.take(branch, (written,), space.epoch)
            return answer
    except (DamagedBlock, OSError):
        pass
    except BaseException:  # or interrupted: a commit of what was done before is not to consume what nobody got
        try:
            return_taken(space, branch, written)
        except BaseException as error:  # or interrupted once more
            keeps(branch, error)
            raise
        raise
    return_entry(space, branch, written)
    return None


def _message(message_id: MessageId, queue: str, seq: int, packed: bytes, body: bytes, tries: int = 0) -> Message:
    stored = stored_in(packed)
    owner = stored.get("queue")
    if owner != queue:
        if owner != "":  # several queues have it: none is named
            raise DamagedBlock(f"belongs to queue {owner!r}, not {queue!r}")
        stored["queue"] = queue
    if tries:
        stored["tries"] = tries
    return stored_message(message_id, queue, seq, body, stored)


def browse(space: Space, name: str, limit: int | None, id_digits: str = "") -> Iterator[Message]:
    """What is committed, in the order of the queue; see ``ResourceManager.browse``."""
    space.definitions.find(name)
    with space.lock:
        space.check_readable()
        why = space.why_shut(name) if space.gates else None
        if why is not None:
            raise why
        queue = space.queue(name)
        while not _is_told(space, queue, now := space.now_us()):
            _wait(queue, BREATH_S)
        entries = queue.index.entries(now)
    if id_digits:
        entries = (entry for entry in entries if entry.message_id.hex().startswith(id_digits))
    return _read_each(space, name, entries, limit)


def _read_each(space: Space, name: str, entries: Iterator[Entry], limit: int | None) -> Iterator[Message]:
    shown = 0
    for entry in entries:
        if limit is not None and shown >= limit:
            return
        queue = space.queues[name]
        try:
            message = _read(space, queue, entry)
            for gate in space.gates:
                gate.passes(message)
        except FileNotFoundError:
            continue  # consumed meanwhile
        except (DamagedBlock, OSError) as error:
            if entry.message_id not in queue.index:
                continue  # likewise, and its block was made smaller
            if not isinstance(error, DamagedBlock) and error.errno not in DAMAGE:
                raise space.unread(queue.path_of(entry), error) from error
            log.warning(
                "[message-damaged] message %s of queue %s is passed over, see `xaqueue check`: %s",
                entry.message_id.hex(),
                name,
                error,
            )
            continue  # for the next dequeue to set aside
        shown += 1
        yield message


def _read(space: Space, queue: Queue, entry: Entry) -> Message:
    """Raises DamagedBlock, OSError."""
    packed, body = many.content(space, queue, entry)
    return _message(entry.message_id, queue.name, entry.seq, packed, body, entry.tries)


def message_of(queue: str, seq: int, message_id: MessageId, data: bytes, tries: int = 0) -> Message:
    """The message that a file's bytes are, which has had so many tries. Raises DamagedBlock."""
    found, packed, body = split_message(data)
    if found != message_id:
        check_message(decode(data), queue, message_id)
    return _message(message_id, queue, seq, packed, body, tries)


def _take(
    space: Space,
    branch: Branch,
    written: Written,
    deadline: float | None,
    message_id: bytes | None,
    correlation: str | None,
    passed: Collection[int],
) -> bool:
    """Locks the next message for the branch, waiting for one until the deadline; False without one. What is written of
    it has it at once: an interrupt never leaves it locked for nobody."""
    with space.lock:
        queue = space.queues.get(written.queue) or space.queue(written.queue)
        while True:
            if space.log.failure is not None:
                space.check()
            if branch.rollback_reason is not None:
                raise branch.rollback_reason
            if queue.record is not None and queue.keeper is not None:
                raise queue.keeper.refusal()
            if space.gates and _is_shut(space, queue, deadline):
                continue
            now = space.now_ns() // 1000
            if queue.index.clock is not None and not _is_told(space, queue, now):
                _wait(queue, BREATH_S)
                continue
            written.entry = entry = queue.index.take(
                now,
                message_id=message_id,
                correlation=correlation,
                passed=passed,
                holder=branch,
                even_early=not written.is_try,
            )
            if queue.index.expired or queue.index.exhausted:
                space.wakes.consumed.wake()  # a dequeue only passes them over
            if entry is not None:
                written.message_id = entry.message_id
                branch.numbers = written.number = branch.numbers + 1
                branch.blocks.append(written)
                return True
            if queue.index.is_unfinished:
                _wait(queue, BREATH_S)
                continue
            left = deadline - time.monotonic() if deadline is not None else 0.0
            if left <= 0 or space.draining:
                return False
            due = queue.index.next_due(message_id=message_id, correlation=correlation)
            if due is not None and due > now:
                left = min(left, (due - now) / 1e6 + 0.001)
            _wait(queue, min(left, LOOK_S))


def _is_told(space: Space, queue: Queue, now: int) -> bool:
    """Whether the index knows all that has expired. Called with the lock held."""
    clock = queue.index.clock
    return clock is None or clock.due > now or clock.strike(space, queue, now)


def _is_shut(space: Space, queue: Queue, deadline: float | None) -> bool:
    """Whether it has waited for a gate to open, and is to look again. Called with the lock held.

    At the deadline it raises why.
    """
    why = space.why_shut(queue.name)
    if why is None:
        return False
    left = deadline - time.monotonic() if deadline is not None else 0.0
    if left <= 0 or space.draining:
        raise why
    _wait(queue, min(left, LOOK_S))
    return True


def _wait(queue: Queue, seconds: float) -> None:
    """Called with the lock held."""
    queue.waiters += 1
    queue.takers += 1
    try:
        queue.arrived.wait(seconds)
    finally:
        queue.waiters -= 1
        queue.takers -= 1


def fetch(space: Space, branch: Branch, written: Written, *, is_held: bool = False) -> Message | None:
    """Reads a locked message; None when it is damaged or gone, and then it has left the queue. is_held: where an error
    is raised it is locked still, and not given back.
    """
    entry = written.entry
    assert entry is not None
    reason, queue = "", space.queues[written.queue]
    try:
        message = _read(space, queue, entry)
        for gate in space.gates:
            gate.passes(message)
        return message  # noqa: TRY300
    except DamagedBlock as damage:
        reason = str(damage)
    except OSError as error:
        path = queue.path_of(entry)
        if is_damage(space.fs, path, error):
            reason = f"cannot be read: {error.strerror}"
        elif error.errno == errno.ENOENT:
            log.error("[message-gone] message file %s is gone: something else removed it", path)
        else:
            if not is_held:
                return_entry(space, branch, written)
            raise space.unread(path, error) from error
    if reason:
        try:
            space.settle()
            if not (queue.blocks and many.set_aside(space, queue, entry, reason)):
                _set_aside(space, queue, entry, reason)
        except RetryLater:
            if not is_held:
                return_entry(space, branch, written)
            raise
    return_entry(space, branch, written, gone=True)
    return None


def return_entry(space: Space, branch: Branch, written: Written, *, gone: bool = False) -> None:
    """This dequeue did not happen; it is none from here on."""
    with space.lock:
        queue, entry = space.queue(written.queue), written.entry
        assert entry is not None
        try:
            if gone:
                block = queue.block_of(entry.seq) if queue.blocks else None
                if block is not None and not block.gone & block.bits(entry):
                    block.left += 1  # it has not left that, but gone with it: no step is on its way
                if queue.consumed(entry):
                    space.wakes.consumed.wake()
            else:
                release_locked(queue, entry)
        except BaseException:
            if not gone:  # interrupted: once more, while nobody can come between
                release_locked(queue, entry)
                queue.index.begin_again()
            raise
        finally:
            if written in branch.blocks:
                branch.blocks.remove(written)
            written.entry = None


def release_locked(queue: Queue, entry: Entry) -> None:
    for one in queue.index.expand(entry) if type(entry) is Run else (entry,):
        queue.index.release(one)
    queue.arrived.notify_all()  # somebody may have passed it over


def return_taken(space: Space, branch: Branch, *taken: Written) -> None:
    """These are back, as far as they are not yet, the last one first. Where it raises, see ``keeps``."""
    for written in reversed(taken):
        if written.entry is not None:
            try:
                if space.failure is None:
                    space.log.return_untried(written)  # before who else takes it: a kill from here on counts no try
            finally:
                return_entry(space, branch, written)
                if written.path:
                    space.discard([written.path])


def keeps(branch: Branch, error: BaseException) -> None:
    """Something of what nobody got was not given back, and is not to be consumed by a commit."""
    why = f"what it took was not given back: {str(error) or type(error).__name__}"
    branch.doom(f"is rolled back: {why}", Code.XA_RBOTHER)


def _set_aside(space: Space, queue: Queue, entry: Entry, reason: str) -> None:
    """Quarantines a message; the record of its tries goes. RetryLater without room, and nothing was done."""
    path = queue.path_of(entry)
    with space.fencing(f"to set {path} aside", f"it is damaged: {reason}"):
        target = quarantine.move(space.fs, path, reason, space.now_us())
    if entry.retry is not None:
        with space.fencing():
            discard(space.fs, layout.retry_path(queue.name, entry.seq, entry.message_id))
    space.report.quarantined.append(f"{path}: {reason}")
    log.error("[quarantined] %s as %s: %s", path, target, reason)
    space.log.sync_names((layout.QUARANTINE, path.rpartition("/")[0]))
