"""A second message of one dedup_key comes to nothing, where its queue has a window: which one that is, decided once.

    enqueue    a key that is known gives the first one's id, and adds nothing
    decide     before a prepare, a vote or a commit in one phase: what became known since is left out of the branch, and
               it claims its other keys. What a branch in doubt claims nobody can decide: the work is to be done again
    commit     its record in .dedup/ is part of the change, so the key is known exactly if the message is committed
    rollback   the claims are given up

All keys of a branch are claimed at once, or none, so nobody who claims one waits for another. A branch with keys is
prepared with a branch block even if it has one block: that says which of its messages claim theirs, whatever the level
of the next open. Where files are the record of a branch, its .commit is on disk before message and record move, and
goes behind both. So no crash leaves a record without its message, which would swallow the next try.

Branches of one batch do not refuse each other: an attempt that is written again is in no list. Of those that are
committed together, the first has the message. What is moved to another queue is the same message: it claims nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappush
from typing import Any

from xaqueue.batch import is_of_a_batch
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout, records
from xaqueue.core.model.block import Block, Head, Kind, encode_with_checksum
from xaqueue.core.model.branch import Branch, Call, Rider, State, Written
from xaqueue.core.model.change import DROP, PUT, Change, CoreStep, Op
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import InvalidArgument, RetryLater, RolledBack
from xaqueue.features.dedup.options import WINDOW_S
from xaqueue.features.dedup.values import Keys, Seen, hash_of
from xaqueue.message import MessageId, Properties
from xaqueue.xa import Code

PIECE = 256
"""Records that are removed in one step."""


KEYS = ".dedup"
"""In the directory of a queue: that it has seen a key says a block of kind *update* there, for as long as its window
lasts. Its name tells it all: when the window ends, a hash of the key, and the id of the message."""
KEY = re.compile(r"([0-7][0-9a-f]{15})\.([0-9a-f]{32})\.([0-9a-f]{32})")


def keys_path(queue: str) -> str:
    return f"{layout.queue_path(queue)}/{KEYS}"


def key_path(queue: str, until_us: int, key: bytes, message_id: bytes) -> str:
    return f"{keys_path(queue)}/{until_us:016x}.{key.hex()}.{message_id.hex()}"


def parse_key(name: str) -> tuple[int, bytes, MessageId] | None:
    """What ``key_path`` was made of."""
    match = KEY.fullmatch(name)
    return (int(match[1], 16), bytes.fromhex(match[2]), MessageId(bytes.fromhex(match[3]))) if match else None


def _encode(queue: str, seen: Seen, epoch: int) -> bytes:
    """The record of a key, which nobody reads: its name says the same."""
    head, _ = encode_with_checksum(
        Block(Kind.UPDATE, seen.message_id, Properties(queue, expires_at=seen.until_us), epoch=epoch)
    )
    return head


def read_keys(fs: FileSystem, queue: str, damaged: Callable[[str, str], object]) -> list[Seen]:
    """The keys that a queue has seen, by the names of their records. ``damaged``: called with paths
    that are none, and why."""
    directory = keys_path(queue)
    found = []
    for name in records.names_in(fs, directory, "keys", damaged):
        parsed = parse_key(name)
        if parsed is None:
            damaged(f"{directory}/{name}", "no record of a key: its name is not <end>.<hash>.<message id>")
        else:
            found.append(Seen(*parsed))
    return found


def window_s(queue: Queue) -> float:
    return WINDOW_S.of(queue.definition)


def admit(space: Space, branch: Branch, name: str, message_id: MessageId, properties: Properties) -> MessageId | None:
    """Raises InvalidArgument for a message that its key would outlive."""
    key = properties.dedup_key
    if key is not None and not properties.persistent and window_s(space.queue(name)):
        raise InvalidArgument(
            f"persistent=False and a dedup_key are refused in queue {name}, which has a dedup_window_s: the key would "
            "outlive the message, and later ones of it come to nothing. Give one of the two"
        )
    return None if key is None else known(space, branch, name, hash_of(key))


def known(space: Space, branch: Branch, name: str, key: bytes) -> MessageId | None:
    """The message of this key that is committed, or that the branch has added before; None: this one is to be added."""
    with space.lock:
        queue = space.queue(name)
        if not window_s(queue):
            return None
        return keys_of(queue).find(key, space.now_us()) or claims_of(branch).keys.get((name, key))


def keys_of(queue: Queue) -> Keys:
    """Those that it has seen. The space's lock is held."""
    return queue.memory_of(Keys)


def key_of(head: Head) -> bytes:
    """The hash of its dedup_key; empty where it has none."""
    return hash_of(head.properties.dedup_key) if head.properties.dedup_key is not None else b""


def recover_key(space: Space, branch: Branch, written: Written, key: bytes) -> None:
    """Of a block that was found, or handed in, and claims this: its branch has decided before. Called with the lock
    held, or alone."""
    queue = space.queue(written.queue)
    if key and window_s(queue):
        claims = claims_of(branch)
        claims.numbers[written.number] = key
        claims.keys[queue.name, key] = written.message_id
        keys_of(queue).claim(key, branch)


class Claims(Rider):
    """What a branch has added with keys."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, bytes], MessageId] = {}
        """By queue and hash of a dedup_key the message."""
        self.numbers: dict[int, bytes] = {}
        """The keys by the numbers of their blocks."""
        self.records: dict[int, Seen] = {}
        """By the number of its block, once its commit has begun."""

    def added_locked(self, space: Space, branch: Branch, written: Written, wanted: Properties | None) -> None:
        if wanted is not None and wanted.dedup_key is not None and window_s(space.queues[written.queue]):
            self.numbers[written.number] = key = hash_of(wanted.dedup_key)
            self.keys.setdefault((written.queue, key), written.message_id)  # another session may have added one

    def cut_locked(self, space: Space, branch: Branch) -> None:
        left = {one.number: one for one in branch.blocks if one.number in self.numbers}
        self.numbers, self.keys = {number: self.numbers[number] for number in left}, {}
        for number, written in left.items():
            self.keys.setdefault((written.queue, self.numbers[number]), written.message_id)

    def listed(self) -> Mapping[int, bytes]:
        return self.numbers

    def decide(self, space: Space, branch: Branch, call: Call) -> None:
        """Raises RolledBack where the work is to be done again, ResourceFailed."""
        if call is Call.ROLLBACK or branch.base is not State.ACTIVE:
            return
        with space.lock:
            while (holder := self._holder_locked(space, branch)) is not None:
                if not holder.busy:
                    raise _transient(
                        branch, f"branch {holder.xid} is in doubt, and has a message of the same dedup_key"
                    )
                space.wait_settled()
            now_us = space.now_us()
            for name, key in list(self.keys):
                queue = space.queues[name]
                if keys_of(queue).find(key, now_us) is None:
                    keys_of(queue).claim(key, branch)
                else:
                    del self.keys[name, key]
            left_out = [
                one
                for one in branch.blocks
                if (asked := self.numbers.get(one.number)) and self.keys.get((one.queue, asked)) != one.message_id
            ]
            for written in left_out:
                space.queues[written.queue].withdraw(written.message_id)
                del self.numbers[written.number]
            if left_out:
                numbers = {written.number for written in left_out}
                branch.blocks = [one for one in branch.blocks if one.number not in numbers]
        space.discard([written.path for written in left_out if written.path])
        for written in left_out:
            written.path = ""  # whose content is the same has a file of its own

    def _holder_locked(self, space: Space, branch: Branch) -> Branch | None:
        """Another branch that claims one of its keys. Raises RolledBack where nobody knows who does."""
        now_us = space.now_us()
        for name, key in self.keys:
            keys = keys_of(space.queues[name])
            if keys.find(key, now_us) is not None:
                continue
            who = next((who for gate in space.gates if (who := gate.hides(name))), "")
            if who:
                why = f"{who} may have a message of the same dedup_key for queue {name}"
                raise _transient(branch, f"{why}, and was not asked yet")
            for holder in keys.claims.get(key, ()):
                if holder is not branch and not (holder.xid.gtrid == branch.xid.gtrid and is_of_a_batch(branch.xid)):
                    return holder
        return None

    def stage(self, space: Space, branch: Branch, together: dict[Any, Any]) -> None:
        """The windows of its keys begin."""
        now_us = space.now_us()
        for written in branch.blocks if self.keys else ():
            key = self.numbers.get(written.number)
            if key is None:
                continue
            queue = space.queues[written.queue]
            if is_of_a_batch(branch.xid):
                first = keys_of(queue).find(key, now_us) or written.message_id
                claim = "dedup", queue.name, key
                if first != written.message_id or together.setdefault(claim, written) is not written:
                    written.entry = None  # another branch of its batch has it
                    del self.numbers[written.number]
                    self.records.pop(written.number, None)
                    with space.lock:
                        queue.withdraw(written.message_id)
                    continue
            if written.number not in self.records and (until_us := _until_us(queue, now_us)):
                self.records[written.number] = Seen(until_us, key, written.message_id)
            if written.number in self.records and not space.log.is_atomic:
                _, path, head, body, _ = _put_of(space, written.queue, self.records[written.number])
                space.stage(path, head, body)

    def ops(self, space: Space, branch: Branch) -> Sequence[Op]:
        return [_put_of(space, queue, seen) for queue, seen in self._committed(branch)]

    def _committed(self, branch: Branch) -> list[tuple[str, Seen]]:
        """Those whose messages are there: of a damaged branch an operator commits the rest."""
        records = self.records
        found = [one for one in branch.blocks if one.number in records and one.entry is not None]
        return [(one.queue, records[one.number]) for one in found]

    def publish_locked(self, space: Space, branch: Branch) -> None:
        for queue, seen in self._committed(branch):
            _publish_locked(space, queue, seen)

    def release_locked(self, space: Space, branch: Branch) -> None:
        for name, key in self.keys:
            keys_of(space.queues[name]).give_up(key, branch)


def claims_of(branch: Branch) -> Claims:
    """Those of this branch, which has some from now on."""
    for rider in branch.riders:
        if isinstance(rider, Claims):
            return rider
    claims = Claims()
    branch.riders = (*branch.riders, claims)
    return claims


def _transient(branch: Branch, why: str) -> RolledBack:
    again = "Do the work again once that is over"
    return RolledBack(f"branch {branch.xid} is rolled back: {why}. {again}", Code.XA_RBTRANSIENT)


def _until_us(queue: Queue, when_us: int) -> int:
    """The end of a window that begins then; 0 where the queue has none any more."""
    length_s = window_s(queue)
    return when_us + int(length_s * 1_000_000) if length_s else 0


def _put_of(space: Space, queue: str, seen: Seen) -> Op:
    """The record of a message, as its commit puts it."""
    return (PUT, key_path(queue, *seen), _encode(queue, seen, space.epoch), b"", 0)


def _publish_locked(space: Space, queue: str, seen: Seen) -> None:
    keys_of(space.queues[queue]).add(seen)


def restore(space: Space, queue: Queue, key: bytes, head: Head, when_us: int) -> None:
    """A message that claimed this was committed then, and its record may be lost. Raises as ``stage``."""
    now_us = space.now_us()
    until_us = _until_us(queue, max(when_us, head.properties.enqueued_at))  # the time of a file may be lost
    if until_us <= now_us or keys_of(queue).find(key, now_us) is not None:
        return
    seen = Seen(until_us, key, head.message_id)
    _, path, content, body, _ = _put_of(space, queue.name, seen)
    space.put(CoreStep.EXPIRY, queue.name, path, content, body, partial(_publish_locked, space, queue.name, seen))


def clear(space: Space, stopped: Callable[[], bool]) -> bool:
    """Removes records whose window is over; False where it was stopped before. Raises RetryLater, ResourceFailed."""
    for queue in list(space.queues.values()):
        while _clear_piece(space, queue):
            if stopped():
                return False
    return True


def _clear_piece(space: Space, queue: Queue) -> bool:
    with space.lock:
        over = keys_of(queue).pop_over(space.now_us(), PIECE)
    try:
        if over:
            drops = [(DROP, key_path(queue.name, *seen)) for seen in over]
            space.log.perform(Change(CoreStep.EXPIRY, queue.name, (), rest=drops))
    except RetryLater:
        with space.lock:
            for seen in over:
                heappush(keys_of(queue).ends, seen)
        raise
    return bool(over)
