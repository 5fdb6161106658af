"""The methods of a branch's life and of its messages: the XA verbs, what became of a branch, enqueue, dequeue, browse.

On the client ``start``, ``end`` and the work between them are pipelined; ``prepare`` or ``commit`` brings the answer
for all of them. What each does in which state of the branch is the table in ``xaqueue.rpc.client.branch``.

Options are a map; a browse is answered in pages, under a cursor as long as there are more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from xaqueue import carried
from xaqueue.carried import Carriers, CarrierStatus
from xaqueue.errors import (
    ConnectionLost,
    Error,
    InvalidArgument,
    MessageTooLarge,
    OutcomeUnknown,
    ProtocolError,
    RolledBack,
    UnknownXid,
)
from xaqueue.message import (
    PLAIN_OPTIONS,
    EnqueueOptions,
    Message,
    MessageId,
    check_message_id,
    check_queue_name,
    id_digits_of,
    id_of,
    properties_of,
    restored,
)
from xaqueue.rpc import wire
from xaqueue.rpc.client.branch import TRANSITIONS, Action, BranchProgress, RemoteBranch, Verb, unknown
from xaqueue.rpc.client.link import Link
from xaqueue.rpc.wire import PAGE, xid_of
from xaqueue.space.model.block import decode_head, pack_properties, property_map, repacked
from xaqueue.storage.ids import fresh_id
from xaqueue.times import check_seconds
from xaqueue.xa import Flag, Outcome, Vote
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from xaqueue.rpc.server.peer import Caller

MANY_OPTIONS = tuple(name for name in PLAIN_OPTIONS if name != "message_id")
DEQUEUE_OPTIONS = ("wait_s", "message_id", "correlation_id")
CURSORS = 16
"""Open browses of one session, at most."""
PAGE_BYTES = 1024 * 1024
"""Of bodies in one answer, after which it ends."""

# On the server: what is more than the same call of a session


def recover(caller: Caller, count: Any = PAGE, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
    if type(count) is not int or count > PAGE:
        raise InvalidArgument(f"recover of {count!r} xids: a number from 0 to {PAGE} is wanted")
    return caller.session.recover(count, flags)


def enqueue(caller: Caller, queue: str, body: Any, options: Any = None) -> bytes:
    given = {} if options is None else wire.options_of(options, "enqueue", PLAIN_OPTIONS)
    if "failure_queue" in given:
        _check_failure_queue(caller, given["failure_queue"])
    return caller.session.enqueue(queue, body, **given)


def dequeue(caller: Caller, queue: str, options: Any = None) -> Any:
    given = {} if options is None else wire.options_of(options, "dequeue", DEQUEUE_OPTIONS)
    message = caller.session.dequeue(queue, **given)
    return None if message is None else wire.message_to(message)


def enqueue_many(caller: Caller, queue: str, ids: Any, bodies: Any, options: Any = None) -> list[MessageId]:
    given = {} if options is None else wire.options_of(options, "enqueue_many", MANY_OPTIONS)
    if "failure_queue" in given:
        _check_failure_queue(caller, given["failure_queue"])
    is_right = isinstance(bodies, list) and (ids is None or (isinstance(ids, list) and len(ids) == len(bodies)))
    if not is_right or len(bodies) > PAGE:
        raise InvalidArgument(f"enqueue_many is refused: ids (or nil) and as many bodies, at most {PAGE}, are wanted")
    return caller.session.enqueue_many(queue, bodies, ids, **given)


def enqueue_to(caller: Caller, queues: Any, body: Any, options: Any = None) -> bytes:
    given = {} if options is None else wire.options_of(options, "enqueue_to", PLAIN_OPTIONS)
    if "failure_queue" in given:
        _check_failure_queue(caller, given["failure_queue"])
    return caller.session.enqueue_to(queues, body, **given)


def publish(caller: Caller, topic: str, body: Any, options: Any = None) -> bytes:
    """Whoever may produce to the topic need not know who subscribes."""
    given = {} if options is None else wire.options_of(options, "publish", PLAIN_OPTIONS)
    if "failure_queue" in given:
        _check_failure_queue(caller, given["failure_queue"])
    return caller.session.publish(topic, body, **given)


def dequeue_many(caller: Caller, queue: str, count: Any, options: Any = None) -> tuple[bool, list[Any]]:
    """Whether there may be more, for want of which it did not end, and the messages."""
    given = {} if options is None else wire.options_of(options, "dequeue_many", ("wait_s",))
    if type(count) is not int or count < 1:
        raise InvalidArgument(f"dequeue_many of {count!r} messages: a number from 1 is wanted")
    found = caller.session.dequeue_many(queue, min(count, PAGE), most_bytes=PAGE_BYTES, **given)
    is_full = len(found) == PAGE or sum(len(message.body) for message in found) >= PAGE_BYTES
    return is_full and len(found) < count, [wire.message_to(message) for message in found]


def move(caller: Caller, queue: str, message_id: Any, to: Any = None) -> bytes | None:
    """Whoever moves a message must be allowed to add it there."""
    target = None if to is None else check_queue_name(to)
    return caller.session.move(queue, message_id, target, lambda name: _check_produce(caller, name))


def _check_produce(caller: Caller, queue: str) -> None:
    if not caller.identity.owner:
        caller.check("enqueue", [queue])


def _check_failure_queue(caller: Caller, queue: Any) -> None:
    """Whoever adds a message that names where it goes at last must be allowed to add it there."""
    if queue is not None:
        _check_produce(caller, check_queue_name(queue))


def restore(caller: Caller, queue: str, message_id: Any, properties: Any, body: Any) -> bool:
    """Whoever adds a message that says where it was must be allowed to add it there, where a requeue brings it."""
    if not isinstance(properties, dict):
        raise InvalidArgument("properties are refused: a map, as in a command block, is wanted")
    message = Message(check_message_id(message_id), queue, 0, body, restored(queue, properties))
    _check_failure_queue(caller, message.properties.failure_queue)
    if message.origin is not None and message.origin.queue:
        _check_produce(caller, check_queue_name(message.origin.queue))
    return caller.session.restore(queue, message)


def browse(caller: Caller, queue: str, limit: Any = None, id_digits: Any = "") -> tuple[int | None, list[Any]]:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument(f"limit {limit!r} is refused: a number from 0, or nil, is wanted")
    found = caller.session.browse(queue, limit, id_digits_of(id_digits or None))
    if len(caller.browses) >= CURSORS:
        raise InvalidArgument(f"a session has {CURSORS} browses open at most: read one to its end")
    caller.last_cursor += 1
    caller.browses[caller.last_cursor] = found
    return _page(caller, caller.last_cursor)


def browse_next(caller: Caller, cursor: Any) -> tuple[int | None, list[Any]]:
    if type(cursor) is not int or cursor not in caller.browses:
        raise InvalidArgument(f"browse {cursor!r} is not open: it ended, or was never begun in this session")
    return _page(caller, cursor)


def browse_end(caller: Caller, cursor: Any) -> None:
    caller.browses.pop(cursor if type(cursor) is int else 0, None)


def _page(caller: Caller, cursor: int) -> tuple[int | None, list[Any]]:
    """The next messages of a browse; without a cursor they are the last."""
    found, size = [], 0
    browse = caller.browses.pop(cursor)  # and not put back where it is over, or cannot go on
    for message in islice(browse, PAGE):
        found.append(wire.message_to(message))
        size += len(message.body)
        if size >= PAGE_BYTES:
            break
    if len(found) < PAGE and size < PAGE_BYTES:
        return None, found
    caller.browses[cursor] = browse
    return cursor, found


def deliver(
    caller: Caller, carrier: str, secret: Any, changes: Any, highest: Any, count: Any, more: Any = False
) -> bool:
    if not isinstance(changes, list) or not all(isinstance(one, bytes) for one in changes):
        raise InvalidArgument("changes are refused: a list of what a database has carried, in bytes, is wanted")
    if not caller.identity.owner:
        for change in map(carried.decode, changes):  # as if each was done by its own call
            for head, _ in change.added:
                properties = decode_head(head).properties
                caller.check("enqueue", [properties.queue])
                _check_failure_queue(caller, properties.failure_queue)
            for queue, _ in change.taken:
                caller.check("dequeue", [queue])
    return caller.session.deliver(carrier, secret, changes, highest, count, more)


BRANCH_METHODS = (
    *(deliver, recover, enqueue, enqueue_many, enqueue_to, publish, dequeue, dequeue_many, move, restore),
    *(browse, browse_next, browse_end),
)

# On the client


class BranchCalls(Link):
    """The part of a RemoteManager that is about branches and messages."""

    def start(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        """Pipelined; with flags it is asked, since there is something to find."""
        if self._socket is None or self._socket.is_stale:
            self._reconnect()
        sends = -1 if flags or self._socket is None else self._socket.sends
        self._branch = RemoteBranch(xid, BranchProgress.OPEN, None, None if flags else self._key, sends)
        if flags:
            self._ask("start", xid, flags, timeout_s)
        elif timeout_s is None:
            self._pipeline("start", xid)
        else:
            self._pipeline("start", xid, 0, timeout_s)

    def end(self, xid: Xid, flags: Flag = Flag.SUCCESS) -> None:
        branch = self._branch
        own = xid == branch.xid
        if own and TRANSITIONS[branch.progress, Verb.END][0] is Action.REFUSE:
            raise branch.refusal()
        if own and flags == Flag.SUCCESS:
            self._pipeline("end", xid)
        else:
            self._ask("end", xid, flags)

    def prepare(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> Vote:
        """From its answer on the branch does not depend on this session."""
        return Vote(self._decide(Verb.PREPARE, xid, flags))

    def commit(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self._decide(Verb.COMMIT, xid, flags)

    def harden(self) -> None:
        self.call("harden")

    def carriers(self) -> Carriers:
        return wire.decode(Carriers, self.call("carriers"))

    def deliver(
        self, carrier: str, secret: str, changes: Sequence[bytes], highest: int, count: int, more: bool = False
    ) -> bool:
        return bool(self.call("deliver", carrier, secret, list(changes), highest, count, more))

    def release_carrier(self, carrier: str) -> CarrierStatus | None:
        answer = self.call("release_carrier", carrier)
        return None if answer is None else wire.decode(CarrierStatus, answer)

    def rollback(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        branch = self._branch
        own = xid == branch.xid
        if not own or TRANSITIONS[branch.progress, Verb.ROLLBACK][0] is not Action.NOTHING:
            self._roll_back(xid, flags, branch if own else RemoteBranch(xid, BranchProgress.OPEN))
        if own:
            self._branch = RemoteBranch()

    def define(self, queue: str, settings: Mapping[str, Any], is_topic: bool = False) -> None:
        self.call("define", queue, dict(settings), *([True] if is_topic else []))

    def undefine(self, queue: str) -> None:
        self.call("undefine", queue)

    def recover(self, count: int, flags: Flag = Flag.NOFLAGS) -> list[Xid]:
        return [xid_of(value) for value in self.call("recover", count, flags)]

    def forget(self, xid: Xid, flags: Flag = Flag.NOFLAGS) -> None:
        self.call("forget", xid, flags)

    def outcome(self, xid: Xid) -> Outcome:
        return Outcome(self.call("outcome", xid))

    def enqueue(self, queue: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        if self._closed or self._branch.why is not None:
            self._check_working()
        checked = properties_of(queue, 0, options)
        if not isinstance(body, bytes) or not self._is_known(queue):
            return MessageId(self._ask("enqueue", queue, body, options))  # the server says what is wrong
        if options:
            pack_properties(checked)  # raises MessageTooLarge
        if len(body) > self.space["max_body_bytes"]:
            raise self._too_large(len(body))
        given = options.get("message_id")
        if checked.dedup_key is not None and given is None:  # the server may know the first one of its key
            return MessageId(self._ask("enqueue", queue, body, options))
        if given is not None:
            return MessageId(self._ask("enqueue", queue, body, {**options, "message_id": id_of(given)}))
        message_id = MessageId(fresh_id())
        self._pipeline("enqueue", queue, body, {**options, "message_id": message_id})
        return message_id

    def enqueue_many(self, queue: str, bodies: Sequence[bytes], **options: Unpack[EnqueueOptions]) -> list[MessageId]:
        """Pipelined, as few frames as hold them; with a dedup_key asked: the server may know the first one of it."""
        if self._closed or self._branch.why is not None:
            self._check_working()
        checked = properties_of(queue, 0, options)
        pack_properties(checked)
        sizes = [len(body) for body in bodies]
        if sizes and max(sizes) > self.space["max_body_bytes"]:
            raise self._too_large(max(sizes))
        if not self._is_known(queue):
            self._ask("enqueue_many", queue, None, [], options)  # the server says what is wrong
        ids = [MessageId(fresh_id()) for _ in bodies]
        most_bytes, first, size = min(PAGE_BYTES, self.space["max_body_bytes"]), 0, 0
        for number, size_bytes in enumerate([*sizes, most_bytes + 1]):
            if number > first and (size + size_bytes > most_bytes or number - first == PAGE):
                call = "enqueue_many", queue, ids[first:number], bodies[first:number], options
                if checked.dedup_key is None:
                    self._pipeline(*call)
                else:
                    ids[first:number] = map(MessageId, self._ask(*call))
                first, size = number, 0
            size += size_bytes
        return ids

    def enqueue_to(self, queues: Sequence[str], body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        return self._ask_to_add("enqueue_to", list(queues), body, options)

    def publish(self, topic: str, body: bytes, **options: Unpack[EnqueueOptions]) -> MessageId:
        return self._ask_to_add("publish", topic, body, options)

    def _ask_to_add(self, verb: str, to: str | list[str], body: bytes, options: EnqueueOptions) -> MessageId:
        if self._closed or self._branch.why is not None:
            self._check_working()
        if len(body) > self.space["max_body_bytes"]:
            raise self._too_large(len(body))
        return MessageId(self._ask(verb, to, body, options))

    def _is_known(self, queue: str) -> bool:
        return self.space["any_queue"] or queue in self.space["queues"]

    def _too_large(self, size_bytes: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"body of {size_bytes:,} bytes is over the limit of {self.space['max_body_bytes']:,}: "
            "raise [space] max_body_bytes in queues.toml, or send a reference to the content"
        )

    def dequeue_many(self, queue: str, count: int, *, wait_s: float | None = 0.0) -> list[Message]:
        if self._closed or self._branch.why is not None:
            self._check_working()
        found: list[Message] = []
        more, limit_s = True, check_seconds("wait_s", wait_s)
        while more and len(found) < count:
            waits_s = 0.0 if found else limit_s
            try:
                more, page = self._ask("dequeue_many", queue, count - len(found), {"wait_s": waits_s}, waits_s=waits_s)
            except Error as error:
                if not found or isinstance(error, ConnectionLost):
                    raise
                break  # those are taken; the next call says what is wrong
            found += map(wire.message_of, page)
        return found

    def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        if self._closed or self._branch.why is not None:
            self._check_working()
        limit_s = check_seconds("wait_s", wait_s)
        if limit_s or message_id is not None or correlation_id is not None:
            options = {"wait_s": limit_s, "message_id": message_id, "correlation_id": correlation_id}
            given = {name: value for name, value in options.items() if value is not None and value != 0}
            answer = self._ask("dequeue", queue, given, waits_s=limit_s)
        else:
            answer = self._ask("dequeue", queue)
        return None if answer is None else wire.message_of(answer)

    def move(self, queue: str, message_id: bytes, to: str | None = None) -> MessageId | None:
        if self._closed or self._branch.why is not None:
            self._check_working()
        answer = self._ask("move", queue, message_id, to)
        return None if answer is None else MessageId(answer)

    def remove(self, queue: str, message_id: bytes) -> bool:
        if self._closed or self._branch.why is not None:
            self._check_working()
        return bool(self._ask("remove", queue, message_id))

    def restore(self, queue: str, message: Message) -> bool:
        if self._closed or self._branch.why is not None:
            self._check_working()
        properties, _ = repacked(queue, message.properties)
        return bool(self._ask("restore", queue, message.message_id, property_map(properties), message.body))

    def browse(self, queue: str, limit: int | None = None, id_digits: str = "") -> Iterator[Message]:
        return self._pages(*self.call("browse", queue, limit, id_digits))

    # Within

    def _pages(self, cursor: int | None, page: list[Any]) -> Iterator[Message]:
        socket = self._socket
        try:
            while True:
                yield from map(wire.message_of, page)
                if cursor is None:
                    return
                if self._socket is not socket:
                    raise ConnectionLost("the connection was lost while browsing: browse again")
                cursor, page = self._ask("browse_next", cursor)
        finally:
            if cursor is not None and socket is not None:  # broken off; perhaps by the collector, anywhere
                socket.pipeline("browse_end", (cursor,), later=True)

    def _decide(self, verb: Verb, xid: Xid, flags: Flag, *, undone: bool = False) -> Any:
        """Prepares or commits, for which it connects again where it must. A lost answer leaves the outcome unknown.

        undone: that a call before this one has not done it was asked already.
        """
        branch = self._branch
        own = xid == branch.xid
        if own and not undone:
            action, _ = TRANSITIONS[branch.progress, verb]
            if action is Action.ASK_OUTCOME:
                return self._ask_outcome(verb, xid, flags)
            if action is Action.REFUSE:
                raise branch.refusal()
        if self._socket is None or self._socket.is_stale:
            unsent = self._socket.unsent if self._socket is not None and self._socket.sends == branch.sends else b""
            self._reconnect()
            if own and unsent and self._socket is not None:  # no server knows of it: it begins there, with the same ids
                branch.begin_anew(self._key)
                self._socket.unsent += unsent
        before = asked = branch.progress
        if own:
            action, asked = TRANSITIONS[before, verb]
            if action is Action.REFUSE:  # it was found lost just now
                raise branch.refusal()
            branch.progress = asked
        try:
            answer = self._ask(verb.value, xid, flags) if flags else self._ask(verb.value, xid)
        except ConnectionLost as lost:
            raise unknown(verb.value, xid, lost) from lost
        except Error:
            if own and branch.progress is asked:
                branch.progress = before
            raise
        if own:
            self._branch = RemoteBranch()
        return answer

    def _ask_outcome(self, verb: Verb, xid: Xid, flags: Flag) -> Any:
        """While the lost session is in the branch still, it is waited for."""
        why: Error
        try:
            for _ in self._tries():
                try:
                    return self._finish(verb, xid, flags)
                except ProtocolError as early:
                    why = early
        except OutcomeUnknown:
            raise
        except ConnectionLost as lost:
            why = lost
        raise unknown(verb.value, xid, why) from why

    def _finish(self, verb: Verb, xid: Xid, flags: Flag) -> Any:
        """What was done by a call whose answer was lost is not done again."""
        if not self._is_done(verb, xid):
            try:
                return self._decide(verb, xid, flags, undone=True)
            except UnknownXid as gone:  # meanwhile, or before anybody remembers
                if not self._is_done(verb, xid):
                    if verb is Verb.PREPARE:
                        raise RolledBack(f"branch {xid} is rolled back, or had no work: the server has none") from gone
                    raise unknown(verb.value, xid, gone) from gone
        self._branch = RemoteBranch()
        return Vote.OK

    def _is_done(self, verb: Verb, xid: Xid) -> bool:
        """A branch that somebody else committed was prepared: the second phase tells. Raises RolledBack.

        What an earlier life of the xid came to is no answer: this one may never have reached the server.
        """
        branch = self._branch
        begun_by = branch.begun_by if branch.xid == xid else None
        found = self.outcome(xid) if begun_by is None else Outcome(self.call("outcome", xid, begun_by))
        if found is Outcome.ROLLED_BACK:
            raise RolledBack(f"branch {xid} was rolled back: the {verb.value} got lost, or its session")
        return found is Outcome.COMMITTED or (found is Outcome.IN_DOUBT and verb is Verb.PREPARE)

    def _roll_back(self, xid: Xid, flags: Flag, branch: RemoteBranch) -> None:
        refused: Error
        for _ in self._tries():
            try:
                self.call("rollback", xid, flags)
            except ConnectionLost as lost:
                raise unknown("rollback", xid, lost) from lost
            except (UnknownXid, ProtocolError) as error:
                action, _ = TRANSITIONS[branch.progress, Verb.ROLLBACK]
                if action not in (Action.ASK_WHERE_LEFT, Action.ASK_UNTIL_LEFT):
                    raise
                if action is Action.ASK_WHERE_LEFT or isinstance(error, UnknownXid):
                    return
                refused = error
            else:
                return
        raise unknown("rollback", xid, refused) from refused
